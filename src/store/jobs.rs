//! The maintenance jobs (`fetchq.jobs`): claiming and rescheduling.

use crate::pg::spi;
use crate::pg::time::Interval;
use crate::pg::value::Arg;

/// A claimed job.
pub struct Job {
    pub id: i32,
    pub task: String,
    pub queue: String,
    /// JSON text.
    pub settings: Option<String>,
}

// A job that is running, or whose runner died, is hidden until next_iteration. Each
// attempt that came to no end doubles that time (8 times at most).
const CLAIM: &str = "update fetchq.jobs j set
        next_iteration = now() + $1 * power(2, least(j.attempts, 3)),
        attempts = least(j.attempts + 1, 1000000)
    where j.id = any (array(
        select id from fetchq.jobs
        where next_iteration <= now()
        order by next_iteration, attempts, id
        limit $2
        for update skip locked))
    returning j.id, j.task, j.queue, j.attempts, j.iterations, j.next_iteration,
        j.last_iteration, j.settings, j.payload";

/// Claims up to `limit` due jobs for `duration`; `take` gets the rows of the table.
pub fn claim<R>(duration: Interval, limit: i32, take: impl FnOnce(&spi::Rows) -> R) -> R {
    spi::connect(|spi| {
        let rows = spi.once(CLAIM, &[duration.arg(), Arg::from(i64::from(limit))]);
        take(&rows)
    })
}

/// Claims up to `limit` due jobs, in the order of their ids.
pub fn claim_all(duration: Interval, limit: i32) -> Vec<Job> {
    let mut jobs = claim(duration, limit, |rows| {
        (0..rows.len())
            .filter_map(|row| {
                Some(Job {
                    id: rows.get(row, 1)?,
                    task: rows.get(row, 2)?,
                    queue: rows.get(row, 3)?,
                    settings: rows.datum(row, 8).map(|_| rows.json_text(row, 8)),
                })
            })
            .collect::<Vec<_>>()
    });
    jobs.sort_by_key(|job| job.id);
    jobs
}

/// What the worker runs by the plan of `fetchq.jobs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The pack of the counters, every second or so.
    Pack,
    /// Snapshots, recounts, retention: seldom, and they may take long.
    Slow,
}

impl Kind {
    // Indexes: (task, queue) is unique; jobs_others_idx.
    fn condition(self) -> &'static str {
        match self {
            Self::Pack => "task = 'lgp'",
            Self::Slow => "task <> 'mnt' and task <> 'lgp'",
        }
    }
}

// One at a time: each is a transaction of its own.
const CLAIM_ONE: &str = "update fetchq.jobs j set
        next_iteration = now() + $1 * power(2, least(j.attempts, 3)),
        attempts = least(j.attempts + 1, 1000000)
    where j.id = (
        select id from fetchq.jobs
        where next_iteration <= now() and {condition}
        order by next_iteration, attempts, id
        limit 1
        for update skip locked)
    returning j.id, j.task, j.queue, j.settings";

/// Claims a due job of a kind.
pub fn claim_one(kind: Kind, duration: Interval) -> Option<Job> {
    spi::connect(|spi| {
        let sql = CLAIM_ONE.replace("{condition}", kind.condition());
        let rows = spi.once(&sql, &[duration.arg()]);
        if rows.is_empty() {
            return None;
        }
        Some(Job {
            id: rows.get(0, 1)?,
            task: rows.get(0, 2)?,
            queue: rows.get(0, 3)?,
            settings: rows.datum(0, 4).map(|_| rows.json_text(0, 4)),
        })
    })
}

const NEXT: &str = "select next_iteration from fetchq.jobs where {condition}
    order by next_iteration limit 1";

/// When the next of a kind is due.
pub fn next(kind: Kind) -> Option<i64> {
    spi::connect(|spi| {
        let rows = spi.once(&NEXT.replace("{condition}", kind.condition()), &[]);
        if rows.is_empty() {
            None
        } else {
            rows.timestamp(0, 1)
        }
    })
}

// (task, queue) is unique.
const MAINTENANCE: &str = "select id, next_iteration, settings, attempts from fetchq.jobs
    where task = 'mnt' and queue = $1";

/// The maintenance of a queue's documents, as the worker does it.
pub struct Maintenance {
    pub job: Job,
    pub not_before: i64,
    /// Attempts that failed, since it last ran.
    pub failures: i32,
}

pub fn maintenance_of(queue: &str) -> Option<Maintenance> {
    spi::connect(|spi| {
        let rows = spi.once(MAINTENANCE, &[Arg::from(queue)]);
        if rows.is_empty() {
            return None;
        }
        let job = Job {
            id: rows.get(0, 1)?,
            task: "mnt".to_owned(),
            queue: queue.to_owned(),
            settings: rows.datum(0, 3).map(|_| rows.json_text(0, 3)),
        };
        Some(Maintenance {
            job,
            not_before: rows.timestamp(0, 2).unwrap_or(i64::MIN),
            failures: rows.get(0, 4).unwrap_or(0),
        })
    })
}

const TRY_LOCK: &str = "select from fetchq.jobs where id = $1 for no key update skip locked";

/// Locks a job to write down how it went; false when another session has it. Before the
/// queue is opened: the order in which a queue is dropped.
pub fn try_lock(id: i32) -> bool {
    spi::connect(|spi| spi.once(TRY_LOCK, &[Arg::from(id)]).affected() > 0)
}

const COUNT_FAILURE: &str =
    "update fetchq.jobs set attempts = least(attempts + 1, 1000000) where id = $1";

/// Counts a failure of a job that was not claimed.
pub fn count_failure(id: i32) {
    spi::connect(|spi| {
        spi.once(COUNT_FAILURE, &[Arg::from(id)]);
    });
}

const EXTEND: &str = "update fetchq.jobs set next_iteration = now() + $2 where id = $1";

/// Hides a claimed job for its own duration.
pub fn extend(id: i32, duration: Interval) {
    spi::connect(|spi| {
        spi.once(EXTEND, &[Arg::from(id), duration.arg()]);
    });
}

const BACK_OFF: &str = "update fetchq.jobs
    set next_iteration = now() + greatest($2,
        least($2 * power(2, least(attempts, 20)), interval '1 hour'))
    where id = $1";

/// Plans the next attempt of a job that failed: after its delay, doubled with each
/// failure up to an hour. It is never given up.
pub fn back_off(id: i32, delay: Interval) {
    spi::connect(|spi| {
        spi.once(BACK_OFF, &[Arg::from(id), delay.arg()]);
    });
}

const RESCHEDULE: &str = "update fetchq.jobs set next_iteration = now() + $2,
        last_iteration = now(), iterations = iterations + 1, attempts = 0
    where id = $1";

const SWEPT: &str = "select payload ->> 'swept' from fetchq.jobs where id = $1";

const SET_SWEPT: &str = "update fetchq.jobs set payload = case
        when $2 is null then payload - 'swept'
        else coalesce(payload, '{}') || jsonb_build_object('swept', $2) end
    where id = $1";

/// The document up to which a job has swept its queue; None: it begins with the first.
pub fn swept(id: i32) -> Option<String> {
    spi::connect(|spi| {
        let rows = spi.once(SWEPT, &[Arg::from(id)]);
        if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        }
    })
}

pub fn set_swept(id: i32, after: Option<&str>) {
    spi::connect(|spi| {
        spi.once(SET_SWEPT, &[Arg::from(id), Arg::from(after)]);
    });
}

/// Plans the next run of a job that has run; false when there is no such job.
pub fn reschedule(id: i32, delay: Interval) -> bool {
    spi::connect(|spi| {
        spi.once(RESCHEDULE, &[Arg::from(id), delay.arg()])
            .affected()
            > 0
    })
}

const MAKE_DUE: &str = "update fetchq.jobs set next_iteration = now()
    where id = any (array(
        select id from fetchq.jobs where queue <> '*' order by id for update skip locked))";

/// Makes the jobs of every queue due; says how many there are. Those that another
/// session is running are left to it.
pub fn make_due() -> i32 {
    spi::connect(|spi| spi.once(MAKE_DUE, &[]).affected())
}

const RESTART: &str = "update fetchq.jobs set attempts = 0, iterations = 0,
        next_iteration = now(), last_iteration = null
    where queue = $1";

/// Resets the jobs of a queue.
pub fn restart(queue: &str) {
    spi::connect(|spi| {
        spi.once(RESTART, &[Arg::from(queue)]);
    });
}
