//! `queue_wait`: commits wake waiters, waiters keep no locks, and a waiter can be cancelled.

use std::time::{Duration, Instant};

use fetchq_client_tests::{Database, Server, Session, counters_are_exact, state_of, wait_until};
use tokio::task::JoinHandle;

fn is_preloaded() -> bool {
    std::env::var("FETCHQ_NO_PRELOAD").as_deref() != Ok("1")
}

/// A session that waits in the background, and the result of its call.
async fn waits(db: &Database, call: &str) -> JoinHandle<Result<String, tokio_postgres::Error>> {
    let session = db.connect().await;
    session.sql("set application_name = 'waits'").await;
    let call = call.to_owned();
    tokio::spawn(async move {
        let rows = session.query(&call, &[]).await?;
        Ok(rows[0].get::<_, Option<String>>(0).unwrap_or("null".into()))
    })
}

const ASLEEP: &str = "select count(*) from pg_stat_activity
    where application_name = 'waits' and wait_event_type = 'Extension'";

async fn asleep(session: &Session, n: usize) {
    wait_until("the waiters sleep", async || {
        session.text(ASLEEP).await == n.to_string()
    })
    .await;
}

const CALL: &str = "call fetchq.queue_wait(array['q'], '30 s')";

#[tokio::test]
async fn a_commit_wakes_one_waiter_per_document() {
    let db = Server::of_suite().database("wait_commit").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_create('other')")
        .await;

    // A document is ready already.
    session.sql("select fetchq.doc_append('q', '{}')").await;
    assert_eq!(waits(&db, CALL).await.await.unwrap().unwrap(), "q");
    session.sql("select fetchq.doc_pick('q')").await;
    // No document becomes ready.
    let call = "call fetchq.queue_wait(array['q'], '200 ms')";
    assert_eq!(waits(&db, call).await.await.unwrap().unwrap(), "null");

    let mut all = Vec::new();
    for _ in 0..5 {
        all.push(waits(&db, CALL).await);
    }
    asleep(&session, 5).await;
    // Waiters keep no locks and no snapshot.
    assert_eq!(
        session
            .text("select count(*) from pg_stat_activity where application_name = 'waits' and (backend_xmin is not null or backend_xid is not null)")
            .await,
        "0"
    );
    assert_eq!(
        session
            .text(
                "select count(*) from pg_locks l join pg_stat_activity a using (pid)
                where application_name = 'waits' and l.relation::regclass::text like '%docs%'"
            )
            .await,
        "0"
    );
    // Documents of another queue, planned documents, and rolled back pushes wake no waiter.
    session.sql("select fetchq.doc_append('other', '{}')").await;
    session
        .sql("select fetchq.doc_push('q', 'later', 0, 0, now() + interval '1 hour', '{}')")
        .await;
    session
        .sql("begin; select fetchq.doc_append('q', '{}'); rollback")
        .await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    asleep(&session, 5).await;

    if is_preloaded() {
        // Two documents, pushed in different ways.
        session
            .sql("begin; select fetchq.doc_append('q', '{}'); insert into fetchq_data.q__docs (subject, status) values ('plain', 1)")
            .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        asleep(&session, 5).await;
        session.sql("commit").await;
        asleep(&session, 3).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        asleep(&session, 3).await;
        session
            .sql("select fetchq.doc_append_many('q', array['{}', '{}', '{}', '{}']::jsonb[])")
            .await;
    } else {
        session.sql("select fetchq.doc_append('q', '{}')").await;
    }
    for one in all {
        assert_eq!(one.await.unwrap().unwrap(), "q");
    }
    db.remove().await;
}

/// A document wakes as many sessions that can take it as before, though others look.
#[tokio::test]
async fn who_can_only_read_is_not_woken_in_place_of_a_worker() {
    if !is_preloaded() {
        return;
    }
    let db = Server::of_suite().database("wait_readers").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'); select fetchq.queue_create('other'); create role wait_reader;
             select fetchq.queue_grant('q', 'wait_reader', 'reader');
             select fetchq.queue_grant('other', 'wait_reader', 'worker');
             alter role wait_reader login",
        )
        .await;
    let reads = |call: &str| {
        let (db, call) = (db.clone(), call.to_owned());
        tokio::spawn(async move {
            let reader = db.connect().await;
            reader
                .sql("set application_name = 'waits'; set role wait_reader")
                .await;
            reader.text(&call).await
        })
    };
    let mut readers = Vec::new();
    for call in [CALL, CALL, "call fetchq.queue_wait('{other,q}', '30 s')"] {
        readers.push(reads(call));
    }
    asleep(&session, 3).await;
    let worker = waits(&db, CALL).await;
    asleep(&session, 4).await;
    // They may sleep between their first looks.
    tokio::time::sleep(Duration::from_millis(200)).await;
    asleep(&session, 4).await;
    let begun = Instant::now();
    session.sql("select fetchq.doc_put('q', 'a')").await;
    assert_eq!(worker.await.unwrap().unwrap(), "q");
    // A session that nobody has woken looks after 5 seconds.
    assert!(begun.elapsed() < Duration::from_secs(4));
    for reader in readers {
        assert_eq!(reader.await.unwrap(), "q");
    }
    // The same role can take documents of the other queue, so one document wakes one of two.
    session.sql("select fetchq.doc_lease('q')").await;
    let first = reads("call fetchq.queue_wait('{q,other}', '30 s')");
    asleep(&session, 1).await;
    let second = waits(&db, "call fetchq.queue_wait('{other}', '30 s')").await;
    asleep(&session, 2).await;
    session.sql("select fetchq.doc_put('other', 'b')").await;
    assert_eq!(first.await.unwrap(), "other");
    asleep(&session, 1).await;
    session.sql("select fetchq.doc_put('other', 'c')").await;
    assert_eq!(second.await.unwrap().unwrap(), "other");
    session
        .sql("drop owned by wait_reader; drop role wait_reader")
        .await;
    db.remove().await;
}

#[tokio::test]
async fn a_rejected_document_wakes_when_it_is_due() {
    let db = Server::of_suite().database("wait_time").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_create('r')")
        .await;
    // A rejected document is pending at once, and ready when its lease would have expired.
    session.sql("select fetchq.doc_append('q', '{}')").await;
    let subject = session
        .text("select subject from fetchq.doc_pick('q', 0, 1, '1 s')")
        .await;
    let waiting = waits(&db, "call fetchq.queue_wait(array['r', 'q'], '30 s')").await;
    asleep(&session, 1).await;
    session
        .sql(&format!(
            "select fetchq.doc_reject('q', '{subject}', 'no', '{{}}')"
        ))
        .await;
    assert_eq!(waiting.await.unwrap().unwrap(), "q");
    db.remove().await;
}

#[tokio::test]
async fn a_wait_can_be_ended() {
    let db = Server::of_suite().database("wait_end").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    for (how, state) in [
        ("pg_cancel_backend", "57014"),
        ("pg_terminate_backend", "57P01"),
    ] {
        let waiting = waits(&db, CALL).await;
        asleep(&session, 1).await;
        session
            .sql(&format!(
                "select {how}(pid) from pg_stat_activity where application_name = 'waits'"
            ))
            .await;
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(state_of(&error), state);
    }
    // The queue is dropped while a session waits for it.
    let waiting = waits(&db, "call fetchq.queue_wait(array['q'], '6 s')").await;
    asleep(&session, 1).await;
    session.sql("select fetchq.queue_drop('q')").await;
    let error = waiting.await.unwrap().unwrap_err();
    assert_eq!(state_of(&error), "42704");

    // Calls that cannot work.
    session.sql("begin").await;
    session.cannot_wait(CALL, "fetchq.queue_wait").await;
    session.sql("rollback").await;
    session
        .sql("create function waits() returns void language plpgsql as $$ declare r text; begin call fetchq.queue_wait(array['q'], '1 s', r); end $$")
        .await;
    session
        .cannot_wait("select waits()", "fetchq.queue_wait")
        .await;
    for (call, state) in [
        ("call fetchq.queue_wait(array['nobody'], '1 s')", "42704"),
        ("call fetchq.queue_wait(array['q'], '-1 s')", "22023"),
        ("call fetchq.queue_wait(array[]::text[], '1 s')", "22023"),
        ("call fetchq.queue_wait(array[null], '1 s')", "22004"),
        ("call fetchq.queue_wait(array['q', null], '1 s')", "22004"),
        ("call fetchq.queue_wait(null, '1 s')", "22023"),
        (
            "call fetchq.queue_wait(array['q', 'nobody'], '1 s')",
            "42704",
        ),
        ("call fetchq.queue_wait(array['no queue'], '1 s')", "42602"),
        (
            "call fetchq.queue_wait(array['q'], '300000 years')",
            "22008",
        ),
    ] {
        assert_eq!(session.state(call).await, state, "{call}");
    }
    let too_many = format!("call fetchq.queue_wait('{}')", queues(1001));
    assert_eq!(session.state(&too_many).await, "22023");
    db.remove().await;
}

/// The names of queues from `q1` on, as an array.
fn queues(n: usize) -> String {
    let names: Vec<String> = (1..=n).map(|n| format!("q{n}")).collect();
    format!("{{{}}}", names.join(","))
}

#[tokio::test]
async fn each_waits_for_a_version() {
    let db = Server::of_suite().database("wait_version").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let seven = waits(
        &db,
        "call fetchq.queue_wait(array['q'], '30 s', version => 7)",
    )
    .await;
    asleep(&session, 1).await;
    for _ in 0..3 {
        let zero = waits(&db, CALL).await;
        asleep(&session, 2).await;
        session.sql("select fetchq.doc_append('q', '{}')").await;
        assert_eq!(zero.await.unwrap().unwrap(), "q");
        session.sql("select fetchq.doc_pick('q')").await;
    }
    asleep(&session, 1).await;
    session
        .sql("select fetchq.doc_push('q', 'seven', 7, 0, now(), '{}')")
        .await;
    assert_eq!(seven.await.unwrap().unwrap(), "q");
    // A transaction whose isolation level would keep its snapshot.
    session
        .sql(&format!(
            "alter database {} set default_transaction_isolation = 'repeatable read'",
            db.name
        ))
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session.sql("select fetchq.doc_append('q', '{}')").await;
    assert_eq!(waiting.await.unwrap().unwrap(), "q");
    db.remove().await;
}

#[tokio::test]
async fn a_document_that_is_being_picked_is_not_ready() {
    let db = Server::of_suite().database("wait_taken").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.doc_append('q', '{}')")
        .await;
    for pick in [
        "select fetchq.doc_pick('q')",
        // The pick ran in a subtransaction.
        "savepoint s; select fetchq.doc_pick('q'); release s",
        // The row is locked by plain SQL.
        "select from fetchq_data.q__docs for update",
    ] {
        session.sql(&format!("begin; {pick}")).await;
        let call = "call fetchq.queue_wait(array['q'], '300 ms')";
        assert_eq!(waits(&db, call).await.await.unwrap().unwrap(), "null");
        let waiting = waits(&db, CALL).await;
        asleep(&session, 1).await;
        session.sql("rollback").await;
        assert_eq!(waiting.await.unwrap().unwrap(), "q");
    }
    db.remove().await;
}

/// Starts a session that waits for a document of version 7 until it gets one. Returns its subject.
async fn leases(db: &Database) -> JoinHandle<Vec<String>> {
    let session = db.connect().await;
    session.sql("set application_name = 'waits'").await;
    tokio::spawn(async move {
        loop {
            let ready = session
                .text("call fetchq.queue_wait(array['q'], '30 s', version => 7)")
                .await;
            assert_eq!(ready, "q");
            let leased = session
                .rows("select subject from fetchq.doc_lease('q', version => 7)")
                .await;
            if !leased.is_empty() {
                return leased;
            }
        }
    })
}

/// One that finds the document of another session waits again.
#[tokio::test]
async fn sessions_that_wait_lease_each_document_once() {
    let db = Server::of_suite().database("wait_lease").await;
    let mut session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let mut all = Vec::new();
    for _ in 0..3 {
        all.push(leases(&db).await);
    }
    asleep(&session, 3).await;
    session
        .sql("select fetchq.doc_push('q', 'other', 0, 0, now(), '{}'); select fetchq.doc_put_many('q', '[{\"subject\": \"x\", \"version\": 7}, {\"subject\": \"y\", \"version\": 7}, {\"subject\": \"z\", \"version\": 7}]')")
        .await;
    let mut got = Vec::new();
    for one in all {
        got.extend(one.await.unwrap());
    }
    got.sort();
    assert_eq!(got, ["x", "y", "z"]);
    assert_eq!(
        session
            .rows("select subject from fetchq.doc_pick('q', 5)")
            .await,
        ["other"]
    );
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn hundreds_of_queues() {
    let db = Server::of_suite().database("wait_hundreds").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q' || i) from generate_series(1, 300) i")
        .await;
    let all = format!("call fetchq.queue_wait('{}', '60 s')", queues(300));
    for (n, twice) in [
        (1, false),
        (16, true),
        (17, false),
        (157, true),
        (300, false),
    ] {
        // Sessions that look at intervals all see the same document.
        let twice = twice && is_preloaded();
        let waiting = waits(&db, &all).await;
        let other = match twice {
            true => Some(waits(&db, &all).await),
            false => None,
        };
        asleep(&session, 1 + usize::from(twice)).await;
        // It holds no locks, however many queues there are.
        let locks = "select count(*) from pg_locks l join pg_stat_activity a using (pid)
            where application_name = 'waits' and l.relation is not null";
        assert_eq!(session.text(locks).await, "0");
        session
            .sql(&format!("select fetchq.doc_push('q{n}', 'a')"))
            .await;
        if twice {
            // Each document wakes one of them. It has returned before the next document is there:
            // one that still looks would find that one, and the other session would sleep on.
            wait_until("one session returns", async || {
                let mut all = [Some(&waiting), other.as_ref()].into_iter().flatten();
                all.any(JoinHandle::is_finished)
            })
            .await;
            assert_eq!(session.text(ASLEEP).await, "1");
            session
                .sql(&format!(
                    "select fetchq.doc_pick('q{n}'); select fetchq.doc_push('q{n}', 'b')"
                ))
                .await;
        }
        for one in [Some(waiting), other].into_iter().flatten() {
            let woken = tokio::time::timeout(Duration::from_secs(4), one).await;
            let woken = woken
                .unwrap_or_else(|_| panic!("a commit wakes the session: q{n}, twice: {twice}"))
                .unwrap()
                .unwrap();
            assert_eq!(woken, format!("q{n}"));
        }
        session
            .sql(&format!("select fetchq.doc_lease('q{n}', 2)"))
            .await;
    }
    // The same queue twice, and in capitals.
    session.sql("select fetchq.doc_push('q7', 'a')").await;
    let twice = "call fetchq.queue_wait(array['q6', 'Q7', 'q7', 'q6'], '60 s')";
    assert_eq!(session.text(twice).await, "q7");
    // NULL stands for the default.
    let default = "call fetchq.queue_wait(array['q7'], null)";
    assert_eq!(session.text(default).await, "q7");
    // Drivers prepare it without types, and pass what they have.
    let prepared = session
        .prepare("call fetchq.queue_wait($1, $2)")
        .await
        .unwrap();
    let types: Vec<&str> = prepared.params().iter().map(|t| t.name()).collect();
    assert_eq!(types, ["_text", "interval"]);
    db.remove().await;
}
