//! Objects of other users with names that fetchq uses. fetchq must never use them.

use fetchq_client_tests::{Database, Function, Server, Session, functions, prepare_queue, text_of};

/// Creates a trap for every operator and function of pg_catalog whose types or names appear in
/// fetchq's statements. {schema} is a schema of the search path. Every trap raises an exception.
const TRAPS: &str = r#"
create schema if not exists {schema};
create function {schema}.boom() returns pg_catalog.bool language plpgsql as
    $$ begin raise exception 'reached {schema}.boom()'; end $$;
do $do$
declare
    types constant pg_catalog.regtype[] = array['text', 'varchar', 'int2', 'int4', 'int8', 'timestamptz', 'interval',
        'tid', 'bool', 'oid', 'name', 'uuid', 'jsonb', 'numeric', 'float8', 'text[]', 'int4[]', 'int8[]', 'tid[]',
        'varchar[]', 'oid[]', 'name[]', 'regclass', 'bpchar', 'record'];
    r record;
    trap name;
    n int := 0;
begin
    set local search_path = pg_catalog; -- Use no trap that was just created.
    -- Every operator on these types, and each with varchar for text, because an exact match
    -- in any schema of the path is preferred to a match in pg_catalog by coercion.
    for r in
        select distinct on (o.oprname, v.l, v.r) o.oprname, v.l, v.r, o.oprresult::regtype as result
        from pg_operator o
        cross join lateral (values
            (o.oprleft::regtype, o.oprright::regtype),
            (case o.oprleft when 'text'::regtype then 'varchar'::regtype else o.oprleft::regtype end, o.oprright::regtype),
            (o.oprleft::regtype, case o.oprright when 'text'::regtype then 'varchar'::regtype else o.oprright::regtype end),
            (case o.oprleft when 'text'::regtype then 'varchar'::regtype else o.oprleft::regtype end,
             case o.oprright when 'text'::regtype then 'varchar'::regtype else o.oprright::regtype end)
        ) v (l, r)
        where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprkind = 'b'
            and o.oprleft = any (types) and o.oprright = any (types)
    loop
        n := n + 1;
        execute format('create function {schema}.op_%s(%s, %s) returns %s language plpgsql as
            $$ begin raise exception using message = ''reached operator {schema}.%s (%s, %s)''; end $$',
            n, r.l, r.r, r.result, r.oprname, r.l, r.r);
        execute format('create operator {schema}.%s (leftarg = %s, rightarg = %s, function = {schema}.op_%s)',
            r.oprname, r.l, r.r, n);
    end loop;
    if n < 300 then raise exception 'only % operators', n; end if;

    n := 0;
    for r in
        select distinct on (p.proname, v.args) p.proname, v.args, p.prorettype::regtype as result
        from pg_proc p
        cross join lateral (values
            (replace(replace(pg_get_function_identity_arguments(p.oid), 'VARIADIC "any"', 'VARIADIC anyarray'), '"any"', 'anyelement')),
            (replace(replace(replace(pg_get_function_identity_arguments(p.oid), 'VARIADIC "any"', 'VARIADIC anyarray'), '"any"', 'anyelement'), 'text', 'character varying'))
        ) v (args)
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind in ('f', 'a', 'w')
            and p.proname = any ('{now,count,sum,min,max,array_agg,format,unnest,to_jsonb,to_regclass,nextval,power,
                substr,regexp_split_to_table,pg_notify,date_trunc,pg_has_role,row_to_json,json_build_object,
                jsonb_build_object,octet_length,quote_ident,gen_random_uuid,row_number,clock_timestamp,
                generate_series,jsonb_array_elements,jsonb_array_elements_text,lower,length,concat,
                age,string_agg,jsonb_typeof,pg_is_in_recovery,interval,timestamptz,text,varchar,int4,int8,jsonb}')
            and pg_get_function_identity_arguments(p.oid) !~ 'internal|cstring|ORDER BY|OUT '
            and p.prorettype not in ('internal'::regtype, 'cstring'::regtype)
    loop
        n := n + 1;
        execute format('create function {schema}.%I(%s) returns %s language plpgsql as
            $$ begin raise exception ''reached function {schema}.%s''; end $$', r.proname, r.args,
            r.result, r.proname);
    end loop;
    if n < 50 then raise exception 'only % functions', n; end if;

    -- Types without valid values, and relations that cannot be read.
    foreach trap in array '{text,varchar,jsonb,json,int2,int4,int8,bool,timestamptz,"interval",uuid,name,tid,regclass,oid,numeric}'::name[] loop
        execute format('create domain {schema}.%I as pg_catalog.%1$I check ({schema}.boom())', trap);
    end loop;
    foreach trap in array '{pg_class,pg_proc,pg_namespace,pg_extension,pg_trigger,pg_index,pg_constraint,pg_type,queues,jobs,schedules,metrics,metrics_live,
        metrics_writes,counter_log,counter_log_1,counter_tail,counter_segments,counter_events,q__docs,q__logs,q__metrics}'::name[] loop
        execute format('create view {schema}.%I as select {schema}.boom() as id', trap);
    end loop;
end $do$;
"#;

/// The row without the values that differ between runs: times and generated subjects.
fn masked(function: &Function, row: &tokio_postgres::Row) -> String {
    let columns = row.columns().iter().enumerate();
    let shown: Vec<String> = columns
        .map(|(at, column)| match column.type_().name() {
            "timestamptz" => "time".to_owned(),
            "interval" if function.name == "queue_stats" => "interval".to_owned(),
            _ if column.name() == "lease" => "lease".to_owned(),
            _ if function.name.starts_with("doc_append")
                || (function.name == "trace" && column.name() == "details") =>
            {
                "new".to_owned()
            }
            _ => text_of(row, at),
        })
        .collect();
    shown.join("|")
}

/// Calls every function, each in a transaction that is rolled back, in a session with the given
/// search path; returns all results.
async fn call_all(db: &Database, path: &str, all: &[Function]) -> Vec<String> {
    let session = db.connect().await;
    session.sql("set fetchq.strict = off").await;
    let mut results = Vec::new();
    for function in all {
        session
            .sql(&format!("begin; set local search_path = {path}"))
            .await;
        let statement = function.prepare(&session).await;
        let result = Function::call(&session, &statement, &function.valid()).await;
        let notices: Vec<String> = session
            .notices()
            .iter()
            .map(|n| n.message().to_owned())
            .collect();
        session.sql("rollback").await;
        let signature = function.signature();
        let rows = result.unwrap_or_else(|e| panic!("search_path = {path}: {signature}: {e:?}"));
        let mut rows: Vec<String> = rows.iter().map(|row| masked(function, row)).collect();
        // How long the tasks of maintenance took differs.
        if function.name == "status" {
            rows.retain(|row| !row.starts_with("maintenance: "));
            // The floor of the planned documents remembers those that were rolled back.
            rows.retain(|row| !row.starts_with("planned|"));
        }
        // The contents of the shared memory may differ.
        // The subject has the time of the call.
        if function.name.starts_with("ready_") || function.name == "schedule_tick" {
            rows.clear();
        }
        results.push(format!("{signature}: {rows:?} {notices:?}"));
    }
    results
}

async fn compare(name: &str, schema: &str, path: &str) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    prepare_queue(&session).await;
    session.sql("select fetchq.queue_enable_notify('q'); update fetchq.jobs set next_iteration = now() - interval '1 minute'").await;
    // Expired leases and due documents give maintenance something to do.
    session
        .sql(
            "select fetchq.doc_push('q', 'orphan', 3, 0, now(), '{}'), fetchq.doc_push('q', 'dead', 3, 0, now(), '{}');
             select fetchq.doc_pick('q', 3, 2, '0s');
             -- Long ago, so that status() reports them as late in every run.
             update fetchq_data.q__docs set next_iteration = now() - interval '1 hour' where subject in ('orphan', 'dead');
             update fetchq_data.q__docs set attempts = 9 where subject = 'dead';
             insert into fetchq_data.q__metrics (created_at, metric, value)
                 select now() - interval '30 minutes', 'cnt', i from generate_series(1, 3) i;
             insert into fetchq_data.q__logs (created_at, subject, message) values (now() - interval '1 year', 'active', 'old')",
        )
        .await;
    let all = functions(&session).await;
    let expected = call_all(&db, "\"$user\", public", &all).await;
    traps(&session, schema, path).await;
    let got = call_all(&db, path, &all).await;
    for (got, expected) in got.iter().zip(&expected) {
        assert_eq!(got, expected, "search_path = {path}");
    }

    // The extension's own DDL, and a document that passes through the hot calls.
    let worker = db.connect().await;
    worker.sql(&format!("set search_path = {path}")).await;
    for call in [
        "queue_create('r')",
        "queue_enable_notify('r')",
        "doc_push('r', 'd')",
        "doc_pick('r')",
        "doc_reject('r', 'd', 'why', '{}')",
        "doc_pick('r', 0, 5, '1m')",
        "mnt()",
        "queue_truncate('r', true)",
        "schedule_create('s', 'r', '* * * * * *')",
        "schedule_create('s', 'r', '1 day', jitter => '1 h', replace => true)",
        "schedule_run_at(9, '4000-01-01')",
        "schedule_pause('s')",
        "schedule_resume('s')",
        "schedule_list()",
        "queue_drop('r')",
    ] {
        worker.sql(&format!("select fetchq.{call}")).await;
    }
    // The triggers of the tables, fired by plain SQL.
    worker
        .sql("update fetchq.queues set is_active = false; delete from fetchq.jobs; delete from fetchq_data.q__docs")
        .await;
    db.remove().await;
}

/// Creates the traps, and checks that they work.
pub async fn traps(session: &Session, schema: &str, path: &str) {
    session.sql(&TRAPS.replace("{schema}", schema)).await;
    session
        .sql(&format!("begin; set local search_path = {path}"))
        .await;
    let state = session
        .state("select 'a'::pg_catalog.varchar = 'a'::pg_catalog.varchar")
        .await;
    session.sql("rollback").await;
    assert_eq!(state, "P0001", "the traps do not work");
}

#[tokio::test]
async fn a_schema_before_pg_catalog() {
    compare("path_before", "evil", "evil, pg_catalog").await;
}

#[tokio::test]
async fn better_matching_objects_in_public() {
    compare("path_public", "public", "\"$user\", public").await;
}

#[tokio::test]
async fn temporary_objects() {
    let db = Server::of_suite().database("path_temp").await;
    let session = db.connect().await;
    prepare_queue(&session).await;
    let all = functions(&session).await;
    // For relations and types, temporary tables come first in any search path.
    session
        .sql("create temp table pg_class (x int); create temp table pg_extension (x int); create temp table pg_namespace (x int);
              create temp table queues (x int); create temp table q__docs (x int); create temp table text (x int); create temp table jsonb (x int)")
        .await;
    for function in all {
        session.sql("begin").await;
        let statement = function.prepare(&session).await;
        let result = Function::call(&session, &statement, &function.valid()).await;
        session.sql("rollback").await;
        assert!(
            result.is_ok(),
            "{}: {:?}",
            function.signature(),
            result.err()
        );
    }
    db.remove().await;
}
