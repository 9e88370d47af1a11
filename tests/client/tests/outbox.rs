//! examples/outbox: rows of one server become documents of another one, each once, whatever is killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fetchq_client_tests::{Cluster, Server, Session, counters_are_exact, run, wait_until};
use tokio::task::JoinHandle;
use tokio_postgres::config::Host;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/outbox")
}

fn script(name: &str) -> String {
    std::fs::read_to_string(folder().join(name)).expect("the script")
}

fn conninfo(server: &Server) -> String {
    let Host::Unix(path) = &server.config().get_hosts()[0] else {
        panic!("a socket");
    };
    format!(
        "host={} port=5432 user=postgres dbname=postgres",
        path.display()
    )
}

/// A relay that runs. It is killed when this value is dropped.
struct Relay(Child);

impl Relay {
    fn start(source: &Server, target: &Server) -> Self {
        let child = Command::new("/usr/bin/python3")
            .arg(folder().join("relay.py"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env("SOURCE", conninfo(source))
            .env("TARGET", conninfo(target))
            .env("NAME", "shop")
            .env("BATCH", "7")
            .env("INTERVAL", "0.01")
            .stdin(Stdio::null())
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

/// Two servers, the source and the target, prepared as the example says.
async fn servers(name: &str) -> [(Cluster, Server, Session); 2] {
    let mut all = Vec::new();
    for (role, sql) in [
        (
            "source",
            format!(
                "create table orders (subject text primary key); {}",
                script("source.sql")
            ),
        ),
        (
            "target",
            format!(
                "create extension fetchq; select fetchq.queue_create('invoices'), fetchq.queue_create('mails');
                 create table done (subject text); {}",
                script("target.sql")
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
         insert into outbox (queue, subject, payload) values ('{queue}', '{queue}-{n}', '{{\"n\": {n}}}')"
    )
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
async fn each_committed_row_becomes_one_document_whatever_is_killed() {
    let [
        (source_cluster, source, session),
        (target_cluster, target, other),
    ] = servers("outbox").await;
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
                    session.text("select count(*) from outbox").await == "0"
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
        session.text("select count(*) from outbox").await == "0"
    })
    .await;
    wait_until("all numbers are forgotten", async || {
        other.text("select count(*) from outbox_received").await == "0"
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
    ] = servers("outbox_between").await;
    for n in 0..3 {
        session
            .sql(&format!("begin; {}; commit", order("invoices", n)))
            .await;
    }
    // Rows can be read, and not deleted.
    let lock = source.connect("postgres").await;
    lock.sql("begin; lock table outbox in share mode").await;
    let relay = Relay::start(&source, &target);
    let deletes = "select pid from pg_stat_activity where query like 'delete from outbox %' and wait_event_type = 'Lock'";
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
    assert_eq!(session.text("select count(*) from outbox").await, "3");

    let mut relay = Relay::start(&source, &target);
    session
        .sql(&format!("begin; {}; commit", order("invoices", 3)))
        .await;
    wait_until("the rows are moved", async || {
        session.text("select count(*) from outbox").await == "0"
    })
    .await;
    assert_eq!(other.column(pop).await, ["invoices-3"]);
    // A relay that is started later takes over, and the earlier one ends.
    let later = Relay::start(&source, &target);
    session
        .sql(&format!("begin; {}; commit", order("invoices", 4)))
        .await;
    wait_until("the row is moved", async || {
        session.text("select count(*) from outbox").await == "0"
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
        session.text("select count(*) from outbox").await == "0"
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
