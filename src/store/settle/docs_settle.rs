//! Settles a list of leased documents, each in its own way: in the order of the subjects, as in every
//! list, and those together that follow one another and are alike.

use crate::domain::invalid::Invalid;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::{process, spi};
use crate::store::bounds::keys::holding_keys;
use crate::store::counters::counter_log;
use crate::store::documents::history::Outcome as HistoryOutcome;
use crate::store::documents::lease_durability;
use crate::store::queues::open_queue::Queue;
use crate::store::settle::doc_settle::{in_order, settle_run, subjects_of};
use crate::store::settle::repeated::unsettled_error;
use crate::store::settle::settlement::Settlement;

/// What became of a settlement. A status of None is unknown to fetchq.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    Settled,
    /// The caller has settled it before, under the lease that it names. None: it has left the table.
    Repeated(Option<Status>),
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
            Self::Repeated(_) => "repeated",
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
            Self::Repeated(status) | Self::Lost(status) | Self::NotActive(status) => status,
        }
    }

    /// Why a document was not settled, for messages.
    pub fn reason(self) -> String {
        match self {
            Self::Settled | Self::Repeated(_) => "it was settled".into(),
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
            Error::SettledBefore { found, .. } => Ok(Self::Repeated(found)),
            Error::InHistory { lease, outcome, .. } => {
                let status = HistoryOutcome::parse(&outcome).and_then(HistoryOutcome::status);
                Ok(match (status, lease) {
                    (None, _) => Self::Missing,
                    (status, Some(_)) => Self::Lost(status),
                    (status, None) => Self::NotActive(status),
                })
            }
            other => Err(other),
        }
    }

    /// Returns whether the document is settled as the caller wants it, by this call or by one before.
    pub fn is_settled(self) -> bool {
        matches!(self, Self::Settled | Self::Repeated(_))
    }
}

/// Settles documents, each in its own way. Returns the outcomes in the order of the settlements.
/// `fails_on_lost`: a document that cannot be settled is an error, as in its single call. After an
/// error the caller must fail, because some documents may have been settled.
///
/// Fails with `Invalid::Settlement` for a subject that is listed twice, as `settle_run` does, and with
/// the errors of `doc_settle::settle_one` where `fails_on_lost`. Fails with `Error::LeaseNeeded` in any
/// case: a caller that takes its documents for lost would do their work again for ever.
pub fn settle(queue: &Queue, docs: &[Settlement], fails_on_lost: bool) -> Result<Vec<Outcome>> {
    let order = in_order(docs);
    for pair in order.windows(2) {
        let (first, at) = (pair[0] + 1, pair[1] + 1);
        let subject = &docs[pair[1]].subject;
        if *subject == docs[pair[0]].subject {
            let reason = format!("its subject {subject:?} is that of settlement {first} too");
            return Err(Invalid::Settlement { at, reason }.into());
        }
    }
    let mut settled = vec![None; docs.len()];
    let mut outcomes = vec![Outcome::Settled; docs.len()];
    let settle = || {
        for run in order.chunk_by(|at, next| docs[*at].is_like(&docs[*next])) {
            process::check_for_interrupts();
            settle_run(queue, docs, run, &mut settled)?;
            for at in run.iter().filter(|at| settled[**at].is_none()) {
                let error = spi::connect(|spi| unsettled_error(spi, queue, &docs[*at]));
                match fails_on_lost {
                    true => return Err(error),
                    false => outcomes[*at] = Outcome::of(error)?,
                }
            }
        }
        Ok(())
    };
    lease_durability::settle(queue, || {
        holding_keys(
            queue,
            || subjects_of(docs),
            || counter_log::together(settle),
        )
    })?;
    Ok(outcomes)
}
