//! Documents: push, pick, settle. All statements here are hot.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).

use super::counters;
use super::plans::{Queue, Statement};
use crate::domain::counters::Event;
use crate::domain::push_many::Item;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::call::RowSink;
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Arg, Rows, Spi};
use crate::pg::time::{self, Interval};

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

// Index: primary key, as arbiter. One insert, no look-up before it.
static PUSH: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     values ($1, $2, $3, $4, $5, pg_catalog.now(), $6)
     on conflict (subject) do nothing",
);

/// Plans a document; 0 when its subject exists already.
pub fn push(queue: &Queue, doc: &NewDoc) -> i32 {
    spi::connect(|spi| {
        let n = queue.run(spi, &PUSH, &doc.args()).affected();
        counters::note(spi, queue.id, doc.version, n, Event::push(doc.status()));
        n
    })
}

// A generated subject is new: no arbiter, which saves the speculative insertion.
static APPEND: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     values ($1, $2, $3, $4, $5, pg_catalog.now(), $6)",
);

/// Adds a document whose subject was generated.
pub fn append(queue: &Queue, doc: &NewDoc) {
    spi::connect(|spi| {
        queue.run(spi, &APPEND, &doc.args());
        counters::note(spi, queue.id, doc.version, 1, Event::push(doc.status()));
    });
}

// One statement for the whole list; the first of equal subjects wins.
static PUSH_MANY: Statement = Statement::new(
    "insert into {docs} (subject, version, priority, status, next_iteration, created_at, payload)
     select i.subject, $1, i.priority, $2, $3, pg_catalog.now(), i.payload::pg_catalog.jsonb
     from rows from (pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6))
          as i (subject, priority, payload)
     on conflict (subject) do nothing",
);

/// Plans a list of documents for one point in time; says how many were new.
pub fn push_many(queue: &Queue, version: i32, next_iteration: i64, items: &[Item]) -> i32 {
    let status = Status::planned_or_pending(next_iteration <= time::now());
    let subjects: Vec<&str> = items.iter().map(|i| i.subject.as_str()).collect();
    let priorities: Vec<i32> = items.iter().map(|i| i.priority).collect();
    let payloads: Vec<&str> = items.iter().map(|i| i.payload.as_str()).collect();
    spi::connect(|spi| {
        let args = [
            Arg::from(version),
            Arg::from(status.code()),
            Arg::timestamp(next_iteration),
            Arg::from(subjects),
            Arg::from(priorities),
            Arg::from(payloads),
        ];
        let n = queue.run(spi, &PUSH_MANY, &args).affected();
        counters::note(spi, queue.id, version, n, Event::push(status));
        n
    })
}

// Index: primary key.
static UPSERT_LOCK: Statement = Statement::new(
    "select d.status from {docs} d
     where d.subject operator(pg_catalog.=) $1
     for update",
);
static UPSERT_UPDATE: Statement = Statement::new(
    "update {docs} d set priority = $2, payload = $3, next_iteration = $4, status = $5
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

// Index: pick, read in its order and left after the first row that is free. The
// array is computed once, so the outer node can only be a Tid Scan on one row.
static PICK_ONE: Statement = Statement::new(
    "update {docs} d set
         status = 2,
         attempts = least(d.attempts, 2147483646) operator(pg_catalog.+) 1,
         next_iteration = pg_catalog.now() operator(pg_catalog.+) $2
     where d.ctid operator(pg_catalog.=) any (array(
         select c.ctid from {docs} c
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
         pg_catalog.now() operator(pg_catalog.+) $2, c.lock_upgrade, c.ctid
     from {docs} c
     where c.version operator(pg_catalog.=) $1
         and c.status operator(pg_catalog.=) 1
         and c.lock_upgrade is null
         and c.next_iteration operator(pg_catalog.<=) pg_catalog.now()
     order by c.priority desc, c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
);
static PICK_CLAIM: Statement = Statement::new(
    "update {docs} d set
         status = 2,
         attempts = least(d.attempts, 2147483646) operator(pg_catalog.+) 1,
         next_iteration = pg_catalog.now() operator(pg_catalog.+) $2
     where d.ctid operator(pg_catalog.=) any ($1)",
);

/// Leases up to `limit` due documents for `duration`; their columns are those of the
/// contract.
pub fn pick(queue: &Queue, version: i32, limit: i32, duration: Interval, out: &mut RowSink) {
    spi::connect(|spi| {
        let version = Arg::from(version);
        let mut rows = None;
        // The last pick found nothing: begin with the statement that can say so alone.
        if limit == 1 && !queue.was_empty.get() {
            let one = queue.run(spi, &PICK_ONE, &[version, duration.arg()]);
            rows = (!one.is_empty()).then_some(one);
        }
        let rows = match rows {
            Some(rows) => rows,
            // A batch; or nothing, which a document that was rewritten while it was being
            // locked gives too: its new version can not be seen by the same statement.
            None => lock_and_claim(spi, queue, version, limit, duration),
        };
        let picked = rows.affected();
        queue.was_empty.set(picked == 0);
        counters::note(spi, queue.id, 0, picked, Event::Pick);
        out.extend(&rows);
    });
}

fn lock_and_claim<'s>(
    spi: &'s Spi,
    queue: &Queue,
    version: Arg,
    limit: i32,
    duration: Interval,
) -> Rows<'s> {
    let limit = Arg::from(i64::from(limit));
    let rows = queue.run(spi, &PICK_LOCK, &[version, duration.arg(), limit]);
    if !rows.is_empty() {
        let args = [rows.tids(11), duration.arg()];
        let claimed = queue.run(spi, &PICK_CLAIM, &args).affected();
        if claimed != rows.affected() {
            pgrx::error!(
                "only {claimed} of {} locked documents could be claimed: a trigger or policy on the documents of queue {} keeps them from being updated",
                rows.affected(),
                queue.name
            );
        }
    }
    rows
}

// Index of the five: primary key. Nothing else can prove `status + 0 = 2`.
static COMPLETE: Statement = Statement::new(
    "update {docs} d set
         status = 3, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $2,
         payload = coalesce($3, d.payload)
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2",
);
static KILL: Statement = Statement::new(
    "update {docs} d set
         status = -1, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(),
         payload = coalesce($2, d.payload)
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2",
);
static RESCHEDULE: Statement = Statement::new(
    "update {docs} d set
         status = $2, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(), next_iteration = $3,
         payload = coalesce($4, d.payload)
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2",
);
static REJECT: Statement = Statement::new(
    "update {docs} d set
         status = case when d.attempts operator(pg_catalog.>=) (
                 select q.max_attempts from fetchq.queues q where q.id operator(pg_catalog.=) $2)
             then -1 else 1 end,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now()
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.status",
);
static DROP: Statement = Statement::new(
    "delete from {docs} d
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.version",
);
static STATUS: Statement =
    Statement::new("select d.status from {docs} d where d.subject operator(pg_catalog.=) $1");

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
    settle(queue, subject, &RESCHEDULE, &args, |_| {
        (0, Event::reschedule(to))
    })
}

/// Gives an active document back after a failure: it is retried when its lease would
/// have ended, or killed when it has had all its attempts.
pub fn reject(queue: &Queue, subject: &str) -> Result<()> {
    let args = [Arg::from(subject), Arg::from(queue.id)];
    settle(queue, subject, &REJECT, &args, |rows| {
        let to = rows.get(0, 1).and_then(Status::from_code);
        (0, Event::reject(to.unwrap_or(Status::Pending)))
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
        let rows = queue.run(spi, statement, args);
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
