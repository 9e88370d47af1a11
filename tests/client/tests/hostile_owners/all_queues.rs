//! Calls for all queues, in a database with queues of owners that do not trust one another.

use super::*;

/// A superuser asks about all queues, or changes all of them, and does not name mallory's.
#[tokio::test]
async fn calls_for_all_queues_run_nothing_with_the_rights_of_the_caller() {
    let cluster = with_worker("all", "fetchq.background_worker = off");
    let (_db, session, mallory) = lair(&cluster, "all").await;
    mallory
        .sql(
            "select fetchq.queue_create('cast');
             select fetchq.queue_configure('cast', '{\"history\": {\"completed\": \"1 day\"}}');
             select fetchq.queue_create('kid');
             select fetchq.doc_append('cast', '{}'); select fetchq.doc_append('kid', '{}');
             set fetchq.worker = 'everyone';
             select fetchq.doc_pick('kid');
             -- A cast that reads of a column need.
             create type lair.number as (v int);
             create function lair.as_int(lair.number) returns int language plpgsql as $$
                 begin perform lair.attack('cast'); return ($1).v; end $$;
             create cast (lair.number as int) with function lair.as_int(lair.number) as implicit;
             drop index fetchq_data.cast__docs_pick_idx; drop index fetchq_data.cast__docs_due_idx;
             drop trigger fetchq_ready on fetchq_data.cast__docs;
             alter table fetchq_data.cast__docs alter status drop default;
             alter table fetchq_data.cast__docs alter status type lair.number using row(2)::lair.number;
             -- A child table with an index whose predicate planning evaluates.
             create table lair.kid () inherits (fetchq_data.kid__docs);
             create index on lair.kid (subject) where lair.calculate('predicate', true);
             -- Triggers, for calls that change documents.
             create trigger a before update or delete on fetchq_data.kid__docs
                 for each row execute function lair.on_change('row');
             create function lair.truncated() returns trigger language plpgsql as $$
                 begin perform lair.attack('truncate'); return null; end $$;
             create trigger t before truncate on fetchq_data.kid__docs
                 for each statement execute function lair.truncated();",
        )
        .await;
    for call in [
        "count(*) from fetchq.leases",
        "count(*) from fetchq.history",
        "count(*) from fetchq.queue_history(null)",
        "count(*) from fetchq.trace('nothing')",
        "count(*) from fetchq.workers",
        "count(*) from fetchq.metric_compute_all()",
        "count(*) from fetchq.metric_get_all()",
        "count(*) from fetchq.metric_reset_all()",
        "count(*) from fetchq.status()",
        "count(*) from fetchq.mnt_run_all(10)",
        "fetchq.worker_release('everyone')",
        "fetchq.queue_truncate_all()",
    ] {
        // Some of them fail because of what mallory has done to her table, as she.
        let _ = session.batch_execute(&format!("select {call}")).await;
        nothing_was_gained(&session).await;
    }
    for attack in ["cast", "row before update kid__docs", "truncate"] {
        assert!(runs(&session, attack).await > 0, "{attack} did not run");
    }
}

/// An owner whose table is gone, locked, or has a trigger that fails, keeps no operator from the
/// other queues.
#[tokio::test]
async fn calls_for_all_queues_go_on_after_a_queue_that_fails() {
    let db = Server::of_suite().database("all_queues_go_on").await;
    let admin = db.connect().await;
    admin.sql(LAIR).await;
    let (mallory, mut locker) = (as_mallory(&db).await, as_mallory(&db).await);
    for queue in ["b_gone", "b_locked", "b_raises"] {
        mallory
            .sql(&format!("select fetchq.queue_create('{queue}')"))
            .await;
    }
    admin
        .sql(
            "select fetchq.queue_create('a'), fetchq.queue_create('c');
             select fetchq.doc_push('a', 'x'), fetchq.doc_push('c', 'x')",
        )
        .await;
    mallory
        .sql(
            "alter table fetchq_data.b_gone__docs set schema lair;
             create function lair.refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
             create trigger t before truncate on fetchq_data.b_raises__docs for each statement execute function lair.refuse();
             create trigger u before update on fetchq_data.b_raises__docs for each statement execute function lair.refuse();
             insert into fetchq_data.b_raises__docs (subject, next_iteration, status) values ('due', now() - interval '1 s', 0)",
        )
        .await;
    let lock = locker.transaction().await.unwrap();
    lock.batch_execute("lock table fetchq_data.b_locked__docs in access exclusive mode")
        .await
        .unwrap();
    let left_out = |admin: &Session, queue: &str| {
        let start = format!("queue \"{queue}\" is left out: ");
        admin
            .notices()
            .iter()
            .filter(|n| n.message().starts_with(&start))
            .count()
    };
    admin
        .sql("insert into fetchq_data.c__docs (subject, next_iteration, status) values ('due', now() - interval '1 s', 0)")
        .await;
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
    lock.rollback().await.unwrap();
    drop((admin, mallory, locker));
    db.remove().await;
}
