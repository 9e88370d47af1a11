//! Two applications that do not trust one another share a database. Each has an owner, who creates
//! its queues, a manager, a worker, a producer and a reader of them. There is a role that may only
//! call fetchq, and a queue of a superuser.
//!
//! No role gains a right, reads, changes, stops or holds up anything of another application: by no
//! function, by no view, by no privilege that it has. Functions, views and tables are read from the
//! catalog, so that these tests know a new one.

mod all_queues;
mod attachments;
mod dead_letters;
mod every_call;
mod grants;
mod locks;
mod moved;
mod planting;
mod records;
mod schedules;
mod shadows;
mod taken_names;

use fetchq_client_tests::{
    Database, Function, Server, Session, counters_are_exact, error_of, functions, prepare_queue,
    text_of, wait_until,
};

/// The kinds of grants.
const KINDS: [&str; 4] = ["manager", "worker", "producer", "reader"];

/// Makes the roles, which exist once in a server.
async fn make_roles(admin: &Session) {
    let create = |role: &str| {
        format!(
            "do $$ begin
                 if not exists (select from pg_roles where rolname = '{role}') then create role {role}; end if;
             end $$;
             grant usage on schema fetchq, fetchq_data to {role};"
        )
    };
    for application in ["a", "b"] {
        let owner = format!("fetchq_app_{application}");
        admin
            .sql(&format!(
                "{} grant execute on function fetchq.queue_create to {owner}",
                create(&owner)
            ))
            .await;
        for kind in KINDS {
            admin.sql(&create(&format!("{owner}_{kind}"))).await;
        }
    }
    admin.sql(&create("fetchq_app_nobody")).await;
}

/// A session of a role. A superuser has logged in, which no code of fetchq can make use of.
async fn session_of(db: &Database, role: &str) -> Session {
    let session = db.connect().await;
    session
        .sql(&format!("set session authorization {role}"))
        .await;
    session
}

/// The owners of the applications and a superuser. Application a has the queue `q`, with all that
/// belongs to it, and in everything that it has a secret.
async fn applications(name: &str) -> (Database, Session, Session, Session) {
    let db = Server::of_suite().database(name).await;
    let admin = db.connect().await;
    make_roles(&admin).await;
    let (a, b) = (
        session_of(&db, "fetchq_app_a").await,
        session_of(&db, "fetchq_app_b").await,
    );
    prepare_queue(&a).await;
    a.sql(
        "select fetchq.queue_configure('q', '{\"history\": {\"completed\": \"1 day\", \"killed\": \"1 day\", \"dropped\": \"1 day\"}, \"max_active\": 5, \"rate\": {\"picks\": 5, \"per\": \"1 day\"}, \"ordered\": true}');
         set fetchq.worker = 'mine'; select fetchq.doc_pick('q', 1); reset fetchq.worker;
         select fetchq.doc_put('q', 'a secret', '{\"a\": \"secret\"}', ordering_key => 'secret key', headers => '{\"h\": \"secret\"}');
         select fetchq.log_error('q', 'active', 'secret error', '{\"why\": \"secret\"}', 'secret');
         select fetchq.schedule_create('of a secret', 'q', '0 0 1 1 *', '{\"s\": \"secret\"}', headers => '{\"h\": \"secret\"}');
         update fetchq_data.q__docs set payload = '{\"a\": \"secret\"}', headers = '{\"h\": \"secret\"}', last_error = 'secret', result = '\"secret\"',
             progress = '\"secret\"', origin = '{\"queue\": \"secret\"}';
         select fetchq.metric_set('q', 'concealed metric', 3)",
    )
    .await;
    (db, admin, a, b)
}

/// The roles, their queues and a superuser. Application a has the queues `q` and `other`,
/// application b has `mine`, and the superuser has `root`, of which a role of b is the worker.
struct Cast {
    db: Database,
    admin: Session,
    /// Creates and owns the queues of application a.
    a: Session,
    b: Session,
}

impl Cast {
    async fn new(name: &str) -> Self {
        let (db, admin, a, b) = applications(name).await;
        b.sql("select fetchq.queue_create('mine'); select fetchq.doc_push('mine', 'm')")
            .await;
        for kind in KINDS {
            for (owner, application, queue) in [(&a, "a", "q"), (&b, "b", "mine")] {
                owner
                    .sql(&format!(
                        "select fetchq.queue_grant('{queue}', 'fetchq_app_{application}_{kind}', '{kind}')"
                    ))
                    .await;
            }
        }
        admin
            .sql(
                "select fetchq.queue_create('root'); select fetchq.queue_grant('root', 'fetchq_app_b_worker', 'worker');
                 select fetchq.doc_push('root', 'r1'), fetchq.doc_push('root', 'r2')",
            )
            .await;
        Self { db, admin, a, b }
    }

    /// The roles of application b, and the one that has no right on any queue.
    fn strangers(&self) -> Vec<String> {
        let mut roles = roles_of("b");
        roles.push("fetchq_app_nobody".to_owned());
        roles
    }

    fn everybody(&self) -> Vec<String> {
        let mut roles = roles_of("a");
        roles.extend(self.strangers());
        roles
    }

    async fn session(&self, role: &str) -> Session {
        session_of(&self.db, role).await
    }

    async fn remove(self) {
        drop((self.admin, self.a, self.b));
        self.db.remove().await;
    }
}

fn roles_of(application: &str) -> Vec<String> {
    let owner = format!("fetchq_app_{application}");
    let others = KINDS.map(|kind| format!("{owner}_{kind}"));
    std::iter::once(owner).chain(others).collect()
}

/// The rights of all roles: what they are, whose members they are, what they own, and what was
/// granted to them.
async fn rights(admin: &Session) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for sql in [
        "select * from pg_roles order by oid",
        "select roleid::regrole, member::regrole from pg_auth_members order by 1, 2",
        "select oid::regclass, relowner::regrole, relacl from pg_class where relnamespace::regnamespace::text ~ '^fetchq' order by 1",
        "select attrelid::regclass, attname, attacl from pg_attribute where attacl is not null order by 1, 2",
        "select nspname, nspowner::regrole, nspacl from pg_namespace where nspname !~ '^pg_(temp|toast_temp)' order by 1",
        "select oid::regprocedure, proowner::regrole, proacl from pg_proc where proacl is not null order by 1",
        "select * from pg_default_acl",
        "select datname, datdba, datacl from pg_database where datname = current_database()",
        "select * from pg_db_role_setting where setdatabase = 0 or setdatabase = (select oid from pg_database where datname = current_database()) order by 1, 2",
    ] {
        all.push(admin.rows(sql).await);
    }
    all
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

#[tokio::test]
async fn neither_stops_workers_of_the_other() {
    let (db, admin, a, b) = applications("roles_stop").await;
    a.sql("set fetchq.worker = 'mine'; select fetchq.doc_push('q', 'work'); select fetchq.doc_pick('q', 1)")
        .await;
    let subject = a
        .text("select subject from fetchq.leases where worker = 'mine' order by picked_at desc limit 1")
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

/// Whoever may use the schema can call this, so it must not keep a process that nobody can end.
#[tokio::test]
async fn a_long_preview_of_a_schedule_can_be_cancelled() {
    let (db, admin, a, b) = applications("roles_preview").await;
    b.sql("set statement_timeout = '100ms'").await;
    let preview = "select count(*) from fetchq.schedule_preview('every 1 second', n => 20000000)";
    assert_eq!(b.state(preview).await, "57014");
    drop((admin, a, b));
    db.remove().await;
}

/// A producer replaces documents by their subject, but cancels none.
#[tokio::test]
async fn a_producer_cancels_no_document() {
    let (db, admin, a, b) = applications("roles_cancel").await;
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
        assert!(error.message().contains("is not a worker"), "{error}");
    }
    assert_eq!(admin.text(statuses).await, "active2 pending1 planned0");
    a.sql("select fetchq.queue_grant('plain', 'fetchq_app_b', 'worker')")
        .await;
    b.sql("select fetchq.doc_cancel('plain', 'pending')").await;
    assert_eq!(admin.text(statuses).await, "active2 pending-1 planned0");
    drop((admin, a, b));
    db.remove().await;
}
