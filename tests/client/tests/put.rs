//! `doc_put` in sixteen sessions at the same time: no change is lost.

use fetchq_client_tests::{
    Database, Server, Session, counters_are_exact, error_of, state_of, wait_until,
};
use tokio_postgres::SimpleQueryMessage;

const SESSIONS: u64 = 16;

/// A random number generator for each session.
struct Dice(u64);

impl Dice {
    fn new(session: u64) -> Self {
        Self(session * 7919 + 1)
    }

    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }

    fn shuffle<T>(&mut self, list: &mut [T]) {
        for at in (1..list.len()).rev() {
            list.swap(at, self.roll(at as u64 + 1) as usize);
        }
    }
}

/// Runs `work` in all sessions at the same time.
async fn together<F>(db: &Database, work: impl Fn(Session, u64) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    let mut all = Vec::new();
    for number in 0..SESSIONS {
        all.push(tokio::spawn(work(db.connect().await, number)));
    }
    for one in all {
        one.await.expect("a session");
    }
}

async fn put(session: &Session, arguments: &str) -> String {
    session
        .text(&format!("select fetchq.doc_put({arguments})"))
        .await
}

const MODES: [&str; 9] = [
    "ignore",
    "replace",
    "merge",
    "earliest",
    "debounce",
    "reset",
    "replace,reset",
    "merge,reset",
    "once",
];

/// Runs a statement, and returns the first column of its rows. None when it ended in a deadlock:
/// SKIP LOCKED of PostgreSQL waits for a row that another session is updating when the version
/// that the statement has found was replaced a moment ago. docs/concepts/limits.md says so.
async fn unless_deadlock(session: &Session, sql: &str) -> Option<Vec<String>> {
    match session.simple_query(sql).await {
        Ok(messages) => Some(
            messages
                .iter()
                .filter_map(|message| match message {
                    SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("").to_owned()),
                    _ => None,
                })
                .collect(),
        ),
        Err(error) => {
            assert_eq!(error_of(&error).code().code(), "40P01", "{sql}: {error}");
            None
        }
    }
}

/// Puts documents with every mode, one by one and in lists, in any order, partly rolled back,
/// while other sessions pick and settle the same documents.
async fn put_and_pick(session: Session, number: u64) {
    let mut dice = Dice::new(number);
    if number.is_multiple_of(3) {
        session.sql("set fetchq.direct = off").await;
    }
    for _ in 0..120 {
        let mode = MODES[dice.roll(9) as usize];
        let at = format!("now() + interval '{} ms'", dice.roll(40) as i64 - 20);
        let version = dice.roll(2);
        let rolls_back = dice.roll(6) == 0;
        session.sql("begin").await;
        if dice.roll(2) == 0 {
            let subject = dice.roll(20);
            let call =
                format!("'q', 's{subject}', '{{\"a\": 1}}', {at}, {version}, mode => '{mode}'");
            put(&session, &call).await;
        } else {
            let mut subjects: Vec<u64> = (0..20).collect();
            dice.shuffle(&mut subjects);
            let docs: Vec<String> = subjects[..10]
                .iter()
                .map(|s| format!("{{\"subject\": \"s{s}\", \"version\": {version}}}"))
                .collect();
            let list = docs.join(", ");
            let sql = format!("select * from fetchq.doc_put_many('q', '[{list}]', '{mode}')");
            if let Some(rows) = unless_deadlock(&session, &sql).await {
                assert_eq!(rows.len(), 10);
            }
        }
        session
            .sql(if rolls_back { "rollback" } else { "commit" })
            .await;
        session.sql("select fetchq.mnt_run('q', 100)").await;
        let pick = format!("select subject from fetchq.doc_pick('q', {version}, 3, '1h')");
        for subject in unless_deadlock(&session, &pick).await.into_iter().flatten() {
            let settle = ["complete", "kill", "drop"][dice.roll(3) as usize];
            let sql = format!("select fetchq.doc_{settle}('q', '{subject}')");
            assert_eq!(session.text(&sql).await, "1");
        }
    }
}

#[tokio::test]
async fn all_modes_at_the_same_time() {
    let db = Server::of_suite().database("put_all").await;
    let mut session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let mut watcher = db.connect().await;
    let watching = tokio::spawn(async move {
        loop {
            counters_are_exact(&mut watcher, "q").await;
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    });
    together(&db, put_and_pick).await;
    assert!(!watching.is_finished(), "the counters were wrong");
    watching.abort();
    counters_are_exact(&mut session, "q").await;
    let metrics =
        "select (select value from fetchq.metrics_live where queue = 'q' and metric = 'ent')
        - (select value from fetchq.metrics_live where queue = 'q' and metric = 'drp')
        - (select count(*) from fetchq_data.q__docs)";
    assert_eq!(session.text(metrics).await, "0");
    // Every ready document is found by a pick.
    session
        .sql("select pg_sleep(0.05); select fetchq.mnt_run('q', 100)")
        .await;
    let ready = "select count(*) from fetchq_data.q__docs where status = 1";
    let ready: usize = session.text(ready).await.parse().unwrap();
    let picked = "select subject from generate_series(0, 1) v, fetchq.doc_pick('q', v, 100, '1h')";
    assert_eq!(session.column(picked).await.len(), ready);
    let misses = "select floor_misses from fetchq.ready_stats()";
    assert!(["0", ""].contains(&session.text(misses).await.as_str()));
    db.remove().await;
}

/// The value of a query, which is repeated after a deadlock. The session that changes a blocked
/// document and the session that settles the head of its key can deadlock.
async fn again(session: &Session, sql: &str) -> String {
    loop {
        match session.simple_query(sql).await {
            Ok(messages) => {
                let value = messages.iter().find_map(|message| match message {
                    SimpleQueryMessage::Row(row) => row.get(0),
                    _ => None,
                });
                return value.unwrap_or_default().to_owned();
            }
            Err(e) => assert_eq!(state_of(&e), "40P01", "{sql}: {e:?}"),
        }
    }
}

/// Checks that one document of each of four keys runs at a time, whatever is put meanwhile.
async fn put_in_order(session: Session, number: u64) {
    let mut dice = Dice::new(number);
    for _ in 0..60 {
        let mode = MODES[dice.roll(9) as usize];
        let subject = dice.roll(20);
        let at = dice.roll(20) as i64 - 15;
        let call = format!(
            "'q', 's{subject}', '{{\"a\": 1}}', now() + interval '{at} ms', mode => '{mode}', ordering_key => 'k{}'",
            subject % 4
        );
        again(&session, &format!("select fetchq.doc_put({call})")).await;
        again(&session, "select fetchq.mnt_run('q', 100)").await;
        let pick = "select subject from fetchq.doc_pick('q', 0, 2, '1h')";
        for subject in session.column(pick).await {
            let settle = ["complete", "kill", "drop"][dice.roll(3) as usize];
            let sql = format!("select fetchq.doc_{settle}('q', '{subject}')");
            assert_eq!(again(&session, &sql).await, "1");
        }
    }
}

#[tokio::test]
async fn all_modes_in_an_ordered_queue() {
    let db = Server::of_suite().database("put_ordered").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_configure('q', '{\"ordered\": true}')")
        .await;
    // A blocked document is changed like any other, and keeps its place in the order.
    for subject in ["s0", "s4", "s8"] {
        put(&session, &format!("'q', '{subject}', ordering_key => 'k0'")).await;
    }
    let merge = "'q', 's4', '{\"b\": 1}', mode => 'merge'";
    assert_eq!(put(&session, merge).await, "updated");
    let pick = "select subject || ' ' || payload from fetchq.doc_pick('q', 0, 5, '1h')";
    assert_eq!(session.column(pick).await, ["s0 {}"]);
    session.sql("select fetchq.doc_complete('q', 's0')").await;
    assert_eq!(session.column(pick).await, ["s4 {\"b\": 1}"]);
    let replace = "'q', 's8', '{}', ordering_key => 'k1', mode => 'replace'";
    assert_eq!(put(&session, replace).await, "updated");
    assert_eq!(session.column(pick).await, ["s8 {}"]);
    session.sql("select fetchq.queue_truncate('q')").await;

    let watcher = db.connect().await;
    let watching = tokio::spawn(async move {
        let twice = "select ordering_key from fetchq_data.q__docs where status = 2 group by 1 having count(*) > 1";
        loop {
            assert_eq!(watcher.column(twice).await, [""; 0]);
        }
    });
    together(&db, put_in_order).await;
    assert!(!watching.is_finished(), "two documents of a key ran");
    watching.abort();
    counters_are_exact(&mut session, "q").await;
    // No document is stuck: all can be picked and settled.
    session
        .sql("update fetchq_data.q__docs set next_iteration = now() where status = 0")
        .await;
    wait_until("all documents are settled", async || {
        session.sql("select fetchq.mnt_run('q', 100)").await;
        for subject in session
            .column("select subject from fetchq.doc_pick('q', 0, 9, '1h')")
            .await
        {
            session
                .sql(&format!("select fetchq.doc_complete('q', '{subject}')"))
                .await;
        }
        session
            .text("select count(*) from fetchq_data.q__docs where status in (0, 1, 2)")
            .await
            == "0"
    })
    .await;
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn no_merge_is_lost() {
    let db = Server::of_suite().database("put_merge").await;
    let mut session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    together(&db, async |session, number| {
        let mut dice = Dice::new(number);
        for turn in 0..20 {
            let key = format!("\"k{number}_{turn}\": {turn}");
            put(
                &session,
                &format!("'q', 'one', '{{{key}}}', mode => 'merge'"),
            )
            .await;
            let mut subjects = ["a", "b", "c", "d", "e"];
            dice.shuffle(&mut subjects);
            let docs = subjects
                .map(|s| format!("{{\"subject\": \"{s}\", \"payload\": {{{key}}}}}"))
                .join(", ");
            session
                .sql(&format!(
                    "select fetchq.doc_put_many('q', '[{docs}]', 'merge')"
                ))
                .await;
        }
    })
    .await;
    let sql = "select subject || ' ' || (select count(*) from jsonb_object_keys(payload))
        from fetchq_data.q__docs order by 1";
    let all = SESSIONS * 20;
    assert_eq!(
        session.column(sql).await,
        ["a", "b", "c", "d", "e", "one"].map(|subject| format!("{subject} {all}"))
    );
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn the_earliest_time_wins() {
    let db = Server::of_suite().database("put_earliest").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    together(&db, async |session, number| {
        for turn in 0..40 {
            // The times get closer and closer to the first minute of 2050.
            let minute = (39 - turn) * SESSIONS + number;
            let at = format!("timestamptz '2050-01-01 00:00+00' + interval '{minute} min'");
            for subject in 0..5 {
                put(
                    &session,
                    &format!("'q', 'x{subject}', '{{}}', {at}, mode => 'earliest'"),
                )
                .await;
            }
        }
    })
    .await;
    let sql = "select subject from fetchq_data.q__docs where next_iteration <> '2050-01-01 00:00+00' or status <> 0";
    assert_eq!(session.column(sql).await, [""; 0]);

    // A put that waits for another transaction uses the row that this transaction leaves.
    let at = |minute| format!("timestamptz '2050-01-01 00:00+00' + interval '{minute} min'");
    put(&session, &format!("'q', 'y', '{{}}', {}", at(60))).await;
    session.sql("begin").await;
    put(
        &session,
        &format!("'q', 'y', '{{}}', {}, mode => 'earliest'", at(10)),
    )
    .await;
    let waits = db.connect().await;
    let later = format!("'q', 'y', '{{}}', {}, mode => 'earliest'", at(20));
    let waiting = tokio::spawn(async move { put(&waits, &later).await });
    let blocked = "select count(*) from pg_stat_activity
        where wait_event_type = 'Lock' and datname = current_database()";
    let watcher = db.connect().await;
    wait_until("the second put is blocked", async || {
        watcher.text(blocked).await == "1"
    })
    .await;
    session.sql("commit").await;
    assert_eq!(waiting.await.unwrap(), "ignored");
    let time = "select (next_iteration - '2050-01-01 00:00+00')::text from fetchq_data.q__docs where subject = 'y'";
    assert_eq!(session.text(time).await, "00:10:00");
    db.remove().await;
}

#[tokio::test]
async fn a_snapshot_that_is_too_old_is_a_serialization_failure() {
    let db = Server::of_suite().database("put_snapshot").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.doc_put('q', 'known')")
        .await;
    for (subject, mode) in [("known", "merge"), ("known", "reset"), ("new", "replace")] {
        let old = db.connect().await;
        old.sql("begin isolation level repeatable read; select 1")
            .await;
        put(
            &session,
            &format!("'q', '{subject}', '{{\"b\": 1}}', mode => 'replace'"),
        )
        .await;
        let sql = format!("select fetchq.doc_put('q', '{subject}', '{{}}', mode => '{mode}')");
        assert_eq!(old.state(&sql).await, "40001", "{subject} {mode}");
    }
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn puts_wake_waiters() {
    if std::env::var("FETCHQ_NO_PRELOAD").as_deref() == Ok("1") {
        return;
    }
    let db = Server::of_suite().database("put_wait").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let other = db.connect().await;
    let asleep = "select count(*) from pg_stat_activity
        where application_name = 'waits' and wait_event_type = 'Extension'";
    // Each of these puts makes a document ready, or locks a ready one for a moment.
    for (version, first, then) in [
        (
            0,
            "now() + interval '1 hour'",
            "'{}', now(), mode => 'earliest'",
        ),
        (
            0,
            "now() + interval '1 hour'",
            "'{}', now(), mode => 'replace'",
        ),
        (
            0,
            "now()",
            "'{}', now() + interval '1 hour', mode => 'earliest'",
        ),
        (0, "now()", "'{}', mode => 'merge'"),
        (1, "now()", "'{}', now(), 1, mode => 'replace'"),
    ] {
        for end in ["commit", "rollback"] {
            if end == "rollback" && (version == 1 || first != "now()") {
                continue;
            }
            session.sql("select fetchq.queue_truncate('q')").await;
            put(&session, &format!("'q', 'x', '{{}}', {first}")).await;
            session.sql("begin").await;
            put(&session, &format!("'q', 'x', {then}")).await;
            let waits = db.connect().await;
            waits.sql("set application_name = 'waits'").await;
            let call = format!("call fetchq.queue_wait(array['q'], '3 s', version => {version})");
            let waiting = tokio::spawn(async move { waits.text(&call).await });
            wait_until("the waiter sleeps", async || {
                other.text(asleep).await == "1"
            })
            .await;
            session.sql(end).await;
            assert_eq!(waiting.await.unwrap(), "q", "{first} {then} {end}");
        }
    }
    db.remove().await;
}
