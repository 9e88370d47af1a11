//! The rhythm of a schedule: at which points in time it ticks.
//!
//! A point in time is a number of whole seconds since 1970 (UTC).

use std::cmp::Ordering;

use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CivilDateTime, Cron, CronDateTime, Resolution, Weekday};

use crate::local_time::{
    DAY_S, Instants, Zone, add_months, as_postgresql, civil, day_number, local, resolve,
};

/// The end of the search for a tick, which is 5000-01-01.
pub const END_OF_TIME_S: i64 = 95_617_584_000;

/// The longest cron expression, in bytes.
const MAX_CRON_LENGTH: usize = 255;

/// The rule by which a schedule ticks.
#[derive(Debug)]
pub enum Rhythm {
    /// A cron expression.
    Cron(Box<Cron>),
    /// An interval.
    Every(Every),
}

/// An interval: there is a tick at the anchor plus n times the interval, for every n from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Every {
    /// The months of the interval.
    pub months: i64,
    /// The days of the interval.
    pub days: i64,
    /// The seconds of the interval.
    pub seconds: i64,
    /// The first tick.
    pub anchor: i64,
}

impl Rhythm {
    /// Reads a cron expression.
    ///
    /// It has five fields, or six with seconds first, or is a word such as `@daily`. Returns a
    /// message when it is not valid.
    pub fn cron(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > MAX_CRON_LENGTH {
            return Err(format!("it is longer than {MAX_CRON_LENGTH} characters"));
        }
        let text = match text.to_ascii_lowercase().as_str() {
            "@midnight" => "@daily",
            "@minutely" => "* * * * *",
            _ => text,
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
            Err(e) => Err(describe(&parser, text).unwrap_or_else(|| e.to_string())),
        }
    }

    /// Makes the rhythm of an interval of months, days and microseconds.
    ///
    /// `anchor` is the first tick. Returns a message when the interval is zero, negative, or not
    /// one of whole seconds.
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

    /// Returns the first tick after a point in time, or None when there is none before the year
    /// 5000.
    pub fn next(&self, after: i64, zone: &dyn Zone) -> Option<i64> {
        if after >= END_OF_TIME_S {
            return None;
        }
        match self {
            Self::Cron(cron) => {
                let from = |time| {
                    let start = Moment { time, zone };
                    cron.find_next_occurrence(&start, false).ok()
                };
                // The search fails in a day that a zone leaves out.
                from(after)
                    .or_else(|| from(after.saturating_add(2 * DAY_S)))
                    .map(|found| found.time)
            }
            Self::Every(every) => every.next(after, zone),
        }
    }
}

/// The message for an unknown word with an @.
const NICKNAMES: &str = "the words with an @ are @yearly, @annually, @monthly, @weekly, @daily, @midnight, @hourly and @minutely";

/// The fields of a cron expression; without seconds, the first one is left out.
const FIELDS: [&str; 6] = [
    "second",
    "minute",
    "hour",
    "day of the month",
    "month",
    "day of the week",
];

/// Names the first field of a cron expression that is wrong by itself, and says why.
fn describe(parser: &CronParser, text: &str) -> Option<String> {
    let fields: Vec<&str> = text.split_whitespace().collect();
    let names = &FIELDS[FIELDS.len().checked_sub(fields.len())?..];
    names.iter().enumerate().find_map(|(at, name)| {
        let mut alone = vec!["*"; fields.len()];
        alone[at] = fields[at];
        let error = parser.parse(&alone.join(" ")).err()?.to_string();
        let reason = error.strip_prefix("Component error: ").unwrap_or(&error);
        let reason = reason.trim_end_matches('.').to_lowercase();
        Some(format!("its {name} is {:?}: {reason}", fields[at]))
    })
}

fn fields(text: &str) -> usize {
    text.split_whitespace().count()
}

impl Every {
    /// Returns tick number n, or None when it is after the year 5000.
    ///
    /// Months and days are those of the calendar of the zone, so the clocks show the same time
    /// at each tick, unless they are changed. In a month that is too short, the tick is on its
    /// last day.
    fn tick(&self, n: i64, zone: &dyn Zone) -> Option<i64> {
        let seconds = n.checked_mul(self.seconds)?;
        let start = if self.months == 0 && self.days == 0 {
            self.anchor
        } else {
            let local = local(self.anchor, zone);
            let (day, of_day) = (local.div_euclid(DAY_S), local.rem_euclid(DAY_S));
            let day = add_months(day, n.checked_mul(self.months)?)?;
            let day = day.checked_add(n.checked_mul(self.days)?)?;
            as_postgresql(day.checked_mul(DAY_S)?.checked_add(of_day)?, zone)?
        };
        start
            .checked_add(seconds)
            .filter(|tick| *tick < END_OF_TIME_S)
    }

    /// Returns the first tick after a point in time.
    fn next(&self, after: i64, zone: &dyn Zone) -> Option<i64> {
        // A month has 30.436875 days on average. Every tick is at most a few days away from
        // where it would be with such months.
        let length = self.months * 2_629_746 + self.days * DAY_S + self.seconds;
        let slack = if self.months > 0 {
            5 * DAY_S
        } else if self.days > 0 {
            DAY_S
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
        let day = local(self.time, self.zone).div_euclid(DAY_S) + 4;
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
        Ok(match resolve(day * DAY_S + seconds, self.zone) {
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
