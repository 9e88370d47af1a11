//! Numbers, durations and times as people read them.
use fetchq_domain::local_time::written;
use maud::{Markup, html};

use crate::poller::now;

/// A count with separators; what is not known is a dash.
pub fn count(number: Option<i64>) -> String {
    let Some(number) = number else {
        return "–".to_owned();
    };
    let digits = number.unsigned_abs().to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3 + 1);
    if number < 0 {
        text.push('-');
    }
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Documents a second.
pub fn rate(rate: f64) -> String {
    if !rate.is_finite() || rate < 0.005 {
        "0/s".to_owned()
    } else if rate < 10.0 {
        format!("{rate:.2}/s")
    } else if rate < 100.0 {
        format!("{rate:.1}/s")
    } else {
        format!("{}/s", count(Some(rate.round() as i64)))
    }
}

/// A duration in seconds, with its two largest units.
pub fn duration(seconds: Option<f64>) -> String {
    let Some(seconds) = seconds.filter(|seconds| !seconds.is_nan()) else {
        return "–".to_owned();
    };
    if seconds.is_infinite() {
        return "never".to_owned();
    }
    let sign = if seconds < 0.0 { "-" } else { "" };
    let seconds = seconds.abs();
    let text = if seconds < 0.001 {
        format!("{:.0} µs", seconds * 1e6)
    } else if seconds < 0.1 {
        format!("{:.1} ms", seconds * 1e3)
    } else if seconds < 1.0 {
        format!("{:.0} ms", seconds * 1e3)
    } else if seconds < 60.0 {
        format!("{seconds:.1} s")
    } else {
        let whole = seconds as u64;
        let (days, hours, minutes, rest) = (
            whole / 86_400,
            whole / 3600 % 24,
            whole / 60 % 60,
            whole % 60,
        );
        match (days, hours) {
            (0, 0) => format!("{minutes} min {rest} s"),
            (0, _) => format!("{hours} h {minutes} min"),
            _ => format!("{days} d {hours} h"),
        }
    };
    format!("{sign}{text}")
}

pub use fetchq_domain::wording::literal;

/// The name of a queue, which a narrow window may break behind an underscore.
pub fn queue_name(name: &str) -> Markup {
    html! { @for part in name.split_inclusive('_') { (part) wbr; } }
}

/// A point in time: exact in UTC, and how far away it is.
pub fn time(at: Option<f64>) -> Markup {
    let Some(at) = at.filter(|at| !at.is_nan()) else {
        return html! { "–" };
    };
    if at.is_infinite() {
        return html! { (if at > 0.0 { "never (infinity)" } else { "always (-infinity)" }) };
    }
    let distance = at - now();
    let away = if distance > 0.0 {
        format!("in {}", duration(Some(distance)))
    } else {
        format!("{} ago", duration(Some(-distance)))
    };
    let text = utc(at);
    html! { time datetime=(text.replace(' ', "T").replace("TUTC", "Z")) { (text) } " " span class="muted" { "(" (away) ")" } }
}

/// A point in time, only how far away it is; exact as its title.
pub fn ago(at: Option<f64>) -> Markup {
    let Some(at) = at.filter(|at| at.is_finite()) else {
        return html! { "–" };
    };
    let distance = at - now();
    let text = if distance > 0.5 {
        format!("in {}", duration(Some(distance)))
    } else if distance > -0.5 {
        "now".to_owned()
    } else {
        format!("{} ago", duration(Some(-distance)))
    };
    html! { span title=(utc(at)) { (text) } }
}

/// Year, month, day and time of day in UTC, to the second.
pub fn utc(at: f64) -> String {
    format!("{} UTC", written(at.floor() as i64, ' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(count(Some(1_234_567)), "1,234,567");
        assert_eq!(count(Some(-100)), "-100");
        assert_eq!(count(None), "–");
    }

    #[test]
    fn durations_have_two_units() {
        assert_eq!(duration(Some(93_784.0)), "1 d 2 h");
        assert_eq!(duration(Some(-61.0)), "-1 min 1 s");
        assert_eq!(duration(Some(0.0042)), "4.2 ms");
    }

    #[test]
    fn dates_of_leap_years_and_before_1970_are_right() {
        assert_eq!(utc(951_782_400.0), "2000-02-29 00:00:00 UTC");
        assert_eq!(utc(-1.0), "1969-12-31 23:59:59 UTC");
        assert_eq!(utc(1_795_397_561.0), "2026-11-23 01:32:41 UTC");
    }
}
