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
