//! Leases that are bound to a session: they end when it does, or last as long as it.

use crate::background::lifecycle::log_failure;
use crate::domain::names::QueueName;
use crate::maintenance::runner::RunAs;
use crate::pg::planner::with_plain_search_path;
use crate::pg::{process, time};
use crate::store::open_queue::Queue;
use crate::store::worker_sessions::{self, BoundSessions};

/// How often it looks which sessions have ended: where there are some with bound leases,
/// and where there are none.
const LOOK: i64 = 400_000;

const IDLE: i64 = 1_000_000;

pub struct Sessions {
    next: i64,
}

impl Default for Sessions {
    fn default() -> Self {
        Self { next: i64::MIN }
    }
}

impl Sessions {
    /// Looks when it is time to; says when the next time is.
    pub fn run(&mut self) -> i64 {
        if self.next > time::clock() {
            return self.next;
        }
        process::show_activity(Some("fetchq: sessions"));
        // The worker is a superuser: nobody's operators in its statements.
        let found = process::transaction(|| {
            with_plain_search_path(|| worker_sessions::bound_sessions(None))
        });
        let pause = match found {
            Ok(found) if found.is_empty() => IDLE,
            Ok(found) => {
                for (name, bound) in found {
                    follow(&name, &bound);
                }
                LOOK
            }
            Err(message) => {
                log_failure(format!("sessions: {message}"));
                IDLE
            }
        };
        self.next = time::clock() + pause;
        self.next
    }
}

fn follow(name: &str, bound: &BoundSessions) {
    let Ok(name) = QueueName::parse(name) else {
        return;
    };
    let done = process::transaction(|| {
        // None: locked by DDL, or dropped meanwhile.
        let queue = Queue::try_open(&name).ok().flatten();
        if let Some(queue) = queue {
            RunAs::Owner.run(&name, || worker_sessions::apply_bindings(&queue, bound));
        }
    });
    if let Err(message) = done {
        log_failure(format!("sessions of queue \"{name}\": {message}"));
    }
}
