//! Many documents at once: one statement for the list, one counter row for each kind
//! of event. Lists keep their order: of two documents of one moment, the earlier one in
//! the list is picked first.

use crate::domain::names;
use crate::error::{Error, Result};
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::store::plans;
use crate::store::statement::Statement;

// The first element of a list that is no document.
static CHECK_DOCS: Statement = Statement::new(
    "select e.n, pg_catalog.jsonb_typeof(e.doc), e.doc {->>} 'subject',
         (select k.key from pg_catalog.jsonb_object_keys(case when pg_catalog.jsonb_typeof(e.doc) {=} 'object' then e.doc else '{}' end) k (key)
          where k.key {<>} all ('{subject,payload,version,priority,next_iteration}'::pg_catalog.text[]) limit 1)
     from pg_catalog.jsonb_array_elements($1) with ordinality as e (doc, n)
     where case when pg_catalog.jsonb_typeof(e.doc) {<>} 'object' then true
         else (e.doc {->>} 'subject') is null
             or pg_catalog.char_length(e.doc {->>} 'subject') {>} 50
             or (e.doc {-} '{subject,payload,version,priority,next_iteration}'::pg_catalog.text[]) {<>} '{}'::pg_catalog.jsonb
         end
     limit 1",
);

static IS_ARRAY: Statement = Statement::new("select pg_catalog.jsonb_typeof($1) {=} 'array'");

/// Refuses a list of documents that is none, and says where.
pub fn check(spi: &Spi, docs: Arg) -> Result<()> {
    check_by(spi, docs, &CHECK_DOCS)
}

/// The same for documents with other keys.
pub(super) fn check_by(spi: &Spi, docs: Arg, statement: &'static Statement) -> Result<()> {
    let bad = |at: i64, reason: String| Err(Error::BadDocument { at, reason });
    if plans::run_latest(spi, &IS_ARRAY, &[docs]).get(0, 1) != Some(true) {
        return Err(Error::NoList);
    }
    let rows = plans::run_latest(spi, statement, &[docs]);
    if rows.is_empty() {
        return Ok(());
    }
    let at = rows.get(0, 1).unwrap_or(0);
    let kind: String = rows.get(0, 2).unwrap_or_default();
    if kind != "object" {
        return bad(at, format!("it is a JSON {kind}, not an object"));
    }
    match rows.get::<String>(0, 3) {
        None => bad(at, "it has no subject".into()),
        Some(subject) => {
            names::check_subject(&subject)?;
            let key: String = rows.get(0, 4).unwrap_or_default();
            bad(at, format!("it has an unknown key {key:?}"))
        }
    }
}
