//! What a deployment declares: several of them at the same time, and roles that are none of theirs.

use fetchq_client_tests::{Database, Server, Session, wait_until};

async fn database(name: &str) -> (Database, Session) {
    let db = Server::of_suite().database(name).await;
    let session = db.connect().await;
    session
        .sql("select fetchq.queue_create(q) from unnest('{a,b,c}'::text[]) q")
        .await;
    (db, session)
}

/// A call for an owner with schedules by their names and queues.
fn sync(owner: &str, schedules: &[(&str, &str)]) -> String {
    let elements: Vec<String> = schedules
        .iter()
        .map(|(name, queue)| {
            format!(r#"{{"name": "{name}", "queue": "{queue}", "schedule": "@yearly"}}"#)
        })
        .collect();
    let list = elements.join(", ");
    format!("select name, action from fetchq.schedules_sync('{owner}', '[{list}]')")
}

const SHOWN: &str = "select name, owner, queue from fetchq.schedule_list()";

async fn is_blocked(session: &Session, pid: &str) {
    let sql = format!("select cardinality(pg_blocking_pids({pid})) > 0");
    wait_until("the other session waits", async || {
        session.text(&sql).await == "t"
    })
    .await;
}

#[tokio::test]
async fn two_deployments_of_one_owner_wait_for_one_another() {
    let (db, one) = database("sync_two").await;
    for end in ["commit", "rollback"] {
        one.sql("select fetchq.schedules_sync('shop', '[]')").await;
        one.sql("begin").await;
        let first = one.rows(&sync("shop", &[("x", "a"), ("y", "b")])).await;
        assert_eq!(first, ["x|created", "y|created"]);
        let other = db.connect().await;
        let pid = other.text("select pg_backend_pid()").await;
        // Another owner does not wait.
        let third = db.connect().await;
        let of_other = third.rows(&sync("other", &[("o", "a")])).await;
        assert_eq!(of_other.len(), 1);
        let waiting =
            tokio::spawn(async move { other.rows(&sync("shop", &[("y", "b"), ("z", "c")])).await });
        is_blocked(&one, &pid).await;
        one.sql(end).await;
        let expected = match end {
            "commit" => &["x|dropped", "y|kept", "z|created"][..],
            _ => &["y|created", "z|created"],
        };
        assert_eq!(waiting.await.expect("a session"), expected, "{end}");
        let shown = one.rows(SHOWN).await;
        assert_eq!(shown, ["o|other|a", "y|shop|b", "z|shop|c"], "{end}");
    }
}

#[tokio::test]
async fn a_name_that_another_session_has_just_taken_is_left_alone() {
    let (db, one) = database("sync_taken").await;
    one.sql("begin; select fetchq.schedule_create('x', 'a', '@daily')")
        .await;
    let other = db.connect().await;
    let pid = other.text("select pg_backend_pid()").await;
    let waiting = tokio::spawn(async move {
        let state = other
            .state(&sync("shop", &[("w", "b"), ("x", "a"), ("y", "b")]))
            .await;
        (other, state)
    });
    is_blocked(&one, &pid).await;
    one.sql("commit").await;
    let (other, state) = waiting.await.expect("a session");
    assert_eq!(state, "42710");
    let shown = "select name, owner is null, schedule from fetchq.schedule_list()";
    assert_eq!(one.rows(shown).await, ["x|t|@daily"]);
    // It goes on with another name.
    let rows = other.rows(&sync("shop", &[("w", "b")])).await;
    assert_eq!(rows, ["w|created"]);
}

/// Deployments of several owners, in any order, beside sessions that make, pause, run and drop schedules
/// and queues: no deadlock, no schedule of two owners, and none that nobody declares.
#[tokio::test]
async fn nothing_deadlocks() {
    let (db, admin) = database("sync_many").await;
    let lists: [&[(&str, &str)]; 4] = [
        &[("1", "a"), ("2", "b"), ("3", "c"), ("4", "a")],
        &[("4", "c"), ("3", "a"), ("2", "a"), ("1", "b")],
        &[("3", "b"), ("1", "c")],
        &[],
    ];
    let mut all = Vec::new();
    for number in 0..8_usize {
        let session = db.connect().await;
        all.push(tokio::spawn(async move {
            let owner = format!("owner{}", number % 3);
            for round in 0..40 {
                let list: Vec<(String, &str)> = lists[(round + number) % 4]
                    .iter()
                    .map(|(name, queue)| (format!("{owner} {name}"), *queue))
                    .collect();
                let list: Vec<(&str, &str)> = list.iter().map(|(n, q)| (n.as_str(), *q)).collect();
                session.rows(&sync(&owner, &list)).await;
            }
        }));
    }
    let others = [
        "select fetchq.schedule_run_at(9, now() + interval '2 years')",
        "begin; select fetchq.queue_create('d'); select fetchq.schedule_create('by hand', 'd', '@daily', replace => true); commit; select fetchq.queue_drop('d')",
        "select fetchq.schedule_pause(name) from fetchq.schedule_list() where name = 'none'",
    ];
    for sql in others {
        let session = db.connect().await;
        all.push(tokio::spawn(async move {
            for _ in 0..40 {
                session.sql(sql).await;
            }
        }));
    }
    for one in all {
        one.await.expect("a session without an error");
    }
    for owner in 0..3 {
        let last = format!("owner{owner} last");
        let rows = admin
            .rows(&sync(&format!("owner{owner}"), &[(&last, "a")]))
            .await;
        let is_new = format!("{last}|created");
        assert!(rows.contains(&is_new), "{rows:?}");
    }
    let shown = admin.rows(SHOWN).await;
    let expected = [0, 1, 2].map(|owner| format!("owner{owner} last|owner{owner}|a"));
    assert_eq!(shown, expected);
}

/// A queue that is dropped while a deployment declares schedules of it and of another one.
#[tokio::test]
async fn a_queue_that_is_dropped_meanwhile() {
    let (db, one) = database("sync_dropped").await;
    one.rows(&sync("shop", &[("x", "a"), ("y", "b"), ("z", "a")]))
        .await;
    one.sql("begin; select fetchq.queue_drop('a')").await;
    let other = db.connect().await;
    let pid = other.text("select pg_backend_pid()").await;
    let waiting = tokio::spawn(async move { other.rows(&sync("shop", &[("y", "b")])).await });
    is_blocked(&one, &pid).await;
    one.sql("commit").await;
    assert_eq!(waiting.await.expect("a session"), ["y|kept"]);
    assert_eq!(one.rows(SHOWN).await, ["y|shop|b"]);
    assert_eq!(one.state(&sync("shop", &[("x", "a")])).await, "42704");
    assert_eq!(one.rows(SHOWN).await, ["y|shop|b"]);
}
