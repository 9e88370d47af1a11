//! PgBouncer in transaction mode, in front of the server of the suite.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::{Database, Server, wait_until};

/// A running PgBouncer, which ends when this value is dropped.
pub struct Pooler {
    process: Child,
    port: u16,
}

impl Pooler {
    /// Starts it by scripts/pooler.sh, with two server connections for each database.
    pub async fn start(db: &Database) -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/pooler.sh");
        let state = std::env::var("FETCHQ_STATE_DIR")
            .expect("FETCHQ_STATE_DIR is not set: run this test with scripts/test.sh client");
        let mut process = Command::new(script)
            .arg(Path::new(&state).join(format!("pooler-{}", db.name)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .expect("start scripts/pooler.sh");
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().expect("its output"))
            .read_line(&mut line)
            .expect("read the port");
        let port = line.trim().parse();
        let pooler = Self {
            process,
            port: port.expect("scripts/pooler.sh gives the port"),
        };
        let behind = pooler.behind(db);
        wait_until("PgBouncer answers", async || {
            behind.server.try_connect(&behind.name).await.is_ok()
        })
        .await;
        pooler
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
        // A process that is gone already is no failure.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
