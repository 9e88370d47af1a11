//! Local time: what the clocks of a time zone show, and the calendar.
//!
//! A point in time is a number of whole seconds since 1970 (UTC). A [`Zone`] converts it to local
//! time, because the server has the rules of all time zones.

use croner::{CivilDate, CivilDateTime, CivilTime};

/// The seconds of a day.
pub const DAY_S: i64 = 86_400;

/// A time zone.
pub trait Zone {
    /// Returns how many seconds the clocks of the zone are ahead of UTC at a point in time.
    fn offset_at(&self, time: i64) -> i64;
}

/// Returns the local time of a zone, in seconds since its clocks showed 1970-01-01 00:00.
pub fn local(time: i64, zone: &dyn Zone) -> i64 {
    time.saturating_add(zone.offset_at(time))
}

/// The points in time at which the clocks of a zone show a local time.
pub enum Instants {
    /// The clocks show it once.
    One(i64),
    /// The clocks show it twice, because they are set back. The first point is the earlier one.
    Two(i64, i64),
    /// The clocks do not show it, because they are set forward.
    None {
        /// The offset before the change, in seconds.
        before: i64,
    },
}

/// Finds the points in time at which the clocks of a zone show a local time.
pub fn resolve(local: i64, zone: &dyn Zone) -> Instants {
    // Every offset is less than a day, and no zone changes its clocks twice within two days.
    let before = zone.offset_at(local - DAY_S);
    let after = zone.offset_at(local + DAY_S);
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

/// Converts a local time to a point in time as PostgreSQL does.
///
/// A local time that does not exist is read with the offset before the change. Of two points in
/// time, it is the later one. Returns None when the result is out of range.
pub fn as_postgresql(time: i64, zone: &dyn Zone) -> Option<i64> {
    Some(match resolve(time, zone) {
        Instants::One(t) | Instants::Two(_, t) => t,
        Instants::None { before } => time.checked_sub(before)?,
    })
}

/// Returns the number of days since 1970-01-01 in the Gregorian calendar.
///
/// This is the algorithm `days_from_civil` of Howard Hinnant.
pub fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Returns the year, month and day of a number of days since 1970-01-01.
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

/// Adds months to a number of days since 1970-01-01.
///
/// In a month that is too short, the result is its last day. Returns None when the result is
/// out of range, or after the year 10000.
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

/// Converts a local time in seconds to a date and a time of day.
pub fn civil(local: i64) -> CivilDateTime {
    let (year, month, day) = date(local.div_euclid(DAY_S));
    let second = local.rem_euclid(DAY_S) as u32;
    CivilDateTime::new(
        CivilDate::from_parts_unchecked(year as i32, month as u32, day as u32),
        CivilTime::from_parts_unchecked(second / 3600, second / 60 % 60, second % 60),
    )
}

/// Writes a local time in seconds, with a character between the date and the time of day.
pub fn written(local: i64, between: char) -> String {
    let civil = civil(local);
    format!("{}{between}{}", civil.date(), civil.time())
}
