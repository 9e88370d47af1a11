//! A queue that is open: what a session knows of it, its prepared plans, and the cache of
//! both, which is kept for the life of the session.
//!
//! A queue is kept by its identity, the OID of its docs table. The table is looked up by
//! name in the system cache and locked, and only then is the cache of this file read, so
//! that a queue that was dropped and created again is never served by old plans.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::mem::ManuallyDrop;
use std::rc::Rc;

use pgrx::pg_sys::Oid;

use crate::domain::names::QueueName;
use crate::domain::status::Status;
use crate::error::{Error, Result};
use crate::pg::documents::Documents;
use crate::pg::documents_check::{Access, Indexes};
use crate::pg::invalidation::{self, Invalidated};
use crate::pg::planner;
use crate::pg::relation::{self, File, Lock};
use crate::pg::spi::{self, Rows, Spi};
use crate::pg::trigger::SuppressedTriggers;
use crate::pg::value::Arg;
use crate::ready::floors::{self, QueueFloors};
use crate::ready::group::Views;
use crate::settings;
use crate::signals::announce;
use crate::store::plans::{PlanSet, shared_plan};
use crate::store::policy::Policy;
use crate::store::statement::{Statement, render};

/// A queue that exists. Its docs table is locked against dropping until the end of the
/// transaction.
pub struct Queue {
    pub name: QueueName,
    /// The key of its row in `fetchq.queues`.
    pub id: i32,
    /// The docs table.
    pub table: Oid,
    pub policy: Policy,
    floors: FloorObjects,
    /// Nothing of the user's runs when fetchq writes a row, so that what fetchq writes is
    /// what is stored.
    is_plain: bool,
    /// Status changes of documents are announced: `queue_enable_notify`.
    notifies: bool,
    /// The indexes, if all of them are as fetchq made them.
    indexes: Option<Indexes>,
    /// The sequence of the identity column `seq`.
    sequence: Option<Oid>,
    /// The table has the columns that fetchq gave it and no others, so that a row can be
    /// written without a statement.
    has_known_columns: bool,
    file: Cell<Option<File>>,
    plans: PlanSet,
    last_used: Cell<u64>,
}

/// What the ready floors need of a table.
struct FloorObjects {
    pick_index: Option<Oid>,
    due_index: Option<Oid>,
    /// The transaction that last wrote the catalog row of the trigger, if the trigger always
    /// runs.
    trigger: Option<u32>,
}

/// The triggers that `SuppressedTriggers` expects on a docs table: the trigger of the ready
/// floors, and for a queue with announcements the two triggers of the notifications too.
const READY_TRIGGERS: i32 = 1;
const READY_AND_NOTIFY_TRIGGERS: i32 = 3;

impl Queue {
    /// Opens a queue for reading and writing its documents. Waits for a session that drops,
    /// truncates or alters the queue.
    ///
    /// Fails with `Error::UnknownQueue` if the queue does not exist.
    pub fn open(name: &QueueName) -> Result<Rc<Self>> {
        match Self::lock(name, true)? {
            Some(queue) => Ok(queue),
            None => Err(Error::UnknownQueue(name.to_string())),
        }
    }

    /// Opens a queue for maintenance, which does not wait: None if the table is locked.
    ///
    /// Fails with `Error::UnknownQueue` if the queue does not exist.
    pub fn try_open(name: &QueueName) -> Result<Option<Rc<Self>>> {
        Self::lock(name, false)
    }

    fn lock(name: &QueueName, wait: bool) -> Result<Option<Rc<Self>>> {
        let relation_name = name.relation("docs");
        loop {
            let Some(table) = relation::lookup_data_table(&relation_name) else {
                return Err(Error::UnknownQueue(name.to_string()));
            };
            match relation::lock_rows(table, wait) {
                Lock::Held(file) => {
                    let queue = find_or_load(name, table)?;
                    queue.file.set(Some(file));
                    return Ok(Some(queue));
                }
                Lock::Busy => return Ok(None),
                // The table was dropped after the look-up. There may be a new one by now.
                Lock::Gone => {}
            }
        }
    }

    /// Runs a hot statement on the queue's tables.
    pub fn run<'s>(&self, spi: &'s Spi, statement: &'static Statement, args: &[Arg]) -> Rows<'s> {
        let plan = self.plans.get_or_prepare(statement.key(), || {
            if self.plans.is_empty() {
                evict_plans();
            }
            spi.prepare(&statement.text_for(&self.name), args)
        });
        spi.run(&plan, args)
    }

    /// Runs a hot statement that writes documents. The caller notes the index entries that
    /// it wrote, for the ready floors. Where a trigger of the user's might write more or
    /// something else, fetchq's own trigger notes them.
    pub fn run_noting<'s>(
        &self,
        spi: &'s Spi,
        statement: &'static Statement,
        args: &[Arg],
    ) -> Rows<'s> {
        let _suppressed = self.runs_nothing_else().then(|| {
            let triggers = if self.notifies {
                READY_AND_NOTIFY_TRIGGERS
            } else {
                READY_TRIGGERS
            };
            SuppressedTriggers::begin(self.table, triggers)
        });
        self.run(spi, statement, args)
    }

    /// The ready floors of the queue. None where they cannot be used: without shared
    /// memory, without the indexes or the trigger, and while this transaction has the
    /// documents in a file that a rollback would remove.
    pub fn floors(&self) -> Option<QueueFloors> {
        if !floors::is_available() {
            return None;
        }
        let file = self.file.get().filter(|file| !file.is_new)?;
        Some(QueueFloors {
            table: self.table,
            pick_index: self.floors.pick_index?,
            due_index: self.floors.due_index?,
            epoch: u64::from(file.number) << 32 | u64::from(self.floors.trigger?),
        })
    }

    /// The ready floors of the queue, and the levels of a version. None where they cannot be
    /// used or are not known.
    pub fn levels(&self, version: i32) -> Option<(QueueFloors, Views)> {
        let floors = self.floors()?;
        let levels = floors.levels(version)?;
        Some((floors, levels))
    }

    /// Whether no trigger has anything to do with the rows that fetchq writes. The triggers
    /// of the notifications have nothing to do while the background worker sends them.
    fn runs_nothing_else(&self) -> bool {
        self.is_plain && (!self.notifies || announce::is_collecting())
    }

    /// Announces, when the transaction commits, that documents changed to a status.
    pub fn announce(&self, status: Status) {
        if self.notifies && announce::is_collecting() {
            announce::announce_status(self.table.to_u32(), status);
        }
    }

    /// Opens the docs table for reading and writing without statements. None where only a
    /// statement will do.
    pub fn documents(&self, access: Access) -> Option<Documents> {
        let is_allowed = settings::direct() && self.runs_nothing_else();
        let indexes = self.indexes.as_ref().filter(|_| is_allowed)?;
        Documents::open(self.table, indexes, access)
    }

    /// The next `seq` for a document that is added without a statement. None where only a
    /// statement can add one.
    pub fn next_seq(&self) -> Option<i64> {
        self.sequence
            .filter(|_| self.has_known_columns)
            .map(relation::next_identity)
    }

    /// The next `seq` for a statement, which also works with columns that fetchq does not
    /// know. None where `seq` has no sequence.
    pub fn next_number(&self) -> Option<i64> {
        self.sequence.map(relation::next_identity)
    }

    /// Whether [`Self::next_seq`] returns a number.
    pub fn has_next_seq(&self) -> bool {
        self.has_known_columns && self.sequence.is_some()
    }

    /// Whether the trigger of the ready floors is missing, or does not always run.
    pub fn lacks_trigger(&self) -> bool {
        self.floors.trigger.is_none()
    }

    /// Runs a cold statement on the queue's tables, without keeping its plan.
    pub fn once<'s>(&self, spi: &'s Spi, sql: &str, args: &[Arg]) -> Rows<'s> {
        spi.once(&render(sql, &self.name), args)
    }
}

/// How many queues a session keeps in its cache, with plans or without. An entry without
/// plans takes half a kilobyte, so this bounds the cache to 10 MB.
const MAX_CACHED_QUEUES: usize = 20_000;

#[derive(Default)]
struct Cache {
    queues: HashMap<Oid, Rc<Queue>>,
    clock: u64,
}

thread_local! {
    // Never dropped: when a session exits, there is no SPI left to free plans with.
    static QUEUES: ManuallyDrop<RefCell<Cache>> = ManuallyDrop::new(RefCell::default());
}

// Everything that a session has to know about a queue. $1 is the name of the queue, $2 its
// docs table, $3 and $4 the names of the pick index and the due index.
// `read_queue` reads the columns by number, `Policy::read` those from `is_active` on.
static QUEUE: Statement = Statement::new(
    "select
        q.id as id,

        -- The trigger of the ready floors, as it was made (21: after, for each row, insert
        -- or update), on a heap without children (2: heap) that has the columns of the
        -- floors by number and type as in queue_tables.rs.
        (select t.xmin from pg_catalog.pg_trigger t
         where t.tgrelid {=} $2
             and t.tgname {=} 'fetchq_ready'
             and t.tgenabled {=} 'A'
             and t.tgtype {=} 21
             and t.tgqual is null
             and t.tgattr::pg_catalog.text {=} ''
             and t.tgfoid {=} 'fetchq.trigger_docs_ready'::pg_catalog.regproc
             and c.relam {=} 2
             and not c.relhassubclass
             and (select pg_catalog.string_agg(a.atttypid::pg_catalog.text, ' ' order by a.attnum)
                  from pg_catalog.pg_attribute a
                  where a.attrelid {=} $2 and not a.attisdropped
                      and a.attnum {=} any ('{2,3,4,5,7,12}'::pg_catalog.int2[]))
                 {=} '23 23 23 23 1184 20') as ready_trigger,

        -- The indexes, as they were made: columns, directions and predicate.
        (select i.indexrelid from pg_catalog.pg_index i
         join pg_catalog.pg_class x on x.oid {=} i.indexrelid
         where i.indrelid {=} $2 and i.indisvalid and i.indisready and not i.indisunique
             and x.relname {=} $3
             and i.indkey::pg_catalog.text {=} '2 3 7 5 12'
             and i.indoption::pg_catalog.text {=} '0 3 0 0 0'
             and pg_catalog.pg_get_expr(i.indpred, i.indrelid)
                 {=} '((status = {pending}) AND (lock_upgrade IS NULL))') as pick_index,
        (select i.indexrelid from pg_catalog.pg_index i
         join pg_catalog.pg_class x on x.oid {=} i.indexrelid
         where i.indrelid {=} $2 and i.indisvalid and i.indisready and not i.indisunique
             and x.relname {=} $4
             and i.indkey::pg_catalog.text {=} '4 7 12'
             and i.indoption::pg_catalog.text {=} '0 0 0'
             and pg_catalog.pg_get_expr(i.indpred, i.indrelid)
                 {=} '((status = ANY (ARRAY[{planned}, {active}])) AND (lock_upgrade IS NULL))') as due_index,

        -- Nothing of the user's runs when a row is written: no trigger, check, rule, policy,
        -- or index with an expression or a predicate, and the defaults are as they were made.
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
        and not exists (select from pg_catalog.pg_policy p where p.polrelid {=} $2)
        and not exists (
            select from pg_catalog.pg_index i
            join pg_catalog.pg_class x on x.oid {=} i.indexrelid
            where i.indrelid {=} $2
                and (i.indexprs is not null
                    or (i.indpred is not null and x.relname {<>} $3 and x.relname {<>} $4)))
        and (select pg_catalog.string_agg(pg_catalog.pg_get_expr(d.adbin, d.adrelid), ',' order by d.adnum)
             from pg_catalog.pg_attrdef d where d.adrelid {=} $2)
            {=} '0,0,0,0,0,now(),now()' as is_plain,

        -- The primary key: of the subject alone, which is a varchar(50) (typmod 54) with
        -- the collation C (950).
        (select i.indexrelid from pg_catalog.pg_index i
         where i.indrelid {=} $2 and i.indisprimary and i.indimmediate
             and i.indkey::pg_catalog.text {=} '1'
             and i.indcollation::pg_catalog.text {=} '950'
             and exists (
                 select from pg_catalog.pg_attribute a
                 where a.attrelid {=} $2 and a.attnum {=} 1
                     and a.atttypmod {=} 54)) as key_index,

        -- The sequence of the identity column seq, the twelfth.
        (select s.oid from pg_catalog.pg_depend d
         join pg_catalog.pg_class s on s.oid {=} d.objid
         where d.refclassid {=} 'pg_catalog.pg_class'::pg_catalog.regclass
             and d.classid {=} d.refclassid
             and d.refobjid {=} $2 and d.refobjsubid {=} 12
             and d.deptype {=} 'i' and s.relkind {=} 'S') as sequence,

        -- The triggers of the notifications: two or none.
        (select pg_catalog.count(*)::int4 from pg_catalog.pg_trigger t
         where t.tgrelid {=} $2
             and t.tgname {=} any ('{fetchq_notify_insert,fetchq_notify_update}'::pg_catalog.name[])) as notify_triggers,

        -- The table has the 18 columns that fetchq gave it, and none of those that may be
        -- NULL is declared not null.
        not exists (
            select from pg_catalog.pg_attribute a
            where a.attrelid {=} $2 and a.attnum {>} 0
                and (a.attnum {>} 18 or a.attisdropped
                    or (a.attnotnull and a.attnum {=} any ('{8,9,10,11,13,14,15,16,17,18}'::pg_catalog.int2[])))) as has_known_columns,

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
        case when q.rate_interval is not null then q.rate_limit end as rate_limit,
        q.rate_interval as rate_interval,
        q.is_ordered as is_ordered
     from fetchq.queues q
     join pg_catalog.pg_class c on c.oid {=} $2
     where q.name {=} $1",
);

/// The first column of `QUEUE` that is a setting: `is_active`.
const FIRST_SETTING: i32 = 10;

/// Makes a queue of the row that `QUEUE` returned. None if there is none: the queue is not
/// registered.
fn read_queue(name: &QueueName, table: Oid, rows: &Rows) -> Option<Queue> {
    if rows.is_empty() {
        return None;
    }
    let oid = |column| rows.datum(0, column).map(|d| Oid::from(d.value() as u32));
    let flag = |column| rows.get(0, column).unwrap_or(false);

    let id: i32 = rows.get(0, 1)?;
    let ready_trigger = oid(2).map(|transaction| transaction.to_u32());
    let (pick_index, due_index) = (oid(3), oid(4));
    let is_plain = flag(5);
    let key_index = oid(6);
    let sequence = oid(7);
    let notify_triggers: i32 = rows.get(0, 8).unwrap_or(0);
    let has_known_columns = flag(9);
    let policy = Policy::read(rows, FIRST_SETTING);

    let indexes = || {
        Some(Indexes {
            key: key_index?,
            pick: pick_index?,
            due: due_index?,
        })
    };
    Some(Queue {
        name: name.clone(),
        id,
        table,
        policy,
        floors: FloorObjects {
            pick_index,
            due_index,
            trigger: ready_trigger,
        },
        is_plain: is_plain && notify_triggers != 1,
        notifies: notify_triggers > 0,
        indexes: indexes(),
        sequence,
        has_known_columns,
        file: Cell::new(None),
        plans: PlanSet::default(),
        last_used: Cell::new(0),
    })
}

/// Finds a queue in the cache of the session, whose docs table the caller has locked, or
/// reads it from the catalog and adds it to the cache.
fn find_or_load(name: &QueueName, table: Oid) -> Result<Rc<Queue>> {
    let found = QUEUES.with(|cache| {
        let mut cache = cache.borrow_mut();
        match invalidation::take() {
            Invalidated::Nothing => {}
            Invalidated::Everything => cache.queues.clear(),
            Invalidated::Tables(tables) => {
                for table in tables {
                    cache.queues.remove(&table);
                }
            }
        }
        cache.clock += 1;
        let clock = cache.clock;
        cache
            .queues
            .get(&table)
            .filter(|queue| queue.name == *name)
            .inspect(|queue| queue.last_used.set(clock))
            .cloned()
    });
    if let Some(queue) = found {
        return Ok(queue);
    }

    let Some(queue) = load(name, table) else {
        return Err(Error::UnknownQueue(name.to_string()));
    };
    QUEUES.with(|cache| {
        let mut cache = cache.borrow_mut();
        if cache.queues.len() >= MAX_CACHED_QUEUES {
            let queues = cache.queues.iter();
            let longest_unused = queues.min_by_key(|(_, q)| q.last_used.get());
            if let Some(table) = longest_unused.map(|(table, _)| *table) {
                cache.queues.remove(&table);
            }
        }
        queue.last_used.set(cache.clock);
        cache.queues.insert(table, queue.clone());
    });
    Ok(queue)
}

/// Reads a queue as of now, as its table was looked up. In a transaction with an older
/// snapshot, the id would otherwise be that of a queue that was dropped, and it would stay
/// in the cache.
fn load(name: &QueueName, table: Oid) -> Option<Rc<Queue>> {
    spi::connect(|spi| {
        let pick_index = name.relation("docs_pick_idx");
        let due_index = name.relation("docs_due_idx");
        let args = [
            Arg::from(name.as_str()),
            Arg::oid(table),
            Arg::from(pick_index.as_str()),
            Arg::from(due_index.as_str()),
        ];
        let plan = shared_plan(spi, &QUEUE, &args);
        let rows = planner::with_plain_search_path(|| spi.run_latest(&plan, &args));
        read_queue(name, table, &rows).map(Rc::new)
    })
}

/// Forgets the plans of the longest unused queues, so that with one more queue no more
/// than `fetchq.plan_cache_queues` have plans.
fn evict_plans() {
    QUEUES.with(|cache| {
        let cache = cache.borrow();
        let mut planned: Vec<_> = cache
            .queues
            .values()
            .filter(|queue| !queue.plans.is_empty())
            .collect();
        let limit = settings::plan_cache_queues();
        if planned.len() >= limit {
            planned.sort_by_key(|queue| queue.last_used.get());
            for queue in &planned[..planned.len() + 1 - limit] {
                queue.plans.clear();
            }
        }
    });
}

#[cfg(any(test, feature = "pg_test"))]
#[pgrx::pg_schema]
mod tests {
    use super::*;
    use crate::pg::subtransaction;
    use crate::store::plans::run_latest;
    use crate::store::queue;
    use pgrx::pg_test;

    static COUNT_DOCS: Statement = Statement::new("select count(*) from {docs}");

    fn name(text: &str) -> QueueName {
        QueueName::parse(text).expect("a valid name")
    }

    fn docs(queue: &Queue) -> Option<i64> {
        spi::connect(|spi| queue.run(spi, &COUNT_DOCS, &[]).get(0, 1))
    }

    fn sql(text: &str) {
        spi::connect(|spi| {
            spi.once(text, &[]);
        });
    }

    fn queues_with_plans() -> usize {
        QUEUES.with(|cache| {
            let cache = cache.borrow();
            let queues = cache.queues.values();
            queues.filter(|queue| !queue.plans.is_empty()).count()
        })
    }

    #[pg_test]
    fn a_queue_that_is_created_again_gets_new_plans() {
        let q = name("plans_again");
        let (_, first) = queue::create(&q).expect("created");
        let queue = Queue::open(&q).expect("open");
        assert_eq!((queue.id, docs(&queue)), (first, Some(0)));
        queue::drop(&q).expect("dropped");
        assert!(matches!(Queue::open(&q), Err(Error::UnknownQueue(_))));
        let (_, second) = queue::create(&q).expect("created again");
        assert_ne!(first, second);
        let queue = Queue::open(&q).expect("open again");
        assert_eq!((queue.id, docs(&queue)), (second, Some(0)));
    }

    #[pg_test]
    fn plans_survive_changes_of_the_table() {
        let q = name("plans_alter");
        queue::create(&q).expect("created");
        let queue = Queue::open(&q).expect("open");
        assert_eq!(docs(&queue), Some(0));
        sql("alter table fetchq_data.plans_alter__docs add column extra int");
        assert_eq!(docs(&queue), Some(0));
        sql("alter table fetchq_data.plans_alter__docs drop column extra");
        sql("drop index fetchq_data.plans_alter__docs_pick_idx");
        assert_eq!(docs(&queue), Some(0));
        sql("set local search_path = pg_temp");
        assert_eq!(docs(&queue), Some(0));
    }

    #[pg_test]
    fn the_cache_is_bounded() {
        sql("set local fetchq.plan_cache_queues = 2");
        for n in 0..5 {
            let q = name(&format!("plans_bound_{n}"));
            queue::create(&q).expect("created");
            let queue = Queue::open(&q).expect("open");
            assert_eq!(docs(&queue), Some(0));
            assert!((1..=2).contains(&queues_with_plans()));
        }
        // The first one was evicted, and works all the same.
        assert_eq!(
            docs(&Queue::open(&name("plans_bound_0")).expect("open")),
            Some(0)
        );
    }

    #[pg_test]
    fn the_planner_settings_are_put_back_after_an_error() {
        let settings = || {
            spi::connect(|spi| {
                let rows = spi.once(
                    "select string_agg(setting, ',' order by name) from pg_settings
                     where name in ('enable_seqscan', 'enable_sort', 'jit', 'plan_cache_mode')",
                    &[],
                );
                rows.get::<String>(0, 1)
            })
        };
        static DIVIDE: Statement = Statement::new("select 1 {/} $1");
        let before = settings();
        let failed = subtransaction::attempt(|| {
            spi::connect(|spi| {
                run_latest(spi, &DIVIDE, &[Arg::from(0)]);
            });
        });
        assert!(failed.is_err());
        assert_eq!(settings(), before);
    }
}
