//! The documents that have left a queue, where it keeps a history.
use axum::extract::{Path, Query};
use axum::response::IntoResponse;
use fetchq_domain::history_filter::OUTCOMES;
use maud::{Markup, html};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::context::{Context, encode};
use super::documents::{short, status};
use super::format::{ago, count, duration, literal};
use super::layout::{self, Column, Column::Number, Column::Text, Section, source};
use super::part::{self, Part};
use super::{Page, forms, problem};
use crate::calls::{self, Settled};

/// Entries of a page.
const ROWS: usize = 50;

const COLUMNS: [Column; 7] = [
    Text("Settled"),
    Text("Subject"),
    Text("Outcome"),
    Number("Attempts"),
    Number("Ran"),
    Text("Worker"),
    Text("Last error"),
];

/// The filter as it was typed, and where the page begins.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Choice {
    outcome: String,
    subject: String,
    worker: String,
    settled_since: String,
    settled_before: String,
    after: String,
}

impl Choice {
    fn fields(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = [
            ("outcome", &self.outcome),
            ("subject", &self.subject),
            ("worker", &self.worker),
            ("settled_since", &self.settled_since),
            ("settled_before", &self.settled_before),
        ];
        all.into_iter()
            .map(|(name, value)| (name, value.as_str()))
            .filter(|(_, value)| !value.is_empty())
    }

    fn filter(&self) -> Value {
        let fields = self.fields();
        Value::Object(
            fields
                .map(|(name, value)| {
                    // What is typed is a pattern.
                    let key = if name == "subject" {
                        "subject_like"
                    } else {
                        name
                    };
                    (key.to_owned(), Value::from(value))
                })
                .collect::<Map<_, _>>(),
        )
    }

    /// The query of an address with the same filter, which begins after a position.
    fn query(&self, after: &str) -> String {
        self.fields().fold(
            format!("?after={}", encode(after)),
            |query, (name, value)| format!("{query}&{name}={}", encode(value)),
        )
    }
}

/// `GET /db/{db}/queues/{queue}/history`
pub async fn history(
    context: Context,
    Path((_, queue)): Path<(String, String)>,
    Query(choice): Query<Choice>,
) -> Page {
    let filter = choice.filter();
    let found = part::read(
        context.database(),
        calls::HISTORY,
        (&queue, &filter),
        ROWS,
        &choice.after,
        |entry: &Settled| entry.position.clone().unwrap_or_default(),
    )
    .await;
    let entries = match found {
        Ok(found) => table(&context, &queue, &choice, &found),
        Err(error) if error.is_about_values() => problem::inline(&context, &error),
        Err(error) => return Err(context.problem(error)),
    };
    let body = html! {
        (layout::queue_tabs(&context, &queue, "/history"))
        (search(&context, &queue, &choice))
        section aria-labelledby="found-title" {
            h2 id="found-title" { "Documents that have left the queue" }
            (entries)
            (source(&format!("select * from fetchq.queue_history({}, {}, max_docs => {ROWS})", literal(&queue), literal(&filter.to_string()))))
        }
    };
    let title = format!("History of {queue}");
    Ok(layout::page(&context, &title, Section::Queues, None, &body).into_response())
}

fn search(context: &Context, queue: &str, choice: &Choice) -> Markup {
    let texts = [
        (
            "subject",
            "Subject (% stands for any text)",
            &choice.subject,
            "mail-%",
        ),
        ("worker", "Worker", &choice.worker, ""),
        (
            "settled_since",
            "Settled since",
            &choice.settled_since,
            "2026-01-31 12:00",
        ),
        (
            "settled_before",
            "Settled before",
            &choice.settled_before,
            "",
        ),
    ];
    html! {
        form class="filter" role="search" method="get" action=(context.queue_address(queue, "/history")) {
            div class="fields" {
                (forms::choice("outcome", "Outcome", &OUTCOMES, &choice.outcome))
                @for (name, label, value, example) in texts { (forms::input(name, label, value, example)) }
                button { "Search" }
            }
        }
    }
}

fn table(context: &Context, queue: &str, choice: &Choice, found: &Part<Settled>) -> Markup {
    let first = (!choice.after.is_empty()).then(|| choice.query(""));
    let next = found.next.as_deref().map(|next| choice.query(next));
    html! {
        @if found.rows.is_empty() && next.is_none() {
            p class="notice" {
                "No entry matches. A queue keeps what its "
                a href=(context.queue_address(queue, "/settings")) { "settings" } " " code { "history" } " say."
            }
        } @else if !found.rows.is_empty() {
            (layout::table("the history", &COLUMNS, &html! {
                @for entry in &found.rows {
                    tr {
                        td class="nowrap" { (ago(entry.settled_at)) }
                        th scope="row" class="subject" { a href=(context.document_address(queue, &entry.subject)) { (entry.subject) } }
                        td { (status(entry.outcome.as_deref())) }
                        td class="number" { (count(entry.attempts.map(i64::from))) }
                        td class="number" { (duration(entry.ran)) }
                        td { (entry.worker.as_deref().unwrap_or("–")) }
                        td class="error" { (short(entry.last_error.as_deref())) }
                    }
                }
            }))
        }
        (layout::pager("the history", first.as_deref(), next.as_deref(), found.cut.as_deref()))
    }
}
