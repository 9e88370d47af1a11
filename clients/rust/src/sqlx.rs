//! Puts in transactions of sqlx. A worker connects with tokio-postgres.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::Value;
use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Postgres, Row as _, Transaction};
use tokio::sync::Mutex;

use crate::driver::{Executor, Query, Row, Tx};
use crate::error::{Error, told};

/// A connection can run one statement at a time.
struct Locked<'a>(Mutex<&'a mut PgConnection>);

impl Executor for Locked<'_> {
    fn run<'a>(&'a self, query: &'a Query) -> BoxFuture<'a, Result<Vec<Row>, Error>> {
        async move {
            let mut statement = sqlx::query(query.text).persistent(false);
            for value in &query.values {
                statement = statement.bind(value);
            }
            let rows = statement.fetch_all(&mut **self.0.lock().await).await;
            rows.map_err(read)?.iter().map(texts).collect()
        }
        .boxed()
    }
}

/// All columns of what is put are texts.
fn texts(row: &PgRow) -> Result<Row, Error> {
    let column = |index| row.try_get::<Option<String>, _>(index).map(Value::from);
    (0..row.len())
        .map(|index| column(index).map_err(read))
        .collect()
}

fn read(error: sqlx::Error) -> Error {
    let Some(db) = error.as_database_error() else {
        return match error {
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
                Error::Invalid(told(&error))
            }
            _ => Error::Connection(told(&error)),
        };
    };
    let routine = db
        .try_downcast_ref::<sqlx::postgres::PgDatabaseError>()
        .and_then(sqlx::postgres::PgDatabaseError::routine);
    Error::Server {
        code: db.code().map(Into::into).unwrap_or_default(),
        message: db.message().to_owned(),
        routine: routine.map(str::to_owned),
    }
}

impl<'a> From<&'a mut PgConnection> for Tx<'a> {
    fn from(connection: &'a mut PgConnection) -> Self {
        Self(Box::new(Locked(Mutex::new(connection))))
    }
}

impl<'a> From<&'a mut Transaction<'_, Postgres>> for Tx<'a> {
    fn from(transaction: &'a mut Transaction<'_, Postgres>) -> Self {
        Self::from(&mut **transaction)
    }
}
