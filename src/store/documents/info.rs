//! What is installed, and the trace of a document.

use crate::domain::names::QueueName;
use crate::pg::row_sink::RowSink;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::queues::queue;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::Right;
use crate::store::queues::statement;

const GET_EXTENSION_VERSION: &str =
    "select extversion::pg_catalog.text from pg_catalog.pg_extension where extname {=} 'fetchq'";

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
        pg_catalog.format('status: %s; attempts: %s; iterations: %s', status, attempts, iterations)::varchar,
        pg_catalog.to_jsonb(d)
    from only {docs} d where subject {=} $1
    union all
    (select created_at, 'error'::varchar, message, pg_catalog.to_jsonb(l)
     from only {logs} l where subject {=} $1 order by id)";

const TRACE_HISTORY: &str = "
    union all
    (select created_at, 'history'::varchar,
        pg_catalog.format('%s at %s; attempts: %s; iterations: %s', outcome, settled_at, attempts,
            iterations)::varchar,
        pg_catalog.to_jsonb(h)
     from only {history} h where subject {=} $1 order by id)";

/// The statement of `trace` for a queue. $1: the subject.
pub fn trace_sql(name: &QueueName) -> String {
    let history = match queue_tables::has_history(name) {
        true => TRACE_HISTORY,
        false => "",
    };
    statement::render(&format!("{TRACE}{history}"), name)
}

/// Adds everything that is known of a subject to a result: its document, its log entries and its
/// history in every queue, numbered from 1. `is_descending` reverses the order of the rows, not their
/// numbers.
pub fn trace(subject: &str, is_descending: bool, out: &mut RowSink) {
    let mut steps: Vec<(i32, QueueName, Vec<Arg>)> = Vec::new();
    queue::read_each(Right::Read, &["logs", "history"], |name| {
        spi::connect(|spi| {
            let rows = spi.once(&trace_sql(name), &[Arg::from(subject)]);
            for row in 0..rows.len() {
                steps.push((steps.len() as i32 + 1, name.clone(), rows.kept_args(row)));
            }
        });
    });
    if is_descending {
        steps.reverse();
    }
    for (step, name, row) in steps {
        let mut columns = vec![Arg::from(step)];
        columns.extend(row);
        columns.insert(2, Arg::from(name.as_str()));
        out.push(&columns);
    }
}
