//! `fetchq.status()`: the state of fetchq in this database, a row for each component.

use crate::domain::jobs::Task;
use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::call::RowSink;
use crate::pg::value::Arg;
use crate::pg::{relation, session, spi, time};
use crate::ready::floors::{self, Stats};
use crate::ready::key::{Index, Key};
use crate::settings;
use crate::signals::board;
use crate::store::open_queue::Queue;

/// What is known without a query: the state of the server, and of its shared memory. Points in
/// time are in microseconds since 2000.
struct ServerState {
    /// The library is in shared_preload_libraries.
    is_preloaded: bool,
    /// The server is a hot standby.
    is_standby: bool,
    /// There is shared memory for the ready floors.
    has_shared_memory: bool,
    /// The setting fetchq.background_worker.
    wants_background_worker: bool,
    /// When the launcher started; None when it does not run.
    launcher: Option<i64>,
    /// The process id of the background worker of this database, and when it started; None when
    /// it does not run.
    background_worker: Option<(i32, i64)>,
    /// The last run of each maintenance task: microseconds, rows.
    last: [Option<(i64, i64)>; Task::ALL.len()],
    /// The counters of the ready floors.
    stats: Stats,
    /// The first ready floor of pending documents, if it is in the past.
    ready_since: Option<i64>,
    /// The first ready floor of planned documents.
    next_due: Option<i64>,
    /// The first ready floor of leased documents.
    next_expiry: Option<i64>,
}

// One row for each component, in the order in which an operator would look at them. $1: whether the
// library is preloaded, $2: the version of the library, $3: whether there is shared memory, $4: the
// slots used, $5: the slots, $6: the floor misses, $7: since when the launcher runs, $8: whether a
// background worker is wanted, $9: since when it runs, $10: its process id, $11: the oldest ready
// floor, $12: the first planned floor, $13: the first leased floor, $14 to $16: the task, the
// microseconds and the rows of the last runs, $17: whether the server is a standby.
const STATUS: &str = "
with horizon as (
    select 'session ' {||} pid
            {||} case when application_name {<>} '' then ' (' {||} application_name {||} ')' else '' end
            {||} ', ' {||} coalesce(state, 'unknown') as name,
        age(backend_xmin) as transactions, coalesce(xact_start, query_start, backend_start) as since
    from pg_stat_activity
    where backend_xmin is not null and pid {<>} pg_backend_pid()
    union all
    select 'prepared transaction ' {||} gid, age(transaction), prepared from pg_prepared_xacts
    union all
    select 'replication slot ' {||} slot_name, greatest(age(xmin), age(catalog_xmin)), null
    from pg_replication_slots where xmin is not null or catalog_xmin is not null
),
oldest as (select * from horizon order by transactions desc limit 1),
tail as (
    select sum(pg_relation_size(i.inhrelid)) as bytes,
        pg_size_pretty(sum(pg_relation_size(i.inhrelid))) as size
    from pg_inherits i where i.inhparent {=} 'fetchq.counter_log'::regclass
),
tasks (task, what, n) as (values
    ('mnt', 'documents', 1), ('lgp', 'counters', 2), ('sts', 'snapshots', 3),
    ('cmp', 'recounts', 4), ('drp', 'retention', 5)),
jobs as (
    select t.n, t.what, count(j.id) as jobs, max(j.last_iteration) as last,
        count(*) filter (where j.attempts {>} 1) as failing,
        min(j.next_iteration) filter (
            where j.next_iteration {<} (now() {-} interval '1 minute')) as late
    from tasks t left join fetchq.jobs j on j.task {=} t.task
    group by t.n, t.what
)
select component, state, detail, hint from (
    select 0 as n, 'server' as component, case when $17 then 'standby' else 'primary' end as state,
        'PostgreSQL ' {||} current_setting('server_version') as detail,
        case when $17 then 'Only reads are possible; the background worker starts when the server is promoted.' end as hint
    union all
    select 1, 'library', case when $1 then 'preloaded' else 'not preloaded' end,
        format('version %s', $2),
        case when not $1 then 'Set shared_preload_libraries = ''fetchq'' and restart: without it there are no ready floors and no background worker.' end
    union all
    select 2, 'memory', case when $3 then 'there' else 'none' end,
        format('%s of %s slots used, %s floor misses', $4, $5, $6),
        case when $6 {>} 0 then 'A ready floor was too high: please report it.'
            when $3 and $4 {>} ($5 {*} 0.9) then 'Raise fetchq.ready_slots.' end
    union all
    select 3, 'launcher', case when $7 is not null then 'running' else 'not running' end,
        'since ' {||} $7, null
    union all
    select 4, 'background worker',
        case when $9 is not null then 'running' when not $8 then 'off' else 'not running' end,
        'process ' {||} $10 {||} ', since ' {||} $9,
        case when $17 then null
            when $9 is null and not $8 then 'fetchq.background_worker is off: something else must call fetchq.mnt_job_run().'
            when $9 is null and $1 and not $3 then 'Set fetchq.ready_slots above 0 and restart: the background worker needs the shared memory.'
            when $9 is null and $1 then 'See fetchq.databases, max_worker_processes, and the log of the server.'
            when $9 is null then 'Something must call fetchq.mnt_job_run(): see docs/guides/operations.md.' end
    union all
    select 10 {+} j.n, 'maintenance: ' {||} j.what,
        case when j.jobs {=} 0 then 'none' when j.failing {>} 0 then 'failing'
            when j.late is not null and j.n {>} 1 then 'late' else 'fine' end,
        format('%s jobs, last %s', j.jobs, coalesce(j.last::text, 'never'))
            {||} coalesce(
                ', which took ' {||} round(l.took {/} 1000.0, 1) {||} ' ms for ' {||} l.done {||} ' rows',
                ''),
        case when j.failing {>} 0 then 'See fetchq.jobs where attempts > 1, and the log of the server.'
            when j.late is not null and j.n {>} 1 and $9 is null
            then 'No process runs them: see background worker.' end
    from jobs j
    left join unnest($14::text[], $15::bigint[], $16::bigint[]) l (what, took, done)
        on l.what {=} j.what
    union all
    select 16, 'schedules',
        case when count(*) {=} 0 then 'none'
            when bool_or(s.is_active and s.attempts {>} 0) then 'failing'
            when bool_or(s.is_active and s.due_at {<} (clock_timestamp() {-} interval '10 seconds'))
            then 'late' else 'fine' end,
        format('%s active, %s paused',
            count(*) filter (where s.is_active), count(*) filter (where not s.is_active)),
        case when bool_or(s.is_active and s.attempts {>} 0)
            then 'See fetchq.schedule_list() where state = ''failing''.'
            when bool_or(s.is_active and s.due_at {<} (clock_timestamp() {-} interval '10 seconds'))
                and $9 is null
            then 'No process runs them: see background worker.' end
    from fetchq.schedules s
    union all
    select 20, 'backlog', case when p.n {>} 0 or $11 is not null then 'waiting' else 'none' end,
        format('%s pending', coalesce(p.n, 0)) {||} coalesce(', ready since ' {||} $11, ''), null
    from (select sum(value) as n from fetchq.metrics_exact where metric {=} 'pnd') p
    union all
    select 21, 'planned',
        case when $12 {<} (clock_timestamp() {-} interval '1 second') then 'late' else 'in time' end,
        case when $12 {<} clock_timestamp() then 'due since ' {||} $12
            else 'the first is due at ' {||} $12 {||} ' or later' end,
        case when $12 {<} (clock_timestamp() {-} interval '1 second') and $9 is null
            then 'No process runs maintenance: see background worker.'
            when $12 {<} (clock_timestamp() {-} interval '1 second')
            then 'See fetchq.progress, maintenance: documents, and fetchq.jobs where task = ''mnt''.' end
    union all
    select 22, 'leases',
        case when $13 {<} (clock_timestamp() {-} interval '1 second') then 'late' else 'in time' end,
        case when $13 {<} clock_timestamp() then 'the first expired at ' {||} $13
            else 'the first expires at ' {||} $13 {||} ' or later' end,
        case when $13 {<} (clock_timestamp() {-} interval '1 second') and $9 is null
            then 'No process runs maintenance: see background worker.' end
    union all
    select 30, 'counter log',
        case when t.bytes {>} (64 {*} 1024 {*} 1024) then 'long' else 'short' end, t.size,
        case when t.bytes {>} (64 {*} 1024 {*} 1024)
            then 'No process packs it, or an old snapshot keeps it: see horizon.' end
    from tail t
    union all
    select 31, 'horizon',
        case when h.since {<} (now() {-} interval '5 minutes') or h.transactions {>} 1000000
            then 'held' else 'free' end,
        case when h.name is not null
            then format('%s, %s transactions, since %s',
                h.name, h.transactions, coalesce(h.since::text, 'unknown')) end,
        case when h.since {<} (now() {-} interval '5 minutes') or h.transactions {>} 1000000
            then 'Dead rows cannot be removed while it lasts: end it if it is not needed.' end
    from (select 1) one left join oldest h on true
) s
order by n";

/// Writes the rows of `fetchq.status()` from what `collect` has found. `version` is that of the
/// library.
fn write_rows(version: &str, state: &ServerState, out: &mut RowSink) {
    let at = |time: Option<i64>| time.map_or_else(Arg::no_timestamp, Arg::timestamp);
    let ran = || {
        let services = Task::ALL.into_iter().zip(state.last);
        services.filter_map(|(task, last)| Some((task, last?)))
    };
    let args = [
        Arg::from(state.is_preloaded),
        Arg::from(version),
        Arg::from(state.has_shared_memory),
        Arg::from(i64::from(state.stats.slots_used)),
        Arg::from(i64::from(state.stats.slots)),
        Arg::from(state.stats.floor_misses),
        at(state.launcher),
        Arg::from(state.wants_background_worker),
        at(state.background_worker.map(|(_, since)| since)),
        Arg::from(state.background_worker.map(|(pid, _)| pid)),
        at(state.ready_since),
        at(state.next_due),
        at(state.next_expiry),
        Arg::from(ran().map(|(task, _)| task.word()).collect::<Vec<_>>()),
        Arg::from(ran().map(|(_, (took, _))| took).collect::<Vec<_>>()),
        Arg::from(ran().map(|(_, (_, done))| done).collect::<Vec<_>>()),
        Arg::from(state.is_standby),
    ];
    spi::connect(|spi| {
        let rows = spi.once(STATUS, &args);
        out.extend(&rows);
    });
}

/// In how many queues at most `fetchq.status()` looks: each takes locks that last until the
/// transaction ends.
const MAX_QUEUES: usize = 300;

/// Advances the floors that lie before `now` (microseconds since 2000) as far as possible. A
/// floor says that nothing lies before it, but not that there is an entry at it.
fn advance_floors(now: i64) {
    for table in floors::tables_behind(now).into_iter().take(MAX_QUEUES) {
        let name = relation::queue_of_table(table.to_u32());
        let Some(name) = name.and_then(|name| QueueName::parse(&name).ok()) else {
            // The queue was dropped, so nothing of it is late.
            floors::forget(table);
            continue;
        };
        // Where the queue is locked, or dropped meanwhile, the floors stay where they are.
        let Ok(Some(queue)) = Queue::try_open(&name) else {
            continue;
        };
        let Some(queue_floors) = queue.floors() else {
            continue;
        };
        for (index, version, view) in floors::describe(table) {
            match index {
                Index::Pick => queue_floors.advance_level(version, view.id, Key::LAST),
                Index::Due => {
                    queue_floors.due(view.id, now);
                }
            }
        }
    }
}

/// Collects what the shared memory and the settings say, as of `now` (microseconds since
/// 2000).
fn collect(now: i64) -> ServerState {
    let first_due =
        |status: Status| floors::first_before(Index::Due, Some(status.code()), i64::MAX);
    let board = board::board();
    let background_worker = board.and_then(|board| board.background_worker_of(session::database()));
    ServerState {
        is_preloaded: session::is_preloaded(),
        is_standby: session::is_standby(),
        has_shared_memory: floors::is_available(),
        wants_background_worker: settings::background_worker(),
        launcher: board
            .and_then(|board| board.launcher.process())
            .map(|(_, since)| since),
        background_worker: background_worker.and_then(|worker| worker.slot.process()),
        last: Task::ALL
            .map(|task| background_worker.and_then(|worker| worker.last[task as usize].read())),
        stats: floors::stats(),
        ready_since: floors::first_before(Index::Pick, None, now),
        next_due: first_due(Status::Planned),
        next_expiry: first_due(Status::Active),
    }
}

/// Adds the rows of `fetchq.status()` to a result, as of now. `version` is that of the
/// library.
pub fn report(version: &str, out: &mut RowSink) {
    let now = time::clock();
    if !session::is_standby() {
        advance_floors(now);
    }
    write_rows(version, &collect(now), out);
}

/// Adds the ready floors of a queue to a result. Both ends of an index are shown as infinite
/// times. Fails with `UnknownQueue` when there is no such queue.
pub fn ready_floors(name: &QueueName, out: &mut RowSink) -> Result<()> {
    let Some(table) = relation::lookup_data_table(&name.relation("docs")) else {
        return Err(Error::UnknownQueue(name.to_string()));
    };
    for (index, version, view) in floors::describe(table) {
        let index = match index {
            Index::Pick => "pick",
            Index::Due => "due",
        };
        out.push(&[
            Arg::from(index),
            Arg::from(version),
            Arg::from(view.id),
            Arg::timestamp(view.floor.next_iteration),
            Arg::from(view.floor.attempts),
            Arg::from(view.floor.seq),
            Arg::from(view.floor == Key::LAST),
        ]);
    }
    Ok(())
}
