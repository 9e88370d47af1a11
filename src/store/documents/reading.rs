//! Reading documents: one of them (`doc_get`), a page (`docs_list`), and the failed attempts of one
//! (`doc_errors`). The caller has named the queue, so its tables are read with his rights.

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::planner;
use crate::pg::row_sink::RowSink;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::store::counters::metrics;
use crate::store::documents::doc_selection::{BulkRequest, CONDITIONS, Selection};
use crate::store::documents::late_leases;
use crate::store::queues::queue;
use crate::store::queues::queue_shape;
use crate::store::queues::queue_tables;
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::render;

// The columns of `fetchq.document`, of a document `d` of the queue `q`. The lease number is not
// among them: who has it can settle the document.
const DOCUMENT: &str = "d.subject::pg_catalog.text,
        case when d.status {=} {planned} then 'planned' when d.status {=} {pending} then 'pending'
            when d.status {=} {active} then 'active' when d.status {=} {completed} then 'completed'
            when d.status {=} {killed} then 'killed' end,
        d.payload, d.headers, d.version, d.priority, d.attempts,
        coalesce(d.max_attempts, q.max_attempts), d.iterations, d.created_at,
        case when d.status {=} any (array[{planned}, {pending}]) then d.next_iteration
            else d.due_at end,
        d.picked_at,
        case when d.status {=} any (array[{completed}, {killed}]) then d.last_iteration end,
        case when d.status {=} {active} then d.next_iteration end,
        (select w.name from fetchq.worker_sessions w
            where d.status {=} {active} and w.queue_id {=} q.id and w.id {=} d.worker_session
            limit 1),
        d.result, d.progress, d.last_error, d.ordering_key, d.origin, d.queued, false, d.expires_at";

// Index: the primary key.
const GET: &str = "select {document}
    from only {docs} d, fetchq.queues q
    where d.subject {=} $1 and q.name {=} $2";

// Index: (subject, id).
const GET_FROM_HISTORY: &str = "select d.subject::pg_catalog.text, d.outcome::pg_catalog.text, d.payload, d.headers,
        d.version, d.priority, d.attempts, coalesce(d.max_attempts, q.max_attempts), d.iterations,
        d.created_at, d.due_at, d.picked_at, d.settled_at, null::pg_catalog.timestamptz, d.worker, d.result,
        d.progress, d.last_error, d.ordering_key, d.origin, null::pg_catalog.jsonb, true, d.expires_at
    from only {history} d, fetchq.queues q
    where d.subject {=} $1 and q.name {=} $2
    order by d.id desc
    limit 1";

/// Adds a document to a result: as it is, or else the newest entry of it in the history.
///
/// Fails with `Error::UnknownQueue` and `Error::NoRight`, as the other functions here do.
pub fn get(name: &QueueName, subject: &str, out: &mut RowSink) -> Result<()> {
    let args = [Arg::from(subject), Arg::from(name.as_str())];
    let mut read = || {
        spi::connect(|spi| {
            let sql = GET.replace("{document}", DOCUMENT);
            let rows = spi.once(&render(&sql, name), &args);
            if !rows.is_empty() {
                out.extend(&rows);
            } else if queue_tables::has_history(name) {
                out.extend(&spi.once(&render(GET_FROM_HISTORY, name), &args));
            }
            Ok(())
        })
    };
    readable(name, || planner::with_index_scans(&mut read))
}

/// Runs `work`, which reads a queue that exists, and whose documents the caller may read.
///
/// Fails with `Error::UnknownQueue`, with `Error::NoRight`, and as `work` does.
fn readable<R>(name: &QueueName, work: impl FnOnce() -> Result<R>) -> Result<R> {
    late_leases::before_reading(name);
    rights::with_existing(name, Right::Read, || {
        queue::id(name)?;
        queue_shape::require(name)?;
        work()
    })
}

/// How many documents one page may read. Not measured: some tenths of a second.
pub(in crate::store) const MAX_READ: i32 = 100_000;

// A page. {source}: what is read. $1 to $20 are those of `CONDITIONS`, $21 the subject after which
// the page begins, $22 and $23 a range of subjects, $24 the name of the queue, $25 `MAX_READ`.
const PAGE: &str = "select {document}
    from ({source}) d, fetchq.queues q
    where q.name {=} $24 and {conditions}
    order by d.subject
    limit $20";

// In the order of the primary key.
const BY_SUBJECT: &str = "select * from only {docs} s
    where ($21 is null or s.subject {>} $21)
        and ($22 is null or s.subject {>=} $22) and ($23 is null or s.subject {<} $23)
        and ($13 is null or s.subject {=} any ($13))
    order by s.subject
    limit $25";

// The due index and the pick index have all documents of their statuses, unless the queue is
// ordered.
const BY_STATUS: &str = "select * from only {docs} s
    where s.status {=} any (array[{planned}, {active}]) and s.status {=} any ($1)
        and s.lock_upgrade is null and ($21 is null or s.subject {>} $21)
    union all
    select * from only {docs} s
    where s.status {=} {pending} and s.status {=} any ($1)
        and s.lock_upgrade is null and ($21 is null or s.subject {>} $21)";

// The last subject that `BY_SUBJECT` reads if there are more behind it.
const LAST_READ: &str = "select s.subject::pg_catalog.text from only {docs} s
    where ($1 is null or s.subject {>} $1)
        and ($2 is null or s.subject {>=} $2) and ($3 is null or s.subject {<} $3)
        and ($5 is null or s.subject {=} any ($5))
    order by s.subject
    offset ($4 {-} 1) limit 2";

/// Adds a page of the documents that match a filter to a result, in the order of their subjects:
/// those after the subject `after`.
///
/// Fails with `Error::TooMuchToRead` when the page is not full after `MAX_READ` documents, and with
/// `Error::BadDuration`.
pub fn list(
    name: &QueueName,
    request: &BulkRequest,
    after: Option<&str>,
    out: &mut RowSink,
) -> Result<()> {
    readable(name, || read_page(name, request, after, out))
}

fn read_page(
    name: &QueueName,
    request: &BulkRequest,
    after: Option<&str>,
    out: &mut RowSink,
) -> Result<()> {
    let statuses = request.filter.codes(&Status::ALL, &[]);
    let (first, beyond) = subject_range(request.filter.subject_like.as_deref());
    let range = [Arg::from(first.as_deref()), Arg::from(beyond.as_deref())];
    let reads_by_status = is_indexed(name, request);
    let extra = [
        Arg::from(after),
        range[0],
        range[1],
        Arg::from(name.as_str()),
        Arg::from(i64::from(MAX_READ)),
    ];
    let selection = Selection {
        statuses,
        condition: "",
        args: &extra,
        other: None,
    };
    let source = match reads_by_status {
        true => BY_STATUS,
        false => BY_SUBJECT,
    };
    let sql = PAGE
        .replace("{document}", DOCUMENT)
        .replace("{source}", source)
        .replace("{conditions}", CONDITIONS);
    planner::with_index_scans(|| {
        spi::connect(|spi| {
            let args = request.args(spi, &selection, Some(i64::from(request.limit)))?;
            let rows = spi.once(&render(&sql, name), &args);
            if rows.affected() < request.limit && !reads_by_status {
                let args = [
                    extra[0],
                    range[0],
                    range[1],
                    extra[4],
                    Arg::from(request.filter.subjects.clone()),
                ];
                let last = spi.once(&render(LAST_READ, name), &args);
                if last.len() > 1 {
                    return Err(Error::TooMuchToRead {
                        queue: name.to_string(),
                        limit: MAX_READ,
                        found: rows.affected(),
                        last: last.get(0, 1).unwrap_or_default(),
                    });
                }
            }
            out.extend(&rows);
            Ok(())
        })
    })
}

/// Returns whether the documents of the statuses of a filter can be read by an index, all of them:
/// there are at most `MAX_READ` by the counters.
fn is_indexed(name: &QueueName, request: &BulkRequest) -> bool {
    let Some(statuses) = &request.filter.statuses else {
        return false;
    };
    let gauges: Option<Vec<&str>> = statuses
        .iter()
        .map(|status| match status {
            Status::Planned => Some("pln"),
            Status::Pending => Some("pnd"),
            Status::Active => Some("act"),
            Status::Completed | Status::Killed => None,
        })
        .collect();
    gauges.is_some_and(|gauges| {
        let n: i64 = metrics::get_many(name, &gauges).iter().sum();
        n <= i64::from(MAX_READ) && !queue::has_key_order(name)
    })
}

/// The range of subjects that a pattern of LIKE can match: the first one, and one beyond the last.
pub(in crate::store) fn subject_range(pattern: Option<&str>) -> (Option<String>, Option<String>) {
    let prefix: String = pattern
        .unwrap_or_default()
        .chars()
        .take_while(|c| !['%', '_', '\\'].contains(c))
        .collect();
    match prefix.is_empty() {
        true => (None, None),
        // A subject that begins with the prefix and the last of all characters is left out.
        false => (Some(prefix.clone()), Some(prefix + "\u{10FFFF}")),
    }
}

// Index: (subject).
const ERRORS: &str = "select l.created_at, l.attempt, l.message::pg_catalog.text, l.details, l.ref_id::pg_catalog.text
    from only {logs} l
    where l.subject {=} $1
    order by l.id desc
    limit $2";

/// Adds the failed attempts of a document to a result, the newest first, at most `limit`.
pub fn errors(name: &QueueName, subject: &str, limit: i32, out: &mut RowSink) -> Result<()> {
    let args = [Arg::from(subject), Arg::from(i64::from(limit))];
    let mut read = || {
        spi::connect(|spi| out.extend(&spi.once(&render(ERRORS, name), &args)));
        Ok(())
    };
    readable(name, || planner::with_index_scans(&mut read))
}
