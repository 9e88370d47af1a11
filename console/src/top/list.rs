//! The rows of the list: which queues, and in which order.
use std::cmp::Ordering;

use clap::ValueEnum;

use crate::calls::QueueStat;
use crate::ring::{Rates, Ring};

/// A column by which the queues can be sorted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Column {
    Name,
    Ready,
    Oldest,
    Active,
    Waiting,
    Picked,
    Failing,
    Killed,
}

impl Column {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 8] = [
        Self::Name,
        Self::Ready,
        Self::Oldest,
        Self::Active,
        Self::Waiting,
        Self::Picked,
        Self::Failing,
        Self::Killed,
    ];

    /// Its head.
    pub fn head(self) -> &'static str {
        match self {
            Self::Name => "QUEUE",
            Self::Ready => "READY",
            Self::Oldest => "OLDEST",
            Self::Active => "ACTIVE",
            Self::Waiting => "WAIT",
            Self::Picked => "PICK/S",
            Self::Failing => "FAIL/S",
            Self::Killed => "KILLED",
        }
    }

    /// The key that sorts by it.
    pub fn key(self) -> char {
        match self {
            Self::Name => 'n',
            Self::Ready => 'r',
            Self::Oldest => 'o',
            Self::Active => 'a',
            Self::Waiting => 'w',
            Self::Picked => 'p',
            Self::Failing => 'f',
            Self::Killed => 'k',
        }
    }

    /// The column of a key.
    pub fn of(key: char) -> Option<Self> {
        Self::ALL.into_iter().find(|column| column.key() == key)
    }
}

/// A queue, with what is shown of it.
#[derive(Debug, Clone)]
pub struct Row {
    pub stat: QueueStat,
    pub rates: Rates,
}

impl Row {
    /// The documents that wait: planned, retrying and blocked ones.
    pub fn waiting(&self) -> Option<i64> {
        let stat = &self.stat;
        let parts = [stat.planned, stat.retrying, stat.blocked];
        parts
            .iter()
            .any(Option::is_some)
            .then(|| parts.iter().flatten().sum())
    }

    /// Compares two rows by a column, the larger number first, and names in their order.
    fn compare(&self, other: &Self, column: Column) -> Ordering {
        let (a, b) = (&self.stat, &other.stat);
        match column {
            Column::Name => Ordering::Equal,
            Column::Ready => {
                (a.has_dead_letters().cmp(&b.has_dead_letters())).then(b.ready.cmp(&a.ready))
            }
            Column::Oldest => seconds(b.oldest_waiting()).total_cmp(&seconds(a.oldest_waiting())),
            Column::Active => b.active.cmp(&a.active),
            Column::Waiting => other.waiting().cmp(&self.waiting()),
            Column::Picked => other.rates.picked.total_cmp(&self.rates.picked),
            Column::Failing => other.rates.failed.total_cmp(&self.rates.failed),
            Column::Killed => b.killed.cmp(&a.killed),
        }
    }
}

/// What is not known is less than everything else.
fn seconds(duration: Option<f64>) -> f64 {
    duration.unwrap_or(-1.0)
}

/// The queues whose names contain a text, sorted. Those that are equal are in the order of their
/// names.
pub fn rows(
    queues: &[QueueStat],
    ring: &Ring,
    filter: &str,
    column: Column,
    is_reversed: bool,
) -> Vec<Row> {
    let wanted = filter.to_lowercase();
    let mut rows: Vec<Row> = queues
        .iter()
        .filter(|stat| stat.queue.contains(&wanted))
        .map(|stat| Row {
            stat: stat.clone(),
            rates: ring.rates(&stat.queue),
        })
        .collect();
    rows.sort_by(|a, b| {
        let by_name = a.stat.queue.cmp(&b.stat.queue);
        let order = a.compare(b, column);
        match column {
            Column::Name if is_reversed => by_name.reverse(),
            _ if is_reversed => order.reverse().then(by_name),
            _ => order.then(by_name),
        }
    });
    rows
}
