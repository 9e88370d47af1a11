//! Leases that are bound to a session. They end when the session ends, or are extended as long as
//! it lives.

use crate::background::lifecycle::log_failure;
use crate::domain::names::QueueName;
use crate::maintenance::runner::RunAs;
use crate::pg::planner::with_plain_search_path;
use crate::pg::{process, time};
use crate::signals::commit::BOUND_LEASES_LOOK_US;
use crate::store::open_queue::Queue;
use crate::store::worker_sessions::{self, BoundSessions};

/// How often the process looks which sessions have ended, when some have bound leases:
/// microseconds.
const SCAN_INTERVAL_US: i64 = 400_000;

/// How often it looks whether there are sessions with bound leases: microseconds.
const IDLE_SCAN_INTERVAL_US: i64 = 1_000_000;

/// The bound sessions of a database, as its background worker follows them.
pub struct Sessions {
    /// When to look next, in microseconds since 2000.
    next: i64,
    /// Whether some sessions have bound leases.
    has_bound: bool,
}

impl Default for Sessions {
    fn default() -> Self {
        Self {
            next: i64::MIN,
            has_bound: false,
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
        // The process is a superuser, so its statements must not find operators of other roles.
        let found = process::transaction(|| {
            with_plain_search_path(|| worker_sessions::bound_sessions(None))
        });
        self.has_bound = found.as_ref().is_ok_and(|found| !found.is_empty());
        let interval = match found {
            Ok(found) if found.is_empty() => IDLE_SCAN_INTERVAL_US,
            Ok(found) => {
                for (name, bound) in found {
                    apply_bindings(&name, &bound);
                }
                SCAN_INTERVAL_US
            }
            Err(message) => {
                log_failure(format!("looking for bound sessions failed: {message}"));
                IDLE_SCAN_INTERVAL_US
            }
        };
        self.next = time::clock() + interval;
        self.next
    }
}

fn apply_bindings(name: &str, bound: &BoundSessions) {
    let Ok(name) = QueueName::parse(name) else {
        return;
    };
    let result = process::transaction(|| {
        // There is no queue to open when DDL has locked it, or when it was dropped meanwhile.
        let queue = Queue::try_open(&name).ok().flatten();
        if let Some(queue) = queue {
            RunAs::Owner.run(&name, || worker_sessions::apply_bindings(&queue, bound));
        }
    });
    if let Err(message) = result {
        log_failure(format!(
            "applying the bound sessions of queue \"{name}\" failed: {message}"
        ));
    }
}
