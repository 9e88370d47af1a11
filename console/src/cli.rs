//! The command line.
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::{FalseyValueParser, RangedU64ValueParser, TypedValueParser};
use clap::{Args, Parser, Subcommand};

/// fetchq, a queue inside PostgreSQL: its console, and commands for the shell.
#[derive(Debug, Parser)]
#[command(name = "fetchq", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serves the console to browsers.
    Serve(ServeArgs),
    /// Shows the queues in the terminal, live.
    Top(crate::top::TopArgs),
    /// Moves queues to another server while they work.
    #[command(long_about = fetchq_mover::ABOUT)]
    Move(Box<fetchq_mover::MoveArgs>),
    /// Carries the documents of an outbox on another server, which needs no fetchq, to queues.
    Relay(Box<crate::relay::RelayArgs>),
    #[command(flatten)]
    Shell(crate::commands::Command),
    /// Prints the completions of a shell.
    Completions {
        /// Which shell.
        shell: clap_complete::Shell,
    },
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub connect: crate::db::ConnectArgs,

    /// The address to listen on. Anything but a loopback address needs a way to log in, and --origin.
    #[arg(long, default_value = "127.0.0.1:8090", env = "FETCHQ_LISTEN")]
    pub listen: SocketAddr,

    /// Shows the buttons that change something, and accepts what they send.
    #[arg(long, env = "FETCHQ_ALLOW_ACTIONS", value_parser = FalseyValueParser::new())]
    pub allow_actions: bool,

    /// The header in which a proxy names the person who logged in. Requests without it are refused.
    #[arg(long, value_name = "NAME")]
    pub auth_header: Option<String>,

    /// A file of names and hashed passwords, as `htpasswd -B` writes it: basic authentication.
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,

    /// An address that browsers use, such as https://queues.example.com; once for each. It is needed on an address
    /// that is not loopback, and behind a proxy that changes the name. FETCHQ_ORIGIN can have several, with blanks
    /// between.
    #[arg(
        long = "origin",
        value_name = "URL",
        env = "FETCHQ_ORIGIN",
        value_delimiter = ' '
    )]
    pub origins: Vec<String>,

    /// Listens on an address that is not loopback without anybody having to log in.
    #[arg(long)]
    pub insecure: bool,

    /// Shows no payloads, headers, results and progress, whatever the role may read.
    #[arg(long)]
    pub hide_payloads: bool,

    /// The most connections at a time.
    #[arg(long, value_name = "NUMBER", default_value_t = 500, value_parser = number())]
    pub max_connections: usize,

    /// The most connections of one address at a time. With --auth-header all come from the proxy, and this limit does
    /// not hold.
    #[arg(long, value_name = "NUMBER", default_value_t = 200, value_parser = number())]
    pub max_connections_per_address: usize,

    /// The most open pages that listen for changes, for each person who has logged in, or else for each address.
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = number())]
    pub max_streams: usize,
}

/// Reads a limit.
fn number() -> impl TypedValueParser<Value = usize> {
    RangedU64ValueParser::<usize>::new().range(1..=1_000_000)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_help_of_a_move_says_what_is_needed_and_what_the_exit_status_means() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        let found = cli.find_subcommand_mut("move");
        let help = found.map_or_else(String::new, |found| found.render_long_help().to_string());
        for part in [
            "wal_level = logical",
            "pg_subscription",
            "Exit status",
            "--undo",
            "5]",
        ] {
            assert!(help.contains(part), "{part}: {help}");
        }
    }
}
