//! Valid values of unusual size or form, and calls for what does not exist.

use fetchq_client_tests::{Server, counters_are_exact, state_of};
use serde_json::json;

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
            let picked = session
                .query_one("select payload, lease from fetchq.doc_pick('q')", &[])
                .await
                .unwrap();
            let (got, lease): (serde_json::Value, i64) = (picked.get(0), picked.get(1));
            assert!(
                got == payload,
                "pushed {:.80}, picked {:.80}",
                payload.to_string(),
                got.to_string()
            );
            let done: i32 = session
                .query_one(
                    "select fetchq.doc_reschedule('q', 'd', now(), $1, $2)",
                    &[&got, &lease],
                )
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
    let db = Server::of_suite().database("push_list").await;
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
            // These two work on a document that nobody has leased.
            let acts = ["doc_kill", "doc_drop"]
                .iter()
                .any(|name| call.starts_with(name));
            if subject == "waiting" && acts {
                continue;
            }
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
