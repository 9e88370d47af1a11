//! What failed for good: killed documents, and those that moved to dead-letter queues.
use std::collections::BTreeMap;

use axum::response::IntoResponse;
use maud::html;

use super::context::Context;
use super::format::count;
use super::layout::{self, Column::Number, Column::Text, Section, source};
use super::{Page, forms};
use crate::calls::{self, DeadLetters};

/// As many queues are shown, those with the most dead letters first.
const ROWS: usize = 100;

/// A queue with documents that failed.
#[derive(Default)]
struct Failed {
    killed: i64,
    moved: i64,
    /// Its dead-letter queue, whether that exists, and how many documents it has.
    target: Option<(String, bool)>,
    waiting: Option<i64>,
}

/// `GET /db/{db}/dead-letters`
pub async fn dead_letters(context: Context) -> Page {
    let snapshot = context.snapshot().await?;
    let database = context.database();
    let found = database.rows::<DeadLetters>(calls::DEAD_LETTERS, &[]).await;
    let mut queues: BTreeMap<String, Failed> = BTreeMap::new();
    for row in found.map_err(|error| context.problem(error))? {
        let does_exist = row.does_exist != Some(false);
        let failed = Failed {
            killed: 0,
            moved: row.moved.unwrap_or(0),
            target: row.dead_letter_queue.map(|target| (target, does_exist)),
            waiting: row.documents,
        };
        queues.insert(row.queue, failed);
    }
    for stat in &snapshot.queues {
        let killed = stat.killed.unwrap_or(0);
        if killed > 0 {
            queues.entry(stat.queue.clone()).or_default().killed = killed;
        }
    }
    queues.retain(|_, failed| {
        let is_missing = failed
            .target
            .as_ref()
            .is_some_and(|(_, does_exist)| !does_exist);
        failed.killed > 0 || failed.moved > 0 || failed.waiting.is_some_and(|n| n > 0) || is_missing
    });
    let mut rows: Vec<(String, Failed)> = queues.into_iter().collect();
    rows.sort_by_key(|(_, failed)| std::cmp::Reverse(failed.killed.max(failed.moved)));
    let total = rows.len();
    rows.truncate(ROWS);
    let back = context.address("/dead-letters");
    let mut columns = vec![
        Text("Queue"),
        Number("Killed, in the queue"),
        Number("Moved, in total"),
        Text("Dead-letter queue"),
        Number("Documents there"),
    ];
    columns.extend(context.app.allow_actions.then_some(Text("Actions")));
    let body = html! {
        h1 { "Dead letters" }
        p { "Documents that failed for good stay in their queue as killed, or move to the dead-letter queue that it names." }
        @if rows.is_empty() { p class="notice good" { "No queue has killed documents, and none has sent dead letters." } }
        @else {
            (layout::table("the dead letters", &columns, &html! {
                @for (queue, failed) in &rows {
                    tr {
                        th scope="row" { a href=(context.queue_address(queue, "")) { (queue) } }
                        td class="number" {
                            @if failed.killed > 0 { a href=(context.queue_address(queue, "/documents?status=killed")) { (count(Some(failed.killed))) } }
                            @else { "0" }
                        }
                        td class="number" { (count(Some(failed.moved))) }
                        td {
                            @match &failed.target {
                                Some((target, true)) => a href=(context.queue_address(target, "/documents")) { (target) },
                                Some((target, false)) => { (target) " " span class="tag failing" { "missing" } },
                                None => "–",
                            }
                        }
                        td class="number" { (count(failed.waiting)) }
                        @if context.app.allow_actions {
                            td { (forms::button(&context, "Redrive…", "small", &back, &[("do", "queue_redrive"), ("queue", queue)])) }
                        }
                    }
                }
            }))
            @if total > ROWS { p class="muted" { "Only the " (ROWS) " queues with the most are shown, of " (total) "." } }
        }
        (source("select queue, killed from fetchq.queue_stats()"))
        (source("select * from fetchq.dead_letters"))
    };
    Ok(layout::page(&context, "Dead letters", Section::DeadLetters, None, &body).into_response())
}
