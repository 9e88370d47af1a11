//! What a session remembers of the pages of the counter log that it has read: the sums of their
//! events, as long as they stay as they were.
//!
//! The pages from the first on are remembered in runs. Two runs of equal length that follow each
//! other become one. So there are few runs, and few sums to add up, however long the log is.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::xid::Xid;

/// Which events are added up: those of a queue, a version and a kind, and with a bucket or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key(u64, i32);

impl Key {
    /// The key of events. The parts are those of a row of the counter log.
    pub fn new(queue: i32, version: i32, event: i16, bucket: Option<i16>) -> Self {
        // No bucket is below 0.
        let bucket = bucket.unwrap_or(-1) as u16;
        Self(
            u64::from(queue as u32) << 32 | u64::from(event as u16) << 16 | u64::from(bucket),
            version,
        )
    }

    /// The ID of the queue.
    pub fn queue(self) -> i32 {
        (self.0 >> 32) as i32
    }

    /// The version of the documents.
    pub fn version(self) -> i32 {
        self.1
    }

    /// The code of the event.
    pub fn event(self) -> i16 {
        (self.0 >> 16) as i16
    }

    /// The bucket. None when it is not known, or the event has none.
    pub fn bucket(self) -> Option<i16> {
        let bucket = self.0 as i16;
        (bucket >= 0).then_some(bucket)
    }
}

/// Hashes a key by a multiplication for each part. The keys are chosen by nobody who could make them collide.
#[derive(Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_i32(&mut self, value: i32) {
        self.write_u64(u64::from(value as u32));
    }

    fn write_u64(&mut self, value: u64) {
        let product = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        // The table takes its bits from both ends, and the low ones of a product say little.
        self.0 = product ^ product >> 32;
    }
}

/// How many documents the events have.
pub type Sums = HashMap<Key, i64, BuildHasherDefault<KeyHasher>>;

/// Adds sums to others.
pub fn add(sums: &mut Sums, others: &Sums) {
    for (key, n) in others {
        *sums.entry(*key).or_default() += n;
    }
}

/// The pages that become a run at first, and are read again together when one of them has changed.
pub const RUN: u32 = 16;

/// The most sums that are remembered of a table, about a megabyte. Pages after that are read each
/// time.
const MAX_SUMS: usize = 50_000;

/// Pages that follow each other.
#[derive(Debug)]
struct Run {
    /// The position in the WAL of the last change of each page.
    lsns: Vec<u64>,
    /// The last transaction that has written one of them.
    last: Xid,
    sums: Sums,
}

/// The pages of a table that are remembered.
#[derive(Debug, Default)]
pub struct SettledPages {
    /// The number of the file that has them.
    file: u32,
    runs: Vec<Run>,
}

/// Pages from the first on that need not be read.
pub struct Known<'a> {
    runs: &'a [Run],
    /// How many they are.
    pub pages: u32,
    /// All that is remembered is used, so what follows can be remembered, too.
    pub is_all: bool,
}

impl Known<'_> {
    /// Adds the sums of these pages to others.
    pub fn add_to(&self, sums: &mut Sums) {
        for run in self.runs {
            add(sums, &run.sums);
        }
    }
}

impl SettledPages {
    /// Returns the pages that are as they were, in a file that has this many pages. Forgets those
    /// that are not. `horizon`: all transactions before it had ended before the snapshot. `lsn`
    /// returns the position in the WAL of the last change of a page.
    ///
    /// A page shows every snapshot the same rows for which all transactions have ended that have
    /// written it. An older snapshot reads it.
    pub fn known(
        &mut self,
        file: u32,
        pages: u32,
        horizon: Xid,
        lsn: impl Fn(u32) -> u64,
    ) -> Known<'_> {
        if self.file != file {
            self.file = file;
            self.runs.clear();
        }
        let (mut n_runs, mut n_pages) = (0, 0);
        for run in &self.runs {
            let end = n_pages + run.lsns.len() as u32;
            if !run.last.is_before(horizon) {
                break;
            }
            if end > pages || !(n_pages..end).map(&lsn).eq(run.lsns.iter().copied()) {
                self.runs.truncate(n_runs);
                break;
            }
            (n_runs, n_pages) = (n_runs + 1, end);
        }
        Known {
            is_all: n_runs == self.runs.len(),
            runs: &self.runs[..n_runs],
            pages: n_pages,
        }
    }

    /// Remembers pages that follow those that are remembered. `lsns` and `last`: of each page, and
    /// of all of them. Returns false when there is no room.
    pub fn remember(&mut self, lsns: Vec<u64>, last: Xid, sums: Sums) -> bool {
        let n_sums: usize = self.runs.iter().map(|run| run.sums.len()).sum();
        if n_sums + sums.len() > MAX_SUMS {
            return false;
        }
        self.runs.push(Run { lsns, last, sums });
        while let [.., before, run] = &self.runs[..]
            && before.lsns.len() == run.lsns.len()
            && let Some(run) = self.runs.pop()
            && let Some(before) = self.runs.last_mut()
        {
            before.lsns.extend(run.lsns);
            before.last = before.last.latest(run.last);
            add(&mut before.sums, &run.sums);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sums of a page that has one event, of the queue with its number.
    fn sums(page: u32) -> Sums {
        Sums::from_iter([(Key::new(page as i32, 0, 3, None), 1)])
    }

    /// A file of pages, each with its LSN, of which the first ones are remembered. Each was written
    /// by the transaction with its number plus 100.
    fn remembered(pages: u32) -> SettledPages {
        let mut settled = SettledPages::default();
        settled.known(7, pages, Xid::new(1000), |_| 0);
        for page in 0..pages {
            let is_kept =
                settled.remember(vec![u64::from(page) + 1], Xid::new(100 + page), sums(page));
            assert!(is_kept);
        }
        settled
    }

    /// The queues whose events are known, for a snapshot with this horizon.
    fn known(
        settled: &mut SettledPages,
        file: u32,
        pages: u32,
        horizon: u32,
        lsn: impl Fn(u32) -> u64,
    ) -> (u32, bool) {
        let known = settled.known(file, pages, Xid::new(horizon), lsn);
        let mut sums = Sums::default();
        known.add_to(&mut sums);
        let mut queues: Vec<i32> = sums.keys().map(|key| key.queue()).collect();
        queues.sort_unstable();
        // Each page is counted once.
        assert_eq!(queues, (0..known.pages as i32).collect::<Vec<_>>());
        assert!(sums.values().all(|n| *n == 1));
        (known.pages, known.is_all)
    }

    fn unchanged(page: u32) -> u64 {
        u64::from(page) + 1
    }

    #[test]
    fn keys_keep_their_parts() {
        for queue in [0, 1, -1, i32::MIN, i32::MAX] {
            for version in [0, 1, -1, i32::MIN, i32::MAX] {
                for event in [1, 37, i16::MAX] {
                    for bucket in [None, Some(0), Some(141), Some(i16::MAX)] {
                        let key = Key::new(queue, version, event, bucket);
                        assert_eq!(
                            (key.queue(), key.version(), key.event(), key.bucket()),
                            (queue, version, event, bucket)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn runs_of_equal_length_become_one() {
        for pages in 0..70u32 {
            let mut settled = remembered(pages);
            assert_eq!(settled.runs.len() as u32, pages.count_ones());
            assert_eq!(
                known(&mut settled, 7, pages, 1000, unchanged),
                (pages, true)
            );
        }
    }

    #[test]
    fn a_page_that_has_changed_is_not_known() {
        // The runs of 11 pages are 8, 2 and 1 pages long.
        for (changed, left) in [(0, 0), (7, 0), (8, 8), (9, 8), (10, 10)] {
            let mut settled = remembered(11);
            let lsn = |page| if page == changed { 99 } else { unchanged(page) };
            assert_eq!(
                known(&mut settled, 7, 11, 1000, lsn),
                (left, true),
                "{changed}"
            );
            // It is forgotten, even if it looks as before.
            assert_eq!(known(&mut settled, 7, 11, 1000, unchanged), (left, true));
        }
    }

    #[test]
    fn another_file_and_a_shorter_one_are_not_known() {
        let mut settled = remembered(11);
        assert_eq!(known(&mut settled, 7, 20, 1000, unchanged), (11, true));
        assert_eq!(known(&mut settled, 7, 9, 1000, unchanged), (8, true));
        assert_eq!(known(&mut settled, 8, 20, 1000, unchanged), (0, true));
        assert_eq!(known(&mut settled, 7, 20, 1000, unchanged), (0, true));
    }

    #[test]
    fn an_older_snapshot_reads_the_pages_itself() {
        let mut settled = remembered(11);
        // The last transaction of the first 8 pages is 107, and that of the next 2 is 109.
        for (horizon, pages) in [(100, 0), (107, 0), (108, 8), (109, 8), (110, 10), (111, 11)] {
            let found = known(&mut settled, 7, 11, horizon, unchanged);
            assert_eq!(found, (pages, pages == 11), "{horizon}");
        }
    }

    #[test]
    fn the_sums_have_a_bound() {
        let mut settled = SettledPages::default();
        let many = |page: i32| -> Sums {
            let keys = (0..30_000).map(|queue| Key::new(queue + page * 30_000, 0, 1, None));
            keys.map(|key| (key, 1)).collect()
        };
        assert!(settled.remember(vec![1], Xid::new(3), many(0)));
        assert!(!settled.remember(vec![2], Xid::new(3), many(1)));
    }
}
