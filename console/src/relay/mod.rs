//! `fetchq relay`: carries the documents that transactions of one server have put into `fetchq_outbox` to queues of
//! fetchq on another server, each once.
//!
//! No transaction spans both servers. The relay puts a batch into the queues, and in the same transaction notes on
//! the target which documents these were; then it deletes them on the source. The note, the **mark**, is a document
//! of a queue of its own that is never due. A relay that starts reads it, and deletes on the source what was
//! carried and not yet deleted. It also enters an **epoch**: the next transaction of an earlier relay finds another
//! epoch in the mark, however late it comes, and carries nothing.
mod batch;
mod carry;
mod error;
mod mark;
mod source;
mod status;
mod target;

use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use tracing::{info, warn};

use crate::commands::session::Session;
use carry::Relay;
use error::RelayError;
use status::Status;

/// The file that makes the outbox.
const OUTBOX: &str = include_str!("outbox.sql");

/// The pauses after an error, the first and the longest.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, Args)]
pub struct RelayArgs {
    /// A connection string of the database that has the outbox.
    #[arg(
        long,
        value_name = "URL",
        env = "FETCHQ_SOURCE",
        hide_env_values = true
    )]
    source: Option<String>,

    /// A connection string of the database that has the queues.
    #[arg(long, value_name = "URL", env = "FETCHQ_URL", hide_env_values = true)]
    target: Option<String>,

    /// The name of this relay. One of the same name takes its place at once, one of another name waits until it
    /// has been silent for 15 seconds. By default the name of the machine.
    #[arg(long)]
    name: Option<String>,

    /// The queue on the target in which the relay keeps its place.
    #[arg(long, value_name = "QUEUE", default_value = "fetchq_relay")]
    queue: String,

    /// The most documents that are carried at a time, 1 to 10000.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(i32).range(1..=10_000))]
    batch: i32,

    /// How often the relay looks for documents while it has none, in milliseconds.
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    interval: u64,

    /// For how many days results are kept on the source.
    #[arg(long, value_name = "DAYS", default_value_t = 7, value_parser = clap::value_parser!(i32).range(1..=3650))]
    keep_results: i32,

    /// Serves /metrics and /health on this address.
    #[arg(long, value_name = "ADDRESS", env = "FETCHQ_RELAY_LISTEN")]
    listen: Option<SocketAddr>,

    /// Carries what is there, and ends.
    #[arg(long)]
    once: bool,

    /// Prints the SQL that makes the outbox, for psql, and ends.
    #[arg(long, conflicts_with_all = ["once", "listen"])]
    sql: bool,
}

/// Carries documents until the process is asked to stop.
///
/// # Errors
/// An argument is wrong, or another relay of the same name has begun. Servers that do not answer are not an error: the
/// relay tries again.
pub async fn run(args: RelayArgs) -> Result<ExitCode, Box<dyn std::error::Error>> {
    if args.sql {
        print!("{OUTBOX}");
        return Ok(ExitCode::SUCCESS);
    }
    let (Some(source), Some(target)) = (&args.source, &args.target) else {
        return Err("give --source and --target, or FETCHQ_SOURCE and FETCHQ_URL".into());
    };
    // What is wrong with the strings is said at once, and not again and again.
    for url in [source, target] {
        fetchq_connect::Target::from_url(url)?;
    }
    let name = match &args.name {
        Some(name) => name.clone(),
        None => machine(),
    };
    let status = Arc::new(Status::default());
    if let Some(address) = args.listen {
        status::serve(address, status.clone())
            .await
            .map_err(|error| RelayError::Listen(address, error))?;
        info!("metrics are at http://{address}/metrics");
    }
    let stop = crate::signals::stop_signal();
    tokio::pin!(stop);
    let mut pause = PAUSE;
    loop {
        let error = tokio::select! {
            // Each change is one transaction, so nothing is left half done.
            () = &mut stop => {
                info!("the relay stops");
                return Ok(ExitCode::SUCCESS);
            }
            done = turn(&args, source, target, &name, &status) => match done {
                Ok(()) => return Ok(ExitCode::SUCCESS),
                Err(error) => error,
            },
        };
        status.lost();
        if status.take_progress() {
            pause = PAUSE;
        }
        match error {
            RelayError::Replaced(_) => return Err(error.into()),
            RelayError::Fenced => info!("{error}"),
            _ if args.once => return Err(error.into()),
            _ => warn!("{error}: trying again in {} ms", pause.as_millis()),
        }
        tokio::select! {
            () = &mut stop => return Ok(ExitCode::SUCCESS),
            () = tokio::time::sleep(pause) => (),
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Carries documents until there is an error; with `--once`, until there are none.
async fn turn(
    args: &RelayArgs,
    source: &str,
    target: &str,
    name: &str,
    status: &Arc<Status>,
) -> Result<(), RelayError> {
    let source = Session::open(Some(source))
        .await
        .map_err(RelayError::Source)?;
    let target = Session::open(Some(target))
        .await
        .map_err(RelayError::Target)?;
    let mut relay = Relay::start(source, target, name, &args.queue, status.clone()).await?;
    relay.batch = args.batch;
    relay.interval = Duration::from_millis(args.interval);
    relay.keep_days = args.keep_results;
    relay.run(args.once).await
}

/// The name of this machine.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => "relay".to_owned(),
        name => name.to_owned(),
    }
}
