//! The job `cmp` reads the documents of a queue only where somebody else than fetchq has written some,
//! after a crash, and once a day.

use fetchq_client_tests::{Cluster, Session, wait_until};

const SETTINGS: &str = "shared_preload_libraries = 'fetchq'\nfetchq.background_worker = off\nfsync = off\n\
    autovacuum = off\nmax_prepared_transactions = 5";

/// Runs the job `cmp` of `q`, and returns whether it has counted: then it has repaired a gauge that nothing
/// else would.
async fn counts(session: &Session) -> bool {
    session
        .sql(
            "update fetchq.metrics set value = value + 1000 where queue = 'q' and metric = 'kll';
             update fetchq.jobs set next_iteration = case when task = 'cmp' and queue = 'q'
                 then timestamptz '2020-01-01' else 'infinity' end",
        )
        .await;
    let run = "select success from fetchq.mnt_job_run(1)";
    assert_eq!(session.text(run).await, "t");
    let wrong = "select value - (select count(*) from fetchq_data.q__docs where status = -1)
        from fetchq.metrics_exact where queue = 'q' and metric = 'kll'";
    match session.text(wrong).await.as_str() {
        "0" => true,
        "1000" => {
            session
                .sql("update fetchq.metrics set value = value - 1000 where queue = 'q' and metric = 'kll'")
                .await;
            false
        }
        other => panic!("the gauge is wrong by {other}"),
    }
}

async fn cluster(name: &str) -> (Cluster, Session) {
    let cluster = Cluster::new(name, SETTINGS);
    cluster.start();
    let session = cluster.server().connect("postgres").await;
    session
        .sql(
            "create extension fetchq;
             select fetchq.queue_create(q) from unnest('{q,other,failed}'::text[]) q;
             select fetchq.doc_append('q', '{}') from generate_series(1, 500);
             select fetchq.doc_put('q', 'killed'); select fetchq.doc_cancel('q', 'killed')",
        )
        .await;
    assert!(counts(&session).await, "for the first time");
    assert!(!counts(&session).await, "nothing has happened since");
    (cluster, session)
}

/// What fetchq itself writes, in all its ways.
#[tokio::test]
async fn what_fetchq_writes_is_not_counted_again() {
    let (cluster, session) = cluster("recount_own").await;
    for settings in [
        "{}",
        r#"{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}"#,
        r#"{"history": {"completed": "0", "killed": "0"}, "dead_letter": "failed"}"#,
        r#"{"notify": true}"#,
    ] {
        session
            .sql(&format!("select fetchq.queue_configure('q', '{settings}')"))
            .await;
        for direct in ["on", "off"] {
            session
                .sql(&format!(
                    "set fetchq.direct = {direct};
                     select fetchq.doc_put('q', 'a' || i, delay => '1 ms') from generate_series(1, 20) i;
                     select fetchq.doc_put('q', 'a1', mode => 'replace');
                     select fetchq.doc_put_many('q', '[{{\"subject\": \"b\"}}, {{\"subject\": \"c\"}}]', 'replace');
                     select fetchq.mnt_run('q', 100);
                     select fetchq.doc_complete('q', subject, lease => lease) from fetchq.doc_lease('q', 3);
                     select fetchq.doc_reject('q', subject, 'no', lease => lease) from fetchq.doc_lease('q', 3);
                     select fetchq.doc_kill('q', subject, lease => lease) from fetchq.doc_lease('q', 3);
                     select fetchq.doc_drop('q', subject, lease => lease) from fetchq.doc_lease('q', 3);
                     select fetchq.doc_snooze('q', subject, lease => lease, delay => '1 day') from fetchq.doc_lease('q', 3);
                     select fetchq.doc_extend('q', subject, '1 hour', lease) from fetchq.doc_lease('q', 1, '1 ms');
                     select fetchq.docs_next('q', '[]', 2, '1 ms'); select pg_sleep(0.01); select fetchq.mnt_run('q', 100);
                     select fetchq.doc_pop('q', 0, 2);
                     select fetchq.doc_cancel('q', subject) from fetchq.docs_list('q', '{{\"status\": \"pending\"}}', 2)"
                ))
                .await;
        }
        assert!(!counts(&session).await, "{settings}");
    }
    cluster.stop("fast");
}

#[tokio::test]
async fn what_others_write_is_counted() {
    let (cluster, session) = cluster("recount_foreign").await;
    let other = cluster.server().connect("postgres").await;
    for sql in [
        "delete from fetchq_data.q__docs where subject = (select min(subject) from fetchq_data.q__docs)",
        "update fetchq_data.q__docs set status = -1 where subject = (select min(subject) from fetchq_data.q__docs where status = 1)",
        "insert into fetchq_data.q__docs (subject, status) values ('raw', 1)",
        "set session_replication_role = replica; delete from fetchq_data.q__docs where subject = 'raw'; reset session_replication_role",
        "begin; insert into fetchq_data.q__docs (subject, status) values ('raw', 1); prepare transaction 'raw'",
        "copy fetchq_data.q__docs (subject, status) from program 'printf \"c1\\t1\\nc2\\t1\\n\"'",
        "alter table fetchq_data.q__docs disable trigger fetchq_ready; delete from fetchq_data.q__docs where subject = 'c1'; alter table fetchq_data.q__docs enable always trigger fetchq_ready",
        "create function by_trigger() returns trigger language plpgsql as 'begin delete from fetchq_data.q__docs where subject = ''c2''; return null; end';
         create trigger by_trigger after insert on fetchq_data.other__docs for each row execute function by_trigger();
         select fetchq.doc_append('other', '{}'); drop trigger by_trigger on fetchq_data.other__docs",
        "truncate fetchq_data.q__docs",
    ] {
        other.sql(sql).await;
        if sql.contains("prepare transaction") {
            assert!(!counts(&session).await, "it is not committed");
            other.sql("commit prepared 'raw'").await;
        }
        assert!(counts(&session).await, "{sql}");
        assert!(!counts(&session).await, "once: {sql}");
    }
    // Of another queue.
    other.sql("delete from fetchq_data.other__docs").await;
    assert!(!counts(&session).await);
    // One that is not committed yet is counted when it is.
    session
        .sql("select fetchq.doc_append('q', '{}') from generate_series(1, 5)")
        .await;
    other
        .sql("begin; delete from fetchq_data.q__docs where subject = (select min(subject) from fetchq_data.q__docs)")
        .await;
    assert!(!counts(&session).await);
    other.sql("commit").await;
    assert!(counts(&session).await);
    cluster.stop("fast");
}

#[tokio::test]
async fn documents_are_counted_after_a_crash_and_once_a_day() {
    let (cluster, session) = cluster("recount_day").await;
    session
        .sql(
            "update fetchq.jobs set payload = jsonb_set(payload, '{counted}',
                 to_jsonb(split_part(payload ->> 'counted', '@', 1) || '@' || split_part(payload ->> 'counted', '@', 2)::bigint - 86400000000))
             where task = 'cmp' and queue = 'q'",
        )
        .await;
    assert!(counts(&session).await, "after a day");
    assert!(!counts(&session).await);
    session.sql("checkpoint").await;
    cluster.stop("immediate");
    cluster.start();
    let session = cluster.server().connect_when_up("postgres").await;
    assert!(counts(&session).await, "after a crash");
    assert!(!counts(&session).await);
    // All gauges were deleted.
    session
        .sql("delete from fetchq.metrics where queue = 'q'; select fetchq.metric_log_pack()")
        .await;
    session
        .sql("update fetchq.jobs set next_iteration = '2020-01-01' where task = 'cmp' and queue = 'q'")
        .await;
    wait_until("the gauges are there again", async || {
        session.sql("select fetchq.mnt_job_run(10)").await;
        let cnt = "select coalesce((select value from fetchq.metrics where queue = 'q' and metric = 'cnt'), 0)";
        session.text(cnt).await == "501"
    })
    .await;
    cluster.stop("fast");
}
