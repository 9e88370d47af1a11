//! Writes counter events: one narrow row in `fetchq.counter_log` for all counters of a call.

use crate::pg::lasting::{Lasting, lasting};

use pgrx::pg_sys::Oid;

use crate::domain::counter_events::{self, Event, LATE};
use crate::domain::timing::{self, Tally};
use crate::error::Result;
use crate::pg::relation::{self, LockMode};
use crate::pg::value::Arg;
use crate::pg::{append, invalidation, transaction};
use crate::signals::{commit, wakeups};
use crate::store::counters::counter_segments;
use crate::store::queues::open_queue::Queue;

/// Records an event that happened to `n` documents of a queue, and announces the new status
/// of the documents if the queue has notifications. Does nothing if `n` is 0.
///
/// `version` matters to events that add or remove documents, and is 0 for the others. The
/// usual values, version 0 and one document, are left out, which makes the row eight bytes
/// shorter. A bucket makes it no longer.
pub fn record_event(queue: &Queue, version: i32, n: i32, event: Event) {
    append_row(queue, version, n, event, None);
}

/// Records an event as `record_event` does, for documents whose wait or run is known. It writes a
/// row for each bucket, so nearly always one.
pub fn record_timed(queue: &Queue, version: i32, event: Event, times: &Tally) {
    for (bucket, n) in times.entries() {
        append_row(queue, version, n, event, Some(bucket));
    }
    append_row(queue, version, times.n_untimed(), event, None);
}

/// Records picks whose leases are written later, or not at all. They were announced when the documents were
/// leased.
pub fn record_late_picks(queue: &Queue, waits: &Tally) {
    let rest = (waits.n_untimed(), None);
    let timed = waits.entries().map(|(bucket, n)| (n, Some(bucket)));
    for (n, bucket) in timed.chain([rest]) {
        if n > 0 && !collect(queue, 0, n, Event::Pick.code(), bucket) {
            write_row(queue.id, 0, n, Event::Pick.code(), bucket);
        }
    }
}

/// Records an event that happened to one document. `bucket`: that of its wait or run.
pub fn record_one(queue: &Queue, version: i32, event: Event, bucket: Option<i16>) {
    append_row(queue, version, 1, event, bucket);
}

/// Records an event of one document that ends a late lease, whose pick is counted with it. `wait` and `run`:
/// the buckets.
pub fn record_late(queue: &Queue, version: i32, event: Event, wait: i16, run: Option<i16>) {
    if collects() {
        // Those of a list are as many rows as their times differ, so each kind of time has its own.
        let mut waits = Tally::new();
        waits.add(Some(wait));
        record_late_picks(queue, &waits);
        return record_one(queue, version, event, run);
    }
    let bucket = Some(counter_events::late_bucket(wait, run));
    append(queue, version, 1, event, event.code() + LATE, bucket);
}

/// The bucket of the wait of a document that is picked at `now`. Times are in microseconds since
/// 2000.
pub fn wait_bucket(now: i64, due_at: Option<i64>) -> Option<i16> {
    due_at.map(|due_at| timing::bucket(now.saturating_sub(due_at)))
}

/// The bucket of the run of a document that is settled at `now`, by the clock: the transaction may
/// have done the work as well. Times are in microseconds since 2000.
pub fn run_bucket(now: i64, picked_at: Option<i64>) -> Option<i16> {
    picked_at.map(|picked_at| timing::bucket(now.saturating_sub(picked_at)))
}

/// The events of a list of documents that are settled one by one.
struct Collected {
    /// The subtransaction that collects. What another one records may be rolled back alone.
    subtransaction: u32,
    /// By queue, version and number of the event.
    tallies: Vec<((i32, i32, i16), Tally)>,
}

thread_local! {
    static COLLECTED: Lasting<Option<Collected>> = const { lasting(None) };
}

/// Has the events outside of a list collected as before, also after an ERROR.
struct Restore(Option<Collected>);

impl Drop for Restore {
    fn drop(&mut self) {
        let previous = self.0.take();
        COLLECTED.with(|collected| collected.replace(previous));
    }
}

/// Runs `work`, and records its events together: as many rows as for one call with a list. After
/// an error nothing is recorded, because the error undoes the work.
pub fn together<R>(work: impl FnOnce() -> Result<R>) -> Result<R> {
    let subtransaction = transaction::subtransaction();
    let begun = Collected {
        subtransaction,
        tallies: Vec::new(),
    };
    let restore = Restore(COLLECTED.with(|collected| collected.replace(Some(begun))));
    let result = work()?;
    let collected = COLLECTED.with(|collected| collected.take());
    drop(restore);
    for ((queue, version, code), tally) in collected.into_iter().flat_map(|c| c.tallies) {
        for (bucket, n) in tally.entries() {
            write_row(queue, version, n, code, Some(bucket));
        }
        write_row(queue, version, tally.n_untimed(), code, None);
    }
    Ok(result)
}

/// Returns whether the events of this subtransaction are collected.
fn collects() -> bool {
    COLLECTED.with(|collected| {
        let collected = &*collected.borrow();
        let of = collected.as_ref().map(|collected| collected.subtransaction);
        of == Some(transaction::subtransaction())
    })
}

/// Adds an event to those that are collected. Returns false if it has to be written.
fn collect(queue: &Queue, version: i32, n: i32, code: i16, bucket: Option<i16>) -> bool {
    COLLECTED.with(|collected| {
        let collected = &mut *collected.borrow_mut();
        let Some(collected) = collected else {
            return false;
        };
        if collected.subtransaction != transaction::subtransaction() {
            return false;
        }
        let key = (queue.id, version, code);
        let known = collected.tallies.iter_mut().find(|(of, _)| *of == key);
        match known {
            Some((_, tally)) => tally.add_all(bucket, n),
            None => {
                let mut tally = Tally::new();
                tally.add_all(bucket, n);
                collected.tallies.push((key, tally));
            }
        }
        true
    })
}

fn append_row(queue: &Queue, version: i32, n: i32, event: Event, bucket: Option<i16>) {
    append(queue, version, n, event, event.code(), bucket);
}

/// `code`: the number of the row.
fn append(queue: &Queue, version: i32, n: i32, event: Event, code: i16, bucket: Option<i16>) {
    if n > 0 {
        if let Some(status) = event.enters() {
            queue.announce(status);
        }
        if event.settles() {
            wakeups::documents_settled(queue.table.to_u32(), n.unsigned_abs());
        }
        if event.takes_lease() {
            wakeups::leases_taken(queue.table.to_u32(), n.unsigned_abs());
        }
        if !collect(queue, version, n, code, bucket) {
            write_row(queue.id, version, n, code, bucket);
        }
    }
}

fn write_row(queue: i32, version: i32, n: i32, code: i16, bucket: Option<i16>) {
    if n > 0 {
        let values = [
            Arg::from(queue),
            Arg::from((version != 0).then_some(version)),
            Arg::from((n != 1).then_some(n)),
            Arg::from(code),
            Arg::from(bucket),
        ];
        append::row(lock_segment(), &values);
        commit::event_recorded();
    }
}

/// Locks the segment to write to: the current one, or another while the current one is being
/// packed. A segment that is locked and not packed stays so until the transaction ends.
fn lock_segment() -> Oid {
    if let Some(table) = invalidation::watched()
        && relation::try_lock(table, LockMode::Rows)
        // Locking has processed the messages about segments that were packed before.
        && invalidation::watched() == Some(table)
    {
        return table;
    }
    loop {
        invalidation::watch(counter_segments::tables());
        let order = counter_segments::writable();
        let Some(preferred) = order.first().and_then(|n| counter_segments::table(*n)) else {
            pgrx::error!("fetchq has no segment to write counters to: reinstall the extension");
        };
        for number in order {
            if let Some(table) = counter_segments::table(number)
                && relation::try_lock(table, LockMode::Rows)
                // Read again under the lock: the segment may have been packed meanwhile.
                && counter_segments::writable().contains(&number)
            {
                // Only the preferred segment is locked the next time without these checks.
                if table == preferred {
                    invalidation::remember(table);
                }
                return table;
            }
        }
        // All segments are being packed or truncated. Wait for the first.
        relation::lock_rows(preferred);
    }
}
