//! The mark: the place of a relay, in a document on the target.
use serde_json::{Value, json};

use super::batch::Batch;

/// What stands in the document.
#[derive(Debug, Clone, Default)]
pub struct Mark {
    /// Which start of a relay has written it.
    pub epoch: String,
    /// The name of that relay. None: it has ended.
    pub name: Option<String>,
    /// What its last transaction has carried.
    pub batch: Batch,
    /// Documents that were carried since the outbox exists.
    pub carried: u64,
    /// For people: where the source is, and how it goes.
    pub about: Value,
    /// Seconds since it was written.
    pub silent: f64,
}

impl Mark {
    /// The payload of the document. The target adds the time.
    pub fn to_json(&self) -> Value {
        json!({
            "epoch": self.epoch,
            "relay": self.name,
            "batch": self.batch.to_json(),
            "carried": self.carried,
            "about": self.about,
        })
    }

    /// Reads a payload. None: somebody else has written it.
    pub fn from_json(payload: &Value, silent: f64) -> Option<Self> {
        Some(Self {
            epoch: payload["epoch"].as_str()?.to_owned(),
            name: payload["relay"].as_str().map(str::to_owned),
            batch: Batch::from_json(&payload["batch"])?,
            carried: payload["carried"].as_u64()?,
            about: payload["about"].clone(),
            silent,
        })
    }
}
