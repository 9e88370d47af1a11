//! The launcher and the workers: what is due happens, whatever happens to them, and
//! they are in nobody's way.

use std::time::Duration;

use fetchq_client_tests::{Cluster, Database, Session, counters_are_exact, wait_until};

/// Processes of ours: type, and database of a worker.
const PROCESSES: &str = "select backend_type || coalesce(' of ' || datname, '')
    from pg_stat_activity where backend_type like 'fetchq %' order by 1";

fn cluster(name: &str, settings: &str) -> Cluster {
    let cluster = Cluster::new(name, &format!("fetchq.worker = on\n{settings}"));
    cluster.start();
    cluster
}

async fn has_worker(admin: &Session, database: &str) -> bool {
    let wanted = format!("fetchq worker of {database}");
    admin.column(PROCESSES).await.contains(&wanted)
}

async fn worker_comes(admin: &Session, database: &str) {
    wait_until("the worker runs", async || {
        has_worker(admin, database).await
    })
    .await;
}

async fn worker_goes(admin: &Session, database: &str) {
    wait_until("the worker is gone", async || {
        !has_worker(admin, database).await
    })
    .await;
}

/// A queue, and a document planned for a moment from now.
async fn planned(session: &Session, subject: &str, delay: &str) {
    session
        .sql(&format!(
            "select fetchq.doc_push('q', '{subject}', 0, 0, clock_timestamp() + interval '{delay}', '{{}}')"
        ))
        .await;
}

async fn becomes(session: &Session, subject: &str, status: i32) {
    wait_until("the document has its status", async || {
        session
            .text(&format!(
                "select status from fetchq_data.q__docs where subject = '{subject}'"
            ))
            .await
            == status.to_string()
    })
    .await;
}

async fn with_queue(cluster: &Cluster, name: &str) -> (Database, Session) {
    let db = cluster.server().database(name).await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    (db, session)
}

#[tokio::test]
async fn what_is_due_happens_without_a_client() {
    let cluster = cluster("due", "");
    let (db, mut session) = with_queue(&cluster, "due").await;
    worker_comes(&session, &db.name).await;

    // Planned, in an order that makes the later ones earlier than what it waits for.
    for (subject, delay) in [("a", "2 s"), ("b", "500 ms"), ("c", "1 s")] {
        planned(&session, subject, delay).await;
    }
    for subject in ["b", "c", "a"] {
        becomes(&session, subject, 1).await;
    }
    let late = session
        .text("select count(*) from fetchq_data.q__docs where status <> 1")
        .await;
    assert_eq!(late, "0");

    // A lease that runs out, until its attempts are used up.
    session
        .sql("update fetchq.queues set max_attempts = 2")
        .await;
    session
        .sql("select fetchq.doc_pick('q', 0, 3, '200 ms')")
        .await;
    becomes(&session, "a", 1).await;
    session
        .sql("select fetchq.doc_pick('q', 0, 3, '200 ms')")
        .await;
    becomes(&session, "a", -1).await;
    becomes(&session, "c", -1).await;

    // Documents that nobody counts: the table is written by plain SQL.
    session
        .sql(
            "select fetchq.queue_create('plain');
             insert into fetchq_data.plain__docs (subject, next_iteration) values ('plain', clock_timestamp() + interval '300 ms')",
        )
        .await;
    wait_until("it is pending", async || {
        let sql = "select status from fetchq_data.plain__docs";
        session.text(sql).await == "1"
    })
    .await;

    // A transaction that is open when its document becomes due.
    let other = db.connect().await;
    other.sql("begin").await;
    planned(&other, "slow", "100 ms").await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    other.sql("commit").await;
    becomes(&session, "slow", 1).await;

    // The counters are packed, and right.
    counters_are_exact(&mut session, "q").await;
    assert_eq!(
        session
            .text("select floor_misses from fetchq.ready_stats()")
            .await,
        "0"
    );
}

#[tokio::test]
async fn it_comes_and_goes_with_the_extension_and_the_settings() {
    let cluster = cluster("extension", "");
    let admin = cluster.server().connect("postgres").await;
    assert!(!has_worker(&admin, "postgres").await);
    let (db, session) = with_queue(&cluster, "extension").await;
    worker_comes(&admin, &db.name).await;

    session.sql("drop extension fetchq cascade").await;
    worker_goes(&admin, &db.name).await;
    session
        .sql("create extension fetchq; select fetchq.queue_create('q')")
        .await;
    worker_comes(&admin, &db.name).await;

    admin
        .sql("alter system set fetchq.databases = 'postgres, somewhere_else'")
        .await;
    admin.sql("select pg_reload_conf()").await;
    worker_goes(&admin, &db.name).await;
    admin.sql("alter system reset fetchq.databases").await;
    admin.sql("select pg_reload_conf()").await;
    worker_comes(&admin, &db.name).await;

    admin.sql("alter system set fetchq.worker = off").await;
    admin.sql("select pg_reload_conf()").await;
    worker_goes(&admin, &db.name).await;
}

#[tokio::test]
async fn it_is_not_in_the_way_of_commands_on_its_database() {
    let cluster = cluster("commands", "");
    let (db, session) = with_queue(&cluster, "commands").await;
    let admin = cluster.server().connect("postgres").await;
    worker_comes(&admin, &db.name).await;
    std::mem::drop(session);

    admin
        .sql(&format!("create database copied template {}", db.name))
        .await;
    worker_comes(&admin, "copied").await;
    worker_comes(&admin, &db.name).await;
    admin.sql("alter database copied rename to renamed").await;
    worker_comes(&admin, "renamed").await;
    admin.sql("drop database renamed").await;
    admin.sql(&format!("drop database {}", db.name)).await;
    wait_until("only the launcher is left", async || {
        admin.column(PROCESSES).await == ["fetchq launcher"]
    })
    .await;
}

#[tokio::test]
async fn it_comes_back_after_any_kill() {
    let cluster = cluster("killed", "restart_after_crash = on");
    let (db, session) = with_queue(&cluster, "killed").await;
    worker_comes(&session, &db.name).await;
    session
        .sql("insert into fetchq_data.q__docs (subject, next_iteration) select 'd' || n, now() from generate_series(1, 20000) n")
        .await;
    std::mem::drop(session);
    for process in ["fetchq worker", "fetchq launcher"] {
        let pid = {
            let admin = cluster.server().connect("postgres").await;
            wait_until("it runs", async || admin.column(PROCESSES).await.len() == 2).await;
            admin
                .text(&format!(
                    "select pid from pg_stat_activity where backend_type = '{process}'"
                ))
                .await
        };
        // The server restarts all of its processes.
        cluster.kill(pid.parse().unwrap());
        wait_until("the server is back", async || {
            match cluster.server().try_connect("postgres").await {
                Ok(admin) => admin.simple_query("select 1").await.is_ok(),
                Err(_) => false,
            }
        })
        .await;
    }
    let mut session = db.connect().await;
    wait_until("all of it is pending", async || {
        session
            .text("select count(*) from fetchq_data.q__docs where status <> 1")
            .await
            == "0"
    })
    .await;
    counters_are_exact(&mut session, "q").await;
    // Told to end, they come back as well.
    session
        .sql("select pg_terminate_backend(pid) from pg_stat_activity where backend_type like 'fetchq %'")
        .await;
    planned(&session, "later", "100 ms").await;
    becomes(&session, "later", 1).await;
}

#[tokio::test]
async fn it_works_with_the_rights_of_the_owner() {
    let cluster = cluster("owner", "");
    let (db, session) = with_queue(&cluster, "owner").await;
    session
        .sql(
            "create role owner_of_q;
             grant usage on schema fetchq, fetchq_data to owner_of_q;
             grant select on fetchq.queues to owner_of_q;
             create table public.seen (who text, super text);
             grant insert on public.seen to owner_of_q;
             create function public.look() returns trigger language plpgsql as $$
             begin
                 insert into public.seen values (current_user, (select rolsuper::text from pg_catalog.pg_roles where rolname = current_user));
                 return new;
             end $$;
             alter table fetchq_data.q__docs owner to owner_of_q;
             create trigger look after update on fetchq_data.q__docs for each row execute function public.look()",
        )
        .await;
    worker_comes(&session, &db.name).await;
    planned(&session, "a", "100 ms").await;
    becomes(&session, "a", 1).await;
    assert_eq!(
        session
            .rows("select distinct who, super from public.seen")
            .await,
        ["owner_of_q|false"]
    );
}
