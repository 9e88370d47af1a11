//! The row `horizon` of `fetchq.status()` names what holds back the removal of dead rows, and
//! nothing else.

use fetchq_client_tests::{Cluster, Database, Session, wait_for_rows, wait_until};

const HORIZON: &str = "select detail from fetchq.status() where component = 'horizon'";
const STATE: &str =
    "select state, hint is not null from fetchq.status() where component = 'horizon'";

async fn server(name: &str, settings: &str) -> (Cluster, Database, Session) {
    let cluster = Cluster::new(
        name,
        &format!("shared_preload_libraries = 'fetchq'\nautovacuum = off\n{settings}"),
    );
    cluster.start();
    let db = cluster.server().database(name).await;
    let session = db.connect().await;
    (cluster, db, session)
}

async fn named(db: &Database, name: &str) -> Session {
    let session = db.connect().await;
    session
        .sql(&format!("set application_name = '{name}'"))
        .await;
    session
}

/// Whether the row names a session.
async fn names(session: &Session, name: &str) -> bool {
    session.text(HORIZON).await.contains(name)
}

/// Uses up more than a million transaction IDs, so that what was there before is old.
async fn age(session: &Session) {
    session
        .sql("do $$ begin for n in 1..1000100 loop perform pg_current_xact_id(); commit; end loop; end $$")
        .await;
}

#[tokio::test]
async fn a_transaction_that_wrote_holds_the_horizon_while_it_is_idle() {
    let (_cluster, db, session) = server("horizon_writer", "").await;
    session.sql("create table public.t ()").await;
    assert_eq!(session.text(HORIZON).await, "");
    let writer = named(&db, "writer").await;
    writer
        .sql("begin; insert into public.t default values")
        .await;
    let snapshot = "select backend_xmin is null and backend_xid is not null from pg_stat_activity where application_name = 'writer'";
    assert_eq!(session.text(snapshot).await, "t");
    assert!(names(&session, "(writer), idle in transaction").await);
    // A later snapshot is as old as the oldest transaction. That one is the cause.
    let reader = named(&db, "reader").await;
    reader
        .sql("begin isolation level repeatable read; select")
        .await;
    assert!(names(&session, "(writer)").await);
    writer.sql("rollback").await;
    assert!(names(&session, "(reader)").await);
    reader.sql("rollback").await;
    assert_eq!(session.rows(STATE).await, ["free|f"]);
    assert_eq!(session.text(HORIZON).await, "");
}

#[tokio::test]
async fn a_snapshot_in_another_database_does_not_hold_this_one() {
    let (cluster, _db, session) = server("horizon_elsewhere", "").await;
    let other = cluster.server().empty_database("horizon_other").await;
    let reader = named(&other, "elsewhere").await;
    reader
        .sql("begin isolation level repeatable read; select")
        .await;
    assert_eq!(session.text(HORIZON).await, "");
    // The snapshots of all databases begin at the oldest transaction that writes.
    reader.sql("select pg_current_xact_id()").await;
    assert!(names(&session, "(elsewhere)").await);
}

#[tokio::test]
async fn the_callers_own_transaction_counts() {
    let (_cluster, db, _session) = server("horizon_own", "").await;
    let own = named(&db, "caller").await;
    own.sql("begin").await;
    assert_eq!(own.text(HORIZON).await, "");
    own.sql("select pg_current_xact_id()").await;
    assert!(names(&own, "(caller)").await);
    own.sql("rollback; begin isolation level repeatable read; select")
        .await;
    assert!(names(&own, "(caller)").await);
    own.sql("rollback").await;
    assert_eq!(own.text(HORIZON).await, "");
}

#[tokio::test]
async fn a_vacuum_does_not_hold_the_horizon() {
    let (_cluster, db, session) = server("horizon_vacuum", "").await;
    session
        .sql("create table public.t as select n, repeat('x', 500) as x from generate_series(1, 20000) n; delete from public.t where n % 2 = 0")
        .await;
    let vacuum = named(&db, "cleaner").await;
    vacuum
        .sql("set vacuum_cost_delay = '100 ms'; set vacuum_cost_limit = 1")
        .await;
    let cancel = vacuum.cancel_token();
    let running = tokio::spawn(async move { vacuum.batch_execute("vacuum public.t").await });
    let has_snapshot = "select count(*) from pg_stat_activity a join pg_stat_progress_vacuum using (pid) where a.backend_xmin is not null";
    wait_for_rows("the vacuum runs", &session, has_snapshot, &["1"]).await;
    assert_eq!(session.text(HORIZON).await, "");
    assert_eq!(session.text(has_snapshot).await, "1");
    cancel
        .cancel_query(tokio_postgres::NoTls)
        .await
        .expect("cancel");
    assert!(running.await.unwrap().is_err());
}

#[tokio::test]
async fn what_track_activities_hides_is_unknown() {
    let (_cluster, db, session) = server("horizon_hidden", "").await;
    let reader = named(&db, "reader").await;
    reader
        .sql("set track_activities = off; begin isolation level repeatable read; select")
        .await;
    assert_eq!(session.rows(STATE).await, ["unknown|t"]);
    reader.sql("rollback").await;
    assert_eq!(session.rows(STATE).await, ["free|f"]);
    // A session of another role that has no snapshot hides nothing.
    session
        .sql("create role app; grant usage on schema fetchq to app; set role app")
        .await;
    assert_eq!(session.rows(STATE).await, ["free|f"]);
    // Nobody can make the state unknown by a statement of that text.
    let _ = reader.simple_query("<insufficient privilege>").await;
    session.sql("reset role").await;
    assert_eq!(session.rows(STATE).await, ["free|f"]);
}

/// A standby with hot_standby_feedback always reports a snapshot, which is young as a rule.
#[tokio::test]
async fn everything_that_can_hold_it_is_named_in_turn() {
    let (primary, db, session) = server(
        "horizon_primary",
        "max_prepared_transactions = 2\nwal_level = logical\nmax_replication_slots = 2",
    )
    .await;
    let standby_cluster = primary.standby(
        "horizon_standby",
        "hot_standby_feedback = on\nwal_receiver_status_interval = 1",
    );
    wait_until("the standby reports its snapshots", async || {
        names(&session, "walsender").await
    })
    .await;
    // How long the connection has lasted says nothing about the snapshot.
    assert!(names(&session, "since unknown").await);
    assert_eq!(session.rows(STATE).await, ["free|f"]);

    // The slot comes first, because it waits for all transactions.
    session
        .sql("select pg_create_logical_replication_slot('idle', 'pgoutput')")
        .await;
    session
        .sql("begin; create table public.p (); prepare transaction 'forgotten'")
        .await;
    let standby = standby_cluster.server().connect(&db.name).await;
    standby
        .sql("set application_name = 'report'; begin isolation level repeatable read; select")
        .await;
    let reader = named(&db, "reader").await;
    reader
        .sql("begin isolation level repeatable read; select")
        .await;
    age(&session).await;

    let held = async |what: &str| {
        wait_until(what, async || names(&session, what).await).await;
        assert_eq!(session.rows(STATE).await, ["held|t"]);
    };
    held("prepared transaction forgotten").await;
    session.sql("rollback prepared 'forgotten'").await;
    wait_until("a snapshot is the next one", async || {
        names(&session, "walsender").await || names(&session, "(reader)").await
    })
    .await;
    reader.sql("rollback").await;
    held("walsender").await;
    // On the standby itself it is named too.
    wait_for_rows("the standby too", &standby, STATE, &["held|t"]).await;
    let hint = "select hint like '%hot_standby_feedback%' from fetchq.status() where component = 'horizon'";
    assert_eq!(standby.text(hint).await, "t");
    standby.sql("rollback").await;
    held("replication slot idle").await;
    // It keeps dead rows of the system catalogs only.
    assert!(names(&session, "catalogs").await);
    session.sql("select pg_drop_replication_slot('idle')").await;
    wait_for_rows("nothing holds it", &session, STATE, &["free|f"]).await;
}
