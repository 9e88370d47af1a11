//! What the catalog and `fetchq.queues` say about a queue: its settings, and whether its docs
//! table is as fetchq made it. `open_queue.rs` keeps the result in the cache of the session.

use pgrx::pg_sys::{Oid, TransactionId};

use crate::domain::document::{Column, DUE_KEY, EXPIRY_KEY, KEY, PICK_KEY, defaults, numbers};
use crate::domain::names::QueueName;
use crate::pg::spi::{self, Rows};
use crate::pg::value::Arg;
use crate::store::queues::plans::shared_plan;
use crate::store::queues::policy::Policy;
use crate::store::queues::statement::Statement;

/// What is known of a queue. An object of its docs table that is missing, or is not as fetchq
/// made it, is None.
pub struct QueueInfo {
    /// The key of its row in `fetchq.queues`.
    pub id: i32,
    /// The transaction that last wrote the catalog row of the trigger of the ready floors, if
    /// the trigger always runs.
    pub ready_trigger: Option<TransactionId>,
    pub pick_index: Option<Oid>,
    pub due_index: Option<Oid>,
    pub expiry_index: Option<Oid>,
    /// The index of the primary key.
    pub key_index: Option<Oid>,
    /// The sequence of the identity column `seq`.
    pub sequence: Option<Oid>,
    /// Nothing of a superuser's changes or refuses a row that fetchq writes.
    pub is_plain: bool,
    /// The table has triggers of the notifications.
    pub notifies: bool,
    pub policy: Policy,
}

// Everything that a session has to know about a queue. $1 is the name of the queue, $2 its
// docs table, $3 and $4 the names of the pick index and the due index, $5, $6 and $7 the numbers of
// the columns of these and of the primary key, $8 the number of the column seq, $9 the defaults, $10
// the name of the expiry index and $11 its column.
// `decode` reads the columns by number, and `Policy::read` those from `is_active` on.
static QUEUE: Statement = Statement::new(
    "select
        q.id as id,

        -- The trigger of the ready floors, as it was made (29: after, for each row, insert,
        -- update or delete), on a heap without children (2: heap).
        (select t.xmin from pg_catalog.pg_trigger t
         where t.tgrelid {=} $2
             and t.tgname {=} 'fetchq_ready'
             and t.tgenabled {=} 'A'
             and t.tgtype {=} 29
             and t.tgqual is null
             and t.tgattr::pg_catalog.text {=} ''
             and t.tgfoid {=} 'fetchq.trigger_docs_ready'::pg_catalog.regproc
             and c.relam {=} 2
             and not c.relhassubclass) as ready_trigger,

        -- The indexes, as they were made: B-trees (403) with their columns, directions and
        -- predicate, and the usual order of the types (the operator classes int4_ops 1978,
        -- int8_ops 3124, text_ops 3126 and timestamptz_ops 3127).
        (select i.indexrelid from pg_catalog.pg_index i
         join pg_catalog.pg_class x on x.oid {=} i.indexrelid
         where i.indrelid {=} $2 and i.indisvalid and i.indisready and not i.indisunique
             and x.relname {=} $3
             and x.relam {=} 403
             and i.indclass::pg_catalog.text {=} '1978 1978 3127 1978 3124'
             and i.indkey::pg_catalog.text {=} $5
             and i.indoption::pg_catalog.text {=} '0 3 0 0 0'
             and pg_catalog.pg_get_expr(i.indpred, i.indrelid)
                 {=} '((status = {pending}) AND (lock_upgrade IS NULL))') as pick_index,
        (select i.indexrelid from pg_catalog.pg_index i
         join pg_catalog.pg_class x on x.oid {=} i.indexrelid
         where i.indrelid {=} $2 and i.indisvalid and i.indisready and not i.indisunique
             and x.relname {=} $4
             and x.relam {=} 403
             and i.indclass::pg_catalog.text {=} '1978 3127 3124'
             and i.indkey::pg_catalog.text {=} $6
             and i.indoption::pg_catalog.text {=} '0 0 0'
             and pg_catalog.pg_get_expr(i.indpred, i.indrelid)
                 {=} '((status = ANY (ARRAY[{planned}, {active}])) AND (lock_upgrade IS NULL))') as due_index,

        -- Nothing of a superuser's changes or refuses a row that is written: no trigger, check, rule or
        -- forced policy, and the defaults are as they were made. Other policies do not restrict the
        -- owner of the table.
        not exists (
            select from pg_catalog.pg_trigger t
            where t.tgrelid {=} $2
                and t.tgname {<>} 'fetchq_ready'
                and not (
                    t.tgname {=} any ('{fetchq_notify_insert,fetchq_notify_update}'::pg_catalog.name[])
                    and t.tgenabled {=} 'O'
                    and t.tgfoid {=} 'fetchq.trigger_docs_notify'::pg_catalog.regproc))
        and not exists (
            select from pg_catalog.pg_constraint k
            where k.conrelid {=} $2 and k.contype {=} 'c')
        and not exists (select from pg_catalog.pg_rewrite r where r.ev_class {=} $2)
        and not (c.relrowsecurity and c.relforcerowsecurity)
        and (select pg_catalog.string_agg(pg_catalog.pg_get_expr(d.adbin, d.adrelid), ',' order by d.adnum)
             from pg_catalog.pg_attrdef d where d.adrelid {=} $2)
            {=} $9 as is_plain,

        -- The primary key: of the subject alone, with the collation C (950).
        (select i.indexrelid from pg_catalog.pg_index i
         join pg_catalog.pg_class x on x.oid {=} i.indexrelid
         where i.indrelid {=} $2 and i.indisprimary and i.indimmediate
             and x.relam {=} 403
             and i.indclass::pg_catalog.text {=} '3126'
             and i.indkey::pg_catalog.text {=} $7
             and i.indcollation::pg_catalog.text {=} '950') as key_index,

        -- The sequence of the identity column seq.
        (select s.oid from pg_catalog.pg_depend d
         join pg_catalog.pg_class s on s.oid {=} d.objid
         where d.refclassid {=} 'pg_catalog.pg_class'::pg_catalog.regclass
             and d.classid {=} d.refclassid
             and d.refobjid {=} $2 and d.refobjsubid {=} $8
             and d.deptype {=} 'i' and s.relkind {=} 'S') as sequence,

        -- The triggers of the notifications: two or none.
        (select pg_catalog.count(*)::pg_catalog.int4 from pg_catalog.pg_trigger t
         where t.tgrelid {=} $2
             and t.tgname {=} any ('{fetchq_notify_insert,fetchq_notify_update}'::pg_catalog.name[])) as notify_triggers,

        -- The settings of the queue.
        q.is_active as is_active,
        q.max_attempts as max_attempts,
        q.retry_base as retry_base,
        q.retry_factor as retry_factor,
        q.retry_max_delay as retry_max_delay,
        q.retry_jitter as retry_jitter,
        q.dead_letter::pg_catalog.text as dead_letter,
        q.keep_completed as keep_completed,
        q.keep_killed as keep_killed,
        q.keep_dropped as keep_dropped,
        q.max_active as max_active,
        q.rate_limit as rate_limit,
        q.rate_interval as rate_interval,
        q.is_ordered as is_ordered,
        q.max_active_per_key as max_active_per_key,
        q.lease_duration as lease_duration,
        q.dead_letter_by::pg_catalog.text as dead_letter_by,
        q.expire_after as expire_after,
        q.max_run as max_run,
        q.lease_write_delay as lease_write_delay,

        -- The index of documents that expire, as it was made.
        (select i.indexrelid from pg_catalog.pg_index i
         join pg_catalog.pg_class x on x.oid {=} i.indexrelid
         where i.indrelid {=} $2 and i.indisvalid and i.indisready and not i.indisunique
             and x.relname {=} $10
             and x.relam {=} 403
             and i.indclass::pg_catalog.text {=} '3127'
             and i.indkey::pg_catalog.text {=} $11
             and i.indoption::pg_catalog.text {=} '0'
             and pg_catalog.pg_get_expr(i.indpred, i.indrelid)
                 {=} '((status = ANY (ARRAY[{planned}, {pending}])) AND (attempts = 0) AND (expires_at IS NOT NULL))') as expiry_index
     from fetchq.queues q
     join pg_catalog.pg_class c on c.oid {=} $2
     where q.name {=} $1",
);

/// The first column of `QUEUE` that is a setting: `is_active`.
const FIRST_SETTING: i32 = 9;

/// How many settings it has. The column after them is the expiry index.
const SETTINGS: i32 = 20;

/// Reads what is known of a queue, whose docs table the caller has locked. None: the queue is
/// not registered.
///
/// It is read as of now, as the table was looked up. In a transaction with an older snapshot,
/// the id would otherwise be that of a queue that was dropped, and it would stay in the cache.
pub(in crate::store) fn read(name: &QueueName, table: Oid) -> Option<QueueInfo> {
    spi::connect(|spi| {
        let pick_index = name.relation("docs_pick_idx");
        let due_index = name.relation("docs_due_idx");
        let expiry_index = name.relation("docs_expiry_idx");
        let expiry_key = numbers(&EXPIRY_KEY);
        let (pick_key, due_key, key) = (numbers(&PICK_KEY), numbers(&DUE_KEY), numbers(&KEY));
        let args = [
            Arg::from(name.as_str()),
            Arg::oid(table),
            Arg::from(pick_index.as_str()),
            Arg::from(due_index.as_str()),
            Arg::from(pick_key.as_str()),
            Arg::from(due_key.as_str()),
            Arg::from(key.as_str()),
            Arg::from(i32::from(Column::Seq.number())),
            Arg::from(defaults().as_str()),
            Arg::from(expiry_index.as_str()),
            Arg::from(expiry_key.as_str()),
        ];
        let plan = shared_plan(spi, &QUEUE, &args);
        let rows = spi.run_latest(&plan, &args);
        decode(&rows)
    })
}

fn decode(rows: &Rows) -> Option<QueueInfo> {
    if rows.is_empty() {
        return None;
    }
    let oid = |column| rows.number(0, column).map(Oid::from);
    let flag = |column| rows.get(0, column).unwrap_or(false);
    let notify_triggers: i32 = rows.get(0, 8).unwrap_or(0);
    Some(QueueInfo {
        id: rows.get(0, 1)?,
        ready_trigger: rows.number(0, 2).map(TransactionId::from),
        pick_index: oid(3),
        due_index: oid(4),
        expiry_index: oid(FIRST_SETTING + SETTINGS),
        // With one trigger, the other one of the notifications is missing.
        is_plain: flag(5) && notify_triggers != 1,
        key_index: oid(6),
        sequence: oid(7),
        notifies: notify_triggers > 0,
        policy: Policy::read(rows, FIRST_SETTING),
    })
}
