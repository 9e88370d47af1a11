//! The safety net of the ready floors: now and then an index is read without them, in case a floor
//! was too high.

use std::sync::atomic::Ordering;

use crate::error;
use crate::pg::{index_walk, time};
use crate::ready::floors::{Memory, QueueFloors, bucket_of, increment};
use crate::ready::group::View;
use crate::ready::key::{DueKey, Index, Key, Name, PickKey};

/// The least time between two full scans of a group: of a version of a queue in the pick index, or
/// of the due index of a queue. Microseconds.
const FULL_SCAN_INTERVAL_US: i64 = 1_000_000;

/// Full scans of a group take at most this part of the time: one hundredth.
const FULL_SCAN_SHARE: i64 = 100;

/// How many priorities of a version `cmp` checks at most. Those whose documents are gone count until
/// vacuum has removed their entries.
const MAX_CHECKED: usize = 1000;

impl QueueFloors {
    /// Checks the floors, for a pick that found nothing. `scan` looks for ready documents
    /// without floors and returns the priority and key of each. It runs about once a second for
    /// each version of a queue. Each document that it finds should have been above the floor
    /// of its priority; the others are counted and reported as a WARNING. `queue` is the name
    /// of the queue.
    ///
    /// `scan` locks the documents, so that no floor can advance above them meanwhile.
    pub fn full_scan(&self, version: i32, queue: &str, scan: impl FnOnce() -> Vec<(i32, PickKey)>) {
        let name = self.name(Index::Pick, version);
        check(&name, "ready", queue, || {
            scan()
                .into_iter()
                .map(|(priority, key)| (priority, key.into()))
                .collect()
        });
    }

    /// Checks the floors of a version, for the job `cmp`, as a pick that found nothing does. A busy
    /// version has no such pick. `scan` gets each priority of which the index has entries, looks for
    /// ready documents below its `floor`, and returns the key of each.
    pub fn full_scan_below(
        &self,
        version: i32,
        queue: &str,
        mut scan: impl FnMut(i32) -> Vec<PickKey>,
    ) {
        let name = self.name(Index::Pick, version);
        check(&name, "ready", queue, || {
            let found = |priority: i32| {
                let keys = scan(priority).into_iter();
                keys.map(move |key| (priority, key.into()))
            };
            let priorities = self.priorities(&name);
            priorities.into_iter().flat_map(found).collect()
        });
    }

    /// The priorities of which the pick index has entries. None of them when there are too many.
    fn priorities(&self, name: &Name) -> Vec<i32> {
        let found = index_walk::distinct_second_column(
            self.table,
            self.pick_index,
            name.version,
            MAX_CHECKED,
        );
        found.unwrap_or_else(|| {
            // Then they are examined again by the next pick.
            Memory::write(bucket_of(name), |b| b.forget_group(name));
            Vec::new()
        })
    }

    /// The floor of a priority at this moment. No pick reads a priority that is not known, so its floor
    /// is above all documents. None when nothing is known of the version.
    pub fn floor(&self, version: i32, priority: i32) -> Option<PickKey> {
        let name = self.name(Index::Pick, version);
        let views = Memory::read(bucket_of(&name), |b| b.peek(&name, self.epoch))?;
        let mut levels = views.as_slice().iter();
        let level = levels.find(|level| level.id == priority);
        Some(level.map_or(PickKey::LAST, |level| level.floor.pick()))
    }

    /// Checks the floors of the due index, for maintenance. `scan` gets the levels with their
    /// floors, looks for due documents below them, and returns the code of the status and the key
    /// of each. It runs about once a second for each queue. The floors are lowered to what it
    /// finds, so that maintenance finds it too. What `full_scan` does with documents that should
    /// have been above the floor, and what it demands of `scan`, applies here too.
    pub fn full_scan_of_due(&self, queue: &str, scan: impl FnOnce(&[View]) -> Vec<(i32, DueKey)>) {
        let name = self.name(Index::Due, 0);
        check(&name, "due", queue, || {
            // Floors of which nothing is known in this epoch hide nothing, and a check does not begin them.
            let levels = Memory::read(bucket_of(&name), |b| b.peek(&name, self.epoch));
            let Some(levels) = levels else {
                return Vec::new();
            };
            scan(levels.as_slice())
                .into_iter()
                .map(|(status, key)| (status, key.into()))
                .collect()
        });
    }
}

/// Charges a scan that has taken long, so that the next one waits for it. An ERROR ends it too.
struct Charged<'a> {
    bucket: usize,
    name: &'a Name,
    began: i64,
}

impl Drop for Charged<'_> {
    fn drop(&mut self) {
        let duration = (time::clock() - self.began).max(0);
        if duration > FULL_SCAN_INTERVAL_US / FULL_SCAN_SHARE {
            let wait = duration.saturating_mul(FULL_SCAN_SHARE);
            let until = self.began.saturating_add(wait);
            Memory::read(self.bucket, |b| b.postpone_full_scan(self.name, until));
        }
    }
}

/// Runs a scan if one is due, and notes what it finds below the floors. `state` is the word for
/// the documents in messages.
fn check(name: &Name, state: &str, queue: &str, scan: impl FnOnce() -> Vec<(i32, Key)>) {
    let bucket = bucket_of(name);
    let began = time::clock();
    let is_due = Memory::read(bucket, |b| {
        b.claim_full_scan(name, began, began + FULL_SCAN_INTERVAL_US)
    });
    if !is_due {
        return;
    }
    increment(|c| &c.full_scans);
    let charged = Charged {
        bucket,
        name,
        began,
    };
    let found = scan();
    drop(charged);
    // A document that appeared after the floors were read was noted before the scan could see it.
    // Its floor is below it by now, so it does not count as missed.
    let missed = Memory::write(bucket, |b| {
        let mut missed = 0;
        for (level, key) in &found {
            if b.hides(name, *level, *key) {
                b.note(name, *level, *key, began);
                missed += 1;
            }
        }
        missed
    });
    if missed > 0 {
        if let Some(counters) = Memory::header() {
            counters.floor_misses.fetch_add(missed, Ordering::Relaxed);
        }
        error::warn(
            pgrx::PgSqlErrorCode::ERRCODE_INTERNAL_ERROR,
            format!("{missed} documents of queue \"{queue}\" were {state} below the ready floor"),
            "They have been found now. This is a defect of fetchq: please report it.",
        );
    }
}
