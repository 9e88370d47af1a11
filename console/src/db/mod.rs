//! Databases: where they are, a pool of connections to each, and what their errors mean.
mod config;
mod error;
mod tls;

use std::time::Duration;

use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

pub use config::{ConfigError, ConnectArgs};
pub use error::{DbError, DbErrorKind};

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
            for url in config::each(text) {
                targets.push(config::Target::from_url(url)?);
            }
        }
        if targets.is_empty() {
            targets.push(config::Target::from_environment()?);
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

/// A connection of its own, outside of any pool.
pub struct Single {
    pub client: Client,
    /// Host, port and database.
    pub place: String,
}

/// How long a connection may be silent before it is probed, and how long a probe may take. A server
/// whose machine is gone is noticed after that.
const SILENCE: Duration = Duration::from_secs(10);

/// Connects to the database of a connection string.
///
/// # Errors
/// The connection string cannot be read, or there is no answer.
pub async fn connect(url: &str) -> Result<Single, DbError> {
    let unusable = |error: ConfigError| DbError::unusable(error.to_string());
    let mut target = config::Target::from_url(url).map_err(unusable)?;
    target.config.application_name("fetchq move");
    target.config.options("");
    target.config.keepalives_idle(SILENCE);
    target.config.keepalives_interval(SILENCE);
    target.config.keepalives_retries(2);
    let place = target.place();
    let tls = tls::connector(&target).map_err(unusable)?;
    let (client, connection) = target.config.connect(tls).await?;
    // It ends with the client, or with an error that the next call of the client returns.
    tokio::spawn(connection);
    Ok(Single { client, place })
}

fn pool(target: config::Target) -> Result<Pool, ConfigError> {
    let tls = tls::connector(&target)?;
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
        let client = self.pool.get().await?;
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
#[macro_export]
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
