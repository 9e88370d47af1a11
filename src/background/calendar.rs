//! The calendar: when something is due in each queue of a database, which is a planned document or
//! a lease that expires. It runs the maintenance of the documents at that time.
//!
//! The ready floors of the due index say when the next document of a queue is due. A session that
//! plans an earlier one adds a due change on the board.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use crate::background::lifecycle::log_failure;
use crate::background::limits;
use crate::domain::names::QueueName;
use crate::maintenance::runner;
use crate::pg::{process, relation, time};
use crate::ready::due;
use crate::signals::background_worker::BackgroundWorker;
use crate::signals::due_changes::Change;
use crate::store::queues::known_tables;
use crate::store::queues::queue;
use crate::store::upkeep::jobs::Wait;
use crate::store::upkeep::maintenance;

/// How often all queues are examined, because documents can appear without a due change:
/// microseconds.
const FULL_SWEEP_INTERVAL_US: i64 = 300_000_000;

/// A round ends after this time, so that other work of the background worker does not have to wait
/// for many queues: microseconds. Not measured: short beside the second after which work counts as
/// late in `fetchq.status()`.
const ROUND_US: i64 = 20_000;

/// Queues of a full sweep that are examined in one round. Not measured: few, because a round
/// that sweeps delays the queues in which something is due.
const ROUND_SWEEP_QUEUES: usize = 8;

/// When a queue is examined again in which something is due that cannot be changed now, because it
/// is not committed yet or is locked: microseconds. The time doubles with each such run.
const MIN_RETRY_US: i64 = 2_000;

/// The longest of these times: microseconds. It is short, because documents that are planned above
/// the floor meanwhile add no due change.
const MAX_RETRY_US: i64 = 50_000;

/// Times at which a queue is examined that are kept at most. A session has one, most of the time.
const MAX_LOOKS: usize = 1000;

/// When to look again after a failure outside of a queue's maintenance: microseconds.
const RETRY_AFTER_US: i64 = 1_000_000;

/// For how long a table is looked for that a due change names and that cannot be seen:
/// microseconds. A transaction that creates a queue adds its due change a moment before the
/// catalog caches of this process are invalidated.
const UNKNOWN_TIMEOUT_US: i64 = 5_000_000;

/// How often such a table is looked for: microseconds.
const UNKNOWN_RETRY_US: i64 = 20_000;

/// How often a run of a queue's maintenance is recorded in `fetchq.jobs` at most: microseconds.
const RECORD_INTERVAL_US: i64 = 60_000_000;

/// What the calendar knows about a queue. Times are in microseconds since 2000.
struct Queue {
    name: QueueName,
    /// When something is due.
    due_at: i64,
    /// When it is examined, whatever an earlier run has found: sessions rely on that, and say nothing of
    /// what is due later.
    looks: BTreeSet<i64>,
    /// Successive runs that could not change what was due.
    idle_runs: u32,
    recorded_at: i64,
    /// Until when documents that failed too often wait for their move.
    kills: Option<Wait>,
}

/// A table that a due change names and that cannot be seen yet. Times are in microseconds since
/// 2000.
struct UnknownTable {
    due_at: i64,
    /// Until when it is looked for.
    until: i64,
}

/// The calendar of a database. Times are in microseconds since 2000.
pub struct Calendar<'a> {
    worker: &'a BackgroundWorker,
    /// The number of the next due change to read.
    read: u64,
    /// When the last full sweep began of those that have ended.
    swept_at: i64,
    /// When the full sweep began that goes on.
    full_sweep_began: Option<i64>,
    next_full_sweep: i64,
    /// When something is due, by table.
    due: BTreeSet<(i64, u32)>,
    queues: HashMap<u32, Queue>,
    unknown: HashMap<u32, UnknownTable>,
    /// The tables of a full sweep that are still to be examined.
    sweep: VecDeque<u32>,
    /// The table with which the first sweep begins.
    sweep_from: Option<u32>,
    /// The queue that ran last was slow.
    was_slow: bool,
}

impl<'a> Calendar<'a> {
    /// Returns a calendar that begins with the list of all queues. Those of which the ready floors
    /// say when something is due are not examined when that was done at `swept_at`, in microseconds
    /// since 2000, by another background worker.
    pub fn new(worker: &'a BackgroundWorker, swept_at: i64) -> Self {
        Self {
            worker,
            read: worker.due_changes.written(),
            // A time in the future says that the clock was set back.
            swept_at: match swept_at > time::clock() {
                true => i64::MIN,
                false => swept_at,
            },
            full_sweep_began: None,
            next_full_sweep: i64::MIN,
            due: BTreeSet::new(),
            queues: HashMap::new(),
            unknown: HashMap::new(),
            sweep: VecDeque::new(),
            sweep_from: None,
            was_slow: false,
        }
    }

    /// Returns when something is due next, in microseconds since 2000, without what only a full sweep
    /// would find.
    pub fn due_at(&self) -> i64 {
        if !self.sweep.is_empty() {
            return i64::MIN;
        }
        let next = self.due.first().map_or(i64::MAX, |(due_at, _)| *due_at);
        match self.unknown.is_empty() {
            true => next,
            false => next.min(time::clock() + UNKNOWN_RETRY_US),
        }
    }

    /// Has the first sweep begin with the queue of a documents table.
    pub fn begin_sweep_at(&mut self, table: u32) {
        self.sweep_from = Some(table);
    }

    /// Returns the documents table of the queue that a sweep would examine next; None when no sweep
    /// goes on.
    pub fn next_of_sweep(&self) -> Option<u32> {
        self.sweep.front().copied()
    }

    /// Returns when the last full sweep began of those that have ended, in microseconds since 2000.
    pub fn swept_at(&self) -> i64 {
        self.swept_at
    }

    /// Returns whether there are due changes that the last run did not read.
    pub fn has_changes(&self) -> bool {
        self.worker.due_changes.written() != self.read
    }

    /// Runs the maintenance of the queues in which something is due. Returns when something is due
    /// next, in microseconds since 2000.
    pub fn run(&mut self) -> i64 {
        let now = time::clock();
        match self.worker.due_changes.read_since(&mut self.read) {
            Some(changes) => {
                for change in changes {
                    self.apply_change(change, now);
                }
            }
            None => {
                self.worker.due_changes.lose();
                self.swept_at = i64::MIN;
                self.next_full_sweep = i64::MIN;
            }
        }
        if self.next_full_sweep <= now {
            self.begin_full_sweep(now);
        }
        let unknown_at = self.find_unknown_tables(now);
        // The longest overdue queue comes first. A queue with more due documents than one run may
        // change is due again at the end of that run, so all others come before it.
        let until = now + ROUND_US;
        while let Some(table) = self.next_due(now) {
            if process::should_stop() || time::clock() > until {
                break;
            }
            self.run_queue(table);
        }
        for _ in 0..ROUND_SWEEP_QUEUES {
            match self.sweep.pop_front() {
                Some(table) if !process::should_stop() => self.run_queue(table),
                _ => break,
            }
            // What became due meanwhile comes before another slow queue.
            if self.was_slow {
                break;
            }
        }
        if !self.sweep.is_empty() {
            return now;
        }
        if let Some(began) = self.full_sweep_began.take() {
            self.swept_at = began;
        }
        let next = self.due.first().map_or(i64::MAX, |(due_at, _)| *due_at);
        next.min(self.next_full_sweep).min(unknown_at)
    }

    /// Returns the queue that has been due for the longest time.
    fn next_due(&self, now: i64) -> Option<u32> {
        let first = self.due.first().filter(|(due_at, _)| *due_at <= now);
        first.map(|(_, table)| *table)
    }

    fn set_due(&mut self, table: u32, due_at: i64) {
        if let Some(queue) = self.queues.get_mut(&table) {
            let look = queue.looks.first().copied().unwrap_or(i64::MAX);
            let due_at = due_at.min(look);
            self.due.remove(&(queue.due_at, table));
            queue.due_at = due_at;
            self.due.insert((due_at, table));
        }
    }

    fn add(&mut self, table: u32, name: QueueName, due_at: i64) {
        self.due.insert((due_at, table));
        self.queues.insert(
            table,
            Queue {
                name,
                due_at,
                looks: BTreeSet::new(),
                idle_runs: 0,
                recorded_at: 0,
                kills: None,
            },
        );
    }

    fn forget(&mut self, table: u32) {
        if let Some(queue) = self.queues.remove(&table) {
            self.due.remove(&(queue.due_at, table));
        }
    }

    fn apply_change(&mut self, change: Change, now: i64) {
        let (table, due_at) = (change.table, change.time);
        if change.is_kept {
            self.keep(table, due_at);
        }
        match self.queues.get(&table).map(|queue| queue.due_at) {
            Some(earlier) if earlier <= due_at => {}
            Some(_) => self.set_due(table, due_at),
            None => {
                if !self.find_table(table, due_at) {
                    let until = now + UNKNOWN_TIMEOUT_US;
                    let unknown = self
                        .unknown
                        .entry(table)
                        .or_insert(UnknownTable { due_at, until });
                    unknown.due_at = unknown.due_at.min(due_at);
                    unknown.until = until;
                }
            }
        }
    }

    /// Has a queue examined at a time. Where that cannot be kept, sessions are to rely on nothing that was
    /// kept, and the change itself has the queue examined.
    fn keep(&mut self, table: u32, at: i64) {
        match self.queues.get_mut(&table) {
            Some(queue) if queue.looks.len() < MAX_LOOKS => {
                queue.looks.insert(at);
            }
            _ => self.worker.due_changes.lose(),
        }
    }

    /// Adds the queue of a table. Returns false when the table cannot be seen.
    fn find_table(&mut self, table: u32, due_at: i64) -> bool {
        let found = process::transaction(|| {
            let name = relation::queue_of_table(table)?;
            QueueName::parse(&name).ok()
        });
        match found.ok().flatten() {
            Some(queue) => {
                self.add(table, queue, due_at);
                true
            }
            None => false,
        }
    }

    /// Looks again for the tables that could not be seen. Returns when to do so next, in
    /// microseconds since 2000.
    fn find_unknown_tables(&mut self, now: i64) -> i64 {
        if self.unknown.is_empty() {
            return i64::MAX;
        }
        for (table, unknown) in std::mem::take(&mut self.unknown) {
            let is_known = self.queues.contains_key(&table);
            if !is_known && !self.find_table(table, unknown.due_at) && unknown.until > now {
                self.unknown.insert(table, unknown);
            }
        }
        match self.unknown.is_empty() {
            true => i64::MAX,
            false => now + UNKNOWN_RETRY_US,
        }
    }

    /// Has all queues examined, a few in each round. When that was done within the interval by
    /// another background worker, only the queues whose floors say nothing are examined.
    fn begin_full_sweep(&mut self, now: i64) {
        let next_full_sweep = self.swept_at.saturating_add(FULL_SWEEP_INTERVAL_US);
        let is_full = next_full_sweep <= now;
        let found = process::transaction(|| {
            let names = queue::all();
            let tables = names.into_iter().filter_map(|name| {
                let table = relation::lookup_data_table(&name.relation("docs"))?.to_u32();
                Some((table, name))
            });
            let tables: Vec<_> = tables.collect();
            let epochs = match is_full {
                true => HashMap::new(),
                false => known_tables::epochs(tables.iter().map(|(table, _)| *table)),
            };
            let expiring = match is_full {
                true => HashSet::new(),
                false => tables
                    .iter()
                    .filter(|(_, name)| maintenance::has_expiry_entries(name))
                    .map(|(table, _)| *table)
                    .collect(),
            };
            (tables, epochs, expiring)
        });
        match found {
            Ok((found, epochs, expiring)) => {
                let tables: HashSet<u32> = found.iter().map(|(table, _)| *table).collect();
                let dropped = self.queues.keys().filter(|table| !tables.contains(table));
                for table in dropped.copied().collect::<Vec<_>>() {
                    self.forget(table);
                }
                // The rest of the previous sweep comes first.
                self.sweep.retain(|table| tables.contains(table));
                let left: HashSet<u32> = self.sweep.iter().copied().collect();
                for (table, queue) in found {
                    let epoch = epochs.get(&table);
                    let due_at = epoch.and_then(|epoch| due::known_due(table, *epoch));
                    // The floors do not say when a document expires.
                    let due_at = due_at.filter(|_| !expiring.contains(&table));
                    if due_at.is_none() && !left.contains(&table) {
                        self.sweep.push_back(table);
                    }
                    if !self.queues.contains_key(&table) {
                        self.add(table, queue, due_at.unwrap_or(i64::MAX));
                    }
                }
                let first = self.sweep_from.take();
                let at = first.and_then(|first| self.sweep.iter().position(|t| *t == first));
                self.sweep.rotate_left(at.unwrap_or(0));
                if is_full {
                    self.full_sweep_began = Some(now);
                    self.next_full_sweep = now + FULL_SWEEP_INTERVAL_US;
                } else {
                    self.next_full_sweep = next_full_sweep;
                }
            }
            Err(message) => {
                log_failure(format!("reading the list of queues failed: {message}"));
                self.next_full_sweep = now + RETRY_AFTER_US;
            }
        }
    }

    fn run_queue(&mut self, table: u32) {
        let Some(queue) = self.queues.get_mut(&table) else {
            return;
        };
        let name = queue.name.clone();
        process::show_activity(Some(&format!("fetchq: maintenance of queue \"{name}\"")));
        let record_run = queue.recorded_at + RECORD_INTERVAL_US <= time::clock();
        let began = time::clock();
        let outcome = limits::prompt(|| {
            runner::run_document_maintenance(&name, record_run, &mut queue.kills)
        });
        let now = time::clock();
        queue.looks = queue.looks.split_off(&(began + 1));
        self.was_slow = now - began > limits::SLOW_RUN_US;
        match outcome {
            Ok(None) => self.forget(table),
            Ok(Some(run)) => {
                if run.changed > 0 {
                    queue.idle_runs = 0;
                }
                if record_run && run.changed > 0 {
                    queue.recorded_at = now;
                }
                let due_at = match run.next {
                    next if next > now => next,
                    // More is due than one run may change.
                    _ if run.changed > 0 => now,
                    _ => {
                        queue.idle_runs = queue.idle_runs.saturating_add(1);
                        now + (MIN_RETRY_US << queue.idle_runs.min(10)).min(MAX_RETRY_US)
                    }
                };
                self.set_due(table, due_at);
            }
            Err(message) => {
                log_failure(format!("maintenance of queue \"{name}\" failed: {message}"));
                let retry_at = process::transaction(|| {
                    runner::back_off_maintenance(&name, now - began, &message)
                });
                let retry_at = retry_at.ok().flatten();
                self.set_due(table, retry_at.unwrap_or(now + RETRY_AFTER_US));
            }
        }
    }
}
