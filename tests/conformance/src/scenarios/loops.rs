//! The loops of a worker: leasing and settling, and waiting. Points 1 to 4.

use serde_json::json;

use crate::place::{Place, gated, pause, stays, until};

crate::scenarios!(
    p01_no_more_is_leased_than_can_run,
    p01_a_document_is_settled_and_the_next_one_leased_in_one_transaction,
    p02_a_settlement_waits_for_no_other_document,
    p02_settlements_are_sent_together_under_load,
    p03_one_session_waits_for_all_queues,
    p03_ready_is_a_hint,
    p04_no_listen_and_polling_is_said_once["polling"],
    p04_without_preloading,
    p04_behind_a_small_pooler,
);

async fn p01_no_more_is_leased_than_can_run(p: Place) {
    p.create().await;
    p.put_many("d", 12, gated("g")).await;
    let worker = p.worker(json!({"concurrency": 3}), json!({})).await;
    worker.nth(3, "began", json!({})).await;
    stays("three are leased", 2, async || {
        p.count("active").await == 3 && worker.count("began", json!({})) == 3
    })
    .await;
    worker.open("g").await;
    p.counts("completed", 12).await;
    worker.exactly(12, "began", json!({})).await;
}

async fn p01_a_document_is_settled_and_the_next_one_leased_in_one_transaction(p: Place) {
    p.create().await;
    p.put("d1", gated("g1")).await;
    let worker = p.worker(json!({"concurrency": 1}), json!({})).await;
    worker.event("began", json!({"subject": "d1"})).await;
    p.put("d2", gated("g2")).await;
    worker.open("g1").await;
    worker.event("began", json!({"subject": "d2"})).await;
    // A row has the number of the transaction that has written it last.
    let sql = format!(
        "select count(distinct xmin::text) || ' of ' || count(*) from fetchq_data.{}__docs",
        p.queue
    );
    assert_eq!(p.sql.text(&sql).await, "1 of 2");
}

async fn p02_a_settlement_waits_for_no_other_document(p: Place) {
    p.create().await;
    let worker = p.worker(json!({"concurrency": 2}), json!({})).await;
    p.put("long", gated("g")).await;
    worker.event("began", json!({"subject": "long"})).await;
    p.put("short", json!({})).await;
    let ended = worker.event("ended", json!({"subject": "short"})).await.at;
    p.becomes("short", "completed 0").await;
    let took = ended.elapsed();
    p.note(&format!(
        "settled {} ms after the handler, polled every 20 ms",
        took.as_millis()
    ));
    assert!(
        took.as_secs() < 6,
        "no settlement waits longer than a tenth of the lease: {took:?}"
    );
}

async fn p02_settlements_are_sent_together_under_load(p: Place) {
    p.create().await;
    p.put_many("d", 200, json!({})).await;
    let _worker = p
        .worker(json!({"concurrency": 50}), json!({"concurrency": 50}))
        .await;
    p.counts("completed", 200).await;
    let sql = format!(
        "select count(distinct xmin::text) from fetchq_data.{}__docs",
        p.queue
    );
    let transactions = p.number(&sql).await;
    p.note(&format!(
        "200 documents were settled by {transactions} transactions"
    ));
    assert!(transactions <= 100, "{transactions}");
}

async fn p03_one_session_waits_for_all_queues(p: Place) {
    p.create().await;
    let queues: Vec<String> = ["", "b", "c"]
        .iter()
        .map(|end| format!("{}{end}", p.queue))
        .collect();
    for queue in &queues[1..] {
        p.create_queue(queue, json!({})).await;
    }
    let tasks: Vec<_> = queues
        .iter()
        .map(|queue| json!({"queue": queue, "concurrency": 2}))
        .collect();
    let proxy = p.proxy().await;
    let connect = json!({"url": p.url_by(proxy.port)});
    let worker = p
        .worker_on(connect, json!({}), json!({"tasks": tasks}))
        .await;
    let waiting = p.sessions("state = 'active' and query ~* '_wait'");
    p.sees("the number of waiting sessions is", &waiting, "1")
        .await;
    pause(500).await;
    let before = proxy.calls();
    stays("one session waits", 5, async || {
        p.number(&waiting).await <= 1
    })
    .await;
    let calls = proxy.calls() - before;
    p.note(&format!("an idle worker makes {calls} calls in 5 s"));
    assert!(calls <= 3, "{calls}");
    for queue in &queues {
        p.put_with(queue, "a", json!({}), "").await;
        p.becomes_in(queue, "a", "completed 0").await;
        worker
            .event("began", json!({"queue": queue, "subject": "a"}))
            .await;
    }
}

async fn p03_ready_is_a_hint(p: Place) {
    p.create().await;
    // Both wait, and each document is for one of them.
    let one = p.worker(json!({}), json!({})).await;
    let other = p.worker(json!({}), json!({})).await;
    let waiting = p.sessions("state = 'active' and query ~* '_wait'");
    for n in 1..=10 {
        p.sees("the number of waiting sessions is", &waiting, "2")
            .await;
        p.put(&format!("d{n}"), json!({})).await;
        p.becomes(&format!("d{n}"), "completed 0").await;
    }
    let began = one.count("began", json!({})) + other.count("began", json!({}));
    assert_eq!(began, 10);
}

async fn says_that_it_polls(p: &Place, worker: &crate::adapter::Adapter) {
    for n in 1..=3 {
        p.put(&format!("d{n}"), json!({})).await;
        p.becomes(&format!("d{n}"), "completed 0").await;
        pause(700).await;
    }
    let said = || {
        let lines = worker.logged("info");
        lines
            .iter()
            .filter(|line| {
                line["message"]
                    .as_str()
                    .is_some_and(|text| text.to_lowercase().contains("poll"))
            })
            .count()
    };
    until("it says that it polls", async || said() > 0).await;
    stays("it says so once", 2, async || said() == 1).await;
}

async fn p04_no_listen_and_polling_is_said_once(p: Place) {
    p.create().await;
    let proxy = p.proxy().await;
    let worker = p
        .worker_on(
            json!({"url": p.url_by(proxy.port)}),
            json!({}),
            json!({"polling": true}),
        )
        .await;
    says_that_it_polls(&p, &worker).await;
    let statements = proxy.statements();
    assert!(!statements.is_empty());
    for statement in statements {
        let text = statement.text.to_lowercase();
        assert!(
            !text.contains("listen")
                && !text.contains("worker_wait")
                && !text.contains("queue_wait"),
            "{text}"
        );
    }
}

async fn p04_without_preloading(p: Place) {
    let host = p.world.unloaded().await;
    let p = p.on(host).await;
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    says_that_it_polls(&p, &worker).await;
}

async fn p04_behind_a_small_pooler(p: Place) {
    p.create().await;
    // One connection: a session that waits would keep it from all others.
    let pooler = p.pooler(1).await;
    let connect = json!({"url": p.url_by(pooler.port()), "pooled": true});
    let worker = p.worker_on(connect, json!({}), json!({})).await;
    p.put_many("d", 5, json!({})).await;
    p.counts("completed", 5).await;
    p.put("e", json!({})).await;
    p.becomes("e", "completed 0").await;
    worker.exactly(6, "began", json!({})).await;
}
