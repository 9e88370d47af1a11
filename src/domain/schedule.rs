//! When schedules tick, and which ticks are pushed when some were missed.
//!
//! Time is counted in whole seconds since 1970 (UTC). What a clock on the wall shows is
//! asked of a `Zone`: the server has the rules of all time zones.

use std::cmp::Ordering;
use std::collections::VecDeque;

use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CivilDate, CivilDateTime, CivilTime, Cron, CronDateTime, Resolution, Weekday};

use super::Invalid;
use super::names::SUBJECT_MAX;

/// Longest name: the subject of a document is the name, `@`, and the time of the tick,
/// such as `2026-03-29T01:00:00Z`.
pub const NAME_MAX: usize = SUBJECT_MAX - 21;

/// A tick that is up to this late, in seconds, is on time. A later one was missed.
pub const GRACE: i64 = 60;

/// How many missed ticks can be asked for.
pub const CATCH_UP_MAX: i32 = 10_000;

const DAY: i64 = 86_400;
/// 5000-01-01, where the search for a tick ends.
const END_OF_TIME: i64 = 95_617_584_000;

/// A time zone: how many seconds its clocks are ahead of UTC.
pub trait Zone {
    fn offset_at(&self, time: i64) -> i64;
}

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

/// When a schedule ticks.
#[derive(Debug)]
pub enum Rhythm {
    Cron(Box<Cron>),
    Every(Every),
}

/// Ticks at an anchor plus n times an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Every {
    pub months: i64,
    pub days: i64,
    pub seconds: i64,
    pub anchor: i64,
}

impl Rhythm {
    /// A cron expression of five fields, or of six with seconds first, or a nickname.
    pub fn cron(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > 255 {
            return Err("it is longer than 255 characters".to_owned());
        }
        let text = if text.eq_ignore_ascii_case("@midnight") {
            "@daily"
        } else {
            text
        };
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build();
        match parser.parse(text) {
            Ok(cron) => Ok(Self::Cron(Box::new(cron))),
            Err(_) if text.starts_with('@') => Err(NICKNAMES.to_owned()),
            Err(_) if ![5, 6].contains(&fields(text)) => {
                Err(format!("it has {} fields, not 5 or 6", fields(text)))
            }
            Err(e) => Err(e.to_string()),
        }
    }

    /// An interval of months, days and microseconds, from an anchor on.
    pub fn every(months: i32, days: i32, micros: i64, anchor: i64) -> Result<Self, String> {
        if months < 0 || days < 0 || micros < 0 {
            return Err("the interval is negative".to_owned());
        }
        if micros % 1_000_000 != 0 {
            return Err("the interval is not one of whole seconds".to_owned());
        }
        if (months, days, micros) == (0, 0, 0) {
            return Err("the interval is zero".to_owned());
        }
        Ok(Self::Every(Every {
            months: i64::from(months),
            days: i64::from(days),
            seconds: micros / 1_000_000,
            anchor,
        }))
    }

    /// The first tick after a time; None when there is none before the year 5000.
    pub fn next(&self, after: i64, zone: &dyn Zone) -> Option<i64> {
        if after >= END_OF_TIME {
            return None;
        }
        match self {
            Self::Cron(cron) => {
                let from = |time| {
                    let start = Moment { time, zone };
                    cron.find_next_occurrence(&start, false).ok()
                };
                // (the search gives up in a day that a zone leaves out)
                from(after)
                    .or_else(|| from(after.saturating_add(2 * DAY)))
                    .map(|found| found.time)
            }
            Self::Every(every) => every.next(after, zone),
        }
    }
}

const NICKNAMES: &str =
    "the words with an @ are @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly";

fn fields(text: &str) -> usize {
    text.split_whitespace().count()
}

impl Every {
    /// Tick number n. Months and days are those of the zone's calendar: a clock on the
    /// wall shows the same time at each, if it can. A month that is too short has its
    /// last day.
    fn tick(&self, n: i64, zone: &dyn Zone) -> Option<i64> {
        let seconds = n.checked_mul(self.seconds)?;
        let start = if self.months == 0 && self.days == 0 {
            self.anchor
        } else {
            let local = local(self.anchor, zone);
            let (day, of_day) = (local.div_euclid(DAY), local.rem_euclid(DAY));
            let day = add_months(day, n.checked_mul(self.months)?)?;
            let day = day.checked_add(n.checked_mul(self.days)?)?;
            as_postgresql(day.checked_mul(DAY)?.checked_add(of_day)?, zone)?
        };
        start
            .checked_add(seconds)
            .filter(|tick| *tick < END_OF_TIME)
    }

    fn next(&self, after: i64, zone: &dyn Zone) -> Option<i64> {
        // A month has 30.436875 days. No multiple of an interval is further away from
        // what this makes of it than a few days.
        let length = self.months * 2_629_746 + self.days * DAY + self.seconds;
        let slack = if self.months > 0 {
            5 * DAY
        } else if self.days > 0 {
            DAY
        } else {
            0
        };
        let mut n = ((after - self.anchor - slack) / length).max(0);
        loop {
            let tick = self.tick(n, zone)?;
            if tick > after {
                return Some(tick);
            }
            n += 1;
        }
    }
}

/// A point in time with its zone, for the search of cron ticks.
#[derive(Clone)]
struct Moment<'z> {
    time: i64,
    zone: &'z dyn Zone,
}

impl Moment<'_> {
    fn at(&self, time: i64) -> Self {
        Self { time, ..*self }
    }
}

impl CronDateTime for Moment<'_> {
    fn to_civil(&self) -> CivilDateTime {
        civil(local(self.time, self.zone))
    }

    fn civil_weekday(&self) -> Weekday {
        // 1970-01-01 was a Thursday.
        let day = local(self.time, self.zone).div_euclid(DAY) + 4;
        Weekday::from_days_from_sunday(day.rem_euclid(7) as u32)
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let seconds = i64::from(civil.hour()) * 3600
            + i64::from(civil.minute()) * 60
            + i64::from(civil.second());
        let day = day_number(
            i64::from(civil.year()),
            i64::from(civil.month()),
            i64::from(civil.day()),
        );
        Ok(match resolve(day * DAY + seconds, self.zone) {
            Instants::One(t) => Resolution::Single(self.at(t)),
            Instants::Two(first, second) => Resolution::Ambiguous(self.at(first), self.at(second)),
            Instants::None { .. } => Resolution::Gap,
        })
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        Some(self.at(self.time.checked_add(seconds)?))
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.time.cmp(&other.time)
    }
}

/// What the clocks of a zone show, in seconds since they showed 1970-01-01 00:00.
fn local(time: i64, zone: &dyn Zone) -> i64 {
    time.saturating_add(zone.offset_at(time))
}

/// When the clocks of a zone show a time.
enum Instants {
    One(i64),
    /// They were set back over it: the first one is earlier.
    Two(i64, i64),
    /// They were set forward over it.
    None {
        /// The offset before that.
        before: i64,
    },
}

fn resolve(local: i64, zone: &dyn Zone) -> Instants {
    // No offset is as much as a day, and no zone changes its clocks twice in two days.
    let before = zone.offset_at(local - DAY);
    let after = zone.offset_at(local + DAY);
    let (first, second) = (local - before, local - after);
    if before == after {
        return Instants::One(first);
    }
    let is_first = zone.offset_at(first) == before;
    let is_second = zone.offset_at(second) == after;
    match (is_first, is_second) {
        (true, true) => Instants::Two(first, second),
        (true, false) => Instants::One(first),
        (false, true) => Instants::One(second),
        (false, false) => Instants::None { before },
    }
}

/// The moment that PostgreSQL takes for a time of a zone: what the clocks would show had
/// they not been set forward yet; the second one when they were set back.
fn as_postgresql(time: i64, zone: &dyn Zone) -> Option<i64> {
    Some(match resolve(time, zone) {
        Instants::One(t) | Instants::Two(_, t) => t,
        Instants::None { before } => time.checked_sub(before)?,
    })
}

/// Days since 1970-01-01, by the Gregorian calendar (Howard Hinnant's algorithm).
fn day_number(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Year, month and day of a day number.
fn date(day: i64) -> (i64, i64, i64) {
    let day = day + 719_468;
    let era = day.div_euclid(146_097);
    let of_era = day.rem_euclid(146_097);
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

fn add_months(day: i64, months: i64) -> Option<i64> {
    let (year, month, of_month) = date(day);
    let months = year.checked_mul(12)?.checked_add(month - 1 + months)?;
    let (year, month) = (months.div_euclid(12), months.rem_euclid(12) + 1);
    if year > 10_000 {
        return None;
    }
    let length = croner::time::days_in_month(i32::try_from(year).ok()?, month as u32);
    Some(day_number(year, month, of_month.min(i64::from(length))))
}

fn civil(local: i64) -> CivilDateTime {
    let (year, month, day) = date(local.div_euclid(DAY));
    let second = local.rem_euclid(DAY) as u32;
    CivilDateTime::new(
        CivilDate::from_parts_unchecked(year as i32, month as u32, day as u32),
        CivilTime::from_parts_unchecked(second / 3600, second / 60 % 60, second % 60),
    )
}

fn written(local: i64, between: char) -> String {
    let civil = civil(local);
    format!("{}{between}{}", civil.date(), civil.time())
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
mod tests {
    use super::*;

    /// A zone with one rule for every year: when its summer begins and ends.
    struct Rules {
        winter: i64,
        summer: i64,
        begins: fn(i64) -> i64,
        ends: fn(i64) -> i64,
    }

    impl Zone for Rules {
        fn offset_at(&self, time: i64) -> i64 {
            let (year, _, _) = date(time.div_euclid(DAY));
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
            begins: |year| sunday(year, 3, 25) * DAY + 3600,
            ends: |year| sunday(year, 10, 25) * DAY + 3600,
        }
    }

    fn new_york() -> Rules {
        Rules {
            winter: -5 * 3600,
            summer: -4 * 3600,
            begins: |year| sunday(year, 3, 8) * DAY + 7 * 3600,
            ends: |year| sunday(year, 11, 1) * DAY + 6 * 3600,
        }
    }

    /// Half an hour of summer time, in the south.
    fn lord_howe() -> Rules {
        Rules {
            winter: 37_800,
            summer: 39_600,
            begins: |year| sunday(year, 10, 1) * DAY + 7200 - 37_800,
            ends: |year| sunday(year, 4, 1) * DAY + 7200 - 39_600,
        }
    }

    /// `2026-03-29 01:00` or `2026-03-29 01:00:00`, in UTC.
    fn at(text: &str) -> i64 {
        let part = |range: std::ops::Range<usize>| {
            text.get(range).map_or(0, |t| t.parse::<i64>().unwrap())
        };
        day_number(part(0..4), part(5..7), part(8..10)) * DAY
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
        assert_eq!(day_number(5000, 1, 1) * DAY, END_OF_TIME);
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
    fn forms_are_told_apart() {
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
    fn what_is_no_cron_expression_is_told() {
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
    fn patterns_follow_the_clock_on_the_wall() {
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

    /// Where a search begins changes nothing: else a tick could be lost or doubled.
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
                    let mut expected = rhythm.next(change - 2 * DAY, &zone).unwrap();
                    for time in (change - 2 * DAY..change + 2 * DAY).step_by(997) {
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
        assert_eq!(cron("* * * * *").next(END_OF_TIME, &utc()), None);
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
                &every(0, 0, DAY, "2026-03-27 01:30"),
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
            SUBJECT_MAX
        );
        for name in ["", "a\nb", &"x".repeat(NAME_MAX + 1)] {
            assert!(check_name(name).is_err());
        }
    }
}
