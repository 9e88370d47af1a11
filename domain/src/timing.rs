//! How long documents wait and run: log-scaled histograms of times.
//!
//! A time falls into a bucket. There are four buckets for each power of two, from 128 µs to 2^42
//! µs, which is 50.9 days. A percentile is the end of the bucket that it falls into: it is never
//! less than the exact value, and more by at most a quarter of it, or by 128 µs.

use std::cmp::Ordering;

/// The power of two in microseconds at which the buckets of different lengths begin.
const MIN_BITS: u32 = 7;

/// The power of two in microseconds at which the last bucket begins, which has no end.
const MAX_BITS: u32 = 42;

/// The power of two that is the number of buckets for each power of two in microseconds.
const SUB_BITS: u32 = 2;

/// The number of the last bucket. The first one is 0.
pub const LAST_BUCKET: i16 = (((MAX_BITS - MIN_BITS) << SUB_BITS) + 1) as i16;

/// The percentiles that are reported, in percent.
pub const PERCENTILES: [i64; 3] = [50, 95, 99];

/// Returns the bucket of a time in microseconds. A time below 0, which a clock that was set back
/// can cause, counts as 0.
pub fn bucket(micros: i64) -> i16 {
    let micros = micros.max(0) as u64;
    if micros < 1 << MIN_BITS {
        return 0;
    }
    let bits = 63 - micros.leading_zeros();
    if bits >= MAX_BITS {
        return LAST_BUCKET;
    }
    let sub = (micros >> (bits - SUB_BITS)) as i16 & ((1 << SUB_BITS) - 1);
    1 + (((bits - MIN_BITS) as i16) << SUB_BITS) + sub
}

/// Returns the end of a bucket in microseconds: all times in it are less. For the last bucket, which
/// has no end, it is the beginning.
pub fn end(bucket: i16) -> i64 {
    if bucket <= 0 {
        return 1 << MIN_BITS;
    }
    let bucket = i64::from(bucket.min(LAST_BUCKET)) - 1;
    let (bits, sub) = (bucket >> SUB_BITS, bucket & ((1 << SUB_BITS) - 1));
    let shift = bits + i64::from(MIN_BITS - SUB_BITS);
    let end = ((1 << SUB_BITS) + sub + 1) << shift;
    end.min(1 << MAX_BITS)
}

/// The bounds of the histograms for a monitoring system, as powers of two in microseconds: from a
/// millisecond, which doubles up to a minute, and grows fourfold up to 19 hours. Each of them is the
/// end of a bucket, so that the numbers below it are exact.
pub const BOUNDS: [u32; 22] = [
    10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 28, 30, 32, 34, 36,
];

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Timing {
    /// From when a document was due until it was picked.
    Wait,
    /// From when a document was picked until its worker settled it.
    Run,
}

impl Timing {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Wait, Self::Run];

    /// The word in `fetchq.timings`.
    pub fn word(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Run => "run",
        }
    }
}

/// How many rows of the counter log one call writes at most for the same event.
const MAX_ENTRIES: usize = 8;

/// Documents of one call, counted by their buckets.
///
/// It has at most eight buckets. If the documents fall into more, neighbouring buckets are counted
/// as the last one of them, so that no time is made shorter.
#[derive(Debug, Clone, Copy)]
pub struct Tally {
    /// Buckets and the numbers of documents.
    entries: [(i16, i32); MAX_ENTRIES],
    len: usize,
    /// The lowest bits of the buckets, which are set to make them coarser.
    mask: i16,
    /// The documents whose time is not known.
    untimed: i32,
}

impl Tally {
    /// A tally without documents.
    pub const fn new() -> Self {
        Self {
            entries: [(0, 0); MAX_ENTRIES],
            len: 0,
            mask: 0,
            untimed: 0,
        }
    }

    /// Adds a document. None: its time is not known.
    pub fn add(&mut self, bucket: Option<i16>) {
        match bucket {
            Some(bucket) => self.add_many(bucket, 1),
            None => self.untimed += 1,
        }
    }

    /// Adds `n` documents, which must not be negative. None: their time is not known.
    pub fn add_all(&mut self, bucket: Option<i16>, n: i32) {
        match bucket {
            Some(bucket) => self.add_many(bucket, n),
            None => self.untimed += n,
        }
    }

    fn add_many(&mut self, bucket: i16, n: i32) {
        loop {
            let bucket = (bucket | self.mask).min(LAST_BUCKET);
            let known = &mut self.entries[..self.len];
            if let Some(entry) = known.iter_mut().find(|(known, _)| *known == bucket) {
                entry.1 += n;
                return;
            }
            if self.len < MAX_ENTRIES {
                self.entries[self.len] = (bucket, n);
                self.len += 1;
                return;
            }
            self.coarsen();
        }
    }

    /// Counts by buckets of twice the length.
    fn coarsen(&mut self) {
        let entries = self.entries;
        let len = self.len;
        self.mask = self.mask << 1 | 1;
        self.len = 0;
        for (bucket, n) in &entries[..len] {
            self.add_many(*bucket, *n);
        }
    }

    /// The buckets and the numbers of documents in them.
    pub fn entries(&self) -> impl Iterator<Item = (i16, i32)> + '_ {
        self.entries[..self.len].iter().copied()
    }

    /// How many documents there are whose time is not known.
    pub fn n_untimed(&self) -> i32 {
        self.untimed
    }

    /// How many documents there are.
    pub fn n(&self) -> i32 {
        self.untimed + self.entries().map(|(_, n)| n).sum::<i32>()
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self::new()
    }
}

/// The documents of a queue, counted by their buckets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// By bucket.
    counts: Vec<i64>,
}

impl Histogram {
    /// Adds `n` documents of a bucket.
    pub fn add(&mut self, bucket: i32, n: i64) {
        let at = bucket.clamp(0, i32::from(LAST_BUCKET)) as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] = self.counts[at].saturating_add(n);
    }

    /// Returns how many documents there are.
    pub fn n(&self) -> i64 {
        self.counts.iter().sum()
    }

    /// Returns how many documents have a time of less than two to the power of `bits` microseconds.
    pub fn n_below(&self, bits: u32) -> i64 {
        let end = bucket(1 << bits.min(MAX_BITS)) as usize;
        self.counts.iter().take(end).sum()
    }

    /// Returns the sum of all times in microseconds, as if each were in the middle of its bucket. It
    /// differs from the exact sum by an eighth at most, or by 64 µs for each document.
    pub fn sum(&self) -> f64 {
        let middle = |at: usize| match at {
            0 => end(0) / 2,
            _ => (end(at as i16 - 1) + end(at as i16)) / 2,
        };
        let counts = self.counts.iter().enumerate();
        // The sum of nothing is -0.
        0.0 + counts
            .map(|(at, n)| middle(at) as f64 * *n as f64)
            .sum::<f64>()
    }

    /// Returns a percentile in microseconds, None when there are no documents. `percent` is
    /// between 1 and 100.
    pub fn percentile(&self, percent: i64) -> Option<i64> {
        let total: i128 = self.counts.iter().map(|n| i128::from(*n)).sum();
        if total <= 0 {
            return None;
        }
        let rank = (total * i128::from(percent) + 99) / 100;
        let mut passed = 0;
        let reached = self.counts.iter().position(|n| {
            passed += i128::from(*n);
            passed.cmp(&rank) != Ordering::Less
        });
        reached.map(|bucket| end(bucket as i16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Times of all sizes, at the edges of buckets and between them.
    fn times() -> impl Iterator<Item = i64> {
        let around = (0..46).flat_map(|bits| {
            let power = 1i64 << bits;
            (0..16).flat_map(move |part| {
                let time = power + power / 16 * part;
                [time - 1, time, time + 1]
            })
        });
        around.chain([0, 1, 127, 128, i64::MAX])
    }

    #[test]
    fn the_end_of_a_bucket_is_beyond_its_times_by_a_quarter_at_most() {
        for time in times().filter(|time| *time < 1 << MAX_BITS) {
            let end = end(bucket(time));
            assert!(end > time, "{time} {end}");
            let error = end - time;
            assert!(error <= time / 4 + 1 || error <= 128, "{time} {end}");
        }
    }

    #[test]
    fn buckets_are_in_the_order_of_their_times() {
        for bucket in 0..LAST_BUCKET - 1 {
            assert!(end(bucket) < end(bucket + 1), "{bucket}");
        }
        for number in 0..LAST_BUCKET {
            assert_eq!(bucket(end(number) - 1), number);
            assert_eq!(bucket(end(number)), number + 1);
        }
    }

    #[test]
    fn times_that_are_out_of_range_are_in_the_first_and_the_last_bucket() {
        assert_eq!(bucket(-1), 0);
        assert_eq!(bucket(i64::MIN), 0);
        assert_eq!(bucket(i64::MAX), LAST_BUCKET);
        assert_eq!(bucket(1 << MAX_BITS), LAST_BUCKET);
        assert_eq!(end(LAST_BUCKET), 1 << MAX_BITS);
        assert_eq!(LAST_BUCKET, 141);
    }

    #[test]
    fn a_percentile_is_at_most_a_quarter_more_than_the_exact_one() {
        let mut number = 1u64;
        for n in [1usize, 2, 3, 10, 99, 100, 101, 1000] {
            let mut histogram = Histogram::default();
            let mut times: Vec<i64> = (0..n)
                .map(|_| {
                    number = number
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    (number >> (22 + number % 30)) as i64 % (1 << 40)
                })
                .collect();
            for time in &times {
                histogram.add(i32::from(bucket(*time)), 1);
            }
            times.sort_unstable();
            for percent in [1_i64, 50, 95, 99, 100] {
                let rank = (n * percent as usize).div_ceil(100);
                let exact = times[rank - 1];
                let found = histogram.percentile(percent).unwrap();
                assert!(found > exact, "{percent} of {n}: {found} {exact}");
                assert!(
                    found - exact <= (exact / 4 + 1).max(128),
                    "{percent} of {n}"
                );
            }
        }
    }

    #[test]
    fn the_numbers_below_the_bounds_and_the_sum_fit_the_times() {
        let mut histogram = Histogram::default();
        let (mut n, mut sum) = (0, 0.0);
        for time in times().filter(|time| *time < 1 << 40) {
            histogram.add(i32::from(bucket(time)), 1);
            n += 1;
            sum += time as f64;
        }
        assert_eq!(histogram.n(), n);
        assert!((histogram.sum() - sum).abs() <= sum / 8.0 + 64.0 * n as f64);
        for bits in BOUNDS {
            let below = times().filter(|time| *time < 1 << bits).count();
            assert_eq!(histogram.n_below(bits), below as i64, "{bits}");
        }
    }

    #[test]
    fn nothing_has_no_percentiles() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(50), None);
        histogram.add(3, 0);
        assert_eq!(histogram.percentile(99), None);
    }

    #[test]
    fn a_tally_keeps_every_document_and_shortens_no_time() {
        let mut tally = Tally::new();
        let mut exact = Histogram::default();
        let mut n = 0;
        for bucket in (0..=LAST_BUCKET).rev().chain(0..=LAST_BUCKET) {
            tally.add(Some(bucket));
            exact.add(i32::from(bucket), 1);
            n += 1;
            assert_eq!(tally.n(), n);
            assert!(tally.entries().count() <= MAX_ENTRIES);
        }
        let mut counted = Histogram::default();
        for (bucket, n) in tally.entries() {
            counted.add(i32::from(bucket), i64::from(n));
        }
        for percent in 1..=100 {
            assert!(counted.percentile(percent) >= exact.percentile(percent));
        }
    }

    #[test]
    fn a_tally_of_a_few_buckets_is_exact() {
        let mut tally = Tally::new();
        for bucket in [5, 5, 9, 5, 40] {
            tally.add(Some(bucket));
        }
        tally.add(None);
        assert_eq!(
            tally.entries().collect::<Vec<_>>(),
            [(5, 3), (9, 1), (40, 1)]
        );
        assert_eq!((tally.n_untimed(), tally.n()), (1, 6));
    }
}
