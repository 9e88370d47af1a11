//! Tests of schedules, rhythms and local time.

use super::*;
use crate::domain::local_time::{DAY_S, date, day_number};

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

#[test]
fn days_and_dates_agree() {
    assert_eq!(day_number(1970, 1, 1), 0);
    assert_eq!(day_number(5000, 1, 1) * DAY_S, END_OF_TIME_S);
    for day in -1_000_000..1_200_000 {
        let (year, month, of_month) = date(day);
        assert_eq!(day_number(year, month, of_month), day);
    }
    assert_eq!(
        subject("n", at("2026-03-29 01:00")),
        "n@2026-03-29T01:00:00Z"
    );
}

#[test]
fn forms_are_distinguished() {
    for text in [
        "*/5 * * * *",
        "0 30 2 * * 1-5",
        "30 2 * * mon-fri",
        "@daily",
        "0 0 1 1 0",
        " 0 0 L jan sun ",
        "* * *",
        "@nonsense",
    ] {
        assert_eq!(form(text), Form::Cron(text.trim()));
    }
    for (text, every) in [
        ("5 minutes", "5 minutes"),
        ("every 5 minutes", "5 minutes"),
        ("@every 1h", "1h"),
        ("EVERY  1 day", "1 day"),
        ("1 day 2 hours 3 minutes", "1 day 2 hours 3 minutes"),
        (
            "1 year 2 mons 3 days 04:05:06",
            "1 year 2 mons 3 days 04:05:06",
        ),
        ("PT5M", "PT5M"),
        ("", ""),
        ("soon", "soon"),
        ("é", "é"),
    ] {
        assert_eq!(form(text), Form::Every(every), "{text}");
    }
}

#[test]
fn invalid_cron_expressions_are_refused() {
    for text in [
        "",
        "* * * *",
        "* * * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "*/0 * * * *",
        "a b c d e",
        "@nonsense",
        "5-1 * * * *",
        "é * * * *",
        &"* ".repeat(200),
    ] {
        assert!(Rhythm::cron(text).is_err(), "{text}");
    }
    for text in [
        "@hourly",
        "@daily",
        "@midnight",
        "@weekly",
        "@monthly",
        "@yearly",
        "@ANNUALLY",
    ] {
        cron(text);
    }
}

#[test]
fn a_fixed_time_runs_once_on_each_day() {
    let daily = cron("30 2 * * *");
    // In the gap: at its end.
    assert_eq!(
        ticks(&daily, &berlin(), "2026-03-28 00:00", 3),
        [
            "2026-03-28 02:30:00+01",
            "2026-03-29 03:00:00+02",
            "2026-03-30 02:30:00+02"
        ]
    );
    // Twice on the clock: the first time.
    assert_eq!(
        ticks(&daily, &berlin(), "2026-10-24 12:00", 2),
        ["2026-10-25 02:30:00+02", "2026-10-26 02:30:00+01"]
    );
    assert_eq!(
        ticks(&daily, &new_york(), "2026-03-07 12:00", 2),
        ["2026-03-08 03:00:00-04", "2026-03-09 02:30:00-04"]
    );
    assert_eq!(
        ticks(&cron("30 1 * * *"), &new_york(), "2026-10-31 12:00", 2),
        ["2026-11-01 01:30:00-04", "2026-11-02 01:30:00-05"]
    );
    let daily = cron("15 2 * * *");
    assert_eq!(
        ticks(&daily, &lord_howe(), "2026-10-03 00:00", 2),
        ["2026-10-04 02:30:00+11", "2026-10-05 02:15:00+11"]
    );
    assert_eq!(
        ticks(&cron("45 1 * * *"), &lord_howe(), "2026-04-04 00:00", 2),
        ["2026-04-05 01:45:00+11", "2026-04-06 01:45:00+10:30"]
    );
}

/// The gap is the last hour of a Saturday.
#[test]
fn a_gap_that_ends_at_midnight() {
    let nuuk = Rules {
        winter: -7200,
        summer: -3600,
        ..berlin()
    };
    assert_eq!(
        ticks(&cron("30 23 * * *"), &nuuk, "2026-03-28 12:00", 2),
        ["2026-03-29 00:00:00-01", "2026-03-29 23:30:00-01"]
    );
    // Sunday is not one of its days.
    assert_eq!(
        ticks(&cron("30 23 * * sat"), &nuuk, "2026-03-28 12:00", 1),
        ["2026-04-04 23:30:00-01"]
    );
}

#[test]
fn patterns_follow_local_time() {
    let half_hours = cron("*/30 * * * *");
    assert_eq!(
        ticks(&half_hours, &berlin(), "2026-03-29 00:00", 4),
        [
            "2026-03-29 01:30:00+01",
            "2026-03-29 03:00:00+02",
            "2026-03-29 03:30:00+02",
            "2026-03-29 04:00:00+02"
        ]
    );
    assert_eq!(
        ticks(&half_hours, &berlin(), "2026-10-24 23:45", 5),
        [
            "2026-10-25 02:00:00+02",
            "2026-10-25 02:30:00+02",
            "2026-10-25 02:00:00+01",
            "2026-10-25 02:30:00+01",
            "2026-10-25 03:00:00+01"
        ]
    );
    // Left out in the gap, both times in the hour that comes twice.
    let in_the_night = cron("0,30 2 * * *");
    assert_eq!(
        ticks(&in_the_night, &berlin(), "2026-03-28 02:00", 2),
        ["2026-03-30 02:00:00+02", "2026-03-30 02:30:00+02"]
    );
    assert_eq!(
        ticks(&in_the_night, &berlin(), "2026-10-24 12:00", 5).len(),
        5
    );
    assert_eq!(
        ticks(&half_hours, &lord_howe(), "2026-04-04 14:15", 4),
        [
            "2026-04-05 01:30:00+11",
            "2026-04-05 01:30:00+10:30",
            "2026-04-05 02:00:00+10:30",
            "2026-04-05 02:30:00+10:30"
        ]
    );
}

#[test]
fn every_second_of_both_changes_ticks_once() {
    let seconds = cron("* * * * * *");
    for zone in [berlin(), new_york(), lord_howe()] {
        for change in [(zone.begins)(2026), (zone.ends)(2026)] {
            for time in change - 8000..change + 8000 {
                assert_eq!(seconds.next(time, &zone), Some(time + 1));
            }
        }
    }
}

/// The start of a search must not change the result. Otherwise a tick could be lost or doubled.
#[test]
fn the_next_tick_is_the_same_from_anywhere_before_it() {
    for text in [
        "30 2 * * *",
        "*/20 2 * * *",
        "0 0 * * *",
        "15 */6 * * *",
        "0 30 1,2,3 * * *",
        "0 2 * * sun",
    ] {
        let rhythm = cron(text);
        for zone in [berlin(), new_york(), lord_howe()] {
            for change in [(zone.begins)(2026), (zone.ends)(2026)] {
                let mut expected = rhythm.next(change - 2 * DAY_S, &zone).unwrap();
                for time in (change - 2 * DAY_S..change + 2 * DAY_S).step_by(997) {
                    while expected <= time {
                        expected = rhythm.next(expected, &zone).unwrap();
                    }
                    let next = rhythm.next(time, &zone);
                    assert_eq!(next, Some(expected), "{text} after {time}");
                }
            }
        }
    }
}

#[test]
fn days_that_do_not_exist_never_tick() {
    assert_eq!(cron("0 0 30 2 *").next(at("2026-01-01"), &berlin()), None);
    assert_eq!(
        ticks(&cron("0 0 29 2 *"), &utc(), "2026-01-01", 2),
        ["2028-02-29 00:00:00+00", "2032-02-29 00:00:00+00"]
    );
    assert_eq!(cron("* * * * *").next(END_OF_TIME_S, &utc()), None);
}

#[test]
fn intervals_are_counted_from_their_anchor() {
    let every = |months, days, seconds: i64, anchor| {
        Rhythm::every(months, days, seconds * 1_000_000, at(anchor)).unwrap()
    };
    assert_eq!(
        ticks(
            &every(0, 0, 90, "2026-01-01 00:00:10"),
            &berlin(),
            "2026-01-01 00:02",
            2
        ),
        ["2026-01-01 01:03:10+01", "2026-01-01 01:04:40+01"]
    );
    // Not before the anchor, and at the anchor itself.
    assert_eq!(
        ticks(&every(0, 0, 90, "2026-01-01"), &utc(), "2025-01-01", 1),
        ["2026-01-01 00:00:00+00"]
    );
    // A day is one of the calendar, 24 hours are not.
    assert_eq!(
        ticks(
            &every(0, 1, 0, "2026-03-27 01:30"),
            &berlin(),
            "2026-03-27 12:00",
            3
        ),
        [
            "2026-03-28 02:30:00+01",
            "2026-03-29 03:30:00+02",
            "2026-03-30 02:30:00+02"
        ]
    );
    assert_eq!(
        ticks(
            &every(0, 0, DAY_S, "2026-03-27 01:30"),
            &berlin(),
            "2026-03-28 12:00",
            1
        ),
        ["2026-03-29 03:30:00+02"]
    );
    assert_eq!(
        ticks(
            &every(0, 1, 0, "2026-10-24 00:30"),
            &berlin(),
            "2026-10-24 12:00",
            2
        ),
        ["2026-10-25 02:30:00+01", "2026-10-26 02:30:00+01"]
    );
    // The last day of a month that is too short; no drift after it.
    assert_eq!(
        ticks(&every(1, 0, 0, "2026-01-31 12:00"), &utc(), "2026-02-01", 3),
        [
            "2026-02-28 12:00:00+00",
            "2026-03-31 12:00:00+00",
            "2026-04-30 12:00:00+00"
        ]
    );
    assert_eq!(
        ticks(
            &every(1, 1, 3600, "2026-01-31 12:00"),
            &utc(),
            "2026-02-01",
            2
        ),
        ["2026-03-01 13:00:00+00", "2026-04-02 14:00:00+00"]
    );
    assert_eq!(
        ticks(&every(12, 0, 0, "2024-02-29"), &utc(), "2900-03-01", 1),
        ["2901-02-28 00:00:00+00"]
    );
    for bad in [
        (0, 0, 0),
        (-1, 40, 0),
        (1, -1, 0),
        (0, 0, -1),
        (0, 0, 1_500_000),
    ] {
        assert!(Rhythm::every(bad.0, bad.1, bad.2, 0).is_err());
    }
    assert_eq!(
        Rhythm::every(i32::MAX, i32::MAX, 0, 0)
            .unwrap()
            .next(0, &utc()),
        None
    );
}

#[test]
fn missed_ticks_by_policy() {
    let minutes = cron("* * * * *");
    let run = |catch_up, limit, first, last: Option<&str>, now| {
        let due = due(
            &minutes,
            &utc(),
            at(first),
            last.map(at),
            at(now),
            catch_up,
            limit,
        );
        let push: Vec<String> = due
            .push
            .iter()
            .map(|t| in_zone(*t, &utc())[11..19].to_owned())
            .collect();
        (
            push.join(" "),
            due.next.map(|t| in_zone(t, &utc())[11..19].to_owned()),
        )
    };
    let next = Some("12:06:00".to_owned());
    let (first, now) = ("2026-01-01 12:00", "2026-01-01 12:05:30");
    // One is half a minute late, the others were missed.
    for catch_up in [CatchUp::Skip, CatchUp::Once] {
        assert_eq!(
            run(catch_up, 9, first, None, now),
            ("12:05:00".into(), next.clone())
        );
    }
    assert_eq!(
        run(CatchUp::All, 2, first, None, now),
        ("12:03:00 12:04:00 12:05:00".into(), next.clone())
    );
    assert_eq!(
        run(CatchUp::All, 100, first, None, now)
            .0
            .split(' ')
            .count(),
        6
    );
    // The first one is on time.
    assert_eq!(
        run(CatchUp::Skip, 1, "2026-01-01 12:05", None, now),
        ("12:05:00".into(), next.clone())
    );
    // Exactly as late as may be.
    assert_eq!(
        run(CatchUp::Skip, 1, first, None, "2026-01-01 12:01"),
        ("12:00:00 12:01:00".into(), Some("12:02:00".into()))
    );
    // The end.
    let end = Some("2026-01-01 12:03");
    assert_eq!(
        run(CatchUp::Skip, 9, first, end, now),
        (String::new(), None)
    );
    assert_eq!(
        run(CatchUp::Once, 9, first, end, now),
        ("12:03:00".into(), None)
    );
    assert_eq!(
        run(CatchUp::All, 2, first, end, now),
        ("12:02:00 12:03:00".into(), None)
    );
    // Not due yet.
    assert_eq!(
        run(CatchUp::All, 2, "2026-01-01 12:06", None, now),
        (String::new(), next)
    );
    // Long ago, and rare.
    let rare = cron("0 0 29 2 *");
    let found = due(
        &rare,
        &utc(),
        at("2028-02-29"),
        None,
        at("2100-01-01"),
        CatchUp::All,
        3,
    );
    assert_eq!(found.push.len(), 3);
    assert_eq!(found.push.last(), Some(&at("2096-02-29")));
    let found = due(
        &cron("* * * * * *"),
        &utc(),
        at("2026-01-01"),
        None,
        at("2096-01-01"),
        CatchUp::All,
        3,
    );
    assert_eq!(found.push.len(), 3 + 61);
    assert_eq!(found.push[0], at("2096-01-01") - 63);
}

#[test]
fn jitter_is_even_and_always_the_same() {
    assert_eq!(jitter("n", 5, 0), 0);
    assert_eq!(jitter("n", 5, 1), 0);
    assert_eq!(jitter("n", 5, 1_000_000), jitter("n", 5, 1_000_000));
    assert_ne!(jitter("n", 5, 1_000_000), jitter("m", 5, 1_000_000));
    let delays: Vec<i64> = (0..1000).map(|n| jitter("n", n * 60, 1000)).collect();
    assert!(delays.iter().all(|d| (0..1000).contains(d)));
    for quarter in 0..4 {
        let n = delays.iter().filter(|d| **d / 250 == quarter).count();
        assert!((180..320).contains(&n), "{n}");
    }
    assert!(jitter("n", 5, i64::MAX) >= 0);
}

#[test]
fn names_leave_room_for_the_time() {
    let longest = "é".repeat(NAME_MAX);
    assert!(check_name(&longest).is_ok());
    assert_eq!(
        subject(&longest, at("4999-12-31 23:59:59")).chars().count(),
        50
    );
    for name in ["", "a\nb", &"x".repeat(NAME_MAX + 1)] {
        assert!(check_name(name).is_err());
    }
}
