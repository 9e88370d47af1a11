//! What is installed, removing it (`destroy_with_terrible_consequences`), and the trace of a
//! document.

use crate::domain::names::QueueName;
use crate::pg::spi;
use crate::store::statement;

const OWNS_EXTENSION: &str = "select from pg_extension e
    where e.extname {=} 'fetchq' and pg_has_role(e.extowner, 'usage')";

/// Whether the current role owns the extension, or is a member of its owner.
pub fn owns_extension() -> bool {
    spi::connect(|spi| spi.once(OWNS_EXTENSION, &[]).affected() > 0)
}

const DESTROY: &str = "drop extension fetchq cascade";

/// Drops the extension, and every queue with it.
pub fn destroy() {
    spi::connect(|spi| {
        spi.once(DESTROY, &[]);
    });
}

const GET_EXTENSION_VERSION: &str =
    "select extversion::text from pg_extension where extname {=} 'fetchq'";

/// The version of the installed SQL objects, which may differ from that of the library. None
/// when the extension is not installed.
pub fn extension_version() -> Option<String> {
    spi::connect(|spi| {
        let rows = spi.once(GET_EXTENSION_VERSION, &[]);
        if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        }
    })
}

const TRACE: &str = "select created_at, 'document'::varchar,
        format('status: %s; attempts: %s; iterations: %s', status, attempts, iterations)::varchar,
        to_jsonb(d)
    from {docs} d where subject {=} $1
    union all
    (select created_at, 'error'::varchar, message, to_jsonb(l)
     from {logs} l where subject {=} $1 order by id)";

/// The statement of `trace` for a queue. $1: the subject.
pub fn trace_sql(name: &QueueName) -> String {
    statement::render(TRACE, name)
}
