//! Objects of a caller with the names that fetchq uses, while fetchq has other rights than the caller.
//! `search_path.rs` has the same for the results of the calls.

use super::*;

/// A schema of the role of the session, in which everything says as whom it runs, and tries what that
/// role may do.
const HOSTILE: &str = "
    create function hostile.attack(what text) returns boolean language plpgsql volatile as $$
    begin
        raise notice 'attack as % by %', current_user, what;
        begin
            execute 'grant all on fetchq_data.root__docs to public';
            execute 'alter role fetchq_app_b_worker superuser';
        exception when others then
        end;
        return true;
    end $$;
    create function hostile.now() returns timestamptz language plpgsql as $$
    begin perform hostile.attack('now'); return pg_catalog.now(); end $$;
    create function hostile.clock_timestamp() returns timestamptz language plpgsql as $$
    begin perform hostile.attack('clock_timestamp'); return pg_catalog.clock_timestamp(); end $$;
    create function hostile.count(bigint) returns bigint language plpgsql as $$
    begin perform hostile.attack('count'); return 0; end $$;
    create function hostile.lower(text) returns text language plpgsql as $$
    begin perform hostile.attack('lower'); return pg_catalog.lower($1); end $$;
    create function hostile.same(text, text) returns boolean language plpgsql as $$
    begin perform hostile.attack('='); return $1 operator(pg_catalog.=) $2; end $$;
    create operator hostile.= (leftarg = text, rightarg = text, function = hostile.same);
    create function hostile.same(int, int) returns boolean language plpgsql as $$
    begin perform hostile.attack('= of numbers'); return $1 operator(pg_catalog.=) $2; end $$;
    create operator hostile.= (leftarg = int, rightarg = int, function = hostile.same);
    create domain hostile.text as pg_catalog.text check (hostile.attack('text'));
    create domain hostile.jsonb as pg_catalog.jsonb check (hostile.attack('jsonb'));
    create function hostile.fire() returns trigger language plpgsql as $$
    begin perform hostile.attack('trigger of ' || tg_table_name); return new; end $$";

/// Makes the schema for a role, and temporary tables with the names of those of fetchq, whose
/// triggers attack.
async fn hostile(admin: &Session, session: &Session, role: &str) {
    admin
        .sql(&format!("drop schema if exists hostile cascade; create schema hostile authorization {role}; grant usage on schema hostile to public"))
        .await;
    session.sql(HOSTILE).await;
    let tables = admin
        .query(
            "select relname::text, 'fetchq' from pg_class where relnamespace = 'fetchq'::regnamespace and relkind = 'r'
             union all select 'root__' || t, 'fetchq_data' from unnest('{docs,logs,metrics}'::text[]) t
             union all select t, 'pg_catalog' from unnest('{pg_class,pg_roles,pg_proc,pg_namespace,pg_attribute,pg_extension}'::text[]) t",
            &[],
        )
        .await
        .expect("tables");
    for row in tables {
        let (table, schema): (String, String) = (row.get(0), row.get(1));
        // Its columns are those of the table, as far as the role may see them.
        let columns = "select string_agg(format('%I %s', attname, format_type(atttypid, null)), ', ')
            from pg_attribute where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and atttypid not in ('pg_node_tree'::regtype, 'anyarray'::regtype)";
        let name = format!("{schema}.{table}");
        let row = admin.query_one(columns, &[&name]).await.expect("columns");
        let columns: String = row.get(0);
        session
            .sql(&format!(
                "create temp table {table} ({}); grant all on pg_temp.{table} to public;
                 create trigger t before insert or update or delete on pg_temp.{table} for each row execute function hostile.fire()",
                columns
            ))
            .await;
    }
}

/// What of the role's ran as another one. A notice is sent whatever is rolled back.
fn ran_as_another(session: &Session, role: &str) -> Vec<String> {
    let own = format!("attack as {role} by ");
    let notices = session.notices();
    let attacks = notices.iter().map(|notice| notice.message());
    attacks
        .filter(|message| message.starts_with("attack as ") && !message.starts_with(&own))
        .map(str::to_owned)
        .collect()
}

/// S1 of the second attack: the owner's rights came with the search path of the caller.
#[tokio::test]
async fn a_worker_becomes_no_owner_by_its_maintenance() {
    let cast = Cast::new("roles_s1").await;
    let role = "fetchq_app_b_worker";
    let worker = cast.session(role).await;
    hostile(&cast.admin, &worker, role).await;
    let before = rights(&cast.admin).await;
    worker
        .sql(
            "select subject from fetchq.doc_lease('root', 1, binding => 'call');
             set search_path = hostile, pg_catalog;
             select * from fetchq.mnt_run('root', 100);
             select * from fetchq.mnt_make_pending('root', 100); select * from fetchq.mnt_reschedule_orphans('root', 100);
             select * from fetchq.mnt_mark_dead('root', 100); select fetchq.queue_redrive('root')",
        )
        .await;
    assert_eq!(rights(&cast.admin).await, before);
    assert_eq!(ran_as_another(&worker, role), [] as [&str; 0]);
    drop(worker);
    cast.remove().await;
}

/// Every call by each role, on its own queue, under a search path and beside temporary tables of its
/// choice.
#[tokio::test]
async fn no_name_of_the_caller_is_used_with_other_rights() {
    let cast = Cast::new("roles_shadows").await;
    let all = functions(&cast.admin).await;
    for role in roles_of("a") {
        let session = cast.session(&role).await;
        hostile(&cast.admin, &session, &role).await;
        let before = rights(&cast.admin).await;
        session.sql("set fetchq.strict = off").await;
        for path in [
            "hostile, pg_catalog",
            "pg_temp, hostile, pg_catalog",
            "public",
        ] {
            for direct in ["on", "off"] {
                for function in &all {
                    session
                        .sql(&format!("begin; set local fetchq.direct = {direct}"))
                        .await;
                    let statement = function.prepare(&session).await;
                    session
                        .sql(&format!("set local search_path = {path}"))
                        .await;
                    let _ = Function::call(&session, &statement, &function.valid()).await;
                    session.sql("rollback").await;
                    let seen = ran_as_another(&session, &role);
                    let signature = function.signature();
                    assert_eq!(seen, [] as [&str; 0], "{role}: {path}: {signature}");
                }
            }
        }
        assert_eq!(rights(&cast.admin).await, before, "{role}");
    }
    cast.remove().await;
}

/// S3: a trigger that a superuser has attached finds no table of the caller's, not even a temporary
/// one, where it has qualified what it names.
#[tokio::test]
async fn a_trigger_of_a_superuser_finds_what_it_names() {
    let cast = Cast::new("roles_s3").await;
    let role = "fetchq_app_a_worker";
    let worker = cast.session(role).await;
    hostile(&cast.admin, &worker, role).await;
    cast.admin
        .sql(
            "create table public.audit (at timestamptz, who text, subject text);
             create function public.dlq_audit() returns trigger language plpgsql as $$
             begin insert into public.audit values (now(), lower(current_user), new.subject); return new; end $$;
             create trigger audit after insert on fetchq_data.other__docs for each row execute function public.dlq_audit();",
        )
        .await;
    cast.a
        .sql("select fetchq.queue_configure('other', '{\"ordered\": true}'); select fetchq.queue_grant('other', 'fetchq_app_a_worker', 'worker');
              select fetchq.queue_configure('q', '{\"ordered\": false, \"max_active\": null, \"dead_letter\": \"other\"}')")
        .await;
    worker
        .sql("create temp table audit (at timestamptz, who text, subject text); grant all on pg_temp.audit to public;
              create trigger t before insert on pg_temp.audit for each row execute function hostile.fire();
              set search_path = hostile, pg_catalog;
              select fetchq.doc_kill('q', 'active', message => 'x'); select fetchq.doc_push('other', 'pushed')")
        .await;
    let seen = cast
        .admin
        .rows("select subject, who = (select nspowner::regrole::text from pg_namespace where nspname = 'fetchq_data') from public.audit")
        .await;
    assert_eq!(seen, ["active|t", "pushed|t"]);
    assert_eq!(ran_as_another(&worker, role), [] as [&str; 0]);
    drop(worker);
    cast.remove().await;
}
