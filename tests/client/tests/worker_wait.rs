//! `worker_wait`: a worker that waits learns of documents, of a request to stop, of leases that somebody
//! else has ended, and of a queue that was resumed, each by the commit that does it.

use std::time::{Duration, Instant};

use fetchq_client_tests::{Database, Server, Session, state_of, wait_until};
use tokio::task::JoinHandle;

/// A long wait. What does not wake a session is found by its look after 5 seconds.
const TIMEOUT: &str = "40 s";

/// Less than it takes until a session looks that nobody has woken.
const SOON: Duration = Duration::from_secs(4);

type Waiter = JoinHandle<Result<String, tokio_postgres::Error>>;

/// A worker that waits in the background. Its result: event, queue, subjects.
async fn waits(db: &Database, arguments: &str) -> Waiter {
    let session = db.connect().await;
    session.sql("set application_name = 'waits'").await;
    let call = format!("call fetchq.worker_wait({arguments}, timeout => '{TIMEOUT}')");
    tokio::spawn(async move {
        let rows = session.query(&call, &[]).await?;
        let text = |at: usize| rows[0].get::<_, Option<String>>(at).unwrap_or("-".into());
        let subjects = rows[0].get::<_, Option<Vec<String>>>(2).unwrap_or_default();
        Ok(format!("{} {} {}", text(0), text(1), subjects.join(","))
            .trim_end()
            .to_owned())
    })
}

async fn asleep(session: &Session, n: usize) {
    const ASLEEP: &str = "select count(*) from pg_stat_activity
        where application_name = 'waits' and wait_event_type = 'Extension'";
    wait_until("the workers sleep", async || {
        session.text(ASLEEP).await == n.to_string()
    })
    .await;
    // They may sleep between their first looks.
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(session.text(ASLEEP).await, n.to_string());
}

/// Runs a statement that ends the wait, and asserts what the worker learns, and that the commit says so.
async fn ends_by(session: &Session, waiter: Waiter, statement: &str, event: &str) {
    asleep(session, 1).await;
    let begun = Instant::now();
    session.sql(statement).await;
    assert_eq!(waiter.await.unwrap().unwrap(), event, "{statement}");
    let is_preloaded = std::env::var("FETCHQ_NO_PRELOAD").as_deref() != Ok("1");
    assert!(!is_preloaded || begun.elapsed() < SOON, "{statement}");
}

/// Leases documents for an hour, and returns what the worker passes as its leases.
async fn leases(session: &Session, queue: &str, n: i32, duration: &str) -> String {
    let lease = format!(
        "select jsonb_agg(jsonb_build_object('queue', '{queue}', 'subject', subject, 'lease', lease::text))::text
         from fetchq.doc_lease('{queue}', {n}, '{duration}', worker => 'w')"
    );
    session.text(&lease).await
}

#[tokio::test]
async fn a_worker_is_woken_by_all_that_it_has_to_know() {
    let db = Server::of_suite().database("worker_wait").await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.queue_create('other'); select fetchq.queue_create('busy')")
        .await;
    let idle = "queues => '{q,other}', worker => 'w'";

    // A document.
    let waiter = waits(&db, idle).await;
    ends_by(
        &session,
        waiter,
        "select fetchq.doc_put('other', 'd')",
        "ready other",
    )
    .await;
    session.sql("select fetchq.doc_lease('other')").await;

    // A request to stop, and none of another worker.
    let waiter = waits(&db, idle).await;
    asleep(&session, 1).await;
    session.sql("select fetchq.worker_stop('v')").await;
    ends_by(&session, waiter, "select fetchq.worker_stop('w')", "stop -").await;

    // The queue is paused, and resumed.
    session.sql("select fetchq.queue_pause('q')").await;
    let waiter = waits(&db, idle).await;
    ends_by(
        &session,
        waiter,
        "select fetchq.queue_resume('q')",
        "resumed q",
    )
    .await;

    // Leases end in each way that its worker does not know of. A busy worker waits for no documents.
    session
        .sql("select fetchq.doc_put('busy', 'd' || n) from generate_series(1, 9) n")
        .await;
    for (n, duration, statement, event) in [
        (
            2,
            "1 hour",
            "select fetchq.doc_cancel('busy', 'd1')",
            "cancelled busy d1",
        ),
        (
            1,
            "1 hour",
            r#"select fetchq.docs_kill('busy', '{"status": "active", "subject": "d3"}')"#,
            "cancelled busy d3",
        ),
        (
            1,
            "1 hour",
            r#"select fetchq.docs_drop('busy', '{"status": "active", "subject": "d4"}')"#,
            "lost busy d4",
        ),
        (
            1,
            "1 hour",
            "select fetchq.worker_release('w')",
            "lost busy d5",
        ),
        (1, "0", "select fetchq.mnt_run('busy', 10)", "lost busy d6"),
        (
            1,
            "1 hour",
            "select fetchq.queue_truncate('busy')",
            "lost busy d7",
        ),
    ] {
        let leases = leases(&session, "busy", n, duration).await;
        let busy = format!("queues => '{{}}', worker => 'w', leases => '{leases}'");
        let waiter = waits(&db, &busy).await;
        ends_by(&session, waiter, statement, event).await;
    }
}

/// What the worker w learns at once: the event and the mark, as text.
async fn look(session: &Session, arguments: &str) -> (String, String) {
    let call = format!("call fetchq.worker_wait(worker => 'w', timeout => '0', {arguments})");
    let row = session.rows(&call).await.pop().unwrap();
    let (event, rest) = row.split_once('|').unwrap();
    (
        event.to_owned(),
        rest.rsplit('|').next().unwrap().to_owned(),
    )
}

/// Whether a request came before or after a worker began is for its commit to say.
#[tokio::test]
async fn a_request_to_stop_that_is_committed_late_is_not_missed() {
    let db = Server::of_suite().database("worker_wait_late").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'); select fetchq.queue_create('r');
             create role worker_wait_late; select fetchq.queue_grant('r', 'worker_wait_late', 'worker');
             select fetchq.doc_put('q', 'a'), fetchq.doc_put('r', 'b')",
        )
        .await;
    let of_one = db.connect().await;
    of_one.sql("set role worker_wait_late").await;
    let late = db.connect().await;
    late.sql("begin; select fetchq.worker_stop('w')").await;
    // A later request, for one of the queues, is committed before the worker begins.
    of_one.sql("select fetchq.worker_stop('w')").await;

    let both = "queues => '{}', leases => '[]'";
    let leases = format!(
        "[{}, {}]",
        leases(&session, "q", 1, "1 hour")
            .await
            .trim_matches(['[', ']']),
        leases(&session, "r", 1, "1 hour")
            .await
            .trim_matches(['[', ']']),
    );
    let both = both.replace("'[]'", &format!("'{leases}'"));
    let (event, mark) = look(&session, &both).await;
    assert_eq!(event, "");
    let waiter = waits(&db, &format!("{both}, worker => 'w'")).await;
    ends_by(&late, waiter, "commit", "stop -").await;
    let (event, next) = look(&session, &format!("{both}, mark => '{mark}'")).await;
    assert_eq!((event.as_str(), next != mark), ("stop", true));
    let (event, _) = look(&session, &format!("{both}, mark => '{next}'")).await;
    assert_eq!(event, "");
    // Its sessions have begun before that commit, too.
    let extend = format!(
        "select subject || ' ' || outcome || ' ' || stop from fetchq.docs_extend(null, '{leases}', '1 hour') order by 1"
    );
    let extended = session.column(&extend).await;
    assert_eq!(extended, ["a extended true", "b extended true"]);
    let is_asked = "select is_asked_to_stop from fetchq.workers where name = 'w'";
    assert_eq!(session.text(is_asked).await, "t");
    // The same queue of two roles: the request that is committed last has a number of its own.
    late.sql("begin; select fetchq.worker_stop('w')").await;
    let other = db.connect().await;
    let second = tokio::spawn(async move { other.sql("select fetchq.worker_stop('w')").await });
    wait_until("the second request waits", async || {
        let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%worker_stop%' and datname = current_database()";
        session.text(waiting).await == "1"
    })
    .await;
    late.sql("commit").await;
    second.await.unwrap();
    let (event, last) = look(&session, &format!("{both}, mark => '{next}'")).await;
    assert_eq!((event.as_str(), last != next), ("stop", true));
    let (event, _) = look(&session, &format!("{both}, mark => '{last}'")).await;
    assert_eq!(event, "");
    session
        .sql("drop owned by worker_wait_late; drop role worker_wait_late")
        .await;
}

/// A worker that names leases of very many sessions is woken for some of them, and looks for the others.
#[tokio::test]
async fn leases_of_very_many_sessions_are_all_watched() {
    let db = Server::of_suite().database("worker_wait_many").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'); select fetchq.doc_put('q', 'd' || n) from generate_series(1, 1100) n;
             create table held as select d.subject, d.lease from generate_series(1, 1100) n,
                 lateral fetchq.doc_lease('q', 1, '1 hour', worker => 'w' || n) d",
        )
        .await;
    let sessions =
        "select count(distinct worker_session) from fetchq_data.q__docs where status = 2";
    assert_eq!(session.text(sessions).await, "1100");
    let leases = session
        .text("select jsonb_agg(jsonb_build_object('queue', 'q', 'subject', subject, 'lease', lease::text))::text from held")
        .await;
    let newest = session
        .text("select subject from fetchq_data.q__docs order by worker_session desc limit 1")
        .await;
    let call = format!("queues => '{{}}', worker => 'w', leases => '{leases}'");
    let waiter = waits(&db, &call).await;
    wait_until("the worker sleeps", async || {
        let asleep = "select count(*) from pg_stat_activity where application_name = 'waits' and wait_event_type = 'Extension'";
        session.text(asleep).await == "1"
    })
    .await;
    session
        .sql(&format!("select fetchq.doc_cancel('q', '{newest}')"))
        .await;
    let event = format!("cancelled q {newest}");
    assert_eq!(waiter.await.unwrap().unwrap(), event);
}

/// The next wait of a worker tells what has happened since the one before.
#[tokio::test]
async fn what_happens_between_two_waits_is_not_missed() {
    let db = Server::of_suite().database("worker_wait_between").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let (event, mark) = look(&session, "queues => '{q}'").await;
    assert_eq!((event.as_str(), mark.as_str()), ("", "{}"));
    session.sql("select fetchq.worker_stop('w')").await;
    session
        .sql("select fetchq.doc_put('q', 'a'), fetchq.doc_put('q', 'b')")
        .await;
    let leases = leases(&session, "q", 2, "1 hour").await;
    session.sql("select fetchq.doc_cancel('q', 'b')").await;
    let wait = async |mark: &str| {
        let arguments = format!("queues => '{{q}}', leases => '{leases}', mark => '{mark}'");
        look(&session, &arguments).await
    };
    let (event, next) = wait(&mark).await;
    assert_eq!((event.as_str(), next != mark), ("stop", true));
    // The worker knows of the request. It has its documents yet, and learns what becomes of them.
    assert_eq!(wait(&next).await, ("cancelled".to_owned(), next));
    // A worker that begins now is not meant.
    let event = session
        .text("call fetchq.worker_wait('{q}', 'w', '0')")
        .await;
    assert_eq!(event, "");
}

/// A worker that is stopped, and that a document has woken too, leaves the document to another one.
#[tokio::test]
async fn a_stop_takes_no_document_from_the_others() {
    let db = Server::of_suite().database("worker_wait_pass_on").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    let first = waits(&db, "queues => '{q}', worker => 'w'").await;
    asleep(&session, 1).await;
    let second = waits(&db, "queues => '{q}', worker => 'v'").await;
    asleep(&session, 2).await;
    let begun = Instant::now();
    // The first one has waited longest, so one document wakes it.
    session
        .sql("begin; select fetchq.worker_stop('w'); select fetchq.doc_put('q', 'd'); commit")
        .await;
    assert_eq!(first.await.unwrap().unwrap(), "stop -");
    assert_eq!(second.await.unwrap().unwrap(), "ready q");
    let is_preloaded = std::env::var("FETCHQ_NO_PRELOAD").as_deref() != Ok("1");
    assert!(!is_preloaded || begun.elapsed() < SOON);
}

#[tokio::test]
async fn a_waiting_worker_needs_the_right_to_work() {
    let db = Server::of_suite().database("worker_wait_rights").await;
    let session = db.connect().await;
    session
        .sql(
            "select fetchq.queue_create('q'); select fetchq.queue_create('other');
              create role worker_wait_role;
              select fetchq.queue_grant('q', 'worker_wait_role', 'reader');
              select fetchq.queue_grant('other', 'worker_wait_role', 'worker');
              set role worker_wait_role",
        )
        .await;
    for call in [
        "call fetchq.worker_wait('{q}', 'w', '0')",
        "call fetchq.worker_wait('{other,q}', 'w', '0')",
        r#"call fetchq.worker_wait('{other}', 'w', '0', leases => '[{"queue": "q", "subject": "a", "lease": 1}]')"#,
    ] {
        let error = session.query(call, &[]).await.unwrap_err();
        assert_eq!(state_of(&error), "42501", "{call}");
    }
    assert_eq!(
        session
            .text("call fetchq.worker_wait('{other}', 'w', '0')")
            .await,
        ""
    );
    session.sql("reset role").await;
    session
        .sql("drop owned by worker_wait_role; drop role worker_wait_role")
        .await;
    for (call, state) in [
        ("call fetchq.worker_wait('{}', 'w')", "22023"),
        ("call fetchq.worker_wait(null, 'w')", "22023"),
        ("call fetchq.worker_wait('{none}', 'w')", "42704"),
        ("call fetchq.worker_wait('{q}', '')", "22023"),
        (
            "call fetchq.worker_wait('{q,other}', 'w', leases => '[{\"subject\": \"a\", \"lease\": 1}]')",
            "22023",
        ),
        (
            "call fetchq.worker_wait('{q}', 'w', leases => '{}')",
            "22023",
        ),
    ] {
        let error = session.query(call, &[]).await.unwrap_err();
        assert_eq!(state_of(&error), state, "{call}");
    }
}
