//! Who works: workers, and the documents that they have leased.
use axum::extract::Query;
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde::Deserialize;

use super::context::Context;
use super::format::{ago, count};
use super::layout::{self, Section, source};
use super::{Page, forms, problem};
use crate::calls::{self, Lease, Worker};

const WORKERS: usize = 500;
const LEASES: usize = 200;

#[derive(Debug, Default, Deserialize)]
pub struct Choice {
    #[serde(default)]
    queue: String,
}

/// `GET /db/{db}/workers`
pub async fn workers(context: Context, Query(choice): Query<Choice>) -> Page {
    let queue = (!choice.queue.is_empty()).then_some(choice.queue.as_str());
    let database = context.database();
    let found = database.rows::<Worker>(calls::WORKERS, &[]).await;
    let found = found.map_err(|error| context.problem(error))?;
    let leases = database.rows::<Lease>(calls::LEASES, &[&queue]).await;
    let body = html! {
        h1 { "Workers" }
        section aria-labelledby="workers-title" {
            h2 id="workers-title" { "Sessions and leases" }
            (table(&context, &found))
            (source("select * from fetchq.workers"))
        }
        section aria-labelledby="leases-title" {
            h2 id="leases-title" { "Leased documents" @if let Some(queue) = queue { " of " span class="name" { (queue) } } }
            @if queue.is_some() { p { a href=(context.address("/workers")) { "Those of all queues" } } }
            @match &leases {
                Err(error) => (problem::inline(&context, error)),
                Ok(leases) => (lease_table(&context, leases)),
            }
            (source("select * from fetchq.lease_list()"))
        }
    };
    Ok(layout::page(&context, "Workers", Section::Workers, None, &body).into_response())
}

fn table(context: &Context, found: &[Worker]) -> Markup {
    let back = context.address("/workers");
    html! {
        @if found.is_empty() { p class="notice" { "No worker has picked documents of the queues that the role may read." } }
        @else {
            div class="scroll" tabindex="0" role="region" aria-label="Table of the workers" {
                table {
                    thead {
                        tr {
                            th scope="col" { "Worker" }
                            th scope="col" class="number" { "Sessions" }
                            th scope="col" class="number" { "Leased" }
                            th scope="col" { "Queues" }
                            th scope="col" { "Seen first" }
                            th scope="col" { "Oldest lease" }
                            th scope="col" { "Next expiry" }
                            @if context.app.allow_actions { th scope="col" { "Actions" } }
                        }
                    }
                    tbody {
                        @for worker in found.iter().take(WORKERS) {
                            @let is_stopping = worker.is_asked_to_stop == Some(true);
                            tr {
                                th scope="row" { (worker.name) @if is_stopping { " " span class="tag warn" { "asked to stop" } } }
                                td class=(if worker.sessions == Some(0) { "number bad" } else { "number" }) { (count(worker.sessions.map(i64::from))) }
                                td class="number" { (count(worker.documents.map(i64::from))) }
                                td { (worker.queues.as_deref().unwrap_or_default().join(", ")) }
                                td class="nowrap" { (ago(worker.since)) }
                                td class="nowrap" { (ago(worker.oldest_lease)) }
                                td class="nowrap" { (ago(worker.next_expiry)) }
                                @if context.app.allow_actions {
                                    td class="nowrap" {
                                        (forms::button(context, "Stop…", "small", &back, &[("do", "worker_stop"), ("name", &worker.name)]))
                                        (forms::button(context, "Release…", "small", &back, &[("do", "worker_release"), ("name", &worker.name)]))
                                    }
                                }
                            }
                        }
                    }
                }
            }
            @if found.len() > WORKERS { p class="muted" { "Only the " (WORKERS) " workers with the most leases are shown." } }
        }
    }
}

fn lease_table(context: &Context, leases: &[Lease]) -> Markup {
    html! {
        @if leases.is_empty() { p class="notice" { "No document is leased." } }
        @else {
            div class="scroll" tabindex="0" role="region" aria-label="Table of the leases" {
                table {
                    thead {
                        tr {
                            th scope="col" { "Queue" } th scope="col" { "Subject" } th scope="col" { "Worker" }
                            th scope="col" class="number" { "Process" } th scope="col" class="number" { "Attempt" }
                            th scope="col" { "Since" } th scope="col" { "Until" } th scope="col" { "Binding" }
                        }
                    }
                    tbody {
                        @for lease in leases.iter().take(LEASES) {
                            tr {
                                td { a href=(context.queue_address(&lease.queue, "")) { (lease.queue) } }
                                th scope="row" class="subject" { a href=(context.document_address(&lease.queue, &lease.subject)) { (lease.subject) } }
                                td { (lease.worker.as_deref().unwrap_or("–")) }
                                td class="number" { (lease.pid.map_or("–".to_owned(), |pid| pid.to_string())) }
                                td class="number" { (count(lease.attempts.map(i64::from))) }
                                td class="nowrap" { (ago(lease.since)) }
                                td class="nowrap" { (ago(lease.until)) }
                                td { (lease.binding.as_deref().unwrap_or("–")) }
                            }
                        }
                    }
                }
            }
            @if leases.len() > LEASES { p class="muted" { "Only the " (LEASES) " oldest leases are shown." } }
        }
    }
}
