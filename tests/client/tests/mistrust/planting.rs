//! Objects that a role makes where a queue of another one expects its own.

use super::*;

#[tokio::test]
async fn nobody_plants_a_table_or_a_trigger() {
    let (db, admin, a, b) = applications("mistrust_plant").await;
    for sql in [
        "create table fetchq_data.later__history (id int)",
        "create table fetchq_data.later__docs (id int)",
        "create view fetchq_data.later__logs as select 1",
        "create function fetchq_data.now() returns timestamptz language sql as 'select clock_timestamp()'",
        "create table fetchq.mine (id int)",
        "create trigger planted after insert on fetchq_data.q__docs for each row execute function fetchq.trigger_docs_ready()",
        "alter table fetchq_data.q__docs add column mine int",
    ] {
        assert_eq!(b.state(sql).await, "42501", "{sql}");
    }
    // The trigger functions of fetchq act only on the tables that they were made for.
    admin
        .sql("create schema app_b authorization fetchq_app_b")
        .await;
    admin
        .sql("create table app_b.q__docs (like fetchq_data.q__docs); alter table app_b.q__docs owner to fetchq_app_b")
        .await;
    let trigger = "create trigger t after insert on app_b.q__docs for each row execute function fetchq.trigger";
    assert_eq!(
        b.state(&format!("{trigger}_queue_changed()")).await,
        "42501"
    );
    let slots = "select * from fetchq.lease_slots order by 1, 2";
    let before = admin.rows(slots).await;
    b.sql(&format!("{trigger}_docs_cap()")).await;
    let insert = "insert into app_b.q__docs (subject, version, priority, status, attempts, iterations, next_iteration, seq)
        values ('x', 0, 0, 2, 0, 0, now(), 1)";
    assert_eq!(b.state(insert).await, "42501");
    assert_eq!(admin.rows(slots).await, before);
    drop((admin, a, b));
    db.remove().await;
}

/// The owner of a table can have an index with a name of its choice, without CREATE on the schema:
/// the table gets a unique index as a partition, and a constraint renames it.
#[tokio::test]
async fn an_index_with_the_name_of_a_table_stops_no_other_queue() {
    let (db, admin, a, b) = applications("mistrust_names_taken").await;
    a.sql(
        "select fetchq.queue_create('plain'); select fetchq.queue_create('gone');
         select fetchq.queue_drop_indexes('plain');
         select fetchq.doc_push('plain', 'x')",
    )
    .await;
    admin
        .sql("create schema app_b authorization fetchq_app_b")
        .await;
    b.sql("select fetchq.queue_create('mine'); create table app_b.parent (like fetchq_data.mine__docs) partition by list (subject)")
        .await;
    let taken = [
        ("plain__history", "version"),
        ("gone__history", "priority"),
        ("later__docs", "status"),
        ("plain__docs_pick_idx", "attempts"),
        ("plain__docs_blocked_idx", "iterations"),
    ];
    for (_, column) in taken {
        b.sql(&format!(
            "create unique index on app_b.parent (subject, {column})"
        ))
        .await;
    }
    b.sql(
        // PostgreSQL 17 attaches no table that has an identity column.
        "alter table fetchq_data.mine__docs alter seq drop identity if exists;
         alter table app_b.parent attach partition fetchq_data.mine__docs default;
         alter table app_b.parent detach partition fetchq_data.mine__docs",
    )
    .await;
    for (name, column) in taken {
        b.sql(&format!(
            "alter table fetchq_data.mine__docs add constraint {name} unique using index mine__docs_subject_{column}_idx"
        ))
        .await;
    }
    let owners = "select count(*) from pg_class c join pg_index i on i.indexrelid = c.oid
        where c.relname in ('plain__history', 'gone__history', 'later__docs', 'plain__docs_pick_idx', 'plain__docs_blocked_idx')
            and i.indrelid = 'fetchq_data.mine__docs'::regclass";
    assert_eq!(admin.text(owners).await, "5");

    // What needs no new table works as before.
    for sql in [
        "select * from fetchq.doc_pick('plain', 1)",
        "select fetchq.doc_complete('plain', 'x')",
        "select fetchq.queue_history('plain')",
        "select fetchq.queue_history(null)",
        "select fetchq.queue_grant('plain', 'fetchq_app_b', 'reader')",
        "select fetchq.queue_revoke('plain', 'fetchq_app_b', 'reader')",
        "select fetchq.queue_trim_history('plain')",
        "select fetchq.queue_truncate('plain', true)",
        "select fetchq.queue_drop('gone')",
    ] {
        assert_eq!(a.state(sql).await, "", "{sql}");
    }
    admin
        .sql("update fetchq.jobs set next_iteration = now() where queue = 'plain'; select fetchq.mnt_job_run(100)")
        .await;
    let failed = "select count(*) from fetchq.jobs where queue = 'plain' and payload ? 'error'";
    assert_eq!(admin.text(failed).await, "0");

    // What needs the name says who has it.
    for sql in [
        "select fetchq.queue_configure('plain', '{\"history\": {\"completed\": \"1 day\"}}')",
        "select fetchq.queue_create('later')",
        "select fetchq.queue_create_indexes('plain')",
    ] {
        let refused = a.batch_execute(sql).await.unwrap_err();
        let error = error_of(&refused);
        assert_eq!(error.code().code(), "42P07", "{sql}");
        assert!(error.message().contains("fetchq_app_b"), "{error}");
    }
    admin
        .sql("alter table fetchq_data.mine__docs drop constraint plain__history; alter table fetchq_data.mine__docs drop constraint plain__docs_pick_idx")
        .await;
    a.sql("select fetchq.queue_configure('plain', '{\"history\": {\"completed\": \"1 day\"}}'); select fetchq.queue_create_indexes('plain')")
        .await;
    a.sql("select fetchq.queue_drop('plain')").await;
    drop((admin, a, b));
    db.remove().await;
}
