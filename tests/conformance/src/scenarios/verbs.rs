//! Putting, reading, waiting and declaring.

use serde_json::json;

use crate::place::{Place, gated, pause};
use crate::proxy::Way;

crate::scenarios!(
    a_document_is_put_with_all_options,
    a_document_is_put_without_a_subject,
    a_put_belongs_to_the_transaction_of_the_application,
    a_list_of_documents_is_put_in_one_call,
    modes_decide_what_a_second_put_does,
    a_unique_document_is_put_once["unique"],
    a_wait_gets_the_result,
    a_wait_ends_when_its_time_is_over,
    a_wait_learns_of_a_kill,
    a_wait_delays_no_other_call,
    cancel_and_get_say_what_the_server_says,
    queues_and_schedules_are_declared["sync"],
    errors_of_the_server_reach_the_caller,
    exit_ends_the_program,
    the_end_of_input_ends_the_program,
    the_end_of_input_ends_the_program_when_the_server_is_away,
);

async fn a_document_is_put_with_all_options(p: Place) {
    p.create().await;
    let client = p.client().await;
    let options = json!({"version": 3, "priority": 7, "delay": "1 hour", "ordering_key": "k",
        "max_attempts": 4, "headers": {"tenant": 7}, "expires_in": "2 days"});
    let payload = json!({"n": 1, "text": "Grüße, 世界 \u{1f600} \\ \" '", "list": [1, null, {"a": [true]}], "f": 1.5});
    let put = json!({"do": "put", "queue": p.queue, "subject": "a 'b' \"c\"", "payload": payload, "options": options});
    let ok = client.ok(put).await;
    assert_eq!(ok, json!({"subject": "a 'b' \"c\"", "action": "created"}));
    let sql = format!(
        "select concat_ws(' ', version, priority, ordering_key, max_attempts, headers, status,
             due_at - now() between '59 min' and '61 min', expires_at - now() between '47 h' and '49 h')
         from fetchq.doc_get('{}', 'a ''b'' \"c\"')",
        p.queue
    );
    assert_eq!(
        p.sql.text(&sql).await,
        r#"3 7 k 4 {"tenant": 7} planned t t"#
    );
    let sql = format!(
        "select payload = '{}' from fetchq.docs_list('{}')",
        payload.to_string().replace('\'', "''"),
        p.queue
    );
    assert_eq!(p.sql.text(&sql).await, "t");
    let at = json!({"do": "put", "queue": p.queue, "subject": "at", "payload": {}, "options": {"at": "2199-01-02T03:04:05Z"}});
    client.ok(at).await;
    assert_eq!(
        p.column("at", "due_at at time zone 'UTC'").await,
        "2199-01-02 03:04:05"
    );
}

async fn a_document_is_put_without_a_subject(p: Place) {
    p.create().await;
    let client = p.client().await;
    let mut subjects = std::collections::BTreeSet::new();
    for _ in 0..3 {
        let ok = client
            .ok(json!({"do": "put", "queue": p.queue, "payload": {}}))
            .await;
        assert_eq!(ok["action"], "created");
        subjects.insert(
            ok["subject"]
                .as_str()
                .expect("the subject is known")
                .to_owned(),
        );
    }
    assert_eq!(subjects.len(), 3);
    for subject in subjects {
        assert_eq!(p.state(&subject).await, "pending 0");
    }
}

async fn a_put_belongs_to_the_transaction_of_the_application(p: Place) {
    p.create().await;
    p.sql
        .sql(&format!("create table {}_rows (n int)", p.queue))
        .await;
    let client = p.client().await;
    for (n, end) in [(1, "commit"), (2, "rollback")] {
        let sql = format!("insert into {}_rows values ({n})", p.queue);
        let put = json!({"do": "put", "queue": p.queue, "subject": end, "payload": {}, "tx": {"end": end, "sql": sql}});
        assert_eq!(client.ok(put).await["action"], "created");
    }
    assert_eq!(p.state("commit").await, "pending 0");
    assert_eq!(p.state("rollback").await, "missing");
    let rows = format!("select string_agg(n::text, ' ') from {}_rows", p.queue);
    assert_eq!(p.sql.text(&rows).await, "1");
}

async fn a_list_of_documents_is_put_in_one_call(p: Place) {
    p.create().await;
    let client = p.client().await;
    p.put("b", json!({})).await;
    let docs: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|subject| json!({"queue": p.queue, "subject": subject, "payload": {"n": 5}, "options": {"priority": 2}}))
        .collect();
    let ok = client.ok(json!({"do": "put_many", "docs": docs})).await;
    let wanted = json!([{"subject": "a", "action": "created"}, {"subject": "b", "action": "ignored"}, {"subject": "c", "action": "created"}]);
    assert_eq!(ok["puts"], wanted);
    let sql = format!(
        "select count(distinct xmin::text) from fetchq_data.{}__docs where subject in ('a', 'c') and priority = 2",
        p.queue
    );
    assert_eq!(p.sql.text(&sql).await, "1", "one transaction");
}

async fn modes_decide_what_a_second_put_does(p: Place) {
    p.create().await;
    let client = p.client().await;
    let put = |mode: &str, n: i32| json!({"do": "put", "queue": p.queue, "subject": "a", "payload": {"n": n}, "options": {"mode": mode}});
    for (mode, n, action, kept) in [
        ("ignore", 1, "created", "1"),
        ("ignore", 2, "ignored", "1"),
        ("replace", 3, "updated", "3"),
    ] {
        assert_eq!(
            client.ok(put(mode, n)).await["action"],
            action,
            "{mode} {n}"
        );
        assert_eq!(p.column("a", "payload ->> 'n'").await, kept);
    }
}

async fn a_unique_document_is_put_once(p: Place) {
    p.create().await;
    let client = p.client().await;
    let put = |to: &str, n: i32| json!({"do": "put", "queue": p.queue, "payload": {"to": to, "n": n}, "options": {"unique": {"by": ["to"], "per": "1000 days"}}});
    let first = client.ok(put("ada", 1)).await;
    let second = client.ok(put("ada", 2)).await;
    let other = client.ok(put("eve", 1)).await;
    assert_eq!(
        (&first["action"], &second["action"], &other["action"]),
        (&json!("created"), &json!("ignored"), &json!("created"))
    );
    assert_eq!(first["subject"], second["subject"]);
    // The subject is the same whatever the language.
    let subject = first["subject"].as_str().expect("a subject");
    for adapter in p.world.adapters.iter().filter(|one| one.program().exists()) {
        let other = p.program_of(adapter).await;
        if other.can("unique") {
            other.ok(p.connect(json!({}))).await;
            let again = other.ok(put("ada", 3)).await;
            assert_eq!(
                again,
                json!({"subject": subject, "action": "ignored"}),
                "{}",
                adapter.name
            );
        }
    }
}

async fn a_wait_gets_the_result(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    let wait =
        |subject: &str| json!({"do": "wait", "queue": p.queue, "subject": subject, "timeout": 30});
    p.put("a", json!({"script": [{"op": "gate", "gate": "g"}, {"op": "complete", "result": {"sent": [1, "é"]}}]})).await;
    let id = worker.tell(wait("a")).await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.open("g").await;
    let ok = worker.reply(id).await.expect("wait");
    assert_eq!(ok["status"], "completed");
    assert_eq!(ok["result"], json!({"sent": [1, "é"]}));
    // One that has been settled already.
    assert_eq!(
        worker.ok(wait("a")).await["result"],
        json!({"sent": [1, "é"]})
    );
    p.put(
        "dropped",
        json!({"script": [{"op": "gate", "gate": "d"}, {"op": "drop"}]}),
    )
    .await;
    let id = worker.tell(wait("dropped")).await;
    worker.event("began", json!({"subject": "dropped"})).await;
    // A wait that begins afterwards would find no document.
    pause(1000).await;
    worker.open("d").await;
    assert_eq!(worker.reply(id).await.expect("wait")["status"], "dropped");
}

async fn a_wait_ends_when_its_time_is_over(p: Place) {
    p.create().await;
    let client = p.client().await;
    p.put("a", json!({})).await;
    let ok = client
        .ok(json!({"do": "wait", "queue": p.queue, "subject": "a", "timeout": 0.5}))
        .await;
    assert_eq!(ok["status"], "pending");
    assert!(ok["result"].is_null());
}

async fn a_wait_learns_of_a_kill(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    p.put(
        "a",
        json!({"script": [{"op": "kill", "message": "no such user"}]}),
    )
    .await;
    let ok = worker
        .ok(json!({"do": "wait", "queue": p.queue, "subject": "a", "timeout": 30}))
        .await;
    assert_eq!(
        (&ok["status"], &ok["message"]),
        (&json!("killed"), &json!("no such user"))
    );
}

async fn a_wait_delays_no_other_call(p: Place) {
    p.create().await;
    let client = p.client().await;
    p.put("a", json!({})).await;
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(
            client
                .tell(json!({"do": "wait", "queue": p.queue, "subject": "a", "timeout": 30}))
                .await,
        );
    }
    let ok = client
        .ok(json!({"do": "put", "queue": p.queue, "subject": "b", "payload": {}}))
        .await;
    assert_eq!(ok["action"], "created");
    p.sql
        .sql(&format!("select fetchq.doc_cancel('{}', 'a')", p.queue))
        .await;
    for id in ids {
        assert_eq!(client.reply(id).await.expect("wait")["status"], "killed");
    }
}

async fn cancel_and_get_say_what_the_server_says(p: Place) {
    p.create().await;
    let client = p.client().await;
    let get = |subject: &str| json!({"do": "get", "queue": p.queue, "subject": subject});
    let cancel = json!({"do": "cancel", "queue": p.queue, "subject": "a"});
    p.put("a", json!({"n": 7})).await;
    let doc = client.ok(get("a")).await["doc"].take();
    assert_eq!(
        (
            &doc["subject"],
            &doc["status"],
            &doc["attempts"],
            &doc["payload"]
        ),
        (&json!("a"), &json!("pending"), &json!(0), &json!({"n": 7}))
    );
    assert_eq!(
        client.ok(cancel.clone()).await,
        json!({"cancelled": true, "status": "pending"})
    );
    let doc = client.ok(get("a")).await["doc"].take();
    assert_eq!(
        (&doc["status"], &doc["last_error"]),
        (&json!("killed"), &json!("cancelled"))
    );
    assert_eq!(client.ok(cancel).await["cancelled"], false);
    assert!(client.ok(get("nobody")).await["doc"].is_null());
}

async fn queues_and_schedules_are_declared(p: Place) {
    let client = p.client().await;
    let schedule = format!("{}-nightly", p.queue);
    let sync = |priority: i32, cron: &str| {
        json!({"do": "sync", "queues": {(&p.queue): {"max_active": priority}}, "schedules": {(&schedule): {
            "queue": p.queue, "cron": cron, "timezone": "Europe/Berlin", "payload": {"what": "sales"}}}})
    };
    let declared = format!(
        "select concat_ws(' ', s.schedule, s.timezone, s.payload ->> 'what', fetchq.queue_settings('{0}') ->> 'max_active')
         from fetchq.schedule_list('{0}') s",
        p.queue
    );
    for (n, cron) in [(100, "30 2 * * *"), (100, "30 2 * * *"), (50, "30 3 * * *")] {
        client.ok(sync(n, cron)).await;
        assert_eq!(
            p.sql.column(&declared).await,
            [format!("{cron} Europe/Berlin sales {n}")]
        );
    }
}

async fn errors_of_the_server_reach_the_caller(p: Place) {
    let client = p.client().await;
    let put =
        json!({"do": "put", "queue": format!("{}_none", p.queue), "subject": "a", "payload": {}});
    let error = client.err(put).await;
    assert!(error["sqlstate"].is_string(), "{error}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("_none")),
        "{error}"
    );
    p.create().await;
    let put = json!({"do": "put", "queue": p.queue, "subject": "x".repeat(300), "payload": {}});
    let error = client.err(put).await;
    assert!(
        ["data", "invalid"].contains(&error["code"].as_str().unwrap_or_default()),
        "{error}"
    );
    // The connection is as good as before.
    let put = json!({"do": "put", "queue": p.queue, "subject": "a", "payload": {}});
    assert_eq!(client.ok(put).await["action"], "created");
}

async fn exit_ends_the_program(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    p.put("a", gated("never")).await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.tell(json!({"do": "exit"})).await;
    assert_eq!(worker.status().await, Some(0));
    p.becomes("a", "pending 0").await;
    let sessions = p.sessions("true");
    p.sees("the number of sessions is", &sessions, "0").await;
}

async fn the_end_of_input_ends_the_program(p: Place) {
    p.create().await;
    let worker = p.worker(json!({}), json!({})).await;
    p.put("a", gated("never")).await;
    worker.event("began", json!({"subject": "a"})).await;
    worker.close().await;
    assert_eq!(worker.status().await, Some(0));
    p.becomes("a", "pending 0").await;
}

async fn the_end_of_input_ends_the_program_when_the_server_is_away(p: Place) {
    p.create().await;
    let proxy = p.proxy().await;
    let connect = json!({"url": p.url_by(proxy.port)});
    let worker = p.worker_on(connect, json!({}), json!({})).await;
    p.put("a", gated("never")).await;
    worker.event("began", json!({"subject": "a"})).await;
    proxy.all(Way::Cut);
    worker.close().await;
    worker.status().await;
}
