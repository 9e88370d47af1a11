//! Nobody hangs anything on the tables of fetchq, changes their definition, or uses them for more
//! than its privileges: the tables belong to a role that no application has.

use std::collections::BTreeMap;

use super::*;

/// What code could be attached with, and what changes a definition. `{t}` is a table, whose column
/// `{c}` has the type `{type}`.
const OF_EVERY_TABLE: &[&str] = &[
    // Code that the server would run for whoever uses the table.
    "create trigger t before insert or update or delete on {t} for each row execute function app_b.fire()",
    "create trigger t after insert on {t} for each statement execute function app_b.fire()",
    "create trigger t before truncate on {t} for each statement execute function app_b.fire()",
    "create constraint trigger t after insert on {t} deferrable initially deferred for each row execute function app_b.fire()",
    "create trigger t after update on {t} for each row execute function fetchq.trigger_docs_cap()",
    "create rule r as on insert to {t} do also select app_b.run()",
    "create rule r as on delete to {t} do instead nothing",
    "create rule \"_RETURN\" as on select to {t} do instead select 1",
    "create policy p on {t} using (app_b.run())",
    "alter table {t} enable row level security",
    "alter table {t} force row level security",
    "create index on {t} (app_b.calculate({c}::text))",
    "create unique index on {t} ({c})",
    "create index on {t} ({c}) where app_b.run()",
    "create statistics app_b.s (dependencies) on {c}, ctid from {t}",
    "create statistics app_b.s (dependencies) on {c}, created_at from {t}",
    "alter table {t} add column mine int default app_b.number()",
    "alter table {t} add column mine int generated always as (app_b.number()) stored",
    "alter table {t} add check (app_b.run())",
    "alter table {t} add constraint mine unique ({c})",
    "alter table {t} add foreign key ({c}) references app_b.parent (id)",
    "alter table {t} alter column {c} set default app_b.number()",
    "alter table {t} alter column {c} type app_b.mine using null",
    "alter table {t} alter column {c} type bigint using 94293790593024",
    "alter table {t} alter column {c} set statistics 1000",
    "alter table {t} alter column {c} set storage plain",
    "alter table {t} alter column {c} set (n_distinct = 1)",
    "alter table {t} alter column {c} drop not null",
    "alter table {t} drop column {c}",
    "alter table {t} rename column {c} to mine",
    "alter table {t} rename to mine",
    "alter table {t} set schema app_b",
    "alter table {t} owner to current_user",
    "alter table {t} set (autovacuum_enabled = off)",
    "alter table {t} set unlogged",
    "alter table {t} set tablespace pg_default",
    "alter table {t} replica identity nothing",
    "alter table {t} disable trigger all",
    "alter table {t} inherit app_b.parent",
    "alter table app_b.child inherit {t}",
    "create table app_b.heir () inherits ({t})",
    "alter table app_b.parted attach partition {t} default",
    "alter table {t} cluster on nothing",
    "alter table {t} of app_b.mine",
    "cluster {t} using nothing",
    "drop table {t}",
    "comment on table {t} is 'mine'",
    "comment on column {t}.{c} is 'mine'",
    "security label on table {t} is 'mine'",
    "reindex table {t}",
    "create publication p for table {t}",
    "create sequence app_b.s owned by {t}.{c}",
    "alter extension fetchq drop table {t}",
    // A foreign key to it would take locks on its rows, and run code when they change.
    "create table app_b.k (k int references {t})",
    "create table app_b.k (k app_b.mine references {t} ({c}))",
    // Rights that are not there to be given.
    "grant trigger on {t} to public",
    "grant references on {t} to public",
    "grant all on {t} to public with grant option",
];

/// Of the documents of queue `q` alone.
const OF_DOCUMENTS: &[&str] = &[
    "create table app_b.k (k varchar(255) references fetchq_data.q__docs (subject))",
    "create table app_b.k (k varchar(255) references fetchq_data.q__docs)",
    "create table app_b.k (k jsonb references fetchq_data.q__docs (payload))",
    "create table app_b.k (k jsonb references fetchq_data.q__docs (result))",
    "alter table app_b.child add foreign key (k) references fetchq_data.q__docs (payload)",
    "alter table fetchq_data.q__docs alter column seq restart with 1",
    "alter table fetchq_data.q__docs alter column seq set increment by -1",
    "alter table fetchq_data.q__docs alter column seq drop identity",
    "select setval('fetchq_data.q__docs_seq_seq', 1)",
    "select nextval('fetchq_data.q__docs_seq_seq')",
    "select last_value from fetchq_data.q__docs_seq_seq",
    "alter sequence fetchq_data.q__docs_seq_seq increment by -1",
    "alter index fetchq_data.q__docs_pick_idx rename to mine",
    "alter index fetchq_data.q__docs_pick_idx set (fillfactor = 10)",
    "drop index fetchq_data.q__docs_pick_idx",
    "reindex index fetchq_data.q__docs_pick_idx",
    "alter table fetchq_data.q__docs add constraint q__history unique using index q__docs_due_idx",
    "drop trigger fetchq_ready on fetchq_data.q__docs",
    "alter trigger fetchq_ready on fetchq_data.q__docs rename to mine",
    "alter table fetchq_data.q__docs disable trigger fetchq_ready",
    "alter table fetchq_data.q__docs add column mine app_b.mine",
    "insert into fetchq_data.q__docs (subject, seq) overriding system value values ('mine', -1) returning (select app_b.number() from fetchq.queues)",
];

/// Of the schemas, the functions and the types.
const OF_SCHEMAS: &[&str] = &[
    "create table fetchq_data.later__docs (id int)",
    "create view fetchq_data.q__mine as select 1",
    "create function fetchq_data.now() returns timestamptz language sql as 'select clock_timestamp()'",
    "create function fetchq.doc_push(text, text, int) returns int language sql as 'select 1'",
    "create operator fetchq.= (leftarg = text, rightarg = text, function = texteq)",
    "create or replace function fetchq.doc_push(queue text, subject text) returns int language sql as 'select 1'",
    "alter function fetchq.info() set search_path = app_b",
    "alter function fetchq.info() security definer",
    "create or replace view fetchq.leases as select 1",
    "alter view fetchq.leases owner to current_user",
    "create trigger t instead of insert on fetchq.leases for each row execute function app_b.fire()",
    "alter schema fetchq_data owner to current_user",
    "alter schema fetchq_data rename to mine",
    "grant create on schema fetchq_data to public",
    "grant usage on schema fetchq_data to public",
    "grant execute on function fetchq.schedule_run_at to public",
    "alter extension fetchq update",
    "alter extension fetchq add function app_b.run()",
    "drop extension fetchq",
    "alter type fetchq_data.q__docs add attribute mine int",
    "create event trigger e on ddl_command_start execute function app_b.fire()",
    "create cast (bigint as jsonb) with function app_b.cast(bigint) as implicit",
    "alter default privileges in schema fetchq_data grant all on tables to public",
];

/// What tells of a failure that is not the lack of a right, and is as good: no unique index, no such
/// type, no label provider, the table is of another kind, a sequence of another owner, no grant option
/// for PUBLIC.
const AS_GOOD: &[&str] = &[
    "42830", "42809", "42704", "22023", "0A000", "42P17", "55000", "0LP01",
];

/// The statements that a role tries.
fn attacks(tables: &[(String, String)]) -> Vec<String> {
    let of_tables = tables.iter().flat_map(|(table, column)| {
        let of = |sql: &&str| sql.replace("{t}", table).replace("{c}", column);
        OF_EVERY_TABLE.iter().map(of).collect::<Vec<_>>()
    });
    let others = OF_DOCUMENTS.iter().chain(OF_SCHEMAS);
    of_tables
        .chain(others.map(|sql| (*sql).to_owned()))
        .collect()
}

/// Where the roles try to attach what they own, and what they attach.
const OWN: &str = "
    create schema app_b authorization {role};
    grant usage, create on schema app_b to public;
    set role {role};
    create function app_b.fire() returns trigger language plpgsql as 'begin return new; end';
    create function app_b.run() returns boolean language sql immutable as 'select true';
    create function app_b.number() returns int language sql immutable as 'select 1';
    create function app_b.calculate(text) returns text language sql immutable as 'select $1';
    create function app_b.cast(bigint) returns jsonb language sql immutable as 'select to_jsonb($1)';
    create type app_b.mine as (n int);
    create table app_b.parent (id int primary key);
    create table app_b.child (k jsonb);
    create table app_b.parted (like {docs}) partition by list (version);
    reset role";

/// Everything that somebody could have attached or altered.
async fn definitions(admin: &Session) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in [
        "select c.oid::regclass, c.relowner, c.relkind, c.relhasrules, c.relhastriggers, c.relhassubclass, c.relrowsecurity, c.reloptions, c.relpersistence, c.relreplident, c.relfilenode
             from pg_class c where c.relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace) order by 1",
        "select a.attrelid::regclass, a.attnum, a.attname, a.atttypid, a.attnotnull, a.atthasdef, a.attidentity, a.attgenerated, a.attstattarget, a.attstorage, a.attoptions, a.attisdropped, a.attacl
             from pg_attribute a join pg_class c on c.oid = a.attrelid where c.relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace) order by 1, 2",
        "select oid, tgrelid::regclass, tgname, tgenabled from pg_trigger order by 1",
        "select oid, conrelid::regclass, conname from pg_constraint order by 1",
        "select oid, ev_class::regclass from pg_rewrite where ev_class::regclass::text ~ 'fetchq' order by 1",
        "select oid from pg_policy", "select oid from pg_statistic_ext", "select inhrelid from pg_inherits",
        "select oid from pg_publication", "select objoid, description from pg_description where classoid = 'pg_class'::regclass and objoid >= 16384 order by 1, objsubid",
        "select seqrelid::regclass, seqstart, seqincrement, last_value from pg_sequence s join pg_sequences p on format('%I.%I', schemaname, sequencename)::regclass = seqrelid where schemaname in ('fetchq', 'fetchq_data') order by 1",
        "select oid, proowner, proacl, proconfig, prosecdef, prosrc from pg_proc where pronamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace) order by 1",
    ] {
        all.push(admin.rows(sql).await);
    }
    all
}

/// Every attack by everybody is refused by PostgreSQL, for each table of a queue and of fetchq.
#[tokio::test]
async fn nobody_attaches_or_alters_anything() {
    let cast = Cast::new("roles_attach").await;
    let admin = &cast.admin;
    for role in ["fetchq_app_b"] {
        let own = OWN
            .replace("{role}", role)
            .replace("{docs}", "fetchq_data.mine__docs");
        admin.sql(&own).await;
    }
    let tables: Vec<(String, String)> = admin
        .query(
            "select c.oid::regclass::text, (select a.attname::text from pg_attribute a
                 where a.attrelid = c.oid and a.attnum > 0 order by a.attname in ('subject', 'value') desc, a.attnum limit 1)
             from pg_class c where c.relkind = 'r' and (c.relnamespace = 'fetchq'::regnamespace or c.relname ~ '^(q|root)__')
             order by 1",
            &[],
        )
        .await
        .expect("tables")
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    let attacks = attacks(&tables);
    let before = (definitions(admin).await, rights(admin).await);
    let mut wrong = BTreeMap::new();
    for role in cast.everybody() {
        let session = cast.session(&role).await;
        session.sql("set lock_timeout = '10s'").await;
        for attack in &attacks {
            session.sql("begin").await;
            let state = session.state(attack).await;
            session.sql("rollback").await;
            let is_warning = state.is_empty() && gives_nothing(&session, attack);
            if state != "42501" && !AS_GOOD.contains(&state.as_str()) && !is_warning {
                wrong.insert(format!("{role}: {attack}"), state);
            }
        }
        // These do nothing, with a warning, and not within a transaction.
        for table in tables.iter().map(|(table, _)| table) {
            for verb in ["vacuum", "vacuum full", "analyze"] {
                session.notices();
                session.sql(&format!("{verb} {table}")).await;
                if !session.notices().iter().any(|n| n.severity() == "WARNING") {
                    wrong.insert(format!("{role}: {verb} {table}"), String::new());
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!((definitions(admin).await, rights(admin).await), before);
    cast.remove().await;
}

/// A GRANT of what the role may not grant is a warning where it holds some other privilege.
fn gives_nothing(session: &Session, attack: &str) -> bool {
    let notices = session.notices();
    attack.starts_with("grant ")
        && notices
            .iter()
            .any(|n| n.code().code() == "01007" && n.message().starts_with("no privileges"))
        || attack.starts_with("alter default privileges")
}

/// The privileges of the kinds, as docs/guides/security.md has them, and nothing beside: PostgreSQL
/// knows of no other right of these roles.
#[tokio::test]
async fn each_kind_has_these_privileges_and_no_others() {
    let cast = Cast::new("roles_privileges").await;
    let held = |role: &str| {
        format!(
            "select string_agg(what, ' ' order by what) from (
                select c.relname || ':' || string_agg(lower(p), ',' order by p) as what
                from pg_class c cross join unnest('{{SELECT,INSERT,UPDATE,DELETE,TRUNCATE,REFERENCES,TRIGGER}}'::text[]) p
                where c.relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace) and c.relkind in ('r', 'v', 'p', 'm')
                    and has_table_privilege('{role}', c.oid, p)
                    and not (c.relkind = 'v' and p = 'SELECT' and has_table_privilege('fetchq_app_nobody', c.oid, p))
                group by c.relname
                union all
                select c.relname || '.' || a.attname || ':' || lower(p)
                from pg_class c join pg_attribute a on a.attrelid = c.oid cross join unnest('{{SELECT,INSERT,UPDATE,REFERENCES}}'::text[]) p
                where c.relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace) and c.relkind in ('r', 'v', 'p', 'm')
                    and has_column_privilege('{role}', c.oid, a.attnum, p) and not has_table_privilege('{role}', c.oid, p)
                    and not has_table_privilege('fetchq_app_nobody', c.oid, p)
                union all
                select c.relname || ':' || p
                from pg_class c cross join unnest('{{USAGE,SELECT,UPDATE}}'::text[]) p
                where c.relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace) and c.relkind = 'S'
                    and has_sequence_privilege('{role}', c.oid, p)
                union all
                select nspname || ':create' from pg_namespace where nspname like 'fetchq%' and has_schema_privilege('{role}', oid, 'create')
            ) s"
        )
    };
    let tables = ["docs", "history", "logs", "metrics"];
    let all = |privileges: &str| -> String {
        let each = tables.map(|table| format!("q__{table}:{privileges}"));
        each.join(" ")
    };
    let everything = all("delete,insert,select,truncate,update");
    for (role, expected) in [
        (
            "fetchq_app_a",
            format!(
                "{everything} {}",
                ["docs", "logs", "metrics"]
                    .map(|table| format!("other__{table}:delete,insert,select,truncate,update"))
                    .join(" ")
            ),
        ),
        ("fetchq_app_a_manager", everything.clone()),
        (
            "fetchq_app_a_worker",
            format!(
                "q__docs.payload:references q__docs.result:references {}",
                all("select")
            ),
        ),
        (
            "fetchq_app_a_producer",
            "q__docs.payload:references".to_owned(),
        ),
        ("fetchq_app_a_reader", all("select")),
        ("fetchq_app_nobody", String::new()),
    ] {
        let mut found: Vec<String> = (cast.admin.text(&held(role)).await)
            .split_whitespace()
            .map(str::to_owned)
            .collect();
        let mut expected: Vec<String> = expected.split_whitespace().map(str::to_owned).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected, "{role}");
    }
    // The views that everybody may read are these.
    let views = "select string_agg(c.relname, ' ' order by c.relname) from pg_class c
        where c.relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace)
            and has_table_privilege('fetchq_app_nobody', c.oid, 'select')";
    assert_eq!(
        cast.admin.text(views).await,
        "dead_letters history leases metric_samples metrics_live progress workers"
    );
    cast.remove().await;
}

/// The owner of a queue grants its privileges on, and none that it has not.
#[tokio::test]
async fn the_grant_option_gives_the_rights_of_the_queue_and_no_more() {
    let cast = Cast::new("roles_option").await;
    let owner = cast.session("fetchq_app_a").await;
    owner
        .sql("grant select on fetchq_data.q__docs to fetchq_app_nobody with grant option")
        .await;
    let nobody = cast.session("fetchq_app_nobody").await;
    nobody.sql("select from fetchq_data.q__docs").await;
    nobody
        .sql("grant select on fetchq_data.q__docs to fetchq_app_b_reader")
        .await;
    // That is a reader of the documents, and no owner.
    for call in [
        "select fetchq.queue_grant('q', 'fetchq_app_b_reader', 'producer')",
        "select fetchq.queue_drop('q')",
        "select fetchq.doc_push('q', 'x')",
        "select fetchq.doc_pick('q')",
        "select fetchq.queue_pause('q')",
        "grant truncate on fetchq_data.q__docs to fetchq_app_nobody",
    ] {
        let state = nobody.state(call).await;
        let notices = nobody.notices();
        let is_warning = notices.iter().any(|n| n.code().code() == "01007");
        assert!(state == "42501" || is_warning, "{call}: {state:?}");
    }
    // A manager cannot make managers, nor the worker workers.
    for (role, kind) in [
        ("manager", "manager"),
        ("worker", "worker"),
        ("producer", "producer"),
    ] {
        let session = cast.session(&format!("fetchq_app_a_{role}")).await;
        let grant = format!("select fetchq.queue_grant('q', 'fetchq_app_nobody', '{kind}')");
        assert_eq!(session.state(&grant).await, "42501", "{role}");
    }
    // The owner takes it away, with what it was granted on.
    owner
        .sql("revoke select on fetchq_data.q__docs from fetchq_app_nobody cascade")
        .await;
    let reader = cast.session("fetchq_app_b_reader").await;
    for session in [&nobody, &reader] {
        let read = "select from fetchq_data.q__docs";
        assert_eq!(session.state(read).await, "42501");
    }
    cast.remove().await;
}

/// Who may change every row of a queue may lock its table; a reader only as a reader.
#[tokio::test]
async fn who_may_lock_the_tables_of_a_queue() {
    const MODES: [&str; 8] = [
        "access share",
        "row share",
        "row exclusive",
        "share update exclusive",
        "share",
        "share row exclusive",
        "exclusive",
        "access exclusive",
    ];
    let cast = Cast::new("roles_lock_table").await;
    for role in cast.everybody() {
        let session = cast.session(&role).await;
        session.sql("set lock_timeout = '10s'").await;
        let is_of_a = role.starts_with("fetchq_app_a");
        let may = match role.trim_start_matches("fetchq_app_a") {
            "" | "_manager" if is_of_a => 8,
            "_worker" | "_reader" if is_of_a => 1,
            _ => 0,
        };
        for (number, mode) in MODES.iter().enumerate() {
            for table in ["docs", "logs", "metrics", "history"] {
                let lock = format!("lock table fetchq_data.q__{table} in {mode} mode");
                session.sql("begin").await;
                let state = session.state(&lock).await;
                session.sql("rollback").await;
                let expected = if number < may { "" } else { "42501" };
                assert_eq!(state, expected, "{role}: {lock}");
            }
        }
        for table in [
            "fetchq.queues",
            "fetchq.jobs",
            "fetchq.counter_log",
            "fetchq.metrics",
        ] {
            let lock = format!("begin; lock table {table} in access share mode");
            assert_eq!(session.state(&lock).await, "42501", "{role}: {lock}");
            session.sql("rollback").await;
        }
    }
    cast.remove().await;
}

#[tokio::test]
async fn an_error_in_a_superusers_trigger_says_what_its_function_needs() {
    let db = Server::of_suite().database("roles_trigger").await;
    let admin = db.connect().await;
    make_roles(&admin).await;
    admin
        .sql(
            "do $$ begin
                 if to_regrole('fetchq_app_tables') is null then create role fetchq_app_tables nologin; end if;
             end $$;
             select fetchq.data_owner_set('fetchq_app_tables');
             select fetchq.queue_create('q'); select fetchq.queue_grant('q', 'fetchq_app_a', 'producer');
             create schema audit; create table audit.completed (subject text);
             create function audit.log(text) returns void language sql as '';
             create function audit.note() returns trigger language plpgsql as $$
                 begin return null; end $$;
             create trigger note after insert on fetchq_data.q__docs for each row execute function audit.note()",
        )
        .await;
    let app = session_of(&db, "fetchq_app_a").await;
    for (body, state, hint) in [
        (
            "insert into completed values (new.subject)",
            "42P01",
            "set search_path on the function",
        ),
        (
            "perform log(new.subject)",
            "42883",
            "set search_path on the function",
        ),
        (
            "insert into audit.completed values (new.subject)",
            "42501",
            "has to be granted to that role",
        ),
    ] {
        admin
            .sql(&format!(
                "create or replace function audit.note() returns trigger language plpgsql as $$
                 begin {body}; return null; end $$"
            ))
            .await;
        let error = app
            .simple_query("select fetchq.doc_put('q', 'a')")
            .await
            .unwrap_err();
        let error = error_of(&error);
        assert_eq!(error.code().code(), state, "{body}");
        assert!(
            error.hint().unwrap_or_default().contains(hint),
            "{body}: {error:?}"
        );
    }
    admin
        .sql("alter function audit.note() security definer set search_path = audit, pg_temp")
        .await;
    app.sql("select fetchq.doc_put('q', 'a')").await;
    assert_eq!(
        admin.column("select subject from audit.completed").await,
        ["a"]
    );
    drop(app);
    db.remove().await;
}
