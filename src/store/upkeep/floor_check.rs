//! Looks for documents below the ready floors, in case a floor was too high.

use pgrx::pg_sys::Oid;

use crate::domain::status::Status;
use crate::late::memory;
use crate::pg::index_look::{self, Look};
use crate::pg::index_walk::{Column, Identity};
use crate::pg::session;
use crate::pg::spi;
use crate::pg::subtransaction;
use crate::pg::time;
use crate::pg::value::Arg;
use crate::ready::floors::{self, QueueFloors};
use crate::ready::group::View;
use crate::ready::key::{DueKey, Key, PickKey};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::{Scope, Statement};

/// The number of documents that one check finds at most. The next one finds the others.
const LIMIT: i64 = 100;

// Index of both: the due index, a range of one status up to the floor. The rows are locked, so
// that no other session changes one and then advances the floor above it.
macro_rules! below_floor {
    ($status:literal) => {
        concat!(
            "select c.next_iteration, c.seq from only {docs} c
             where c.status {=} ",
            $status,
            " and c.lock_upgrade is null
                 and c.next_iteration {<=} pg_catalog.now()
                 and (c.next_iteration, c.seq) {<} ($1, $2)
             order by c.next_iteration, c.seq
             limit $3
             for update skip locked"
        )
    };
}

static LIST_PLANNED: Statement = Statement::new(below_floor!("{planned}"));
static LIST_ACTIVE: Statement = Statement::new(below_floor!("{active}"));

/// Checks, about once a second for each queue, that no due document is below the floors of the
/// due index. A document that is there is reported, and the floor is lowered to it. To be called
/// before the floors are read.
pub(in crate::store) fn check_due_floors(queue: &Queue, floors: &QueueFloors) {
    // With an older snapshot, documents that other sessions have changed since could not be locked.
    if session::keeps_snapshot() {
        return;
    }
    floors.full_scan_of_due(queue.name.as_str(), |levels| {
        let below = |status, statement| below(queue, floors.due_index, levels, status, statement);
        let mut found = below(Status::Planned, &LIST_PLANNED);
        found.extend(below(Status::Active, &LIST_ACTIVE));
        found
    });
}

/// The number of entries below a floor that are read before the statement is run. Those of rows that are
/// gone are most of them, and vacuum removes these.
const LOOK: u32 = 100;

/// Returns whether a document may be below a floor of the due index. It costs less than the statement,
/// which has a plan of its own for each queue.
fn may_be_below(queue: &Queue, due_index: Oid, status: Status, floor: DueKey) -> bool {
    let Some(index) = queue.for_walk(Some(due_index)) else {
        return true;
    };
    let now = time::now();
    let is_beyond = |entry: &[Column; 2]| match *entry {
        [Column::Timestamptz(time), Column::Int8(seq)] => {
            time > now || DueKey::new(time, seq) >= floor
        }
        _ => false,
    };
    let first = [Column::Timestamptz(i64::MIN), Column::Int8(i64::MIN)];
    let prefix = [status.code()];
    let mut budget = LOOK;
    let look = index_look::first_visible(
        queue.table,
        index,
        &prefix,
        first,
        is_beyond,
        None,
        &mut budget,
    );
    !matches!(look, Look::NothingBefore(_))
}

/// Lists the due documents of a status below its floor: the code of the status, and the key.
fn below(
    queue: &Queue,
    due_index: Oid,
    levels: &[View],
    status: Status,
    statement: &'static Statement,
) -> Vec<(i32, DueKey)> {
    let level = levels.iter().find(|level| level.id == status.code());
    // Nothing is below a floor that was never advanced.
    let Some(level) = level.filter(|level| level.floor != Key::FIRST) else {
        return Vec::new();
    };
    let floor = level.floor.due();
    if !may_be_below(queue, due_index, status, floor) {
        return Vec::new();
    }
    let args = [
        Arg::timestamp(floor.next_iteration),
        Arg::from(floor.seq),
        Arg::from(LIMIT),
    ];
    spi::connect(|spi| {
        let rows = queue.run(spi, statement, &args);
        let key = |row| {
            let time = rows.timestamp(row, 1)?;
            Some((status.code(), DueKey::new(time, rows.get(row, 2)?)))
        };
        (0..rows.len()).filter_map(key).collect()
    })
}

// Index: pick, a range of one priority up to the floor. The rows are locked as above.
static LIST_READY: Statement = Statement::new(
    "select c.next_iteration, c.attempts, c.seq, c.subject::pg_catalog.text, c.created_at
     from only {docs} c
     where c.version {=} $1
         and c.priority {=} $2
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and (c.next_iteration, c.attempts, c.seq) {<} ($3, $4, $5)
     order by c.next_iteration, c.attempts, c.seq
     limit $6
     for update skip locked",
)
.in_scope(Scope::Nothing);

/// Checks all floors of a queue, for the job `cmp`, so that not even a defect of them can hide a
/// document forever.
///
/// The floors stay as they are. To forget them instead would have each pick read over the entries of all
/// documents that are gone and that vacuum could not remove: millions, while an old snapshot is held.
pub fn check_all(queue: &Queue) {
    if session::keeps_snapshot() {
        // This transaction could not lock documents that others have changed since its snapshot.
        floors::forget(queue.table);
        return;
    }
    let Some(floors) = queue.floors() else {
        return;
    };
    check_due_floors(queue, &floors);
    for version in floors.versions() {
        // The locks go at once, because `cmp` has other work to do. What was noted stays.
        subtransaction::roll_back_unless_kept(|| {
            floors.full_scan_below(version, queue.name.as_str(), |priority| {
                match floors.floor(version, priority) {
                    // Nothing is below a floor that was never advanced.
                    Some(floor) if floor != Key::FIRST.pick() => {
                        ready_below(queue, version, priority, floor)
                    }
                    _ => Vec::new(),
                }
            });
            ((), false)
        });
    }
}

/// Lists the keys of the ready documents of a priority below its floor.
fn ready_below(queue: &Queue, version: i32, priority: i32, floor: PickKey) -> Vec<PickKey> {
    let args = [
        Arg::from(version),
        Arg::from(priority),
        Arg::timestamp(floor.next_iteration),
        Arg::from(floor.attempts),
        Arg::from(floor.seq),
        Arg::from(LIMIT),
    ];
    spi::connect(|spi| {
        let rows = queue.run(spi, &LIST_READY, &args);
        let key = |row| {
            let subject: String = rows.get(row, 4)?;
            // The row is locked, so nobody settles it meanwhile.
            let (time, attempts, seq) = (
                rows.timestamp(row, 1)?,
                rows.get(row, 2)?,
                rows.get(row, 3)?,
            );
            let document = Identity {
                subject: subject.as_bytes(),
                seq,
                created_at: rows.timestamp(row, 5).unwrap_or(0),
            };
            let is_leased = memory::has_lease(queue.table, &document);
            (!is_leased).then(|| PickKey::new(time, attempts, seq))
        };
        (0..rows.len()).filter_map(key).collect()
    })
}
