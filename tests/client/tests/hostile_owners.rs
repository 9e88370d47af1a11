//! What the owner of a queue attaches to its tables runs with the rights of the owner, whoever
//! runs maintenance, and never with more.
//!
//! The role `mallory` owns queues, and attaches the function `lair.attack` to their tables in
//! every way that PostgreSQL has. The function tries to become a superuser and to read a secret,
//! and records as whom it ran.

mod attachments;

use fetchq_client_tests::{
    Cluster, Database, Server, Session, wait_until, with_worker, worker_comes,
};

use attachments::ATTACHMENTS;

/// The role, the secret, and the function that attacks. Mallory has all grants that an application
/// may have, and may create objects beside the tables of other queues.
const LAIR: &str = "
    do $$ begin
        if not exists (select from pg_roles where rolname = 'mallory') then
            create role mallory login password 'mallory';
            create role treasurer;
        end if;
    end $$;
    create table public.secret (v text);
    insert into public.secret values ('the secret');
    grant usage on schema fetchq to mallory;
    grant usage, create on schema fetchq_data, public to mallory;
    grant select, insert, update, delete, truncate on all tables in schema fetchq to mallory;
    grant execute on all functions in schema fetchq to mallory;
    create schema lair authorization mallory;
    set role mallory;
    grant usage on schema lair to public;
    create table lair.seen (
        what text, who text, secret text, at timestamptz default clock_timestamp());
    grant insert, select on lair.seen to public;
    create function lair.attack(what text) returns boolean language plpgsql volatile as $$
    declare
        found text;
        attempt text;
    begin
        foreach attempt in array array[
            'reset role', 'set session authorization default', 'set role treasurer',
            'alter role mallory superuser', 'grant treasurer to mallory',
            'alter table public.secret owner to mallory', 'grant all on public.secret to public'] loop
            begin
                execute attempt;
            exception when others then
            end;
        end loop;
        begin
            select s.v into found from public.secret s;
        exception when others then
        end;
        insert into lair.seen values (what, current_user, found);
        return true;
    end $$;
    -- An immutable function may not write itself, but it may call one that does.
    create function lair.calculate(what text, value anyelement) returns anyelement
    language plpgsql immutable as $$
    begin
        perform lair.attack(what);
        return value;
    end $$;
    create function lair.on_change() returns trigger language plpgsql as $$
    begin
        perform lair.attack(format('%s %s %s %s', tg_argv[0], lower(tg_when), lower(tg_op), tg_table_name));
        return case when tg_op = 'DELETE' then old else new end;
    end $$;
    reset role;";

/// What mallory's code recorded must be of mallory alone, and must have gained nothing.
async fn nothing_was_gained(session: &Session) {
    let strangers = session
        .rows("select distinct what, who, secret from lair.seen where who <> 'mallory' or secret is not null")
        .await;
    assert!(strangers.is_empty(), "{strangers:#?}");
    let mallory = session
        .rows(
            "select rolsuper, rolcreaterole, rolcreatedb, rolreplication, rolbypassrls,
                 (select count(*) from pg_auth_members m where m.member = r.oid),
                 (select relowner <> r.oid and relacl is null from pg_class where oid = 'public.secret'::regclass)
             from pg_roles r where rolname = 'mallory'",
        )
        .await;
    assert_eq!(mallory, ["f|f|f|f|f|0|t"]);
}

/// Returns how often mallory's code ran for an attachment.
async fn runs(session: &Session, what: &str) -> i64 {
    session
        .text(&format!(
            "select count(*) from lair.seen where what like '{what}%'"
        ))
        .await
        .parse()
        .unwrap()
}

/// A database with mallory's code, a session of the superuser, and one of mallory: in a session
/// of the superuser, `reset role` would be allowed.
async fn lair(cluster: &Cluster, name: &str) -> (Database, Session, Session) {
    let db = cluster.server().database(name).await;
    let session = db.connect().await;
    session.sql(LAIR).await;
    let mut config = cluster.server().config().clone();
    config.user("mallory");
    let mallory = Server::new(config).connect(&db.name).await;
    (db, session, mallory)
}

/// Makes a job of a queue due, and waits until the background worker has run it. Returns whether
/// it succeeded. A job is claimed for 5 minutes, and after a failure waits for 10 at least.
async fn run_job(session: &Session, queue: &str, task: &str) -> bool {
    let of = format!("queue = '{queue}' and task = '{task}'");
    session
        .sql(&format!(
            "update fetchq.jobs set attempts = 0, last_iteration = null, next_iteration = now() where {of}"
        ))
        .await;
    let mut state = String::new();
    wait_until(&format!("{task} of {queue} was run"), async || {
        state = session
            .text(&format!(
                "select case when last_iteration is not null then 'done'
                     when next_iteration > now() + interval '6 minutes' then 'failed' end
                 from fetchq.jobs where {of}"
            ))
            .await;
        !state.is_empty()
    })
    .await;
    state == "done"
}

/// Gives queue `{q}` of mallory something to do for every task.
const WORK: &str = "
    insert into fetchq_data.{q}__docs (subject, status, next_iteration)
    values ('planned', 0, now()), ('completed', 3, now() - interval '1 hour');
    insert into fetchq_data.{q}__docs (subject, status, attempts, next_iteration, lease)
    values ('expired', 2, 1, now() - interval '1 hour', 1),
        ('failed', 2, 5, now() - interval '1 hour', 2);
    insert into fetchq_data.{q}__logs (created_at, subject, message)
    values (now() - interval '1 year', 'old', 'old');
    insert into fetchq_data.{q}__metrics (created_at, metric)
    values (now() - interval '90 minutes', 'old'), (now() - interval '91 minutes', 'old');
    insert into fetchq_data.{q}__history (settled_at, outcome, subject, version, priority, attempts, iterations)
    values (now() - interval '1 year', 'completed', 'old', 0, 0, 1, 1);
    select fetchq.metric_reset('{q}')";

/// Gives queue `{q}` something to do once more.
const MORE_WORK: &str = "
    delete from fetchq_data.{q}__docs
        where subject in ('planned', 'expired', 'failed', 'completed');
    insert into fetchq_data.{q}__docs (subject, status, next_iteration)
    values ('killed', -1, now()), ('planned', 0, now() + interval '1 hour');
    insert into fetchq_data.{q}__logs (created_at, subject, message)
    values (now() - interval '1 year', 'old', 'old');
    insert into fetchq_data.{q}__history (settled_at, outcome, subject, version, priority, attempts, iterations)
    values (now() - interval '1 year', 'completed', 'old', 0, 0, 1, 1)";

#[tokio::test]
async fn what_an_owner_attaches_runs_with_its_rights() {
    let cluster = with_worker("hostile", "fetchq.background_worker = off");
    let (db, session, mallory) = lair(&cluster, "hostile").await;
    let attachments = || {
        ATTACHMENTS
            .iter()
            .map(|a| (a, |sql: &str| sql.replace("{q}", a.name)))
    };
    for (attachment, of) in attachments() {
        mallory
            .sql(&of("
                select fetchq.queue_create('{q}'), fetchq.queue_create('{q}_dead');
                select fetchq.queue_set_metrics_retention('{q}', '[{\"retain\": \"hour\", \"from\": \"3h\", \"to\": \"1h\"}]');
                select fetchq.queue_set_max_attempts('{q}', 5);
                select fetchq.queue_configure('{q}', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}}');
                select fetchq.schedule_create('{q}', '{q}', '1 second')"))
            .await;
        // A queue without triggers on its dead-letter queue archives what has failed.
        if attachment.name == "rows" {
            session
                .sql(&of(
                    "select fetchq.queue_configure('{q}', '{\"dead_letter\": \"{q}_dead\"}')",
                ))
                .await;
        }
        mallory.sql(&of(WORK)).await;
        mallory.sql(&of(attachment.sql)).await;
    }
    // What mallory did herself does not count.
    session.sql("truncate lair.seen").await;
    let denied = mallory
        .state(
            "create function lair.on_event() returns event_trigger language plpgsql as 'begin end';
             create event trigger e on ddl_command_start execute function lair.on_event()",
        )
        .await;
    assert_eq!(denied, "42501");

    session
        .sql("alter system set fetchq.background_worker = on; ")
        .await;
    session.sql("select pg_reload_conf()").await;
    worker_comes(&session, &db.name).await;
    for (attachment, of) in attachments() {
        for task in ["mnt", "sts", "cmp", "drp"] {
            if task != "mnt" {
                run_job(&session, attachment.name, task).await;
            }
        }
        if attachment.name == "deferrer" {
            // Every change is refused.
            continue;
        }
        wait_until(
            &format!("the documents of {} were maintained", attachment.name),
            async || {
                // Not by the superuser, because to plan the statement runs mallory's code.
                let left = mallory
                    .text(&of(
                        "select count(*) from fetchq_data.{q}__docs
                         where subject in ('planned', 'expired', 'failed') and status in (0, 2)",
                    ))
                    .await;
                left == "0"
            },
        )
        .await;
        wait_until(
            &format!("the schedule of {} was run", attachment.name),
            async || {
                let state = session
                    .text(&of(
                        "select ticks > 0 or attempts > 0 from fetchq.schedules where name = '{q}'",
                    ))
                    .await;
                state == "t"
            },
        )
        .await;
    }
    nothing_was_gained(&session).await;

    // A superuser runs everything by hand.
    for (_, of) in attachments() {
        mallory.sql(&of(MORE_WORK)).await;
    }
    session.sql("select fetchq.mnt()").await;
    for (attachment, of) in attachments() {
        for call in [
            "fetchq.mnt_run('{q}', 10)",
            "fetchq.mnt_make_pending('{q}', 10)",
            "fetchq.mnt_reschedule_orphans('{q}', 10)",
            "fetchq.mnt_mark_dead('{q}', 10)",
            "fetchq.queue_redrive('{q}', 10, '{}')",
            "fetchq.queue_redrive('{q}_dead', 10, '{}')",
            "fetchq.queue_trim_history('{q}', 10)",
            "fetchq.queue_drop_logs('{q}')",
            "fetchq.queue_drop_logs('{q}', '1h')",
            "fetchq.queue_drop_logs('{q}', now())",
            "fetchq.queue_drop_metrics('{q}')",
            "fetchq.metric_snap('{q}')",
            "fetchq.schedule_run(10)",
            "fetchq.queue_drop('{q}')",
        ] {
            let state = session.state(&format!("select {}", of(call))).await;
            assert!(
                state.is_empty() || attachment.name == "deferrer" || attachment.name == "rules",
                "{} with {}: {state}",
                of(call),
                attachment.name
            );
        }
    }
    nothing_was_gained(&session).await;
    for (attachment, _) in attachments() {
        for what in attachment.runs {
            assert!(runs(&session, what).await > 0, "{what} did not run");
        }
    }
    assert_eq!(runs(&session, "operator").await, 0);
}

#[tokio::test]
async fn a_planted_history_is_refused() {
    let cluster = with_worker("planted", "");
    let (db, session, _mallory) = lair(&cluster, "planted").await;
    session
        .sql(
            "select fetchq.queue_create('mail');
             set role mallory;
             create table fetchq_data.mail__history (id bigint, settled_at timestamptz default now(),
                 outcome text, subject varchar(50), version int, priority int, attempts int,
                 iterations bigint, created_at timestamptz, payload jsonb, last_error text,
                 ordering_key text, origin jsonb, worker text);
             insert into fetchq_data.mail__history values (1, '2020-01-01', 'completed', 'old');
             create trigger a before delete or insert on fetchq_data.mail__history
                 for each row execute function lair.on_change('row');
             grant all on fetchq_data.mail__history to public;
             reset role;
             update fetchq.queues set keep_completed = '1 second', keep_killed = '1 second' where name = 'mail'",
        )
        .await;
    worker_comes(&session, &db.name).await;
    assert!(!run_job(&session, "mail", "drp").await);
    // A failed document would be archived there.
    session
        .sql(
            "select fetchq.queue_set_max_attempts('mail', 1);
             select fetchq.doc_push('mail', 'a'), fetchq.doc_push('mail', 'b');
             select fetchq.doc_pick('mail', 0, 1, '1 ms')",
        )
        .await;
    assert!(run_job(&session, "mail", "sts").await);
    session.sql("select * from fetchq.mnt()").await;
    let notices = session.notices();
    let refused = |message: &str| {
        message.contains("mail__history")
            && message.contains("mallory")
            && message.contains("postgres")
    };
    assert!(notices.iter().any(|n| refused(n.message())), "{notices:#?}");
    assert!(
        cluster.log_lines().iter().any(|line| refused(line)),
        "the log of the server does not say what was refused"
    );
    let state = session
        .text("select state from fetchq.status() where component = 'maintenance: retention'")
        .await;
    assert_eq!(state, "failing");
    assert_eq!(runs(&session, "").await, 0);
    nothing_was_gained(&session).await;
    let left = session
        .rows("select outcome, subject from fetchq_data.mail__history")
        .await;
    assert_eq!(left, ["completed|old"]);
    // Its owner gives the table away, and all is well.
    session
        .sql("alter table fetchq_data.mail__history owner to postgres; drop trigger a on fetchq_data.mail__history")
        .await;
    assert!(run_job(&session, "mail", "drp").await);
    let left = session
        .text("select count(*) from fetchq_data.mail__history where subject = 'old'")
        .await;
    assert_eq!(left, "0");
}

#[tokio::test]
async fn a_planted_table_of_logs_or_metrics_is_refused() {
    let cluster = with_worker("planted_logs", "");
    let (db, session, _mallory) = lair(&cluster, "planted_logs").await;
    session
        .sql(
            "select fetchq.queue_create('mail');
             drop table fetchq_data.mail__logs, fetchq_data.mail__metrics;
             set role mallory;
             create table fetchq_data.mail__logs (created_at timestamptz);
             insert into fetchq_data.mail__logs values ('2020-01-01');
             create trigger a before delete on fetchq_data.mail__logs
                 for each row execute function lair.on_change('row');
             create view fetchq_data.mail__metrics as select now() as created_at, 'm'::text as metric, 1::bigint as value, lair.attack('view') as id;
             create rule r as on insert to fetchq_data.mail__metrics do instead select lair.attack('rule');
             create rule s as on delete to fetchq_data.mail__metrics do instead select lair.attack('rule');
             grant all on fetchq_data.mail__logs, fetchq_data.mail__metrics to public;
             reset role",
        )
        .await;
    worker_comes(&session, &db.name).await;
    assert!(!run_job(&session, "mail", "sts").await);
    assert!(!run_job(&session, "mail", "drp").await);
    assert!(run_job(&session, "mail", "cmp").await);
    session.sql("select * from fetchq.mnt()").await;
    assert_eq!(
        session.state("select fetchq.metric_snap('mail')").await,
        "42P17"
    );
    assert_eq!(
        session.state("select fetchq.queue_drop_logs('mail')").await,
        "42P17"
    );
    assert_eq!(runs(&session, "").await, 0);
    nothing_was_gained(&session).await;
}

#[tokio::test]
async fn dead_letters_between_owners_run_with_the_rights_of_each() {
    let cluster = with_worker("letters", "");
    let (db, session, mallory) = lair(&cluster, "letters").await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "select fetchq.queue_create('mail');
             set role mallory;
             select fetchq.queue_create('evil');
             create trigger a before insert or update or delete on fetchq_data.evil__docs
                 for each row execute function lair.on_change('row');
             create constraint trigger z after insert on fetchq_data.evil__docs
                 deferrable initially deferred for each row execute function lair.on_change('deferred');
             reset role;
             update fetchq.queues set dead_letter = 'evil', max_attempts = 1 where name = 'mail';
             select fetchq.doc_push('mail', 'a', '{\"n\": 1}');
             select fetchq.doc_pick('mail', 0, 1, '1 ms')",
        )
        .await;
    wait_until("the document has moved", async || {
        session
            .text("select count(*) from fetchq_data.evil__docs where origin ->> 'queue' = 'mail'")
            .await
            == "1"
    })
    .await;
    assert_eq!(runs(&session, "row before insert evil__docs").await, 1);
    assert_eq!(runs(&session, "deferred after insert evil__docs").await, 1);
    nothing_was_gained(&session).await;
    let kept = session
        .rows("select subject, version, status, payload, origin ->> 'subject', last_error is not null from fetchq_data.evil__docs")
        .await;
    assert_eq!(kept, ["a|0|1|{\"n\": 1}|a|t"]);

    // And back again, by a superuser: mallory could have changed it, so she must be able to push it.
    let redrive = "select fetchq.queue_redrive('mail', 10, '{}')";
    assert_eq!(session.state(redrive).await, "42501");
    session
        .sql(&format!(
            "select fetchq.queue_grant('mail', 'mallory', 'producer'); {redrive};
             select fetchq.queue_revoke('mail', 'mallory', 'producer')"
        ))
        .await;
    assert_eq!(
        session
            .text("select status from fetchq_data.mail__docs where subject = 'a'")
            .await,
        "1"
    );
    nothing_was_gained(&session).await;

    // Mallory may not write into mail.
    session
        .sql(
            "update fetchq.queues set dead_letter = null where name = 'mail';
             update fetchq.queues set dead_letter = 'mail', max_attempts = 1 where name = 'evil';
",
        )
        .await;
    mallory
        .sql(
            "select fetchq.doc_push('evil', 'spam');
             select fetchq.doc_pick('evil', 0, 1, '1 ms')",
        )
        .await;
    wait_until("the move was refused", async || {
        cluster
            .log_lines()
            .iter()
            .any(|line| line.contains("mail") && line.contains("mallory") && line.contains("evil"))
    })
    .await;
    assert_eq!(
        session
            .text("select count(*) from fetchq_data.mail__docs where subject = 'spam'")
            .await,
        "0"
    );
    // With the right to insert she may.
    session
        .sql("grant select, insert on fetchq_data.mail__docs to mallory")
        .await;
    wait_until("the document has moved", async || {
        session
            .text("select count(*) from fetchq_data.mail__docs where subject = 'spam'")
            .await
            == "1"
    })
    .await;
}

#[tokio::test]
async fn trimming_sessions_plans_nothing_of_the_owner_as_a_superuser() {
    let cluster = with_worker("trim", "");
    let (db, session, mallory) = lair(&cluster, "trim").await;
    worker_comes(&session, &db.name).await;
    mallory
        .sql(
            "select fetchq.queue_create('evil');
             create index on fetchq_data.evil__docs (version)
                 where lair.calculate('planned predicate', true);
             create policy p on fetchq_data.evil__docs using (lair.attack('policy'));
             alter table fetchq_data.evil__docs enable row level security, force row level security;
             insert into fetchq_data.evil__docs (subject, status, next_iteration, lease, worker_session)
             values ('leased', 2, now() + interval '1 hour', 1, 3);
             truncate lair.seen",
        )
        .await;
    // Sessions that have ended: one with bound leases and two others, of which one has a lease.
    session
        .sql(
            "insert into fetchq.worker_sessions (id, queue_id, name, pid, backend_start, since, binding)
             select n, fetchq.queue_get_id('evil'), 'w', 0, '2020-01-01', '2020-01-01', (n = 1)::int
             from generate_series(1, 3) n",
        )
        .await;
    wait_until("the bound session is trimmed", async || {
        session
            .column("select id from fetchq.worker_sessions order by 1")
            .await
            == ["3"]
    })
    .await;
    session
        .sql("update fetchq.worker_sessions set id = 2; insert into fetchq.worker_sessions select 4, queue_id, name, pid, backend_start, since, binding from fetchq.worker_sessions")
        .await;
    assert!(run_job(&session, "evil", "cmp").await);
    let left = session
        .text("select count(*) from fetchq.worker_sessions")
        .await;
    assert_eq!(left, "0");
    assert!(runs(&session, "planned predicate").await > 0);
    assert!(runs(&session, "policy").await > 0);
    nothing_was_gained(&session).await;
}

#[tokio::test]
async fn a_schedule_pushes_with_the_rights_of_its_maker() {
    let cluster = with_worker("makers", "");
    let (db, session, _mallory) = lair(&cluster, "makers").await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "create role maker;
             grant usage on schema fetchq, fetchq_data to maker;
             grant select, insert, update, delete on all tables in schema fetchq to maker;
             grant execute on all functions in schema fetchq to maker;
             select fetchq.queue_create('mail');
             set role mallory;
             select fetchq.queue_create('evil');
             create trigger a before insert on fetchq_data.evil__docs
                 for each row execute function lair.on_change('row');
             reset role;
             select fetchq.schedule_create('of the superuser', 'evil', '1 second');
             insert into fetchq.schedules (name, queue, every, made_by, next_tick, due_at)
             values ('spam', 'mail', '1 second', 'mallory', now(), now()),
                 ('gone', 'mail', '1 second', 4294967294, now(), now());
             select fetchq.queue_grant('mail', 'maker', 'manager');
             set role maker;
             select fetchq.schedule_create('of the maker', 'mail', '1 second');
             reset role",
        )
        .await;
    wait_until("mallory's trigger ran", async || {
        runs(&session, "row before insert evil__docs").await > 0
    })
    .await;
    wait_until("the schedules were run", async || {
        session
            .rows(
                "select name, ticks > 0, attempts > 0 from fetchq.schedules where queue = 'mail' order by 1",
            )
            .await
            == ["gone|f|t", "of the maker|t|f", "spam|f|t"]
    })
    .await;
    let errors = session
        .rows(
            "select name, last_error from fetchq.schedules where last_error is not null order by 1",
        )
        .await;
    assert!(
        errors[0].contains("4294967294") && errors[0].contains("no longer exists"),
        "{errors:?}"
    );
    assert!(errors[1].contains("mallory"), "{errors:?}");
    nothing_was_gained(&session).await;
    // The maker loses the right.
    session
        .sql("select fetchq.queue_revoke('mail', 'maker', 'manager')")
        .await;
    wait_until("the schedule fails", async || {
        session
            .text("select attempts > 0 and last_error like '%maker%' from fetchq.schedules where name = 'of the maker'")
            .await
            == "t"
    })
    .await;
    session.sql("drop owned by maker; drop role maker").await;
}

#[tokio::test]
async fn a_slow_owner_delays_nobody_else() {
    let cluster = with_worker("slow", "fetchq.maintenance_timeout = '2s'");
    let (db, session, _mallory) = lair(&cluster, "slow").await;
    worker_comes(&session, &db.name).await;
    session
        .sql(
            "select fetchq.queue_create('mail');
             set role mallory;
             select fetchq.queue_create('evil');
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

/// A superuser asks about all queues, or changes all of them, and does not name mallory's.
#[tokio::test]
async fn calls_for_all_queues_run_nothing_with_the_rights_of_the_caller() {
    let cluster = with_worker("all", "fetchq.background_worker = off");
    let (_db, session, mallory) = lair(&cluster, "all").await;
    mallory
        .sql(
            "select fetchq.queue_create('cast');
             select fetchq.queue_configure('cast', '{\"history\": {\"completed\": \"1 day\"}}');
             select fetchq.queue_create('kid');
             select fetchq.doc_append('cast', '{}'); select fetchq.doc_append('kid', '{}');
             set fetchq.worker = 'everyone';
             select fetchq.doc_pick('kid');
             -- A cast that reads of a column need.
             create type lair.number as (v int);
             create function lair.as_int(lair.number) returns int language plpgsql as $$
                 begin perform lair.attack('cast'); return ($1).v; end $$;
             create cast (lair.number as int) with function lair.as_int(lair.number) as implicit;
             drop index fetchq_data.cast__docs_pick_idx; drop index fetchq_data.cast__docs_due_idx;
             drop trigger fetchq_ready on fetchq_data.cast__docs;
             alter table fetchq_data.cast__docs alter status drop default;
             alter table fetchq_data.cast__docs alter status type lair.number using row(2)::lair.number;
             -- A child table with an index whose predicate planning evaluates.
             create table lair.kid () inherits (fetchq_data.kid__docs);
             create index on lair.kid (subject) where lair.calculate('predicate', true);
             -- Triggers, for calls that change documents.
             create trigger a before update or delete on fetchq_data.kid__docs
                 for each row execute function lair.on_change('row');
             create function lair.truncated() returns trigger language plpgsql as $$
                 begin perform lair.attack('truncate'); return null; end $$;
             create trigger t before truncate on fetchq_data.kid__docs
                 for each statement execute function lair.truncated();",
        )
        .await;
    for call in [
        "count(*) from fetchq.leases",
        "count(*) from fetchq.history",
        "count(*) from fetchq.queue_history(null)",
        "count(*) from fetchq.trace('nothing')",
        "count(*) from fetchq.workers",
        "count(*) from fetchq.metric_compute_all()",
        "count(*) from fetchq.metric_get_all()",
        "count(*) from fetchq.metric_reset_all()",
        "count(*) from fetchq.status()",
        "count(*) from fetchq.mnt_run_all(10)",
        "fetchq.worker_release('everyone')",
        "fetchq.queue_truncate_all()",
    ] {
        // Some of them fail because of what mallory has done to her table, as she.
        let _ = session.batch_execute(&format!("select {call}")).await;
        nothing_was_gained(&session).await;
    }
    for attack in ["cast", "row before update kid__docs", "truncate"] {
        assert!(runs(&session, attack).await > 0, "{attack} did not run");
    }
}

/// An owner whose table is gone, locked, or has a trigger that fails, keeps no operator from the
/// other queues.
#[tokio::test]
async fn calls_for_all_queues_go_on_after_a_queue_that_fails() {
    let db = Server::of_suite().database("all_queues_go_on").await;
    let admin = db.connect().await;
    admin.sql(LAIR).await;
    let (mallory, mut locker) = (as_mallory(&db).await, as_mallory(&db).await);
    for queue in ["b_gone", "b_locked", "b_raises"] {
        mallory
            .sql(&format!("select fetchq.queue_create('{queue}')"))
            .await;
    }
    admin
        .sql(
            "select fetchq.queue_create('a'), fetchq.queue_create('c');
             select fetchq.doc_push('a', 'x'), fetchq.doc_push('c', 'x')",
        )
        .await;
    mallory
        .sql(
            "alter table fetchq_data.b_gone__docs set schema lair;
             create function lair.refuse() returns trigger language plpgsql as $$ begin raise 'refused'; end $$;
             create trigger t before truncate on fetchq_data.b_raises__docs for each statement execute function lair.refuse()",
        )
        .await;
    let lock = locker.transaction().await.unwrap();
    lock.batch_execute("lock table fetchq_data.b_locked__docs in access exclusive mode")
        .await
        .unwrap();
    let left_out = |admin: &Session, queue: &str| {
        let start = format!("queue \"{queue}\" is left out: ");
        admin
            .notices()
            .iter()
            .filter(|n| n.message().starts_with(&start))
            .count()
    };
    let reset = "select string_agg(queue, ' ' order by queue) from fetchq.metric_reset_all()";
    assert_eq!(admin.text(reset).await, "a b_raises c");
    assert_eq!(left_out(&admin, "b_locked"), 1);
    admin.sql("select fetchq.queue_truncate_all(true)").await;
    let notices = admin.notices();
    for queue in ["b_gone", "b_locked", "b_raises"] {
        let start = format!("queue \"{queue}\" is left out: ");
        assert!(
            notices.iter().any(|n| n.message().starts_with(&start)),
            "{queue}: {notices:#?}"
        );
    }
    let left = "select (select count(*) from fetchq_data.a__docs) + (select count(*) from fetchq_data.c__docs)";
    assert_eq!(admin.text(left).await, "0");
    lock.rollback().await.unwrap();
    drop((admin, mallory, locker));
    db.remove().await;
}

/// A schedule that appears while another session waits is not replaced by a role that does not
/// manage its queue.
#[tokio::test]
async fn a_schedule_that_appears_meanwhile_is_not_replaced() {
    let cluster = with_worker("stolen", "fetchq.background_worker = off");
    let (db, session, mallory) = lair(&cluster, "stolen").await;
    mallory.sql("select fetchq.queue_create('evil')").await;
    session.sql("select fetchq.queue_create('mail')").await;
    mallory.sql("begin; select fetchq.queue_drop('evil')").await;
    let mut config = cluster.server().config().clone();
    config.user("mallory");
    let other = Server::new(config).connect(&db.name).await;
    let replacing = tokio::spawn(async move {
        other
            .state("select fetchq.schedule_create('nightly', 'evil', '1 minute', replace => true)")
            .await
    });
    wait_until("the other session waits", async || {
        session
            .text("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%nightly%' and pid <> pg_backend_pid()")
            .await
            == "1"
    })
    .await;
    session
        .sql("select fetchq.schedule_create('nightly', 'mail', '1 hour')")
        .await;
    mallory.sql("rollback").await;
    assert_eq!(replacing.await.unwrap(), "42501");
    assert_eq!(
        session
            .text("select queue from fetchq.schedules where name = 'nightly'")
            .await,
        "mail"
    );
}

/// Code of an owner that takes an advisory lock holds nobody up, and leaves none in the background
/// worker.
#[tokio::test]
async fn advisory_locks_of_an_owner_hold_nobody_up() {
    let cluster = with_worker("advisory", "");
    let (db, session, mallory) = lair(&cluster, "advisory").await;
    worker_comes(&session, &db.name).await;
    session
        .sql("select fetchq.queue_create('mail'); select fetchq.queue_configure('mail', '{\"ordered\": true}')")
        .await;
    let id = session
        .text("select id from fetchq.queues where name = 'mail'")
        .await;
    mallory
        .sql(&format!(
            "select fetchq.queue_create('evil');
             create function lair.lock() returns trigger language plpgsql as $$
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

/// A session of mallory in the server of the suite.
async fn as_mallory(db: &Database) -> Session {
    let mut config = Server::of_suite().config().clone();
    config.user("mallory").password("mallory");
    Server::new(config).connect(&db.name).await
}

/// Constraint triggers of two owners may have the same name. What one of them has deferred runs with
/// none of the rights of the other, also when a session moves a dead letter or redrives.
#[tokio::test]
async fn deferred_triggers_of_one_name_run_with_the_rights_of_their_owners() {
    let db = Server::of_suite().database("hostile_names").await;
    let session = db.connect().await;
    session.sql(LAIR).await;
    session
        .sql(
            "do $$ begin
                 if not exists (select from pg_roles where rolname = 'alice') then create role alice; end if;
             end $$;
             grant usage on schema fetchq, fetchq_data to alice;
             grant execute on all functions in schema fetchq to alice;
             create function public.nothing() returns trigger language plpgsql as 'begin return null; end';
             set role mallory;
             select fetchq.queue_create('evil');
             create constraint trigger z after insert or update or delete on fetchq_data.evil__docs
                 deferrable initially deferred for each row execute function lair.on_change('deferred');
             reset role;
             set role alice;
             select fetchq.queue_create('mail'), fetchq.queue_create('letters');
             create constraint trigger z after insert on fetchq_data.letters__docs
                 deferrable initially deferred for each row execute function public.nothing();
             create constraint trigger z after insert on fetchq_data.mail__docs
                 deferrable initially deferred for each row execute function public.nothing();
             select fetchq.queue_grant('letters', 'mallory', 'producer');
             select fetchq.queue_configure('mail', '{\"dead_letter\": \"letters\"}');
             select fetchq.queue_grant('mail', 'mallory', 'worker');
             reset role;
             select fetchq.queue_configure('evil', '{\"dead_letter\": \"letters\"}')",
        )
        .await;
    let mallory = as_mallory(&db).await;
    for turn in ["kill", "reject"] {
        mallory
            .sql(&format!(
                "select fetchq.queue_set_max_attempts('evil', 1); select fetchq.queue_configure('evil', '{{\"rate\": {{\"picks\": 9, \"per\": \"1 s\"}}}}');
                 begin;
                 select fetchq.doc_push('evil', '{turn}'); select fetchq.doc_pick('evil', 1);
                 select fetchq.doc_{turn}('evil', '{turn}'{});
                 select fetchq.doc_push('evil', '{turn} 2'); select fetchq.doc_pick('evil', 1);
                 select fetchq.doc_kill('evil', '{turn} 2');
                 commit",
                if turn == "kill" { "" } else { ", 'why', '{}'" }
            ))
            .await;
    }
    // A redrive of another queue, while something of mallory's is deferred.
    session
        .sql("select fetchq.queue_grant('letters', 'mallory', 'worker')")
        .await;
    mallory
        .sql(
            "begin; select fetchq.doc_push('evil', 'pending');
             select fetchq.doc_push('mail', 'm'); select fetchq.doc_pick('mail', 1); select fetchq.doc_kill('mail', 'm');
             select fetchq.queue_redrive('mail', 10);
             commit",
        )
        .await;
    assert_eq!(
        session
            .column("select subject from fetchq_data.letters__docs order by 1")
            .await,
        ["kill", "kill 2", "reject", "reject 2"]
    );
    assert!(runs(&session, "deferred").await > 0);
    nothing_was_gained(&session).await;
    drop((session, mallory));
    db.remove().await;
}

/// A column of the source may have a type of its owner, whose cast runs as the owner too.
#[tokio::test]
async fn casts_of_one_owner_do_not_run_as_another_one() {
    let db = Server::of_suite().database("hostile_casts").await;
    let session = db.connect().await;
    session.sql(LAIR).await;
    session
        .sql(
            "do $$ begin
                 if not exists (select from pg_roles where rolname = 'alice') then create role alice; end if;
             end $$;
             grant usage on schema fetchq, fetchq_data to alice;
             grant execute on all functions in schema fetchq to alice;
             set role mallory;
             create type lair.kind as (v text);
             create function lair.to_text(lair.kind) returns text language plpgsql as $$
             begin perform lair.attack('cast'); return ($1).v; end $$;
             create cast (lair.kind as text) with function lair.to_text(lair.kind) as assignment;
             select fetchq.queue_create('evil');
             alter table fetchq_data.evil__docs alter column last_error type lair.kind using null;
             reset role;
             set role alice;
             select fetchq.queue_create('letters');
             select fetchq.queue_grant('letters', 'mallory', 'producer');
             reset role;
             set role mallory;
             select fetchq.queue_configure('evil', '{\"dead_letter\": \"letters\"}');
             insert into fetchq_data.evil__docs (subject, status, next_iteration, lease, attempts, last_error)
             values ('a', 2, now() + '1 hour', 1, 1, row('x'));
             reset role",
        )
        .await;
    let mallory = as_mallory(&db).await;
    mallory.sql("select fetchq.doc_kill('evil', 'a')").await;
    assert_eq!(
        session
            .column("select last_error from fetchq_data.letters__docs")
            .await,
        ["x"]
    );
    assert!(runs(&session, "cast").await > 0);
    nothing_was_gained(&session).await;
    drop((session, mallory));
    db.remove().await;
}
