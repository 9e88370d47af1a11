//! The pool, slots and bytes, clocks, blocked threads, unknown tasks and versions. Points 20 to 24.

use serde_json::{Value, json};

use crate::place::{Place, gated, pause, stays, until};

crate::scenarios!(
    p20_no_connection_is_held_while_a_plain_handler_runs,
    p20_a_pool_that_is_too_small_is_refused,
    p20_the_pool_is_that_of_the_application,
    p21_a_cap_for_the_process_over_all_queues,
    p21_a_cap_on_bytes["max_bytes"],
    p21_weights["weight"],
    p22_times_are_those_of_the_server,
    p23_a_blocked_thread_stops_nothing_else["threads"],
    p23_a_blocked_event_loop_is_reported["loop"],
    p24_another_version_is_left_alone,
    p24_old_payloads_are_converted["upcast"],
    p24_an_unknown_task_is_snoozed["shared"],
    p24_tasks_that_share_a_queue["shared"],
);

async fn p20_no_connection_is_held_while_a_plain_handler_runs(p: Place) {
    p.create().await;
    p.put_many("d", 20, gated("g")).await;
    let worker = p
        .worker_on(
            json!({"pool": 5}),
            json!({"concurrency": 20}),
            json!({"concurrency": 20}),
        )
        .await;
    worker.nth(20, "began", json!({})).await;
    // Those of the pool, and at most four of the runtime: to wait, for the heartbeat, for calls.
    let sessions = p.number(&p.sessions("true")).await;
    assert!(sessions <= 9, "{sessions} sessions");
    for n in 0..5 {
        let put = json!({"do": "put", "queue": p.queue, "subject": format!("e{n}"), "payload": {}, "options": {"delay": "1 hour"}});
        worker.ok(put).await;
    }
    worker.open("g").await;
    p.counts("completed", 20).await;
}

async fn p20_a_pool_that_is_too_small_is_refused(p: Place) {
    p.create().await;
    let worker = p.connected(json!({"pool": 1})).await;
    let error = worker.err(p.start(json!({}), json!({}))).await;
    assert_eq!(error["code"], "config", "{error}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("pool") || text.contains("connection")),
        "{error}"
    );
    // Other calls need no more.
    let put = json!({"do": "put", "queue": p.queue, "subject": "a", "payload": {}});
    assert_eq!(worker.ok(put).await["action"], "created");
}

async fn p20_the_pool_is_that_of_the_application(p: Place) {
    p.create().await;
    let worker = p.worker_on(json!({"pool": 6}), json!({}), json!({})).await;
    p.put_many(
        "d",
        20,
        json!({"script": [{"op": "sleep", "seconds": 0.1}]}),
    )
    .await;
    let mut most = 0;
    until("all are completed", async || {
        most = most.max(p.number(&p.sessions("true")).await);
        p.count("completed").await == 20
    })
    .await;
    assert!(
        most <= 10,
        "{most} sessions: those of the pool, and at most four of the runtime"
    );
    worker.stop().await;
    // The pool is open, and a second worker uses it.
    worker
        .ok(crate::place::with(
            p.start(json!({}), json!({})),
            json!({"worker": "w2"}),
        ))
        .await;
    p.put("next", json!({})).await;
    worker
        .event("began", json!({"worker": "w2", "subject": "next"}))
        .await;
    p.becomes("next", "completed 0").await;
}

async fn p21_a_cap_for_the_process_over_all_queues(p: Place) {
    p.create().await;
    let other = format!("{}b", p.queue);
    p.create_queue(&other, json!({})).await;
    for n in 1..=10 {
        for queue in [&p.queue, &other] {
            p.put_with(
                queue,
                &format!("d{n}"),
                json!({"script": [{"op": "sleep", "seconds": 0.3}]}),
                "",
            )
            .await;
        }
    }
    let tasks: Vec<_> = [&p.queue, &other]
        .iter()
        .map(|queue| json!({"queue": queue, "concurrency": 10}))
        .collect();
    let worker = p
        .worker(json!({}), json!({"concurrency": 4, "tasks": tasks}))
        .await;
    let active = format!(
        "select (select count(*) from fetchq.lease_list('{}')) + (select count(*) from fetchq.lease_list('{other}'))",
        p.queue
    );
    let mut most = 0;
    until("all have ended", async || {
        most = most.max(p.number(&active).await);
        worker.count("ended", json!({})) == 20
    })
    .await;
    assert!(most <= 4, "{most} were leased at once");
    // Both queues had their share: the last ones of neither waited for all of the other.
    let began: Vec<String> = worker
        .events("began", json!({}))
        .into_iter()
        .map(|at| at.value["queue"].to_string())
        .collect();
    let own = format!("\"{}\"", p.queue);
    for half in [&began[..10], &began[10..]] {
        let share = half.iter().filter(|queue| **queue == own).count();
        assert!((2..=8).contains(&share), "{began:?}");
    }
}

async fn p21_a_cap_on_bytes(p: Place) {
    p.create().await;
    let text = "x".repeat(100_000);
    for n in 1..=8 {
        p.put(
            &format!("d{n}"),
            json!({"text": text, "script": [{"op": "gate", "gate": "g"}]}),
        )
        .await;
    }
    let worker = p
        .worker(json!({"concurrency": 8}), json!({"max_bytes": 250_000}))
        .await;
    worker.event("began", json!({})).await;
    pause(1500).await;
    let most = p.count("active").await;
    assert!(
        (1..=4).contains(&most),
        "{most} payloads of 100 kB are in memory"
    );
    worker.open("g").await;
    p.counts("completed", 8).await;
}

async fn p21_weights(p: Place) {
    p.create().await;
    let other = format!("{}b", p.queue);
    p.create_queue(&other, json!({})).await;
    for n in 1..=40 {
        for queue in [&p.queue, &other] {
            p.put_with(
                queue,
                &format!("d{n}"),
                json!({"script": [{"op": "sleep", "seconds": 0.1}]}),
                "",
            )
            .await;
        }
    }
    let tasks = json!([{"queue": p.queue, "concurrency": 10, "weight": 4}, {"queue": other, "concurrency": 10, "weight": 1}]);
    let worker = p
        .worker(json!({}), json!({"concurrency": 5, "tasks": tasks}))
        .await;
    worker.nth(40, "began", json!({"queue": p.queue})).await;
    let others = worker.count("began", json!({"queue": other}));
    assert!((1..=25).contains(&others), "of 40 and {others}");
}

async fn p22_times_are_those_of_the_server(p: Place) {
    let host = p.world.behind().await;
    let p = p.on(host).await;
    p.create().await;
    let in_an_hour = "due_at - clock_timestamp() between '58 min' and '61 min'";
    let worker = p
        .worker(
            json!({"lease": "4 seconds", "timeout": "30 seconds"}),
            json!({}),
        )
        .await;
    let put = json!({"do": "put", "queue": p.queue, "subject": "later", "payload": {}, "options": {"delay": "1 hour"}});
    worker.ok(put).await;
    assert_eq!(p.column("later", in_an_hour).await, "t");
    p.put(
        "snoozed",
        json!({"script": [{"op": "snooze", "delay": "1 hour"}]}),
    )
    .await;
    p.put(
        "again",
        json!({"script": [{"op": "reschedule", "delay": "1 hour"}]}),
    )
    .await;
    p.becomes("snoozed", "planned 0").await;
    p.becomes("again", "planned 0").await;
    assert_eq!(p.column("snoozed", in_an_hour).await, "t");
    assert_eq!(p.column("again", in_an_hour).await, "t");
    // Deadlines do not depend on the difference of the clocks.
    p.put("long", json!({"script": [{"op": "sleep", "seconds": 7}]}))
        .await;
    p.becomes("long", "completed 0").await;
    assert_eq!(worker.count("aborted", json!({})), 0);
}

async fn p23_a_blocked_thread_stops_nothing_else(p: Place) {
    p.create().await;
    let worker = p
        .worker(json!({"lease": "3 seconds", "concurrency": 2}), json!({}))
        .await;
    p.put("blocks", json!({"script": [{"op": "block", "seconds": 8}]}))
        .await;
    worker.event("began", json!({"subject": "blocks"})).await;
    for n in 1..=3 {
        p.put(&format!("d{n}"), json!({})).await;
        p.becomes(&format!("d{n}"), "completed 0").await;
    }
    assert_eq!(worker.count("ended", json!({"subject": "blocks"})), 0);
    p.becomes("blocks", "completed 0").await;
    assert_eq!(
        (
            worker.count("began", json!({"subject": "blocks"})),
            worker.count("aborted", json!({}))
        ),
        (1, 0)
    );
}

async fn p23_a_blocked_event_loop_is_reported(p: Place) {
    p.create().await;
    let worker = p.worker(json!({"lease": "1 minute"}), json!({})).await;
    p.put("blocks", json!({"script": [{"op": "block", "seconds": 4}]}))
        .await;
    p.becomes("blocks", "completed 0").await;
    until("it is reported", async || {
        let lines = worker.logged("warn");
        lines.iter().any(|line| {
            line["message"]
                .as_str()
                .is_some_and(|text| text.to_lowercase().contains("event loop"))
        })
    })
    .await;
}

async fn p24_another_version_is_left_alone(p: Place) {
    p.create().await;
    p.put_with(&p.queue, "v7", json!({}), ", version => 7")
        .await;
    p.put("v0", json!({})).await;
    let worker = p.worker(json!({}), json!({})).await;
    p.becomes("v0", "completed 0").await;
    stays("it is left", 1, async || p.state("v7").await == "pending 0").await;
    worker.exactly(1, "began", json!({})).await;
    let newer = p.worker(json!({"version": 7}), json!({})).await;
    p.becomes("v7", "completed 0").await;
    newer
        .event("began", json!({"subject": "v7", "version": 7}))
        .await;
}

async fn p24_old_payloads_are_converted(p: Place) {
    p.create().await;
    for version in 0..=3 {
        p.put_with(
            &p.queue,
            &format!("v{version}"),
            json!({"n": version}),
            &format!(", version => {version}"),
        )
        .await;
    }
    let worker = p
        .worker(json!({"version": 2, "upcast": true}), json!({}))
        .await;
    for (version, steps) in [(0, json!([1, 2])), (1, json!([2])), (2, Value::Null)] {
        let subject = format!("v{version}");
        p.becomes(&subject, "completed 0").await;
        let began = worker
            .event("began", json!({"subject": subject}))
            .await
            .value;
        assert_eq!(
            (&began["payload"]["n"], &began["payload"]["upcast"]),
            (&json!(version), &steps),
            "{began}"
        );
    }
    stays("a newer one is left", 1, async || {
        p.state("v3").await == "pending 0"
    })
    .await;
}

const HEADER: &str = r#", headers => '{"fetchq-task": "TASK"}'"#;

async fn p24_an_unknown_task_is_snoozed(p: Place) {
    p.create().await;
    let worker = p.worker(json!({"task": "known"}), json!({})).await;
    p.put_with(&p.queue, "a", json!({}), &HEADER.replace("TASK", "other"))
        .await;
    p.put_with(&p.queue, "b", json!({}), &HEADER.replace("TASK", "known"))
        .await;
    p.becomes("b", "completed 0").await;
    p.becomes("a", "planned 0").await;
    until("it warns", async || {
        worker
            .logged("warn")
            .iter()
            .any(|line| line.to_string().contains("other"))
    })
    .await;
    // It may come again, and it is never killed nor counted.
    stays("it is not begun", 2, async || {
        let state = p.state("a").await;
        worker.count("began", json!({"subject": "a"})) == 0
            && state != "killed 1"
            && !state.starts_with("completed")
    })
    .await;
    let attempts = format!("select count(*) from fetchq.doc_errors('{}', 'a')", p.queue);
    assert_eq!(p.sql.text(&attempts).await, "0");
    worker.stop().await;
    let _other = p.worker(json!({"task": "other"}), json!({})).await;
    p.sql
        .sql(&format!(
            "select fetchq.docs_retry('{}', '{{\"status\": \"planned\"}}')",
            p.queue
        ))
        .await;
    p.becomes("a", "completed 0").await;
}

async fn p24_tasks_that_share_a_queue(p: Place) {
    p.create().await;
    let tasks = json!([{"queue": p.queue, "task": "one", "concurrency": 2}, {"queue": p.queue, "task": "two", "concurrency": 2}]);
    let worker = p.worker(json!({}), json!({"tasks": tasks})).await;
    for task in ["one", "two"] {
        for n in 1..=3 {
            let put = json!({"do": "put", "queue": p.queue, "task": task, "subject": format!("{task}{n}"), "payload": {}});
            worker.ok(put).await;
        }
    }
    p.counts("completed", 6).await;
    for task in ["one", "two"] {
        worker.exactly(3, "began", json!({"task": task})).await;
        assert_eq!(
            p.column(&format!("{task}1"), "headers ->> 'fetchq-task'")
                .await,
            task
        );
    }
}
