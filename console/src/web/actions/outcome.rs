//! The fields of a form, and what an action comes to.
use std::collections::HashMap;

use fetchq_connect::DbError;
use maud::Markup;
use tokio_postgres::types::ToSql;

use crate::db::row;
use crate::web::context::Context;
use crate::web::format::count;

row! {
    /// How many rows a call has changed.
    struct Affected {
        affected: i64,
    }
}

row! {
    /// Whether a call has changed something.
    struct Was {
        was: Option<bool>,
    }
}

/// The fields of a form.
pub struct Fields(pub HashMap<String, String>);

/// What an action came to: a message, or a question.
pub enum Outcome {
    Done(String),
    Nothing(String),
    Ask(Question),
}

/// What an action will do, for somebody to confirm.
pub struct Question {
    pub title: String,
    pub text: Markup,
    /// What the button says.
    pub label: String,
    /// The call that it makes.
    pub call: String,
}

/// Why an action was not done.
pub enum Failure {
    Form(String),
    Call(DbError),
}

impl From<DbError> for Failure {
    fn from(error: DbError) -> Self {
        Self::Call(error)
    }
}

impl Fields {
    /// The text of a field; empty if there is none.
    pub fn get(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }

    /// The text of a field that must not be empty.
    pub fn needed(&self, name: &str) -> Result<&str, Failure> {
        let value = self.get(name);
        if value.trim().is_empty() {
            Err(Failure::Form(format!("{name} is missing.")))
        } else {
            Ok(value)
        }
    }

    /// The number in a field.
    pub fn number(&self, name: &str) -> Result<i32, Failure> {
        let text = self.needed(name)?.trim();
        text.parse()
            .map_err(|_| Failure::Form(format!("{name} has to be a whole number, not “{text}”.")))
    }

    /// Whether the question was answered.
    pub fn is_confirmed(&self) -> bool {
        self.get("confirm") == "yes"
    }
}

/// Runs a call that returns how many rows it has changed.
pub async fn affected(
    context: &Context,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<i64, DbError> {
    Ok(context
        .database()
        .first::<Affected>(sql, params)
        .await?
        .map_or(0, |row| row.affected))
}

/// Runs a call that returns whether it has changed something.
pub async fn was(
    context: &Context,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<bool, DbError> {
    Ok(context
        .database()
        .first::<Was>(sql, params)
        .await?
        .and_then(|row| row.was)
        .unwrap_or(false))
}

/// A number of documents, in words.
pub fn documents(number: i64) -> String {
    if number == 1 {
        "1 document".to_owned()
    } else {
        format!("{} documents", count(Some(number)))
    }
}
