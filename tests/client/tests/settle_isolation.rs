//! `docs_settle` and `docs_next` in transactions that keep their snapshot, and with triggers of the
//! user that change or suppress what they write.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use fetchq_client_tests::{
    Database, Server, Session, all_of, counters_are_exact, error_of, state_of,
};

const LEVELS: [&str; 2] = ["repeatable read", "serializable"];

/// Every action, for the documents d1 to d6.
const ACTIONS: [&str; 6] = [
    r#""action": "complete""#,
    r#""action": "drop""#,
    r#""action": "reject", "message": "m", "delay": "1 hour""#,
    r#""action": "kill", "message": "m""#,
    r#""action": "snooze", "delay": "1 hour""#,
    r#""action": "reschedule", "delay": "1 hour""#,
];

/// Leases d1 to d6 of queue `q`, and returns the list that settles them, as a literal.
async fn lease_all(session: &Session) -> String {
    session.sql("select fetchq.queue_truncate('q', true)").await;
    session
        .sql("select fetchq.doc_put('q', 'd' || i, '{}') from generate_series(1, 6) i")
        .await;
    let lease = session
        .text("select distinct lease from fetchq.doc_pick('q', 0, 6, '1 hour')")
        .await;
    let list: Vec<String> = (1..)
        .zip(ACTIONS)
        .map(|(i, action)| format!(r#"{{"subject": "d{i}", "lease": {lease}, {action}}}"#))
        .collect();
    format!("'[{}]'", list.join(", "))
}

async fn start(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session.sql("select fetchq.queue_create('q')").await;
    (db, session)
}

#[tokio::test]
async fn a_document_that_changed_after_the_snapshot_fails_the_whole_list() {
    let (db, mut session) = start("settle_isolation").await;
    let other = db.connect().await;
    for level in LEVELS {
        for call in [
            "docs_settle('q', LIST)",
            "docs_next('q', LIST, 3, on_lost => 'ignore')",
        ] {
            for meanwhile in [
                "select fetchq.doc_complete('q', 'd3')",
                "select fetchq.doc_drop('q', 'd4')",
                "select fetchq.doc_extend('q', 'd6', '2 hours')",
            ] {
                let list = lease_all(&session).await;
                let call = call.replace("LIST", &list);
                session
                    .sql(&format!(
                        "begin isolation level {level}; select count(*) from fetchq_data.q__docs"
                    ))
                    .await;
                other.sql(meanwhile).await;
                let settles = format!("select * from fetchq.{call}");
                assert_eq!(session.state(&settles).await, "40001", "{level} {settles}");
                session.sql("rollback").await;
                let active = "select string_agg(subject, ' ' order by subject) from fetchq_data.q__docs where status = 2";
                let left = match meanwhile {
                    m if m.contains("d3") => "d1 d2 d4 d5 d6",
                    m if m.contains("d4") => "d1 d2 d3 d5 d6",
                    _ => "d1 d2 d3 d4 d5 d6",
                };
                assert_eq!(session.text(active).await, left, "{level} {meanwhile}");
                counters_are_exact(&mut session, "q").await;
                // The retry settles what is left.
                session
                    .sql(&format!("begin isolation level {level}; {settles}; commit"))
                    .await;
                assert_eq!(session.text(active).await, "", "{level} {meanwhile}");
                counters_are_exact(&mut session, "q").await;
            }
        }
    }
    db.remove().await;
}

/// Workers whose transactions keep their snapshot try again after 40001. Each document has its effect
/// once.
#[tokio::test]
async fn workers_that_retry_do_each_document_once() {
    const DOCUMENTS: usize = 120;
    for level in LEVELS {
        let name = format!("settle_{}", level.replace(' ', "_"));
        let (db, mut session) = start(&name).await;
        session
            .sql(&format!(
                "create table ledger (subject text);
                 select fetchq.doc_put('q', 'd' || i, '{{}}') from generate_series(1, {DOCUMENTS}) i"
            ))
            .await;
        let done = Arc::new(AtomicUsize::new(0));
        let mut workers = Vec::new();
        for _ in 0..3 {
            let worker = db.connect().await;
            let done = done.clone();
            workers.push(tokio::spawn(async move {
                worker
                    .sql(&format!("set default_transaction_isolation = '{level}'"))
                    .await;
                let next = "select coalesce(jsonb_agg(jsonb_build_object('subject', subject, 'lease', lease, 'action', 'complete')), '[]')
                    from fetchq.docs_next('q', $1, 5, on_lost => 'error')";
                let effects = "insert into ledger select s ->> 'subject' from jsonb_array_elements($1::jsonb) s";
                let mut list = serde_json::json!([]);
                while done.load(Ordering::Relaxed) < DOCUMENTS {
                    let attempt = async {
                        worker.batch_execute("begin").await?;
                        worker.execute(effects, &[&list]).await?;
                        let row = worker.query_one(next, &[&list]).await?;
                        worker.batch_execute("commit").await?;
                        Ok::<serde_json::Value, tokio_postgres::Error>(row.get(0))
                    };
                    match attempt.await {
                        Ok(next) => {
                            let settled = list.as_array().expect("a list").len();
                            done.fetch_add(settled, Ordering::Relaxed);
                            list = next;
                        }
                        Err(e) => {
                            assert_eq!(state_of(&e), "40001", "{e:?}");
                            worker.sql("rollback").await;
                        }
                    }
                }
            }));
        }
        for worker in workers {
            worker.await.unwrap();
        }
        let once = "select count(*), count(distinct subject) from ledger";
        assert_eq!(
            session.rows(once).await,
            [format!("{DOCUMENTS}|{DOCUMENTS}")]
        );
        let completed =
            "select count(*) from fetchq_data.q__docs where status = 3 and iterations = 1";
        assert_eq!(session.text(completed).await, DOCUMENTS.to_string());
        counters_are_exact(&mut session, "q").await;
        db.remove().await;
    }
}

#[tokio::test]
async fn a_trigger_that_suppresses_a_change_is_no_lost_lease() {
    let (db, mut session) = start("settle_suppressed").await;
    session
        .sql(
            "create function suppresses() returns trigger language plpgsql as $$
             begin
                 if current_setting('my.subject', true) = old.subject then return null; end if;
                 if tg_op = 'DELETE' then return old; end if;
                 return new;
             end $$;
             create trigger suppresses before update or delete on fetchq_data.q__docs for each row execute function suppresses()",
        )
        .await;
    for history in ["null", r#""1 day""#] {
        session
            .sql(&format!(
                r#"select fetchq.queue_configure('q', '{{"history": {{"completed": {history}, "killed": {history}, "dropped": {history}}}}}')"#
            ))
            .await;
        let list = lease_all(&session).await;
        for subject in 1..=ACTIONS.len() {
            session.sql(&format!("set my.subject = 'd{subject}'")).await;
            let before = all_of(&mut session, "q").await;
            for call in [
                format!("docs_settle('q', {list})"),
                format!("docs_settle('q', {list}, 'error')"),
                format!("docs_next('q', {list}, on_lost => 'ignore')"),
            ] {
                let sql = format!("select * from fetchq.{call}");
                let error = session.simple_query(&sql).await.expect_err(&sql);
                let error = error_of(&error);
                let said = error.message().contains(&format!("\"d{subject}\""));
                let hint = error.hint().unwrap_or("");
                assert!(said && hint.contains("trigger"), "{sql}: {error:?}");
                assert_eq!(error.code().code(), "27000", "{sql}: {error:?}");
                assert_eq!(all_of(&mut session, "q").await, before, "{sql}");
            }
            let extends = format!("select fetchq.doc_extend('q', 'd{subject}', '2 hours')");
            assert_eq!(session.state(&extends).await, "27000");
            let cancels =
                format!("select was_cancelled, status from fetchq.doc_cancel('q', 'd{subject}')");
            assert_eq!(session.rows(&cancels).await, ["f|active"]);
            assert_eq!(all_of(&mut session, "q").await, before, "{cancels}");
        }
        session.sql("set my.subject = ''").await;
        let settled = format!("select distinct outcome from fetchq.docs_settle('q', {list})");
        assert_eq!(session.column(&settled).await, ["settled"]);
        counters_are_exact(&mut session, "q").await;
    }
    db.remove().await;
}

#[tokio::test]
async fn what_a_trigger_changes_in_a_settled_document_is_kept_and_counted() {
    let (db, mut session) = start("settle_changed").await;
    session
        .sql(
            r#"create function changes() returns trigger language plpgsql as $$
             begin
                 new.payload := new.payload || '{"changed": true}';
                 new.priority := 7;
                 return new;
             end $$;
             create trigger changes before update on fetchq_data.q__docs for each row when (old.status = 2) execute function changes()"#,
        )
        .await;
    let list = lease_all(&session).await;
    let settled = format!("select distinct outcome from fetchq.docs_settle('q', {list})");
    assert_eq!(session.column(&settled).await, ["settled"]);
    let changed =
        "select count(*) from fetchq_data.q__docs where priority = 7 and payload ? 'changed'";
    assert_eq!(session.text(changed).await, "5");
    counters_are_exact(&mut session, "q").await;
    // It can be picked, with its new priority.
    session.sql("update fetchq_data.q__docs set next_iteration = now() where status = 0; select fetchq.mnt_run('q', 10)").await;
    let picked = "select priority from fetchq.doc_pick('q', 1)";
    assert_eq!(session.column(picked).await, ["7"]);
    db.remove().await;
}
