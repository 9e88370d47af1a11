//! The segments of the counter log, and the pack, which adds counter events up into
//! `fetchq.metrics` and, with their times, in `fetchq.timings`.
//!
//! A small segment is packed by deleting its rows. A segment that has grown is packed as a
//! whole: its writers go on with the next segment, its events are added up and it is marked
//! as packed in the same transaction, and it is truncated once every snapshot knows that it
//! is packed. So a snapshot sees each event either in its segment or in the metrics, never
//! in both, and events that were packed are never read again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;

use pgrx::pg_sys::{Datum, Oid, TransactionId};

use crate::domain::counter_events::{self, Effects, MAX_VERSIONS};
use crate::domain::jobs::Ran;
use crate::domain::timing::Timing;
use crate::pg::relation::{self, LockMode};
use crate::pg::snapshot::Snapshot;
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::pg::{lock_wait, memory, scan, session, time};
use crate::store::counters::counter_rows::{self, Events};

/// The number of segments of the log, which src/sql/bootstrap.sql creates.
pub const SEGMENTS: i32 = 12;

/// The size in bytes from which on a segment is packed as a whole: 256 kB, about 6,000
/// events. From there on, to truncate it costs less WAL than to delete its rows, which was
/// estimated and not measured.
const PACK_WHOLE_BYTES: i64 = 256 << 10;

/// The size in bytes from which on the current segment is packed as a whole, while `untruncated` packed
/// segments wait for the end of an old snapshot: 256 kB, 2 and 16 MB, then 32, 64, 128 and 256 MB, each
/// twice. Eleven segments take some 24 million events, and the last one takes what follows.
///
/// A pack keeps a processor busy for some 0.2 µs for each event, and the background worker from
/// documents that are due. So the later sizes grow as slowly as the number of segments allows.
const fn pack_whole_bytes(untruncated: u32) -> i64 {
    let bits = match untruncated {
        0..3 => 3 * untruncated,
        _ => 6 + (untruncated - 1) / 2,
    };
    PACK_WHOLE_BYTES << bits
}

const _: () = assert!(
    pack_whole_bytes(2) == 16 << 20
        && pack_whole_bytes(3) == 32 << 20
        && pack_whole_bytes(SEGMENTS as u32 - 2) == 256 << 20
);

/// The table of a segment, by its number from 1 to `SEGMENTS`.
pub fn table(segment: i32) -> Option<Oid> {
    relation::lookup("fetchq", &format!("counter_log_{segment}"))
}

/// The tables of all segments. One that does not exist is 0.
pub fn tables() -> [Oid; SEGMENTS as usize] {
    let table = |at| table(at as i32 + 1).unwrap_or(Oid::INVALID);
    std::array::from_fn(table)
}

/// The numbers of the segments that may be written, the current one first. They are read
/// without a query, because workers need no rights on the counters.
pub fn writable() -> Vec<i32> {
    let Some(states) = relation::lookup("fetchq", "counter_segments") else {
        return Vec::new();
    };
    let mut packed = Vec::new();
    let mut current = None;
    for [segment, is_current, is_packed] in
        scan::rows(states, ["segment", "is_current", "is_packed"])
    {
        let Some(segment) = segment.map(|datum| datum.value() as i32) else {
            continue;
        };
        let is = |flag: Option<Datum>| flag.is_some_and(|datum| datum.value() & 1 == 1);
        if is(is_packed) {
            packed.push(segment);
        } else if is(is_current) {
            current = Some(segment);
        }
    }
    let mut writable: Vec<i32> = (1..=SEGMENTS).filter(|n| !packed.contains(n)).collect();
    writable.sort_by_key(|n| Some(*n) != current);
    writable
}

const SEGMENT_STATES: &str = "select g.n as segment,
        coalesce(s.is_current, false) as is_current,
        coalesce(s.is_packed, false) as is_packed,
        pg_catalog.pg_relation_size(('fetchq.counter_log_' {||} g.n)::pg_catalog.regclass) as bytes
    from pg_catalog.generate_series(1, $1) g (n)
    left join fetchq.counter_segments s on s.segment {=} g.n
    order by coalesce(s.is_packed, false), s.is_current desc nulls last, g.n";

struct Segment {
    number: i32,
    table: Oid,
    is_packed: bool,
    /// The transaction that last changed its state. None: every snapshot shows that, or there is
    /// nothing to show.
    changed_by: Option<TransactionId>,
    bytes: i64,
}

/// Reads the state of all segments, the current one first.
fn read_segments(spi: &Spi) -> Vec<Segment> {
    let rows = spi.once(SEGMENT_STATES, &[Arg::from(SEGMENTS)]);
    let states = relation::lookup("fetchq", "counter_segments");
    let changed_by: HashMap<i32, Option<TransactionId>> = states
        .map(|table| scan::writers(table, "segment"))
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(segment, writer)| Some((segment?.value() as i32, writer)))
        .collect();
    (0..rows.len())
        .filter_map(|row| {
            let number = rows.get(row, 1)?;
            Some(Segment {
                number,
                table: table(number)?,
                is_packed: rows.get(row, 3)?,
                changed_by: changed_by.get(&number).copied().flatten(),
                bytes: rows.get(row, 4)?,
            })
        })
        .collect()
}

const SET_STATE: &str = "insert into fetchq.counter_segments as s (segment, is_current, is_packed)
    values ($1, $2, $3)
    on conflict (segment) do update set is_current = excluded.is_current, is_packed = excluded.is_packed";

fn set_state(spi: &Spi, segment: &Segment, is_current: bool, is_packed: bool) {
    let args = [
        Arg::from(segment.number),
        Arg::from(is_current),
        Arg::from(is_packed),
    ];
    spi.once(SET_STATE, &args);
    relation::invalidate(segment.table);
}

// Those of the queues $1 that can be packed now. The lock on the registry row keeps recounts and drops
// away, and other packs, so that no other session deletes events of these queues.
const LOCK_QUEUES: &str = "select id from fetchq.queues
    where id {=} any ($1)
    order by id
    for no key update skip locked";

// $1: queues that are locked. $2 to $4: queues, events and versions. Returns these events of these queues,
// without the queues of which another session has locked a metric that an event changes. The metrics of
// the rest are locked, as far as they exist. A metric that another session has made and not committed is
// none of them: that session has locked the registry row.
const LOCK_METRICS: &str = "with
    found as materialized (
        select l.queue_id, l.event, l.version
        from rows from (pg_catalog.unnest($2), pg_catalog.unnest($3), pg_catalog.unnest($4)) l (queue_id, event, version)
        where l.queue_id {=} any ($1)
    ),
    -- Versions without a metric, in order, and how many metrics of versions the queue may still get.
    fresh as (
        select f.queue_id, q.name as queue, f.version,
            pg_catalog.row_number() over (partition by f.queue_id order by f.version) as n
        from (
            select distinct queue_id, version from found
            where event {=} any (select event from fetchq.counter_events where metric {=} 'v')) f
        join fetchq.queues q on q.id {=} f.queue_id
        where not exists (
            select from fetchq.metrics m
            where m.queue {=} q.name and m.metric {=} ('v' {||} f.version))
    ),
    room as materialized (
        select f.queue_id, r.n
        from (select distinct queue_id, queue from fresh) f
        cross join lateral ({room}) r
    ),
    others as materialized (
        select f.queue_id, f.version
        from fresh f join room r on r.queue_id {=} f.queue_id
        where f.n {>} r.n
    ),
    needed as (
        select distinct f.queue_id, q.name as queue,
            case when e.metric {<>} 'v' then e.metric
                when o.version is not null then 'v_other' else 'v' {||} f.version end as metric
        from found f
        join fetchq.queues q on q.id {=} f.queue_id
        join fetchq.counter_events e on e.event {=} f.event
        left join others o on o.queue_id {=} f.queue_id and o.version {=} f.version
    ),
    tried as materialized (
        select n.queue_id, n.queue, n.metric, k.is_locked
        from needed n
        left join lateral (
            select true as is_locked from fetchq.metrics m
            where m.queue {=} n.queue and m.metric {=} n.metric
            for update skip locked) k on true
    ),
    busy as (
        select t.queue_id from tried t
        where t.is_locked is null and exists (
            select from fetchq.metrics m where m.queue {=} t.queue and m.metric {=} t.metric)
    )
    select coalesce(pg_catalog.array_agg(f.queue_id), '{}'), coalesce(pg_catalog.array_agg(f.event), '{}'),
        coalesce(pg_catalog.array_agg(f.version), '{}'), coalesce(pg_catalog.array_agg(o.version is not null), '{}')
    from found f
    left join others o on o.queue_id {=} f.queue_id and o.version {=} f.version
    where f.queue_id {<>} all (array(select b.queue_id from busy b))";

/// How many more versions of the queue `f.queue` may get a metric of their own: a query of one row. The
/// metric `v_other` says that the limit was reached, and stays until `metric_reset`. So all that read
/// the events know by the metrics alone where a version is counted.
const ROOM: &str = "select case
        when exists (
            select from fetchq.metrics m where m.queue {=} f.queue and m.metric {=} 'v_other')
        then 0
        else {max_versions} {-} (
            select pg_catalog.count(*) from fetchq.metrics m
            where m.queue {=} f.queue and m.metric {~} '^v(0|-?[1-9][0-9]{0,9})$') end as n";

/// Replaces `{room}` by [`ROOM`].
pub fn with_room(sql: &str) -> String {
    let room = ROOM.replace("{max_versions}", &MAX_VERSIONS.to_string());
    sql.replace("{room}", &room)
}

// Whether there is a queue among $1 that is not among $2.
const HAS_OTHER_QUEUES: &str = "select exists (
    select from fetchq.queues q where q.id {=} any ($1) and q.id {<>} all ($2))";

/// A queue, an event and a version.
type Kind = (i32, i32, i32);

/// The kinds of events that are in a table.
type Kinds = BTreeSet<Kind>;

fn kind_of(events: &Events) -> Kind {
    (events.queue, events.code.into(), events.version)
}

fn kinds_in(table: Oid) -> Kinds {
    let mut kinds = Kinds::new();
    counter_rows::read(table, &Snapshot::take(), |events| {
        if kinds.insert(kind_of(&events)) {
            provide_for(kinds.len());
        }
    });
    kinds
}

/// Has the memory for a set that has grown to a number of elements, and doubles.
fn provide_for(elements: usize) {
    if elements >= 4096 && elements.is_power_of_two() {
        memory::provide_for_rows(2 * elements);
    }
}

/// The queues of kinds in their order, each once.
fn queues_of<'a>(kinds: impl Iterator<Item = &'a Kind>) -> Arg {
    let mut queues: Vec<i32> = kinds.map(|(queue, ..)| *queue).collect();
    queues.dedup();
    Arg::from(queues)
}

/// The queues, events and versions that a pack adds up, and whether the version is counted in `v_other`.
type Locked = BTreeMap<Kind, bool>;

fn list<'a>(kinds: impl Iterator<Item = &'a Kind>, of: fn(&Kind) -> i32) -> Arg {
    Arg::from(kinds.map(of).collect::<Vec<_>>())
}

/// Locks the queues that have these events and can be packed now, and returns their IDs.
fn lock_queues(spi: &Spi, kinds: &Kinds) -> Vec<i32> {
    let rows = spi.once(LOCK_QUEUES, &[queues_of(kinds.iter())]);
    (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect()
}

/// Locks the metrics that these events of locked queues change. A queue can have many other metrics.
/// Returns the events.
fn lock_metrics(spi: &Spi, queues: Vec<i32>, kinds: &Kinds) -> Locked {
    if queues.is_empty() {
        return Locked::new();
    }
    let args = [
        Arg::from(queues),
        list(kinds.iter(), |kind| kind.0),
        list(kinds.iter(), |kind| kind.1),
        list(kinds.iter(), |kind| kind.2),
    ];
    let rows = spi.once(&with_room(LOCK_METRICS), &args);
    let column = |at| rows.get::<Vec<i32>>(0, at).unwrap_or_default();
    let are_other: Vec<bool> = rows.get(0, 4).unwrap_or_default();
    let kinds = column(1).into_iter().zip(column(2)).zip(column(3));
    kinds
        .map(|((queue, event), version)| (queue, event, version))
        .zip(are_other)
        .collect()
}

fn render(sql: &str, segment: &str) -> String {
    sql.replace("{segment}", segment)
}

// The two sources of a pack: rows that it deletes, or the sums of a segment as a whole, which nobody
// writes. The registry rows of the queues are locked, so no other session deletes events of them. An
// event that was committed since the kinds were read may change another metric, and is left to the next
// pack.
const DELETE_EVENTS: &str = "delete from only {segment}
    where (queue_id, event, coalesce(version, 0)) {=} any (
        select l.queue_id, l.event, l.version from rows from (pg_catalog.unnest($1), pg_catalog.unnest($5), pg_catalog.unnest($6))
            as l (queue_id, event, version))
    returning queue_id, event, coalesce(version, 0) as version, coalesce(n, 1) as n,
        bucket";

const SUMS: &str = "select e.queue_id, e.event, e.version, e.n, e.bucket
    from rows from (pg_catalog.unnest($11), pg_catalog.unnest($12), pg_catalog.unnest($13), pg_catalog.unnest($14), pg_catalog.unnest($15))
        as e (queue_id, event, version, n, bucket)";

const PACK: &str = "with
    events as ({events}),
    sums as (
        select q.name as queue,
            case when e.metric {<>} 'v' then e.metric
                when k.is_other then 'v_other' else 'v' {||} t.version end as metric,
            pg_catalog.sum(t.n {*} e.sign)::bigint as delta
        from (select queue_id, event, version, pg_catalog.sum(n)::bigint as n from events group by 1, 2, 3) t
        join rows from (pg_catalog.unnest($1), pg_catalog.unnest($5), pg_catalog.unnest($6), pg_catalog.unnest($7))
                k (queue_id, event, version, is_other)
            on k.queue_id {=} t.queue_id and k.event {=} t.event and k.version {=} t.version
        join fetchq.queues q on q.id {=} t.queue_id
        join fetchq.counter_events e on e.event {=} t.event
        group by 1, 2
    ),
    -- Nobody else makes or deletes these metrics meanwhile. An anti join with what was updated would
    -- compare all sums with all of them, because neither has an estimate.
    placed as materialized (
        select s.queue, s.metric, s.delta, exists (
            select from fetchq.metrics m where m.queue {=} s.queue and m.metric {=} s.metric) as is_there
        from sums s
    ),
    updated as (
        update fetchq.metrics m set value = m.value {+} s.delta, updated_at = pg_catalog.now()
        from placed s where s.is_there and m.queue {=} s.queue and m.metric {=} s.metric
    ),
    added as (
        insert into fetchq.metrics as m (queue, metric, value, updated_at)
        select s.queue, s.metric, s.delta, pg_catalog.now() from placed s
        where not s.is_there
        order by s.queue, s.metric
        on conflict (queue, metric) do update
            set value = m.value {+} excluded.value, updated_at = excluded.updated_at
    ),
    timed as (
        select t.queue_id, t.kind, t.bucket::int, pg_catalog.sum(t.n)::bigint as n
        from (
            select e.queue_id, case when e.event {=} any ($4) then 'wait' else 'run' end as kind, e.bucket, e.n
            from events e where e.bucket is not null and e.event {<=} $8
            union all
            select e.queue_id, l.kind, l.bucket, e.n
            from events e
            cross join lateral (values
                ('wait', e.bucket {/} $9),
                ('run', case when e.bucket {%} $9 {<>} $10 then e.bucket {%} $9 end)) l (kind, bucket)
            where e.event {>} $8 and l.bucket is not null) t
        group by 1, 2, 3
    ),
    merged as (
        select t.queue_id, t.kind, $2 as slot, t.bucket, t.n from timed t
        union all
        select o.queue_id, o.kind, case when o.slot {=} $2 and o.minute {=} $3 then $2 else 0 end,
            b.bucket, b.n
        from (select distinct queue_id, kind from timed) k
        join fetchq.timings s on s.queue_id {=} k.queue_id and s.kind {=} k.kind and s.slot {=} $2
        join fetchq.timings o on o.queue_id {=} s.queue_id and o.kind {=} s.kind
            and (o.slot {=} $2 or o.slot {=} 0 and s.minute {<>} $3)
        cross join rows from (pg_catalog.unnest(o.buckets), pg_catalog.unnest(o.counts)) b (bucket, n)
    ),
    stored as (
        insert into fetchq.timings as o (queue_id, kind, slot, minute, buckets, counts)
        select queue_id, kind, slot, case when slot {=} $2 then $3 end,
            pg_catalog.array_agg(bucket order by bucket), pg_catalog.array_agg(n order by bucket)
        from (
            select queue_id, kind, slot, bucket, pg_catalog.sum(n)::bigint as n from merged
            group by queue_id, kind, slot, bucket) m
        group by queue_id, kind, slot
        order by queue_id, kind, slot
        on conflict (queue_id, kind, slot) do update
            set minute = excluded.minute, buckets = excluded.buckets, counts = excluded.counts
    )
    select pg_catalog.count(*) from events";

/// The number of slots of `fetchq.timings` that count one minute each. Percentiles are of the
/// current minute and the five before, so that they are of five minutes at least.
const SLOTS: i64 = 6;

/// The length of a slot in microseconds.
const SLOT_US: i64 = 60_000_000;

/// The time from which on the slots count for the percentiles of the last minutes. Both times are
/// in microseconds since 2000.
pub fn first_minute(now: i64) -> i64 {
    minute(now) - (SLOTS - 1) * SLOT_US
}

/// The codes of the events whose bucket is a wait. All others have a run.
fn events_with_wait() -> Vec<i32> {
    let has_wait = |code: &i16| Effects::of(*code).timing() == Some(Timing::Wait);
    counter_events::codes()
        .filter(has_wait)
        .map(i32::from)
        .collect()
}

/// The beginning of a minute.
fn minute(now: i64) -> i64 {
    now.div_euclid(SLOT_US) * SLOT_US
}

/// Adds events whose metrics are locked up into the metrics, and their times into the histograms. Returns
/// how many rows `events` has, which is `DELETE_EVENTS` of a table, or `SUMS` with its arguments. `locked`
/// has all kinds of them.
fn add_to_metrics(spi: &Spi, events: &str, locked: &Locked, sums: Vec<Arg>) -> i64 {
    let minute = minute(time::clock());
    let slot = minute.div_euclid(SLOT_US).rem_euclid(SLOTS) + 1;
    let [divisor, no_run] = counter_events::LATE_BUCKETS;
    let mut args = vec![
        list(locked.keys(), |kind| kind.0),
        Arg::from(slot as i32),
        Arg::timestamp(minute),
        Arg::from(events_with_wait()),
        list(locked.keys(), |kind| kind.1),
        list(locked.keys(), |kind| kind.2),
        Arg::from(locked.values().copied().collect::<Vec<_>>()),
        Arg::from(counter_events::LATE),
        Arg::from(divisor),
        Arg::from(no_run),
    ];
    args.extend(sums);
    let rows = spi.once(&PACK.replace("{events}", events), &args);
    rows.get(0, 1).unwrap_or(0)
}

/// The number of sums that are in memory at most, some 15 MB. Events of one queue, event, version and
/// bucket are added up before they reach SQL, which takes a sixth of the time.
const MAX_SUMS: usize = 200_000;

/// The number of sums that one statement adds to the metrics at most.
const SUMS_AT_ONCE: usize = 10_000;

type Sums = HashMap<(Kind, Option<i32>), i64>;

/// Adds up the events in a table that nobody writes, of the kinds that are locked. Returns how many rows
/// there were.
fn add_all_to_metrics(spi: &Spi, table: Oid, locked: &Locked) -> i64 {
    let mut sums = Sums::new();
    let mut packed = 0;
    counter_rows::read(table, &Snapshot::take(), |events| {
        let kind = kind_of(&events);
        let key = (kind, events.bucket);
        if let Some(sum) = sums.get_mut(&key) {
            *sum += events.n;
        } else if locked.contains_key(&kind) {
            if sums.len() == MAX_SUMS {
                add_sums(spi, locked, &mut sums);
            }
            sums.insert(key, events.n);
            provide_for(sums.len());
        } else {
            // Its queue does not exist.
            return;
        }
        packed += 1;
    });
    add_sums(spi, locked, &mut sums);
    packed
}

/// Adds the sums to the metrics, and empties them. In the order of queues, so that few statements
/// change the same metric and the same histogram.
fn add_sums(spi: &Spi, locked: &Locked, sums: &mut Sums) {
    let mut sums: Vec<_> = sums.drain().collect();
    sums.sort_unstable();
    for part in sums.chunks(SUMS_AT_ONCE) {
        memory::freed_after(|| {
            let kinds = || part.iter().map(|((kind, _), _)| kind);
            let locked: Locked = kinds()
                .filter_map(|kind| Some((*kind, *locked.get(kind)?)))
                .collect();
            let lists = vec![
                list(kinds(), |kind| kind.0),
                list(kinds(), |kind| kind.1),
                list(kinds(), |kind| kind.2),
                Arg::from(part.iter().map(|(_, n)| *n).collect::<Vec<_>>()),
                Arg::from(
                    part.iter()
                        .map(|((_, bucket), _)| *bucket)
                        .collect::<Vec<_>>(),
                ),
            ];
            add_to_metrics(spi, SUMS, &locked, lists);
        });
    }
}

const DELETE_UNKNOWN: &str = "delete from only {segment} l
    where not exists (select from fetchq.queues q where q.id {=} l.queue_id)";

/// Packs the rows of a table, which the caller has locked, and deletes them. The events of
/// queues that other sessions have locked are left to a later pack. Returns the number of
/// rows.
fn pack_rows(spi: &Spi, table: Oid, name: &str) -> i64 {
    let kinds = kinds_in(table);
    if kinds.is_empty() {
        return 0;
    }
    let queues = lock_queues(spi, &kinds);
    // Another session may have deleted events before the queues were locked.
    let locked = lock_metrics(spi, queues, &kinds_in(table));
    let mut packed = 0;
    if !locked.is_empty() {
        packed = add_to_metrics(spi, &render(DELETE_EVENTS, name), &locked, Vec::new());
    }
    packed + i64::from(spi.once(&render(DELETE_UNKNOWN, name), &[]).affected())
}

/// Packs a segment that no session writes at this moment, and returns the number of rows.
/// Returns 0 if a session writes it, or has locked the counters of a queue in it.
fn pack_whole(spi: &Spi, segment: &Segment) -> i64 {
    // Writers are kept away until the end of the transaction, readers are not.
    if !relation::try_lock(segment.table, LockMode::Writers) {
        return 0;
    }
    let kinds = kinds_in(segment.table);
    let queues = lock_queues(spi, &kinds);
    let locked = lock_metrics(spi, queues, &kinds);
    let args = [queues_of(kinds.iter()), queues_of(locked.keys())];
    let has_other_queues = spi.once(HAS_OTHER_QUEUES, &args).get(0, 1).unwrap_or(true);
    if has_other_queues {
        return 0;
    }
    let packed = add_all_to_metrics(spi, segment.table, &locked);
    set_state(spi, segment, false, true);
    packed
}

fn qualified_name(segment: i32) -> String {
    format!("fetchq.counter_log_{segment}")
}

/// Packs what can be packed without waiting for other sessions. Returns the number of events
/// that were packed: 0 in a transaction that keeps one snapshot. Busy while another session packs.
pub fn pack_events(spi: &Spi) -> Ran<i64> {
    // An old snapshot would not see which events are packed already.
    if session::keeps_snapshot() {
        return Ran::Done(0);
    }
    let Some(states) = relation::lookup("fetchq", "counter_segments") else {
        return Ran::Done(0);
    };
    // Only one session packs at a time.
    let lock = || Ok::<_, Infallible>(relation::try_lock(states, LockMode::Writers).then_some(()));
    match lock_wait::retry(lock) {
        Ok(Some(())) => Ran::Done(pack_segments(spi)),
        Ok(None) => Ran::Busy,
    }
}

/// Packs the segments of the log. The caller has locked their states. Returns the number of events.
fn pack_segments(spi: &Spi) -> i64 {
    let mut segments = read_segments(spi);
    if segments.is_empty() {
        return 0;
    }
    let current = segments.remove(0);
    if current.is_packed {
        return 0;
    }
    let mut packed = 0;
    for segment in &segments {
        if segment.bytes > 0 && !segment.is_packed {
            packed += pack_whole(spi, segment);
        }
    }
    let untruncated = segments.iter().filter(|s| s.is_packed).count() as u32;
    if current.bytes >= pack_whole_bytes(untruncated)
        && let Some(next) = segments.iter().find(|s| s.bytes == 0 && !s.is_packed)
    {
        set_state(spi, &current, false, false);
        set_state(spi, next, true, false);
        packed += pack_whole(spi, &current);
    }
    if current.bytes < PACK_WHOLE_BYTES && relation::try_lock(current.table, LockMode::Rows) {
        // Read again under the lock: another session may have packed the segment meanwhile.
        if writable().contains(&current.number) {
            packed += pack_rows(spi, current.table, &qualified_name(current.number));
        }
    }
    if let Some(parent) = relation::lookup("fetchq", "counter_log")
        && relation::has_pages(parent)
        && relation::try_lock(parent, LockMode::Rows)
    {
        // The parent has rows only if a user copied some there.
        packed += pack_rows(spi, parent, "fetchq.counter_log");
    }
    packed
}

/// The number of packed segments from which on readers are made to wait for a truncation.
const MAX_UNTRUNCATED: usize = 3;

/// Truncates the packed segments that no snapshot needs any longer. Readers of counters wait
/// for that until the transaction ends, so the caller does it last. `is_in_block`: within a
/// transaction block, whose end is not known, segments are only truncated from three on.
pub fn truncate_packed(spi: &Spi, is_in_block: bool) {
    if session::keeps_snapshot() {
        return;
    }
    let states = relation::lookup("fetchq", "counter_segments");
    if states.is_some_and(|table| relation::try_lock(table, LockMode::Writers)) {
        let segments = read_segments(spi);
        let packed = segments.iter().filter(|s| s.is_packed);
        if is_in_block && packed.clone().count() < MAX_UNTRUNCATED {
            return;
        }
        for segment in packed {
            truncate(spi, segment);
        }
    }
}

/// Empties a packed segment, unless a session reads it, or may still need it.
fn truncate(spi: &Spi, segment: &Segment) {
    let may_be_unseen = |writer| !session::is_visible_to_all(writer, segment.table);
    if segment.changed_by.is_some_and(may_be_unseen)
        || !relation::try_lock(segment.table, LockMode::Everybody)
    {
        return;
    }
    let name = qualified_name(segment.number);
    if segment.bytes > 0 {
        spi.once(&format!("truncate only {name}"), &[]);
    }
    set_state(spi, segment, false, false);
}
