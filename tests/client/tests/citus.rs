//! examples/citus/setup.sql on a server without Citus: functions of this test stand in for those of Citus.
//! So the statements that the script makes are valid, and its trigger does what it says. What Citus does
//! with them is not tested.

use std::path::Path;

use fetchq_client_tests::{Database, Server, run, run_with_input};

const STAND_INS: &str = include_str!("citus_stand_ins.sql");

fn set_up(db: &Database, variables: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/citus/setup.sql");
    let mut psql = db.client("psql");
    psql.arg("-X").args(variables).arg("-f").arg(script);
    run(&mut psql);
}

async fn with_stand_ins(name: &str) -> Database {
    let db = Server::of_suite().database(name).await;
    let mut psql = db.client("psql");
    run_with_input(psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1"]), STAND_INS);
    db
}

#[tokio::test]
async fn every_call_with_a_queue_is_distributed() {
    let db = with_stand_ins("citus_calls").await;
    let session = db.connect().await;
    set_up(&db, &[]);
    let table = "select argument, colocate_with from distributed where what = 'fetchq_places'";
    assert_eq!(session.rows(table).await, ["queue|none"]);
    // Every call with an argument named queue, and no other one.
    let expected = session
        .column(
            "select p.oid::regprocedure::text from pg_proc p
             where p.pronamespace = 'fetchq'::regnamespace and p.proname <> 'queue_place_set'
                 and pg_get_function_identity_arguments(p.oid) ~ '(^|, |INOUT |IN )queue '
             order by 1",
        )
        .await;
    assert!(expected.len() > 80, "{}", expected.len());
    let distributed = "select what from distributed
        where argument = 'queue' and force_delegation and colocate_with = 'public.fetchq_places' order by 1";
    assert_eq!(session.column(distributed).await, expected);
    for one in [
        "doc_put",
        "doc_lease",
        "schedule_pause",
        "queue_create",
        "work",
    ] {
        let found = expected
            .iter()
            .any(|f| f.starts_with(&format!("fetchq.{one}(")));
        assert!(found, "{one}");
    }
    // After an update of fetchq it runs again, and leaves the map as it is.
    set_up(&db, &[]);
    assert_eq!(session.rows(table).await, ["queue|none"]);
    db.remove().await;
}

#[tokio::test]
async fn a_queue_of_another_node_is_not_created_here() {
    let db = with_stand_ins("citus_trigger").await;
    let session = db.connect().await;
    set_up(&db, &[]);
    set_up(&db, &["-v", "worker=on"]);
    let create = |name| format!("select was_created from fetchq.queue_create('{name}')");
    assert_eq!(session.text(&create("mail")).await, "t");
    let error = session
        .simple_query(&create("orders"))
        .await
        .expect_err("it belongs to another node");
    let error = error.as_db_error().expect("an error of the server");
    assert_eq!(error.code().code(), "3D000");
    assert_eq!(
        error.message(),
        "queue \"orders\" belongs to the node db2:5432, and not to this one"
    );
    let hint = error.hint().unwrap_or_default();
    assert!(
        hint.ends_with("select fetchq.queue_create('orders')"),
        "{hint}"
    );
    // Without the queue, a call that was not routed fails, also for a role with the compatibility.
    assert_eq!(
        session.state("select fetchq.doc_put('orders', 'a')").await,
        "42704"
    );
    session
        .sql("select fetchq.queue_place_set('orders', 'db2:5432')")
        .await;
    let push = "set fetchq.compat = '4.2.0'; select fetchq.doc_push('orders', 'a')";
    assert_eq!(session.state(push).await, "3D000");
    db.remove().await;
}
