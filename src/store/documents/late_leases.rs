//! Late leases of a queue: which leases may be late, and how they are written into the rows.
//!
//! A lease is written at once where the server must not forget it, or where code that is not fetchq's looks at
//! the rows: a client of fetchq 4, a queue with a limit, a lease that is bound to its session, the last
//! attempt of a document, triggers and policies of the user's, and for a while after a crash. And where
//! transactions can be prepared, because another session would end what they have changed in memory.
//!
//! Everybody but a pick and a settlement sees leases in the rows alone: a [`Scope`] says what has to be
//! written before a statement runs.

use std::cell::Cell;
use std::collections::HashSet;
use std::time::Duration;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::timing::{self, Tally};
use crate::error::{Error, Result, raise};
use crate::late::changes;
use crate::late::memory;
use crate::late::table::{Claim, Hold, Lease as Late, Name};
use crate::pg::documents::{Column, Documents, Row};
use crate::pg::spi::{self, Rows};
use crate::pg::value::Arg;
use crate::pg::{process, relation, session, time, transaction, virtual_transaction};
use crate::ready::key::PickKey;
use crate::settings;
use crate::signals::board::board;
use crate::signals::wakeups;
use crate::store::counters::counter_log;
use crate::store::documents::bookkeeping::note_lease;
use crate::store::documents::lease_durability;
use crate::store::documents::leases::Lease;
use crate::store::documents::pick_columns::column;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::statement::{Scope, Statement};

/// More documents than these are leased at once.
const MAX_DOCUMENTS: i32 = 1000;

/// For how long a reader waits until the background worker has written the leases: microseconds.
const FLUSH_TIMEOUT_US: i64 = 1_000_000;

/// How long a reader sleeps between two looks: microseconds. The background worker needs about a
/// millisecond.
const FLUSH_POLL_US: u64 = 300;

// The rows of the listed documents. A document is looked up for each entry of the lists, whatever statistics the
// server has: OFFSET keeps the planner from beginning with the table. Several documents can have the same key, and
// leases of the same pick.
// Index: pick, once for each document. $1 to $5 the key, $6 lease number.
macro_rules! listed {
    ($columns:literal, $lock:literal) => {
        concat!(
            "select ",
            $columns,
            " from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2), pg_catalog.unnest($3),
                 pg_catalog.unnest($4), pg_catalog.unnest($5), pg_catalog.unnest($6)) with ordinality
                 as i (version, priority, next_iteration, attempts, seq, lease, n)
             cross join lateral (
                 select c.ctid from only {docs} c
                 where c.version {=} i.version
                     and c.priority {=} i.priority
                     and c.next_iteration {=} i.next_iteration
                     and c.attempts {=} i.attempts
                     and c.seq {=} i.seq
                     and c.status {=} {pending}
                     and c.lock_upgrade is null
                     and {late_lease c} {=} i.lease
                 offset 0 ",
            $lock,
            ") c"
        )
    };
}

// $7 when the lease expires, $8 picked_at, $9 worker session. A Tid Scan, and a join with few rows.
macro_rules! write {
    ($lock:literal) => {
        concat!(
            "with found as materialized (",
            listed!("c.ctid, i.n", $lock),
            ")
             update only {docs} d set
                 status = {active},
                 attempts = least(d.attempts, 2147483646) {+} 1,
                 next_iteration = ($7)[f.n::pg_catalog.int4],
                 due_at = d.next_iteration,
                 picked_at = ($8)[f.n::pg_catalog.int4],
                 lease = ($6)[f.n::pg_catalog.int4],
                 worker_session = ($9)[f.n::pg_catalog.int4]
             from found f
             where d.ctid {=} any (array(select f.ctid from found f))
                 and d.ctid {=} f.ctid
                 and {late_lease d} {=} ($6)[f.n::pg_catalog.int4]
             returning f.n, d.due_at, d.next_iteration"
        )
    };
}

static WRITE: Statement = Statement::new(write!("")).in_scope(Scope::Nothing);

// The same, for rows that nobody has locked.
static WRITE_UNLOCKED: Statement =
    Statement::new(write!("for update of c skip locked")).in_scope(Scope::Nothing);

// Which of these documents are there, ready, and locked by somebody.
static IS_THERE: Statement = Statement::new(listed!("i.n", "")).in_scope(Scope::Nothing);

/// Returns whether leases that a pick of up to `limit` documents makes now may be late, for this delay.
fn may_be_late(queue: &Queue, limit: i32, duration: i64, delay: i64) -> bool {
    delay > 0
        && limit <= MAX_DOCUMENTS
        && duration >= 2 * delay
        && !settings::synchronous_leases()
        && !queue.policy.is_limited()
        && !transaction::may_be_prepared()
        && !lease_durability::others_write_at_commit()
        && board().is_some_and(|board| {
            board.may_lose_leases() && board.background_worker_of(session::database()).is_some()
        })
}

/// Who has a document that a pick wants.
pub enum Claimed {
    /// It is leased now, and its row stays as it is.
    Late,
    /// It has no lease here: the row decides.
    InRow,
    /// Another session's.
    Taken,
}

/// What a pick wants.
pub struct Wanted<'a> {
    /// The lease of the documents. None: they are removed.
    pub lease: Option<&'a Lease>,
    /// The greatest number of documents.
    pub limit: i32,
    pub version: i32,
    /// In microseconds since 2000, as the next one.
    pub now: i64,
    pub expires_at: i64,
}

/// The claims of a pick.
pub struct Claims<'a> {
    /// None: the server has no late leases.
    table: Option<u32>,
    wanted: Wanted<'a>,
    /// When the leases are written at the latest, in microseconds since 2000. None: at once.
    write_at: Option<i64>,
    last: Option<Name>,
}

impl<'a> Claims<'a> {
    /// Begins the claims of a pick.
    pub fn begin(queue: &Queue, wanted: Wanted<'a>) -> Self {
        let exists = memory::exists();
        let delay = settings::lease_write_delay(queue.policy.lease_write_delay);
        let duration = wanted.expires_at.saturating_sub(wanted.now);
        let is_late = exists
            && wanted.lease.is_some_and(|lease| !lease.is_bound())
            && may_be_late(queue, wanted.limit, duration, delay);
        Self {
            table: exists.then(|| queue.table.to_u32()),
            write_at: is_late.then(|| wanted.now.saturating_add(delay)),
            wanted,
            last: None,
        }
    }

    /// Claims the document of a row. `is_there`: nobody has locked or changed the row since it was read.
    pub fn claim(
        &mut self,
        queue: &Queue,
        row: &Row,
        key: PickKey,
        is_there: impl Fn() -> bool,
    ) -> Claimed {
        let Some(table) = self.table else {
            return Claimed::InRow;
        };
        let name = memory::name(table, row.subject_bytes());
        self.last = Some(name);
        let max_attempts = match row.is_null(Column::MaxAttempts) {
            true => queue.policy.max_attempts,
            false => row.int4(Column::MaxAttempts),
        };
        let is_last = key.attempts.saturating_add(1) >= max_attempts;
        if let (Some(lease), Some(write_at), false) = (self.wanted.lease, self.write_at, is_last) {
            let (block, offset) = row.place();
            let late = Late {
                block,
                offset,
                version: self.wanted.version,
                priority: row.int4(Column::Priority),
                key,
                created_at: row.timestamp(Column::CreatedAt).unwrap_or(0),
                number: lease.number(),
                worker_session: lease.worker_session(queue.id),
                picked_at: self.wanted.now,
                expires_at: self.wanted.expires_at,
                write_at,
            };
            let mut claim = changes::claim(name, late, None);
            if let Claim::Other(gone) = claim
                && is_there()
            {
                claim = changes::claim(name, late, Some(gone));
            }
            match claim {
                Claim::Done | Claim::Replaced(_) => return Claimed::Late,
                Claim::Taken | Claim::Other(_) => return Claimed::Taken,
                Claim::InRow => {}
            }
        }
        // The row is written, so nobody may lease the document here from now on.
        match reserve(table, name) {
            true => Claimed::InRow,
            false => Claimed::Taken,
        }
    }

    /// Gives the last document back, whose row was locked or changed before it was claimed.
    pub fn unclaim(&self) {
        if let Some(name) = &self.last {
            changes::undo_last(name);
        }
    }
}

/// Reserves a document whose row a pick writes. Returns whether it has no lease here.
fn reserve(table: u32, name: Name) -> bool {
    let mut found = changes::reserve(name);
    if found == Hold::Full {
        // Without room for it, nobody leases it as long as the table is closed.
        changes::close(table);
        found = changes::look(&name);
    }
    !matches!(found, Hold::Lease(..) | Hold::Busy(_))
}

/// Reserves the rows of a pick that a statement has locked. Returns those that nobody else has leased.
pub fn own_rows(queue: &Queue, rows: &Rows) -> Vec<usize> {
    let all = 0..rows.len();
    let table = queue.table.to_u32();
    // A session that does not know of a limit yet may lease late.
    if !memory::exists() || queue.policy.is_limited() && !memory::has_leases(table) {
        return all.collect();
    }
    let is_own = |row: &usize| {
        let subject: String = rows.get(*row, column::SUBJECT).unwrap_or_default();
        reserve(table, memory::name(table, subject.as_bytes()))
    };
    all.filter(is_own).collect()
}

/// What a row would have in a column that a lease writes.
pub fn column_of(lease: &Late, column: Column) -> Arg {
    match column {
        Column::Status => Arg::from(Status::Active.code()),
        Column::Attempts => Arg::from(lease.key.attempts.saturating_add(1)),
        Column::NextIteration => Arg::timestamp(lease.expires_at),
        Column::DueAt => Arg::timestamp(lease.key.next_iteration),
        Column::PickedAt => Arg::timestamp(lease.picked_at),
        Column::WorkerSession => Arg::from(lease.worker_session),
        _ => Arg::from(lease.number),
    }
}

/// Fills in the columns of a document that is leased here, as its row would have them.
fn fill_in(row: &mut Row, lease: &Late) {
    for column in [
        Column::Status,
        Column::Attempts,
        Column::NextIteration,
        Column::DueAt,
        Column::PickedAt,
        Column::Lease,
        Column::WorkerSession,
    ] {
        row.set(column, &column_of(lease, column));
    }
}

/// Returns whether a row is the one that was leased, and has not changed since in what decides that.
fn is_of(row: &Row, subject: &str, lease: &Late) -> bool {
    row.subject_bytes() == subject.as_bytes()
        && row.int4(Column::Status) == Status::Pending.code()
        && row.int8(Column::Seq) == lease.key.seq
        && row.timestamp(Column::CreatedAt).unwrap_or(0) == lease.created_at
        && row.int4(Column::Version) == lease.version
        && row.int4(Column::Priority) == lease.priority
        && row.int8(Column::NextIteration) == lease.key.next_iteration
        && row.int4(Column::Attempts) == lease.key.attempts
}

/// A document that is to be settled.
pub enum Found {
    /// It is leased here, and held: the row as it would be.
    Late(Row, Late),
    /// The row says what it is.
    Row,
}

/// Finds a document that is to be settled, and holds it if it is leased here. `number`: that of the lease, if the
/// caller says which one.
pub fn find(queue: &Queue, documents: &mut Documents, subject: &str, number: Option<i64>) -> Found {
    let table = queue.table.to_u32();
    if !memory::exists() || !memory::has_leases(table) {
        return Found::Row;
    }
    let name = memory::name(table, subject.as_bytes());
    // The lease of somebody else is not held up.
    if number.is_some() && memory::lease(&name).is_none_or(|lease| Some(lease.number) != number) {
        return Found::Row;
    }
    let Hold::Lease(lease, _) = changes::hold(name, false) else {
        return Found::Row;
    };
    let row = documents.fetch(lease.block, lease.offset);
    let row = match row.filter(|row| is_of(row, subject, &lease)) {
        Some(row) => Some(row),
        // The row has moved.
        None => documents
            .find(subject)
            .filter(|row| is_of(row, subject, &lease)),
    };
    match row {
        Some(mut row) => {
            fill_in(&mut row, &lease);
            Found::Late(row, lease)
        }
        // Somebody has changed it with SQL of their own, or the snapshot is older.
        None => {
            not_written(queue, &[(name, lease)], &[false]);
            Found::Row
        }
    }
}

/// Ends the lease of a document whose row is no longer the one that was leased. Whoever waits looks: there may be
/// another one with its subject.
fn void(queue: &Queue, name: &Name) {
    changes::void(name);
    wakeups::capacity_freed(queue.table.to_u32(), 1);
}

/// Returns the worker session of a document that is leased here under a number.
pub fn session_of(queue: &Queue, subject: &str, number: i64) -> Option<i64> {
    let table = queue.table.to_u32();
    if !memory::exists() || !memory::has_leases(table) {
        return None;
    }
    let lease = memory::lease(&memory::name(table, subject.as_bytes()))?;
    (lease.number == number).then_some(lease.worker_session)
}

/// Gives a document back that [`find`] holds, and that is not settled.
pub fn give_back(queue: &Queue, subject: &str) {
    changes::give_back(&memory::name(queue.table.to_u32(), subject.as_bytes()));
}

/// The bucket of the wait of a document that is settled before its lease was written.
pub fn wait(lease: &Late) -> i16 {
    timing::bucket(lease.picked_at.saturating_sub(lease.key.next_iteration))
}

/// A parameter with a value of each lease.
pub fn list(leases: &[Late], value: impl Fn(&Late) -> Arg) -> Arg {
    Arg::array(&leases.iter().map(value).collect::<Vec<Arg>>())
}

/// Where in a list a row of a statement belongs that returns its number first.
fn place(rows: &Rows, row: usize) -> Option<usize> {
    let number: i64 = rows.get(row, 1)?;
    usize::try_from(number - 1).ok()
}

/// Leases that one statement writes.
const AT_ONCE: usize = 100;

/// Writes leases that this transaction holds. Returns for each whether its document was there.
fn write(queue: &Queue, statement: &'static Statement, leases: &[Late]) -> Vec<bool> {
    let mut written = Vec::with_capacity(leases.len());
    let mut waits = Tally::new();
    for leases in leases.chunks(AT_ONCE) {
        written.extend(write_some(queue, statement, leases, &mut waits));
    }
    counter_log::record_late_picks(queue, &waits);
    written
}

fn write_some(
    queue: &Queue,
    statement: &'static Statement,
    leases: &[Late],
    waits: &mut Tally,
) -> Vec<bool> {
    let mut written = vec![false; leases.len()];
    let list = |value: fn(&Late) -> Arg| list(leases, value);
    let mut args = key_of(leases);
    args.extend([
        list(|lease| Arg::timestamp(lease.expires_at)),
        list(|lease| Arg::timestamp(lease.picked_at)),
        list(|lease| Arg::from(lease.worker_session)),
    ]);
    spi::connect(|spi| {
        let rows = queue.run_noting(spi, statement, &args);
        for row in 0..rows.len() {
            let Some((lease, is_written)) =
                place(&rows, row).and_then(|at| Some((leases.get(at)?, written.get_mut(at)?)))
            else {
                continue;
            };
            waits.add(counter_log::wait_bucket(
                lease.picked_at,
                rows.timestamp(row, 2),
            ));
            note_lease(queue, rows.timestamp(row, 3).unwrap_or(i64::MIN));
            *is_written = true;
        }
    });
    written
}

/// Gives back what this transaction holds and has not written, because somebody has locked the row.
fn not_written(queue: &Queue, held: &[(Name, Late)], written: &[bool]) {
    let left = there(queue, held, written);
    left.iter().for_each(|(name, _)| changes::give_back(name));
}

/// Returns what this transaction holds and has not written, because somebody has locked or changed the row. A
/// document that is gone has no lease any more.
fn there(queue: &Queue, held: &[(Name, Late)], written: &[bool]) -> Vec<(Name, Late)> {
    let left = held
        .iter()
        .zip(written)
        .filter(|(_, is_written)| !**is_written);
    let left: Vec<(Name, Late)> = left.map(|(held, _)| *held).collect();
    if left.is_empty() {
        return left;
    }
    let leases: Vec<Late> = left.iter().map(|(_, lease)| *lease).collect();
    let there: HashSet<usize> = spi::connect(|spi| {
        // A document may have been put after the snapshot of this transaction was taken.
        let rows = queue.run_latest(spi, &IS_THERE, &key_of(&leases));
        (0..rows.len())
            .filter_map(|row| place(&rows, row))
            .collect()
    });
    if !there.is_empty() && session::keeps_snapshot() {
        raise(Err(Error::OlderSnapshot(queue.name.to_string())))
    }
    let mut kept = Vec::with_capacity(there.len());
    for (at, (name, lease)) in left.into_iter().enumerate() {
        match there.contains(&at) {
            true => kept.push((name, lease)),
            false => void(queue, &name),
        }
    }
    kept
}

/// The parameters of `listed`.
fn key_of(leases: &[Late]) -> Vec<Arg> {
    let list = |value: fn(&Late) -> Arg| list(leases, value);
    vec![
        list(|lease| Arg::from(lease.version)),
        list(|lease| Arg::from(lease.priority)),
        list(|lease| Arg::timestamp(lease.key.next_iteration)),
        list(|lease| Arg::from(lease.key.attempts)),
        list(|lease| Arg::from(lease.key.seq)),
        list(|lease| Arg::from(lease.number)),
    ]
}

/// Holds a document before its row is changed, so that it cannot be leased here, and writes its lease.
fn hold(queue: &Queue, name: Name) -> Option<(Name, Late)> {
    let mut hold = changes::hold(name, true);
    if hold == Hold::Full {
        // Without room for it, nobody leases it as long as the table is closed. Somebody may have before.
        changes::close(queue.table.to_u32());
        hold = changes::hold(name, false);
    }
    match hold {
        Hold::Lease(lease, _) => Some((name, lease)),
        _ => None,
    }
}

/// Writes the late leases that a statement has to see in the rows.
pub fn before(queue: &Queue, scope: Scope, args: &[Arg]) {
    let table = queue.table.to_u32();
    let of = |subject: &str| memory::name(table, subject.as_bytes());
    let held: Vec<(Name, Late)> = match scope {
        Scope::Nothing => return,
        Scope::Reading => {
            match is_background_worker() {
                true => write_unlocked(queue, &memory::leased(|name, _| name.table == table)),
                false => flush(table),
            }
            // Its own are not there for the background worker.
            let names = changes::claimed(table).into_iter();
            names.filter_map(|name| hold(queue, name)).collect()
        }
        Scope::Subject(number) => {
            let subject = args.get(number - 1).and_then(Arg::text);
            subject
                .and_then(|subject| hold(queue, of(&subject)))
                .into_iter()
                .collect()
        }
        Scope::Subjects(number) => {
            let subjects = args.get(number - 1).map(Arg::texts).unwrap_or_default();
            let mut subjects: Vec<&str> = subjects.iter().map(|subject| &**subject).collect();
            // In the order in which rows are locked.
            subjects.sort_unstable();
            subjects.dedup();
            let held = |subject| hold(queue, of(subject));
            subjects.into_iter().filter_map(held).collect()
        }
        Scope::Unlocked => hold_all(queue, false),
        Scope::Table => hold_all(queue, true),
    };
    let mut left = held;
    for _ in 0..WRITES {
        if left.is_empty() {
            return;
        }
        let leases: Vec<Late> = left.iter().map(|(_, lease)| *lease).collect();
        let written = write(queue, &WRITE, &leases);
        left = there(queue, &left, &written);
    }
    left.iter().for_each(|(name, _)| changes::give_back(name));
}

/// How often leases are written whose rows others have changed meanwhile.
const WRITES: u32 = 5;

/// Allows no new late leases of a queue, and holds those that there are. With `waits`, waits for those of other
/// transactions, and holds nothing meanwhile; otherwise passes over them.
fn hold_all(queue: &Queue, waits: bool) -> Vec<(Name, Late)> {
    let table = queue.table.to_u32();
    changes::close(table);
    loop {
        let (mut held, mut busy) = (Vec::new(), None);
        let names = match memory::has_leases(table) {
            true => memory::names(table),
            false => Vec::new(),
        };
        for name in names {
            match changes::try_hold(name, false) {
                Hold::Lease(lease, _) => held.push((name, lease)),
                Hold::Busy(other) => {
                    busy = Some(other);
                    if waits {
                        // Others wait for what this transaction has, and it is about to wait for them.
                        break;
                    }
                }
                _ => {}
            }
        }
        match busy.filter(|_| waits) {
            None => return held,
            Some(other) => {
                held.iter().for_each(|(name, _)| changes::give_back(name));
                virtual_transaction::wait_for(other);
                process::check_for_interrupts();
            }
        }
    }
}

fn table_of(name: &QueueName) -> Option<u32> {
    let exists = memory::exists();
    let table = exists.then(|| relation::lookup_data_table(&name.relation("docs")));
    table.flatten().map(pgrx::pg_sys::Oid::to_u32)
}

/// Has the rows of a queue say which documents are leased, before they are read.
pub fn before_reading(name: &QueueName) {
    let Some(table) = table_of(name) else {
        return;
    };
    match changes::claimed(table).is_empty() {
        true => flush(table),
        false => {
            if let Ok(queue) = Queue::open(name) {
                before(&queue, Scope::Reading, &[]);
            }
        }
    }
}

/// Has the rows of a queue say which documents are leased, and allows no late leases until the transaction
/// ends.
pub fn before_changing(name: &QueueName) {
    if table_of(name).is_some()
        && let Ok(queue) = Queue::open(name)
    {
        before(&queue, Scope::Table, &[]);
    }
}

/// For how long the background worker is asked to write leases that nobody has now: microseconds.
const WRITE_TIMEOUT_US: i64 = 10_000_000;

/// Has all late leases of a queue written and committed, except those of this transaction, which it writes;
/// and allows none until the transaction ends. Waits for other transactions as for a lock. Returns how many
/// there were.
///
/// Fails with `Error::LeasesNotWritten` when the background worker cannot do so.
pub fn write_all(name: &QueueName) -> Result<i64> {
    if !memory::exists() {
        return Ok(0);
    }
    let queue = Queue::open(name)?;
    let table = queue.table.to_u32();
    changes::close(table);
    let mut own: HashSet<Name> = changes::claimed(table).into_iter().collect();
    let mut there: HashSet<Name> = memory::names(table).into_iter().collect();
    let mut until = time::clock() + WRITE_TIMEOUT_US;
    // Without a background worker, this transaction writes them.
    while is_served() {
        // It asks again, because others may have committed leases meanwhile.
        IN_VAIN.set(0);
        flush(table);
        let left = memory::names(table);
        let Some(name) = left.into_iter().find(|name| !own.contains(name)) else {
            break;
        };
        there.insert(name);
        match changes::look(&name) {
            Hold::Busy(other) => {
                virtual_transaction::wait_for(other);
                until = time::clock() + WRITE_TIMEOUT_US;
            }
            // This transaction has changed its row.
            Hold::Own => {
                own.insert(name);
                there.remove(&name);
            }
            // The background worker could not write it yet.
            _ => process::sleep_in_session(Duration::from_micros(FLUSH_POLL_US)),
        }
        process::check_for_interrupts();
        if time::clock() > until {
            return Err(Error::LeasesNotWritten(queue.name.as_str().to_owned()));
        }
    }
    before(&queue, Scope::Table, &[]);
    Ok(i64::try_from(there.len()).unwrap_or(i64::MAX))
}

/// Has the counters say how many documents are leased.
pub fn before_counters() {
    if memory::exists() && memory::has_any_here() {
        flush_now();
    }
}

/// Has the background worker write all leases of a table that others can see, and waits for that a moment.
fn flush(table: u32) {
    if memory::has_leases(table) {
        flush_now();
    }
}

/// Returns whether this process is the background worker of its database.
fn is_background_worker() -> bool {
    let worker = board().and_then(|board| board.background_worker_of(session::database()));
    let process = worker.and_then(|worker| worker.slot.process());
    process.is_some_and(|(pid, _)| pid == session::pid())
}

fn flush_now() {
    if is_background_worker() {
        return;
    }
    let Some(worker) = board().and_then(|board| board.background_worker_of(session::database()))
    else {
        return;
    };
    let transaction = virtual_transaction::current();
    if IN_VAIN.get() == transaction {
        return;
    }
    let request = worker.request_leases();
    let until = time::clock() + FLUSH_TIMEOUT_US;
    while !worker.has_written_leases(request) {
        if time::clock() >= until {
            IN_VAIN.set(transaction);
            return;
        }
        process::sleep_in_session(Duration::from_micros(FLUSH_POLL_US));
    }
}

thread_local! {
    /// The transaction that has waited for the background worker in vain: it does not wait again.
    static IN_VAIN: Cell<u64> = const { Cell::new(0) };
}

/// Returns whether a background worker writes the leases of this database.
fn is_served() -> bool {
    board().is_some_and(|board| board.background_worker_of(session::database()).is_some())
}

/// How long after its time a lease is written by a pick, where no background worker does it: microseconds. Another one
/// comes soon, mostly.
const OVERDUE_US: i64 = 5_000_000;

/// Writes the leases of a queue that are overdue, where no background worker does.
pub fn write_unserved(queue: &Queue) {
    let table = queue.table.to_u32();
    if !memory::exists() || !memory::has_leases(table) || is_served() {
        return;
    }
    let until = time::clock().saturating_sub(OVERDUE_US);
    let is_overdue = |name: &Name, lease: &Late| name.table == table && lease.write_at <= until;
    write_unlocked(queue, &memory::leased(is_overdue));
}

/// Forgets leases of a table that is gone.
pub fn forget(leases: &[(Name, Late)]) {
    for (name, _) in leases {
        if let Hold::Lease(..) = changes::try_hold(*name, false) {
            changes::void(name);
        }
    }
}

/// Writes leases of a queue that nobody holds and whose rows nobody has locked, for the background worker.
pub fn write_unlocked(queue: &Queue, leases: &[(Name, Late)]) {
    let held = leases
        .iter()
        .filter_map(|(name, known)| match changes::try_hold(*name, false) {
            Hold::Lease(lease, _) if lease.number == known.number => Some((*name, lease)),
            Hold::Lease(..) => {
                changes::give_back(name);
                None
            }
            _ => None,
        });
    let held: Vec<(Name, Late)> = held.collect();
    write_held(queue, &held);
}

/// Writes leases that this transaction holds, and gives those back whose rows somebody has locked.
fn write_held(queue: &Queue, held: &[(Name, Late)]) {
    let all: Vec<Late> = held.iter().map(|(_, lease)| *lease).collect();
    let written = write(queue, &WRITE_UNLOCKED, &all);
    not_written(queue, held, &written);
}
