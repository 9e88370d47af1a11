//! What a handler gets, and what it can make of its document.

use serde_json::json;

use crate::place::{Place, gated, pause, until};

crate::scenarios!(
    a_handler_gets_its_document,
    outcomes_of_handlers,
    documents_follow["then"],
    documents_that_follow_are_put_once["then"],
    a_step_is_kept_over_retries["step"],
    progress_is_stored["progress"],
    a_transactional_handler_commits_with_its_document["transactional"],
    a_transactional_handler_that_fails_leaves_nothing["transactional"],
    a_transactional_handler_whose_lease_was_lost_leaves_nothing["transactional"],
    a_cancelled_transactional_handler_leaves_nothing["transactional"],
    a_handler_puts_in_its_transaction["transactional"],
);

async fn a_handler_gets_its_document(p: Place) {
    p.create().await;
    let payload = json!({"n": 1, "to": "ada", "more": {"text": "世界 \u{1f600}", "list": [1.5, null]}, "script": []});
    p.put_with(
        &p.queue,
        "a",
        payload.clone(),
        ", headers => '{\"tenant\": 7}', priority => 3",
    )
    .await;
    let worker = p
        .worker(json!({}), json!({"name": format!("node-{}", p.queue)}))
        .await;
    let began = worker.event("began", json!({"subject": "a"})).await.value;
    assert_eq!(began["queue"], p.queue);
    assert_eq!(began["attempt"], 1);
    assert_eq!(began["version"], 0);
    assert_eq!(began["payload"], payload);
    assert_eq!(began["headers"]["tenant"], 7);
    p.becomes("a", "completed 0").await;
    worker
        .event(
            "ended",
            json!({"subject": "a", "how": "returned", "lease": began["lease"]}),
        )
        .await;
}

async fn outcomes_of_handlers(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    let script = |op| json!({"script": [op]});
    p.put("done", json!({})).await;
    p.put(
        "result",
        script(json!({"op": "complete", "result": [1, {"a": null}], "payload": {"n": 2}})),
    )
    .await;
    p.put(
        "snoozed",
        script(json!({"op": "snooze", "delay": "1 hour"})),
    )
    .await;
    p.put(
        "rescheduled",
        script(json!({"op": "reschedule", "delay": "2 hours", "payload": {"n": 3}})),
    )
    .await;
    p.put(
        "rejected",
        script(
            json!({"op": "reject", "message": "busy", "delay": "3 hours", "details": {"code": 5}}),
        ),
    )
    .await;
    p.put("killed", script(json!({"op": "kill", "message": "gone"})))
        .await;
    p.put("dropped", script(json!({"op": "drop"}))).await;
    p.put(
        "thrown",
        script(json!({"op": "throw", "message": "bad luck"})),
    )
    .await;
    p.becomes("done", "completed 0").await;
    p.becomes("result", "completed 0").await;
    assert_eq!(p.column("result", "result").await, r#"[1, {"a": null}]"#);
    assert_eq!(p.column("result", "payload").await, r#"{"n": 2}"#);
    let due = |hours: i32| {
        format!("due_at - now() between '{hours} h'::interval - '1 min'::interval and '{hours} h'")
    };
    p.becomes("snoozed", "planned 0").await;
    assert_eq!(p.column("snoozed", &due(1)).await, "t");
    p.becomes("rescheduled", "planned 0").await;
    assert_eq!(p.column("rescheduled", &due(2)).await, "t");
    assert_eq!(p.column("rescheduled", "payload").await, r#"{"n": 3}"#);
    p.becomes("rejected", "pending 1").await;
    assert_eq!(p.column("rejected", "last_error").await, "busy");
    p.becomes("killed", "killed 0").await;
    assert_eq!(p.column("killed", "last_error").await, "gone");
    p.becomes("dropped", "missing").await;
    p.becomes("thrown", "pending 1").await;
    assert_eq!(p.column("thrown", "last_error").await, "bad luck");
    worker
        .event("ended", json!({"subject": "thrown", "how": "raised"}))
        .await;
}

async fn documents_follow(p: Place) {
    p.create().await;
    let other = format!("{}b", p.queue);
    p.create_queue(&other, json!({})).await;
    let _worker = p.worker(json!({}), json!({})).await;
    let then = json!([{"queue": other, "subject": "next", "payload": {"n": 4}},
        {"queue": p.queue, "subject": "later", "payload": {}, "options": {"delay": "1 hour", "priority": 2}}]);
    p.put("a", json!({"script": [{"op": "complete", "then": then}]}))
        .await;
    p.becomes("a", "completed 0").await;
    assert_eq!(p.state_in(&other, "next").await, "pending 0");
    assert_eq!(p.state("later").await, "planned 0");
    assert_eq!(p.column("later", "priority").await, "2");
}

async fn documents_that_follow_are_put_once(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    let then = json!([{"queue": p.queue, "subject": "next", "payload": {}}]);
    let script = json!([{"op": "gate", "gate": "g", "on_abort": "ignore"}, {"op": "complete", "then": then}]);
    p.put("a", json!({"script": script})).await;
    worker.event("began", json!({"subject": "a"})).await;
    p.sql
        .sql(&format!("select fetchq.doc_cancel('{}', 'a')", p.queue))
        .await;
    worker
        .event("aborted", json!({"subject": "a", "reason": "cancelled"}))
        .await;
    worker.open("g").await;
    worker.event("ended", json!({"subject": "a"})).await;
    // The worker goes on, and what would have followed the cancelled document does not exist.
    p.put("b", json!({})).await;
    p.becomes("b", "completed 0").await;
    assert_eq!(p.state("next").await, "missing");
}

async fn a_step_is_kept_over_retries(p: Place) {
    p.create_with(json!({"retry": {"base": "10 ms", "jitter": 0}}))
        .await;
    let worker = p.worker(json!({}), json!({})).await;
    let first = json!([{"op": "step", "name": "render", "value": {"html": "é"}}, {"op": "throw", "message": "no"}]);
    let second = json!([{"op": "step", "name": "render", "value": {"html": "other"}}, {"op": "step", "name": "send", "value": null}]);
    p.put("a", json!({"scripts": [first, second]})).await;
    p.becomes("a", "completed 0").await;
    let fields = |attempt, name: &str| json!({"subject": "a", "attempt": attempt, "name": name});
    let step = worker.event("step", fields(1, "render")).await.value;
    assert_eq!(
        (&step["ran"], &step["value"]),
        (&json!(true), &json!({"html": "é"}))
    );
    let step = worker.event("step", fields(2, "render")).await.value;
    assert_eq!(
        (&step["ran"], &step["value"]),
        (&json!(false), &json!({"html": "é"}))
    );
    assert_eq!(
        worker.event("step", fields(2, "send")).await.value["ran"],
        true
    );
}

async fn progress_is_stored(p: Place) {
    p.create_with(json!({"retry": {"base": "10 ms", "jitter": 0}}))
        .await;
    let worker = p.worker(json!({"lease": "3 seconds"}), json!({})).await;
    let first = json!([{"op": "progress", "value": {"done": 3}}, {"op": "gate", "gate": "g"}, {"op": "throw", "message": "no"}]);
    p.put("a", json!({"scripts": [first, []]})).await;
    let sql = format!(
        "select coalesce((select progress::text from fetchq.doc_get('{}', 'a')), '')",
        p.queue
    );
    p.sees("the progress is", &sql, r#"{"done": 3}"#).await;
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    let again = worker
        .event("began", json!({"subject": "a", "attempt": 2}))
        .await
        .value;
    assert_eq!(again["progress"], json!({"done": 3}));
}

fn insert(p: &Place, n: i32) -> serde_json::Value {
    json!({"op": "sql", "sql": format!("insert into {}_rows values ({n})", p.queue)})
}

async fn rows(p: &Place) -> String {
    let sql = format!(
        "select coalesce(string_agg(n::text, ' ' order by n), '') from {}_rows",
        p.queue
    );
    p.sql.text(&sql).await
}

async fn prepare(p: &Place) {
    p.create().await;
    p.sql
        .sql(&format!("create table {}_rows (n int)", p.queue))
        .await;
}

async fn a_transactional_handler_commits_with_its_document(p: Place) {
    prepare(&p).await;
    let worker = p.worker(json!({"transactional": true}), json!({})).await;
    p.put("a", json!({"script": [insert(&p, 1), {"op": "gate", "gate": "g"}, {"op": "complete", "result": 5}]})).await;
    worker.event("began", json!({"subject": "a"})).await;
    assert_eq!(rows(&p).await, "");
    worker.open("g").await;
    p.becomes("a", "completed 0").await;
    assert_eq!(rows(&p).await, "1");
    assert_eq!(p.column("a", "result").await, "5");
    // What the handler has written and the settlement have one transaction.
    let sql = format!(
        "select count(*) from {0}_rows r join fetchq_data.{0}__docs d on d.xmin = r.xmin",
        p.queue
    );
    assert_eq!(p.sql.text(&sql).await, "1");
}

async fn a_transactional_handler_that_fails_leaves_nothing(p: Place) {
    prepare(&p).await;
    let _worker = p.worker(json!({"transactional": true}), json!({})).await;
    p.put(
        "thrown",
        json!({"script": [insert(&p, 1), {"op": "throw", "message": "no"}]}),
    )
    .await;
    p.put(
        "broken",
        json!({"script": [insert(&p, 2), {"op": "sql", "sql": "select 1/0"}]}),
    )
    .await;
    p.put("good", json!({"script": [insert(&p, 3)]})).await;
    p.becomes("thrown", "pending 1").await;
    p.becomes("broken", "pending 1").await;
    p.becomes("good", "completed 0").await;
    assert_eq!(rows(&p).await, "3");
    assert_eq!(p.column("thrown", "last_error").await, "no");
    assert!(
        p.column("broken", "last_error")
            .await
            .contains("division by zero")
    );
}

async fn a_transactional_handler_whose_lease_was_lost_leaves_nothing(p: Place) {
    prepare(&p).await;
    let name = format!("node-{}", p.queue);
    let worker = p
        .worker(json!({"transactional": true}), json!({"name": name}))
        .await;
    let script = json!([insert(&p, 1), {"op": "gate", "gate": "g", "on_abort": "ignore"}]);
    p.put("a", json!({"scripts": [script]})).await;
    worker.event("began", json!({"subject": "a"})).await;
    // It is at the gate: an abort before that is none of the script.
    pause(1000).await;
    p.sql
        .sql(&format!("select fetchq.worker_release('{name}')"))
        .await;
    worker
        .event("aborted", json!({"subject": "a", "reason": "lost"}))
        .await;
    worker.open("g").await;
    // The second run, which has a lease, writes the only row.
    p.becomes("a", "completed 0").await;
    assert_eq!(rows(&p).await, "1");
    until("both have ended", async || {
        worker.count("ended", json!({"subject": "a"})) == 2
    })
    .await;
}

async fn a_cancelled_transactional_handler_leaves_nothing(p: Place) {
    prepare(&p).await;
    let worker = p.worker(json!({"transactional": true}), json!({})).await;
    let script = json!([insert(&p, 1), {"op": "gate", "gate": "g", "on_abort": "ignore"}]);
    p.put("a", json!({"script": script})).await;
    worker.event("began", json!({"subject": "a"})).await;
    // It is at the gate: an abort before that is none of the script.
    pause(1000).await;
    p.sql
        .sql(&format!("select fetchq.doc_cancel('{}', 'a')", p.queue))
        .await;
    worker
        .event("aborted", json!({"subject": "a", "reason": "cancelled"}))
        .await;
    worker.open("g").await;
    worker.event("ended", json!({"subject": "a"})).await;
    p.put("b", gated("g")).await;
    p.becomes("b", "completed 0").await;
    assert_eq!(rows(&p).await, "");
    assert_eq!(p.state("a").await, "killed 0");
}

async fn a_handler_puts_in_its_transaction(p: Place) {
    prepare(&p).await;
    let _worker = p.worker(json!({"transactional": true}), json!({})).await;
    let put = |subject: &str| json!({"op": "put", "queue": p.queue, "subject": subject, "payload": {}, "options": {"delay": "1 hour"}});
    p.put("good", json!({"script": [put("kept")]})).await;
    p.put(
        "bad",
        json!({"script": [put("undone"), {"op": "throw", "message": "no"}]}),
    )
    .await;
    p.becomes("good", "completed 0").await;
    p.becomes("bad", "pending 1").await;
    assert_eq!(p.state("kept").await, "planned 0");
    assert_eq!(p.state("undone").await, "missing");
}
