//! How a worker ends. Points 9 and 10.

use serde_json::json;

use crate::place::{Place, gated, pause, stays, until};

crate::scenarios!(
    p09_a_stop_waits_for_what_runs,
    p09_a_stop_hands_back_what_does_not_end_in_time,
    p09_a_second_stop_ends_at_once,
    p09_what_was_leased_and_not_begun_is_handed_back,
    p09_an_idle_worker_stops_at_once,
    p09_worker_stop_of_the_server,
    p09_signals["signals"],
    p09_a_second_signal["signals"],
    p09_no_signal_is_handled_unless_asked["signals"],
    p09_a_stop_while_the_server_is_away,
    p09_a_transactional_handler_is_stopped["transactional"],
    p10_a_handler_that_finishes_during_the_stop_is_completed,
    p10_a_handler_that_fails_during_the_stop_is_rejected,
);

async fn p09_a_stop_waits_for_what_runs(p: Place) {
    p.create().await;
    p.put_many("d", 5, gated("g")).await;
    let worker = p.worker(json!({"concurrency": 2}), json!({})).await;
    worker.nth(2, "began", json!({})).await;
    worker.ok(json!({"do": "stop", "worker": "w"})).await;
    stays("it waits", 2, async || {
        worker.count("stopped", json!({})) == 0 && worker.count("aborted", json!({})) == 0
    })
    .await;
    worker.open("g").await;
    let stopped = worker.event("stopped", json!({"worker": "w"})).await.value;
    assert!(stopped["error"].is_null(), "{stopped}");
    // All is settled when it says so.
    assert_eq!(
        (p.count("completed").await, p.count("pending").await),
        (2, 3)
    );
    let attempts = format!("select sum(attempts) from fetchq_data.{}__docs", p.queue);
    assert_eq!(p.sql.text(&attempts).await, "0");
    worker.exactly(2, "began", json!({})).await;
}

async fn p09_a_stop_hands_back_what_does_not_end_in_time(p: Place) {
    p.create().await;
    p.put_many("d", 3, gated("never")).await;
    let worker = p.worker(json!({}), json!({"grace": 1})).await;
    worker.nth(3, "began", json!({})).await;
    let stopped = worker.stop().await.value;
    assert!(stopped["error"].is_null(), "{stopped}");
    worker
        .exactly(3, "aborted", json!({"reason": "shutdown"}))
        .await;
    for n in 1..=3 {
        assert_eq!(
            p.state(&format!("d{n}")).await,
            "pending 0",
            "the attempt does not count"
        );
    }
    // They are due at once.
    let other = p.worker(json!({}), json!({})).await;
    other.nth(3, "began", json!({"attempt": 1})).await;
}

async fn p09_a_second_stop_ends_at_once(p: Place) {
    p.create().await;
    p.put("good", gated("never")).await;
    p.put(
        "stubborn",
        json!({"script": [{"op": "gate", "gate": "g", "on_abort": "ignore"}]}),
    )
    .await;
    let worker = p.worker(json!({}), json!({"grace": 600})).await;
    worker.nth(2, "began", json!({})).await;
    worker.ok(json!({"do": "stop", "worker": "w"})).await;
    stays("it waits", 1, async || {
        worker.count("stopped", json!({})) == 0
    })
    .await;
    let at = std::time::Instant::now();
    worker
        .ok(json!({"do": "stop", "worker": "w", "now": true}))
        .await;
    let stopped = worker.event("stopped", json!({"worker": "w"})).await.at;
    p.note(&format!(
        "a second stop is acted upon after {} ms",
        stopped.duration_since(at).as_millis()
    ));
    p.becomes("good", "pending 0").await;
}

async fn p09_what_was_leased_and_not_begun_is_handed_back(p: Place) {
    p.create().await;
    p.put("d1", gated("g")).await;
    let worker = p.worker(json!({"concurrency": 1}), json!({})).await;
    worker.event("began", json!({"subject": "d1"})).await;
    p.put("d2", json!({})).await;
    // The call that settles the first one and leases the second one waits for this lock.
    let lock = p.host.db.connect().await;
    lock.sql(&format!(
        "begin; lock table fetchq_data.{}__docs in share row exclusive mode",
        p.queue
    ))
    .await;
    worker.open("g").await;
    until("the call waits", async || {
        p.number(&p.sessions("wait_event_type = 'Lock'")).await > 0
    })
    .await;
    worker.ok(json!({"do": "stop", "worker": "w"})).await;
    pause(500).await;
    lock.sql("commit").await;
    worker.event("stopped", json!({"worker": "w"})).await;
    assert_eq!(p.state("d1").await, "completed 0");
    let begun = worker.count("began", json!({"subject": "d2"}));
    let wanted = if begun == 0 {
        "pending 0"
    } else {
        "completed 0"
    };
    assert_eq!(p.state("d2").await, wanted);
    assert_eq!(begun, 0, "nothing begins after a stop");
}

async fn p09_an_idle_worker_stops_at_once(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({"grace": 600})).await;
    p.put("a", json!({})).await;
    p.becomes("a", "completed 0").await;
    pause(500).await;
    let at = std::time::Instant::now();
    let stopped = worker.stop().await.at;
    let took = stopped.duration_since(at);
    p.note(&format!(
        "a stop of an idle worker is acted upon after {} ms",
        took.as_millis()
    ));
    assert!(took.as_secs() < 10, "{took:?}");
    // Nothing is left that waits or works, and the pool is that of the application.
    let ok = worker
        .ok(json!({"do": "put", "queue": p.queue, "subject": "b", "payload": {}}))
        .await;
    assert_eq!(ok["action"], "created");
    p.sees(
        "the number of sessions that wait is",
        &p.sessions("query ~* '_wait' and state = 'active'"),
        "0",
    )
    .await;
    assert_eq!(p.state("b").await, "pending 0");
}

async fn p09_worker_stop_of_the_server(p: Place) {
    p.create().await;
    let name = format!("node-{}", p.queue);
    let worker = p.worker(json!({}), json!({"name": name})).await;
    p.put("a", gated("g")).await;
    worker.event("began", json!({"subject": "a"})).await;
    let at = std::time::Instant::now();
    p.sql
        .sql(&format!("select fetchq.worker_stop('{name}')"))
        .await;
    // It finishes what it has, and begins nothing.
    pause(1500).await;
    p.put("b", json!({})).await;
    stays("it begins nothing", 1, async || {
        worker.count("began", json!({})) == 1
    })
    .await;
    worker.open("g").await;
    let stopped = worker.event("stopped", json!({"worker": "w"})).await;
    assert!(stopped.value["error"].is_null());
    assert!(stopped.at.duration_since(at).as_secs() < 20);
    assert_eq!(
        (p.state("a").await, p.state("b").await),
        ("completed 0".to_owned(), "pending 0".to_owned())
    );
}

async fn p09_signals(p: Place) {
    p.create().await;
    p.put_many("d", 3, gated("g")).await;
    let worker = p
        .worker(
            json!({"concurrency": 2}),
            json!({"signals": true, "grace": 60}),
        )
        .await;
    worker.nth(2, "began", json!({})).await;
    worker.signal("TERM");
    stays("it waits", 1, async || {
        worker.count("stopped", json!({})) == 0
    })
    .await;
    worker.open("g").await;
    let stopped = worker.event("stopped", json!({"worker": "w"})).await.value;
    assert!(stopped["error"].is_null(), "{stopped}");
    assert_eq!(
        (p.count("completed").await, p.count("pending").await),
        (2, 1)
    );
}

async fn p09_a_second_signal(p: Place) {
    p.create().await;
    p.put("a", gated("never")).await;
    let worker = p
        .worker(json!({}), json!({"signals": true, "grace": 600}))
        .await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.signal("INT");
    stays("it waits", 1, async || {
        worker.count("stopped", json!({})) == 0
    })
    .await;
    worker.signal("TERM");
    worker.event("stopped", json!({"worker": "w"})).await;
    p.becomes("a", "pending 0").await;
}

async fn p09_no_signal_is_handled_unless_asked(p: Place) {
    p.create().await;
    p.put("a", gated("never")).await;
    let worker = p.worker(json!({}), json!({"grace": 600})).await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.signal("TERM");
    worker.status().await;
    assert_eq!(worker.count("stopped", json!({})), 0);
}

async fn p09_a_stop_while_the_server_is_away(p: Place) {
    p.create().await;
    let proxy = p.proxy().await;
    let worker = p
        .worker_on(
            json!({"url": p.url_by(proxy.port)}),
            json!({}),
            json!({"grace": 2}),
        )
        .await;
    p.put("a", gated("g")).await;
    worker.event("began", json!({"subject": "a"})).await;
    proxy.all(crate::proxy::Way::Cut);
    worker.open("g").await;
    worker.event("ended", json!({"subject": "a"})).await;
    worker.ok(json!({"do": "stop", "worker": "w"})).await;
    pause(700).await;
    proxy.later(crate::proxy::Way::Through);
    // What has finished is settled before the worker ends.
    worker.event("stopped", json!({"worker": "w"})).await;
    assert_eq!(p.state("a").await, "completed 0");
    // It also ends when the server does not come back.
    let proxy = p.proxy().await;
    let worker = p
        .worker_on(
            json!({"url": p.url_by(proxy.port)}),
            json!({}),
            json!({"grace": 1}),
        )
        .await;
    proxy.all(crate::proxy::Way::Cut);
    worker.stop().await;
}

async fn p09_a_transactional_handler_is_stopped(p: Place) {
    p.create().await;
    p.sql
        .sql(&format!("create table {}_rows (n int)", p.queue))
        .await;
    let insert = json!({"op": "sql", "sql": format!("insert into {}_rows values (1)", p.queue)});
    p.put(
        "a",
        json!({"script": [insert, {"op": "gate", "gate": "never"}]}),
    )
    .await;
    let worker = p
        .worker(json!({"transactional": true}), json!({"grace": 0.5}))
        .await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.stop().await;
    assert_eq!(p.state("a").await, "pending 0");
    assert_eq!(
        p.sql
            .text(&format!("select count(*) from {}_rows", p.queue))
            .await,
        "0"
    );
    p.sees(
        "no transaction is left open:",
        &p.sessions("state like 'idle in%'"),
        "0",
    )
    .await;
}

async fn p10_a_handler_that_finishes_during_the_stop_is_completed(p: Place) {
    p.create().await;
    p.put(
        "a",
        json!({"script": [{"op": "gate", "gate": "never", "on_abort": "complete"}]}),
    )
    .await;
    let worker = p.worker(json!({}), json!({"grace": 0.5})).await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.stop().await;
    assert_eq!(p.state("a").await, "completed 0");
    assert_eq!(p.column("a", "result ->> 'aborted'").await, "shutdown");
}

async fn p10_a_handler_that_fails_during_the_stop_is_rejected(p: Place) {
    p.create().await;
    p.put(
        "a",
        json!({"script": [{"op": "gate", "gate": "never", "on_abort": "throw"}]}),
    )
    .await;
    let worker = p.worker(json!({}), json!({"grace": 0.5})).await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.stop().await;
    assert_eq!(p.state("a").await, "pending 1");
    assert_eq!(p.column("a", "last_error").await, "failed while stopping");
}
