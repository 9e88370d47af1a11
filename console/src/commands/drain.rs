//! `fetchq drain`
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use super::error::CommandError;
use super::output::Output;
use super::session::Session;

#[derive(Debug, Args)]
pub struct DrainArgs {
    /// Name of the queue.
    queue: String,
    /// The longest time to wait, in seconds. Without it there is no limit.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
    /// Waits for planned documents too.
    #[arg(long)]
    planned: bool,
}

/// How often it looks. Statistics cost little, but are not free.
const PAUSE: Duration = Duration::from_millis(500);

/// Waits until no document of the queue is due, waits for its retry, or is active. Workers do the work.
///
/// # Errors
/// There is no such queue, or the connection is lost.
pub async fn run(
    session: &Session,
    out: &Output,
    args: &DrainArgs,
) -> Result<ExitCode, CommandError> {
    let begun = Instant::now();
    let limit = args.timeout.map(Duration::from_secs);
    loop {
        let rows = session
            .rows(
                "select ready, retrying, blocked, planned, active from fetchq.queue_stats($1)",
                &[&args.queue],
            )
            .await?;
        let Some(row) = rows.first() else {
            return Err(CommandError::Usage(format!(
                "there is no queue {}",
                args.queue
            )));
        };
        let mut columns = vec!["ready", "retrying", "blocked", "active"];
        if args.planned {
            columns.push("planned");
        }
        let counts: Option<Vec<i64>> = columns.iter().map(|column| row[*column].as_i64()).collect();
        let is_over = limit.is_some_and(|limit| begun.elapsed() >= limit);
        match counts.map(|counts| counts.iter().sum::<i64>()) {
            Some(0) => {
                out.line(&rows, |_| format!("queue {} has nothing to do", args.queue))?;
                return Ok(ExitCode::SUCCESS);
            }
            left if is_over => {
                out.line(&rows, |row| match left {
                    Some(left) => format!(
                        "{left} documents are left: {} ready, {} waiting for a retry, {} held back, {} active, {} planned",
                        row["ready"], row["retrying"], row["blocked"], row["active"], row["planned"]
                    ),
                    None => "the numbers of the queue are not known: this role may not read it, or it is locked".to_owned(),
                })?;
                return Ok(ExitCode::FAILURE);
            }
            _ => tokio::time::sleep(PAUSE).await,
        }
    }
}
