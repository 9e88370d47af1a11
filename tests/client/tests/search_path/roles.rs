//! Callers whose rights are not those of the owner of a queue. What fetchq does with the rights of
//! the owner must use no name that the caller has chosen.

use fetchq_client_tests::{Cluster, Database, with_worker};

use super::*;

/// The owner of the queues, a role with each grant, and one without any.
const KINDS: [&str; 6] = ["owner", "manager", "worker", "producer", "reader", "none"];

/// The roles may call every function: the functions check the rights on the queue.
const ROLES: &str = "
    create role path_{kind} login;
    grant usage on schema fetchq, fetchq_data to path_{kind};
    grant execute on all functions in schema fetchq to path_{kind};
    grant execute on all procedures in schema fetchq to path_{kind}";

/// A server in which nobody but the test looks at the queues.
fn cluster(name: &str) -> Cluster {
    with_worker(name, "fetchq.background_worker = off\nfsync = off")
}

async fn connect_as(db: &Database, kind: &str) -> Session {
    let mut config = db.server.config().clone();
    config.user(format!("path_{kind}"));
    Server::new(config).connect(&db.name).await
}

/// A database with the roles, and a session of the superuser.
async fn roles(cluster: &Cluster, name: &str) -> (Database, Session) {
    let db = cluster.server().database(name).await;
    let admin = db.connect().await;
    for kind in KINDS {
        admin.sql(&ROLES.replace("{kind}", kind)).await;
    }
    (db, admin)
}

async fn grant(session: &Session, queue: &str) {
    for kind in &KINDS[1..5] {
        let call = format!("select fetchq.queue_grant('{queue}', 'path_{kind}', '{kind}')");
        session.sql(&call).await;
    }
}

/// A function of the worker with the name of one of pg_catalog. Where it runs with the rights of
/// another role, it takes these rights.
const ATTACK: &str = "
    create schema lair authorization path_worker;
    set session authorization path_worker;
    grant usage on schema lair to public;
    create table lair.seen (who text, caller text, documents text);
    grant insert on lair.seen to public;
    create function lair.now() returns timestamptz language plpgsql as $$ begin
        if current_user <> session_user then
            insert into lair.seen
                select current_user, session_user, string_agg(payload::text, ',') from fetchq_data.orders__docs;
            grant all on fetchq_data.orders__docs to path_worker with grant option;
            if (select r.rolsuper from pg_catalog.pg_roles r where r.rolname = current_user) then
                execute 'alter role path_worker superuser';
            end if;
        end if;
        return pg_catalog.now();
    end $$;
    reset session authorization";

/// What the worker has gained: runs with other rights, privileges on the documents, and whether it
/// is a superuser.
const GAINED: &str = "
    select (select string_agg(who || ' for ' || caller || ' read ' || documents, '; ') from lair.seen),
        (select rolsuper from pg_roles where rolname = 'path_worker'),
        has_table_privilege('path_worker', 'fetchq_data.orders__docs', 'truncate')";

/// `owner`: who makes the queue; the superuser, or the role `path_owner`.
async fn mnt_run_gives_the_worker_nothing(owner: &str) {
    let cluster = cluster(&format!("path_{owner}"));
    let (db, admin) = roles(&cluster, "path_attack").await;
    let session = match owner {
        "superuser" => db.connect().await,
        _ => connect_as(&db, owner).await,
    };
    session
        .sql("select fetchq.queue_create('orders'); select fetchq.doc_push('orders', 'a', '{\"a\": \"secret\"}')")
        .await;
    grant(&session, "orders").await;
    admin.sql(ATTACK).await;
    let worker = connect_as(&db, "worker").await;
    worker
        .sql("select fetchq.doc_lease('orders', 1, binding => 'call')")
        .await;
    worker.sql("set search_path = lair, pg_catalog").await;
    worker
        .sql("select * from fetchq.mnt_run('orders', 100)")
        .await;
    // The lease of the call that is over was given back, in the name of the owner.
    let status = "select status from fetchq_data.orders__docs";
    assert_eq!(admin.text(status).await, "1");
    assert_eq!(admin.rows(GAINED).await, ["|f|f"]);
}

#[tokio::test]
async fn a_worker_does_not_become_the_owner_by_mnt_run() {
    mnt_run_gives_the_worker_nothing("owner").await;
}

#[tokio::test]
async fn a_worker_does_not_become_a_superuser_by_mnt_run() {
    mnt_run_gives_the_worker_nothing("superuser").await;
}

/// All that a queue can have, and leases of sessions that have ended and that go on. The rows of the
/// sessions are changed, so that they look so in each transaction. Each lease has ended, or does not
/// end during the test.
async fn prepare_everything(db: &Database, admin: &Session) {
    let owner = connect_as(db, "owner").await;
    prepare(&owner, admin).await;
    owner
        .sql(
            "select fetchq.queue_configure('q', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}, \"max_active\": 50, \"rate\": {\"picks\": 50, \"per\": \"1 day\"}, \"ordered\": true, \"dead_letter\": \"other\"}');
             select fetchq.doc_put('q', s, '{}', ordering_key => 'k' || s) from unnest(array['ended', 'kept', 'free', 'freer']) s;
             set fetchq.worker = 'ended'; select fetchq.doc_lease('q', 1, binding => 'return');
             set fetchq.worker = 'kept'; select fetchq.doc_lease('q', 1, '1 ms', binding => 'keep')",
        )
        .await;
    grant(&owner, "q").await;
    grant(&owner, "other").await;
    admin
        .sql(
            "update fetchq.worker_sessions set pid = 1 << 30 where name = 'ended';
             update fetchq.worker_sessions w set pid = a.pid, backend_start = a.backend_start
                 from pg_stat_activity a where w.name = 'kept' and a.backend_type = 'checkpointer'",
        )
        .await;
    let sessions = "select count(*) from fetchq.worker_sessions where binding > 0";
    assert_eq!(admin.text(sessions).await, "2");
}

/// Fires the triggers of the tables by plain SQL, as far as the role may do that.
async fn change_documents(session: &Session, path: &str) {
    for sql in [
        "update fetchq_data.q__docs set attempts = 3, status = 1, ordering_key = 'other'",
        "insert into fetchq_data.q__docs (subject, status) values ('plain', 1)",
        "delete from fetchq_data.q__docs",
        "truncate fetchq_data.q__docs",
    ] {
        session
            .sql(&format!("begin; set local search_path = {path}"))
            .await;
        let error = session.simple_query(sql).await.err();
        session.sql("rollback").await;
        assert!(
            error.as_ref().is_none_or(|e| state_of(e) == "42501"),
            "{sql}: {error:?}"
        );
        assert!(session.notices().is_empty(), "{sql}");
    }
}

/// Calls everything as each kind of role. No trap may be reached, and results stay the same.
async fn call_as_each_kind(db: &Database, path: &str, is_temporary: bool) {
    for kind in KINDS {
        let plain = connect_as(db, kind).await;
        let all = functions(&plain).await;
        let caller = connect_as(db, kind).await;
        if is_temporary {
            hostile::create_temporary(&caller).await;
        }
        let leases = ["owner", "manager", "worker"].contains(&kind);
        for before in ["", LEASE].iter().take(1 + usize::from(leases)) {
            let expected = call_all(&plain, before, "pg_catalog", &all).await;
            let got = call_all(&caller, before, path, &all).await;
            for (got, expected) in got.iter().zip(&expected) {
                assert_eq!(got, expected, "as {kind}, search_path = {path}");
                assert!(!got.contains("reached "), "as {kind}: {got}");
            }
        }
        change_documents(&caller, path).await;
    }
}

#[tokio::test]
async fn every_function_as_each_kind_of_role() {
    let cluster = cluster("path_roles");
    let (db, admin) = roles(&cluster, "path_roles").await;
    prepare_everything(&db, &admin).await;
    traps(&admin, "evil", "evil, pg_catalog").await;
    call_as_each_kind(&db, "evil, pg_catalog", false).await;
}

#[tokio::test]
async fn every_function_as_each_kind_of_role_with_temporary_objects() {
    let cluster = cluster("path_temp_roles");
    let (db, admin) = roles(&cluster, "path_temp_roles").await;
    prepare_everything(&db, &admin).await;
    call_as_each_kind(&db, "\"$user\", public", true).await;
}
