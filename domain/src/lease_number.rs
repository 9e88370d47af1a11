//! Lease numbers: by its number, a worker proves that it holds the lease of a document.
//!
//! A document never gets the same number twice. A number is made of the clock, so that it differs
//! from those that were given before a crash, or before the moment that a restored dump shows. And
//! it is greater than the number that the document had before, so that a clock that was set back
//! does no harm.
//!
//! Where a document has a number that is ahead of the clock, the clock says nothing: the document
//! came from a server that was promoted, or the clock was set back. The next number cannot be made
//! of what is stored alone either. A crash or a failover can lose a lease, and with it the number
//! that was made, and the next pick finds what the first one has found. So such a number is a
//! random step above the stored one.
//!
//! The server remembers the last number that it gave, so it makes one such step and counts on from
//! there. It makes another one only for a number that it did not give and that is above all its
//! own. So the steps do not add up, and numbers remain far below the greatest one.
//!
//! A failover may lose a lease, and with it the number that the document had. The new primary has
//! another clock, which may be behind, so that the clock alone might give the number of the lost lease
//! once more. Each promotion begins a new timeline, and the numbers of each timeline are a day ahead of
//! those of the one before. So the clocks of the servers may differ by almost a day.
//!
//! A number is below 2^53, so that a client whose numbers are floating-point numbers can hold it.
//!
//! The lowest bit says how the lease is settled. Odd numbers are those of the calls of fetchq 5: such a
//! document is settled by the number alone. Even numbers are those of `doc_pick`, whose callers know the
//! subject only. So the row tells, without a column for it, and wherever the document moves.

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

/// The longest step above a number that the clock has not reached: 72 minutes, in microseconds. So the
/// chance that a step leads to a number that was lost is one in four billion.
pub const MAX_STEP: i64 = 1 << 32;

/// The longest of these steps where the processes of the server do not know each other's numbers, so
/// that each of them makes its own steps: a second. They may add up. No crash loses a lease there.
pub const MAX_LONE_STEP: i64 = 1 << 20;

/// The greatest number that says something. A greater one was written by hand, or the steps have come
/// this far; the numbers begin again with the clock then.
const LIMIT: i64 = MAX - MAX_STEP;

/// What settles a document, and extends its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettledBy {
    /// The subject, as in fetchq 4. The number is welcome.
    Subject,
    /// The number.
    Number,
}

impl SettledBy {
    /// The number, or the one beside it that says this. It is at most `MAX`.
    fn mark(self, number: i64) -> i64 {
        match needs_number(number) == (self == Self::Number) {
            true => number,
            false if number < MAX => number + 1,
            false => number - 1,
        }
    }
}

/// Returns whether a document with this lease is settled by the number alone.
pub fn needs_number(lease: i64) -> bool {
    lease & 1 == 1
}

/// The number after `last`, the last one that was given, that is at least `least`.
pub fn next(last: i64, least: i64, by: SettledBy) -> i64 {
    let number = by.mark(least.max(last.saturating_add(1)).min(MAX));
    if number > last {
        number
    } else {
        by.mark(least)
    }
}

/// The number after `last`, the last one that was given, for documents that had numbers up to
/// `previous`, which the clock has not reached. `step` is random, from 1 to `MAX_STEP`.
pub fn next_above(last: i64, previous: i64, step: i64, by: SettledBy) -> i64 {
    // This server has given `previous`, or has made a step above it.
    if (previous..MAX - 1).contains(&last) {
        by.mark(last + 1)
    } else if previous <= LIMIT {
        by.mark(previous + step)
    } else {
        by.mark(step)
    }
}

/// Returns whether a document that had the number `previous` can get `number`.
pub fn is_above(number: i64, previous: i64) -> bool {
    number > previous || previous > LIMIT && number != previous
}

/// The greatest of the numbers that documents had before and that keep them from getting `number`.
pub fn obstacle(number: i64, previous: impl Iterator<Item = i64>) -> Option<i64> {
    previous
        .filter(|previous| !is_above(number, *previous))
        .max()
}

#[cfg(test)]
mod tests {
    use super::SettledBy::{Number, Subject};
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
            let lost = next(0, by_clock(now, timeline), Number);
            let given = next(0, by_clock(now - DAY_US + 2, timeline + 1), Number);
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
        let first = next(0, by_clock(now, 1), Number);
        let second = next(first, by_clock(now, 1), Subject);
        let third = next(second, by_clock(now - DAY_US, 1), Number);
        assert!(first < second && second < third, "{first} {second} {third}");
        assert!(next(0, by_clock(0, 1), Subject) > 0);
    }

    /// A server, from its start on: what it remembers, and the random numbers that it draws.
    struct Server {
        last: i64,
        step: i64,
        steps: u32,
    }

    impl Server {
        fn starts(step: i64) -> Self {
            let (last, steps) = (0, 0);
            Self { last, step, steps }
        }

        /// Leases a document that had the number `previous` at a time by the clock.
        fn lease(&mut self, now: i64, previous: i64) -> i64 {
            self.last = next(self.last, by_clock(now, 1), Number);
            if let Some(previous) = obstacle(self.last, [previous].into_iter()) {
                self.steps += u32::from(previous > self.last);
                self.last = next_above(self.last, previous, self.step, Number);
            }
            self.last
        }
    }

    /// The clock of both servers says the same, and both find the same documents: the second one is
    /// the first one after a crash, or the standby that has taken its place.
    #[test]
    fn a_number_that_a_crash_has_lost_is_not_made_again() {
        let now = 26 * 366 * DAY_US;
        let ahead = by_clock(now, 1) + 3 * DAY_US;
        let stored = [ahead, 0, ahead + 500, ahead - DAY_US, 0, ahead + DAY_US];
        let leases = |step| {
            let mut server = Server::starts(step);
            stored.map(|previous| {
                let number = server.lease(now, previous);
                assert!(number > previous);
                number
            })
        };
        let (lost, again) = (leases(70_000_001), leases(2_345_678));
        for (lost, again) in lost.iter().zip(again) {
            assert_ne!(*lost, again);
        }
        // Without a step they would be the same.
        assert_eq!(leases(1), leases(1));
    }

    #[test]
    fn the_steps_of_a_server_do_not_add_up() {
        let now = 26 * 366 * DAY_US;
        let ahead = by_clock(now, 1) + 3 * DAY_US;
        let mut server = Server::starts(MAX_STEP);
        let mut numbers: Vec<i64> = (0..1000).map(|i| ahead + i).collect();
        for _ in 0..100 {
            for number in &mut numbers {
                let given = server.lease(now, *number);
                assert!(given > *number);
                *number = given;
            }
        }
        assert_eq!(server.steps, 1);
        assert!(server.last <= ahead + MAX_STEP + 2 * 100_000);
        // Those that the server has not given, and that are above its own, need another one.
        server.lease(now, server.last + DAY_US);
        assert_eq!(server.steps, 2);
    }

    #[test]
    fn a_step_leads_above_what_was_stored_and_what_was_given() {
        assert_eq!(next_above(0, 100, 1, Number), 101);
        assert_eq!(next_above(0, 100, 1, Subject), 102);
        assert_eq!(next_above(0, 100, MAX_STEP, Subject), 100 + MAX_STEP);
        assert_eq!(next_above(99, 100, 50, Subject), 150);
        assert_eq!(next_above(100, 100, 50, Number), 101);
        assert_eq!(next_above(500, 100, 50, Number), 501);
        assert_eq!(next_above(501, 100, 50, Number), 503);
        assert_eq!(next_above(0, LIMIT, MAX_STEP, Number), MAX);
        assert_eq!(next_above(0, LIMIT, MAX_STEP, Subject), MAX - 1);
        assert_eq!(next_above(MAX, 100, 50, Number), 151);
        assert_eq!(obstacle(70, [5, 100, 70].into_iter()), Some(100));
        assert_eq!(obstacle(70, [5, 70].into_iter()), Some(70));
        assert_eq!(obstacle(101, [5, 100, 70].into_iter()), None);
        assert_eq!(obstacle(1, std::iter::empty()), None);
    }

    #[test]
    fn a_number_that_no_pick_makes_is_not_passed_on() {
        for absurd in [LIMIT + 1, MAX - 1, MAX, MAX + 1, i64::MAX] {
            assert_eq!(obstacle(100, [absurd, 7].into_iter()), None);
            assert!(is_above(100, absurd));
            assert!(!is_above(absurd, absurd));
            for last in [0, absurd - 1, absurd, MAX] {
                for by in [Number, Subject] {
                    let number = next_above(last, absurd, 5, by);
                    assert!(
                        number <= MAX && is_above(number, absurd),
                        "{number} {absurd}"
                    );
                }
            }
        }
        assert_eq!(obstacle(100, [LIMIT].into_iter()), Some(LIMIT));
        assert_eq!(next(MAX, 100, Subject), 100);
    }

    #[test]
    fn the_lowest_bit_says_whether_the_number_settles_a_document() {
        for by in [Number, Subject] {
            let of = |number| {
                assert_eq!(needs_number(number), by == Number, "{number}");
                assert!(number > 0 && number <= MAX, "{number}");
                number
            };
            for last in [0, 1, 2, 99, 100, MAX - 3, MAX - 2, MAX - 1, MAX] {
                for least in [1, 50, 51] {
                    let number = of(next(last, least, by));
                    assert!(number > last || last >= MAX - 1, "{last} {number}");
                }
                for previous in [0, 98, 99, LIMIT, MAX - 1] {
                    for step in [1, 2, MAX_STEP - 1, MAX_STEP] {
                        let number = of(next_above(last, previous, step, by));
                        assert!(is_above(number, previous), "{previous} {number}");
                    }
                }
            }
        }
    }
}
