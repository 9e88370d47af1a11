//! When schedules tick, and which ticks are pushed when some were missed.
//!
//! Time is counted in whole seconds since 1970 (UTC). What a clock on the wall shows is
//! asked of a `Zone`: the server has the rules of all time zones.

use croner::{CivilDate, CivilDateTime, CivilTime};

/// Seconds of a day.
pub const DAY: i64 = 86_400;

/// A time zone: how many seconds its clocks are ahead of UTC.
pub trait Zone {
    fn offset_at(&self, time: i64) -> i64;
}

/// What the clocks of a zone show, in seconds since they showed 1970-01-01 00:00.
pub fn local(time: i64, zone: &dyn Zone) -> i64 {
    time.saturating_add(zone.offset_at(time))
}

/// When the clocks of a zone show a time.
pub enum Instants {
    One(i64),
    /// They were set back over it: the first one is earlier.
    Two(i64, i64),
    /// They were set forward over it.
    None {
        /// The offset before that.
        before: i64,
    },
}

pub fn resolve(local: i64, zone: &dyn Zone) -> Instants {
    // No offset is as much as a day, and no zone changes its clocks twice in two days.
    let before = zone.offset_at(local - DAY);
    let after = zone.offset_at(local + DAY);
    let (first, second) = (local - before, local - after);
    if before == after {
        return Instants::One(first);
    }
    let is_first = zone.offset_at(first) == before;
    let is_second = zone.offset_at(second) == after;
    match (is_first, is_second) {
        (true, true) => Instants::Two(first, second),
        (true, false) => Instants::One(first),
        (false, true) => Instants::One(second),
        (false, false) => Instants::None { before },
    }
}

/// The moment that PostgreSQL takes for a time of a zone: what the clocks would show had
/// they not been set forward yet; the second one when they were set back.
pub fn as_postgresql(time: i64, zone: &dyn Zone) -> Option<i64> {
    Some(match resolve(time, zone) {
        Instants::One(t) | Instants::Two(_, t) => t,
        Instants::None { before } => time.checked_sub(before)?,
    })
}

/// Days since 1970-01-01, by the Gregorian calendar (Howard Hinnant's algorithm).
pub fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day of a day number.
pub fn date(day: i64) -> (i64, i64, i64) {
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

pub fn add_months(day: i64, months: i64) -> Option<i64> {
    let (year, month, of_month) = date(day);
    let months = year.checked_mul(12)?.checked_add(month - 1 + months)?;
    let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
    if year > 10_000 {
        return None;
    }
    let length = croner::time::days_in_month(i32::try_from(year).ok()?, month as u32);
    Some(day_number(year, month, of_month.min(i64::from(length))))
}

pub fn civil(local: i64) -> CivilDateTime {
    let (year, month, day) = date(local.div_euclid(DAY));
    let second = local.rem_euclid(DAY) as u32;
    CivilDateTime::new(
        CivilDate::from_parts_unchecked(year as i32, month as u32, day as u32),
        CivilTime::from_parts_unchecked(second / 3600, second / 60 % 60, second % 60),
    )
}

pub fn written(local: i64, between: char) -> String {
    let civil = civil(local);
    format!("{}{between}{}", civil.date(), civil.time())
}
