//! Schedules: their next ticks, and the preview of an expression.
use axum::extract::Query;
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde::Deserialize;

use super::context::{Context, encode};
use super::format::{ago, count, literal, time};
use super::layout::{self, Column::Number, Column::Text, Section, source};
use super::{Page, forms, problem};
use crate::calls::{self, Schedule, Tick};

const ROWS: usize = 500;

const EXAMPLE: &str = "30 2 * * *";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Choice {
    expression: String,
    timezone: String,
}

/// `GET /db/{db}/schedules`
pub async fn schedules(context: Context, Query(mut choice): Query<Choice>) -> Page {
    if choice.timezone.trim().is_empty() {
        choice.timezone = "UTC".to_owned();
    }
    let found = context
        .database()
        .rows::<Schedule>(calls::SCHEDULES, &[])
        .await;
    let found = found.map_err(|error| context.problem(error))?;
    let preview = preview(&context, &choice).await;
    let shown = Some(choice.expression.trim()).filter(|expression| !expression.is_empty());
    let shown = shown.unwrap_or(EXAMPLE);
    let body = html! {
        h1 { "Schedules" }
        section aria-labelledby="list-title" {
            h2 id="list-title" { "All schedules" }
            (table(&context, &found))
            (source("select * from fetchq.schedule_list()"))
        }
        section aria-labelledby="preview-title" id="preview" {
            h2 id="preview-title" { "Preview" }
            form class="fields" method="get" action=(context.address("/schedules#preview")) {
                div class="field" {
                    label for="expression" { "Cron expression or interval" }
                    input id="expression" name="expression" type="text" value=(choice.expression) placeholder=(EXAMPLE) required autocomplete="off";
                }
                div class="field" {
                    label for="timezone" { "Time zone" }
                    input id="timezone" name="timezone" type="text" value=(choice.timezone) autocomplete="off";
                }
                button { "Show the next ticks" }
            }
            (preview)
            (source(&format!("select * from fetchq.schedule_preview({}, {})", literal(shown), literal(&choice.timezone))))
        }
    };
    Ok(layout::page(&context, "Schedules", Section::Schedules, None, &body).into_response())
}

async fn preview(context: &Context, choice: &Choice) -> Markup {
    if choice.expression.trim().is_empty() {
        return html! {};
    }
    match context
        .database()
        .rows::<Tick>(calls::PREVIEW, &[&choice.expression, &choice.timezone])
        .await
    {
        Err(error) => problem::inline(context, &error),
        Ok(ticks) if ticks.is_empty() => {
            html! { p class="notice" { "The expression has no tick." } }
        }
        Ok(ticks) => html! {
            ol class="story" {
                @for tick in &ticks { li { (time(tick.tick)) " " (tick.local_time.as_deref().unwrap_or_default()) } }
            }
        },
    }
}

fn table(context: &Context, found: &[Schedule]) -> Markup {
    let mut columns = vec![
        Text("Name"),
        Text("Queue"),
        Text("Schedule"),
        Text("State"),
        Text("Next tick"),
        Text("Last tick"),
        Number("Ticks"),
        Text("Last error"),
    ];
    columns.extend(context.app.allow_actions.then_some(Text("Actions")));
    html! {
        @if found.is_empty() {
            p class="notice" { "There is no schedule of a queue that the role may read. One is made with " code { "fetchq.schedule_create()" } "." }
        } @else {
            (layout::table("the schedules", &columns, &html! {
                @for schedule in found.iter().take(ROWS) { (line(context, schedule)) }
            }))
            @if found.len() > ROWS { p class="muted" { "Only the first " (ROWS) " schedules are shown." } }
        }
    }
}

fn line(context: &Context, schedule: &Schedule) -> Markup {
    let state = schedule.state.as_deref().unwrap_or("–");
    let (expression, zone) = (
        schedule.schedule.as_deref().unwrap_or_default(),
        schedule.timezone.as_deref().unwrap_or("UTC"),
    );
    let preview = context.address(&format!(
        "/schedules?expression={}&timezone={}#preview",
        encode(expression),
        encode(zone)
    ));
    let back = context.address("/schedules");
    let fields = |what: &'static str| [("do", what), ("name", schedule.name.as_str())];
    html! {
        tr {
            th scope="row" { (schedule.name) }
            td class="subject" { a href=(context.queue_address(&schedule.queue, "")) { (schedule.queue) } }
            td {
                a class="nowrap" href=(preview) title="Show the next ticks" { code { (expression) } } " "
                span class="muted" { (zone) @if let Some(catch_up) = &schedule.catch_up { ", catch up " (catch_up) } }
            }
            td { span class=(format!("tag {state}")) { (state) } }
            td class="nowrap" { (ago(schedule.next_tick)) }
            td class="nowrap" { (ago(schedule.last_tick)) }
            td class="number" { (count(schedule.ticks)) }
            td class="error" { (schedule.last_error.as_deref().unwrap_or("–")) }
            @if context.app.allow_actions {
                td class="nowrap" {
                    @if state == "paused" { (forms::button(context, "Resume", "small", &back, &fields("schedule_resume"))) }
                    @else if state != "ended" { (forms::button(context, "Pause", "small", &back, &fields("schedule_pause"))) }
                    (forms::button(context, "Run now…", "small", &back, &fields("schedule_now")))
                }
            }
        }
    }
}
