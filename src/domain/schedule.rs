//! When schedules tick, and which ticks are pushed when some were missed.
//!
//! Time is counted in whole seconds since 1970 (UTC). What a clock on the wall shows is
//! asked of a `Zone`: the server has the rules of all time zones.

use std::collections::VecDeque;

use crate::domain::invalid::Invalid;
use crate::domain::local_time::{Zone, written};
use crate::domain::names::SUBJECT_MAX;
use crate::domain::rhythm::{END_OF_TIME, Rhythm};

/// Longest name: the subject of a document is the name, `@`, and the time of the tick,
/// such as `2026-03-29T01:00:00Z`.
pub const NAME_MAX: usize = SUBJECT_MAX - 21;

/// A tick that is up to this late, in seconds, is on time. A later one was missed.
pub const GRACE: i64 = 60;

/// How many missed ticks can be asked for.
pub const CATCH_UP_MAX: i32 = 10_000;

/// Checks the name of a schedule.
pub fn check_name(name: &str) -> Result<&str, Invalid> {
    let length = name.chars().count();
    if length == 0 || length > NAME_MAX || name.chars().any(char::is_control) {
        return Err(Invalid::ScheduleName(name.to_owned()));
    }
    Ok(name)
}

/// What a text that says when to tick is meant as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form<'a> {
    Cron(&'a str),
    /// An interval of PostgreSQL.
    Every(&'a str),
}

/// Tells cron expressions from intervals: they start with `@`, have a `*`, or have as
/// many fields, none of the first two of which is a word (`1 day 2 hours 3 minutes`).
pub fn form(text: &str) -> Form<'_> {
    let text = text.trim();
    for word in ["@every ", "every "] {
        if let Some(start) = text.get(..word.len())
            && start.eq_ignore_ascii_case(word)
        {
            return Form::Every(text[word.len()..].trim_start());
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

/// The subject of the document of a tick.
pub fn subject(name: &str, tick: i64) -> String {
    format!("{name}@{}Z", written(tick, 'T'))
}

/// A tick as the clocks of a zone show it, with their distance from UTC.
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

/// How much later than its tick a document is due: below `width` microseconds, and
/// always the same for the same tick.
pub fn jitter(name: &str, tick: i64, width: i64) -> i64 {
    if width <= 0 {
        return 0;
    }
    // FNV-1a, then the finalizer of MurmurHash3, which spreads ticks that follow one
    // another. No hash of the standard library stays the same between its versions.
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in name.bytes().chain(tick.to_be_bytes()) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash = (hash ^ (hash >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^= hash >> 33;
    ((u128::from(hash) * width.unsigned_abs() as u128) >> 64) as i64
}

/// What becomes of ticks that were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CatchUp {
    Skip,
    Once,
    All,
}

impl CatchUp {
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "skip" => Some(Self::Skip),
            "once" => Some(Self::Once),
            "all" => Some(Self::All),
            _ => None,
        }
    }
}

/// The ticks of one run, and the next one.
#[derive(Debug, PartialEq, Eq)]
pub struct Due {
    pub push: Vec<i64>,
    pub next: Option<i64>,
}

/// What is due at a time, when `first` is the tick that is expected and none comes
/// after `last`.
///
/// Ticks that are on time are pushed. Of those that were missed: none (skip), the newest
/// if none is on time (once), or the newest `limit` (all).
pub fn due(
    rhythm: &Rhythm,
    zone: &dyn Zone,
    first: i64,
    last: Option<i64>,
    now: i64,
    catch_up: CatchUp,
    limit: usize,
) -> Due {
    let now = now.min(END_OF_TIME);
    let last = last.unwrap_or(END_OF_TIME);
    let until = now.min(last);
    let fresh = first.max(now.saturating_sub(GRACE));
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

/// The newest n ticks from `first` to `until`, in their order. Looks at a little more
/// than it gives, however long ago the first one is.
fn newest(rhythm: &Rhythm, zone: &dyn Zone, first: i64, until: i64, n: usize) -> VecDeque<i64> {
    let mut window = i64::try_from(n).unwrap_or(i64::MAX).max(GRACE);
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
