//! Leases that are lost, lists that are rolled back, and sessions that are killed.

use fetchq_client_tests::{Cluster, Server, all_of, counters_are_exact, state_of, wait_until};

use super::{lease, mixed};

#[tokio::test]
async fn a_lease_that_another_session_ends_is_lost_alone() {
    let db = Server::of_suite().database("settle_lost").await;
    let mut session = db.connect().await;
    let other = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    for direct in ["on", "off"] {
        session
            .sql(&format!(
                "set fetchq.direct = {direct}; select fetchq.queue_truncate('q', true)"
            ))
            .await;
        let number = lease(&session, 14).await;
        // The other session cancels d3, settles d5, and picks d8 after it has expired.
        other
            .sql(&format!(
                "select fetchq.doc_cancel('q', 'd3'); select fetchq.doc_drop('q', 'd5', {number});
                 update fetchq_data.q__docs set next_iteration = now() - interval '1 second' where subject = 'd8';
                 select fetchq.mnt_reschedule_orphans('q', 10)"
            ))
            .await;
        assert_eq!(
            other
                .column("select subject from fetchq.doc_lease('q', 9)")
                .await,
            ["d8"]
        );
        let list = mixed(1..=14, &number);
        // All or nothing: nothing.
        let all = format!("select * from fetchq.docs_settle('q', {list}, 'error')");
        assert_eq!(session.state(&all).await, "55000");
        let active = "select count(*) from fetchq_data.q__docs where status = 2";
        assert_eq!(session.text(active).await, "12");
        counters_are_exact(&mut session, "q").await;
        // What can be settled is settled.
        let unsettled = format!(
            "select subject, outcome, status from fetchq.docs_settle('q', {list}) where outcome <> 'settled'"
        );
        assert_eq!(
            session.rows(&unsettled).await,
            ["d3|lost|killed", "d5|missing|", "d8|lost|active"]
        );
        assert_eq!(session.text(active).await, "1");
        // The other session still has its lease.
        let settles = "select subject from fetchq.docs_next('q', (select jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'drop'))
            from fetchq_data.q__docs where status = 2), on_lost => 'error')";
        assert_eq!(other.column(settles).await, Vec::<String>::new());
        assert_eq!(session.text(active).await, "0");
        counters_are_exact(&mut session, "q").await;
    }
    db.remove().await;
}

#[tokio::test]
async fn the_warning_about_documents_that_were_not_settled_has_a_state() {
    let db = Server::of_suite().database("settle_warns").await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    lease(&session, 1).await;
    let list = r#"'[{"subject": "d1", "lease": 7, "action": "drop"}, {"subject": "d2", "action": "drop"}]'"#;
    session.notices();
    session
        .sql(&format!(
            "select fetchq.docs_next('q', {list}, on_lost => 'warning')"
        ))
        .await;
    let notices = session.notices();
    let [warning] = &notices[..] else {
        panic!("{notices:?}");
    };
    assert_eq!(
        (warning.severity(), warning.code().code()),
        ("WARNING", "55000")
    );
    assert_eq!(
        warning.message(),
        "2 of 2 documents of queue \"q\" were not settled: \"d1\" (it was picked again), \"d2\" (there is no such document)"
    );
    assert!(warning.hint().unwrap_or("").contains("on_lost"));
    // With the same SQLSTATE it is an error unless the caller says otherwise.
    let fails = format!("select fetchq.docs_next('q', {list})");
    let error = session.query(&fails, &[]).await.expect_err("an error");
    assert_eq!(state_of(&error), "55000");
    session
        .sql(&format!(
            "select fetchq.docs_next('q', {list}, on_lost => 'ignore')"
        ))
        .await;
    db.remove().await;
}

#[tokio::test]
async fn what_is_rolled_back_is_neither_settled_nor_counted() {
    let db = Server::of_suite().database("settle_undone").await;
    let mut session = db.connect().await;
    session
        .sql("select fetchq.queue_create('q'), fetchq.queue_create('other')")
        .await;
    for direct in ["on", "off"] {
        session
            .sql(&format!(
                "set fetchq.direct = {direct}; select fetchq.queue_truncate('q', true)"
            ))
            .await;
        let number = lease(&session, 14).await;
        let list = mixed(1..=14, &number);
        let before = all_of(&mut session, "q").await;
        for undone in [
            format!("begin; select fetchq.docs_settle('q', {list}); rollback"),
            format!("begin; select fetchq.docs_next('q', {list}, 5); rollback"),
            format!(
                "begin; savepoint s; select fetchq.docs_settle('q', {list}); rollback to s; commit"
            ),
            // The documents before d99 are settled when it fails.
            format!(
                "do $$ begin perform fetchq.docs_settle('q', {list}::jsonb || '[{{\"subject\": \"d99\", \"action\": \"drop\"}}]', 'error'); exception when others then null; end $$"
            ),
        ] {
            session.sql(&undone).await;
            assert_eq!(all_of(&mut session, "q").await, before, "{undone}");
        }
        session
            .sql(&format!(
                "begin; select fetchq.docs_settle('q', {list}); commit"
            ))
            .await;
        counters_are_exact(&mut session, "q").await;
    }
    // A trigger of the user's calls fetchq too, and undoes one of the two calls.
    session
        .sql(
            "select fetchq.queue_truncate('q', true);
             create function pushes() returns trigger language plpgsql as $$
             begin
                 perform fetchq.doc_push('other', 'kept ' || new.subject);
                 begin
                     perform fetchq.doc_push('other', 'undone ' || new.subject);
                     raise exception 'undone';
                 exception when raise_exception then
                     null;
                 end;
                 return null;
             end $$;
             create trigger pushes after update on fetchq_data.q__docs for each row when (new.status = 3) execute function pushes()",
        )
        .await;
    let number = lease(&session, 14).await;
    let list = mixed(1..=14, &number);
    session
        .sql(&format!("select fetchq.docs_settle('q', {list})"))
        .await;
    let others = "select count(*) from fetchq_data.other__docs";
    assert_eq!(session.text(others).await, "4");
    counters_are_exact(&mut session, "other").await;
    counters_are_exact(&mut session, "q").await;
    db.remove().await;
}

#[tokio::test]
async fn a_session_killed_in_the_middle_of_a_list_settles_nothing() {
    let cluster = Cluster::new(
        "settle_killed",
        "synchronous_commit = on\nfsync = on\nlog_min_messages = error",
    );
    cluster.start();
    let server = cluster.server();
    let mut session = server.connect("postgres").await;
    session
        .sql(
            "create extension fetchq; select fetchq.queue_create('q');
             create function sleeps() returns trigger language plpgsql as $$
             begin
                 if current_setting('my.sleeps', true) = 'on' then perform pg_sleep(600); end if;
                 return null;
             end $$;
             create trigger sleeps after update on fetchq_data.q__docs for each row when (new.subject = 'd3' and new.status <> 2) execute function sleeps()",
        )
        .await;
    let number = lease(&session, 14).await;
    let list = mixed(1..=14, &number);
    for call in [
        format!("select * from fetchq.docs_settle('q', {list})"),
        format!("select * from fetchq.docs_next('q', {list}, 5)"),
    ] {
        let before = all_of(&mut session, "q").await;
        let victim = server.connect("postgres").await;
        victim.sql("set my.sleeps = on").await;
        let pid = victim.text("select pg_backend_pid()").await;
        let settling = tokio::spawn(async move { victim.state(&call).await });
        let sleeps = format!(
            "select count(*) from pg_stat_activity where pid = {pid} and wait_event = 'PgSleep'"
        );
        wait_until("the list is half settled", async || {
            session.text(&sleeps).await == "1"
        })
        .await;
        cluster.kill(pid.parse().unwrap());
        settling.await.unwrap();
        wait_until("the server has noticed", async || {
            session.batch_execute("select").await.is_err()
        })
        .await;
        session = server.connect_when_up("postgres").await;
        let after = all_of(&mut session, "q").await;
        assert_eq!(after, before);
    }
    let settled =
        format!("select count(*) from fetchq.docs_settle('q', {list}) where outcome = 'settled'");
    assert_eq!(session.text(&settled).await, "14");
    counters_are_exact(&mut session, "q").await;
}
