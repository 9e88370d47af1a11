//! Picks ready documents: leases them, or removes them. All statements here are hot.
//!
//! With ready floors a pick reads each priority from its floor on. Without them it reads all
//! priorities at once. Rows are claimed without a statement where that is possible, and the
//! statements go on from there.

use crate::domain::counter_events::Event;
use crate::domain::status::Status;
use crate::domain::timing::Tally;
use crate::late::memory;
use crate::pg::documents::{Change, Column};
use crate::pg::documents_check::Access;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::ready::floors::QueueFloors;
use crate::ready::group::View;
use crate::ready::key::PickKey;
use crate::signals::wakeups;
use crate::store::bounds::cap;
use crate::store::bounds::limits::{self, PickKind};
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{note_lease, row_settled, subjects_settled, waiter_key};
use crate::store::documents::history;
use crate::store::documents::late_leases::{self, Claimed, Claims, Wanted};
use crate::store::documents::lease_durability::{self, attempt_begun};
use crate::store::documents::leases::Lease;
use crate::store::documents::pick_columns::{
    Columns, LEASED, LOCK_ALL_LEVELS, LOCK_LEVEL, PICKED, column, index_key, push_leased,
};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::policy::Keep;
use crate::store::queues::statement::{Scope, Statement};

/// Counts documents that were picked. If the transaction is rolled back, waiters are woken,
/// because the documents are ready again.
fn record_picks(queue: &Queue, mode: PickMode, version: i32, waits: &Tally) {
    match mode {
        PickMode::Lease(_) => counter_log::record_timed(queue, 0, Event::Pick, waits),
        PickMode::Remove => counter_log::record_timed(queue, version, Event::Pop, waits),
    }
    wakeups::documents_claimed(waiter_key(queue, version), waits.n().unsigned_abs());
}

// No index: both statements are a Tid Scan of rows that this transaction has locked.
static LEASE: Statement = Statement::new(
    "update only {docs} d set
         status = {active},
         attempts = least(d.attempts, 2147483646) {+} 1,
         next_iteration = $3 {+} $2,
         due_at = d.next_iteration, picked_at = $3,
         lease = $4, worker_session = $5
     where d.ctid {=} any ($1)",
)
.in_scope(Scope::Nothing);

static REMOVE: Statement =
    Statement::new("delete from only {docs} d where d.ctid {=} any ($1)").in_scope(Scope::Nothing);

/// A pick: its arguments, and the result that gets the rows.
pub struct Pick<'a> {
    pub version: i32,
    /// The largest number of documents.
    pub limit: i32,
    /// The lease duration.
    pub duration: Interval,
    /// Documents that are due at this time are picked, and leased from then on. In
    /// microseconds since 2000.
    pub now: i64,
    pub mode: PickMode<'a>,
    pub columns: Columns,
    pub out: &'a mut RowSink,
    /// A document was found that cannot get the lease number of this pick, and the documents after
    /// it are left to the next pick. Set by the pick.
    pub is_over: bool,
}

/// What a pick does with a document.
#[derive(Clone, Copy)]
pub enum PickMode<'a> {
    /// It is leased, and becomes active.
    Lease(&'a Lease),
    /// It is removed. If the transaction is rolled back, the document is ready again.
    Remove,
}

impl PickMode<'_> {
    fn lease_number(self) -> Option<i64> {
        match self {
            Self::Lease(lease) => Some(lease.number()),
            Self::Remove => None,
        }
    }

    fn kind(self) -> PickKind {
        match self {
            Self::Lease(_) => PickKind::Lease,
            Self::Remove => PickKind::Pop,
        }
    }

    fn access(self) -> Access {
        match self {
            Self::Lease(_) => Access::Update,
            Self::Remove => Access::DeleteReady,
        }
    }
}

/// Picks up to `limit` due documents, and no more than the limits of the queue allow. Writes
/// each document into the result, and returns how many were picked.
pub fn pick(queue: &Queue, mut pick: Pick) -> i32 {
    if queue.policy.is_limited() {
        // The result must be prepared outside of the subtransaction of a limited pick,
        // because the end of that would close the files of the result.
        pick.out.prepare();
    }
    if let Some(max) = queue.policy.max_run {
        pick.duration = pick.duration.at_most(max);
    }
    late_leases::write_unserved(queue);
    let (version, limit, now) = (pick.version, pick.limit, pick.now);
    let kind = pick.mode.kind();
    lease_durability::pick(queue, kind, || {
        limits::pick(queue, kind, version, limit, now, |limit| {
            pick.limit = limit;
            pick_ready(queue, &mut pick)
        })
    })
}

fn pick_ready(queue: &Queue, pick: &mut Pick) -> i32 {
    match queue.levels(pick.version) {
        Some((floors, levels)) => match pick_levels(queue, &floors, levels.as_slice(), pick) {
            0 if !pick.is_over => full_scan(queue, &floors, pick),
            picked => picked,
        },
        None => pick_without_floors(queue, pick),
    }
}

/// Picks priority by priority, from the floor of each on.
fn pick_levels(queue: &Queue, floors: &QueueFloors, levels: &[View], pick: &mut Pick) -> i32 {
    let now = pick.now;
    let mut due = levels
        .iter()
        .filter(|level| level.floor.next_iteration() <= now)
        .peekable();
    if due.peek().is_none() {
        floors.count_answered_poll();
        return 0;
    }
    let mut waits = Tally::new();
    let mut picked = 0;
    for level in due {
        picked += pick_level(queue, floors, level, pick, pick.limit - picked, &mut waits);
        if picked == pick.limit || pick.is_over {
            break;
        }
    }
    record_picks(queue, pick.mode, pick.version, &waits);
    picked
}

fn pick_level(
    queue: &Queue,
    floors: &QueueFloors,
    level: &View,
    pick: &mut Pick,
    limit: i32,
    waits: &mut Tally,
) -> i32 {
    let advance_is_due = floors.count_picks(pick.version, level.id, limit);
    let floor = level.floor.pick();
    let mut claimed = claim_rows(queue, Some((level.id, floor)), pick, limit, waits);
    if claimed.n < limit && !claimed.is_all {
        let args = |pick: &Pick, limit: i32| {
            vec![
                Arg::from(pick.version),
                pick.duration.arg(),
                Arg::from(i64::from(limit)),
                Arg::from(level.id),
                Arg::timestamp(floor.next_iteration),
                Arg::from(floor.attempts),
                Arg::from(floor.seq),
                Arg::timestamp(pick.now),
                Arg::from(pick.mode.lease_number()),
            ]
        };
        let keys = lock_and_claim(queue, &LOCK_LEVEL, args, limit - claimed.n, pick, waits);
        claimed.n += keys.len() as i32;
        if let Some((_, last)) = keys.last() {
            claimed.last = Some(*last);
        }
    }
    if pick.is_over {
        return claimed.n;
    }
    let passed = memory::passed(queue.table);
    match claimed.last {
        // If nothing is left in the level, the next poll needs no query.
        None => floors.advance_level(pick.version, level.id, PickKey::LAST, passed),
        // The key of a document that was visible.
        Some(last) if advance_is_due => floors.advance_level(pick.version, level.id, last, passed),
        Some(_) => {}
    }
    claimed.n
}

/// The documents that were claimed without a statement.
#[derive(Default)]
struct PickedRows {
    n: i32,
    /// The key of the last one in the pick index.
    last: Option<PickKey>,
    /// No document was left out that a statement might find.
    is_all: bool,
}

/// Claims documents without a statement, in the order of the pick index: those of one
/// priority from its floor on if `from` names both, else those of all priorities.
fn claim_rows(
    queue: &Queue,
    from: Option<(i32, PickKey)>,
    pick: &mut Pick,
    limit: i32,
    waits: &mut Tally,
) -> PickedRows {
    let mut claimed = PickedRows::default();
    // The lease slots of a capped queue are assigned after the locking statement.
    if queue.policy.max_active.is_some() {
        return claimed;
    }
    // The history is written by a statement.
    if matches!(pick.mode, PickMode::Remove) && queue.policy.dropped == Keep::InHistory {
        return claimed;
    }
    let Some(mut documents) = queue.documents(pick.mode.access()) else {
        return claimed;
    };
    claimed.is_all = true;
    let expires_at = pick.duration.after(pick.now);
    let from = from.map(|(priority, key)| {
        let floor = (key.next_iteration, key.attempts, key.seq);
        (priority, floor)
    });
    documents.read_ready(pick.version, from, pick.now, limit);
    let wanted = Wanted {
        lease: match pick.mode {
            PickMode::Lease(lease) => Some(lease),
            PickMode::Remove => None,
        },
        limit: pick.limit,
        version: pick.version,
        now: pick.now,
        expires_at,
    };
    let mut late = Claims::begin(queue, wanted);
    let mut n_late = 0;
    while claimed.n < limit
        && let Some(mut row) = documents.next()
    {
        // Maintenance kills it.
        if row.has_expired() {
            continue;
        }
        let key = PickKey::new(
            row.int8(Column::NextIteration),
            row.int4(Column::Attempts),
            row.int8(Column::Seq),
        );
        // The statement finds a number that is high enough for this document and those after it.
        if let PickMode::Lease(lease) = pick.mode
            && !row.is_null(Column::Lease)
            && !lease.is_above(row.int8(Column::Lease))
        {
            claimed.is_all = false;
            break;
        }
        row.set(Column::Status, &Arg::from(Status::Active.code()));
        row.set(Column::Attempts, &Arg::from(key.attempts.saturating_add(1)));
        row.set(Column::NextIteration, &Arg::timestamp(expires_at));
        let mut is_late = false;
        let change = match pick.mode {
            PickMode::Lease(lease) => {
                row.set(Column::DueAt, &Arg::timestamp(key.next_iteration));
                row.set(Column::PickedAt, &Arg::timestamp(pick.now));
                row.set(Column::Lease, &Arg::from(lease.number()));
                row.set(
                    Column::WorkerSession,
                    &Arg::from(lease.worker_session(queue.id)),
                );
                match late.claim(queue, &row, key, || documents.state() == Change::Done) {
                    Claimed::Late => {
                        // Whoever has changed the row may have done that before it was claimed.
                        let change = documents.state();
                        is_late = change == Change::Done;
                        if !is_late {
                            late.unclaim();
                        }
                        change
                    }
                    Claimed::Taken => Change::Locked,
                    Claimed::InRow => documents.replace(&mut row, false),
                }
            }
            PickMode::Remove => {
                match late.claim(queue, &row, key, || documents.state() == Change::Done) {
                    Claimed::Taken => Change::Locked,
                    _ => documents.remove(&row, false),
                }
            }
        };
        match change {
            Change::Done => {}
            // As SKIP LOCKED does.
            Change::Locked | Change::Removed => continue,
            // Nearly always another session has picked it.
            Change::Outdated(Some(now)) if now != Status::Pending.code() => continue,
            // The document may still be ready as it is now. The statement goes on from
            // here; to continue would pick later documents first.
            Change::Outdated(_) => {
                claimed.is_all = false;
                break;
            }
        }
        match pick.mode {
            PickMode::Lease(lease) => {
                lease.given();
                let max_attempts =
                    (!row.is_null(Column::MaxAttempts)).then(|| row.int4(Column::MaxAttempts));
                attempt_begun(queue, lease, row.int4(Column::Attempts), max_attempts);
            }
            PickMode::Remove => row_settled(queue, &row),
        }
        match (pick.columns, pick.mode) {
            (Columns::Leased, _) => {
                if row.is_null(Column::MaxAttempts) {
                    row.set(Column::MaxAttempts, &Arg::from(queue.policy.max_attempts));
                }
                pick.out.push(&LEASED.map(|column| row.arg(column)));
            }
            (Columns::Picked, PickMode::Lease(_)) => {
                pick.out.push(&PICKED.map(|column| row.arg(column)));
            }
            // A removed document has no lease, which is the last column.
            (Columns::Picked, PickMode::Remove) => {
                let columns = PICKED.map(|column| row.arg(column));
                pick.out.push(&columns[..columns.len() - 1]);
            }
        }
        claimed.n += 1;
        claimed.last = Some(key);
        // A late lease is counted when it is written, or when its document is settled.
        match is_late {
            true => n_late += 1,
            false => waits.add(counter_log::wait_bucket(pick.now, Some(key.next_iteration))),
        }
    }
    drop(documents);
    if n_late > 0 {
        wakeups::documents_claimed(waiter_key(queue, pick.version), n_late);
        queue.announce(Status::Active);
    }
    if claimed.n > n_late as i32 && matches!(pick.mode, PickMode::Lease(_)) {
        note_lease(queue, expires_at);
    }
    claimed
}

fn pick_without_floors(queue: &Queue, pick: &mut Pick) -> i32 {
    let limit = pick.limit;
    let mut waits = Tally::new();
    let mut claimed = claim_rows(queue, None, pick, limit, &mut waits);
    if claimed.n < limit && !claimed.is_all {
        let keys = lock_all_levels(queue, pick, limit - claimed.n, &mut waits);
        claimed.n += keys.len() as i32;
    }
    record_picks(queue, pick.mode, pick.version, &waits);
    claimed.n
}

/// Picks without floors at intervals, in case a floor was too high. `full_scan` decides when,
/// and reports a floor that was too high by the keys of the documents that were found.
fn full_scan(queue: &Queue, floors: &QueueFloors, pick: &mut Pick) -> i32 {
    let mut picked = 0;
    floors.full_scan(pick.version, queue.name.as_str(), || {
        let mut waits = Tally::new();
        let limit = pick.limit;
        let keys = lock_all_levels(queue, pick, limit, &mut waits);
        record_picks(queue, pick.mode, pick.version, &waits);
        picked = keys.len() as i32;
        keys
    });
    picked
}

/// As `lock_and_claim`, with documents of all priorities.
fn lock_all_levels(
    queue: &Queue,
    pick: &mut Pick,
    limit: i32,
    waits: &mut Tally,
) -> Vec<(i32, PickKey)> {
    let args = |pick: &Pick, limit: i32| {
        vec![
            Arg::from(pick.version),
            pick.duration.arg(),
            Arg::from(i64::from(limit)),
            Arg::timestamp(pick.now),
            Arg::from(pick.mode.lease_number()),
        ]
    };
    lock_and_claim(queue, &LOCK_ALL_LEVELS, args, limit, pick, waits)
}

/// How often documents are looked for where others have leased some of those that were found.
const LOOKS: u32 = 20;

/// Locks up to `limit` ready documents, and claims them as `claim_locked` does. Returns the priorities and keys of
/// those that were claimed.
///
/// Looks again if others have leased some of them late just before they were locked. They find the rows locked, and
/// pass over them, too.
fn lock_and_claim(
    queue: &Queue,
    statement: &'static Statement,
    args: impl Fn(&Pick, i32) -> Vec<Arg>,
    limit: i32,
    pick: &mut Pick,
    waits: &mut Tally,
) -> Vec<(i32, PickKey)> {
    let mut keys = Vec::new();
    spi::connect(|spi| {
        for _ in 0..LOOKS {
            let left = limit - keys.len() as i32;
            let rows = queue.run(spi, statement, &args(pick, left));
            let own = claim_locked(spi, queue, &rows, pick, waits);
            let all = own.len() == rows.len();
            keys.extend(own.into_iter().map(|row| {
                let priority = rows.get(row, column::PRIORITY).unwrap_or(0);
                (priority, index_key(&rows, row))
            }));
            if all || pick.is_over {
                return;
            }
        }
    });
    keys
}

/// Leases or removes the rows that one of the locking statements has locked, and adds them to the
/// result, and their waits to `waits`. Returns which: all but those that others have leased late, or none if
/// the pick is over.
fn claim_locked(
    spi: &Spi,
    queue: &Queue,
    rows: &Rows,
    pick: &mut Pick,
    waits: &mut Tally,
) -> Vec<usize> {
    let own = late_leases::own_rows(queue, rows);
    let n = own.len() as i32;
    if own.is_empty() {
        return own;
    }
    let mut number = None;
    if let PickMode::Lease(lease) = pick.mode {
        let read = lease.number();
        let previous = (0..rows.len()).filter_map(|row| rows.get(row, column::PREVIOUS_LEASE));
        if !lease.raise_above(previous) {
            pick.is_over = true;
            return Vec::new();
        }
        lease.given();
        number = (lease.number() != read).then(|| lease.number());
    }
    if queue.policy.max_active.is_some() && matches!(pick.mode, PickMode::Lease(_)) {
        cap::assign_slots(spi, queue, rows, &own);
    }
    let ctids = rows.tids(column::CTID, &own);
    let claimed = match pick.mode {
        PickMode::Lease(lease) => {
            let args = [
                ctids,
                pick.duration.arg(),
                Arg::timestamp(pick.now),
                Arg::from(lease.number()),
                Arg::from(lease.worker_session(queue.id)),
            ];
            queue.run_noting(spi, &LEASE, &args).affected()
        }
        PickMode::Remove if queue.policy.dropped == Keep::InHistory => {
            history::pop(spi, queue, ctids)
        }
        PickMode::Remove => queue.run(spi, &REMOVE, &[ctids]).affected(),
    };
    if claimed != n {
        pgrx::error!(
            "only {claimed} of {} locked documents could be claimed: a trigger or policy on the documents of queue {} keeps them from being updated",
            n,
            queue.name
        );
    }
    if matches!(pick.mode, PickMode::Remove) {
        let subject = |row: &usize| rows.get::<String>(*row, column::SUBJECT);
        subjects_settled(queue, own.iter().filter_map(subject));
    }
    for row in own.iter().copied() {
        if let PickMode::Lease(lease) = pick.mode {
            let attempts = rows.get(row, column::ATTEMPTS).unwrap_or(i32::MAX);
            let max_attempts = rows.get(row, column::MAX_ATTEMPTS);
            attempt_begun(queue, lease, attempts, max_attempts);
        }
        let due_at = rows.timestamp(row, column::INDEX_NEXT_ITERATION);
        waits.add(counter_log::wait_bucket(pick.now, due_at));
    }
    // All rows of one pick have the same time.
    if let (PickMode::Lease(_), Some(at)) =
        (pick.mode, rows.timestamp(own[0], column::NEXT_ITERATION))
    {
        note_lease(queue, at);
    }
    if pick.columns == Columns::Leased {
        if let Some(number) = pick.mode.lease_number() {
            push_leased(queue, rows, &own, pick.now, number, pick.out);
        }
        return own;
    }
    if number.is_none() && own.len() == rows.len() {
        pick.out.extend(rows);
        return own;
    }
    for row in own.iter().copied() {
        let mut columns = rows.args(row);
        // A removed document has no lease, which is the last column.
        columns.truncate(match pick.mode {
            PickMode::Lease(_) => PICKED.len(),
            PickMode::Remove => PICKED.len() - 1,
        });
        // The rows were read with another number.
        if let (Some(number), Some(lease)) = (number, columns.last_mut()) {
            *lease = Arg::from(number);
        }
        pick.out.push(&columns);
    }
    own
}
