//! Several programs on one queue: other languages, and other versions.

use serde_json::{Value, json};

use crate::adapter::{Adapter, Definition};
use crate::place::{Place, pause, until};

crate::scenarios!(
    pairs_of_languages_share_a_queue,
    pairs_of_languages_understand_each_other,
    a_deployment_rolls_from_one_version_to_the_next["upcast"],
    a_deployment_rolls_without_converting,
);

/// The first adapter of each folder that comes later in the table than that of this place.
fn partners(p: &Place) -> Vec<Definition> {
    let mut firsts: Vec<&Definition> = Vec::new();
    for one in p.world.adapters.iter().filter(|one| one.program().exists()) {
        if firsts.iter().all(|first| first.folder != one.folder) {
            firsts.push(one);
        }
    }
    let Some(own) = firsts.iter().position(|first| first.name == p.adapter.name) else {
        return Vec::new();
    };
    firsts[own + 1..].iter().map(|one| (*one).clone()).collect()
}

async fn another(p: &Place, definition: &Definition, task: Value, more: Value) -> Adapter {
    let other = p.program_of(definition).await;
    other.ok(p.connect(json!({}))).await;
    other.ok(p.start(task, more)).await;
    other
}

async fn pairs_of_languages_share_a_queue(p: Place) {
    p.create_with(json!({"retry": {"base": "10 ms"}})).await;
    let mut round = 0;
    for partner in partners(&p) {
        round += 1;
        let one = p.worker(json!({"concurrency": 3}), json!({})).await;
        let other = another(&p, &partner, json!({"concurrency": 3}), json!({})).await;
        for n in 1..=20 {
            let payload = json!({"script": [{"op": "sleep", "seconds": 0.02}]});
            for (program, name) in [(&one, "a"), (&other, "b")] {
                let subject = format!("{round}{name}{n}");
                program.ok(json!({"do": "put", "queue": p.queue, "subject": subject, "payload": payload})).await;
            }
        }
        p.counts("completed", 40 * round).await;
        let began = (
            one.count("began", json!({})),
            other.count("began", json!({})),
        );
        p.note(&format!("{began:?} of 40 with {}", partner.name));
        assert_eq!(began.0 + began.1, 40);
        assert!(began.0 > 0 && began.1 > 0, "both work: {began:?}");
        one.stop().await;
        other.stop().await;
    }
}

/// A result, an error, headers, progress and steps are understood by the other language.
async fn pairs_of_languages_understand_each_other(p: Place) {
    p.create_with(json!({"retry": {"base": "300 ms", "jitter": 0}}))
        .await;
    for (round, partner) in partners(&p).into_iter().enumerate() {
        let one = p.client().await;
        let other = p.program_of(&partner).await;
        other.ok(p.connect(json!({}))).await;
        for (way, putter, worker) in [("to", &one, &other), ("fro", &other, &one)] {
            worker.ok(p.start(json!({}), json!({}))).await;
            let subject = format!("{way}{round}");
            let payload = json!({"n": 7, "text": "é\u{1f600}", "list": [1.5, null, {"a": true}],
                "script": [{"op": "complete", "result": {"n": 9_007_199_254_740_991_i64, "text": "世界"}}]});
            let put = json!({"do": "put", "queue": p.queue, "subject": subject, "payload": payload, "options": {"headers": {"tenant": 7}}});
            putter.ok(put).await;
            let began = worker
                .event("began", json!({"subject": subject}))
                .await
                .value;
            assert_eq!(
                (&began["payload"], &began["headers"]["tenant"]),
                (&payload, &json!(7))
            );
            let done = putter
                .ok(json!({"do": "wait", "queue": p.queue, "subject": subject, "timeout": 30}))
                .await;
            assert_eq!(
                done["result"],
                json!({"n": 9_007_199_254_740_991_i64, "text": "世界"})
            );
            worker.stop().await;
        }
        // An attempt of the one fails, and the other one has the next.
        if one.can("step") && other.can("step") && one.can("progress") && other.can("progress") {
            let subject = format!("steps{round}");
            let first = json!([{"op": "step", "name": "s", "value": {"x": 1}}, {"op": "progress", "value": {"p": 2}}, {"op": "throw", "message": "no"}]);
            let second = json!([{"op": "step", "name": "s", "value": {"x": 3}}]);
            p.put(&subject, json!({"scripts": [first, second]})).await;
            one.ok(with_name(p.start(json!({}), json!({})), "first"))
                .await;
            one.event("ended", json!({"worker": "first", "subject": subject}))
                .await;
            one.ok(json!({"do": "stop", "worker": "first"})).await;
            one.event("stopped", json!({"worker": "first"})).await;
            other
                .ok(with_name(p.start(json!({}), json!({})), "second"))
                .await;
            p.becomes(&subject, "completed 0").await;
            let in_one = one.count("step", json!({"subject": subject, "attempt": 2}));
            if in_one == 0 {
                let step = other
                    .event("step", json!({"subject": subject, "attempt": 2}))
                    .await
                    .value;
                assert_eq!(
                    (&step["ran"], &step["value"]),
                    (&json!(false), &json!({"x": 1})),
                    "{step}"
                );
            }
        }
    }
}

fn with_name(mut start: Value, worker: &str) -> Value {
    start["worker"] = json!(worker);
    start
}

async fn versions(p: &Place, from: usize, to: usize) {
    for n in from..to {
        let payload = json!({"n": n, "script": [{"op": "sleep", "seconds": 0.05}]});
        p.put_with(
            &p.queue,
            &format!("d{n}"),
            payload,
            &format!(", version => {}", n % 2),
        )
        .await;
    }
}

async fn a_deployment_rolls_from_one_version_to_the_next(p: Place) {
    p.create().await;
    let old = p.worker(json!({"concurrency": 2}), json!({})).await;
    versions(&p, 0, 20).await;
    old.nth(3, "began", json!({})).await;
    let new = p
        .worker(
            json!({"concurrency": 2, "version": 1, "upcast": true}),
            json!({}),
        )
        .await;
    new.nth(3, "began", json!({})).await;
    versions(&p, 20, 40).await;
    assert!(old.stop().await.value["error"].is_null());
    p.counts("completed", 40).await;
    assert_eq!(old.count("began", json!({"version": 1})), 0);
    assert_eq!(
        old.count("began", json!({})) + new.count("began", json!({})),
        40
    );
    let converted = new
        .events("began", json!({}))
        .into_iter()
        .filter(|began| began.value["payload"]["upcast"] == json!([1]));
    assert!(converted.count() > 0, "the new one has taken old documents");
}

async fn a_deployment_rolls_without_converting(p: Place) {
    p.create().await;
    let old = p.worker(json!({"concurrency": 2}), json!({})).await;
    let new = p
        .worker(json!({"concurrency": 2, "version": 1}), json!({}))
        .await;
    versions(&p, 0, 30).await;
    p.counts("completed", 30).await;
    assert_eq!(
        (
            old.count("began", json!({"version": 0})),
            new.count("began", json!({"version": 1}))
        ),
        (15, 15)
    );
    assert!(old.stop().await.value["error"].is_null());
    versions(&p, 30, 32).await;
    until("the new one is done", async || {
        p.state("d31").await == "completed 0"
    })
    .await;
    pause(500).await;
    assert_eq!(p.state("d30").await, "pending 0");
}
