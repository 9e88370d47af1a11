//! Which documents, as arguments.
use clap::Args;
use serde_json::{Map, Value};

use super::error::CommandError;

#[derive(Debug, Args)]
pub struct FilterArgs {
    /// Documents with this status: planned, pending, active, completed, killed; once for each.
    #[arg(long, value_name = "STATUS")]
    status: Vec<String>,
    /// Documents whose subject is like this pattern: % is any text.
    #[arg(long, value_name = "PATTERN")]
    like: Option<String>,
    /// Documents whose last error is like this pattern.
    #[arg(long, value_name = "PATTERN")]
    error_like: Option<String>,
    /// A filter of fetchq as a JSON object, such as '{"older_than": "1 day"}'.
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
}

impl FilterArgs {
    /// Whether one of them is given.
    pub fn is_given(&self) -> bool {
        !self.status.is_empty()
            || self.like.is_some()
            || self.error_like.is_some()
            || self.filter.is_some()
    }

    /// The filter, as the calls of fetchq take it.
    ///
    /// # Errors
    /// --filter is not a JSON object.
    pub fn read(&self) -> Result<Map<String, Value>, CommandError> {
        let mut filter = match &self.filter {
            Some(text) => serde_json::from_str(text)
                .map_err(|error| CommandError::Json("--filter".to_owned(), error))?,
            None => Map::new(),
        };
        if !self.status.is_empty() {
            filter.insert("status".to_owned(), self.status.clone().into());
        }
        for (key, value) in [
            ("subject_like", &self.like),
            ("error_like", &self.error_like),
        ] {
            if let Some(value) = value {
                filter.insert(key.to_owned(), value.clone().into());
            }
        }
        Ok(filter)
    }
}
