//! Settlements that bring along the documents that follow from them (`then`): these are put, in the same
//! transaction, if the document was settled by this call.
//!
//! All of them are read before anything is settled, and so are the rights of the caller: what is wrong with
//! one of them fails the call also where its document would not have been settled.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::spi::{self, Spi};
use crate::store::documents::doc_put_many::{ListedDoc, put_listed, read_docs};
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::Right;
use crate::store::settle::docs_settle::{self, Outcome};
use crate::store::settle::settlement::Settlement;

/// A document that follows from a settlement.
struct FollowUp {
    /// Which settlement, and which document of its list. Both count from 0.
    settlement: usize,
    position: usize,
    doc: ListedDoc,
}

/// The documents that follow, for one queue.
struct Target {
    queue: Rc<Queue>,
    docs: Vec<FollowUp>,
}

/// Settles documents as `docs_settle::settle` does, and puts what follows from those that were settled.
/// The documents of each queue are put in the order of their subjects, and the queues come in the order of
/// their names.
///
/// Fails as `docs_settle::settle` does, and with `Error::InThen`.
pub fn settle(queue: &Queue, docs: &[Settlement], fails_on_lost: bool) -> Result<Vec<Outcome>> {
    if docs.iter().all(|doc| doc.then.is_none()) {
        return docs_settle::settle(queue, docs, fails_on_lost);
    }
    // What is read is in the memory of this connection.
    spi::connect(|spi| {
        let targets = read(spi, queue, docs)?;
        let outcomes = docs_settle::settle(queue, docs, fails_on_lost)?;
        for target in &targets {
            put(target, &outcomes)?;
        }
        Ok(outcomes)
    })
}

/// Reads what follows from settlements, and opens the queues for it.
fn read(spi: &Spi, queue: &Queue, docs: &[Settlement]) -> Result<Vec<Target>> {
    let mut by_queue: BTreeMap<QueueName, Vec<FollowUp>> = BTreeMap::new();
    for (settlement, doc) in docs.iter().enumerate() {
        let Some(then) = doc.then else {
            continue;
        };
        let listed = read_docs(spi, then, None).map_err(|e| e.in_then(settlement))?;
        for (position, doc) in listed.into_iter().enumerate() {
            let name = doc.queue.as_ref().unwrap_or(&queue.name).clone();
            by_queue.entry(name).or_default().push(FollowUp {
                settlement,
                position,
                doc,
            });
        }
    }
    let open = |(name, docs): (QueueName, Vec<FollowUp>)| {
        let queue = Queue::open_for(&name, Right::Push).map_err(|error| match docs.first() {
            Some(first) => error.in_list(first.position).in_then(first.settlement),
            None => error,
        })?;
        Ok(Target { queue, docs })
    };
    by_queue.into_iter().map(open).collect()
}

/// Puts what follows from the documents that were settled.
fn put(target: &Target, outcomes: &[Outcome]) -> Result<()> {
    let is_settled = |doc: &&FollowUp| outcomes.get(doc.settlement) == Some(&Outcome::Settled);
    let due: Vec<&FollowUp> = target.docs.iter().filter(is_settled).collect();
    if due.is_empty() {
        return Ok(());
    }
    let docs: Vec<&ListedDoc> = due.iter().map(|follow_up| &follow_up.doc).collect();
    put_listed(&target.queue, &docs).map_err(|error| match error {
        Error::InList { at, error } => {
            let of = usize::try_from(at - 1).ok().and_then(|at| due.get(at));
            match of {
                Some(of) => error.in_list(of.position).in_then(of.settlement),
                None => *error,
            }
        }
        other => other,
    })?;
    Ok(())
}
