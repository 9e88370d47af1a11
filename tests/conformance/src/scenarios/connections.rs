//! Connections that break, and what the server has done meanwhile. Points 11 to 14.

use std::time::Duration;

use serde_json::{Value, json};

use crate::adapter::Adapter;
use crate::place::{Host, Place, gated, pause, stays, until};
use crate::proxy::{Proxy, Way};

crate::scenarios!(
    p11_a_finished_document_is_settled_when_the_server_is_back,
    p11_a_half_closed_connection,
    p11_slow_answers,
    p11_a_session_that_the_server_ends,
    p11_the_server_crashes,
    p11_the_pooler_is_killed,
    p12_a_settlement_whose_answer_was_lost_is_no_second_one,
    p12_a_rejection_whose_answer_was_lost_counts_once,
    p12_documents_that_follow_are_put_once_though_the_answer_was_lost["then"],
    p12_a_commit_whose_answer_was_lost_is_not_repeated["transactional"],
    p12_a_commit_that_was_not_made_is_repeated["transactional"],
    p13_a_lease_whose_answer_was_lost_comes_back,
    p13_a_lease_whose_answer_was_lost_comes_back_behind_a_pooler,
    p14_all_works_behind_a_pooler,
    p14_transactional_handlers_behind_a_pooler["transactional"],
    p14_names_of_workers,
);

async fn through(p: &Place, task: Value, more: Value) -> (Proxy, Adapter) {
    let proxy = p.proxy().await;
    let worker = p
        .worker_on(json!({"url": p.url_by(proxy.port)}), task, more)
        .await;
    (proxy, worker)
}

/// The worker works: it completes another document.
async fn works(p: &Place, subject: &str) {
    p.put(subject, json!({})).await;
    p.becomes(subject, "completed 0").await;
}

async fn p11_a_finished_document_is_settled_when_the_server_is_back(p: Place) {
    p.create().await;
    let (proxy, worker) = through(&p, json!({}), json!({})).await;
    p.put_many("d", 3, gated("g")).await;
    worker.nth(3, "began", json!({})).await;
    let before = proxy.opened();
    proxy.all(Way::Cut);
    worker.open("g").await;
    worker.nth(3, "ended", json!({})).await;
    pause(6000).await;
    let tried = proxy.opened() - before;
    p.note(&format!(
        "{tried} connections were tried in 6 s without a server"
    ));
    assert!(tried < 150, "it backs off: {tried}");
    assert_eq!(p.count("active").await, 3);
    proxy.later(Way::Through);
    p.counts("completed", 3).await;
    works(&p, "next").await;
    assert_eq!(
        (
            worker.count("began", json!({})),
            worker.count("aborted", json!({}))
        ),
        (4, 0)
    );
    assert_eq!(worker.count("stopped", json!({})), 0);
}

async fn p11_a_half_closed_connection(p: Place) {
    p.create().await;
    let (proxy, worker) = through(&p, json!({"lease": "6 seconds"}), json!({})).await;
    p.put("a", gated("g")).await;
    worker.event("began", json!({"subject": "a"})).await;
    proxy.now(Way::HalfClosed);
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    worker.exactly(1, "began", json!({"subject": "a"})).await;
    works(&p, "next").await;
}

async fn p11_slow_answers(p: Place) {
    p.create().await;
    let (proxy, worker) = through(&p, json!({"lease": "6 seconds"}), json!({})).await;
    proxy.delay(Duration::from_millis(300));
    p.put_many("d", 10, json!({"script": [{"op": "sleep", "seconds": 1}]}))
        .await;
    p.counts("completed", 10).await;
    assert_eq!(
        (
            worker.count("began", json!({})),
            worker.count("aborted", json!({}))
        ),
        (10, 0)
    );
}

async fn p11_a_session_that_the_server_ends(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    p.put("a", gated("g")).await;
    worker.event("began", json!({"subject": "a"})).await;
    for _ in 0..3 {
        let end = format!(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity where application_name = '{}'",
            p.queue
        );
        assert!(p.number(&end).await > 0);
        pause(700).await;
    }
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    works(&p, "next").await;
    assert_eq!(
        (
            worker.count("began", json!({"subject": "a"})),
            worker.count("aborted", json!({}))
        ),
        (1, 0)
    );
}

/// A server of its own, which writes to disk what it acknowledges, leases too.
async fn own_host(p: Place) -> Place {
    let settings = "max_connections = 60\nsynchronous_commit = on\nfetchq.synchronous_leases = on";
    let host = Host::start(&p.queue, settings).await;
    p.on(std::sync::Arc::new(host)).await
}

async fn p11_the_server_crashes(p: Place) {
    let mut p = own_host(p).await;
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    for (round, gate) in ["g1", "g2"].into_iter().enumerate() {
        let subject = format!("d{round}");
        p.put(&subject, gated(gate)).await;
        worker.event("began", json!({"subject": subject})).await;
        p.host.cluster.stop("immediate");
        // The handler ends while there is no server.
        worker.open(gate).await;
        worker.event("ended", json!({"subject": subject})).await;
        pause(1000).await;
        p.host.cluster.start();
        let host = p.host.clone();
        p = p.on(host).await;
        p.becomes(&subject, "completed 0").await;
    }
    works(&p, "next").await;
    assert_eq!(
        (
            worker.count("began", json!({})),
            worker.count("aborted", json!({}))
        ),
        (3, 0)
    );
}

async fn p11_the_pooler_is_killed(p: Place) {
    p.create().await;
    let mut pooler = p.pooler(6).await;
    let connect = json!({"url": p.url_by(pooler.port()), "pooled": true});
    let worker = p.worker_on(connect, json!({}), json!({})).await;
    p.put("a", gated("g")).await;
    worker.event("began", json!({"subject": "a"})).await;
    pooler.kill();
    worker.open("g").await;
    worker.event("ended", json!({"subject": "a"})).await;
    pause(1000).await;
    pooler.restart().await;
    p.becomes("a", "completed 0").await;
    works(&p, "next").await;
    assert_eq!(
        (
            worker.count("began", json!({"subject": "a"})),
            worker.count("aborted", json!({}))
        ),
        (1, 0)
    );
}

async fn answers_again(proxy: &Proxy) {
    assert!(proxy.has_dropped());
    // The client does not know yet.
    pause(300).await;
    proxy.answer_again();
}

async fn p12_a_settlement_whose_answer_was_lost_is_no_second_one(p: Place) {
    p.create().await;
    let (proxy, worker) = through(&p, json!({}), json!({})).await;
    p.put("a", json!({"script": [{"op": "gate", "gate": "g"}, {"op": "complete", "result": {"mark": "needle-12"}}]})).await;
    worker.event("began", json!({"subject": "a"})).await;
    proxy.drop_answer_to("needle-12");
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    let written = p
        .sql
        .text(&format!(
            "select xmin::text from fetchq_data.{}__docs where subject = 'a'",
            p.queue
        ))
        .await;
    answers_again(&proxy).await;
    works(&p, "next").await;
    let now = p
        .sql
        .text(&format!(
            "select xmin::text from fetchq_data.{}__docs where subject = 'a'",
            p.queue
        ))
        .await;
    assert_eq!(written, now, "it was settled again");
    worker.exactly(1, "began", json!({"subject": "a"})).await;
    assert_eq!(worker.logged("error"), Vec::<Value>::new());
    if worker.can("metrics") {
        let metrics = async || worker.ok(json!({"do": "metrics", "worker": "w"})).await;
        // The answer to the last settlement may be under way.
        until("both settlements are counted", async || {
            metrics().await["settled"]["complete"] == 2
        })
        .await;
        let metrics = metrics().await;
        assert_eq!(metrics["lost"].as_u64().unwrap_or(0), 0, "{metrics}");
    }
}

async fn p12_a_rejection_whose_answer_was_lost_counts_once(p: Place) {
    p.create().await;
    let (proxy, worker) = through(&p, json!({}), json!({})).await;
    p.put(
        "a",
        json!({"script": [{"op": "gate", "gate": "g"}, {"op": "throw", "message": "needle-12"}]}),
    )
    .await;
    worker.event("began", json!({"subject": "a"})).await;
    proxy.drop_answer_to("needle-12");
    worker.open("g").await;
    p.becomes("a", "pending 1").await;
    answers_again(&proxy).await;
    works(&p, "next").await;
    assert_eq!(p.state("a").await, "pending 1");
    let errors = format!("select count(*) from fetchq.doc_errors('{}', 'a')", p.queue);
    assert_eq!(p.sql.text(&errors).await, "1");
}

async fn p12_documents_that_follow_are_put_once_though_the_answer_was_lost(p: Place) {
    p.create().await;
    let other = format!("{}b", p.queue);
    p.create_queue(&other, json!({})).await;
    let (proxy, worker) = through(&p, json!({}), json!({})).await;
    let then = json!([{"queue": other, "payload": {"mark": "needle-12"}}]);
    p.put(
        "a",
        json!({"script": [{"op": "gate", "gate": "g"}, {"op": "complete", "then": then}]}),
    )
    .await;
    worker.event("began", json!({"subject": "a"})).await;
    proxy.drop_answer_to("needle-12");
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    answers_again(&proxy).await;
    works(&p, "next").await;
    let puts = format!("select count(*) from fetchq_data.{other}__docs");
    assert_eq!(p.sql.text(&puts).await, "1");
}

async fn p12_a_commit_whose_answer_was_lost_is_not_repeated(p: Place) {
    p.create().await;
    p.sql
        .sql(&format!("create table {}_rows (n int)", p.queue))
        .await;
    let (proxy, worker) = through(&p, json!({"transactional": true}), json!({})).await;
    let insert = json!({"op": "sql", "sql": format!("insert into {}_rows values (1)", p.queue)});
    p.put(
        "a",
        json!({"scripts": [[insert, {"op": "gate", "gate": "g"}]]}),
    )
    .await;
    worker.event("began", json!({"subject": "a"})).await;
    proxy.drop_answer_to("commit");
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    answers_again(&proxy).await;
    works(&p, "next").await;
    assert_eq!(
        p.sql
            .text(&format!("select count(*) from {}_rows", p.queue))
            .await,
        "1"
    );
    assert_eq!(
        (
            p.state("a").await,
            worker.count("began", json!({"subject": "a"}))
        ),
        ("completed 0".to_owned(), 1)
    );
}

async fn p12_a_commit_that_was_not_made_is_repeated(p: Place) {
    p.create_with(json!({"retry": {"base": "1 ms"}})).await;
    p.sql
        .sql(&format!("create table {}_rows (n int)", p.queue))
        .await;
    let (proxy, worker) = through(&p, json!({"transactional": true}), json!({})).await;
    let insert = json!({"op": "sql", "sql": format!("insert into {}_rows values (1)", p.queue)});
    p.put(
        "a",
        json!({"scripts": [[insert, {"op": "gate", "gate": "g"}]]}),
    )
    .await;
    worker.event("began", json!({"subject": "a"})).await;
    // The transaction is open, and its connection breaks.
    proxy.now(Way::Cut);
    pause(500).await;
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    assert_eq!(
        p.sql
            .text(&format!("select count(*) from {}_rows", p.queue))
            .await,
        "1"
    );
    assert_eq!(worker.count("stopped", json!({})), 0);
}

/// The answer of the call that settles one document and leases another one is lost.
async fn loses_a_lease(p: &Place, proxy: &Proxy, worker: &Adapter) {
    // `worker_wait` may wait for the lock, too.
    let waiting = format!(
        "select count(*) from pg_locks join pg_stat_activity using (pid) \
         where not granted and relation = 'fetchq_data.{}__docs'::regclass and query ~ 'docs_next'",
        p.queue
    );
    worker.event("began", json!({"subject": "d1"})).await;
    p.put("d2", json!({})).await;
    let lock = p.host.db.connect().await;
    lock.sql(&format!(
        "begin; lock table fetchq_data.{}__docs in share row exclusive mode",
        p.queue
    ))
    .await;
    worker.open("g").await;
    until("the call waits", async || p.number(&waiting).await > 0).await;
    proxy.now(Way::Mute);
    lock.sql("commit").await;
    p.becomes("d1", "completed 0").await;
    pause(500).await;
    proxy.answer_again();
    // The lease lasts for ten minutes.
    p.becomes("d2", "completed 0").await;
    worker.exactly(1, "began", json!({"subject": "d1"})).await;
    worker.exactly(1, "began", json!({"subject": "d2"})).await;
}

async fn p13_a_lease_whose_answer_was_lost_comes_back(p: Place) {
    p.create().await;
    p.put("d1", gated("g")).await;
    let (proxy, worker) = through(
        &p,
        json!({"concurrency": 1, "lease": "10 minutes"}),
        json!({}),
    )
    .await;
    loses_a_lease(&p, &proxy, &worker).await;
}

async fn p13_a_lease_whose_answer_was_lost_comes_back_behind_a_pooler(p: Place) {
    p.create().await;
    p.put("d1", gated("g")).await;
    let pooler = p.pooler(6).await;
    let proxy = Proxy::start(pooler.port()).await;
    let connect = json!({"url": p.url_by(proxy.port), "pooled": true});
    let worker = p
        .worker_on(
            connect,
            json!({"concurrency": 1, "lease": "10 minutes"}),
            json!({}),
        )
        .await;
    loses_a_lease(&p, &proxy, &worker).await;
}

async fn p14_all_works_behind_a_pooler(p: Place) {
    p.create().await;
    let pooler = p.pooler(5).await;
    let proxy = Proxy::start(pooler.port()).await;
    let connect = json!({"url": p.url_by(proxy.port), "pooled": true});
    let worker = p
        .worker_on(
            connect.clone(),
            json!({"lease": "3 seconds", "concurrency": 8}),
            json!({"name": format!("node-{}", p.queue)}),
        )
        .await;
    p.put_many(
        "d",
        40,
        json!({"script": [{"op": "sleep", "seconds": 0.05}]}),
    )
    .await;
    p.put("long", gated("g")).await;
    worker.event("began", json!({"subject": "long"})).await;
    let put = json!({"do": "put", "queue": p.queue, "subject": "tx", "payload": {}, "tx": {"end": "commit"}});
    assert_eq!(worker.ok(put).await["action"], "created");
    pause(5000).await;
    let holder = format!(
        "select string_agg(worker || ' ' || subject, ' ') from fetchq.lease_list('{}')",
        p.queue
    );
    assert_eq!(p.sql.text(&holder).await, format!("node-{} long", p.queue));
    worker.open("g").await;
    p.counts("completed", 42).await;
    let id = worker
        .tell(json!({"do": "wait", "queue": p.queue, "subject": "long", "timeout": 10}))
        .await;
    assert_eq!(worker.reply(id).await.expect("wait")["status"], "completed");
    assert_eq!(
        (
            worker.count("began", json!({})),
            worker.count("aborted", json!({}))
        ),
        (42, 0)
    );
    assert!(worker.stop().await.value["error"].is_null());
    for statement in proxy.statements() {
        let text = statement.text.trim().to_lowercase();
        assert!(!statement.is_named, "it is prepared under a name: {text}");
        let is_of_session = ["set ", "listen", "prepare ", "declare "]
            .iter()
            .any(|word| text.starts_with(word));
        assert!(
            !is_of_session || text.starts_with("set local") || text.starts_with("set transaction"),
            "{text}"
        );
        assert!(
            !text.contains("advisory") && !text.contains("temp table"),
            "{text}"
        );
    }
}

async fn p14_transactional_handlers_behind_a_pooler(p: Place) {
    p.create().await;
    p.sql
        .sql(&format!("create table {}_rows (n int)", p.queue))
        .await;
    let pooler = p.pooler(6).await;
    let connect = json!({"url": p.url_by(pooler.port()), "pooled": true});
    let worker = p
        .worker_on(
            connect,
            json!({"transactional": true, "concurrency": 2}),
            json!({}),
        )
        .await;
    let insert = json!({"op": "sql", "sql": format!("insert into {}_rows values (1)", p.queue)});
    p.put_many("d", 20, json!({"script": [insert]})).await;
    p.counts("completed", 20).await;
    assert_eq!(
        p.sql
            .text(&format!("select count(*) from {}_rows", p.queue))
            .await,
        "20"
    );
    worker.exactly(20, "began", json!({})).await;
}

async fn p14_names_of_workers(p: Place) {
    p.create().await;
    p.put_many("d", 2, gated("g")).await;
    let one = p.worker(json!({"concurrency": 1}), json!({})).await;
    let other = p.worker(json!({"concurrency": 1}), json!({})).await;
    one.event("began", json!({})).await;
    other.event("began", json!({})).await;
    let names = format!(
        "select count(distinct worker) from fetchq.lease_list('{}')",
        p.queue
    );
    assert_eq!(
        p.sql.text(&names).await,
        "2",
        "each process has a name of its own"
    );
    stays("both work", 1, async || p.count("active").await == 2).await;
    one.open("g").await;
    other.open("g").await;
    p.counts("completed", 2).await;
}
