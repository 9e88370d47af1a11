//! Counting the documents of a queue again, to repair its gauges.

use crate::domain::jobs::Ran;
use crate::domain::names::QueueName;
use crate::error::Result;
use crate::pg::spi;
use crate::pg::value::Arg;
use crate::pg::{lock_wait, subtransaction};
use crate::store::counters::counter_segments::with_room;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::queue;
use crate::store::queues::statement::render;

// The gauges, from `groups (status, version, n)`, which has the counted documents, and
// `others (version)`, which are counted together.
const GAUGES_OF_GROUPS: &str = "select 'cnt' as metric, coalesce(pg_catalog.sum(n), 0) as n from groups
    union all select 'pln', coalesce(pg_catalog.sum(n) filter (where status {=} {planned}), 0) from groups
    union all select 'pnd', coalesce(pg_catalog.sum(n) filter (where status {=} {pending}), 0) from groups
    union all select 'act', coalesce(pg_catalog.sum(n) filter (where status {=} {active}), 0) from groups
    union all select 'cpl', coalesce(pg_catalog.sum(n) filter (where status {=} {completed}), 0) from groups
    union all select 'kll', coalesce(pg_catalog.sum(n) filter (where status {=} {killed}), 0) from groups
    union all select case when o.version is null then 'v' {||} g.version else 'v_other' end, pg_catalog.sum(g.n)
        from groups g left join others o on o.version {=} g.version group by 1";

// `events (version, event, n)`, the events of a queue that are not packed, in one pass over those of all
// queues, and `others (version)`, the versions beyond those that a queue counts one by one, from `groups`.
// $1: the queue, $2: its id.
const OTHERS: &str = "events as materialized (
        select l.version, l.event, pg_catalog.sum(l.n)::bigint as n from fetchq.counter_tail l
        where l.queue_id {=} $2
        group by 1, 2
    ),
    others as materialized (
        select x.version
        from (
            select k.version, pg_catalog.row_number() over (order by k.version) as n
            from (
                select version from groups
                union select l.version from events l) k
            where not exists (
                select from fetchq.metrics m
                where m.queue {=} $1 and m.metric {=} ('v' {||} k.version))) x
        where x.n {>} (select r.n from (select $1 as queue) f cross join lateral ({room}) r)
    )";

/// Renders a statement that counts the documents of a queue: `{gauges}` and `{others}`.
pub(in crate::store) fn render_counting(sql: &str, name: &QueueName) -> String {
    let sql = sql.replace("{gauges}", GAUGES_OF_GROUPS);
    render(&with_room(&sql.replace("{others}", OTHERS)), name)
}

// The counted gauges of a queue, v<version> among them, beside the events that are not packed
// yet, in one snapshot. The difference is stored, so that the sum is exact.
const RECOUNT: &str = "with
    groups as (
        select status, version, pg_catalog.count(*) as n from only {docs} group by status, version
    ),
    {others},
    tail as (
        select case when e.metric {<>} 'v' then e.metric
                when o.version is not null then 'v_other' else 'v' {||} l.version end as metric,
            pg_catalog.sum(l.n {*} e.sign)::bigint as n
        from events l
        join fetchq.counter_events e on e.event {=} l.event
        left join others o on o.version {=} l.version
        group by 1
    ),
    counted as (
        {gauges}
        union all select v.metric, 0 from (
            select m.metric from fetchq.metrics m where m.queue {=} $1
            union select t.metric from tail t) v
            where v.metric {~} '^v(0|-?[1-9][0-9]{0,9}|_other)$'
                and not (v.metric {=} any (
                    select case when o.version is null then 'v' {||} g.version else 'v_other' end
                    from groups g left join others o on o.version {=} g.version))
    )
    insert into fetchq.metrics as m (queue, metric, value, updated_at)
    select $1, c.metric, c.n {-} coalesce(t.n, 0), pg_catalog.now()
    from counted c left join tail t on t.metric {=} c.metric
    order by c.metric
    on conflict (queue, metric) do update
        set value = excluded.value, updated_at = excluded.updated_at
        where m.value {<>} excluded.value";

/// Returns whether the gauges of a queue are there: somebody may have deleted them.
pub fn has_gauges(name: &QueueName) -> bool {
    const FIND: &str = "select from fetchq.metrics m where m.queue {=} $1 and m.metric {=} 'cnt'";
    spi::connect(|spi| !spi.once(FIND, &[Arg::from(name.as_str())]).is_empty())
}

/// Recounts the gauges of a queue and repairs those that differ. Returns how many did. Busy while
/// another session changes the queue or its counters. Fails with `Error::UnknownQueue`.
pub fn recount(name: &QueueName) -> Result<Ran<i32>> {
    let Some(id) = lock_wait::retry(|| lock_to_recount(name))? else {
        return Ok(Ran::Busy);
    };
    spi::connect(|spi| {
        let args = [Arg::from(name.as_str()), Arg::from(id)];
        let recounted = spi.once(&render_counting(RECOUNT, name), &args);
        Ok(Ran::Done(recounted.affected()))
    })
}

// Locks the metrics of a queue. $1: its name. The row says whether no other session has locked one.
const LOCK_METRICS: &str = "with
    free as materialized (
        select m.metric from fetchq.metrics m where m.queue {=} $1
        order by m.metric
        for update skip locked)
    select not exists (
        select from fetchq.metrics m where m.queue {=} $1
            and not exists (select from free f where f.metric {=} m.metric))";

/// Locks the registry row of a queue, all of its metrics and its documents, or nothing. Returns its
/// id; None when another session has locked one of them.
fn lock_to_recount(name: &QueueName) -> Result<Option<i32>> {
    subtransaction::roll_back_unless_kept(|| {
        let locked = spi::connect(|spi| {
            let Some(id) = queue::try_lock(spi, name)? else {
                return Ok(None);
            };
            let rows = spi.once(LOCK_METRICS, &[Arg::from(name.as_str())]);
            let is_free = rows.get(0, 1) == Some(true);
            Ok((is_free && Queue::try_open(name)?.is_some()).then_some(id))
        });
        let is_kept = matches!(locked, Ok(Some(_)));
        (locked, is_kept)
    })
}
