//! The command line.
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::FalseyValueParser;
use clap::{Args, Parser, Subcommand};

/// The console of fetchq, a queue inside PostgreSQL.
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
    #[command(long_about = crate::moving::ABOUT)]
    Move(Box<crate::moving::MoveArgs>),
}

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    pub connect: crate::db::ConnectArgs,

    /// The address to listen on. Anything but a loopback address needs a way to log in.
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

    /// The address that browsers use, such as https://queues.example.com, if a proxy is between.
    #[arg(long, value_name = "URL")]
    pub origin: Option<String>,

    /// Listens on an address that is not loopback without anybody having to log in.
    #[arg(long)]
    pub insecure: bool,

    /// Shows no payloads, headers, results and progress, whatever the role may read.
    #[arg(long)]
    pub hide_payloads: bool,
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
