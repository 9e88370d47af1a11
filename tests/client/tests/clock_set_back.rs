//! A clock that is set back stops nothing: neither jobs and rate permits, whose times are stored, nor
//! the processes of fetchq, which remember theirs.

use fetchq_client_tests::{
    Cluster, Database, LAUNCHER, Server, Session, process_id, wait_until, worker_comes,
};

const AN_HOUR_S: i64 = 3600;

async fn database(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    (db, session)
}

/// Waits until a pick finds a document, and returns its subject.
async fn picks(session: &Session, queue: &str) -> String {
    let lease = format!("select subject from fetchq.doc_lease('{queue}', 1, '1 hour')");
    let mut picked = Vec::new();
    wait_until(&format!("a document of {queue} is picked"), async || {
        picked = session.column(&lease).await;
        !picked.is_empty()
    })
    .await;
    picked.remove(0)
}

#[tokio::test]
async fn permits_that_were_used_before_the_clock_was_set_back_do_not_stop_a_rate() {
    for direct in ["on", "off"] {
        let (db, session) = database("clock_rate").await;
        session
            .sql(&format!(
                "set fetchq.direct = {direct};
                 select fetchq.queue_configure('q', '{{\"rate\": {{\"picks\": 2, \"per\": \"300 ms\"}}}}');
                 select fetchq.doc_append('q', '{{}}') from generate_series(1, 9)"
            ))
            .await;
        let set_back =
            "update fetchq.rate_permits set free_at = clock_timestamp() + interval '1 hour'";
        session.sql(set_back).await;
        for _ in 0..4 {
            picks(&session, "q").await;
        }
        // A session that waits finds out, too.
        session.sql(set_back).await;
        let wait = "call fetchq.queue_wait(array['q'], '1 minute', null)";
        assert_eq!(session.text(wait).await, "q");
        picks(&session, "q").await;
        drop(session);
        db.remove().await;
    }
}

/// Nobody knows when they were used. So they count as used now.
#[tokio::test]
async fn a_rate_allows_no_more_picks_after_the_clock_was_set_back() {
    let (db, session) = database("clock_rate").await;
    session
        .sql(
            "select fetchq.queue_configure('q', '{\"rate\": {\"picks\": 2, \"per\": \"1 hour\"}}');
             select fetchq.doc_append('q', '{}') from generate_series(1, 9)",
        )
        .await;
    let lease = "select count(*) from fetchq.doc_lease('q', 9, '1 hour')";
    assert_eq!(session.text(lease).await, "2");
    let times = "select free_at from fetchq.rate_permits order by permit";
    let used = session.column(times).await;
    assert_eq!(session.text(lease).await, "0");
    // Those of an ordinary pick stay as they are.
    assert_eq!(session.column(times).await, used);
    session
        .sql("update fetchq.rate_permits set free_at = free_at + interval '1 hour'")
        .await;
    for _ in 0..3 {
        assert_eq!(session.text(lease).await, "0");
    }
    let clamped = "select bool_and(free_at between clock_timestamp() + interval '50 minutes'
        and clock_timestamp() + interval '1 hour') from fetchq.rate_permits";
    assert_eq!(session.text(clamped).await, "t");
    drop(session);
    db.remove().await;
}

/// Has all jobs look as if they had been planned by a clock that was an hour ahead.
const PLANNED_AHEAD: &str = "update fetchq.jobs set
    next_iteration = next_iteration + interval '1 hour', planned_at = planned_at + interval '1 hour'";

#[tokio::test]
async fn jobs_that_were_planned_before_the_clock_was_set_back_run() {
    let (db, session) = database("clock_jobs").await;
    session
        .sql("update fetchq.jobs set settings = settings || '{\"delay\": \"100 ms\"}'; select fetchq.mnt()")
        .await;
    session.sql("select fetchq.mnt_job_run(100)").await;
    // One has failed, and another one was put off by an operator.
    session
        .sql(
            "update fetchq.jobs set attempts = 3 where task = 'drp';
             update fetchq.jobs set next_iteration = '2970-01-01' where task = 'sts'",
        )
        .await;
    session.sql(PLANNED_AHEAD).await;
    session
        .sql("update fetchq.jobs set iterations = 0, last_iteration = null")
        .await;
    let left = "select string_agg(task, ' ' order by task) from fetchq.jobs where iterations = 0";
    wait_until("all jobs have run", async || {
        session.sql("select fetchq.mnt_job_run(100)").await;
        session.text(left).await == "sts"
    })
    .await;
    let put_off =
        "select next_iteration > now() + interval '900 years' from fetchq.jobs where task = 'sts'";
    assert_eq!(session.text(put_off).await, "t");
    drop(session);
    db.remove().await;
}

/// A pick looks for what is due, so maintenance makes due what was ready when it was added.
#[tokio::test]
async fn documents_that_were_ready_before_the_clock_was_set_back_are_picked() {
    for settings in ["{}", "{\"ordered\": true}"] {
        let (db, session) = database("clock_ready").await;
        session
            .sql(&format!(
                "select fetchq.queue_configure('q', '{settings}');
                 select fetchq.doc_put('q', s, '{{}}', ordering_key => s) from unnest('{{a,b,retry}}'::text[]) s;
                 select fetchq.doc_put('q', 'planned', '{{}}', delay => '5 minutes');
                 update fetchq_data.q__docs set created_at = created_at + interval '1 hour',
                     next_iteration = next_iteration + interval '1 hour';
                 update fetchq_data.q__docs set attempts = 1 where subject = 'retry';
                 insert into fetchq_data.q__docs (subject, status, next_iteration) values ('by plain SQL', 1, now() + interval '1 hour')"
            ))
            .await;
        let lease = "select subject from fetchq.doc_lease('q', 9, '1 hour') order by 1";
        assert_eq!(session.column(lease).await, [] as [&str; 0]);
        session
            .sql("update fetchq.jobs set next_iteration = now() where task = 'cmp'; select fetchq.mnt_job_run(100)")
            .await;
        assert_eq!(session.column(lease).await, ["a", "b"], "{settings}");
        drop(session);
        db.remove().await;
    }
}

/// Maintenance looks at each version and priority for such documents, and passes by retries that wait.
#[tokio::test]
async fn a_document_of_any_version_and_priority_is_ready_after_the_clock_was_set_back() {
    let (db, session) = database("clock_groups").await;
    session
        .sql(
            "select fetchq.doc_put('q', s, '{}') from unnest('{ready,retry}'::text[]) s;
             select fetchq.doc_put('q', 'ahead', '{}', version => 2, priority => -5);
             select fetchq.doc_put('q', 'other', '{}', version => 2, priority => 5);
             update fetchq_data.q__docs set attempts = 1, next_iteration = next_iteration + interval '1 hour'
                where subject = 'retry';
             update fetchq_data.q__docs set created_at = created_at + interval '1 hour',
                next_iteration = next_iteration + interval '1 hour' where subject = 'ahead'",
        )
        .await;
    let lease = "select subject from fetchq.doc_lease('q', 9, '1 hour', 2) order by 1";
    assert_eq!(session.column(lease).await, ["other"]);
    session
        .sql("update fetchq.jobs set next_iteration = now() where task = 'cmp'; select fetchq.mnt_job_run(100)")
        .await;
    assert_eq!(session.column(lease).await, ["ahead"]);
    let retry = "select next_iteration > now() + interval '50 minutes' from fetchq_data.q__docs
        where subject = 'retry'";
    assert_eq!(session.text(retry).await, "t");
    drop(session);
    db.remove().await;
}

/// A cluster with a background worker whose clock can be set, and a session of its database.
async fn with_clock(name: &str) -> (Cluster, Session) {
    let settings =
        "shared_preload_libraries = 'fetchq'\nfetchq.background_worker = on\nfsync = off";
    let cluster = Cluster::with_clock(name, settings);
    cluster.start();
    let session = cluster.server().connect("postgres").await;
    session
        .sql(
            "create extension fetchq; select fetchq.queue_create(queue)
             from unnest(array['q', 'rated', 'waits', 'put_off']) queue;
             select fetchq.queue_configure('rated', '{\"rate\": {\"picks\": 2, \"per\": \"1 second\"}}')",
        )
        .await;
    worker_comes(&session, "postgres").await;
    (cluster, session)
}

/// Waits until the background worker makes a document pending that is planned for a moment later, and
/// takes a lease back that expires then.
async fn maintenance_runs(session: &Session, subject: &str) {
    session
        .sql(&format!(
            "select fetchq.doc_put('q', 'leased {subject}', '{{}}', priority => 9);
             select fetchq.doc_lease('q', 1, '300 ms');
             select fetchq.doc_put('q', 'planned {subject}', '{{}}', delay => '300 ms')"
        ))
        .await;
    let ready = format!(
        "select count(*) from fetchq_data.q__docs where status = 1 and subject like '%{subject}'"
    );
    wait_until(&format!("{subject} are ready"), async || {
        session.text(&ready).await == "2"
    })
    .await;
}

#[tokio::test]
async fn maintenance_leases_and_picks_go_on_when_the_clock_is_set_back() {
    let (cluster, session) = with_clock("clock_set_back").await;
    maintenance_runs(&session, "before").await;
    // Each of them has run at least once.
    session.sql("select fetchq.mnt()").await;
    session
        .sql(
            "select fetchq.doc_put('rated', 'r' || i) from generate_series(1, 2) i;
             update fetchq.jobs set next_iteration = now() + interval '3 hours'
             where task = 'mnt' and queue = 'put_off';
             select fetchq.doc_put('put_off', 'planned', '{}', delay => '1 ms')",
        )
        .await;
    picks(&session, "rated").await;
    picks(&session, "rated").await;
    let first: i64 = session
        .text("select max(lease) from fetchq_data.rated__docs")
        .await
        .parse()
        .expect("a number");
    let waiter = cluster.server().connect("postgres").await;
    let waits = tokio::spawn(async move {
        waiter
            .text("call fetchq.queue_wait(array['waits'], '3 seconds', null)")
            .await
    });
    wait_until("it waits", async || {
        let sql = "select count(*) from pg_stat_activity where query like 'call fetchq.queue_wait%' and wait_event = 'Extension'";
        session.text(sql).await == "1"
    })
    .await;
    let launcher = process_id(&session, LAUNCHER).await;

    cluster.set_clock(-AN_HOUR_S);
    wait_until("the launcher starts anew", async || {
        let now = process_id(&session, LAUNCHER).await;
        now.is_some() && now != launcher
    })
    .await;
    worker_comes(&session, "postgres").await;
    wait_until("the wait has ended", async || waits.is_finished()).await;
    maintenance_runs(&session, "after").await;
    let packs = "select iterations from fetchq.jobs where task = 'lgp'";
    let packed = session.text(packs).await;
    wait_until("the counters are packed", async || {
        session
            .sql("select fetchq.doc_put('q', 'again', '{}', mode => 'reset')")
            .await;
        session.text(packs).await != packed
    })
    .await;
    session
        .sql("select fetchq.doc_put('rated', 'new ' || i) from generate_series(1, 3) i")
        .await;
    for _ in 0..3 {
        assert!(picks(&session, "rated").await.starts_with("new"));
    }
    // Numbers grow: that of the document that has one, and those of the server.
    let least = "select min(lease) from fetchq_data.rated__docs where subject like 'new%'";
    assert!(session.text(least).await.parse::<i64>().unwrap() > first);
    session
        .sql("update fetchq.jobs set settings = settings || '{\"delay\": \"1 s\"}' where queue = 'q'")
        .await;
    let late = "select count(*) from fetchq.jobs
        where next_iteration > clock_timestamp() + interval '15 minutes' and queue <> 'put_off'";
    wait_until("no job waits for the clock", async || {
        session.text(late).await == "0"
    })
    .await;
    // What an operator has put off is still put off.
    let planned = "select status from fetchq_data.put_off__docs";
    assert_eq!(session.text(planned).await, "0");
    session.sql("create database later").await;
    let other = cluster.server().connect("later").await;
    other.sql("create extension fetchq").await;
    worker_comes(&other, "later").await;
    cluster.stop("fast");
}

/// The clock is set back while the server is down: what is stored comes from the time before.
#[tokio::test]
async fn a_server_that_starts_with_a_clock_that_is_behind_does_its_work() {
    let (cluster, session) = with_clock("clock_behind").await;
    maintenance_runs(&session, "before").await;
    session.sql("select fetchq.mnt()").await;
    session.sql("select fetchq.doc_put('rated', 'a')").await;
    let lease = "select lease from fetchq.doc_lease('rated', 1, '1 hour')";
    let before = session.text(lease).await;
    let back = format!("select fetchq.doc_snooze('rated', 'a', lease => {before})");
    session.sql(&back).await;
    drop(session);
    cluster.stop("immediate");
    cluster.set_clock(-AN_HOUR_S);
    cluster.start();

    let session = cluster.server().connect_when_up("postgres").await;
    worker_comes(&session, "postgres").await;
    maintenance_runs(&session, "after").await;
    session
        .sql("update fetchq_data.rated__docs set next_iteration = '2020-01-01'")
        .await;
    assert_eq!(picks(&session, "rated").await, "a");
    let lost = format!("select fetchq.doc_complete('rated', 'a', lease => {before})");
    assert_eq!(session.state(&lost).await, "55000");
    cluster.stop("fast");
}
