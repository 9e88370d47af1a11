//! The notifications of queues that have them enabled, sent by the worker: a transaction
//! that notifies holds a lock of the whole server while it commits, so that all those
//! that do commit one after the other. The worker does it for them, once for all that
//! entered a state in a moment.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use crate::background::lifecycle::log_failure;
use crate::domain::status::Status;
use crate::pg::{process, time};
use crate::settings;
use crate::signals::announce::send;
use crate::signals::announcements::Announcements;
use crate::store::triggers;

/// When there was no room for all, every queue is announcements, so often at most:
/// microseconds.
const ALL: i64 = 1_000_000;

/// The worker's part.
pub struct Notifier<'a> {
    announcements: &'a Announcements,
    /// When a table may be announcements again.
    not_before: HashMap<u32, i64>,
    /// When all may be announcements again.
    all_at: i64,
}

impl<'a> Notifier<'a> {
    /// Clients hear of every queue that there is something: there was nobody to tell
    /// them before.
    pub fn new(announcements: &'a Announcements) -> Self {
        announcements
            .overflow
            .fetch_or(Status::Pending.bit(), Ordering::SeqCst);
        Self {
            announcements,
            not_before: HashMap::new(),
            all_at: i64::MIN,
        }
    }

    /// Whether something can be sent that was not seen by the last run.
    pub fn has_news(&self) -> bool {
        let mut tables = self.announcements.read().map(|(_, table)| table);
        let overflow = self.announcements.overflow.load(Ordering::SeqCst);
        overflow != 0 && self.all_at <= time::clock()
            || tables.any(|table| !self.not_before.contains_key(&table))
    }

    /// Sends what may be sent now; says when there will be more.
    pub fn run(&mut self) -> i64 {
        let now = time::clock();
        self.not_before.retain(|_, at| *at > now);
        let mut next = i64::MAX;
        let mut due = Vec::new();
        for (at, table) in self.announcements.read() {
            match self.not_before.get(&table) {
                Some(later) => next = next.min(*later),
                None => due.push(self.announcements.take(at)),
            }
        }
        let mut states_of_all = 0;
        if self.all_at <= now {
            states_of_all = self.announcements.overflow.swap(0, Ordering::SeqCst);
            self.all_at = if states_of_all == 0 { now } else { now + ALL };
        } else if self.announcements.overflow.load(Ordering::SeqCst) != 0 {
            next = next.min(self.all_at);
        }
        if due.is_empty() && states_of_all == 0 {
            return next;
        }
        process::show_activity(Some("fetchq: notifications"));
        let sent = process::transaction(|| {
            if states_of_all != 0 {
                for table in triggers::notifying() {
                    send(table, states_of_all);
                }
            }
            for (table, states) in &due {
                send(*table, *states);
            }
        });
        if let Err(message) = sent {
            // Clients look by themselves, too, if later.
            log_failure(format!("notifications failed: {message}"));
        }
        let later = now + settings::notify_interval();
        for (table, _) in due {
            self.not_before.insert(table, later);
        }
        next
    }
}
