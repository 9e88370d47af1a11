//! Who works: workers, and the documents that they have leased.
use axum::extract::Query;
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde::Deserialize;

use super::context::{Context, encode};
use super::format::{ago, count, duration, literal};
use super::layout::{self, Column, Column::Number, Column::Text, Section, source};
use super::{Page, forms, problem};
use crate::calls::{self, Lease, Relay, Worker};
use crate::poller::now;

const WORKERS: usize = 500;
const LEASES: usize = 200;

const LEASE_COLUMNS: [Column; 8] = [
    Text("Queue"),
    Text("Subject"),
    Text("Worker"),
    Number("Process"),
    Number("Attempt"),
    Text("Since"),
    Text("Until"),
    Text("Binding"),
];

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Choice {
    queue: String,
    after: String,
}

/// `GET /db/{db}/workers`
pub async fn workers(context: Context, Query(choice): Query<Choice>) -> Page {
    let queue = (!choice.queue.is_empty()).then_some(choice.queue.as_str());
    let after = (!choice.after.is_empty()).then_some(choice.after.as_str());
    let database = context.database();
    let found = database.rows::<Worker>(calls::WORKERS, &[&queue]).await;
    let found = found.map_err(|error| context.problem(error))?;
    let leases = match queue {
        Some(queue) => {
            database
                .rows::<Lease>(calls::QUEUE_LEASES, &[&queue, &after])
                .await
        }
        None => database.rows::<Lease>(calls::LEASES, &[]).await,
    };
    let call = match queue {
        Some(queue) => format!(
            "select * from fetchq.lease_list({}, max_docs => {LEASES})",
            literal(queue)
        ),
        None => "select * from fetchq.lease_list()".to_owned(),
    };
    // Most databases have no relay, and few roles may read its queue.
    let relays = match queue {
        Some(_) => Vec::new(),
        None => database
            .rows::<Relay>(calls::RELAYS, &[])
            .await
            .unwrap_or_default(),
    };
    let body = html! {
        h1 { "Workers" @if let Some(queue) = queue { " of queue " span class="name" { (queue) } } }
        @if queue.is_some() { p { a href=(context.address("/workers")) { "Those of all queues" } } }
        section aria-labelledby="workers-title" {
            h2 id="workers-title" { "Sessions and leases" }
            (table(&context, &found, queue))
            (source("select * from fetchq.workers"))
        }
        section aria-labelledby="leases-title" {
            h2 id="leases-title" { "Leased documents" }
            @match &leases {
                Ok(leases) => (lease_table(&context, leases, queue, after)),
                Err(error) => (problem::inline(&context, error)),
            }
            (source(&call))
        }
        @if !relays.is_empty() {
            section aria-labelledby="relays-title" id="relays" {
                h2 id="relays-title" { "Relays" }
                (relay_table(&context, &relays))
                (source("select subject, payload from fetchq.docs_list('fetchq_relay')"))
            }
        }
    };
    Ok(layout::page(&context, "Workers", Section::Workers, None, &body).into_response())
}

fn table(context: &Context, found: &[Worker], queue: Option<&str>) -> Markup {
    let back = match queue {
        Some(queue) => context.address(&format!("/workers?queue={}", encode(queue))),
        None => context.address("/workers"),
    };
    let mut columns = vec![
        Text("Worker"),
        Number("Sessions"),
        Number("Leased"),
        Text("Queues"),
        Text("Seen first"),
        Text("Oldest lease"),
        Text("Next expiry"),
    ];
    columns.extend(context.app.allow_actions.then_some(Text("Actions")));
    html! {
        @if found.is_empty() { p class="notice" { "No worker has picked documents of the queues that the role may read." } }
        @else {
            (layout::table("the workers", &columns, &html! {
                @for worker in found.iter().take(WORKERS) {
                    @let is_stopping = worker.is_asked_to_stop == Some(true);
                    tr {
                        th scope="row" { (worker.name) @if is_stopping { " " span class="tag warn" { "asked to stop" } } }
                        td class=(if worker.sessions == Some(0) { "number bad" } else { "number" }) { (count(worker.sessions.map(i64::from))) }
                        td class="number" { (count(worker.documents.map(i64::from))) }
                        td { (worker.queues.as_deref().unwrap_or_default().join(", ")) }
                        td class="nowrap" { (ago(worker.since)) }
                        td class="nowrap" { (ago(worker.oldest_picked_at)) }
                        td class="nowrap" { (ago(worker.first_lease_ends)) }
                        @if context.app.allow_actions {
                            td class="nowrap" {
                                (forms::button(context, "Stop…", "small", &back, &[("do", "worker_stop"), ("name", &worker.name)]))
                                (forms::button(context, "Release…", "small", &back, &[("do", "worker_release"), ("name", &worker.name)]))
                            }
                        }
                    }
                }
            }))
            @if found.len() > WORKERS { p class="muted" { "Only the " (WORKERS) " workers with the most leases are shown." } }
        }
    }
}

fn lease_table(
    context: &Context,
    leases: &[Lease],
    queue: Option<&str>,
    after: Option<&str>,
) -> Markup {
    let page = |queue: &str, after: &str| {
        context.address(&format!(
            "/workers?queue={}&after={}#leases-title",
            encode(queue),
            encode(after)
        ))
    };
    let last = leases.get(LEASES - 1).filter(|_| leases.len() > LEASES);
    html! {
        @if leases.is_empty() { p class="notice" { "No document is leased." } }
        @else {
            (layout::table("the leases", &LEASE_COLUMNS, &html! {
                @for lease in leases.iter().take(LEASES) {
                    tr {
                        td { a href=(context.queue_address(&lease.queue, "")) { (lease.queue) } }
                        th scope="row" class="subject" { a href=(context.document_address(&lease.queue, &lease.subject)) { (lease.subject) } }
                        td { (lease.worker.as_deref().unwrap_or("–")) }
                        td class="number" { (lease.pid.map_or("–".to_owned(), |pid| pid.to_string())) }
                        td class="number" { (count(lease.attempts.map(i64::from))) }
                        td class="nowrap" { (ago(lease.picked_at)) }
                        td class="nowrap" { (ago(lease.lease_ends)) }
                        td { (lease.binding.as_deref().unwrap_or("–")) }
                    }
                }
            }))
        }
        @match (queue, last) {
            (None, Some(_)) => p class="muted" { "Only the " (LEASES) " oldest leases are shown. Those of one queue have pages." },
            (Some(queue), last) => {
                @let first = after.map(|_| page(queue, ""));
                @let next = last.map(|last| page(queue, &last.subject));
                (layout::pager("leases", first.as_deref(), next.as_deref(), None))
            },
            (None, None) => {},
        }
    }
}

/// A relay that was silent for longer has lost a server, or does not run.
const SILENT: f64 = 20.0;

fn relay_table(context: &Context, relays: &[Relay]) -> Markup {
    let columns = [
        Text("Source"),
        Text("Relay"),
        Number("Carried"),
        Number("Waiting"),
        Number("Lag"),
        Number("Refused"),
        Text("Blocked queues"),
        Text("Heard"),
    ];
    let now = now();
    layout::table(
        "the relays",
        &columns,
        &html! {
            @for relay in relays {
                @let is_silent = relay.at.is_none_or(|at| now - at > SILENT);
                tr {
                    th scope="row" {
                        a href=(context.queue_address("fetchq_relay", &format!("/document?subject={}", encode(&relay.subject)))) {
                            (relay.source.as_deref().unwrap_or(&relay.subject))
                        }
                    }
                    td {
                        (relay.relay.as_deref().unwrap_or("–")) " "
                        @if relay.relay.is_none() { span class="tag" { "ended" } }
                        @else if is_silent { span class="tag warn" { "silent" } }
                    }
                    td class="number" { (count(relay.carried)) }
                    td class="number" { (count(relay.waiting)) }
                    td class="number" { (duration(relay.lag)) }
                    td class=(if relay.refused.is_some_and(|n| n > 0) { "number bad" } else { "number" }) { (count(relay.refused)) }
                    td class="error" { (relay.blocked.as_deref().unwrap_or_default().join(", ")) }
                    td class="nowrap" { (ago(relay.at)) }
                }
            }
        },
    )
}
