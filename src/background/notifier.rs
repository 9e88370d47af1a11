//! Sends the notifications that sessions have announced. `signals/announce.rs` says why the
//! background worker sends them.

use std::collections::{HashMap, HashSet};

use crate::background::lifecycle::log_failure;
use crate::pg::{process, time};
use crate::settings;
use crate::signals::announce::notify_statuses;
use crate::signals::announcements::Announcements;
use crate::store::queues::triggers;

/// The least time between two notifications of all queues, which are sent when there was no slot
/// for the announcements of some queue: microseconds.
const OVERFLOW_INTERVAL_US: i64 = 1_000_000;

/// The announcements of a database, as its background worker sends them.
pub struct Notifier<'a> {
    announcements: &'a Announcements,
    /// When the next notification of a table may be sent, in microseconds since 2000.
    not_before: HashMap<u32, i64>,
    /// When all queues may be notified again, in microseconds since 2000.
    all_not_before: i64,
    /// The tables whose announcements the last run has left for later. The table of all queues is 0.
    postponed: HashSet<u32>,
}

impl<'a> Notifier<'a> {
    /// Begins with the announcement of some statuses in every queue, because nobody has announced
    /// them while no background worker ran. `statuses` is a set of `Status::bit`.
    pub fn new(announcements: &'a Announcements, statuses: u32) -> Self {
        announcements.add_to_all(announcements.assignment(), statuses);
        Self {
            announcements,
            not_before: HashMap::new(),
            all_not_before: i64::MIN,
            postponed: HashSet::new(),
        }
    }

    /// Sends all announcements now, because this process exits.
    pub fn flush(&mut self) {
        self.not_before.clear();
        self.all_not_before = i64::MIN;
        self.run();
    }

    /// Returns whether there are announcements that the last run did not see. When it may send them
    /// does not matter: the time that it has returned is not theirs.
    pub fn has_changes(&self) -> bool {
        let mut tables = self.announcements.read().map(|(_, table)| table);
        self.announcements.of_all() != 0 && !self.postponed.contains(&0)
            || tables.any(|table| !self.postponed.contains(&table))
    }

    /// Sends the notifications that may be sent now. Returns when more may be sent, in microseconds
    /// since 2000.
    pub fn run(&mut self) -> i64 {
        let now = time::clock();
        self.not_before.retain(|_, at| *at > now);
        self.postponed.clear();
        let mut next = i64::MAX;
        let mut due = Vec::new();
        for (slot, table) in self.announcements.read() {
            match self.not_before.get(&table) {
                Some(later) => {
                    next = next.min(*later);
                    self.postponed.insert(table);
                }
                None => due.push(self.announcements.take(slot)),
            }
        }
        let mut statuses_of_all = 0;
        if self.all_not_before <= now {
            statuses_of_all = self.announcements.take_all();
            self.all_not_before = if statuses_of_all == 0 {
                now
            } else {
                now + OVERFLOW_INTERVAL_US
            };
        } else if self.announcements.of_all() != 0 {
            next = next.min(self.all_not_before);
            self.postponed.insert(0);
        }
        if due.is_empty() && statuses_of_all == 0 {
            return next;
        }
        process::show_activity(Some("fetchq: notifications"));
        let sent = process::transaction(|| {
            if statuses_of_all != 0 {
                for table in triggers::tables_with_notifications() {
                    notify_statuses(table, statuses_of_all);
                }
            }
            for (table, statuses) in &due {
                notify_statuses(*table, *statuses);
            }
        });
        if let Err(message) = sent {
            // The notifications are lost. Clients must not rely on them alone, so they poll too.
            log_failure(format!("sending notifications failed: {message}"));
        }
        let later = now + settings::notify_interval_us();
        for (table, _) in due {
            self.not_before.insert(table, later);
        }
        next
    }
}
