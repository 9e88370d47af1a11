//! A queue that is open: what a session knows of it, its prepared plans, and the cache of
//! both, which is kept for the life of the session.
//!
//! A queue is kept by its identity, the OID of its docs table. The table is looked up by
//! name in the system cache and locked, and only then is the cache of this file read, so
//! that a queue that was dropped and created again is never served by old plans.

use std::cell::Cell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::rc::Rc;
use std::sync::OnceLock;

use pgrx::pg_sys::{Oid, TransactionId};

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::Documents;
use crate::pg::documents_check::{Access, Indexes};
use crate::pg::invalidation::{self, Invalidated, Reader};
use crate::pg::lasting::{Lasting, lasting};
use crate::pg::lock_wait;
use crate::pg::relation::{self, File, LockMode, NamedLock};
use crate::pg::session;
use crate::pg::spi::{Plan, Rows, Spi};
use crate::pg::time;
use crate::pg::time::Interval;
use crate::pg::transaction;
use crate::pg::trigger::SuppressedTriggers;
use crate::pg::value::Arg;
use crate::pg::version;
use crate::ready::floors::{self, QueueFloors};
use crate::ready::group::Views;
use crate::settings;
use crate::signals::announce;
use crate::signals::board::board;
use crate::signals::foreign_writes::Own;
use crate::store::queues::plans::PlanSet;
use crate::store::queues::policy::Policy;
use crate::store::queues::queue_catalog::{self, QueueInfo};
use crate::store::queues::queue_places;
use crate::store::queues::queue_shape::{self, Shape};
use crate::store::queues::rights::{self, Right};
use crate::store::queues::statement::Scope;
use crate::store::queues::statement::{Statement, render};

/// A queue that exists. Its docs table is locked against dropping until the end of the
/// transaction.
pub struct Queue {
    pub name: QueueName,
    /// The key of its row in `fetchq.queues`.
    pub id: i32,
    /// The docs table.
    pub table: Oid,
    pub policy: Policy,
    /// The tables of the queue, that of the documents among them.
    tables: Vec<Oid>,
    /// None of them was altered since their columns were compared.
    has_shape: Cell<bool>,
    floors: FloorObjects,
    /// Nothing of a superuser's changes or refuses a row that fetchq writes, so that what fetchq writes is
    /// what is stored.
    is_plain: bool,
    /// Status changes of documents are announced: `queue_enable_notify`.
    notifies: bool,
    /// The indexes, if all of them and the columns are as fetchq made them, so that rows can be
    /// read and written without a statement.
    indexes: Option<Indexes>,
    /// The index of documents that expire.
    pub expiry_index: Option<Oid>,
    /// The sequence of the identity column `seq`.
    sequence: Option<Oid>,
    /// The table has no columns but those that fetchq gave it, so that a row can be added
    /// without a statement.
    has_known_columns: bool,
    file: Cell<Option<File>>,
    plans: PlanSet,
    last_used: Cell<u64>,
}

/// A table of a queue beside that of the documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// It is locked until the end of the transaction.
    Ready,
    /// Another session has locked it.
    Busy,
    /// There is none.
    Missing,
}

/// What the ready floors need of a table.
struct FloorObjects {
    pick_index: Option<Oid>,
    due_index: Option<Oid>,
    /// The transaction that last wrote the catalog row of the trigger, if the trigger always
    /// runs.
    trigger: Option<TransactionId>,
    /// That was the transaction which has read this.
    is_trigger_new: Cell<bool>,
}

/// The triggers that `SuppressedTriggers` expects on a docs table: the trigger of the ready
/// floors, and for a queue with announcements the two triggers of the notifications too.
const READY_TRIGGERS: i32 = 1;
const READY_AND_NOTIFY_TRIGGERS: i32 = 3;

impl Queue {
    fn new(name: &QueueName, table: Oid, shape: Shape, info: QueueInfo) -> Self {
        let columns = shape.documents;
        let ready_trigger = info.ready_trigger.filter(|_| columns.fit_floors);
        let indexes = || {
            Some(Indexes {
                key: info.key_index.filter(|_| columns.are_as_made)?,
                pick: info.pick_index?,
                due: info.due_index?,
                expiry: info.expiry_index?,
            })
        };
        Self {
            name: name.clone(),
            id: info.id,
            table,
            tables: shape.tables,
            has_shape: Cell::new(true),
            floors: FloorObjects {
                pick_index: info.pick_index,
                due_index: info.due_index,
                trigger: ready_trigger,
                is_trigger_new: Cell::new(ready_trigger.is_some_and(transaction::is_current)),
            },
            is_plain: info.is_plain,
            notifies: info.notifies,
            expiry_index: info.expiry_index,
            indexes: indexes(),
            sequence: info.sequence,
            has_known_columns: columns.are_known,
            policy: info.policy,
            file: Cell::new(None),
            plans: PlanSet::default(),
            last_used: Cell::new(0),
        }
    }

    /// Opens a queue for reading and writing its documents. Waits for a session that drops,
    /// truncates or alters the queue.
    ///
    /// Fails with `Error::UnknownQueue` if the queue does not exist, with `Error::AlteredColumn` if one of its
    /// tables has not the columns that fetchq gave it, and with `Error::NoRight` if the caller has no right at
    /// all on it: such a role must not hold its locks.
    pub fn open(name: &QueueName) -> Result<Rc<Self>> {
        Self::open_for(name, Right::Any)
    }

    /// As [`Self::open`], for a caller who needs this right. A role without it does not get the
    /// lock, because that holds up others.
    ///
    /// Fails with `Error::UnknownQueue` and with `Error::NoRight`.
    pub fn open_for(name: &QueueName, right: Right) -> Result<Rc<Self>> {
        match Self::lock(name, right, true)? {
            Some(queue) => Ok(queue),
            None => Err(queue_places::unknown(name)),
        }
    }

    /// Opens a queue and runs `work`, for which the caller needs a right.
    ///
    /// Fails with `Error::UnknownQueue`, with `Error::NoRight`, and as `work` does.
    pub fn with<R>(
        name: &QueueName,
        right: Right,
        work: impl FnOnce(&Self) -> Result<R>,
    ) -> Result<R> {
        work(&*Self::open_for(name, right)?)
    }

    /// Opens a queue on which the caller need not have a right, because what is done there is not for
    /// the caller to choose, such as a dead-letter queue. `waits`: otherwise None if the table is
    /// locked.
    ///
    /// Fails with `Error::UnknownQueue`.
    pub(in crate::store) fn open_for_others(
        name: &QueueName,
        waits: bool,
    ) -> Result<Option<Rc<Self>>> {
        Self::lock_if(name, waits, |_| Ok(()))
    }

    /// Opens a queue for maintenance, which does not wait, or only as `lock_wait` allows: None if the
    /// table is locked. Whoever runs
    /// it has asked for the rights of the caller before.
    ///
    /// Fails with `Error::UnknownQueue` if the queue does not exist.
    pub fn try_open(name: &QueueName) -> Result<Option<Rc<Self>>> {
        lock_wait::retry(|| Self::lock(name, Right::Any, false))
    }

    fn lock(name: &QueueName, right: Right, wait: bool) -> Result<Option<Rc<Self>>> {
        Self::lock_if(name, wait, |table| rights::require_on(name, table, right))
    }

    fn lock_if(
        name: &QueueName,
        wait: bool,
        check: impl Fn(Oid) -> Result<()>,
    ) -> Result<Option<Rc<Self>>> {
        let relation_name = name.relation("docs");
        match relation::lock_data_table_if(&relation_name, LockMode::Rows, wait, check)? {
            NamedLock::Held(table, file) => {
                let queue = find_or_load(name, table)?;
                queue.file.set(Some(file));
                Ok(Some(queue))
            }
            NamedLock::Busy => Ok(None),
            NamedLock::Missing => Err(queue_places::unknown(name)),
        }
    }

    /// Locks another table of the queue, `logs`, `metrics` or `history`. Unless it `waits`, only as
    /// long as `lock_wait` allows.
    pub fn lock_table(&self, table: &str, waits: bool) -> Table {
        let name = self.name.relation(table);
        let lock = || match relation::lock_data_table(&name, LockMode::Rows, waits) {
            NamedLock::Busy => Ok(None),
            other => Ok::<_, Infallible>(Some(other)),
        };
        let Ok(locked) = lock_wait::retry(lock);
        match locked {
            Some(NamedLock::Held(..)) => Table::Ready,
            Some(NamedLock::Missing) => Table::Missing,
            Some(NamedLock::Busy) | None => Table::Busy,
        }
    }

    /// Locks another table of the queue that maintenance cannot do without.
    ///
    /// Fails with `Error::TableBusy` while another session has locked it, and with
    /// `Error::TableMissing`.
    pub fn require_table(&self, table: &str) -> Result<()> {
        match self.lock_table(table, false) {
            Table::Ready => Ok(()),
            Table::Busy => Err(Error::TableBusy {
                table: self.name.relation(table),
            }),
            Table::Missing => Err(self.missing(table)),
        }
    }

    /// The error for a table of the queue that does not exist.
    pub fn missing(&self, table: &str) -> Error {
        Error::TableMissing {
            queue: self.name.to_string(),
            table: self.name.relation(table),
        }
    }

    /// The lease duration of the queue, which a pick takes that names none.
    pub fn lease_duration(&self) -> Interval {
        Interval::from_parts(self.policy.lease_duration)
    }

    /// When a document expires that is due at a time, in microseconds since 2000: `own`, or as set for
    /// the queue, after that time, or after now where that is past. None: it does not.
    pub fn expires_at(&self, due: i64, own: Option<(i32, i32, i64)>) -> Option<i64> {
        let after = own.or(self.policy.expire_after)?;
        (due != i64::MAX).then(|| Interval::from_parts(after).after(due.max(time::now())))
    }

    /// The end of a lease that is to last until a time, for a document that was leased at `picked_at`:
    /// no later than the queue allows. In microseconds since 2000.
    pub fn lease_end(&self, picked_at: i64, until: i64) -> i64 {
        match self.policy.max_run {
            Some(max) => until.min(picked_at.saturating_add(max)),
            None => until,
        }
    }

    /// Runs a hot statement on the queue's tables.
    pub fn run<'s>(&self, spi: &'s Spi, statement: &'static Statement, args: &[Arg]) -> Rows<'s> {
        self.before(statement, args);
        // What a trigger of the user's writes meanwhile is not fetchq's.
        let _own = (self.is_plain).then(|| Own::begin(self.table.to_u32()));
        spi.run(&self.plan(spi, statement, args), args)
    }

    /// Runs a hot read of the queue's tables as of this instant, even in a transaction that keeps one
    /// snapshot.
    pub fn run_latest<'s>(
        &self,
        spi: &'s Spi,
        statement: &'static Statement,
        args: &[Arg],
    ) -> Rows<'s> {
        self.before(statement, args);
        spi.run_latest(&self.plan(spi, statement, args), args)
    }

    /// Writes the late leases that a statement has to see.
    fn before(&self, statement: &'static Statement, args: &[Arg]) {
        before(self, || statement.scope(), args);
    }

    /// The same for a statement that is no static.
    pub fn before_scope(&self, scope: Scope) {
        before(self, || scope, &[]);
    }

    fn plan(&self, spi: &Spi, statement: &'static Statement, args: &[Arg]) -> Rc<Plan> {
        self.plans.get_or_prepare(statement.key(), || {
            if self.plans.is_empty() {
                evict_plans();
            }
            spi.prepare(&statement.text_for(&self.name), args)
        })
    }

    /// Runs a hot statement that writes documents. The caller notes the index entries that
    /// it wrote, for the ready floors. Where a trigger of the user's might write more or
    /// something else, fetchq's own trigger notes them.
    pub fn run_noting<'s>(
        &self,
        spi: &'s Spi,
        statement: &'static Statement,
        args: &[Arg],
    ) -> Rows<'s> {
        let _suppressed = self.runs_nothing_else().then(|| {
            let triggers = if self.notifies {
                READY_AND_NOTIFY_TRIGGERS
            } else {
                READY_TRIGGERS
            };
            SuppressedTriggers::begin(self.table, triggers)
        });
        self.run(spi, statement, args)
    }

    /// The ready floors of the queue. None where they cannot be used: without shared
    /// memory, without the indexes or the trigger, while this transaction has the documents
    /// in a file that a rollback would remove, while it has written the catalog row of the trigger
    /// itself, because it can do that again without a new epoch, after rows without a note, and in a
    /// SERIALIZABLE transaction: an answer from
    /// a floor reads nothing, so it would leave no predicate lock that shows what it depends on.
    pub fn floors(&self) -> Option<QueueFloors> {
        if !floors::is_available() || session::is_serializable() {
            return None;
        }
        if self.floors.is_trigger_new.get() {
            if self.floors.trigger.is_some_and(transaction::is_current) {
                return None;
            }
            self.floors.is_trigger_new.set(false);
        }
        let file = self.file.get().filter(|file| !file.is_new)?;
        Some(QueueFloors {
            table: self.table,
            pick_index: self.floors.pick_index?,
            due_index: self.floors.due_index?,
            epoch: floors::epoch_of(file.number, self.floors.trigger?.into_inner()),
        })
    }

    /// Its pick index, for a walk. None: there is none as fetchq makes it.
    pub fn pick_index(&self) -> Option<Oid> {
        self.for_walk(self.floors.pick_index)
    }

    /// An index of the documents, for a walk. None where the table is not as fetchq makes it, for which the
    /// trigger of the floors stands: another access method has other rows.
    pub fn for_walk(&self, index: Option<Oid>) -> Option<Oid> {
        self.floors.trigger.and(index)
    }

    /// What changes when somebody else than fetchq has written documents of the queue, and after a crash.
    /// None: nobody would know, because of what [`Self::floors`] lists.
    pub fn foreign_writes(&self) -> Option<String> {
        let epoch = self.floors()?.epoch;
        let writes = &board()?.foreign_writes;
        let writes = writes.state(session::database(), self.table.to_u32());
        Some(format!("{epoch:x}.{writes}"))
    }

    /// The ready floors of the queue, and the levels of a version. None where they cannot be
    /// used or are not known.
    pub fn levels(&self, version: i32) -> Option<(QueueFloors, Views)> {
        let floors = self.floors()?;
        let levels = floors.levels(version)?;
        Some((floors, levels))
    }

    /// Returns whether no trigger has anything to do with the rows that fetchq writes. The triggers
    /// of the notifications have nothing to do while the background worker sends them.
    pub fn runs_nothing_else(&self) -> bool {
        self.is_plain && (!self.notifies || announce::is_collecting())
    }

    /// Returns whether a trigger or a forced policy may keep a document from being added.
    pub fn may_suppress(&self) -> bool {
        !self.is_plain
    }

    /// Announces, when the transaction commits, that documents changed to a status.
    pub fn announce(&self, status: Status) {
        if self.notifies && announce::is_collecting() {
            announce::announce_status(self.table.to_u32(), status);
        }
    }

    /// Opens the docs table for reading and writing without statements. None where only a
    /// statement will do.
    pub fn documents(&self, access: Access) -> Option<Documents> {
        let is_allowed = settings::direct() && self.runs_nothing_else();
        let indexes = self.indexes.as_ref().filter(|_| is_allowed)?;
        Documents::open(self.table, indexes, access)
    }

    /// The next `seq` for a document that is added without a statement. None where only a
    /// statement can add one.
    pub fn next_seq(&self) -> Option<i64> {
        self.sequence
            .filter(|_| self.has_known_columns)
            .map(relation::next_identity)
    }

    /// The next `seq` for a statement, which also works with columns that fetchq does not
    /// know. None where `seq` has no sequence.
    pub fn next_number(&self) -> Option<i64> {
        self.sequence.map(relation::next_identity)
    }

    /// Returns whether [`Self::next_seq`] returns a number.
    pub fn has_next_seq(&self) -> bool {
        self.has_known_columns && self.sequence.is_some()
    }

    /// Returns whether the trigger of the ready floors is missing, or does not always run.
    pub fn lacks_trigger(&self) -> bool {
        self.floors.trigger.is_none()
    }

    /// Runs a cold statement on the queue's tables, without keeping its plan.
    pub fn once<'s>(&self, spi: &'s Spi, sql: &str, args: &[Arg]) -> Rows<'s> {
        before(self, || Scope::of(sql), args);
        spi.once(&render(sql, &self.name), args)
    }
}

/// What has to be done before something runs that reads or changes documents. The room `documents` does it.
type Barrier = fn(&Queue, Scope, &[Arg]);

static BARRIER: OnceLock<Barrier> = OnceLock::new();

/// Says what has to be done before statements run on the tables of a queue. Called from `_PG_init`.
pub fn install_barrier(barrier: Barrier) {
    let _ = BARRIER.set(barrier);
}

fn before(queue: &Queue, scope: impl FnOnce() -> Scope, args: &[Arg]) {
    if let Some(barrier) = BARRIER.get() {
        barrier(queue, scope(), args);
    }
}

/// How many queues a session keeps in its cache, with plans or without. An entry without
/// plans takes half a kilobyte, so this bounds the cache to 10 MB.
pub const MAX_CACHED_QUEUES: usize = 20_000;

#[derive(Default)]
struct Cache {
    queues: HashMap<Oid, Rc<Queue>>,
    /// The docs tables of these queues, by each of their tables.
    docs: HashMap<Oid, Oid>,
    clock: u64,
}

impl Cache {
    fn add(&mut self, queue: Rc<Queue>) {
        for table in &queue.tables {
            self.docs.insert(*table, queue.table);
        }
        self.queues.insert(queue.table, queue);
    }

    fn forget(&mut self, docs: Oid) {
        if let Some(queue) = self.queues.remove(&docs) {
            for table in &queue.tables {
                self.docs.remove(table);
            }
        }
    }

    /// Forgets a queue whose docs table has changed. After a change of another table only its columns
    /// are compared again: a vacuum looks like a change, and the plans are still good.
    fn table_changed(&mut self, table: Oid) {
        match self.docs.get(&table).copied() {
            Some(docs) if docs != table => {
                if let Some(queue) = self.queues.get(&docs) {
                    queue.has_shape.set(false);
                }
            }
            _ => self.forget(table),
        }
    }

    fn take_invalidations(&mut self) {
        match invalidation::take(Reader::OpenQueues) {
            Invalidated::Nothing => {}
            Invalidated::Everything => {
                self.queues.clear();
                self.docs.clear();
            }
            Invalidated::Tables(tables) => {
                for table in tables {
                    self.table_changed(table);
                }
            }
        }
    }
}

thread_local! {
    static QUEUES: Lasting<Cache> = lasting(Cache::default());
}

/// Finds a queue in the cache of the session, whose docs table the caller has locked, or
/// reads it from the catalog and adds it to the cache.
///
/// The lock may have waited for an upgrade of the extension, which the call did not see when it began.
/// Fails with `Error::OtherVersion` then, and with `Error::AlteredColumn`.
fn find_or_load(name: &QueueName, table: Oid) -> Result<Rc<Queue>> {
    version::require_fit()?;
    let found = QUEUES.with(|cache| {
        let mut cache = cache.borrow_mut();
        cache.take_invalidations();
        cache.clock += 1;
        let clock = cache.clock;
        cache
            .queues
            .get(&table)
            .filter(|queue| queue.name == *name)
            .inspect(|queue| queue.last_used.set(clock))
            .cloned()
    });
    if let Some(queue) = found {
        if !queue.has_shape.get() {
            queue_shape::require(name)?;
            queue.has_shape.set(true);
        }
        return Ok(queue);
    }

    let Some(info) = queue_catalog::read(name, table) else {
        return Err(queue_places::unknown(name));
    };
    let shape = queue_shape::require(name)?;
    let queue = Rc::new(Queue::new(name, table, shape, info));
    QUEUES.with(|cache| {
        let mut cache = cache.borrow_mut();
        if cache.queues.len() >= MAX_CACHED_QUEUES {
            let queues = cache.queues.iter();
            let longest_unused = queues.min_by_key(|(_, q)| q.last_used.get());
            if let Some(table) = longest_unused.map(|(table, _)| *table) {
                cache.forget(table);
            }
        }
        queue.last_used.set(cache.clock);
        cache.add(queue.clone());
    });
    Ok(queue)
}

/// Forgets the plans of the longest unused queues, so that with one more queue no more
/// than `fetchq.plan_cache_queues` have plans.
fn evict_plans() {
    QUEUES.with(|cache| {
        let cache = cache.borrow();
        let mut planned: Vec<_> = cache
            .queues
            .values()
            .filter(|queue| !queue.plans.is_empty())
            .collect();
        let limit = settings::plan_cache_queues();
        if planned.len() >= limit {
            planned.sort_by_key(|queue| queue.last_used.get());
            for queue in &planned[..planned.len() + 1 - limit] {
                queue.plans.clear();
            }
        }
    });
}

#[cfg(any(test, feature = "pg_test"))]
mod in_server;
