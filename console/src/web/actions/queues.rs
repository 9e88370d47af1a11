//! Actions on a queue, and on all of its documents that match a filter.
use maud::html;
use serde_json::Value;

use super::document::due;
use super::outcome::{Failure, Fields, Outcome, Question, affected, documents, was};
use crate::web::context::Context;
use crate::web::format::literal;
use crate::web::settings;

pub async fn pause(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
    let queue = fields.needed("queue")?;
    let (sql, done, nothing) = if what == "queue_pause" {
        (
            "select fetchq.queue_pause($1) as was",
            "is paused",
            "was paused already",
        )
    } else {
        (
            "select fetchq.queue_resume($1) as was",
            "goes on",
            "was not paused",
        )
    };
    Ok(if was(context, sql, &[&queue]).await? {
        Outcome::Done(format!("Queue {queue} {done}."))
    } else {
        Outcome::Nothing(format!("Queue {queue} {nothing}: somebody else did it."))
    })
}

pub async fn configure(context: &Context, fields: &Fields) -> Result<Outcome, Failure> {
    let queue = fields.needed("queue")?;
    let changed = settings::changed(|name| fields.0.get(name).cloned());
    if changed.is_empty() {
        return Ok(Outcome::Nothing("No setting was changed.".to_owned()));
    }
    let names: Vec<String> = changed.keys().cloned().collect();
    let json = Value::Object(changed);
    let sql = "select fetchq.queue_configure($1, $2) is not null as was";
    was(context, sql, &[&queue, &json]).await?;
    Ok(Outcome::Done(format!(
        "Changed in queue {queue}: {}.",
        names.join(", ")
    )))
}

/// Documents that one redrive brings back.
const REDRIVE: i32 = 1000;

pub async fn redrive(context: &Context, fields: &Fields) -> Result<Outcome, Failure> {
    let queue = fields.needed("queue")?;
    let dry_run = !fields.is_confirmed();
    let sql = "select fetchq.queue_redrive($1, max_docs => $2, dry_run => $3) as affected";
    let number = affected(context, sql, &[&queue, &REDRIVE, &dry_run]).await?;
    if dry_run && number > 0 {
        return Ok(Outcome::Ask(Question {
            title: format!("Redrive {}?", documents(number)),
            text: html! {
                p {
                    strong { (documents(number)) } " that failed would come back, the oldest first: killed documents of queue " strong { (queue) }
                    ", its dead letters in other queues, and dead letters of other queues in this one. They are due at once, with all their attempts."
                    @if number >= i64::from(REDRIVE) { " That is the limit of this action; there may be more." }
                }
            },
            label: format!("Redrive {}", documents(number)),
            call: format!(
                "select fetchq.queue_redrive({}, max_docs => {REDRIVE})",
                literal(queue)
            ),
        }));
    }
    Ok(if number == 0 {
        Outcome::Nothing(
            "No document came back: there is none, or its subject exists again.".to_owned(),
        )
    } else {
        Outcome::Done(format!("{} came back.", documents(number)))
    })
}

pub async fn bulk(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
    let (queue, text) = (fields.needed("queue")?, fields.needed("filter")?);
    let filter: Value = serde_json::from_str(text)
        .map_err(|error| Failure::Form(format!("The filter is not JSON: {error}.")))?;
    if context.app.hide_payloads && filter.get("payload").is_some() {
        return Err(Failure::Form(
            "Payloads are hidden, so they cannot be searched.".to_owned(),
        ));
    }
    // A filter without a condition means every document, and the page has said so.
    let is_empty = filter.as_object().is_some_and(serde_json::Map::is_empty);
    let needs_all = is_empty && what != "docs_retry" && what != "docs_set_priority";
    let filter = if needs_all {
        serde_json::json!({"all": true})
    } else {
        filter
    };
    let max_docs = fields.number("max_docs")?;
    let dry_run = !fields.is_confirmed();
    let (named, conditions) = (literal(queue), literal(&filter.to_string()));
    let end = "filter => $2, max_docs => $3, dry_run => $4) as affected";
    let (number, todo, verb, call) = match what {
        "docs_move" => {
            let target = fields.needed("target")?;
            let sql = format!("select fetchq.docs_move($1, $5, {end}");
            let number = affected(
                context,
                &sql,
                &[&queue, &filter, &max_docs, &dry_run, &target],
            )
            .await?;
            (
                number,
                "Move",
                format!("moved to {target}"),
                format!(
                    "docs_move({named}, {}, {conditions}, {max_docs})",
                    literal(target)
                ),
            )
        }
        "docs_set_priority" => {
            let priority = fields.number("priority")?;
            let sql = format!("select fetchq.docs_set_priority($1, $5, {end}");
            let number = affected(
                context,
                &sql,
                &[&queue, &filter, &max_docs, &dry_run, &priority],
            )
            .await?;
            let call = format!("docs_set_priority({named}, {priority}, {conditions}, {max_docs})");
            let todo = "Set the priority of";
            (number, todo, format!("given priority {priority}"), call)
        }
        "docs_set_due" => {
            let time = fields.needed("time")?.trim();
            let sql = format!("select fetchq.docs_set_due($1, {}, {end}", due("$5", time));
            let number = affected(
                context,
                &sql,
                &[&queue, &filter, &max_docs, &dry_run, &time],
            )
            .await?;
            let quoted = literal(time);
            let call = format!(
                "docs_set_due({named}, {}, filter => {conditions}, max_docs => {max_docs})",
                due(&quoted, time)
            );
            let todo = "Set the time of";
            (number, todo, format!("given the time {time}"), call)
        }
        _ => {
            let (todo, verb) = match what {
                "docs_retry" => ("Retry", "retried"),
                "docs_kill" => ("Kill", "killed"),
                _ => ("Drop", "dropped"),
            };
            let sql = format!("select fetchq.{what}($1, {end}");
            let number = affected(context, &sql, &[&queue, &filter, &max_docs, &dry_run]).await?;
            (
                number,
                todo,
                verb.to_owned(),
                format!("{what}({named}, {conditions}, {max_docs})"),
            )
        }
    };
    if !dry_run {
        return Ok(if number == 0 {
            Outcome::Nothing(format!(
                "No document was {verb}: none matches any more, or they are locked."
            ))
        } else {
            Outcome::Done(format!(
                "{} {} {verb}.",
                documents(number),
                if number == 1 { "was" } else { "were" }
            ))
        });
    }
    if number == 0 {
        return Ok(Outcome::Nothing(format!(
            "No document would be {verb}: none of the right status matches."
        )));
    }
    let is_cut = number >= i64::from(max_docs);
    Ok(Outcome::Ask(Question {
        title: format!("{todo} {}?", documents(number)),
        text: html! {
            p {
                strong { (documents(number)) } " of queue " strong { (queue) } " would be " (verb) ". The filter is " code { (filter) } "."
                @if is_cut { " That is the limit of this action; there may be more." }
            }
        },
        label: format!("{todo} {}", documents(number)),
        call: format!("select fetchq.{call}"),
    }))
}
