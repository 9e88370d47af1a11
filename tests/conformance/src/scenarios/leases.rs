//! Heartbeats, the deadline of a lease, and why a handler is aborted. Points 5 to 8.

use serde_json::json;

use crate::place::{Place, gated, pause, stays, until};
use crate::proxy::Way;

crate::scenarios!(
    p05_a_heartbeat_keeps_the_leases_of_handlers_that_hold_the_pool,
    p05_one_call_extends_all_leases,
    p06_a_lease_that_cannot_be_extended_is_lost_by_the_clock_of_the_client,
    p06_a_short_outage_loses_no_lease,
    p07_cancelled,
    p07_lost,
    p07_lost_to_another_worker,
    p07_timeout,
    p07_shutdown,
    p08_a_timeout_rejects,
    p08_a_handler_that_ignores_its_timeout_is_stuck,
);

async fn p05_a_heartbeat_keeps_the_leases_of_handlers_that_hold_the_pool(p: Place) {
    p.create().await;
    let task = json!({"lease": "3 seconds", "concurrency": 5});
    let worker = p.worker_on(json!({"pool": 6}), task, json!({})).await;
    p.put_many("d", 3, gated("g")).await;
    worker.nth(3, "began", json!({})).await;
    p.put(
        "greedy",
        json!({"script": [{"op": "hold", "connections": 6, "gate": "g"}]}),
    )
    .await;
    worker.event("held", json!({"subject": "greedy"})).await;
    let held = format!(
        "select count(*) from fetchq.lease_list('{}') where lease_ends > now()",
        p.queue
    );
    stays("no lease expires", 10, async || p.number(&held).await == 4).await;
    worker.open("g").await;
    p.counts("completed", 4).await;
    worker.exactly(4, "began", json!({})).await;
    assert_eq!(worker.count("aborted", json!({})), 0);
}

async fn p05_one_call_extends_all_leases(p: Place) {
    p.create().await;
    let worker = p
        .worker(json!({"lease": "6 seconds", "concurrency": 5}), json!({}))
        .await;
    for n in 1..=5 {
        p.put(&format!("d{n}"), gated("g")).await;
        worker.nth(n, "began", json!({})).await;
    }
    // They were leased by several transactions, and the heartbeat writes all of them in one.
    let sql = format!(
        "select count(distinct xmin::text) from fetchq_data.{}__docs where status = 2",
        p.queue
    );
    p.sees(
        "the number of transactions that have written the leases is",
        &sql,
        "1",
    )
    .await;
    worker.open("g").await;
    p.counts("completed", 5).await;
}

async fn p06_a_lease_that_cannot_be_extended_is_lost_by_the_clock_of_the_client(p: Place) {
    p.create().await;
    let proxy = p.proxy().await;
    let worker = p
        .worker_on(
            json!({"url": p.url_by(proxy.port)}),
            json!({"lease": "4 seconds"}),
            json!({}),
        )
        .await;
    p.put(
        "a",
        json!({"scripts": [[{"op": "gate", "gate": "never"}], []]}),
    )
    .await;
    worker.event("began", json!({"subject": "a"})).await;
    // Nothing arrives any more, and nothing says so.
    proxy.all(Way::Frozen);
    let aborted = worker.event("aborted", json!({"subject": "a"})).await.value;
    assert_eq!(aborted["reason"], "lost");
    p.becomes("a", "pending 1").await;
    proxy.all(Way::Through);
    p.becomes("a", "completed 0").await;
    worker.exactly(2, "began", json!({"subject": "a"})).await;
}

async fn p06_a_short_outage_loses_no_lease(p: Place) {
    p.create().await;
    let proxy = p.proxy().await;
    let worker = p
        .worker_on(
            json!({"url": p.url_by(proxy.port)}),
            json!({"lease": "12 seconds"}),
            json!({}),
        )
        .await;
    p.put("a", gated("g")).await;
    worker.event("began", json!({"subject": "a"})).await;
    for way in [Way::Frozen, Way::Through, Way::Frozen, Way::Through] {
        proxy.all(way);
        pause(3000).await;
    }
    pause(4000).await;
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    assert_eq!(
        (
            worker.count("began", json!({})),
            worker.count("aborted", json!({}))
        ),
        (1, 0)
    );
}

async fn p07_cancelled(p: Place) {
    p.create().await;
    let worker = p.worker(json!({"concurrency": 1}), json!({})).await;
    p.put("a", gated("never")).await;
    worker.event("began", json!({"subject": "a"})).await;
    let at = std::time::Instant::now();
    p.sql
        .sql(&format!("select fetchq.doc_cancel('{}', 'a')", p.queue))
        .await;
    let aborted = worker.event("aborted", json!({"subject": "a"})).await;
    assert_eq!(aborted.value["reason"], "cancelled");
    let took = aborted.at.duration_since(at);
    p.note(&format!(
        "a cancel is acted upon after {} ms",
        took.as_millis()
    ));
    assert!(
        took.as_secs() < 15,
        "long before the next heartbeat: {took:?}"
    );
    // Nothing is settled, and the slot is free.
    p.put("b", json!({})).await;
    p.becomes("b", "completed 0").await;
    assert_eq!(p.state("a").await, "killed 0");
    assert_eq!(p.column("a", "last_error").await, "cancelled");
}

async fn p07_lost(p: Place) {
    p.create().await;
    let name = format!("node-{}", p.queue);
    let worker = p
        .worker(json!({"concurrency": 1}), json!({"name": name}))
        .await;
    p.put("a", json!({"scripts": [[{"op": "gate", "gate": "g"}]]}))
        .await;
    worker.event("began", json!({"subject": "a"})).await;
    p.sql
        .sql(&format!("select fetchq.worker_release('{name}')"))
        .await;
    let aborted = worker.event("aborted", json!({"subject": "a"})).await.value;
    assert_eq!(aborted["reason"], "lost");
    worker.nth(2, "began", json!({"subject": "a"})).await;
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    if worker.can("metrics") {
        let metrics = worker.ok(json!({"do": "metrics", "worker": "w"})).await;
        assert_eq!(metrics["lost"], 1, "{metrics}");
        assert_eq!(
            metrics["settled"]["reject"].as_u64().unwrap_or(0),
            0,
            "it is no error of the handler: {metrics}"
        );
    }
    assert_eq!(worker.logged("error"), Vec::<serde_json::Value>::new());
}

async fn p07_lost_to_another_worker(p: Place) {
    p.create().await;
    let name = format!("node-{}", p.queue);
    let first = p
        .worker(json!({"concurrency": 1}), json!({"name": name}))
        .await;
    let script =
        json!([{"op": "gate", "gate": "g", "on_abort": "ignore"}, {"op": "complete", "result": 1}]);
    p.put("a", json!({"scripts": [script]})).await;
    first.event("began", json!({"subject": "a"})).await;
    let second = p.worker(json!({}), json!({})).await;
    p.sql
        .sql(&format!("select fetchq.worker_release('{name}')"))
        .await;
    first
        .event("aborted", json!({"subject": "a", "reason": "lost"}))
        .await;
    // The slot of the first one is still taken, so the other one gets the document.
    second.event("began", json!({"subject": "a"})).await;
    first.open("g").await;
    first.event("ended", json!({"subject": "a"})).await;
    p.put("b", json!({})).await;
    p.becomes("b", "completed 0").await;
    stays(
        "the handler that has lost its lease settles nothing",
        2,
        async || p.state("a").await == "active 1",
    )
    .await;
    second.open("g").await;
    p.becomes("a", "completed 0").await;
}

async fn p07_timeout(p: Place) {
    p.create().await;
    let worker = p.worker(json!({"timeout": "1 second"}), json!({})).await;
    p.put("a", gated("never")).await;
    let aborted = worker.event("aborted", json!({"subject": "a"})).await.value;
    assert_eq!(aborted["reason"], "timeout");
    p.becomes("a", "pending 1").await;
}

async fn p07_shutdown(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({"grace": 0.3})).await;
    p.put("a", gated("never")).await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.stop().await;
    let aborted = worker.event("aborted", json!({"subject": "a"})).await.value;
    assert_eq!(aborted["reason"], "shutdown");
    assert_eq!(p.state("a").await, "pending 0");
}

async fn p08_a_timeout_rejects(p: Place) {
    p.create().await;
    let worker = p.worker(json!({"timeout": "1 second"}), json!({})).await;
    p.put("slow", gated("never")).await;
    p.put("fast", json!({"script": [{"op": "sleep", "seconds": 0.1}]}))
        .await;
    p.becomes("fast", "completed 0").await;
    p.becomes("slow", "pending 1").await;
    let error = p.column("slow", "last_error").await.to_lowercase();
    assert!(error.contains("time"), "{error}");
    assert_eq!(
        p.column("slow", "due_at > now() + interval '1 hour'").await,
        "t",
        "by the policy of the queue"
    );
    // A handler that finishes in spite of it has failed all the same.
    p.put(
        "late",
        json!({"script": [{"op": "gate", "gate": "never", "on_abort": "complete"}]}),
    )
    .await;
    worker
        .event("aborted", json!({"subject": "late", "reason": "timeout"}))
        .await;
    until("it is settled", async || {
        p.state("late").await != "active 1"
    })
    .await;
}

async fn p08_a_handler_that_ignores_its_timeout_is_stuck(p: Place) {
    p.create_with(json!({"retry": {"base": "1 ms"}})).await;
    let task = json!({"timeout": "1 second", "concurrency": 1, "lease": "4 seconds"});
    let worker = p.worker(task, json!({"stuck_after": 2})).await;
    p.put(
        "a",
        json!({"scripts": [[{"op": "gate", "gate": "g", "on_abort": "ignore"}], []]}),
    )
    .await;
    worker
        .event("aborted", json!({"subject": "a", "reason": "timeout"}))
        .await;
    until("it is reported", async || {
        worker.logged("warn").iter().any(|line| {
            let text = line["message"].as_str().unwrap_or_default().to_lowercase();
            text.contains("stuck") && line["fields"]["subject"] == "a"
        })
    })
    .await;
    if worker.can("metrics") {
        let metrics = worker.ok(json!({"do": "metrics", "worker": "w"})).await;
        assert_eq!(metrics["stuck"], 1, "{metrics}");
    }
    // Its lease ends, and it keeps its slot.
    p.becomes("a", "pending 1").await;
    stays("nothing begins", 2, async || {
        worker.count("began", json!({})) == 1
    })
    .await;
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    worker.exactly(2, "began", json!({})).await;
}
