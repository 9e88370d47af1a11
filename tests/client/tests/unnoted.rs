//! Rows that come into the documents without a note for the ready floors, by SQL that disables the
//! trigger: picks find them, and the background worker hears of them.

use fetchq_client_tests::{Cluster, Server, wait_for_rows, with_worker, worker_comes};

const SETTINGS: &str = "shared_preload_libraries = 'fetchq'\nfetchq.background_worker = off\nfsync = off\nautovacuum = off";

const MISSES: &str = "select floor_misses from fetchq.ready_stats()";

/// One transaction changes the trigger twice. In between it picks, and after that it loads rows without a note.
#[tokio::test]
async fn a_pick_of_the_transaction_that_changes_the_trigger_makes_no_floors() {
    let cluster = Cluster::new("unnoted_floors", SETTINGS);
    cluster.start();
    let session = cluster.server().connect("postgres").await;
    for statement in [
        "create extension fetchq",
        "select fetchq.queue_create('q')",
        "select fetchq.doc_put('q', 'first')",
        "select fetchq.doc_drop('q', subject, lease) from fetchq.doc_lease('q', 1)",
        "begin",
        "alter table fetchq_data.q__docs disable trigger fetchq_ready",
        "alter table fetchq_data.q__docs enable always trigger fetchq_ready",
        "select from fetchq.doc_lease('q', 1)",
        "alter table fetchq_data.q__docs disable trigger fetchq_ready",
        "insert into fetchq_data.q__docs (subject, status, next_iteration) values ('loaded', 1, now())",
        "alter table fetchq_data.q__docs enable always trigger fetchq_ready",
        "commit",
    ] {
        session.sql(statement).await;
    }
    let lease = "select subject from fetchq.doc_lease('q', 1)";
    assert_eq!(session.column(lease).await, ["loaded"]);
    // Another transaction makes floors again, in the session that has opened the queue before as well.
    session.sql(lease).await;
    let known = "select count(*) > 0 from fetchq.ready_floors('q') where index = 'pick'";
    assert_eq!(session.text(known).await, "t");
    assert_eq!(session.text(MISSES).await, "0");
}

/// The numbers of the documents fall, because the owner has given the identity another increment. So the
/// first document of a list has not the least number.
#[tokio::test]
async fn lists_with_falling_numbers_are_found() {
    let db = Server::of_suite().database("unnoted_falling").await;
    let session = db.connect().await;
    for (direct, append) in [
        ("on", "doc_append_many"),
        ("off", "doc_append_many"),
        ("on", "doc_put_many"),
        ("off", "doc_put_many"),
    ] {
        let list = match append {
            "doc_append_many" => "array_fill('{}'::jsonb, array[5])",
            _ => {
                "(select jsonb_agg(jsonb_build_object('subject', 's' || n)) from generate_series(1, 5) n)"
            }
        };
        // The floor is at the end of an empty level, with a greater number than those that come.
        let append = format!("select fetchq.{append}('q', {list})");
        // Each in a transaction of its own: a queue that was created by the same one has no floors.
        for statement in [
            &format!("set fetchq.direct = {direct}"),
            "select fetchq.queue_create('q')",
            "alter table fetchq_data.q__docs alter column seq set increment by -1 set minvalue -1000 restart with 100",
            "select fetchq.doc_put('q', 'first')",
            "select fetchq.doc_drop('q', subject, lease) from fetchq.doc_lease('q', 10)",
            "select from fetchq.doc_lease('q', 10)",
            &append,
        ] {
            session.sql(statement).await;
        }
        let picked = "select count(*) from fetchq.doc_lease('q', 10)";
        assert_eq!(
            session.text(picked).await,
            "5",
            "{append}, direct = {direct}"
        );
        session.sql("select fetchq.queue_drop('q')").await;
    }
    db.remove().await;
}

/// Documents that are due are loaded without a note. The background worker has no other reason to look
/// at the queue for five minutes.
#[tokio::test]
async fn the_background_worker_hears_of_a_load_without_notes() {
    let cluster = with_worker("unnoted_due", "fsync = off");
    let server = cluster.server();
    let session = server.connect("postgres").await;
    session
        .sql(
            "create extension fetchq;
             select fetchq.queue_create('q'); select fetchq.queue_create('r');
             select fetchq.doc_put(q, 'later', due_at => now() + interval '1 day') from unnest('{q,r}'::text[]) q",
        )
        .await;
    worker_comes(&session, "postgres").await;
    for queue in ["q", "r"] {
        // The background worker has looked at everything.
        let known = format!(
            "select count(*) from fetchq.ready_floors('{queue}') where index = 'due' and (is_empty or next_iteration > now())"
        );
        session
            .sql(&format!("select fetchq.mnt_run('{queue}', 1)"))
            .await;
        wait_for_rows("the floors are known", &session, &known, &["2"]).await;
    }
    session
        .sql(
            "begin;
             alter table fetchq_data.q__docs disable trigger fetchq_ready;
             insert into fetchq_data.q__docs (subject, status, next_iteration) values ('loaded', 0, now());
             alter table fetchq_data.q__docs enable always trigger fetchq_ready;
             commit",
        )
        .await;
    let status = "select status from fetchq_data.q__docs where subject = 'loaded'";
    wait_for_rows("it is pending", &session, status, &["1"]).await;
    // As pg_restore --disable-triggers does: the trigger does not run always afterwards. The next recount
    // repairs that.
    session
        .sql(
            "alter table fetchq_data.r__docs disable trigger all;
             insert into fetchq_data.r__docs (subject, status, next_iteration) values ('loaded', 0, now());
             alter table fetchq_data.r__docs enable trigger all",
        )
        .await;
    let status = "select status from fetchq_data.r__docs where subject = 'loaded'";
    wait_for_rows("it is pending", &session, status, &["1"]).await;
}
