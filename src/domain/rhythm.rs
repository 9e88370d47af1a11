//! When schedules tick, and which ticks are pushed when some were missed.
//!
//! Time is counted in whole seconds since 1970 (UTC). What a clock on the wall shows is
//! asked of a `Zone`: the server has the rules of all time zones.

use std::cmp::Ordering;

use crate::domain::local_time::DAY;
use croner::errors::CronError;
use croner::parser::{CronParser, Seconds, Year};
use croner::{CivilDateTime, Cron, CronDateTime, Resolution, Weekday};

use crate::domain::local_time::{
    Instants, Zone, add_months, as_postgresql, civil, day_number, local, resolve,
};

/// 5000-01-01, where the search for a tick ends.
pub const END_OF_TIME: i64 = 95_617_584_000;

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
