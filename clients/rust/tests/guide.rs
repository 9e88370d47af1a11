//! The code of docs/guides/rust.md, which runs here against a server. A test compares the two.

use std::time::{Duration, Instant};

use fetchq_client::otel::OpenTelemetry;
use fetchq_client::testing::{Attempt, drain, fake, run_handler};
use fetchq_client::{
    BoxError, Client, Context, Declare, Doc, Error, On, Outcome, Task, TokioPostgres, TxContext,
    Unique, Worker,
};
use fetchq_client::{Handling, Plugin};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Serialize, Deserialize)]
struct Mail {
    to: String,
    #[serde(default)]
    plan: String,
}

impl Task for Mail {
    const QUEUE: &'static str = "mail";
    const LEASE: Option<Duration> = Some(Duration::from_secs(60));
    const TIMEOUT: Option<Duration> = Some(Duration::from_secs(300));
}

#[derive(Serialize, Deserialize)]
struct Entry {
    amount: i32,
}

impl Task for Entry {
    const QUEUE: &'static str = "ledger";
}

#[derive(Serialize, Deserialize)]
struct Report {
    what: String,
}

impl Task for Report {
    const QUEUE: &'static str = "report";
}

fn mail(to: &str) -> Mail {
    Mail {
        to: to.to_owned(),
        plan: "free".to_owned(),
    }
}

#[derive(Serialize, Deserialize)]
struct Invoice {
    cents: i64,
}

impl Task for Invoice {
    const QUEUE: &'static str = "invoice";
    const VERSION: u32 = 1;
    const OLDEST: u32 = 0;

    fn upcast(_from: u32, old: Value) -> Value {
        json!({"cents": old["euros"].as_i64().unwrap_or(0) * 100})
    }
}

async fn render(mail: &Mail) -> Result<String, BoxError> {
    Ok(format!("Welcome to {}", mail.plan))
}

async fn deliver(_: &str) -> Result<(), BoxError> {
    Ok(())
}

#[derive(Debug, thiserror::Error)]
#[error("{0} is gone")]
struct Gone(String);

async fn send_mail(mail: Mail, ctx: Context) -> Result<Outcome, BoxError> {
    let text: String = ctx.step("render", || render(&mail)).await?; // once, also over retries
    if mail.to.ends_with("@gone.example") {
        return Err(Gone(mail.to).into());
    }
    ctx.progress(json!({"rendered": text.len()}))?;
    tokio::select! {
        sent = deliver(&text) => sent?,
        why = ctx.stopped() => return Err(why.into()),
    }
    ctx.then(Doc::new(&Report { what: mail.to }).subject("after-".to_owned() + ctx.subject()));
    Ok(Outcome::complete(json!({"sent": text})))
}

async fn book(entry: Entry, ctx: TxContext) -> Result<Outcome, BoxError> {
    let insert = "insert into entries values ($1)";
    ctx.tx().execute(insert, &[&entry.amount]).await?;
    Ok(Outcome::done())
}

async fn count(reports: Vec<(Report, Context)>) -> Result<Vec<Outcome>, BoxError> {
    let one = |(report, _): &(Report, Context)| Outcome::complete(report.what.len());
    Ok(reports.iter().map(one).collect())
}

async fn bill(invoice: Invoice, _: Context) -> Result<Outcome, BoxError> {
    Ok(Outcome::complete(invoice.cents))
}

fn worker(client: &Client) -> Worker {
    let gone = |error: &BoxError, _: &Context| {
        error.is::<Gone>().then(|| Outcome::kill(error.to_string())) // others: as the queue is set
    };
    Worker::new(client.clone())
        .concurrency(50)
        .grace(Duration::from_secs(25))
        .handle(send_mail, On::new().concurrency(20).retry(gone))
        .handle_tx(book, On::new().concurrency(5))
        .handle_batch(count, On::new())
        .handle(bill, On::new())
}

async fn work(client: &Client) -> Result<(), Error> {
    let running = worker(client).start().await?;
    running.stop_on_signals().await // SIGTERM and SIGINT; returns when all is settled
}

async fn sign_up(client: &Client, to: &str) -> Result<(), Error> {
    client.put(mail(to)).await?;
    Ok(())
}

#[tokio::test]
async fn a_sign_up_sends_a_mail() -> Result<(), BoxError> {
    let (client, recorded) = fake()?; // no database
    sign_up(&client, "ann@example.com").await?;
    assert_eq!(recorded.puts::<Mail>()?[0].to, "ann@example.com");

    let second = Attempt {
        attempt: 2,
        ..Attempt::default()
    };
    let gone = run_handler(send_mail, mail("eve@gone.example"), second).await;
    assert!(gone.is_err_and(|error| error.is::<Gone>()));
    Ok(())
}

struct Timed;

impl Plugin for Timed {
    fn handle<'a>(&'a self, context: &'a Context, next: Handling<'a>) -> Handling<'a> {
        Box::pin(async move {
            let from = Instant::now();
            let result = next.await;
            let ms = from.elapsed().as_millis();
            tracing::info!(queue = context.queue(), ms, "handled");
            result
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_code_of_the_guide_runs() -> Result<(), BoxError> {
    let server = std::env::var("FETCHQ_URL")
        .map_err(|_| "FETCHQ_URL is not set: these tests need a server")?;
    let name = format!("rust_guide_{}", std::process::id());
    let admin = TokioPostgres::connect(&server, 2)?.pool().get().await?;
    admin
        .batch_execute(&format!("create database {name}"))
        .await?;
    let (host, _) = server
        .rsplit_once('/')
        .ok_or("FETCHQ_URL has no database")?;
    let url = format!("{host}/{name}");
    let setup = TokioPostgres::connect(&url, 2)?.pool().get().await?;
    setup.batch_execute("create extension fetchq").await?;

    let client = Client::new(TokioPostgres::connect(&url, 10)?);

    let nightly = Doc::new(&Report {
        what: "sales".into(),
    });
    let declared = Declare::owner("shop")
        .queue("mail", json!({"max_active": 100}))
        .queue("ledger", json!({}))
        .queue("report", json!({}))
        .queue("invoice", json!({}))
        .schedule(
            "nightly",
            "30 2 * * *",
            "Europe/Berlin",
            &nightly,
            json!({}),
        );
    client.sync(&declared).await?;

    client
        .put(mail("ann@example.com"))
        .subject("welcome-42")
        .await?;

    let mut connection = client.driver().pool().get().await?;
    let tx = connection.transaction().await?;
    tx.batch_execute("create table entries (amount int)")
        .await?;
    client
        .put(Entry { amount: 42 })
        .subject("order-7")
        .tx(&tx)
        .await?;
    tx.commit().await?;

    let bob = client.put(mail("bob@example.com")).subject("bob");
    bob.delay("10 minutes").mode("debounce").await?;
    let hour = Duration::from_secs(3600);
    let carl = client.put(mail("carl@example.com"));
    carl.unique(Unique::by(["to"]).per(hour))
        .max_attempts(8)
        .await?;
    client
        .put_many(vec![
            nightly.clone().priority(5),
            Doc::of("invoice", json!({"euros": 3})).subject("old"),
        ])
        .await?;

    let ask = async {
        let done = client.wait("mail", "welcome-42", "30 seconds").await?;
        assert_eq!(done.result, Some(json!({"sent": "Welcome to free"})));
        assert!(client.cancel("mail", "bob").await?.was_cancelled);
        let bob = client.get("mail", "bob").await?;
        assert_eq!(bob.map(|doc| doc.status), Some("killed".to_owned()));

        let entry = client.wait("ledger", "order-7", "30 seconds").await?;
        assert_eq!(entry.status, "completed");
        let invoice = client.wait("invoice", "old", "30 seconds").await?;
        assert_eq!(invoice.result, Some(json!(300)));
        let report = client
            .wait("report", "after-welcome-42", "30 seconds")
            .await?;
        assert_eq!(report.result, Some(json!(15)));
        // The worker listens to signals since it has started.
        let pid = std::process::id().to_string();
        std::process::Command::new("kill")
            .args(["-TERM", &pid])
            .status()?;
        Ok::<(), BoxError>(())
    };
    let (worked, asked) = tokio::join!(work(&client), ask);
    asked?;
    worked?;
    let booked = connection
        .query_one("select amount from entries", &[])
        .await?;
    assert_eq!(booked.get::<_, i32>(0), 42);

    sign_up(&client, "eve@example.com").await?;
    let settled = drain(&client, worker(&client), &["mail", "report"], hour).await?;
    assert_eq!(settled["complete"], 2); // the mail, and the report after it

    let traced = client.clone().with(OpenTelemetry::new()).with(Timed);
    let spans = traced.put(mail("traces@example.com")).subject("traced");
    spans.await?;
    drain(&client, worker(&traced), &["mail", "report"], hour).await?;

    drop((setup, connection));
    admin
        .batch_execute(&format!("drop database {name} with (force)"))
        .await?;
    Ok(())
}

/// The page breaks lines where it is easier to read.
#[test]
fn the_guide_has_the_code_of_this_program() {
    let code = |text: &str| {
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        text.replace(",)", ")").replace(",]", "]")
    };
    let page = include_str!("../../../docs/guides/rust.md");
    let program = code(include_str!("guide.rs"));
    let mut blocks = 0;
    for part in page.split("```rust\n").skip(1) {
        let block = part.split("\n```").next().unwrap_or_default();
        let is_run = program.contains(&code(block));
        assert!(is_run, "it is not in guide.rs:\n{block}");
        blocks += 1;
    }
    assert!(blocks > 10, "{blocks}");
}
