//! Lease numbers, and the worker sessions that hold leases.

use crate::pg::lasting::{Lasting, lasting};
use std::cell::{Cell, OnceCell};
use std::collections::HashMap;

use pgrx::PgXactCallbackEvent;
use pgrx::pg_sys::TransactionId;

use crate::domain::lease_number::{self, SettledBy};
use crate::domain::settlement::ACTION_BITS;
use crate::pg::value::Arg;
use crate::pg::{append, random, relation, session, time, timeline, transaction};
use crate::settings::{self, Binding};
use crate::signals::board::board;
use crate::signals::commit;
use crate::store::documents::stop_requests;
use crate::store::queues::open_queue::MAX_CACHED_QUEUES;

/// Makes the number of a lease by `next`, from the last number. With shared memory no other pick of
/// this server gets it, except after a number near the greatest was written by hand. Without, another
/// session may get it in the same microsecond, but not for the same document.
fn new_number(next: impl Fn(i64) -> i64) -> i64 {
    thread_local! {
        static LAST: Cell<i64> = const { Cell::new(0) };
    }
    match board() {
        Some(board) => board.next_lease_number(next),
        None => {
            let number = next(LAST.get());
            LAST.set(number);
            number
        }
    }
}

/// Makes a number by the clock.
fn number_by_clock(by: SettledBy) -> i64 {
    let least = lease_number::by_clock(time::clock(), timeline::current());
    new_number(|last| lease_number::next(last, least, by))
}

/// Makes a number for documents that had numbers up to `previous`.
fn number_above(previous: i64, by: SettledBy) -> i64 {
    // Most documents with a greater number were leased by another session since this pick began. The
    // clock has passed their numbers.
    let number = number_by_clock(by);
    if lease_number::is_above(number, previous) {
        return number;
    }
    let step = random::up_to(match board() {
        Some(_) => lease_number::MAX_STEP,
        None => lease_number::MAX_LONE_STEP,
    });
    new_number(|last| lease_number::next_above(last, previous, step, by))
}

/// The id of a worker session ends in `ACTION_BITS` that are 0. The 12 bits above are those of the session's
/// number, so that no two sessions make the same id at the same time. The bits above are the time since
/// 2000 in units of 8 microseconds, which leaves room until the year 2071.
const SESSION_BITS: u32 = 12;

/// Makes the id of a worker session that no other one has.
fn new_session_id() -> i64 {
    thread_local! {
        static LAST: Cell<i64> = const { Cell::new(0) };
    }
    let session = i64::from(session::number()) & ((1 << SESSION_BITS) - 1);
    let time = (time::clock() >> ACTION_BITS).max(LAST.get() + 1);
    LAST.set(time);
    (time << SESSION_BITS | session) << ACTION_BITS
}

/// What a pick writes into the documents that it leases.
pub struct Lease {
    number: OnceCell<Cell<i64>>,
    /// What settles its documents, which the number says.
    settled_by: SettledBy,
    /// A document has got the number, so that it can no longer change.
    is_given: Cell<bool>,
    /// The queue, and the worker session that was found for it.
    worker_session: Cell<Option<(i32, i64)>>,
    given: GivenWorker,
}

/// What the caller of a pick says about its worker. What it does not say is as set in the session,
/// which a transaction pooler shares between clients.
#[derive(Debug, Clone, Default)]
pub struct GivenWorker {
    /// The name, in place of `fetchq.worker`.
    pub name: Option<String>,
    /// In place of `fetchq.session_leases`.
    pub binding: Option<Binding>,
}

impl Lease {
    /// The lease of a pick of fetchq 4 that begins now, by the worker that the settings describe.
    pub fn of_pick() -> Self {
        Self::new(GivenWorker::default(), SettledBy::Subject)
    }

    /// The lease of a pick that begins now, by a worker that its caller describes.
    pub fn of(given: GivenWorker) -> Self {
        Self::new(given, SettledBy::Number)
    }

    fn new(given: GivenWorker, settled_by: SettledBy) -> Self {
        Self {
            given,
            settled_by,
            number: OnceCell::new(),
            is_given: Cell::new(false),
            worker_session: Cell::new(None),
        }
    }

    fn cell(&self) -> &Cell<i64> {
        self.number
            .get_or_init(|| Cell::new(number_by_clock(self.settled_by)))
    }

    /// The lease number, which is the same for all documents of a pick. It is made at the first
    /// call, and may be raised until a document has got it.
    pub fn number(&self) -> i64 {
        self.cell().get()
    }

    /// Returns whether a document can get the number that had the number `previous`.
    pub fn is_above(&self, previous: i64) -> bool {
        lease_number::is_above(self.number(), previous)
    }

    /// Raises the number above those that documents had before, so that each of them can get it.
    /// Returns false if it is not above them and can no longer be raised.
    pub fn raise_above(&self, previous: impl Iterator<Item = i64>) -> bool {
        let Some(obstacle) = lease_number::obstacle(self.number(), previous) else {
            return true;
        };
        if self.is_given.get() {
            return false;
        }
        self.cell().set(number_above(obstacle, self.settled_by));
        true
    }

    /// Returns whether the lease ends with the session, or before.
    pub fn is_bound(&self) -> bool {
        let binding = self.given.binding.unwrap_or_else(settings::session_leases);
        binding != Binding::Off
    }

    /// Notes that a document has got the number.
    pub fn given(&self) {
        self.is_given.set(true);
    }

    /// The id of the worker session in `fetchq.worker_sessions`. `queue` is the id of the
    /// queue. Called only when there is a document to lease, so that a session that finds
    /// none writes nothing.
    pub fn worker_session(&self, queue: i32) -> i64 {
        match self.worker_session.get() {
            Some((known, id)) if known == queue => id,
            _ => {
                let id = find_or_register(queue, &self.given);
                self.worker_session.set(Some((queue, id)));
                id
            }
        }
    }
}

/// The worker of this session: its queue and name, and what happens to its leases when the
/// session ends.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Worker {
    queue: i32,
    name: String,
    /// The `application_name` of a worker without a name.
    application: String,
    binding: Binding,
    /// The mark of the statement whose leases end with it; 0 for the other bindings. So each call
    /// has a row of its own in `fetchq.worker_sessions`.
    statement: i64,
}

impl Worker {
    /// The worker as its caller and the settings of the session describe it now.
    fn current(queue: i32, given: &GivenWorker) -> Self {
        let name = given.name.clone().unwrap_or_else(settings::worker_name);
        let application = match name.is_empty() {
            true => session::application(),
            false => String::new(),
        };
        let binding = given.binding.unwrap_or_else(settings::session_leases);
        let statement = match binding {
            Binding::Call => session::statement_mark(),
            _ => 0,
        };
        Self {
            queue,
            name,
            application,
            binding,
            statement,
        }
    }
}

/// A row of `fetchq.worker_sessions` that this session has written.
struct Registration {
    id: i64,
    place: append::Place,
    /// The transaction that wrote the row, until it has committed.
    written_by: Option<TransactionId>,
    /// That transaction commits now, and the row with it.
    is_committing: bool,
}

/// How many registrations a session remembers. Beyond that it forgets all of them and
/// registers anew. A session that works on more queues does that with nearly every lease, so it
/// remembers as many as it keeps queues.
pub const MAX_REGISTRATIONS: usize = MAX_CACHED_QUEUES;

type Registrations = HashMap<Worker, Registration>;

thread_local! {
    static REGISTRATIONS: Lasting<Registrations> = lasting(Registrations::default());
}

/// The id of the worker session of the current worker. The first time it is registered.
fn find_or_register(queue: i32, given: &GivenWorker) -> i64 {
    let worker = Worker::current(queue, given);
    let known = REGISTRATIONS.with(|registrations| {
        let registrations = &*registrations.borrow();
        let registration = registrations.get(&worker)?;
        let is_stored = registration.written_by.is_none_or(transaction::is_current);
        // Somebody may have deleted the row. A lease that refers to it would be bound to nothing. For
        // other leases only the table counts: it may be that of an extension that was dropped.
        let is_there = || match worker.binding {
            Binding::Off => registration.place.has_table(),
            _ => registration.place.has(registration.id),
        };
        (is_stored && is_there()).then_some(registration.id)
    });
    known.unwrap_or_else(|| register(worker))
}

/// Updates the registration of a worker when the transaction that wrote its row ends.
fn watch_transaction(worker: &Worker) {
    let on = |event, change: fn(&mut Registrations, &Worker)| {
        let worker = worker.clone();
        pgrx::register_xact_callback(event, move || {
            REGISTRATIONS.with(|registrations| change(&mut registrations.borrow_mut(), &worker));
        });
    };
    on(PgXactCallbackEvent::PreCommit, |registrations, worker| {
        if let Some(registration) = registrations.get_mut(worker) {
            // Not if the subtransaction that wrote the row was rolled back.
            registration.is_committing =
                registration.written_by.is_some_and(transaction::is_current);
        }
    });
    on(
        PgXactCallbackEvent::Commit,
        |registrations, worker| match registrations.get_mut(worker) {
            Some(registration) if registration.is_committing => registration.written_by = None,
            _ => {
                registrations.remove(worker);
            }
        },
    );
    on(PgXactCallbackEvent::Abort, |registrations, worker| {
        if registrations
            .get(worker)
            .is_some_and(|registration| registration.written_by.is_some())
        {
            registrations.remove(worker);
        }
    });
}

/// The length in characters to which longer names are cut.
pub const NAME_MAX: usize = 200;

/// The name under which a worker is listed: its own, or `application_name` and process id if
/// it has none.
pub fn shown_name(name: &str, application: &str) -> String {
    let shown = if name.is_empty() {
        format!("{application}/{}", session::pid())
    } else {
        name.to_owned()
    };
    shown.chars().take(NAME_MAX).collect()
}

/// The ids of this session in `fetchq.worker_sessions`, for a queue and under a name that is shown.
pub fn own_sessions(queue: i32, shown: &str) -> Vec<i64> {
    REGISTRATIONS.with(|registrations| {
        let registrations = &*registrations.borrow();
        let own = registrations.iter().filter(|(worker, _)| {
            worker.queue == queue && shown_name(&worker.name, &worker.application) == shown
        });
        own.map(|(_, registration)| registration.id).collect()
    })
}

/// Writes a row of `fetchq.worker_sessions`, and returns its id.
fn register(worker: Worker) -> i64 {
    let Some(table) = relation::lookup("fetchq", "worker_sessions") else {
        pgrx::error!("table fetchq.worker_sessions is missing: reinstall the extension");
    };
    let name = shown_name(&worker.name, &worker.application);
    let known_stops = stop_requests::known(Some(&name));
    relation::lock_rows(table);
    let id = new_session_id();
    let query_start = match worker.binding {
        Binding::Call => Arg::timestamp(worker.statement),
        _ => Arg::no_timestamp(),
    };
    let place = append::indexed_row(
        table,
        &[
            Arg::from(id),
            Arg::from(worker.queue),
            Arg::from(name.as_str()),
            Arg::from(session::pid()),
            Arg::timestamp(session::started()),
            Arg::timestamp(time::clock()),
            Arg::from(worker.binding as i32),
            query_start,
            Arg::from(known_stops),
        ],
    );
    let registration = Registration {
        id,
        place,
        written_by: Some(transaction::current()),
        is_committing: false,
    };
    if worker.binding != Binding::Off {
        commit::leases_bound();
    }
    watch_transaction(&worker);
    REGISTRATIONS.with(|registrations| {
        let registrations = &mut *registrations.borrow_mut();
        // The leases of earlier calls are over, and a session may make any number of calls.
        if worker.binding == Binding::Call {
            registrations.retain(|known, _| {
                known.binding != Binding::Call || known.statement == worker.statement
            });
        }
        if registrations.len() >= MAX_REGISTRATIONS {
            registrations.clear();
        }
        registrations.insert(worker, registration);
    });
    id
}
