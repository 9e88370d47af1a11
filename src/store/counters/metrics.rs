//! Metrics: reading, recounting, setting and packing them, and snapshots of them.
//!
//! The exact value of a counter is what is packed in `fetchq.metrics` plus the events in
//! `fetchq.counter_log`. Both are read in one snapshot, and every change of the two is one
//! transaction. A reader therefore never sees an event twice or not at all.

use std::collections::HashMap;

use crate::domain::counter_events;
use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::row_sink::RowSink;
use crate::pg::spi::{self, Spi};
use crate::pg::time;
use crate::pg::value::Arg;
use crate::store::counters::counter_segments::{self, pack_events};
use crate::store::counters::metrics_exact::{self, Metric, Metrics};
use crate::store::counters::recount;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right, Scope};
use crate::store::queues::statement::render;

// $1: the names of the metrics, $2: their values, $3: when they were read.
const SNAP: &str = "insert into {metrics} (metric, value, created_at)
    select m.metric, m.value, $3
    from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) with ordinality as m (metric, value, n)
    order by m.n";

/// Which metrics of a queue a snapshot has.
pub enum SnapshotOf<'a> {
    /// All of them.
    All,
    /// This one, as 0 when it does not exist.
    One(&'a str),
    /// Those of the list that exist.
    Some(Vec<String>),
}

/// Takes a snapshot of the metrics of a queue, as they were at a time or as they are. Returns how many rows
/// it wrote.
pub fn snap(name: &QueueName, which: SnapshotOf, at: Option<(Metrics, i64)>) -> i32 {
    let (mut metrics, at) = at.unwrap_or_else(|| (metrics_exact::read(name), time::now()));
    match which {
        SnapshotOf::All => {}
        SnapshotOf::One(metric) => {
            metrics.retain(|name, _| name == metric);
            metrics.entry(metric.to_owned()).or_default();
        }
        SnapshotOf::Some(wanted) => metrics.retain(|name, _| wanted.contains(name)),
    }
    let values: Vec<i64> = metrics.values().map(|metric| metric.value).collect();
    let names: Vec<String> = metrics.into_keys().collect();
    let args = [Arg::from(names), Arg::from(values), Arg::timestamp(at)];
    spi::connect(|spi| spi.once(&render(SNAP, name), &args).affected())
}

/// A metric of a queue. None when it does not exist.
pub fn get(queue: &QueueName, metric: &str) -> Option<Metric> {
    metrics_exact::read(queue).remove(metric)
}

const GET_TOTAL: &str = "select pg_catalog.sum(value)::bigint from fetchq.metrics_exact
    where metric {=} $1 and ($2 or queue {=} any ($3))";

/// The sum of a metric over these queues. None when no queue has it.
pub fn total(metric: &str, scope: &Scope) -> Option<i64> {
    let [is_everything, queues] = scope.args();
    let args = [Arg::from(metric), is_everything, queues];
    spi::connect(|spi| spi.once(GET_TOTAL, &args).get(0, 1))
}

/// The values of some metrics of a queue, in the order of the list; 0 for one that does not
/// exist.
pub fn get_many(queue: &QueueName, metrics: &[&str]) -> Vec<i64> {
    let all = metrics_exact::read(queue);
    let value = |metric: &&str| all.get(*metric).map_or(0, |found| found.value);
    metrics.iter().map(value).collect()
}

const GET_MANY_OF_ALL: &str =
    "select queue::pg_catalog.text, metric::pg_catalog.text, value from fetchq.metrics_exact
    where metric {=} any ($1)";

/// The values of some metrics of each queue on which the caller has a right, in the order of the list;
/// 0 for one that does not exist.
///
/// Fails as `rights::over` does.
pub fn get_many_of_all(metrics: &[&str]) -> Result<Vec<(QueueName, Vec<i64>)>> {
    rights::over(None, Right::Any, |queues| {
        let names = queues.names();
        let mut all: HashMap<String, Vec<i64>> = HashMap::new();
        spi::connect(|spi| {
            let rows = spi.once(GET_MANY_OF_ALL, &[Arg::from(metrics.to_vec())]);
            for row in 0..rows.len() {
                if let (Some(queue), Some(metric), Some(value)) = (
                    rows.get::<String>(row, 1),
                    rows.get::<String>(row, 2),
                    rows.get::<i64>(row, 3),
                ) && let Some(at) = metrics.iter().position(|m| *m == metric)
                {
                    all.entry(queue).or_insert_with(|| vec![0; metrics.len()])[at] = value;
                }
            }
        });
        let values = names.into_iter().map(|name| {
            let values = all.remove(name.as_str());
            (name, values.unwrap_or_else(|| vec![0; metrics.len()]))
        });
        Ok(values.collect())
    })
}

const COUNT_DOCUMENTS: &str = "select
        pg_catalog.count(*),
        pg_catalog.count(*) filter (where status {=} {planned}),
        pg_catalog.count(*) filter (where status {=} {pending}),
        pg_catalog.count(*) filter (where status {=} {active}),
        pg_catalog.count(*) filter (where status {=} {completed}),
        pg_catalog.count(*) filter (where status {=} {killed})
    from only {docs}";

/// Counts the documents of a queue: all of them, and those of each status, in the order of
/// `counter_events::GAUGES`.
pub fn count(name: &QueueName) -> Vec<i64> {
    spi::connect(|spi| {
        let rows = spi.once(&render(COUNT_DOCUMENTS, name), &[]);
        (1..=6).map(|c| rows.get(0, c).unwrap_or(0)).collect()
    })
}

const DELETE_METRICS: &str = "delete from fetchq.metrics where queue {=} $1";

// The documents are counted and the events removed in one snapshot: an event that is not seen
// here belongs to a change of a document that was not counted either.
const STORE_COUNTED: &str = "with
    removed as (delete from fetchq.counter_log where queue_id {=} $2),
    groups as (select status, version, pg_catalog.count(*) as n from only {docs} group by status, version),
    {others}
    insert into fetchq.metrics (queue, metric, value, updated_at)
    select $1, metric, n, pg_catalog.now() from (
        {gauges}
    ) c
    order by metric
    on conflict (queue, metric) do update
        set value = excluded.value, updated_at = excluded.updated_at";

/// Removes all metrics and histograms of a queue and stores its gauges as counted. Returns them in the order of
/// `counter_events::GAUGES`. Fails with `Error::UnknownQueue`.
pub fn reset(name: &QueueName) -> Result<Vec<i64>> {
    spi::connect(|spi| {
        let id = queue::lock(spi, name)?;
        let key = Arg::from(name.as_str());
        spi.once(DELETE_METRICS, &[key]);
        spi.once(queue::DELETE_TIMINGS, &[Arg::from(id)]);
        spi.once(
            &recount::render_counting(STORE_COUNTED, name),
            &[key, Arg::from(id)],
        );
        Ok::<(), crate::error::Error>(())
    })?;
    Ok(get_many(name, &counter_events::GAUGES))
}

// $3: the new value. What is stored is the difference to the events that are not packed yet.
const SET: &str = "update fetchq.metrics set value = $3 {-} (
        select coalesce(pg_catalog.sum(l.n {*} e.sign), 0)
        from fetchq.counter_tail l
        join fetchq.counter_events e on e.event {=} l.event
        join fetchq.queues q on q.id {=} l.queue_id
        where q.name {=} $1
            and case when e.metric {<>} 'v' then e.metric
                when exists (select from fetchq.metrics m where m.queue {=} $1 and m.metric {=} 'v_other')
                    and not exists (
                        select from fetchq.metrics m
                        where m.queue {=} $1 and m.metric {=} ('v' {||} l.version))
                then 'v_other' else 'v' {||} l.version end {=} $2
    ), updated_at = pg_catalog.now()
    where queue {=} $1 and metric {=} $2";

const INCREMENT: &str =
    "update fetchq.metrics set value = value {+} $3, updated_at = pg_catalog.now()
    where queue {=} $1 and metric {=} $2";

// Run only when the update finds no row: an insert that ends in a conflict uses up an id each
// time.
const CREATE: &str = "insert into fetchq.metrics (queue, metric, value, updated_at)
    values ($1, $2, 0, pg_catalog.now()) on conflict (queue, metric) do nothing";

// Several writers can have this lock. It keeps packs, recounts and drops of the queue away.
const LOCK_QUEUE: &str = "select from fetchq.queues where name {=} $1 for share";

/// Sets a metric at once. Returns its value, and whether it is new. A pack is kept away,
/// because it would change the events whose difference is stored.
pub fn set(queue: &QueueName, metric: &str, value: i32) -> (i64, bool) {
    spi::connect(|spi| {
        spi.once(LOCK_QUEUE, &[Arg::from(queue.as_str())]);
    });
    write(queue, metric, value, SET)
}

/// Adds to a metric at once. Returns its value, and whether it is new.
pub fn increment(queue: &QueueName, metric: &str, value: i32) -> (i64, bool) {
    write(queue, metric, value, INCREMENT)
}

fn write(queue: &QueueName, metric: &str, value: i32, sql: &str) -> (i64, bool) {
    let is_new = get(queue, metric).is_none();
    spi::connect(|spi| {
        let key = [Arg::from(queue.as_str()), Arg::from(metric)];
        let args = [key[0], key[1], Arg::from(i64::from(value))];
        if spi.once(sql, &args).affected() == 0 {
            // A pack that finds the registry row locked skips this queue. Otherwise it would
            // wait for a row that it cannot see yet.
            spi.once(LOCK_QUEUE, &[key[0]]);
            spi.once(CREATE, &key);
            spi.once(sql, &args);
        }
    });
    (get(queue, metric).map_or(0, |m| m.value), is_new)
}

const LOG_INCREMENT: &str =
    "insert into fetchq.metrics_writes (queue, metric, increment) values ($1, $2, $3)";

const LOG_SET: &str =
    "insert into fetchq.metrics_writes (queue, metric, reset) values ($1, $2, $3)";

/// Logs an increment, which the next pack applies. Returns how many rows were logged: none for
/// an increment of 0.
pub fn log_increment(queue: &QueueName, metric: &str, value: i64) -> i32 {
    if value == 0 {
        return 0;
    }
    log(queue, metric, value, LOG_INCREMENT)
}

/// Logs a new value, which the next pack applies. Returns how many rows were logged.
pub fn log_set(queue: &QueueName, metric: &str, value: i64) -> i32 {
    log(queue, metric, value, LOG_SET)
}

fn log(queue: &QueueName, metric: &str, value: i64, sql: &str) -> i32 {
    spi::connect(|spi| {
        let args = [
            Arg::from(queue.as_str()),
            Arg::from(metric),
            Arg::from(value),
        ];
        spi.once(sql, &args).affected()
    })
}

// The log of `metric_log_*`: the newest reset of a metric, and the increments since. $1, $2: the
// metrics that are locked, $3: the queues whose registry rows are.
const PACK_WRITES: &str = "with
    taken as (
        delete from fetchq.metrics_writes
        where ctid {=} any (array(
            select w.ctid from fetchq.metrics_writes w
            where w.created_at {<=} pg_catalog.now()
                and not exists (
                    select from fetchq.queues q
                    where q.name {=} w.queue and q.name {<>} all ($3))
                and not exists (
                    select from fetchq.metrics m
                    where m.queue {=} w.queue and m.metric {=} w.metric
                        and not ((m.queue, m.metric) {=} any (
                            select f.queue, f.metric
                            from rows from (pg_catalog.unnest($1), pg_catalog.unnest($2)) as f (queue, metric))))
            for update skip locked))
        returning created_at, queue, metric, increment, reset
    ),
    resets as (
        select distinct on (queue, metric) queue, metric, reset, created_at from taken
        where reset is not null order by queue, metric, created_at desc
    ),
    sums as (
        select t.queue, t.metric, r.reset,
            coalesce(pg_catalog.sum(t.increment) filter (
                where r.created_at is null or t.created_at {>=} r.created_at), 0)::bigint as delta
        from taken t left join resets r on r.queue {=} t.queue and r.metric {=} t.metric
        group by t.queue, t.metric, r.reset
    ),
    updated as (
        update fetchq.metrics m
        set value = coalesce(s.reset, m.value) {+} s.delta, updated_at = pg_catalog.now()
        from sums s where m.queue {=} s.queue and m.metric {=} s.metric
        returning m.queue, m.metric
    ),
    added as (
        insert into fetchq.metrics as m (queue, metric, value, updated_at)
        select s.queue, s.metric, coalesce(s.reset, 0) {+} s.delta, pg_catalog.now() from sums s
        where not exists (
            select from updated u where u.queue {=} s.queue and u.metric {=} s.metric)
        order by s.queue, s.metric
        on conflict (queue, metric) do update
            set value = coalesce((
                    select s.reset from sums s
                    where s.queue {=} m.queue and s.metric {=} m.metric), m.value)
                {+} (
                    select s.delta from sums s
                    where s.queue {=} m.queue and s.metric {=} m.metric),
                updated_at = excluded.updated_at
    )
    select pg_catalog.count(*) from taken";

// The registry row is locked, because a metric that another session has just made, and not
// committed, cannot be seen, only waited for.
const LOCK_WRITTEN_QUEUES: &str = "select q.name::pg_catalog.text from fetchq.queues q
    where q.name {=} any (select queue from fetchq.metrics_writes)
    order by q.id
    for no key update skip locked";

const LOCK_WRITTEN_METRICS: &str =
    "select coalesce(pg_catalog.array_agg(queue::pg_catalog.text), '{}'), coalesce(pg_catalog.array_agg(metric::pg_catalog.text), '{}')
    from (
        select m.queue, m.metric from fetchq.metrics m
        where exists (
            select from fetchq.metrics_writes w
            where w.queue {=} m.queue and w.metric {=} m.metric)
        order by m.queue, m.metric
        for update skip locked) free";

/// Packs the counter events and the logged writes of all queues into `fetchq.metrics`. Returns
/// how many rows were packed. The rows of queues that other sessions have locked are left to the next
/// pack. Busy, with the logged writes alone, while another session packs the events.
pub fn pack() -> (i64, Ran<()>) {
    spi::connect(|spi| {
        let mut packed = 0;
        let ran = pack_events(spi).map(|events| packed += events);
        (packed + pack_writes(spi), ran)
    })
}

/// Truncates packed segments of the counter log, at the end of a transaction. `is_in_block`: the
/// transaction goes on after this statement.
pub fn truncate_packed(is_in_block: bool) {
    spi::connect(|spi| counter_segments::truncate_packed(spi, is_in_block));
}

fn pack_writes(spi: &Spi) -> i64 {
    let rows = spi.once(LOCK_WRITTEN_QUEUES, &[]);
    let free: Vec<String> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    let rows = spi.once(LOCK_WRITTEN_METRICS, &[]);
    let queues: Vec<String> = rows.get(0, 1).unwrap_or_default();
    let metrics: Vec<String> = rows.get(0, 2).unwrap_or_default();
    let args = [Arg::from(queues), Arg::from(metrics), Arg::from(free)];
    spi.once(PACK_WRITES, &args).get(0, 1).unwrap_or(0)
}

/// Adds all metrics of a queue to a result, exact at this moment: name, value, and the time
/// of the last update. They are sorted by the bytes of their names.
pub fn list(queue: &QueueName, out: &mut RowSink) {
    for (name, metric) in metrics_exact::read(queue) {
        let updated_at = metric
            .updated_at
            .map_or_else(Arg::no_timestamp, Arg::timestamp);
        out.push(&[
            Arg::from(name.as_str()),
            Arg::from(metric.value),
            updated_at,
        ]);
    }
}

/// Counts the documents of a queue, in the order of `domain::counter_events::GAUGES`. Reads
/// the whole table. Fails with `UnknownQueue` when there is no such queue.
pub fn compute(name: &QueueName) -> Result<Vec<i64>> {
    queue::id(name)?;
    Ok(count(name))
}

// Index: (created_at). $1: the names of the metrics, $2 and $3: the time from which on and before which,
// NULL for no bound.
const SNAPSHOTS: &str = "select s.created_at, s.metric, s.value from only {metrics} s
    where s.created_at {>=} $2 and ($3 is null or s.created_at {<} $3)
        and ($1 is null or s.metric {=} any ($1))
    order by s.created_at, s.metric, s.id";

// $4: the step in microseconds. Steps are counted from the beginning of the year 2000 in UTC.
const SNAPSHOTS_BY_STEP: &str = "select
        pg_catalog.timestamptz '2000-01-01 00:00:00+00'
            {+} ((x.at {-} (x.at {%} $4)) {*} interval '1 microsecond'),
        x.metric, x.value
    from (
        select distinct on (s.at {/} $4, s.metric) s.at, s.metric, s.value
        from (
            select (extract(epoch from (m.created_at {-} pg_catalog.timestamptz '2000-01-01 00:00:00+00'))
                    {*} 1000000)::bigint as at,
                m.metric, m.value, m.id
            from only {metrics} m
            where m.created_at {>=} $2 and ($3 is null or m.created_at {<} $3)
                and m.created_at {>=} pg_catalog.timestamptz '2000-01-01 00:00:00+00' and pg_catalog.isfinite(m.created_at)
                and ($1 is null or m.metric {=} any ($1))) s
        order by s.at {/} $4, s.metric, s.at desc, s.id desc) x
    order by 1, 2";

/// Which snapshots of the metrics of a queue are read. Times are in microseconds since 2000.
pub struct Snapshots {
    /// Only these metrics. None: all.
    pub metrics: Option<Vec<String>>,
    /// From this time on.
    pub since: i64,
    /// Before this time. None: all later ones.
    pub until: Option<i64>,
    /// Only the last one of each step of as many microseconds.
    pub step: Option<i64>,
}

/// Adds the snapshots of the metrics of a queue to a result: the time, the metric and its value. With a
/// step the time is the beginning of the step.
///
/// Fails with `Error::UnknownQueue`.
pub fn snapshots(name: &QueueName, wanted: Snapshots, out: &mut RowSink) -> Result<()> {
    queue::id(name)?;
    let mut args = vec![
        Arg::from(wanted.metrics),
        Arg::timestamp(wanted.since),
        wanted.until.map_or_else(Arg::no_timestamp, Arg::timestamp),
    ];
    let sql = match wanted.step {
        None => SNAPSHOTS,
        Some(step) => {
            args.push(Arg::from(step));
            SNAPSHOTS_BY_STEP
        }
    };
    spi::connect(|spi| out.extend(&spi.once(&render(sql, name), &args)));
    Ok(())
}
