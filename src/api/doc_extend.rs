//! Extending leases: of one document, and of a list of them.

use std::collections::BTreeMap;

use pgrx::prelude::*;

use crate::api::doc_lease::opt_duration;
use crate::api::entry::{opt_queue_name, queue_name, respond_write, subject};
use crate::api::named_leases::{EXTENSIONS, Element};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::call::Reply;
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::store::documents::doc_extend::{self, Extended, Extension};
use crate::store::documents::lease_check::LeasedDoc;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;

/// `doc_extend(queue, subject, duration, lease, progress) → (lease_ends, stop)`: has a lease
/// last for `duration`, an interval, from now. `progress` replaces that of the document; NULL leaves
/// it as it is. `stop` says whether the worker was asked to stop; with
/// `lease_ends` NULL the document was cancelled.
///
/// Fails with `UnknownQueue`, `BadDuration`, `NotActive`, with `LeaseLost` when the lease
/// was lost, or with `LeaseNeeded` without the number of a lease that needs it.
#[pg_extern(sql = false)]
fn doc_extend(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let queue = queue_name(call, 0)?;
        let duration = call.interval(2, "duration")?.as_duration("duration")?;
        let doc = LeasedDoc {
            subject: subject(call, 1)?,
            lease: call.opt_bigint(3),
            call: "extend",
        };
        let progress = call.opt_json(4);
        let list = [Extension { doc, progress }];
        let extended = Queue::with(&queue, Right::Work, |queue| {
            Ok(extend(queue, &list, Some(duration)))
        })?;
        match extended.into_iter().next() {
            Some(Extended::Until { time, stop, .. }) => {
                Ok(call.record(&[Arg::timestamp(time), Arg::from(stop)]))
            }
            Some(Extended::Lost(error)) => Err(error),
            _ => Ok(call.record(&[Arg::no_timestamp(), Arg::from(true)])),
        }
    })
}

/// Has leases last for `duration` from now. None: as long as the queue is set to.
fn extend(queue: &Queue, list: &[Extension], duration: Option<Interval>) -> Vec<Extended> {
    let duration = duration.unwrap_or_else(|| queue.lease_duration());
    // Not the time of the transaction, which may have begun long ago.
    doc_extend::extend(queue, list, duration.after(time::clock()))
}

/// `docs_extend(queue, extensions, duration) → (queue, subject, outcome, lease_ends, stop)`: has the
/// leases of a JSON array last for `duration`, an interval, from now; NULL: the setting `lease` of each
/// queue. An element has a subject, the number of its lease, `progress` if there is any, and `queue`
/// if the document is of another one; `queue` NULL: each element names it. A row for each tells its
/// outcome: extended, limited by the setting `max_run`, cancelled, lost or missing. `stop` says whether the worker was asked to stop.
///
/// Fails with `UnknownQueue`, with `BadDuration`, and with `Invalid` for an array that is not valid.
#[pg_extern(sql = false)]
fn docs_extend(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = opt_queue_name(call, 0)?;
        let duration = opt_duration(call, 2)?;
        let list = EXTENSIONS.read(call.json(1, "extensions")?, name.as_ref())?;
        let mut out = call.rows();
        // In the order of the queues, so that two sessions do not deadlock.
        let mut queues: BTreeMap<&QueueName, Vec<usize>> = BTreeMap::new();
        for (at, element) in list.iter().enumerate() {
            queues.entry(&element.queue).or_default().push(at);
        }
        let mut outcomes: Vec<Option<Extended>> = list.iter().map(|_| None).collect();
        for (name, ats) in queues {
            EXTENSIONS.check_once(&list, &ats)?;
            let extensions: Vec<Extension> = ats.iter().map(|at| extension(&list[*at])).collect();
            let extended = Queue::with(name, Right::Work, |queue| {
                Ok(extend(queue, &extensions, duration))
            })?;
            for (at, extended) in ats.into_iter().zip(extended) {
                outcomes[at] = Some(extended);
            }
        }
        for (element, extended) in list.iter().zip(outcomes) {
            let (word, ends, stop) = match extended {
                Some(Extended::Until {
                    time,
                    stop,
                    is_limited,
                }) => {
                    let word = if is_limited { "limited" } else { "extended" };
                    (word, Arg::timestamp(time), stop)
                }
                Some(Extended::Lost(error)) => (lost(error)?, Arg::no_timestamp(), false),
                _ => ("cancelled", Arg::no_timestamp(), false),
            };
            out.push(&[
                Arg::from(element.queue.as_str()),
                Arg::from(element.subject.as_str()),
                Arg::from(word),
                ends,
                Arg::from(stop),
            ]);
        }
        Ok(out.done())
    })
}

fn extension(element: &Element) -> Extension<'_> {
    Extension {
        doc: LeasedDoc {
            subject: &element.subject,
            lease: Some(element.lease),
            call: "extend",
        },
        progress: element.progress,
    }
}

/// The word for a lease that was not extended. Fails with an error that is not about the lease.
fn lost(error: Error) -> Result<&'static str> {
    match error {
        Error::LeaseLost { found: None, .. } => Ok("missing"),
        Error::LeaseLost { .. } | Error::InHistory { .. } => Ok("lost"),
        other => Err(other),
    }
}
