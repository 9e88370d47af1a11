//! Packing: adds the counter events up into `fetchq.metrics`.
//!
//! A small segment is packed by deleting its rows. One that has grown is left by its
//! writers, who go on with the next, added up as a whole and marked as packed in the
//! same transaction, and truncated once every snapshot knows that it is packed. So a
//! snapshot sees each event in its segment or in the metrics, never in both, and what
//! is packed is never walked over again.

use pgrx::pg_sys::{Datum, Oid};

use crate::pg::relation::{self, LockMode};
use crate::pg::spi::Spi;
use crate::pg::value::Arg;
use crate::pg::{scan, session};

/// Segments of the log (src/sql/bootstrap.sql makes them).
pub const SEGMENTS: i32 = 6;

/// A segment of this size is packed as a whole: 256 kB, about 6,000 events, from where
/// on truncating costs less WAL than deleting row by row. Eight times as much for each
/// packed one that can not be truncated yet: under one held snapshot five take some 30
/// million events, and the sixth what comes after.
const WHOLE_FROM: i64 = 256 << 10;

const GROWTH: u32 = 3;

/// The table of a segment.
pub fn table(segment: i32) -> Option<Oid> {
    relation::lookup("fetchq", &format!("counter_log_{segment}"))
}

/// Segments that may be written, the current one first. Read without a query: it is for
/// workers, who need no rights on the counters.
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

const STATES: &str =
    "select g.n, coalesce(s.is_current, false), coalesce(s.is_packed, false), s.xmin,
        pg_relation_size(('fetchq.counter_log_' || g.n)::regclass),
        has_table_privilege('fetchq.counter_log_' || g.n, 'truncate')
    from generate_series(1, 6) g (n)
    left join fetchq.counter_segments s on s.segment = g.n
    order by coalesce(s.is_packed, false), s.is_current desc nulls last, g.n";

struct Segment {
    number: i32,
    table: Oid,
    is_packed: bool,
    /// The transaction that changed its state last.
    changed_by: u32,
    bytes: i64,
    may_truncate: bool,
}

/// The current one first.
fn segments(spi: &Spi) -> Vec<Segment> {
    let rows = spi.once(STATES, &[]);
    (0..rows.len())
        .filter_map(|row| {
            let number = rows.get(row, 1)?;
            Some(Segment {
                number,
                table: table(number)?,
                is_packed: rows.get(row, 3)?,
                changed_by: rows.datum(row, 4).map_or(0, |d| d.value() as u32),
                bytes: rows.get(row, 5)?,
                may_truncate: rows.get(row, 6)?,
            })
        })
        .collect()
}

const MARK: &str = "insert into fetchq.counter_segments as s (segment, is_current, is_packed)
    values ($1, $2, $3)
    on conflict (segment) do update set is_current = excluded.is_current, is_packed = excluded.is_packed";

fn mark(spi: &Spi, segment: &Segment, is_current: bool, is_packed: bool) {
    let args = [
        Arg::from(segment.number),
        Arg::from(is_current),
        Arg::from(is_packed),
    ];
    spi.once(MARK, &args);
    relation::invalidate(segment.table);
}

// Which queues can be packed now: their registry row is free, which keeps recounts
// and drops away, and so is every row of their metrics.
const LOCK_QUEUES: &str = "select id, name::text from fetchq.queues
    where id in (select distinct queue_id from only {segment})
    order by id
    for no key update skip locked";

const FREE_QUEUES: &str = "with
    mine as (select q.id, q.name from fetchq.queues q where q.id = any ($1)),
    free as materialized (
        select m.queue, m.metric from fetchq.metrics m
        where m.queue in (select name from mine)
        order by m.queue, m.metric
        for update skip locked)
    select coalesce(array_agg(id), '{}') from mine
    where not exists (
        select from fetchq.metrics m where m.queue = mine.name
            and not exists (select from free f where f.queue = m.queue and f.metric = m.metric))";

const IS_HELD: &str = "select exists (
    select from fetchq.queues q
    where q.id in (select distinct queue_id from only {segment}) and q.id <> all ($1))";

/// Those of the queues whose metrics no other session holds; locks them.
pub fn free_queues(spi: &Spi, ids: Vec<i32>) -> Vec<i32> {
    spi.once(FREE_QUEUES, &[Arg::from(ids)])
        .get(0, 1)
        .unwrap_or_default()
}

/// The queues with events in a table that can be packed now; locks them.
fn free_queues_of(spi: &Spi, name: &str) -> Vec<i32> {
    let rows = spi.once(&render(LOCK_QUEUES, name), &[]);
    let ids: Vec<i32> = (0..rows.len()).filter_map(|row| rows.get(row, 1)).collect();
    if ids.is_empty() {
        return ids;
    }
    free_queues(spi, ids)
}

fn render(sql: &str, name: &str) -> String {
    sql.replace("{segment}", name)
}

// What a pack takes: rows, which it deletes, or a segment as a whole. Nobody else
// deletes events of these queues: their registry rows are locked.
const TAKE_ROWS: &str = "delete from only {segment}
    where queue_id = any ($1)
    returning queue_id, event, coalesce(version, 0) as version, coalesce(n, 1) as n";

const TAKE_WHOLE: &str = "select queue_id, event, coalesce(version, 0) as version, coalesce(n, 1) as n from only {segment}
    where queue_id = any ($1)";

const PACK: &str = "with
    taken as ({take}),
    sums as (
        select q.name as queue,
            case when e.metric = 'v' then 'v' || t.version else e.metric end as metric,
            sum(t.n * e.sign)::bigint as delta
        from (select queue_id, event, version, sum(n)::bigint as n from taken group by 1, 2, 3) t
        join fetchq.queues q on q.id = t.queue_id
        join fetchq.counter_events e on e.event = t.event
        group by 1, 2
    ),
    updated as (
        update fetchq.metrics m set value = m.value + s.delta, updated_at = now()
        from sums s where m.queue = s.queue and m.metric = s.metric
        returning m.queue, m.metric
    ),
    added as (
        insert into fetchq.metrics as m (queue, metric, value, updated_at)
        select s.queue, s.metric, s.delta, now() from sums s
        where not exists (select from updated u where u.queue = s.queue and u.metric = s.metric)
        order by s.queue, s.metric
        on conflict (queue, metric) do update
            set value = m.value + excluded.value, updated_at = excluded.updated_at
    )
    select count(*) from taken";

fn add_up(spi: &Spi, take: &str, name: &str, queues: Vec<i32>) -> i64 {
    let sql = render(&PACK.replace("{take}", take), name);
    spi.once(&sql, &[Arg::from(queues)]).get(0, 1).unwrap_or(0)
}

const DISCARD: &str = "delete from only {segment} l
    where not exists (select from fetchq.queues q where q.id = l.queue_id)";

/// Packs the rows of a table, whose lock is held, and deletes them; what others hold
/// waits for the next time.
fn pack_rows(spi: &Spi, name: &str) -> i64 {
    let free = free_queues_of(spi, name);
    let mut packed = 0;
    if !free.is_empty() {
        packed = add_up(spi, TAKE_ROWS, name, free);
    }
    packed + i64::from(spi.once(&render(DISCARD, name), &[]).affected())
}

/// Packs a segment that nobody writes at this moment; 0 when somebody does, or holds
/// the counters of a queue in it.
fn pack_whole(spi: &Spi, segment: &Segment) -> i64 {
    // Writers are kept away until the end of the transaction, readers are not.
    if !relation::try_lock(segment.table, LockMode::Writers) {
        return 0;
    }
    let name = name_of(segment.number);
    let free = free_queues_of(spi, &name);
    let is_held = spi
        .once(&render(IS_HELD, &name), &[Arg::from(free.clone())])
        .get(0, 1)
        .unwrap_or(true);
    if is_held {
        return 0;
    }
    let packed = add_up(spi, TAKE_WHOLE, &name, free);
    mark(spi, segment, false, true);
    packed
}

fn name_of(segment: i32) -> String {
    format!("fetchq.counter_log_{segment}")
}

/// Packs what can be packed without waiting for anybody; says how many events went.
pub fn pack_events(spi: &Spi) -> i64 {
    // An old snapshot would not see which events are packed already.
    if session::keeps_snapshot() {
        return 0;
    }
    let Some(states) = relation::lookup("fetchq", "counter_segments") else {
        return 0;
    };
    // One pack at a time.
    if !relation::try_lock(states, LockMode::Writers) {
        return 0;
    }
    let mut segments = segments(spi);
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
    let waiting = segments.iter().filter(|s| s.is_packed).count() as u32;
    if current.bytes >= WHOLE_FROM << (GROWTH * waiting)
        && let Some(next) = segments.iter().find(|s| s.bytes == 0 && !s.is_packed)
    {
        mark(spi, &current, false, false);
        mark(spi, next, true, false);
        packed += pack_whole(spi, &current);
    }
    if current.bytes < WHOLE_FROM && relation::try_lock(current.table, LockMode::Rows) {
        // Now that it is locked: somebody may have packed it since.
        if writable().contains(&current.number) {
            packed += pack_rows(spi, &name_of(current.number));
        }
    }
    if let Some(parent) = relation::lookup("fetchq", "counter_log")
        && relation::has_pages(parent)
        && relation::try_lock(parent, LockMode::Rows)
    {
        // Rows that somebody copied there.
        packed += pack_rows(spi, "fetchq.counter_log");
    }
    packed
}

/// Packed segments from which on it is worth to have readers wait.
const MANY: usize = 3;

/// Truncates the packed segments that nobody needs any more. It keeps all who read
/// counters waiting until the transaction ends: so it comes last, and within a
/// transaction block, whose end is not known, only when they become many.
pub fn tidy(spi: &Spi, is_in_block: bool) {
    if session::keeps_snapshot() {
        return;
    }
    let states = relation::lookup("fetchq", "counter_segments");
    if states.is_some_and(|table| relation::try_lock(table, LockMode::Writers)) {
        let segments = segments(spi);
        let packed = segments.iter().filter(|s| s.is_packed);
        if is_in_block && packed.clone().count() < MANY {
            return;
        }
        for segment in packed {
            empty(spi, segment);
        }
    }
}

/// Empties a packed segment, unless somebody reads it, or may still need it.
fn empty(spi: &Spi, segment: &Segment) {
    if !session::is_visible_to_all(segment.changed_by, segment.table)
        || !relation::try_lock(segment.table, LockMode::Everybody)
    {
        return;
    }
    let name = name_of(segment.number);
    if segment.bytes > 0 && segment.may_truncate {
        spi.once(&format!("truncate only {name}"), &[]);
    } else if segment.bytes > 0 {
        // A role without the right leaves the file to vacuum.
        spi.once(&format!("delete from only {name}"), &[]);
        return;
    }
    mark(spi, segment, false, false);
}
