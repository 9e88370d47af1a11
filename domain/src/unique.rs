//! Documents that are unique by their content, for ever or once in a period.

use crate::local_time::date;

/// A period in which a document is unique. Periods follow one another without gaps, and everybody
/// counts them from the same moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// Months of the calendar (UTC), counted from January 1970, so that years are those of the calendar.
    Months(i64),
    /// Microseconds, counted from Monday 1970-01-05 00:00 UTC, so that weeks begin on Mondays.
    Time(i128),
}

const DAY_US: i64 = 86_400_000_000;

/// The days from 1970-01-01 to 2000-01-01.
const DAYS_TO_2000: i64 = 10_957;

/// The days from 1970-01-01 to the first Monday.
const DAYS_TO_MONDAY: i64 = 4;

impl Period {
    /// Makes a period of the months, days and microseconds of an interval. None: it is not above 0, or
    /// mixes months, whose lengths differ, with shorter units.
    pub fn new((months, days, micros): (i32, i32, i64)) -> Option<Self> {
        if months != 0 {
            let is_whole = months > 0 && days == 0 && micros == 0;
            return is_whole.then_some(Self::Months(months.into()));
        }
        let length = i128::from(days) * i128::from(DAY_US) + i128::from(micros);
        (length > 0).then_some(Self::Time(length))
    }

    /// Names the period in which a time lies, which is in microseconds since 2000. Periods of another
    /// length have other names.
    pub fn name_at(self, time: i64) -> String {
        match self {
            Self::Months(n) => {
                let (year, month, _) = date(time.div_euclid(DAY_US) + DAYS_TO_2000);
                let months = (year - 1970) * 12 + month - 1;
                format!("{n} months, {}", months.div_euclid(n))
            }
            Self::Time(length) => {
                let since = (DAYS_TO_2000 - DAYS_TO_MONDAY) * DAY_US;
                let number = (i128::from(time) + i128::from(since)).div_euclid(length);
                format!("{length} us, {number}")
            }
        }
    }
}

/// The subject of a document of which this is the hash, in hexadecimal digits.
pub fn subject(hash: &str) -> String {
    format!("unique-{hash}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local_time::day_number;

    const HOUR_US: i64 = DAY_US / 24;

    fn at(year: i64, month: i64, day: i64) -> i64 {
        (day_number(year, month, day) - DAYS_TO_2000) * DAY_US
    }

    /// Whether both times are in one period. The period begins with the first one.
    fn begins(parts: (i32, i32, i64), first: i64, last: i64) {
        let period = Period::new(parts).unwrap();
        let name = period.name_at(first);
        assert_eq!(name, period.name_at(last - 1), "{parts:?}: {first}");
        assert_ne!(name, period.name_at(last), "{parts:?}: ends at {last}");
        assert_ne!(name, period.name_at(first - 1), "{parts:?}: {first}");
    }

    #[test]
    fn periods_are_those_of_the_calendar() {
        begins((0, 7, 0), at(2026, 11, 23), at(2026, 11, 30));
        begins((0, 1, 0), at(2026, 11, 25), at(2026, 11, 26));
        begins(
            (0, 0, HOUR_US),
            at(2026, 11, 25) + HOUR_US,
            at(2026, 11, 25) + 2 * HOUR_US,
        );
        begins((1, 0, 0), at(2024, 2, 1), at(2024, 3, 1));
        begins((3, 0, 0), at(2026, 10, 1), at(2027, 1, 1));
        begins((12, 0, 0), at(2026, 1, 1), at(2027, 1, 1));
        begins((120, 0, 0), at(2020, 1, 1), at(2030, 1, 1));
        // Before the first of them, too.
        begins((0, 7, 0), at(1969, 12, 29), at(1970, 1, 5));
        begins((12, 0, 0), at(1969, 1, 1), at(1970, 1, 1));
    }

    #[test]
    fn the_length_counts_and_not_how_it_is_written() {
        assert_eq!(Period::new((0, 1, 0)), Period::new((0, 0, DAY_US)));
        assert_eq!(
            Period::new((0, 1, -HOUR_US)),
            Period::new((0, 0, 23 * HOUR_US))
        );
        // A Monday is a day and the beginning of a week.
        let monday = at(2026, 11, 23);
        let names = [(0, 1, 0), (0, 7, 0), (1, 0, 0), (12, 0, 0)]
            .map(|parts| Period::new(parts).unwrap().name_at(monday));
        let others: std::collections::BTreeSet<&String> = names.iter().collect();
        assert_eq!(others.len(), names.len(), "{names:?}");
    }

    #[test]
    fn only_lengths_above_0_of_one_kind() {
        for bad in [
            (0, 0, 0),
            (0, -1, 0),
            (0, 1, -25 * HOUR_US),
            (-1, 0, 0),
            (1, 1, 0),
            (1, 0, 1),
            (1, 1, -DAY_US),
            (i32::MAX, i32::MAX, i64::MAX),
            (i32::MIN, i32::MIN, i64::MIN),
        ] {
            assert_eq!(Period::new(bad), None, "{bad:?}");
        }
    }
}
