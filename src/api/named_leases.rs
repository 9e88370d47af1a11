//! The leases that a caller names in a JSON array.

use crate::api::entry::lease_number;
use crate::domain::invalid::Invalid;
use crate::domain::names::{self, QueueName};
use crate::domain::wording::shorten;
use crate::error::{Error, Result};
use crate::pg::json::{Jsonb, Value};

/// An element of a list of leases.
pub struct Element {
    pub queue: QueueName,
    pub subject: String,
    pub lease: i64,
    pub progress: Option<Jsonb>,
}

/// A list of leases, as an argument.
pub struct List {
    argument: &'static str,
    /// What an element is called.
    one: &'static str,
}

/// Those of `docs_extend`.
pub const EXTENSIONS: List = List {
    argument: "extensions",
    one: "extension",
};

/// Those of `worker_wait`.
pub const LEASES: List = List {
    argument: "leases",
    one: "lease",
};

impl List {
    /// Reads a JSON array. `queue`: of the documents that name none. Fails with `Invalid` for the first
    /// element that is not valid.
    pub fn read(&self, list: Jsonb, queue: Option<&QueueName>) -> Result<Vec<Element>> {
        let list = list.value();
        let elements = list.elements(self.argument)?;
        let elements = elements.ok_or_else(|| Invalid::NamedLeases {
            list: self.argument,
            kind: list.kind(),
        })?;
        let read = |(at, element): (usize, &Value)| {
            read_element(element, queue).map_err(|reason| self.bad(at, reason))
        };
        elements.iter().enumerate().map(read).collect()
    }

    /// `at` counts from 0.
    fn bad(&self, at: usize, reason: String) -> Error {
        let (one, at) = (self.one, at + 1);
        Invalid::NamedLease { one, at, reason }.into()
    }

    /// Fails with `Invalid` if two of the elements, which are of one queue, have the same subject.
    pub fn check_once(&self, list: &[Element], ats: &[usize]) -> Result<()> {
        let mut order = ats.to_vec();
        order.sort_by_key(|at| &*list[*at].subject);
        for pair in order.windows(2) {
            let (first, at, subject) = (pair[0] + 1, pair[1], &list[pair[1]].subject);
            if *subject == list[pair[0]].subject {
                let one = self.one;
                let reason = format!("its subject {subject:?} is that of {one} {first} too");
                return Err(self.bad(at, reason));
            }
        }
        Ok(())
    }
}

/// Reads one element, or says what is wrong with it. A null is as if the key was left out.
fn read_element(
    element: &Value,
    queue: Option<&QueueName>,
) -> std::result::Result<Element, String> {
    let members = element.members().ok_or_else(|| {
        let kind = element.kind();
        format!("it is a JSON {kind}, not an object")
    })?;
    let (mut queue, mut subject, mut lease, mut progress) = (queue.cloned(), None, None, None);
    for (key, value) in &members {
        let text = || {
            let kind = value.kind();
            let text = value.text();
            text.ok_or_else(|| format!("its {key} is a JSON {kind}, expected a string"))
        };
        match key.as_str() {
            "queue" | "subject" | "lease" | "progress" if value.is_null() => {}
            "queue" => {
                let name = QueueName::parse(&text()?).map_err(|e| e.to_string())?;
                queue = Some(name);
            }
            "subject" => {
                let text = text()?;
                names::check_subject(&text).map_err(|e| e.to_string())?;
                subject = Some(text);
            }
            "lease" => {
                let given = || shorten(&value.to_jsonb().to_text());
                lease =
                    Some(lease_number(value).ok_or_else(|| {
                        format!("its lease is {}, expected a lease number", given())
                    })?);
            }
            "progress" => progress = Some(value.to_jsonb()),
            other => return Err(format!("it has an unknown key {:?}", shorten(other))),
        }
    }
    let lacks = |what| format!("it has no {what}");
    Ok(Element {
        queue: queue.ok_or_else(|| lacks("queue, and the call names none"))?,
        subject: subject.ok_or_else(|| lacks("subject"))?,
        lease: lease.ok_or_else(|| lacks("lease"))?,
        progress,
    })
}
