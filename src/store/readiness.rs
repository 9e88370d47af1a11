//! Whether a document can be picked now, and if not, when: for who waits.

use crate::pg::documents_check::Access;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::ready::group::View;
use crate::ready::key::Key;
use crate::store::open_queue::Queue;
use crate::store::statement::Statement;

// Index: pick. Only where `documents` can not be had. (It does not know the parts of a
// running transaction: what those have picked seems free.)
static READY_OF_LEVEL: Statement = Statement::new(
    "select from only {docs} c
     where c.version {=} $1
         and c.priority {=} $2
         and (c.next_iteration, c.attempts, c.seq) {>=} ($3, $4, $5)
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and c.next_iteration {<=} $6
         and c.xmax {<>} all (select x::pg_catalog.xid from pg_catalog.pg_snapshot_xip(pg_catalog.pg_current_snapshot()) x)
     order by c.next_iteration, c.attempts, c.seq
     limit 1",
);

static READY: Statement = Statement::new(
    "select from only {docs} c
     where c.version {=} $1
         and c.status {=} {pending}
         and c.lock_upgrade is null
         and c.next_iteration {<=} $2
         and c.xmax {<>} all (select x::pg_catalog.xid from pg_catalog.pg_snapshot_xip(pg_catalog.pg_current_snapshot()) x)
     order by c.priority desc, c.next_iteration, c.attempts, c.seq
     limit 1",
);

/// Whether something can be picked.
pub enum Readiness {
    Now,
    /// Not before this time, unless a commit makes something ready.
    NotBefore(i64),
}

/// Whether a document of a version can be picked at this time.
pub fn readiness(queue: &Queue, version: i32, now: i64) -> Readiness {
    let known = queue.floors().and_then(|floors| {
        let levels = floors.levels(version)?;
        Some((floors, levels))
    });
    let Some((floors, levels)) = known else {
        return match any_free(queue, version, None, now) {
            true => Readiness::Now,
            // A document that was rejected is pending, and ready when its lease would end.
            false => Readiness::NotBefore(now + UNKNOWN),
        };
    };
    let mut next = i64::MAX;
    for level in levels.as_slice() {
        if level.floor.next_iteration > now {
            next = next.min(level.floor.next_iteration);
            continue;
        }
        if any_free(queue, version, Some(level), now) {
            return Readiness::Now;
        }
        floors.advance_level(version, level.id, Key::LAST);
        let advanced = floors.levels(version).and_then(|levels| {
            let same = levels.as_slice().iter().find(|view| view.id == level.id);
            same.map(|view| view.floor.next_iteration)
        });
        next = next.min(match advanced {
            Some(time) if time > now => time,
            // Somebody has picked the first.
            _ => now + TAKEN,
        });
    }
    Readiness::NotBefore(next)
}

// How many there are, up to a limit. Index: pick.
static COUNT_OF_LEVEL: Statement = Statement::new(
    "select pg_catalog.count(*)::pg_catalog.int4 from (
         select from only {docs} c
         where c.version {=} $1
             and c.priority {=} $2
             and (c.next_iteration, c.attempts, c.seq) {>=} ($3, $4, $5)
             and c.status {=} {pending}
             and c.lock_upgrade is null
             and c.next_iteration {<=} $6
         order by c.next_iteration, c.attempts, c.seq
         limit $7) ready",
);

static COUNT: Statement = Statement::new(
    "select pg_catalog.count(*)::pg_catalog.int4 from (
         select from only {docs} c
         where c.version {=} $1
             and c.status {=} {pending}
             and c.lock_upgrade is null
             and c.next_iteration {<=} $2
         order by c.priority desc, c.next_iteration, c.attempts, c.seq
         limit $3) ready",
);

/// How many documents of a version are ready, up to a limit; some of them may be locked.
/// Locks nothing, and writes nothing.
pub fn available(queue: &Queue, version: i32, now: i64, limit: i32) -> i32 {
    let known = queue.floors().and_then(|floors| {
        let levels = floors.levels(version)?;
        Some((floors, levels))
    });
    let Some((floors, levels)) = known else {
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
        if level.floor.next_iteration > now {
            continue;
        }
        let args = [
            Arg::from(version),
            Arg::from(level.id),
            Arg::timestamp(level.floor.next_iteration),
            Arg::from(level.floor.attempts),
            Arg::from(level.floor.seq),
            Arg::timestamp(now),
            Arg::from(i64::from(limit - found)),
        ];
        let n: Option<i32> = spi::connect(|spi| queue.run(spi, &COUNT_OF_LEVEL, &args).get(0, 1));
        match n.unwrap_or(0) {
            // The next poll needs no query.
            0 => floors.advance_level(version, level.id, Key::LAST),
            n => found += n,
        }
    }
    found
}

/// Whether there is a document that could be picked: of a level from its floor on, or of
/// all. Not what a transaction that still runs has picked: nobody else can have it,
/// unless that one rolls back.
fn any_free(queue: &Queue, version: i32, level: Option<&View>, now: i64) -> bool {
    if let Some(mut documents) = queue.documents(Access::Update) {
        let from = level.map(|level| {
            let key = level.floor;
            (level.id, (key.next_iteration, key.attempts, key.seq))
        });
        documents.read_ready(version, from, now);
        while documents.next().is_some() {
            if documents.is_free() {
                return true;
            }
        }
        return false;
    }
    spi::connect(|spi| {
        let rows = match level {
            None => queue.run(spi, &READY, &[Arg::from(version), Arg::timestamp(now)]),
            Some(level) => {
                let args = [
                    Arg::from(version),
                    Arg::from(level.id),
                    Arg::timestamp(level.floor.next_iteration),
                    Arg::from(level.floor.attempts),
                    Arg::from(level.floor.seq),
                    Arg::timestamp(now),
                ];
                queue.run(spi, &READY_OF_LEVEL, &args)
            }
        };
        rows.affected() > 0
    })
}

/// When to look again where it is not known when the next document is ready:
/// microseconds.
const UNKNOWN: i64 = 100_000;

/// The same where somebody has it: a rollback wakes those that wait, but for one of a
/// part of a transaction.
const TAKEN: i64 = 1_000_000;
