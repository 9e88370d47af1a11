//! A dead-letter queue that roles share which do not trust one another.

use super::*;

/// Application a has the queue `work` with the dead-letter queue `letters`, in which is a document
/// that failed.
async fn failed_document(a: &Session) {
    a.sql(
        "select fetchq.queue_create('work'), fetchq.queue_create('letters');
         select fetchq.queue_configure('work', '{\"dead_letter\": \"letters\"}');
         select fetchq.doc_push('work', 'failed', '{\"pay\": \"ann\"}');
         select fetchq.doc_pick('work', 1); select fetchq.doc_kill('work', 'failed')",
    )
    .await;
}

/// A redrive moves a document to a queue whose dead-letter queue this one is, and into which the
/// caller may push, whatever the document says.
#[tokio::test]
async fn a_forged_origin_pushes_nowhere_else() {
    let (db, admin, a, b) = applications("roles_forge").await;
    failed_document(&a).await;
    a.sql("select fetchq.queue_create('vault'); select fetchq.queue_grant('letters', 'fetchq_app_b', 'manager')")
        .await;
    b.sql(
        "select fetchq.queue_create('mine');
         insert into fetchq_data.letters__docs (subject, status, next_iteration, payload, origin)
         select 'forged ' || q, 1, now(), '{}', jsonb_build_object('queue', q, 'subject', 'forged', 'created_at', 'garbage')
         from unnest('{vault,mine,letters,root,nowhere,\"; drop\"}'::text[]) q",
    )
    .await;
    admin.sql("select fetchq.queue_create('root')").await;
    let forged = "select count(*) from fetchq_data.letters__docs where subject ~ 'forged'";
    let of = |queue: &str| format!("select subject from fetchq_data.{queue}__docs");
    // Neither application b, nor the owner of the queues, nor a superuser moves them.
    for session in [&b, &a, &admin] {
        session
            .sql("begin; select fetchq.queue_redrive('letters', 100)")
            .await;
        assert_eq!(admin.text(forged).await, "6");
        session.sql("commit").await;
        assert_eq!(admin.text(forged).await, "6");
        for queue in ["vault", "mine", "root"] {
            assert_eq!(admin.column(&of(queue)).await, [] as [&str; 0], "{queue}");
        }
    }
    let notices = a.notices();
    let says = |part: &str| notices.iter().any(|n| n.message().contains(part));
    assert!(
        says("another dead-letter queue now") && says("no longer exists"),
        "{notices:?}"
    );
    // What came from `work` has returned there, by application a, and not by application b, who may not
    // push there.
    assert_eq!(admin.column(&of("work")).await, ["failed"]);
    drop((admin, a, b));
    db.remove().await;
}

/// Application b may push into the dead-letter queue, and not into `work`.
const PRODUCER: &str = "select fetchq.queue_grant('letters', 'fetchq_app_b', 'producer')";

/// The documents of `letters` with the queue that they came from, and with their payload.
const LETTERS: &str =
    "select concat_ws(' ', origin ->> 'queue', payload, last_error) from fetchq_data.letters__docs";

/// A dead letter to which a caller gives another payload is a document of the dead-letter queue. A
/// redrive does not bring that payload into a queue into which the caller may not push.
#[tokio::test]
async fn a_new_payload_makes_a_dead_letter_a_document_of_its_queue() {
    let (db, admin, a, b) = applications("roles_payload").await;
    failed_document(&a).await;
    a.sql(&format!(
        "{PRODUCER}; update fetchq_data.letters__docs set last_error = 'why'"
    ))
    .await;
    let forged = "'letters', 'failed', '{\"pay\": \"bob\"}'";
    let put = |rest: &str| format!("select fetchq.doc_put({forged}, mode => {rest})");
    for direct in ["on", "off"] {
        b.sql(&format!("set fetchq.direct = {direct}")).await;
        for (status, call) in [
            (1, put("'replace'")),
            (0, put("'replace', delay => '1 hour'")),
            (1, put("'replace', version => 3")),
            (1, put("'merge'")),
            (1, put("'merge', headers => '{\"h\": 1}'")),
            (1, put("'debounce'")),
            (1, put("'merge,reset'")),
            (-1, put("'reset'")),
            (3, put("'replace,reset'")),
            (1, "select fetchq.doc_put_many('letters', '[{\"subject\": \"failed\", \"payload\": {\"pay\": \"bob\"}}]', 'replace')".to_owned()),
            (1, "select fetchq.doc_upsert('letters', 'failed', 0, 0, now(), '{\"pay\": \"bob\"}')".to_owned()),
            (-1, "select fetchq.doc_upsert('letters', 'failed', 0, 0, now(), '{\"pay\": \"bob\"}')".to_owned()),
        ] {
            let context = format!("{call} of a document of status {status}, fetchq.direct {direct}");
            admin.sql("begin").await;
            admin
                .sql(&format!("create table if not exists public.before as select * from fetchq_data.letters__docs; update fetchq_data.letters__docs set status = {status}; commit"))
                .await;
            b.sql(&call).await;
            assert_eq!(admin.column(LETTERS).await, ["{\"pay\": \"bob\"}"], "{context}");
            for queue in ["letters", "work"] {
                a.sql(&format!("select fetchq.queue_redrive('{queue}')")).await;
            }
            let work = "select subject from fetchq_data.work__docs";
            assert_eq!(admin.column(work).await, [] as [&str; 0], "{context}");
            admin
                .sql("delete from fetchq_data.letters__docs; insert into fetchq_data.letters__docs overriding system value select * from public.before")
                .await;
        }
    }
    // What leaves the payload as it is leaves it a dead letter.
    b.sql(&format!(
        "{}; {}; select fetchq.doc_push('letters', 'failed', '{{}}')",
        put("'earliest'"),
        put("'ignore'")
    ))
    .await;
    assert_eq!(admin.column(LETTERS).await, ["work {\"pay\": \"ann\"} why"]);
    assert_eq!(a.text("select fetchq.queue_redrive('work')").await, "1");
    drop((admin, a, b));
    db.remove().await;
}

/// What a document says of its origin moves with it only where the caller manages the queue to which
/// it moves.
#[tokio::test]
async fn a_producer_moves_no_forged_dead_letter_into_a_queue() {
    let (db, admin, a, b) = applications("roles_moved").await;
    failed_document(&a).await;
    a.sql(PRODUCER).await;
    b.sql(
        "select fetchq.queue_create('mine');
         insert into fetchq_data.mine__docs (subject, status, next_iteration, payload, origin)
         values ('forged', 1, now(), '{}', '{\"queue\": \"work\", \"subject\": \"forged\"}');
         select fetchq.docs_move('mine', 'letters', '{\"all\": true}')",
    )
    .await;
    let origins = "select concat_ws(' ', subject, origin ->> 'queue') from fetchq_data.letters__docs order by 1";
    assert_eq!(admin.column(origins).await, ["failed work", "forged"]);
    // The owner of both queues moves dead letters as they are.
    a.sql("select fetchq.queue_create('archive'); select fetchq.docs_move('letters', 'archive', '{\"all\": true}'); select fetchq.docs_move('archive', 'letters', '{\"all\": true}')")
        .await;
    assert_eq!(admin.column(origins).await, ["failed work", "forged"]);
    for queue in ["letters", "work"] {
        a.sql(&format!("select fetchq.queue_redrive('{queue}')"))
            .await;
    }
    let work = "select subject from fetchq_data.work__docs";
    assert_eq!(admin.column(work).await, ["failed"]);
    drop((admin, a, b));
    db.remove().await;
}

/// Who may not push into the queue that documents came from brings none back, nor who may not work on
/// the dead-letter queue.
#[tokio::test]
async fn a_redrive_needs_the_rights_on_both_queues() {
    let (db, admin, a, b) = applications("roles_redrive").await;
    failed_document(&a).await;
    let letters = "select count(*) from fetchq_data.letters__docs";
    for (right, call, state) in [
        (("letters", "worker"), "fetchq.queue_redrive('letters')", ""),
        (
            ("letters", "worker"),
            "fetchq.queue_redrive('work')",
            "42501",
        ),
        (
            ("letters", "worker"),
            "fetchq.docs_move('letters', 'work', '{\"all\": true}')",
            "42501",
        ),
        (("work", "worker"), "fetchq.queue_redrive('work')", "42501"),
        (
            ("work", "worker"),
            "fetchq.queue_redrive('letters')",
            "42501",
        ),
        (
            ("work", "worker"),
            "fetchq.docs_move('letters', 'work', '{\"all\": true}')",
            "42501",
        ),
    ] {
        let (queue, kind) = right;
        a.sql(&format!(
            "select fetchq.queue_grant('{queue}', 'fetchq_app_b', '{kind}')"
        ))
        .await;
        assert_eq!(
            b.state(&format!("select {call}")).await,
            state,
            "{call} as {right:?}"
        );
        assert_eq!(admin.text(letters).await, "1", "{call} as {right:?}");
        a.sql(&format!(
            "select fetchq.queue_revoke('{queue}', 'fetchq_app_b', '{kind}')"
        ))
        .await;
    }
    a.sql("select fetchq.queue_grant('letters', 'fetchq_app_b', 'worker'); select fetchq.queue_grant('work', 'fetchq_app_b', 'producer')")
        .await;
    assert_eq!(b.text("select fetchq.queue_redrive('letters')").await, "1");
    assert_eq!(admin.text(letters).await, "0");
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn a_worker_needs_no_rights_on_the_dead_letter_queue() {
    let (db, admin, a, b) = applications("roles_worker").await;
    failed_document(&a).await;
    a.sql(
        "select fetchq.queue_grant('work', 'fetchq_app_b', 'worker');
         select fetchq.queue_set_max_attempts('work', 1);
         select fetchq.doc_push('work', s) from unnest('{rejected,killed,expired}'::text[]) s",
    )
    .await;
    assert_eq!(
        a.column("select role from fetchq.queue_grants('letters')")
            .await,
        ["fetchq_app_a"]
    );
    b.sql(
        "select fetchq.doc_pick('work', 2); select fetchq.doc_pick('work', 0, 1, '1 ms');
         select fetchq.doc_reject('work', 'rejected', 'why', '{}');
         select fetchq.doc_kill('work', 'killed', '{\"n\": 1}'); select fetchq.mnt_run('work', 10)",
    )
    .await;
    let letters = "select subject from fetchq_data.letters__docs order by 1";
    wait_until("all documents are dead letters", async || {
        b.sql("select fetchq.mnt_run('work', 10)").await;
        admin.column(letters).await == ["expired", "failed", "killed", "rejected"]
    })
    .await;
    assert_eq!(b.state(letters).await, "42501");
    assert_eq!(
        b.state("select fetchq.doc_push('letters', 'x')").await,
        "42501"
    );
    drop((admin, a, b));
    db.remove().await;
}

/// Documents move to the dead-letter queue as long as the role that has set it may push there.
#[tokio::test]
async fn the_role_that_has_set_the_dead_letter_queue_needs_the_right_at_each_move() {
    let (db, admin, a, b) = applications("roles_letters").await;
    a.sql("select fetchq.queue_create('work', '{\"max_attempts\": 1}'); select fetchq.queue_grant('work', 'fetchq_app_b', 'manager')")
        .await;
    admin
        .sql("select fetchq.queue_create('vault'); select fetchq.queue_grant('vault', 'fetchq_app_b', 'producer')")
        .await;
    let set = "select fetchq.queue_configure('work', '{\"dead_letter\": \"vault\"}')";
    let set_by = "select dead_letter_by from fetchq.queues where name = 'work'";
    let vault = "select subject from fetchq_data.vault__docs order by 1";
    // The owner of the queue may not push there, and the manager may.
    let refused = a.simple_query(set).await.unwrap_err();
    let refused = error_of(&refused);
    assert_eq!(refused.code().code(), "42501");
    let grant = "select fetchq.queue_grant('vault', 'fetchq_app_a', 'producer')";
    assert!(
        refused.message().contains("fetchq_app_a") && refused.hint().unwrap().contains(grant),
        "{refused:?}"
    );
    b.sql(set).await;
    assert_eq!(admin.text(set_by).await, "fetchq_app_b");
    // Settings that leave it as it is do not make it that of another role.
    a.sql("select fetchq.queue_configure('work', '{\"lease\": \"7 min\"}')")
        .await;
    assert_eq!(admin.text(set_by).await, "fetchq_app_b");
    a.sql("select fetchq.doc_push('work', s) from unnest('{first,killed,rejected,expired}'::text[]) s; select fetchq.doc_pick('work', 1)")
        .await;
    a.sql("select fetchq.doc_kill('work', 'first')").await;
    assert_eq!(admin.column(vault).await, ["first"]);
    // Revoked after it was set: nothing moves, and the error says who lacks what.
    admin
        .sql("select fetchq.queue_revoke('vault', 'fetchq_app_b', 'producer')")
        .await;
    a.sql("select fetchq.doc_pick('work', 2), fetchq.doc_pick('work', 0, 1, '1 ms')")
        .await;
    for call in [
        "select fetchq.doc_reject('work', 'rejected', 'why', '{}')",
        "select fetchq.doc_kill('work', 'killed')",
    ] {
        let refused = a.execute(call, &[]).await.unwrap_err();
        let refused = error_of(&refused);
        assert_eq!(refused.code().code(), "42501");
        assert!(
            refused.message().contains("fetchq_app_b") && refused.message().contains("vault"),
            "{refused:?}"
        );
    }
    a.sql("select fetchq.mnt_run('work', 10)").await;
    assert_eq!(admin.column(vault).await, ["first"]);
    let status = "select string_agg(subject || ' ' || status, ', ' order by subject) from fetchq_data.work__docs";
    assert_eq!(admin.text(status).await, "expired 2, killed 2, rejected 2");
    // Another role that may push there sets it again.
    admin
        .sql("select fetchq.queue_grant('vault', 'fetchq_app_a', 'producer')")
        .await;
    a.sql(set).await;
    assert_eq!(admin.text(set_by).await, "fetchq_app_a");
    a.sql("select fetchq.doc_kill('work', 'killed'); select fetchq.doc_reject('work', 'rejected', 'why', '{}')")
        .await;
    wait_until("the expired document has moved", async || {
        a.sql("select fetchq.mnt_run('work', 10)").await;
        admin.column(vault).await == ["expired", "first", "killed", "rejected"]
    })
    .await;
    // A queue of the same name that somebody else makes is not the one that was meant.
    admin
        .sql("select fetchq.queue_configure('work', '{\"dead_letter\": null}'); select fetchq.queue_grant('vault', 'fetchq_app_a', 'producer')")
        .await;
    a.sql(&format!(
        "{set}; select fetchq.doc_push('work', 'last'); select fetchq.doc_pick('work', 1)"
    ))
    .await;
    admin.sql("begin; drop table fetchq_data.vault__docs, fetchq_data.vault__logs, fetchq_data.vault__metrics; delete from fetchq.queues where name = 'vault'; commit").await;
    b.sql("select fetchq.queue_create('vault')").await;
    assert_eq!(
        a.state("select fetchq.doc_kill('work', 'last')").await,
        "42501"
    );
    assert_eq!(admin.column(vault).await, [] as [&str; 0]);
    drop((admin, a, b));
    db.remove().await;
}

/// A manager who has set the dead-letter queue and was revoked gets no more documents.
#[tokio::test]
async fn the_role_that_has_set_the_dead_letter_queue_has_to_manage_the_queue() {
    let (db, admin, a, b) = applications("roles_revoked").await;
    a.sql("select fetchq.queue_create('work', '{\"max_attempts\": 1}'), fetchq.queue_create('letters'); select fetchq.queue_grant('work', 'fetchq_app_b', 'manager')")
        .await;
    b.sql("select fetchq.queue_create('mine'); select fetchq.queue_configure('work', '{\"dead_letter\": \"mine\"}')")
        .await;
    let mine = "select subject from fetchq_data.mine__docs order by 1";
    a.sql("select fetchq.doc_push('work', s) from unnest('{first,killed,rejected,expired}'::text[]) s; select fetchq.doc_pick('work', 1)")
        .await;
    a.sql("select fetchq.doc_kill('work', 'first')").await;
    assert_eq!(admin.column(mine).await, ["first"]);
    a.sql("select fetchq.queue_revoke('work', 'fetchq_app_b', 'manager'); select fetchq.doc_pick('work', 2), fetchq.doc_pick('work', 0, 1, '1 ms')")
        .await;
    for call in [
        "select fetchq.doc_kill('work', 'killed')",
        "select fetchq.doc_reject('work', 'rejected', 'why', '{}')",
    ] {
        let refused = a.execute(call, &[]).await.unwrap_err();
        let refused = error_of(&refused);
        assert_eq!(refused.code().code(), "42501", "{call}");
        assert!(
            refused
                .message()
                .contains("fetchq_app_b\", which set it, no longer manages it")
                && refused.hint().unwrap().contains(
                    "select fetchq.queue_configure('work', '{\"dead_letter\": \"mine\"}')"
                ),
            "{refused:?}"
        );
    }
    // Maintenance leaves the document, and says what is to be done.
    wait_until("maintenance says it", async || {
        a.sql("select fetchq.mnt_run('work', 10)").await;
        let says =
            |n: &str| n.contains("has to be set again") && n.contains("no longer manages it");
        a.notices().iter().any(|notice| says(notice.message()))
    })
    .await;
    assert_eq!(admin.column(mine).await, ["first"]);
    let left = "select string_agg(subject || ' ' || status, ', ' order by subject) from fetchq_data.work__docs";
    assert_eq!(admin.text(left).await, "expired 2, killed 2, rejected 2");
    // The owner sets another one.
    a.sql("select fetchq.queue_configure('work', '{\"dead_letter\": \"letters\"}'); select fetchq.doc_kill('work', 'killed')")
        .await;
    let letters = "select subject from fetchq_data.letters__docs order by 1";
    wait_until("the expired document has moved", async || {
        a.sql("select fetchq.mnt_run('work', 10)").await;
        admin.column(letters).await == ["expired", "killed"]
    })
    .await;
    assert_eq!(admin.column(mine).await, ["first"]);
    drop((admin, a, b));
    db.remove().await;
}

/// A dead letter says which queue it failed in by when that was created, too: the queue that has its name
/// now may be another role's.
#[tokio::test]
async fn what_failed_in_a_dropped_queue_does_not_return_to_the_next_one_of_its_name() {
    let (db, admin, a, b) = applications("roles_dropped").await;
    failed_document(&a).await;
    a.sql("select fetchq.queue_grant('letters', 'fetchq_app_b', 'manager'); select fetchq.queue_drop('work')")
        .await;
    b.sql(
        "select fetchq.queue_create('work');
         select fetchq.queue_configure('work', '{\"dead_letter\": \"letters\"}');
         select fetchq.doc_push('work', 'own', '{\"pay\": \"bob\"}');
         select fetchq.doc_pick('work', 1); select fetchq.doc_kill('work', 'own')",
    )
    .await;
    for call in [
        "fetchq.queue_redrive('work', 100)",
        "fetchq.queue_redrive('letters', 100)",
        "fetchq.queue_redrive('letters', 100)",
    ] {
        b.sql(&format!("set time zone 'Asia/Tokyo'; select {call}"))
            .await;
        let work = "select subject from fetchq_data.work__docs";
        assert_eq!(admin.column(work).await, ["own"], "{call}");
    }
    let letters = "select concat_ws(' ', subject, payload) from fetchq_data.letters__docs";
    assert_eq!(admin.column(letters).await, ["failed {\"pay\": \"ann\"}"]);
    let notices = b.notices();
    assert!(
        notices
            .iter()
            .any(|n| n.message().contains("is another one now: \"work\"")),
        "{notices:?}"
    );
    drop((admin, a, b));
    db.remove().await;
}
