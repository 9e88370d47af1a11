//! The worker with an empty handler against the bare loop around docs_next, in turns on the same server.
//!
//!     eval "$(scripts/cluster.sh dev env)"
//!     cargo bench -p fetchq-client --bench throughput -- [ROUNDS] [CONCURRENCY…]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use fetchq_client::{BoxError, Client, Context, Declare, On, Outcome, Task, TokioPostgres, Worker};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Notify;

#[derive(Serialize, Deserialize)]
struct Number {
    n: i64,
}

impl Task for Number {
    const QUEUE: &'static str = "bench_rust";
}

/// Puts documents into the empty queue.
async fn fill(client: &Client, documents: usize) -> Result<(), BoxError> {
    let queue = Number::QUEUE;
    let conn = client.driver().pool().get().await?;
    let put = format!(
        "select fetchq.queue_truncate('{queue}', empty => true);
         select count(*) from fetchq.doc_append_many('{queue}', array(
            select jsonb_build_object('n', i) from generate_series(1, {documents}) i))"
    );
    conn.batch_execute(&put).await?;
    let vacuum = format!("vacuum analyze fetchq_data.{queue}__docs");
    Ok(conn.batch_execute(&vacuum).await?)
}

/// What a program does that calls docs_next by itself. Gives documents per second.
async fn bare(client: &Client, documents: usize, concurrency: i32) -> Result<f64, BoxError> {
    let conn = client.driver().pool().get().await?;
    let next = "select subject, payload, attempts, lease from fetchq.docs_next($1, $2, $3, worker => 'loop')";
    let next = conn.prepare(next).await?;
    let from = Instant::now();
    let (mut settlements, mut done) = (Vec::new(), 0);
    loop {
        let list = Value::Array(std::mem::take(&mut settlements));
        let rows = conn
            .query(&next, &[&Number::QUEUE, &list, &concurrency])
            .await?;
        if rows.is_empty() && done >= documents {
            return Ok(documents as f64 / from.elapsed().as_secs_f64());
        }
        for row in &rows {
            let _payload: Number = serde_json::from_value(row.try_get(1)?)?;
            let (subject, lease): (&str, i64) = (row.try_get(0)?, row.try_get(3)?);
            settlements.push(json!({"subject": subject, "lease": lease, "action": "complete"}));
        }
        done += rows.len();
    }
}

/// The same by a worker.
async fn worker(client: &Client, documents: usize, concurrency: i32) -> Result<f64, BoxError> {
    let (left, end) = (AtomicUsize::new(documents), Arc::new(Notify::new()));
    let all = Arc::clone(&end);
    let handler = move |_: Number, _: Context| {
        if left.fetch_sub(1, Ordering::Relaxed) == 1 {
            all.notify_one();
        }
        async { Ok(Outcome::done()) }
    };
    let worker = Worker::new(client.clone()).concurrency(usize::try_from(concurrency)?);
    let worker = worker.handle(handler, On::new());
    let from = Instant::now();
    let running = worker.start().await?;
    end.notified().await;
    running.stop();
    running.join().await?;
    Ok(documents as f64 / from.elapsed().as_secs_f64())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let numbers = std::env::args().filter_map(|arg| arg.parse().ok());
    let mut numbers: Vec<i32> = numbers.collect();
    if numbers.is_empty() {
        numbers.push(7);
    }
    let rounds = numbers.remove(0);
    if numbers.is_empty() {
        numbers.extend([1, 10, 100]);
    }
    let url = std::env::var("FETCHQ_URL").map_err(|_| "FETCHQ_URL is not set")?;
    let client = Client::new(TokioPostgres::connect(&url, 10)?);
    let declared = Declare::new().queue(Number::QUEUE, json!({}));
    client.sync(&declared).await?;
    for concurrency in numbers {
        let documents = if concurrency < 10 { 4000 } else { 20_000 };
        let mut ratios = Vec::new();
        for round in 0..rounds {
            let (mut alone, mut ours) = (0.0, 0.0);
            for turn in 0..2 {
                fill(&client, documents).await?;
                if (turn + round) % 2 == 0 {
                    alone = bare(&client, documents, concurrency).await?;
                } else {
                    ours = worker(&client, documents, concurrency).await?;
                }
            }
            eprintln!("{concurrency}: loop {alone:.0}/s, worker {ours:.0}/s");
            ratios.push(ours / alone);
        }
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        let median = ratios[ratios.len() / 2];
        println!("concurrency {concurrency}: {median:.2} of the loop ({low:.2} to {high:.2})");
    }
    Ok(())
}
