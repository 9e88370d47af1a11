//! `sts`: takes a snapshot of a queue's metrics.
//!
//! To know the metrics of a queue, all events that are not packed are read, those of other queues too. With
//! thousands of busy queues that are many, so the jobs of several queues share what one of them has read.

use std::collections::HashMap;
use std::ops::Range;

use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::subtransaction;
use crate::pg::time;
use crate::store::counters::metrics::{self, SnapshotOf};
use crate::store::counters::metrics_exact::{self, Known};
use crate::store::queues::open_queue::{Queue, Table};

/// After this time what was read is not used any more, unless it took longer to read it: microseconds.
const MAX_AGE_US: i64 = 1_000_000;

/// The metrics of queues, read for the jobs that come next.
#[derive(Default)]
pub struct Shared {
    queues: HashMap<String, Known>,
    /// The time of the transaction that has read them, which is that of the snapshots: microseconds since 2000.
    at: i64,
    /// When they are used, by the clock. One that was set back is before that.
    used: Range<i64>,
}

impl Shared {
    /// Has what is known of a queue by now, or reads it, together with that of the queues that `others` names.
    pub fn provide(&mut self, name: &QueueName, others: impl FnOnce() -> Vec<String>) {
        let began = time::clock();
        if self.queues.contains_key(name.as_str()) && self.used.contains(&began) {
            return;
        }
        self.queues.clear();
        let read = || {
            let mut names = others();
            names.push(name.as_str().to_owned());
            names.sort_unstable();
            names.dedup();
            let texts: Vec<&str> = names.iter().map(String::as_str).collect();
            let known = metrics_exact::read_many(&texts);
            names.into_iter().zip(known).collect()
        };
        self.at = time::now();
        // After a failure the job reads what it needs itself, and reports that it cannot.
        self.queues = subtransaction::attempt(read).unwrap_or_default();
        let end = time::clock();
        self.used = began..end.saturating_add(MAX_AGE_US.max(end.saturating_sub(began)));
    }

    /// Returns the metrics of a queue and their time, once, if it is still the same queue.
    fn take(&mut self, queue: &Queue) -> Option<(metrics_exact::Metrics, i64)> {
        let known = self.queues.remove(queue.name.as_str())?;
        (known.id == Some(queue.id)).then_some((known.metrics, self.at))
    }
}

/// Takes a snapshot of the metrics of a queue, and returns how many rows it has written. Busy while
/// another session has locked the queue. `shared`: what was read for it; otherwise it reads what it needs.
///
/// Fails with `Error::UnknownQueue`, with `Error::OtherOwner` when the table of the snapshots
/// belongs to another role than the documents, and with `Error::NoRight`.
pub fn run(name: &QueueName, which: SnapshotOf, shared: &mut Shared) -> Result<Ran<i32>> {
    let Some(queue) = Queue::try_open(name)? else {
        return Ok(Ran::Busy);
    };
    match queue.lock_table("metrics", false) {
        Table::Ready => Ok(Ran::Done(metrics::snap(name, which, shared.take(&queue)))),
        Table::Busy => Ok(Ran::Busy),
        Table::Missing => Err(queue.missing("metrics")),
    }
}
