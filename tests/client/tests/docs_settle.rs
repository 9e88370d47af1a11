//! `docs_settle` and `docs_next`: each document of a list is settled as by its single call, once,
//! whatever other sessions do meanwhile.

mod actions;
mod failures;
mod sessions;

use fetchq_client_tests::Session;

/// Leases documents `d1` to `dN` of queue `q`, and returns the lease number.
async fn lease(session: &Session, n: usize) -> String {
    session
        .sql(&format!(
            "select fetchq.doc_put('q', 'd' || i, '{{}}') from generate_series(1, {n}) i"
        ))
        .await;
    let leases = format!("select distinct lease from fetchq.doc_lease('q', {n}, '1 hour')");
    session.text(&leases).await
}

/// A list in which each action occurs.
fn mixed(subjects: impl Iterator<Item = usize>, lease: &str) -> String {
    let actions = [
        r#""action": "complete""#,
        r#""action": "drop""#,
        r#""action": "reject", "message": "m", "delay": "1 hour""#,
        r#""action": "kill", "message": "m""#,
        r#""action": "snooze", "delay": "1 hour""#,
        r#""action": "reschedule", "delay": "1 hour""#,
        r#""action": "complete", "result": 7"#,
    ];
    let settlements: Vec<String> = subjects
        .map(|i| {
            let action = actions[i % actions.len()];
            format!(r#"{{"subject": "d{i}", "lease": {lease}, {action}}}"#)
        })
        .collect();
    format!("'[{}]'", settlements.join(", "))
}
