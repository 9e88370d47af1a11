//! Objects that a role makes where a queue of another one expects its own.

use super::*;

#[tokio::test]
async fn nobody_plants_a_table_where_a_queue_expects_its_own() {
    let (db, admin, a, b) = applications("roles_plant").await;
    for sql in [
        "create table fetchq_data.later__history (id int)",
        "create table fetchq_data.later__docs (id int)",
        "create view fetchq_data.later__logs as select 1",
        "create function fetchq_data.now() returns timestamptz language sql as 'select clock_timestamp()'",
        "create table fetchq.mine (id int)",
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
    // Whoever has a right on the queue has it on its own table alone.
    for kind in KINDS {
        a.sql(&format!(
            "select fetchq.queue_grant('q', 'fetchq_app_b', '{kind}')"
        ))
        .await;
        assert_eq!(b.state(insert).await, "39P01", "{kind}");
        a.sql(&format!(
            "select fetchq.queue_revoke('q', 'fetchq_app_b', '{kind}')"
        ))
        .await;
    }
    assert_eq!(admin.rows(slots).await, before);
    drop((admin, a, b));
    db.remove().await;
}
