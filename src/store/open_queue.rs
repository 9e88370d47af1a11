//! Prepared plans, kept for the life of the session.
//!
//! A queue's plans are kept with its identity: the OID of its docs table. The table
//! is looked up by name (system cache), locked, and only then is the cache asked, so
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
use crate::settings;
use crate::signals::announce;
use crate::store::plans::{PlanSet, fixed};
use crate::store::policy::Policy;
use crate::store::statement::{Statement, render};

/// A queue that exists: its tables are locked against dropping until the end of the
/// transaction.
pub struct Queue {
    pub name: QueueName,
    pub id: i32,
    pub table: Oid,
    floors: Floors,
    /// Nothing of the user's runs within fetchq's own statements on the table, so that
    /// what they write is what was asked for.
    is_plain: bool,
    /// The states that documents enter are announcements: `queue_enable_notify`.
    notifies: bool,
    /// The indexes, where they are as fetchq made them.
    indexes: Option<Indexes>,
    /// The sequence of `seq`; and the same where the table has the columns that fetchq
    /// gave it, and no more.
    numbers: Option<Oid>,
    sequence: Option<Oid>,
    pub policy: Policy,
    file: Cell<Option<File>>,
    plans: PlanSet,
    last_used: Cell<u64>,
}

/// What the ready floors need of a table.
struct Floors {
    pick_index: Option<Oid>,
    due_index: Option<Oid>,
    /// The transaction that wrote the row of the trigger last, where it runs always.
    trigger: Option<u32>,
}

impl Queue {
    /// Opens a queue for reading and writing its documents; waits for a session that
    /// is dropping, truncating or altering it.
    pub fn open(name: &QueueName) -> Result<Rc<Self>> {
        match Self::lock(name, true)? {
            Some(queue) => Ok(queue),
            None => Err(Error::UnknownQueue(name.to_string())),
        }
    }

    /// The same for maintenance, which waits for nobody: None when the table is busy.
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
                    let queue = cached(name, table)?;
                    queue.file.set(Some(file));
                    return Ok(Some(queue));
                }
                Lock::Busy => return Ok(None),
                // Dropped since the look-up; perhaps there is a new one by now.
                Lock::Gone => {}
            }
        }
    }

    /// Runs one of the queue's hot statements.
    pub fn run<'s>(&self, spi: &'s Spi, statement: &'static Statement, args: &[Arg]) -> Rows<'s> {
        let plan = self.plans.get(statement.key(), || {
            if self.plans.is_empty() {
                make_room_for_plans();
            }
            spi.prepare(&statement.text_for(&self.name), args)
        });
        spi.run(&plan, args)
    }

    /// Runs a hot statement that writes documents. The caller notes what it wrote, for
    /// the ready floors (where a trigger of the user's might write more, or something
    /// else, fetchq's own does that).
    pub fn run_noting<'s>(
        &self,
        spi: &'s Spi,
        statement: &'static Statement,
        args: &[Arg],
    ) -> Rows<'s> {
        let _own = self
            .runs_nothing_else()
            .then(|| SuppressedTriggers::begin(self.table, if self.notifies { 3 } else { 1 }));
        self.run(spi, statement, args)
    }

    /// The ready floors of the queue; None where they can not be used: without shared
    /// memory, without the indexes or the trigger, and while this transaction has the
    /// documents in a file that a rollback would take away.
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

    /// Whether no trigger has anything to do with rows that fetchq writes: those of the
    /// notifications have not while the worker sends them.
    fn runs_nothing_else(&self) -> bool {
        self.is_plain && (!self.notifies || announce::is_collecting())
    }

    /// Announces, when the transaction commits, that documents entered a state.
    pub fn announce(&self, status: Status) {
        if self.notifies && announce::is_collecting() {
            announce::announce_status(self.table.to_u32(), status);
        }
    }

    /// The documents without statements; None where only a statement will do.
    pub fn documents(&self, access: Access) -> Option<Documents> {
        let may = settings::direct() && self.runs_nothing_else();
        let indexes = self.indexes.as_ref().filter(|_| may)?;
        Documents::open(self.table, indexes, access)
    }

    /// The next `seq`, where documents can be added without a statement.
    pub fn next_seq(&self) -> Option<i64> {
        self.sequence.map(relation::next_identity)
    }

    /// The next `seq` for a statement, which does not mind further columns.
    pub fn next_number(&self) -> Option<i64> {
        self.numbers.map(relation::next_identity)
    }

    /// Whether there is a next `seq` to give.
    pub fn numbers_rows(&self) -> bool {
        self.sequence.is_some()
    }

    /// Whether the trigger of the ready floors is missing, or does not run always.
    pub fn lacks_trigger(&self) -> bool {
        self.floors.trigger.is_none()
    }

    /// Runs a statement on the queue's tables once.
    pub fn once<'s>(&self, spi: &'s Spi, sql: &str, args: &[Arg]) -> Rows<'s> {
        spi.once(&render(sql, &self.name), args)
    }
}

/// How many queues a session knows at most, with plans or without: half a kilobyte each.
const KNOWN_QUEUES: usize = 20_000;

#[derive(Default)]
struct Cache {
    queues: HashMap<Oid, Rc<Queue>>,
    clock: u64,
}

thread_local! {
    // Never dropped: at the exit of a backend there is no SPI left to free plans with.
    static QUEUES: ManuallyDrop<RefCell<Cache>> = ManuallyDrop::new(RefCell::default());
}

// What a session has to know about a queue. The floors need the trigger as it was
// made (21: after, for each row, insert or update), the indexes as they were made, and
// a table of columns by number and type as in queue_tables.rs, in a heap, without
// children. The fifth column: nothing of the user's runs when a row is written. Then
// the primary key, the sequence, and the triggers of the notifications: two or none;
// what `Policy` reads; and whether a row needs no other column.
static QUEUE: Statement = Statement::new(
    "select q.id,
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
                 {=} '23 23 23 23 1184 20'),
        (select i.indexrelid from pg_catalog.pg_index i
         join pg_catalog.pg_class x on x.oid {=} i.indexrelid
         where i.indrelid {=} $2 and i.indisvalid and i.indisready and not i.indisunique
             and x.relname {=} $3
             and i.indkey::pg_catalog.text {=} '2 3 7 5 12'
             and i.indoption::pg_catalog.text {=} '0 3 0 0 0'
             and pg_catalog.pg_get_expr(i.indpred, i.indrelid) {=} '((status = {pending}) AND (lock_upgrade IS NULL))'),
        (select i.indexrelid from pg_catalog.pg_index i
         join pg_catalog.pg_class x on x.oid {=} i.indexrelid
         where i.indrelid {=} $2 and i.indisvalid and i.indisready and not i.indisunique
             and x.relname {=} $4
             and i.indkey::pg_catalog.text {=} '4 7 12'
             and i.indoption::pg_catalog.text {=} '0 0 0'
             and pg_catalog.pg_get_expr(i.indpred, i.indrelid) {=} '((status = ANY (ARRAY[0, 2])) AND (lock_upgrade IS NULL))'),
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
                and (i.indexprs is not null or i.indpred is not null
                    and x.relname {<>} $3 and x.relname {<>} $4))
        and (select pg_catalog.string_agg(pg_catalog.pg_get_expr(d.adbin, d.adrelid), ',' order by d.adnum)
             from pg_catalog.pg_attrdef d where d.adrelid {=} $2)
            {=} '0,0,0,0,0,now(),now()',
        (select i.indexrelid from pg_catalog.pg_index i
         where i.indrelid {=} $2 and i.indisprimary and i.indimmediate
             and i.indkey::pg_catalog.text {=} '1'
             and i.indcollation::pg_catalog.text {=} '950'
             -- varchar(50)
             and exists (
                 select from pg_catalog.pg_attribute a
                 where a.attrelid {=} $2 and a.attnum {=} 1
                     and a.atttypmod {=} 54)),
        (select s.oid from pg_catalog.pg_depend d
         join pg_catalog.pg_class s on s.oid {=} d.objid
         where d.refclassid {=} 'pg_catalog.pg_class'::pg_catalog.regclass
             and d.classid {=} d.refclassid
             and d.refobjid {=} $2 and d.refobjsubid {=} 12
             and d.deptype {=} 'i' and s.relkind {=} 'S'),
        (select pg_catalog.count(*)::int4 from pg_catalog.pg_trigger t
         where t.tgrelid {=} $2
             and t.tgname {=} any ('{fetchq_notify_insert,fetchq_notify_update}'::pg_catalog.name[])),
        q.is_active, q.retry_base, q.retry_factor, q.retry_max_delay, q.retry_jitter,
        q.dead_letter::pg_catalog.text, q.keep_completed, q.keep_killed, q.keep_dropped,
        q.max_active, case when q.rate_interval is not null then q.rate_limit end, q.is_ordered, q.max_attempts,
        q.rate_interval,
        not exists (
            select from pg_catalog.pg_attribute a
            where a.attrelid {=} $2 and a.attnum {>} 0
                and (a.attnum {>} 18 or a.attisdropped
                    or a.attnotnull and a.attnum {=} any ('{8,9,10,11,13,14,15,16,17,18}'::pg_catalog.int2[])))
     from fetchq.queues q
     join pg_catalog.pg_class c on c.oid {=} $2
     where q.name {=} $1",
);

fn cached(name: &QueueName, table: Oid) -> Result<Rc<Queue>> {
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

    let queue = spi::connect(|spi| {
        // As of now, as the table was looked up: in a transaction with an older snapshot
        // the id would be that of a queue that is gone, and stay in the cache.
        let (pick, due) = (
            name.relation("docs_pick_idx"),
            name.relation("docs_due_idx"),
        );
        let args = [
            Arg::from(name.as_str()),
            Arg::oid(table),
            Arg::from(pick.as_str()),
            Arg::from(due.as_str()),
        ];
        let plan = fixed(spi, &QUEUE, &args);
        let rows = planner::with_plain_search_path(|| spi.run_latest(&plan, &args));
        if rows.is_empty() {
            return None;
        }
        let oid = |column| rows.datum(0, column).map(|d| Oid::from(d.value() as u32));
        let floors = Floors {
            trigger: oid(2).map(|transaction| transaction.to_u32()),
            pick_index: oid(3),
            due_index: oid(4),
        };
        let indexes = || {
            Some(Indexes {
                key: oid(6)?,
                pick: oid(3)?,
                due: oid(4)?,
            })
        };
        let notifying: i32 = rows.get(0, 8).unwrap_or(0);
        Some(Rc::new(Queue {
            name: name.clone(),
            id: rows.get(0, 1)?,
            table,
            indexes: indexes(),
            numbers: oid(7),
            sequence: oid(7).filter(|_| rows.get(0, 23).unwrap_or(false)),
            policy: Policy::read(&rows, 9),
            floors,
            is_plain: rows.get(0, 5).unwrap_or(false) && notifying != 1,
            notifies: notifying > 0,
            file: Cell::new(None),
            plans: PlanSet::default(),
            last_used: Cell::new(0),
        }))
    });
    let Some(queue) = queue else {
        return Err(Error::UnknownQueue(name.to_string()));
    };
    QUEUES.with(|cache| {
        let mut cache = cache.borrow_mut();
        if cache.queues.len() >= KNOWN_QUEUES {
            let queues = cache.queues.iter();
            let oldest = queues.min_by_key(|(_, q)| q.last_used.get());
            if let Some(table) = oldest.map(|(table, _)| *table) {
                cache.queues.remove(&table);
            }
        }
        queue.last_used.set(cache.clock);
        cache.queues.insert(table, queue.clone());
    });
    Ok(queue)
}

/// Forgets the plans of the queue that was not used for longest, when there are too
/// many: `fetchq.plan_cache_queues`.
fn make_room_for_plans() {
    QUEUES.with(|cache| {
        let cache = cache.borrow();
        let mut holders: Vec<_> = cache
            .queues
            .values()
            .filter(|queue| !queue.plans.is_empty())
            .collect();
        let room = settings::plan_cache_queues();
        if holders.len() >= room {
            holders.sort_by_key(|queue| queue.last_used.get());
            for queue in &holders[..holders.len() + 1 - room] {
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
