//! Who holds a document: the numbers of leases, and the sessions that pick.

use std::cell::{Cell, RefCell};

use pgrx::pg_sys::TransactionId;

use crate::gucs::{self, SessionLeases};
use crate::pg::spi::Arg;
use crate::pg::transaction::{self, Written};
use crate::pg::{append, relation, session, time};

/// The lowest bits of a number are those of the session, so that no two sessions make
/// the same one in the same microsecond.
const SESSION_BITS: u32 = 12;

/// A number that no pick has had before, on this server or on one that it was restored
/// from: made of the clock, so that nothing of it can be lost in a crash. It grows.
fn number() -> i64 {
    thread_local! {
        static LAST: Cell<i64> = const { Cell::new(0) };
    }
    let own = i64::from(session::number()) & ((1 << SESSION_BITS) - 1);
    let time = time::clock().max(LAST.get() + 1);
    LAST.set(time);
    time << SESSION_BITS | own
}

/// What a pick writes into the documents that it leases.
pub struct Lease {
    pub number: i64,
    /// In which queue, and who.
    holder: Cell<Option<(i32, i64)>>,
}

impl Lease {
    /// The lease of a pick that begins now.
    pub fn new() -> Self {
        Self {
            number: number(),
            holder: Cell::new(None),
        }
    }

    /// Who holds it. Not asked for before there is a document: a session that finds none
    /// writes nothing.
    pub fn holder(&self, queue: i32) -> i64 {
        match self.holder.get() {
            Some((known, holder)) if known == queue => holder,
            _ => {
                let holder = holder(queue);
                self.holder.set(Some((queue, holder)));
                holder
            }
        }
    }
}

/// A row of `fetchq.holders` that this session has written.
struct Holder {
    id: i64,
    queue: i32,
    name: String,
    application: String,
    binding: SessionLeases,
    /// The transaction that wrote it, until it has committed.
    written_by: Option<TransactionId>,
}

/// So many a session keeps in mind; it writes the others down anew.
const HOLDERS_MAX: usize = 64;

thread_local! {
    static HOLDERS: RefCell<Vec<Holder>> = const { RefCell::new(Vec::new()) };
}

/// Who this session picks for. The first time it is written down.
fn holder(queue: i32) -> i64 {
    let (name, application) = (gucs::worker_name(), session::application());
    let binding = gucs::session_leases();
    let known = HOLDERS.with_borrow_mut(|holders| {
        let at = holders.iter().position(|holder| {
            holder.queue == queue
                && holder.binding == binding
                && holder.name == name
                && (!name.is_empty() || holder.application == application)
        })?;
        let holder = &mut holders[at];
        let written = holder
            .written_by
            .map_or(Written::Committed, transaction::what_became_of);
        match written {
            Written::Now => {}
            Written::Committed => holder.written_by = None,
            Written::Undone => {
                holders.remove(at);
                return None;
            }
        }
        Some(holders[at].id)
    });
    known.unwrap_or_else(|| register(queue, name, application, binding))
}

/// Longer names are cut: characters.
const NAME_MAX: usize = 200;

/// The name that is shown.
pub fn shown_name(name: &str, application: &str) -> String {
    let shown = if name.is_empty() {
        format!("{application}/{}", session::pid())
    } else {
        name.to_owned()
    };
    shown.chars().take(NAME_MAX).collect()
}

fn register(queue: i32, name: String, application: String, binding: SessionLeases) -> i64 {
    let Some(table) = relation::lookup("fetchq", "holders") else {
        pgrx::error!("table fetchq.holders is missing: reinstall the extension");
    };
    relation::lock_rows(table, true);
    let holder = Holder {
        id: number(),
        queue,
        written_by: Some(transaction::current()),
        name,
        application,
        binding,
    };
    append::row(
        table,
        &[
            Arg::from(holder.id),
            Arg::from(queue),
            Arg::from(shown_name(&holder.name, &holder.application).as_str()),
            Arg::from(session::pid()),
            Arg::timestamp(session::started()),
            Arg::timestamp(time::clock()),
            Arg::from(binding as i32),
        ],
    );
    let id = holder.id;
    HOLDERS.with_borrow_mut(|holders| {
        if holders.len() >= HOLDERS_MAX {
            holders.remove(0);
        }
        holders.push(holder);
    });
    id
}
