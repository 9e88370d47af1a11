//! `docs_settle` and `docs_next`: each document of a list is settled as by its single call, once,
//! whatever other sessions do meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fetchq_client_tests::{
    Cluster, Server, Session, all_of, counters_are_exact, state_of, wait_until,
};
use tokio::sync::Barrier;

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
        r#""action": "snooze", "next_iteration": "2099-01-01Z""#,
    ),
    (
        "doc_reschedule($, $, now() + interval '1 hour', lease => $)",
        r#""action": "reschedule", "delay": "1 hour""#,
    ),
    (
        "doc_reschedule($, $, '2020-01-01Z', '{\"n\": 4}', $)",
        r#""action": "reschedule", "next_iteration": "2020-01-01Z", "payload": {"n": 4}"#,
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
                "select '{table} ' || ((to_jsonb(t) #- '{{origin,queue}}') - '{{seq,lease,worker_session,id,worker}}'::text[])::text
                 from fetchq_data.{of}__{table} t order by 1"
            );
            all.extend(session.column(&sql).await);
        }
    }
    let events = format!(
        "select 'event ' || concat_ws(' ', l.event, coalesce(l.version, 0), l.bucket, sum(coalesce(l.n, 1)))
         from fetchq.counter_log l join fetchq.queues q on q.id = l.queue_id
         where q.name in ('{queue}', '{queue}_dead')
         group by l.event, coalesce(l.version, 0), l.bucket order by 1"
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

/// Leases documents `d1` to `dN` of queue `q`, and returns the lease number.
async fn lease(session: &Session, n: usize) -> String {
    session
        .sql(&format!(
            "select fetchq.doc_put('q', 'd' || i, '{{}}') from generate_series(1, {n}) i"
        ))
        .await;
    let leases = format!("select distinct lease from fetchq.doc_lease('q', {n}, '1 hour')");
    session.text(&leases).await
}

/// A list in which each action occurs.
fn mixed(subjects: impl Iterator<Item = usize>, lease: &str) -> String {
    let actions = [
        r#""action": "complete""#,
        r#""action": "drop""#,
        r#""action": "reject", "message": "m", "delay": "1 hour""#,
        r#""action": "kill", "message": "m""#,
        r#""action": "snooze", "delay": "1 hour""#,
        r#""action": "reschedule", "delay": "1 hour""#,
        r#""action": "complete", "result": 7"#,
    ];
    let settlements: Vec<String> = subjects
        .map(|i| {
            let action = actions[i % actions.len()];
            format!(r#"{{"subject": "d{i}", "lease": {lease}, {action}}}"#)
        })
        .collect();
    format!("'[{}]'", settlements.join(", "))
}

#[tokio::test]
async fn a_lease_that_another_session_ends_is_lost_alone() {
    let db = Server::of_suite().database("settle_lost").await;
    let mut session = db.connect().await;
    let other = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    for direct in ["on", "off"] {
        session
            .sql(&format!(
                "set fetchq.direct = {direct}; select fetchq.queue_truncate('q', true)"
            ))
            .await;
        let number = lease(&session, 14).await;
        // The other session cancels d3, settles d5, and picks d8 after it has expired.
        other
            .sql(
                "select fetchq.doc_cancel('q', 'd3'); select fetchq.doc_drop('q', 'd5');
                 update fetchq_data.q__docs set next_iteration = now() - interval '1 second' where subject = 'd8';
                 select fetchq.mnt_reschedule_orphans('q', 10)",
            )
            .await;
        assert_eq!(
            other
                .column("select subject from fetchq.doc_lease('q', 9)")
                .await,
            ["d8"]
        );
        let list = mixed(1..=14, &number);
        // All or nothing: nothing.
        let all = format!("select * from fetchq.docs_settle('q', {list}, 'error')");
        assert_eq!(session.state(&all).await, "55000");
        let active = "select count(*) from fetchq_data.q__docs where status = 2";
        assert_eq!(session.text(active).await, "12");
        counters_are_exact(&mut session, "q").await;
        // What can be settled is settled.
        let unsettled = format!(
            "select subject, outcome, status from fetchq.docs_settle('q', {list}) where outcome <> 'settled'"
        );
        assert_eq!(
            session.rows(&unsettled).await,
            ["d3|lost|killed", "d5|missing|", "d8|lost|active"]
        );
        assert_eq!(session.text(active).await, "1");
        // The other session still has its lease.
        let settles = "select subject from fetchq.docs_next('q', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'drop'))
            from fetchq_data.q__docs where status = 2), on_lost => 'error')";
        assert_eq!(other.column(settles).await, Vec::<String>::new());
        assert_eq!(session.text(active).await, "0");
        counters_are_exact(&mut session, "q").await;
    }
    db.remove().await;
}

#[tokio::test]
async fn overlapping_lists_in_opposite_order_do_not_deadlock() {
    const DOCUMENTS: usize = 40;
    const ROUNDS: usize = 12;
    let db = Server::of_suite().database("settle_overlap").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'), fetchq.queue_create('dead')")
        .await;
    for settings in [
        r#"{"dead_letter": null}"#,
        r#"{"history": {"completed": "1 day", "dropped": "1 day"}, "dead_letter": "dead"}"#,
    ] {
        session
            .sql(&format!("select fetchq.queue_configure('q', '{settings}')"))
            .await;
        for round in 0..ROUNDS {
            session.sql("select fetchq.queue_truncate('q', true)").await;
            lease(&session, DOCUMENTS).await;
            let settled = Arc::new(AtomicUsize::new(0));
            let barrier = Arc::new(Barrier::new(2));
            let mut sessions = Vec::new();
            for number in 0..2 {
                let one = db.connect().await;
                let (settled, barrier) = (settled.clone(), barrier.clone());
                // Without a lease number, so that each document can be settled by both. The second
                // one takes other actions, too.
                let list = match number {
                    0 => mixed(1..=DOCUMENTS, "null"),
                    _ => mixed((1..=DOCUMENTS).rev(), "null")
                        .replace("complete", "drop")
                        .replace(", \"result\": 7", ""),
                };
                sessions.push(tokio::spawn(async move {
                    if round % 2 == 1 {
                        one.sql("set fetchq.direct = off").await;
                    }
                    let call = format!("select outcome from fetchq.docs_settle('q', {list})");
                    barrier.wait().await;
                    let outcomes = one.query(&call, &[]).await.expect("docs_settle");
                    let of = |word: &str| {
                        let is_word = |row: &&tokio_postgres::Row| row.get::<_, &str>(0) == word;
                        outcomes.iter().filter(is_word).count()
                    };
                    assert_eq!(of("settled") + of("not_active") + of("missing"), DOCUMENTS);
                    settled.fetch_add(of("settled"), Ordering::Relaxed);
                }));
            }
            for one in sessions {
                one.await.unwrap();
            }
            assert_eq!(settled.load(Ordering::Relaxed), DOCUMENTS);
            let active = "select count(*) from fetchq_data.q__docs where status = 2";
            assert_eq!(session.text(active).await, "0");
            counters_are_exact(&mut session, "q").await;
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn what_is_rolled_back_is_neither_settled_nor_counted() {
    let db = Server::of_suite().database("settle_undone").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'), fetchq.queue_create('other')")
        .await;
    for direct in ["on", "off"] {
        session
            .sql(&format!(
                "set fetchq.direct = {direct}; select fetchq.queue_truncate('q', true)"
            ))
            .await;
        let number = lease(&session, 14).await;
        let list = mixed(1..=14, &number);
        let before = all_of(&mut session, "q").await;
        for undone in [
            format!("begin; select fetchq.docs_settle('q', {list}); rollback"),
            format!("begin; select fetchq.docs_next('q', {list}, 5); rollback"),
            format!(
                "begin; savepoint s; select fetchq.docs_settle('q', {list}); rollback to s; commit"
            ),
            // The documents before d99 are settled when it fails.
            format!(
                "do $$ begin perform fetchq.docs_settle('q', {list}::jsonb || '[{{\"subject\": \"d99\", \"action\": \"drop\"}}]', 'error'); exception when others then null; end $$"
            ),
        ] {
            session.sql(&undone).await;
            assert_eq!(all_of(&mut session, "q").await, before, "{undone}");
        }
        session
            .sql(&format!(
                "begin; select fetchq.docs_settle('q', {list}); commit"
            ))
            .await;
        counters_are_exact(&mut session, "q").await;
    }
    // A trigger of the user's calls fetchq too, and undoes one of the two calls.
    session
        .sql(
            "select fetchq.queue_truncate('q', true);
             create function pushes() returns trigger language plpgsql as $$
             begin
                 perform fetchq.doc_push('other', 'kept ' || new.subject);
                 begin
                     perform fetchq.doc_push('other', 'undone ' || new.subject);
                     raise exception 'undone';
                 exception when raise_exception then
                     null;
                 end;
                 return null;
             end $$;
             create trigger pushes after update on fetchq_data.q__docs for each row when (new.status = 3) execute function pushes()",
        )
        .await;
    let number = lease(&session, 14).await;
    let list = mixed(1..=14, &number);
    session
        .sql(&format!("select fetchq.docs_settle('q', {list})"))
        .await;
    let others = "select count(*) from fetchq_data.other__docs";
    assert_eq!(session.text(others).await, "4");
    counters_are_exact(&mut session, "other").await;
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_session_killed_in_the_middle_of_a_list_settles_nothing() {
    let cluster = Cluster::new(
        "settle_killed",
        "synchronous_commit = on\nfsync = on\nlog_min_messages = error",
    );
    cluster.start();
    let server = cluster.server();
    let mut session = server.connect("postgres").await;
    session
        .sql(
            "create extension fetchq; select fetchq.queue_create('q');
             create function sleeps() returns trigger language plpgsql as $$
             begin
                 if current_setting('my.sleeps', true) = 'on' then perform pg_sleep(600); end if;
                 return null;
             end $$;
             create trigger sleeps after update on fetchq_data.q__docs for each row when (new.subject = 'd3' and new.status <> 2) execute function sleeps()",
        )
        .await;
    let number = lease(&session, 14).await;
    let list = mixed(1..=14, &number);
    for call in [
        format!("select * from fetchq.docs_settle('q', {list})"),
        format!("select * from fetchq.docs_next('q', {list}, 5)"),
    ] {
        let before = all_of(&mut session, "q").await;
        let victim = server.connect("postgres").await;
        victim.sql("set my.sleeps = on").await;
        let pid = victim.text("select pg_backend_pid()").await;
        let settling = tokio::spawn(async move { victim.state(&call).await });
        let sleeps = format!(
            "select count(*) from pg_stat_activity where pid = {pid} and wait_event = 'PgSleep'"
        );
        wait_until("the list is half settled", async || {
            session.text(&sleeps).await == "1"
        })
        .await;
        cluster.kill(pid.parse().unwrap());
        settling.await.unwrap();
        wait_until("the server has noticed", async || {
            session.batch_execute("select").await.is_err()
        })
        .await;
        session = server.connect_when_up("postgres").await;
        let after = all_of(&mut session, "q").await;
        assert_eq!(after, before);
    }
    let settled =
        format!("select count(*) from fetchq.docs_settle('q', {list}) where outcome = 'settled'");
    assert_eq!(session.text(&settled).await, "14");
    counters_are_exact(&mut session, "q").await;
}

#[tokio::test]
async fn workers_whose_loop_is_one_call() {
    const DOCUMENTS: usize = 400;
    let db = Server::of_suite().database("settle_loop").await;
    let mut session = db.connect().await;
    session
        .sql(&format!(
            "create table ledger (subject text primary key);
             select fetchq.queue_create('q', '{{\"retry\": {{\"base\": \"0\"}}}}');
             select fetchq.doc_put('q', 'd' || i, '{{}}') from generate_series(1, {DOCUMENTS}) i"
        ))
        .await;
    let mut workers = Vec::new();
    for number in 0..4 {
        let worker = db.connect().await;
        workers.push(tokio::spawn(async move {
            if number == 0 {
                worker.sql("set fetchq.direct = off").await;
            }
            // Each document fails once; the second time its effect and its end are one transaction.
            let next = "select coalesce(jsonb_agg(case attempts
                     when 1 then jsonb_build_object('subject', subject, 'lease', lease, 'action', 'reject', 'message', 'once')
                     else jsonb_build_object('subject', subject, 'lease', lease::text, 'action', 'complete', 'result', attempts) end), '[]')
                 from fetchq.docs_next('q', $1, 7, on_lost => 'error')";
            let mut list = serde_json::json!([]);
            let mut idle = 0;
            while idle < 20 {
                let effects = "insert into ledger select s ->> 'subject' from jsonb_array_elements($1::jsonb) s where s ->> 'action' = 'complete'";
                worker.sql("begin").await;
                worker.execute(effects, &[&list]).await.expect("once");
                list = worker.query_one(next, &[&list]).await.expect("docs_next").get(0);
                worker.sql("commit").await;
                idle = if list == serde_json::json!([]) { idle + 1 } else { 0 };
            }
        }));
    }
    for worker in workers {
        worker.await.unwrap();
    }
    let completed = "select count(*) from fetchq_data.q__docs where status = 3 and result = '2' and iterations = 2";
    assert_eq!(session.text(completed).await, DOCUMENTS.to_string());
    assert_eq!(
        session.text("select count(*) from ledger").await,
        DOCUMENTS.to_string()
    );
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn the_warning_about_documents_that_were_not_settled_has_a_state() {
    let db = Server::of_suite().database("settle_warns").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    lease(&session, 1).await;
    let list = r#"'[{"subject": "d1", "lease": 7, "action": "drop"}, {"subject": "d2", "action": "drop"}]'"#;
    session.notices();
    session
        .sql(&format!("select fetchq.docs_next('q', {list})"))
        .await;
    let notices = session.notices();
    let [warning] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert_eq!(
        (warning.severity(), warning.code().code()),
        ("WARNING", "55000")
    );
    assert_eq!(
        warning.message(),
        "2 of 2 documents of queue \"q\" were not settled: \"d1\" (it was picked again), \"d2\" (there is no such document)"
    );
    assert!(warning.hint().unwrap_or("").contains("on_lost"));
    // With the same SQLSTATE it is an error, and silence by request only.
    let fails = format!("select fetchq.docs_next('q', {list}, on_lost => 'error')");
    let error = session.query(&fails, &[]).await.expect_err("an error");
    assert_eq!(state_of(&error), "55000");
    session
        .sql(&format!(
            "select fetchq.docs_next('q', {list}, on_lost => 'ignore')"
        ))
        .await;
    db.remove().await;
}
