//! The lines that say how far a move is.
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Writes a line to standard error, with the time of day in UTC.
pub fn say(text: &str) {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    eprintln!("{} {text}", time_of_day(since));
}

/// Milliseconds since 1970.
pub fn now_ms() -> i64 {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

fn time_of_day(since: Duration) -> String {
    let seconds = since.as_secs() % 86_400;
    format!(
        "{:02}:{:02}:{:02}.{:03}Z",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        since.subsec_millis()
    )
}

/// A number and its noun: `1 queue`, `2 queues`.
pub fn count(n: i64, noun: &str) -> String {
    match n {
        1 => format!("1 {noun}"),
        n => format!("{n} {noun}s"),
    }
}

/// Names in a message: `"a", "b"`.
pub fn list<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let quoted: Vec<String> = names
        .into_iter()
        .map(|name| format!("\"{name}\""))
        .collect();
    quoted.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_begins_with_the_time_of_day() {
        let time = Duration::from_millis(86_400_000 * 3 + 3_723_004);
        assert_eq!(time_of_day(time), "01:02:03.004Z");
    }

    #[test]
    fn nouns_have_their_number() {
        assert_eq!(count(1, "queue"), "1 queue");
        assert_eq!(count(0, "document"), "0 documents");
        assert_eq!(list(["a", "b"]), "\"a\", \"b\"");
    }
}
