//! Leases that last longer than they were given for.

use super::docs::note;
use super::plans::{self, Queue, Statement};
use super::settle::{Held, is_held, not_held};
use crate::domain::status::Status;
use crate::error::Result;
use crate::pg::documents::{Access, Change, Column};
use crate::pg::spi::{self, Arg};
use crate::ready::Key;

// Index of both: primary key. Nothing else can prove `status + 0 = 2`.
static EXTEND: Statement = Statement::new(
    "update only {docs} d set next_iteration = $3
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
         and ($2 is null or d.lease operator(pg_catalog.=) $2)
     returning d.holder",
);
static IS_CANCELLED: Statement = Statement::new(
    "select from only {docs} d
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) -1
         and d.lease operator(pg_catalog.=) $2",
);
// (nearly always nobody)
static IS_ANY_STOPPED: Statement = Statement::new("select from fetchq.stops limit 1");
static IS_STOPPED: Statement = Statement::new(
    "select from fetchq.stops s
     join fetchq.holders h on h.name operator(pg_catalog.=) s.name
     where h.id operator(pg_catalog.=) $1
         and h.since operator(pg_catalog.<) s.since",
);

/// What became of a lease.
pub struct Extended {
    /// When it ends; None: the document was cancelled.
    pub until: Option<i64>,
    /// The worker should stop what it does.
    pub stop: bool,
}

/// Has the lease of a document last until a time.
pub fn extend(queue: &Queue, doc: Held, until: i64) -> Result<Extended> {
    let holder = match extend_row(queue, doc, until) {
        Some(holder) => holder,
        None => match extend_by_statement(queue, doc, until)? {
            Some(holder) => holder,
            None => {
                return Ok(Extended {
                    until: None,
                    stop: true,
                });
            }
        },
    };
    note(queue, 0, 0, Status::Active, Key::at(until));
    let stop = spi::connect(|spi| {
        plans::run_latest(spi, &IS_ANY_STOPPED, &[]).affected() > 0
            && plans::run_latest(spi, &IS_STOPPED, &[Arg::from(holder)]).affected() > 0
    });
    Ok(Extended {
        until: Some(until),
        stop,
    })
}

/// Without a statement, who holds it; None: that is for the statement to decide.
fn extend_row(queue: &Queue, doc: Held, until: i64) -> Option<i64> {
    let mut documents = queue.documents(Access::Update)?;
    let mut row = documents
        .find(doc.subject)
        .filter(|row| is_held(row, doc.lease))?;
    row.set(Column::NextIteration, &Arg::timestamp(until));
    let holder = row.int8(Column::Holder);
    (documents.replace(&mut row, true) == Change::Done).then_some(holder)
}

/// Who holds it; None: it was cancelled.
fn extend_by_statement(queue: &Queue, doc: Held, until: i64) -> Result<Option<i64>> {
    spi::connect(|spi| {
        let (subject, lease) = (Arg::from(doc.subject), Arg::from(doc.lease));
        let args = [subject, lease, Arg::timestamp(until)];
        let rows = queue.run_noting(spi, &EXTEND, &args);
        if !rows.is_empty() {
            return Ok(Some(rows.get(0, 1).unwrap_or(0)));
        }
        match queue.run(spi, &IS_CANCELLED, &[subject, lease]).affected() {
            0 => Err(not_held(spi, queue, doc)),
            _ => Ok(None),
        }
    })
}
