//! Tests of what a caller writes: names, cron expressions and intervals.

use super::*;
use crate::names::SUBJECT_MAX;

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
        ("every minute", "1 minute"),
        ("@every Hour ", "1 hour"),
        ("every year", "1 year"),
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
fn the_field_of_a_cron_expression_that_is_wrong_is_named() {
    for (text, expected) in [
        ("61 * * * *", "its minute is \"61\": number out of bounds"),
        ("* * * * fry", "its day of the week is \"fry\""),
        ("0 30 24 * * *", "its hour is \"24\": number out of bounds"),
        ("60 * * * * *", "its second is \"60\""),
        ("0 0 32 13 *", "its day of the month is \"32\""),
    ] {
        let error = Rhythm::cron(text).unwrap_err();
        assert!(error.contains(expected), "{text}: {error}");
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
        "@Minutely",
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
fn names_leave_room_for_the_time() {
    let longest = "é".repeat(NAME_MAX);
    assert!(check_name(&longest).is_ok());
    assert_eq!(
        subject(&longest, at("4999-12-31 23:59:59")).chars().count(),
        SUBJECT_MAX
    );
    for name in ["", "a\nb", &"x".repeat(NAME_MAX + 1)] {
        assert!(check_name(name).is_err());
    }
}
