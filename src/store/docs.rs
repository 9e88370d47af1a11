//! Documents: push, pick, settle. All statements here are hot.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).

use super::counters;
use super::flow;
use super::leases::Lease;
use super::plans::{Queue, Statement};
use crate::domain::counters::Event;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::call::RowSink;
use crate::pg::documents::{Access, Change, Column, Row};
use crate::pg::json::Jsonb;
use crate::pg::spi::{self, Arg, Rows, Spi};
use crate::pg::time::{self, Interval};
use crate::ready::{self, Index, Key, Source, View};
use crate::worker::waiters;

/// A document as pushed.
#[derive(Clone, Copy)]
pub struct NewDoc<'a> {
    pub subject: &'a str,
    pub version: i32,
    pub priority: i32,
    pub next_iteration: i64,
    pub payload: Jsonb,
}

impl NewDoc<'_> {
    pub(super) fn status(&self) -> Status {
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

/// Tells those who wait, when the transaction commits, that documents came.
pub fn came(queue: &Queue, version: i32, status: Status, n: i32) {
    if status == Status::Pending {
        waiters::came(at(queue, version), n.unsigned_abs());
    }
}

fn at(queue: &Queue, version: i32) -> waiters::Documents {
    waiters::Documents {
        table: queue.table.to_u32(),
        version,
    }
}

/// Counts documents that were picked.
fn picked(queue: &Queue, version: i32, n: i32) {
    counters::note(queue, 0, n, Event::Pick);
    waiters::took(at(queue, version), n.unsigned_abs());
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
    if let Some(seq) = push_row(queue, doc) {
        pushed(queue, doc, seq);
        return 1;
    }
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, &PUSH, &doc.args());
        if !rows.is_empty() {
            pushed(queue, doc, rows.get(0, 1).unwrap_or(i64::MIN));
        }
        rows.affected()
    })
}

fn pushed(queue: &Queue, doc: &NewDoc, seq: i64) {
    let key = Key::new(doc.next_iteration, 0, seq);
    note(queue, doc.version, doc.priority, doc.status(), key);
    came(queue, doc.version, doc.status(), 1);
    counters::note(queue, doc.version, 1, Event::push(doc.status()));
}

/// Adds a document whose subject was generated; false when it exists all the same.
pub fn append(queue: &Queue, doc: &NewDoc) -> bool {
    match append_row(queue, doc) {
        Some(Some(seq)) => {
            pushed(queue, doc, seq);
            true
        }
        Some(None) => false,
        None => push(queue, doc) > 0,
    }
}

/// Without a statement, a document whose subject nobody has: its `seq`. None: that is
/// for the statement to decide.
fn push_row(queue: &Queue, doc: &NewDoc) -> Option<i64> {
    let mut documents = queue.documents(Access::Insert)?;
    if documents.find(doc.subject).is_some() {
        return None;
    }
    let (mut row, seq) = new_row(queue, doc)?;
    documents.add_if_new(&mut row).then_some(seq)
}

/// The same for a generated subject: nobody looks for it first. Some(None): it exists.
fn append_row(queue: &Queue, doc: &NewDoc) -> Option<Option<i64>> {
    let mut documents = queue.documents(Access::Insert)?;
    let (mut row, seq) = new_row(queue, doc)?;
    Some(documents.add(&mut row).then_some(seq))
}

pub(super) fn new_row(queue: &Queue, doc: &NewDoc) -> Option<(Row, i64)> {
    let seq = queue.next_seq()?;
    let [subject, version, priority, status, next_iteration, payload] = doc.args();
    let mut row = Row::empty();
    row.set(Column::Subject, &subject);
    row.set(Column::Version, &version);
    row.set(Column::Priority, &priority);
    row.set(Column::Status, &status);
    row.set(Column::Attempts, &Arg::from(0));
    row.set(Column::Iterations, &Arg::from(0i64));
    row.set(Column::NextIteration, &next_iteration);
    row.set(Column::CreatedAt, &Arg::timestamp(time::now()));
    row.set(Column::Payload, &payload);
    row.set(Column::Seq, &Arg::from(seq));
    Some((row, seq))
}

// Index: primary key.
static UPSERT_LOCK: Statement = Statement::new(
    "select d.status from only {docs} d
     where d.subject operator(pg_catalog.=) $1
     for update",
);
static UPSERT_UPDATE: Statement = Statement::new(
    "update only {docs} d set priority = $2, payload = $3, next_iteration = $4, status = $5
     where d.subject operator(pg_catalog.=) $1
         and (d.lock_upgrade is null or d.lock_upgrade operator(pg_catalog.=) 'infinity')",
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
                counters::note(queue, doc.version, n, event);
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

// A batch in two steps, because RETURNING has lost the order: lock and read the rows
// as they will be, in order (index: pick, from the floor of one priority on), then
// update them (Tid Scan). Only where `claim_rows` can not do it.
static PICK_LOCK_OF_LEVEL: Statement = Statement::new(
    "select c.subject, c.payload, c.version, c.priority,
         least(c.attempts, 2147483646) operator(pg_catalog.+) 1, c.iterations, c.created_at, c.last_iteration,
         $8 operator(pg_catalog.+) $2, c.lock_upgrade, $9, c.ctid,
         c.next_iteration, c.attempts, c.seq
     from only {docs} c
     where c.version operator(pg_catalog.=) $1
         and c.priority operator(pg_catalog.=) $4
         and (c.next_iteration, c.attempts, c.seq) operator(pg_catalog.>=) ($5, $6, $7)
         and c.status operator(pg_catalog.=) 1
         and c.lock_upgrade is null
         and c.next_iteration operator(pg_catalog.<=) $8
     order by c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
);

// The same for all priorities at once, where the floors are not known.
static PICK_LOCK: Statement = Statement::new(
    "select c.subject, c.payload, c.version, c.priority,
         least(c.attempts, 2147483646) operator(pg_catalog.+) 1, c.iterations, c.created_at, c.last_iteration,
         $4 operator(pg_catalog.+) $2, c.lock_upgrade, $5, c.ctid,
         c.next_iteration, c.attempts, c.seq
     from only {docs} c
     where c.version operator(pg_catalog.=) $1
         and c.status operator(pg_catalog.=) 1
         and c.lock_upgrade is null
         and c.next_iteration operator(pg_catalog.<=) $4
     order by c.priority desc, c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
);
static PICK_CLAIM: Statement = Statement::new(
    "update only {docs} d set
         status = 2,
         attempts = least(d.attempts, 2147483646) operator(pg_catalog.+) 1,
         next_iteration = $3 operator(pg_catalog.+) $2,
         lease = $4, holder = $5
     where d.ctid operator(pg_catalog.=) any ($1)",
);

/// A pick: what is asked for, and where the rows go.
pub struct Pick<'a> {
    pub version: i32,
    pub limit: i32,
    pub duration: Interval,
    /// What is due at this time, and leased from then on: microseconds since 2000.
    pub now: i64,
    pub lease: &'a Lease,
    pub out: &'a mut RowSink,
}

/// Leases up to `limit` due documents for `duration`, and says how many; their columns
/// are those of the contract. Not more than the queue allows.
pub fn pick(queue: &Queue, mut pick: Pick) -> i32 {
    if queue.policy.is_limited() {
        // (its files must not end with a subtransaction)
        pick.out.prepare();
    }
    let (version, limit, now) = (pick.version, pick.limit, pick.now);
    flow::pick(queue, flow::Use::Lease, version, limit, now, |limit| {
        pick.limit = limit;
        pick_ready(queue, &mut pick)
    })
}

fn pick_ready(queue: &Queue, pick: &mut Pick) -> i32 {
    let known = queue
        .source()
        .and_then(|source| Some((source, source.levels(pick.version)?)));
    match known {
        Some((source, levels)) => match pick_levels(queue, &source, levels.as_slice(), pick) {
            0 => safety_net(queue, &source, pick),
            picked => picked,
        },
        None => pick_anywhere(queue, pick),
    }
}

/// From the floors on, priority by priority.
fn pick_levels(queue: &Queue, source: &Source, levels: &[View], pick: &mut Pick) -> i32 {
    let now = pick.now;
    let mut due = levels
        .iter()
        .filter(|level| level.floor.next_iteration <= now)
        .peekable();
    if due.peek().is_none() {
        source.answered();
        return 0;
    }
    let mut picked = 0;
    for level in due {
        picked += pick_level(queue, source, level, pick, pick.limit - picked);
        if picked == pick.limit {
            break;
        }
    }
    self::picked(queue, pick.version, picked);
    picked
}

fn pick_level(queue: &Queue, source: &Source, level: &View, pick: &mut Pick, limit: i32) -> i32 {
    let raise_is_due = source.count(pick.version, level.id, limit);
    let mut claimed = claim_rows(queue, Some((level.id, level.floor)), pick, limit);
    if claimed.n < limit && !claimed.is_all {
        spi::connect(|spi| {
            let args = [
                Arg::from(pick.version),
                pick.duration.arg(),
                Arg::from(i64::from(limit - claimed.n)),
                Arg::from(level.id),
                Arg::timestamp(level.floor.next_iteration),
                Arg::from(level.floor.attempts),
                Arg::from(level.floor.seq),
                Arg::timestamp(pick.now),
                Arg::from(pick.lease.number),
            ];
            let rows = queue.run(spi, &PICK_LOCK_OF_LEVEL, &args);
            if !rows.is_empty() {
                claim(spi, queue, &rows, pick);
                pick.out.extend(&rows);
                claimed.n += rows.affected();
                claimed.last = Some(place(&rows, rows.len() - 1).1);
            }
        });
    }
    match claimed.last {
        // Perhaps there is nothing at all: then the next poll needs no query.
        None => source.raise_level(pick.version, level.id, Key::LAST),
        // The place of a document that was alive.
        Some(last) if raise_is_due => source.raise_level(pick.version, level.id, last),
        Some(_) => {}
    }
    claimed.n
}

/// What was leased without a statement.
struct Claimed {
    n: i32,
    /// Where the last one was.
    last: Option<Key>,
    /// Nothing was left out that a statement might find.
    is_all: bool,
}

/// Leases documents in the order of the pick index: of one priority from its floor on,
/// or of all.
fn claim_rows(queue: &Queue, from: Option<(i32, Key)>, pick: &mut Pick, limit: i32) -> Claimed {
    let mut claimed = Claimed {
        n: 0,
        last: None,
        is_all: false,
    };
    // (the places of a capped queue are given by the statement)
    if queue.policy.max_active.is_some() {
        return claimed;
    }
    let Some(mut documents) = queue.documents(Access::Update) else {
        return claimed;
    };
    claimed.is_all = true;
    let end = pick.duration.after(pick.now);
    let from = from.map(|(priority, key)| {
        let place = (key.next_iteration, key.attempts, key.seq);
        (priority, place)
    });
    documents.read_ready(pick.version, from, pick.now);
    while claimed.n < limit
        && let Some(mut row) = documents.next()
    {
        let key = Key::new(
            row.int8(Column::NextIteration),
            row.int4(Column::Attempts),
            row.int8(Column::Seq),
        );
        row.set(Column::Status, &Arg::from(Status::Active.code()));
        row.set(Column::Attempts, &Arg::from(key.attempts.saturating_add(1)));
        row.set(Column::NextIteration, &Arg::timestamp(end));
        row.set(Column::Lease, &Arg::from(pick.lease.number));
        row.set(Column::Holder, &Arg::from(pick.lease.holder()));
        match documents.replace(&mut row, false) {
            Change::Done => {}
            // Skip locked.
            Change::Locked | Change::Removed => continue,
            // Nearly always somebody else has picked it.
            Change::Outdated(Some(now)) if now != Status::Pending.code() => continue,
            // Perhaps it can still be picked as it is now: the statement goes on here, or
            // what is behind would come before it.
            Change::Outdated(_) => {
                claimed.is_all = false;
                break;
            }
        }
        pick.out.push(&PICKED.map(|column| row.arg(column)));
        claimed.n += 1;
        claimed.last = Some(key);
    }
    if claimed.n > 0 {
        note(queue, 0, 0, Status::Active, Key::at(end));
    }
    claimed
}

/// The columns of a picked document.
const PICKED: [Column; 11] = [
    Column::Subject,
    Column::Payload,
    Column::Version,
    Column::Priority,
    Column::Attempts,
    Column::Iterations,
    Column::CreatedAt,
    Column::LastIteration,
    Column::NextIteration,
    Column::LockUpgrade,
    Column::Lease,
];

/// Priority and place in the index of a row of the locking statements, as it was.
fn place(rows: &Rows, row: usize) -> (i32, Key) {
    let key = Key::new(
        rows.timestamp(row, 13).unwrap_or(i64::MIN),
        rows.get(row, 14).unwrap_or(i32::MIN),
        rows.get(row, 15).unwrap_or(i64::MIN),
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
fn pick_anywhere(queue: &Queue, pick: &mut Pick) -> i32 {
    let limit = pick.limit;
    let mut claimed = claim_rows(queue, None, pick, limit);
    if claimed.n < limit && !claimed.is_all {
        spi::connect(|spi| {
            let rows = lock_and_claim(spi, queue, pick, limit - claimed.n);
            claimed.n += rows.affected();
            pick.out.extend(&rows);
        });
    }
    picked(queue, pick.version, claimed.n);
    claimed.n
}

/// Looks without floors when it is time to.
fn safety_net(queue: &Queue, source: &Source, pick: &mut Pick) -> i32 {
    let mut picked = 0;
    source.full_scan(pick.version, queue.name.as_str(), || {
        spi::connect(|spi| {
            let rows = lock_and_claim(spi, queue, pick, pick.limit);
            self::picked(queue, pick.version, rows.affected());
            pick.out.extend(&rows);
            picked = rows.affected();
            (0..rows.len()).map(|row| place(&rows, row)).collect()
        })
    });
    picked
}

fn lock_and_claim<'s>(spi: &'s Spi, queue: &Queue, pick: &Pick, limit: i32) -> Rows<'s> {
    let limit = Arg::from(i64::from(limit));
    let now = Arg::timestamp(pick.now);
    let lease = Arg::from(pick.lease.number);
    let version = Arg::from(pick.version);
    let args = [version, pick.duration.arg(), limit, now, lease];
    let rows = queue.run(spi, &PICK_LOCK, &args);
    claim(spi, queue, &rows, pick);
    rows
}

/// Leases rows that one of the locking statements has locked.
fn claim(spi: &Spi, queue: &Queue, rows: &Rows, pick: &Pick) {
    if rows.is_empty() {
        return;
    }
    if queue.policy.max_active.is_some() {
        flow::occupy(spi, queue, rows);
    }
    let now = Arg::timestamp(pick.now);
    let (number, holder) = (Arg::from(pick.lease.number), Arg::from(pick.lease.holder()));
    let args = [rows.tids(12), pick.duration.arg(), now, number, holder];
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
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.version, d.priority, d.seq",
);
static KILL: Statement = Statement::new(
    "update only {docs} d set
         status = -1, attempts = 0,
         iterations = d.iterations operator(pg_catalog.+) 1,
         last_iteration = pg_catalog.now(),
         payload = coalesce($2, d.payload)
     where d.subject operator(pg_catalog.=) $1
         and d.status operator(pg_catalog.+) 0 operator(pg_catalog.=) 2
     returning d.version, d.priority, d.seq",
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
     returning d.version, d.priority, d.seq",
);
static STATUS: Statement =
    Statement::new("select d.status from only {docs} d where d.subject operator(pg_catalog.=) $1");

/// Settles an active document as done.
pub fn complete(queue: &Queue, subject: &str, payload: Option<Jsonb>) -> Result<()> {
    let next_iteration = Arg::timestamp(time::COMPLETED_AT);
    let payload = Jsonb::arg(payload);
    let change = |row: &mut Row| {
        end_iteration(row, Status::Completed, &payload);
        row.set(Column::NextIteration, &next_iteration);
    };
    let args = [Arg::from(subject), next_iteration, payload];
    let how = Settling {
        change: Some(&change),
        statement: &COMPLETE,
        args: &args,
    };
    settle(queue, subject, how, |_| (0, Event::Complete))
}

/// Settles an active document as never to run again.
pub fn kill(queue: &Queue, subject: &str, payload: Option<Jsonb>) -> Result<()> {
    let payload = Jsonb::arg(payload);
    let args = [Arg::from(subject), payload];
    let how = Settling {
        change: Some(&|row| end_iteration(row, Status::Killed, &payload)),
        statement: &KILL,
        args: &args,
    };
    settle(queue, subject, how, |_| (0, Event::Kill))
}

/// Plans the next iteration of an active document.
pub fn reschedule(
    queue: &Queue,
    subject: &str,
    next_iteration: i64,
    payload: Option<Jsonb>,
) -> Result<()> {
    let to = Status::planned_or_pending(next_iteration <= time::now());
    let payload = Jsonb::arg(payload);
    let at = Arg::timestamp(next_iteration);
    let change = |row: &mut Row| {
        end_iteration(row, to, &payload);
        row.set(Column::NextIteration, &at);
    };
    let args = [Arg::from(subject), Arg::from(to.code()), at, payload];
    let how = Settling {
        change: Some(&change),
        statement: &RESCHEDULE,
        args: &args,
    };
    settle(queue, subject, how, |doc| {
        let key = Key::new(next_iteration, 0, doc.seq);
        note(queue, doc.version, doc.priority, to, key);
        came(queue, doc.version, to, 1);
        (0, Event::reschedule(to))
    })
}

/// What all of these do to an active document.
pub(super) fn end_iteration(row: &mut Row, to: Status, payload: &Arg) {
    let iterations = row.int8(Column::Iterations).saturating_add(1);
    row.set(Column::Status, &Arg::from(to.code()));
    row.set(Column::Attempts, &Arg::from(0));
    row.set(Column::Iterations, &Arg::from(iterations));
    row.set(Column::LastIteration, &Arg::timestamp(time::now()));
    if !payload.is_null() {
        row.set(Column::Payload, payload);
    }
}

/// Gives an active document back after a failure: it is retried when its lease would
/// have ended, or killed when it has had all its attempts.
pub fn reject(queue: &Queue, subject: &str) -> Result<()> {
    let args = [Arg::from(subject), Arg::from(queue.id)];
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, &REJECT, &args);
        if rows.is_empty() {
            return Err(not_active(spi, queue, subject));
        }
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
            came(queue, int(2), to, 1);
        }
        counters::note(queue, 0, 1, Event::reject(to));
        Ok(())
    })
}

/// Settles an active document by removing it.
pub fn drop(queue: &Queue, subject: &str) -> Result<()> {
    let how = Settling {
        change: None,
        statement: &DROP,
        args: &[Arg::from(subject)],
    };
    settle(queue, subject, how, |doc| (doc.version, Event::Drop))
}

/// How an active document is settled.
struct Settling<'a> {
    /// What becomes of it; None: it is removed.
    change: Option<&'a dyn Fn(&mut Row)>,
    /// The same as a statement, which returns the columns of `Settled`.
    statement: &'static Statement,
    args: &'a [Arg],
}

/// A document that was settled.
struct Settled {
    version: i32,
    priority: i32,
    seq: i64,
}

/// Settles a document and counts it; `outcome` says as what.
fn settle(
    queue: &Queue,
    subject: &str,
    how: Settling,
    outcome: impl FnOnce(&Settled) -> (i32, Event),
) -> Result<()> {
    let settled = match settle_row(queue, subject, &how) {
        Some(settled) => settled,
        None => settle_by_statement(queue, subject, &how)?,
    };
    let (version, event) = outcome(&settled);
    counters::note(queue, version, 1, event);
    Ok(())
}

/// Without a statement; None: that is for the statement to decide.
fn settle_row(queue: &Queue, subject: &str, how: &Settling) -> Option<Settled> {
    let access = how.change.map_or(Access::Delete, |_| Access::Update);
    let mut documents = queue.documents(access)?;
    let mut row = documents.find(subject)?;
    if row.int4(Column::Status) != Status::Active.code() {
        return None;
    }
    let settled = Settled {
        version: row.int4(Column::Version),
        priority: row.int4(Column::Priority),
        seq: row.int8(Column::Seq),
    };
    let done = match how.change {
        Some(change) => {
            change(&mut row);
            documents.replace(&mut row, true)
        }
        None => documents.remove(&row),
    };
    (done == Change::Done).then_some(settled)
}

fn settle_by_statement(queue: &Queue, subject: &str, how: &Settling) -> Result<Settled> {
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, how.statement, how.args);
        if rows.is_empty() {
            return Err(not_active(spi, queue, subject));
        }
        Ok(Settled {
            version: rows.get(0, 1).unwrap_or(0),
            priority: rows.get(0, 2).unwrap_or(0),
            seq: rows.get(0, 3).unwrap_or(i64::MIN),
        })
    })
}

fn not_active(spi: &Spi, queue: &Queue, subject: &str) -> Error {
    let rows = queue.run(spi, &STATUS, &[Arg::from(subject)]);
    Error::NotActive {
        queue: queue.name.to_string(),
        subject: subject.to_owned(),
        found: (!rows.is_empty()).then(|| rows.get(0, 1).and_then(Status::from_code)),
    }
}
