//! Schedules: their names, the documents of their ticks, and the catch-up of missed ticks.
//!
//! A tick is a number of whole seconds since 1970 (UTC). `rhythm.rs` computes the ticks.

use std::collections::VecDeque;

use crate::invalid::Invalid;
use crate::local_time::{Zone, written};
use crate::names::SUBJECT_MAX;
use crate::rhythm::{END_OF_TIME_S, Rhythm};

/// The length of the longest name of a schedule, in characters.
///
/// The subject of a document is the name, `@`, and the time of the tick, such as
/// `2026-03-29T01:00:00Z`: 21 characters, because no tick is after the year 5000.
pub const NAME_MAX: usize = SUBJECT_MAX - 21;

/// The keys of a schedule in the list of `schedules_sync`.
pub const SYNC_KEYS: [&str; 13] = [
    "name",
    "queue",
    "schedule",
    "payload",
    "timezone",
    "version",
    "priority",
    "catch_up",
    "catch_up_limit",
    "jitter",
    "starts_at",
    "ends_at",
    "headers",
];

/// A tick is on time when it is at most this late, in seconds. A later one was missed.
pub const GRACE_S: i64 = 60;

/// The most missed ticks that a schedule can catch up.
pub const CATCH_UP_MAX: i32 = 10_000;

/// Checks the name of a schedule. Returns `Invalid::ScheduleName` when it is empty or too long,
/// or has a control character.
pub fn check_name(name: &str) -> Result<&str, Invalid> {
    let length = name.chars().count();
    if length == 0 || length > NAME_MAX || name.chars().any(char::is_control) {
        return Err(Invalid::ScheduleName(name.to_owned()));
    }
    Ok(name)
}

/// The two forms of a text that says when a schedule ticks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form<'a> {
    /// A cron expression.
    Cron(&'a str),
    /// An interval of PostgreSQL.
    Every(&'a str),
}

/// The intervals of one unit, which needs no number after `every`.
const UNITS: [&str; 7] = [
    "1 second", "1 minute", "1 hour", "1 day", "1 week", "1 month", "1 year",
];

/// Distinguishes cron expressions from intervals.
///
/// A cron expression starts with `@`, or contains `*`, or has five or more fields without a
/// letter in the first two. An interval such as `1 day 2 hours 3 minutes` has a word there. A
/// text that starts with `every` or `@every` is an interval, of which a unit alone is one, as in `every hour`.
pub fn form(text: &str) -> Form<'_> {
    let text = text.trim();
    for word in ["@every ", "every "] {
        if let Some(start) = text.get(..word.len())
            && start.eq_ignore_ascii_case(word)
        {
            let interval = text[word.len()..].trim();
            let unit = UNITS.into_iter().find(|one| {
                let unit = one.strip_prefix("1 ").unwrap_or(one);
                unit.eq_ignore_ascii_case(interval)
            });
            return Form::Every(unit.unwrap_or(interval));
        }
    }
    let fields: Vec<&str> = text.split_whitespace().collect();
    let words = fields
        .iter()
        .take(2)
        .any(|field| field.contains(char::is_alphabetic));
    if text.starts_with('@') || text.contains('*') || (fields.len() >= 5 && !words) {
        Form::Cron(text)
    } else {
        Form::Every(text)
    }
}

/// Returns the subject of the document of a tick.
pub fn subject(name: &str, tick: i64) -> String {
    format!("{name}@{}Z", written(tick, 'T'))
}

/// Writes a tick as the local time of a zone, with the offset from UTC.
pub fn in_zone(tick: i64, zone: &dyn Zone) -> String {
    let offset = zone.offset_at(tick);
    let sign = if offset < 0 { '-' } else { '+' };
    let (hours, rest) = (offset.abs() / 3600, offset.abs() % 3600);
    let mut text = format!("{}{sign}{hours:02}", written(tick + offset, ' '));
    if rest > 0 {
        text.push_str(&format!(":{:02}", rest / 60));
    }
    if rest % 60 > 0 {
        text.push_str(&format!(":{:02}", rest % 60));
    }
    text
}

/// Returns how much later than its tick a document is due, in microseconds.
///
/// The jitter is less than `width` microseconds. It depends only on the name of the schedule, the
/// tick and `width`, so that it is always the same for the same tick.
pub fn jitter(name: &str, tick: i64, width: i64) -> i64 {
    if width <= 0 {
        return 0;
    }
    // This is FNV-1a, and then the finalizer of MurmurHash3, which spreads ticks that follow
    // one another. The hashes of the standard library can change between its versions.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes().chain(tick.to_be_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    ((u128::from(hash) * width.unsigned_abs() as u128) >> 64) as i64
}

/// What happens to ticks that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    /// No missed tick is pushed.
    Skip,
    /// The newest missed tick is pushed, if no tick is on time.
    Once,
    /// The newest missed ticks are pushed, up to a limit.
    All,
}

impl CatchUp {
    /// Reads the name of a catch-up. Returns None for an unknown one.
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "skip" => Some(Self::Skip),
            "once" => Some(Self::Once),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

/// The ticks of one run of a schedule.
#[derive(Debug, PartialEq, Eq)]
pub struct Due {
    /// The ticks that are pushed now, in their order.
    pub push: Vec<i64>,
    /// The next tick, if there is one.
    pub next: Option<i64>,
}

impl Due {
    /// Leaves all ticks but the first `n` to the next run. `n` is above 0. Returns whether there are any.
    pub fn keep_first(&mut self, n: usize) -> bool {
        let left = self.push.get(n).copied();
        if left.is_some() {
            self.next = left;
            self.push.truncate(n);
        }
        left.is_some()
    }
}

/// Returns the ticks that are due at `now`, and the next tick after that.
///
/// `first` is the next expected tick, and no tick is after `last`. Ticks that are on time are
/// pushed. `catch_up` says which missed ticks are pushed too, and `limit` is the most of them for
/// [`CatchUp::All`].
pub fn due(
    rhythm: &Rhythm,
    zone: &dyn Zone,
    first: i64,
    last: Option<i64>,
    now: i64,
    catch_up: CatchUp,
    limit: usize,
) -> Due {
    let now = now.min(END_OF_TIME_S);
    let last = last.unwrap_or(END_OF_TIME_S);
    let until = now.min(last);
    let fresh = first.max(now.saturating_sub(GRACE_S));
    let mut push = newest(rhythm, zone, fresh, until, usize::MAX);
    let missed = match catch_up {
        CatchUp::Skip => 0,
        CatchUp::Once => usize::from(push.is_empty()),
        CatchUp::All => limit,
    };
    if missed > 0 && first < fresh {
        let mut older = newest(rhythm, zone, first, until.min(fresh - 1), missed);
        older.append(&mut push);
        push = older;
    }
    Due {
        push: push.into(),
        next: rhythm
            .next(now.max(first - 1), zone)
            .filter(|tick| *tick <= last),
    }
}

/// Returns the newest `n` ticks from `first` to `until`, in their order.
///
/// It searches backwards in windows that grow, so the search takes about as long as the result is
/// long, however long ago `first` is.
fn newest(rhythm: &Rhythm, zone: &dyn Zone, first: i64, until: i64, n: usize) -> VecDeque<i64> {
    let mut window = i64::try_from(n).unwrap_or(i64::MAX).max(GRACE_S);
    loop {
        let start = (first - 1).max(until.saturating_sub(window));
        let mut found = VecDeque::new();
        let mut at = start;
        while let Some(tick) = rhythm.next(at, zone).filter(|tick| *tick <= until) {
            if found.len() == n {
                found.pop_front();
            }
            found.push_back(tick);
            at = tick;
        }
        if found.len() == n || start < first {
            return found;
        }
        window = window.saturating_mul(4);
    }
}

#[cfg(test)]
mod tests;
