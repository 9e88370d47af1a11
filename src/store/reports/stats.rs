//! The statistics of queues (`queue_stats`, `metric_export`): from the counters, the histograms, and a look
//! at the indexes.

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::domain::timing::{Histogram, PERCENTILES};
use crate::error::Result;
use crate::pg::index_look::PickLook;
use crate::pg::row_sink::RowSink;
use crate::pg::snapshot::Snapshot;
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::ready::key::Index;
use crate::store::counters::metrics_exact::{Counted, Period};
use crate::store::queues::queue_places;
use crate::store::queues::rights::{self, Right, Scope};
use crate::store::reports::read::{self, Budget, Found, Queue, Sight, State};

/// How many retried documents of a queue are counted, and how many ready ones where others are
/// blocked.
const MAX_COUNTED: u32 = 10_000;

/// What is known of a queue.
pub struct QueueStats {
    /// Its name.
    pub name: String,
    /// Nothing is picked from it.
    pub is_paused: bool,
    /// It is the dead-letter queue of another one.
    pub is_dead_letter_queue: bool,
    /// What is counted. None where that could not be read without waiting.
    pub counted: Option<Counted>,
    /// How many documents are pending in which way. None where it is not known.
    pub pending: Option<Pending>,
    /// For how long the oldest ready document has been ready: microseconds. None when there is none,
    /// or it is not known.
    pub oldest_ready: Option<i64>,
    /// When the first planned document is due. In it None when there is none; None where it is not
    /// known.
    pub planned: Option<Option<i64>>,
    /// When the next planned or retried document is due.
    pub next_due: Option<i64>,
}

/// The statistics of several queues.
pub struct AllStats {
    /// In the order of their names.
    pub queues: Vec<QueueStats>,
    /// The counters of the queues are known.
    pub is_counted: bool,
    /// The histograms are complete. Otherwise they lack what is packed.
    pub has_times: bool,
}

/// Reads the statistics of queues, with the histograms of a period, after [`read::lock_registry`].
pub fn read(scope: &Scope, period: Period, now: i64) -> AllStats {
    let state = State::read(scope, Snapshot::take, Some(period), now);
    // Where the counters are not known, there may be any documents.
    let concerns =
        |queue: &Queue| queue.is_readable && (queue.may_have("pnd") || queue.may_have("pln"));
    let looks = state.look(
        0,
        concerns,
        |_| true,
        |sight, budget| look(sight, now, budget),
    );
    let queues = state.queues.into_iter().zip(looks);
    AllStats {
        queues: queues
            .map(|(queue, look)| stats_of(queue, &look, now))
            .collect(),
        is_counted: state.is_counted,
        has_times: state.has_times,
    }
}

/// Adds a row for each queue to a result: for one queue, or for all on which the caller has a right.
///
/// Fails with `Error::RegistryBusy` when the registry is locked, and for a queue that is named with
/// `Error::UnknownQueue` and `Error::NoRight`.
pub fn list(name: Option<&QueueName>, out: &mut RowSink) -> Result<()> {
    read::lock_registry()?;
    if let Some(name) = name {
        rights::require_existing(name, Right::Any)?;
    }
    let all = rights::over(name, Right::Any, |queues| {
        Ok(read(queues, Period::LastMinutes, time::clock()))
    })?;
    if let (true, Some(name)) = (all.queues.is_empty(), name) {
        return Err(queue_places::unknown(name));
    }
    for queue in &all.queues {
        out.push(&row(queue));
    }
    Ok(())
}

/// What the indexes of a queue say. A part that is None is not known.
#[derive(Default)]
struct LookOf {
    picks: Option<PickLook>,
    /// When the first planned document is due; in it None when there is none.
    planned: Option<Option<i64>>,
}

fn look(sight: &mut Sight, now: i64, budget: &mut Budget) -> LookOf {
    let queue = sight.queue;
    if !queue.is_readable {
        return LookOf::default();
    }
    LookOf {
        picks: match queue.may_have("pnd") {
            false => Some(PickLook::default()),
            true => look_at_pending(sight, now, budget),
        },
        planned: match queue.may_have("pln") {
            false => Some(None),
            true => first_planned(sight, budget),
        },
    }
}

fn look_at_pending(sight: &mut Sight, now: i64, budget: &mut Budget) -> Option<PickLook> {
    let max_due = match sight.queue.has_key_order {
        true => MAX_COUNTED,
        false => 1,
    };
    sight.picks(now, max_due, MAX_COUNTED, budget)
}

fn first_planned(sight: &mut Sight, budget: &mut Budget) -> Option<Option<i64>> {
    let floor = sight.floor(Index::Due, 0, Status::Planned.code());
    let from = floor.unwrap_or(i64::MIN);
    match sight.first_due(Status::Planned, from, None, budget)? {
        Found::At(time) => Some(Some(time)),
        Found::NotBefore(_) | Found::Nothing => Some(None),
    }
}

/// How many pending documents can be picked, wait for a retry, and are held back.
pub struct Pending {
    /// Those that a pick would return now.
    pub ready: i64,
    /// Those that wait for their retry.
    pub retrying: i64,
    /// Those that are held back, by a pause, a limit or an order.
    pub blocked: i64,
}

fn pending(queue: &Queue, pending: i64, active: i64, look: &PickLook) -> Pending {
    let retrying = i64::from(look.later).min(pending);
    let due = match (look.first_due, queue.has_key_order) {
        (None, _) => 0,
        (Some(_), true) => i64::from(look.due).min(pending - retrying),
        (Some(_), false) => pending - retrying,
    };
    let mut ready = if queue.is_active { due } else { 0 };
    if let Some(max_active) = queue.max_active {
        ready = ready.min((i64::from(max_active) - active).max(0));
    }
    if let Some(permits) = queue.permits {
        ready = ready.min(permits);
    }
    Pending {
        ready,
        retrying,
        blocked: pending - retrying - ready,
    }
}

/// Returns how long ago a time was, in microseconds. None for -infinity, which is no time.
pub fn age(since: i64, now: i64) -> Option<i64> {
    (since != i64::MIN).then(|| now.saturating_sub(since))
}

fn stats_of(mut queue: Queue, look: &LookOf, now: i64) -> QueueStats {
    let counted = queue.counted.take();
    let state = match (&counted, &look.picks) {
        (Some(counted), Some(look)) => Some(pending(
            &queue,
            counted.counter("pnd"),
            counted.counter("act"),
            look,
        )),
        _ => None,
    };
    let first_due = look.picks.as_ref().and_then(|picks| picks.first_due);
    let oldest_ready = state
        .as_ref()
        .filter(|state| state.ready > 0)
        .and(first_due)
        .and_then(|since| age(since, now));
    let next_due = match (&look.picks, look.planned) {
        (Some(picks), Some(planned)) => match (picks.first_later, planned) {
            (Some(retry), Some(planned)) => Some(retry.min(planned)),
            (retry, planned) => retry.or(planned),
        },
        _ => None,
    };
    QueueStats {
        is_paused: !queue.is_active,
        is_dead_letter_queue: queue.is_dead_letter_queue,
        name: queue.name,
        counted,
        pending: state,
        oldest_ready,
        planned: look.planned,
        next_due,
    }
}

/// The counters in a row of `queue_stats`, before and after the times.
const STATES: [&str; 4] = ["pln", "act", "cpl", "kll"];
const TOTALS: [&str; 5] = ["ent", "pkd", "suc", "fai", "orp"];

fn row(queue: &QueueStats) -> Vec<Arg> {
    let counted = queue.counted.as_ref();
    let count = |metric| Arg::from(counted.map(|counted| counted.counter(metric)));
    let state = queue.pending.as_ref();
    let percentile = |histogram: Option<&Histogram>, percent| {
        Interval::of(histogram.and_then(|histogram| histogram.percentile(percent)))
    };
    let mut row = vec![
        Arg::from(queue.name.as_str()),
        Arg::from(state.map(|state| state.ready)),
        Arg::from(state.map(|state| state.retrying)),
        Arg::from(state.map(|state| state.blocked)),
    ];
    row.extend(STATES.map(count));
    row.push(Interval::of(queue.oldest_ready));
    row.push(
        queue
            .next_due
            .map_or_else(Arg::no_timestamp, Arg::timestamp),
    );
    row.extend(TOTALS.map(count));
    row.extend(
        PERCENTILES.map(|percent| percentile(counted.map(|counted| &counted.wait), percent)),
    );
    row.extend(PERCENTILES.map(|percent| percentile(counted.map(|counted| &counted.run), percent)));
    row.push(Arg::from(queue.is_paused));
    row.push(Arg::from(queue.is_dead_letter_queue));
    row
}
