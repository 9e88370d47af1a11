//! Who may wait for a document, and what is hidden from whom.

use fetchq_client_tests::Server;

use super::{CALL, DEAD, asleep, queue, waits, woken};

#[tokio::test]
async fn who_may_read_may_wait() {
    let db = Server::of_suite().database("await_rights").await;
    let session = db.connect().await;
    queue(&session, DEAD).await;
    session
        .sql("select fetchq.doc_lease('q', 2); select fetchq.doc_reject('q', 'a', 'why')")
        .await;
    session
        .sql(&format!(
            "do $$ begin create role {0}_r; create role {0}_p; create role {0}_n; exception when duplicate_object then null; end $$;
            grant usage on schema fetchq, fetchq_data to {0}_n;
            select fetchq.queue_grant('q', '{0}_r', 'reader'); select fetchq.queue_grant('q', '{0}_p', 'producer')",
            db.name
        ))
        .await;
    for (role, expected) in [("r", "killed||why"), ("p", "42501"), ("n", "42501")] {
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
async fn a_dead_letter_tells_nothing_about_documents_that_the_caller_may_not_see() {
    let db = Server::of_suite().database("await_hidden").await;
    let session = db.connect().await;
    queue(&session, DEAD).await;
    let role = format!("{}_r", db.name);
    session
        .sql(&format!(
            "select fetchq.doc_lease('q', 2); select fetchq.doc_reject('q', 'a', 'why'), fetchq.doc_reject('q', 'x', 'secret');
            do $$ begin create role {role}; exception when duplicate_object then null; end $$;
            select fetchq.queue_grant('q', '{role}', 'reader');
            alter table fetchq_data.q__docs enable row level security;
            create policy own on fetchq_data.q__docs for select to {role} using (subject = 'a')"
        ))
        .await;
    let call = |subject: &str| format!("call fetchq.doc_await('q', '{subject}', '0 s')");
    assert_eq!(session.rows(&call("x")).await, ["killed||secret"]);
    session.sql(&format!("set role {role}")).await;
    // Both have left the queue, so nothing tells to which of them the policy applies.
    assert_eq!(session.state(&call("x")).await, "P0002");
    assert_eq!(session.state(&call("a")).await, "P0002");
    session
        .sql("reset role; select fetchq.doc_put('q', 'a'); select fetchq.doc_lease('q')")
        .await;
    // A session that has seen the document learns why it was killed.
    let waiting = waits(&db, &format!("set role {role}\n{CALL}")).await;
    asleep(&session, 1).await;
    session
        .sql("select fetchq.doc_reject('q', 'a', 'again')")
        .await;
    let outcome = woken(waiting, "a policy").await.unwrap();
    assert_eq!(outcome, "killed||again");
    session
        .sql(&format!("drop owned by {role}; drop role {role}"))
        .await;
    db.remove().await;
}

#[tokio::test]
async fn a_dead_letter_of_an_older_queue_with_the_name_is_not_that_of_this_one() {
    let db = Server::of_suite().database("await_older_queue").await;
    let session = db.connect().await;
    queue(&session, DEAD).await;
    session
        .sql("select fetchq.doc_lease('q', 2); select fetchq.doc_reject('q', 'a', 'of the older queue')")
        .await;
    assert_eq!(session.rows(CALL).await, ["killed||of the older queue"]);
    session.sql("select fetchq.queue_drop('q')").await;
    session
        .sql(&format!("select fetchq.queue_create('q', '{DEAD}')"))
        .await;
    assert_eq!(session.state(CALL).await, "P0002");
    db.remove().await;
}
