//! Connections, and a new database for each test.

use std::ops::{Deref, DerefMut};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::{StreamExt, stream};
use tokio_postgres::config::Host;
use tokio_postgres::error::DbError;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

use crate::bin;

/// A running server.
#[derive(Clone)]
pub struct Server {
    config: Config,
}

impl Server {
    /// The server of the test suite.
    pub fn of_suite() -> Self {
        let url = std::env::var("FETCHQ_URL")
            .expect("FETCHQ_URL: run this test with scripts/test.sh client");
        Self::new(url.parse().expect("FETCHQ_URL must be a connection string"))
    }

    pub fn new(config: Config) -> Self {
        Self { config }
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub async fn try_connect(&self, database: &str) -> Result<Session, tokio_postgres::Error> {
        let mut config = self.config.clone();
        config.dbname(database);
        config.connect_timeout(Duration::from_secs(10));
        let (client, mut connection) = config.connect(NoTls).await?;
        let notices = Arc::new(Mutex::new(Vec::new()));
        let collected = notices.clone();
        let notifications = Arc::new(Mutex::new(Vec::new()));
        let notified = notifications.clone();
        tokio::spawn(async move {
            let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
            // This task ends with the connection; the next call of the client returns the error.
            while let Some(Ok(message)) = messages.next().await {
                match message {
                    AsyncMessage::Notice(notice) => collected.lock().unwrap().push(notice),
                    AsyncMessage::Notification(n) => {
                        let heard = format!("{} {}", n.channel(), n.payload());
                        notified.lock().unwrap().push(heard);
                    }
                    _ => {}
                }
            }
        });
        Ok(Session {
            client,
            notices,
            notifications,
        })
    }

    pub async fn connect(&self, database: &str) -> Session {
        match self.try_connect(database).await {
            Ok(session) => session,
            Err(e) => panic!("connecting to {database}: {e:?}"),
        }
    }

    /// Like [`Self::connect`], for a server that is starting.
    pub async fn connect_when_up(&self, database: &str) -> Session {
        let mut found = None;
        wait_until("the server answers", async || {
            found = self.try_connect(database).await.ok();
            match &found {
                Some(session) => session.batch_execute("select").await.is_ok(),
                None => false,
            }
        })
        .await;
        found.expect("the session that has answered")
    }

    /// A new, empty database; drops one of that name that an earlier run left.
    pub async fn empty_database(&self, name: &str) -> Database {
        let name = format!("client_{name}");
        let admin = self.connect("postgres").await;
        let prepared = format!("select gid from pg_prepared_xacts where database = '{name}'");
        for gid in admin.column(&prepared).await {
            let session = self.connect(&name).await;
            session.sql(&format!("rollback prepared '{gid}'")).await;
        }
        admin
            .sql(&format!("drop database if exists {name} with (force)"))
            .await;
        admin
            .sql(&format!("create database {name} template template0"))
            .await;
        // These tests do not check durability; crash.rs does, with its own cluster.
        admin
            .sql(&format!(
                "alter database {name} set synchronous_commit = off"
            ))
            .await;
        Database {
            server: self.clone(),
            name,
        }
    }

    /// A new database with the extension.
    pub async fn database(&self, name: &str) -> Database {
        let db = self.empty_database(name).await;
        db.connect().await.sql("create extension fetchq").await;
        db
    }
}

/// The database of one test.
#[derive(Clone)]
pub struct Database {
    pub server: Server,
    pub name: String,
}

impl Database {
    pub async fn connect(&self) -> Session {
        self.server.connect(&self.name).await
    }

    /// A command for one of PostgreSQL's programs, with the connection options for this database. It
    /// runs as the user of the server.
    pub fn client(&self, program: &str) -> Command {
        self.connect_by(bin(program))
    }

    /// The command psql, whose process is that of the client: a signal reaches it.
    pub fn psql(&self) -> Command {
        let bindir = std::env::var("FETCHQ_PG_BINDIR").expect("FETCHQ_PG_BINDIR");
        let mut psql = self.connect_by(Command::new(format!("{bindir}/psql")));
        psql.args(["-X", "-q"]);
        psql
    }

    /// A command that finds this database by the variables of libpq.
    pub fn connect_by(&self, mut command: Command) -> Command {
        let config = self.server.config();
        let host = match &config.get_hosts()[0] {
            Host::Tcp(name) => name.clone(),
            #[cfg(unix)]
            Host::Unix(path) => path.display().to_string(),
        };
        let password = config.get_password().unwrap_or_default();
        command
            .env("PGHOST", host)
            .env("PGPORT", config.get_ports()[0].to_string())
            .env("PGUSER", config.get_user().unwrap_or("postgres"))
            .env("PGPASSWORD", String::from_utf8_lossy(password).as_ref())
            .env("PGDATABASE", &self.name);
        command
    }

    /// Drops the database. A test that failed leaves its database for inspection.
    pub async fn remove(self) {
        let admin = self.server.connect("postgres").await;
        admin
            .sql(&format!("drop database {} with (force)", self.name))
            .await;
    }
}

/// A connection that keeps the notices and notifications it receives.
pub struct Session {
    client: Client,
    notices: Arc<Mutex<Vec<DbError>>>,
    notifications: Arc<Mutex<Vec<String>>>,
}

impl Session {
    /// Runs statements without parameters that must succeed.
    pub async fn sql(&self, sql: &str) {
        if let Err(e) = self.client.batch_execute(sql).await {
            panic!("{sql:.300}: {e:?}");
        }
    }

    /// The single value of a query as text; "" for NULL.
    pub async fn text(&self, sql: &str) -> String {
        self.column(sql)
            .await
            .pop()
            .unwrap_or_else(|| panic!("{sql}: no row"))
    }

    async fn query(&self, sql: &str) -> Vec<tokio_postgres::SimpleQueryRow> {
        self.client
            .simple_query(sql)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e:?}"))
            .into_iter()
            .filter_map(|m| match m {
                tokio_postgres::SimpleQueryMessage::Row(row) => Some(row),
                _ => None,
            })
            .collect()
    }

    /// The first column of a query, as text.
    pub async fn column(&self, sql: &str) -> Vec<String> {
        let rows = self.query(sql).await;
        rows.iter()
            .map(|row| row.get(0).unwrap_or("").to_owned())
            .collect()
    }

    /// All rows of a query as text, with `|` between the columns.
    pub async fn rows(&self, sql: &str) -> Vec<String> {
        let rows = self.query(sql).await;
        rows.iter()
            .map(|row| {
                (0..row.len())
                    .map(|i| row.get(i).unwrap_or(""))
                    .collect::<Vec<_>>()
                    .join("|")
            })
            .collect()
    }

    /// The SQLSTATE of a statement that fails; "" when it succeeds.
    pub async fn state(&self, sql: &str) -> String {
        match self.client.simple_query(sql).await {
            Ok(_) => String::new(),
            Err(e) => state_of(&e),
        }
    }

    /// Checks that a call cannot wait where it is made, and that the error names `function` and says
    /// what to do with which driver.
    pub async fn cannot_wait(&self, call: &str, function: &str) {
        let error = self.simple_query(call).await.expect_err(call);
        assert_eq!(state_of(&error), "25001", "{call}: {error:?}");
        let error = error_of(&error);
        let message = error.message();
        assert!(message.starts_with(&format!("{function}() ")), "{message}");
        let hint = error.hint().unwrap_or("");
        let says_what_to_do = hint.contains("psycopg") && hint.contains("autocommit");
        assert!(says_what_to_do, "{call}: {hint}");
    }

    /// Returns the notifications received so far, as `channel payload`, and removes them.
    /// A notification that was sent before a statement of this session arrives with its result.
    pub async fn take_notifications(&self) -> Vec<String> {
        self.sql("select").await;
        std::mem::take(&mut *self.notifications.lock().unwrap())
    }

    /// Whether a notification, written as `channel payload`, was received.
    pub fn heard(&self, notification: &str) -> bool {
        let heard = self.notifications.lock().unwrap();
        heard.iter().any(|n| n == notification)
    }

    /// Returns the notices received since the last call.
    pub fn notices(&self) -> Vec<DbError> {
        std::mem::take(&mut self.notices.lock().unwrap())
    }
}

impl Deref for Session {
    type Target = Client;
    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Session {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}

/// The SQLSTATE of an error, or its text when it has none.
pub fn state_of(e: &tokio_postgres::Error) -> String {
    e.code()
        .map_or_else(|| e.to_string(), |c| c.code().to_owned())
}

/// The server's error.
pub fn error_of(e: &tokio_postgres::Error) -> &DbError {
    e.as_db_error()
        .unwrap_or_else(|| panic!("not an error from the server: {e:?}"))
}

/// Polls until `done` returns true; fails after a generous timeout.
pub async fn wait_until(what: &str, mut done: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done().await {
        assert!(
            Instant::now() < deadline,
            "timed out while waiting until {what}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Runs a query until its rows are the expected ones; fails after a generous timeout, and shows
/// the last rows.
pub async fn wait_for_rows(what: &str, session: &Session, sql: &str, expected: &[&str]) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let rows = session.rows(sql).await;
        if rows == expected {
            return;
        }
        assert!(
            Instant::now() < deadline,
            "timed out while waiting until {what}: the rows are {rows:#?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
