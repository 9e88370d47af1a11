//! Maintenance of documents: planned documents that are due become pending, and leases that
//! have expired are taken back.
//!
//! The statements are hot, because the background worker runs them whenever something is due in
//! a queue. They skip rows that other sessions have locked, so maintenance never waits for a
//! worker. The caller acts with the rights of the owner of the documents.

use crate::domain::counter_events::Event;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Result, raise};
use crate::pg::index_walk::{self, Column, Visit};
use crate::pg::spi::{self, Rows};
use crate::pg::value::Arg;
use crate::pg::{relation, subtransaction, time, transaction};
use crate::ready::due;
use crate::ready::key::DueKey;
use crate::store::bounds::keys::{as_maintenance, release_reserved};
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::{documents_ready, leases_taken, rows_settled};
use crate::store::documents::doc_put::put_all_queued;
use crate::store::documents::history;
use crate::store::documents::queued::all_queued;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::policy::Keep;
use crate::store::queues::statement::{Scope, Statement};
use crate::store::settle::dead_letters;
use crate::store::settle::dead_letters::Settler;
use crate::store::upkeep::floor_check;

// Index of all statements here: the due index, a range of one status from the floor up to now.
// They find at most as many rows as they may change.
static MARK_DEAD: Statement = Statement::new(
    "update only {docs} d set
         status = {killed}, result = null,
         last_error = pg_catalog.format('the lease of attempt %s ran out', d.attempts)
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {<} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($3, $4)
             and c.attempts {>=} coalesce(c.max_attempts, (
                 select q.max_attempts from fetchq.queues q where q.id {=} $1))
         order by c.next_iteration, c.seq
         limit $2
         for update skip locked))
     returning d.subject::pg_catalog.text, d.queued, d.worker_session",
)
.in_scope(Scope::Nothing);

static RESCHEDULE_ORPHANS: Statement = Statement::new(
    "update only {docs} d set
         status = {pending},
         last_error = pg_catalog.format('the lease of attempt %s ran out', d.attempts)
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {<} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($3, $4)
             and c.attempts {<} coalesce(c.max_attempts, (
                 select q.max_attempts from fetchq.queues q where q.id {=} $1))
         order by c.next_iteration, c.seq
         limit $2
         for update skip locked))
     returning d.subject::pg_catalog.text, d.queued, d.worker_session",
)
.in_scope(Scope::Nothing);

// Documents at their last attempt and others in one pass. With a million expired leases, of
// which few are at their last attempt, a statement for those alone would read all of them each
// time.
static EXPIRE: Statement = Statement::new(
    "update only {docs} d set
         status = case when d.attempts {>=} coalesce(d.max_attempts, (
                 select q.max_attempts from fetchq.queues q where q.id {=} $1))
             then {killed} else {pending} end,
         result = case when d.attempts {>=} coalesce(d.max_attempts, (
                 select q.max_attempts from fetchq.queues q where q.id {=} $1))
             then null else d.result end,
         last_error = pg_catalog.format('the lease of attempt %s ran out', d.attempts)
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {active}
             and c.lock_upgrade is null
             and c.next_iteration {<} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($3, $4)
         order by c.next_iteration, c.seq
         limit $2
         for update skip locked))
     returning d.subject::pg_catalog.text, d.queued, d.status, d.worker_session",
)
.in_scope(Scope::Nothing);

static MAKE_PENDING: Statement = Statement::new(
    "update only {docs} d set status = {pending}
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {planned}
             and c.lock_upgrade is null
             and c.next_iteration {<=} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($2, $3)
         order by c.next_iteration, c.seq
         limit $1
         for update skip locked))",
)
.in_scope(Scope::Nothing);

// For a queue whose documents wait for others of their key. It returns the documents that were chosen, in order, and whether each
// could be changed. $4: the keys that other transactions have locked.
static MAKE_PENDING_BY_KEY: Statement = Statement::new(
    "with chosen as (
         select c.ctid, c.subject, c.next_iteration, c.seq, c.ordering_key from only {docs} c
         where c.status {=} {planned}
             and c.lock_upgrade is null
             and c.next_iteration {<=} pg_catalog.now()
             and (c.next_iteration, c.seq) {>=} ($2, $3)
             and (c.ordering_key is null or c.ordering_key {<>} all ($4))
         order by c.next_iteration, c.seq
         limit $1
         for update skip locked),
     changed as (
         update only {docs} d set status = {pending}
         where d.ctid {=} any (array(select c.ctid from chosen c))
         returning d.subject)
     select c.ordering_key, c.next_iteration, c.seq, u.subject is not null
     from chosen c
     left join changed u on u.subject {=} c.subject
     order by c.next_iteration, c.seq",
)
.in_scope(Scope::Nothing);

// Documents that were ready at once, and that were added at a time that is yet to come: the clock was
// set back. One that has been tried may wait for its retry, and stays. Not hot: it reads all ready
// documents, and under a held snapshot all that were ready since. So `may_have_ready_after` comes first.
static CLAMP_READY: Statement = Statement::new(
    "update only {docs} d set next_iteration = pg_catalog.clock_timestamp()
     where d.ctid {=} any (array(
         select c.ctid from only {docs} c
         where c.status {=} {pending}
             and c.lock_upgrade is null
             and c.attempts {=} 0
             and c.created_at {>} (pg_catalog.clock_timestamp() {+} interval '1 second')
             and c.next_iteration {>} (pg_catalog.clock_timestamp() {+} interval '1 second')
             and pg_catalog.isfinite(c.next_iteration)
             {not_late c}
         order by c.next_iteration, c.seq
         limit $1
         for update skip locked))
         {not_late d}
     returning d.version",
)
.in_scope(Scope::Nothing);

/// How many documents one run makes due that were ready before the clock was set back. Not measured.
const MAX_CLAMPED: i64 = 100_000;

/// With more versions than this, or priorities of one of them, all ready documents are read. Not measured.
const MAX_GROUPS: usize = 100;

/// Returns whether `CLAMP_READY` may find a document: one that was not tried yet and whose time is yet to
/// come, by the clock: microseconds since 2000. It begins each version and priority of the pick index at that
/// time, so it passes by retries that wait, and by nothing that is past.
fn may_have_ready_after(queue: &Queue, time: i64) -> bool {
    let Some(index) = queue.pick_index() else {
        return true;
    };
    let is_there = |version, priority| {
        let from = [
            Column::Timestamptz(time),
            Column::Int4(i32::MIN),
            Column::Int8(i64::MIN),
        ];
        // No clock makes an infinite time.
        let is_infinite = |key: &[Column; 3]| matches!(key[0], Column::Timestamptz(i64::MAX));
        let visit = |key: &[Column; 3]| match key[1] {
            _ if is_infinite(key) => Visit::Stop,
            Column::Int4(0) => Visit::Look,
            // It may wait for its retry.
            _ => Visit::Pass,
        };
        index_walk::first_alive(
            queue.table,
            index,
            &[version, priority],
            from,
            visit,
            None,
            || (),
        )
        .is_some_and(|key| !is_infinite(&key))
    };
    let versions = index_walk::distinct_first_column(queue.table, index, MAX_GROUPS);
    versions.is_none_or(|versions| {
        versions.into_iter().any(|version| {
            index_walk::distinct_second_column(queue.table, index, version, MAX_GROUPS).is_none_or(
                |found| {
                    found
                        .into_iter()
                        .any(|priority| is_there(version, priority))
                },
            )
        })
    })
}

/// Makes documents due now that were ready before the clock was set back. Those that could not be
/// changed now are for the next run.
pub fn clamp_ready(queue: &Queue) {
    if !may_have_ready_after(queue, time::clock()) {
        return;
    }
    spi::connect(|spi| {
        let rows = as_maintenance(|| queue.run(spi, &CLAMP_READY, &[Arg::from(MAX_CLAMPED)]));
        for version in (0..rows.len()).filter_map(|row| rows.get(row, 1)) {
            documents_ready(queue, version, Status::Pending, 1);
        }
    });
}

/// A row of `MAKE_PENDING_BY_KEY`.
struct ChosenDoc {
    ordering_key: Option<String>,
    next_iteration: i64,
    seq: i64,
    is_changed: bool,
}

fn chosen_doc(rows: &Rows, row: usize) -> ChosenDoc {
    ChosenDoc {
        ordering_key: rows.get(row, 1),
        next_iteration: rows.timestamp(row, 2).unwrap_or(i64::MAX),
        seq: rows.get(row, 3).unwrap_or(i64::MAX),
        is_changed: rows.get(row, 4) == Some(true),
    }
}

/// Kills up to `limit` documents whose lease expired at their last attempt, and settles them as
/// the queue is set to. Returns how many. Fails as `dead_letters::settle_failed` does.
pub fn mark_dead(queue: &Queue, limit: i32) -> Result<i32> {
    let Some(floor) = first_due(queue, Status::Active) else {
        return Ok(0);
    };
    let args = [
        Arg::from(queue.id),
        Arg::from(i64::from(limit)),
        Arg::timestamp(floor.next_iteration),
        Arg::from(floor.seq),
    ];
    spi::connect(|spi| {
        let rows = as_maintenance(|| queue.run(spi, &MARK_DEAD, &args));
        leases_taken(queue, &rows, 3);
        let killed: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        settle_killed(queue, &killed)?;
        put_queued(queue, &all_queued(&rows, 1, 2));
        Ok(rows.affected())
    })
}

/// Settles documents that a statement has just killed.
fn settle_killed(queue: &Queue, subjects: &[String]) -> Result<()> {
    let by = Settler::Maintenance;
    dead_letters::settle_failed(queue, subjects, Event::Dead, Event::DeadRemoved, by)
}

/// Puts what was queued on documents that a statement of maintenance has just taken from their workers. It
/// has locked the keys.
pub fn put_queued(queue: &Queue, docs: &[(String, String)]) {
    put_all_queued(queue, docs);
    release_reserved(queue);
}

/// Makes up to `limit` documents pending again whose lease expired before their last attempt.
/// Returns how many.
pub fn reschedule_orphans(queue: &Queue, limit: i32) -> i32 {
    let args = [Arg::from(queue.id), Arg::from(i64::from(limit))];
    run(
        queue,
        Status::Active,
        &RESCHEDULE_ORPHANS,
        &args,
        Event::Orphan,
    )
}

/// What happened to documents whose lease had expired.
#[derive(Debug, Default, Clone)]
pub struct Expired {
    /// How many are pending again.
    pub returned: i32,
    /// How many were killed, because it was their last attempt.
    pub killed: i32,
    /// The error because of which none was killed.
    pub failure: Option<String>,
}

/// Takes back up to `limit` leases that have expired, the oldest first: their documents are
/// pending again, or killed at their last attempt. Where killed documents leave the table, an
/// error of that is returned in `failure`, so that it does not keep the other documents from
/// being retried. Elsewhere fails as `dead_letters::settle_failed` does.
pub fn expire(queue: &Queue, limit: i32) -> Result<Expired> {
    let Some(floor) = first_due(queue, Status::Active) else {
        return Ok(Expired::default());
    };
    let args = [
        Arg::from(queue.id),
        Arg::from(i64::from(limit)),
        Arg::timestamp(floor.next_iteration),
        Arg::from(floor.seq),
    ];
    if !dead_letters::removes_failed(queue) {
        return expire_from(queue, &args);
    }
    match subtransaction::attempt(|| raise(expire_from(queue, &args))) {
        Ok(expired) => Ok(expired),
        Err(message) => Ok(Expired {
            returned: reschedule_orphans(queue, limit),
            killed: 0,
            failure: Some(message),
        }),
    }
}

fn expire_from(queue: &Queue, args: &[Arg]) -> Result<Expired> {
    spi::connect(|spi| {
        let rows = as_maintenance(|| queue.run(spi, &EXPIRE, args));
        leases_taken(queue, &rows, 4);
        let subjects: Vec<String> = (0..rows.len())
            .filter(|row| rows.get(*row, 3) == Some(Status::Killed.code()))
            .filter_map(|row| rows.get(row, 1))
            .collect();
        let killed = i32::try_from(subjects.len()).unwrap_or(i32::MAX);
        let returned = rows.affected() - killed;
        settle_killed(queue, &subjects)?;
        counter_log::record_event(queue, 0, returned, Event::Orphan);
        put_queued(queue, &all_queued(&rows, 1, 2));
        Ok(Expired {
            returned,
            killed,
            failure: None,
        })
    })
}

// Index of this statement and the next one: the expiry index. $1: documents that are blocked by their
// keys expire, too.
static EXPIRE_WAITING: Statement = Statement::new(
    "with chosen as (
         select c.ctid, c.subject, c.status from only {docs} c
         where c.status {=} any (array[{planned}, {pending}])
             and c.attempts {=} 0
             and c.expires_at is not null
             and c.expires_at {<=} pg_catalog.now()
             and (c.lock_upgrade is null or $1 and c.lock_upgrade {=} 'infinity')
             {not_late c}
         order by c.expires_at
         limit $2
         for update skip locked),
     changed as (
         update only {docs} d set
             status = {killed}, result = null, last_error = 'expired',
             last_iteration = pg_catalog.now()
         where d.ctid {=} any (array(select c.ctid from chosen c))
             {not_late d}
         returning d.subject)
     select u.subject::pg_catalog.text, c.status
     from chosen c
     join changed u on u.subject {=} c.subject",
)
.in_scope(Scope::Nothing);

static NEXT_EXPIRY: Statement = Statement::new(
    "select c.expires_at from only {docs} c
     where c.status {=} any (array[{planned}, {pending}])
         and c.attempts {=} 0
         and c.expires_at is not null
         and (c.lock_upgrade is null or $1 and c.lock_upgrade {=} 'infinity')
     order by c.expires_at
     limit 1",
)
.in_scope(Scope::Nothing);

/// Returns whether documents of a queue may expire. It reads the size of an index, which is empty where
/// none ever did.
fn may_expire(queue: &Queue) -> bool {
    queue.expiry_index.is_some_and(relation::may_have_entries)
}

/// Returns whether documents of a queue, which is not opened, may expire.
pub fn has_expiry_entries(name: &QueueName) -> bool {
    let table = relation::lookup_data_table(&name.relation("docs"));
    let index = table
        .and_then(|table| relation::lookup_data_index(&name.relation("docs_expiry_idx"), table));
    index.is_some_and(relation::may_have_entries)
}

/// Returns whether a document has not begun in time.
pub fn has_expired(queue: &Queue) -> bool {
    next_expiry(queue).is_some_and(|at| at <= time::now())
}

/// Kills up to `limit` documents that did not begin in time, the oldest first. They do not move to the
/// dead-letter queue: nothing of theirs has failed, and a redrive would run what came too late. Returns
/// how many.
///
/// Fails with `Error::TableMissing` and `Error::TableBusy` where they move to the history.
pub fn expire_waiting(queue: &Queue, limit: i32) -> Result<i32> {
    if queue.policy.killed == Keep::InHistory {
        queue.require_table("history")?;
    }
    spi::connect(|spi| {
        let args = [
            Arg::from(queue.policy.key_order.blocks()),
            Arg::from(i64::from(limit)),
        ];
        let rows = as_maintenance(|| queue.run(spi, &EXPIRE_WAITING, &args));
        if rows.is_empty() {
            return Ok(0);
        }
        rows_settled(queue, &rows);
        for from in [Status::Planned, Status::Pending] {
            let statuses = (0..rows.len()).filter_map(|row| rows.get::<i32>(row, 2));
            let n = statuses.filter(|status| *status == from.code()).count();
            if let (Ok(n @ 1..), Some(event)) = (i32::try_from(n), Event::expire(from)) {
                counter_log::record_event(queue, 0, n, event);
            }
        }
        let subjects: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
        history::expired(spi, queue, &subjects);
        Ok(rows.affected())
    })
}

/// When the next document expires that does not begin before, in microseconds since 2000. None: there is
/// none.
pub fn next_expiry(queue: &Queue) -> Option<i64> {
    if !may_expire(queue) {
        return None;
    }
    spi::connect(|spi| {
        let blocks = [Arg::from(queue.policy.key_order.blocks())];
        let rows = queue.run(spi, &NEXT_EXPIRY, &blocks);
        (!rows.is_empty()).then(|| rows.timestamp(0, 1)).flatten()
    })
}

/// When to look again for a document that has expired and that no statement sees: it is in a prepared
/// transaction, or is set aside. Microseconds.
const UNSEEN_RETRY_US: i64 = 1_000_000;

/// When to look next for documents that have expired, in microseconds since 2000. None: there are none.
///
/// Whoever commits a prepared transaction does not know what it has written. So a document that it has added
/// is waited for, when it would expire and after that.
pub fn next_look_at_expiry(queue: &Queue) -> Option<i64> {
    let seen = next_expiry(queue);
    let Some(index) = queue.for_walk(queue.expiry_index) else {
        return seen;
    };
    if !transaction::may_be_prepared() || !relation::may_have_entries(index) {
        return seen;
    }
    let end = seen.unwrap_or(i64::MAX);
    let unseen = index_walk::first_alive_before(queue.table, index, end);
    let look = unseen.map(|at| at.max(time::clock() + UNSEEN_RETRY_US));
    look.into_iter().chain(seen).min()
}

/// Makes up to `limit` planned documents pending that are due. Returns how many.
pub fn make_pending(queue: &Queue, limit: i32) -> i32 {
    if queue.policy.key_order.blocks() {
        return make_pending_by_key(queue, limit);
    }
    let args = [Arg::from(i64::from(limit))];
    run(
        queue,
        Status::Planned,
        &MAKE_PENDING,
        &args,
        Event::MakePending,
    )
}

/// How often `make_pending_by_key` continues after documents that cannot be changed now.
/// Not measured: a bound for the time of one call. The next call continues.
const MAX_ROUNDS: usize = 20;

/// Makes planned documents pending in a queue whose documents wait for others of their key. Documents whose key another transaction has
/// locked stay as they are, and the documents after them are changed instead.
fn make_pending_by_key(queue: &Queue, limit: i32) -> i32 {
    let Some(mut floor) = first_due(queue, Status::Planned) else {
        return 0;
    };
    let mut locked_keys: Vec<String> = Vec::new();
    let mut n = 0;
    spi::connect(|spi| {
        for _ in 0..MAX_ROUNDS {
            let args = [
                Arg::from(i64::from(limit - n)),
                Arg::timestamp(floor.next_iteration),
                Arg::from(floor.seq),
                Arg::from(locked_keys.clone()),
            ];
            let rows = as_maintenance(|| queue.run(spi, &MAKE_PENDING_BY_KEY, &args));
            let chosen: Vec<ChosenDoc> =
                (0..rows.len()).map(|row| chosen_doc(&rows, row)).collect();
            let mut changed = 0;
            for doc in &chosen {
                if doc.is_changed {
                    changed += 1;
                } else if let Some(key) = &doc.ordering_key
                    && !locked_keys.contains(key)
                {
                    locked_keys.push(key.clone());
                }
            }
            n += changed;
            let Some(last) = chosen.last() else {
                break;
            };
            // All documents could be changed, or there are enough.
            if changed == rows.affected() || n >= limit {
                break;
            }
            floor.next_iteration = last.next_iteration;
            floor.seq = last.seq;
        }
        counter_log::record_event(queue, 0, n, Event::MakePending);
    });
    n
}

/// When the next document is due, planned or leased, in microseconds since 2000. It is in the
/// past when a document is due that cannot be changed now. None where the floors are unknown.
pub fn next_due(queue: &Queue) -> Option<i64> {
    let floors = queue.floors()?;
    let now = time::now();
    floors.due(Status::Planned.code(), now)?;
    floors.due(Status::Active.code(), now)?;
    // They are read together: the group may have lost its slot in between, and both have begun anew.
    due::known_due(queue.table.to_u32(), floors.epoch)
}

/// The ready floor of a status, from which on maintenance reads the due index. None when
/// nothing is due.
fn first_due(queue: &Queue, from: Status) -> Option<DueKey> {
    let Some(floors) = queue.floors() else {
        return Some(DueKey::FIRST);
    };
    floor_check::check_due_floors(queue, &floors);
    let now = time::now();
    match floors.due(from.code(), now) {
        Some(floor) if floor >= DueKey::until(now) => None,
        Some(floor) => Some(floor),
        None => Some(DueKey::FIRST),
    }
}

/// Runs a statement for documents of the status `from`, unless none is due, and records an
/// event for each. The parameters are `args`, and after them the floor. Returns how many.
fn run(
    queue: &Queue,
    from: Status,
    statement: &'static Statement,
    args: &[Arg],
    event: Event,
) -> i32 {
    let Some(floor) = first_due(queue, from) else {
        return 0;
    };
    let mut all_args = args.to_vec();
    all_args.extend([Arg::timestamp(floor.next_iteration), Arg::from(floor.seq)]);
    spi::connect(|spi| {
        let rows = as_maintenance(|| queue.run(spi, statement, &all_args));
        let n = rows.affected();
        if event.takes_lease() {
            leases_taken(queue, &rows, 3);
        }
        counter_log::record_event(queue, 0, n, event);
        put_queued(queue, &all_queued(&rows, 1, 2));
        n
    })
}
