//! A queue is dropped, and another role creates one of its name, while a call of the first owner runs.

use super::*;

/// Application b has the queues `b_a` and `b_z`, with documents, leased ones too, and a history.
async fn queues_of_b(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let admin = db.connect().await;
    make_roles(&admin).await;
    let b = session_of(&db, "fetchq_app_b").await;
    for queue in ["b_a", "b_z"] {
        b.sql(&format!(
            "select fetchq.queue_create('{queue}', '{{\"history\": {{\"dropped\": \"1 day\"}}}}');
             select fetchq.doc_put('{queue}', 'leased'); select fetchq.doc_pick('{queue}', 1);
             select fetchq.doc_put('{queue}', 's')"
        ))
        .await;
    }
    (db, admin)
}

/// Application b gives the name `b_z` away, and application a takes it.
const TAKE: &str = "set local role fetchq_app_b; select fetchq.queue_drop('b_z');
    set local role fetchq_app_a;
    select fetchq.queue_create('b_z', '{\"history\": {\"dropped\": \"1 day\"}}');
    select fetchq.doc_put('b_z', 'secret leased', priority => 9); select fetchq.doc_pick('b_z', 1);
    select fetchq.doc_put('b_z', 'gone', '{\"a\": \"secret\"}');
    select fetchq.docs_drop('b_z', '{\"subject\": \"gone\"}');
    select fetchq.doc_put('b_z', 's', '{\"a\": \"secret\"}');
    select fetchq.metric_set('b_z', 'secret', 7);
    select fetchq.schedule_create('taken', 'b_z', '@hourly', '{\"a\": \"secret\"}');
    reset role";

/// Calls a function as application b. Where `pause` has it wait, application a takes the name `b_z`. Then
/// the call goes on. Returns its result, or the state of its error.
async fn call_while_taken(db: &Database, admin: &Session, pause: &str, call: &str) -> String {
    admin.sql(&format!("begin; {pause}")).await;
    let caller = session_of(db, "fetchq_app_b").await;
    caller
        .sql("set application_name = 'calls'; set app.waits = 'yes'")
        .await;
    let statement = format!("select coalesce(string_agg(t::text, ' '), '') from fetchq.{call} t");
    let called = tokio::spawn(async move {
        match caller.query_one(&statement, &[]).await {
            Ok(row) => row.get::<_, String>(0),
            Err(e) => fetchq_client_tests::state_of(&e),
        }
    });
    let waits = "select count(*) from pg_stat_activity
        where application_name = 'calls' and wait_event_type in ('Lock', 'Timeout')";
    wait_until("the call waits", async || admin.text(waits).await == "1").await;
    admin.sql(&format!("{TAKE}; commit")).await;
    called.await.expect("the call ends")
}

/// The planner opens the indexes of a table after the table was locked.
const LOCK_INDEX: &str = "alter index fetchq_data.b_a__docs_pkey set tablespace pg_default";

#[tokio::test]
async fn a_call_that_runs_reads_nothing_of_the_new_queue() {
    let lock_history =
        "alter index fetchq_data.b_a__history_subject_id_idx set tablespace pg_default";
    let lock = |table: &str| format!("lock table fetchq.{table} in access exclusive mode");
    for (name, pause, call, state) in [
        ("taken_trace", LOCK_INDEX, "trace('s', 'ASC')", ""),
        ("taken_count", LOCK_INDEX, "metric_compute_all()", ""),
        ("taken_leases", LOCK_INDEX, "lease_list(null)", ""),
        ("taken_history", lock_history, "queue_history(null)", ""),
        (
            "taken_top",
            &lock("queues"),
            "queue_top('b_z', 0, 9, 0)",
            "42501",
        ),
        (
            "taken_metrics",
            &lock("metrics"),
            "metric_get('b_z')",
            "42501",
        ),
        (
            "taken_schedules",
            &lock("schedules"),
            "schedule_list()",
            "42501",
        ),
    ] {
        let (db, admin) = queues_of_b(name).await;
        let found = call_while_taken(&db, &admin, pause, call).await;
        assert!(
            !found.contains("secret") && !found.contains("b_z"),
            "{call}: {found}"
        );
        assert!(found.len() > 5 || found == state, "{call}: {found}");
        drop(admin);
        db.remove().await;
    }
}

/// What application a has in the new queue.
async fn new_queue(admin: &Session) -> Vec<String> {
    let left = "select subject from fetchq_data.b_z__docs union all
        select value::text from fetchq.metrics where queue = 'b_z' and metric = 'secret' order by 1";
    admin.column(left).await
}

#[tokio::test]
async fn a_call_that_runs_changes_nothing_in_the_new_queue() {
    for (name, pause, call, state) in [
        ("taken_truncate", "", "queue_truncate_all(true)", "true"),
        ("taken_reset", "", "metric_reset_all()", ""),
        (
            "taken_drop",
            "lock table fetchq.jobs in access exclusive mode",
            "queue_drop('b_z')",
            "42501",
        ),
    ] {
        let (db, admin) = queues_of_b(name).await;
        // Something that takes long in the first queue.
        admin
            .sql(
                "create table public.go ();
                 create function public.wait() returns trigger language plpgsql as $$ begin
                     while current_setting('app.waits', true) = 'yes' and not exists (select from public.go) loop
                         perform pg_sleep(0.01);
                     end loop;
                     return null;
                 end $$;
                 create trigger t before truncate on fetchq_data.b_a__docs for each statement execute function public.wait();
                 create trigger t before delete on fetchq.metrics for each statement execute function public.wait()",
            )
            .await;
        let pause = format!("insert into public.go default values; {pause}");
        let found = call_while_taken(&db, &admin, &pause, call).await;
        assert!(state.is_empty() || found == state, "{call}: {found}");
        assert_eq!(
            new_queue(&admin).await,
            ["7", "s", "secret leased"],
            "{call}"
        );
        drop(admin);
        db.remove().await;
    }
}
