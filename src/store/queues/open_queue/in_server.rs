//! Tests of the cache of open queues, which run inside the server.

mod tests {
    use crate::error::Error;
    use crate::pg::spi;
    use crate::pg::subtransaction;
    use crate::store::queues::open_queue::*;
    use crate::store::queues::plans::run_latest;
    use crate::store::queues::queue;
    use pgrx::pg_extern;

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

    #[pg_extern(sql = false)]
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

    #[pg_extern(sql = false)]
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

    #[pg_extern(sql = false)]
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

    #[pg_extern(sql = false)]
    fn a_queue_stays_in_the_cache_while_many_other_tables_change() {
        let q = name("plans_others");
        queue::create(&q).expect("created");
        let queue = Queue::open(&q).expect("open");
        let others = spi::connect(|spi| {
            let rows = spi.once("select oid from pg_class where oid {<} 16384", &[]);
            (0..rows.len())
                .filter_map(|row| rows.get::<Oid>(row, 1))
                .inspect(|table| relation::invalidate(*table))
                .count()
        });
        assert!(others > 300);
        // The session learns of what it has changed when the command ends.
        sql("create table plans_others_ends_the_command ()");
        let again = Queue::open(&q).expect("open again");
        assert!(Rc::ptr_eq(&queue, &again));
    }

    #[pg_extern(sql = false)]
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
