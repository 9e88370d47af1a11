//! The options of `fetchq move`.
use std::time::Duration;

use clap::Args;

/// What `fetchq move --help` says beside the options.
pub const ABOUT: &str = "\
Moves queues with all that belongs to them to another server (or another database) while producers and \
workers go on: documents with their leases, attempts and order, logs, history, snapshots, settings, jobs, \
schedules, counters, grants and the owner.

The tables are copied by logical replication. Then the queues are locked for a moment: the rest is copied, \
the old server drops the queues and records where they live, and the new server registers them. A queue is \
live on at most one server, and in that moment on none. Calls on the old server then fail with an error \
that names the place (--place).

Both connections are those of superusers, to the servers themselves and not to a pooler. The old server \
needs wal_level = logical, a free replication slot, and a free walsender. Both need the same version of \
fetchq; their versions of PostgreSQL may differ. The new server needs the roles that own the queues or have \
grants on them (pg_dumpall --roles-only).

Several queues move together, in one switch: a queue and its dead-letter queue, or all queues behind one \
alias of a pooler.

The new server connects to the old one with the string of --from, or that of --subscribe. PostgreSQL \
stores it in pg_subscription while the move lasts, where only superusers can read it. It is never printed. \
FETCHQ_MOVE_FROM, FETCHQ_MOVE_TO and FETCHQ_MOVE_SUBSCRIBE keep the strings out of the list of processes.";

/// What it says after the options.
const AFTER: &str = "\
Exit status:
  0  the queues have moved; the last line of the output says how many documents, and how long they paused
  1  nothing has moved; what the command had made is removed again, or a message says what is left
  2  the switch is committed, or it is not known: run the command again with the same options

After a crash of the command or of a server, run it again with the same options: it finishes a switch that \
is committed, and begins anew otherwise. --abort removes what an unfinished move has left.

The hooks are run by sh, with FETCHQ_MOVE_QUEUES, FETCHQ_MOVE_PLACE and FETCHQ_MOVE_HOOK (before, after or \
undo) in the environment. Their output goes to standard error. When the command is run again, they can run \
again. Order: --before, the switch, --after; or --before, a switch that fails, --undo, and the same again, \
up to five times. A run that clears up after an unfinished one begins with --undo, and so does --abort.

PAUSE of a pooler holds back new transactions at once, and returns when all that run have ended. So --before \
may take --lock-timeout seconds. Then it is ended, with all processes that it has started, --undo runs, and \
the switch is tried again. To end the psql that waits in PAUSE does not undo the pause: give --undo whenever \
--before pauses. --before has a process group of its own, so it cannot ask for a password at the terminal.";

/// Moves queues to another server while they work.
#[derive(Debug, Clone, Args)]
#[command(after_long_help = AFTER)]
pub struct MoveArgs {
    /// The connection string of the server that has the queues, `postgres://…` or `host=…`.
    #[arg(
        long,
        value_name = "DSN",
        env = "FETCHQ_MOVE_FROM",
        hide_env_values = true
    )]
    pub from: String,

    /// The connection string of the server that gets the queues.
    #[arg(
        long,
        value_name = "DSN",
        env = "FETCHQ_MOVE_TO",
        hide_env_values = true
    )]
    pub to: String,

    /// A queue to move. Give it several times to move queues together.
    #[arg(long = "queue", value_name = "NAME", required = true)]
    pub queues: Vec<String>,

    /// What calls on the old server say: where the queues live. Default: host:port/database of --to.
    #[arg(long, value_name = "TEXT")]
    pub place: Option<String>,

    /// The connection string with which the new server reaches the old one, if --from does not do.
    #[arg(
        long,
        value_name = "DSN",
        env = "FETCHQ_MOVE_SUBSCRIBE",
        hide_env_values = true
    )]
    pub subscribe: Option<String>,

    /// Runs before the queues are locked, such as PAUSE of a pooler. It is ended after --lock-timeout, and a pause
    /// needs --undo then.
    #[arg(long, value_name = "COMMAND")]
    pub before: Option<String>,

    /// Runs when the queues are live on the new server: change the alias of a pooler, RELOAD, RESUME.
    #[arg(long, value_name = "COMMAND")]
    pub after: Option<String>,

    /// Runs when the switch has failed after --before, or an earlier run was not finished, such as RESUME of a
    /// pooler.
    #[arg(long, value_name = "COMMAND")]
    pub undo: Option<String>,

    /// How long to wait for transactions that work on the queues, before workers may go on: once for --before, and
    /// once for the lock.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub lock_timeout: u32,

    /// How long the comparison of all documents may take, for which the queues stand still. It is timed before, on
    /// each server, and the move is refused when it takes longer. The transaction that locks the queues has four
    /// times as long for a statement, and at least a minute.
    #[arg(long, value_name = "SECONDS", default_value = "20", value_parser = crate::pause::parse_seconds)]
    pub pause_limit: Duration,

    /// Checks everything, and changes nothing.
    #[arg(long, conflicts_with_all = ["abort", "status"])]
    pub dry_run: bool,

    /// Removes what an unfinished move has left on both servers. Refuses once the switch is committed.
    #[arg(long, conflicts_with = "status")]
    pub abort: bool,

    /// Says how far a move is.
    #[arg(long)]
    pub status: bool,
}
