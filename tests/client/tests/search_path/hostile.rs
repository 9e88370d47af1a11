//! Traps: objects with the names of those of pg_catalog that the library uses. Each raises an
//! exception when it is used, and a warning before, which reaches the client where the library
//! catches the exception.

use std::collections::BTreeSet;
use std::path::Path;

use fetchq_client_tests::Session;

/// An operator for each one on these types, and for varchar in place of text, because an exact match
/// in any schema of the path is preferred to a match in pg_catalog by coercion.
const OPERATORS: &str = r#"
do $do$
declare
    types constant pg_catalog.regtype[] = array['text', 'varchar', 'int2', 'int4', 'int8', 'timestamptz', 'interval',
        'tid', 'bool', 'oid', 'name', 'uuid', 'jsonb', 'numeric', 'float8', 'text[]', 'int4[]', 'int8[]', 'tid[]',
        'varchar[]', 'oid[]', 'name[]', 'regclass', 'bpchar', 'record'];
    r record;
    n int := 0;
begin
    set local search_path = pg_catalog, pg_temp; -- Use no trap that was just created.
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
        where o.oprnamespace = 'pg_catalog'::regnamespace and o.oprkind in ('b', 'l')
            and (o.oprkind = 'l' or o.oprleft = any (types)) and o.oprright = any (types)
    loop
        n := n + 1;
        execute format('create function {schema}.op_%s(%s) returns %s language plpgsql as
            $$ begin raise warning using message = ''reached operator {schema}.%s (%s, %s)'';
            raise exception using message = ''reached operator {schema}.%4$s (%5$s, %6$s)''; end $$',
            n, concat_ws(', ', nullif(r.l::oid, 0)::regtype, r.r), r.result, r.oprname, r.l, r.r);
        execute format('create operator {schema}.%s (%s rightarg = %s, function = {schema}.op_%s)',
            r.oprname, 'leftarg = ' || nullif(r.l::oid, 0)::regtype || ',', r.r, n);
    end loop;
    if n < 300 then raise exception 'only % operators', n; end if;
end $do$;
"#;

/// A function for each one with a name among the words of the sources.
const FUNCTIONS: &str = r#"
do $do$
declare
    r record;
    n int := 0;
begin
    set local search_path = pg_catalog, pg_temp;
    for r in
        select distinct on (p.proname, v.args) p.proname, v.args, p.prorettype::regtype as result
        from pg_proc p
        join pg_type t on t.oid = p.prorettype
        cross join lateral (select replace(replace(pg_get_function_identity_arguments(p.oid),
            'VARIADIC "any"', 'VARIADIC anyarray'), '"any"', 'anyelement') as args) a
        cross join lateral (values (a.args), (replace(a.args, 'text', 'character varying'))) v (args)
        where p.pronamespace = 'pg_catalog'::regnamespace and p.prokind in ('f', 'a', 'w')
            and p.proname = any ('{words}')
            and a.args !~ 'internal|cstring|ORDER BY|OUT |_handler|pg_ddl_command|pg_node_tree'
            and (t.typtype <> 'p' or t.typname ~ '^(any|void$|record$)')
            -- A function with such a result needs an argument of such a type.
            and (t.typname !~ '^any' or a.args ~ 'any')
    loop
        n := n + 1;
        execute format('create function {schema}.%I(%s) returns %s language plpgsql as
            $$ begin raise warning ''reached function {schema}.%1$s''; raise exception ''reached function {schema}.%1$s''; end $$',
            r.proname, r.args, r.result);
    end loop;
    if n < 200 then raise exception 'only % functions', n; end if;
end $do$;
"#;

/// Types without valid values, and relations that cannot be read, with names among the words of the
/// sources. In a search path, those of pg_temp come first unless the path says otherwise.
const TYPES_AND_RELATIONS: &str = r#"
create function {schema}.boom() returns pg_catalog.bool language plpgsql as
    $$ begin raise warning 'reached {schema}.boom()'; raise exception 'reached {schema}.boom()'; end $$;
do $do$
declare
    trap name;
    n int := 0;
begin
    set local search_path = pg_catalog, pg_temp;
    for trap in
        select t.typname from pg_type t
        where t.typnamespace = 'pg_catalog'::regnamespace and t.typtype = 'b' and t.typname = any ('{words}')
    loop
        n := n + 1;
        execute format('create domain {schema}.%I as pg_catalog.%1$I check ({schema}.boom())', trap);
    end loop;
    for trap in
        select distinct c.relname from pg_class c
        where c.relkind in ('r', 'v', 'p') and (c.relname = any ('{words}')
            or c.relnamespace in ('fetchq'::regnamespace, 'fetchq_data'::regnamespace))
    loop
        n := n + 1;
        execute format('create view {schema}.%I as select {schema}.boom() as id', trap);
    end loop;
    if n < 50 then raise exception 'only % types and relations', n; end if;
end $do$;
"#;

/// Adds the words of all source files below a folder.
fn read_words(folder: &Path, words: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).expect("a folder of the sources") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            read_words(&path, words);
        } else if let Ok(text) = std::fs::read_to_string(&path) {
            let is_part = |c: char| !c.is_ascii_alphanumeric() && c != '_';
            words.extend(text.split(is_part).map(str::to_lowercase));
        }
    }
}

/// All words of the library's sources, as an array of SQL: a statement can have no other names.
fn words() -> String {
    let mut words = BTreeSet::new();
    read_words(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src"),
        &mut words,
    );
    words.retain(|word| word.starts_with(|c: char| c.is_ascii_lowercase() || c == '_'));
    let words: Vec<String> = words.into_iter().collect();
    assert!(words.len() > 1000, "only {} words", words.len());
    format!("{{{}}}", words.join(","))
}

async fn create(session: &Session, traps: &[&str], schema: &str) {
    let words = words();
    for trap in traps {
        let sql = trap.replace("{schema}", schema).replace("{words}", &words);
        session.sql(&sql).await;
    }
}

/// Creates all traps in a schema that is new or has other objects.
pub async fn create_all(session: &Session, schema: &str) {
    let sql =
        format!("create schema if not exists {schema}; grant usage on schema {schema} to public");
    session.sql(&sql).await;
    create(
        session,
        &[OPERATORS, FUNCTIONS, TYPES_AND_RELATIONS],
        schema,
    )
    .await;
}

/// Creates those traps in the temporary schema of a session that the server finds there.
pub async fn create_temporary(session: &Session) {
    create(session, &[TYPES_AND_RELATIONS], "pg_temp").await;
}
