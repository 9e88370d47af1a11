//! What the owner of a queue attaches to its tables runs with the rights of the owner, whoever
//! runs maintenance, and never with more.
//!
//! The role `mallory` owns queues, and attaches the function `lair.attack` to their tables in
//! every way that PostgreSQL has. The function tries to become a superuser and to read a secret,
//! and records as whom it ran.

mod all_queues;
mod attachments;
mod dead_letters;
mod delays;
mod schedules;

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

/// Creates the queue `mail` of the superuser, and the queue `evil` of mallory.
async fn mail_and_evil(session: &Session, mallory: &Session) {
    session.sql("select fetchq.queue_create('mail')").await;
    mallory.sql("select fetchq.queue_create('evil')").await;
}

/// A session of mallory in the server of the suite.
async fn as_mallory(db: &Database) -> Session {
    let mut config = Server::of_suite().config().clone();
    config.user("mallory").password("mallory");
    Server::new(config).connect(&db.name).await
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
    // Its owner gives the table away. With the columns of a history, all is well.
    session
        .sql("alter table fetchq_data.mail__history owner to postgres; drop trigger a on fetchq_data.mail__history")
        .await;
    assert!(!run_job(&session, "mail", "drp").await);
    session
        .sql(
            "alter table fetchq_data.mail__history add column headers jsonb, add column due_at timestamptz,
                 add column picked_at timestamptz, add column result jsonb, add column progress jsonb,
                 add column max_attempts int",
        )
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
