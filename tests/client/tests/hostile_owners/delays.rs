//! An owner whose tables are slow or locked delays no other one.

use super::*;

#[tokio::test]
async fn a_slow_owner_delays_nobody_else() {
    let cluster = with_worker("slow", "fetchq.maintenance_timeout = '2s'");
    let (db, session, mallory) = lair(&cluster, "slow").await;
    worker_comes(&session, &db.name).await;
    mail_and_evil(&session, &mallory).await;
    session
        .sql(
            "set role mallory;
             create function lair.sleep() returns trigger language plpgsql as $$
             begin
                 perform lair.attack('sleep');
                 loop
                     begin
                         perform pg_sleep(3600);
                     -- It does not want to be cancelled.
                     exception when query_canceled then
                         if tg_argv[0] = 'once' then
                             raise;
                         end if;
                     end;
                 end loop;
             end $$;
             create trigger a before update on fetchq_data.evil__docs
                 for each row execute function lair.sleep('once');
             select fetchq.doc_push('evil', 'a', 0, 0, clock_timestamp() + interval '100 ms', '{}');
             reset role",
        )
        .await;
    // Documents of the other queue go on, and the slow queue is named.
    let failing = "select attempts > 0 from fetchq.jobs where queue = 'evil' and task = 'mnt'";
    wait_until("the slow queue has failed", async || {
        session.text(failing).await == "t"
    })
    .await;
    for n in 0..3 {
        session
            .sql(&format!(
                "select fetchq.doc_push('mail', 'd{n}', 0, 0, clock_timestamp() + interval '50 ms', '{{}}')"
            ))
            .await;
        wait_until("a document of the other queue is due", async || {
            session
                .text(&format!(
                    "select status from fetchq_data.mail__docs where subject = 'd{n}'"
                ))
                .await
                == "1"
        })
        .await;
    }
    // A trigger that catches the cancel ends the process, and the queue backs off all the same.
    session
        .sql(
            "drop trigger a on fetchq_data.evil__docs;
             create trigger a before update on fetchq_data.evil__docs
                 for each row execute function lair.sleep('always');
             update fetchq.jobs set attempts = 0, next_iteration = now() where queue = 'evil' and task = 'mnt'",
        )
        .await;
    session
        .sql("set role mallory; select fetchq.doc_push('evil', 'b', 0, 0, clock_timestamp() + interval '100 ms', '{}'); reset role")
        .await;
    wait_until("the slow queue has failed again", async || {
        session.text(failing).await == "t"
    })
    .await;
    worker_comes(&session, &db.name).await;
    session
        .sql("select fetchq.doc_push('mail', 'last', 0, 0, clock_timestamp() + interval '50 ms', '{}')")
        .await;
    wait_until("a document of the other queue is due", async || {
        session
            .text("select status from fetchq_data.mail__docs where subject = 'last'")
            .await
            == "1"
    })
    .await;
    nothing_was_gained(&session).await;
}

#[tokio::test]
async fn an_owner_of_many_slow_queues_takes_turns_with_others() {
    let cluster = with_worker("turns", "fetchq.maintenance_timeout = '1s'");
    let (db, session, mallory) = lair(&cluster, "turns").await;
    worker_comes(&session, &db.name).await;
    mallory
        .sql(
            "create function lair.sleep() returns trigger language plpgsql as $$
             begin
                 perform pg_sleep(3600);
                 return new;
             end $$;
             do $$ begin
                 for i in 1 .. 8 loop
                     perform fetchq.queue_create('evil' || i);
                     execute format('create trigger a before update on fetchq_data.evil%s__docs
                         for each row execute function lair.sleep()', i);
                 end loop;
             end $$",
        )
        .await;
    session.sql("select fetchq.queue_create('mail')").await;
    // All are due at the same moment, those of mallory first.
    session
        .sql(
            "begin;
             select fetchq.doc_push('evil' || i, 'a', 0, 0, now() + interval '2 s', '{}')
             from generate_series(1, 8) i;
             select fetchq.doc_push('mail', 'a', 0, 0, now() + interval '2.001 s', '{}');
             commit",
        )
        .await;
    wait_until("the document of the other owner is pending", async || {
        session
            .text("select status from fetchq_data.mail__docs")
            .await
            == "1"
    })
    .await;
    let failed = session
        .text("select count(*) from fetchq.jobs where task = 'mnt' and queue like 'evil%' and attempts > 0")
        .await;
    assert!(
        failed.parse::<i64>().unwrap() < 5,
        "{failed} of 8 came first"
    );
}

#[tokio::test]
async fn a_slow_schedule_delays_no_other() {
    let cluster = with_worker("slow_schedule", "fetchq.maintenance_timeout = '1s'");
    let (db, session, mallory) = lair(&cluster, "slow_schedule").await;
    worker_comes(&session, &db.name).await;
    for catches in [false, true] {
        // The second trigger catches the cancel, and so ends the process.
        mallory
            .sql(&format!(
                "select fetchq.queue_create('evil{catches}');
                 create function lair.sleep{catches}() returns trigger language plpgsql as $$
                 begin
                     perform lair.attack('sleep');
                     loop
                         begin
                             perform pg_sleep(3600);
                         exception when query_canceled then
                             if not {catches} then
                                 raise;
                             end if;
                         end;
                     end loop;
                 end $$;
                 create trigger a before insert on fetchq_data.evil{catches}__docs
                     for each row execute function lair.sleep{catches}();
                 select fetchq.schedule_create('evil', 'evil{catches}', '1 second', replace => true)"
            ))
            .await;
        wait_until("the slow schedule fails", async || {
            session
                .text("select attempts > 0 from fetchq.schedules where name = 'evil'")
                .await
                == "t"
        })
        .await;
        session
            .sql(&format!(
                "select fetchq.queue_create('mail{catches}');
                 select fetchq.schedule_create('mail', 'mail{catches}', '1 second', replace => true)"
            ))
            .await;
        wait_until("another schedule runs", async || {
            session
                .text(&format!(
                    "select count(*) > 2 from fetchq_data.mail{catches}__docs"
                ))
                .await
                == "t"
        })
        .await;
    }
    let errors = session
        .text("select last_error from fetchq.schedules where name = 'evil'")
        .await;
    assert!(errors.contains("cancel"), "{errors}");
    nothing_was_gained(&session).await;
}

#[tokio::test]
async fn a_locked_dead_letter_queue_delays_nobody_else() {
    let cluster = with_worker("locked_letters", "");
    let (db, session, _mallory) = lair(&cluster, "locked_letters").await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "select fetchq.queue_create('mail'), fetchq.queue_create('q'), fetchq.queue_create('dead');
             update fetchq.queues set dead_letter = 'dead', max_attempts = 1 where name = 'q'",
        )
        .await;
    // Another transaction inserts the subject and does not commit; a second one locks the table.
    let other = db.connect().await;
    for (block, subject) in [
        (
            "insert into fetchq_data.dead__docs (subject) values ('a')",
            "a",
        ),
        ("lock table fetchq_data.dead__docs", "b"),
    ] {
        other.sql(&format!("begin; {block}")).await;
        session
            .sql(&format!(
                "select fetchq.doc_push('q', '{subject}');
                 select fetchq.doc_pick('q', 0, 1, '1 ms')"
            ))
            .await;
        session
            .sql(&format!(
                "select fetchq.doc_push('mail', 'of {subject}', 0, 0, clock_timestamp() + interval '1 s', '{{}}')"
            ))
            .await;
        wait_until("the other queue goes on", async || {
            session
                .text(&format!(
                    "select status from fetchq_data.mail__docs where subject = 'of {subject}'"
                ))
                .await
                == "1"
        })
        .await;
        let status = session
            .text(&format!(
                "select status from fetchq_data.q__docs where subject = '{subject}'"
            ))
            .await;
        assert_eq!(status, "2");
        other.sql("rollback").await;
        wait_until("the document has moved", async || {
            session
                .text(&format!(
                    "select count(*) from fetchq_data.q__docs where subject = '{subject}'"
                ))
                .await
                == "0"
        })
        .await;
    }
}

/// Code of an owner that takes an advisory lock holds nobody up, and leaves none in the background
/// worker.
#[tokio::test]
async fn advisory_locks_of_an_owner_hold_nobody_up() {
    let cluster = with_worker("advisory", "");
    let (db, session, mallory) = lair(&cluster, "advisory").await;
    worker_comes(&session, &db.name).await;
    mail_and_evil(&session, &mallory).await;
    session
        .sql("select fetchq.queue_configure('mail', '{\"ordered\": true}')")
        .await;
    let id = session
        .text("select id from fetchq.queues where name = 'mail'")
        .await;
    mallory
        .sql(&format!(
            "create function lair.lock() returns trigger language plpgsql as $$
             begin
                 perform lair.attack('lock');
                 perform pg_advisory_lock({id}, n) from generate_series(1, 3) n;
                 perform pg_advisory_lock(x'66716164'::int, {id});
                 return new;
             end $$;
             create trigger a before update on fetchq_data.evil__docs
                 for each row execute function lair.lock();
             select fetchq.doc_push('evil', 'a', 0, 0, clock_timestamp() + interval '200 ms', '{{}}');
             select pg_advisory_lock(x'66716164'::int, {id})"
        ))
        .await;
    session.sql("set lock_timeout = '10s'").await;
    session
        .sql("select fetchq.queue_redrive('mail', 10, '{}'); select fetchq.docs_kill('mail', '{\"subject\": \"x\"}')")
        .await;
    mallory.sql("select pg_advisory_unlock_all()").await;
    wait_until("mallory's trigger ran", async || {
        runs(&session, "lock").await > 0
    })
    .await;
    wait_until("the background worker has no advisory lock", async || {
        session
            .text("select count(*) from pg_locks where locktype = 'advisory'")
            .await
            == "0"
    })
    .await;
}
