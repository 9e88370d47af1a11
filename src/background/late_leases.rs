//! Writes late leases into the rows: those that have lasted for a while, and all when somebody wants to read
//! them.

use std::collections::{BTreeMap, HashMap};

use crate::background::lifecycle::log_failure;
use crate::background::limits;
use crate::domain::names::QueueName;
use crate::error::raise;
use crate::late::memory;
use crate::late::table::{Lease, Name};
use crate::pg::{process, relation, time};
use crate::signals::background_worker::BackgroundWorker;
use crate::store::documents::late_leases;
use crate::store::queues::open_queue::Queue;

/// How often the process looks for leases while there may be some: microseconds.
const LOOK_US: i64 = 250_000;

/// Leases that are written in one transaction.
const AT_ONCE: usize = 1000;

/// How long a queue waits after a failure: microseconds.
const RETRY_AFTER_US: i64 = 1_000_000;

/// The late leases of a database, as its background worker writes them.
pub struct LateLeases<'a> {
    worker: &'a BackgroundWorker,
    /// When to look next, in microseconds since 2000.
    next: i64,
    /// Tables that have failed, and until when they wait.
    failed: HashMap<u32, i64>,
}

impl<'a> LateLeases<'a> {
    /// Those of the database of this process.
    pub fn new(worker: &'a BackgroundWorker) -> Self {
        Self {
            worker,
            next: i64::MIN,
            failed: HashMap::new(),
        }
    }

    /// Returns whether somebody wants to read them.
    pub fn has_changes(&self) -> bool {
        self.worker.leases_requested().is_some()
    }

    /// Writes what is due. Returns when to come back, in microseconds since 2000.
    pub fn run(&mut self) -> i64 {
        if !memory::exists() {
            return i64::MAX;
        }
        let now = time::clock();
        let requested = self.worker.leases_requested();
        if requested.is_none() && now < self.next {
            return self.next;
        }
        let has_any = memory::has_any_here();
        if has_any {
            self.write(now, requested.is_some());
        }
        if let Some(request) = requested {
            self.worker.leases_written(request);
        }
        // Where there are none, the next ones are found when the process looks whether it has to exit.
        match has_any {
            true => self.next = time::clock() + LOOK_US,
            false => self.next = i64::MIN,
        }
        if has_any { self.next } else { i64::MAX }
    }

    /// Returns when the database needs a background worker because of them, in microseconds since 2000.
    pub fn due_at(&self) -> i64 {
        match self.next {
            i64::MIN => i64::MAX,
            next => next,
        }
    }

    /// Writes all leases before the process ends. From now on no session leases late, because it finds no
    /// background worker. Returns whether there are some that transactions have which still run.
    pub fn flush(&mut self) -> bool {
        if !memory::exists() {
            return false;
        }
        process::begin_last_work();
        if !memory::has_any_here() {
            return false;
        }
        self.failed.clear();
        self.write(time::clock(), true);
        memory::has_any_here()
    }

    fn write(&mut self, now: i64, is_all: bool) {
        self.failed.retain(|_, until| *until > now);
        let mut tables: BTreeMap<u32, Vec<(Name, Lease)>> = BTreeMap::new();
        for (name, lease) in memory::leased(|_, lease| is_all || lease.write_at <= now) {
            if !self.failed.contains_key(&name.table) {
                tables.entry(name.table).or_default().push((name, lease));
            }
        }
        for (table, leases) in tables {
            for leases in leases.chunks(AT_ONCE) {
                if let Err(message) = write_some(table, leases) {
                    log_failure(format!("writing leases failed: {message}"));
                    self.failed.insert(table, now + RETRY_AFTER_US);
                    break;
                }
            }
        }
    }
}

fn write_some(table: u32, leases: &[(Name, Lease)]) -> Result<(), String> {
    limits::prompt(|| {
        let queue = relation::queue_of_table(table).and_then(|name| QueueName::parse(&name).ok());
        let Some(name) = queue else {
            // The queue was dropped.
            late_leases::forget(leases);
            return;
        };
        if let Some(queue) = raise(Queue::try_open(&name)) {
            match queue.table.to_u32() == table {
                true => late_leases::write_unlocked(&queue, leases),
                false => late_leases::forget(leases),
            }
        }
    })
}
