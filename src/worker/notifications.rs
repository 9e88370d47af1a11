//! The notifications of queues that have them enabled, sent by the worker: a transaction
//! that notifies holds a lock of the whole server while it commits, so that all those
//! that do commit one after the other. The worker does it for them, once for all that
//! entered a state in a moment.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::board::Board;
use super::complain;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::gucs::{self, Notify};
use crate::pg::notify::notify;
use crate::pg::worker as process;
use crate::pg::{relation, time};
use crate::store::queue_tables;

/// How many queues can have something to announce at a time.
const SLOTS: usize = 1024;
/// How many places a queue may have among them.
const PROBES: usize = 16;
/// When there was no room for all, every queue is announced, so often at most:
/// microseconds.
const ALL: i64 = 1_000_000;
/// What is sent with each: any message means "look now", as clients send it themselves.
const PAYLOAD: &str = "true";

/// What the worker has to announce: for each table the states that documents entered.
pub struct Announced {
    /// The table, and below it a bit for each state.
    slots: [AtomicU64; SLOTS],
    /// States of tables for which there was no room.
    overflow: AtomicU32,
}

fn slot(table: u32, states: u32) -> u64 {
    u64::from(table) << 32 | u64::from(states)
}

impl Announced {
    pub const fn new() -> Self {
        Self {
            slots: [const { AtomicU64::new(0) }; SLOTS],
            overflow: AtomicU32::new(0),
        }
    }

    /// Adds states of a table; true when the worker may not know of them.
    fn add(&self, table: u32, states: u32) -> bool {
        let first = (table.wrapping_mul(0x9e37_79b9) >> 16) as usize;
        for at in (first..first + PROBES).map(|at| at % SLOTS) {
            let place = &self.slots[at];
            let mut before = place.load(Ordering::SeqCst);
            while before == 0 || (before >> 32) as u32 == table {
                let after = slot(table, before as u32 | states);
                if before == after {
                    return false;
                }
                match place.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst) {
                    Ok(_) => return true,
                    Err(now) => before = now,
                }
            }
        }
        self.overflow.fetch_or(states, Ordering::SeqCst) & states != states
    }

    /// What there is; it stays.
    fn read(&self) -> impl Iterator<Item = (usize, u32)> {
        let slots = self.slots.iter().enumerate();
        slots.filter_map(|(at, place)| {
            let table = (place.load(Ordering::SeqCst) >> 32) as u32;
            (table != 0).then_some((at, table))
        })
    }

    fn take(&self, at: usize) -> (u32, u32) {
        let taken = self.slots[at].swap(0, Ordering::SeqCst);
        ((taken >> 32) as u32, taken as u32)
    }
}

thread_local! {
    /// States that documents entered in this transaction, by table.
    static ENTERED: RefCell<Vec<(u32, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Whether the worker sends the notifications of this session.
pub fn are_collected() -> bool {
    gucs::notify() == Notify::Worker && super::is_running()
}

/// Documents of a table enter a state when this transaction commits.
pub fn entered(table: u32, status: Status) {
    ENTERED.with(|entered| {
        let mut entered = entered.borrow_mut();
        match entered.iter_mut().find(|(other, _)| *other == table) {
            Some((_, states)) => *states |= status.bit(),
            None => entered.push((table, status.bit())),
        }
    });
}

/// Before the commit: without a worker, which may have ended since, the transaction
/// notifies by itself.
pub fn committing(board: Option<&Board>, database: u32) {
    if ENTERED.with(|entered| entered.borrow().is_empty())
        || board.is_some_and(|board| board.worker_of(database).is_some())
    {
        return;
    }
    for (table, states) in ENTERED.with(|entered| std::mem::take(&mut *entered.borrow_mut())) {
        send(table, states);
    }
}

/// After the commit: tells the worker.
pub fn committed(board: Option<&Board>, database: u32) {
    ENTERED.with(|entered| {
        let mut entered = entered.borrow_mut();
        if entered.is_empty() {
            return;
        }
        if let Some(worker) = board.and_then(|board| board.worker_of(database)) {
            let mut is_news = false;
            for (table, states) in entered.iter() {
                is_news |= worker.announced.add(*table, *states);
            }
            if is_news {
                worker.seat.wake();
            }
        }
        entered.clear();
    });
}

/// After a rollback: nothing happened.
pub fn rolled_back() {
    let _ = ENTERED.try_with(|entered| entered.borrow_mut().clear());
}

/// Notifies of the states that documents of a table entered. In a transaction.
fn send(table: u32, states: u32) {
    let name = relation::queue_of(table);
    // None: it was dropped.
    if let Some(name) = name.and_then(|name| QueueName::parse(&name).ok()) {
        for status in Status::ALL {
            if states & status.bit() != 0 {
                notify(&name.channel(status.gauge()), PAYLOAD);
            }
        }
    }
}

/// The worker's part.
pub struct Sender<'a> {
    announced: &'a Announced,
    /// When a table may be announced again.
    not_before: HashMap<u32, i64>,
    /// When all may be announced again.
    all_at: i64,
}

impl<'a> Sender<'a> {
    /// Clients hear of every queue that there is something: there was nobody to tell
    /// them before.
    pub fn new(announced: &'a Announced) -> Self {
        announced
            .overflow
            .fetch_or(Status::Pending.bit(), Ordering::SeqCst);
        Self {
            announced,
            not_before: HashMap::new(),
            all_at: i64::MIN,
        }
    }

    /// Whether something can be sent that was not seen by the last run.
    pub fn has_news(&self) -> bool {
        let mut tables = self.announced.read().map(|(_, table)| table);
        let overflow = self.announced.overflow.load(Ordering::SeqCst);
        overflow != 0 && self.all_at <= time::clock()
            || tables.any(|table| !self.not_before.contains_key(&table))
    }

    /// Sends what may be sent now; says when there will be more.
    pub fn run(&mut self) -> i64 {
        let now = time::clock();
        self.not_before.retain(|_, at| *at > now);
        let mut next = i64::MAX;
        let mut due = Vec::new();
        for (at, table) in self.announced.read() {
            match self.not_before.get(&table) {
                Some(later) => next = next.min(*later),
                None => due.push(self.announced.take(at)),
            }
        }
        let mut states_of_all = 0;
        if self.all_at <= now {
            states_of_all = self.announced.overflow.swap(0, Ordering::SeqCst);
            self.all_at = if states_of_all == 0 { now } else { now + ALL };
        } else if self.announced.overflow.load(Ordering::SeqCst) != 0 {
            next = next.min(self.all_at);
        }
        if due.is_empty() && states_of_all == 0 {
            return next;
        }
        process::shows(Some("fetchq: notifications"));
        let sent = process::transaction(|| {
            if states_of_all != 0 {
                for table in queue_tables::notifying() {
                    send(table, states_of_all);
                }
            }
            for (table, states) in &due {
                send(*table, *states);
            }
        });
        if let Err(message) = sent {
            // Clients look by themselves, too, if later.
            complain(format!("notifications failed: {message}"));
        }
        let later = now + gucs::notify_interval();
        for (table, _) in due {
            self.not_before.insert(table, later);
        }
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_a_table_are_gathered() {
        let announced = Announced::new();
        assert!(announced.add(7, 1));
        assert!(!announced.add(7, 1));
        assert!(announced.add(7, 2));
        assert!(announced.add(8, 4));
        let mut taken: Vec<_> = announced.read().map(|(at, _)| at).collect();
        taken.sort_unstable();
        let mut found: Vec<_> = taken.into_iter().map(|at| announced.take(at)).collect();
        found.sort_unstable();
        assert_eq!(found, [(7, 3), (8, 4)]);
        assert_eq!(announced.read().count(), 0);
        assert!(announced.add(7, 1));
    }

    #[test]
    fn too_many_tables_are_told_as_such() {
        let announced = Announced::new();
        for table in 1..=10 * SLOTS as u32 {
            announced.add(table, 1);
        }
        assert_eq!(announced.overflow.load(Ordering::SeqCst), 1);
        let kept = announced.read().count();
        assert!(kept > SLOTS / 2 && kept <= SLOTS, "{kept}");
    }
}
