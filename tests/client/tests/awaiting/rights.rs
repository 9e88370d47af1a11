//! Who may wait for a document, and what is hidden from whom.

use fetchq_client_tests::Server;

use super::{CALL, DEAD, queue};

#[tokio::test]
async fn who_has_a_right_on_the_queue_may_wait() {
    let db = Server::of_suite().database("await_rights").await;
    let session = db.connect().await;
    queue(&session, DEAD).await;
    session
        .sql("select fetchq.doc_pick('q', 2); select fetchq.doc_reject('q', 'a', 'why')")
        .await;
    session
        .sql(&format!(
            "do $$ begin create role {0}_r; create role {0}_p; create role {0}_n; exception when duplicate_object then null; end $$;
            grant usage on schema fetchq, fetchq_data to {0}_n;
            select fetchq.queue_grant('q', '{0}_r', 'reader'); select fetchq.queue_grant('q', '{0}_p', 'producer')",
            db.name
        ))
        .await;
    for (role, expected) in [("r", "killed||why"), ("p", "killed||why"), ("n", "42501")] {
        session.sql(&format!("set role {}_{role}", db.name)).await;
        let got = match session.state(CALL).await.as_str() {
            "" => session.rows(CALL).await.remove(0),
            state => state.to_owned(),
        };
        assert_eq!(got, expected, "{role}");
        session.sql("reset role").await;
    }
    for role in ["r", "p", "n"] {
        session
            .sql(&format!(
                "drop owned by {0}_{role}; drop role {0}_{role}",
                db.name
            ))
            .await;
    }
    db.remove().await;
}

#[tokio::test]
async fn a_dead_letter_of_an_older_queue_with_the_name_is_not_that_of_this_one() {
    let db = Server::of_suite().database("await_older_queue").await;
    let session = db.connect().await;
    queue(&session, DEAD).await;
    session
        .sql("select fetchq.doc_pick('q', 2); select fetchq.doc_reject('q', 'a', 'of the older queue')")
        .await;
    assert_eq!(session.rows(CALL).await, ["killed||of the older queue"]);
    session.sql("select fetchq.queue_drop('q')").await;
    session
        .sql(&format!("select fetchq.queue_create('q', '{DEAD}')"))
        .await;
    assert_eq!(session.state(CALL).await, "P0002");
    db.remove().await;
}
