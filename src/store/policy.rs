//! What a queue is set to do: the settings in its row of the registry that every
//! session keeps in mind. A change of the row reaches all of them when it is committed
//! (the trigger `fetchq_queue_changed`).

use crate::domain::names::QueueName;
use crate::domain::retry::Retry;
use crate::pg::spi::Rows;

/// What happens to a document that is settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// As it always was: completed and killed ones stay, dropped ones go.
    InTable,
    Nowhere,
    /// In the queue's history, for a time.
    InHistory,
}

impl Keep {
    fn from_parts(parts: Option<(i32, i32, i64)>) -> Self {
        match parts {
            None => Self::InTable,
            Some((0, 0, 0)) => Self::Nowhere,
            Some(_) => Self::InHistory,
        }
    }
}

/// The settings of a queue.
#[derive(Debug)]
pub struct Policy {
    /// Documents can be picked.
    pub is_active: bool,
    pub max_attempts: i32,
    pub retry: Option<Retry>,
    /// The queue that takes what is killed by failing.
    pub dead_letter: Option<QueueName>,
    pub completed: Keep,
    pub killed: Keep,
    pub dropped: Keep,
    /// How many documents can be leased at one time.
    pub max_active: Option<i32>,
    /// How many can be picked within the rate's interval.
    pub rate_limit: Option<i32>,
    /// Documents of one ordering key run one at a time.
    pub is_ordered: bool,
    /// The rate's interval: microseconds.
    pub rate_interval: i64,
}

impl Policy {
    /// Reads the last columns of the statement in `plans`, from a number on.
    pub fn read(rows: &Rows, first: i32) -> Self {
        let micros = |column| rows.interval(0, first + column).map(micros);
        let keep = |column| Keep::from_parts(rows.interval(0, first + column));
        let retry = micros(1).map(|base| Retry {
            base,
            factor: rows.get(0, first + 2).unwrap_or(1.0),
            max: micros(3),
            jitter: rows.get(0, first + 4).unwrap_or(0.0),
        });
        let target: Option<String> = rows.get(0, first + 5);
        Self {
            is_active: rows.get(0, first).unwrap_or(true),
            max_attempts: rows.get(0, first + 12).unwrap_or(i32::MAX),
            retry,
            dead_letter: target.and_then(|name| QueueName::parse(&name).ok()),
            completed: keep(6),
            killed: keep(7),
            dropped: keep(8),
            max_active: rows.get(0, first + 9),
            rate_limit: rows.get(0, first + 10),
            is_ordered: rows.get(0, first + 11).unwrap_or(false),
            rate_interval: micros(13).unwrap_or(0),
        }
    }

    /// Not all documents that are ready can be picked.
    pub fn is_limited(&self) -> bool {
        self.max_active.is_some() || self.rate_limit.is_some()
    }
}

/// As PostgreSQL compares intervals: a month has 30 days, a day 24 hours.
fn micros((months, days, micros): (i32, i32, i64)) -> i64 {
    let days = i64::from(months) * 30 + i64::from(days);
    days.saturating_mul(86_400_000_000).saturating_add(micros)
}
