//! `fetchq.status()` says what is true, with and without the library preloaded, the background
//! worker, ready floors, and rights; and says so where it does not know.

use std::time::{Duration, Instant};

use fetchq_client_tests::{
    Cluster, Database, Session, wait_for_rows, wait_until, with_worker, worker_comes,
};

/// The state of the documents.
const DOCUMENTS: &str = "select component, state, detail, hint is not null from fetchq.status() where component in ('planned', 'leases')";

/// The state of the documents, without details.
const STATES: &str = "select component || ': ' || state from fetchq.status() where component in ('planned', 'leases')";

/// Pushes a document that was due a minute ago and is still planned, and has a lease that has
/// expired. Maintenance does not run.
async fn late_in(session: &Session, queue: &str) {
    session
        .sql(&format!(
            "insert into fetchq_data.{queue}__docs (subject, status, next_iteration) values ('late', 0, now() + interval '100 ms');
             select fetchq.doc_push('{queue}', 'leased', 0, 9, now(), '{{}}');
             select fetchq.doc_pick('{queue}', 0, 1, '100 ms')"
        ))
        .await;
}

async fn queue(db: &Database, name: &str) -> Session {
    let session = db.connect().await;
    session
        .sql(&format!("select fetchq.queue_create('{name}')"))
        .await;
    session
}

/// A server that keeps floors, and on which nobody runs maintenance.
async fn without_worker(name: &str, settings: &str) -> (Cluster, Database, Session) {
    let cluster = Cluster::new(
        name,
        &format!("shared_preload_libraries = 'fetchq'\n{settings}"),
    );
    cluster.start();
    let db = cluster.server().database(name).await;
    let session = queue(&db, "q").await;
    (cluster, db, session)
}

const LATE: [&str; 2] = ["planned: late", "leases: late"];
const IN_TIME: [&str; 2] = ["planned: in time", "leases: in time"];
const UNKNOWN: [&str; 2] = ["planned: unknown", "leases: unknown"];

#[tokio::test]
async fn late_documents_without_known_floors() {
    let (cluster, db, session) = without_worker("no_floors", "").await;
    assert_eq!(session.rows(STATES).await, IN_TIME);
    late_in(&session, "q").await;
    wait_for_rows("it is late", &session, STATES, &LATE).await;

    // After a restart nothing is known about any queue.
    cluster.stop("fast");
    cluster.start();
    let session = db.connect().await;
    assert_eq!(session.rows(STATES).await, LATE);
    let said = session.rows(DOCUMENTS).await;
    assert!(
        said.iter().all(|row| row.contains("in \"q\"|t")),
        "{said:?}"
    );

    // Once something has examined the queue, the floors begin before all documents.
    session
        .sql("begin; select fetchq.doc_pick('q', 0, 1, '1 s'); rollback")
        .await;
    assert_eq!(session.rows(STATES).await, LATE);

    // Maintenance ends it, and what it does is seen at once.
    session.sql("select * from fetchq.mnt_run('q', 100)").await;
    assert_eq!(session.rows(STATES).await, IN_TIME);

    // A document of a transaction that has not committed is not late yet.
    let other = db.connect().await;
    other.sql("begin").await;
    other.sql("insert into fetchq_data.q__docs (subject, status, next_iteration) values ('open', 0, now() - interval '1 minute')").await;
    assert_eq!(session.rows(STATES).await, IN_TIME);
    other.sql("commit").await;
    assert_eq!(
        session.rows(STATES).await,
        ["planned: late", "leases: in time"]
    );
}

#[tokio::test]
async fn what_cannot_be_read_is_unknown() {
    let (_cluster, db, session) = without_worker("unknown", "").await;
    late_in(&session, "q").await;
    wait_for_rows("it is late", &session, STATES, &LATE).await;

    let other = db.connect().await;
    other
        .sql("begin; lock table fetchq_data.q__docs in access exclusive mode")
        .await;
    assert_eq!(session.rows(STATES).await, UNKNOWN);
    let said = session.rows(DOCUMENTS).await;
    assert_eq!(
        said,
        [
            "planned|unknown|not known for \"q\"|t",
            "leases|unknown|not known for \"q\"|t"
        ]
    );
    // What is known counts for more.
    queue(&db, "r").await;
    late_in(&session, "r").await;
    wait_for_rows("the other queue is late", &session, STATES, &LATE).await;
    other.sql("rollback").await;

    // Without the index nothing can be looked up; a queue that is late is still named.
    session.sql("drop index fetchq_data.r__docs_due_idx").await;
    let said = session.rows(DOCUMENTS).await;
    assert!(said.iter().all(|row| row.contains("in \"q\"")), "{said:?}");
    session.sql("select fetchq.queue_drop('q')").await;
    // Floors of r are in the past, so they prove nothing.
    assert_eq!(session.rows(STATES).await, UNKNOWN);
    session.sql("select fetchq.queue_drop('r')").await;
    assert_eq!(session.rows(STATES).await, IN_TIME);
    session
        .sql("begin; select fetchq.queue_create('mine')")
        .await;
    assert_eq!(session.rows(STATES).await, IN_TIME);
    session.sql("rollback").await;
}

/// What cannot be read of one queue hides nothing of the others.
#[tokio::test]
async fn one_altered_queue_hides_no_other() {
    let (_cluster, db, session) = without_worker("altered", "").await;
    queue(&db, "r").await;
    session
        .sql(
            "insert into fetchq_data.r__docs (subject, next_iteration) values ('a', '2999-01-01 00:00:00+00');
             alter table fetchq_data.q__docs alter column status type bigint;
             set timezone = 'UTC'",
        )
        .await;
    let said = [
        "planned|partly known|the first is due at 2999-01-01 00:00:00+00 or later; 1 other queue is in time; not known for \"q\"|t",
        "leases|partly known|1 other queue is in time; not known for \"q\"|t",
    ];
    assert_eq!(session.rows(DOCUMENTS).await, said);
    late_in(&session, "r").await;
    let details = async || session.rows(DOCUMENTS).await.join(" ");
    wait_until(
        "late documents and the altered queue are named",
        async || {
            details()
                .await
                .matches("in \"r\"; not known for \"q\"")
                .count()
                == 2
        },
    )
    .await;
}

/// A document that is due since -infinity says nothing about the age of the backlog.
#[tokio::test]
async fn a_document_at_minus_infinity_does_not_hide_the_backlog() {
    let (_cluster, db, session) = without_worker("infinite", "").await;
    queue(&db, "r").await;
    let backlog = "select detail from fetchq.status() where component = 'backlog'";
    // A pick makes the ready floors of its level.
    session
        .sql(
            "set timezone = 'UTC';
             select fetchq.doc_push('q', 'x'), fetchq.doc_push('r', 'y');
             select fetchq.doc_pick('q', 0, 1, '1 h'), fetchq.doc_pick('r', 0, 1, '1 h');
             insert into fetchq_data.q__docs (subject, status, next_iteration) values ('always', 1, '-infinity');
             insert into fetchq_data.r__docs (subject, status, next_iteration) values ('old', 1, '2001-01-01')",
        )
        .await;
    assert_eq!(
        session.text(backlog).await,
        "0 pending, ready since 2001-01-01 00:00:00+00, ready since -infinity in \"q\""
    );
}

#[tokio::test]
async fn the_last_of_many_queues() {
    let (cluster, db, session) = without_worker("many", "").await;
    for n in 0..330 {
        session
            .sql(&format!("select fetchq.queue_create('queue_{n}')"))
            .await;
    }
    late_in(&session, "queue_329").await;
    wait_for_rows("it is late", &session, STATES, &LATE).await;
    session
        .sql("select fetchq.doc_pick('queue_' || n, 0, 1, '1 s'), (fetchq.mnt_run('queue_' || n, 0)).activated_count from generate_series(0, 328) n")
        .await;
    let said = session.rows(DOCUMENTS).await;
    assert!(
        said.iter().all(|row| row.contains("in \"queue_329\"|t")),
        "{said:?}"
    );
    for _ in 0..2 {
        let began = Instant::now();
        session.rows(DOCUMENTS).await;
        eprintln!("status() with 331 queues: {:.1?}", began.elapsed());
    }

    // All of them are late, and nothing is known of any queue.
    session
        .sql("do $$ begin for n in 0..329 loop execute format('insert into fetchq_data.queue_%s__docs (subject, status, next_iteration) values (''x'', 0, now() - interval ''1 hour'')', n); commit; end loop; end $$")
        .await;
    cluster.stop("fast");
    cluster.start();
    let session = db.connect().await;
    for _ in 0..2 {
        let began = Instant::now();
        let said = session.rows(DOCUMENTS).await;
        eprintln!("status() with 330 late queues: {:.1?}", began.elapsed());
        assert!(said[0].contains(" and 327 more|t"), "{said:?}");
    }
}

#[tokio::test]
async fn without_rights_on_the_queues() {
    let (_cluster, db, session) = without_worker("rights", "").await;
    late_in(&session, "q").await;
    wait_for_rows("it is late", &session, STATES, &LATE).await;
    session
        .sql(
            "create role app login; grant usage on schema fetchq to app; grant select on all tables in schema fetchq to app",
        )
        .await;
    let app = db.connect().await;
    app.sql("set role app").await;
    assert_eq!(app.state("select from fetchq_data.q__docs").await, "42501");
    assert_eq!(app.rows(STATES).await, LATE);
    // The snapshots of other roles are hidden from it.
    let other = db.connect().await;
    other
        .sql("begin isolation level repeatable read; select")
        .await;
    let horizon = "select state, hint is not null from fetchq.status() where component = 'horizon'";
    assert_eq!(app.rows(horizon).await, ["unknown|t"]);
    app.sql("reset role; grant pg_read_all_stats to app; set role app")
        .await;
    assert_eq!(app.rows(horizon).await, ["free|f"]);
}

#[tokio::test]
async fn without_shared_memory() {
    for (name, settings, missing) in [
        (
            "bare_status",
            "shared_preload_libraries = ''",
            [
                "library|not preloaded|t",
                "memory|none|f",
                "launcher|not running|f",
            ],
        ),
        (
            "no_memory",
            "shared_preload_libraries = 'fetchq'\nfetchq.ready_slots = 0",
            [
                "library|preloaded|f",
                "memory|none|t",
                "launcher|not running|f",
            ],
        ),
    ] {
        let (_cluster, _, session) =
            without_worker(name, &format!("{settings}\nfetchq.background_worker = on")).await;
        let server = "select component, state, hint is not null from fetchq.status() where component in ('library', 'memory', 'launcher')";
        assert_eq!(session.rows(server).await, missing);
        assert_eq!(session.rows(STATES).await, IN_TIME);
        late_in(&session, "q").await;
        wait_for_rows("it is late", &session, STATES, &LATE).await;
        session
            .sql("update fetchq.jobs set next_iteration = now() - interval '2 minutes'")
            .await;
        let jobs = "select distinct state, hint is not null from fetchq.status() where component like 'maintenance: %'";
        assert_eq!(session.rows(jobs).await, ["late|t"]);
        session.sql("select * from fetchq.mnt_job_run(100)").await;
        assert_eq!(session.rows(jobs).await, ["fine|f"]);
        assert_eq!(session.rows(STATES).await, IN_TIME);
    }
}

#[tokio::test]
async fn failing_maintenance_is_named() {
    let (_cluster, db, session) = without_worker("named", "").await;
    for name in ["a", "b", "c", "d"] {
        queue(&db, name).await;
    }
    let said = "select component, state, detail like '%failing for \"a\", \"b\", \"c\" and 1 more' from fetchq.status() where component like 'maintenance: %' and state <> 'fine'";
    session
        .sql("update fetchq.jobs set attempts = 2 where task = 'mnt' and queue in ('a', 'b', 'c', 'd')")
        .await;
    assert_eq!(
        session.rows(said).await,
        ["maintenance: documents|failing|t"]
    );
    session
        .sql("update fetchq.jobs set attempts = 1 where queue <> 'q'; update fetchq.jobs set attempts = 5 where task = 'drp' and queue = 'q'")
        .await;
    let detail = "select component, detail like '%failing for \"q\"' from fetchq.status() where state = 'failing'";
    assert_eq!(session.rows(detail).await, ["maintenance: retention|t"]);
}

#[tokio::test]
async fn schedules_that_fail_or_are_late() {
    let (_cluster, _, session) = without_worker("schedule_states", "").await;
    let said = "select state, hint is not null from fetchq.status() where component = 'schedules'";
    assert_eq!(session.rows(said).await, ["none|f"]);
    session
        .sql("select fetchq.schedule_create('s', 'q', '1 hour')")
        .await;
    assert_eq!(session.rows(said).await, ["fine|f"]);
    session
        .sql("update fetchq.schedules set due_at = now() - interval '1 minute'")
        .await;
    assert_eq!(session.rows(said).await, ["late|t"]);
    session
        .sql("update fetchq.schedules set attempts = 1")
        .await;
    assert_eq!(session.rows(said).await, ["failing|t"]);
    session.sql("select fetchq.schedule_pause('s')").await;
    assert_eq!(session.rows(said).await, ["fine|f"]);
}

/// The background worker is off from here on: it was the process that knew what is due.
#[tokio::test]
async fn late_after_the_background_worker_has_ended() {
    let cluster = with_worker("ended", "");
    let db = cluster.server().database("ended").await;
    let session = queue(&db, "q").await;
    worker_comes(&session, &db.name).await;
    // It is killed in the middle of its work, which its floors remember.
    session
        .sql("insert into fetchq_data.q__docs (subject, status, next_iteration) select 'd' || n, 0, now() from generate_series(1, 50000) n")
        .await;
    session
        .sql("alter system set fetchq.background_worker = off; ")
        .await;
    session.sql("select pg_reload_conf(), pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'fetchq background worker'").await;
    fetchq_client_tests::worker_goes(&session, &db.name).await;
    late_in(&session, "q").await;
    wait_for_rows("it is late", &session, STATES, &LATE).await;
    for _ in 0..20 {
        assert_eq!(session.rows(STATES).await, LATE);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
