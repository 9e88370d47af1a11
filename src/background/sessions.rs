//! Leases that are bound to a session. They end when the session ends, or are extended as long as
//! it lives.

use std::collections::{BTreeMap, HashMap};

use crate::background::lifecycle::log_failure;
use crate::background::limits;
use crate::domain::names::QueueName;
use crate::error::raise;
use crate::maintenance::runner;
use crate::pg::{process, time};
use crate::signals::background_worker::BOUND_LEASES_LOOK_US;
use crate::store::queues::open_queue::Queue;
use crate::store::upkeep::jobs::{self, Part};
use crate::store::upkeep::worker_sessions::{self, BoundSessions};

/// How often the process looks which sessions have ended, when some have bound leases:
/// microseconds.
const SCAN_INTERVAL_US: i64 = 400_000;

/// How often it looks whether there are sessions with bound leases: microseconds.
const IDLE_SCAN_INTERVAL_US: i64 = 1_000_000;

/// How many times as long as a look has taken the process does other work before it looks again. So
/// the sessions of one role take no more of the process, however many they are.
const REST_PER_LOOK: i64 = 20;

/// How long a queue waits at least after a failure: microseconds.
const MIN_PAUSE_US: i64 = 10_000_000;

/// The longest wait that is taken over from an earlier process: microseconds.
const MAX_PAUSE_US: i64 = 120_000_000;

/// The bound sessions of a database, as its background worker follows them. Times are in
/// microseconds since 2000.
pub struct Sessions {
    /// When to look next.
    next: i64,
    /// Whether some sessions have bound leases.
    has_bound: bool,
    /// Queues that have failed or were slow, and until when they wait. That is in their jobs too, for
    /// the next process of the database.
    waits: HashMap<String, i64>,
    /// The waits of an earlier process were read.
    has_read_waits: bool,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            next: i64::MIN,
            has_bound: false,
            waits: HashMap::new(),
            has_read_waits: false,
        }
    }
}

impl Sessions {
    /// Returns when a background worker has to look, if none serves the database meanwhile:
    /// microseconds since 2000.
    pub fn due_at(&self) -> i64 {
        match self.has_bound {
            true => time::clock() + BOUND_LEASES_LOOK_US,
            false => i64::MAX,
        }
    }

    /// Applies the bindings if that is due. Returns when it is due next, in microseconds since
    /// 2000.
    pub fn run(&mut self) -> i64 {
        if self.next > time::clock() {
            return self.next;
        }
        process::show_activity(Some("fetchq: sessions"));
        let began = time::clock();
        let found = process::transaction(|| worker_sessions::bound_sessions(None));
        let rest = (time::clock() - began).saturating_mul(REST_PER_LOOK);
        self.has_bound = found.as_ref().is_ok_and(|found| !found.is_empty());
        let interval = match found {
            Ok(found) if found.is_empty() => IDLE_SCAN_INTERVAL_US,
            Ok(found) => {
                self.read_waits(&found);
                self.waits.retain(|name, _| found.contains_key(name));
                // After a slow queue, other work comes before the rest.
                let is_slow = found
                    .iter()
                    .any(|(name, bound)| self.apply(name, bound) > limits::SLOW_RUN_US);
                if is_slow {
                    0
                } else {
                    SCAN_INTERVAL_US.max(rest)
                }
            }
            Err(message) => {
                log_failure(format!("looking for bound sessions failed: {message}"));
                IDLE_SCAN_INTERVAL_US
            }
        };
        self.next = time::clock() + interval;
        self.next
    }

    /// Reads until when queues wait that have failed in an earlier process.
    fn read_waits(&mut self, found: &BTreeMap<String, BoundSessions>) {
        if self.has_read_waits {
            return;
        }
        let names = found.keys().cloned().collect();
        let waits = process::transaction(|| jobs::sessions_waits(names));
        match waits {
            Ok(waits) => {
                // They were written by a clock that may have been set back.
                let latest = time::clock() + MAX_PAUSE_US;
                let waits = waits.into_iter();
                self.waits
                    .extend(waits.map(|(name, until)| (name, until.min(latest))));
                self.has_read_waits = true;
            }
            Err(message) => log_failure(message),
        }
    }

    /// Applies the bindings of a queue, unless it has failed or was slow, and must wait. Returns
    /// how long that took, in microseconds.
    fn apply(&mut self, name: &str, bound: &BoundSessions) -> i64 {
        let began = time::clock();
        if self.waits.get(name).is_some_and(|until| *until > began) {
            return 0;
        }
        let result = apply_bindings(name, bound);
        let now = time::clock();
        let took = now - began;
        match result {
            Ok(()) if took > limits::SLOW_RUN_US => {
                self.wait(name, now + runner::pause_after(took), None);
            }
            Ok(()) => {
                if self.waits.remove(name).is_some() {
                    note_wait(name, None, None);
                }
            }
            Err(message) => {
                let pause = runner::pause_after(took).max(MIN_PAUSE_US);
                self.wait(name, now + pause, Some(&message));
                log_failure(format!(
                    "applying the bound sessions of queue \"{name}\" failed: {message}"
                ));
            }
        }
        took
    }

    /// Lets a queue wait until a time in microseconds since 2000.
    fn wait(&mut self, name: &str, until: i64, message: Option<&str>) {
        self.waits.insert(name.to_owned(), until);
        note_wait(name, Some(until), message);
    }
}

/// Notes in the job of a queue until when its bound sessions wait.
fn note_wait(name: &str, until: Option<i64>, message: Option<&str>) {
    // Another session may have locked the row of the job.
    let noted = limits::prompt(|| jobs::set_wait(name, Part::Sessions, until, None, message));
    if let Err(message) = noted {
        log_failure(message);
    }
}

/// Applies the bindings of a queue. Returns the message of an error.
fn apply_bindings(name: &str, bound: &BoundSessions) -> Result<(), String> {
    let Ok(name) = QueueName::parse(name) else {
        return Ok(());
    };
    limits::prompt(|| {
        // There is no queue to open when DDL has locked it, or when it was dropped meanwhile.
        let queue = match Queue::try_open(&name) {
            Err(e) if e.is_missing_queue() => None,
            opened => raise(opened),
        };
        if let Some(queue) = queue {
            worker_sessions::apply_bindings(&queue, bound);
        }
    })
}
