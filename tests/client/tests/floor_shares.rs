//! The slots of the ready floors are shared by applications that do not trust one another.

use fetchq_client_tests::{Cluster, Session};

const FLOORS: &str = "select * from fetchq.ready_floors('mine')";

/// A session of an application, which is a role that may create queues.
async fn application(cluster: &Cluster, role: &str) -> Session {
    let session = cluster.server().connect("postgres").await;
    session
        .sql(&format!("set session authorization {role}"))
        .await;
    session
}

/// One application uses 100,000 versions and priorities, and some hundred queues. There are slots
/// for a few hundred of them.
#[tokio::test]
async fn one_role_does_not_take_the_floors_of_another() {
    const SLOTS: &str = "shared_preload_libraries = 'fetchq'\nfetchq.ready_slots = 1024\nfetchq.background_worker = off\nfsync = off";
    let cluster = Cluster::new("floor_shares", SLOTS);
    cluster.start();
    let admin = cluster.server().connect("postgres").await;
    admin.sql("create extension fetchq").await;
    for role in ["modest", "greedy"] {
        admin
            .sql(&format!(
                "create role {role}; grant usage on schema fetchq, fetchq_data to {role};
                 grant execute on function fetchq.queue_create to {role}"
            ))
            .await;
    }
    let modest = application(&cluster, "modest").await;
    let greedy = application(&cluster, "greedy").await;
    modest
        .sql(
            "select fetchq.queue_create('mine');
             select fetchq.doc_push('mine', 'd' || i) from generate_series(1, 100) i;
             select fetchq.doc_push('mine', 'later', 0, 0, now() + interval '1 day', '{}')",
        )
        .await;
    modest
        .sql("select fetchq.doc_drop('mine', subject) from fetchq.doc_pick('mine', 40) d")
        .await;
    modest
        .sql("select fetchq.doc_pick('mine', 20), fetchq.mnt_run_all(100)")
        .await;
    let before = modest.rows(FLOORS).await;
    // The level of priority 0, and the two of the due index.
    assert_eq!(before.len(), 3, "{before:?}");

    greedy
        .sql(
            "select fetchq.queue_create('versions');
             insert into fetchq_data.versions__docs (subject, version, priority, status, next_iteration)
             select 'v' || i, i, i, 1, now() from generate_series(1, 100000) i;
             insert into fetchq_data.versions__docs (subject, version, priority, status, next_iteration)
             select 'p' || i, 0, i, 1, now() from generate_series(1, 1000) i",
        )
        .await;
    let picks = "select count(subject) from generate_series(1, 100000) v, fetchq.doc_pick('versions', v, 1, '1 hour')";
    assert_eq!(greedy.text(picks).await, "100000");
    // Versions without documents, and priorities that are too many for one version.
    let empty = "select count(subject) from generate_series(200000, 250000) v, fetchq.doc_pick('versions', v, 1, '1 hour')";
    assert_eq!(greedy.text(empty).await, "0");
    let picks = "select count(subject) from generate_series(1, 100) i, fetchq.doc_pick('versions', i - i, 10, '1 hour')";
    assert_eq!(greedy.text(picks).await, "1000");
    for n in 0..300 {
        greedy
            .sql(&format!("select fetchq.queue_create('many{n}')"))
            .await;
        greedy
            .sql(&format!(
                "select fetchq.doc_push('many{n}', 'a');
                 select fetchq.doc_pick('many{n}', 1), fetchq.doc_pick('many{n}', 1, 1, '1 hour')"
            ))
            .await;
    }
    let used = "select slots = slots_used from fetchq.ready_stats()";
    assert_eq!(admin.text(used).await, "t", "all slots are used");
    assert_eq!(modest.rows(FLOORS).await, before);

    // A new queue and a new version get floors, too.
    modest.sql("select fetchq.queue_create('new')").await;
    modest
        .sql(
            "select fetchq.doc_push('new', 'a');
             select fetchq.doc_pick('new', 1), fetchq.doc_push('mine', 'v', 7, 0, now(), '{}'), fetchq.doc_pick('mine', 7, 1, '1 hour')",
        )
        .await;
    let count = "select count(*) from fetchq.ready_floors('new')";
    assert_eq!(modest.text(count).await, "1");
    let count = "select count(*) from fetchq.ready_floors('mine') where version = 7";
    assert_eq!(modest.text(count).await, "1");

    // The index is a fact: what plain SQL finds is picked.
    let pending =
        "select subject from fetchq_data.mine__docs where status = 1 and version = 0 order by 1";
    let expected = modest.rows(pending).await;
    assert_eq!(expected.len(), 40);
    let picked = "select subject from fetchq.doc_pick('mine', 1000) order by 1";
    assert_eq!(modest.rows(picked).await, expected);
    let ready = "select count(*) from fetchq_data.versions__docs where status = 1";
    assert_eq!(greedy.text(ready).await, "0");
    let misses = "select floor_misses from fetchq.ready_stats()";
    assert_eq!(admin.text(misses).await, "0");
}
