//! The rules by which databases share the background workers: when a database needs one, and
//! which background worker leaves its database to another one. All times are in microseconds
//! since 2000.

/// The shortest stay of a background worker in a database while others wait: microseconds. It
/// bounds how many processes are started: five a second for each background worker.
pub const MIN_STAY_US: i64 = 200_000;

/// How long a background worker that always has something to do stays while other databases wait:
/// microseconds. A database with something due waits for at most this time for each database
/// before it, divided by the number of background workers.
pub const TURN_US: i64 = 1_000_000;

/// When the counters of a database are packed that has no background worker, after one has left
/// it: microseconds. Counters are exact before they are packed; reading them is only slower.
const PACK_AFTER_US: i64 = 5_000_000;

/// How often a database is visited in which nothing is known to be due: microseconds. Plain SQL
/// changes schedules and jobs without a signal.
const MIN_LOOK_US: i64 = 60_000_000;

/// That time is at least this for each database, so that few processes are started:
/// microseconds.
const LOOK_OF_EACH_US: i64 = 300_000;

/// How often a database is visited for which shared memory has no entry, so that nobody can say
/// when something is due: microseconds.
const UNLISTED_LOOK_US: i64 = 10_000_000;

/// What decides when a database without a background worker needs one.
pub struct Need {
    /// What is known to be due.
    pub wakes_at: i64,
    /// When a background worker has left it.
    pub left_at: i64,
    /// Whether it has the extension; None when nobody has looked yet.
    pub has_extension: Option<bool>,
    /// Whether it has an entry in shared memory.
    pub is_listed: bool,
    /// Whether there are counter events to pack.
    pub has_events: bool,
}

impl Need {
    /// Returns when the database needs a background worker. `databases` is the number of databases
    /// of the server.
    pub fn due_at(&self, databases: usize) -> i64 {
        let after = |delay: i64| self.left_at.saturating_add(delay);
        let mut due_at = self.wakes_at;
        if self.has_events {
            due_at = due_at.min(after(PACK_AFTER_US));
        }
        if self.has_extension == Some(true) {
            let look = MIN_LOOK_US.max(LOOK_OF_EACH_US.saturating_mul(databases as i64));
            due_at = due_at.min(after(look));
            if !self.is_listed {
                due_at = due_at.min(after(UNLISTED_LOOK_US));
            }
        }
        due_at
    }

    /// Returns since when the database waits. Databases that wait longest come first, and new ones
    /// before them. What was due before a background worker left does not count, so that each
    /// database has its turn.
    pub fn waits_since(&self, due_at: i64) -> i64 {
        match self.has_extension {
            Some(true) => due_at.max(self.left_at),
            _ => NEW,
        }
    }
}

/// How long a background worker that was asked to leave is waited for, before another one is asked:
/// microseconds. It finishes what it does, which may take long.
const LEAVE_TIMEOUT_US: i64 = 300_000;

/// Since when a database waits in which nobody has looked for the extension.
pub const NEW: i64 = i64::MIN;

/// A database with a background worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resident {
    pub database: u32,
    /// When the background worker was started.
    pub since: i64,
    /// When the database needs it next.
    pub needed_at: i64,
    /// When it was asked to leave; None when it was not.
    pub asked_at: Option<i64>,
}

/// Returns the databases whose background workers are to leave so that `wanted` others get one,
/// and when to decide again. Those in which nothing is due leave first, those that need it latest
/// before the others. A background worker with something to do leaves after its turn, or for a
/// new database after the shortest stay.
pub fn choose_leaving(
    residents: &[Resident],
    wanted: usize,
    has_new: bool,
    now: i64,
) -> (Vec<u32>, i64) {
    let asked = residents.iter().filter_map(|r| r.asked_at);
    let leave_until = asked.map(|at| at + LEAVE_TIMEOUT_US).filter(|at| *at > now);
    let mut next = leave_until.clone().min().unwrap_or(i64::MAX);
    let wanted = wanted.saturating_sub(leave_until.count());
    if wanted == 0 {
        return (Vec::new(), next);
    }
    let turn = if has_new { MIN_STAY_US } else { TURN_US };
    let may_leave_at = |r: &Resident| {
        let is_idle = r.needed_at > now;
        r.since + if is_idle { MIN_STAY_US } else { turn }
    };
    let mut staying: Vec<&Resident> = residents.iter().filter(|r| r.asked_at.is_none()).collect();
    staying.sort_by_key(|r| (std::cmp::Reverse(r.needed_at.max(now)), r.since));
    let mut chosen = Vec::new();
    for resident in staying {
        let at = may_leave_at(resident);
        if at > now {
            next = next.min(at);
        } else if chosen.len() < wanted {
            chosen.push(resident.database);
        }
    }
    if !chosen.is_empty() {
        next = next.min(now + LEAVE_TIMEOUT_US);
    }
    (chosen, next)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn resident(database: u32, since: i64, needed_at: i64) -> Resident {
        Resident {
            database,
            since,
            needed_at,
            asked_at: None,
        }
    }

    fn need() -> Need {
        Need {
            wakes_at: i64::MAX,
            left_at: 100 * SECOND,
            has_extension: Some(true),
            is_listed: true,
            has_events: false,
        }
    }

    #[test]
    fn a_database_needs_a_background_worker_when_something_is_due() {
        let due = |need: Need| need.due_at(10);
        assert_eq!(due(need()), 160 * SECOND);
        assert_eq!(need().due_at(1000), 400 * SECOND);
        let with_events = Need {
            has_events: true,
            ..need()
        };
        assert_eq!(due(with_events), 105 * SECOND);
        let unlisted = Need {
            is_listed: false,
            ..need()
        };
        assert_eq!(due(unlisted), 110 * SECOND);
        let planned = Need {
            wakes_at: 7,
            ..need()
        };
        assert_eq!(due(planned), 7);
        let without = Need {
            has_extension: Some(false),
            is_listed: false,
            ..need()
        };
        assert_eq!(due(without), i64::MAX);
    }

    #[test]
    fn new_databases_come_first_and_each_has_its_turn() {
        assert_eq!(need().waits_since(50 * SECOND), 100 * SECOND);
        assert_eq!(need().waits_since(150 * SECOND), 150 * SECOND);
        let new = Need {
            has_extension: None,
            ..need()
        };
        assert_eq!(new.waits_since(150 * SECOND), NEW);
    }

    #[test]
    fn idle_background_workers_leave_first() {
        let now = 10 * SECOND;
        let residents = [
            resident(1, 0, now - 1),
            resident(2, 0, now + 5),
            resident(3, 0, i64::MAX),
            resident(4, now, i64::MAX),
        ];
        let chosen = |wanted| choose_leaving(&residents, wanted, false, now);
        assert_eq!(chosen(0), (vec![], i64::MAX));
        assert_eq!(chosen(1).0, [3]);
        assert_eq!(chosen(2).0, [3, 2]);
        assert_eq!(chosen(9), (vec![3, 2, 1], now + MIN_STAY_US));
    }

    #[test]
    fn a_busy_background_worker_leaves_after_its_turn() {
        let residents = [resident(1, 0, 0), resident(2, 1, 0)];
        let at = |now, has_new| choose_leaving(&residents, 1, has_new, now);
        assert_eq!(at(MIN_STAY_US, false), (vec![], TURN_US));
        assert_eq!(at(MIN_STAY_US, true).0, [1]);
        assert_eq!(at(TURN_US, false).0, [1]);
    }

    #[test]
    fn another_background_worker_leaves_when_one_does_not() {
        let mut residents = [resident(1, 0, 0), resident(2, 1, 0)];
        let asked_at = 2 * TURN_US;
        residents[0].asked_at = Some(asked_at);
        let at = |now| choose_leaving(&residents, 1, false, now);
        let patience = asked_at + LEAVE_TIMEOUT_US;
        assert_eq!(at(asked_at + 1), (vec![], patience));
        assert_eq!(at(patience).0, [2]);
    }
}
