//! A worker for the queue `jobs`, until SIGTERM:
//! DATABASE_URL=… cargo run --release -p fetchq-client --example rust-worker

use fetchq_client::{BoxError, Client, On, Outcome, Task, TokioPostgres, TxContext, Worker};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Job {
    fail: Option<String>,
}

impl Task for Job {
    const QUEUE: &'static str = "jobs";
}

async fn job(job: Job, ctx: TxContext) -> Result<Outcome, BoxError> {
    if let Some(error) = job.fail {
        return Err(error.into());
    }
    let sql = r#"insert into results (subject, result) values ($1, '{"worked": true}')"#;
    ctx.tx().execute(sql, &[&ctx.subject()]).await?;
    Ok(Outcome::done())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), BoxError> {
    let client = Client::new(TokioPostgres::connect(&std::env::var("DATABASE_URL")?, 10)?);
    let worker = Worker::new(client).handle_tx(job, On::new().lease("1 minute"));
    worker.start().await?.stop_on_signals().await?;
    Ok(())
}
