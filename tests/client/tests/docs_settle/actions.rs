//! Every action of a list does what its single call does.

use fetchq_client_tests::{Server, Session, counters_are_exact};

/// A single call, in which `$` stands for queue, subject and lease, and what a settlement names
/// instead.
const CALLS: &[(&str, &str)] = &[
    ("doc_complete($, $, lease => $)", r#""action": "complete""#),
    (
        "doc_complete($, $, '{\"n\": 2}', $, '[7]')",
        r#""action": "complete", "payload": {"n": 2}, "result": [7]"#,
    ),
    (
        "doc_complete($, $, lease => $, result => '\"x\"')",
        r#""action": "complete", "result": "x""#,
    ),
    ("doc_drop($, $, $)", r#""action": "drop""#),
    ("doc_kill($, $, lease => $)", r#""action": "kill""#),
    (
        "doc_kill($, $, '{\"n\": 3}', $)",
        r#""action": "kill", "payload": {"n": 3}"#,
    ),
    (
        "doc_kill($, $, '[]', $, 'no use', '{\"why\": 1}')",
        r#""action": "kill", "payload": [], "message": "no use", "details": {"why": 1}"#,
    ),
    (
        "doc_snooze($, $, now(), $)",
        r#""action": "snooze", "delay": "0""#,
    ),
    ("doc_snooze($, $, lease => $)", r#""action": "snooze""#),
    (
        "doc_snooze($, $, '2099-01-01Z', $)",
        r#""action": "snooze", "due_at": "2099-01-01Z""#,
    ),
    (
        "doc_reschedule($, $, now() + interval '1 hour', lease => $)",
        r#""action": "reschedule", "delay": "1 hour""#,
    ),
    (
        "doc_reschedule($, $, '2020-01-01Z', '{\"n\": 4}', $)",
        r#""action": "reschedule", "due_at": "2020-01-01Z", "payload": {"n": 4}"#,
    ),
    (
        "doc_reject($, $, 'bad luck', lease => $)",
        r#""action": "reject", "message": "bad luck""#,
    ),
    (
        "doc_reject($, $, 'it''s', '{\"a\": [1]}', 'r1', $, '5 minutes')",
        r#""action": "reject", "message": "it's", "details": {"a": [1]}, "ref_id": "r1", "delay": "5 minutes""#,
    ),
    (
        "doc_reject($, $, 'at once', lease => $, delay => '0')",
        r#""action": "reject", "message": "at once", "delay": "0""#,
    ),
];

/// Settings of a queue, in which `DEAD` stands for its dead-letter queue.
const POLICIES: &[&str] = &[
    "{}",
    r#"{"max_attempts": 1}"#,
    r#"{"retry": {"base": "10 s", "factor": 2, "jitter": 0}}"#,
    r#"{"max_attempts": 1, "history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}"#,
    r#"{"max_attempts": 1, "history": {"completed": "0", "killed": "0", "dropped": "0"}}"#,
    r#"{"max_attempts": 1, "dead_letter": "DEAD"}"#,
    r#"{"ordered": true, "max_active": 100}"#,
    r#"{"max_active_per_key": 3}"#,
];

/// What there is in a queue and its dead-letter queue, without what no two queues have in common:
/// the numbers of leases and rows, and the names of the queues.
async fn everything(session: &Session, queue: &str) -> Vec<String> {
    let mut all = Vec::new();
    for table in ["docs", "logs", "history"] {
        for of in [queue.to_owned(), format!("{queue}_dead")] {
            let exists = format!("select to_regclass('fetchq_data.{of}__{table}') is null");
            if session.text(&exists).await == "t" {
                continue;
            }
            let sql = format!(
                "select '{table} ' || ((to_jsonb(t) #- '{{origin,queue}}' #- '{{origin,queue_created_at}}') - '{{seq,lease,worker_session,id,worker,ran}}'::text[])::text
                 from fetchq_data.{of}__{table} t order by 1"
            );
            all.extend(session.column(&sql).await);
        }
    }
    let events = format!(
        "select 'event ' || concat_ws(' ', l.event, coalesce(l.version, 0), l.bucket is not null, sum(coalesce(l.n, 1)))
         from fetchq.counter_log l join fetchq.queues q on q.id = l.queue_id
         where q.name in ('{queue}', '{queue}_dead')
         group by l.event, coalesce(l.version, 0), l.bucket is not null order by 1"
    );
    all.extend(session.column(&events).await);
    let metrics = format!(
        "select metric || ' ' || current_value from fetchq.metric_get('{queue}') order by 1"
    );
    all.extend(session.column(&metrics).await);
    all
}

#[tokio::test]
async fn every_action_does_what_its_single_call_does() {
    let db = Server::of_suite().database("settle_same").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create(q) from unnest('{one_dead,list_dead}'::text[]) q")
        .await;
    for direct in ["on", "off"] {
        session.sql(&format!("set fetchq.direct = {direct}")).await;
        for policy in POLICIES {
            for queue in ["one", "list"] {
                let settings = policy.replace("DEAD", &format!("{queue}_dead"));
                session
                    .sql(&format!(
                        "select fetchq.queue_create('{queue}', '{settings}')"
                    ))
                    .await;
            }
            // One transaction, so that all times are equal.
            session
                .sql(&format!(
                    "begin;
                     select fetchq.doc_put(q, 'd' || i, '{{\"n\": 1}}', version => 3, priority => i, ordering_key => 'k' || i)
                     from unnest('{{one,list}}'::text[]) q, generate_series(1, {n}) i;
                     select count(*) from fetchq.doc_lease('one', {n}, '1 hour', 3);
                     select count(*) from fetchq.doc_lease('list', {n}, '1 hour', 3);
                     commit;
                     select fetchq.metric_log_pack();
                     begin",
                    n = CALLS.len()
                ))
                .await;
            let lease = |queue: &str| {
                format!("(select lease from fetchq_data.{queue}__docs where subject = 'd1')")
            };
            let lease_of_one = session.text(&format!("select {}", lease("one"))).await;
            let lease_of_list = session.text(&format!("select {}", lease("list"))).await;
            let mut list = Vec::new();
            for (n, (call, settlement)) in (1..).zip(CALLS) {
                let call = ["'one'", &format!("'d{n}'"), &lease_of_one]
                    .iter()
                    .fold((*call).to_owned(), |call, value| {
                        call.replacen('$', value, 1)
                    });
                let settled = session.text(&format!("select fetchq.{call}")).await;
                assert_eq!(settled, "1", "{call} with {policy}");
                list.push(format!(
                    r#"{{"subject": "d{n}", "lease": {lease_of_list}, {settlement}}}"#
                ));
            }
            // Not in the order of the subjects, and with two that stay.
            list.reverse();
            list.insert(
                3,
                r#"{"subject": "d1", "lease": 1, "action": "drop"}"#.replace("d1", "x1"),
            );
            let list = format!("[{}]", list.join(", ")).replace('\'', "''");
            let outcomes = format!(
                "select outcome || ' ' || count(*) from fetchq.docs_settle('list', '{list}') group by outcome order by 1"
            );
            assert_eq!(
                session.column(&outcomes).await,
                ["missing 1".to_owned(), format!("settled {}", CALLS.len())],
                "{policy}"
            );
            let (one, of_list) = (
                everything(&session, "one").await,
                everything(&session, "list").await,
            );
            assert!(one.len() > CALLS.len(), "{one:?}");
            assert_eq!(of_list, one, "{policy} with direct {direct}");
            session.sql("commit").await;
            for queue in ["one", "list"] {
                counters_are_exact(&mut session, queue).await;
                counters_are_exact(&mut session, &format!("{queue}_dead")).await;
                session
                    .sql(&format!(
                        "select fetchq.queue_drop('{queue}');
                         select fetchq.queue_truncate('{queue}_dead', true)"
                    ))
                    .await;
            }
        }
    }
    db.remove().await;
}
