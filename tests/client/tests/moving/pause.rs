//! The pause of a move: its hooks, queues that are locked, and queues that would stand still for too long.

use fetchq_client_tests::Cluster;

use super::{Hook, SETTINGS, database, ends_with, is_clean, live, mover, pair};

#[tokio::test]
async fn a_locked_queue_works_on_and_hooks_are_undone() {
    let (_clusters, [from, to]) = pair(["move-e", "move-f"]).await;
    let (here, there) = (from.connect().await, to.connect().await);
    here.sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd')")
        .await;
    // The transaction begins while the first hook runs: the slot would wait for an earlier one. A hook that is
    // ended because this took too long counts like the others.
    let hook = Hook::new("lock");
    let before = format!("echo hook before && {}", hook.waits());
    let mut command = mover(&from, &to, &["q"]);
    command.args(["--lock-timeout", "1", "--before", &before]);
    command.args(["--undo", "echo hook undo", "--after", "echo hook after"]);
    let busy = from.connect().await;
    let running = hook.begins(&mut command).await;
    busy.sql("begin; select fetchq.doc_pick('q')").await;
    let messages = hook.ends(running);
    assert_eq!(messages.matches("hook before").count(), 5, "{messages}");
    assert_eq!(messages.matches("hook undo").count(), 5, "{messages}");
    assert!(!messages.contains("hook after"), "{messages}");
    assert!(
        messages.contains("the lock waits for: session "),
        "{messages}"
    );
    busy.sql("select fetchq.doc_complete('q', 'd'); commit")
        .await;
    is_clean(&here).await;
    is_clean(&there).await;
    let (_, messages) = ends_with(&mut command, 0);
    assert!(
        messages.contains("hook after") && !messages.contains("hook undo"),
        "{messages}"
    );
    assert_eq!(
        there.text("select status from fetchq_data.q__docs").await,
        "3"
    );
}

#[tokio::test]
async fn a_first_hook_that_does_not_end_is_ended_and_undone() {
    let cluster = Cluster::new("move-hook", SETTINGS);
    let from = database(&cluster).await;
    let to = cluster.server().database("moving_to").await;
    let (here, there) = (from.connect().await, to.connect().await);
    here.sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd')")
        .await;
    let mut command = mover(&from, &to, &["q"]);
    command.args([
        "--lock-timeout",
        "1",
        "--before",
        "echo hook before; sleep 600",
    ]);
    command.args(["--undo", "echo hook undo", "--after", "echo hook after"]);
    let (_, messages) = ends_with(&mut command, 1);
    assert_eq!(messages.matches("hook before").count(), 5, "{messages}");
    assert_eq!(messages.matches("hook undo").count(), 5, "{messages}");
    assert!(!messages.contains("locking the queues"), "{messages}");
    assert_eq!(live(&here, &there).await, (true, false));
    is_clean(&here).await;
    is_clean(&there).await;
}

#[tokio::test]
async fn queues_that_would_stand_still_for_too_long_are_refused_before_they_do() {
    let cluster = Cluster::new("move-limit", SETTINGS);
    let from = database(&cluster).await;
    let to = cluster.server().database("moving_to").await;
    let (here, there) = (from.connect().await, to.connect().await);
    here.sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd')")
        .await;
    for option in [None, Some("--dry-run")] {
        let mut command = mover(&from, &to, &["q"]);
        command.args(["--before", "echo hook before", "--pause-limit", "0.000001"]);
        let (_, messages) = ends_with(command.args(option), 1);
        assert!(messages.contains("stand still for too long"), "{messages}");
        assert!(messages.contains("s on the old server"), "{messages}");
        assert!(!messages.contains("hook before"), "{messages}");
    }
    assert_eq!(live(&here, &there).await, (true, false));
    is_clean(&here).await;
    is_clean(&there).await;
    let (_, messages) = ends_with(&mut mover(&from, &to, &["q"]), 0);
    assert!(messages.contains("s on the new one"), "{messages}");
}
