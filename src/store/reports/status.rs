//! `fetchq.status()`: the state of fetchq in this database, a row for each component.

use pgrx::pg_sys::Oid;

use crate::domain::jobs::Task;
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::row_sink::RowSink;
use crate::pg::snapshot::Snapshot;
use crate::pg::value::Arg;
use crate::pg::{process, relation, role, session, spi, time};
use crate::ready::floors::{self, Stats};
use crate::ready::key::{Index, Key};
use crate::settings;
use crate::signals::board;
use crate::store::queues::data_owner;
use crate::store::queues::queue_places;
use crate::store::queues::rights::Scope;
use crate::store::queues::statement::render_shared;
use crate::store::reports::lateness::{self, MAX_NAMES, Report, Workers};
use crate::store::reports::read::{Queue, State};

/// What the statement cannot read: the state of the server and of its shared memory, and what is
/// late. Points in time are in microseconds since 2000.
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
    /// When this database needs a background worker next; None when one runs, and when none serves
    /// it.
    needs_worker_at: Option<i64>,
    /// As many background workers run as may run at a time.
    is_pool_full: bool,
    /// Databases that the shared memory has no room for.
    unlisted: u32,
    /// This database is one of them.
    is_unlisted: bool,
    /// The last run of each maintenance task: microseconds, rows.
    last: [Option<(i64, i64)>; Task::ALL.len()],
    /// The counters of the ready floors.
    stats: Stats,
    /// What is late, and what is ready.
    report: Report,
    /// How many documents are pending, and how many of them in paused queues; those in dead-letter queues
    /// do not count. None when the counters are locked.
    pending: Option<(i64, i64)>,
}

// One row for each component, in the order in which an operator would look at them. $1: whether the
// library is preloaded, $2: the version of the library, $3: whether there is shared memory, $4: the
// slots used, $5: the slots, $6: the floor misses, $7: since when the launcher runs, $8: whether a
// background worker is wanted, $9: since when it runs, $10: its process id, $11: since when documents
// are ready, $12 and $13: when the first planned document, and the first lease, is due, $14 to $16:
// the task, the microseconds and the rows of the last runs, $17: whether the server is a standby,
// $18 to $20: since when planned documents are late, in which queues, and in which queues this is
// not known, $21 to $23: the same for leases, $24: whether all ready documents are known, $25: when
// the database needs a background worker that shares those of the server, $26: databases that the
// shared memory has no room for, $27: the database, $28: whether this transaction keeps its snapshot,
// $29: whether as many background workers run as may run at a time, $30: whether the shared memory
// has no room for this database, $31: how many documents are pending, and $32: in paused queues; NULL
// when the counters are locked, $33: the queues in which a document is ready since -infinity, $34: the
// caller, $35 and $36: of how many queues the planned documents, and the leases, are known, $37: the state
// of the workers, $38 to $43: of the first queues without a worker the name, the version, how many
// documents are pending, since when, when one was leased last, and the versions that are awaited, $44: how
// many more there are, $45: the queues of which this is not known, $46: the state of the dead letters, $47
// to $49: of the first dead-letter queues the name, how many documents they have, and since when, $50: how
// many more there are. Times in arrays are in microseconds since 2000, or the least number.
const STATUS: &str = "
-- What keeps the server from removing dead rows of this database. A snapshot of another database
-- does not; the snapshots of all databases begin at the oldest transaction with an ID. A lazy vacuum
-- does not either.
with sessions as (
    -- As the view shows them to the caller: this statement has other rights.
    select a.pid, a.application_name, a.datid, a.backend_xmin, a.backend_xid,
        case when s.is_shown then a.backend_type end as backend_type,
        case when s.is_shown then a.state end as state,
        case when s.is_shown then a.xact_start end as xact_start,
        case when s.is_shown then a.backend_start end as backend_start
    from pg_catalog.pg_stat_activity a
    cross join lateral (
        select pg_catalog.pg_has_role($34, 'pg_read_all_stats'::pg_catalog.name, 'usage')
            or pg_catalog.pg_has_role($34, a.usesysid, 'usage') as is_shown) s
),
holders as (
    select case when a.backend_type {=} 'walsender' then 'walsender ' else 'session ' end {||} a.pid
            {||} case when a.application_name {<>} '' then ' (' {||} a.application_name {||} ')' else '' end
            {||} ', ' {||} coalesce(a.state, 'unknown') as name,
        greatest(pg_catalog.age(a.backend_xmin), pg_catalog.age(a.backend_xid)) as transactions,
        -- The snapshot of a walsender is that of the standby, and younger than the connection.
        case when a.backend_type {=} 'walsender' then null else a.xact_start end as since,
        a.backend_start is null or a.state {=} 'disabled' as is_hidden,
        false as is_catalog
    from sessions a
    where (a.backend_xid is not null or a.backend_xmin is not null
            and (a.datid is null or a.datid {=} $27)
            and (a.pid {<>} pg_catalog.pg_backend_pid() or $28))
        and not exists (select from pg_catalog.pg_stat_progress_vacuum v where v.pid {=} a.pid)
    union all
    select 'prepared transaction ' {||} gid, pg_catalog.age(transaction), prepared, false, false
    from pg_catalog.pg_prepared_xacts
    union all
    select 'replication slot ' {||} slot_name, pg_catalog.age(xmin), null, false, false
    from pg_catalog.pg_replication_slots where xmin is not null
    union all
    select 'replication slot ' {||} slot_name {||} ' (system catalogs)', pg_catalog.age(catalog_xmin), null,
        false, true
    from pg_catalog.pg_replication_slots where catalog_xmin is not null
),
judged as (
    select h.*, h.transactions {>} 1000000
            or coalesce(h.since {<} (pg_catalog.clock_timestamp() {-} interval '5 minutes'), false) as is_held
    from holders h
),
-- Many snapshots are as old as the oldest transaction. The one that has lasted longest is the cause.
oldest as (
    select * from judged order by is_held desc, is_catalog, transactions desc, since limit 1
),
tail as (
    select pg_catalog.sum(pg_catalog.pg_relation_size(i.inhrelid)) as bytes,
        pg_catalog.pg_size_pretty(pg_catalog.sum(pg_catalog.pg_relation_size(i.inhrelid))) as size
    from pg_catalog.pg_inherits i where i.inhparent {=} 'fetchq.counter_log'::pg_catalog.regclass
),
tasks (task, what, n) as (values
    ('mnt', 'documents', 1), ('lgp', 'counters', 2), ('sts', 'snapshots', 3),
    ('cmp', 'recounts', 4), ('drp', 'retention', 5)),
states as (
    select j.task, j.queue::pg_catalog.text as queue, j.attempts, j.last_iteration, j.next_iteration,
        (j.payload {->} 'error') is not null
            or j.attempts {>} 1 and (j.payload {->} 'busy') is null as is_failing,
        -- A lock that lasts: the third attempt in a row has met it.
        (j.payload {->} 'error') is null
            and j.attempts {>} 2 and (j.payload {->} 'busy') is not null as is_locked
    from fetchq.jobs j
),
jobs as (
    select t.n, t.what, coalesce(j.jobs, 0) as jobs, j.last, coalesce(j.failing, 0) as failing,
        coalesce(j.locked, 0) as locked, f.failing_queues, f.locked_queues,
        -- The background worker runs the maintenance of documents when documents are due, and not
        -- when the job is. On a standby it is that of the primary.
        coalesce(j.next {<} (pg_catalog.clock_timestamp() {-} interval '1 minute'), false)
            -- The counters of a database that shares its background worker are packed when there
            -- is something to pack.
            and (t.n {>} 2 or $25 is null)
            and (t.n {>} 1 or ($9 is null and not $17)) as is_late
    from tasks t
    left join (
        select j.task, pg_catalog.count(*) as jobs, pg_catalog.max(j.last_iteration) as last, pg_catalog.min(j.next_iteration) as next,
            pg_catalog.count(*) filter (where j.is_failing) as failing,
            pg_catalog.count(*) filter (where j.is_locked) as locked
        from states j
        group by j.task) j on j.task {=} t.task
    -- Not read while nothing fails.
    left join lateral (
        select pg_catalog.array_agg(o.queue order by o.attempts desc, o.queue)
                filter (where o.is_failing) as failing_queues,
            pg_catalog.array_agg(o.queue order by o.attempts desc, o.queue)
                filter (where o.is_locked) as locked_queues
        from states o
        where (j.failing {>} 0 or j.locked {>} 0) and o.task {=} j.task
            and (o.is_failing or o.is_locked) and o.queue {<>} '*') f on true
)
select component, state, detail, hint from (
    select 0 as n, 'server' as component, case when $17 then 'standby' else 'primary' end as state,
        'PostgreSQL ' {||} pg_catalog.current_setting('server_version') as detail,
        case when $17 then 'Only reads are possible; the background worker starts when the server is promoted.' end as hint
    union all
    select 1, 'library', case when $1 then 'preloaded' else 'not preloaded' end,
        pg_catalog.format('version %s', $2),
        case when e.extversion {<>} $2
            then pg_catalog.format('The extension in this database has version %s. If the library is the newer one: alter extension fetchq update. Otherwise restart the server.', e.extversion)
            when not $1 then 'Set shared_preload_libraries = ''fetchq'' and restart: without it there are no ready floors and no background worker.' end
    from (select) l left join pg_catalog.pg_extension e on e.extname {=} 'fetchq'
    union all
    select 2, 'memory', case when $3 then 'there' else 'none' end,
        pg_catalog.format('%s of %s slots used, %s floor misses', $4, $5, $6),
        case when $1 and not $3 then 'Set fetchq.ready_slots above 0 and restart: without the shared memory there are no ready floors and no background worker.'
            when $6 {>} 0 then 'A ready floor was too high: please report it.'
            when $3 and $4 {>} ($5 {*} 0.9) then 'Raise fetchq.ready_slots.' end
    union all
    select 3, 'launcher', case when $7 is not null then 'running' else 'not running' end,
        'since ' {||} $7,
        case when $7 is null and $1 and $3 and not $17
            then 'It starts with the server, and again a second after a failure: see max_worker_processes and the log of the server.'
            when $26 {>} 0 then pg_catalog.format('%s databases more than shared memory has room for are served in rotation, not when something is due.', $26) end
    union all
    select 4, 'background worker',
        case when $9 is not null then 'running' when not $8 then 'off'
            when $25 {<=} pg_catalog.clock_timestamp() then 'waiting' when $25 is not null then 'idle'
            else 'not running' end,
        coalesce('process ' {||} $10 {||} ', since ' {||} $9,
            case when $8 and pg_catalog.isfinite($25) then 'starts when something is due, at ' {||} $25 {||} ' or earlier'
                when $8 and $25 is not null then 'starts when something is due' end),
        case when $17 then null
            when $8 and $9 is null and $25 {<=} pg_catalog.clock_timestamp() and $29
            then 'All background workers serve other databases: see fetchq.max_workers.'
            when $8 and $9 is null and $30 then 'Shared memory has no room for this database: it is served in rotation, not when something is due.'
            when $8 and $9 is null and $25 {<=} pg_catalog.clock_timestamp()
            then 'It starts within seconds. If it does not: see max_worker_processes and the log of the server.'
            when $8 and $9 is null and $25 is not null then null
            when $9 is null and not $8 then 'fetchq.background_worker is off: something else must call fetchq.mnt_job_run().'
            when $9 is null and $1 and not $3 then 'Set fetchq.ready_slots above 0 and restart: the background worker needs the shared memory.'
            when $9 is null and $1 then 'See fetchq.databases, max_worker_processes, and the log of the server.'
            when $9 is null then 'Something must call fetchq.mnt_job_run(): see docs/guides/operations.md.' end
    union all
    select 10 {+} j.n, 'maintenance: ' {||} j.what,
        case when j.jobs {=} 0 then 'none' when j.failing {>} 0 then 'failing'
            when j.locked {>} 0 then 'locked'
            when j.is_late then 'late' else 'fine' end,
        pg_catalog.format('%s jobs, last %s', j.jobs, coalesce(j.last::pg_catalog.text, 'never'))
            {||} coalesce(
                ', which took ' {||} pg_catalog.round(l.took {/} 1000.0, 1) {||} ' ms for ' {||} l.done {||} ' rows',
                '')
            {||} coalesce(
                ', failing for \"' {||} pg_catalog.array_to_string(j.failing_queues[1:3], '\", \"') {||} '\"'
                {||} case when pg_catalog.cardinality(j.failing_queues) {>} 3
                    then pg_catalog.format(' and %s more', pg_catalog.cardinality(j.failing_queues) {-} 3) else '' end,
                '')
            {||} coalesce(
                ', locked out of \"' {||} pg_catalog.array_to_string(j.locked_queues[1:3], '\", \"') {||} '\"'
                {||} case when pg_catalog.cardinality(j.locked_queues) {>} 3
                    then pg_catalog.format(' and %s more', pg_catalog.cardinality(j.locked_queues) {-} 3) else '' end,
                ''),
        case when j.failing {>} 0 then 'See fetchq.jobs where payload ? ''error'', and the log of the server.'
            when j.locked {>} 0
            then 'Another session has locked what they need, and keeps it: see pg_locks, and fetchq.jobs where payload ? ''busy''.'
            when j.is_late and $17 then 'The primary runs them: see fetchq.status() there.'
            when j.is_late and $9 is null and $25 is null then 'No process runs them: see background worker.'
            when j.is_late then 'See fetchq.progress, and the log of the server.' end
    from jobs j
    left join rows from (pg_catalog.unnest($14::pg_catalog.text[]), pg_catalog.unnest($15::bigint[]),
        pg_catalog.unnest($16::bigint[])) l (what, took, done)
        on l.what {=} j.what
    union all
    select 16, 'schedules',
        case when pg_catalog.count(*) {=} 0 then 'none'
            when pg_catalog.bool_or(s.is_active and s.attempts {>} 0) then 'failing'
            when pg_catalog.bool_or(s.is_active and s.due_at {<} (pg_catalog.clock_timestamp() {-} interval '10 seconds'))
            then 'late' else 'fine' end,
        pg_catalog.format('%s active, %s paused',
            pg_catalog.count(*) filter (where s.is_active), pg_catalog.count(*) filter (where not s.is_active)),
        case when pg_catalog.bool_or(s.is_active and s.attempts {>} 0)
            then 'See fetchq.schedule_list() where state = ''failing''.'
            when pg_catalog.bool_or(s.is_active and s.due_at {<} (pg_catalog.clock_timestamp() {-} interval '10 seconds'))
                and $17
            then 'The primary runs them: see fetchq.status() there.'
            when pg_catalog.bool_or(s.is_active and s.due_at {<} (pg_catalog.clock_timestamp() {-} interval '10 seconds'))
                and $9 is null and $25 is null
            then 'No process runs them: see background worker.'
            when pg_catalog.bool_or(s.is_active and s.due_at {<} (pg_catalog.clock_timestamp() {-} interval '10 seconds'))
            then 'See fetchq.schedule_list(), and the log of the server.' end
    from fetchq.schedules s
    union all
    select 17, 'places', case when pg_catalog.count(*) {=} 0 then 'none' else 'elsewhere' end,
        case when pg_catalog.count(*) {>} 0 then pg_catalog.format('%s queues live on other servers: ', pg_catalog.count(*))
            {||} pg_catalog.string_agg(pg_catalog.format('\"%s\" on %s', p.queue, p.place), ', ' order by p.n) filter (where p.n {<=} 3)
            {||} case when pg_catalog.count(*) {>} 3 then pg_catalog.format(' and %s more', pg_catalog.count(*) {-} 3) else '' end end,
        null
    from (
        select e.queue, e.place, pg_catalog.row_number() over (order by e.queue) as n
        from fetchq.queue_places e
        -- A queue that is here is served here, whatever is recorded.
        where not exists (select from fetchq.queues q where q.name {=} e.queue)) p
    union all
    select 19, 'workers', $37,
        case when $37 {<>} 'fine' then pg_catalog.concat_ws('; ',
            pg_catalog.string_agg(
                pg_catalog.format('\"%s\"', w.queue)
                {||} case when w.version {<>} 0 then pg_catalog.format(' (version %s)', w.version) else '' end
                {||} pg_catalog.format(': %s pending, the first has waited since %s, and ', w.pending, w.since)
                {||} case when w.awaited {<>} '' then 'workers wait for version ' {||} w.awaited
                    else 'no worker waits for it or has leased from it' {||} coalesce(' since ' {||} w.picked_at, '') end,
                '; ' order by w.n)
                {||} case when $44 {>} 0 then pg_catalog.format('; and %s more', $44) else '' end,
            case when $37 {=} 'off' then 'fetchq.no_worker_after is -1'
                when $17 then 'known on the primary only' else 'not known for ' {||} $45 end) end,
        case when $37 {=} 'missing' then pg_catalog.format(
            'Start a worker; it leases with select * from fetchq.doc_lease(%L%s). If one runs, see whether it names another queue or another version: fetchq.doc_explain() says why a document waits.',
            pg_catalog.min(w.queue) filter (where w.n {=} 1),
            pg_catalog.min(', version => ' {||} w.version) filter (where w.n {=} 1 and w.version {<>} 0)) end
    from (
        select u.n, u.queue, u.version, u.pending, u.awaited,
            {since} u.since {micros} as since,
            case when u.picked_at {>} {never} then {since} u.picked_at {micros} end as picked_at
        from rows from (pg_catalog.unnest($38::pg_catalog.text[]), pg_catalog.unnest($39::pg_catalog.int4[]),
            pg_catalog.unnest($40::pg_catalog.int8[]), pg_catalog.unnest($41::pg_catalog.int8[]),
            pg_catalog.unnest($42::pg_catalog.int8[]), pg_catalog.unnest($43::pg_catalog.text[]))
            with ordinality u (queue, version, pending, since, picked_at, awaited, n)) w
    union all
    select 20, 'backlog', case when $31 {>} 0 or $11 is not null or $33 is not null then 'waiting'
            when $31 is null then 'unknown' else 'none' end,
        coalesce($31::pg_catalog.text {||} ' pending', 'not known')
            {||} case when $32 {>} 0 then pg_catalog.format(', %s of them in paused queues', $32) else '' end
            {||} coalesce(', ready since ' {||} $11 {||} case when $24 then '' else ' or earlier' end, '')
            {||} coalesce(', ready since -infinity in ' {||} $33, ''),
        case when $32 {>} 0
                then 'Nothing is picked from a paused queue: see fetchq.queue_stats() and fetchq.queue_resume().'
            when $31 is null then 'Another session has locked the counters: see pg_locks.' end
    union all
    select d.n, d.component,
        case when d.since is not null then 'late' when d.unknown is null then 'in time'
            when d.known {>} 0 then 'partly known' else 'unknown' end,
        -- What cannot be read of one queue hides nothing of the others.
        (select pg_catalog.string_agg(p.part, '; ') from pg_catalog.unnest(array[
            case when d.since is not null then pg_catalog.format('due since %s in %s', d.since, d.queues)
                when d.next {<} pg_catalog.clock_timestamp() then 'due since ' {||} d.next
                else 'the first is due at ' {||} d.next {||} ' or later' end,
            case when d.since is null and d.unknown is not null and d.known {>} 0
                then case when d.known {=} 1 then '1 other queue is in time'
                    else pg_catalog.format('%s other queues are in time', d.known) end end,
            'not known for ' {||} d.unknown]) p (part)),
        case when d.since is not null and $17 then 'The primary runs maintenance: see fetchq.status() there.'
            when d.since is not null and $9 is null
            then case when $25 is null then 'No process runs maintenance: see background worker.'
                when $29 then 'The background workers serve other databases: see background worker.'
                else 'No background worker runs in this database now: see background worker.' end
            when d.since is not null
            then 'See fetchq.progress, maintenance: documents, and fetchq.jobs where task = ''mnt''.'
            when d.unknown is not null
            then pg_catalog.format('Their tables or due indexes are locked, missing, altered or full of dead entries. Look yourself: select min(next_iteration) from fetchq_data.<queue>__docs where status = %s.', d.status) end
    from (values
        (21, 'planned', {planned}, $18::pg_catalog.timestamptz, $19::pg_catalog.text,
            case when $20::pg_catalog.text {<>} '' then $20 end, $12::pg_catalog.timestamptz, $35::pg_catalog.int8),
        (22, 'leases', {active}, $21::pg_catalog.timestamptz, $22::pg_catalog.text,
            case when $23::pg_catalog.text {<>} '' then $23 end, $13::pg_catalog.timestamptz, $36::pg_catalog.int8)
    ) d (n, component, status, since, queues, unknown, next, known)
    union all
    select 23, 'dead letters', $46,
        pg_catalog.string_agg(
            pg_catalog.format('%s in dead-letter queue \"%s\"', d.number, d.queue)
                {||} case when d.since {>} {never} then ' since ' {||} ({since} d.since {micros}) else '' end,
            ', ' order by d.n)
            {||} case when $50 {>} 0 then pg_catalog.format(' and %s more', $50) else '' end,
        null
    from rows from (pg_catalog.unnest($47::pg_catalog.text[]), pg_catalog.unnest($48::pg_catalog.int8[]),
        pg_catalog.unnest($49::pg_catalog.int8[]))
        with ordinality d (queue, number, since, n)
    union all
    select 30, 'counter log',
        case when t.bytes {>} (64 {*} 1024 {*} 1024) then 'long' else 'short' end, t.size,
        case when t.bytes {>} (64 {*} 1024 {*} 1024)
            then 'No process packs it, or an old snapshot keeps it: see horizon.' end
    from tail t
    union all
    select 31, 'horizon',
        case when h.is_held then 'held' when hidden.sessions {>} 0 then 'unknown' else 'free' end,
        case when h.name is not null
            then pg_catalog.format('%s, %s transactions, since %s',
                h.name, h.transactions, coalesce(h.since::pg_catalog.text, 'unknown')) end,
        case when h.is_held and $17
            then 'With hot_standby_feedback, the primary keeps dead rows while it lasts. Without, replay may have to wait for it.'
            when h.is_held and h.is_catalog
            then 'Dead rows of the system catalogs cannot be removed while it lasts: drop the slot if it is not needed.'
            when h.is_held
            then 'Dead rows cannot be removed while it lasts: end it if it is not needed.'
            when hidden.sessions {>} 0
            then 'Since when some sessions have their snapshots is hidden: a member of pg_read_all_stats can see it, unless track_activities is off.' end
    from (select pg_catalog.count(*) as sessions from holders where is_hidden) hidden
    left join oldest h on true
) s
order by n";

/// `STATUS` with the words that make a time of one in an array.
fn statement() -> String {
    let sql = STATUS
        .replace(
            "{since}",
            "(pg_catalog.timestamptz '2000-01-01 00:00:00+00' {+} (interval '1 microsecond' {*}",
        )
        .replace("{micros}", "::pg_catalog.float8))")
        .replace("{never}", "bigint '-9223372036854775808'");
    render_shared(&sql)
}

/// A property of each of the first elements, as many as a report names.
fn each<'a, T, P>(all: &'a [T], property: impl Fn(&'a T) -> P) -> Vec<P> {
    all.iter().take(MAX_NAMES).map(property).collect()
}

/// How many there are that a report does not name.
fn more<T>(all: &[T]) -> i64 {
    all.len().saturating_sub(MAX_NAMES) as i64
}

fn comma_separated(versions: &[i32]) -> String {
    let versions: Vec<String> = versions.iter().map(i32::to_string).collect();
    versions.join(", ")
}

/// The state of the row `workers`.
fn workers_state(state: &ServerState) -> &'static str {
    match &state.report.workers {
        _ if state.is_standby => "unknown",
        None => "off",
        Some(workers) if !workers.unattended.is_empty() => "missing",
        Some(workers) if workers.unknown_queues().is_some() => "unknown",
        Some(_) => "fine",
    }
}

/// Writes the rows of `fetchq.status()` from what `collect` has found. `version` is that of the
/// library.
fn write_rows(version: &str, state: &ServerState, out: &mut RowSink) {
    let at = |time: Option<i64>| time.map_or_else(Arg::no_timestamp, Arg::timestamp);
    let report = &state.report;
    let [planned, leased] = [&report.planned, &report.leased].map(|lateness| {
        [lateness.late_queues(), lateness.unknown_queues()].map(Option::unwrap_or_default)
    });
    let always_ready = report.always_ready_queues();
    let workers = report.workers.as_ref();
    let absent = workers.map_or(&[][..], |workers| &workers.unattended);
    let dead_letters = report.dead_letters.as_deref().unwrap_or_default();
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
        at(report.ready_since),
        at(report.planned.next),
        at(report.leased.next),
        Arg::from(ran().map(|(task, _)| task.word()).collect::<Vec<_>>()),
        Arg::from(ran().map(|(_, (took, _))| took).collect::<Vec<_>>()),
        Arg::from(ran().map(|(_, (_, done))| done).collect::<Vec<_>>()),
        Arg::from(state.is_standby),
        at(report.planned.since),
        Arg::from(planned[0].as_str()),
        Arg::from(planned[1].as_str()),
        at(report.leased.since),
        Arg::from(leased[0].as_str()),
        Arg::from(leased[1].as_str()),
        Arg::from(report.is_ready_known),
        at(state.needs_worker_at),
        Arg::from(i64::from(state.unlisted)),
        Arg::oid(Oid::from(session::database())),
        Arg::from(session::keeps_snapshot()),
        Arg::from(state.is_pool_full),
        Arg::from(state.is_unlisted),
        Arg::from(state.pending.map(|(all, _)| all)),
        Arg::from(state.pending.map(|(_, paused)| paused)),
        Arg::from(always_ready.as_deref()),
        Arg::oid(role::current()),
        Arg::from(report.planned.known_queues),
        Arg::from(report.leased.known_queues),
        Arg::from(workers_state(state)),
        Arg::from(each(absent, |found| found.queue.as_str())),
        Arg::from(each(absent, |found| found.version)),
        Arg::from(each(absent, |found| found.pending)),
        Arg::from(each(absent, |found| found.since)),
        Arg::from(each(absent, |found| found.picked_at.unwrap_or(i64::MIN))),
        Arg::from(each(absent, |found| comma_separated(&found.awaited))),
        Arg::from(more(absent)),
        Arg::from(workers.and_then(Workers::unknown_queues).as_deref()),
        Arg::from(match &report.dead_letters {
            None => "unknown",
            Some(all) if all.is_empty() => "none",
            Some(_) => "waiting",
        }),
        Arg::from(each(dead_letters, |dead| dead.queue.as_str())),
        Arg::from(each(dead_letters, |dead| dead.number)),
        Arg::from(each(dead_letters, |dead| dead.since.unwrap_or(i64::MIN))),
        Arg::from(more(dead_letters)),
    ];
    spi::connect(|spi| {
        // What `collect` has found is as of now, so this has to be, too.
        let rows = spi.once_latest(&statement(), &args);
        out.extend(&rows);
    });
}

/// Counts the pending documents of all queues but dead-letter queues, and those of paused queues. None when
/// the counters are locked.
fn pending(state: &State) -> Option<(i64, i64)> {
    let pending = |queue: &Queue| queue.counted.as_ref().map_or(0, |all| all.counter("pnd"));
    let queues = state.queues.iter();
    let queues = queues.filter(|queue| !queue.is_dead_letter_queue);
    let paused = queues.clone().filter(|queue| !queue.is_active);
    state
        .is_counted
        .then(|| (queues.map(pending).sum(), paused.map(pending).sum()))
}

/// Collects what the shared memory, the settings and the indexes say, as of `now` (microseconds
/// since 2000).
fn collect(now: i64) -> ServerState {
    let running = |process: Option<(i32, i64)>| process.filter(|(pid, _)| process::is_alive(*pid));
    let board = board::board();
    let background_worker = board.and_then(|board| board.background_worker_of(session::database()));
    let database = board.and_then(|board| board.databases.find(session::database()));
    let is_absent = background_worker.is_none() && board::is_served();
    let queues = State::read(&Scope::everything(), Snapshot::latest, None, now);
    ServerState {
        is_preloaded: session::is_preloaded(),
        is_standby: session::is_standby(),
        has_shared_memory: floors::is_available(),
        wants_background_worker: settings::background_worker(),
        launcher: board
            .and_then(|board| running(board.launcher.process()))
            .map(|(_, since)| since),
        background_worker: background_worker.and_then(|worker| running(worker.slot.process())),
        needs_worker_at: is_absent
            .then(|| database.map_or(i64::MAX, |database| database.wakes_at())),
        is_pool_full: board
            .is_some_and(|board| board.background_workers_running() >= settings::max_workers()),
        unlisted: board.map_or(0, |board| board.databases.unlisted()),
        is_unlisted: is_absent && database.is_none(),
        last: Task::ALL.map(|task| database.and_then(|entry| entry.last[task as usize].read())),
        stats: floors::stats(),
        report: lateness::report(&queues, now),
        pending: pending(&queues),
    }
}

/// Adds the rows of `fetchq.status()` to a result, as of now. `version` is that of the
/// library. The data owner is the only row where it may not read the tables that the others come from.
pub fn report(version: &str, out: &mut RowSink) {
    if data_owner::report(out) {
        write_rows(version, &collect(time::clock()), out);
    }
}

/// Adds the only row of `fetchq.status()` where the library does not fit the catalog, as this error
/// says: the others come from tables of another version.
pub fn report_unfit(unfit: &Error, out: &mut RowSink) {
    out.push(&[
        Arg::from("library"),
        Arg::from("other version"),
        Arg::from(unfit.to_string().as_str()),
        Arg::from(unfit.hint().as_str()),
    ]);
}

/// Adds the ready floors of a queue to a result. Both ends of an index have no time: drivers of
/// several languages cannot read infinite ones. Fails with `UnknownQueue` when there is no such
/// queue.
pub fn ready_floors(name: &QueueName, out: &mut RowSink) -> Result<()> {
    let Some(table) = relation::lookup_data_table(&name.relation("docs")) else {
        return Err(queue_places::unknown(name));
    };
    for (index, version, view) in floors::describe(table) {
        let index = match index {
            Index::Pick => "pick",
            Index::Due => "due",
        };
        let floor = view.floor.pick();
        let time = match floor.next_iteration {
            i64::MIN | i64::MAX => Arg::no_timestamp(),
            time => Arg::timestamp(time),
        };
        out.push(&[
            Arg::from(index),
            Arg::from(version),
            Arg::from(view.id),
            time,
            Arg::from(floor.attempts),
            Arg::from(floor.seq),
            Arg::from(view.floor == Key::LAST),
        ]);
    }
    Ok(())
}
