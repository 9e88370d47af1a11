//! Documents: push, pick, settle. All statements here are hot.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).

use super::counters;
use super::plans::{Queue, Statement};
use crate::domain::counters::Event;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::call::RowSink;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Arg, Rows, Spi};
use crate::pg::time::{self, Interval};
use crate::ready::{self, Index, Key, Source, View};

/// A document as pushed.
pub struct NewDoc<'a> {
    pub subject: &'a str,
    pub version: i32,
    pub priority: i32,
    pub next_iteration: i64,
    pub payload: Jsonb,
}

impl NewDoc<'_> {
    fn status(&self) -> Status {
        Status::planned_or_pending(self.next_iteration <= time::now())
    }

    fn args(&self) -> [Arg; 6] {
        [
            Arg::from(self.subject),
            Arg::from(self.version),
            Arg::from(self.priority),
            Arg::from(self.status().code()),
            Arg::timestamp(self.next_iteration),
            Jsonb::arg(Some(self.payload)),
        ]
    }
}

/// Tells the ready floors of a document that was planned or made pending.
pub fn note(queue: &Queue, version: i32, priority: i32, status: Status, key: Key) {
    match status {
        Status::Pending => ready::note(queue.table, Index::Pick, version, priority, key),
        status => ready::note(queue.table, Index::Due, 0, status.code(), key),
    }
}

// Index: primary key, as arbiter. One insert, no look-up before it.
static PUSH: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     values ($1, $2, $3, $4, $5, pg_catalog.now(), $6)
     on conflict (subject) do nothing
     returning seq",
);

/// Plans a document; 0 when its subject exists already.
pub fn push(queue: &Queue, doc: &NewDoc) -> i32 {
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, &PUSH, &doc.args());
        pushed(spi, queue, doc, &rows);
        rows.affected()
    })
}

fn pushed(spi: &Spi, queue: &Queue, doc: &NewDoc, rows: &Rows) {
    if rows.is_empty() {
        return;
    }
    let seq = rows.get(0, 1).unwrap_or(i64::MIN);
    let key = Key::new(doc.next_iteration, 0, seq);
    note(queue, doc.version, doc.priority, doc.status(), key);
    counters::note(spi, queue.id, doc.version, 1, Event::push(doc.status()));
}

// A generated subject is new: no arbiter, which saves the speculative insertion.
static APPEND: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     values ($1, $2, $3, $4, $5, pg_catalog.now(), $6)
     returning seq",
);

/// Adds a document whose subject was generated.
pub fn append(queue: &Queue, doc: &NewDoc) {
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, &APPEND, &doc.args());
        pushed(spi, queue, doc, &rows);
    });
}

// Index: primary key.
static UPSERT_LOCK: Statement = Statement::new(
    "select d.status from only {docs} d
     where d.subject operator(pg_catalog.=) $1
     for update",
);
static UPSERT_UPDATE: Statement = Statement::new(
    "update only {docs} d set priority = $2, payload = $3, next_iteration = $4, status = $5
     where d.subject operator(pg_catalog.=) $1 and d.lock_upgrade is null",
);

/// What an upsert did.
pub struct Upserted {
    pub queued: i32,
    pub updated: i32,
}

/// How often an upsert starts again because the document was removed between its two
/// statements. More means that it is there and can not be seen.
const UPSERT_TURNS: usize = 100;

/// Plans a document, or changes priority, payload and time of the one that has this
/// subject. An active document is left alone; a completed or killed one stays so.
pub fn upsert(queue: &Queue, doc: &NewDoc) -> Result<Upserted> {
    for _ in 0..UPSERT_TURNS {
        if push(queue, doc) > 0 {
            return Ok(Upserted {
                queued: 1,
                updated: 0,
            });
        }
        let updated = spi::connect(|spi| {
            let subject = Arg::from(doc.subject);
            let rows = queue.run(spi, &UPSERT_LOCK, &[subject]);
            if rows.is_empty() {
                return None;
            }
            let from = rows.get(0, 1).and_then(Status::from_code);
            let to = match from {
                Some(Status::Active) => return Some(0),
                Some(Status::Planned | Status::Pending) => doc.status(),
                Some(other) => other,
                None => doc.status(),
            };
            let n = queue
                .run(
                    spi,
                    &UPSERT_UPDATE,
                    &[
                        subject,
                        Arg::from(doc.priority),
                        Jsonb::arg(Some(doc.payload)),
                        Arg::timestamp(doc.next_iteration),
                        Arg::from(to.code()),
                    ],
                )
                .affected();
            if let Some(event) = from.and_then(|from| Event::upsert(from, to)) {
                counters::note(spi, queue.id, doc.version, n, event);
            }
            Some(n)
        });
        // None: it was removed between the two statements; push it again.
        if let Some(updated) = updated {
            return Ok(Upserted { queued: 0, updated });
        }
    }
    Err(Error::HiddenDocument {
        queue: queue.name.to_string(),
        subject: doc.subject.to_owned(),
    })
}

// Index: pick, read in its order from the floor of one priority on, and left after the
// first row that is free. The array is computed once, so the outer node can only be a
// Tid Scan on one row.
static PICK_ONE_OF_LEVEL: Statement = Statement::new(
    "update only {docs} d set
         status = 2,
         attempts = least(d.attempts, 2147483646) operator(pg_catalog.+) 1,
         next_iteration = pg_catalog.now() operator(pg_catalog.+) $2
     where d.ctid operator(pg_catalog.=) any (array(
         select c.ctid from only {docs} c
         where c.version operator(pg_catalog.=) $1
             and c.priority operator(pg_catalog.=) $3
             and (c.next_iteration, c.attempts, c.seq) operator(pg_catalog.>=) ($4, $5, $6)
             and c.status operator(pg_catalog.=) 1
             and c.lock_upgrade is null
             and c.next_iteration operator(pg_catalog.<=) pg_catalog.now()
         order by c.next_iteration, c.attempts, c.seq
         limit 1
         for update skip locked))
     returning d.subject, d.payload, d.version, d.priority, d.attempts, d.iterations,
         d.created_at, d.last_iteration, d.next_iteration, d.lock_upgrade",
);
static PICK_LOCK_OF_LEVEL: Statement = Statement::new(
    "select c.subject, c.payload, c.version, c.priority,
         least(c.attempts, 2147483646) operator(pg_catalog.+) 1, c.iterations, c.created_at, c.last_iteration,
         pg_catalog.now() operator(pg_catalog.+) $2, c.lock_upgrade, c.ctid,
         c.next_iteration, c.attempts, c.seq
     from only {docs} c
     where c.version operator(pg_catalog.=) $1
         and c.priority operator(pg_catalog.=) $4
         and (c.next_iteration, c.attempts, c.seq) operator(pg_catalog.>=) ($5, $6, $7)
         and c.status operator(pg_catalog.=) 1
         and c.lock_upgrade is null
         and c.next_iteration operator(pg_catalog.<=) pg_catalog.now()
     order by c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
);

// The same for all priorities at once, where the floors are not known.
static PICK_ONE: Statement = Statement::new(
    "update only {docs} d set
         status = 2,
         attempts = least(d.attempts, 2147483646) operator(pg_catalog.+) 1,
         next_iteration = pg_catalog.now() operator(pg_catalog.+) $2
     where d.ctid operator(pg_catalog.=) any (array(
         select c.ctid from only {docs} c
         where c.version operator(pg_catalog.=) $1
             and c.status operator(pg_catalog.=) 1
             and c.lock_upgrade is null
             and c.next_iteration operator(pg_catalog.<=) pg_catalog.now()
         order by c.priority desc, c.next_iteration, c.attempts, c.seq
         limit 1
         for update skip locked))
     returning d.subject, d.payload, d.version, d.priority, d.attempts, d.iterations,
         d.created_at, d.last_iteration, d.next_iteration, d.lock_upgrade",
);

// A batch in two steps, because RETURNING has lost the order: lock and read the rows
// as they will be, in order (index: pick), then update them (Tid Scan).
static PICK_LOCK: Statement = Statement::new(
    "select c.subject, c.payload, c.version, c.priority,
         least(c.attempts, 2147483646) operator(pg_catalog.+) 1, c.iterations, c.created_at, c.last_iteration,
         pg_catalog.now() operator(pg_catalog.+) $2, c.lock_upgrade, c.ctid,
         c.next_iteration, c.attempts, c.seq
     from only {docs} c
     where c.version operator(pg_catalog.=) $1
         and c.status operator(pg_catalog.=) 1
         and c.lock_upgrade is null
         and c.next_iteration operator(pg_catalog.<=) pg_catalog.now()
     order by c.priority desc, c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
);
static PICK_CLAIM: Statement = Statement::new(
    "update only {docs} d set
         status = 2,
         attempts = least(d.attempts, 2147483646) operator(pg_catalog.+) 1,
         next_iteration = pg_catalog.now() operator(pg_catalog.+) $2
     where d.ctid operator(pg_catalog.=) any ($1)",
);

/// A pick: what is asked for, and where the rows go.
pub struct Pick<'a> {
    pub version: i32,
    pub limit: i32,
    pub duration: Interval,
    pub out: &'a mut RowSink,
}

/// Leases up to `limit` due documents for `duration`; their columns are those of the
/// contract.
pub fn pick(queue: &Queue, mut pick: Pick) {
    let known = queue
        .source()
        .and_then(|source| Some((source, source.levels(pick.version)?)));
    let picked = match known {
        Some((source, levels)) => {
            let picked = pick_levels(queue, &source, levels.as_slice(), &mut pick);
            if picked == 0 {
                safety_net(queue, &source, &mut pick)
            } else {
                picked
            }
        }
        None => spi::connect(|spi| pick_anywhere(spi, queue, &mut pick)),
    };
    queue.was_empty.set(picked == 0);
}

/// From the floors on, priority by priority.
fn pick_levels(queue: &Queue, source: &Source, levels: &[View], pick: &mut Pick) -> i32 {
    let now = time::now();
    let mut due = levels
        .iter()
        .filter(|level| level.floor.next_iteration <= now)
        .peekable();
    if due.peek().is_none() {
        source.answered();
        return 0;
    }
    spi::connect(|spi| {
        let mut picked = 0;
        for level in due {
            picked += pick_level(spi, queue, source, level, pick, pick.limit - picked);
            if picked == pick.limit {
                break;
            }
        }
        counters::note(spi, queue.id, 0, picked, Event::Pick);
        picked
    })
}

fn pick_level(
    spi: &Spi,
    queue: &Queue,
    source: &Source,
    level: &View,
    pick: &mut Pick,
    limit: i32,
) -> i32 {
    let (version, duration) = (Arg::from(pick.version), pick.duration.arg());
    let from = [
        Arg::from(level.id),
        Arg::timestamp(level.floor.next_iteration),
        Arg::from(level.floor.attempts),
        Arg::from(level.floor.seq),
    ];
    let raise_is_due = source.count(pick.version, level.id, limit);
    // A raise needs the place of a document that was alive, which only the other
    // statement tells. The last pick found nothing: begin with the one that can say so
    // alone.
    if limit == 1 && !raise_is_due && !queue.was_empty.get() {
        let args = [version, duration, from[0], from[1], from[2], from[3]];
        let rows = queue.run_noting(spi, &PICK_ONE_OF_LEVEL, &args);
        if !rows.is_empty() {
            leased(queue, &rows);
            pick.out.extend(&rows);
            return 1;
        }
    }
    let n = Arg::from(i64::from(limit));
    let args = [version, duration, n, from[0], from[1], from[2], from[3]];
    let rows = queue.run(spi, &PICK_LOCK_OF_LEVEL, &args);
    if rows.is_empty() {
        // Perhaps there is nothing at all: then the next poll needs no query.
        source.raise_level(pick.version, level.id, Key::LAST);
        return 0;
    }
    claim(spi, queue, &rows, pick.duration);
    pick.out.extend(&rows);
    if raise_is_due {
        let (_, last) = place(&rows, rows.len() - 1);
        source.raise_level(pick.version, level.id, last);
    }
    rows.affected()
}

/// Priority and place in the index of a row of the locking statements, as it was.
fn place(rows: &Rows, row: usize) -> (i32, Key) {
    let key = Key::new(
        rows.timestamp(row, 12).unwrap_or(i64::MIN),
        rows.get(row, 13).unwrap_or(i32::MIN),
        rows.get(row, 14).unwrap_or(i64::MIN),
    );
    (rows.get(row, 4).unwrap_or(0), key)
}

/// Tells the ready floors when the leases of picked rows will end: all at once.
fn leased(queue: &Queue, rows: &Rows) {
    if let Some(end) = rows.timestamp(0, 9) {
        note(queue, 0, 0, Status::Active, Key::at(end));
    }
}

/// Without floors.
fn pick_anywhere(spi: &Spi, queue: &Queue, pick: &mut Pick) -> i32 {
    let (version, duration) = (Arg::from(pick.version), pick.duration.arg());
    let mut rows = None;
    if pick.limit == 1 && !queue.was_empty.get() {
        let one = queue.run_noting(spi, &PICK_ONE, &[version, duration]);
        rows = (!one.is_empty()).then_some(one);
    }
    let rows = match rows {
        Some(rows) => {
            leased(queue, &rows);
            rows
        }
        // A batch; or nothing, which a document that was rewritten while it was being
        // locked gives too: its new version can not be seen by the same statement.
        None => lock_and_claim(spi, queue, pick),
    };
    counters::note(spi, queue.id, 0, rows.affected(), Event::Pick);
    pick.out.extend(&rows);
    rows.affected()
}

/// Looks without floors when it is time to.
fn safety_net(queue: &Queue, source: &Source, pick: &mut Pick) -> i32 {
    let mut picked = 0;
    source.full_scan(pick.version, queue.name.as_str(), || {
        spi::connect(|spi| {
            let rows = lock_and_claim(spi, queue, pick);
            picked = rows.affected();
            counters::note(spi, queue.id, 0, picked, Event::Pick);
            pick.out.extend(&rows);
            (0..rows.len()).map(|row| place(&rows, row)).collect()
        })
    });
    picked
}

fn lock_and_claim<'s>(spi: &'s Spi, queue: &Queue, pick: &Pick) -> Rows<'s> {
    let limit = Arg::from(i64::from(pick.limit));
    let args = [Arg::from(pick.version), pick.duration.arg(), limit];
    let rows = queue.run(spi, &PICK_LOCK, &args);
    claim(spi, queue, &rows, pick.duration);
    rows
}

/// Leases rows that one of the locking statements has locked.
fn claim(spi: &Spi, queue: &Queue, rows: &Rows, duration: Interval) {
    if rows.is_empty() {
        return;
    }
    let args = [rows.tids(11), duration.arg()];
    let claimed = queue.run_noting(spi, &PICK_CLAIM, &args).affected();
    if claimed != rows.affected() {
        pgrx::error!(
            "only {claimed} of {} locked documents could be claimed: a trigger or policy on the documents of queue {} keeps them from being updated",
            rows.affected(),
            queue.name
        );
    }
    leased(queue, rows);
}

// Index of the five: primary key. Nothing else can prove `status + 0 = 2`.
static COMPLETE: Statement = Statement::new(
    "update only {docs} d set
         status = 3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $2,
         payload = coalesce($3, d.payload)
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2",
);
static KILL: Statement = Statement::new(
    "update only {docs} d set
         status = -1, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(),
         payload = coalesce($2, d.payload)
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2",
);
static RESCHEDULE: Statement = Statement::new(
    "update only {docs} d set
         status = $2, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         payload = coalesce($4, d.payload)
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.version, d.priority, d.seq",
);
static REJECT: Statement = Statement::new(
    "update only {docs} d set
         status = case when d.attempts operator(pg_catalog.>=) (
                 select q.max_attempts from fetchq.queues q where q.id operator(pg_catalog.=) $2)
             then -1 else 1 end,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now()
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.status, d.version, d.priority, d.next_iteration, d.attempts, d.seq",
);
static DROP: Statement = Statement::new(
    "delete from only {docs} d
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.version",
);
static STATUS: Statement =
    Statement::new("select d.status from only {docs} d where d.subject operator(pg_catalog.=) $1");

/// Settles an active document as done.
pub fn complete(queue: &Queue, subject: &str, payload: Option<Jsonb>) -> Result<()> {
    let args = [
        Arg::from(subject),
        Arg::timestamp(time::COMPLETED_AT),
        Jsonb::arg(payload),
    ];
    settle(queue, subject, &COMPLETE, &args, |_| (0, Event::Complete))
}

/// Settles an active document as never to run again.
pub fn kill(queue: &Queue, subject: &str, payload: Option<Jsonb>) -> Result<()> {
    let args = [Arg::from(subject), Jsonb::arg(payload)];
    settle(queue, subject, &KILL, &args, |_| (0, Event::Kill))
}

/// Plans the next iteration of an active document.
pub fn reschedule(
    queue: &Queue,
    subject: &str,
    next_iteration: i64,
    payload: Option<Jsonb>,
) -> Result<()> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    let args = [
        Arg::from(subject),
        Arg::from(to.code()),
        Arg::timestamp(next_iteration),
        Jsonb::arg(payload),
    ];
    settle(queue, subject, &RESCHEDULE, &args, |rows| {
        let int = |column| rows.get(0, column).unwrap_or(0);
        let seq = rows.get(0, 3).unwrap_or(i64::MIN);
        note(queue, int(1), int(2), to, Key::new(next_iteration, 0, seq));
        (0, Event::reschedule(to))
    })
}

/// Gives an active document back after a failure: it is retried when its lease would
/// have ended, or killed when it has had all its attempts.
pub fn reject(queue: &Queue, subject: &str) -> Result<()> {
    let args = [Arg::from(subject), Arg::from(queue.id)];
    settle(queue, subject, &REJECT, &args, |rows| {
        let to = rows.get(0, 1).and_then(Status::from_code);
        let to = to.unwrap_or(Status::Pending);
        if to == Status::Pending {
            let int = |column| rows.get(0, column).unwrap_or(0);
            let key = Key::new(
                rows.timestamp(0, 4).unwrap_or(i64::MIN),
                int(5),
                rows.get(0, 6).unwrap_or(i64::MIN),
            );
            note(queue, int(2), int(3), to, key);
        }
        (0, Event::reject(to))
    })
}

/// Settles an active document by removing it.
pub fn drop(queue: &Queue, subject: &str) -> Result<()> {
    settle(queue, subject, &DROP, &[Arg::from(subject)], |rows| {
        (rows.get(0, 1).unwrap_or(0), Event::Drop)
    })
}

/// Runs a settling statement and counts it; `outcome` reads version and event from
/// what it returned.
fn settle(
    queue: &Queue,
    subject: &str,
    statement: &'static Statement,
    args: &[Arg],
    outcome: impl FnOnce(&Rows) -> (i32, Event),
) -> Result<()> {
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, statement, args);
        if rows.affected() > 0 {
            let (version, event) = outcome(&rows);
            counters::note(spi, queue.id, version, 1, event);
            return Ok(());
        }
        let rows = queue.run(spi, &STATUS, &[Arg::from(subject)]);
        Err(Error::NotActive {
            queue: queue.name.to_string(),
            subject: subject.to_owned(),
            found: (!rows.is_empty()).then(|| rows.get(0, 1).and_then(Status::from_code)),
        })
    })
}
