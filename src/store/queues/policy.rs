//! The settings of a queue, from its row in `fetchq.queues`, as every session keeps them in
//! its cache. A change of the row reaches all sessions when it is committed, through the
//! trigger `fetchq_queue_changed`.

use crate::domain::names::QueueName;
use crate::domain::retry::Retry;
use crate::pg::spi::Rows;

/// Where a document is kept after it was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// As in fetchq 4: completed and killed documents stay in the table of documents, and
    /// dropped documents are removed.
    InTable,
    /// The document is removed.
    Nowhere,
    /// The document moves to the queue's history, for a time.
    InHistory,
}

impl Keep {
    /// Reads a setting `keep_…`: an interval of months, days and microseconds.
    fn from_interval(parts: Option<(i32, i32, i64)>) -> Self {
        match parts {
            None => Self::InTable,
            Some((0, 0, 0)) => Self::Nowhere,
            Some(_) => Self::InHistory,
        }
    }
}

/// How documents of one ordering key wait for one another (`ordered`, `max_active_per_key`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyOrder {
    /// They do not.
    None,
    /// They run one at a time, and one that is retried keeps the others waiting.
    Ordered,
    /// This number of them run at a time, and one that is retried waits like the others.
    Places(usize),
}

impl KeyOrder {
    /// Reads the columns `is_ordered` and `max_active_per_key` of a queue. An ordered queue has no
    /// places, whatever an UPDATE of the registry has written into the other column.
    pub fn new(is_ordered: bool, max_active_per_key: Option<i32>) -> Self {
        match (is_ordered, max_active_per_key) {
            (true, _) => Self::Ordered,
            (false, Some(n)) => Self::Places(usize::try_from(n).unwrap_or(0).max(1)),
            (false, None) => Self::None,
        }
    }

    /// How many documents of a key can run.
    pub fn places(self) -> usize {
        match self {
            Self::Places(n) => n,
            // Triggers fire without an order where plain SQL has changed the registry alone.
            Self::None | Self::Ordered => 1,
        }
    }

    /// Returns whether a document that is retried keeps its place among those that can run.
    pub fn keeps_place_on_retry(self) -> bool {
        !matches!(self, Self::Places(_))
    }

    /// Returns whether documents wait for others of their key.
    pub fn blocks(self) -> bool {
        self != Self::None
    }
}

/// The settings of a queue.
#[derive(Debug)]
pub struct Policy {
    /// Documents can be picked: the queue is not paused.
    pub is_active: bool,
    /// The attempts that a document gets that has no number of its own.
    pub max_attempts: i32,
    /// The backoff of rejected documents. None: a document is retried when its lease would
    /// have expired.
    pub retry: Option<Retry>,
    /// The dead-letter queue, which gets the documents that are killed.
    pub dead_letter: Option<QueueName>,
    /// The name of the role that has set it. None: the settings were written by plain SQL.
    pub dead_letter_by: Option<String>,
    /// What is done with completed documents.
    pub completed: Keep,
    /// What is done with killed documents.
    pub killed: Keep,
    /// What is done with dropped documents.
    pub dropped: Keep,
    /// The cap: how many documents can be leased at one time.
    pub max_active: Option<i32>,
    /// The rate: how many documents can be picked within `rate_interval`.
    pub rate_limit: Option<i32>,
    /// The interval of the rate in microseconds; 0 without a rate.
    pub rate_interval: i64,
    /// How documents with the same ordering key wait for one another.
    pub key_order: KeyOrder,
    /// How long a lease lasts where the worker does not say: months, days and microseconds.
    pub lease_duration: (i32, i32, i64),
    /// How long after its time a new document expires that has not begun: months, days and
    /// microseconds.
    pub expire_after: Option<(i32, i32, i64)>,
    /// How long a document can be leased, however often its lease is extended: microseconds.
    pub max_run: Option<i64>,
    /// How long a lease is only in shared memory before it is written: microseconds. None: as the setting of
    /// the server says.
    pub lease_write_delay: Option<i64>,
}

/// How long a lease lasts where neither the worker nor the queue says: 5 minutes.
const LEASE_DURATION: (i32, i32, i64) = (0, 0, 300_000_000);

impl Policy {
    /// Reads the settings from the row that the statement `QUEUE` in queue_catalog.rs
    /// returned. `first` is the number of the column `is_active`, from which on the columns
    /// are read.
    pub fn read(rows: &Rows, first: i32) -> Self {
        let column = |offset| first + offset;
        let micros = |offset| rows.interval(0, column(offset)).map(micros);
        let keep = |offset| Keep::from_interval(rows.interval(0, column(offset)));

        let retry = micros(2).map(|base| Retry {
            base,
            factor: rows.get(0, column(3)).unwrap_or(1.0),
            max: micros(4),
            jitter: rows.get(0, column(5)).unwrap_or(0.0),
        });
        let dead_letter: Option<String> = rows.get(0, column(6));
        Self {
            is_active: rows.get(0, column(0)).unwrap_or(true),
            max_attempts: rows.get(0, column(1)).unwrap_or(i32::MAX),
            retry,
            dead_letter: dead_letter.and_then(|name| QueueName::parse(&name).ok()),
            dead_letter_by: rows.get(0, column(16)),
            completed: keep(7),
            killed: keep(8),
            dropped: keep(9),
            max_active: rows.get(0, column(10)),
            rate_limit: rows.get(0, column(11)),
            rate_interval: micros(12).unwrap_or(0),
            key_order: KeyOrder::new(
                rows.get(0, column(13)).unwrap_or(false),
                rows.get(0, column(14)),
            ),
            lease_duration: rows.interval(0, column(15)).unwrap_or(LEASE_DURATION),
            expire_after: rows.interval(0, column(17)),
            max_run: micros(18),
            lease_write_delay: micros(19),
        }
    }

    /// Returns whether the queue has a cap or a rate, so that not all ready documents can be
    /// picked.
    pub fn is_limited(&self) -> bool {
        self.max_active.is_some() || self.rate_limit.is_some()
    }
}

/// The microseconds of an interval, as PostgreSQL compares intervals: a month has 30 days, a
/// day 24 hours.
pub fn micros((months, days, micros): (i32, i32, i64)) -> i64 {
    let days = i64::from(months) * 30 + i64::from(days);
    days.saturating_mul(86_400_000_000).saturating_add(micros)
}
