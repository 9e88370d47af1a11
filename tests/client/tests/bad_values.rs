//! Invalid values, and the limits of valid values.

use fetchq_client_tests::{Server, counters_are_exact, prepare_queue, state_of};
use serde_json::json;

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
    ("lease_extend('q', 1)", "55000"),
    ("lease_extend('q', 7, '-1s')", "22023"),
    ("lease_extend('q', 7, '300000 years')", "22008"),
    ("lease_extend('none', 7)", "42704"),
    // Leases that do not exist.
    ("doc_complete('q', 'active', null, 1)", "55000"),
    ("doc_drop('q', 'active', -1)", "55000"),
    (
        "doc_complete_many('q', array['active'], lease => 9223372036854775807)",
        "55000",
    ),
    ("doc_get('none', 'active')", "42704"),
    ("docs_list('none')", "42704"),
    ("docs_list('q', '{\"status\": 1}')", "22023"),
    ("docs_list('q', '{}', -1)", "22023"),
    ("doc_errors('q', 'active', -1)", "22023"),
    ("doc_errors('none', 'active')", "42704"),
    ("queue_stats('none')", "42704"),
    ("queue_stats('no queue')", "42602"),
    ("doc_extend('q', 'active', '1m', 0)", "55000"),
    ("doc_extend('q', 'active', '-1m')", "22023"),
    ("doc_extend('q', 'active', '300000 years')", "22008"),
    ("doc_extend('none', 'active', '1m')", "42704"),
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
    ("schedule_create(repeat('s', 30), 'q', '@daily')", "42602"),
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
    ("schedule_preview('@daily', 'UTC', now(), -1)", "22023"),
    ("schedule_preview('@daily', 'Mars', now(), 1)", "22023"),
    ("schedule_run(-1)", "22023"),
    ("schedule_run_at(-1, now())", "22023"),
];

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

#[tokio::test]
async fn infinite_and_ancient_dates() {
    let db = Server::of_suite().database("dates").await;
    let mut session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    session
        .sql(
            "select fetchq.doc_push('q', 'never', '{}', 'infinity'::timestamptz);
             select fetchq.doc_push('q', 'ever', '{}', '-infinity'::timestamptz);
             select fetchq.doc_push('q', 'old', '{}', '4713-01-01 BC'::timestamptz);
             select fetchq.doc_push('q', 'late', '{}', '294276-12-31'::timestamptz)",
        )
        .await;
    counters_are_exact(&mut session, "q").await;
    assert_eq!(
        session.rows("select * from fetchq.mnt_run('q', 100)").await,
        ["0|0|0"]
    );
    // Documents are picked in the order of their dates.
    assert_eq!(
        session
            .column("select subject from fetchq.doc_pick('q', 10)")
            .await,
        ["ever", "old"]
    );
    for (subject, date, status) in [("ever", "infinity", "0"), ("old", "-infinity", "1")] {
        let sql = format!("select fetchq.doc_reschedule('q', '{subject}', '{date}')");
        assert_eq!(session.text(&sql).await, "1");
        let sql = format!("select status from fetchq_data.q__docs where subject = '{subject}'");
        assert_eq!(session.text(&sql).await, status);
    }
    assert_eq!(
        session
            .rows("select * from fetchq.doc_upsert('q', 'never', 0, 0, '-infinity', '{}')")
            .await,
        ["0|1"]
    );
    assert_eq!(
        session
            .rows("select * from fetchq.doc_upsert('q', 'new', 0, 0, 'infinity', '{}')")
            .await,
        ["1|0"]
    );
    counters_are_exact(&mut session, "q").await;
    session
        .sql("select fetchq.log_error('q', 'old', 'why', null)")
        .await;
    assert_eq!(
        session
            .text("select fetchq.queue_drop_logs('q', '-infinity'::timestamptz)")
            .await,
        "0"
    );
    assert_eq!(
        session
            .text("select fetchq.queue_drop_logs('q', 'infinity'::timestamptz)")
            .await,
        "1"
    );
    let retain = "select fetchq.utils_ts_retain('fetchq_data.q__docs', 'created_at', 'century', '-infinity', '-infinity')";
    assert_eq!(session.text(retain).await, "0");
    db.remove().await;
}

#[tokio::test]
async fn subjects_of_255_characters() {
    let db = Server::of_suite().database("subjects").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    for subject in [
        "s".repeat(255),
        "é".repeat(255),
        "🙂".repeat(255),
        String::new(),
        "it's \\ \"quoted\"".to_owned(),
    ] {
        let pushed: i32 = session
            .query_one("select fetchq.doc_push('q', $1)", &[&subject])
            .await
            .unwrap()
            .get(0);
        assert_eq!(pushed, 1, "{subject}");
        let picked: String = session
            .query_one("select subject from fetchq.doc_pick('q')", &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(picked, subject);
        let done: i32 = session
            .query_one("select fetchq.doc_complete('q', $1)", &[&subject])
            .await
            .unwrap()
            .get(0);
        assert_eq!(done, 1, "{subject}");
    }
    db.remove().await;
}

#[tokio::test]
async fn any_json_is_a_payload() {
    let db = Server::of_suite().database("payloads").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let payloads = [
        json!("x".repeat(1024 * 1024)),
        json!({"list": (0..100_000).collect::<Vec<_>>(), "text": "it's \\ \"quoted\" 🙂 \u{7f}"}),
        json!([1, [2, [3]]]),
        json!("text"),
        json!(42),
        json!(true),
        json!(null),
    ];
    for payload in payloads {
        session
            .query_one("select fetchq.doc_push('q', 'd', $1)", &[&payload])
            .await
            .unwrap();
        // Three rounds of picking it and queueing it again.
        for _ in 0..3 {
            let got: serde_json::Value = session
                .query_one("select payload from fetchq.doc_pick('q')", &[])
                .await
                .unwrap()
                .get(0);
            assert!(
                got == payload,
                "pushed {:.80}, picked {:.80}",
                payload.to_string(),
                got.to_string()
            );
            let done: i32 = session
                .query_one("select fetchq.doc_reschedule('q', 'd', now(), $1)", &[&got])
                .await
                .unwrap()
                .get(0);
            assert_eq!(done, 1);
        }
        session
            .sql("select fetchq.doc_pick('q'); select fetchq.doc_drop('q', 'd')")
            .await;
    }
    db.remove().await;
}

#[tokio::test]
async fn a_list_of_documents_is_never_executed() {
    let db = Server::of_suite().database("push_many").await;
    let mut session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'); create table canary (n int);
             create function touch() returns text language sql as 'insert into canary values (1) returning ''x''::text'",
        )
        .await;
    for bad in [
        "",
        "x",
        "('a', 1 + 1, '{}', {DATA})",
        "('a' || 'b', 0, '{}', {DATA})",
        "(touch(), 0, '{}', {DATA})",
        "('a', 0, touch()::jsonb, {DATA})",
        "((select touch()), 0, '{}', {DATA})",
        "('a', 0, '{}'::jsonb, {DATA})",
        "('a', 0, '{}', {DATA}) -- comment",
        "/* comment */ ('a', 0, '{}', {DATA})",
        "('a', 0, /* comment */ '{}', {DATA})",
        "('a', 0, '{}', {DATA}); insert into canary values (1)",
        "('a', 0, '{}', {DATA}) returning touch()",
        "('a', 0, '{}', now())",
        "('a', 0, '{}')",
        "('a', 0, '{}', {DATA}),",
        "('a', 0, '{}', {DATA}) ('b', 0, '{}', {DATA})",
        "(E'a', 0, '{}', {DATA})",
        "($$a$$, 0, '{}', {DATA})",
        "(U&'a', 0, '{}', {DATA})",
        "(null, 0, '{}', {DATA})",
        "('a', null, '{}', {DATA})",
        "('a', 0, null, {DATA})",
        "('a', 2147483648, '{}', {DATA})",
        "('good', 0, '{}', {DATA}), ('a', 0, '{}', touch())",
    ] {
        let result = session
            .query("select fetchq.doc_push('q', 0, now(), $1)", &[&bad])
            .await;
        assert_eq!(
            result.map_err(|e| state_of(&e)).err().as_deref(),
            Some("22023"),
            "{bad}"
        );
    }
    // A literal that is not JSON, or not valid text for the server.
    for (bad, state) in [
        ("('a', 0, 'x', {DATA})", "22P02"),
        ("('a', 0, '', {DATA})", "22P02"),
    ] {
        assert_eq!(
            session
                .state(&format!(
                    "select fetchq.doc_push('q', 0, now(), '{}')",
                    bad.replace('\'', "''")
                ))
                .await,
            state
        );
    }
    assert_eq!(session.text("select count(*) from canary").await, "0");
    assert_eq!(
        session
            .text("select count(*) from fetchq_data.q__docs")
            .await,
        "0"
    );
    let list = "('it''s', -3, '{\"t\": \"o''clock; drop table canary; -- /* */\"}', {DATA}),\n ( 'b' , 0 , '{}' , {DATA} ), ('b', 1, '{}', {DATA})";
    let n: i32 = session
        .query_one("select fetchq.doc_push('q', 2, now(), $1)", &[&list])
        .await
        .unwrap()
        .get(0);
    assert_eq!(n, 2, "only the first of two equal subjects is pushed");
    assert_eq!(
        session.rows("select subject, version, priority, payload from fetchq_data.q__docs order by priority").await,
        ["it's|2|-3|{\"t\": \"o'clock; drop table canary; -- /* */\"}", "b|2|0|{}"]
    );
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn missing_queues_and_documents() {
    let db = Server::of_suite().database("no_queue").await;
    let session = db.connect().await;
    session.sql("set fetchq.strict = off").await;
    for (call, result) in [
        ("doc_push('none', 'd')", vec!["0"]),
        ("doc_push('none', 'd', 0, 0, now(), '{}')", vec!["0"]),
        (
            "doc_push('none', 0, now(), '(''a'', 0, ''{}'', {DATA})')",
            vec!["0"],
        ),
        ("doc_append('none', '{}')", vec![""]),
        ("doc_upsert('none', 'd', 0, 0, now(), '{}')", vec!["0|0"]),
        ("doc_pick('none')", vec![]),
        ("doc_pick('none', 0, 5, '5m')", vec![]),
        ("doc_complete('none', 'd')", vec!["0"]),
        ("doc_kill('none', 'd')", vec!["0"]),
        ("doc_drop('none', 'd')", vec!["0"]),
        ("doc_reschedule('none', 'd', now())", vec!["0"]),
        ("doc_reject('none', 'd', 'why', '{}')", vec!["0"]),
    ] {
        session.notices();
        assert_eq!(
            session.rows(&format!("select * from fetchq.{call}")).await,
            result,
            "{call}"
        );
        let notices = session.notices();
        assert_eq!(notices.len(), 1, "{call}: {notices:?}");
        assert_eq!(
            (notices[0].severity(), notices[0].code().code()),
            ("WARNING", "42704"),
            "{call}"
        );
        assert!(
            notices[0].message().contains("\"none\"") && notices[0].hint().is_some(),
            "{call}: {notices:?}"
        );
        session.sql("set fetchq.strict = auto").await;
        assert_eq!(
            session.state(&format!("select * from fetchq.{call}")).await,
            "42704",
            "{call}"
        );
        session.sql("set fetchq.strict = off").await;
    }
    // A document that is not active, or does not exist.
    session
        .sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'waiting')")
        .await;
    for subject in ["waiting", "nobody"] {
        for call in [
            format!("doc_complete('q', '{subject}')"),
            format!("doc_kill('q', '{subject}')"),
            format!("doc_drop('q', '{subject}')"),
            format!("doc_reschedule('q', '{subject}', now())"),
            format!("doc_reject('q', '{subject}', 'why', '{{}}')"),
        ] {
            session.notices();
            assert_eq!(
                session.text(&format!("select fetchq.{call}")).await,
                "0",
                "{call}"
            );
            let notices = session.notices();
            assert_eq!(notices.len(), 1, "{call}: {notices:?}");
            assert_eq!(
                (notices[0].severity(), notices[0].code().code()),
                ("WARNING", "55000"),
                "{call}"
            );
            session.sql("set fetchq.strict = auto").await;
            assert_eq!(
                session.state(&format!("select fetchq.{call}")).await,
                "55000",
                "{call}"
            );
            session.sql("set fetchq.strict = off").await;
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn counters_of_any_size() {
    let db = Server::of_suite().database("big_counters").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    for call in [
        "metric_set('q', 'm', 2147483647)",
        "metric_increment('q', 'm', 2147483647)",
        "metric_log_increment('q', 'm', 2147483647)",
        "metric_log_decrement('q', 'm', -2147483648)",
        "metric_set('q', 'low', -2147483648)",
        "metric_log_decrement('q', 'low', 2147483647)",
        "metric_log_set('q', 'unset', -7)",
    ] {
        session.sql(&format!("select fetchq.{call}")).await;
    }
    assert_eq!(
        session
            .text("select fetchq.metric_log_increment('q', 'm', 0)")
            .await,
        "0"
    );
    assert_eq!(session.text("select fetchq.metric_log_pack()").await, "4");
    assert_eq!(
        session
            .rows("select metric, current_value from fetchq.metric_get('q') order by metric")
            .await,
        ["low|-4294967295", "m|8589934589", "unset|-7"]
    );
    // A column that is too narrow shows the largest value that fits, with a warning.
    session.notices();
    for (metric, shown) in [("m", "2147483647"), ("low", "-2147483648")] {
        let sql = format!("select current_value from fetchq.metric_get('q', '{metric}')");
        assert_eq!(session.text(&sql).await, shown);
        let notices = session.notices();
        assert_eq!(
            notices.iter().map(|n| n.code().code()).collect::<Vec<_>>(),
            ["22003"],
            "{notices:?}"
        );
    }
    db.remove().await;
}

/// The longest subject, in characters of four bytes, goes through every table that has subjects.
#[tokio::test]
async fn the_longest_subject_fits_every_table() {
    let db = Server::of_suite().database("longest_subject").await;
    let session = db.connect().await;
    for direct in ["on", "off"] {
        session
            .sql(&format!(
                "set fetchq.direct = {direct}; set fetchq.strict = on;
                 select fetchq.queue_drop(name) from fetchq.queues;
                 select fetchq.queue_create('q'), fetchq.queue_create('letters');
                 select fetchq.queue_enable_notify('q');
                 select fetchq.queue_configure('q', '{{\"ordered\": true}}'), fetchq.queue_configure('q', '{{\"max_active\": 1}}');
                 select fetchq.queue_configure('q', '{{\"history\": {{\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}}}}');
                 select fetchq.queue_configure('q', '{{\"dead_letter\": \"letters\"}}');
                 select fetchq.doc_put('q', repeat('🙂', 255), ordering_key => 'k');
                 select fetchq.doc_pick('q');
                 select fetchq.doc_reject('q', repeat('🙂', 255), 'no', delay => '0s');
                 select fetchq.doc_pick('q');
                 select fetchq.doc_kill('q', repeat('🙂', 255), message => 'no');
                 select fetchq.queue_redrive('q');
                 select fetchq.doc_pick('q')"
            ))
            .await;
        let slot = "select count(*) from fetchq.lease_slots where subject = repeat('🙂', 255)";
        assert_eq!(session.text(slot).await, "1");
        session
            .sql("select fetchq.doc_complete('q', repeat('🙂', 255))")
            .await;
        for table in ["q__history", "q__logs"] {
            let n = format!(
                "select count(*) > 0 from fetchq_data.{table} where subject = repeat('🙂', 255)"
            );
            assert_eq!(session.text(&n).await, "t", "{table}");
        }
    }
    drop(session);
    db.remove().await;
}
