//! Settling leased documents, one or a list of which all are settled alike; and the error log. Lists are
//! answered in their order.

use std::borrow::Cow;

use pgrx::prelude::*;

use crate::api::entry::{
    lenient, message, opt_message, opt_payload, queue_name, respond_write, subject, subjects,
};
use crate::domain::settlement::Action;
use crate::domain::wording::shorten;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::json::{self, Jsonb};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::settings;
use crate::store::documents::doc_options;
use crate::store::documents::error_log::log_failure;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::settle::doc_settle as store;
use crate::store::settle::docs_admin;
use crate::store::settle::settlement::Settlement;

/// The payload of a document that is settled, the argument `at`; the lease number is the argument
/// `lease`. A driver that has a lease number as text passes it for a payload where it is not named.
///
/// Fails with `LeaseAsPayload` for a number without a lease.
fn payload_beside(call: &Call, at: usize, lease: usize) -> Result<Option<Jsonb>> {
    let payload = opt_payload(call, at);
    if call.is_null(lease) {
        payload.map_or(Ok(()), |payload| check_no_lease(call, payload))?;
    }
    Ok(payload)
}

/// Fails with `LeaseAsPayload` for a payload that is a number. In fetchq 4, nothing else than the subject
/// settles a document, so a number is a payload.
fn check_no_lease(call: &Call, payload: Jsonb) -> Result<()> {
    match payload.value().number() {
        Some(number) if settings::strict() => Err(Error::LeaseAsPayload {
            function: call.function_name(),
            number: shorten(&number),
        }),
        _ => Ok(()),
    }
}

/// Opens the queue, settles a document, and returns the number of settled documents: 1 or 0.
/// `lease` is the position of the argument with the lease number, counted from 0.
fn settle<'a>(call: &'a Call, lease: usize, doc: Settlement<'a>) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let doc = Settlement {
        subject: Cow::Borrowed(subject(call, 1)?),
        lease: call.opt_bigint(lease),
        ..doc
    };
    // fetchq 4 settled only what was active.
    let takes_all = settings::strict() && matches!(doc.action, Action::Kill | Action::Drop);
    let settled = Queue::with(&name, Right::Work, |queue| match takes_all {
        true => docs_admin::settle_or_remove(queue, &doc),
        false => store::settle_one(queue, &doc),
    });
    lenient(settled.map(|()| 1), 0).map(Reply::int)
}

/// `doc_complete(queue, subject, payload, lease, result) → affected_rows`: settles an active
/// document as completed. `payload` NULL leaves the payload as it is; with `lease` the document is
/// settled only while that lease lasts; `result` is kept with the document.
///
/// Fails with `LeaseLost` when the lease was lost, and with `LeaseNeeded` without `lease` where only
/// that settles the document. Without `lease`, a document that is not active is `NotActive`. These two
/// are warnings, and the call returns 0, where `fetchq.strict` is off. Fails with `LeaseAsPayload` for a
/// number as payload without `lease`.
#[pg_extern(sql = false)]
fn doc_complete(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let doc = Settlement {
            payload: payload_beside(call, 2, 3)?,
            result: call.opt_json(4),
            ..Settlement::new(Action::Complete)
        };
        settle(call, 3, doc)
    })
}

/// `doc_kill(queue, subject, payload, lease, message, details) → affected_rows`: settles an active
/// document as killed. `message` says why: it is its last error, and goes into the log with
/// `details`. The other arguments and errors are those of `doc_complete`.
#[pg_extern(sql = false)]
fn doc_kill(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let payload = payload_beside(call, 2, 3)?;
        let details = opt_payload(call, 5);
        let message = match details {
            None => opt_message(call, 4)?,
            Some(_) => Some(message(call, 4)?),
        };
        let doc = Settlement {
            payload,
            details,
            message: message.map(Cow::Owned),
            ..Settlement::new(Action::Kill)
        };
        settle(call, 3, doc)
    })
}

/// `doc_reschedule(queue, subject, due_at, payload, lease, delay) → affected_rows`: plans
/// the next iteration of an active document, for a time or for `delay`, an interval, after the start
/// of the transaction. The other arguments are those of `doc_complete`.
///
/// Fails as `doc_complete` and `doc_options::due` do, and with `NeitherGiven` without a time and a
/// delay.
#[pg_extern(sql = false)]
fn doc_reschedule(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let (at, delay) = (call.opt_timestamp(2), call.opt_interval(5));
        if at.is_none() && delay.is_none() {
            return Err(Error::NeitherGiven {
                one: "due_at",
                other: "delay",
            });
        }
        let doc = Settlement {
            at: Some(doc_options::due(at, delay)?),
            payload: payload_beside(call, 3, 4)?,
            ..Settlement::new(Action::Reschedule)
        };
        settle(call, 4, doc)
    })
}

/// `doc_drop(queue, subject, lease) → affected_rows`: settles an active document by removing
/// it. Arguments and errors are those of `doc_complete`.
#[pg_extern(sql = false)]
fn doc_drop(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        settle(call, 2, Settlement::new(Action::Drop))
    })
}

/// `doc_reject(queue, subject, message, details, ref_id, lease, delay) → affected_rows`:
/// rejects an active document after a failure, and writes a log entry with `message`, `details`
/// and `ref_id`; a NULL of `message` is none. The document is retried after `delay`, an interval; with NULL, by the backoff
/// of the queue. After its last attempt it is killed.
///
/// Fails as `doc_complete` does, and with `BadDuration`.
#[pg_extern(sql = false)]
fn doc_reject(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let message = message(call, 2)?;
        let details = opt_payload(call, 3);
        let at = match call.opt_interval(6) {
            None => None,
            Some(delay) => Some(delay.as_duration("delay")?.after(time::now())),
        };
        let doc = Settlement {
            at,
            message: Some(Cow::Owned(message)),
            details,
            ref_id: call.opt_text(4).map(Cow::Borrowed),
            ..Settlement::new(Action::Reject)
        };
        settle(call, 5, doc)
    })
}

/// `doc_snooze(queue, subject, due_at, lease, delay) → affected_rows`: returns an active
/// document until a time, or for `delay`, an interval, as if it had not been picked: the attempt does
/// not count. With neither of them it is due now.
///
/// Fails as `doc_reject` and `doc_options::due` do.
#[pg_extern(sql = false)]
fn doc_snooze(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let at = doc_options::due(call.opt_timestamp(2), call.opt_interval(4))?;
        let doc = Settlement {
            at: Some(at),
            ..Settlement::new(Action::Snooze)
        };
        settle(call, 3, doc)
    })
}

/// Settles a list of documents, and returns for each subject whether it was active. Where a lease is
/// given and one of them was lost, nothing is settled. `lease`, `payloads`, `results`: the positions of
/// the arguments, counted from 0.
fn settle_many(
    call: &Call,
    (action, at): (Action, Option<i64>),
    lease: usize,
    payloads: Option<usize>,
    results: Option<usize>,
) -> Result<Reply> {
    let lease = call.opt_bigint(lease);
    let name = queue_name(call, 0)?;
    let subjects = subjects(call, 1)?;
    let mut out = call.rows();
    let settled = Queue::with(&name, Right::Work, |queue| {
        let payloads = values_of(call, payloads, subjects.len(), "payloads")?;
        if lease.is_none() {
            let mut given = payloads.iter().flatten();
            given.try_for_each(|payload| check_no_lease(call, *payload))?;
        }
        let results = values_of(call, results, subjects.len(), "results")?;
        let docs = subjects.iter().enumerate().map(|(n, subject)| Settlement {
            subject: Cow::Borrowed(subject),
            lease,
            at,
            payload: payloads.get(n).copied().flatten(),
            result: results.get(n).copied().flatten(),
            ..Settlement::new(action)
        });
        store::settle_alike(queue, &docs.collect::<Vec<_>>())
    });
    let is_queue = !matches!(settled, Err(Error::UnknownQueue(_)));
    // Some may have been settled.
    let settled = match settled {
        Err(e @ Error::LeaseNeeded { .. }) => return Err(e),
        other => lenient(other, Vec::new())?,
    };
    let was_active = |n: usize| settled.get(n) == Some(&true);
    for (n, subject) in subjects.iter().enumerate() {
        out.push(&[Arg::from(subject.as_str()), Arg::from(was_active(n))]);
    }
    let lost = (0..subjects.len()).filter(|n| !was_active(*n));
    if let Some(first) = lost.clone().next().filter(|_| is_queue) {
        let (queue, first) = (name.to_string(), subjects[first].clone());
        let (n, of) = (lost.count(), subjects.len());
        let error = match lease {
            Some(lease) => Error::SomeLeasesLost {
                queue,
                first,
                lease,
                n,
                of,
            },
            None => Error::SomeNotActive {
                queue,
                first,
                n,
                of,
            },
        };
        lenient(Err(error), ())?;
    }
    Ok(out.done())
}

/// A value for each of `n` subjects; nothing where there is no such argument, or no array.
///
/// Fails with `ListLengths` when there are more or fewer than `n`, with `ManyDimensions` when the
/// array has several dimensions.
fn values_of(
    call: &Call,
    at: Option<usize>,
    n: usize,
    argument: &'static str,
) -> Result<Vec<Option<Jsonb>>> {
    let array = at.map_or(Ok(None), |at| call.json_array(at, argument))?;
    match array {
        None => Ok(Vec::new()),
        Some((array, got)) if got == n => Ok(json::elements(&array)),
        Some((_, got)) => Err(Error::ListLengths {
            subjects: n,
            argument,
            got,
        }),
    }
}

/// `doc_complete_many(queue, subjects, payloads, lease, results) → (subject, settled)`: settles
/// active documents as completed. `payloads` and `results` are as long as `subjects`, or NULL.
///
/// Fails with `SomeLeasesLost` when `lease` is given and one of them was lost, with
/// `ListLengths`, `NullElement` or `ManyDimensions` for a list that is not valid. Without `lease`,
/// fails with `LeaseNeeded` and settles nothing where one of them needs its number, and with
/// `SomeNotActive`, which is a warning where `fetchq.strict` is off.
#[pg_extern(sql = false)]
fn doc_complete_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        settle_many(call, (Action::Complete, None), 3, Some(2), Some(4))
    })
}

/// `doc_reschedule_many(queue, subjects, due_at, payloads, lease) → (subject, settled)`:
/// plans the next iteration of active documents. Errors are those of `doc_complete_many`.
#[pg_extern(sql = false)]
fn doc_reschedule_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let at = call.timestamp(2, "due_at")?;
        settle_many(call, (Action::Reschedule, Some(at)), 4, Some(3), None)
    })
}

/// `doc_drop_many(queue, subjects, lease) → (subject, settled)`: settles active documents by
/// removing them. Errors are those of `doc_complete_many`.
#[pg_extern(sql = false)]
fn doc_drop_many(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        settle_many(call, (Action::Drop, None), 2, None, None)
    })
}

/// `log_error(queue, subject, message, details, ref_id) → queued_logs`: adds an entry to the
/// log of a queue. A queue that does not exist raises a warning and returns false.
#[pg_extern(sql = false)]
fn log_error(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let message = message(call, 2)?;
        let subject = subject(call, 1)?;
        let (details, ref_id) = (opt_payload(call, 3), call.opt_text(4));
        let logged = Queue::with(&name, Right::Work, |queue| {
            log_failure(queue, subject, &message, details, ref_id, None);
            Ok(())
        });
        lenient(logged.map(|()| true), false).map(Reply::bool)
    })
}
