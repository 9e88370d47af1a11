//! Whether a document can be picked now, and if not, when: for waiters, and for picks with a
//! limit. The limits themselves are in `limits.rs`.

use crate::late::memory;
use crate::pg::documents_check::Access;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::ready::group::View;
use crate::ready::key::PickKey;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::Statement;

/// When to look again where the floors are not known: 0.1 s, because it is not known when the
/// next document is ready.
const UNKNOWN_RETRY_US: i64 = 100_000;

/// When to look again where another session has locked the ready documents: 1 s. A rollback
/// wakes the waiters, but the rollback of a subtransaction does not.
const LOCKED_RETRY_US: i64 = 1_000_000;

/// Whether a document can be picked.
pub enum Readiness {
    Now,
    /// Not before this time in microseconds since 2000, unless a commit makes a document
    /// ready.
    NotBefore(i64),
}

// Index: pick, from the floor of one priority on. Used only where `Queue::documents` returns
// None. It does not know the subtransactions of running transactions, so that documents that
// those have picked seem unlocked.
static READY_OF_LEVEL: Statement = Statement::new(
    "select from only {docs} c
     where c.version {=} $1
         and c.priority {=} $2
         and (c.next_iteration, c.attempts, c.seq) {>=} ($3, $4, $5)
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and c.next_iteration {<=} $6
         and (c.expires_at is null or c.expires_at {>} $6 or c.attempts {>} 0)
         and c.xmax {<>} all (select x::pg_catalog.xid from pg_catalog.pg_snapshot_xip(pg_catalog.pg_current_snapshot()) x)
     order by c.next_iteration, c.attempts, c.seq
     limit 1",
);

// The same for all priorities at once, where the floors are not known. Index: pick.
static READY: Statement = Statement::new(
    "select from only {docs} c
     where c.version {=} $1
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and c.next_iteration {<=} $2
         and (c.expires_at is null or c.expires_at {>} $2 or c.attempts {>} 0)
         and c.xmax {<>} all (select x::pg_catalog.xid from pg_catalog.pg_snapshot_xip(pg_catalog.pg_current_snapshot()) x)
     order by c.priority desc, c.next_iteration, c.attempts, c.seq
     limit 1",
);

/// Returns whether a document of a version can be picked at the time `now`, in microseconds since
/// 2000, without regard to the limits of the queue.
pub fn readiness(queue: &Queue, version: i32, now: i64) -> Readiness {
    let Some((floors, levels)) = queue.levels(version) else {
        return match has_unlocked(queue, version, None, now) {
            true => Readiness::Now,
            // A document that was rejected is pending, and becomes ready only when its lease
            // would have expired.
            false => Readiness::NotBefore(now + UNKNOWN_RETRY_US),
        };
    };
    let mut next = i64::MAX;
    for level in levels.as_slice() {
        if level.floor.next_iteration() > now {
            next = next.min(level.floor.next_iteration());
            continue;
        }
        if has_unlocked(queue, version, Some(level), now) {
            return Readiness::Now;
        }
        floors.advance_level(
            version,
            level.id,
            PickKey::LAST,
            memory::passed(queue.table),
        );
        let advanced = floors.levels(version).and_then(|levels| {
            let same = levels.as_slice().iter().find(|view| view.id == level.id);
            same.map(|view| view.floor.next_iteration())
        });
        next = next.min(match advanced {
            Some(time) if time > now => time,
            // Another session has picked the first document.
            _ => now + LOCKED_RETRY_US,
        });
    }
    Readiness::NotBefore(next)
}

// The number of ready documents, up to a limit. Index: pick, from the floor of one priority on.
static COUNT_OF_LEVEL: Statement = Statement::new(
    "select pg_catalog.count(*)::pg_catalog.int4 from (
         select from only {docs} c
         where c.version {=} $1
             and c.priority {=} $2
             and (c.next_iteration, c.attempts, c.seq) {>=} ($3, $4, $5)
             and c.status {=} {pending}
             and c.lock_upgrade is null
             and c.next_iteration {<=} $6
             and (c.expires_at is null or c.expires_at {>} $6 or c.attempts {>} 0)
         order by c.next_iteration, c.attempts, c.seq
         limit $7) ready",
);

// The same for all priorities at once, where the floors are not known. Index: pick.
static COUNT: Statement = Statement::new(
    "select pg_catalog.count(*)::pg_catalog.int4 from (
         select from only {docs} c
         where c.version {=} $1
             and c.status {=} {pending}
             and c.lock_upgrade is null
             and c.next_iteration {<=} $2
             and (c.expires_at is null or c.expires_at {>} $2 or c.attempts {>} 0)
         order by c.priority desc, c.next_iteration, c.attempts, c.seq
         limit $3) ready",
);

/// The parameters of the statements that read one priority from its floor on.
fn level_args(version: i32, level: &View, now: i64, limit: i32) -> [Arg; 7] {
    let floor = level.floor.pick();
    [
        Arg::from(version),
        Arg::from(level.id),
        Arg::timestamp(floor.next_iteration),
        Arg::from(floor.attempts),
        Arg::from(floor.seq),
        Arg::timestamp(now),
        Arg::from(i64::from(limit)),
    ]
}

/// How many documents of a version are ready at the time `now`, in microseconds since 2000, up
/// to `limit`. Some of them may be locked. Locks nothing, and writes nothing.
pub fn available(queue: &Queue, version: i32, now: i64, limit: i32) -> i32 {
    let Some((floors, levels)) = queue.levels(version) else {
        let args = [
            Arg::from(version),
            Arg::timestamp(now),
            Arg::from(i64::from(limit)),
        ];
        return spi::connect(|spi| queue.run(spi, &COUNT, &args).get(0, 1).unwrap_or(0));
    };
    let mut found = 0;
    for level in levels.as_slice() {
        if found == limit {
            break;
        }
        if level.floor.next_iteration() > now {
            continue;
        }
        let args = level_args(version, level, now, limit - found);
        let n: Option<i32> = spi::connect(|spi| queue.run(spi, &COUNT_OF_LEVEL, &args).get(0, 1));
        match n.unwrap_or(0) {
            // With the floor advanced, the next poll needs no query.
            0 => floors.advance_level(
                version,
                level.id,
                PickKey::LAST,
                memory::passed(queue.table),
            ),
            n => found += n,
        }
    }
    found
}

/// Returns whether there is a ready document that no other session has locked: in `level` from its
/// floor on, or in all levels. Documents that a running transaction has picked do not count,
/// because no other session can pick them unless that transaction is rolled back.
fn has_unlocked(queue: &Queue, version: i32, level: Option<&View>, now: i64) -> bool {
    if let Some(mut documents) = queue.documents(Access::Update) {
        let from = level.map(|level| {
            let key = level.floor.pick();
            (level.id, (key.next_iteration, key.attempts, key.seq))
        });
        documents.read_ready(version, from, now, 1);
        while let Some(row) = documents.next() {
            let is_leased = || memory::has_lease(queue.table, &row.identity());
            if documents.is_free() && !row.has_expired() && !is_leased() {
                return true;
            }
        }
        return false;
    }
    spi::connect(|spi| {
        let rows = match level {
            None => queue.run(spi, &READY, &[Arg::from(version), Arg::timestamp(now)]),
            Some(level) => {
                let args = level_args(version, level, now, 1);
                queue.run(spi, &READY_OF_LEVEL, &args[..6])
            }
        };
        rows.affected() > 0
    })
}
