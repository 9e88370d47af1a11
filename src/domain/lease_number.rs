//! Lease numbers: by its number, a worker proves that it holds the lease of a document.
//!
//! A document never gets the same number twice. A number is made of the clock, so that it differs
//! from those that were given before a crash, or before the moment that a restored dump shows. And
//! it is greater than the number that the document had before, so that a clock that was set back
//! does no harm.
//!
//! A failover may lose a lease, and with it the number that the document had. The new primary has
//! another clock, which may be behind, so that the clock alone might give the number of the lost lease
//! once more. Each promotion begins a new timeline, and the numbers of each timeline are a day ahead of
//! those of the one before. So the clocks of the servers may differ by almost a day.
//!
//! A number is below 2^53, so that a client whose numbers are floating-point numbers can hold it.

/// The greatest number.
pub const MAX: i64 = (1 << 53) - 1;

/// The start of 2020, in microseconds since 2000. A number counts the microseconds from then on,
/// which leaves room until the year 2305 on the first timeline, and until 2126 on all of them.
const EPOCH_US: i64 = 7305 * 86_400 * 1_000_000;

/// By how much the numbers of a timeline are ahead of those of the one before: a day, in microseconds.
const TIMELINE_US: i64 = 86_400 * 1_000_000;

/// The timelines after which the numbers begin again: one failover a day for 179 years.
const TIMELINES: u32 = 1 << 16;

/// The number that the clock gives, in microseconds since 2000, on a timeline of the server.
pub fn by_clock(now: i64, timeline: u32) -> i64 {
    // The first timeline is 1.
    let ahead = i64::from(timeline.saturating_sub(1) % TIMELINES) * TIMELINE_US;
    now.saturating_sub(EPOCH_US)
        .saturating_add(ahead)
        .clamp(1, MAX)
}

/// The number after `last`, the last one that was given, that is at least `least`.
pub fn next(last: i64, least: i64) -> i64 {
    // Only a number that was written by hand can bring a server as far as MAX.
    if last >= MAX {
        least
    } else {
        least.max(last + 1)
    }
}

/// Returns whether a document that had the number `previous` can get `number`. A previous number
/// from `MAX` on was written by hand: no pick makes it, and it says nothing.
pub fn is_above(number: i64, previous: i64) -> bool {
    number > previous || previous >= MAX && number != previous
}

/// The least number that documents with these previous numbers can get, and that is at least
/// `number`.
pub fn above(number: i64, previous: impl Iterator<Item = i64>) -> i64 {
    previous
        .filter(|previous| *previous < MAX)
        .fold(number, |number, previous| number.max(previous + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_US: i64 = 86_400 * 1_000_000;

    #[test]
    fn numbers_are_below_two_to_the_53_for_the_next_200_years() {
        let year_2227 = 227 * 366 * DAY_US;
        let number = by_clock(year_2227, 1);
        assert!(number < MAX, "{number}");
        assert_eq!(by_clock(year_2227 + 1, 1), number + 1);
        assert!(by_clock(i64::MAX, 1) < 1 << 53);
    }

    #[test]
    fn a_promoted_server_gives_greater_numbers_though_its_clock_is_behind() {
        let now = 26 * 366 * DAY_US;
        for timeline in [1, 2, 7, 1000] {
            let lost = next(0, by_clock(now, timeline));
            let given = next(0, by_clock(now - DAY_US + 1, timeline + 1));
            assert!(given > lost, "{given} {lost}");
        }
    }

    #[test]
    fn there_are_numbers_on_each_timeline_for_the_next_100_years() {
        let year_2125 = 125 * 366 * DAY_US;
        let mut last = 0;
        for timeline in 1..=TIMELINES {
            let number = by_clock(year_2125, timeline);
            assert!(number > last && number < MAX, "{timeline}: {number}");
            last = number;
        }
        assert!(by_clock(year_2125, u32::MAX) < MAX);
        assert!(by_clock(i64::MAX, u32::MAX) <= MAX);
    }

    #[test]
    fn numbers_grow_though_the_clock_goes_back() {
        let now = 26 * 366 * DAY_US;
        let first = next(0, by_clock(now, 1));
        let second = next(first, by_clock(now, 1));
        let third = next(second, by_clock(now - DAY_US, 1));
        assert!(first < second && second < third, "{first} {second} {third}");
        assert!(next(0, by_clock(0, 1)) > 0);
    }

    #[test]
    fn a_number_is_above_all_previous_ones() {
        assert_eq!(above(100, [5, 99].into_iter()), 100);
        assert_eq!(above(100, [5, 100, 70].into_iter()), 101);
        assert_eq!(above(100, [1 << 40, 3].into_iter()), (1 << 40) + 1);
        assert_eq!(above(100, std::iter::empty()), 100);
    }

    #[test]
    fn a_number_that_no_pick_makes_is_not_passed_on() {
        for absurd in [MAX, MAX + 1, i64::MAX] {
            assert_eq!(above(100, [absurd].into_iter()), 100);
            assert!(is_above(100, absurd));
            assert!(!is_above(absurd, absurd));
        }
        assert_eq!(above(100, [MAX - 1].into_iter()), MAX);
        assert_eq!(next(MAX, 100), 100);
    }
}
