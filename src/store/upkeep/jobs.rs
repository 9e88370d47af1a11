//! The rows of `fetchq.jobs`, the maintenance jobs: claiming, failing and rescheduling them.

use crate::error::raise;
use crate::pg::spi::{self, Rows};
use crate::pg::time::{self, Interval};
use crate::pg::value::Arg;
use crate::store::queues::rights::{self, Right};

/// A job that was claimed.
pub struct Job {
    /// Its id.
    pub id: i32,
    /// Its task, such as `mnt`.
    pub task: String,
    /// Its queue, or `*` for all.
    pub queue: String,
    /// Its settings, as JSON text.
    pub settings: Option<String>,
}

/// Reads the jobs of a result. Its first columns are id, task and queue; `settings` is another one.
fn jobs(rows: &Rows, settings: i32) -> Vec<Job> {
    let job = |row| {
        Some(Job {
            id: rows.get(row, 1)?,
            task: rows.get(row, 2)?,
            queue: rows.get(row, 3)?,
            settings: (!rows.is_null(row, settings)).then(|| rows.json_text(row, settings)),
        })
    };
    (0..rows.len()).filter_map(job).collect()
}

/// Jobs that were planned later than this after now were planned before the clock was set back, or on a
/// server whose clock was ahead: microseconds. Another session may have planned jobs a moment after
/// this one read the clock.
const CLOCK_TOLERANCE_US: i64 = 1_000_000;

// $1: the time by the clock, $2: the same with the tolerance. Index: jobs_planned_idx, a range that
// begins in the future and is empty nearly always. Times that were written by hand may be infinite, or
// the result out of range; that must not stop all jobs.
const FOLLOW_CLOCK: &str = "update fetchq.jobs set
        next_iteration = greatest(next_iteration, $1) {-} (least(planned_at, $1 {+} interval '1000 years') {-} $1),
        planned_at = $1
    where id {=} any (array(
        select id from fetchq.jobs where planned_at {>} $2 order by id for update skip locked))";

/// Moves the times of jobs that were planned before the clock was set back, so that they are as far
/// away as they were then. Otherwise nothing would run until the clock has caught up. What an
/// operator has put off remains put off: to have its own time is the mark of such a job.
pub fn follow_clock() {
    let now = time::clock();
    let latest = now.saturating_add(CLOCK_TOLERANCE_US);
    spi::connect(|spi| {
        spi.once(FOLLOW_CLOCK, &[Arg::timestamp(now), Arg::timestamp(latest)]);
    });
}

// A job that is running, or whose session has ended, is hidden until next_iteration. Each
// attempt that did not finish doubles that time, up to 8 times.
const CLAIM: &str = "update fetchq.jobs j set
        next_iteration = pg_catalog.now() {+} ($1 {*} pg_catalog.power(2, least(greatest(j.attempts, 0), 3))), planned_at = pg_catalog.now(),
        attempts = least(greatest(j.attempts, 0), 999999) {+} 1
    where j.id {=} any (array(
        select id from fetchq.jobs
        where next_iteration {<=} pg_catalog.now() and {condition}
        order by next_iteration, attempts, id
        limit $2
        for update skip locked))
    returning j.id, j.task, j.queue, j.attempts, j.iterations, j.next_iteration,
        j.last_iteration, j.settings, j.payload";

// The jobs of queues that the caller manages.
const MANAGED: &str = "($3 or queue {=} any ($4))";

/// Claims up to `limit` due jobs for `duration`, of queues that the caller manages. `read` gets the
/// rows of the table; its result is returned.
pub fn claim<R>(duration: Interval, limit: i32, read: impl FnOnce(&Rows) -> R) -> R {
    follow_clock();
    claim_where(MANAGED, duration, limit, read)
}

fn claim_where<R>(
    condition: &str,
    duration: Interval,
    limit: i32,
    read: impl FnOnce(&Rows) -> R,
) -> R {
    raise(rights::over(None, Right::Manage, |queues| {
        let [is_everything, queues] = queues.args();
        let limit = Arg::from(i64::from(limit));
        let sql = CLAIM.replace("{condition}", condition);
        spi::connect(|spi| {
            let rows = spi.once(&sql, &[duration.arg(), limit, is_everything, queues]);
            Ok(read(&rows))
        })
    }))
}

/// From this number of jobs on the pack is claimed before all others: a tenth of them at most, so that
/// calls with few jobs leave none out.
const PACK_FIRST: i32 = 10;

/// Claims jobs as [`claim`] does, where they are many a pack that is due before all others: every reader
/// of counters reads what is not packed, and a pack that waited for the jobs of thousands of queues would
/// leave ever more. Returns them in the order of their ids, after the pack that was claimed first, and
/// snapshots of metrics at the end, which share what they read.
pub fn claim_all(duration: Interval, limit: i32) -> Vec<Job> {
    follow_clock();
    let mut claimed = Vec::new();
    if limit >= PACK_FIRST {
        let pack = format!("{} and {MANAGED}", Kind::Pack.condition());
        claimed = claim_where(&pack, duration, 1, |rows| jobs(rows, 8));
    }
    let left = limit.saturating_sub(claimed.len() as i32);
    let condition = match claimed.is_empty() {
        true => MANAGED.to_owned(),
        false => format!("task {{<>}} 'lgp' and {MANAGED}"),
    };
    let mut others = claim_where(&condition, duration, left, |rows| jobs(rows, 8));
    others.sort_by_key(|job| (job.task == "sts", job.id));
    claimed.extend(others);
    claimed
}

/// The kinds of jobs that the background worker runs as `fetchq.jobs` plans them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The pack of the counters, every second or so.
    Pack,
    /// Snapshots, recounts and retention: they are rare, and may take long.
    Slow,
}

impl Kind {
    // Indexes: the unique one of (task, queue), and jobs_others_idx, whose predicate this is.
    fn condition(self) -> &'static str {
        match self {
            Self::Pack => "task {=} 'lgp'",
            Self::Slow => "task {<>} 'mnt' and task {<>} 'lgp'",
        }
    }
}

/// Claims a due job of a kind for `duration`. None when none is due.
pub fn claim_one(kind: Kind, duration: Interval) -> Option<Job> {
    let sql = CLAIM.replace("{condition}", kind.condition());
    spi::connect(|spi| jobs(&spi.once(&sql, &[duration.arg(), Arg::from(1_i64)]), 8).pop())
}

const NEXT_SNAPSHOTS: &str = "select queue::pg_catalog.text from fetchq.jobs
    where next_iteration {<=} pg_catalog.now() and task {=} 'sts' and {condition}
    order by next_iteration, attempts limit $1";

/// The queues whose snapshots of metrics are due next, up to `limit`.
pub fn next_snapshots(limit: usize) -> Vec<String> {
    let sql = NEXT_SNAPSHOTS.replace("{condition}", Kind::Slow.condition());
    spi::connect(|spi| {
        let rows = spi.once(&sql, &[Arg::from(limit as i64)]);
        (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
    })
}

const GET_NEXT: &str = "select next_iteration from fetchq.jobs where {condition}
    order by next_iteration limit 1";

/// When the next job of a kind is due, in microseconds since 2000. None when there is no job.
pub fn next(kind: Kind) -> Option<i64> {
    spi::connect(|spi| {
        let rows = spi.once(&GET_NEXT.replace("{condition}", kind.condition()), &[]);
        if rows.is_empty() {
            None
        } else {
            rows.timestamp(0, 1)
        }
    })
}

// Index: the unique one of (task, queue).
const GET_MAINTENANCE: &str = "select id,
        -- As far away as when it was planned, though the clock was set back; see follow_clock().
        greatest(next_iteration, $2) {-} (greatest($2, least(coalesce(planned_at, $2), $2 {+} interval '1000 years')) {-} $2),
        settings, attempts, kills_failures, kills_until
    from fetchq.jobs where task {=} 'mnt' and queue {=} $1";

/// The job `mnt` of a queue, as the background worker runs it: without claiming it.
pub struct Maintenance {
    /// The job.
    pub job: Job,
    /// It is not to run before this time, in microseconds since 2000.
    pub not_before: i64,
    /// How many attempts have failed since it last ran.
    pub failures: i32,
    /// Until when documents that failed too often wait for their move, if that has failed.
    pub kills: Option<Wait>,
}

/// The job `mnt` of a queue. None when there is none.
pub fn maintenance_of(queue: &str) -> Option<Maintenance> {
    spi::connect(|spi| {
        let rows = spi.once(
            GET_MAINTENANCE,
            &[Arg::from(queue), Arg::timestamp(time::now())],
        );
        if rows.is_empty() {
            return None;
        }
        let job = Job {
            id: rows.get(0, 1)?,
            task: "mnt".to_owned(),
            queue: queue.to_owned(),
            settings: (!rows.is_null(0, 3)).then(|| rows.json_text(0, 3)),
        };
        Some(Maintenance {
            job,
            not_before: rows.timestamp(0, 2).unwrap_or(i64::MIN),
            failures: rows.get(0, 4).unwrap_or(0),
            kills: rows.timestamp(0, 6).map(|until| Wait {
                failures: rows.get::<i32>(0, 5).unwrap_or(0),
                until,
            }),
        })
    })
}

const TRY_LOCK: &str = "select from fetchq.jobs where id {=} $1 and (attempts {>} 0 or not $2)
    for no key update skip locked";

/// Locks a job, to record how it went. Returns false when another session has locked it, or has run it
/// since it was claimed. The caller locks the job before it opens the queue: in the order of dropping a
/// queue.
pub fn try_lock(id: i32, was_claimed: bool) -> bool {
    let args = [Arg::from(id), Arg::from(was_claimed)];
    spi::connect(|spi| spi.once(TRY_LOCK, &args).affected() > 0)
}

// A claim has counted its attempt. What failed is repeated after its delay, which doubles up to an
// hour, and what was busy after a second, which doubles up to its delay.
const RETRY: &str = "update fetchq.jobs set
        attempts = least(greatest(attempts, 0), 999999) {+} $3,
        next_iteration = pg_catalog.now() {+} case when $5 is null
            then least($2, interval '1 second' {*} pg_catalog.power(2, least(greatest(attempts, 1) {-} 1, 20)))
            else greatest($2, least($2 {*} pg_catalog.power(2, least(greatest(attempts, 0), 20) {+} $3), interval '1 hour'),
                $4 {*} interval '1 microsecond') end,
        planned_at = pg_catalog.now(),
        payload = (coalesce(payload, '{}') {-} 'busy') {||} case when $5 is null
            then '{\"busy\": true}' else pg_catalog.jsonb_build_object('error', $5) end
    where id {=} $1";

/// How a job has failed.
pub struct Failure<'a> {
    /// It stays in the payload of the job, as `error`, until the job has run.
    pub message: &'a str,
    /// The next attempt is not within this time: microseconds.
    pub pause: i64,
    /// Whether a claim has counted the attempt.
    pub is_counted: bool,
}

/// Plans the next attempt of a job with this delay, which has failed. There is no last attempt.
///
/// Without a failure another session has kept it from its work. It has not run, so all else stays as it
/// is, the attempts too, by which a lock that lasts is seen.
pub fn retry(id: i32, delay: Interval, failure: Option<&Failure>) {
    let args = [
        Arg::from(id),
        delay.arg(),
        Arg::from(i32::from(failure.is_some_and(|f| !f.is_counted))),
        Arg::from(failure.map_or(0, |f| f.pause)),
        Arg::from(failure.map(|f| f.message)),
    ];
    spi::connect(|spi| {
        spi.once(RETRY, &args);
    });
}

const RESCHEDULE: &str = "update fetchq.jobs set next_iteration = pg_catalog.now() {+} $2, planned_at = pg_catalog.now(),
        last_iteration = pg_catalog.now(), iterations = iterations {+} 1, attempts = 0,
        -- A part that waits still fails.
        payload = (payload {-} 'error' {-} 'busy') {||} pg_catalog.jsonb_strip_nulls(
            pg_catalog.jsonb_build_object('error', coalesce(kills_error, sessions_error)))
    where id {=} $1";

/// What a job notes for its next run, in its payload.
#[derive(Debug, Clone, Copy)]
pub enum Note {
    /// The subject up to which `drp` has swept the queue. Without, it begins with the first document.
    Swept,
    /// When `cmp` has counted the documents, and what there was to count.
    Counted,
}

impl Note {
    fn key(self) -> &'static str {
        match self {
            Self::Swept => "swept",
            Self::Counted => "counted",
        }
    }
}

const GET_NOTE: &str = "select payload {->>} $2 from fetchq.jobs where id {=} $1";

const SET_NOTE: &str = "update fetchq.jobs set payload = case
        when $3 is null then payload {-} $2
        else coalesce(payload, '{}') {||} pg_catalog.jsonb_build_object($2, $3) end
    where id {=} $1";

/// What a job has noted. None: nothing.
pub fn noted(id: i32, note: Note) -> Option<String> {
    spi::connect(|spi| {
        let rows = spi.once(GET_NOTE, &[Arg::from(id), Arg::from(note.key())]);
        if rows.is_empty() {
            None
        } else {
            rows.get(0, 1)
        }
    })
}

/// Notes something for the next run of a job. None: nothing.
pub fn note(id: i32, note: Note, value: Option<&str>) {
    let args = [Arg::from(id), Arg::from(note.key()), Arg::from(value)];
    spi::connect(|spi| {
        spi.once(SET_NOTE, &args);
    });
}

/// Until when documents that failed too often wait for their move to the dead-letter queue or to the
/// history, because it has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// How often it has failed without a success.
    pub failures: i32,
    /// Microseconds since 2000.
    pub until: i64,
}

// $1: the queue, $2 to $4: until when a part of its maintenance waits, its failures and its error; the
// first and the last are NULL when it no longer waits. The error of the job is that of a part, unless
// it is that of a run.
const SET_WAIT: &str = "update fetchq.jobs
    set {part}_until = $2, kills_failures = coalesce($3, kills_failures), {part}_error = $4,
        payload = (coalesce(payload, '{}') {-} 'error') {||} pg_catalog.jsonb_strip_nulls(pg_catalog.jsonb_build_object(
            'error', coalesce($4,
                case when (payload {->>} 'error') {=} {part}_error then null else payload {->>} 'error' end, {other}_error)))
    where task {=} 'mnt' and queue {=} $1";

/// A part of the maintenance of a queue's documents that can fail while the rest runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Moving documents that failed too often to the dead-letter queue or to the history.
    Kills,
    /// Extending and ending the leases that are bound to sessions.
    Sessions,
}

/// Records in the job `mnt` of a queue until when a part waits, in microseconds since 2000, how often
/// its move has failed, and the message of its error; or with None that it no longer waits. So the next
/// background worker of the database waits too.
pub fn set_wait(
    queue: &str,
    part: Part,
    until: Option<i64>,
    failures: Option<i32>,
    error: Option<&str>,
) {
    let (part, other) = match part {
        Part::Kills => ("kills", "sessions"),
        Part::Sessions => ("sessions", "kills"),
    };
    let args = [
        Arg::from(queue),
        until.map_or_else(Arg::no_timestamp, Arg::timestamp),
        Arg::from(failures),
        Arg::from(error),
    ];
    let sql = SET_WAIT.replace("{part}", part).replace("{other}", other);
    spi::connect(|spi| {
        spi.once(&sql, &args);
    });
}

const LIST_WAITS: &str = "select queue::pg_catalog.text, sessions_until from fetchq.jobs
    where task {=} 'mnt' and queue {=} any ($1) and sessions_until is not null";

/// Returns until when the bound sessions of some queues wait, in microseconds since 2000. Queues where
/// they do not wait are missing.
pub fn sessions_waits(queues: Vec<String>) -> Vec<(String, i64)> {
    spi::connect(|spi| {
        let rows = spi.once(LIST_WAITS, &[Arg::from(queues)]);
        let wait = |row| Some((rows.get(row, 1)?, rows.timestamp(row, 2)?));
        (0..rows.len()).filter_map(wait).collect()
    })
}

/// Plans the next run of a job that has run, `delay` from now on. Returns false when there is no
/// such job.
pub fn reschedule(id: i32, delay: Interval) -> bool {
    spi::connect(|spi| {
        spi.once(RESCHEDULE, &[Arg::from(id), delay.arg()])
            .affected()
            > 0
    })
}

// Both sides are of one snapshot, so a job is missing on the right only if it is locked, or was
// dropped since.
const LOCK_ALL: &str = "with mine as materialized (
        select id from fetchq.jobs where queue {<>} '*' and ($1 or queue {=} any ($2))
        order by id for update skip locked)
    select id, task, queue, settings from fetchq.jobs
    where queue {<>} '*' and ($1 or queue {=} any ($2))
        and id {<>} all (array(select id from mine))
    order by id";

/// Locks the jobs of every queue that the caller manages, so that they can be made due. Returns those
/// that other sessions have locked.
pub fn lock_all() -> Vec<Job> {
    raise(rights::over(None, Right::Manage, |queues| {
        spi::connect(|spi| Ok(jobs(&spi.once(LOCK_ALL, &queues.args()), 4)))
    }))
}

const MAKE_DUE: &str =
    "update fetchq.jobs set next_iteration = pg_catalog.now(), planned_at = pg_catalog.now()
    where id {=} any (array(
        select id from fetchq.jobs where queue {<>} '*' and ($1 or queue {=} any ($2))
        order by id for update skip locked))";

/// Makes the jobs of every queue due that the caller manages, except those that other sessions
/// have locked.
pub fn make_due() {
    raise(rights::over(None, Right::Manage, |queues| {
        spi::connect(|spi| spi.once(MAKE_DUE, &queues.args()).affected());
        Ok(())
    }));
}

const GET_QUEUE: &str = "select queue::pg_catalog.text from fetchq.jobs where id {=} $1";

/// The queue of a job, or `*`. None when there is no such job.
pub fn queue_of(id: i32) -> Option<String> {
    spi::connect(|spi| {
        let rows = spi.once(GET_QUEUE, &[Arg::from(id)]);
        (!rows.is_empty()).then(|| rows.get(0, 1)).flatten()
    })
}

const RESTART: &str = "update fetchq.jobs set attempts = 0, iterations = 0,
        next_iteration = pg_catalog.now(), planned_at = pg_catalog.now(), last_iteration = null
    where queue {=} $1";

/// Resets the jobs of a queue, and makes them due.
pub fn restart(queue: &str) {
    spi::connect(|spi| {
        spi.once(RESTART, &[Arg::from(queue)]);
    });
}
