//! The background workers process what is due, with the rights of the owner of the tables.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use fetchq_client_tests::{
    counters_are_exact, wait_for_rows, wait_until, with_worker, worker_comes,
};

use super::{becomes, planned, with_queue};

#[tokio::test]
async fn due_documents_are_processed_without_a_client() {
    let cluster = with_worker("due", "");
    let (db, mut session) = with_queue(&cluster, "due").await;
    worker_comes(&session, &db.name).await;

    // Planned documents; a later push may be due before the document that is waited for.
    for (subject, delay) in [("a", "2 s"), ("b", "500 ms"), ("c", "1 s")] {
        planned(&session, subject, delay).await;
    }
    for subject in ["b", "c", "a"] {
        becomes(&session, subject, 1).await;
    }
    let late = session
        .text("select count(*) from fetchq_data.q__docs where status <> 1")
        .await;
    assert_eq!(late, "0");

    // A lease that expires repeatedly, until the document has no attempts left.
    session
        .sql("update fetchq.queues set max_attempts = 2")
        .await;
    session
        .sql("select fetchq.doc_pick('q', 0, 3, '200 ms')")
        .await;
    becomes(&session, "a", 1).await;
    session
        .sql("select fetchq.doc_pick('q', 0, 3, '200 ms')")
        .await;
    becomes(&session, "a", -1).await;
    becomes(&session, "c", -1).await;

    // A transaction is still open when its document becomes due.
    let other = db.connect().await;
    other.sql("begin").await;
    planned(&other, "slow", "100 ms").await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    other.sql("commit").await;
    becomes(&session, "slow", 1).await;

    counters_are_exact(&mut session, "q").await;

    // A plain UPDATE makes a document due.
    session
        .sql("insert into fetchq_data.q__docs (subject, next_iteration) values ('plain', clock_timestamp() + interval '300 ms')")
        .await;
    becomes(&session, "plain", 1).await;
    // Changes by plain SQL are counted when the queue is recounted.
    session.sql("select * from fetchq.mnt()").await;
    counters_are_exact(&mut session, "q").await;
    assert_eq!(
        session
            .text("select floor_misses from fetchq.ready_stats()")
            .await,
        "0"
    );
}

/// Nobody notes what is put above a floor. So whoever begins the floors of an emptied table has the background
/// worker look.
#[tokio::test]
async fn documents_become_due_after_somebody_else_has_looked_at_an_emptied_table() {
    let cluster = with_worker("floors_anew", "");
    let (db, session) = with_queue(&cluster, "floors_anew").await;
    worker_comes(&session, &db.name).await;
    for look in [
        "mnt_reschedule_orphans('q', 10)",
        "mnt_make_pending('q', 10)",
    ] {
        planned(&session, "later", "1 hour").await;
        // The background worker sleeps until then.
        tokio::time::sleep(Duration::from_secs(1)).await;
        session.sql("select fetchq.queue_truncate('q')").await;
        session.sql(&format!("select fetchq.{look}")).await;
        planned(&session, "soon", "400 ms").await;
        session.sql("select fetchq.doc_push('q', 'leased')").await;
        session
            .sql("select fetchq.doc_pick('q', 0, 1, '500 ms')")
            .await;
        becomes(&session, "soon", 1).await;
        becomes(&session, "leased", 1).await;
        session.sql("select fetchq.queue_truncate('q')").await;
    }
    // The recount after the queue was emptied is that somebody.
    planned(&session, "later", "1 hour").await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    session.sql("select fetchq.queue_truncate('q', true)").await;
    wait_until("the queue is recounted", async || {
        session
            .text("select iterations > 0 from fetchq.jobs where task = 'cmp' and queue = 'q'")
            .await
            == "t"
    })
    .await;
    planned(&session, "soon", "400 ms").await;
    becomes(&session, "soon", 1).await;
    assert_eq!(
        session
            .text("select floor_misses from fetchq.ready_stats()")
            .await,
        "0"
    );
}

/// A recount that counts as run has recounted, whatever packs the counters meanwhile.
#[tokio::test]
async fn a_recount_beside_packs_is_exact_or_has_not_run() {
    const ROUNDS: usize = 150;
    let cluster = with_worker("recounts", "");
    let (db, mut session) = with_queue(&cluster, "recounts").await;
    worker_comes(&session, &db.name).await;
    // Only mnt() recounts: a recount of another process may have begun before the INSERT.
    session
        .sql("update fetchq.jobs set next_iteration = 'infinity' where task = 'cmp'")
        .await;
    let packing = db.connect().await;
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    let packs = tokio::spawn(async move {
        while !stopped.load(Relaxed) {
            packing
                .sql("select fetchq.doc_push('q', gen_random_uuid()::text); select fetchq.metric_log_pack()")
                .await;
        }
    });
    for round in 0..ROUNDS {
        let insert = format!(
            "insert into fetchq_data.q__docs (subject, next_iteration, status) values ('plain{round}', now(), 1)"
        );
        session.sql(&insert).await;
        // It says when it has not run, and then does not count as run.
        let runs = "select iterations from fetchq.jobs where task = 'cmp' and queue = 'q'";
        let before = session.text(runs).await;
        wait_until("the recount has run", async || {
            session.sql("select * from fetchq.mnt()").await;
            session.text(runs).await != before
        })
        .await;
        counters_are_exact(&mut session, "q").await;
    }
    stop.store(true, Relaxed);
    packs.await.unwrap();
}

/// A jobs process that ends in the middle of a job hides no other job, and delays no document.
#[tokio::test]
async fn a_jobs_process_claims_one_job_at_a_time() {
    let cluster = with_worker("slow_job", "");
    let (db, session) = with_queue(&cluster, "slow_job").await;
    worker_comes(&session, &db.name).await;
    session.sql("select fetchq.queue_create('r')").await;
    let left =
        "select count(*) from fetchq.jobs where iterations = 0 and task not in ('mnt', 'lgp')";
    wait_for_rows("all jobs have run", &session, left, &["0"]).await;
    session
        .sql(
            "create function public.is_slow() returns trigger language plpgsql as $$
             begin perform pg_sleep(600); return new; end $$;
             create trigger is_slow before insert on fetchq_data.q__metrics for each row
                 execute function public.is_slow();
             update fetchq.jobs set iterations = 0, next_iteration = now() - case task when 'sts' then '1 second' else '0' end::interval
             where queue = 'q' and task <> 'mnt'",
        )
        .await;
    let claimed = "select task from fetchq.jobs where queue = 'q' and attempts > 0";
    wait_for_rows("the snapshot is slow", &session, claimed, &["sts"]).await;
    planned(&session, "a", "100 ms").await;
    becomes(&session, "a", 1).await;
    session
        .sql("select pg_terminate_backend(pid) from pg_stat_activity where backend_type = 'fetchq jobs'")
        .await;
    wait_for_rows("the other jobs have run", &session, left, &["1"]).await;
    assert_eq!(session.column(claimed).await, ["sts"]);
}

/// What a jobs process reads for the snapshots of several queues is not taken for a queue that was dropped
/// meanwhile and created anew.
#[tokio::test]
async fn a_snapshot_of_a_queue_has_nothing_of_an_earlier_one() {
    let cluster = with_worker("shared_snapshots", "");
    let (db, session) = with_queue(&cluster, "shared_snapshots").await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "select fetchq.queue_create('r');
             select fetchq.doc_push('r', 's' || n) from generate_series(1, 3) n",
        )
        .await;
    let left = "select count(*) from fetchq.jobs where iterations = 0 and task = 'sts'";
    wait_for_rows("the first snapshots", &session, left, &["0"]).await;
    session
        .sql(
            "create table public.goes_on ();
             create function public.is_slow() returns trigger language plpgsql as $$ begin
                 while not exists (select from public.goes_on) loop perform pg_sleep(0.01); end loop;
                 return null;
             end $$;
             create trigger is_slow before insert on fetchq_data.q__metrics for each statement
                 execute function public.is_slow();
             update fetchq.jobs set iterations = 0, next_iteration = now() - case queue when 'q' then '1 second' else '0' end::interval
             where task = 'sts'",
        )
        .await;
    let claimed = "select queue from fetchq.jobs where task = 'sts' and attempts > 0";
    wait_for_rows("the snapshot is slow", &session, claimed, &["q"]).await;
    session
        .sql(
            "select fetchq.queue_drop('r');
             select fetchq.queue_create('r');
             select fetchq.doc_push('r', 's');
             update fetchq.jobs set next_iteration = now() - interval '1 second' where queue = 'r' and task = 'sts';
             insert into public.goes_on default values",
        )
        .await;
    wait_for_rows("the snapshots", &session, left, &["0"]).await;
    let counts = "select distinct value from fetchq_data.r__metrics where metric = 'cnt'";
    assert_eq!(session.column(counts).await, ["1"]);
}

/// The background worker repeats a recount that it could not do soon, and not after ten minutes.
#[tokio::test]
async fn a_recount_that_was_locked_out_is_repeated_soon() {
    let cluster = with_worker("locked_out", "");
    let (db, mut session) = with_queue(&cluster, "locked_out").await;
    worker_comes(&session, &db.name).await;
    let mut locker = db.connect().await;
    let lock = locker.transaction().await.unwrap();
    lock.batch_execute("select from fetchq.queues where name = 'q' for share")
        .await
        .unwrap();
    session
        .sql(
            "insert into fetchq_data.q__docs (subject, next_iteration, status) values ('plain', now(), 1);
             update fetchq.jobs set next_iteration = now(), iterations = 0 where task = 'cmp' and queue = 'q'",
        )
        .await;
    wait_until("the lock is seen", async || {
        let sql =
            "select state, detail from fetchq.status() where component = 'maintenance: recounts'";
        session.rows(sql).await.concat().starts_with("locked|")
    })
    .await;
    let job =
        "select iterations, attempts > 2, next_iteration < now() + interval '5 minutes', payload
        from fetchq.jobs where task = 'cmp' and queue = 'q'";
    // While it is tried, the job is claimed for longer.
    wait_until("it waits for a moment", async || {
        session.rows(job).await == ["0|t|t|{\"busy\": true}"]
    })
    .await;
    lock.rollback().await.unwrap();
    wait_until("it has run", async || {
        session.rows(job).await.concat().starts_with("1|f|")
    })
    .await;
    counters_are_exact(&mut session, "q").await;
}

/// A trigger of a superuser, too: it leaves nothing in the background worker.
#[tokio::test]
async fn the_background_worker_has_the_rights_of_the_owner_of_the_tables() {
    let cluster = with_worker("owner", "");
    let (db, session) = with_queue(&cluster, "owner").await;
    session
        .sql(
            "create role owner_of_tables; create role stranger;
             select fetchq.data_owner_set('owner_of_tables');
             create schema hostile authorization stranger;
             create table public.seen (who text, super text, path text);
             grant insert on public.seen to owner_of_tables, stranger;
             set role stranger;
             grant usage on schema hostile to public;
             create function hostile.now() returns timestamptz language plpgsql as $$
             begin
                 insert into public.seen values ('now: ' || current_user, 'maybe');
                 return clock_timestamp();
             end $$;
             reset role;
             create function public.look() returns trigger language plpgsql as $$
             declare path text := pg_catalog.current_setting('search_path');
             begin
                 -- This setting must not last in the background worker.
                 perform pg_catalog.set_config('search_path', 'hostile, pg_catalog', false);
                 insert into public.seen values (current_user,
                     (select rolsuper::text from pg_catalog.pg_roles where rolname = current_user), path);
                 return new;
             end $$;
             create trigger look after update on fetchq_data.q__docs for each row execute function public.look()",
        )
        .await;
    worker_comes(&session, &db.name).await;
    for subject in ["a", "b"] {
        planned(&session, subject, "100 ms").await;
        becomes(&session, subject, 1).await;
    }
    assert_eq!(
        session.rows("select distinct * from public.seen").await,
        ["owner_of_tables|false|pg_catalog, pg_temp"]
    );
}

#[tokio::test]
async fn waiters_wake_when_a_planned_document_becomes_pending() {
    let cluster = with_worker("woken", "");
    let (db, session) = with_queue(&cluster, "woken").await;
    worker_comes(&session, &db.name).await;
    for round in 0..2 {
        let waiting = db.connect().await;
        let waiting = tokio::spawn(async move {
            let row = waiting
                .query_one("call fetchq.queue_wait(array['q'], '30 s')", &[])
                .await
                .expect("queue_wait");
            row.get::<_, Option<String>>(0).is_some()
        });
        let asleep = "select count(*) from pg_stat_activity
            where query like 'call fetchq.queue_wait%' and wait_event_type = 'Extension'";
        wait_until("the waiter sleeps", async || {
            session.text(asleep).await == "1"
        })
        .await;
        let start = Instant::now();
        // A planned document, and one whose lease expires.
        match round {
            0 => planned(&session, "a", "700 ms").await,
            _ => session.sql("begin; select fetchq.doc_push('q', 'b'); select fetchq.doc_pick('q', 0, 1, '700 ms'); commit").await,
        }
        assert!(waiting.await.unwrap());
        // Without a wake-up the waiter looks again after five seconds.
        let took = start.elapsed();
        assert!(took < Duration::from_secs(4), "{took:.1?}");
        session
            .sql("select fetchq.doc_pick('q', 0, 10, '1 hour')")
            .await;
    }
}

#[tokio::test]
async fn busy_queues_among_many_that_are_idle() {
    const QUEUES: usize = 300;
    const BUSY: usize = 5;
    const DOCUMENTS: usize = 200;
    let cluster = with_worker("many", "");
    let db = cluster.server().database("many").await;
    let mut session = db.connect().await;
    worker_comes(&session, &db.name).await;
    for number in 0..QUEUES {
        session
            .sql(&format!("select fetchq.queue_create('q{number}')"))
            .await;
    }
    // Idle queues also have a document, which is due in a day.
    for number in BUSY..QUEUES {
        session
            .sql(&format!(
                "select fetchq.doc_push('q{number}', 'later', 0, 0, now() + interval '1 day', '{{}}')"
            ))
            .await;
    }
    for number in 0..BUSY {
        session
            .sql(&format!(
                "select fetchq.doc_push('q{number}', 'd' || n, 0, 0, clock_timestamp() + n * interval '10 ms', '{{}}')
                 from generate_series(1, {DOCUMENTS}) n"
            ))
            .await;
    }
    for number in 0..BUSY {
        let sql = format!("select count(*) from fetchq_data.q{number}__docs where status = 1");
        wait_until("all documents are pending", async || {
            session.text(&sql).await == DOCUMENTS.to_string()
        })
        .await;
        counters_are_exact(&mut session, &format!("q{number}")).await;
    }
    let pending = "select count(*) from fetchq.metric_get_all() where pnd > 0";
    assert_eq!(session.text(pending).await, BUSY.to_string());
}

#[tokio::test]
async fn a_queue_and_its_documents_in_one_commit() {
    let cluster = with_worker("fresh", "");
    let (db, session) = with_queue(&cluster, "fresh").await;
    worker_comes(&session, &db.name).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    session
        .sql("begin; select fetchq.queue_create('fresh'); select fetchq.doc_push('fresh', 'a', 0, 0, clock_timestamp() + interval '100 ms', '{}')")
        .await;
    // The background worker has received a due change of a table that it cannot see yet.
    tokio::time::sleep(Duration::from_millis(1500)).await;
    session.sql("commit").await;
    wait_until("the document is pending", async || {
        let sql = "select status from fetchq_data.fresh__docs";
        session.text(sql).await == "1"
    })
    .await;
}
