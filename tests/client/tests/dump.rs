//! A dump that is restored into an empty database continues where the original was.

use fetchq_client_tests::{
    Database, Server, Session, counters_are_exact, error_of, metrics, run, run_with_input,
    state_of, wait_until,
};

/// Fills the database: documents in every state, logs, snapshots, settings, and counters that
/// are packed and not packed.
async fn fill(session: &Session) {
    session
        .sql(
            "select fetchq.queue_create('gone'); select fetchq.queue_drop('gone');
             select fetchq.queue_create('q'); select fetchq.queue_create('order'); select fetchq.queue_create('empty');
             select fetchq.queue_enable_notify('q');
             select fetchq.queue_create('kept'); select fetchq.queue_create('letters');
             select fetchq.queue_configure('kept', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"2 days\", \"dropped\": \"1 month\"}, \"dead_letter\": \"letters\"}');
             select fetchq.doc_push('kept', s) from unnest('{a,b,c,d,e}'::text[]) s;
             select fetchq.doc_pick('kept', 4);
             select fetchq.doc_complete('kept', 'a', '{\"it\": \"is done\"}'), fetchq.doc_kill('kept', 'b'), fetchq.doc_drop('kept', 'c');
             select fetchq.queue_create('ahead'); select fetchq.doc_push('ahead', 'a'); select fetchq.doc_pick('ahead'); select fetchq.doc_snooze('ahead', 'a');
             update fetchq_data.ahead__docs set lease = 4000000000000000;
             select fetchq.queue_set_max_attempts('q', 9);
             select fetchq.queue_set_current_version('q', 2);
             select fetchq.queue_set_logs_retention('q', '7 days');
             select fetchq.queue_set_metrics_retention('q', '[{\"retain\": \"hour\", \"from\": \"1d\", \"to\": \"1h\"}]');
             do $$ begin
                 if not exists (select from pg_roles where rolname = 'fetchq_dump_worker') then create role fetchq_dump_worker; create role fetchq_dump_producer; create role fetchq_dump_owner; end if;
             end $$;
             select fetchq.queue_grant('kept', 'fetchq_dump_worker', 'worker'), fetchq.queue_grant('kept', 'fetchq_dump_producer', 'producer'), fetchq.queue_grant('kept', 'fetchq_dump_producer', 'reader');
             grant usage on schema fetchq, fetchq_data to fetchq_dump_owner;
             grant execute on function fetchq.queue_create to fetchq_dump_owner;
             set role fetchq_dump_owner;
             select fetchq.queue_create('owned', '{\"history\": {\"completed\": \"1 day\"}}'); select fetchq.queue_grant('owned', 'fetchq_dump_worker', 'manager');
             reset role;
             select fetchq.queue_place_set('away', 'db2:5432/app');
             set fetchq.queue_defaults = ''; select fetchq.queue_create('new'); reset fetchq.queue_defaults;
             update fetchq.queues set is_active = false, config = '{\"mine\": true}' where name = 'empty';
             update fetchq.jobs set settings = '{\"delay\": \"17s\", \"duration\": \"3m\"}', next_iteration = now() + interval '1 hour' where task = 'lgp';
             update fetchq.jobs set settings = '{\"delay\": \"1s\", \"duration\": \"1m\", \"limit\": 7}', payload = '{\"x\": 1}' where task = 'mnt' and queue = 'q';
             select fetchq.doc_push('q', 'd' || i, 0, i % 3, now() - interval '1 hour', jsonb_build_object('n', i, 't', 'it''s')) from generate_series(1, 40) i;
             select fetchq.schedule_create('nightly', 'q', '30 2 * * *', '{\"a\": \"it''s\"}', 'Europe/Berlin', 2, 3, 'all', 7, '5 minutes', '2020-01-01', '4000-01-01', headers => '{\"trace\": \"it''s\"}');
             select fetchq.schedule_create('paused', 'order', '1 month'); select fetchq.schedule_pause('paused');
             select fetchq.schedules_sync('the shop', '[{\"name\": \"declared\", \"queue\": \"q\", \"schedule\": \"@yearly\"}]');
             update fetchq.schedules set ticks = 9, attempts = 1, last_error = 'why', last_tick = '2026-01-01' where name = 'paused';
             select fetchq.doc_push('q', 'late', '{}', now() + interval '1 day')",
        )
        .await;
    session
        .sql(
            "select fetchq.queue_create('limited');
             insert into fetchq_data.limited__docs (subject, status, ordering_key) select 'k' || i, 1, 'k' || i % 4 from generate_series(1, 12) i;
             select fetchq.metric_reset('limited');
             select fetchq.queue_configure('limited', '{\"max_active\": 3, \"rate\": {\"picks\": 4, \"per\": \"1 hour\"}, \"ordered\": true}')",
        )
        .await;
    session.sql("select fetchq.doc_pick('limited', 2)").await;
    session
        .sql(
            "select fetchq.queue_create('places', '{\"max_active_per_key\": 2}');
             select fetchq.doc_put('places', 'k' || i, ordering_key => 'k') from generate_series(1, 5) i;
             select fetchq.doc_pick('places', 0, 1, '1 hour')",
        )
        .await;
    for settle in [
        "complete('q', s)",
        "kill('q', s)",
        "reschedule('q', s, now() + interval '1 day')",
        "reject('q', s, 'why', '{}')",
        "drop('q', s)",
    ] {
        session.sql(&format!("do $$ declare s text; begin select subject into s from fetchq.doc_pick('q'); perform fetchq.doc_{settle}; end $$")).await;
    }
    session
        .sql(
            "select fetchq.doc_pick('q', 0, 2, '1 hour');
             select fetchq.metric_log_pack();
             select fetchq.doc_append('order', '[1]'); select fetchq.doc_push('q', 'unpacked');
             select fetchq.metric_set('q', 'mine', 5); select fetchq.metric_log_increment('q', 'mine', 2);
             select fetchq.metric_snap('q'); select fetchq.log_error('q', 'd9', 'again', '{\"a\": null}', 'ref')",
        )
        .await;
}

/// The data that must be the same before and after.
async fn state(session: &Session) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in [
        "select * from fetchq.queues order by id",
        "select * from fetchq.queue_places order by queue",
        "select name, fetchq.queue_settings(name) from fetchq.queues order by id",
        "select * from fetchq.jobs order by id",
        "select * from fetchq.schedules order by name",
        "select * from fetchq.schedule_list()",
        "select * from fetchq.metrics order by id",
        "select * from fetchq.metrics_writes order by id",
        "select * from fetchq.counter_log order by 1, 2, 3, 4",
        "select * from fetchq.counter_events order by 1, 3",
        "select * from fetchq.queue_grants()",
        "select c.relname, a.grantee::regrole, a.privilege_type from pg_class c, aclexplode(c.relacl) a where c.relnamespace = 'fetchq_data'::regnamespace order by 1, 2, 3",
        "select c.attrelid::regclass::text, c.attname, a.grantee::regrole, a.privilege_type from pg_attribute c, aclexplode(c.attacl) a order by 1, 2, 3, 4",
        "select n.nspname, a.grantee::regrole, a.privilege_type from pg_namespace n, aclexplode(n.nspacl) a where n.nspname in ('fetchq', 'fetchq_data') order by 1, 2, 3",
        "select p.proname, a.grantee::regrole from pg_proc p, aclexplode(p.proacl) a where p.pronamespace = 'fetchq'::regnamespace order by 1, 2",
        "select * from fetchq_data.q__docs order by subject",
        "select * from fetchq_data.order__docs order by subject",
        "select * from fetchq_data.limited__docs order by subject",
        "select * from fetchq_data.places__docs order by subject",
        "select * from fetchq.lease_slots order by 1, 2",
        "select * from fetchq.rate_permits order by 1, 2",
        "select * from fetchq.ordering_keys order by 1, 2",
        "select * from fetchq_data.q__logs order by id",
        "select * from fetchq_data.kept__docs order by subject",
        "select * from fetchq_data.kept__history order by id",
        "select * from fetchq_data.letters__docs order by subject",
        "select * from fetchq.history order by id",
        "select * from fetchq_data.q__metrics order by id",
        "select queue, metric, value from fetchq.metrics_live order by 1, 2",
        "select * from fetchq.queue_top('q', 0, 100, 0)",
        "select tgname, pg_get_triggerdef(oid) from pg_trigger where not tgisinternal order by 1, 2",
        "select indexdef from pg_indexes where schemaname in ('fetchq', 'fetchq_data') order by 1",
        "select relname, reloptions from pg_class where relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace) order by 1",
        "select classid::regclass, objid::regclass from pg_depend where deptype = 'e' and classid = 'pg_class'::regclass order by 2",
    ] {
        all.push(session.rows(sql).await);
    }
    all
}

/// Uses the copy step by step; each result must be the same as in the original.
async fn goes_on(session: &mut Session) {
    // One lease slot and two rate permits are free.
    // k1 and k2 are active and block the other documents of their keys.
    let pick = "select subject from fetchq.doc_pick('limited', 9)";
    assert_eq!(session.column(pick).await, ["k3"]);
    assert_eq!(session.column(pick).await.len(), 0);
    session
        .sql("select fetchq.doc_complete('limited', 'k1')")
        .await;
    assert_eq!(session.column(pick).await, ["k4"]);
    session
        .sql("select fetchq.doc_complete('limited', 'k2')")
        .await;
    assert_eq!(session.column(pick).await.len(), 0);
    session
        .sql("select fetchq.queue_configure('limited', '{\"rate\": null}')")
        .await;
    assert_eq!(session.column(pick).await, ["k5"]);
    // k1 is active, and k2 has the other place.
    let lease = "select subject from fetchq.doc_pick('places', 0, 9, '1 hour')";
    assert_eq!(session.column(lease).await, ["k2"]);
    session
        .sql("select fetchq.doc_complete('places', 'k1')")
        .await;
    assert_eq!(session.column(lease).await, ["k3"]);
    counters_are_exact(session, "q").await;
    let newer = "select lease > 4000000000000000 from fetchq.doc_pick('ahead')";
    assert_eq!(session.text(newer).await, "t", "a lease number must be new");
    let created = session
        .text("select was_created from fetchq.queue_create('q')")
        .await;
    assert_eq!(created, "f", "the queue must exist already");
    let push = "select fetchq.doc_push('away', 'a')";
    assert_eq!(session.state(push).await, "3D000");
    let last_id = session.text("select max(id) from fetchq.queues").await;
    let new_id = session
        .text("select queue_id from fetchq.queue_create('fresh')")
        .await;
    assert!(new_id.parse::<i32>().unwrap() > last_id.parse::<i32>().unwrap());
    // A queue keeps the settings that it was made with.
    let lease = "select fetchq.queue_settings('new') ->> 'lease'";
    assert_eq!(session.text(lease).await, "00:15:00");
    let seq = "select max(seq) from fetchq_data.q__docs";
    let before: i64 = session.text(seq).await.parse().unwrap();
    assert_eq!(
        session.text("select fetchq.doc_push('q', 'newest')").await,
        "1"
    );
    let after: i64 = session.text(seq).await.parse().unwrap();
    assert_eq!(after, before + 1);
    assert_eq!(
        session.text("select fetchq.doc_push('q', 'd20')").await,
        "0",
        "the subject must exist already"
    );
    session
        .sql("select fetchq.log_error('q', 'd9', 'after', null)")
        .await;

    let order = session
        .column(
            "select subject from fetchq.queue_top('q', 0, 1000, 0) where next_iteration <= now()",
        )
        .await;
    let waiting = session
        .column(
            "select subject from fetchq_data.q__docs where status = 1 and next_iteration <= now()",
        )
        .await;
    let expected: Vec<String> = order.into_iter().filter(|s| waiting.contains(s)).collect();
    assert!(
        expected.len() > 30 && expected.last().is_some_and(|s| s == "newest"),
        "{expected:?}"
    );
    session.notices();
    session
        .sql("listen fetchq__q__act; listen fetchq__q__cpl")
        .await;
    let mut picked = Vec::new();
    loop {
        let batch = session
            .column("select subject from fetchq.doc_pick('q', 7)")
            .await;
        if batch.is_empty() {
            break;
        }
        picked.extend(batch);
    }
    assert_eq!(picked, expected);
    assert_eq!(
        session
            .text("select fetchq.doc_complete('q', 'newest')")
            .await,
        "1"
    );
    let told = "fetchq__q__cpl newest";
    wait_until("the completion was notified", async || session.heard(told)).await;
    counters_are_exact(session, "q").await;

    let custom = metrics(session, "q").await["mine"];
    assert_eq!(custom, 5);
    session
        .sql("update fetchq.jobs set next_iteration = now() - interval '1 minute'")
        .await;
    let jobs = session.text("select count(*) from fetchq.jobs").await;
    assert_eq!(
        session.rows("select * from fetchq.mnt_job_run(1000)").await,
        [format!("t|{jobs}")]
    );
    assert_eq!(
        metrics(session, "q").await["mine"],
        7,
        "logged events must be packed"
    );
    assert_eq!(
        session
            .text("select count(*) from fetchq.counter_log")
            .await,
        "0"
    );
    assert_eq!(
        session
            .text("select next_iteration = now() + '17s' from fetchq.jobs where task = 'lgp'")
            .await,
        "f"
    );
    assert_eq!(
        session.text("select round(extract(epoch from next_iteration - last_iteration)) from fetchq.jobs where task = 'lgp'").await,
        "17",
        "the job must keep its own delay"
    );
    counters_are_exact(session, "q").await;
    let run = "select r.* from fetchq.schedules s, fetchq.schedule_run_at(9, s.next_tick) r where s.name = 'nightly'";
    assert_eq!(session.rows(run).await, ["1|1"]);
    let pushed = session
        .rows("select d.version, d.priority, d.payload, d.headers, d.next_iteration < s.last_tick + s.jitter from fetchq_data.q__docs d, fetchq.schedules s where d.subject like 'nightly@%' and s.name = 'nightly'")
        .await;
    assert_eq!(pushed, [r#"2|3|{"a": "it's"}|{"trace": "it's"}|t"#]);
    keeps_what_is_settled(session).await;
    // The queues still depend on the extension.
    assert_eq!(session.state("drop extension fetchq").await, "2BP01");
    session
        .sql("select fetchq.queue_drop('q'); select fetchq.queue_drop('order')")
        .await;
}

/// Checks that the dead-letter queue and the history also continue.
async fn keeps_what_is_settled(session: &mut Session) {
    session
        .sql(
            "update fetchq_data.kept__docs set max_attempts = 1;
             select fetchq.doc_pick('kept', 1);
             select fetchq.doc_reject('kept', 'd', 'why', '{}'); select fetchq.doc_complete('kept', 'e')",
        )
        .await;
    assert_eq!(
        session
            .rows("select outcome, subject from fetchq.history where queue = 'kept' order by id")
            .await,
        ["completed|a", "dropped|c", "completed|e"]
    );
    let letters = "select subject from fetchq_data.letters__docs order by seq";
    assert_eq!(session.column(letters).await, ["b", "d"]);
    assert_eq!(
        session.text("select fetchq.queue_redrive('letters')").await,
        "2"
    );
    let docs = "select subject from fetchq_data.kept__docs order by seq";
    assert_eq!(session.column(docs).await, ["b", "d"]);
    counters_are_exact(session, "kept").await;
    counters_are_exact(session, "letters").await;
    session
        .sql("update fetchq_data.kept__history set settled_at = '2020-01-01' where subject <> 'c'")
        .await;
    assert_eq!(
        session
            .text("select fetchq.queue_trim_history('kept')")
            .await,
        "2"
    );
    session
        .sql("select fetchq.queue_drop('kept'); select fetchq.queue_drop('letters')")
        .await;
}

async fn dump_and_restore(name: &str, restore: impl Fn(&Database, &Database)) {
    let server = Server::of_suite();
    let db = server.database(&format!("{name}_from")).await;
    let session = db.connect().await;
    fill(&session).await;
    let before = state(&session).await;
    let copy = server.empty_database(&format!("{name}_to")).await;
    restore(&db, &copy);
    let mut restored = copy.connect().await;
    for (got, expected) in state(&restored).await.iter().zip(&before) {
        assert_eq!(got, expected);
    }
    goes_on(&mut restored).await;
    // Using the copy has not changed the original.
    assert_eq!(state(&session).await, before);
    db.remove().await;
    copy.remove().await;
}

#[tokio::test]
async fn plain() {
    dump_and_restore("plain_dump", |from, to| {
        let dump = run(&mut from.client("pg_dump"));
        run_with_input(
            to.client("psql")
                .args(["-X", "-q", "-v", "ON_ERROR_STOP=1"]),
            &dump,
        );
    })
    .await;
}

#[tokio::test]
async fn custom_format() {
    dump_and_restore("custom_dump", |from, to| restore_custom(from, to, &[])).await;
}

/// Restores a dump in the custom format, with further options of `pg_restore`.
fn restore_custom(from: &Database, to: &Database, options: &[&str]) {
    let state = std::env::var("FETCHQ_STATE_DIR").expect("FETCHQ_STATE_DIR");
    let file = std::path::Path::new(&state).join(format!("{}.dump", to.name));
    run(from.client("pg_dump").args(["-Fc", "-f"]).arg(&file));
    let mut restore = to.client("pg_restore");
    run(restore
        .args(["--exit-on-error", "-d", &to.name])
        .args(options)
        .arg(&file));
    let _ = std::fs::remove_file(&file);
}

const DATA_OWNER: &str =
    "select state, detail, hint from fetchq.status() where component = 'data owner'";

/// Has each role call what it may and what it may not, and undoes that.
async fn roles_have_their_rights(session: &Session) {
    for (role, call, expected) in [
        ("producer", "fetchq.doc_put('kept', 'new')", ""),
        ("producer", "fetchq.docs_list('kept')", ""),
        ("producer", "fetchq.doc_pick('kept', 1)", "42501"),
        ("worker", "fetchq.doc_pick('kept', 1)", ""),
        ("worker", "fetchq.doc_complete('kept', 'd')", ""),
        ("worker", "fetchq.queue_pause('kept')", "42501"),
        ("worker", "fetchq.queue_pause('owned')", ""),
        ("worker", "fetchq.doc_put('owned', 'new')", ""),
        ("worker", "fetchq.queue_drop('owned')", "42501"),
        (
            "owner",
            "fetchq.queue_grant('owned', 'fetchq_dump_producer', 'reader')",
            "",
        ),
        (
            "owner",
            "fetchq.queue_configure('owned', '{\"max_active\": 1}')",
            "",
        ),
        ("owner", "fetchq.queue_create('another')", ""),
        ("owner", "fetchq.doc_put('kept', 'new')", "42501"),
        ("owner", "fetchq.queue_drop('owned')", ""),
    ] {
        session
            .sql(&format!("begin; set local role fetchq_dump_{role}"))
            .await;
        let call = format!("select * from {call}");
        let state = match session.simple_query(&call).await {
            Ok(_) => String::new(),
            Err(e) => state_of(&e),
        };
        session.sql("rollback").await;
        assert_eq!(state, expected, "{role}: {call}");
    }
}

/// Dumps a database whose tables belong to a role without login, restores it with these options, and
/// looks: what `status()` says of the data owner then, the rights of the roles, and that what it says
/// is to be done leads to what was there before. Then the copy is used.
async fn restored_with_data_owner(name: &str, options: &[&str], after: &str) {
    let server = Server::of_suite();
    let db = server.database(&format!("{name}_from")).await;
    let session = db.connect().await;
    session
        .sql(
            "do $$ begin
                 if to_regrole('fetchq_dump_data') is null then create role fetchq_dump_data nologin; end if;
             end $$;
             select fetchq.data_owner_set('fetchq_dump_data')",
        )
        .await;
    fill(&session).await;
    roles_have_their_rights(&session).await;
    let before = state(&session).await;
    let of_roles = "select * from fetchq.queue_grants() where role like 'fetchq_dump_%' and role <> 'fetchq_dump_data'";
    let grants = session.rows(of_roles).await;
    let well = ["fine|fetchq_dump_data|"];
    assert_eq!(session.rows(DATA_OWNER).await, well);

    let copy = server.empty_database(&format!("{name}_to")).await;
    restore_custom(&db, &copy, options);
    let mut restored = copy.connect().await;
    assert_eq!(restored.rows(DATA_OWNER).await, [after]);
    roles_have_their_rights(&restored).await;
    let hint = "select split_part(hint, ': ', 2) from fetchq.status() where component = 'data owner' and hint is not null";
    for statement in restored.column(hint).await {
        restored.sql(&statement).await;
    }
    assert_eq!(restored.rows(of_roles).await, grants);
    restored
        .sql("select fetchq.data_owner_set('fetchq_dump_data')")
        .await;
    assert_eq!(restored.rows(DATA_OWNER).await, well);
    // Without owners a superuser's queues have lost the mark of their creator, who has all rights anyway.
    if options.is_empty() {
        for (got, expected) in state(&restored).await.iter().zip(&before) {
            assert_eq!(got, expected);
        }
    }
    roles_have_their_rights(&restored).await;
    goes_on(&mut restored).await;
    db.remove().await;
    copy.remove().await;
}

#[tokio::test]
async fn a_data_owner_is_restored_with_the_rights_of_all_roles() {
    let after = "mixed|postgres, a superuser, but ahead__docs belongs to fetchq_dump_data, and 32 more tables to other roles|Run as a superuser: select fetchq.data_owner_set('fetchq_dump_data')";
    restored_with_data_owner("owner_dump", &[], after).await;
}

#[tokio::test]
async fn without_owners_all_belongs_to_the_role_that_restores() {
    let after = "fine|postgres, a superuser|";
    restored_with_data_owner("no_owner_dump", &["--no-owner"], after).await;
}

#[tokio::test]
async fn what_the_data_owner_lacks_is_said_and_given_back() {
    let db = Server::of_suite().database("data_owner").await;
    let session = db.connect().await;
    session
        .sql(
            "do $$ begin
                 if to_regrole('fetchq_dump_data') is null then create role fetchq_dump_data nologin; end if;
                 if to_regrole('fetchq_dump_other') is null then create role fetchq_dump_other nologin; end if;
             end $$;
             select fetchq.data_owner_set('fetchq_dump_data');
             select fetchq.queue_create('q'); select fetchq.queue_create('r'); select fetchq.queue_create('s');
             select fetchq.doc_put('q', 'a')",
        )
        .await;
    let mend = "Run as a superuser: select fetchq.data_owner_set('fetchq_dump_data')";
    for (damage, said, rows, denied) in [
        (
            "alter table fetchq_data.q__docs owner to fetchq_dump_other",
            "mixed|fetchq_dump_data, but q__docs belongs to fetchq_dump_other|",
            18,
            "select * from fetchq.docs_list('q')",
        ),
        (
            "alter schema fetchq_data owner to fetchq_dump_other",
            "incomplete|fetchq_dump_other, which lacks USAGE on schema fetchq and ",
            1,
            "select fetchq.doc_put('q', 'b')",
        ),
        (
            "revoke insert on fetchq.schedules from fetchq_dump_data",
            "incomplete|fetchq_dump_data, which lacks INSERT on fetchq.schedules|",
            1,
            "select fetchq.schedule_create('s', 'q', '1 hour')",
        ),
        (
            "revoke pg_read_all_stats from fetchq_dump_data",
            "incomplete|fetchq_dump_data, which lacks membership in pg_read_all_stats|",
            18,
            "",
        ),
    ] {
        session.sql(damage).await;
        let row = session.rows(DATA_OWNER).await.pop().unwrap();
        assert!(row.starts_with(said) && row.ends_with(mend), "{row}");
        let all = session.rows("select component from fetchq.status()").await;
        assert_eq!(all.len(), rows, "{damage}: {all:?}");
        if !denied.is_empty() {
            let error = session.simple_query(denied).await.unwrap_err();
            let error = error_of(&error);
            assert_eq!(error.code().code(), "42501", "{damage}");
            let hint = error.hint().unwrap_or_default();
            assert!(hint.contains("\"data owner\" of fetchq.status()"), "{hint}");
        }
        let set = "select fetchq.data_owner_set('fetchq_dump_data')";
        assert_eq!(session.text(set).await, "t", "{damage}");
        assert_eq!(session.text(set).await, "f", "{damage}");
        assert_eq!(
            session.rows(DATA_OWNER).await,
            ["fine|fetchq_dump_data|"],
            "{damage}"
        );
        if !denied.is_empty() {
            session.sql(denied).await;
        }
    }
    db.remove().await;
}
