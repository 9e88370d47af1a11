//! Settles a list of leased documents, each in its own way.
//!
//! The documents are settled one after the other by the functions for single documents, and those
//! for lists where several documents in a row are completed or dropped under one lease. So every
//! action does exactly what its single call does. The order is that of the subjects, as in every
//! list, so that two sessions with some of the same documents do not deadlock.

use crate::domain::invalid::Invalid;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::json::{self, Jsonb};
use crate::pg::value::Arg;
use crate::pg::{process, spi};
use crate::store::bounds::keys::lock_keys;
use crate::store::counters::counter_log;
use crate::store::documents::lease_check::{LeasedDoc, lease_error};
use crate::store::queues::open_queue::Queue;
use crate::store::settle::doc_reject::{self, Failure};
use crate::store::settle::doc_settle;
use crate::store::settle::doc_settle_many;

/// What a worker says about a document that failed.
pub struct OwnedFailure {
    pub message: String,
    pub details: Option<Jsonb>,
    pub ref_id: Option<String>,
}

impl OwnedFailure {
    fn borrow(&self) -> Failure<'_> {
        Failure {
            message: &self.message,
            details: self.details,
            ref_id: self.ref_id.as_deref(),
        }
    }
}

/// What is done with a document. Times are in microseconds since 2000.
pub enum Action {
    Complete {
        payload: Option<Jsonb>,
        result: Option<Jsonb>,
    },
    Drop,
    Reject {
        failure: OwnedFailure,
        /// None: by the backoff of the queue.
        not_before: Option<i64>,
    },
    Kill {
        payload: Option<Jsonb>,
        failure: Option<OwnedFailure>,
    },
    Snooze {
        next_iteration: i64,
    },
    Reschedule {
        next_iteration: i64,
        payload: Option<Jsonb>,
    },
}

/// A document, and what is done with it.
pub struct Settlement {
    pub subject: String,
    /// The lease number. None: any lease will do.
    pub lease: Option<i64>,
    pub action: Action,
}

impl Settlement {
    fn doc(&self) -> LeasedDoc<'_> {
        LeasedDoc {
            subject: &self.subject,
            lease: self.lease,
        }
    }
}

/// What became of a settlement. A status of None is unknown to fetchq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Settled,
    /// The caller names a lease that does not hold. The document has this status; an active one was
    /// picked again.
    Lost(Option<Status>),
    /// The caller names no lease, and the document, which has this status, is not leased.
    NotActive(Option<Status>),
    /// There is no such document.
    Missing,
}

impl Outcome {
    /// The word for the result.
    pub fn word(self) -> &'static str {
        match self {
            Self::Settled => "settled",
            Self::Lost(_) => "lost",
            Self::NotActive(_) => "not_active",
            Self::Missing => "missing",
        }
    }

    /// The status of a document that was not settled. None: there is no such document, or it was
    /// settled.
    pub fn status(self) -> Option<Status> {
        match self {
            Self::Settled | Self::Missing => None,
            Self::Lost(status) | Self::NotActive(status) => status,
        }
    }

    /// Why a document was not settled, for messages.
    pub fn reason(self) -> String {
        match self {
            Self::Settled => "it was settled".into(),
            Self::Missing => "there is no such document".into(),
            Self::Lost(Some(Status::Active)) => "it was picked again".into(),
            Self::Lost(Some(status)) | Self::NotActive(Some(status)) => {
                format!("it is {}", status.word())
            }
            Self::Lost(None) | Self::NotActive(None) => "it has an unknown status".into(),
        }
    }

    /// The outcome for an error of a single call. Fails with an error that is not about the lease.
    fn of(error: Error) -> Result<Self> {
        match error {
            Error::LeaseLost { found: None, .. } | Error::NotActive { found: None, .. } => {
                Ok(Self::Missing)
            }
            Error::LeaseLost {
                found: Some(status),
                ..
            } => Ok(Self::Lost(status)),
            Error::NotActive {
                found: Some(status),
                ..
            } => Ok(Self::NotActive(status)),
            other => Err(other),
        }
    }
}

/// Settles documents, each in its own way. Returns the outcomes in the order of the settlements.
/// `fails_on_lost`: a document that cannot be settled is an error, as in its single call. After an
/// error the caller must fail, because some documents may have been settled.
///
/// Fails with `Invalid::Settlement` for a subject that is listed twice, with the errors of
/// `doc_settle::complete` where `fails_on_lost`, and with those of `dead_letters::settle_failed`.
pub fn settle(
    queue: &Queue,
    settlements: &[Settlement],
    fails_on_lost: bool,
) -> Result<Vec<Outcome>> {
    let mut order: Vec<usize> = (0..settlements.len()).collect();
    order.sort_by_key(|at| settlements[*at].subject.as_str());
    for pair in order.windows(2) {
        let (first, at) = (pair[0] + 1, pair[1] + 1);
        let subject = &settlements[pair[1]].subject;
        if *subject == settlements[pair[0]].subject {
            let reason = format!("its subject {subject:?} is that of settlement {first} too");
            return Err(Invalid::Settlement { at, reason }.into());
        }
    }
    lock_keys(queue, || {
        Arg::from(
            settlements
                .iter()
                .map(|s| s.subject.as_str())
                .collect::<Vec<&str>>(),
        )
    });
    let mut outcomes = vec![Outcome::Settled; settlements.len()];
    let mut rest = order.as_slice();
    counter_log::together(|| {
        while !rest.is_empty() {
            process::check_for_interrupts();
            let (run, after) = rest.split_at(n_alike(settlements, rest));
            for (at, error) in settle_run(queue, settlements, run) {
                match fails_on_lost {
                    true => return Err(error),
                    false => outcomes[at] = Outcome::of(error)?,
                }
            }
            rest = after;
        }
        Ok(())
    })?;
    Ok(outcomes)
}

/// How many of the first settlements can be settled together: all that complete, or all that drop,
/// under one lease. At least 1.
fn n_alike(settlements: &[Settlement], order: &[usize]) -> usize {
    let is_like = |one: &Settlement, other: &Settlement| {
        let is_same_action = matches!(
            (&one.action, &other.action),
            (Action::Complete { .. }, Action::Complete { .. }) | (Action::Drop, Action::Drop)
        );
        is_same_action && one.lease == other.lease
    };
    let mut order = order.iter().map(|at| &settlements[*at]);
    let first = order.next();
    1 + order
        .take_while(|next| first.is_some_and(|first| is_like(first, next)))
        .count()
}

/// Settles documents of which `n_alike` says that they can be settled together. Returns those that
/// were not settled, with their errors.
fn settle_run(queue: &Queue, settlements: &[Settlement], run: &[usize]) -> Vec<(usize, Error)> {
    let (first, rest) = match run {
        [first, rest @ ..] => (&settlements[*first], rest),
        [] => return Vec::new(),
    };
    if rest.is_empty() {
        let error = settle_one(queue, first).err();
        return error.into_iter().map(|error| (run[0], error)).collect();
    }
    let subject = |at: &usize| settlements[*at].subject.as_str();
    let subjects: Vec<String> = run.iter().map(|at| subject(at).to_owned()).collect();
    let settled = match &first.action {
        Action::Drop => doc_settle_many::drop_locked(queue, &subjects, first.lease),
        _ => {
            let written = run.iter().map(|at| match &settlements[*at].action {
                Action::Complete { payload, result } => (*payload, *result),
                _ => (None, None),
            });
            let (payloads, results): (Vec<_>, Vec<_>) = written.unzip();
            let list = |values: Vec<Option<Jsonb>>| {
                let is_any = values.iter().any(Option::is_some);
                is_any.then(|| json::array(&values))
            };
            let (payloads, results) = (list(payloads), list(results));
            doc_settle_many::complete_locked(queue, &subjects, first.lease, payloads, results)
        }
    };
    if settled.len() == run.len() {
        return Vec::new();
    }
    let unsettled = run.iter().filter(|at| !settled.contains(subject(at)));
    spi::connect(|spi| {
        unsettled
            .map(|at| (*at, lease_error(spi, queue, settlements[*at].doc())))
            .collect()
    })
}

/// Settles one document as its single call does.
fn settle_one(queue: &Queue, settlement: &Settlement) -> Result<()> {
    let doc = settlement.doc();
    match &settlement.action {
        Action::Complete { payload, result } => doc_settle::complete(queue, doc, *payload, *result),
        Action::Drop => doc_settle::drop(queue, doc),
        Action::Reject {
            failure,
            not_before,
        } => doc_reject::reject(queue, doc, &failure.borrow(), *not_before),
        Action::Kill { payload, failure } => {
            let failure = failure.as_ref().map(OwnedFailure::borrow);
            doc_reject::kill(queue, doc, *payload, failure.as_ref())
        }
        Action::Snooze { next_iteration } => doc_reject::snooze(queue, doc, *next_iteration),
        Action::Reschedule {
            next_iteration,
            payload,
        } => doc_settle::reschedule(queue, doc, *next_iteration, *payload),
    }
}
