//! What fails: payloads, settlements, handlers, the database. Points 15 to 19.

use serde_json::{Value, json};

use crate::place::{Place, gated, pause, stays, until};

crate::scenarios!(
    p15_a_payload_that_does_not_decode_is_rejected,
    p15_a_payload_that_does_not_decode_is_killed_by_option,
    p15_a_document_that_crashes_its_workers_is_killed,
    p16_an_invalid_settlement_spares_the_others,
    p17_retry_decides_by_the_error,
    p17_a_handler_that_fails_is_retried_by_the_policy_of_the_queue,
    p17_an_error_of_the_database_is_charged_to_no_document,
    p17_a_document_that_cannot_be_settled_spares_the_others,
    p17_missing_rights_end_the_worker,
    p17_a_missing_queue_is_an_error_of_configuration,
    p18_a_conflict_of_a_settlement_is_tried_again,
    p18_a_conflict_that_stays_does_not_end_the_worker,
    p18_a_conflict_of_a_transactional_handler_is_an_error["transactional"],
    p18_a_transactional_handler_runs_anew_by_option["rerun"],
    p19_messages_are_cleaned,
    p19_the_stack_is_in_the_details,
    p19_a_hook_redacts["redact"],
);

async fn p15_a_payload_that_does_not_decode_is_rejected(p: Place) {
    p.create().await;
    for (subject, payload) in [
        ("a", json!({"n": "many"})),
        ("b", json!([1, 2])),
        ("c", json!("text")),
    ] {
        p.put(subject, payload).await;
    }
    let worker = p.worker(json!({"concurrency": 2}), json!({})).await;
    p.put("good", json!({"n": 5})).await;
    p.becomes("good", "completed 0").await;
    for subject in ["a", "b", "c"] {
        p.becomes(subject, "pending 1").await;
        assert!(!p.column(subject, "last_error").await.is_empty());
        assert_eq!(worker.count("began", json!({"subject": subject})), 0);
    }
    let error = p.column("a", "last_error").await;
    assert!(error.contains('n'), "it names the field: {error}");
    assert_eq!(worker.count("stopped", json!({})), 0);
}

async fn p15_a_payload_that_does_not_decode_is_killed_by_option(p: Place) {
    p.create().await;
    p.put("a", json!({"n": "many"})).await;
    let worker = p.worker(json!({"poison": "kill"}), json!({})).await;
    p.becomes("a", "killed 0").await;
    assert!(!p.column("a", "last_error").await.is_empty());
    assert_eq!(worker.count("began", json!({})), 0);
}

async fn p15_a_document_that_crashes_its_workers_is_killed(p: Place) {
    p.create_with(json!({"retry": {"base": "1 ms"}, "max_attempts": 2}))
        .await;
    p.put("bad", json!({"script": [{"op": "crash"}]})).await;
    for attempt in 1..=2 {
        let worker = p.client().await;
        // The program may end before it says that the worker has started.
        worker
            .tell(p.start(json!({"lease": "3 seconds", "concurrency": 1}), json!({})))
            .await;
        worker
            .event("began", json!({"subject": "bad", "attempt": attempt}))
            .await;
        worker.status().await;
    }
    p.becomes("bad", "killed 2").await;
    let worker = p.worker(json!({}), json!({})).await;
    p.put("good", json!({})).await;
    p.becomes("good", "completed 0").await;
    assert_eq!(worker.count("began", json!({"subject": "bad"})), 0);
}

async fn p16_an_invalid_settlement_spares_the_others(p: Place) {
    p.create().await;
    p.put_many("d", 4, gated("g")).await;
    p.put(
        "bad",
        json!({"script": [{"op": "gate", "gate": "g"}, {"op": "invalid"}]}),
    )
    .await;
    let worker = p.worker(json!({}), json!({})).await;
    worker.nth(5, "began", json!({})).await;
    worker.open("g").await;
    p.counts("completed", 4).await;
    p.becomes("bad", "pending 1").await;
    assert!(!p.column("bad", "last_error").await.is_empty());
    p.put("next", json!({})).await;
    p.becomes("next", "completed 0").await;
    worker.exactly(6, "began", json!({})).await;
}

async fn p17_retry_decides_by_the_error(p: Place) {
    p.create().await;
    let retry = json!([{"kind": "Gone", "op": "kill", "message": "gone"}, {"kind": "RateLimited", "op": "snooze", "delay": "1 hour"}]);
    let worker = p.worker(json!({"retry": retry}), json!({})).await;
    let throw = |kind: Value| json!({"script": [{"op": "throw", "message": "no", "kind": kind}]});
    p.put("gone", throw(json!("Gone"))).await;
    p.put("limited", throw(json!("RateLimited"))).await;
    p.put("other", throw(json!("Other"))).await;
    p.put("plain", throw(Value::Null)).await;
    p.becomes("gone", "killed 0").await;
    assert_eq!(p.column("gone", "last_error").await, "gone");
    p.becomes("limited", "planned 0").await;
    assert_eq!(
        p.column("limited", "due_at - now() between '59 min' and '60 min'")
            .await,
        "t"
    );
    p.becomes("other", "pending 1").await;
    p.becomes("plain", "pending 1").await;
    worker.exactly(4, "began", json!({})).await;
}

async fn p17_a_handler_that_fails_is_retried_by_the_policy_of_the_queue(p: Place) {
    p.create_with(json!({"retry": {"base": "50 ms", "factor": 1, "jitter": 0}, "max_attempts": 3}))
        .await;
    p.put("a", json!({"script": [{"op": "throw", "message": "no"}]}))
        .await;
    p.put("b", json!({"scripts": [[{"op": "throw", "message": "no"}], [{"op": "throw", "message": "no"}], []]})).await;
    let worker = p.worker(json!({}), json!({})).await;
    p.becomes("a", "killed 3").await;
    p.becomes("b", "completed 0").await;
    let attempts = |subject: &str| -> Vec<Value> {
        worker
            .events("began", json!({"subject": subject}))
            .into_iter()
            .map(|began| began.value["attempt"].clone())
            .collect()
    };
    assert_eq!(attempts("a"), [1, 2, 3]);
    assert_eq!(attempts("b"), [1, 2, 3]);
}

/// All calls that lease or settle fail for a while.
async fn p17_an_error_of_the_database_is_charged_to_no_document(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    p.put("d1", gated("g")).await;
    worker.event("began", json!({"subject": "d1"})).await;
    p.trigger(
        "true",
        "raise exception 'the disk is full' using errcode = '53100';",
    )
    .await;
    p.put("d2", json!({})).await;
    worker.open("g").await;
    worker.event("ended", json!({"subject": "d1"})).await;
    pause(4000).await;
    assert_eq!(worker.count("stopped", json!({})), 0, "it ends no worker");
    p.untrigger().await;
    p.becomes("d1", "completed 0").await;
    p.becomes("d2", "completed 0").await;
    worker.exactly(2, "began", json!({})).await;
    let errors = format!(
        "select count(*) from fetchq.doc_errors('{0}', 'd1') union all select count(*) from fetchq.doc_errors('{0}', 'd2')",
        p.queue
    );
    assert_eq!(p.sql.column(&errors).await, ["0", "0"]);
}

/// One document cannot be settled, whatever is tried.
async fn p17_a_document_that_cannot_be_settled_spares_the_others(p: Place) {
    p.create().await;
    p.trigger(
        "new.subject = 'bad' and new.status = 3",
        "raise exception 'no, never' using errcode = '23514';",
    )
    .await;
    p.put("bad", gated("g")).await;
    p.put_many("d", 4, gated("g")).await;
    let worker = p.worker(json!({}), json!({})).await;
    worker.nth(5, "began", json!({})).await;
    worker.open("g").await;
    p.counts("completed", 4).await;
    p.put("next", json!({})).await;
    p.becomes("next", "completed 0").await;
    // It is rejected with what the server has said.
    p.becomes("bad", "pending 1").await;
    assert!(p.column("bad", "last_error").await.contains("no, never"));
    assert_eq!(worker.count("stopped", json!({})), 0);
}

async fn p17_missing_rights_end_the_worker(p: Place) {
    p.create().await;
    let role = format!("{}_nobody", p.queue);
    p.sql.sql(&format!("create role {role} login")).await;
    let url = p.url().replace("postgres:", &format!("{role}:")).replacen(
        &format!("{role}://"),
        "postgres://",
        1,
    );
    let worker = p.connected(json!({"url": url})).await;
    // Either the check at the start says so, or the worker ends with the error.
    let error = match worker.ask(p.start(json!({}), json!({}))).await {
        Err(error) => error,
        Ok(_) => worker.event("stopped", json!({"worker": "w"})).await.value["error"].take(),
    };
    assert_eq!(error["code"], "config", "{error}");
}

async fn p17_a_missing_queue_is_an_error_of_configuration(p: Place) {
    let worker = p.client().await;
    let error = match worker.ask(p.start(json!({}), json!({}))).await {
        Err(error) => error,
        Ok(_) => worker.event("stopped", json!({"worker": "w"})).await.value["error"].take(),
    };
    assert_eq!(error["code"], "config", "{error}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains(&p.queue)),
        "{error}"
    );
}

async fn p18_a_conflict_of_a_settlement_is_tried_again(p: Place) {
    for (round, state) in ["40001", "40P01"].into_iter().enumerate() {
        let queue = format!("{}x{round}", p.queue);
        p.create_queue(&queue, json!({"retry": {"base": "1 day"}}))
            .await;
        p.sql
            .sql(&format!(
                "create sequence {queue}_tries;
                 create function {queue}_fails() returns trigger language plpgsql as $$ begin
                     if nextval('{queue}_tries') <= 2 then raise exception 'conflict' using errcode = '{state}'; end if;
                     return new; end $$;
                 create trigger fails before update on fetchq_data.{queue}__docs for each row when (new.status = 3)
                     execute function {queue}_fails()"
            ))
            .await;
        p.put_with(&queue, "a", json!({}), "").await;
        let worker = p.worker(json!({"queue": queue}), json!({})).await;
        p.becomes_in(&queue, "a", "completed 0").await;
        assert_eq!(
            p.sql
                .text(&format!("select last_value from {queue}_tries"))
                .await,
            "3"
        );
        worker.exactly(1, "began", json!({})).await;
    }
}

async fn p18_a_conflict_that_stays_does_not_end_the_worker(p: Place) {
    p.create().await;
    p.trigger(
        "new.status = 3 and new.subject = 'bad'",
        "raise exception 'conflict' using errcode = '40001';",
    )
    .await;
    let worker = p.worker(json!({}), json!({})).await;
    p.put("bad", json!({})).await;
    worker.event("ended", json!({"subject": "bad"})).await;
    p.put("good", json!({})).await;
    p.becomes("good", "completed 0").await;
    stays("the worker goes on", 2, async || {
        worker.count("stopped", json!({})) == 0
    })
    .await;
    worker.exactly(1, "began", json!({"subject": "good"})).await;
}

fn conflict_once(p: &Place) -> Value {
    // A sequence is not rolled back.
    json!([{"op": "sql", "sql": format!("insert into {}_rows values (1)", p.queue)},
        {"op": "sql", "sql": format!("do $$ begin if nextval('{}_runs') = 1 then raise exception 'conflict' using errcode = '40001'; end if; end $$", p.queue)}])
}

async fn p18_a_conflict_of_a_transactional_handler_is_an_error(p: Place) {
    p.create().await;
    p.sql
        .sql(&format!(
            "create table {0}_rows (n int); create sequence {0}_runs",
            p.queue
        ))
        .await;
    let worker = p.worker(json!({"transactional": true}), json!({})).await;
    p.put("a", json!({"scripts": [conflict_once(&p)]})).await;
    p.becomes("a", "pending 1").await;
    worker.exactly(1, "began", json!({})).await;
    assert_eq!(
        p.sql
            .text(&format!("select count(*) from {}_rows", p.queue))
            .await,
        "0"
    );
}

async fn p18_a_transactional_handler_runs_anew_by_option(p: Place) {
    p.create().await;
    p.sql
        .sql(&format!(
            "create table {0}_rows (n int); create sequence {0}_runs",
            p.queue
        ))
        .await;
    let worker = p
        .worker(json!({"transactional": true, "rerun": true}), json!({}))
        .await;
    p.put("a", json!({"scripts": [conflict_once(&p)]})).await;
    p.becomes("a", "completed 0").await;
    assert_eq!(
        p.sql
            .text(&format!("select count(*) from {}_rows", p.queue))
            .await,
        "1"
    );
    let attempts = worker.events("began", json!({"subject": "a"}));
    assert!(
        attempts.iter().all(|began| began.value["attempt"] == 1),
        "{attempts:?}"
    );
}

async fn p19_messages_are_cleaned(p: Place) {
    p.create().await;
    let _worker = p.worker(json!({}), json!({})).await;
    let throw = |units: Vec<u16>| json!({"script": [{"op": "throw", "message_utf16": units}]});
    p.put("nul", throw(vec![97, 0, 98])).await;
    p.put("half", throw(vec![97, 0xd800, 98])).await;
    p.put("long", throw(vec![233; 5000])).await;
    let emoji: Vec<u16> = std::iter::repeat_n([0xd83d_u16, 0xde00], 2001)
        .flatten()
        .collect();
    p.put("emoji", throw(emoji)).await;
    p.put("empty", throw(vec![])).await;
    p.becomes("nul", "pending 1").await;
    assert_eq!(p.column("nul", "last_error").await, "ab");
    p.becomes("half", "pending 1").await;
    assert_eq!(p.column("half", "last_error").await, "a\u{fffd}b");
    p.becomes("long", "pending 1").await;
    assert_eq!(p.column("long", "last_error").await, "é".repeat(2000));
    p.becomes("emoji", "pending 1").await;
    let kept = p.column("emoji", "last_error").await;
    assert!(
        kept.chars().all(|c| c == '\u{1f600}') && kept.chars().count() >= 1000,
        "{kept}"
    );
    p.becomes("empty", "pending 1").await;
    assert!(!p.column("empty", "last_error").await.is_empty());
}

async fn p19_the_stack_is_in_the_details(p: Place) {
    p.create().await;
    let _worker = p
        .worker(json!({}), json!({"name": format!("node-{}", p.queue)}))
        .await;
    p.put(
        "a",
        json!({"script": [{"op": "throw", "message": "bad luck"}]}),
    )
    .await;
    p.becomes("a", "pending 1").await;
    let details = format!(
        "select coalesce(details::text, '') from fetchq.doc_errors('{}', 'a')",
        p.queue
    );
    let details = p.sql.text(&details).await;
    assert!(
        details.len() < 40_000,
        "they are capped: {} bytes",
        details.len()
    );
    let details: Value = serde_json::from_str(&details).expect("there are details");
    let stack = details["stack"].as_str().unwrap_or_default();
    assert!(!stack.is_empty(), "{details}");
}

async fn p19_a_hook_redacts(p: Place) {
    p.create().await;
    let worker = p
        .worker_on(json!({"redact": true}), json!({}), json!({}))
        .await;
    p.put(
        "a",
        json!({"script": [{"op": "throw", "message": "the secret is out"}]}),
    )
    .await;
    p.becomes("a", "pending 1").await;
    assert_eq!(p.column("a", "last_error").await, "the *** is out");
    let written = format!(
        "select count(*) from fetchq.doc_errors('{}', 'a') where coalesce(details::text, '') || message like '%secret%'",
        p.queue
    );
    assert_eq!(p.sql.text(&written).await, "0");
    until("the failure is logged", async || {
        !worker.logged("warn").is_empty()
    })
    .await;
}
