//! `fetchq move`: queues move to another server with all that belongs to them, and a run that was
//! killed at any step is finished or begun anew by the next one.

mod contents;
mod kills;
mod mistakes;
mod pause;

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use fetchq_client_tests::{Cluster, Database, Session, run, wait_until};
use tokio_postgres::config::Host;

fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let cargo = std::env::var("CARGO").unwrap_or("cargo".into());
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let output = run(Command::new(cargo).current_dir(root).args([
            "build",
            "--profile=client",
            "-p",
            "fetchq-console",
            "--message-format=json",
        ]));
        output
            .lines()
            .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
            .find_map(|message| message["executable"].as_str().map(PathBuf::from))
            .expect("an executable")
    })
}

fn dsn(db: &Database) -> String {
    let config = db.server.config();
    let host = match &config.get_hosts()[0] {
        Host::Tcp(name) => name.clone(),
        #[cfg(unix)]
        Host::Unix(path) => path.display().to_string(),
    };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let password = config.get_password().map_or(String::new(), |password| {
        format!(" password={}", String::from_utf8_lossy(password))
    });
    let user = config.get_user().unwrap_or("postgres");
    format!(
        "host={host} port={port} user={user} dbname={}{password}",
        db.name
    )
}

/// The command, which moves queues from one database to another.
fn mover(from: &Database, to: &Database, queues: &[&str]) -> Command {
    let mut command = Command::new(program());
    command
        .arg("move")
        .env("FETCHQ_MOVE_FROM", dsn(from))
        .env("FETCHQ_MOVE_TO", dsn(to))
        .env_remove("FETCHQ_MOVE_STOP_AT")
        .stdin(Stdio::null());
    for queue in queues {
        command.args(["--queue", queue]);
    }
    command
}

fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs the command, which must end with this status. Returns its output and its messages.
fn ends_with(command: &mut Command, status: i32) -> (String, String) {
    let output = command.output().expect("run fetchq move");
    let messages = stderr_of(&output);
    assert_eq!(output.status.code(), Some(status), "{messages}");
    (
        String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        messages,
    )
}

/// A run that has stopped before a step.
struct Stopped(Child);

impl Stopped {
    /// Starts the command, and waits until it has stopped there.
    fn before(command: &mut Command, step: &str) -> Self {
        let mut child = command
            .env("FETCHQ_MOVE_STOP_AT", step)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("run fetchq move");
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut all = String::new();
        loop {
            let mut line = String::new();
            let n = stderr.read_line(&mut line).unwrap();
            assert!(n > 0, "it has ended before step {step}:\n{all}");
            all.push_str(&line);
            if line.contains(&format!("stopped before step {step}\n")) {
                break;
            }
        }
        // It says nothing more, and a full pipe must not stop it.
        std::thread::spawn(move || stderr.read_to_end(&mut Vec::new()));
        Self(child)
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

const SETTINGS: &str = "wal_level = logical\nmax_replication_slots = 12\nmax_wal_senders = 12\n\
    max_worker_processes = 24\nmax_logical_replication_workers = 12\nfsync = off\nlog_min_messages = error";

async fn database(cluster: &Cluster) -> Database {
    cluster.start();
    cluster.server().database("moving").await
}

/// Two servers, from the first of which queues move to the second, and a database on each.
async fn pair(names: [&str; 2]) -> ([Cluster; 2], [Database; 2]) {
    let clusters = names.map(|name| Cluster::new(name, SETTINGS));
    let databases = [database(&clusters[0]).await, database(&clusters[1]).await];
    (clusters, databases)
}

/// Nothing of a move is left on a server.
async fn is_clean(session: &Session) {
    let left = session
        .rows(
            "select 'schema' from pg_namespace where nspname = 'fetchq_move'
             union all select 'publication ' || pubname from pg_publication where pubname like 'fetchq_move%'
             union all select 'subscription ' || subname from pg_subscription where subname like 'fetchq_move%'
             union all select 'slot ' || slot_name from pg_replication_slots where slot_name like 'fetchq_move%' or slot_name like 'pg\\_%sync%'
             union all select 'table ' || c.relname from pg_class c where c.relnamespace = 'fetchq_data'::regnamespace
                 and c.relkind = 'r' and not exists (select from fetchq.queues q where c.relname like q.name || '\\_\\_%')",
        )
        .await;
    assert!(left.is_empty(), "{left:#?}");
}

/// On which of the two servers a queue is.
async fn live(here: &Session, there: &Session) -> (bool, bool) {
    let is = "select exists (select from fetchq.queues where name = 'q')";
    (here.text(is).await == "t", there.text(is).await == "t")
}

/// A hook that waits until the test lets it end.
struct Hook {
    /// The folder of the files by which the hook and the test wait for each other.
    folder: PathBuf,
}

impl Hook {
    /// A hook of the test of this name.
    fn new(name: &str) -> Self {
        let folder = format!("fetchq-move-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder }
    }

    /// What the shell has to run. It waits once: the next run of the hook ends at once.
    fn waits(&self) -> String {
        format!(
            "cd {} && touch begun && until test -e end; do sleep 0.05; done",
            self.folder.display()
        )
    }

    /// Starts a move, and waits until its hook waits.
    async fn begins(&self, command: &mut Command) -> Child {
        let running = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_until("the hook runs", async || self.folder.join("begun").exists()).await;
        running
    }

    /// Lets the hook end, after which the move must fail. Returns the messages of the move.
    fn ends(&self, running: Child) -> String {
        std::fs::write(self.folder.join("end"), "").unwrap();
        let output = running.wait_with_output().unwrap();
        let messages = stderr_of(&output);
        assert_eq!(output.status.code(), Some(1), "{messages}");
        messages
    }
}

impl Drop for Hook {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
