//! Documents: push, pick, settle. All statements here are hot.
//!
//! Every look-up by subject is written so that only the primary key can serve it:
//! with `status = 2` as such, the planner may prove the predicate of the due index
//! and read every leased document of the queue (docs/engine.md).

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::pg::call::RowSink;
use crate::pg::documents::{Change, Column};
use crate::pg::documents_check::Access;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::ready::floors::QueueFloors;
use crate::ready::group::View;
use crate::ready::key::Key;
use crate::signals::wakeups;
use crate::store::bookkeeping::{note_entry, waiter_key};
use crate::store::leases::Lease;
use crate::store::open_queue::Queue;
use crate::store::policy::Keep;
use crate::store::statement::Statement;
use crate::store::{cap, counter_log, history, limits};

/// Counts documents that were picked.
fn record_picks(queue: &Queue, mode: PickMode, version: i32, n: i32) {
    match mode {
        PickMode::Lease(_) => counter_log::record_event(queue, 0, n, Event::Pick),
        PickMode::Remove => counter_log::record_event(queue, version, n, Event::Pop),
    }
    wakeups::documents_claimed(waiter_key(queue, version), n.unsigned_abs());
}

// A batch in two steps, because RETURNING has lost the order: lock and read the rows
// as they will be, in order (index: pick, from the floor of one priority on), then
// update them (Tid Scan). Only where `claim_rows` can not do it.
static PICK_LOCK_OF_LEVEL: Statement = Statement::new(
    "select c.subject, c.payload, c.version, c.priority,
         least(c.attempts, 2147483646) {+} 1, c.iterations, c.created_at, c.last_iteration,
         $8 {+} $2, c.lock_upgrade, $9, c.ctid,
         c.next_iteration, c.attempts, c.seq
     from only {docs} c
     where c.version {=} $1
         and c.priority {=} $4
         and (c.next_iteration, c.attempts, c.seq) {>=} ($5, $6, $7)
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and c.next_iteration {<=} $8
     order by c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
);

// The same for all priorities at once, where the floors are not known.
static PICK_LOCK: Statement = Statement::new(
    "select c.subject, c.payload, c.version, c.priority,
         least(c.attempts, 2147483646) {+} 1, c.iterations, c.created_at, c.last_iteration,
         $4 {+} $2, c.lock_upgrade, $5, c.ctid,
         c.next_iteration, c.attempts, c.seq
     from only {docs} c
     where c.version {=} $1
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and c.next_iteration {<=} $4
     order by c.priority desc, c.next_iteration, c.attempts, c.seq
     limit $3
     for update skip locked",
);

static PICK_CLAIM: Statement = Statement::new(
    "update only {docs} d set
         status = {active},
         attempts = least(d.attempts, 2147483646) {+} 1,
         next_iteration = $3 {+} $2,
         lease = $4, worker_session = $5
     where d.ctid {=} any ($1)",
);

static POP: Statement = Statement::new("delete from only {docs} d where d.ctid {=} any ($1)");

/// A pick: what is asked for, and where the rows go.
pub struct Pick<'a> {
    pub version: i32,
    pub limit: i32,
    pub duration: Interval,
    /// What is due at this time, and leased from then on: microseconds since 2000.
    pub now: i64,
    pub mode: PickMode<'a>,
    pub out: &'a mut RowSink,
}

/// What becomes of a document that is picked.
#[derive(Clone, Copy)]
pub enum PickMode<'a> {
    Lease(&'a Lease),
    /// It is removed; if the transaction is rolled back, it was never picked.
    Remove,
}

impl PickMode<'_> {
    /// The number of the lease.
    fn number(self) -> Option<i64> {
        match self {
            Self::Lease(lease) => Some(lease.number()),
            Self::Remove => None,
        }
    }

    fn access(self) -> Access {
        match self {
            Self::Lease(_) => Access::Update,
            Self::Remove => Access::DeleteReady,
        }
    }
}

/// Leases up to `limit` due documents for `duration`, and says how many; their columns
/// are those of the contract. Not more than the queue allows.
pub fn pick(queue: &Queue, mut pick: Pick) -> i32 {
    if queue.policy.is_limited() {
        // (its files must not end with a subtransaction)
        pick.out.prepare();
    }
    let (version, limit, now) = (pick.version, pick.limit, pick.now);
    let what = match pick.mode {
        PickMode::Lease(_) => limits::Use::Lease,
        PickMode::Remove => limits::Use::Pop,
    };
    limits::pick(queue, what, version, limit, now, |limit| {
        pick.limit = limit;
        pick_ready(queue, &mut pick)
    })
}

fn pick_ready(queue: &Queue, pick: &mut Pick) -> i32 {
    let known = queue
        .floors()
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
fn pick_levels(queue: &Queue, source: &QueueFloors, levels: &[View], pick: &mut Pick) -> i32 {
    let now = pick.now;
    let mut due = levels
        .iter()
        .filter(|level| level.floor.next_iteration <= now)
        .peekable();
    if due.peek().is_none() {
        source.count_answered_poll();
        return 0;
    }
    let mut picked = 0;
    for level in due {
        picked += pick_level(queue, source, level, pick, pick.limit - picked);
        if picked == pick.limit {
            break;
        }
    }
    record_picks(queue, pick.mode, pick.version, picked);
    picked
}

fn pick_level(
    queue: &Queue,
    source: &QueueFloors,
    level: &View,
    pick: &mut Pick,
    limit: i32,
) -> i32 {
    let raise_is_due = source.count_picks(pick.version, level.id, limit);
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
                Arg::from(pick.mode.number()),
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
        None => source.advance_level(pick.version, level.id, Key::LAST),
        // The place of a document that was alive.
        Some(last) if raise_is_due => source.advance_level(pick.version, level.id, last),
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
    // That is for a statement.
    if matches!(pick.mode, PickMode::Remove) && queue.policy.dropped == Keep::InHistory {
        return claimed;
    }
    let Some(mut documents) = queue.documents(pick.mode.access()) else {
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
        let change = match pick.mode {
            PickMode::Lease(lease) => {
                row.set(Column::Lease, &Arg::from(lease.number()));
                row.set(
                    Column::WorkerSession,
                    &Arg::from(lease.worker_session(queue.id)),
                );
                documents.replace(&mut row, false)
            }
            PickMode::Remove => documents.remove(&row, false),
        };
        match change {
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
        let columns = PICKED.map(|column| row.arg(column));
        match pick.mode {
            PickMode::Lease(_) => pick.out.push(&columns),
            // (all but the lease)
            PickMode::Remove => pick.out.push(&columns[..columns.len() - 1]),
        }
        claimed.n += 1;
        claimed.last = Some(key);
    }
    if claimed.n > 0 && matches!(pick.mode, PickMode::Lease(_)) {
        note_entry(queue, 0, 0, Status::Active, Key::at(end));
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
        note_entry(queue, 0, 0, Status::Active, Key::at(end));
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
    record_picks(queue, pick.mode, pick.version, claimed.n);
    claimed.n
}

/// Looks without floors when it is time to.
fn safety_net(queue: &Queue, source: &QueueFloors, pick: &mut Pick) -> i32 {
    let mut picked = 0;
    source.full_scan(pick.version, queue.name.as_str(), || {
        spi::connect(|spi| {
            let rows = lock_and_claim(spi, queue, pick, pick.limit);
            record_picks(queue, pick.mode, pick.version, rows.affected());
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
    let lease = Arg::from(pick.mode.number());
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
    if queue.policy.max_active.is_some() && matches!(pick.mode, PickMode::Lease(_)) {
        cap::occupy(spi, queue, rows);
    }
    let claimed = match pick.mode {
        PickMode::Lease(lease) => {
            let args = [
                rows.tids(12),
                pick.duration.arg(),
                Arg::timestamp(pick.now),
                Arg::from(lease.number()),
                Arg::from(lease.worker_session(queue.id)),
            ];
            queue.run_noting(spi, &PICK_CLAIM, &args).affected()
        }
        PickMode::Remove if queue.policy.dropped == Keep::InHistory => {
            history::pop(spi, queue, rows.tids(12))
        }
        PickMode::Remove => queue.run(spi, &POP, &[rows.tids(12)]).affected(),
    };
    if claimed != rows.affected() {
        pgrx::error!(
            "only {claimed} of {} locked documents could be claimed: a trigger or policy on the documents of queue {} keeps them from being updated",
            rows.affected(),
            queue.name
        );
    }
    if matches!(pick.mode, PickMode::Lease(_)) {
        leased(queue, rows);
    }
}
