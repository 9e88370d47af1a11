//! What becomes of a document: what handlers return.

use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::task::Doc;
use crate::text::{Interval, describe, encode};

/// What becomes of a document. A handler returns it.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    pub(crate) action: &'static str,
    pub(crate) keys: Map<String, Value>,
    pub(crate) then: Vec<Doc>,
    // What has no form in JSON is an error of the handler, which is found when it is settled.
    pub(crate) invalid: Option<String>,
}

impl Outcome {
    fn new(action: &'static str) -> Self {
        Self {
            action,
            keys: Map::new(),
            then: Vec::new(),
            invalid: None,
        }
    }

    fn set(mut self, key: &str, value: impl Serialize) -> Self {
        match encode(&value) {
            Ok(Value::Null) => {}
            Ok(value) => {
                self.keys.insert(key.to_owned(), value);
            }
            Err(error) => self.invalid = Some(error.to_string()),
        }
        self
    }

    /// The work is done, without a result.
    pub fn done() -> Self {
        Self::new("complete")
    }

    /// The work is done; the result is kept for whoever waits for it.
    pub fn complete(result: impl Serialize) -> Self {
        Self::done().set("result", result)
    }

    /// Not now: the document is due again after a delay, and the attempt does not count.
    pub fn snooze(delay: impl Into<Interval>) -> Self {
        Self::new("snooze").set("delay", delay.into().0)
    }

    /// As [`Outcome::snooze`], after the delay of the queue.
    pub fn snooze_by_policy() -> Self {
        Self::new("snooze")
    }

    /// The work is done for this time, and is due again after a delay. Attempts begin anew.
    pub fn reschedule(delay: impl Into<Interval>) -> Self {
        Self::new("reschedule").set("delay", delay.into().0)
    }

    /// The attempt has failed. It is repeated by the policy of the queue, or after [`Outcome::delay`].
    pub fn reject(message: impl AsRef<str>) -> Self {
        Self::new("reject").set("message", describe(message.as_ref()))
    }

    /// The work will never succeed: the document is killed, whatever attempts are left.
    pub fn kill(message: impl AsRef<str>) -> Self {
        Self::new("kill").set("message", describe(message.as_ref()))
    }

    /// The work is done or needless, and nothing is kept of the document.
    pub fn drop_document() -> Self {
        Self::new("drop")
    }

    /// When the document is due again.
    pub fn delay(self, delay: impl Into<Interval>) -> Self {
        self.set("delay", delay.into().0)
    }

    /// The payload that replaces that of the document.
    pub fn payload(self, payload: impl Serialize) -> Self {
        self.set("payload", payload)
    }

    /// Details of a failure, for whoever looks for its cause.
    pub fn details(self, details: impl Serialize) -> Self {
        self.set("details", details)
    }

    /// Puts a document in the commit that settles this one.
    pub fn then(mut self, doc: Doc) -> Self {
        self.then.push(doc);
        self
    }

    /// `complete`, `snooze`, `reschedule`, `reject`, `kill` or `drop`.
    pub fn action(&self) -> &'static str {
        self.action
    }

    pub(crate) fn succeeds(&self) -> bool {
        matches!(self.action, "complete" | "reschedule" | "drop")
    }

    pub(crate) fn fails(&self) -> bool {
        matches!(self.action, "reject" | "kill")
    }

    pub(crate) fn message(&self) -> &str {
        self.keys
            .get("message")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// The JSON of a settlement. It is encoded where the handler has ended, so that what has no form in JSON is an
    /// error of that handler alone.
    pub(crate) fn settlement(
        &self,
        subject: &str,
        lease: i64,
        more: &[Doc],
    ) -> Result<String, Error> {
        if let Some(invalid) = &self.invalid {
            return Err(Error::Invalid(format!(
                "the outcome is not valid: {invalid}"
            )));
        }
        let mut body = self.keys.clone();
        body.insert("subject".into(), subject.into());
        body.insert("lease".into(), lease.into());
        body.insert("action".into(), self.action.into());
        let more = if self.succeeds() { more } else { &[] };
        let then: Vec<Value> = self
            .then
            .iter()
            .chain(more)
            .map(Doc::json)
            .collect::<Result<_, _>>()?;
        if !then.is_empty() {
            body.insert("then".into(), json!(then));
        }
        Ok(Value::Object(body).to_string())
    }
}
