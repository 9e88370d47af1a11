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

/// Documents of one queue that are to be settled.
#[derive(Clone, Copy)]
pub struct OfQueue<'a> {
    pub queue: &'a Queue,
    pub docs: &'a [Settlement<'a>],
}

/// A document that follows from a settlement.
struct FollowUp {
    /// Which queue, which of its settlements, and which document of its list. All count from 0.
    list: usize,
    settlement: usize,
    position: usize,
    doc: ListedDoc,
}

impl FollowUp {
    /// The error of this document.
    fn error(&self, lists: &[OfQueue], error: Error) -> Error {
        let of = lists
            .get(self.list)
            .and_then(|list| list.docs.get(self.settlement));
        let settlement = of.map_or(self.settlement, |doc| doc.position);
        error.in_list(self.position).in_then(settlement)
    }
}

/// The documents that follow, for one queue.
struct Target {
    queue: Rc<Queue>,
    docs: Vec<FollowUp>,
}

/// Settles documents as `docs_settle::settle` does, and puts what follows from those that were settled.
///
/// Fails as [`settle_all`] does.
pub fn settle(queue: &Queue, docs: &[Settlement], fails_on_lost: bool) -> Result<Vec<Outcome>> {
    let outcomes = settle_all(&[OfQueue { queue, docs }], fails_on_lost)?;
    Ok(outcomes.into_iter().flatten().collect())
}

/// Settles documents of several queues as `docs_settle::settle` does, and puts what follows from those that
/// were settled. Returns the outcomes of each queue. The documents of each queue are put in the order of
/// their subjects, and the queues come in the order of their names: `lists` has them in that order.
///
/// All queues are settled before anything is put: what follows may have the subject of a document that is
/// settled in another queue.
///
/// Fails as `docs_settle::settle` does, and with `Error::InThen`.
pub fn settle_all(lists: &[OfQueue], fails_on_lost: bool) -> Result<Vec<Vec<Outcome>>> {
    let settle = || {
        let settle = |list: &OfQueue| docs_settle::settle(list.queue, list.docs, fails_on_lost);
        lists.iter().map(settle).collect::<Result<Vec<_>>>()
    };
    let has_then = |list: &OfQueue| list.docs.iter().any(|doc| doc.then.is_some());
    if !lists.iter().any(has_then) {
        return settle();
    }
    // What is read is in the memory of this connection.
    spi::connect(|spi| {
        let targets = read(spi, lists)?;
        let outcomes = settle()?;
        for target in &targets {
            put(target, lists, &outcomes)?;
        }
        Ok(outcomes)
    })
}

/// Reads what follows from settlements, and opens the queues for it.
fn read(spi: &Spi, lists: &[OfQueue]) -> Result<Vec<Target>> {
    let mut by_queue: BTreeMap<QueueName, Vec<FollowUp>> = BTreeMap::new();
    for (list, of) in lists.iter().enumerate() {
        for (settlement, doc) in of.docs.iter().enumerate() {
            let Some(then) = doc.then else {
                continue;
            };
            let listed = read_docs(spi, then, None).map_err(|e| e.in_then(doc.position))?;
            for (position, doc) in listed.into_iter().enumerate() {
                let name = doc.queue.as_ref().unwrap_or(&of.queue.name).clone();
                by_queue.entry(name).or_default().push(FollowUp {
                    list,
                    settlement,
                    position,
                    doc,
                });
            }
        }
    }
    let open = |(name, docs): (QueueName, Vec<FollowUp>)| {
        let queue = Queue::open_for(&name, Right::Push).map_err(|error| match docs.first() {
            Some(first) => first.error(lists, error),
            None => error,
        })?;
        Ok(Target { queue, docs })
    };
    by_queue.into_iter().map(open).collect()
}

/// Puts what follows from the documents that were settled.
fn put(target: &Target, lists: &[OfQueue], outcomes: &[Vec<Outcome>]) -> Result<()> {
    let outcome = |doc: &FollowUp| outcomes.get(doc.list)?.get(doc.settlement);
    let is_settled = |doc: &&FollowUp| outcome(doc) == Some(&Outcome::Settled);
    let due: Vec<&FollowUp> = target.docs.iter().filter(is_settled).collect();
    if due.is_empty() {
        return Ok(());
    }
    let docs: Vec<&ListedDoc> = due.iter().map(|follow_up| &follow_up.doc).collect();
    put_listed(&target.queue, &docs).map_err(|error| match error {
        Error::InList { at, error } => {
            let of = usize::try_from(at - 1).ok().and_then(|at| due.get(at));
            match of {
                Some(of) => of.error(lists, *error),
                None => *error,
            }
        }
        other => other,
    })?;
    Ok(())
}
