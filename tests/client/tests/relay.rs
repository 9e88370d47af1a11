//! `fetchq relay`: what transactions of one server put into its outbox becomes documents of queues of another one, each
//! once, whatever is killed.

use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use fetchq_client_tests::{Cluster, Server, Session, counters_are_exact, program, run, wait_until};
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;

fn conninfo(server: &Server, role: &str) -> String {
    let Host::Unix(path) = &server.config().get_hosts()[0] else {
        panic!("a socket");
    };
    format!(
        "host={} port=5432 user={role} dbname=postgres",
        path.display()
    )
}

/// The program. It is looked for once.
fn relay_program() -> &'static str {
    static PROGRAM: LazyLock<String> = LazyLock::new(|| program("fetchq-console"));
    &PROGRAM
}

/// The file that makes the outbox.
fn outbox() -> String {
    run(Command::new(relay_program()).args(["relay", "--sql"]))
}

const WAITING: &str = "select waiting from fetchq_outbox.status";

/// The command, with more arguments. Both roles have the rights that the guide names, and no more.
fn command(source: &Server, target: &Server, more: &[&str]) -> Command {
    let mut command = Command::new(relay_program());
    command
        .arg("relay")
        .args(["--interval", "10"])
        .args(more)
        .env("FETCHQ_SOURCE", conninfo(source, "relay"))
        .env("FETCHQ_URL", conninfo(target, "relay"))
        .stdin(Stdio::null());
    command
}

/// Carries what is there. Returns what the relay has said, and whether its status was 0.
fn once(source: &Server, target: &Server) -> (bool, String) {
    let output = command(source, target, &["--once", "--name", "a"])
        .output()
        .expect("run the relay");
    (
        output.status.success(),
        String::from_utf8_lossy(&output.stderr).into_owned(),
    )
}

/// A relay that runs. It is killed when this value is dropped.
struct Relay(Child);

impl Relay {
    fn start(source: &Server, target: &Server) -> Self {
        Self::named(source, target, "a")
    }

    fn named(source: &Server, target: &Server, name: &str) -> Self {
        let child = command(source, target, &["--name", name, "--batch", "7"])
            .stderr(Stdio::null())
            .spawn()
            .expect("start the relay");
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }

    async fn status(&mut self) -> Option<i32> {
        let mut status = None;
        wait_until("the relay ends", async || {
            status = self.0.try_wait().expect("wait");
            status.is_some()
        })
        .await;
        status.unwrap().code()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The blocks of the guide for one of both servers.
fn guide(side: &str) -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides/relay.md");
    let page = std::fs::read_to_string(path).expect("the guide");
    page.split(&format!("```sql {side}\n"))
        .skip(1)
        .map(|rest| rest.split("```").next().unwrap_or_default().to_owned())
        .collect()
}

/// Two servers, the source and the target, prepared as the guide says.
async fn servers(name: &str) -> [(Cluster, Server, Session); 2] {
    let mut all = Vec::new();
    for (role, sql) in [
        (
            "source",
            format!(
                "create table orders (subject text primary key); {}; {}",
                outbox(),
                guide("source")[0]
            ),
        ),
        (
            "target",
            format!(
                "create extension fetchq; create table done (subject text); {}",
                guide("target")[0]
            ),
        ),
    ] {
        let cluster = Cluster::new(&format!("{name}_{role}"), "fsync = off");
        cluster.start();
        let server = cluster.server();
        let session = server.connect("postgres").await;
        session.sql(&sql).await;
        all.push((cluster, server, session));
    }
    all.try_into().ok().expect("two servers")
}

fn order(queue: &str, n: usize) -> String {
    format!(
        "insert into orders values ('{queue}-{n}');
         select from fetchq_outbox.doc_put('{queue}', '{queue}-{n}', '{{\"n\": {n}}}')"
    )
}

/// A session of a role.
async fn connect_as(server: &Server, role: &str) -> Session {
    let mut config = server.config().clone();
    config.user(role);
    Server::new(config).connect("postgres").await
}

/// Works on the documents of both queues and drops them, so that nothing is left that would prevent a
/// second document of the same subject. The server may restart at any time.
fn works(target: Server) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            if let Ok(session) = target.try_connect("postgres").await {
                while session
                    .batch_execute(
                        "with popped as (select subject from fetchq.doc_pop('invoices', 0, 5)
                            union all select subject from fetchq.doc_pop('mails', 0, 5))
                         insert into done select subject from popped",
                    )
                    .await
                    .is_ok()
                {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_committed_is_carried_once_whatever_is_killed() {
    let [
        (source_cluster, source, session),
        (target_cluster, target, other),
    ] = servers("relay").await;
    drop((session, other));
    let work = works(target.clone());
    let (mut committed, mut n) = (0, 0);
    for round in 0..8 {
        let relay = Relay::start(&source, &target);
        let session = source.connect_when_up("postgres").await;
        for _ in 0..30 {
            n += 1;
            let queue = if n % 3 == 0 { "mails" } else { "invoices" };
            let end = if n % 5 == 0 { "rollback" } else { "commit" };
            session
                .sql(&format!("begin; {}; {end}", order(queue, n)))
                .await;
            committed += usize::from(n % 5 != 0);
        }
        drop(session);
        match round % 4 {
            0 => relay.kill(),
            1 => {
                source_cluster.stop("immediate");
                source_cluster.start();
                relay.kill();
            }
            2 => {
                target_cluster.stop("immediate");
                target_cluster.start();
                relay.kill();
            }
            // The relay goes on by itself when the servers are back.
            _ => {
                target_cluster.stop("immediate");
                source_cluster.stop("immediate");
                source_cluster.start();
                target_cluster.start();
                let session = source.connect_when_up("postgres").await;
                wait_until("the relay moves on", async || {
                    session.text(WAITING).await == "0"
                })
                .await;
                relay.kill();
            }
        }
    }
    let mut relay = Relay::start(&source, &target);
    let session = source.connect_when_up("postgres").await;
    let mut other = target.connect_when_up("postgres").await;
    // Earlier relays may have moved all others, and this one may just be starting.
    session
        .sql(&format!("begin; {}; commit", order("mails", n + 1)))
        .await;
    committed += 1;
    wait_until("all rows are moved", async || {
        session.text(WAITING).await == "0"
    })
    .await;
    wait_until("all documents are processed", async || {
        other
            .text("select (select count(*) from fetchq_data.invoices__docs) + (select count(*) from fetchq_data.mails__docs)")
            .await
            == "0"
    })
    .await;
    work.abort();
    let counted = "select count(*) || ' ' || count(distinct subject) from done";
    assert_eq!(
        other.text(counted).await,
        format!("{committed} {committed}")
    );
    assert_eq!(
        session.text("select count(*) from orders").await,
        committed.to_string()
    );
    counters_are_exact(&mut other, "invoices").await;
    counters_are_exact(&mut other, "mails").await;
    let id = relay.0.id().to_string();
    run(Command::new("kill").args(["-TERM", &id]));
    assert_eq!(relay.status().await, Some(0));
    source_cluster.stop("fast");
    target_cluster.stop("fast");
}

/// The relay dies after the target has committed, and before the source has: the rows are there still, and the
/// documents were processed and are gone.
#[tokio::test]
async fn a_relay_that_was_killed_between_both_commits_puts_nothing_twice() {
    let [
        (source_cluster, source, session),
        (target_cluster, target, mut other),
    ] = servers("relay_between").await;
    for n in 0..3 {
        session
            .sql(&format!("begin; {}; commit", order("invoices", n)))
            .await;
    }
    // Rows can be read, and not deleted.
    let lock = source.connect("postgres").await;
    lock.sql("begin; lock table fetchq_outbox.documents in share mode")
        .await;
    let relay = Relay::start(&source, &target);
    let deletes = "select pid from pg_stat_activity where query like 'with carried as %' and wait_event_type = 'Lock'";
    wait_until("the relay wants to delete the rows", async || {
        session.column(deletes).await.len() == 1
    })
    .await;
    relay.kill();
    let pid = session.text(deletes).await;
    session
        .sql(&format!("select pg_terminate_backend({pid})"))
        .await;
    wait_until("its session has ended", async || {
        session.column(deletes).await.is_empty()
    })
    .await;
    lock.sql("rollback").await;
    let pop = "select subject from fetchq.doc_pop('invoices', 0, 10)";
    assert_eq!(other.column(pop).await.len(), 3);
    assert_eq!(session.text(WAITING).await, "3");

    let mut relay = Relay::start(&source, &target);
    session
        .sql(&format!("begin; {}; commit", order("invoices", 3)))
        .await;
    wait_until("the rows are moved", async || {
        session.text(WAITING).await == "0"
    })
    .await;
    assert_eq!(other.column(pop).await, ["invoices-3"]);
    // A relay that is started later takes over, and the earlier one ends.
    let later = Relay::start(&source, &target);
    session
        .sql(&format!("begin; {}; commit", order("invoices", 4)))
        .await;
    wait_until("the row is moved", async || {
        session.text(WAITING).await == "0"
    })
    .await;
    // It notices when there is something to move.
    for n in 5.. {
        if relay.0.try_wait().expect("wait").is_some() {
            break;
        }
        session
            .sql(&format!("begin; {}; commit", order("invoices", n)))
            .await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(relay.status().await, Some(1));
    wait_until("the rows are moved", async || {
        session.text(WAITING).await == "0"
    })
    .await;
    let orders = session.text("select count(*) from orders").await;
    let popped = 4 + other
        .column("select subject from fetchq.doc_pop('invoices', 0, 10000)")
        .await
        .len();
    assert_eq!(orders, popped.to_string());
    counters_are_exact(&mut other, "invoices").await;
    drop(later);
    source_cluster.stop("fast");
    target_cluster.stop("fast");
}

/// What the target refuses is put aside and does not stop others; a queue that is not there stops only its own
/// documents; results come back; and a role has no right that it was not given.
#[tokio::test]
async fn what_is_refused_stops_nothing_else_and_results_come_back() {
    let [
        (source_cluster, source, session),
        (target_cluster, target, mut other),
    ] = servers("relay_refused").await;
    session.sql("create role stranger login").await;
    let app = connect_as(&source, "app").await;
    let put = |what: &str| format!("select action || ' ' || id from fetchq_outbox.doc_put({what})");
    assert_eq!(
        app.text(&put(
            "'mails', 'one', '{\"n\": 12345678901234567890.125}', wants_result => true"
        ))
        .await,
        "stored 1"
    );
    app.text(&put("'mails', 'bad', headers => '[1]'")).await;
    app.text(&put(
        "'Later', 'x''; drop table orders; --', '{\"a\": \"'' $$\"}'",
    ))
    .await;
    app.text(&put("'Later', 'second'")).await;
    app.text(&put(
        "'mails', 'kill', wants_result => true, priority => -1, delay => '-1 s'",
    ))
    .await;
    app.text(&put("'mails', 'one', '{\"n\": 2}', mode => 'merge'"))
        .await;
    // What is wrong at sight is refused at once.
    for (what, code) in [
        ("null", "42602"),
        ("'a b'", "42602"),
        ("'mails', repeat('x', 256)", "22001"),
        ("'mails', mode => 'other'", "22023"),
        ("'mails', due_at => now(), delay => '1 s'", "22023"),
        ("'mails', 's', unique_by => '{a}'", "22023"),
    ] {
        assert_eq!(app.state(&put(what)).await, code, "{what}");
    }
    // A producer has no way to the tables, and others have none at all.
    let stranger = connect_as(&source, "stranger").await;
    for (session, sql) in [
        (&app, "select * from fetchq_outbox.documents"),
        (&app, "select fetchq_outbox.retry()"),
        (&app, "select fetchq_outbox.allow_relay('app')"),
        (&app, "delete from fetchq_outbox.source"),
        (&stranger, "select fetchq_outbox.doc_put('mails')"),
    ] {
        assert_eq!(session.state(sql).await, "42501", "{sql}");
    }

    let (is_done, said) = once(&source, &target);
    assert!(is_done, "{said}");
    assert!(said.contains("document 2 is refused (22023)"), "{said}");
    assert!(said.contains("queue Later takes nothing"), "{said}");
    assert_eq!(
        session
            .text("select waiting || ' ' || refused || ' ' || awaited from fetchq_outbox.status")
            .await,
        "2 1 2"
    );
    assert_eq!(
        other.text("select string_agg(subject || ' ' || payload::text, ', ' order by subject) from fetchq.docs_list('mails')").await,
        "kill {}, one {\"n\": 2}"
    );
    other
        .sql("create table given as select * from fetchq.doc_lease('mails', 2);
              select fetchq.doc_complete('mails', 'one', lease => lease, result => '{\"big\": 98765432109876543210}')
              from given where subject = 'one';
              select fetchq.doc_kill('mails', 'kill', lease => lease, message => 'no such customer') from given where subject = 'kill';
              select fetchq.queue_create('later'), fetchq.queue_grant('later', 'relay', 'producer')")
        .await;
    session
        .sql("update fetchq_outbox.refused set headers = null; select fetchq_outbox.retry()")
        .await;
    let (is_done, said) = once(&source, &target);
    assert!(is_done, "{said}");
    let result = |id: i32| {
        format!(
            "select concat_ws(' ', status, result, message) from fetchq_outbox.doc_result({id})"
        )
    };
    assert_eq!(
        app.text(&result(1)).await,
        "completed {\"big\": 98765432109876543210}"
    );
    assert_eq!(app.text(&result(5)).await, "killed no such customer");
    assert_eq!(
        session
            .text("select waiting || ' ' || refused || ' ' || awaited from fetchq_outbox.status")
            .await,
        "0 0 0"
    );
    assert_eq!(
        other
            .column("select subject from fetchq.doc_pop('later', 0, 10)")
            .await,
        ["x'; drop table orders; --", "second"]
    );
    assert_eq!(
        other
            .column("select subject from fetchq.docs_list('mails', '{\"subject\": \"bad\"}')")
            .await,
        ["bad"]
    );
    for queue in ["mails", "later", "fetchq_relay"] {
        counters_are_exact(&mut other, queue).await;
    }
    source_cluster.stop("fast");
    target_cluster.stop("fast");
}

/// After a backup of the source was restored, it gives numbers that it has given before. Those of the last batch are in
/// the mark of the relay, and the new documents must not be taken for them. And documents keep their order.
#[tokio::test]
async fn numbers_that_are_given_again_are_other_documents() {
    let [
        (source_cluster, source, session),
        (target_cluster, target, other),
    ] = servers("relay_restored").await;
    let pop = "select subject from fetchq.doc_pop('invoices', 0, 1000)";
    let put = "select fetchq_outbox.doc_put('invoices', n::text) from generate_series";
    for (from, to) in [(1, 300), (301, 600), (601, 899)] {
        session
            .sql(&format!("alter table fetchq_outbox.documents alter column id restart; {put}({from}, {to}) as n"))
            .await;
        let (is_done, said) = once(&source, &target);
        assert!(is_done, "{said}");
        let expected: Vec<_> = (from..=to).map(|n: i32| n.to_string()).collect();
        assert_eq!(other.column(pop).await, expected);
        assert_eq!(session.text(WAITING).await, "0");
    }
    source_cluster.stop("fast");
    target_cluster.stop("fast");
}

/// A relay of another name waits, and takes over when the first one is silent.
#[tokio::test]
async fn another_relay_stands_by() {
    let [
        (source_cluster, source, session),
        (target_cluster, target, other),
    ] = servers("relay_standby").await;
    let who = "select payload ->> 'relay' from fetchq.docs_list('fetchq_relay')";
    let first = Relay::start(&source, &target);
    wait_until("the first one carries", async || {
        other.column(who).await == ["a"]
    })
    .await;
    let mut second = Relay::named(&source, &target, "b");
    let waits = "select count(distinct pid) from pg_stat_activity where usename = 'relay'";
    wait_until("the second one is there", async || {
        other.text(waits).await == "2"
    })
    .await;
    session.sql(&order("mails", 1)).await;
    wait_until("the first one has carried", async || {
        session.text(WAITING).await == "0"
    })
    .await;
    assert_eq!(other.column(who).await, ["a"]);
    first.kill();
    session.sql(&order("mails", 2)).await;
    wait_until("the second one has carried", async || {
        session.text(WAITING).await == "0"
    })
    .await;
    assert_eq!(other.column(who).await, ["b"]);
    assert_eq!(
        other
            .column("select subject from fetchq.doc_pop('mails', 0, 10)")
            .await,
        ["mails-1", "mails-2"]
    );
    assert!(second.0.try_wait().expect("wait").is_none());
    drop(second);
    source_cluster.stop("fast");
    target_cluster.stop("fast");
}

/// What the guide shows, and a second run of the file that makes the outbox.
#[tokio::test]
async fn the_guide_is_as_it_says() {
    let [
        (source_cluster, source, session),
        (target_cluster, target, other),
    ] = servers("relay_guide").await;
    let [_, put, result] = &guide("source")[..] else {
        panic!("blocks");
    };
    session.sql(put).await;
    session.sql(result).await;
    session.sql(&outbox()).await;
    let (is_done, said) = once(&source, &target);
    assert!(is_done, "{said}");
    let listed =
        "select status || ' ' || payload::text from fetchq.docs_list('invoices') order by status";
    assert_eq!(
        other.column(listed).await,
        ["pending {\"amount\": 90}", "planned {\"amount\": 90}"]
    );
    assert_eq!(
        session
            .text("select status from fetchq_outbox.doc_result(2)")
            .await,
        "carried"
    );
    source_cluster.stop("fast");
    target_cluster.stop("fast");
}

/// A lock on the table of one queue holds back the documents of that queue only. And nobody makes the schema for others.
#[tokio::test]
async fn a_locked_queue_and_a_prepared_schema_stop_nobody_else() {
    let [
        (source_cluster, source, session),
        (target_cluster, target, other),
    ] = servers("relay_locked").await;
    let lock = target.connect("postgres").await;
    lock.sql("begin; lock table fetchq_data.invoices__docs in exclusive mode")
        .await;
    session.sql(&order("invoices", 1)).await;
    session.sql(&order("mails", 1)).await;
    let relay = Relay::start(&source, &target);
    let pop = |queue: &str| format!("select subject from fetchq.doc_pop('{queue}', 0, 10)");
    wait_until("the other queue goes on", async || {
        other.column(&pop("mails")).await == ["mails-1"]
    })
    .await;
    // It is carried before the source knows.
    wait_until("the other queue is done", async || {
        session.text(WAITING).await == "1"
    })
    .await;
    lock.sql("rollback").await;
    wait_until("the lock is gone", async || {
        session.text(WAITING).await == "0"
    })
    .await;
    assert_eq!(other.column(&pop("invoices")).await, ["invoices-1"]);
    drop(relay);

    session.sql("create database prepared").await;
    session
        .sql("create role stranger login; grant create on database prepared to stranger")
        .await;
    let prepared = source.connect("prepared").await;
    prepared
        .sql("set role stranger; create schema fetchq_outbox; reset role")
        .await;
    assert_eq!(prepared.state(&outbox()).await, "42501");
    source_cluster.stop("fast");
    target_cluster.stop("fast");
}
