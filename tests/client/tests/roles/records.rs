//! What one role records, and others read.

use super::*;

/// Who may create queues says where a queue lives, and changes no record of another role.
#[tokio::test]
async fn a_place_is_changed_by_the_role_that_has_recorded_it() {
    let (db, admin, a, b) = applications("roles_places").await;
    admin
        .sql("select fetchq.queue_place_set('far', 'db1')")
        .await;
    a.sql("select fetchq.queue_place_set('away', 'db2')").await;
    for session in [&a, &b] {
        for place in ["'db9'", "null", "'db1'"] {
            let call = format!("select fetchq.queue_place_set('far', {place})");
            assert_eq!(session.state(&call).await, "42501", "{place}");
        }
    }
    for place in ["'db9'", "null"] {
        let call = format!("select fetchq.queue_place_set('away', {place})");
        assert_eq!(b.state(&call).await, "42501", "{place}");
    }
    let places = "select place from fetchq.queue_places order by 1";
    assert_eq!(admin.column(places).await, ["db1", "db2"]);
    a.sql("select fetchq.queue_place_set('away', 'db3')").await;
    admin
        .sql("select fetchq.queue_place_set('away', 'db4')")
        .await;
    assert_eq!(
        a.text("select fetchq.queue_place_set('away', null)").await,
        "t"
    );
    assert_eq!(
        admin
            .text("select fetchq.queue_place_set('far', null)")
            .await,
        "t"
    );
    drop((admin, a, b));
    db.remove().await;
}

/// A manager writes any number into its counters. The state that everybody sees adds up none below 0.
#[tokio::test]
async fn a_counter_below_zero_hides_no_backlog() {
    let (db, admin, a, b) = applications("roles_backlog").await;
    let backlog = "select detail from fetchq.status() where component = 'backlog'";
    let before = admin.text(backlog).await;
    b.sql("select fetchq.queue_create('mal'); select fetchq.metric_set('mal', 'pnd', -1000000)")
        .await;
    assert_eq!(admin.text(backlog).await, before);
    drop((admin, a, b));
    db.remove().await;
}

/// A role that has rights on queues would lose them with the tables.
#[tokio::test]
async fn the_owner_of_the_tables_has_no_queues_of_its_own() {
    let (db, admin, a, b) = applications("roles_data_owner").await;
    a.sql("select fetchq.queue_grant('q', 'fetchq_app_b_reader', 'reader'), fetchq.queue_grant('q', 'fetchq_app_b_producer', 'producer')")
        .await;
    for role in [
        "fetchq_app_a",
        "fetchq_app_b_reader",
        "fetchq_app_b_producer",
    ] {
        let call = format!("select fetchq.data_owner_set('{role}')");
        assert_eq!(admin.state(&call).await, "22023", "{role}");
    }
    // Nor does it use the rights of a role that it is a member of, if it does not inherit them.
    admin
        .sql("begin; create role fetchq_app_apart nologin noinherit")
        .await;
    let call = "select fetchq.data_owner_set('fetchq_app_apart')";
    assert_eq!(admin.state(call).await, "22023");
    admin.sql("rollback").await;
    let owns = "select fetchq.queue_has_right('q', 'owner')";
    assert_eq!(a.text(owns).await, "t");
    for role in ["fetchq_app_nobody", "postgres"] {
        admin
            .sql(&format!("select fetchq.data_owner_set('{role}')"))
            .await;
        assert_eq!(a.text(owns).await, "t", "{role}");
    }
    drop((admin, a, b));
    db.remove().await;
}
