//! The rows of `fetchq.schedules`: adding, changing, listing and claiming schedules. All points
//! in time are in microseconds since 2000.

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::pg::json::Jsonb;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Rows};
use crate::pg::time::Interval;
use crate::pg::value::Arg;
use crate::store::queues::rights::Scope;

/// When a schedule ticks: a cron expression or an interval, as its author gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Timing {
    /// A cron expression.
    Cron(String),
    /// An interval: months, days and microseconds.
    Every(i32, i32, i64),
}

/// A schedule as the caller wants it. Either `cron` or `every` has a value.
pub struct NewSchedule<'a> {
    /// Its name.
    pub name: &'a str,
    /// The queue that it pushes documents into.
    pub queue: &'a QueueName,
    /// The text that says when it ticks, for errors.
    pub given: &'a str,
    /// The cron expression.
    pub cron: Option<&'a str>,
    /// The interval between two ticks.
    pub every: Option<Interval>,
    /// The time zone in which the cron expression is read.
    pub timezone: &'a str,
    /// The payload of the documents.
    pub payload: Jsonb,
    /// The headers of the documents.
    pub headers: Option<Jsonb>,
    /// The version of the documents.
    pub version: i32,
    /// The priority of the documents.
    pub priority: i32,
    /// What happens to ticks that were missed: `skip`, `once` or `all`.
    pub catch_up: &'a str,
    /// How many missed ticks are pushed at most.
    pub catch_up_limit: i32,
    /// By how much a document may be delayed at random.
    pub jitter: Interval,
    /// There is no tick before this time.
    pub starts_at: Option<i64>,
    /// There is no tick after this time.
    pub ends_at: Option<i64>,
    /// The role that makes the schedule, whose rights it needs to push.
    pub made_by: Oid,
    /// The deployment that declares it. A schedule that exists keeps its owner.
    pub owner: Option<&'a str>,
}

impl NewSchedule<'_> {
    pub(super) fn args(&self, anchor: i64, next_tick: i64) -> [Arg; 18] {
        [
            Arg::from(self.name),
            Arg::from(self.queue.as_str()),
            Arg::from(self.cron),
            self.every.map_or_else(Interval::none, Interval::arg),
            Arg::from(self.timezone),
            Jsonb::arg(Some(self.payload)),
            Arg::from(self.version),
            Arg::from(self.priority),
            Arg::from(self.catch_up),
            Arg::from(self.catch_up_limit),
            self.jitter.arg(),
            opt_time(self.starts_at),
            opt_time(self.ends_at),
            Arg::timestamp(anchor),
            Arg::timestamp(next_tick),
            Arg::oid(self.made_by),
            Jsonb::arg(self.headers),
            Arg::from(self.owner),
        ]
    }
}

fn opt_time(time: Option<i64>) -> Arg {
    time.map_or_else(Arg::no_timestamp, Arg::timestamp)
}

const INSERT: &str = "insert into fetchq.schedules
        (name, queue, cron, every, timezone, payload, version, priority, catch_up, catch_up_limit,
        jitter, starts_at, ends_at, anchor, next_tick, due_at, made_by, headers, owner)
    values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $15, $16::pg_catalog.regrole,
        $17, $18)
    on conflict (name) do nothing";

/// Adds a schedule. `anchor`: from when on intervals are counted. Returns false when a schedule
/// of that name exists.
pub fn insert(wanted: &NewSchedule, anchor: i64, next_tick: i64) -> bool {
    spi::connect(|spi| spi.once(INSERT, &wanted.args(anchor, next_tick)).affected() > 0)
}

const REPLACE: &str = "update fetchq.schedules
    set queue = $2, cron = $3, every = $4, timezone = $5, payload = $6, version = $7, priority = $8,
        catch_up = $9, catch_up_limit = $10, jitter = $11, starts_at = $12, ends_at = $13,
        anchor = $14, next_tick = $15, due_at = $15, attempts = 0, last_error = null,
        made_by = $16::pg_catalog.regrole, headers = $17
    where name {=} $1";

/// Changes a schedule that the caller has locked.
pub fn replace(wanted: &NewSchedule, anchor: i64, next_tick: i64) {
    spi::connect(|spi| {
        spi.once(REPLACE, &wanted.args(anchor, next_tick));
    });
}

/// A schedule that exists, locked until the transaction ends.
pub struct LockedSchedule {
    /// When it ticks.
    pub timing: Timing,
    /// The time zone in which a cron expression is read.
    pub timezone: String,
    /// There is no tick before this time.
    pub starts_at: Option<i64>,
    /// There is no tick after this time.
    pub ends_at: Option<i64>,
    /// From when on intervals are counted.
    pub anchor: i64,
    /// The next tick; None when it has ended.
    pub next_tick: Option<i64>,
    /// The last tick that was pushed.
    pub last_tick: Option<i64>,
    /// False while it is paused.
    pub is_active: bool,
    /// How many attempts at its next tick have failed.
    pub attempts: i32,
}

const LOCK: &str = "select cron, every, timezone, starts_at, ends_at, anchor, next_tick, last_tick,
        is_active, attempts
    from fetchq.schedules where name {=} $1 for update";

/// Locks a schedule until the transaction ends. None when there is none of that name.
pub fn lock(name: &str) -> Option<LockedSchedule> {
    spi::connect(|spi| {
        let rows = spi.once(LOCK, &[Arg::from(name)]);
        if rows.is_empty() {
            return None;
        }
        Some(LockedSchedule {
            timing: timing(&rows, 1)?,
            timezone: rows.get(0, 3)?,
            starts_at: rows.timestamp(0, 4),
            ends_at: rows.timestamp(0, 5),
            anchor: rows.timestamp(0, 6)?,
            next_tick: rows.timestamp(0, 7),
            last_tick: rows.timestamp(0, 8),
            is_active: rows.get(0, 9)?,
            attempts: rows.get(0, 10)?,
        })
    })
}

/// Reads the columns `cron` and `every`, from a column on. A constraint makes one of them NULL.
fn timing(rows: &Rows, column: i32) -> Option<Timing> {
    match rows.get(0, column) {
        Some(cron) => Some(Timing::Cron(cron)),
        None => {
            let (months, days, micros) = rows.interval(0, column + 1)?;
            Some(Timing::Every(months, days, micros))
        }
    }
}

const DROP: &str = "delete from fetchq.schedules where name {=} $1";

/// Drops a schedule. Returns false when there is none of that name.
pub fn drop(name: &str) -> bool {
    spi::connect(|spi| spi.once(DROP, &[Arg::from(name)]).affected() > 0)
}

const PAUSE: &str = "update fetchq.schedules set is_active = false where name {=} $1";

/// Pauses a schedule.
pub fn pause(name: &str) {
    spi::connect(|spi| {
        spi.once(PAUSE, &[Arg::from(name)]);
    });
}

const RESUME: &str = "update fetchq.schedules
    set is_active = true, next_tick = $2, due_at = $2, attempts = 0, last_error = null
    where name {=} $1";

/// Resumes a schedule with its next tick; None when it has ended.
pub fn resume(name: &str, next_tick: Option<i64>) {
    spi::connect(|spi| {
        spi.once(RESUME, &[Arg::from(name), opt_time(next_tick)]);
    });
}

/// The rows of `schedule_list`. The interval style is verbose there, so that intervals begin
/// with "@ ".
pub const LIST: &str =
    "select name, queue, coalesce(cron, 'every ' {||} pg_catalog.substr(every::pg_catalog.text, 3)), timezone,
        case when not is_active then 'paused' when next_tick is null then 'ended'
            when attempts {>} 0 then 'failing' else 'active' end,
        next_tick, last_tick, ticks, catch_up, catch_up_limit, jitter, version, priority, payload,
        headers, starts_at, ends_at, created_at, attempts, last_error, owner
    from fetchq.schedules where $1 or queue {=} any ($2) order by name collate pg_catalog.\"C\"";

/// A schedule that is due, locked until the transaction ends.
pub struct DueSchedule {
    /// Its name.
    pub name: String,
    /// The queue that it pushes documents into.
    pub queue: String,
    /// When it ticks.
    pub timing: Timing,
    /// The time zone in which a cron expression is read.
    pub timezone: String,
    /// The payload of the documents, as JSON text.
    pub payload: String,
    /// The headers of the documents, as JSON text.
    pub headers: Option<String>,
    /// The version of the documents.
    pub version: i32,
    /// The priority of the documents.
    pub priority: i32,
    /// What happens to ticks that were missed: `skip`, `once` or `all`.
    pub catch_up: String,
    /// How many missed ticks are pushed at most.
    pub catch_up_limit: i32,
    /// By how much a document may be delayed at random: months, days and microseconds.
    pub jitter: (i32, i32, i64),
    /// There is no tick after this time.
    pub ends_at: Option<i64>,
    /// From when on intervals are counted.
    pub anchor: i64,
    /// The tick that is due.
    pub next_tick: i64,
    /// The role that made it.
    pub made_by: Oid,
}

// Index: schedules_due_idx. The row stays locked until its document is pushed. Another session
// skips a locked row, so that no tick is pushed twice.
const CLAIM: &str =
    "select name, queue, cron, every, timezone, payload, version, priority, catch_up,
        catch_up_limit, jitter, ends_at, anchor, next_tick, made_by::pg_catalog.oid, headers
    from fetchq.schedules
    where is_active and due_at {<=} $1 and next_tick {<=} $1 and ($2 or queue {=} any ($3))
    order by due_at
    limit 1
    for update skip locked";

/// Locks the schedule of these queues that has been due for the longest time, as of `now`. None when
/// none is due, or other sessions have locked those that are.
pub fn claim(now: i64, scope: &Scope) -> Option<DueSchedule> {
    let [is_everything, queues] = scope.args();
    let args = [Arg::timestamp(now), is_everything, queues];
    spi::connect(|spi| due_schedule(&spi.once(CLAIM, &args)))
}

// The row is locked already.
const GET: &str = "select name, queue, cron, every, timezone, payload, version, priority, catch_up,
        catch_up_limit, jitter, ends_at, anchor, coalesce(next_tick, pg_catalog.now()), made_by::pg_catalog.oid, headers
    from fetchq.schedules
    where name {=} $1";

/// A schedule as if it was due. One that has ended ticks now. None when there is none of that name.
pub fn get(name: &str) -> Option<DueSchedule> {
    spi::connect(|spi| due_schedule(&spi.once(GET, &[Arg::from(name)])))
}

/// Reads the row of `CLAIM` or `GET`.
fn due_schedule(rows: &Rows) -> Option<DueSchedule> {
    if rows.is_empty() {
        return None;
    }
    Some(DueSchedule {
        name: rows.get(0, 1)?,
        queue: rows.get(0, 2)?,
        timing: timing(rows, 3)?,
        timezone: rows.get(0, 5)?,
        payload: rows.json_text(0, 6),
        version: rows.get(0, 7)?,
        priority: rows.get(0, 8)?,
        catch_up: rows.get(0, 9)?,
        catch_up_limit: rows.get(0, 10)?,
        jitter: rows.interval(0, 11)?,
        ends_at: rows.timestamp(0, 12),
        anchor: rows.timestamp(0, 13)?,
        next_tick: rows.timestamp(0, 14)?,
        made_by: rows.get(0, 15)?,
        headers: rows.json(0, 16).map(|headers| headers.to_text()),
    })
}

const MOVE_ON: &str = "update fetchq.schedules
    set next_tick = $2, due_at = $2, last_tick = coalesce($3, last_tick),
        ticks = ticks {+} $4, attempts = 0, last_error = null
    where name {=} $1";

/// Notes the last one of `n` ticks that were pushed, and the next tick; None when it has ended.
pub fn move_on(name: &str, next_tick: Option<i64>, last_tick: Option<i64>, n: i64) {
    spi::connect(|spi| {
        let args = [
            Arg::from(name),
            opt_time(next_tick),
            opt_time(last_tick),
            Arg::from(n),
        ];
        spi.once(MOVE_ON, &args);
    });
}

const BACK_OFF: &str = "update fetchq.schedules
    set due_at = $2 {+} least(
            greatest(
                interval '1 second' {*} pg_catalog.power(2, least(attempts, 20)),
                $4 {*} interval '1 microsecond'),
            interval '1 hour'),
        attempts = least(attempts {+} 1, 1000000), last_error = $3
    where name {=} $1";

/// Plans the next attempt after a failure: after a second, which is doubled with each failure,
/// up to an hour, and not within `pause` microseconds. There is no last attempt.
pub fn back_off(name: &str, now: i64, message: &str, pause: i64) {
    spi::connect(|spi| {
        let args = [
            Arg::from(name),
            Arg::timestamp(now),
            Arg::from(message),
            Arg::from(pause),
        ];
        spi.once(BACK_OFF, &args);
    });
}

const POSTPONE: &str = "update fetchq.schedules set due_at = $2 where name {=} $1";

/// Delays the next attempt until a time, without counting a failure.
pub fn postpone(name: &str, until: i64) {
    spi::connect(|spi| {
        spi.once(POSTPONE, &[Arg::from(name), Arg::timestamp(until)]);
    });
}

// Index: schedules_due_idx.
const GET_NEXT_DUE: &str = "select due_at from fetchq.schedules
    where is_active and due_at is not null order by due_at limit 1";

/// When the next schedule is due. None when none is active.
pub fn next_due() -> Option<i64> {
    spi::connect(|spi| {
        let rows = spi.once(GET_NEXT_DUE, &[]);
        if rows.is_empty() {
            None
        } else {
            rows.timestamp(0, 1)
        }
    })
}

/// Adds the schedules of these queues to a result, by name.
pub fn list(queues: &Scope, out: &mut RowSink) {
    spi::connect(|spi| out.extend(&spi.once(LIST, &queues.args())));
}

const GET_QUEUE: &str = "select queue::pg_catalog.text from fetchq.schedules where name {=} $1";

/// The queue of a schedule. None when there is no schedule of that name.
pub fn queue_of(name: &str) -> Option<String> {
    spi::connect(|spi| {
        let rows = spi.once(GET_QUEUE, &[Arg::from(name)]);
        (!rows.is_empty()).then(|| rows.get(0, 1)).flatten()
    })
}
