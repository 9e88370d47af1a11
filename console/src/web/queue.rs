//! The state of a queue.
use axum::extract::{Path, Query};
use axum::http::StatusCode;
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde::Deserialize;

use super::context::Context;
use super::format::{ago, count, duration, literal, rate};
use super::layout::{self, Column::Number, Column::Text, Section, source};
use super::problem::Problem;
use super::{Page, charts, forms};
use crate::poller::Snapshot;

/// Of which time the charts are.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Choice {
    span: String,
}

/// `GET /db/{db}/queues/{queue}`
pub async fn queue(
    context: Context,
    Path((_, name)): Path<(String, String)>,
    Query(choice): Query<Choice>,
) -> Page {
    let snapshot = context.snapshot().await?;
    let Some(stat) = snapshot.queue(&name) else {
        let text = "There is no queue of this name, or the role of the console has no right on it.";
        return Err(Problem::new(
            &context,
            StatusCode::NOT_FOUND,
            "No such queue",
            text,
        ));
    };
    let back = context.queue_address(&name, "");
    let (do_it, label) = if stat.is_paused == Some(true) {
        ("queue_resume", "Resume")
    } else {
        ("queue_pause", "Pause")
    };
    let charts = charts::charts(&context, &name, &choice.span).await;
    let body = html! {
        (layout::queue_tabs(&context, &name, ""))
        div class="actions" {
            (forms::button(&context, label, "", &back, &[("do", do_it), ("queue", &name)]))
            (forms::button(&context, "Redrive…", "", &back, &[("do", "queue_redrive"), ("queue", &name)]))
        }
        section aria-labelledby="numbers-title" {
            h2 id="numbers-title" { "Now" }
            div data-region="numbers" { (numbers(&context, &name, &snapshot)) }
            (source(&format!("select * from fetchq.queue_stats({})", literal(&name))))
        }
        section aria-labelledby="charts-title" {
            h2 id="charts-title" { "Over time" }
            (charts)
        }
        p { a href=(context.address(&format!("/workers?queue={}", super::encode(&name)))) { "Leases of this queue" } }
    };
    let live = context.address(&format!("/live?view=queue&queue={}", super::encode(&name)));
    Ok(layout::page(&context, &name, Section::Queues, Some(&live), &body).into_response())
}

/// The numbers of a queue at this moment.
pub fn numbers(context: &Context, name: &str, snapshot: &Snapshot) -> Markup {
    let Some(stat) = snapshot.queue(name) else {
        return html! { p class="notice bad" { "The queue is gone." } };
    };
    let rates = context.live().ring(|ring| ring.rates(name));
    let documents =
        |status: &str| context.queue_address(name, &format!("/documents?status={status}"));
    let tiles = [
        ("Ready", stat.ready, Some(documents("pending"))),
        ("Active", stat.active, Some(documents("active"))),
        ("Retrying", stat.retrying, None),
        ("Blocked", stat.blocked, None),
        ("Planned", stat.planned, Some(documents("planned"))),
        ("Completed", stat.completed, Some(documents("completed"))),
        ("Killed", stat.killed, Some(documents("killed"))),
    ];
    let totals = [
        ("pushed", stat.pushed, Some(rates.pushed)),
        ("picked", stat.picked, Some(rates.picked)),
        ("succeeded", stat.succeeded, Some(rates.succeeded)),
        ("failed", stat.failed, Some(rates.failed)),
        ("leases lost", stat.lost, None),
    ];
    let times = [
        (
            "wait until picked",
            [stat.wait_p50, stat.wait_p95, stat.wait_p99],
        ),
        (
            "run until settled",
            [stat.run_p50, stat.run_p95, stat.run_p99],
        ),
    ];
    html! {
        @if stat.is_paused == Some(true) { p class="notice warn" { "The queue is paused: nothing can be picked." } }
        @if stat.has_dead_letters() {
            p class="notice" {
                "Other queues send their dead letters here: they wait for a person, and not for a worker. "
                a href=(context.address("/dead-letters")) { "Dead letters" }
            }
        }
        @if stat.ready.is_none() {
            p class="notice warn" {
                "Ready documents are not known: the role " strong { (snapshot.info.role) } " is not a reader of the queue, "
                "or another session holds a lock. The owner of the queue can run: "
                code { "select fetchq.queue_grant(" (literal(name)) ", " (literal(&snapshot.info.role)) ", 'reader')" }
            }
        }
        dl class="tiles" {
            @for (label, number, address) in tiles {
                div class=[(label == "Killed" && number.is_some_and(|n| n > 0)).then_some("bad")] {
                    dt { @if let Some(address) = address { a id=(format!("tile-{label}")) href=(address) { (label) } } @else { (label) } }
                    dd { (count(number)) }
                }
            }
            div { dt { (if stat.has_dead_letters() { "Oldest dead letter" } else { "Oldest ready" }) } dd { (duration(stat.oldest_ready)) } }
            div { dt { "Next due" } dd { (ago(stat.next_due)) } }
        }
        div class="side" {
            (layout::table("the totals", &[Text("Documents"), Number("Total"), Number("Now")], &html! {
                @for (label, total, now) in totals {
                    tr { th scope="row" { (label) } td class="number" { (count(total)) } td class="number" { @if let Some(now) = now { (rate(now)) } } }
                }
            }))
            (layout::table("the times", &[Text("Lately"), Number("50 %"), Number("95 %"), Number("99 %")], &html! {
                @for (label, values) in times {
                    tr { th scope="row" { (label) } @for value in values { td class="number" { (duration(value)) } } }
                }
            }))
        }
    }
}
