//! What failed for good: killed documents, and those that moved to dead-letter queues.
use std::collections::BTreeMap;

use axum::response::IntoResponse;
use maud::html;

use super::context::Context;
use super::format::count;
use super::layout::{self, Column::Number, Column::Text, Section, source};
use super::{Page, forms};
use crate::calls::{self, DeadLetters, Settings};

/// As many queues are shown, those with the most dead letters first.
const ROWS: usize = 100;

/// A queue with documents that failed.
#[derive(Default)]
struct Failed {
    killed: i64,
    moved: i64,
    target: Option<String>,
}

/// `GET /db/{db}/dead-letters`
pub async fn dead_letters(context: Context) -> Page {
    let snapshot = context.snapshot().await?;
    let database = context.database();
    let moved = database.rows::<DeadLetters>(calls::DEAD_LETTERS, &[]).await;
    let mut queues: BTreeMap<String, Failed> = BTreeMap::new();
    for row in moved.map_err(|error| context.problem(error))? {
        queues.entry(row.queue).or_default().moved = row.value;
    }
    for stat in snapshot
        .queues
        .iter()
        .filter(|stat| stat.killed.is_some_and(|killed| killed > 0))
    {
        queues.entry(stat.queue.clone()).or_default().killed = stat.killed.unwrap_or(0);
    }
    let mut rows: Vec<(String, Failed)> = queues.into_iter().collect();
    rows.sort_by_key(|(_, failed)| std::cmp::Reverse(failed.killed.max(failed.moved)));
    let total = rows.len();
    rows.truncate(ROWS);
    for (queue, failed) in &mut rows {
        let found = database
            .first::<Settings>(calls::QUEUE_SETTINGS, &[queue])
            .await;
        let settings = found.ok().flatten().map(|row| row.settings);
        failed.target =
            settings.and_then(|all| all.get("dead_letter")?.as_str().map(str::to_owned));
    }
    let back = context.address("/dead-letters");
    let mut columns = vec![
        Text("Queue"),
        Number("Killed, in the queue"),
        Number("Moved, in total"),
        Text("Dead-letter queue"),
        Number("Waiting there"),
    ];
    columns.extend(context.app.allow_actions.then_some(Text("Actions")));
    let body = html! {
        h1 { "Dead letters" }
        p { "Documents that failed for good stay in their queue as killed, or move to the dead-letter queue that it names." }
        @if rows.is_empty() { p class="notice good" { "No queue has killed documents, and none has sent dead letters." } }
        @else {
            (layout::table("the dead letters", &columns, &html! {
                @for (queue, failed) in &rows {
                    @let there = failed.target.as_deref().and_then(|target| snapshot.queue(target));
                    tr {
                        th scope="row" { a href=(context.queue_address(queue, "")) { (queue) } }
                        td class="number" {
                            @if failed.killed > 0 { a href=(context.queue_address(queue, "/documents?status=killed")) { (count(Some(failed.killed))) } }
                            @else { "0" }
                        }
                        td class="number" { (count(Some(failed.moved))) }
                        td { @match &failed.target { Some(target) => a href=(context.queue_address(target, "/documents")) { (target) }, None => "–" } }
                        td class="number" { (count(there.and_then(|stat| Some(stat.ready? + stat.planned.unwrap_or(0) + stat.retrying.unwrap_or(0) + stat.blocked.unwrap_or(0))))) }
                        @if context.app.allow_actions {
                            td { (forms::button(&context, "Redrive…", "small", &back, &[("do", "queue_redrive"), ("queue", queue)])) }
                        }
                    }
                }
            }))
            @if total > ROWS { p class="muted" { "Only the " (ROWS) " queues with the most are shown, of " (total) "." } }
        }
        (source("select queue, killed from fetchq.queue_stats()"))
        (source("select queue, value from fetchq.metrics_live where metric = 'ded'"))
    };
    Ok(layout::page(&context, "Dead letters", Section::DeadLetters, None, &body).into_response())
}
