//! The program `fetchq`: the queues of fetchq in a browser, in a shell, and as numbers for machines. It calls
//! the SQL API only, as psql could. A move to another server is the crate `fetchq-mover`.
#![forbid(unsafe_code)]

mod assets;
mod calls;
mod cli;
mod commands;
mod connections;
mod db;
mod guard;
mod limits;
mod metrics;
mod poller;
mod relay;
mod ring;
mod router;
mod security;
mod serve;
mod signals;
mod state;
mod top;
mod web;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

#[tokio::main]
async fn main() -> ExitCode {
    let cli = cli::Cli::parse();
    let done: Result<(), Box<dyn std::error::Error>> = match cli.command {
        cli::Command::Serve(args) => {
            log();
            serve::run(args).await.map_err(Into::into)
        }
        cli::Command::Relay(args) => {
            log();
            match relay::run(*args).await {
                Ok(status) => return status,
                Err(error) => Err(error),
            }
        }
        // It writes nothing but its screen.
        cli::Command::Top(args) => top::run(args).await.map_err(Into::into),
        cli::Command::Shell(command) => match commands::run(command).await {
            Ok(status) => return status,
            Err(error) => Err(error.into()),
        },
        cli::Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut cli::Cli::command(), "fetchq", &mut script);
            std::io::stdout().write_all(&script).map_err(Into::into)
        }
        // Its exit status says what to do next.
        cli::Command::Move(args) => return fetchq_mover::run(*args).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the log to standard error.
fn log() {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();
}
