//! The first page of a database: problems with what to do, and all queues.
use axum::extract::Query;
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde::Deserialize;

use super::Page;
use super::context::{Context, encode};
use super::format::{count, duration, literal, queue_name, rate};
use super::layout::{self, Section, source};
use super::spark::sparkline;
use crate::calls::{Component, QueueStat};
use crate::poller::Snapshot;
use crate::ring::Rates;

/// Rows of a page, however many queues there are.
const ROWS: usize = 100;

/// What the person asked for.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Choice {
    #[serde(default)]
    pub q: String,
    #[serde(default)]
    pub sort: String,
    #[serde(default)]
    pub page: usize,
}

impl Choice {
    fn query(&self, sort: &str, page: usize) -> String {
        format!("?q={}&sort={}&page={page}", encode(&self.q), encode(sort))
    }
}

/// `GET /db/{db}`
pub async fn overview(context: Context, Query(choice): Query<Choice>) -> Page {
    let snapshot = context.snapshot().await?;
    let body = html! {
        h1 class="visually-hidden" { "Queues of " (context.database().name) }
        section aria-labelledby="problems-title" {
            h2 id="problems-title" { "State" }
            div data-region="problems" { (problems(&context, &snapshot)) }
            (source("select * from fetchq.status()"))
        }
        section aria-labelledby="queues-title" {
            div class="bar" {
                h2 id="queues-title" { "Queues" }
                form class="search" role="search" method="get" action=(context.address("")) {
                    label for="q" { "Name contains" }
                    input id="q" name="q" type="search" value=(choice.q) autocomplete="off";
                    input type="hidden" name="sort" value=(choice.sort);
                    button { "Search" }
                }
            }
            div data-region="queues" { (queues(&context, &choice, &snapshot)) }
            (source("select * from fetchq.queue_stats()"))
            p class="source" {
                "Rates are the mean of the last ten samples, and the lines show documents that are ready: both come from "
                "the memory of the console, which reads the numbers once a second while a page is open."
            }
        }
    };
    let live = context.address(&format!(
        "/live{}&view=overview",
        choice.query(&choice.sort, choice.page)
    ));
    Ok(layout::page(&context, "Queues", Section::Queues, Some(&live), &body).into_response())
}

/// What needs somebody, with what to do; or that all is well.
pub fn problems(context: &Context, snapshot: &Snapshot) -> Markup {
    let (bad, good): (Vec<&Component>, Vec<&Component>) = snapshot
        .status
        .iter()
        .partition(|component| component.hint.is_some());
    html! {
        @if bad.is_empty() {
            p class="notice good" { "No part of fetchq reports a problem." }
        } @else {
            ul class="problems" {
                @for component in &bad {
                    li class="notice bad" {
                        p {
                            strong { (component.component) ": " (component.state.as_deref().unwrap_or_default()) }
                            @if let Some(detail) = &component.detail { span class="detail" { " " (detail) } }
                        }
                        @if let Some(hint) = &component.hint {
                            p {
                                strong { "What to do: " } (hint)
                                @if let Some((label, page)) = place(&component.component) { " " a href=(context.address(page)) { (label) } }
                            }
                        }
                    }
                }
            }
        }
        p class="facts" {
            @for component in good.iter().filter(|c| is_fact(&c.component, c.state.as_deref())) {
                span {
                    strong { (component.component) } " " (component.state.as_deref().unwrap_or_default())
                    @if let Some(detail) = &component.detail { " " span class="muted" { (detail) } }
                    @if component.component == "dead letters" { " " a href=(context.address("/dead-letters")) { "Dead letters" } }
                }
            }
            span { a href=(context.address("/maintenance")) { "All " (snapshot.status.len()) " parts" } }
        }
    }
}

/// Whether the overview names a part with which nothing is wrong.
fn is_fact(component: &str, state: Option<&str>) -> bool {
    match component {
        "server" | "background worker" | "backlog" | "schedules" => true,
        // Only where queues have moved away.
        "places" => state == Some("elsewhere"),
        "dead letters" => state == Some("waiting"),
        _ => false,
    }
}

/// The page of the console that shows more about a part, and where something can be done.
fn place(component: &str) -> Option<(&'static str, &'static str)> {
    match component {
        "backlog" | "planned" | "workers" => Some(("Queues, the oldest first", "?sort=oldest")),
        "leases" => Some(("Leases", "/workers")),
        "dead letters" => Some(("Dead letters", "/dead-letters")),
        "schedules" => Some(("Schedules", "/schedules")),
        other if other.starts_with("maintenance") => Some(("Maintenance", "/maintenance")),
        _ => None,
    }
}

struct Row<'a> {
    stat: &'a QueueStat,
    rates: Rates,
}

/// The table of the queues, sorted and cut into pages.
pub fn queues(context: &Context, choice: &Choice, snapshot: &Snapshot) -> Markup {
    let wanted = choice.q.trim().to_lowercase();
    let live = context.live();
    let mut rows: Vec<Row> = live.ring(|ring| {
        snapshot
            .queues
            .iter()
            .filter(|stat| stat.queue.contains(&wanted))
            .map(|stat| Row {
                stat,
                rates: ring.rates(&stat.queue),
            })
            .collect()
    });
    // A stable sort: queues that are equal stay in the order of their names.
    match choice.sort.as_str() {
        "ready" => rows.sort_by_key(|row| {
            (
                row.stat.has_dead_letters(),
                std::cmp::Reverse(row.stat.ready),
            )
        }),
        "oldest" => {
            rows.sort_by(|a, b| descending(a.stat.oldest_waiting(), b.stat.oldest_waiting()))
        }
        "active" => rows.sort_by_key(|row| std::cmp::Reverse(row.stat.active)),
        "rate" => rows.sort_by(|a, b| b.rates.picked.total_cmp(&a.rates.picked)),
        "failing" => rows.sort_by(|a, b| b.rates.failed.total_cmp(&a.rates.failed)),
        "failed" => rows.sort_by_key(|row| std::cmp::Reverse(row.stat.failed)),
        "killed" => rows.sort_by_key(|row| std::cmp::Reverse(row.stat.killed)),
        _ => (),
    }
    let total = rows.len();
    let pages = total.div_ceil(ROWS).max(1);
    let page = choice.page.min(pages - 1);
    let shown = &rows[(page * ROWS).min(total)..((page + 1) * ROWS).min(total)];
    html! {
        @if total == 0 {
            @if wanted.is_empty() {
                p class="notice" {
                    "There is no queue on which the role " strong { (snapshot.info.role) } " has a right. "
                    "The owner of a queue can run: "
                    code { "select fetchq.queue_grant('QUEUE', " (literal(&snapshot.info.role)) ", 'reader')" }
                    ". A queue is created with " code { "select * from fetchq.queue_create('QUEUE')" } "."
                }
            } @else {
                p class="notice" { "No queue has a name that contains this text." }
            }
        } @else {
            (layout::table_with(
                &format!("the queues, {} to {} of {total}", page * ROWS + 1, page * ROWS + shown.len()),
                &html! {
                    (head(choice, "", "Queue", false))
                    (head(choice, "ready", "Ready", true))
                    (head(choice, "oldest", "Oldest ready", true))
                    (head(choice, "active", "Active", true))
                    th scope="col" class="number wide" { "Waiting" }
                    (head(choice, "rate", "Picked", true))
                    (head(choice, "failing", "Failing", true))
                    (head(choice, "failed", "Failed", true))
                    (head(choice, "killed", "Killed", true))
                    th scope="col" class="wide" { "Ready, lately" }
                },
                &html! { @for row in shown { (line(context, row)) } },
            ))
            (pager(choice, page, pages, total))
        }
    }
}

fn descending(a: Option<f64>, b: Option<f64>) -> std::cmp::Ordering {
    b.unwrap_or(-1.0).total_cmp(&a.unwrap_or(-1.0))
}

fn head(choice: &Choice, sort: &str, name: &str, is_number: bool) -> Markup {
    let is_this = choice.sort == sort;
    let order = if sort.is_empty() {
        "ascending"
    } else {
        "descending"
    };
    html! {
        th scope="col" class=[is_number.then_some("number")] aria-sort=[is_this.then_some(order)] {
            a id=(format!("sort-{sort}")) href=(choice.query(sort, 0)) { (name) }
        }
    }
}

fn line(context: &Context, row: &Row) -> Markup {
    let stat = row.stat;
    let waiting = match (stat.planned, stat.retrying, stat.blocked) {
        (None, None, None) => None,
        (a, b, c) => Some(a.unwrap_or(0) + b.unwrap_or(0) + c.unwrap_or(0)),
    };
    let is_paused = stat.is_paused == Some(true);
    let is_failing = row.rates.failed >= 0.005;
    html! {
        tr {
            th scope="row" {
                a id=(format!("queue-{}", stat.queue)) href=(context.queue_address(&stat.queue, "")) { (queue_name(&stat.queue)) }
                @if stat.has_dead_letters() { " " span class="tag" title="the dead-letter queue of another queue" { "dead letters" } }
                @if is_paused { " " span class="tag warn" { "paused" } }
            }
            td class="number" { (count(stat.ready)) }
            td class=(if stat.has_dead_letters() { "number muted" } else { "number" }) { (duration(stat.oldest_ready)) }
            td class="number" { (count(stat.active)) }
            td class="number wide" title="planned, retrying and blocked" { (count(waiting)) }
            td class="number" { (rate(row.rates.picked)) }
            td class=(if is_failing { "number bad" } else { "number" }) { (rate(row.rates.failed)) }
            td class="number" { (count(stat.failed)) }
            td class=(if stat.killed.is_some_and(|n| n > 0) { "number bad" } else { "number" }) { (count(stat.killed)) }
            td class="wide line" { (context.live().ring(|ring| sparkline(&ring.samples(&stat.queue)))) }
        }
    }
}

fn pager(choice: &Choice, page: usize, pages: usize, total: usize) -> Markup {
    html! {
        @if pages > 1 {
            nav class="pager" aria-label="Pages of queues" {
                @if page > 0 { a id="page-before" href=(choice.query(&choice.sort, page - 1)) rel="prev" { "Previous" } }
                span { "Page " (page + 1) " of " (pages) ", " (count(i64::try_from(total).ok())) " queues" }
                @if page + 1 < pages { a id="page-after" href=(choice.query(&choice.sort, page + 1)) rel="next" { "Next" } }
            }
        }
    }
}
