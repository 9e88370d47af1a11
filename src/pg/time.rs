//! Points in time and intervals, as the server represents them.

use pgrx::pg_sys;

use crate::error::{Error, Result};
use crate::pg::text::c_string;
use crate::pg::value::Arg;

/// Returns the start of the transaction, as `now()` in SQL, in microseconds since 2000.
pub fn now() -> i64 {
    // SAFETY: This is allowed in every transaction.
    unsafe { pg_sys::GetCurrentTransactionStartTimestamp() }
}

/// Returns the current time, as `clock_timestamp()` in SQL, in microseconds since 2000.
pub fn clock() -> i64 {
    // SAFETY: This reads the clock.
    unsafe { pg_sys::GetCurrentTimestamp() }
}

/// The next iteration of a completed document, 2970-01-01 00:00:00 UTC, in microseconds since
/// 2000.
///
/// The contract of fetchq 4 demands it. It is 354,286 days after the start of 2000.
pub const COMPLETED_AT_US: i64 = 354_286 * 86_400 * 1_000_000;

/// Converts seconds since 1970 to microseconds since 2000.
pub fn from_unix(seconds: i64) -> i64 {
    seconds
        .saturating_sub(UNIX_EPOCH_S)
        .saturating_mul(1_000_000)
}

/// Converts microseconds since 2000 to seconds since 1970, rounded down.
pub fn to_unix(time: i64) -> i64 {
    time.div_euclid(1_000_000).saturating_add(UNIX_EPOCH_S)
}

/// The seconds between 1970 and 2000.
const UNIX_EPOCH_S: i64 = 946_684_800;

/// Parses a `timestamptz` such as `2030-01-01`. Returns microseconds since 2000.
///
/// Raises PostgreSQL's own ERROR (22007) when the text is not valid.
pub fn parse_timestamp(text: &str) -> i64 {
    let args = input_args(text);
    // SAFETY: timestamptz_in takes a C string, the OID of the type, which it does not use, and
    // a type modifier.
    unsafe { pgrx::direct_function_call(pg_sys::timestamptz_in, &args) }
        .unwrap_or_else(|| pgrx::error!("timestamptz_in returned NULL for {text:?}"))
}

/// Makes the arguments of the input function of a type.
fn input_args(text: &str) -> [Option<pg_sys::Datum>; 3] {
    [
        Some(pg_sys::Datum::from(c_string(text))),
        Some(pg_sys::Datum::from(0)),
        Some(pg_sys::Datum::from(-1i32)),
    ]
}

/// The longest duration, in microseconds: 290,000 years. A `timestamptz` ends in 294276.
const MAX_LENGTH_US: i128 = 290_000 * 360 * 86_400_000_000;

/// An interval of PostgreSQL.
#[derive(Clone, Copy)]
pub struct Interval {
    datum: pg_sys::Datum,
}

impl Interval {
    pub(super) fn from_datum(datum: pg_sys::Datum) -> Self {
        Self { datum }
    }

    /// Parses a text such as `5m`. Raises PostgreSQL's own ERROR (22007) when it is not valid.
    pub fn parse(text: &str) -> Self {
        // SAFETY: interval_in takes a C string, the OID of the type, which it does not use, and
        // a type modifier.
        let datum =
            unsafe { pgrx::direct_function_call_as_datum(pg_sys::interval_in, &input_args(text)) };
        match datum {
            Some(datum) => Self { datum },
            None => pgrx::error!("interval_in returned NULL for {text:?}"),
        }
    }

    /// Returns the text of the interval, as PostgreSQL writes it.
    pub fn to_text(self) -> String {
        // SAFETY: interval_out takes an interval and returns a C string.
        let out = unsafe {
            pgrx::direct_function_call::<&std::ffi::CStr>(pg_sys::interval_out, &[Some(self.datum)])
        };
        let out = out.unwrap_or_else(|| pgrx::error!("interval_out returned NULL"));
        out.to_string_lossy().into_owned()
    }

    /// Makes an interval of months, days and microseconds, in the memory of the call.
    pub fn from_parts((month, day, time): (i32, i32, i64)) -> Self {
        // SAFETY: palloc returns memory that is aligned for every type and large enough for the
        // struct, or raises an ERROR. It belongs to the current memory context.
        let datum = unsafe {
            let interval = pg_sys::palloc(size_of::<pg_sys::Interval>()).cast::<pg_sys::Interval>();
            interval.write(pg_sys::Interval { time, day, month });
            pg_sys::Datum::from(interval)
        };
        Self { datum }
    }

    /// Checks that the interval can be a duration.
    ///
    /// Fails with the name of the argument: with `Error::BadDuration` when the interval is negative
    /// or infinite, with `Error::LongDuration` when there is no point in time so far from now.
    pub fn as_duration(self, argument: &'static str) -> Result<Self> {
        match self.length() {
            Some(0..=MAX_LENGTH_US) => Ok(self),
            Some(micros) if micros > 0 => Err(Error::LongDuration { argument }),
            _ => Err(Error::BadDuration { argument }),
        }
    }

    /// Returns the length in microseconds, as PostgreSQL compares intervals: a month has 30 days, a
    /// day 24 hours. None: it is infinite, which PostgreSQL 17 and newer know.
    pub fn length(self) -> Option<i128> {
        let (month, day, time) = self.parts();
        let infinite = (time, day, month) == (i64::MAX, i32::MAX, i32::MAX)
            || (time, day, month) == (i64::MIN, i32::MIN, i32::MIN);
        let days = i128::from(month) * 30 + i128::from(day);
        (!infinite).then(|| days * 86_400_000_000 + i128::from(time))
    }

    /// Returns the interval, or one of `max` microseconds if that is shorter.
    pub fn at_most(self, max: i64) -> Self {
        match self.length() {
            Some(length) if length <= i128::from(max) => self,
            _ => Self::from_parts((0, 0, max)),
        }
    }

    /// Returns the interval, or one of `min` microseconds if that is longer.
    pub fn at_least(self, min: i64) -> Self {
        match self.length() {
            Some(length) if length < i128::from(min) => Self::from_parts((0, 0, min)),
            _ => self,
        }
    }

    /// Adds the interval to a point in time. Both points are in microseconds since 2000.
    ///
    /// Raises PostgreSQL's own ERROR (22008) when the result is out of range.
    pub fn after(self, time: i64) -> i64 {
        let args = [Some(pg_sys::Datum::from(time)), Some(self.datum)];
        // SAFETY: timestamptz_pl_interval takes a timestamptz and an interval.
        unsafe { pgrx::direct_function_call(pg_sys::timestamptz_pl_interval, &args) }
            .unwrap_or_else(|| pgrx::error!("timestamptz_pl_interval returned NULL"))
    }

    /// Returns the months, days and microseconds of the interval.
    pub fn parts(self) -> (i32, i32, i64) {
        // SAFETY: The datum of an interval points to a valid Interval struct.
        unsafe {
            let i = &*self.datum.cast_mut_ptr::<pg_sys::Interval>();
            (i.month, i.day, i.time)
        }
    }

    /// Makes an `interval` parameter that is NULL.
    pub fn none() -> Arg {
        Arg::new(pg_sys::INTERVALOID, None)
    }

    /// Makes an `interval` of microseconds: days and the rest. None is NULL.
    pub fn of(micros: Option<i64>) -> Arg {
        let Some(micros) = micros else {
            return Self::none();
        };
        const DAY: i64 = 86_400_000_000;
        // SAFETY: palloc returns memory for an Interval, or raises an ERROR.
        let datum = unsafe {
            let interval = pg_sys::palloc(size_of::<pg_sys::Interval>()).cast::<pg_sys::Interval>();
            interval.write(pg_sys::Interval {
                time: micros % DAY,
                day: (micros / DAY) as i32,
                month: 0,
            });
            pg_sys::Datum::from(interval)
        };
        Arg::new(pg_sys::INTERVALOID, Some(datum))
    }

    /// Makes an `interval` parameter.
    pub fn arg(self) -> Arg {
        Arg::new(pg_sys::INTERVALOID, Some(self.datum))
    }
}

#[cfg(any(test, feature = "pg_test"))]
mod tests {
    use super::*;
    use crate::pg::subtransaction::attempt;
    use pgrx::pg_extern;

    #[pg_extern(sql = false)]
    fn completed_documents_wait_until_2970() {
        let expected: Option<i64> = crate::pg::spi::connect(|spi| {
            spi.once("select '2970-01-01 00:00:00+00'::timestamptz", &[])
                .timestamp(0, 1)
        });
        assert_eq!(expected, Some(COMPLETED_AT_US));
    }

    #[pg_extern(sql = false)]
    fn durations_are_finite_and_not_negative() {
        for good in ["5m", "0s", "1 mon -30 days", "100 years", "1.5s"] {
            assert!(Interval::parse(good).as_duration("x").is_ok(), "{good}");
        }
        for bad in ["-1s", "1 mon -31 days", "-1 year", "1 day -25 hours"] {
            assert!(Interval::parse(bad).as_duration("x").is_err(), "{bad}");
        }
    }

    #[pg_extern(sql = false)]
    fn a_bad_interval_is_postgresqls_error() {
        let failed = attempt(|| Interval::parse("soon").datum);
        let message = "invalid input syntax for type interval: \"soon\"";
        assert!(failed.is_err_and(|m| m.contains(message)));
    }
}
