//! Traces, metrics, logs, middleware and health. Points 25 to 28.

use serde_json::{Value, json};

use crate::place::{Place, gated, stays, until};
use crate::proxy::Way;

crate::scenarios!(
    p25_a_trace_is_carried_by_the_headers["trace"],
    p25_the_span_of_a_handler_has_a_link["trace"],
    p25_the_span_of_a_handler_is_a_child_by_option["trace"],
    p25_a_retry_has_a_trace_of_its_own["trace"],
    p26_metrics_count_what_has_happened["metrics"],
    p27_one_line_for_each_failure,
    p27_the_last_attempt_is_an_error,
    p28_middleware_surrounds_in_order["middleware"],
    p28_health["health"],
);

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

fn put(p: &Place, subject: &str, payload: Value) -> Value {
    let context = json!({"traceparent": format!("00-{TRACE}-{PARENT}-01"), "tracestate": "rojo=1", "baggage": "tenant=7"});
    json!({"do": "put", "queue": p.queue, "subject": subject, "payload": payload, "context": context})
}

/// Puts a document in a trace. Returns the headers that it got.
async fn traced(p: &Place, client: &crate::adapter::Adapter, payload: Value) -> Value {
    client.ok(put(p, "a", payload)).await;
    let text = p.column("a", "headers").await;
    serde_json::from_str(&text).unwrap_or_else(|_| panic!("no headers: {text}"))
}

async fn p25_a_trace_is_carried_by_the_headers(p: Place) {
    p.create().await;
    let client = p.connected(json!({"trace": true})).await;
    let headers = traced(&p, &client, json!({})).await;
    let parent = headers["traceparent"].as_str().unwrap_or_default();
    let parts: Vec<&str> = parent.split('-').collect();
    assert_eq!(
        (parts.len(), parts[0], parts[1], parts[3]),
        (4, "00", TRACE, "01"),
        "{headers}"
    );
    assert!(
        parts[2] != PARENT && parts[2].len() == 16,
        "the span of the put: {headers}"
    );
    assert_eq!(
        (&headers["tracestate"], &headers["baggage"]),
        (&json!("rojo=1"), &json!("tenant=7"))
    );
    let span = client
        .event("span", json!({"kind": "producer"}))
        .await
        .value;
    assert_eq!(span["name"], format!("send {}", p.queue));
    assert_eq!(
        (&span["trace_id"], &span["span_id"], &span["parent_id"]),
        (&json!(TRACE), &json!(parts[2]), &json!(PARENT))
    );
    assert_eq!(span["attributes"]["messaging.destination.name"], p.queue);
    // Without a trace there is a new one, and without tracing there are no headers.
    let plain = p.client().await;
    plain
        .ok(json!({"do": "put", "queue": p.queue, "subject": "b", "payload": {}}))
        .await;
    assert_eq!(
        p.column("b", "coalesce(headers ->> 'traceparent', 'none')")
            .await,
        "none"
    );
}

async fn p25_the_span_of_a_handler_has_a_link(p: Place) {
    p.create().await;
    let worker = p
        .worker_on(json!({"trace": true}), json!({}), json!({}))
        .await;
    let headers = traced(&p, &worker, json!({})).await;
    let span = worker
        .event("span", json!({"kind": "consumer"}))
        .await
        .value;
    assert_eq!(span["name"], format!("process {}", p.queue));
    assert_ne!(span["trace_id"], TRACE);
    assert!(span["parent_id"].is_null(), "{span}");
    let of_put = headers["traceparent"]
        .as_str()
        .unwrap_or_default()
        .split('-')
        .nth(2)
        .unwrap_or_default();
    assert_eq!(
        (&span["links"][0]["trace_id"], &span["links"][0]["span_id"]),
        (&json!(TRACE), &json!(of_put))
    );
    assert_eq!(span["attributes"]["messaging.destination.name"], p.queue);
}

async fn p25_the_span_of_a_handler_is_a_child_by_option(p: Place) {
    p.create().await;
    let worker = p
        .worker_on(
            json!({"trace": true}),
            json!({"trace_child": true}),
            json!({}),
        )
        .await;
    let headers = traced(&p, &worker, json!({})).await;
    let span = worker
        .event("span", json!({"kind": "consumer"}))
        .await
        .value;
    let of_put = headers["traceparent"]
        .as_str()
        .unwrap_or_default()
        .split('-')
        .nth(2)
        .unwrap_or_default();
    assert_eq!(
        (&span["trace_id"], &span["parent_id"]),
        (&json!(TRACE), &json!(of_put)),
        "{span}"
    );
}

async fn p25_a_retry_has_a_trace_of_its_own(p: Place) {
    p.create_with(json!({"retry": {"base": "10 ms"}})).await;
    let worker = p
        .worker_on(json!({"trace": true}), json!({}), json!({}))
        .await;
    traced(
        &p,
        &worker,
        json!({"scripts": [[{"op": "throw", "message": "no"}], []]}),
    )
    .await;
    p.becomes("a", "completed 0").await;
    let first = worker
        .nth(1, "span", json!({"kind": "consumer"}))
        .await
        .value;
    let second = worker
        .nth(2, "span", json!({"kind": "consumer"}))
        .await
        .value;
    assert_eq!(
        (&first["status"], second["status"] != "error"),
        (&json!("error"), true),
        "{first} {second}"
    );
    assert_ne!(first["trace_id"], second["trace_id"]);
    for span in [first, second] {
        assert_eq!(
            (&span["links"][0]["trace_id"], &span["parent_id"]),
            (&json!(TRACE), &Value::Null)
        );
    }
}

async fn p26_metrics_count_what_has_happened(p: Place) {
    p.create().await;
    let worker = p
        .worker(json!({"concurrency": 3}), json!({"concurrency": 7}))
        .await;
    let metrics = async || worker.ok(json!({"do": "metrics", "worker": "w"})).await;
    p.put_many("d", 3, json!({})).await;
    p.put(
        "rejected",
        json!({"script": [{"op": "throw", "message": "no"}]}),
    )
    .await;
    p.put(
        "killed",
        json!({"script": [{"op": "kill", "message": "no"}]}),
    )
    .await;
    p.put(
        "snoozed",
        json!({"script": [{"op": "snooze", "delay": "1 hour"}]}),
    )
    .await;
    p.counts("completed", 3).await;
    p.becomes("rejected", "pending 1").await;
    p.becomes("killed", "killed 0").await;
    p.becomes("snoozed", "planned 0").await;
    p.put("running", gated("g")).await;
    worker.event("began", json!({"subject": "running"})).await;
    until("the settlements are counted", async || {
        let now = metrics().await;
        let n = |action: &str| now["settled"][action].as_u64().unwrap_or(0);
        (n("complete"), n("reject"), n("kill"), n("snooze")) == (3, 1, 1, 1)
    })
    .await;
    let now = metrics().await;
    assert_eq!(
        (&now["slots"], &now["slots_used"], &now["lost"]),
        (&json!(7), &json!(1), &json!(0)),
        "{now}"
    );
    assert_eq!(now["handled"], 6, "{now}");
    assert!(
        now["handler_seconds"]
            .as_f64()
            .is_some_and(|seconds| seconds > 0.0),
        "{now}"
    );
    worker.open("g").await;
    p.becomes("running", "completed 0").await;
    until("no slot is used", async || {
        metrics().await["slots_used"] == 0
    })
    .await;
}

async fn p27_one_line_for_each_failure(p: Place) {
    p.create().await;
    let name = format!("node-{}", p.queue);
    let worker = p.worker(json!({}), json!({"name": name})).await;
    p.put_many("d", 3, json!({})).await;
    p.put(
        "bad",
        json!({"script": [{"op": "throw", "message": "bad luck"}]}),
    )
    .await;
    p.put(
        "snoozed",
        json!({"script": [{"op": "snooze", "delay": "1 hour"}]}),
    )
    .await;
    p.counts("completed", 3).await;
    p.becomes("bad", "pending 1").await;
    p.becomes("snoozed", "planned 0").await;
    let of = |subject: &str| -> Vec<Value> {
        worker
            .logged("info")
            .into_iter()
            .filter(|line| line["fields"]["subject"] == subject)
            .collect()
    };
    until("the failure is logged", async || !of("bad").is_empty()).await;
    stays("once", 1, async || of("bad").len() == 1).await;
    let line = of("bad").remove(0);
    assert_eq!(line["level"], "warn", "{line}");
    let fields = &line["fields"];
    assert_eq!(
        (&fields["queue"], &fields["attempt"], &fields["worker"]),
        (&json!(p.queue), &json!(1), &json!(name)),
        "{line}"
    );
    assert!(line.to_string().contains("bad luck"), "{line}");
    // Nothing is said of success.
    for subject in ["d1", "d2", "d3", "snoozed"] {
        assert_eq!(of(subject), Vec::<Value>::new());
    }
}

async fn p27_the_last_attempt_is_an_error(p: Place) {
    p.create_with(json!({"retry": {"base": "10 ms"}, "max_attempts": 2}))
        .await;
    let worker = p.worker(json!({}), json!({})).await;
    p.put(
        "bad",
        json!({"script": [{"op": "throw", "message": "bad luck"}]}),
    )
    .await;
    p.becomes("bad", "killed 2").await;
    let levels = || -> Vec<Value> {
        let lines = worker
            .logged("info")
            .into_iter()
            .filter(|line| line["fields"]["subject"] == "bad");
        lines.map(|line| line["level"].clone()).collect()
    };
    until("both are logged", async || levels() == ["warn", "error"]).await;
}

async fn p28_middleware_surrounds_in_order(p: Place) {
    p.create().await;
    let worker = p
        .worker_on(
            json!({"middleware": ["outer", "inner"]}),
            json!({}),
            json!({}),
        )
        .await;
    worker
        .ok(json!({"do": "put", "queue": p.queue, "subject": "a", "payload": {}}))
        .await;
    p.becomes("a", "completed 0").await;
    for around in ["put", "handle"] {
        until("all four have come", async || {
            worker.count("middleware", json!({"around": around})) == 4
        })
        .await;
        let order: Vec<String> = worker
            .events("middleware", json!({"around": around}))
            .into_iter()
            .map(|event| format!("{} {}", event.value["at"], event.value["name"]).replace('"', ""))
            .collect();
        assert_eq!(
            order,
            ["before outer", "before inner", "after inner", "after outer"],
            "{around}"
        );
    }
}

async fn p28_health(p: Place) {
    p.create().await;
    let proxy = p.proxy().await;
    let worker = p
        .worker_on(
            json!({"url": p.url_by(proxy.port)}),
            json!({"lease": "3 seconds"}),
            json!({}),
        )
        .await;
    let health = async || worker.ok(json!({"do": "health", "worker": "w"})).await;
    p.put("a", gated("g")).await;
    worker.event("began", json!({"subject": "a"})).await;
    until("there was a heartbeat", async || {
        health().await["heartbeat_age"].is_number()
    })
    .await;
    let now = health().await;
    assert_eq!(
        (&now["ok"], &now["database"], &now["loops"]),
        (&json!(true), &json!(true), &json!(true)),
        "{now}"
    );
    proxy.all(Way::Cut);
    until("it says that the database is away", async || {
        let now = health().await;
        now["ok"] == false && now["database"] == false
    })
    .await;
    proxy.later(Way::Through);
    until("it says that the database is back", async || {
        health().await["ok"] == true
    })
    .await;
    worker.open("g").await;
}
