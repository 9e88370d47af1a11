//! Two applications that do not trust one another share a database. Each has USAGE on the schemas
//! of fetchq and EXECUTE on `queue_create`, and nothing else.

use fetchq_client_tests::{
    Database, Function, Server, Session, counters_are_exact, error_of, functions, prepare_queue,
    wait_until,
};

/// Makes the two roles, which exist once in a server.
async fn make_roles(admin: &Session) {
    for role in ["fetchq_app_a", "fetchq_app_b"] {
        admin
            .sql(&format!(
                "do $$ begin
                     if not exists (select from pg_roles where rolname = '{role}') then create role {role}; end if;
                 end $$;
                 grant usage on schema fetchq, fetchq_data to {role};
                 grant execute on function fetchq.queue_create to {role}"
            ))
            .await;
    }
}

/// A session of one of the applications.
async fn application(db: &Database, name: &str) -> Session {
    let session = db.connect().await;
    session
        .sql(&format!("set session authorization fetchq_app_{name}"))
        .await;
    session
}

/// The applications and a superuser. Application a has the queue `q`, with all that belongs to it.
async fn applications(name: &str) -> (Database, Session, Session, Session) {
    let db = Server::of_suite().database(name).await;
    let admin = db.connect().await;
    make_roles(&admin).await;
    let (a, b) = (application(&db, "a").await, application(&db, "b").await);
    prepare_queue(&a).await;
    a.sql(
        "select fetchq.queue_configure('q', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}, \"max_active\": 5, \"rate\": {\"picks\": 5, \"per\": \"1 day\"}, \"ordered\": true}');
         set fetchq.worker = 'mine'; select fetchq.doc_pick('q', 1); reset fetchq.worker;
         select fetchq.doc_push('q', 'a secret', '{\"a\": \"secret\"}')",
    )
    .await;
    (db, admin, a, b)
}

/// Everything that belongs to the queues of application a.
async fn state(admin: &Session) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in [
        "select * from fetchq_data.q__docs order by subject",
        "select * from fetchq_data.other__docs order by subject",
        "select * from fetchq_data.q__logs order by id",
        "select * from fetchq_data.q__metrics order by id",
        "select * from fetchq_data.q__history order by id",
        "select * from fetchq.queues where name in ('q', 'other') order by id",
        "select * from fetchq.jobs where queue in ('q', 'other', '*') order by id",
        "select * from fetchq.schedules where queue in ('q', 'other') order by name",
        "select queue, metric, value from fetchq.metrics_live where queue in ('q', 'other') order by 1, 2",
        "select * from fetchq.metrics_writes where queue in ('q', 'other') order by 1, 2",
        "select s.* from fetchq.lease_slots s join fetchq.queues q on q.id = s.queue_id where q.name in ('q', 'other') order by 1, 2",
        "select s.* from fetchq.rate_permits s join fetchq.queues q on q.id = s.queue_id where q.name in ('q', 'other') order by 1, 2",
        "select s.* from fetchq.ordering_keys s join fetchq.queues q on q.id = s.queue_id where q.name in ('q', 'other') order by 1, 2",
        "select s.* from fetchq.worker_sessions s join fetchq.queues q on q.id = s.queue_id where q.name in ('q', 'other') order by 1",
        "select s.* from fetchq.stop_requests s left join fetchq.queues q on q.id = s.queue_id where coalesce(q.name, 'q') in ('q', 'other') order by 1, 2",
        "select relname, relowner, relacl, relfilenode from pg_class where relname ~ '^(q|other)__' order by 1",
        "select tgname, tgenabled, tgrelid from pg_trigger order by 1, 3",
    ] {
        all.push(admin.rows(sql).await);
    }
    all
}

/// Calls every function as application b, with arguments that are right for the queues of
/// application a. Returns what was returned or refused.
async fn call_all(b: &Session) -> Vec<String> {
    let mut seen = Vec::new();
    for function in functions(b).await {
        let statement = function.prepare(b).await;
        match Function::call(b, &statement, &function.valid()).await {
            Ok(rows) => {
                for row in rows {
                    seen.push(format!("{}: {row:?}", function.signature()));
                }
            }
            Err(e) => {
                let code = fetchq_client_tests::state_of(&e);
                seen.push(format!("{}: {code}", function.signature()));
            }
        }
    }
    seen
}

#[tokio::test]
async fn neither_changes_anything_of_the_other() {
    let (db, mut admin, a, b) = applications("mistrust_change").await;
    let before = state(&admin).await;
    let seen = call_all(&b).await;
    for (got, expected) in state(&admin).await.iter().zip(&before) {
        assert_eq!(got, expected, "{seen:#?}");
    }
    // The queue works as before.
    assert_eq!(a.text("select fetchq.doc_push('q', 'after')").await, "1");
    counters_are_exact(&mut admin, "q").await;
    // Most calls are refused with the error that names the queue.
    let refused = seen.iter().filter(|line| line.ends_with(": 42501")).count();
    assert!(refused > 70, "{refused} of {seen:#?}");
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn neither_reads_anything_of_the_other() {
    let (db, admin, a, b) = applications("mistrust_read").await;
    b.sql("select fetchq.queue_create('mine'); select fetchq.doc_push('mine', 'm')")
        .await;
    for (sql, own) in [
        ("select name from fetchq.queue_status()", "mine"),
        ("select distinct queue from fetchq.metrics_live", "mine"),
        ("select queue from fetchq.metric_get_all()", "mine"),
        ("select queue from fetchq.metric_compute_all()", "mine"),
        ("select distinct queue from fetchq.queue_grants()", "mine"),
        (
            "select current_value from fetchq.metric_get_total('cnt')",
            "1",
        ),
    ] {
        assert_eq!(b.column(sql).await, [own], "{sql}");
    }
    for sql in [
        "select name from fetchq.schedule_list()",
        "select subject from fetchq.lease_list()",
        "select subject from fetchq.leases",
        "select name from fetchq.workers",
        "select subject from fetchq.queue_history()",
        "select subject from fetchq.history",
        "select queue from fetchq.trace('active')",
        "select queue from fetchq.progress where queue <> 'mine'",
        "select subject from fetchq.doc_pick_any(array['mine']) where subject <> 'm'",
    ] {
        assert_eq!(b.column(sql).await, [] as [&str; 0], "{sql}");
    }
    // No table of the schemas is readable, and the text of the library's own statements changes
    // nothing.
    for table in a
        .column("select c.oid::regclass::text from pg_class c where c.relkind = 'r' and (c.relnamespace = 'fetchq'::regnamespace or c.relname ~ '^q__') order by 1")
        .await
    {
        assert_eq!(b.state(&format!("select * from {table}")).await, "42501", "{table}");
    }
    assert_eq!(
        b.state("select id from fetchq.queues where name operator(pg_catalog.=) 'q' for key share")
            .await,
        "42501"
    );
    // The other application sees its own.
    assert_eq!(
        a.column("select name from fetchq.queue_status() order by 1")
            .await,
        ["other", "q"]
    );
    assert_eq!(
        a.column("select name from fetchq.workers where name = 'mine'")
            .await,
        ["mine"]
    );
    assert_eq!(
        a.column("select name from fetchq.schedule_list()").await,
        ["nightly"]
    );
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn neither_stops_workers_of_the_other() {
    let (db, admin, a, b) = applications("mistrust_stop").await;
    a.sql("set fetchq.worker = 'mine'; select fetchq.doc_push('q', 'work'); select fetchq.doc_pick('q', 1)")
        .await;
    let subject = a
        .text("select subject from fetchq.leases where worker = 'mine' order by since desc limit 1")
        .await;
    let extend = format!("select stop from fetchq.doc_extend('q', '{subject}', '1 hour')");
    b.sql("select fetchq.worker_stop('mine')").await;
    assert_eq!(b.text("select fetchq.worker_release('mine')").await, "0");
    assert_eq!(a.text(&extend).await, "f");
    let asked = "select fetchq.worker_stop_requested('q', 'mine', '2000-01-01')";
    assert_eq!(a.text(asked).await, "f");
    // The owner can.
    a.sql("select fetchq.worker_stop('mine')").await;
    assert_eq!(a.text(&extend).await, "t");
    assert_eq!(a.text(asked).await, "t");
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn a_role_without_rights_waits_for_no_lock_and_holds_none() {
    let (db, admin, a, b) = applications("mistrust_lock").await;
    a.sql("begin; lock table fetchq_data.q__docs in access exclusive mode")
        .await;
    b.sql("set lock_timeout = '10s'; set statement_timeout = '20s'")
        .await;
    for call in [
        "fetchq.doc_pick('q')",
        "fetchq.doc_push('q', 'x')",
        "fetchq.doc_append('q', '{}')",
        "fetchq.doc_complete('q', 'active')",
        "fetchq.doc_pop('q')",
        "fetchq.doc_extend('q', 'active', '1 hour')",
        "fetchq.doc_pick_any(array['q'])",
        "fetchq.docs_kill('q', '{\"all\": true}')",
        "fetchq.queue_redrive('q')",
        "fetchq.queue_pause('q')",
        "fetchq.queue_truncate('q')",
        "fetchq.queue_drop('q')",
        "fetchq.metric_reset('q')",
        "fetchq.mnt_run('q', 10)",
    ] {
        // 55P03 would say that it waited for the lock.
        assert_eq!(b.state(&format!("select {call}")).await, "42501", "{call}");
    }
    assert_eq!(
        b.state("call fetchq.queue_wait(array['q'], '0')").await,
        "42501"
    );
    a.sql("rollback").await;
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn neither_holds_up_the_other() {
    let (db, admin, a, b) = applications("mistrust_starve").await;
    b.sql("select fetchq.queue_create('mine'); select fetchq.schedule_create('own', 'mine', '@hourly'); select fetchq.doc_push('mine', 'm')")
        .await;
    // Application b has done all it may in a transaction that stays open.
    b.sql(
        "begin;
         select fetchq.queue_create('q'); select fetchq.mnt(); select fetchq.mnt_job_run(1000); select fetchq.mnt_run_all(10);
         select fetchq.schedule_run(); select fetchq.metric_reset_all(); select fetchq.queue_truncate_all(true);
         select fetchq.doc_push('mine', 'n'); select fetchq.doc_pick('mine', 10); select fetchq.queue_configure('mine', '{\"history\": {\"completed\": \"1 day\"}}');
         select fetchq.worker_stop('mine'); select fetchq.worker_release('mine'); select count(*) from fetchq.status();
         select fetchq.queue_grant('mine', 'fetchq_app_a', 'reader'); select count(*) from fetchq.metrics_live",
    )
    .await;
    for session in [&a, &admin] {
        session.sql("set lock_timeout = '10s'").await;
    }
    a.sql(
        "select fetchq.doc_push('q', 'free'); select fetchq.doc_pick('q', 10); select fetchq.doc_complete('q', 'free');
         select fetchq.queue_pause('q'); select fetchq.queue_resume('q'); select fetchq.queue_enable_notify('q');
         select fetchq.queue_configure('q', '{\"max_active\": 7, \"ordered\": false}');
         select fetchq.schedule_pause('nightly'); select fetchq.mnt(); select fetchq.metric_reset('q'); select fetchq.queue_create('new');
         select fetchq.queue_truncate('q', true); select fetchq.schedule_create('also', 'q', '@daily')",
    )
    .await;
    // The counters of application a are packed meanwhile.
    a.sql("select fetchq.doc_push('q', 'packed')").await;
    wait_until("the counters of the other application are packed", async || {
        admin.sql("select fetchq.metric_log_pack()").await;
        let left = "select count(*) from fetchq.counter_tail t join fetchq.queues q on q.id = t.queue_id where q.name = 'q'";
        admin.text(left).await == "0"
    })
    .await;
    a.sql("select fetchq.queue_drop('q'); select fetchq.queue_drop('other')")
        .await;
    b.sql("commit").await;
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn nobody_plants_a_table_or_a_trigger() {
    let (db, admin, a, b) = applications("mistrust_plant").await;
    for sql in [
        "create table fetchq_data.later__history (id int)",
        "create table fetchq_data.later__docs (id int)",
        "create view fetchq_data.later__logs as select 1",
        "create function fetchq_data.now() returns timestamptz language sql as 'select clock_timestamp()'",
        "create table fetchq.mine (id int)",
        "create trigger planted after insert on fetchq_data.q__docs for each row execute function fetchq.trigger_docs_ready()",
        "alter table fetchq_data.q__docs add column mine int",
    ] {
        assert_eq!(b.state(sql).await, "42501", "{sql}");
    }
    // The trigger functions of fetchq act only on the tables that they were made for.
    admin
        .sql("create schema app_b authorization fetchq_app_b")
        .await;
    admin
        .sql("create table app_b.q__docs (like fetchq_data.q__docs); alter table app_b.q__docs owner to fetchq_app_b")
        .await;
    let trigger = "create trigger t after insert on app_b.q__docs for each row execute function fetchq.trigger";
    assert_eq!(
        b.state(&format!("{trigger}_queue_changed()")).await,
        "42501"
    );
    let slots = "select * from fetchq.lease_slots order by 1, 2";
    let before = admin.rows(slots).await;
    b.sql(&format!("{trigger}_docs_cap()")).await;
    let insert = "insert into app_b.q__docs (subject, version, priority, status, attempts, iterations, next_iteration, seq)
        values ('x', 0, 0, 2, 0, 0, now(), 1)";
    assert_eq!(b.state(insert).await, "42501");
    assert_eq!(admin.rows(slots).await, before);
    drop((admin, a, b));
    db.remove().await;
}

/// The owner of a table can have an index with a name of its choice, without CREATE on the schema:
/// the table gets a unique index as a partition, and a constraint renames it.
#[tokio::test]
async fn an_index_with_the_name_of_a_table_stops_no_other_queue() {
    let (db, admin, a, b) = applications("mistrust_names_taken").await;
    a.sql(
        "select fetchq.queue_create('plain'); select fetchq.queue_create('gone');
         select fetchq.queue_drop_indexes('plain');
         select fetchq.doc_push('plain', 'x')",
    )
    .await;
    admin
        .sql("create schema app_b authorization fetchq_app_b")
        .await;
    b.sql("select fetchq.queue_create('mine'); create table app_b.parent (like fetchq_data.mine__docs) partition by list (subject)")
        .await;
    let taken = [
        ("plain__history", "version"),
        ("gone__history", "priority"),
        ("later__docs", "status"),
        ("plain__docs_pick_idx", "attempts"),
        ("plain__docs_blocked_idx", "iterations"),
    ];
    for (_, column) in taken {
        b.sql(&format!(
            "create unique index on app_b.parent (subject, {column})"
        ))
        .await;
    }
    b.sql(
        "alter table app_b.parent attach partition fetchq_data.mine__docs default;
         alter table app_b.parent detach partition fetchq_data.mine__docs",
    )
    .await;
    for (name, column) in taken {
        b.sql(&format!(
            "alter table fetchq_data.mine__docs add constraint {name} unique using index mine__docs_subject_{column}_idx"
        ))
        .await;
    }
    let owners = "select count(*) from pg_class c join pg_index i on i.indexrelid = c.oid
        where c.relname in ('plain__history', 'gone__history', 'later__docs', 'plain__docs_pick_idx', 'plain__docs_blocked_idx')
            and i.indrelid = 'fetchq_data.mine__docs'::regclass";
    assert_eq!(admin.text(owners).await, "5");

    // What needs no new table works as before.
    for sql in [
        "select * from fetchq.doc_pick('plain', 1)",
        "select fetchq.doc_complete('plain', 'x')",
        "select fetchq.queue_history('plain')",
        "select fetchq.queue_history(null)",
        "select fetchq.queue_grant('plain', 'fetchq_app_b', 'reader')",
        "select fetchq.queue_revoke('plain', 'fetchq_app_b', 'reader')",
        "select fetchq.queue_trim_history('plain')",
        "select fetchq.queue_truncate('plain', true)",
        "select fetchq.queue_drop('gone')",
    ] {
        assert_eq!(a.state(sql).await, "", "{sql}");
    }
    admin
        .sql("update fetchq.jobs set next_iteration = now() where queue = 'plain'; select fetchq.mnt_job_run(100)")
        .await;
    let failed = "select count(*) from fetchq.jobs where queue = 'plain' and payload ? 'error'";
    assert_eq!(admin.text(failed).await, "0");

    // What needs the name says who has it.
    for sql in [
        "select fetchq.queue_configure('plain', '{\"history\": {\"completed\": \"1 day\"}}')",
        "select fetchq.queue_create('later')",
        "select fetchq.queue_create_indexes('plain')",
    ] {
        let refused = a.batch_execute(sql).await.unwrap_err();
        let error = error_of(&refused);
        assert_eq!(error.code().code(), "42P07", "{sql}");
        assert!(error.message().contains("fetchq_app_b"), "{error}");
    }
    admin
        .sql("alter table fetchq_data.mine__docs drop constraint plain__history; alter table fetchq_data.mine__docs drop constraint plain__docs_pick_idx")
        .await;
    a.sql("select fetchq.queue_configure('plain', '{\"history\": {\"completed\": \"1 day\"}}'); select fetchq.queue_create_indexes('plain')")
        .await;
    a.sql("select fetchq.queue_drop('plain')").await;
    drop((admin, a, b));
    db.remove().await;
}

/// Whoever may use the schema can call this, so it must not keep a process that nobody can end.
#[tokio::test]
async fn a_long_preview_of_a_schedule_can_be_cancelled() {
    let (db, admin, a, b) = applications("mistrust_preview").await;
    b.sql("set statement_timeout = '100ms'").await;
    let preview = "select count(*) from fetchq.schedule_preview('every 1 second', n => 20000000)";
    assert_eq!(b.state(preview).await, "57014");
    drop((admin, a, b));
    db.remove().await;
}

/// A producer may change most columns, because an upsert does, but cancels nothing.
#[tokio::test]
async fn a_producer_cancels_no_document() {
    let (db, admin, a, b) = applications("mistrust_cancel").await;
    a.sql(
        "select fetchq.queue_create('plain');
         select fetchq.doc_push('plain', 'active'); select fetchq.doc_pick('plain', 1);
         select fetchq.doc_push('plain', 'pending');
         select fetchq.doc_push('plain', 'planned', 0, 0, now() + interval '1 day', '{}');
         select fetchq.queue_grant('plain', 'fetchq_app_b', 'producer')",
    )
    .await;
    let statuses =
        "select string_agg(subject || status, ' ' order by subject) from fetchq_data.plain__docs";
    for subject in ["active", "pending", "planned"] {
        let cancel = format!("select fetchq.doc_cancel('plain', '{subject}')");
        let refused = b.batch_execute(&cancel).await.unwrap_err();
        let error = error_of(&refused);
        assert_eq!(error.code().code(), "42501", "{subject}");
        assert!(error.message().contains("is no worker"), "{error}");
    }
    assert_eq!(admin.text(statuses).await, "active2 pending1 planned0");
    a.sql("select fetchq.queue_grant('plain', 'fetchq_app_b', 'worker')")
        .await;
    b.sql("select fetchq.doc_cancel('plain', 'pending')").await;
    assert_eq!(admin.text(statuses).await, "active2 pending-1 planned0");
    drop((admin, a, b));
    db.remove().await;
}

/// Application a has the queue `work` with the dead-letter queue `letters`, in which is a document
/// that failed.
async fn failed_document(a: &Session) {
    a.sql(
        "select fetchq.queue_create('work'), fetchq.queue_create('letters');
         select fetchq.queue_configure('work', '{\"dead_letter\": \"letters\"}');
         select fetchq.doc_push('work', 'failed', '{\"pay\": \"ann\"}');
         select fetchq.doc_pick('work', 1); select fetchq.doc_kill('work', 'failed')",
    )
    .await;
}

#[tokio::test]
async fn whoever_writes_into_a_dead_letter_queue_pushes_nowhere_else() {
    let (db, admin, a, b) = applications("mistrust_forge").await;
    failed_document(&a).await;
    let work = "select subject, payload from fetchq_data.work__docs order by 1";
    let insert = "insert into fetchq_data.letters__docs (subject, status, next_iteration, payload, origin)
        values ('forged', 1, now(), '{\"pay\": \"bob\"}', '{\"queue\": \"work\", \"subject\": \"forged\"}')";
    let update = "update fetchq_data.letters__docs set payload = '{\"pay\": \"bob\"}'";
    let put = "select fetchq.doc_put('letters', 'failed', '{\"pay\": \"bob\"}', mode => 'replace')";
    let producer = "select fetchq.queue_grant('letters', 'fetchq_app_b', 'producer')";
    let docs = "on fetchq_data.letters__docs";
    // What application a or a superuser allows, what application b does, and how it is undone.
    for (grant, forge, revoke) in [
        (
            producer.to_owned(),
            insert,
            "select fetchq.queue_revoke('letters', 'fetchq_app_b', 'producer')".to_owned(),
        ),
        (
            producer.to_owned(),
            put,
            "select fetchq.queue_revoke('letters', 'fetchq_app_b', 'producer')".to_owned(),
        ),
        (
            format!("grant update (payload) {docs} to fetchq_app_b"),
            update,
            format!("revoke update (payload) {docs} from fetchq_app_b"),
        ),
        (
            format!(
                "grant insert (subject, status, next_iteration, payload, origin) {docs} to fetchq_app_b"
            ),
            insert,
            format!("revoke insert {docs} from fetchq_app_b"),
        ),
        (
            format!("grant update {docs} to fetchq_app_b with grant option"),
            update,
            format!("revoke update {docs} from fetchq_app_b"),
        ),
        (
            format!("grant insert {docs} to public"),
            insert,
            format!("revoke insert {docs} from public"),
        ),
        (
            format!("grant trigger {docs} to fetchq_app_b"),
            "select 1",
            format!("revoke trigger {docs} from fetchq_app_b"),
        ),
    ] {
        a.sql("begin").await;
        a.sql(&grant).await;
        a.sql("commit").await;
        let before = admin.rows("select * from fetchq_data.letters__docs").await;
        b.sql(forge).await;
        let forged = admin.rows("select * from fetchq_data.letters__docs").await;
        assert!(forge == "select 1" || forged != before, "{forge}");
        for session in [&a, &admin] {
            session.notices();
            let found = session
                .state("select fetchq.queue_redrive('work', 10)")
                .await;
            assert_eq!(found, "42501", "{grant}");
            // One forged document does not keep others from returning.
            assert_eq!(
                session
                    .text("select fetchq.queue_redrive('letters', 10)")
                    .await,
                "0",
                "{grant}"
            );
            let notices = session.notices();
            assert!(
                notices.iter().any(|n| n.code().code() == "42501"
                    && n.message().contains("letters")
                    && n.message().contains("work")
                    && n.hint().is_some()),
                "{grant}: {notices:?}"
            );
        }
        assert_eq!(admin.rows(work).await, [] as [&str; 0], "{grant}");
        assert_eq!(
            admin.rows("select * from fetchq_data.letters__docs").await,
            forged
        );
        // Application a removes what was written, and takes the right back.
        a.sql(&revoke).await;
        a.sql(
            "delete from fetchq_data.letters__docs where subject = 'forged';
             update fetchq_data.letters__docs set payload = '{\"pay\": \"ann\"}'",
        )
        .await;
    }
    // A role that may push there anyway changes nothing, and neither does a superuser.
    a.sql(&format!(
        "{producer}; select fetchq.queue_grant('work', 'fetchq_app_b', 'producer');
         grant insert on fetchq_data.letters__docs to {}",
        admin.text("select current_user").await
    ))
    .await;
    assert_eq!(a.text("select fetchq.queue_redrive('work', 10)").await, "1");
    assert_eq!(admin.rows(work).await, ["failed|{\"pay\": \"ann\"}"]);
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn a_moved_document_takes_no_forged_origin_along() {
    let (db, admin, a, b) = applications("mistrust_move").await;
    failed_document(&a).await;
    // Application b works on a queue of application a, and may not write into its other queues.
    a.sql(
        "select fetchq.queue_create('shared'); select fetchq.queue_grant('shared', 'fetchq_app_b', 'worker');
         select fetchq.doc_push('shared', 'plain')",
    )
    .await;
    b.sql(
        "select fetchq.doc_push('shared', 'forged');
         update fetchq_data.shared__docs set origin = '{\"queue\": \"work\", \"subject\": \"forged\"}' where subject = 'forged'",
    )
    .await;
    a.notices();
    assert_eq!(
        a.text("select fetchq.docs_move('shared', 'letters', '{\"all\": true}')")
            .await,
        "1"
    );
    let notices = a.notices();
    assert!(
        notices
            .iter()
            .any(|n| n.message().contains("shared") && n.message().contains("fetchq_app_b")),
        "{notices:?}"
    );
    assert_eq!(
        a.text("select fetchq.queue_redrive('letters', 10)").await,
        "1"
    );
    assert_eq!(
        admin
            .column("select subject from fetchq_data.work__docs")
            .await,
        ["failed"]
    );
    // Its own dead letters keep the forged origin inside, and return to where they came from.
    a.sql("select fetchq.queue_configure('shared', '{\"dead_letter\": \"letters\"}')")
        .await;
    b.sql(
        "select fetchq.doc_pick('shared', 10); select fetchq.doc_kill('shared', 'forged');
         select fetchq.doc_push('shared', 'later')",
    )
    .await;
    a.sql("select fetchq.queue_redrive('letters', 10); select fetchq.queue_redrive('shared', 10)")
        .await;
    assert_eq!(
        admin
            .column("select subject from fetchq_data.work__docs")
            .await,
        ["failed"]
    );
    drop((admin, a, b));
    db.remove().await;
}

#[tokio::test]
async fn a_worker_needs_no_rights_on_the_dead_letter_queue() {
    let (db, admin, a, b) = applications("mistrust_worker").await;
    failed_document(&a).await;
    a.sql(
        "select fetchq.queue_grant('work', 'fetchq_app_b', 'worker');
         select fetchq.queue_set_max_attempts('work', 1);
         select fetchq.doc_push('work', s) from unnest('{rejected,killed,expired}'::text[]) s",
    )
    .await;
    assert_eq!(
        a.column("select role from fetchq.queue_grants('letters')")
            .await,
        ["fetchq_app_a"]
    );
    b.sql(
        "select fetchq.doc_pick('work', 2); select fetchq.doc_pick('work', 0, 1, '1 ms');
         select fetchq.doc_reject('work', 'rejected', 'why', '{}');
         select fetchq.doc_kill('work', 'killed', '{\"n\": 1}'); select fetchq.mnt_run('work', 10)",
    )
    .await;
    let letters = "select subject from fetchq_data.letters__docs order by 1";
    wait_until("all documents are dead letters", async || {
        b.sql("select fetchq.mnt_run('work', 10)").await;
        admin.column(letters).await == ["expired", "failed", "killed", "rejected"]
    })
    .await;
    assert_eq!(b.state(letters).await, "42501");
    assert_eq!(
        b.state("select fetchq.doc_push('letters', 'x')").await,
        "42501"
    );
    // Another owner's queue: the owner of the source has to be a producer there, and not the worker.
    admin
        .sql("select fetchq.queue_create('vault'); select fetchq.queue_grant('vault', 'fetchq_app_b', 'producer')")
        .await;
    a.sql("select fetchq.queue_grant('work', 'fetchq_app_b', 'manager')")
        .await;
    let set = "select fetchq.queue_configure('work', '{\"dead_letter\": \"vault\"}')";
    assert_eq!(b.state(set).await, "42501");
    let refused = b.execute(set, &[]).await.unwrap_err();
    let refused = refused.as_db_error().unwrap().clone();
    assert!(
        refused.message().contains("fetchq_app_a")
            && refused
                .hint()
                .unwrap()
                .contains("'vault', 'fetchq_app_a', 'producer'"),
        "{refused:?}"
    );
    admin
        .sql("select fetchq.queue_grant('vault', 'fetchq_app_a', 'producer')")
        .await;
    b.sql(set).await;
    a.sql("select fetchq.doc_push('work', 'last'), fetchq.doc_push('work', 'kept')")
        .await;
    b.sql(
        "select fetchq.doc_pick('work', 2); select fetchq.doc_reject('work', 'last', 'why', '{}')",
    )
    .await;
    // The right counts when the document moves.
    admin
        .sql("select fetchq.queue_revoke('vault', 'fetchq_app_a', 'producer')")
        .await;
    for call in [
        "select fetchq.doc_reject('work', 'kept', 'why', '{}')",
        "select fetchq.doc_kill('work', 'kept')",
    ] {
        let refused = b.execute(call, &[]).await.unwrap_err();
        let refused = refused.as_db_error().unwrap().clone();
        assert_eq!(refused.code().code(), "42501");
        assert!(
            refused.message().contains("fetchq_app_a") && refused.message().contains("vault"),
            "{refused:?}"
        );
    }
    assert_eq!(
        admin
            .column("select subject from fetchq_data.vault__docs")
            .await,
        ["last"]
    );
    drop((admin, a, b));
    db.remove().await;
}

/// The calls of a producer and of a worker on the queue `q` with the documents `p` and `a`.
const PRODUCER_CALLS: &[&str] = &[
    "fetchq.doc_push('q', 'n')",
    "fetchq.doc_push('q', 'n', '{}', now())",
    "fetchq.doc_push('q', 0, now(), '(''n'', 0, ''{}'', {DATA})')",
    "fetchq.doc_push_many('q', array['n'], null)",
    "fetchq.doc_push_many('q', '[{\"subject\": \"n\"}]')",
    "fetchq.doc_append('q', '{}')",
    "fetchq.doc_append_many('q', array['{}']::jsonb[])",
    "fetchq.doc_upsert('q', 'p', 0, 0, now(), '{}')",
    "fetchq.doc_upsert_many('q', '[{\"subject\": \"p\"}]')",
    "fetchq.doc_put('q', 'p', '{}', mode => 'replace')",
    "fetchq.doc_put_many('q', '[{\"subject\": \"p\"}]')",
];

const WORKER_CALLS: &[&str] = &[
    "fetchq.doc_put('q', 'p', '{}', mode => 'merge')",
    "fetchq.doc_pick('q')",
    "fetchq.doc_pick_wait('q', timeout => '0')",
    "fetchq.doc_pick_any(array['q'])",
    "fetchq.doc_pop('q')",
    "fetchq.doc_complete('q', 'a')",
    "fetchq.doc_complete_many('q', array['a'])",
    "fetchq.doc_kill('q', 'a')",
    "fetchq.doc_drop('q', 'a')",
    "fetchq.doc_drop_many('q', array['a'])",
    "fetchq.doc_reschedule('q', 'a', now())",
    "fetchq.doc_reschedule_many('q', array['a'], now())",
    "fetchq.doc_snooze('q', 'a', now())",
    "fetchq.doc_reject('q', 'a', 'm', '{}')",
    "fetchq.log_error('q', 'a', 'm', '{}')",
    "fetchq.doc_extend('q', 'a', '1 hour')",
    "fetchq.doc_cancel('q', 'p')",
    "fetchq.doc_revive('q', 'k', now())",
    "fetchq.docs_retry('q', '{}')",
    "fetchq.docs_kill('q', '{\"all\": true}')",
    "fetchq.docs_drop('q', '{\"all\": true}')",
    "fetchq.docs_set_priority('q', 1, '{}')",
    "fetchq.docs_move('q', 'mine', '{\"all\": true}')",
    "fetchq.queue_redrive('q')",
];

#[tokio::test]
async fn a_call_without_its_right_names_the_grant_that_is_missing() {
    let (db, admin, a, b) = applications("mistrust_names").await;
    a.sql(
        "select fetchq.queue_drop('q'); select fetchq.queue_create('q');
         select fetchq.doc_push('q', s) from unnest('{a,k,p}'::text[]) s;
         select fetchq.doc_pick('q', 2); select fetchq.doc_kill('q', 'k')",
    )
    .await;
    b.sql("select fetchq.queue_create('mine'); set lock_timeout = '10s'; set statement_timeout = '20s'")
        .await;
    for kind in ["none", "reader", "producer"] {
        if kind != "none" {
            // A reader who is a producer may merge, too.
            a.sql("select fetchq.queue_revoke('q', 'fetchq_app_b', 'reader')")
                .await;
            a.sql(&format!(
                "select fetchq.queue_grant('q', 'fetchq_app_b', '{kind}')"
            ))
            .await;
        }
        let documents = "select * from fetchq_data.q__docs order by subject";
        let before = admin.rows(documents).await;
        for is_locked in [false, true] {
            // A role that may change nothing does not even wait for a lock.
            if is_locked {
                if kind == "producer" {
                    continue;
                }
                a.sql("begin; lock table fetchq_data.q__docs in access exclusive mode")
                    .await;
            }
            for (calls, needed) in [(PRODUCER_CALLS, "producer"), (WORKER_CALLS, "worker")] {
                if (kind, needed) == ("producer", "producer") {
                    continue;
                }
                for call in calls {
                    let direct = ["on", "off"];
                    for setting in direct {
                        b.sql(&format!("set fetchq.direct = {setting}; begin"))
                            .await;
                        let error = match b.simple_query(&format!("select {call}")).await {
                            Err(e) => fetchq_client_tests::error_of(&e).clone(),
                            Ok(rows) => panic!("{call} as {kind}: {rows:?}"),
                        };
                        let seen = format!("{call} as {kind}: {error:?}");
                        assert_eq!(error.code().code(), "42501", "{seen}");
                        // Only a put that merges needs more than it seems to.
                        let may_say = match call.contains("merge") && kind != "producer" {
                            true => "producer",
                            false => needed,
                        };
                        assert_eq!(
                            error.message(),
                            format!("role \"fetchq_app_b\" is no {may_say} of queue \"q\""),
                            "{seen}"
                        );
                        assert!(
                            error.hint().is_some_and(|hint| hint.contains(&format!(
                                "select fetchq.queue_grant('q', 'fetchq_app_b', '{may_say}')"
                            ))),
                            "{seen}"
                        );
                        b.sql("rollback").await;
                    }
                }
            }
            if is_locked {
                a.sql("rollback").await;
            }
        }
        assert_eq!(admin.rows(documents).await, before);
        let held = format!(
            "select count(*) from pg_locks where relation = 'fetchq_data.q__docs'::regclass and pid = {}",
            b.text("select pg_backend_pid()").await
        );
        assert_eq!(admin.text(&held).await, "0");
    }
    b.sql("reset fetchq.direct").await;
    for call in PRODUCER_CALLS {
        b.sql(&format!("begin; select {call}; rollback")).await;
    }
    // Privileges on columns work as far as they allow.
    a.sql(
        "select fetchq.queue_revoke('q', 'fetchq_app_b', 'producer');
         grant select, update on fetchq_data.q__docs to fetchq_app_b",
    )
    .await;
    assert_eq!(b.text("select fetchq.doc_complete('q', 'a')").await, "1");
    assert_eq!(
        b.text("select subject from fetchq.doc_pick('q', 1)").await,
        "p"
    );
    let denied = b.execute("select fetchq.doc_drop('q', 'p')", &[]).await;
    let denied = denied.unwrap_err();
    assert_eq!(
        fetchq_client_tests::error_of(&denied).message(),
        "role \"fetchq_app_b\" is no worker of queue \"q\""
    );
    // What code of a user is denied is not about the queue.
    admin
        .sql("create table public.private (); create function public.look() returns trigger language plpgsql as 'begin perform from public.private; return new; end'")
        .await;
    a.sql("create trigger look before update on fetchq_data.q__docs for each row execute function public.look()")
        .await;
    let denied = b.execute("select fetchq.doc_complete('q', 'p')", &[]).await;
    let denied = denied.unwrap_err();
    assert_eq!(
        fetchq_client_tests::error_of(&denied).message(),
        "permission denied for table private"
    );
    drop((admin, a, b));
    db.remove().await;
}

/// The first grants of several owners change the same schemas.
#[tokio::test]
async fn first_grants_of_two_owners_at_the_same_moment() {
    let (db, admin, a, b) = applications("mistrust_grants").await;
    b.sql("select fetchq.queue_create('mine')").await;
    admin
        .sql(
            "do $$ begin for n in 1..40 loop
                 execute format('drop role if exists fetchq_first_%s', n);
                 execute format('create role fetchq_first_%s', n);
             end loop; end $$",
        )
        .await;
    // One after the other, so that the second one has to wait for the first.
    a.sql("begin; select fetchq.queue_grant('q', 'fetchq_first_1', 'reader')")
        .await;
    let waits = tokio::spawn(async move {
        b.sql("set lock_timeout = '20s'").await;
        let state = b
            .state("select fetchq.queue_grant('mine', 'fetchq_first_2', 'reader')")
            .await;
        (b, state)
    });
    wait_until("the second grant waits", async || {
        admin
            .text("select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%fetchq_first_2%'")
            .await
            != "0"
            || waits.is_finished()
    })
    .await;
    a.sql("commit").await;
    let (b, found) = waits.await.unwrap();
    assert_eq!(found, "");
    // And many at once, some of them for the same roles.
    let mut tasks = tokio::task::JoinSet::new();
    for (session, queue) in [(a, "q"), (b, "mine")] {
        tasks.spawn(async move {
            for n in 1..=40 {
                session
                    .sql(&format!(
                        "select fetchq.queue_grant('{queue}', 'fetchq_first_{n}', 'reader')"
                    ))
                    .await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("all grants succeed");
    }
    let usage = "select count(*) from generate_series(1, 40) n
        where has_schema_privilege('fetchq_first_' || n, 'fetchq', 'usage')
            and has_schema_privilege('fetchq_first_' || n, 'fetchq_data', 'usage')";
    assert_eq!(admin.text(usage).await, "40");
    admin
        .sql(
            "select fetchq.queue_drop('q'), fetchq.queue_drop('mine');
             do $$ begin for n in 1..40 loop
                 execute format('drop owned by fetchq_first_%s', n);
                 execute format('drop role fetchq_first_%s', n);
             end loop; end $$",
        )
        .await;
    drop(admin);
    db.remove().await;
}
