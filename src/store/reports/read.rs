//! The state of queues, which all reports print: what is counted of them, what the ready floors prove, and
//! what a bounded look at the indexes finds. It only reads, and waits for no lock after
//! [`lock_registry`]. What could not be read is unknown.

use std::collections::HashMap;

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::late::memory;
use crate::pg::index_look::{self, Look, PickLook, PickScan, ReadLock};
use crate::pg::index_walk::Column;
use crate::pg::snapshot::Snapshot;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::pg::{relation, session};
use crate::ready::floors::{self, KnownFloor};
use crate::ready::key::Index;
use crate::store::counters::metrics_exact::{Counted, Period, Reading, try_lock};
use crate::store::queues::known_tables::{Indexes, KnownTables};
use crate::store::queues::plans::run_in;
use crate::store::queues::rights::{self, Right, Scope};
use crate::store::queues::statement::Statement;

/// Entries of the indexes that one report may read, so that it stays cheap. Not measured: some tens of
/// milliseconds.
const MAX_ENTRIES: u32 = 200_000;

/// Queues whose tables are locked at a time. Not measured: the locks of a session are cheap up to a
/// few dozen.
const CHUNK_QUEUES: usize = 32;

// The queues, and of each the permits that are free, whether it is the dead-letter queue of another one,
// and since when it can be used: all queues, or those that fulfil a condition. $1: the time. $2: their
// names.
macro_rules! queues {
    ($some:literal) => {
        concat!(
            "select q.name::pg_catalog.text, q.is_active, q.max_active,
                case when q.rate_limit is not null then (
                    select pg_catalog.count(*) from (
                        select from fetchq.rate_permits r
                        where r.queue_id {=} q.id and r.free_at {<=} $1
                        limit q.rate_limit) free) end,
                q.is_ordered or q.max_active_per_key is not null, q.id,
                t.name is not null,
                greatest(q.created_at, pg_catalog.pg_postmaster_start_time())
            from fetchq.queues q
            left join (
                select distinct s.dead_letter as name from fetchq.queues s) t on t.name {=} q.name ",
            $some,
            " order by q.name"
        )
    };
}

static ALL_QUEUES: Statement = Statement::new(queues!(""));

static SOME_QUEUES: Statement = Statement::new(queues!("where q.name {=} any ($2)"));

/// Tables without which nothing can be told.
const NEEDED: [&str; 2] = ["queues", "rate_permits"];

/// Locks what the state of queues cannot do without, as a reader does.
///
/// Fails with `Error::RegistryBusy` when that must wait.
pub fn lock_registry() -> Result<()> {
    match NEEDED.into_iter().find(|table| !try_lock(table)) {
        Some(table) => Err(Error::RegistryBusy(format!("fetchq.{table}"))),
        None => Ok(()),
    }
}

/// A queue.
pub struct Queue {
    pub id: i32,
    pub name: String,
    pub is_active: bool,
    pub max_active: Option<i32>,
    /// The permits that are free, where the queue has a rate.
    pub permits: Option<i64>,
    /// Documents wait for others of their key.
    pub has_key_order: bool,
    /// It is the dead-letter queue of another one.
    pub is_dead_letter_queue: bool,
    /// Since when workers can use it: it was created, or the server has started, whichever was later.
    pub usable_since: i64,
    /// None when the table does not exist, or cannot be the one of the queue.
    pub table: Option<Oid>,
    /// The caller may read its documents.
    pub is_readable: bool,
    /// What is counted of it. None where that could not be read without waiting.
    pub counted: Option<Counted>,
}

impl Queue {
    /// Returns whether a counter is not 0, or not known.
    pub fn may_have(&self, metric: &str) -> bool {
        self.counted
            .as_ref()
            .is_none_or(|counted| counted.raw(metric) != 0)
    }
}

/// The state of several queues.
pub struct State {
    /// In the order of their names.
    pub queues: Vec<Queue>,
    /// The counters could be read without waiting.
    pub is_counted: bool,
    /// The histograms are complete. Otherwise they lack what is packed.
    pub has_times: bool,
}

impl State {
    /// Reads the queues and what is counted of them in one snapshot, which `take` takes. Without a period
    /// the histograms stay empty.
    pub fn read(scope: &Scope, take: fn() -> Snapshot, period: Option<Period>, now: i64) -> Self {
        let reading = Reading::begin(take);
        let mut queues = queues(scope, now, &reading);
        let ids: Vec<i32> = queues.iter().map(|queue| queue.id).collect();
        let names: Vec<&str> = queues.iter().map(|queue| queue.name.as_str()).collect();
        let counted = reading.counted(&ids, &names, scope.is_everything(), period, now);
        let is_counted = counted.is_some();
        for (queue, counted) in queues.iter_mut().zip(counted.into_iter().flatten()) {
            queue.counted = Some(counted);
        }
        Self {
            queues,
            is_counted,
            has_times: reading.has_times,
        }
    }

    /// Looks at the queues in turn, and returns what `look` has found of each. It can read the indexes of
    /// those that `concerns` and then `reads` choose, unless their tables are locked. `look_cost`: what a
    /// look at one index counts as besides its entries, which bounds the number of queues.
    pub fn look<T>(
        &self,
        look_cost: u32,
        concerns: impl Fn(&Queue) -> bool,
        reads: impl Fn(&Sight) -> bool,
        mut look: impl FnMut(&mut Sight, &mut Budget) -> T,
    ) -> Vec<T> {
        let concerned = |queue: &Queue| queue.table.filter(|_| concerns(queue));
        let mut known = KnownTables::of(self.queues.iter().filter_map(concerned));
        let mut floors = floors_by_table();
        let mut budget = Budget {
            entries: MAX_ENTRIES,
            look_cost,
        };
        let mut found = Vec::with_capacity(self.queues.len());
        for queues in self.queues.chunks(CHUNK_QUEUES) {
            let sight = |queue| {
                let table = concerned(queue);
                let facts = table.map(|table| known.get(table)).unwrap_or_default();
                let floors = table.and_then(|table| floors.remove(&table));
                let mut floors = floors.unwrap_or_default();
                // What is known of another epoch is void.
                floors.retain(|floor| Some(floor.epoch) == facts.epoch);
                let mut sight = Sight {
                    queue,
                    floors,
                    indexes: Indexes::default(),
                    lock: None,
                    has_unknown: false,
                };
                sight.lock = table.filter(|_| reads(&sight)).and_then(ReadLock::try_take);
                if sight.lock.is_some() {
                    sight.indexes = facts.indexes;
                }
                sight
            };
            let mut sights: Vec<Sight> = queues.iter().map(sight).collect();
            for sight in &mut sights {
                found.push(look(sight, &mut budget));
                if let Some(table) = sight.queue.table.filter(|_| sight.has_unknown) {
                    // One of the indexes may have been made again.
                    known.forget(table);
                }
            }
        }
        found
    }
}

fn queues(scope: &Scope, now: i64, reading: &Reading) -> Vec<Queue> {
    let [_, names] = scope.args();
    let now = Arg::timestamp(now);
    let mut queues: Vec<Queue> = spi::connect(|spi| {
        let rows = match scope.is_everything() {
            true => run_in(spi, &ALL_QUEUES, &[now], &reading.snapshot),
            false => run_in(spi, &SOME_QUEUES, &[now, names], &reading.snapshot),
        };
        let queue = |row| Queue {
            id: rows.get(row, 6).unwrap_or(0),
            name: rows.get(row, 1).unwrap_or_default(),
            is_active: rows.get(row, 2).unwrap_or(false),
            max_active: rows.get(row, 3),
            permits: rows.get(row, 4),
            has_key_order: rows.get(row, 5).unwrap_or(false),
            is_dead_letter_queue: rows.get(row, 7).unwrap_or(false),
            usable_since: rows.timestamp(row, 8).unwrap_or(i64::MAX),
            table: None,
            is_readable: false,
            counted: None,
        };
        (0..rows.len()).map(queue).collect()
    });
    for queue in &mut queues {
        let name = QueueName::parse(&queue.name).ok();
        queue.table = name.and_then(|name| relation::lookup_data_table(&name.relation("docs")));
        queue.is_readable = queue
            .table
            .is_some_and(|table| rights::has_on(table, Right::Read));
    }
    queues
}

fn floors_by_table() -> HashMap<Oid, Vec<KnownFloor>> {
    let mut floors: HashMap<Oid, Vec<KnownFloor>> = HashMap::new();
    // On a hot standby the floors prove nothing, because nothing notes what is replayed.
    if !session::is_standby() {
        for floor in floors::all() {
            floors.entry(floor.table).or_default().push(floor);
        }
    }
    floors
}

/// What is known of the first document of a level. Times are in microseconds since 2000.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// There is one that is due at this time.
    At(i64),
    /// There is none before this time.
    NotBefore(i64),
    /// There is none.
    Nothing,
}

/// What a report may still read.
pub struct Budget {
    /// Entries of the indexes.
    entries: u32,
    /// What a look at an index costs besides its entries, in entries.
    look_cost: u32,
}

impl Budget {
    /// Takes the cost of a look. Returns false when it is used up.
    fn take_look(&mut self) -> bool {
        let left = self.entries.checked_sub(self.look_cost);
        self.entries = left.unwrap_or(0);
        left.is_some()
    }
}

/// A look at a queue.
pub struct Sight<'a> {
    pub queue: &'a Queue,
    /// The floors that prove something.
    pub floors: Vec<KnownFloor>,
    /// Those that can be read.
    indexes: Indexes,
    /// Keeps the indexes as they are.
    lock: Option<ReadLock>,
    /// Something could not be read.
    has_unknown: bool,
}

impl Sight<'_> {
    /// The time before which a level of an index has no documents. None where that is not known.
    pub fn floor(&self, index: Index, version: i32, level: i32) -> Option<i64> {
        let known = self
            .floors
            .iter()
            .find(|floor| (floor.index, floor.version, floor.view.id) == (index, version, level));
        known.map(|floor| floor.view.floor.next_iteration())
    }

    /// Looks in the due index for the first document of a status, from a time on and before `end`, if there
    /// is one. None where that is not known.
    pub fn first_due(
        &mut self,
        status: Status,
        from: i64,
        end: Option<i64>,
        budget: &mut Budget,
    ) -> Option<Found> {
        let from = [Column::Timestamptz(from), Column::Int8(i64::MIN)];
        self.first(self.indexes.due, &[status.code()], from, end, budget)
    }

    fn first<const N: usize>(
        &mut self,
        index: Option<Oid>,
        prefix: &[i32],
        from: [Column; N],
        end: Option<i64>,
        budget: &mut Budget,
    ) -> Option<Found> {
        let table = self.queue.table?;
        let time = |columns: &[Column; N]| match columns[0] {
            Column::Timestamptz(time) => time,
            _ => i64::MIN,
        };
        let is_beyond = |columns: &[Column; N]| end.is_some_and(|end| time(columns) >= end);
        let look = match index {
            Some(index) if budget.take_look() => index_look::first_visible(
                table,
                index,
                prefix,
                from,
                is_beyond,
                memory::exists().then_some(memory::has_lease),
                &mut budget.entries,
            ),
            _ => Look::Unknown,
        };
        match look {
            Look::Found(columns) => Some(Found::At(time(&columns))),
            Look::NothingBefore(Some(columns)) => Some(Found::NotBefore(time(&columns))),
            Look::NothingBefore(None) => Some(Found::Nothing),
            // The queue was dropped meanwhile.
            Look::Unknown if relation::queue_of_table(table.to_u32()).is_none() => {
                Some(Found::Nothing)
            }
            Look::Unknown => {
                self.has_unknown = true;
                None
            }
        }
    }

    /// Looks at all levels of the pick index, and counts up to as many documents that are due, and due
    /// later. None where something is not known.
    pub fn picks(
        &mut self,
        now: i64,
        max_due: u32,
        max_later: u32,
        budget: &mut Budget,
    ) -> Option<PickLook> {
        let floor = |version, priority| {
            let floor = self.floor(Index::Pick, version, priority);
            floor.unwrap_or(i64::MIN)
        };
        let scan = PickScan {
            now,
            floor: &floor,
            max_due,
            max_later,
        };
        let tree = self.queue.table.zip(self.indexes.pick);
        let tree = tree.filter(|_| budget.take_look());
        let picks = tree.and_then(|(table, index)| {
            index_look::look_at_picks(table, index, &scan, &mut budget.entries)
        });
        self.has_unknown |= picks.is_none();
        picks
    }
}
