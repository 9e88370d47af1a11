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

#[tokio::test]
async fn whoever_writes_into_a_dead_letter_queue_pushes_nowhere_else() {
    let (db, admin, a, b) = applications("mistrust_forge").await;
    failed_document(&a).await;
    let work = "select subject, payload from fetchq_data.work__docs order by 1";
    let insert = "insert into fetchq_data.letters__docs (subject, status, next_iteration, payload, origin)
        values ('forged', 1, now(), '{\"pay\": \"bob\"}', '{\"queue\": \"work\", \"subject\": \"forged\"}')";
    let update = "update fetchq_data.letters__docs set payload = '{\"pay\": \"bob\"}'";
    let put = "select fetchq.doc_put('letters', 'failed', '{\"pay\": \"bob\"}', mode => 'replace')";
    let producer = "select fetchq.queue_grant('letters', 'fetchq_app_b', 'producer')";
    let docs = "on fetchq_data.letters__docs";
    // What application a or a superuser allows, what application b does, and how it is undone.
    for (grant, forge, revoke) in [
        (
            producer.to_owned(),
            insert,
            "select fetchq.queue_revoke('letters', 'fetchq_app_b', 'producer')".to_owned(),
        ),
        (
            producer.to_owned(),
            put,
            "select fetchq.queue_revoke('letters', 'fetchq_app_b', 'producer')".to_owned(),
        ),
        (
            format!("grant update (payload) {docs} to fetchq_app_b"),
            update,
            format!("revoke update (payload) {docs} from fetchq_app_b"),
        ),
        (
            format!(
                "grant insert (subject, status, next_iteration, payload, origin) {docs} to fetchq_app_b"
            ),
            insert,
            format!("revoke insert {docs} from fetchq_app_b"),
        ),
        (
            format!("grant update {docs} to fetchq_app_b with grant option"),
            update,
            format!("revoke update {docs} from fetchq_app_b"),
        ),
        (
            format!("grant insert {docs} to public"),
            insert,
            format!("revoke insert {docs} from public"),
        ),
        (
            format!("grant trigger {docs} to fetchq_app_b"),
            "select 1",
            format!("revoke trigger {docs} from fetchq_app_b"),
        ),
    ] {
        a.sql("begin").await;
        a.sql(&grant).await;
        a.sql("commit").await;
        let before = admin.rows("select * from fetchq_data.letters__docs").await;
        b.sql(forge).await;
        let forged = admin.rows("select * from fetchq_data.letters__docs").await;
        assert!(forge == "select 1" || forged != before, "{forge}");
        for session in [&a, &admin] {
            session.notices();
            let found = session
                .state("select fetchq.queue_redrive('work', 10)")
                .await;
            assert_eq!(found, "42501", "{grant}");
            // One forged document does not keep others from returning.
            assert_eq!(
                session
                    .text("select fetchq.queue_redrive('letters', 10)")
                    .await,
                "0",
                "{grant}"
            );
            let notices = session.notices();
            assert!(
                notices.iter().any(|n| n.code().code() == "42501"
                    && n.message().contains("letters")
                    && n.message().contains("work")
                    && n.hint().is_some()),
                "{grant}: {notices:?}"
            );
        }
        assert_eq!(admin.rows(work).await, [] as [&str; 0], "{grant}");
        assert_eq!(
            admin.rows("select * from fetchq_data.letters__docs").await,
            forged
        );
        // Application a removes what was written, and takes the right back.
        a.sql(&revoke).await;
        a.sql(
            "delete from fetchq_data.letters__docs where subject = 'forged';
             update fetchq_data.letters__docs set payload = '{\"pay\": \"ann\"}'",
        )
        .await;
    }
    // A role that may push there anyway changes nothing, and neither does a superuser.
    a.sql(&format!(
        "{producer}; select fetchq.queue_grant('work', 'fetchq_app_b', 'producer');
         grant insert on fetchq_data.letters__docs to {}",
        admin.text("select current_user").await
    ))
    .await;
    assert_eq!(a.text("select fetchq.queue_redrive('work', 10)").await, "1");
    assert_eq!(admin.rows(work).await, ["failed|{\"pay\": \"ann\"}"]);
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn a_moved_document_takes_no_forged_origin_along() {
    let (db, admin, a, b) = applications("mistrust_move").await;
    failed_document(&a).await;
    // Application b works on a queue of application a, and may not write into its other queues.
    a.sql(
        "select fetchq.queue_create('shared'); select fetchq.queue_grant('shared', 'fetchq_app_b', 'worker');
         select fetchq.doc_push('shared', 'plain')",
    )
    .await;
    b.sql(
        "select fetchq.doc_push('shared', 'forged');
         update fetchq_data.shared__docs set origin = '{\"queue\": \"work\", \"subject\": \"forged\"}' where subject = 'forged'",
    )
    .await;
    a.notices();
    assert_eq!(
        a.text("select fetchq.docs_move('shared', 'letters', '{\"all\": true}')")
            .await,
        "1"
    );
    let notices = a.notices();
    assert!(
        notices
            .iter()
            .any(|n| n.message().contains("shared") && n.message().contains("fetchq_app_b")),
        "{notices:?}"
    );
    assert_eq!(
        a.text("select fetchq.queue_redrive('letters', 10)").await,
        "1"
    );
    assert_eq!(
        admin
            .column("select subject from fetchq_data.work__docs")
            .await,
        ["failed"]
    );
    // Its own dead letters keep the forged origin inside, and return to where they came from.
    a.sql("select fetchq.queue_configure('shared', '{\"dead_letter\": \"letters\"}')")
        .await;
    b.sql(
        "select fetchq.doc_pick('shared', 10); select fetchq.doc_kill('shared', 'forged');
         select fetchq.doc_push('shared', 'later')",
    )
    .await;
    a.sql("select fetchq.queue_redrive('letters', 10); select fetchq.queue_redrive('shared', 10)")
        .await;
    assert_eq!(
        admin
            .column("select subject from fetchq_data.work__docs")
            .await,
        ["failed"]
    );
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn a_worker_needs_no_rights_on_the_dead_letter_queue() {
    let (db, admin, a, b) = applications("mistrust_worker").await;
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
    // Another owner's queue: the owner of the source has to be a producer there, and not the worker.
    admin
        .sql("select fetchq.queue_create('vault'); select fetchq.queue_grant('vault', 'fetchq_app_b', 'producer')")
        .await;
    a.sql("select fetchq.queue_grant('work', 'fetchq_app_b', 'manager')")
        .await;
    let set = "select fetchq.queue_configure('work', '{\"dead_letter\": \"vault\"}')";
    assert_eq!(b.state(set).await, "42501");
    let refused = b.execute(set, &[]).await.unwrap_err();
    let refused = refused.as_db_error().unwrap().clone();
    assert!(
        refused.message().contains("fetchq_app_a")
            && refused
                .hint()
                .unwrap()
                .contains("'vault', 'fetchq_app_a', 'producer'"),
        "{refused:?}"
    );
    admin
        .sql("select fetchq.queue_grant('vault', 'fetchq_app_a', 'producer')")
        .await;
    b.sql(set).await;
    a.sql("select fetchq.doc_push('work', 'last'), fetchq.doc_push('work', 'kept')")
        .await;
    b.sql(
        "select fetchq.doc_pick('work', 2); select fetchq.doc_reject('work', 'last', 'why', '{}')",
    )
    .await;
    // The right counts when the document moves.
    admin
        .sql("select fetchq.queue_revoke('vault', 'fetchq_app_a', 'producer')")
        .await;
    for call in [
        "select fetchq.doc_reject('work', 'kept', 'why', '{}')",
        "select fetchq.doc_kill('work', 'kept')",
    ] {
        let refused = b.execute(call, &[]).await.unwrap_err();
        let refused = refused.as_db_error().unwrap().clone();
        assert_eq!(refused.code().code(), "42501");
        assert!(
            refused.message().contains("fetchq_app_a") && refused.message().contains("vault"),
            "{refused:?}"
        );
    }
    assert_eq!(
        admin
            .column("select subject from fetchq_data.vault__docs")
            .await,
        ["last"]
    );
    drop((admin, a, b));
    db.remove().await;
}
