//! Calls for all queues of a database whose queues have several owners.

use super::*;

/// A queue whose table is gone, locked by its manager, or has a trigger that fails, keeps no
/// operator from the other queues.
#[tokio::test]
async fn calls_for_all_queues_go_on_after_a_queue_that_fails() {
    let db = Server::of_suite().database("all_queues_go_on").await;
    let admin = db.connect().await;
    make_roles(&admin).await;
    let (b, locker) = (
        session_of(&db, "fetchq_app_b").await,
        session_of(&db, "fetchq_app_b_manager").await,
    );
    b.sql(
        "select fetchq.queue_create('b_gone'), fetchq.queue_create('b_locked'), fetchq.queue_create('b_raises');
         select fetchq.queue_grant('b_locked', 'fetchq_app_b_manager', 'manager')",
    )
    .await;
    admin
        .sql(
            "select fetchq.queue_create('a'), fetchq.queue_create('c');
             select fetchq.doc_push('a', 'x'), fetchq.doc_push('c', 'x');
             create schema elsewhere;
             alter table fetchq_data.b_gone__docs set schema elsewhere;
             create function public.refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
             create trigger t before truncate on fetchq_data.b_raises__docs for each statement execute function public.refuse();
             create trigger u before update on fetchq_data.b_raises__docs for each statement execute function public.refuse();
             insert into fetchq_data.b_raises__docs (subject, next_iteration, status) values ('due', now() - interval '1 s', 0);
             insert into fetchq_data.c__docs (subject, next_iteration, status) values ('due', now() - interval '1 s', 0)",
        )
        .await;
    locker
        .sql("begin; lock table fetchq_data.b_locked__docs in access exclusive mode")
        .await;
    let left_out = |admin: &Session, queue: &str| {
        let start = format!("queue \"{queue}\" is left out: ");
        admin
            .notices()
            .iter()
            .filter(|n| n.message().starts_with(&start))
            .count()
    };
    let run = "select string_agg(queue || activated_count, ' ' order by queue) from fetchq.mnt_run_all(10)";
    assert_eq!(admin.text(run).await, "a0 c1");
    let notices = admin.notices();
    let raised = notices
        .iter()
        .find(|n| n.message().starts_with("queue \"b_raises\" is left out: "));
    assert_eq!(
        raised.map(|n| n.severity()),
        Some("WARNING"),
        "{notices:#?}"
    );
    let locked = "queue \"b_locked\" is left out, because another session has locked it";
    assert!(
        notices.iter().any(|n| n.message() == locked),
        "{notices:#?}"
    );
    let reset = "select string_agg(queue, ' ' order by queue) from fetchq.metric_reset_all()";
    assert_eq!(admin.text(reset).await, "a b_raises c");
    assert_eq!(left_out(&admin, "b_locked"), 1);
    admin.sql("select fetchq.queue_truncate_all(true)").await;
    let notices = admin.notices();
    for queue in ["b_gone", "b_locked", "b_raises"] {
        let start = format!("queue \"{queue}\" is left out: ");
        assert!(
            notices.iter().any(|n| n.message().starts_with(&start)),
            "{queue}: {notices:#?}"
        );
    }
    let left = "select (select count(*) from fetchq_data.a__docs) + (select count(*) from fetchq_data.c__docs)";
    assert_eq!(admin.text(left).await, "0");
    locker.sql("rollback").await;
    drop((admin, b, locker));
    db.remove().await;
}
