//! Sessions that wait have slots in shared memory: each is woken for its own document, and gives its
//! slots back, however its wait ends.

use std::time::Duration;

use fetchq_client_tests::{Cluster, Server, Session, state_of, wait_until};

use super::{CALL, HISTORY, asleep, is_preloaded, waits, woken};

/// When the sessions that wait have begun their transactions, by process. A session that looks begins
/// another one.
async fn looks(session: &Session) -> Vec<String> {
    session
        .rows("select pid, xact_start from pg_stat_activity where application_name = 'awaits' order by 1")
        .await
}

#[tokio::test]
async fn two_hundred_sessions_get_their_own_results() {
    let cluster = Cluster::new("await_many", "max_connections = 250\nfsync = off");
    cluster.start();
    let db = cluster.server().database("await_many").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    session
        .sql("select fetchq.doc_push('q', 's' || i) from generate_series(0, 199) i; select fetchq.doc_pick('q', 0, 200, '1 hour')")
        .await;
    let mut all = Vec::new();
    for n in 0..200 {
        all.push(waits(&db, &format!("call fetchq.doc_await('q', 's{n}', '60 s')")).await);
    }
    asleep(&session, 200).await;
    let held = "select count(*) from pg_stat_activity a
        left join pg_locks l on l.pid = a.pid and l.locktype <> 'virtualxid'
        where application_name = 'awaits'
            and (a.backend_xmin is not null or a.backend_xid is not null or l.pid is not null)";
    wait_until("the sessions hold nothing", async || {
        session.text(held).await == "0"
    })
    .await;
    if is_preloaded() {
        // One is settled: no other session looks. Each looks every five seconds anyway, so this may
        // need another try.
        let mut left: Vec<usize> = (0..200).collect();
        let mut others_slept = false;
        for _ in 0..5 {
            let n = left.pop().unwrap();
            let before = looks(&session).await;
            session
                .sql(&format!(
                    "select fetchq.doc_complete('q', 's{n}', result => '{n}')"
                ))
                .await;
            let got = woken(all.pop().unwrap(), "one").await.unwrap();
            assert_eq!(got, format!("completed|{n}|"));
            let after = looks(&session).await;
            let same = after.iter().filter(|look| before.contains(look)).count();
            if same == left.len() {
                others_slept = true;
                break;
            }
        }
        assert!(others_slept, "each settled document wakes others");
    }
    session
        .sql("select fetchq.doc_complete_many('q', array_agg(subject::text), results => array_agg(to_jsonb(substr(subject, 2)::int)))
            from (select subject from fetchq_data.q__docs where status = 2 order by hashtext(subject)) d")
        .await;
    for (n, one) in all.into_iter().enumerate() {
        let got = woken(one, "all").await.unwrap();
        assert_eq!(got, format!("completed|{n}|"));
    }
    cluster.stop("immediate");
}

/// A worker settles documents as fast as others begin to wait for them.
#[tokio::test]
async fn no_wake_up_is_lost() {
    let db = Server::of_suite().database("await_race").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let worker = db.connect().await;
    let worker = tokio::spawn(async move {
        let mut done = 0;
        while done < 400 {
            worker.sql("begin; select fetchq.doc_pick('q', 10)").await;
            worker.sql("commit").await;
            done += worker
                .rows("select subject from fetchq_data.q__docs where status = 2")
                .await
                .len();
            worker
                .sql("select fetchq.doc_complete('q', subject, result => to_jsonb(subject)) from fetchq_data.q__docs where status = 2")
                .await;
        }
    });
    let mut clients = Vec::new();
    for client in 0..4 {
        let session = db.connect().await;
        clients.push(tokio::spawn(async move {
            for n in 0..100 {
                let subject = format!("{client}-{n}");
                session
                    .sql(&format!("select fetchq.doc_push('q', '{subject}')"))
                    .await;
                let call = format!("call fetchq.doc_await('q', '{subject}', '60 s')");
                let got = tokio::time::timeout(Duration::from_secs(4), session.rows(&call)).await;
                let got = got.unwrap_or_else(|_| panic!("{subject}: the wake-up was lost"));
                assert_eq!(got, [format!("completed|\"{subject}\"|")]);
            }
        }));
    }
    for client in clients {
        client.await.unwrap();
    }
    worker.await.unwrap();
    db.remove().await;
}

/// A slot that was left behind would take the wake-up: its session seems to have waited longest.
#[tokio::test]
async fn a_session_that_ends_gives_its_slots_back() {
    if !is_preloaded() {
        return;
    }
    let cluster = Cluster::new("await_slots", "fsync = off");
    cluster.start();
    let db = cluster.server().database("await_slots").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('other'); select fetchq.queue_create('q')")
        .await;
    let pid = "select pid from pg_stat_activity where application_name = 'awaits'";
    for how in ["cancel", "terminate", "timeout", "over", "kill"] {
        let call = match how {
            "timeout" => {
                "set statement_timeout = '700 ms'\ncall fetchq.queue_wait('{other,q}', '60 s')"
            }
            "over" => "call fetchq.queue_wait('{other,q}', '700 ms')",
            _ => "call fetchq.queue_wait('{other,q}', '60 s')",
        };
        let waiting = waits(&db, call).await;
        asleep(&session, 1).await;
        match how {
            "cancel" | "terminate" => {
                session
                    .sql(&format!("select pg_{how}_backend(({pid}))"))
                    .await;
            }
            "kill" => cluster.kill(session.text(pid).await.parse().unwrap()),
            _ => {}
        }
        let outcome = waiting.await.unwrap();
        match how {
            "over" => assert_eq!(outcome.unwrap(), ""),
            "cancel" | "timeout" => assert_eq!(state_of(&outcome.unwrap_err()), "57014"),
            _ => assert!(outcome.is_err()),
        }
        if how == "kill" {
            wait_until("the server has noticed", async || {
                session.batch_execute("select").await.is_err()
            })
            .await;
            drop(session);
            session = cluster.server().connect_when_up(&db.name).await;
        }
        let next = waits(&db, "call fetchq.queue_wait('{q}', '60 s')").await;
        asleep(&session, 1).await;
        session.sql("select fetchq.doc_push('q', 'a')").await;
        assert_eq!(woken(next, how).await.unwrap(), "q");
        session.sql("select fetchq.doc_pop('q')").await;
    }
    cluster.stop("immediate");
}

/// Sessions wait for both, and one transaction is for all of them.
#[tokio::test]
async fn a_commit_wakes_for_a_settled_and_for_a_ready_document() {
    if !is_preloaded() {
        return;
    }
    let db = Server::of_suite().database("await_both").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.doc_put('q', 'a', delay => '1 day')")
        .await;
    let settled = waits(&db, CALL).await;
    let mut ready = Vec::new();
    for _ in 0..20 {
        ready.push(waits(&db, "call fetchq.queue_wait('{q}', '60 s')").await);
    }
    asleep(&session, 21).await;
    session
        .sql("begin; select fetchq.docs_kill('q', '{\"subject\": \"a\"}'); select fetchq.doc_push('q', 'b'); commit")
        .await;
    assert_eq!(woken(settled, "a").await.unwrap(), "killed||cancelled");
    asleep(&session, 19).await;
    session
        .sql("select fetchq.doc_put_many('q', jsonb_agg(jsonb_build_object('subject', 's' || i))) from generate_series(2, 20) i")
        .await;
    for one in ready {
        assert_eq!(woken(one, "ready").await.unwrap(), "q");
    }
    db.remove().await;
}

/// Whether the documents are leased, and how they are settled, all three at once.
const BATCHES: &[(bool, &str)] = &[
    (false, "select fetchq.doc_pop('q', 0, 3)"),
    (
        true,
        r#"select fetchq.docs_settle('q', '[{"subject": "a", "action": "drop"}, {"subject": "b", "action": "complete"}, {"subject": "c", "action": "kill"}]')"#,
    ),
    (
        true,
        r#"select fetchq.docs_next('q', '[{"subject": "a", "action": "complete"}, {"subject": "b", "action": "complete"}, {"subject": "c", "action": "complete", "result": 1}]')"#,
    ),
    (true, "select fetchq.doc_complete_many('q', '{a,b,c}')"),
    (true, "select fetchq.doc_drop_many('q', '{a,b,c}')"),
    (
        false,
        r#"select fetchq.docs_kill('q', '{"status": "pending"}')"#,
    ),
    (
        false,
        r#"select fetchq.docs_drop('q', '{"status": "pending"}')"#,
    ),
    (
        true,
        "update fetchq_data.q__docs set next_iteration = now() - interval '1 s' where status = 2;
         select fetchq.mnt_run('q', 10)",
    ),
];

#[tokio::test]
async fn a_batch_wakes_only_who_waits_for_its_documents() {
    if !is_preloaded() {
        return;
    }
    let db = Server::of_suite().database("await_batch").await;
    let session = db.connect().await;
    for (settings, direct) in [("{}", "on"), ("{}", "off"), (HISTORY, "on")] {
        session
            .sql(&format!(
                "set fetchq.direct = {direct}; select fetchq.queue_create('q', '{settings}');
                 select fetchq.queue_configure('q', '{{\"max_attempts\": 1}}');
                 select fetchq.doc_put('q', 'other', delay => '1 day')"
            ))
            .await;
        let other = waits(&db, "call fetchq.doc_await('q', 'other', '10 min')").await;
        for (is_leased, settle) in BATCHES {
            let mut has_slept = false;
            // It looks every five seconds anyway, so this may need another try.
            for _ in 0..5 {
                session
                    .sql("select fetchq.doc_put('q', s) from unnest('{a,b,c}'::text[]) s")
                    .await;
                if *is_leased {
                    session
                        .sql("select fetchq.doc_pick('q', 0, 3, '1 hour')")
                        .await;
                }
                let waiting = waits(&db, CALL).await;
                asleep(&session, 2).await;
                let before = looks(&session).await;
                session.sql(settle).await;
                woken(waiting, settle).await.expect(settle);
                wait_until("the session has ended", async || {
                    looks(&session).await.len() == 1
                })
                .await;
                let after = looks(&session).await;
                session
                    .sql("delete from fetchq_data.q__docs where subject <> 'other'; select fetchq.metric_reset('q')")
                    .await;
                has_slept = after.iter().all(|look| before.contains(look));
                if has_slept {
                    break;
                }
            }
            assert!(has_slept, "{settle} with {settings}: all were woken");
        }
        session.sql("select fetchq.queue_drop('q')").await;
        assert!(woken(other, "drop").await.is_err());
    }
    db.remove().await;
}
