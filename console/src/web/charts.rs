//! The charts of a queue: of the last minutes from the memory of the console, and of longer times from the
//! snapshots of metrics that the server stores.
use axum::extract::Path;
use axum::response::{IntoResponse, Json, Response};
use maud::{Markup, html};
use serde_json::{Value, json};

use super::context::Context;
use super::format::literal;
use super::layout::source;
use super::problem;
use crate::calls::{self, Stored};
use crate::ring::Sample;

/// A time that charts can show.
struct Span {
    name: &'static str,
    label: &'static str,
    length: &'static str,
    /// One snapshot of each step is shown; None: all of them.
    step: Option<&'static str>,
}

const SPANS: [Span; 3] = [
    Span {
        name: "day",
        label: "Day",
        length: "1 day",
        step: None,
    },
    Span {
        name: "week",
        label: "Week",
        length: "7 days",
        step: Some("1 hour"),
    },
    Span {
        name: "month",
        label: "Month",
        length: "31 days",
        step: Some("6 hours"),
    },
];

/// The charts of a queue, of the time of that name; of the last minutes where there is none.
pub async fn charts(context: &Context, queue: &str, wanted: &str) -> Markup {
    let span = SPANS.iter().find(|span| span.name == wanted);
    let shown = match span {
        None => memory(context, queue),
        Some(span) => {
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 3] =
                [&queue, &span.length, &span.step];
            let found = context
                .database()
                .rows::<Stored>(calls::METRIC_HISTORY, &params)
                .await;
            match found {
                Ok(found) if found.len() > 1 => stored(queue, span, &found),
                Ok(_) => html! {
                    p class="notice" { "The server has stored no snapshots of that time. These are the last minutes." }
                    (memory(context, queue))
                },
                Err(error) => html! {
                    (problem::inline(context, &error))
                    p { "These are the last minutes." }
                    (memory(context, queue))
                },
            }
        }
    };
    html! {
        nav class="tabs" aria-label="Time of the charts" {
            ul {
                li { a href=(context.queue_address(queue, "#charts-title")) aria-current=[span.is_none().then_some("page")] { "Last minutes" } }
                @for this in &SPANS {
                    @let is_this = span.is_some_and(|span| span.name == this.name);
                    li {
                        a href=(context.queue_address(queue, &format!("?span={}#charts-title", this.name)))
                          aria-current=[is_this.then_some("page")] { (this.label) }
                    }
                }
            }
        }
        (shown)
    }
}

fn memory(context: &Context, queue: &str) -> Markup {
    html! {
        div class="charts" data-series=(context.queue_address(queue, "/series")) {
            (chart("Documents a second", "rate", &["pushed", "picked", "succeeded", "failed"]))
            (chart("Documents", "count", &["ready", "active", "waiting"]))
            (chart("Time of 95 % of the documents", "time", &["wait", "run"]))
        }
        p class="source" {
            "Waiting are planned, retrying and blocked documents. From the memory of the console: samples of "
            code { "fetchq.queue_stats()" }
            ", one a second while a page is open, up to ten minutes. They begin again when the console starts."
        }
    }
}

fn stored(queue: &str, span: &Span, found: &[Stored]) -> Markup {
    let step = span
        .step
        .map_or_else(String::new, |step| format!(", step => '{step}'"));
    html! {
        div class="charts" data-points=(Value::Array(points(found))) {
            (chart("Documents a second", "rate", &["pushed", "picked", "succeeded", "failed"]))
            (chart("Documents", "count", &["pending", "active", "planned"]))
        }
        p class="source" {
            "From " (found.len()) " snapshots that the server has stored; the rates are the means between two of them. The setting "
            code { "metrics_retention" } " says for how long they are kept."
        }
        (source(&format!("select * from fetchq.metric_history({}, since => now() - interval '{}'{step})", literal(queue), span.length)))
    }
}

fn chart(title: &str, unit: &str, columns: &[&str]) -> Markup {
    html! {
        figure data-chart=(columns.join("|")) data-unit=(unit) {
            figcaption { (title) }
            div class="chart" role="img" aria-label=(format!("Chart over time: {}", columns.join(", "))) {}
        }
    }
}

/// Stored snapshots for the charts. Totals become rates; those that fall were reset.
fn points(found: &[Stored]) -> Vec<Value> {
    let rate = |new: Option<i64>, old: Option<i64>, seconds: f64| {
        let difference = new?.saturating_sub(old?).max(0);
        (seconds > 0.0).then(|| difference as f64 / seconds)
    };
    let mut last: Option<&Stored> = None;
    let mut points = Vec::with_capacity(found.len());
    for row in found {
        let seconds = last.map_or(0.0, |last| row.at - last.at);
        let rate_of = |value: fn(&Stored) -> Option<i64>| {
            last.and_then(|last| rate(value(row), value(last), seconds))
        };
        points.push(json!({
            "at": row.at, "pending": row.pending, "active": row.active, "planned": row.planned,
            "pushed": rate_of(|row| row.pushed), "picked": rate_of(|row| row.picked),
            "succeeded": rate_of(|row| row.succeeded), "failed": rate_of(|row| row.failed),
        }));
        last = Some(row);
    }
    points
}

/// `GET /db/{db}/queues/{queue}/series`: what the charts of the last minutes begin with.
pub async fn series(context: Context, Path((_, name)): Path<(String, String)>) -> Response {
    let samples = context.live().ring(|ring| ring.samples(&name));
    Json(Value::Array(samples.iter().map(point).collect())).into_response()
}

/// A sample for the charts. What is not known is null.
pub fn point(sample: &Sample) -> Value {
    json!({
        "at": sample.at, "ready": sample.ready, "active": sample.active, "waiting": sample.waiting,
        "pushed": sample.pushed, "picked": sample.picked, "succeeded": sample.succeeded,
        "failed": sample.failed, "wait": sample.wait_p95, "run": sample.run_p95,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(at: f64, pushed: Option<i64>) -> Stored {
        Stored {
            at,
            pending: Some(3),
            active: None,
            planned: None,
            pushed,
            picked: None,
            succeeded: None,
            failed: None,
        }
    }

    #[test]
    fn the_rate_of_stored_totals_is_the_mean_since_the_snapshot_before() {
        let found = [
            stored(100.0, Some(10)),
            stored(400.0, Some(610)),
            stored(700.0, None),
            stored(1000.0, Some(5)),
            stored(1300.0, Some(2)),
        ];
        let rates: Vec<Value> = points(&found)
            .iter()
            .map(|point| point["pushed"].clone())
            .collect();
        let expected = [
            json!(null),
            json!(2.0),
            json!(null),
            json!(null),
            json!(0.0),
        ];
        assert_eq!(rates, expected);
    }
}
