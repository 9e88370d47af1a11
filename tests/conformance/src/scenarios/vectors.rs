//! Values that all clients treat alike: vectors.json.

use serde_json::{Value, json};

use crate::place::Place;

crate::scenarios!(
    vectors_of_messages,
    vectors_of_intervals,
    vectors_of_headers,
    vectors_of_consumers,
    vectors_of_errors,
);

fn cases(kind: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("../../vectors.json")).expect("vectors.json");
    let cases = all[kind]
        .as_array()
        .unwrap_or_else(|| panic!("no vectors of {kind}"));
    cases.clone()
}

/// Checks each case of a kind with the output of the client; collects what is wrong.
async fn check(
    p: Place,
    kind: &str,
    mut is_right: impl AsyncFnMut(&Place, &Value, &Value) -> bool,
) {
    let client = p.program().await;
    let mut wrong = Vec::new();
    for case in cases(kind) {
        if case["needs"]
            .as_str()
            .is_some_and(|capability| !client.can(capability))
        {
            continue;
        }
        let mut input = json!({"do": "vector", "kind": kind});
        for (name, value) in case.as_object().expect("an object") {
            if name == "input_repeat" {
                let n = value[1].as_u64().expect("a number");
                let unit = value[0]
                    .as_array()
                    .cloned()
                    .unwrap_or(vec![value[0].clone()]);
                let units: Vec<Value> = (0..n).flat_map(|_| unit.clone()).collect();
                input["input_utf16"] = json!(units);
            } else if !name.starts_with("expect") && name != "needs" {
                input[name] = value.clone();
            }
        }
        match client.ask(input).await {
            Ok(reply) if is_right(&p, &case, &reply["output"]).await => {}
            Ok(reply) => wrong.push(format!(
                "{case:.300} gives {:.300}",
                reply["output"].to_string()
            )),
            Err(error) => wrong.push(format!("{case:.300} fails: {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

async fn vectors_of_messages(p: Place) {
    check(p, "message", async |_, case, output| {
        let Some(output) = output.as_str() else {
            return false;
        };
        let repeated = |list: &Value| {
            (
                list[0].as_str().expect("a text").to_owned(),
                list[1].as_u64().expect("a number") as usize,
            )
        };
        if case["expect_any"] == true {
            !output.contains('\0')
        } else if case["expect_repeat"].is_array() {
            let (text, n) = repeated(&case["expect_repeat"]);
            output == text.repeat(n)
        } else if case["expect_at_most"].is_array() {
            // A language that counts UTF-16 may keep half of them, but no half of one.
            let (text, n) = repeated(&case["expect_at_most"]);
            let kept = output.chars().count();
            output == text.repeat(kept) && kept <= n && kept >= n / 2
        } else {
            case["expect"] == *output
        }
    })
    .await;
}

async fn vectors_of_intervals(p: Place) {
    check(p, "interval", async |p, case, output| {
        let (wanted, given) = (case["expect"].as_str().expect("a text"), output.as_str().unwrap_or("none"));
        let sql = format!("select extract(epoch from '{given}'::interval) = extract(epoch from '{wanted}'::interval)");
        p.sql.state(&sql).await.is_empty() && p.sql.text(&sql).await == "t"
    })
    .await;
}

async fn vectors_of_headers(p: Place) {
    check(p, "headers", async |_, case, output| {
        if case["expect_trace"].is_string() {
            let parent = output["traceparent"].as_str().unwrap_or_default();
            let parts: Vec<&str> = parent.split('-').collect();
            let mut keys = case["expect_keys"].as_object().expect("an object").iter();
            return parts.len() == 4
                && case["expect_trace"] == parts[1]
                && case["expect_flags"] == parts[3]
                && keys.all(|(name, value)| output[name] == *value);
        }
        let output = if output.is_null() {
            json!({})
        } else {
            output.clone()
        };
        case["expect"] == output
    })
    .await;
}

async fn equals(_: &Place, case: &Value, output: &Value) -> bool {
    case["expect"] == *output
}

async fn vectors_of_consumers(p: Place) {
    check(p, "consumer", equals).await;
}

async fn vectors_of_errors(p: Place) {
    check(p, "retry", equals).await;
}
