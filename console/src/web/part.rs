//! Pages by key of what may be too much to read.
use fetchq_connect::DbError;
use serde_json::Value;
use tokio_postgres::Row;

use crate::db::Database;

/// A page of rows.
pub struct Part<T> {
    pub rows: Vec<T>,
    /// After which key the next page begins; None if this is the last one.
    pub next: Option<String>,
    /// Why the page has fewer rows, although there are more to read.
    pub cut: Option<String>,
}

/// Runs a call with a queue, a filter, a number of rows and a key after which it begins. When it has read
/// as much as it may without finding that many, the page has what it found.
///
/// # Errors
/// As [`Database::rows`].
pub async fn read<T>(
    database: &Database,
    sql: &str,
    (queue, filter): (&str, &Value),
    size: usize,
    after: &str,
    key: impl Fn(&T) -> String,
) -> Result<Part<T>, DbError>
where
    T: for<'row> TryFrom<&'row Row, Error = tokio_postgres::Error>,
{
    let after = (!after.is_empty()).then_some(after);
    let call = |limit: i32| async move {
        database
            .rows::<T>(sql, &[&queue, filter, &limit, &after])
            .await
    };
    // One more than is shown tells whether there are more.
    let limit = i32::try_from(size).unwrap_or(i32::MAX - 1) + 1;
    match call(limit).await {
        Ok(mut rows) => {
            let has_more = rows.len() > size;
            rows.truncate(size);
            let next = rows.last().filter(|_| has_more).map(key);
            Ok(Part {
                rows,
                next,
                cut: None,
            })
        }
        Err(error) => {
            let Some((found, last)) = error.read_so_far() else {
                return Err(error);
            };
            let rows = match found.min(limit - 1) {
                0 => Vec::new(),
                found => call(found).await?,
            };
            Ok(Part {
                rows,
                next: Some(last),
                cut: Some(error.message),
            })
        }
    }
}
