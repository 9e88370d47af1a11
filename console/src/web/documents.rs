//! The documents of a queue: filters, pages by key, and actions on all that match.
use axum::extract::{Path, Query};
use axum::response::IntoResponse;
use fetchq_domain::status::Status;
use maud::{Markup, html};

use super::Page;
use super::context::Context;
use super::filter::Filter;
use super::format::{ago, count, literal};
use super::layout::{self, Column, Column::Number, Column::Text, Section, source};
use super::part::{self, Part};
use super::{forms, problem};
use crate::calls::{self, Listed};

/// Documents of a page.
const ROWS: usize = 50;

const COLUMNS: [Column; 8] = [
    Text("Subject"),
    Text("Status"),
    Number("Priority"),
    Number("Attempts"),
    Text("Due"),
    Text("Created"),
    Text("Worker"),
    Text("Last error"),
];

const STATUSES: [Status; 5] = [
    Status::Planned,
    Status::Pending,
    Status::Active,
    Status::Completed,
    Status::Killed,
];

/// `GET /db/{db}/queues/{queue}/documents`
pub async fn documents(
    context: Context,
    Path((_, queue)): Path<(String, String)>,
    Query(mut filter): Query<Filter>,
) -> Page {
    if context.app.hide_payloads {
        // Whoever can search payloads can find out what they are.
        filter.payload.clear();
    }
    let json = filter.to_json();
    let table = match &json {
        Err(message) => problem::notice(message, None, None),
        Ok(json) => {
            let subject = |document: &Listed| document.subject.clone();
            let found = part::read(
                context.database(),
                calls::DOCS_LIST,
                (&queue, json),
                ROWS,
                &filter.after,
                subject,
            )
            .await;
            match found {
                Ok(found) => table(&context, &queue, &filter, &found),
                Err(error) if error.is_about_values() => problem::inline(&context, &error),
                Err(error) => return Err(context.problem(error)),
            }
        }
    };
    let call = match &json {
        Ok(json) => {
            format!(
                "select * from fetchq.docs_list({}, {}, max_docs => {ROWS})",
                literal(&queue),
                literal(&json.to_string())
            )
        }
        Err(_) => format!("select * from fetchq.docs_list({})", literal(&queue)),
    };
    let body = html! {
        (layout::queue_tabs(&context, &queue, "/documents"))
        (search(&context, &queue, &filter))
        section aria-labelledby="found-title" {
            h2 id="found-title" { "Documents" }
            (table)
            (source(&call))
        }
        @if let (true, Ok(json)) = (context.app.allow_actions, &json) { (bulk(&context, &queue, &filter, &json.to_string())) }
    };
    Ok(layout::page(
        &context,
        &format!("Documents of {queue}"),
        Section::Queues,
        None,
        &body,
    )
    .into_response())
}

fn search(context: &Context, queue: &str, filter: &Filter) -> Markup {
    let more = [
        ("error", "Last error (pattern)", &filter.error, "%timeout%"),
        (
            "payload",
            "Payload contains (JSON)",
            &filter.payload,
            "{\"to\": \"ann\"}",
        ),
        ("ordering_key", "Ordering key", &filter.ordering_key, ""),
        (
            "older_than",
            "Created longer ago than",
            &filter.older_than,
            "1 hour",
        ),
        (
            "newer_than",
            "Created within",
            &filter.newer_than,
            "10 minutes",
        ),
        (
            "min_attempts",
            "Attempts, at least",
            &filter.min_attempts,
            "1",
        ),
        (
            "min_priority",
            "Priority, at least",
            &filter.min_priority,
            "0",
        ),
        (
            "max_priority",
            "Priority, at most",
            &filter.max_priority,
            "0",
        ),
        ("version", "Version", &filter.version, "0"),
    ];
    let is_open = more.iter().any(|(_, _, value, _)| !value.is_empty());
    html! {
        form class="filter" role="search" method="get" action=(context.queue_address(queue, "/documents")) {
            div class="fields" {
                (forms::choice("status", "Status", &STATUSES.map(Status::word), &filter.status))
                div class="field grow" {
                    label for="subject" { "Subject (% stands for any text)" }
                    input id="subject" name="subject" type="search" value=(filter.subject) autocomplete="off" placeholder="mail-%";
                }
                button { "Search" }
            }
            details open[is_open] {
                summary { "More conditions" }
                div class="fields" {
                    @for (name, label, value, example) in more.into_iter().filter(|(name, ..)| *name != "payload" || !context.app.hide_payloads) {
                        (forms::input(name, label, value, example))
                    }
                }
            }
        }
    }
}

fn table(context: &Context, queue: &str, filter: &Filter, found: &Part<Listed>) -> Markup {
    let first = (!filter.after.is_empty()).then(|| filter.query(""));
    let next = found.next.as_deref().map(|next| filter.query(next));
    html! {
        @if found.rows.is_empty() && next.is_none() {
            p class="notice" { "No document matches." }
        } @else if !found.rows.is_empty() {
            (layout::table("the documents", &COLUMNS, &html! {
                @for document in &found.rows {
                    tr {
                        th scope="row" class="subject" { a href=(context.document_address(queue, &document.subject)) { (document.subject) } }
                        td { (status(document.status.as_deref())) }
                        td class="number" { (count(document.priority.map(i64::from))) }
                        td class="number" { (count(document.attempts.map(i64::from))) "/" (count(document.max_attempts.map(i64::from))) }
                        td class="nowrap" { (ago(document.due_at)) }
                        td class="nowrap" { (ago(document.created_at)) }
                        td { (document.worker.as_deref().unwrap_or("–")) }
                        td class="error" { (short(document.last_error.as_deref())) }
                    }
                }
            }))
        }
        (layout::pager("documents", first.as_deref(), next.as_deref(), found.cut.as_deref()))
    }
}

/// The status as a label.
pub fn status(status: Option<&str>) -> Markup {
    let status = status.unwrap_or("–");
    html! { span class=(format!("tag {status}")) { (status) } }
}

/// The beginning of a text.
pub fn short(text: Option<&str>) -> Markup {
    let Some(text) = text else {
        return html! { "–" };
    };
    let line: String = text.chars().take(120).collect();
    html! { (line) @if line.len() < text.len() { "…" } }
}

/// One action on all documents that match. It is counted first, and then confirmed.
fn bulk(context: &Context, queue: &str, filter: &Filter, json: &str) -> Markup {
    let back = context.queue_address(queue, &format!("/documents{}", filter.query("")));
    let fields = html! {
        div class="fields" {
            div class="field" {
                label for="bulk-do" { "Action" }
                select id="bulk-do" name="do" {
                    option value="docs_retry" { "Retry" }
                    option value="docs_kill" { "Kill" }
                    option value="docs_drop" { "Drop" }
                    option value="docs_move" { "Move to another queue" }
                    option value="docs_set_priority" { "Set priority" }
                    option value="docs_set_due" { "Set time" }
                }
            }
            div class="field" {
                label for="bulk-max" { "At most" }
                input id="bulk-max" name="max_docs" type="number" min="1" max="1000000" value="1000" required;
            }
            div class="field" {
                label for="bulk-target" { "Target queue (move)" }
                input id="bulk-target" name="target" type="text" autocomplete="off";
            }
            div class="field" {
                label for="bulk-priority" { "Priority (set priority)" }
                input id="bulk-priority" name="priority" type="number" value="0";
            }
            div class="field" {
                label for="bulk-time" { "Due (set time)" }
                input id="bulk-time" name="time" type="text" placeholder="10 minutes" autocomplete="off";
            }
            button { "Count…" }
        }
    };
    html! {
        section aria-labelledby="bulk-title" {
            h2 id="bulk-title" { "All documents that match" }
            p {
                @if json == "{}" { strong { "There is no condition: every document of the queue. " } }
                @else { "The conditions above: " code { (json) } ". " }
                "The documents are counted first; nothing changes before you confirm."
            }
            (forms::form(context, &back, &[("queue", queue), ("filter", json)], &fields))
        }
    }
}
