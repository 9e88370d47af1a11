//! What maintenance does, and what it depends on.
use axum::response::IntoResponse;
use fetchq_connect::DbError;
use maud::{Markup, html};

use super::context::Context;
use super::format::{ago, count};
use super::layout::{self, Column::Number, Column::Text, Section, source};
use super::{Page, problem};
use crate::calls::{self, ReadyStats, Step};
use crate::poller::Snapshot;

/// `GET /db/{db}/maintenance`
pub async fn maintenance(context: Context) -> Page {
    let snapshot = context.snapshot().await?;
    let database = context.database();
    let steps = database.rows::<Step>(calls::PROGRESS, &[]).await;
    let floors = database.first::<ReadyStats>(calls::READY_STATS, &[]).await;
    let info = &snapshot.info;
    let yes = |value: Option<bool>| if value == Some(true) { "yes" } else { "no" };
    let body = html! {
        h1 { "Maintenance" }
        section aria-labelledby="status-title" {
            h2 id="status-title" { "All parts" }
            div data-region="status" { (status(&snapshot)) }
            (source("select * from fetchq.status()"))
        }
        section aria-labelledby="progress-title" {
            h2 id="progress-title" { "What runs now" }
            (progress(&context, steps))
            (source("select * from fetchq.maintenance_progress()"))
        }
        section aria-labelledby="floors-title" {
            h2 id="floors-title" { "Ready floors" }
            (ready(&context, floors))
            (source("select * from fetchq.ready_stats()"))
        }
        section aria-labelledby="info-title" {
            h2 id="info-title" { "Installation" }
            dl class="facts-list" {
                div { dt { "Extension" } dd { (info.extension_version.as_deref().unwrap_or("–")) } }
                div { dt { "Library" } dd { (info.library_version.as_deref().unwrap_or("–")) } }
                div { dt { "Console" } dd { (env!("CARGO_PKG_VERSION")) } }
                div { dt { "Preloaded" } dd { (yes(info.is_preloaded)) } }
                div { dt { "Background worker" } dd { (yes(info.has_background_worker)) } }
                div { dt { "Shared memory" } dd { (yes(info.has_shared_memory)) } }
                div { dt { "Standby" } dd { (yes(Some(info.is_standby))) } }
                div { dt { "Role of the console" } dd { (info.role) } }
                div { dt { "Last read of the console" } dd { (format!("{:.0} ms", snapshot.took.as_secs_f64() * 1000.0)) } }
            }
            (source("select * from fetchq.info()"))
        }
    };
    let live = context.address("/live?view=maintenance");
    Ok(layout::page(
        &context,
        "Maintenance",
        Section::Maintenance,
        Some(&live),
        &body,
    )
    .into_response())
}

/// All parts of fetchq with their states.
pub fn status(snapshot: &Snapshot) -> Markup {
    html! {
        div class="stack" { (layout::table("the parts", &[Text("Part"), Text("State"), Text("Numbers"), Text("What to do")], &html! {
            @for component in &snapshot.status {
                tr class=[component.hint.is_some().then_some("bad-row")] {
                    th scope="row" { (component.component) }
                    td { (component.state.as_deref().unwrap_or("–")) }
                    td { (component.detail.as_deref().unwrap_or_default()) }
                    td { (component.hint.as_deref().unwrap_or_default()) }
                }
            }
        })) }
    }
}

fn progress(context: &Context, steps: Result<Vec<Step>, DbError>) -> Markup {
    let steps = match steps {
        Ok(steps) => steps,
        Err(error) => return problem::inline(context, &error),
    };
    html! {
        @if steps.is_empty() { p class="muted" { "No maintenance ran when this page was loaded." } }
        @else {
            (layout::table("what runs", &[Number("Process"), Text("Service"), Text("Queue"), Text("Since"), Number("Rows")], &html! {
                @for step in &steps {
                    tr {
                        td class="number" { (step.pid.map_or("–".to_owned(), |pid| pid.to_string())) }
                        td { (step.service.as_deref().unwrap_or("–")) }
                        td { (step.queue.as_deref().unwrap_or("–")) }
                        td { (ago(step.since)) }
                        td class="number" { (count(step.done)) }
                    }
                }
            }))
        }
    }
}

fn ready(context: &Context, stats: Result<Option<ReadyStats>, DbError>) -> Markup {
    let stats = match stats {
        Ok(Some(stats)) => stats,
        Ok(None) => return html! { p class="muted" { "None." } },
        Err(error) => return problem::inline(context, &error),
    };
    html! {
        @if stats.floor_misses.is_some_and(|misses| misses > 0) {
            p class="notice bad" { "A floor has hidden documents. That is a defect of fetchq; please report it." }
        }
        dl class="facts-list" {
            div { dt { "Slots used" } dd { (count(stats.slots_used.map(i64::from))) " of " (count(stats.slots.map(i64::from))) } }
            div { dt { "Polls answered from memory" } dd { (count(stats.polls_answered)) } }
            div { dt { "Advances" } dd { (count(stats.advances)) } }
            div { dt { "Advances discarded" } dd { (count(stats.advances_discarded)) } }
            div { dt { "Full scans" } dd { (count(stats.full_scans)) } }
            div { dt { "Floor misses" } dd { (count(stats.floor_misses)) } }
        }
    }
}
