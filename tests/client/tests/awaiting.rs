//! `doc_await`: every way to settle a document wakes its awaiters, and tells what became of it.

use std::time::Duration;

use fetchq_client_tests::{Cluster, Database, Server, Session, error_of, state_of, wait_until};
use tokio::task::JoinHandle;

fn is_preloaded() -> bool {
    std::env::var("FETCHQ_NO_PRELOAD").as_deref() != Ok("1")
}

type Outcome = Result<String, tokio_postgres::Error>;

/// A session that waits in the background: for what a call returns, with `|` between the columns.
async fn waits(db: &Database, call: &str) -> JoinHandle<Outcome> {
    let session = db.connect().await;
    session.sql("set application_name = 'awaits'").await;
    // Together they would be in a transaction block.
    let (before, call) = call.rsplit_once('\n').unwrap_or(("", call));
    session.sql(before).await;
    let call = call.to_owned();
    tokio::spawn(async move {
        let messages = session.simple_query(&call).await?;
        let row = messages.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        let row = row.expect("a row");
        let columns: Vec<&str> = (0..row.len()).map(|i| row.get(i).unwrap_or("")).collect();
        Ok(columns.join("|"))
    })
}

const ASLEEP: &str = "select count(*) from pg_stat_activity
    where application_name = 'awaits' and wait_event_type = 'Extension'";

async fn asleep(session: &Session, n: usize) {
    wait_until("the sessions sleep", async || {
        session.text(ASLEEP).await == n.to_string()
    })
    .await;
}

/// What a session got, woken by a commit: without that it looks again after five seconds.
async fn woken(waiting: JoinHandle<Outcome>, what: &str) -> Outcome {
    let outcome = tokio::time::timeout(Duration::from_secs(4), waiting).await;
    outcome
        .unwrap_or_else(|_| panic!("{what}: nobody was woken"))
        .unwrap()
}

const CALL: &str = "call fetchq.doc_await('q', 'a', '60 s')";

/// Settings of the queue, what happens before the session waits, how the document is settled, and
/// what the session learns.
const WAYS: &[(&str, &str, &str, &str)] = &[
    (
        "{}",
        "lease",
        "select fetchq.doc_complete('q', 'a', result => '{\"n\": 1}')",
        "completed|{\"n\": 1}|",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_complete('q', 'a')",
        "completed||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_complete('q', 'a', result => '[1]')",
        "completed|[1]|",
    ),
    (
        NOTHING,
        "lease",
        "select fetchq.doc_complete('q', 'a', result => '[1]')",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_complete_many('q', array['x', 'a'], results => array['1', '2']::jsonb[])",
        "completed|2|",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_complete_many('q', array['x', 'a'])",
        "completed||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_complete_many('q', array['a', 'x'], results => array['1', '2']::jsonb[])",
        "completed|1|",
    ),
    (
        NOTHING,
        "lease",
        "select fetchq.doc_complete_many('q', array['a', 'x'])",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_kill('q', 'a', message => 'no')",
        "killed||no",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_kill('q', 'a')",
        "killed||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_kill('q', 'a', message => 'no')",
        "killed||no",
    ),
    (
        NOTHING,
        "lease",
        "select fetchq.doc_kill('q', 'a', message => 'no')",
        "dropped||",
    ),
    (
        DEAD,
        "lease",
        "select fetchq.doc_kill('q', 'a', message => 'no')",
        "killed||no",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_drop('q', 'a')",
        "dropped||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_drop('q', 'a')",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_drop_many('q', array['a', 'x'])",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_reject('q', 'a', 'boom')",
        "killed||boom",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.doc_reject('q', 'a', 'boom')",
        "killed||boom",
    ),
    (
        NOTHING,
        "lease",
        "select fetchq.doc_reject('q', 'a', 'boom')",
        "dropped||",
    ),
    (
        DEAD,
        "lease",
        "select fetchq.doc_reject('q', 'a', 'boom')",
        "killed||boom",
    ),
    (
        "{}",
        "lease",
        EXPIRE,
        "killed||the lease of attempt 1 ran out",
    ),
    (
        HISTORY,
        "lease",
        EXPIRE,
        "killed||the lease of attempt 1 ran out",
    ),
    (
        DEAD,
        "lease",
        EXPIRE,
        "killed||the lease of attempt 1 ran out",
    ),
    (
        "{}",
        "",
        "select fetchq.doc_cancel('q', 'a')",
        "killed||cancelled",
    ),
    (
        "{}",
        "lease",
        "select fetchq.doc_cancel('q', 'a')",
        "killed||cancelled",
    ),
    (
        HISTORY,
        "",
        "select fetchq.doc_cancel('q', 'a')",
        "killed||cancelled",
    ),
    (
        "{}",
        "",
        "select fetchq.docs_kill('q', '{\"status\": \"pending\"}')",
        "killed||cancelled",
    ),
    (
        HISTORY,
        "",
        "select fetchq.docs_kill('q', '{\"status\": \"pending\"}')",
        "killed||cancelled",
    ),
    (
        "{}",
        "lease",
        "select fetchq.docs_kill('q', '{\"status\": \"active\"}')",
        "killed||cancelled",
    ),
    (
        "{}",
        "",
        "select fetchq.docs_drop('q', '{\"status\": \"pending\"}')",
        "dropped||",
    ),
    (
        HISTORY,
        "lease",
        "select fetchq.docs_drop('q', '{\"status\": \"active\"}')",
        "dropped||",
    ),
    (
        "{}",
        "",
        "select fetchq.docs_move('q', 'dead', '{\"status\": \"pending\"}')",
        "dropped||",
    ),
    ("{}", "", "select fetchq.doc_pop('q', 0, 2)", "dropped||"),
    (HISTORY, "", "select fetchq.doc_pop('q', 0, 2)", "dropped||"),
    (
        "{}",
        "lease",
        "select fetchq.queue_truncate('q')",
        "dropped||",
    ),
    (
        "{}",
        "lease",
        "begin; savepoint s; select fetchq.doc_complete('q', 'a'); rollback to s; select fetchq.doc_complete('q', 'a', result => '3'); commit",
        "completed|3|",
    ),
    (
        "{}",
        "lease",
        "begin; savepoint s; select fetchq.doc_complete('q', 'a', result => '4'); release s; commit",
        "completed|4|",
    ),
    // The first transaction that settles it rolls back.
    (
        "{}",
        "lease",
        "begin; select fetchq.doc_drop('q', 'a'); rollback; select fetchq.doc_complete('q', 'a', result => '5')",
        "completed|5|",
    ),
    // It is given back first, and rescheduled: neither settles it.
    (
        "{}",
        "lease",
        "select fetchq.doc_snooze('q', 'a'); select fetchq.doc_lease('q', 2); select fetchq.doc_reschedule('q', 'a', now()); select fetchq.doc_lease('q', 2); select fetchq.doc_complete('q', 'a', result => '6')",
        "completed|6|",
    ),
];

const HISTORY: &str =
    r#"{"history": {"completed": "1 day", "killed": "1 day", "dropped": "1 day"}}"#;
const NOTHING: &str = r#"{"history": {"completed": "0", "killed": "0", "dropped": "0"}}"#;
const DEAD: &str = r#"{"dead_letter": "dead"}"#;
const EXPIRE: &str = "update fetchq_data.q__docs set next_iteration = now() - interval '1 s';
    select fetchq.mnt_run('q', 10)";

/// A queue with the documents a and x, which have one attempt.
async fn queue(session: &Session, settings: &str) {
    session
        .sql(&format!(
            "set fetchq.strict = off; select fetchq.queue_drop('q'), fetchq.queue_drop('dead'); reset fetchq.strict;
            select fetchq.queue_create('q'), fetchq.queue_create('dead');
            select fetchq.queue_configure('q', '{{\"max_attempts\": 1}}');
            select fetchq.queue_configure('q', '{settings}');
            select fetchq.doc_push('q', 'a'), fetchq.doc_push('q', 'x')"
        ))
        .await;
}

async fn all_ways(session: &Session, db: &Database) {
    for (settings, before, settle, expected) in WAYS {
        let what = format!("{settings} {settle}");
        queue(session, settings).await;
        if *before == "lease" {
            session
                .sql("select fetchq.doc_lease('q', 2, '1 hour')")
                .await;
        }
        let waiting = waits(db, CALL).await;
        asleep(session, 1).await;
        session.sql(settle).await;
        assert_eq!(woken(waiting, &what).await.unwrap(), *expected, "{what}");
        // It is settled already, and what is known of it has stayed.
        let again = match *expected {
            "dropped||" if *settings != HISTORY || settle.contains("truncate") => {
                assert_eq!(session.state(CALL).await, "P0002", "{what}");
                continue;
            }
            known => known,
        };
        assert_eq!(session.rows(CALL).await, [again], "{what}");
    }
}

#[tokio::test]
async fn every_way_to_settle_wakes_who_waits() {
    let db = Server::of_suite().database("await_ways").await;
    let session = db.connect().await;
    all_ways(&session, &db).await;
    db.remove().await;
}

#[tokio::test]
async fn every_way_to_settle_by_statements_wakes_who_waits() {
    let db = Server::of_suite().database("await_statements").await;
    let session = db.connect().await;
    session.sql("set fetchq.direct = off").await;
    all_ways(&session, &db).await;
    db.remove().await;
}

#[tokio::test]
async fn what_wakes_nobody_is_seen_at_the_next_look() {
    let db = Server::of_suite().database("await_looks").await;
    let session = db.connect().await;
    let prepared = format!(
        "begin; select fetchq.doc_complete('q', 'a', result => '7'); prepare transaction '{0}'\ncommit prepared '{0}'",
        db.name
    );
    for (settle, expected) in [
        (
            "update fetchq_data.q__docs set status = 3, result = '1'",
            "completed|1|",
        ),
        ("delete from fetchq_data.q__docs", "dropped||"),
        ("truncate fetchq_data.q__docs", "dropped||"),
        (prepared.as_str(), "completed|7|"),
        ("drop table fetchq_data.q__docs", "42704"),
    ] {
        queue(&session, "{}").await;
        session
            .sql("select fetchq.doc_lease('q', 2, '1 hour')")
            .await;
        let waiting = waits(&db, CALL).await;
        asleep(&session, 1).await;
        for part in settle.lines() {
            session.sql(part).await;
        }
        let got = waiting.await.unwrap().unwrap_or_else(|e| state_of(&e));
        assert_eq!(got, expected, "{settle}");
        if expected == "42704" {
            session.sql("create table fetchq_data.q__docs ()").await;
        }
    }
    db.remove().await;
}

#[tokio::test]
async fn a_document_that_was_settled_before_somebody_waited_in_an_open_transaction() {
    let db = Server::of_suite().database("await_open").await;
    let (session, other) = (db.connect().await, db.connect().await);
    queue(&session, "{}").await;
    session
        .sql("select fetchq.doc_lease('q', 2, '1 hour')")
        .await;
    // Nobody waits when it is settled, so its subject is not noted.
    session
        .sql("begin; select fetchq.doc_complete('q', 'a', result => '1')")
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&other, 1).await;
    session.sql("commit").await;
    assert_eq!(woken(waiting, "commit").await.unwrap(), "completed|1|");
    db.remove().await;
}

#[tokio::test]
async fn a_newer_document_with_the_subject_is_another_one() {
    let db = Server::of_suite().database("await_newer").await;
    let session = db.connect().await;
    // Its subject is in use in the dead-letter queue, so the dead letter gets another one.
    queue(&session, DEAD).await;
    session
        .sql("select fetchq.doc_push('dead', 'a'); select fetchq.doc_lease('q', 2)")
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session
        .sql("begin; select fetchq.doc_reject('q', 'a', 'renamed'); select fetchq.doc_push('q', 'a'); commit")
        .await;
    assert_eq!(woken(waiting, "reject").await.unwrap(), "killed||renamed");
    // An older dead letter says nothing of a document that was dropped.
    session
        .sql("select fetchq.queue_truncate('dead'); select fetchq.doc_lease('q', 1); select fetchq.doc_kill('q', 'a', message => 'old')")
        .await;
    session
        .sql("select fetchq.doc_push('q', 'a'); select fetchq.doc_lease('q', 1)")
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session.sql("select fetchq.doc_drop('q', 'a')").await;
    assert_eq!(woken(waiting, "drop").await.unwrap(), "dropped||");
    // Nor does an older entry of the history.
    queue(&session, HISTORY).await;
    session
        .sql("select fetchq.doc_lease('q', 2); select fetchq.doc_complete('q', 'a', result => '1')")
        .await;
    session
        .sql("select fetchq.doc_push('q', 'a'); select fetchq.queue_configure('q', '{\"history\": {\"dropped\": null}}')")
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session
        .sql("select fetchq.doc_lease('q'); select fetchq.doc_drop('q', 'a')")
        .await;
    assert_eq!(woken(waiting, "drop").await.unwrap(), "dropped||");
    db.remove().await;
}

#[tokio::test]
async fn when_the_time_is_over_the_status_tells_it() {
    let db = Server::of_suite().database("await_time").await;
    let session = db.connect().await;
    queue(&session, "{}").await;
    let call = "call fetchq.doc_await('q', 'a', '100 ms')";
    assert_eq!(session.rows(call).await, ["pending||"]);
    session.sql("select fetchq.doc_lease('q', 2)").await;
    assert_eq!(session.rows(call).await, ["active||"]);
    session
        .sql("select fetchq.doc_snooze('q', 'a', now() + interval '1 hour')")
        .await;
    assert_eq!(session.rows(call).await, ["planned||"]);
    let now = "call fetchq.doc_await('q', 'a', '0')";
    assert_eq!(session.rows(now).await, ["planned||"]);

    for (call, state) in [
        ("call fetchq.doc_await('q', 'nothing')", "P0002"),
        ("call fetchq.doc_await('nobody', 'a')", "42704"),
        ("call fetchq.doc_await('q', 'a', '-1 s')", "22023"),
        ("call fetchq.doc_await(null, 'a')", "22004"),
        ("call fetchq.doc_await('q', null)", "22004"),
        ("call fetchq.doc_await('q!', 'a')", "42602"),
        (
            "do $$ declare s text; r jsonb; m text; begin call fetchq.doc_await('q', 'a', '1 s', s, r, m); end $$",
            "",
        ),
        (
            "begin; do $$ declare s text; r jsonb; m text; begin call fetchq.doc_await('q', 'a', '1 s', s, r, m); end $$",
            "25001",
        ),
        ("rollback; begin; call fetchq.doc_await('q', 'a')", "25001"),
    ] {
        assert_eq!(session.state(call).await, state, "{call}");
    }
    session.sql("rollback").await;
    let error = session
        .simple_query("begin; call fetchq.doc_await('q', 'a')")
        .await
        .unwrap_err();
    let hint = error_of(&error).hint().unwrap_or("").to_owned();
    assert!(
        hint.contains("psycopg") && hint.contains("autocommit"),
        "{hint}"
    );
    session.sql("rollback").await;
    // NULL stands for the default, and the settled document needs none of it.
    session
        .sql("select fetchq.docs_kill('q', '{\"all\": true}')")
        .await;
    let default = "call fetchq.doc_await('q', 'a', null)";
    assert_eq!(session.rows(default).await, ["killed||cancelled"]);
    // A driver prepares it without types.
    let prepared = session
        .prepare("call fetchq.doc_await($1, $2, $3)")
        .await
        .unwrap();
    assert_eq!(prepared.params().len(), 3);
    db.remove().await;
}

#[tokio::test]
async fn who_may_read_may_wait() {
    let db = Server::of_suite().database("await_rights").await;
    let session = db.connect().await;
    queue(&session, DEAD).await;
    session
        .sql("select fetchq.doc_lease('q', 2); select fetchq.doc_reject('q', 'a', 'why')")
        .await;
    session
        .sql(&format!(
            "do $$ begin create role {0}_r; create role {0}_p; create role {0}_n; exception when duplicate_object then null; end $$;
            grant usage on schema fetchq, fetchq_data to {0}_n;
            select fetchq.queue_grant('q', '{0}_r', 'reader'); select fetchq.queue_grant('q', '{0}_p', 'producer')",
            db.name
        ))
        .await;
    for (role, expected) in [("r", "killed||why"), ("p", "42501"), ("n", "42501")] {
        session.sql(&format!("set role {}_{role}", db.name)).await;
        let got = match session.state(CALL).await.as_str() {
            "" => session.rows(CALL).await.remove(0),
            state => state.to_owned(),
        };
        assert_eq!(got, expected, "{role}");
        session.sql("reset role").await;
    }
    for role in ["r", "p", "n"] {
        session
            .sql(&format!(
                "drop owned by {0}_{role}; drop role {0}_{role}",
                db.name
            ))
            .await;
    }
    db.remove().await;
}

#[tokio::test]
async fn a_dead_letter_tells_nothing_about_documents_that_the_caller_may_not_see() {
    let db = Server::of_suite().database("await_hidden").await;
    let session = db.connect().await;
    queue(&session, DEAD).await;
    let role = format!("{}_r", db.name);
    session
        .sql(&format!(
            "select fetchq.doc_lease('q', 2); select fetchq.doc_reject('q', 'a', 'why'), fetchq.doc_reject('q', 'x', 'secret');
            do $$ begin create role {role}; exception when duplicate_object then null; end $$;
            select fetchq.queue_grant('q', '{role}', 'reader');
            alter table fetchq_data.q__docs enable row level security;
            create policy own on fetchq_data.q__docs for select to {role} using (subject = 'a')"
        ))
        .await;
    let call = |subject: &str| format!("call fetchq.doc_await('q', '{subject}', '0 s')");
    assert_eq!(session.rows(&call("x")).await, ["killed||secret"]);
    session.sql(&format!("set role {role}")).await;
    // Both have left the queue, so nothing tells to which of them the policy applies.
    assert_eq!(session.state(&call("x")).await, "P0002");
    assert_eq!(session.state(&call("a")).await, "P0002");
    session
        .sql("reset role; select fetchq.doc_put('q', 'a'); select fetchq.doc_lease('q')")
        .await;
    // A session that has seen the document learns why it was killed.
    let waiting = waits(&db, &format!("set role {role}\n{CALL}")).await;
    asleep(&session, 1).await;
    session
        .sql("select fetchq.doc_reject('q', 'a', 'again')")
        .await;
    let outcome = woken(waiting, "a policy").await.unwrap();
    assert_eq!(outcome, "killed||again");
    session
        .sql(&format!("drop owned by {role}; drop role {role}"))
        .await;
    db.remove().await;
}

#[tokio::test]
async fn a_dead_letter_of_an_older_queue_with_the_name_is_not_that_of_this_one() {
    let db = Server::of_suite().database("await_older_queue").await;
    let session = db.connect().await;
    queue(&session, DEAD).await;
    session
        .sql("select fetchq.doc_lease('q', 2); select fetchq.doc_reject('q', 'a', 'of the older queue')")
        .await;
    assert_eq!(session.rows(CALL).await, ["killed||of the older queue"]);
    session.sql("select fetchq.queue_drop('q')").await;
    session
        .sql(&format!("select fetchq.queue_create('q', '{DEAD}')"))
        .await;
    assert_eq!(session.state(CALL).await, "P0002");
    db.remove().await;
}

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
        .sql("select fetchq.doc_push('q', 's' || i) from generate_series(0, 199) i; select fetchq.doc_lease('q', 200, '1 hour')")
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
            worker.sql("begin; select fetchq.doc_lease('q', 10)").await;
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

#[tokio::test]
async fn a_session_that_ends_gives_its_slot_back() {
    if !is_preloaded() {
        return;
    }
    let cluster = Cluster::new("await_slots", "fetchq.await_slots = 1\nfsync = off");
    cluster.start();
    let db = cluster.server().database("await_slots").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'a')")
        .await;
    let pid = "select pid from pg_stat_activity where application_name = 'awaits'";
    for how in ["cancel", "terminate", "timeout", "over", "kill"] {
        let call = match how {
            "timeout" => {
                "set statement_timeout = '700 ms'\ncall fetchq.doc_await('q', 'a', '60 s')"
            }
            "over" => "call fetchq.doc_await('q', 'a', '700 ms')",
            _ => CALL,
        };
        let waiting = waits(&db, call).await;
        asleep(&session, 1).await;
        // It has the slot: it does not look all the time.
        wait_until("the session sleeps for long", async || {
            let before = looks(&session).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            before == looks(&session).await
        })
        .await;
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
            "over" => assert_eq!(outcome.unwrap(), "pending||"),
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
    }
    // A second session finds no slot, and looks at intervals.
    let first = waits(&db, CALL).await;
    asleep(&session, 1).await;
    let second = waits(&db, CALL).await;
    wait_until("the second session looks again", async || {
        let before = looks(&session).await;
        tokio::time::sleep(Duration::from_millis(300)).await;
        let after = looks(&session).await;
        before.len() == 2 && after.iter().filter(|look| before.contains(look)).count() == 1
    })
    .await;
    session
        .sql("select fetchq.doc_lease('q'); select fetchq.doc_complete('q', 'a')")
        .await;
    for one in [first, second] {
        assert_eq!(woken(one, "both").await.unwrap(), "completed||");
    }
    cluster.stop("immediate");
}

#[tokio::test]
async fn a_queue_that_is_dropped_ends_the_wait() {
    let db = Server::of_suite().database("await_drop").await;
    let session = db.connect().await;
    queue(&session, "{}").await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session.sql("select fetchq.queue_drop('q')").await;
    let error = woken(waiting, "drop").await.unwrap_err();
    assert_eq!(state_of(&error), "42704");
    // With an isolation level that keeps its snapshot.
    queue(&session, "{}").await;
    session
        .sql(&format!(
            "alter database {} set default_transaction_isolation = 'repeatable read'; select fetchq.doc_lease('q', 2)",
            db.name
        ))
        .await;
    let waiting = waits(&db, CALL).await;
    asleep(&session, 1).await;
    session
        .sql("select fetchq.doc_complete('q', 'a', result => '8')")
        .await;
    assert_eq!(woken(waiting, "complete").await.unwrap(), "completed|8|");
    db.remove().await;
}

#[tokio::test]
async fn on_a_standby_the_document_is_looked_at_again_and_again() {
    let primary = Cluster::new("await_primary", "fsync = off");
    primary.start();
    let session = primary.server().connect("postgres").await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q'); select fetchq.doc_push('q', 'a')")
        .await;
    let standby = primary.standby("await_standby", "");
    let reader = standby.server().connect("postgres").await;
    let waiting =
        tokio::spawn(async move { reader.rows("call fetchq.doc_await('q', 'a', '60 s')").await });
    let other = standby.server().connect("postgres").await;
    let asleep = "select count(*) from pg_stat_activity
        where query like 'call fetchq.doc_await%' and wait_event_type = 'Extension'";
    wait_until("the session sleeps", async || {
        other.text(asleep).await == "1"
    })
    .await;
    session
        .sql("select fetchq.doc_lease('q'); select fetchq.doc_complete('q', 'a', result => '9')")
        .await;
    assert_eq!(waiting.await.unwrap(), ["completed|9|"]);
    standby.stop("immediate");
    primary.stop("immediate");
}
