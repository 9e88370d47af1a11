//! A connection to one of the two servers, outside of any pool.
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use crate::failure::{Failure, Result};

/// Which of the two servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The one that has the queues.
    Old,
    /// The one that gets them.
    New,
}

impl Side {
    /// What messages call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Old => "the old server",
            Self::New => "the new server",
        }
    }

    /// What the records call it.
    pub fn code(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::New => "new",
        }
    }
}

// The texts of values are the same on both servers, whatever the role and the database have set.
// What this session waits for is bounded where it matters. A server notices when the machine of this
// process is gone.
const SESSION: &str = "set search_path = pg_catalog, pg_temp;
    set session_replication_role = origin;
    set default_transaction_isolation = 'read committed';
    set default_transaction_read_only = off;
    set default_transaction_deferrable = off;
    set default_tablespace = '';
    set statement_timeout = 0;
    set lock_timeout = 0;
    set idle_in_transaction_session_timeout = 0;
    set timezone = 'UTC';
    set datestyle = 'ISO, MDY';
    set intervalstyle = postgres;
    set extra_float_digits = 1;
    set bytea_output = hex;
    set standard_conforming_strings = on;
    set client_min_messages = error;
    set fetchq.strict = on;
    set tcp_keepalives_idle = 10;
    set tcp_keepalives_interval = 5;
    set tcp_keepalives_count = 3";

// A server ends what it does for a client that is gone, and with it the locks.
const SESSION_14: &str = "set client_connection_check_interval = '1s'";

const VERSION: &str = "select current_setting('server_version_num')::int";

/// A session of a superuser on one of the servers.
pub struct Server {
    /// Which of the two.
    pub side: Side,
    /// Host, port and database.
    pub place: String,
    /// `server_version_num`.
    pub version: i32,
    client: Client,
}

impl Server {
    /// Connects to a server. `dsn` may have a password; no message has any of it but host, port and
    /// database.
    pub async fn connect(side: Side, dsn: &str) -> Result<Self> {
        let single = fetchq_connect::connect(dsn, "fetchq move")
            .await
            .map_err(|error| Failure::of(side.name(), error))?;
        let mut server = Self {
            side,
            place: single.place,
            version: 0,
            client: single.client,
        };
        server.run(SESSION).await?;
        server.version = server.one(VERSION, &[]).await?.get(0);
        if server.version >= 140_000 {
            server.run(SESSION_14).await?;
        }
        Ok(server)
    }

    /// The major version of PostgreSQL.
    pub fn major(&self) -> i32 {
        self.version / 10_000
    }

    /// Names the server in a message.
    pub fn name(&self) -> String {
        format!("{} ({})", self.side.name(), self.place)
    }

    fn failure(&self, error: tokio_postgres::Error) -> Failure {
        Failure::of(&self.name(), error.into())
    }

    /// Runs statements without parameters.
    pub async fn run(&self, sql: &str) -> Result<()> {
        let done = self.client.batch_execute(sql).await;
        done.map_err(|error| self.failure(error))
    }

    /// Runs a statement. Returns how many rows it changed.
    pub async fn execute(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<u64> {
        let done = self.client.execute(sql, params).await;
        done.map_err(|error| self.failure(error))
    }

    /// Runs a statement that gives rows.
    pub async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let rows = self.client.query(sql, params).await;
        rows.map_err(|error| self.failure(error))
    }

    /// Runs a statement that gives one row.
    pub async fn one(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row> {
        let row = self.client.query_one(sql, params).await;
        row.map_err(|error| self.failure(error))
    }

    /// Runs a statement that gives a row or none.
    pub async fn first(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>> {
        Ok(self.rows(sql, params).await?.into_iter().next())
    }

    /// Reads the first column of all rows, texts.
    pub async fn texts(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<String>> {
        let rows = self.rows(sql, params).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Rolls back what is open. What fails here has ended the transaction as well.
    pub async fn roll_back(&self) {
        let _ = self.run("rollback").await;
    }

    /// Copies the rows of a query on this server into a table of another one.
    pub async fn copy_to(&self, read: &str, other: &Self, write: &str) -> Result<u64> {
        use futures_util::{SinkExt, StreamExt};
        let rows = self.client.copy_out(read).await;
        let rows = rows.map_err(|error| self.failure(error))?;
        let sink = other.client.copy_in(write).await;
        let sink = sink.map_err(|error| other.failure(error))?;
        let mut rows = std::pin::pin!(rows);
        let mut sink = std::pin::pin!(sink);
        while let Some(chunk) = rows.next().await {
            let chunk = chunk.map_err(|error| self.failure(error))?;
            let fed = sink.feed(chunk).await;
            fed.map_err(|error| other.failure(error))?;
        }
        let copied = sink.finish().await;
        copied.map_err(|error| other.failure(error))
    }
}

/// A text as a literal of SQL.
pub fn literal(text: &str) -> String {
    let doubled = text.replace('\'', "''");
    match doubled.contains('\\') {
        true => format!(" E'{}'", doubled.replace('\\', "\\\\")),
        false => format!("'{doubled}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_literal_ends_where_it_should() {
        assert_eq!(literal("it's"), "'it''s'");
        assert_eq!(literal("a\\'"), " E'a\\\\'''");
    }
}
