//! Who holds a document: the numbers of leases, and the sessions that pick.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;

use pgrx::PgXactCallbackEvent;
use pgrx::pg_sys::TransactionId;

use crate::pg::value::Arg;
use crate::pg::{append, relation, session, time, transaction};
use crate::settings::{self, SessionLeases};

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
    number: OnceCell<i64>,
    /// In which queue, and who.
    holder: Cell<Option<(i32, i64)>>,
}

impl Lease {
    /// The lease of a pick that begins now.
    pub fn new() -> Self {
        Self {
            number: OnceCell::new(),
            holder: Cell::new(None),
        }
    }

    pub fn number(&self) -> i64 {
        *self.number.get_or_init(number)
    }

    /// Who holds it. Not asked for before there is a document: a session that finds none
    /// writes nothing.
    pub fn worker_session(&self, queue: i32) -> i64 {
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

/// Who picks, in which queue, and what becomes of the leases with the session.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Who {
    queue: i32,
    name: String,
    /// Of those without a name.
    application: String,
    binding: SessionLeases,
}

impl Who {
    fn now(queue: i32) -> Self {
        let name = settings::worker_name();
        let application = match name.is_empty() {
            true => session::application(),
            false => String::new(),
        };
        Self {
            queue,
            name,
            application,
            binding: settings::session_leases(),
        }
    }
}

/// A row of `fetchq.worker_sessions` that this session has written.
struct Holder {
    id: i64,
    /// The transaction that wrote it, until it has committed.
    written_by: Option<TransactionId>,
    /// It is about to.
    commits: bool,
}

/// So many a session keeps in mind; when there are more it writes all of them down anew.
const HOLDERS_MAX: usize = 4096;

thread_local! {
    static HOLDERS: RefCell<HashMap<Who, Holder>> = RefCell::default();
}

/// Who this session picks for. The first time it is written down.
fn holder(queue: i32) -> i64 {
    let who = Who::now(queue);
    let known = HOLDERS.with_borrow(|holders| {
        let holder = holders.get(&who)?;
        let is_there = holder.written_by.is_none_or(transaction::is_current);
        is_there.then_some(holder.id)
    });
    known.unwrap_or_else(|| register(who))
}

/// What becomes of what a transaction has written down, when it ends.
fn watch(who: &Who) {
    let on = |event, change: fn(&mut HashMap<Who, Holder>, &Who)| {
        let who = who.clone();
        pgrx::register_xact_callback(event, move || {
            HOLDERS.with_borrow_mut(|holders| change(holders, &who));
        });
    };
    on(PgXactCallbackEvent::PreCommit, |holders, who| {
        if let Some(holder) = holders.get_mut(who) {
            // (not if the part of it that wrote it was rolled back)
            holder.commits = holder.written_by.is_some_and(transaction::is_current);
        }
    });
    on(PgXactCallbackEvent::Commit, |holders, who| {
        match holders.get_mut(who) {
            Some(holder) if holder.commits => holder.written_by = None,
            _ => {
                holders.remove(who);
            }
        }
    });
    on(PgXactCallbackEvent::Abort, |holders, who| {
        if holders
            .get(who)
            .is_some_and(|holder| holder.written_by.is_some())
        {
            holders.remove(who);
        }
    });
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

fn register(who: Who) -> i64 {
    let Some(table) = relation::lookup("fetchq", "worker_sessions") else {
        pgrx::error!("table fetchq.worker_sessions is missing: reinstall the extension");
    };
    relation::lock_rows(table, true);
    let holder = Holder {
        id: number(),
        written_by: Some(transaction::current()),
        commits: false,
    };
    let id = holder.id;
    append::row(
        table,
        &[
            Arg::from(id),
            Arg::from(who.queue),
            Arg::from(shown_name(&who.name, &who.application).as_str()),
            Arg::from(session::pid()),
            Arg::timestamp(session::started()),
            Arg::timestamp(time::clock()),
            Arg::from(who.binding as i32),
        ],
    );
    watch(&who);
    HOLDERS.with_borrow_mut(|holders| {
        if holders.len() >= HOLDERS_MAX {
            holders.clear();
        }
        holders.insert(who, holder);
    });
    id
}
