//! Databases, with a pool of connections to each.
use std::time::Duration;

use clap::Args;
use deadpool_postgres::{
    Manager, ManagerConfig, Pool, PoolError, RecyclingMethod, Runtime, Timeouts,
};
use fetchq_connect::{ConfigError, DbError, DbErrorKind, Target, connector, each};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

/// Which databases to connect to. Every subcommand takes these.
#[derive(Debug, Clone, Args)]
pub struct ConnectArgs {
    /// A connection string, `postgres://…` or `host=…`; once for each database. FETCHQ_URL
    /// can have several, with blanks between. Without it the variables PGHOST, PGPORT, PGDATABASE, PGUSER, PGPASSWORD and PGSSLMODE count.
    #[arg(
        long = "url",
        value_name = "URL",
        env = "FETCHQ_URL",
        hide_env_values = true
    )]
    pub urls: Vec<String>,
}

/// The most connections that one database gets.
const POOL_SIZE: usize = 8;

/// No request waits longer for a connection, and no connection longer for its server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A database, and the pool of connections to it.
pub struct Database {
    /// The name that addresses of pages have: that of the database, or with a number behind it.
    pub name: String,
    /// What people see: user, host and port, without the password.
    pub label: String,
    /// The role that connects.
    pub user: String,
    pool: Pool,
}

/// The databases of the process, in the order in which they were named.
pub struct Databases {
    all: Vec<Database>,
}

impl Databases {
    /// Reads the connection strings; without one, the variables of libpq. Nothing connects yet.
    ///
    /// # Errors
    /// A connection string cannot be read, or a certificate cannot.
    pub fn new(urls: &[String]) -> Result<Self, ConfigError> {
        let mut targets = Vec::new();
        for text in urls {
            for url in each(text) {
                targets.push(Target::from_url(url)?);
            }
        }
        if targets.is_empty() {
            targets.push(Target::from_environment()?);
        }
        let mut all: Vec<Database> = Vec::new();
        for target in targets {
            let base = target.database().to_owned();
            let taken = |name: &str| all.iter().any(|other| other.name == name);
            let mut name = base.clone();
            let mut number = 2;
            while taken(&name) {
                name = format!("{base}-{number}");
                number += 1;
            }
            all.push(Database {
                name,
                label: target.label(),
                user: target.user(),
                pool: pool(target)?,
            });
        }
        Ok(Self { all })
    }

    /// The position of the database of that name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.all.iter().position(|database| database.name == name)
    }

    /// The database that was named first.
    pub fn first(&self) -> &Database {
        // `new` makes at least one.
        &self.all[0]
    }

    /// All of them; there is at least one.
    pub fn all(&self) -> &[Database] {
        &self.all
    }
}

fn pool(mut target: Target) -> Result<Pool, ConfigError> {
    if target.config.get_application_name().is_none() {
        target.config.application_name("fetchq console");
    }
    if target.config.get_options().is_none() {
        // No page waits longer, and a role that has fetchq.compat gets errors all the same.
        target
            .config
            .options("-c statement_timeout=30s -c fetchq.strict=on");
    }
    let tls = connector(&target)?;
    let config = ManagerConfig {
        recycling_method: RecyclingMethod::Fast,
    };
    let manager = Manager::from_config(target.config, tls, config);
    let timeouts = Timeouts {
        wait: Some(CONNECT_TIMEOUT),
        create: Some(CONNECT_TIMEOUT),
        recycle: Some(CONNECT_TIMEOUT),
    };
    Pool::builder(manager)
        .max_size(POOL_SIZE)
        .timeouts(timeouts)
        .runtime(Runtime::Tokio1)
        .build()
        .map_err(|error| ConfigError::Pool(error.to_string()))
}

/// What it means that the pool gives no connection.
fn no_connection(error: PoolError) -> DbError {
    match error {
        PoolError::Backend(error) => DbError {
            kind: DbErrorKind::Unreachable,
            ..DbError::from(error)
        },
        PoolError::Timeout(_) => DbError::unreachable(
            "the server did not answer in time, or all connections are in use".to_owned(),
        ),
        other => DbError::unreachable(other.to_string()),
    }
}

impl Database {
    /// Runs a statement, and reads each row as a `T`.
    ///
    /// # Errors
    /// There is no connection, the server reports an error, or a row has other columns.
    pub async fn rows<T>(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<T>, DbError>
    where
        T: for<'row> TryFrom<&'row Row, Error = tokio_postgres::Error>,
    {
        let client = self.pool.get().await.map_err(no_connection)?;
        let statement = client.prepare_cached(sql).await?;
        let rows = client.query(&statement, params).await?;
        rows.iter()
            .map(|row| T::try_from(row).map_err(DbError::from))
            .collect()
    }

    /// Runs a statement, and reads its first row, if there is one.
    ///
    /// # Errors
    /// As [`Self::rows`].
    pub async fn first<T>(
        &self,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<T>, DbError>
    where
        T: for<'row> TryFrom<&'row Row, Error = tokio_postgres::Error>,
    {
        Ok(self.rows(sql, params).await?.into_iter().next())
    }
}

/// Declares a struct, and how it is read from a row: each field from the column of its name.
macro_rules! row {
    ($(#[$meta:meta])* $view:vis struct $name:ident { $($(#[$doc:meta])* $shown:vis $field:ident: $type:ty,)* }) => {
        $(#[$meta])*
        $view struct $name { $($(#[$doc])* $shown $field: $type,)* }

        impl TryFrom<&tokio_postgres::Row> for $name {
            type Error = tokio_postgres::Error;

            fn try_from(row: &tokio_postgres::Row) -> Result<Self, Self::Error> {
                Ok(Self { $($field: row.try_get(stringify!($field))?,)* })
            }
        }
    };
}

pub(crate) use row;
