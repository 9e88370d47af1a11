//! A move that was killed at any step is finished or aborted.

use fetchq_client_tests::counters_are_exact;

use super::{Stopped, ends_with, is_clean, live, mover, pair};

/// The steps of a move, as its source has them.
const STEPS: &str = include_str!("../../../../mover/src/step.rs");

#[tokio::test]
async fn a_run_that_is_killed_at_any_step_is_finished_by_the_next_one() {
    let (_clusters, [mut from, mut to]) = pair(["move-a", "move-b"]).await;
    let first = from.connect().await;
    first
        .sql("select fetchq.queue_create('q', '{\"ordered\": true, \"history\": {\"completed\": \"1 day\"}}');
              select fetchq.doc_put('q', 'd' || n, ordering_key => 'k' || n % 5) from generate_series(1, 100) n;
              select fetchq.doc_pick('q', 0, 3, '1 hour'); select fetchq.schedule_create('s', 'q', '1 hour')")
        .await;
    drop(first);
    let names = STEPS
        .split("=> \"")
        .skip(1)
        .map(|part| part.split('"').next().unwrap());
    let names: Vec<&str> = names.collect();
    assert!(names.len() > 10 && names.contains(&"commit"), "{names:?}");
    for step in names {
        let (here, mut there) = (from.connect().await, to.connect().await);
        let all = "select jsonb_agg(to_jsonb(d) order by subject)::text from fetchq_data.q__docs d";
        let before = here.text(all).await;
        Stopped::before(&mut mover(&from, &to, &["q"]), step).kill();
        let (is_here, is_there) = live(&here, &there).await;
        assert!(
            !(is_here && is_there),
            "{step}: the queue is on both servers"
        );
        // It does not block the queue.
        if is_here {
            here.sql("begin; select fetchq.doc_pick('q'); rollback")
                .await;
        }
        let (line, messages) = ends_with(&mut mover(&from, &to, &["q"]), 0);
        eprintln!("--- {step}: {line}\n{messages}");
        assert!(
            line.contains("moved 1 queue, 100 documents") || line.contains("nothing to do"),
            "{step}: {line}"
        );
        assert_eq!(live(&here, &there).await, (false, true), "{step}");
        assert_eq!(there.text(all).await, before, "{step}");
        assert_eq!(
            there
                .text("select count(*) from fetchq.ordering_keys")
                .await,
            "5",
            "{step}"
        );
        assert_eq!(
            there.text("select count(*) from fetchq.schedules").await,
            "1",
            "{step}"
        );
        is_clean(&here).await;
        is_clean(&there).await;
        counters_are_exact(&mut there, "q").await;
        (from, to) = (to, from);
    }
}

#[tokio::test]
async fn a_move_is_aborted_until_it_is_committed() {
    let ([old, new], [from, to]) = pair(["move-c", "move-d"]).await;
    let (mut here, there) = (from.connect().await, to.connect().await);
    here.sql("select fetchq.queue_create('q'); select fetchq.doc_push('q', 'd' || n) from generate_series(1, 50) n")
        .await;
    let abort = |status| ends_with(mover(&from, &to, &["q"]).arg("--abort"), status);
    assert!(abort(0).0.contains("nothing"));
    Stopped::before(&mut mover(&from, &to, &["q"]), "commit").kill();
    let (line, _) = ends_with(mover(&from, &to, &["q"]).arg("--status"), 0);
    assert!(
        line.contains("is ready") && line.contains("is started"),
        "{line}"
    );
    // The documents of the new server are removed only for the server that has them still.
    let other = old.server().database("moving_other").await;
    other
        .connect()
        .await
        .sql("select fetchq.queue_create('q')")
        .await;
    let (_, messages) = ends_with(&mut mover(&other, &to, &["q"]), 1);
    assert!(messages.contains("no record of it"), "{messages}");
    assert_eq!(
        there.text("select count(*) from fetchq_data.q__docs").await,
        "50"
    );
    assert!(abort(0).0.contains("removed"));
    is_clean(&here).await;
    is_clean(&there).await;
    counters_are_exact(&mut here, "q").await;
    assert_eq!(
        there.text("select count(*) from fetchq.queue_places").await,
        "0"
    );

    Stopped::before(&mut mover(&from, &to, &["q"]), "finish").kill();
    let (_, messages) = abort(2);
    assert!(
        messages.contains("committed") && messages.contains("again"),
        "{messages}"
    );
    assert_eq!(live(&here, &there).await, (false, false));
    assert_eq!(
        there.state("select fetchq.doc_push('q', 'x')").await,
        "3D000"
    );
    // The new server crashes before it is finished.
    new.stop("immediate");
    let (_, messages) = ends_with(&mut mover(&from, &to, &["q"]), 2);
    assert!(messages.contains("the new server"), "{messages}");
    new.start();
    let there = to.server.connect_when_up(&to.name).await;
    Stopped::before(&mut mover(&from, &to, &["q"]), "clean").kill();
    let (_, messages) = ends_with(&mut mover(&to, &from, &["q"]), 2);
    assert!(messages.contains("is not finished"), "{messages}");
    let (line, _) = ends_with(&mut mover(&from, &to, &["q"]), 0);
    assert!(
        line.starts_with("moved 1 queue, 50 documents; paused for "),
        "{line}"
    );
    assert_eq!(live(&here, &there).await, (false, true));
    assert_eq!(
        there.text("select count(*) from fetchq_data.q__docs").await,
        "50"
    );
}
