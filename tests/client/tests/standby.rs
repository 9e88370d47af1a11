//! A hot standby: reads work, writes fail with an explanation, and a promotion makes the server
//! a primary.

use fetchq_client_tests::{
    Cluster, Database, Function, Load, Session, counters_are_exact, error_of, functions,
    in_snapshot, metrics, one_of_each, prepare_queue, processes, state_of, text_of, wait_until,
    with_worker, worker_comes,
};

/// Functions whose results depend on the server: its memory and its processes.
const OF_THE_SERVER: &[&str] = &[
    "metric_export",
    "queue_stats",
    "ready_floors",
    "ready_stats",
    "status",
];

async fn caught_up(primary: &Session, standby: &Session) {
    let position = primary.text("select pg_current_wal_lsn()").await;
    wait_until("the standby has replayed all changes", async || {
        standby
            .text(&format!(
                "select pg_last_wal_replay_lsn() >= '{position}'::pg_lsn"
            ))
            .await
            == "t"
    })
    .await;
}

/// The rows of all reading functions.
async fn read_all(session: &Session) -> Vec<String> {
    let mut all = Vec::new();
    for function in functions(session).await {
        if OF_THE_SERVER.contains(&function.name.as_str()) {
            let statement = function.prepare(session).await;
            if let Err(e) = Function::call(session, &statement, &function.valid()).await {
                panic!("{} on the standby: {e:?}", function.signature());
            }
        } else if function.reads {
            let statement = function.prepare(session).await;
            let rows = Function::call(session, &statement, &function.valid())
                .await
                .unwrap_or_else(|e| panic!("{} on the standby: {e:?}", function.signature()));
            for row in rows {
                // For events that are not packed yet, last_update is the time of reading.
                let columns = row
                    .columns()
                    .iter()
                    .enumerate()
                    .filter(|(_, c)| c.name() != "last_update");
                let shown: Vec<String> = columns.map(|(at, _)| text_of(&row, at)).collect();
                all.push(format!("{}: {}", function.signature(), shown.join("|")));
            }
        }
    }
    all
}

/// Checks that every writing function fails with an error that names it, and with a hint.
async fn writes_are_refused(session: &Session, told: &str, hint: &str) {
    let mut wrong = Vec::new();
    let mut refused = 0;
    for function in functions(session).await {
        if function.reads {
            continue;
        }
        let statement = function.prepare(session).await;
        match Function::call(session, &statement, &function.valid()).await {
            Ok(_) => wrong.push(format!("{} was accepted", function.signature())),
            Err(e) => {
                let error = error_of(&e);
                let right = state_of(&e) == "25006"
                    && error
                        .message()
                        .contains(&format!("fetchq.{}()", function.name))
                    && error.message().contains(told)
                    && error.hint().unwrap_or("").contains(hint);
                if !right {
                    wrong.push(format!(
                        "{}: {} {} / {:?}",
                        function.signature(),
                        state_of(&e),
                        error.message(),
                        error.hint()
                    ));
                }
                refused += 1;
            }
        }
        // After an error the read-only transaction block ends.
        let _ = session
            .batch_execute("rollback; set default_transaction_read_only = on")
            .await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 40, "{refused}");
}

#[tokio::test]
async fn a_read_only_transaction() {
    let db = fetchq_client_tests::Server::of_suite()
        .database("read_only")
        .await;
    let session = db.connect().await;
    prepare_queue(&session).await;
    let expected = read_all(&session).await;
    session.sql("set default_transaction_read_only = on").await;
    assert_eq!(read_all(&session).await, expected);
    writes_are_refused(&session, "read only", "read-write").await;
    db.remove().await;
}

#[tokio::test]
async fn a_hot_standby_and_its_promotion() {
    let primary_cluster = Cluster::new("primary", "fsync = off");
    primary_cluster.start();
    let primary = primary_cluster.server().connect("postgres").await;
    primary.sql("create extension fetchq").await;
    let standby_cluster = primary_cluster.standby("standby", "");
    let mut standby = standby_cluster.server().connect("postgres").await;

    // The queue is created before the standby reads it, and changed after it has cached plans.
    prepare_queue(&primary).await;
    primary
        .sql("select fetchq.queue_place_set('away', 'db2')")
        .await;
    caught_up(&primary, &standby).await;
    let elsewhere = "select * from fetchq.metric_get_common('away')";
    assert_eq!(standby.state(elsewhere).await, "3D000");
    assert_eq!(read_all(&standby).await, read_all(&primary).await);
    counters_are_exact(&mut standby, "q").await;
    primary
        .sql(
            "select fetchq.doc_push('q', 'more' || i) from generate_series(1, 100) i; select fetchq.doc_pick('q', 20);
             select fetchq.metric_log_pack(); select fetchq.doc_push('q', 'unpacked')",
        )
        .await;
    caught_up(&primary, &standby).await;
    counters_are_exact(&mut standby, "q").await;
    assert_eq!(read_all(&standby).await, read_all(&primary).await);
    writes_are_refused(&standby, "standby", "primary").await;
    let before = in_snapshot(&mut standby, "q").await;

    drop(primary);
    primary_cluster.stop("fast");
    standby_cluster.promote();
    // The same session, and a new one, write after the promotion.
    standby.sql("set default_transaction_read_only = off").await;
    assert_eq!(in_snapshot(&mut standby, "q").await, before);
    assert_eq!(
        standby
            .text("select fetchq.doc_push('q', 'promoted')")
            .await,
        "1"
    );
    let mut session = standby_cluster.server().connect("postgres").await;
    let picked = session
        .column("select subject from fetchq.doc_pick('q', 1000)")
        .await;
    assert_eq!(
        picked.len(),
        83,
        "1 + 100 - 20 + 2 documents are pending: {picked:?}"
    );
    for subject in &picked {
        assert_eq!(
            session
                .text(&format!("select fetchq.doc_complete('q', '{subject}')"))
                .await,
            "1"
        );
    }
    session.sql("select fetchq.queue_create('r'); select fetchq.doc_append('r', '{}'); select * from fetchq.mnt()").await;
    counters_are_exact(&mut session, "q").await;
    counters_are_exact(&mut standby, "r").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_background_worker_starts_with_the_promotion() {
    const CLIENTS: usize = 4;
    let database = |cluster: &Cluster| Database {
        server: cluster.server(),
        name: "postgres".to_owned(),
    };
    let old = with_worker("old_primary", "fsync = on\nsynchronous_commit = on");
    let db = database(&old);
    let primary = db.connect().await;
    primary.sql("create extension fetchq").await;
    worker_comes(&primary, &db.name).await;
    let new = old.standby(
        "new_primary",
        "shared_preload_libraries = 'fetchq'\nfetchq.background_worker = on",
    );
    let new_db = database(&new);
    let mut standby = new_db.connect().await;
    // Both servers write a change to disk before it is acknowledged.
    primary
        .sql("alter system set synchronous_standby_names = '*'")
        .await;
    primary.sql("select pg_reload_conf()").await;
    wait_until("commits wait for the standby", async || {
        primary
            .text("select count(*) from pg_stat_replication where sync_state = 'sync'")
            .await
            == "1"
    })
    .await;

    let mut load = Load::new(&db).await;
    caught_up(&primary, &standby).await;
    load.run(CLIENTS, 200).await;
    // A standby runs no background worker and refuses writes.
    for _ in 0..10 {
        assert!(processes(&standby).await.is_empty());
        counters_are_exact(&mut standby, "q").await;
        assert!(metrics(&standby, "q").await["cnt"] > 0);
        let worker = "select state from fetchq.status() where component = 'background worker'";
        assert_eq!(standby.text(worker).await, "not running");
        for write in [
            "select fetchq.doc_push('q', 'no')",
            "select * from fetchq.mnt_job_run(10)",
            "call fetchq.queue_wait(array['q'], '1 s')",
        ] {
            let error = standby.simple_query(write).await.unwrap_err();
            assert_eq!(state_of(&error), "25006", "{write}");
            assert!(
                error_of(&error).hint().unwrap_or("").contains("primary"),
                "{write}"
            );
        }
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    // The load runs for longer than the promotion takes.
    primary
        .sql("select fetchq.queue_create('far'); select fetchq.doc_push('far', 'f', 0, 0, clock_timestamp() + interval '6 s', '{}')")
        .await;

    drop(primary);
    old.stops("immediate");
    assert_eq!(load.ended().await.len(), CLIENTS);
    assert_eq!(standby.text("select pg_promote()").await, "t");
    one_of_each(&standby, &new_db.name).await;
    let worker = "select state from fetchq.status() where component = 'background worker'";
    assert_eq!(standby.text(worker).await, "running");
    let far = "select status from fetchq_data.far__docs";
    wait_until("the document is pending", async || {
        standby.text(far).await == "1"
    })
    .await;
    load.finish(&mut standby).await;
    // The load continues on the new primary.
    load.goes_on_in(&new_db);
    load.run(CLIENTS, 50).await;
    load.stop().await;
    load.finish(&mut standby).await;
}
