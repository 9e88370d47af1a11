//! What a worker says about a document that it settles.

use std::borrow::Cow;

use crate::domain::names;
use crate::domain::settlement::Action;
use crate::pg::json::Jsonb;
use crate::store::documents::lease_check::LeasedDoc;

/// The number of characters of a message that are kept in the document, in `last_error`.
const LAST_ERROR_MAX: usize = 2000;

/// A document, and what its worker says about it.
pub struct Settlement<'a> {
    pub subject: Cow<'a, str>,
    /// The lease number. None: any lease that the subject alone settles.
    pub lease: Option<i64>,
    pub action: Action,
    /// When the document is due again, in microseconds since 2000. Only that of a rejected document may
    /// be None: by the backoff of the queue.
    pub at: Option<i64>,
    /// None: the payload stays.
    pub payload: Option<Jsonb>,
    pub result: Option<Jsonb>,
    /// Why it failed: this is logged, and its beginning becomes the last error.
    pub message: Option<Cow<'a, str>>,
    pub details: Option<Jsonb>,
    pub ref_id: Option<Cow<'a, str>>,
    /// Documents that are put if this document was settled: a JSON array.
    pub then: Option<Jsonb>,
    /// Its position in the list of the caller, from 0, for messages.
    pub position: usize,
}

impl Settlement<'_> {
    /// A settlement with nothing but an action.
    pub const fn new(action: Action) -> Self {
        Self {
            subject: Cow::Borrowed(""),
            lease: None,
            action,
            at: None,
            payload: None,
            result: None,
            message: None,
            details: None,
            ref_id: None,
            then: None,
            position: 0,
        }
    }

    /// The document as its worker names it.
    pub fn doc(&self) -> LeasedDoc<'_> {
        LeasedDoc {
            subject: &self.subject,
            lease: self.lease,
            call: self.action.word(),
        }
    }

    /// The beginning of the message.
    pub(in crate::store) fn last_error(&self) -> Option<&str> {
        let message = self.message.as_deref();
        message.map(|message| names::cut(message, LAST_ERROR_MAX).0)
    }

    /// Returns whether one statement can settle this document and the other one.
    pub(in crate::store) fn is_like(&self, other: &Self) -> bool {
        let is_same = |of: &Self| (of.action, of.lease, of.at);
        is_same(self) == is_same(other)
    }
}
