//! The connection of a command, and how rows are read.
use fetchq_connect::{DbError, Single, Target, each};
use serde_json::Value;
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};

use super::error::CommandError;

/// A parameter of a statement. Its type is that of the value, so no statement has to be prepared, and a pooler in
/// transaction mode may be between.
pub trait Param: ToSql + Sync {
    /// The type, as the server gets it.
    fn as_type(&self) -> Type;
    /// The value.
    fn as_sql(&self) -> &(dyn ToSql + Sync);
}

macro_rules! param {
    ($($rust:ty => $sql:ident,)*) => {
        $(impl Param for $rust {
            fn as_type(&self) -> Type { Type::$sql }
            fn as_sql(&self) -> &(dyn ToSql + Sync) { self }
        })*
    };
}
param! {
    String => TEXT, Option<String> => TEXT, Vec<String> => TEXT_ARRAY, i32 => INT4, i64 => INT8, Vec<i64> => INT8_ARRAY,
    bool => BOOL,
}

/// A connection to one database.
pub struct Session {
    single: Single,
}

impl Session {
    /// Connects to the database of a connection string, or to that of the variables.
    ///
    /// # Errors
    /// The string cannot be read or names several databases, or there is no answer.
    pub async fn open(url: Option<&str>) -> Result<Self, CommandError> {
        let target = match url.map(|text| each(text)).as_deref() {
            None | Some([]) => Target::from_environment()?,
            Some([url]) => Target::from_url(url)?,
            Some(_) => {
                return Err(CommandError::Usage(
                    "FETCHQ_URL names several databases: name one of them with --url".to_owned(),
                ));
            }
        };
        Self::to(target).await
    }

    async fn to(target: Target) -> Result<Self, CommandError> {
        let single = fetchq_connect::connect_to(target, "fetchq").await?;
        Ok(Self { single })
    }

    /// Host, port and database.
    pub fn place(&self) -> &str {
        &self.single.place
    }

    /// Runs a statement that reads, and gives its rows as JSON objects.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn rows(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Value>, DbError> {
        let sql = format!("select pg_catalog.row_to_json(r)::text from ({sql}) as r");
        let rows = self.query(&sql, params).await?;
        rows.iter()
            .map(|row| {
                let text: String = row.try_get(0)?;
                serde_json::from_str(&text).map_err(|error| DbError::unusable(error.to_string()))
            })
            .collect()
    }

    /// Runs a statement whose rows are of no interest, such as one that begins with WITH and changes something.
    ///
    /// # Errors
    /// The server refuses it.
    pub async fn run(&self, sql: &str, params: &[&dyn Param]) -> Result<(), DbError> {
        self.query(sql, params).await.map(drop)
    }

    async fn query(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Row>, DbError> {
        let params: Vec<_> = params
            .iter()
            .map(|param| (param.as_sql(), param.as_type()))
            .collect();
        Ok(self.single.client.query_typed(sql, &params).await?)
    }

    /// Runs a statement that changes something. A role with `fetchq.compat` gets errors all the same, and not the
    /// warnings of fetchq 4.
    ///
    /// # Errors
    /// The server refuses it; then nothing is changed.
    pub async fn change(&self, sql: &str, params: &[&dyn Param]) -> Result<Vec<Value>, DbError> {
        self.begin().await?;
        let rows = self.rows(sql, params).await;
        self.end(rows.is_ok()).await?;
        rows
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// The connection is lost.
    pub async fn begin(&self) -> Result<(), DbError> {
        self.execute("begin; set local fetchq.strict = on").await
    }

    /// Begins a transaction with more statements.
    ///
    /// # Errors
    /// One of them is refused, or the connection is lost.
    pub async fn begin_with(&self, more: &str) -> Result<(), DbError> {
        self.execute(&format!("begin; set local fetchq.strict = on; {more}"))
            .await
    }

    /// Runs statements without values and without rows.
    ///
    /// # Errors
    /// One of them is refused, or the connection is lost.
    pub async fn execute(&self, sql: &str) -> Result<(), DbError> {
        Ok(self.single.client.batch_execute(sql).await?)
    }

    /// Ends a transaction.
    ///
    /// # Errors
    /// The commit failed, or the connection is lost.
    pub async fn end(&self, commits: bool) -> Result<(), DbError> {
        self.execute(if commits { "commit" } else { "rollback" })
            .await
    }
}
