//! Tests of dates, intervals, missed ticks and jitter.

use super::*;

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
