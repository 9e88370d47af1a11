//! Drives the crate for Rust: see driver.mjs, which does the same.
//!
//!     fetchq-bench-peers setup | produce | work

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fetchq_client::{
    BoxError, Client, Context, Declare, Doc, On, Outcome, Task, TokioPostgres, Worker,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use tokio::task::JoinSet;

#[derive(Clone, Serialize, Deserialize)]
struct Job {
    to: String,
    text: String,
    /// When it was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    t: Option<u64>,
}

impl Task for Job {
    const QUEUE: &'static str = "jobs";
}

/// Microseconds of a clock that all processes of the machine share.
fn now() -> u64 {
    let time = SystemTime::now().duration_since(UNIX_EPOCH);
    time.map_or(0, |time| time.as_micros() as u64)
}

fn seconds_since(began: u64) -> f64 {
    now().saturating_sub(began) as f64 / 1e6
}

fn payload(t: Option<u64>) -> Job {
    Job {
        to: "somebody@example.com".into(),
        text: "0123456789".repeat(if t.is_some() { 5 } else { 7 }),
        t,
    }
}

async fn all<F>(tasks: impl IntoIterator<Item = F>) -> Result<u64, BoxError>
where
    F: Future<Output = Result<u64, BoxError>> + Send + 'static,
{
    let mut running: JoinSet<_> = tasks.into_iter().collect();
    let mut count = 0;
    while let Some(done) = running.join_next().await {
        count += done??;
    }
    Ok(count)
}

async fn put(client: Client, job: Job) -> Result<u64, BoxError> {
    client.put(job).await?;
    Ok(1)
}

/// Adds one job per call, from several loops, for some seconds.
async fn single(client: &Client, clients: usize, seconds: f64) -> Result<u64, BoxError> {
    let began = now();
    let one = |client: Client| async move {
        let mut count = 0;
        while seconds_since(began) < seconds {
            client.put(payload(None)).await?;
            count += 1;
        }
        Ok(count)
    };
    all((0..clients).map(|_| one(client.clone()))).await
}

/// Adds `count` jobs in lists, or fewer when the time is over.
async fn bulk(client: &Client, count: u64, batch: u64, seconds: f64) -> Result<u64, BoxError> {
    let (began, mut added) = (now(), 0);
    while added < count && seconds_since(began) < seconds {
        let jobs = (0..batch).map(|_| Doc::new(&payload(None))).collect();
        client.put_many(jobs).await?;
        added += batch;
    }
    Ok(added)
}

/// Adds jobs at a rate. Each has the time at which it was added.
async fn pace(client: &Client, rate: f64, seconds: f64) -> Result<u64, BoxError> {
    let (began, mut sent) = (now(), JoinSet::new());
    for i in 0..(rate * seconds) as u64 {
        let wait = i as f64 / rate - seconds_since(began);
        if wait > 0.0 {
            tokio::time::sleep(Duration::from_secs_f64(wait)).await;
        }
        sent.spawn(put(client.clone(), payload(Some(now()))));
    }
    let mut count = 0;
    while let Some(done) = sent.join_next().await {
        count += done??;
    }
    Ok(count)
}

async fn produce(client: &Client, mut lines: Lines<BufReader<Stdin>>) -> Result<(), BoxError> {
    println!("{}", json!({"ready": true}));
    while let Some(line) = lines.next_line().await? {
        let options: Value = serde_json::from_str(&line)?;
        let number = |key: &str| options[key].as_f64().unwrap_or(0.0);
        let began = now();
        let count = match options["command"].as_str() {
            Some("single") => single(client, number("clients") as usize, number("seconds")).await,
            Some("bulk") => {
                let (count, batch) = (number("count") as u64, number("batch") as u64);
                bulk(client, count, batch, number("seconds")).await
            }
            _ => pace(client, number("rate"), number("seconds")).await,
        }?;
        println!(
            "{}",
            json!({"count": count, "seconds": seconds_since(began)})
        );
    }
    Ok(())
}

static DONE: AtomicU64 = AtomicU64::new(0);
static LATENCIES: Mutex<Vec<f64>> = Mutex::new(Vec::new());

/// This is the whole handler: a job does nothing.
async fn handle(job: Job, _: Context) -> Result<Outcome, BoxError> {
    DONE.fetch_add(1, Relaxed);
    if let Some(t) = job.t {
        let mut latencies = LATENCIES.lock().unwrap_or_else(PoisonError::into_inner);
        latencies.push(now().saturating_sub(t) as f64 / 1e3);
    }
    Ok(Outcome::done())
}

fn report() {
    let (at, done) = (now() as f64 / 1e6, DONE.load(Relaxed));
    println!("{}", json!({"at": at, "done": done}));
}

async fn work(
    client: Client,
    concurrency: usize,
    mut lines: Lines<BufReader<Stdin>>,
) -> Result<(), BoxError> {
    let worker = Worker::new(client).concurrency(concurrency);
    let running = worker.handle(handle, On::new()).start().await?;
    println!("{}", json!({"ready": true}));
    let mut every = tokio::time::interval(Duration::from_millis(20));
    loop {
        tokio::select! {
            line = lines.next_line() => if line?.is_none() { break },
            _ = every.tick() => report(),
            ended = running.join() => return Ok(ended?),
        }
    }
    report();
    running.stop();
    running.join().await?;
    let latencies = LATENCIES.lock().unwrap_or_else(PoisonError::into_inner);
    println!(
        "{}",
        json!({"done": DONE.load(Relaxed), "latencies": *latencies})
    );
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let url = std::env::var("DATABASE_URL")?;
    let concurrency = std::env::var("CONCURRENCY").map_or(Ok(4), |value| value.parse())?;
    let client = Client::new(TokioPostgres::connect(&url, concurrency)?);
    let lines = BufReader::new(tokio::io::stdin()).lines();
    match std::env::args().nth(1).as_deref() {
        Some("setup") => {
            let session = client.driver().pool().get().await?;
            session.execute("create extension fetchq", &[]).await?;
            drop(session); // The pool may have no other one.
            client
                .sync(&Declare::new().queue(Job::QUEUE, json!({})))
                .await?;
            Ok(())
        }
        Some("produce") => produce(&client, lines).await,
        Some("work") => work(client, concurrency, lines).await,
        _ => Err("usage: fetchq-bench-peers setup | produce | work".into()),
    }
}
