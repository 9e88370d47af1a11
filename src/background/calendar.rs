//! When the documents of which queue are due: planned ones, and leases that run out.
//! The ready floors of the due index know when that is; whoever plans something
//! earlier tells.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use crate::background::lifecycle::log_failure;
use crate::domain::names::QueueName;
use crate::maintenance::runner;
use crate::pg::{process, relation, time};
use crate::signals::board::BackgroundWorker;
use crate::store::queue;

/// How often all queues are looked at, told or not: documents can come by ways that
/// nobody notes.
const ALL: i64 = 300_000_000;

/// A turn ends after this time, so that what becomes due meanwhile has not to wait for
/// many queues: microseconds.
const TURN: i64 = 20_000;

/// Of queues in which nothing is known to be due, so many are looked at in a turn.
const SWEEP: usize = 8;

/// How soon a queue is looked at again in which something is due that cannot be had now:
/// it is not committed yet, or somebody has it locked. Twice as late each time, but soon:
/// what is planned behind it meanwhile is not told.
const FIRST_RETRY: i64 = 2_000;

const LAST_RETRY: i64 = 50_000;

/// When to look again after a failure that was not a job's.
const AFTER_FAILURE: i64 = 1_000_000;

/// A table that was told of by the transaction that makes it is looked for again for a
/// while: a commit tells of it a moment before it tells the caches of the catalog.
const UNKNOWN_FOR: i64 = 5_000_000;

const UNKNOWN_AGAIN: i64 = 20_000;

/// How often a job that runs whenever something is due is written down as having run.
const WRITE_DOWN: i64 = 60_000_000;

struct Queue {
    name: QueueName,
    at: i64,
    /// Turns in which nothing could be had of what is due.
    idle: u32,
    written_down: i64,
}

pub struct Calendar<'a> {
    me: &'a BackgroundWorker,
    /// How far the news were read.
    read: u32,
    all_at: i64,
    due: BTreeSet<(i64, u32)>,
    queues: HashMap<u32, Queue>,
    /// Tables that were told of and cannot be seen: when something is due, and until when
    /// to look for them.
    unknown: HashMap<u32, (i64, i64)>,
    /// What is still to be looked at of all queues.
    sweep: VecDeque<u32>,
}

impl<'a> Calendar<'a> {
    pub fn new(me: &'a BackgroundWorker) -> Self {
        Self {
            me,
            read: me.due_changes.written(),
            all_at: i64::MIN,
            due: BTreeSet::new(),
            queues: HashMap::new(),
            unknown: HashMap::new(),
            sweep: VecDeque::new(),
        }
    }

    pub fn has_news(&self) -> bool {
        self.me.due_changes.written() != self.read
    }

    /// Does what is due; says when the next is.
    pub fn run(&mut self) -> i64 {
        let now = time::clock();
        match self.me.due_changes.since(&mut self.read) {
            Some(news) => {
                for (table, at) in news {
                    self.told(table, at, now);
                }
            }
            None => self.all_at = i64::MIN,
        }
        if self.all_at <= now {
            self.plan_all(now);
        }
        let unknown_at = self.find_unknown(now);
        // What is overdue longest comes first. A queue in which there is more than one run
        // may touch is due again by the end of that run: after all others.
        let until = now + TURN;
        while let Some((at, table)) = self.due.first().copied() {
            if at > now || process::should_stop() || time::clock() > until {
                break;
            }
            self.run_queue(table);
        }
        for _ in 0..SWEEP {
            match self.sweep.pop_front() {
                Some(table) if !process::should_stop() => self.run_queue(table),
                _ => break,
            }
        }
        if !self.sweep.is_empty() {
            return now;
        }
        let next = self.due.first().map_or(i64::MAX, |(at, _)| *at);
        next.min(self.all_at).min(unknown_at)
    }

    fn plan(&mut self, table: u32, at: i64) {
        if let Some(queue) = self.queues.get_mut(&table) {
            self.due.remove(&(queue.at, table));
            queue.at = at;
            self.due.insert((at, table));
        }
    }

    fn add(&mut self, table: u32, name: QueueName, at: i64) {
        self.due.insert((at, table));
        self.queues.insert(
            table,
            Queue {
                name,
                at,
                idle: 0,
                written_down: 0,
            },
        );
    }

    fn forget(&mut self, table: u32) {
        if let Some(queue) = self.queues.remove(&table) {
            self.due.remove(&(queue.at, table));
        }
    }

    fn told(&mut self, table: u32, at: i64, now: i64) {
        match self.queues.get(&table).map(|queue| queue.at) {
            Some(before) if before <= at => {}
            Some(_) => self.plan(table, at),
            None => {
                let until = now + UNKNOWN_FOR;
                if !self.find(table, at) {
                    self.unknown
                        .entry(table)
                        .and_modify(|unknown| *unknown = (unknown.0.min(at), until))
                        .or_insert((at, until));
                }
            }
        }
    }

    /// Adds a queue of which only the table is known; false when there is none to be seen.
    fn find(&mut self, table: u32, at: i64) -> bool {
        let name = process::transaction(|| relation::queue_of_table(table));
        let name = name.ok().flatten();
        match name.and_then(|name| QueueName::parse(&name).ok()) {
            Some(name) => {
                self.add(table, name, at);
                true
            }
            None => false,
        }
    }

    /// Looks for the tables again that could not be seen; says when to do so next.
    fn find_unknown(&mut self, now: i64) -> i64 {
        if self.unknown.is_empty() {
            return i64::MAX;
        }
        for (table, (at, until)) in std::mem::take(&mut self.unknown) {
            if !self.queues.contains_key(&table) && !self.find(table, at) && until > now {
                self.unknown.insert(table, (at, until));
            }
        }
        match self.unknown.is_empty() {
            true => i64::MAX,
            false => now + UNKNOWN_AGAIN,
        }
    }

    /// Has all queues looked at, a few in each turn.
    fn plan_all(&mut self, now: i64) {
        let found = process::transaction(|| {
            let names = queue::all();
            let tables = names.into_iter().filter_map(|name| {
                let table = relation::lookup_data_table(&name.relation("docs"))?;
                Some((table.to_u32(), name))
            });
            tables.collect::<Vec<_>>()
        });
        match found {
            Ok(found) => {
                let tables: HashSet<u32> = found.iter().map(|(table, _)| *table).collect();
                let gone = self.queues.keys().filter(|table| !tables.contains(table));
                for table in gone.copied().collect::<Vec<_>>() {
                    self.forget(table);
                }
                // What is left of the last time comes first.
                self.sweep.retain(|table| tables.contains(table));
                let left: HashSet<u32> = self.sweep.iter().copied().collect();
                let others = found.iter().map(|(table, _)| *table);
                self.sweep
                    .extend(others.filter(|table| !left.contains(table)));
                for (table, name) in found {
                    if !self.queues.contains_key(&table) {
                        self.add(table, name, i64::MAX);
                    }
                }
                self.all_at = now + ALL;
            }
            Err(message) => {
                log_failure(format!("the list of queues: {message}"));
                self.all_at = now + AFTER_FAILURE;
            }
        }
    }

    fn run_queue(&mut self, table: u32) {
        let Some(queue) = self.queues.get(&table) else {
            return;
        };
        let name = queue.name.clone();
        process::show_activity(Some(&format!("fetchq: maintenance of queue \"{name}\"")));
        let is_to_write_down = queue.written_down + WRITE_DOWN <= time::clock();
        let outcome =
            process::transaction(|| runner::run_document_maintenance(&name, is_to_write_down));
        let now = time::clock();
        match outcome {
            Ok(None) => self.forget(table),
            Ok(Some(run)) => {
                let Some(queue) = self.queues.get_mut(&table) else {
                    return;
                };
                if run.moved > 0 {
                    queue.idle = 0;
                }
                if is_to_write_down && run.moved > 0 {
                    queue.written_down = now;
                }
                let at = match run.next {
                    at if at > now => at,
                    // More of it than one run may touch.
                    _ if run.moved > 0 => now,
                    _ => {
                        queue.idle = queue.idle.saturating_add(1);
                        now + (FIRST_RETRY << queue.idle.min(10)).min(LAST_RETRY)
                    }
                };
                self.plan(table, at);
            }
            Err(message) => {
                log_failure(format!("maintenance of queue \"{name}\" failed: {message}"));
                let at = process::transaction(|| runner::back_off_maintenance(&name));
                self.plan(table, at.ok().flatten().unwrap_or(now + AFTER_FAILURE));
            }
        }
    }
}
