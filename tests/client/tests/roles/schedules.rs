//! A schedule pushes as long as the role that made it may push.

use fetchq_client_tests::{with_worker, worker_comes};

use super::*;

#[tokio::test]
async fn a_schedule_pushes_with_the_rights_of_its_maker() {
    let cluster = with_worker("makers", "");
    let db = cluster.server().database("makers").await;
    let admin = db.connect().await;
    make_roles(&admin).await;
    let (a, maker) = (
        session_of(&db, "fetchq_app_a").await,
        session_of(&db, "fetchq_app_b_manager").await,
    );
    worker_comes(&admin, &db.name).await;
    a.sql("select fetchq.queue_create('mail'); select fetchq.queue_grant('mail', 'fetchq_app_b_manager', 'manager')")
        .await;
    maker
        .sql("select fetchq.schedule_create('of the maker', 'mail', '1 second')")
        .await;
    admin
        .sql(
            "insert into fetchq.schedules (name, queue, every, made_by, next_tick, due_at)
             values ('spam', 'mail', '1 second', 'fetchq_app_nobody', now(), now()),
                 ('gone', 'mail', '1 second', 4294967294, now(), now())",
        )
        .await;
    wait_until("the schedules were run", async || {
        admin
            .rows("select name, ticks > 0, attempts > 0 from fetchq.schedules order by 1")
            .await
            == ["gone|f|t", "of the maker|t|f", "spam|f|t"]
    })
    .await;
    let errors = admin
        .rows(
            "select name, last_error from fetchq.schedules where last_error is not null order by 1",
        )
        .await;
    assert!(
        errors[0].contains("4294967294") && errors[0].contains("no longer exists"),
        "{errors:?}"
    );
    assert!(errors[1].contains("fetchq_app_nobody"), "{errors:?}");
    // The maker loses the right.
    a.sql("select fetchq.queue_revoke('mail', 'fetchq_app_b_manager', 'manager')")
        .await;
    wait_until("the schedule fails", async || {
        admin
            .text("select attempts > 0 and last_error like '%fetchq_app_b_manager%' from fetchq.schedules where name = 'of the maker'")
            .await
            == "t"
    })
    .await;
}

/// A schedule that appears while another session waits is not replaced by a role that does not
/// manage its queue.
#[tokio::test]
async fn a_schedule_that_appears_meanwhile_is_not_replaced() {
    let cast = Cast::new("roles_stolen").await;
    cast.b.sql("begin; select fetchq.queue_drop('mine')").await;
    let other = cast.session("fetchq_app_b_manager").await;
    let replacing = tokio::spawn(async move {
        other
            .state("select fetchq.schedule_create('stolen', 'mine', '1 minute', replace => true)")
            .await
    });
    wait_until("the other session waits", async || {
        cast.admin
            .text("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%stolen%' and pid <> pg_backend_pid()")
            .await
            == "1"
    })
    .await;
    cast.a
        .sql("select fetchq.schedule_create('stolen', 'q', '1 hour')")
        .await;
    cast.b.sql("rollback").await;
    assert_eq!(replacing.await.unwrap(), "42501");
    assert_eq!(
        cast.admin
            .text("select queue from fetchq.schedules where name = 'stolen'")
            .await,
        "q"
    );
    cast.remove().await;
}

/// A role that owns nothing can neither take over nor drop what a deployment has declared, and neither
/// waits for its lock nor keeps one from it.
#[tokio::test]
async fn a_stranger_does_nothing_to_what_is_declared() {
    let cast = Cast::new("roles_declared").await;
    let declare = r#"select name, action from fetchq.schedules_sync('shop', '[{"name": "nightly of a", "queue": "q", "schedule": "@daily"}]')"#;
    assert_eq!(cast.a.rows(declare).await, ["nightly of a|created"]);
    let state = "select to_jsonb(s) from fetchq.schedules s where name = 'nightly of a'";
    let before = cast.admin.text(state).await;
    let lists = [
        "[]",
        r#"[{"name": "nightly of a", "queue": "q", "schedule": "@daily"}]"#,
        r#"[{"name": "nightly of a", "queue": "q", "schedule": "@hourly", "payload": {"evil": true}}]"#,
        r#"[{"name": "nightly of a", "queue": "mine", "schedule": "@hourly"}]"#,
        r#"[{"name": "other", "queue": "q", "schedule": "@hourly"}]"#,
        r#"[{"name": "other", "queue": "mine", "schedule": "@hourly"}]"#,
    ];
    // The deployment is in the middle of its call.
    cast.a.sql("begin").await;
    cast.a.rows(declare).await;
    for role in cast.strangers() {
        let session = cast.session(&role).await;
        session.sql("set lock_timeout = '1s'; begin").await;
        for list in lists {
            let call = format!("select fetchq.schedules_sync('shop', '{list}')");
            session.sql("savepoint s").await;
            assert_eq!(session.state(&call).await, "42501", "{role}: {list}");
            session.sql("rollback to s").await;
        }
        // An owner of whom there is nothing.
        let nobody = "select fetchq.schedules_sync('nobody', '[]')";
        assert_eq!(session.state(nobody).await, "", "{role}");
        // With its transaction open, it holds up nobody.
        cast.admin.sql("set lock_timeout = '1s'").await;
        assert_eq!(
            cast.admin
                .rows(
                    &declare
                        .replace("shop", "nobody")
                        .replace("of a", role.as_str())
                )
                .await
                .len(),
            1
        );
        cast.admin
            .sql("select fetchq.schedules_sync('nobody', '[]')")
            .await;
        session.sql("rollback").await;
    }
    cast.a.sql("commit").await;
    assert_eq!(cast.admin.text(state).await, before);
    cast.remove().await;
}
