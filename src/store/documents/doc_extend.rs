//! Extends the leases of documents. One document is a list of one.

use crate::error::Error;
use crate::pg::documents::{Change, Column};
use crate::pg::documents_check::Access;
use crate::pg::json::Jsonb;
use crate::pg::process;
use crate::pg::spi::{self, Spi};
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::store::documents::bookkeeping::note_lease;
use crate::store::documents::lease_check::{LeasedDoc, holds_lease, lease_error};
use crate::store::documents::stop_requests::is_stopped;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

// Documents are locked in the order of the list, which is that of their subjects as in every list, so that
// two sessions do not deadlock.
// Index of both: primary key, once for each document. No other index can serve `status + 0`.
// $1 until when, $2 subjects, $3 lease numbers, of which NULL is a lease that the subject settles, $4 progress,
// $5 `max_run`.
static EXTEND: Statement = Statement::new(
    "update only {docs} d set next_iteration = least($1, d.picked_at {+} $5), progress = coalesce(i.progress, d.progress)
     from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4))
         as i (subject, lease, progress)
     where d.subject {=} i.subject
         and d.status {+} 0 {=} {active}
         and (d.lease {=} i.lease or i.lease is null and not {needs_number})
     returning i.subject, d.worker_session, d.next_iteration",
);

// A document keeps lease and worker session when it is settled. One that was cancelled while it was
// leased has lost the worker session.
static IS_CANCELLED: Statement = Statement::new(
    "select from only {docs} d
     where d.subject {=} $1
         and d.status {+} 0 {=} {killed}
         and d.lease {=} $2
         and d.worker_session is null",
);

/// A document whose lease is to be extended.
pub struct Extension<'a> {
    pub doc: LeasedDoc<'a>,
    /// None: the progress stays as it is.
    pub progress: Option<Jsonb>,
}

/// What became of an extension.
pub enum Extended {
    /// The lease lasts.
    Until {
        /// In microseconds since 2000.
        time: i64,
        /// The worker was asked to stop.
        stop: bool,
        /// It ends earlier than was asked for, as `max_run` demands, and nothing extends it.
        is_limited: bool,
    },
    /// The document was cancelled while it was leased.
    Cancelled,
    /// It could not be extended: `Error::LeaseLost` where the caller names a lease that does not hold,
    /// `Error::NotActive` where it names none and the document is not leased, `Error::LeaseNeeded` where only
    /// the number settles it, or `Error::KeptAsItIs`.
    Lost(Error),
}

/// A document whose lease was extended.
#[derive(Clone, Copy)]
struct Held {
    worker_session: i64,
    /// In microseconds since 2000.
    until: i64,
}

/// Extends leases to `until`, in microseconds since 2000, and stores the progress where there is any.
/// Returns what became of each, in the order of the list. No document may be in it twice.
pub fn extend(queue: &Queue, list: &[Extension], until: i64) -> Vec<Extended> {
    let mut order: Vec<usize> = (0..list.len()).collect();
    order.sort_by_key(|at| list[*at].doc.subject);
    let mut held: Vec<Option<Held>> = vec![None; list.len()];
    extend_rows(queue, list, &order, until, &mut held);
    order.retain(|at| held[*at].is_none());
    if !order.is_empty() {
        extend_by_statement(queue, list, &order, until, &mut held);
    }
    if let Some(first) = held.iter().flatten().map(|held| held.until).min() {
        note_lease(queue, first);
    }
    spi::connect(|spi| {
        // Most documents of a process are leased for one worker session.
        let mut last: Option<(i64, bool)> = None;
        let outcomes = list.iter().zip(held).map(|(extension, held)| match held {
            Some(Held {
                worker_session,
                until: time,
            }) => {
                let known = last.filter(|(of, _)| *of == worker_session);
                let (_, stop) =
                    known.unwrap_or_else(|| (worker_session, is_stopped(spi, worker_session)));
                last = Some((worker_session, stop));
                Extended::Until {
                    time,
                    stop,
                    is_limited: time < until,
                }
            }
            None => not_extended(spi, queue, extension.doc),
        });
        outcomes.collect()
    })
}

/// Extends leases without a statement, and leaves those that a statement has to decide.
fn extend_rows(
    queue: &Queue,
    list: &[Extension],
    order: &[usize],
    until: i64,
    held: &mut [Option<Held>],
) {
    let Some(mut documents) = queue.documents(Access::Update) else {
        return;
    };
    for at in order {
        process::check_for_interrupts();
        let Extension { doc, progress } = &list[*at];
        let row = documents.find(doc.subject);
        let Some(mut row) = row.filter(|row| holds_lease(row, doc.lease)) else {
            continue;
        };
        let picked_at = row.timestamp(Column::PickedAt).unwrap_or(i64::MAX);
        let until = queue.lease_end(picked_at, until);
        row.set(Column::NextIteration, &Arg::timestamp(until));
        if let Some(progress) = progress {
            row.set(Column::Progress, &Jsonb::arg(Some(*progress)));
        }
        let worker_session = row.int8(Column::WorkerSession);
        if documents.replace(&mut row, true) != Change::Done {
            // The statement goes on from here, because the order of the locks must be kept.
            return;
        }
        held[*at] = Some(Held {
            worker_session,
            until,
        });
    }
}

/// Extends leases by a statement.
fn extend_by_statement(
    queue: &Queue,
    list: &[Extension],
    order: &[usize],
    until: i64,
    held: &mut [Option<Held>],
) {
    let extensions = || order.iter().map(|at| &list[*at]);
    let subjects: Vec<&str> = extensions().map(|e| e.doc.subject).collect();
    let leases: Vec<Arg> = extensions().map(|e| Arg::from(e.doc.lease)).collect();
    let progress: Vec<Arg> = extensions().map(|e| Jsonb::arg(e.progress)).collect();
    let args = [
        Arg::timestamp(until),
        Arg::from(subjects),
        Arg::array(&leases),
        Arg::array(&progress),
        Interval::of(queue.policy.max_run),
    ];
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, &EXTEND, &args);
        for row in 0..rows.len() {
            let subject: String = rows.get(row, 1).unwrap_or_default();
            let at = order.binary_search_by(|at| list[*at].doc.subject.cmp(&subject));
            if let Ok(at) = at {
                held[order[at]] = Some(Held {
                    worker_session: rows.get(row, 2).unwrap_or(0),
                    until: rows.timestamp(row, 3).unwrap_or(until),
                });
            }
        }
    });
}

/// Why a lease was not extended.
fn not_extended(spi: &Spi, queue: &Queue, doc: LeasedDoc) -> Extended {
    let args = [Arg::from(doc.subject), Arg::from(doc.lease)];
    match queue.run(spi, &IS_CANCELLED, &args).affected() {
        0 => Extended::Lost(lease_error(spi, queue, doc)),
        _ => Extended::Cancelled,
    }
}
