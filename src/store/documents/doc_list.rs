//! The check of a list of documents that is given as a JSON array. `doc_put_many.rs` makes it before
//! it writes.

use crate::domain::names;
use crate::domain::wording::shorten;
use crate::error::{Error, Result};
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::store::queues::plans;
use crate::store::queues::statement::Statement;

// Returns the first element that is no document: no object, without a subject, with a subject
// that is too long, or with another key than these.
static FIRST_BAD: Statement = Statement::new(
    "select e.n as position,
         pg_catalog.jsonb_typeof(e.doc) as type,
         e.doc {->>} 'subject' as subject,
         pg_catalog.jsonb_typeof(e.doc {->} 'subject') as subject_type,
         (select k.key
          from pg_catalog.jsonb_object_keys(
              case when pg_catalog.jsonb_typeof(e.doc) {=} 'object' then e.doc else '{}' end) k (key)
          where k.key {<>} all ('{subject,payload,version,priority,next_iteration,ordering_key,max_attempts,mode,delay,headers}'::pg_catalog.text[])
          limit 1) as unknown_key
     from pg_catalog.jsonb_array_elements($1) with ordinality as e (doc, n)
     where case when pg_catalog.jsonb_typeof(e.doc) {<>} 'object' then true
         else coalesce(pg_catalog.jsonb_typeof(e.doc {->} 'subject'), 'null') {<>} 'string'
             or pg_catalog.char_length(e.doc {->>} 'subject') {>} {subject_max}
             or (e.doc {-} '{subject,payload,version,priority,next_iteration,ordering_key,max_attempts,mode,delay,headers}'::pg_catalog.text[]) {<>} '{}'::pg_catalog.jsonb
         end
     limit 1",
);

static IS_ARRAY: Statement = Statement::new("select pg_catalog.jsonb_typeof($1) {=} 'array'");

/// Checks the list of documents, which may have the keys subject, payload, version, priority,
/// next_iteration, ordering_key, max_attempts, mode, delay and headers.
///
/// Fails with `Error::NoList` if `docs` is no JSON array, with `Error::BadDocument` for the
/// first element that is no document, and with `Error::InList` of `Invalid::SubjectLength` for a
/// subject that is too long.
pub(in crate::store) fn check(spi: &Spi, docs: Arg) -> Result<()> {
    let bad = |at: i64, reason: String| Err(Error::BadDocument { at, reason });
    if plans::run_latest(spi, &IS_ARRAY, &[docs]).get(0, 1) != Some(true) {
        return Err(Error::NoList);
    }
    let rows = plans::run_latest(spi, &FIRST_BAD, &[docs]);
    if rows.is_empty() {
        return Ok(());
    }
    let position = rows.get(0, 1).unwrap_or(0);
    let kind: String = rows.get(0, 2).unwrap_or_default();
    let subject: Option<String> = rows.get(0, 3);
    let subject_type: String = rows.get(0, 4).unwrap_or_default();
    let unknown_key: Option<String> = rows.get(0, 5);
    if kind != "object" {
        return bad(position, format!("it is a JSON {kind}, not an object"));
    }
    match subject {
        None => bad(position, "it has no subject".into()),
        Some(_) if subject_type != "string" => bad(
            position,
            format!("its subject is a JSON {subject_type}, not a text"),
        ),
        Some(subject) => {
            names::check_subject(&subject)
                .map_err(|e| Error::from(e).in_list(position as usize - 1))?;
            let key = shorten(&unknown_key.unwrap_or_default());
            bad(position, format!("it has an unknown key {key:?}"))
        }
    }
}
