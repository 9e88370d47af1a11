//! How the programs of fetchq connect to a server: connection strings and TLS as libpq reads them, and
//! what the errors of calls mean.
#![forbid(unsafe_code)]

mod config;
mod error;
mod tls;

use std::time::Duration;

use tokio_postgres::Client;

pub use config::{ConfigError, Target, each};
pub use error::{DbError, DbErrorKind};
pub use tls::connector;

/// A connection of its own, outside of any pool.
pub struct Single {
    /// The session.
    pub client: Client,
    /// Host, port and database.
    pub place: String,
}

/// How long a connection may be silent before it is probed, and how long a probe may take. A server
/// whose machine is gone is noticed after that.
const SILENCE: Duration = Duration::from_secs(10);

/// Connects to the database of a connection string. `application` is the name of the session, and the
/// options of the string do not count.
///
/// # Errors
/// The connection string cannot be read, or there is no answer.
pub async fn connect(url: &str, application: &str) -> Result<Single, DbError> {
    let mut target = Target::from_url(url).map_err(unusable)?;
    target.config.options("");
    connect_to(target, application).await
}

fn unusable(error: ConfigError) -> DbError {
    DbError::unusable(error.to_string())
}

/// The same, with the options of the string. Without any, poolers take the connection.
///
/// # Errors
/// There is no answer, or a certificate cannot be read.
pub async fn connect_to(mut target: Target, application: &str) -> Result<Single, DbError> {
    target.config.application_name(application);
    target.config.keepalives_idle(SILENCE);
    target.config.keepalives_interval(SILENCE);
    target.config.keepalives_retries(2);
    let place = target.place();
    let tls = connector(&target).map_err(unusable)?;
    let (client, connection) = target.config.connect(tls).await?;
    // It ends with the client, or with an error that the next call of the client returns.
    tokio::spawn(connection);
    Ok(Single { client, place })
}
