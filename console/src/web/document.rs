//! One document: what it is, what became of it, and what can be done.
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use fetchq_connect::DbError;
use maud::{Markup, html};
use serde::Deserialize;

use super::context::Context;
use super::documents::status;
use super::format::{count, literal, time};
use super::layout::{self, Column::Number, Column::Text, Section, source};
use super::problem::{self, Problem};
use super::{MAX_QUEUES, Page, forms};
use crate::calls::{self, DocError, DocReason, Document, TraceStep};

/// Which document.
#[derive(Debug, Deserialize)]
pub struct Which {
    subject: String,
    /// Whether to look into all queues, however many there are.
    #[serde(default)]
    trace: bool,
}

/// `GET /db/{db}/queues/{queue}/document?subject=`
pub async fn document(
    context: Context,
    Path((_, queue)): Path<(String, String)>,
    Query(Which { subject, trace }): Query<Which>,
) -> Page {
    let database = context.database();
    let found = database
        .first::<Document>(calls::DOC_GET, &[&queue, &subject])
        .await;
    let Some(document) = found.map_err(|error| context.problem(error))? else {
        let text = "There is no document of this subject, neither in the queue nor in its history.";
        return Err(Problem::new(
            &context,
            StatusCode::NOT_FOUND,
            "No such document",
            text,
        ));
    };
    let errors = database
        .rows::<DocError>(calls::DOC_ERRORS, &[&queue, &subject])
        .await;
    let reasons = database
        .rows::<DocReason>(calls::DOC_EXPLAIN, &[&queue, &subject])
        .await;
    let queues = context
        .live()
        .fresh()
        .await
        .map_or(0, |snapshot| snapshot.queues.len());
    let trace = if queues > MAX_QUEUES && !trace {
        let address = format!("{}&trace=true", context.document_address(&queue, &subject));
        html! { p { a href=(address) { "Look into all " (count(i64::try_from(queues).ok())) " queues" } ", which takes a while." } }
    } else {
        story(
            &context,
            database.rows::<TraceStep>(calls::TRACE, &[&subject]).await,
        )
    };
    let quoted = format!("{}, {}", literal(&queue), literal(&subject));
    let body = html! {
        (layout::queue_tabs(&context, &queue, "/document"))
        h2 { "Document " span class="name" { (document.subject) } " " (status(document.status.as_deref())) }
        @if document.is_from_history == Some(true) {
            p class="notice" { "The document has left the queue. This is its newest entry in the history." }
        }
        (actions(&context, &queue, &document))
        section aria-labelledby="why-title" {
            h2 id="why-title" { "Why it does not run" }
            (why(&context, reasons))
            (source(&format!("select * from fetchq.doc_explain({quoted})")))
        }
        section aria-labelledby="facts-title" {
            h2 id="facts-title" { "State" }
            (facts(&document))
            (source(&format!("select * from fetchq.doc_get({quoted})")))
        }
        (contents(&context, &document))
        section aria-labelledby="errors-title" {
            h2 id="errors-title" { "Failed attempts" }
            (failures(&context, errors))
            (source(&format!("select * from fetchq.doc_errors({quoted})")))
        }
        section aria-labelledby="trace-title" {
            h2 id="trace-title" { "In all queues" }
            (trace)
            (source(&format!("select * from fetchq.trace({})", literal(&subject))))
        }
    };
    Ok(layout::page(&context, &subject, Section::Queues, None, &body).into_response())
}

fn why(context: &Context, reasons: Result<Vec<DocReason>, DbError>) -> Markup {
    let reasons = match reasons {
        Ok(reasons) => reasons,
        Err(error) => return problem::inline(context, &error),
    };
    layout::table(
        "the reasons",
        &[
            Text("Reason"),
            Text("What holds, and what to do"),
            Text("Since"),
            Text("Until"),
        ],
        &html! {
            @for reason in &reasons {
                tr {
                    td class="nowrap" { code { (reason.reason) } }
                    // In one cell: a narrow window shows both.
                    td class="long" {
                        (reason.detail.as_deref().unwrap_or_default())
                        @if let Some(hint) = &reason.hint { br; strong { "What to do: " } (hint) }
                    }
                    td class="nowrap" { (time(reason.since)) }
                    td class="nowrap" { (time(reason.until)) }
                }
            }
        },
    )
}

fn facts(document: &Document) -> Markup {
    let waits = matches!(document.status.as_deref(), Some("planned" | "pending"));
    let due = if waits { "Due" } else { "Was due" };
    html! {
        dl class="facts-list" {
            div { dt { "Priority" } dd { (count(document.priority.map(i64::from))) } }
            div { dt { "Version" } dd { (count(document.version.map(i64::from))) } }
            div { dt { "Attempts" } dd { (count(document.attempts.map(i64::from))) " of " (count(document.max_attempts.map(i64::from))) } }
            div { dt { "Iterations" } dd { (count(document.iterations)) } }
            div { dt { "Created" } dd { (time(document.created_at)) } }
            div { dt { (due) } dd { (time(document.due_at)) } }
            @if document.expires_at.is_some() { div { dt { "Expires unless begun" } dd { (time(document.expires_at)) } } }
            @if document.picked_at.is_some() { div { dt { "Picked" } dd { (time(document.picked_at)) } } }
            @if document.lease_ends.is_some() { div { dt { "Lease ends" } dd { (time(document.lease_ends)) } } }
            @if document.settled_at.is_some() { div { dt { "Settled" } dd { (time(document.settled_at)) } } }
            @if let Some(worker) = &document.worker { div { dt { "Worker" } dd { (worker) } } }
            @if let Some(key) = &document.ordering_key { div { dt { "Ordering key" } dd { (key) } } }
            @if let Some(error) = &document.last_error { div class="long" { dt { "Last error" } dd { (error) } } }
        }
    }
}

fn contents(context: &Context, document: &Document) -> Markup {
    let parts = [
        ("Payload", &document.payload),
        ("Headers", &document.headers),
        ("Result", &document.result),
        ("Progress", &document.progress),
        ("Where it came from", &document.origin),
        (
            "Put while it was leased: it runs again with this",
            &document.queued,
        ),
    ];
    html! {
        @for (title, value) in parts {
            @if title == "Payload" || value.is_some() {
                section {
                    h2 { (title) }
                    @if context.app.hide_payloads {
                        p class="muted" { "Hidden: the console runs with " code { "--hide-payloads" } "." }
                    } @else {
                        (forms::text(value.as_deref()))
                    }
                }
            }
        }
    }
}

fn failures(context: &Context, errors: Result<Vec<DocError>, DbError>) -> Markup {
    let errors = match errors {
        Ok(errors) => errors,
        Err(error) => return problem::inline(context, &error),
    };
    html! {
        @if errors.is_empty() { p class="muted" { "None in the log, which keeps its lines for as long as the queue is set to." } }
        @else {
            (layout::table("the failed attempts", &[Text("At"), Number("Attempt"), Text("Message"), Text("Details")], &html! {
                @for error in &errors {
                    tr {
                        td class="nowrap" { (time(error.at)) }
                        td class="number" { (count(error.attempt.map(i64::from))) }
                        td class="long" { (error.message.as_deref().unwrap_or_default()) @if let Some(id) = &error.ref_id { " " span class="muted" { "(" (id) ")" } } }
                        td { @if let (Some(details), false) = (&error.details, context.app.hide_payloads) { pre { (details) } } }
                    }
                }
            }))
        }
    }
}

fn story(context: &Context, trace: Result<Vec<TraceStep>, DbError>) -> Markup {
    let trace = match trace {
        Ok(trace) => trace,
        Err(error) => return problem::inline(context, &error),
    };
    html! {
        @if trace.is_empty() { p class="muted" { "Nothing." } }
        @else {
            ol class="story" {
                @for step in &trace {
                    li { (time(step.at)) " " strong { (step.queue.as_deref().unwrap_or_default()) } " " (step.what.as_deref().unwrap_or_default()) ": " (step.info.as_deref().unwrap_or_default()) }
                }
            }
        }
    }
}

/// The buttons that the status of the document allows.
fn actions(context: &Context, queue: &str, document: &Document) -> Markup {
    let back = context.document_address(queue, &document.subject);
    let status = document.status.as_deref().unwrap_or_default();
    let fields = |what: &'static str| {
        [
            ("do", what),
            ("queue", queue),
            ("subject", document.subject.as_str()),
        ]
    };
    let is_live = document.is_from_history != Some(true);
    let waits = matches!(status, "planned" | "pending");
    html! {
        @if is_live && context.app.allow_actions {
            div class="actions" {
                @if waits || status == "killed" { (forms::button(context, "Retry now", "", &back, &fields("doc_retry"))) }
                @if matches!(status, "killed" | "completed") { (forms::button(context, "Revive", "", &back, &fields("doc_revive"))) }
                @if status == "active" { (forms::button(context, "Release", "", &back, &fields("doc_release"))) }
                @if waits || status == "active" { (forms::button(context, "Cancel…", "danger", &back, &fields("doc_cancel"))) }
                @if waits {
                    (forms::form(context, &back, &fields("doc_priority"), &html! {
                        label for="priority" { "Priority" }
                        input id="priority" name="priority" type="number" value=(document.priority.unwrap_or(0)) required;
                        button { "Set priority" }
                    }))
                    (forms::form(context, &back, &fields("doc_time"), &html! {
                        label for="time" { "Due (time with zone, or an interval from now)" }
                        input id="time" name="time" type="text" placeholder="10 minutes" required autocomplete="off";
                        button { "Set time" }
                    }))
                }
            }
        }
    }
}
