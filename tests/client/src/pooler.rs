//! PgBouncer in transaction mode, in front of the server of the suite.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::{Database, Server, wait_until};

/// A running PgBouncer, which ends when this value is dropped.
pub struct Pooler {
    process: Option<Child>,
    /// 0 before the first start.
    port: u16,
    db: Database,
    folder: PathBuf,
    size: usize,
}

impl Pooler {
    /// Starts it by scripts/pooler.sh, with two server connections for each database.
    pub async fn start(db: &Database) -> Self {
        Self::named(db, &db.name, 2).await
    }

    /// Starts one of several for a database, with a number of server connections.
    pub async fn named(db: &Database, name: &str, size: usize) -> Self {
        let state = std::env::var("FETCHQ_STATE_DIR")
            .expect("FETCHQ_STATE_DIR is not set: run this test with scripts/test.sh client");
        let mut pooler = Self {
            process: None,
            port: 0,
            db: db.clone(),
            folder: Path::new(&state).join(format!("pooler-{name}")),
            size,
        };
        pooler.run();
        pooler.answers().await;
        pooler
    }

    async fn answers(&self) {
        let behind = self.behind(&self.db);
        wait_until("PgBouncer answers", async || {
            behind.server.try_connect(&behind.name).await.is_ok()
        })
        .await;
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it, and with it all connections.
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // A process that is gone already is no failure.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Starts it again on its port, after a kill.
    pub async fn restart(&mut self) {
        self.run();
        self.answers().await;
    }

    /// Runs the script, and reads the port that it prints.
    fn run(&mut self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/pooler.sh");
        let mut command = self.db.connect_by(Command::new(script));
        if self.port != 0 {
            command.env("PORT", self.port.to_string());
        }
        let mut process = command
            .arg(&self.folder)
            .env("POOL_SIZE", self.size.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start scripts/pooler.sh");
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().expect("its output"))
            .read_line(&mut line)
            .expect("read the port");
        self.port = line
            .trim()
            .parse()
            .expect("scripts/pooler.sh gives the port");
        self.process = Some(process);
    }

    /// The database as it is reached through the pooler.
    pub fn behind(&self, db: &Database) -> Database {
        let mut config = tokio_postgres::Config::new();
        let direct = db.server.config();
        config
            .host("127.0.0.1")
            .port(self.port)
            .user(direct.get_user().expect("a user"))
            .password(direct.get_password().expect("a password"));
        Database {
            server: Server::new(config),
            name: db.name.clone(),
        }
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.kill();
    }
}
