//! What the launcher, the workers and the sessions tell each other, in shared memory.
//! Atomics only, so that it may be read and written anywhere, also in a commit.

use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

/// How many changes of a calendar are kept until its worker reads them. When there are
/// more, it looks at all queues.
const RING: usize = 512;

/// One of the changes. The mark is written last and changes with each, so that a reader
/// sees whether what it has read belongs together.
struct DueChange {
    /// Its number, and below it the table; 0 while it is written.
    mark: AtomicU64,
    time: AtomicI64,
}

fn mark(number: u32, table: u32) -> u64 {
    u64::from(number) << 32 | u64::from(table)
}

/// Changes of the calendar of a database, until its worker reads them.
pub struct DueChanges {
    changes: [DueChange; RING],
    written: AtomicU32,
}

impl DueChanges {
    pub const fn none() -> Self {
        Self {
            changes: [const {
                DueChange {
                    mark: AtomicU64::new(0),
                    time: AtomicI64::new(0),
                }
            }; RING],
            written: AtomicU32::new(0),
        }
    }

    pub fn add(&self, table: u32, time: i64) {
        let number = self.written.fetch_add(1, Ordering::SeqCst);
        let change = &self.changes[number as usize % RING];
        change.mark.store(0, Ordering::SeqCst);
        change.time.store(time, Ordering::SeqCst);
        change.mark.store(mark(number, table), Ordering::SeqCst);
    }

    /// Where reading starts for a worker that will look at everything.
    pub fn written(&self) -> u32 {
        self.written.load(Ordering::SeqCst)
    }

    /// Reads what was told since `read`; None when that is not all there any more.
    pub fn since(&self, read: &mut u32) -> Option<Vec<(u32, i64)>> {
        let written = self.written();
        let mut news = Vec::new();
        let mut is_all = written.wrapping_sub(*read) as usize <= RING;
        if is_all {
            while *read != written {
                let change = &self.changes[*read as usize % RING];
                let before = change.mark.load(Ordering::SeqCst);
                let time = change.time.load(Ordering::SeqCst);
                let table = before as u32;
                // Else its writer is not ready yet, or another one was faster than this.
                is_all &= table != 0
                    && before == mark(*read, table)
                    && before == change.mark.load(Ordering::SeqCst);
                news.push((table, time));
                *read = read.wrapping_add(1);
            }
        }
        *read = written;
        is_all.then_some(news)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_are_read_once_and_in_order() {
        let news = DueChanges::none();
        let mut read = news.written();
        assert_eq!(news.since(&mut read), Some(vec![]));
        news.add(7, 100);
        news.add(8, 50);
        assert_ne!(news.written(), read);
        assert_eq!(news.since(&mut read), Some(vec![(7, 100), (8, 50)]));
        assert_eq!(news.written(), read);
        assert_eq!(news.since(&mut read), Some(vec![]));
    }

    #[test]
    fn too_many_news_are_told_as_such() {
        let news = DueChanges::none();
        let mut read = news.written();
        for n in 0..RING {
            news.add(1, n as i64);
        }
        assert_eq!(news.since(&mut read).map(|n| n.len()), Some(RING));
        for n in 0..=RING {
            news.add(1, n as i64);
        }
        assert_eq!(news.since(&mut read), None);
        news.add(9, 9);
        assert_eq!(news.since(&mut read), Some(vec![(9, 9)]));
    }
}
