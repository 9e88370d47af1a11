//! `fetchq move`: moves queues to another server while they work. Unlike the console it reads and writes
//! the tables of the catalog.
//!
//! The tables are copied by logical replication (`stage`, `stream`). Then the queues are locked on the
//! old server, the new one gets the rest (`rest`, `carried`), and the commit of the old server gives the
//! queues away (`switch`). From its own records the new one makes them live (`finish`). `records` has
//! what a later run knows of an earlier one, and `clean` removes what a move has made.
#![forbid(unsafe_code)]

mod args;
mod carried;
mod check;
mod clean;
mod failure;
mod finish;
mod hooks;
mod left;
mod names;
mod pause;
mod records;
mod rest;
mod run;
mod say;
mod server;
mod stage;
mod status;
mod step;
mod strangers;
mod stream;
mod switch;

use std::process::ExitCode;

pub use args::{ABOUT, MoveArgs};

use run::Ended;

/// Runs the command. Returns its exit status.
pub async fn run(args: MoveArgs) -> ExitCode {
    match run::run(&args).await {
        Ended::Done(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Ended::Failed(failure) => {
            eprintln!("error: {failure}");
            ExitCode::from(1)
        }
        Ended::Unfinished(failure) => {
            eprintln!("error: {failure}");
            eprintln!("The move is not finished: run the same command again.");
            ExitCode::from(2)
        }
        Ended::Unknown(failure) => {
            eprintln!("error: {failure}");
            eprintln!(
                "Nothing was done. If an earlier run was killed, its switch may be committed: run the same command again."
            );
            ExitCode::from(2)
        }
    }
}
