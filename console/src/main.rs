//! The program `fetchq`: the queues of fetchq in a browser, and as numbers for machines. It calls
//! the SQL API only, as psql could.
mod assets;
mod calls;
mod cli;
mod db;
mod poller;
mod ring;
mod router;
mod security;
mod serve;
mod state;
mod web;

use std::io::IsTerminal;
use std::process::ExitCode;

use clap::Parser;

#[tokio::main]
async fn main() -> ExitCode {
    let is_terminal = std::io::stderr().is_terminal();
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_ansi(is_terminal)
        .with_target(false)
        .init();
    let cli = cli::Cli::parse();
    let done = match cli.command {
        cli::Command::Serve(args) => serve::run(args).await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
