//! A library that does not fit the catalog, as between the installation of new files and `alter
//! extension fetchq update`: it says so, and changes nothing.
//!
//! The suite `versions` does this with real files. Here the row of the extension is changed, and the
//! definition of the table `fetchq.queues`, which tells sessions to look at the version again.

use fetchq_client_tests::{
    Database, Function, Server, Session, error_of, functions, prepare_queue, state_of, wait_until,
    with_worker, worker_comes, worker_goes,
};

/// Functions that work with a catalog of any version. All others are refused.
const ALLOWED: &[&str] = &[
    "info",
    "init",
    "ready_stats",
    "status",
    "upgrade__310__320",
    "upgrade__320__330",
    "upgrade__330__400",
];

/// Functions in SQL, which come with the catalog and belong to its version.
const IN_SQL: &str = "select proname::text from pg_proc p join pg_language l on l.oid = prolang
    where pronamespace = 'fetchq'::regnamespace and lanname <> 'c'";

/// The SQLSTATE of the error.
const UNFIT: &str = "42P15";

const NEWER: &str = "999.0.0";
const OLDER: &str = "4.9.0";

/// Does what an upgrade does.
async fn catalog_becomes(session: &Session, version: &str) {
    session
        .sql(&format!(
            "begin;
             update pg_extension set extversion = '{version}' where extname = 'fetchq';
             alter table fetchq.queues alter column name set statistics -1;
             commit"
        ))
        .await;
}

async fn own_version(session: &Session) -> String {
    session
        .text("select library_version from fetchq.info()")
        .await
}

/// All that the database has, as text.
async fn contents(session: &Session) -> Vec<String> {
    let tables = session
        .column(
            "select format('%I.%I', nspname, relname) from pg_class c join pg_namespace n on n.oid = relnamespace
             where nspname in ('fetchq', 'fetchq_data') and relkind = 'r' order by 1",
        )
        .await;
    let mut all = Vec::new();
    for table in tables {
        let rows = session.rows(&format!("table {table}")).await;
        all.extend(rows.into_iter().map(|row| format!("{table}: {row}")));
    }
    all.sort();
    all
}

/// Calls every function; returns the ones that were not refused as they should be.
async fn not_refused(session: &Session, version: &str, hint: &str) -> Vec<String> {
    let in_sql = session.column(IN_SQL).await;
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for function in functions(session).await {
        if in_sql.contains(&function.name) {
            continue;
        }
        let is_allowed = ALLOWED.contains(&function.name.as_str());
        let statement = function.prepare(session).await;
        match Function::call(session, &statement, &function.valid()).await {
            Ok(_) if is_allowed => {}
            Ok(_) => wrong.push(format!("{} was accepted", function.signature())),
            Err(e) => {
                let error = error_of(&e);
                let is_right = state_of(&e) == UNFIT
                    && error.message().contains(version)
                    && error.hint().unwrap_or("").contains(hint);
                if is_allowed || !is_right {
                    wrong.push(format!("{}: {error:?}", function.signature()));
                }
                refused += 1;
            }
        }
    }
    assert!(refused > 80, "{refused}");
    wrong
}

async fn database(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    prepare_queue(&session).await;
    (db, session)
}

#[tokio::test]
async fn every_call_is_refused_with_a_catalog_of_another_version_and_changes_nothing() {
    let (db, session) = database("other_version").await;
    let own = own_version(&session).await;
    let before = contents(&session).await;
    for (version, hint) in [
        (OLDER, "alter extension fetchq update"),
        (NEWER, "Install the files of fetchq 999.0.0"),
    ] {
        catalog_becomes(&session, version).await;
        assert_eq!(
            not_refused(&session, version, hint).await,
            Vec::<String>::new()
        );
        for call in [
            "call fetchq.queue_wait('{q}', '1 ms', null)",
            "call fetchq.doc_await('q', 'a', '1 ms')",
            "insert into fetchq_data.q__docs (subject, status) values ('direct', 1)",
        ] {
            assert_eq!(session.state(call).await, UNFIT, "{call}");
        }
        assert_eq!(contents(&session).await, before);
        // The versions, and what to do.
        assert_eq!(
            session
                .rows("select extension_version, library_version from fetchq.info()")
                .await,
            [format!("{version}|{own}")]
        );
        let rows = session
            .rows("select component, state, detail, hint from fetchq.status()")
            .await;
        assert_eq!(rows.len(), 1, "{rows:?}");
        assert!(rows[0].starts_with("library|other version|"), "{rows:?}");
        assert!(
            rows[0].contains(version) && rows[0].contains(hint),
            "{rows:?}"
        );
    }
    catalog_becomes(&session, &own).await;
    assert_eq!(
        session.text("select fetchq.doc_push('q', 'after')").await,
        "1"
    );
    db.remove().await;
}

#[tokio::test]
async fn a_session_at_work_notices_the_upgrade_by_another_one() {
    let (db, session) = database("upgraded_meanwhile").await;
    let own = own_version(&session).await;
    let push = "select fetchq.doc_append('q', '{}')";
    assert_eq!(session.state(push).await, "");
    let other = db.connect().await;

    // Also in the middle of a transaction: the call locks the queue, and then knows.
    session.sql("begin").await;
    assert_eq!(session.state(push).await, "");
    catalog_becomes(&other, NEWER).await;
    assert_eq!(session.state(push).await, UNFIT);
    session.sql("rollback").await;
    assert_eq!(session.state(push).await, UNFIT);
    assert_eq!(db.connect().await.state(push).await, UNFIT);
    catalog_becomes(&other, &own).await;
    assert_eq!(session.state(push).await, "");

    // What was rolled back counts neither during the transaction of another session nor later.
    other
        .sql(&format!(
            "begin; update pg_extension set extversion = '{NEWER}' where extname = 'fetchq';
             alter table fetchq.queues alter column name set statistics -1"
        ))
        .await;
    assert_eq!(session.state(push).await, "");
    assert_eq!(
        other
            .state("savepoint s; select fetchq.doc_append('q', '{}')")
            .await,
        UNFIT
    );
    other.sql("rollback").await;
    assert_eq!(other.state(push).await, "");
    assert_eq!(session.state(push).await, "");
    db.remove().await;
}

#[tokio::test]
async fn the_background_worker_leaves_a_database_of_another_version_alone() {
    let cluster = with_worker("other_version", "");
    let db = cluster.server().database("other_version").await;
    let session = db.connect().await;
    let own = own_version(&session).await;
    session
        .sql("select fetchq.queue_create('q'); select fetchq.schedule_create('s', 'q', '1 second')")
        .await;
    worker_comes(&session, &db.name).await;
    let ticks = "select count(*) > 0 from fetchq_data.q__docs";
    wait_until("the schedule ticks", async || {
        session.text(ticks).await == "t"
    })
    .await;

    for (version, what) in [(NEWER, "is newer than"), (OLDER, "is older than")] {
        catalog_becomes(&session, version).await;
        worker_goes(&session, &db.name).await;
        let before = contents(&session).await;
        let said = || {
            let lines = cluster.log_lines();
            let said = lines
                .into_iter()
                .filter(|line| line.contains("gets no background worker"));
            said.filter(|line| line.contains(what)).collect::<Vec<_>>()
        };
        wait_until("the log says it", async || !said().is_empty()).await;
        assert_eq!(said().len(), 1, "{:?}", said());
        assert!(said()[0].contains(&format!("database \"{}\"", db.name)));
        assert_eq!(contents(&session).await, before);

        // The end of the upgrade starts it again.
        catalog_becomes(&session, &own).await;
        session.sql("select fetchq.background_worker_wake()").await;
        worker_comes(&session, &db.name).await;
    }
    // Nothing else was logged: no failure, no restart.
    let failures: Vec<_> = cluster
        .log_lines()
        .into_iter()
        .filter(|line| line.contains("fetchq background worker:") || line.contains("exited with"))
        .collect();
    assert_eq!(failures, Vec::<String>::new());
    cluster.stop("fast");
}
