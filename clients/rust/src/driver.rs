//! What the runtime needs of a driver of PostgreSQL.

use std::fmt;
use std::ops::Deref;

use futures_util::future::BoxFuture;
use serde_json::Value;

use crate::error::Error;

/// A row: texts, numbers and arrays. JSON columns are cast to text, but in the answers of procedures.
pub type Row = Vec<Value>;

/// A statement with its parameters. All parameters are texts, which the statement casts.
#[derive(Clone, Debug)]
pub struct Query {
    /// The statement, with `$1` for the first parameter.
    pub text: &'static str,
    /// The parameters.
    pub values: Vec<Option<String>>,
}

/// Something that runs statements: a connection, or a transaction of the application.
pub trait Executor: Send + Sync {
    /// Runs a statement without preparing it by name, so that a pooler can lend each transaction another session.
    fn run<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<Row>, Error>>;
}

impl<E: Executor + ?Sized> Executor for &E {
    fn run<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
        E::run(self, query)
    }
}

/// A transaction of the application, in which something is put: of tokio-postgres or deadpool, and with the feature
/// `sqlx` also of sqlx.
pub struct Tx<'a>(pub(crate) Box<dyn Executor + 'a>);

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").finish_non_exhaustive()
    }
}

impl<'a, E: Executor> From<&'a E> for Tx<'a> {
    fn from(executor: &'a E) -> Self {
        Self(Box::new(executor))
    }
}

/// A connection of the runtime's own.
pub trait Session: Executor {
    /// The warnings since the last look, with SQLSTATE.
    fn notices(&self) -> Vec<(String, String)>;
    /// Whether it is of no use any more.
    fn is_closed(&self) -> bool;
    /// Asks the server to end the statement that runs; if that does not work, ends the connection.
    fn cancel(&self) -> BoxFuture<'_, ()>;
}

/// A driver: where connections come from.
pub trait Driver: Send + Sync + 'static {
    /// What handlers get as their transaction.
    type Conn: Executor + 'static;
    /// A connection that the pool has lent, and that goes back to it when dropped.
    type Lent: Deref<Target = Self::Conn> + Send + Sync + 'static;

    /// Takes a connection out of the pool of the application.
    fn lend(&self) -> BoxFuture<'_, Result<Self::Lent, Error>>;
    /// Runs a statement without parameters and result: `begin`, `commit`, `rollback`.
    fn control<'a>(
        &'a self,
        lent: &'a Self::Lent,
        statement: &'static str,
    ) -> BoxFuture<'a, Result<(), Error>>;
    /// Closes a connection of the pool instead of giving it back.
    fn discard(&self, lent: Self::Lent);
    /// Whether a lent connection is of no use any more.
    fn is_closed(&self, lent: &Self::Lent) -> bool;
    /// Opens a connection of the runtime's own, beside those of the pool.
    fn connect(&self) -> BoxFuture<'_, Result<Box<dyn Session>, Error>>;
    /// How many connections the pool can have.
    fn largest(&self) -> usize;
    /// An error of the driver, found among the causes of an error of a handler.
    fn error(&self, error: &(dyn std::error::Error + 'static)) -> Option<Error>;
}
