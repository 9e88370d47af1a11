//! Tests of ticks in a time zone whose clock changes.

use super::*;

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
