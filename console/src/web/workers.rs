//! Who works: workers, and the documents that they have leased.
use std::collections::BTreeMap;

use axum::extract::Query;
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde::Deserialize;

use super::context::{Context, encode};
use super::format::{ago, count};
use super::layout::{self, Column, Column::Number, Column::Text, Section, source};
use super::{MAX_QUEUES, Page, forms, problem};
use crate::calls::{self, Lease, QueueStat, Worker};
use crate::db::DbError;
use crate::poller::Snapshot;

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
pub struct Choice {
    #[serde(default)]
    queue: String,
}

/// `GET /db/{db}/workers`
pub async fn workers(context: Context, Query(choice): Query<Choice>) -> Page {
    let queue = (!choice.queue.is_empty()).then_some(choice.queue.as_str());
    let snapshot = context.snapshot().await?;
    let is_large = snapshot.queues.len() > MAX_QUEUES;
    let leases = leases(&context, queue, is_large).await;
    let found = if is_large {
        leases
            .as_ref()
            .ok()
            .and_then(Option::as_deref)
            .map(owners)
            .unwrap_or_default()
    } else {
        let found = context.database().rows::<Worker>(calls::WORKERS, &[]).await;
        found.map_err(|error| context.problem(error))?
    };
    let call = queue.map(|queue| {
        format!("select * from fetchq.docs_list('{queue}', '{{\"status\": \"active\"}}')")
    });
    let body = html! {
        h1 { "Workers" }
        @if !is_large || queue.is_some() {
            section aria-labelledby="workers-title" {
                h2 id="workers-title" { "Sessions and leases" }
                (table(&context, &found, queue))
                @if is_large {
                    p class="source" { "From the leased documents below." }
                } @else { (source("select * from fetchq.workers")) }
            }
        }
        section aria-labelledby="leases-title" {
            h2 id="leases-title" { "Leased documents" @if let Some(queue) = queue { " of " span class="name" { (queue) } } }
            @if queue.is_some() { p { a href=(context.address("/workers")) { "Those of all queues" } } }
            @match &leases {
                Ok(Some(leases)) => (lease_table(&context, leases)),
                Ok(None) => (choose(&context, &snapshot)),
                Err(error) => (problem::inline(&context, error)),
            }
            @if let Some(call) = &call { (source(call)) }
            @else if !is_large { (source("select * from fetchq.lease_list()")) }
        }
    };
    Ok(layout::page(&context, "Workers", Section::Workers, None, &body).into_response())
}

/// The leases of a queue, or of all. None: there are many queues, and one has to be chosen.
async fn leases(
    context: &Context,
    queue: Option<&str>,
    is_large: bool,
) -> Result<Option<Vec<Lease>>, DbError> {
    let database = context.database();
    match queue {
        Some(queue) => database
            .rows(calls::QUEUE_LEASES, &[&queue])
            .await
            .map(Some),
        None if is_large => Ok(None),
        None => database.rows(calls::LEASES, &[]).await.map(Some),
    }
}

/// The workers that have these leases.
fn owners(leases: &[Lease]) -> Vec<Worker> {
    let mut owners: BTreeMap<&str, Worker> = BTreeMap::new();
    for lease in leases {
        let Some(name) = lease.worker.as_deref() else {
            continue;
        };
        let owner = owners.entry(name).or_insert_with(|| Worker {
            name: name.to_owned(),
            sessions: None,
            documents: Some(0),
            queues: Some(vec![lease.queue.clone()]),
            since: None,
            oldest_lease: lease.since,
            next_expiry: lease.until,
            is_asked_to_stop: None,
        });
        owner.documents = owner.documents.map(|documents| documents + 1);
        owner.oldest_lease = earlier(owner.oldest_lease, lease.since);
        owner.next_expiry = earlier(owner.next_expiry, lease.until);
    }
    owners.into_values().collect()
}

fn earlier(a: Option<f64>, b: Option<f64>) -> Option<f64> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

fn choose(context: &Context, snapshot: &Snapshot) -> Markup {
    let active = |stat: &&QueueStat| stat.active.is_some_and(|active| active > 0);
    let mut busy: Vec<&QueueStat> = snapshot.queues.iter().filter(active).collect();
    busy.sort_by_key(|stat| std::cmp::Reverse(stat.active));
    html! {
        p class="notice" { "There are more than " (MAX_QUEUES) " queues: the leases are shown of one at a time." }
        @if busy.is_empty() { p class="muted" { "No queue has active documents." } }
        ul {
            @for stat in busy.iter().take(LEASES) {
                li { a href=(context.address(&format!("/workers?queue={}", encode(&stat.queue)))) { (stat.queue) } ": " (count(stat.active)) " active" }
            }
        }
    }
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
            }))
            @if found.len() > WORKERS { p class="muted" { "Only the " (WORKERS) " workers with the most leases are shown." } }
        }
    }
}

fn lease_table(context: &Context, leases: &[Lease]) -> Markup {
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
                        td class="nowrap" { (ago(lease.since)) }
                        td class="nowrap" { (ago(lease.until)) }
                        td { (lease.binding.as_deref().unwrap_or("–")) }
                    }
                }
            }))
            @if leases.len() > LEASES { p class="muted" { "Only the " (LEASES) " oldest leases are shown." } }
        }
    }
}
