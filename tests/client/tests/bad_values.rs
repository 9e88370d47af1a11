//! Invalid values, and the limits of valid values.

mod lists;
mod matrix;
mod values;

use fetchq_client_tests::{Server, counters_are_exact, error_of, prepare_queue};

/// Statements that must fail, with their SQLSTATE.
const BAD: &[(&str, &str)] = &[
    // Limits.
    ("doc_pick('q', -1)", "22023"),
    ("doc_pick('q', -2147483648)", "22023"),
    ("doc_pick('q', 2147483648)", "42883"),
    ("queue_set_max_attempts('q', 0)", "22023"),
    ("queue_set_max_attempts('q', -1)", "22023"),
    ("doc_pick('q', 0, -1, '5m')", "22023"),
    ("queue_top('q', 0, -1, 0)", "22023"),
    ("queue_top('q', 0, 1, -1)", "22023"),
    ("mnt_run('q', -1)", "22023"),
    ("mnt_run_all(-1)", "22023"),
    ("mnt_make_pending('q', -1)", "22023"),
    ("mnt_reschedule_orphans('q', -1)", "22023"),
    ("mnt_mark_dead('q', -1)", "22023"),
    ("mnt_job_pick('1m', -1)", "22023"),
    ("mnt_job_run(-1)", "22023"),
    ("mnt_job_run('1m', -1)", "22023"),
    ("doc_pop('q', 0, -1)", "22023"),
    ("doc_lease('q', -1)", "22023"),
    ("doc_lease('q', duration => '-1s')", "22023"),
    ("doc_lease('q', duration => 'infinity')", "22007 22023"),
    ("doc_lease('q', duration => '300000 years')", "22008"),
    ("doc_lease('q', worker => '')", "22023"),
    ("doc_lease('q', binding => 'on')", "22023"),
    ("doc_lease_any('{q}', 1, '-1s')", "22023"),
    ("doc_lease('none')", "42704"),
    // Leases that do not exist.
    ("doc_complete('q', 'active', null, 1)", "55000"),
    ("doc_drop('q', 'active', -1)", "55000"),
    (
        "doc_complete_many('q', array['active'], lease => 9223372036854775807)",
        "55000",
    ),
    ("doc_get('none', 'active')", "42704"),
    ("doc_explain('none', 'active')", "42704"),
    ("docs_list('none')", "42704"),
    ("docs_list('q', '{\"status\": 1}')", "22023"),
    ("docs_list('q', '{}', -1)", "22023"),
    ("doc_errors('q', 'active', -1)", "22023"),
    ("doc_errors('none', 'active')", "42704"),
    ("metric_export('none')", "22023"),
    ("queue_stats('none')", "42704"),
    ("queue_stats('no queue')", "42602"),
    ("doc_extend('q', 'active', '1m', 0)", "55000"),
    ("doc_extend('q', 'active', '-1m')", "22023"),
    ("doc_extend('q', 'active', '300000 years')", "22008"),
    ("doc_extend('none', 'active', '1m')", "42704"),
    (
        "docs_extend('none', '[{\"subject\": \"a\", \"lease\": 7}]')",
        "42704",
    ),
    ("docs_extend('q', '[]', '-1s')", "22023"),
    (
        "docs_extend('q', '[{\"subject\": \"active\", \"lease\": 7}]', '300000 years')",
        "22008",
    ),
    ("docs_extend('q', '[{\"subject\": \"active\"}]')", "22023"),
    ("doc_cancel('none', 'active')", "42704"),
    (
        "doc_reject('q', 'active', 'm', '{}', delay => '-1s')",
        "22023",
    ),
    (
        "queue_configure('q', '{\"retry\": {\"base\": \"-1s\"}}')",
        "22023",
    ),
    (
        "queue_configure('q', '{\"retry\": {\"base\": \"1s\", \"factor\": 0}}')",
        "22023",
    ),
    (
        "queue_configure('q', '{\"retry\": {\"base\": \"1s\", \"jitter\": \"NaN\"}}')",
        "22023",
    ),
    (
        "queue_configure('q', '{\"retry\": {\"base\": \"1s\"}, \"max_attempts\": 0}')",
        "22023",
    ),
    // Durations: not an interval, negative, infinite (since PostgreSQL 17), too long.
    ("doc_pick('q', 'soon')", "22007"),
    ("doc_pick('q', '')", "22007"),
    ("doc_pick('q', 0, 1, 'soon')", "22007"),
    ("doc_pick('q', 1, 'soon')", "22007"),
    ("doc_pick('q', '-1 second')", "22023"),
    ("doc_pick('q', interval '-1 second')", "22023"),
    ("doc_pick('q', 0, 1, '1 day -25 hours')", "22023"),
    ("doc_pick('q', 'infinity')", "22007 22023"),
    ("doc_pick('q', 0, 1, '300000 years')", "22008"),
    ("doc_pick('q', 0, 5, '300000 years')", "22008"),
    ("mnt('soon')", "22007"),
    ("mnt('-1s')", "22023"),
    ("mnt_job_pick('soon', 1)", "22007"),
    ("mnt_job_pick('-1s', 1)", "22023"),
    ("mnt_job_run('soon', 1)", "22007"),
    ("mnt_job_run('-1s', 1)", "22023"),
    ("mnt_job_reschedule(1, 'soon')", "22007"),
    ("mnt_job_reschedule(1, '-1s')", "22023"),
    ("queue_set_logs_retention('q', 'soon')", "22007"),
    ("queue_set_logs_retention('q', '-1h')", "22023"),
    ("queue_drop_logs('q', 'soon')", "22007"),
    ("queue_drop_logs('q', '-1h')", "22023"),
    // Retention policies.
    (
        "queue_set_metrics_retention('q', 'nonsense')",
        "22P02 22023",
    ),
    ("queue_set_metrics_retention('q', '{}')", "22023"),
    (
        "queue_set_metrics_retention('q', '[{\"retain\": \"fortnight\", \"from\": \"1h\", \"to\": \"0s\"}]')",
        "22023",
    ),
    (
        "queue_set_metrics_retention('q', '[{\"retain\": \"hour\", \"from\": \"soon\", \"to\": \"0s\"}]')",
        "22007",
    ),
    ("queue_drop_metrics('q', '{}')", "22023"),
    ("queue_drop_metrics('q', '[1]')", "22023"),
    (
        "queue_drop_metrics('q', '[{\"retain\": \"fortnight\", \"from\": \"1h\", \"to\": \"0s\"}]')",
        "22023",
    ),
    (
        "queue_drop_metrics('q', '[{\"retain\": \"hour\", \"from\": \"soon\", \"to\": \"0s\"}]')",
        "22007",
    ),
    (
        "utils_ts_retain('fetchq_data.q__logs', 'created_at', 'fortnight', now(), now())",
        "22023",
    ),
    (
        "utils_ts_retain('no_such_table', 'created_at', 'hour', now(), now())",
        "42P01",
    ),
    (
        "utils_ts_retain('fetchq_data.q__logs', 'no\"such', 'hour', now(), now())",
        "42703",
    ),
    // JSON.
    ("doc_push('q', 'd', '{broken')", "22P02"),
    ("doc_append('q', '')", "22P02"),
    ("metric_snap('q', '{}'::jsonb)", "22023"),
    ("metric_snap('q', '[1]'::jsonb)", "22023"),
    // Names of metrics.
    ("metric_get('q', '')", "42602"),
    ("metric_set('q', repeat('m', 41), 1)", "42602"),
    ("metric_increment('q', repeat('m', 41), 1)", "42602"),
    ("metric_log_set('q', repeat('m', 41), 1)", "42602"),
    // Subjects of 256 characters.
    ("doc_push('q', repeat('s', 256))", "22001"),
    (
        "doc_push('q', repeat('é', 256), 0, 0, now(), '{}')",
        "22001",
    ),
    (
        "doc_push('q', 0, now(), '(''' || repeat('s', 256) || ''', 0, ''{}'', {DATA})')",
        "22001",
    ),
    (
        "doc_upsert('q', repeat('s', 256), 0, 0, now(), '{}')",
        "22001",
    ),
    ("doc_complete('q', repeat('s', 256))", "22001"),
    ("doc_kill('q', repeat('s', 256))", "22001"),
    ("doc_drop('q', repeat('s', 256))", "22001"),
    ("doc_reschedule('q', repeat('s', 256), now())", "22001"),
    ("doc_reject('q', repeat('s', 256), 'why', '{}')", "22001"),
    ("log_error('q', repeat('s', 256), 'why', '{}')", "22001"),
    ("trace('x', 'sideways')", "22023"),
    // Schedules.
    ("schedule_create('', 'q', '@daily')", "42602"),
    ("schedule_create(repeat('s', 235), 'q', '@daily')", "42602"),
    ("schedule_create(E'a\\nb', 'q', '@daily')", "42602"),
    ("schedule_create('nightly', 'q', '@daily')", "42710"),
    ("schedule_create('s', 'nope', '@daily')", "42704"),
    ("schedule_create('s', 'no-name', '@daily')", "42602"),
    ("schedule_create('s', 'q', '')", "22023"),
    ("schedule_create('s', 'q', 'soon')", "22023"),
    ("schedule_create('s', 'q', '* * * *')", "22023"),
    ("schedule_create('s', 'q', '60 * * * *')", "22023"),
    ("schedule_create('s', 'q', '0 0 30 2 *')", "22023"),
    ("schedule_create('s', 'q', '0 0 s')", "22023"),
    ("schedule_create('s', 'q', '-1 day')", "22023"),
    ("schedule_create('s', 'q', '500 ms')", "22023"),
    ("schedule_create('s', 'q', '1.5 s')", "22023"),
    ("schedule_create('s', 'q', 'infinity')", "22023"),
    ("schedule_create('s', 'q', '1 month -1 day')", "22023"),
    (
        "schedule_create('s', 'q', '@daily', timezone => '')",
        "22023",
    ),
    (
        "schedule_create('s', 'q', '@daily', timezone => 'Mars')",
        "22023",
    ),
    (
        "schedule_create('s', 'q', '@daily', timezone => repeat('x', 1000))",
        "22023",
    ),
    (
        "schedule_create('s', 'q', '@daily', catch_up => 'some')",
        "22023",
    ),
    (
        "schedule_create('s', 'q', '@daily', catch_up_limit => 0)",
        "22023",
    ),
    (
        "schedule_create('s', 'q', '@daily', catch_up_limit => 10001)",
        "22023",
    ),
    (
        "schedule_create('s', 'q', '@daily', jitter => '-1s')",
        "22023",
    ),
    (
        "schedule_create('s', 'q', '@daily', ends_at => now())",
        "22023",
    ),
    (
        "schedule_create('s', 'q', '@daily', starts_at => 'infinity')",
        "22023",
    ),
    ("schedule_pause('nope')", "42704"),
    ("schedule_resume('nope')", "42704"),
    ("schedule_pause('nightly', 'other')", "42704"),
    ("schedule_resume('nightly', 'other')", "42704"),
    ("schedule_tick('nightly', 'other')", "42704"),
    ("schedule_drop('nightly', 'nope')", "42704"),
    ("schedule_list('nope')", "42704"),
    ("schedule_run(1, 'nope')", "42704"),
    ("queue_place_set('q', 'db2')", "42710"),
    ("queue_place_set('away', E'a\\nb')", "22023"),
    ("queue_place_set('away', repeat('x', 201))", "22023"),
    ("schedule_preview('@daily', 'UTC', now(), -1)", "22023"),
    ("schedule_preview('@daily', 'Mars', now(), 1)", "22023"),
    ("schedule_run(-1)", "22023"),
    ("schedule_run_at(-1, now())", "22023"),
];

/// Calls of procedures that must fail, with their SQLSTATE.
const BAD_CALLS: &[(&str, &str)] = &[
    ("queue_wait(null)", "22023"),
    ("queue_wait(queue => 'nope')", "42704"),
    ("queue_wait(queue => '')", "42602"),
    ("queue_wait('{q}', queue => 'nope')", "42704"),
    ("worker_wait('{q, null}', 'w')", "22004"),
    ("worker_wait('{{q}, {other}}', 'w')", "2202E"),
    (
        "worker_wait(array_fill('q'::text, array[100000]), 'w')",
        "22023",
    ),
    ("worker_wait('{q}', null)", "22004"),
    ("worker_wait('{q}', repeat('w', 201))", "22023"),
    ("worker_wait('{q}', 'w', '-1s')", "22023"),
    ("worker_wait('{q}', 'w', '178000000 years')", "22008"),
    ("worker_wait('{q}', 'w', leases => '[{}]')", "22023"),
    ("queue_wait('{}')", "22023"),
    ("queue_wait('{q, null}')", "22004"),
    ("queue_wait('{{q}, {other}}')", "2202E"),
    ("queue_wait('{nope}')", "42704"),
    ("queue_wait(array[''])", "42602"),
    ("queue_wait(array[repeat('x', 1048576)])", "42602"),
    ("queue_wait(array_fill('q'::text, array[100000]))", "22023"),
    ("queue_wait('{q}', '-1s')", "22023"),
    ("queue_wait('{q}', '1 mon -31 days')", "22023"),
    ("queue_wait('{q}', '178000000 years')", "22008"),
    ("queue_wait('{q}', '0', version => null)", "22004"),
    ("doc_await(null, 'active')", "22004"),
    ("doc_await('nope', 'active')", "42704"),
    ("doc_await('q', null)", "22004"),
    ("doc_await('q', 'nobody')", "P0002"),
    ("doc_await('q', repeat('🙂', 256))", "22001"),
    ("doc_await('q', repeat('x', 1048576))", "22001"),
    ("doc_await('q', 'active', '-1s')", "22023"),
    ("doc_await('q', 'active', '178000000 years')", "22008"),
    ("work(null, 'public.handle')", "22004"),
    ("work('nope', 'public.handle')", "42704"),
    ("work(repeat('x', 1048576), 'public.handle')", "42602"),
    ("work('q', null)", "22004"),
    ("work('q', 'pg_catalog.txid_current')", "42883"),
    ("work('q', 'public.handle', -1)", "22023"),
    ("work('q', 'public.handle', idle_timeout => '-1s')", "22023"),
    (
        "work('q', 'public.handle', idle_timeout => '1 mon -31 days')",
        "22023",
    ),
    ("work('q', 'public.handle', duration => '-1s')", "22023"),
    (
        "work('q', 'public.handle', duration => '178000000 years')",
        "22008",
    ),
    ("work('q', 'public.handle', version => null)", "22004"),
];

/// Calls of procedures that are accepted.
const GOOD_CALLS: &[&str] = &[
    "queue_wait('{q, q}', '0')",
    "queue_wait('{q}', null)",
    "queue_wait(timeout => '0', queue => 'q')",
    "queue_wait('{q}', '0', queue => 'q')",
    "worker_wait('{q}', 'w', '0', version => null)",
    "worker_wait('{q}', 'w', '0', leases => '[]', mark => -1)",
    "worker_wait('{q}', 'w', '0', mark => 9223372036854775807)",
    "queue_wait('{q}', '0', version => -2147483648)",
    "doc_await('q', 'active', '0')",
    "doc_await('q', 'completed', null)",
    "doc_await('q', 'completed', '0', 'status', '{}', 'message')",
    "work('q', 'public.handle', 0)",
    "work('q', 'public.handle', 0, null, null, 0, 1, 1)",
    "work('q', 'public.handle', 1, '178000000 years', '0')",
    "work('q', 'public.handle', null, '0', version => 2147483647)",
];

#[tokio::test]
async fn each_argument_of_the_procedures() {
    let (db, mut session) = matrix::prepare("bad_calls").await;
    session
        .sql("create function public.handle(jsonb) returns void language sql as ''")
        .await;
    let before = matrix::state(&session).await;
    for (call, states) in BAD_CALLS {
        let error = session
            .batch_execute(&format!("call fetchq.{call}"))
            .await
            .expect_err(call);
        let error = error_of(&error);
        let state = error.code().code();
        assert_eq!(state, *states, "{call}: {}", error.message());
        assert!(error.message().len() < 1200, "{call}");
        assert!(error.hint().is_some_and(|hint| !hint.is_empty()), "{call}");
    }
    assert_eq!(
        matrix::state(&session).await,
        before,
        "something was changed"
    );
    for call in GOOD_CALLS {
        let result = session.batch_execute(&format!("call fetchq.{call}")).await;
        assert!(result.is_ok(), "{call}: {result:?}");
    }
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn invalid_values_are_rejected() {
    let db = Server::of_suite().database("bad_values").await;
    let mut session = db.connect().await;
    prepare_queue(&session).await;
    let all = "select (select string_agg(d::text, ';' order by subject) from fetchq_data.q__docs d)
        || (select string_agg(j::text, ';' order by id) from fetchq.jobs j)
        || (select string_agg(q::text, ';' order by id) from fetchq.queues q)";
    let before = session.text(all).await;
    let mut wrong = Vec::new();
    for (call, states) in BAD {
        let got = session.state(&format!("select * from fetchq.{call}")).await;
        if !states.split(' ').any(|state| state == got) {
            wrong.push(format!("fetchq.{call}: expected {states}, got {got:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(
        session.text(all).await,
        before,
        "a refused call changed something"
    );
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn limits_of_zero_and_of_the_whole_range() {
    let db = Server::of_suite().database("limits").await;
    let mut session = db.connect().await;
    prepare_queue(&session).await;
    for call in [
        "doc_pick('q', 0)",
        "doc_pick('q', 0, 0, '5m')",
        "queue_top('q', 0, 0, 0)",
        "queue_top('q', 0, 10, 2147483647)",
        "mnt_job_pick('1m', 0)",
    ] {
        assert!(
            session
                .rows(&format!("select * from fetchq.{call}"))
                .await
                .is_empty(),
            "{call}"
        );
    }
    for (call, result) in [
        ("mnt_run('q', 0)", "0|0|0"),
        ("mnt_run('q', 2147483647)", "0|0|0"),
        ("mnt_run_all(2147483647)", "other|0|0|0,q|0|0|0"),
        ("mnt_job_run(0)", "t|0"),
    ] {
        assert_eq!(
            session
                .rows(&format!("select * from fetchq.{call}"))
                .await
                .join(","),
            result,
            "{call}"
        );
    }
    for call in [
        "mnt_make_pending",
        "mnt_reschedule_orphans",
        "mnt_mark_dead",
    ] {
        for limit in ["0", "2147483647"] {
            assert_eq!(
                session
                    .text(&format!("select fetchq.{call}('q', {limit})"))
                    .await,
                "0",
                "{call}"
            );
        }
    }
    assert_eq!(
        session
            .rows("select * from fetchq.queue_top('q', 0, 2147483647, 0)")
            .await
            .len(),
        5
    );
    assert_eq!(
        session
            .column("select subject from fetchq.doc_pick('q', 0, 2147483647, '0s')")
            .await,
        ["pending"]
    );
    assert_eq!(
        session
            .text("select processed from fetchq.mnt_job_run(2147483647)")
            .await,
        "9"
    );
    // A lease of zero duration has expired when the next transaction starts.
    assert_eq!(
        session
            .text("select status from fetchq_data.q__docs where subject = 'pending'")
            .await,
        "1"
    );
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}
