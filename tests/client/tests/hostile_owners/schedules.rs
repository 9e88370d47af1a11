//! Schedules run with the rights of who made them.

use super::*;

#[tokio::test]
async fn a_schedule_pushes_with_the_rights_of_its_maker() {
    let cluster = with_worker("makers", "");
    let (db, session, mallory) = lair(&cluster, "makers").await;
    worker_comes(&session, &db.name).await;
    mail_and_evil(&session, &mallory).await;
    session
        .sql(
            "create role maker;
             grant usage on schema fetchq, fetchq_data to maker;
             grant select, insert, update, delete on all tables in schema fetchq to maker;
             grant execute on all functions in schema fetchq to maker;
             set role mallory;
             create trigger a before insert on fetchq_data.evil__docs
                 for each row execute function lair.on_change('row');
             reset role;
             select fetchq.schedule_create('of the superuser', 'evil', '1 second');
             insert into fetchq.schedules (name, queue, every, made_by, next_tick, due_at)
             values ('spam', 'mail', '1 second', 'mallory', now(), now()),
                 ('gone', 'mail', '1 second', 4294967294, now(), now());
             select fetchq.queue_grant('mail', 'maker', 'manager');
             set role maker;
             select fetchq.schedule_create('of the maker', 'mail', '1 second');
             reset role",
        )
        .await;
    wait_until("mallory's trigger ran", async || {
        runs(&session, "row before insert evil__docs").await > 0
    })
    .await;
    wait_until("the schedules were run", async || {
        session
            .rows(
                "select name, ticks > 0, attempts > 0 from fetchq.schedules where queue = 'mail' order by 1",
            )
            .await
            == ["gone|f|t", "of the maker|t|f", "spam|f|t"]
    })
    .await;
    let errors = session
        .rows(
            "select name, last_error from fetchq.schedules where last_error is not null order by 1",
        )
        .await;
    assert!(
        errors[0].contains("4294967294") && errors[0].contains("no longer exists"),
        "{errors:?}"
    );
    assert!(errors[1].contains("mallory"), "{errors:?}");
    nothing_was_gained(&session).await;
    // The maker loses the right.
    session
        .sql("select fetchq.queue_revoke('mail', 'maker', 'manager')")
        .await;
    wait_until("the schedule fails", async || {
        session
            .text("select attempts > 0 and last_error like '%maker%' from fetchq.schedules where name = 'of the maker'")
            .await
            == "t"
    })
    .await;
    session.sql("drop owned by maker; drop role maker").await;
}

/// A schedule that appears while another session waits is not replaced by a role that does not
/// manage its queue.
#[tokio::test]
async fn a_schedule_that_appears_meanwhile_is_not_replaced() {
    let cluster = with_worker("stolen", "fetchq.background_worker = off");
    let (db, session, mallory) = lair(&cluster, "stolen").await;
    mail_and_evil(&session, &mallory).await;
    mallory.sql("begin; select fetchq.queue_drop('evil')").await;
    let mut config = cluster.server().config().clone();
    config.user("mallory");
    let other = Server::new(config).connect(&db.name).await;
    let replacing = tokio::spawn(async move {
        other
            .state("select fetchq.schedule_create('nightly', 'evil', '1 minute', replace => true)")
            .await
    });
    wait_until("the other session waits", async || {
        session
            .text("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%nightly%' and pid <> pg_backend_pid()")
            .await
            == "1"
    })
    .await;
    session
        .sql("select fetchq.schedule_create('nightly', 'mail', '1 hour')")
        .await;
    mallory.sql("rollback").await;
    assert_eq!(replacing.await.unwrap(), "42501");
    assert_eq!(
        session
            .text("select queue from fetchq.schedules where name = 'nightly'")
            .await,
        "mail"
    );
}
