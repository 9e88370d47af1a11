//! Tests of schedules, rhythms and local time.

mod local_time;
mod rhythms;
mod texts;

use super::*;
use crate::local_time::{DAY_S, date, day_number};

/// A time zone whose summer time begins and ends by the same rule in every year.
struct Rules {
    winter: i64,
    summer: i64,
    begins: fn(i64) -> i64,
    ends: fn(i64) -> i64,
}

impl Zone for Rules {
    fn offset_at(&self, time: i64) -> i64 {
        let (year, _, _) = date(time.div_euclid(DAY_S));
        let (begins, ends) = ((self.begins)(year), (self.ends)(year));
        let is_summer = if begins < ends {
            begins <= time && time < ends
        } else {
            time < ends || begins <= time
        };
        if is_summer { self.summer } else { self.winter }
    }
}

/// The first Sunday from a day on.
fn sunday(year: i64, month: i64, day: i64) -> i64 {
    let day = day_number(year, month, day);
    day + (3 - day).rem_euclid(7)
}

fn utc() -> Rules {
    Rules {
        winter: 0,
        summer: 0,
        begins: |_| 0,
        ends: |_| 0,
    }
}

fn berlin() -> Rules {
    Rules {
        winter: 3600,
        summer: 7200,
        begins: |year| sunday(year, 3, 25) * DAY_S + 3600,
        ends: |year| sunday(year, 10, 25) * DAY_S + 3600,
    }
}

fn new_york() -> Rules {
    Rules {
        winter: -5 * 3600,
        summer: -4 * 3600,
        begins: |year| sunday(year, 3, 8) * DAY_S + 7 * 3600,
        ends: |year| sunday(year, 11, 1) * DAY_S + 6 * 3600,
    }
}

/// Half an hour of summer time, in the south.
fn lord_howe() -> Rules {
    Rules {
        winter: 37_800,
        summer: 39_600,
        begins: |year| sunday(year, 10, 1) * DAY_S + 7200 - 37_800,
        ends: |year| sunday(year, 4, 1) * DAY_S + 7200 - 39_600,
    }
}

/// `2026-03-29 01:00` or `2026-03-29 01:00:00`, in UTC.
fn at(text: &str) -> i64 {
    let part =
        |range: std::ops::Range<usize>| text.get(range).map_or(0, |t| t.parse::<i64>().unwrap());
    day_number(part(0..4), part(5..7), part(8..10)) * DAY_S
        + part(11..13) * 3600
        + part(14..16) * 60
        + part(17..19)
}

fn ticks(rhythm: &Rhythm, zone: &dyn Zone, after: &str, n: usize) -> Vec<String> {
    let mut time = at(after);
    let mut found = Vec::new();
    for _ in 0..n {
        let Some(tick) = rhythm.next(time, zone) else {
            break;
        };
        found.push(in_zone(tick, zone));
        time = tick;
    }
    found
}

fn cron(text: &str) -> Rhythm {
    Rhythm::cron(text).unwrap_or_else(|e| panic!("{text}: {e}"))
}
