//! Actions on workers and schedules.
use maud::html;

use super::outcome::{Failure, Fields, Outcome, Question, affected, documents, was};
use crate::calls::{self, Schedule};
use crate::db::row;
use crate::web::context::Context;
use crate::web::format::literal;

row! {
    /// The answer of `schedule_tick`.
    struct Pushed {
        subject: Option<String>,
        was_created: Option<bool>,
    }
}

pub async fn worker(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
    let name = fields.needed("name")?;
    let is_stop = match what {
        "worker_stop" => true,
        "worker_release" => false,
        other => return Err(Failure::Form(format!("There is no action “{other}”."))),
    };
    if !fields.is_confirmed() {
        let (title, text, label) = if is_stop {
            (
                "Stop this worker?",
                "is asked to stop after its current documents.",
                "Ask it to stop",
            )
        } else {
            (
                "Release the documents of this worker?",
                "loses its leases, and its documents can be picked again at once. Its work on them cannot be settled.",
                "Release its documents",
            )
        };
        return Ok(Outcome::Ask(Question {
            title: title.to_owned(),
            text: html! { p { "Worker " strong { (name) } " " (text) } },
            label: label.to_owned(),
            call: format!("select fetchq.{what}({})", literal(name)),
        }));
    }
    Ok(if is_stop {
        was(context, "select fetchq.worker_stop($1) as was", &[&name]).await?;
        Outcome::Done(format!("Worker {name} was asked to stop."))
    } else {
        let number = affected(
            context,
            "select fetchq.worker_release($1) as affected",
            &[&name],
        )
        .await?;
        Outcome::Done(format!("Worker {name} gave back {}.", documents(number)))
    })
}

pub async fn schedule(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
    let name = fields.needed("name")?;
    match what {
        "schedule_pause" => Ok(
            if was(context, "select fetchq.schedule_pause($1) as was", &[&name]).await? {
                Outcome::Done(format!("Schedule {name} is paused."))
            } else {
                Outcome::Nothing(format!("Schedule {name} was paused already."))
            },
        ),
        "schedule_resume" => {
            let sql = "select was_resumed as was from fetchq.schedule_resume($1)";
            Ok(if was(context, sql, &[&name]).await? {
                Outcome::Done(format!("Schedule {name} goes on with its next tick."))
            } else {
                Outcome::Nothing(format!("Schedule {name} was not paused."))
            })
        }
        "schedule_now" => run_now(context, fields, name).await,
        other => Err(Failure::Form(format!("There is no action “{other}”."))),
    }
}

/// Pushes the document of an extra tick now.
async fn run_now(context: &Context, fields: &Fields, name: &str) -> Result<Outcome, Failure> {
    if !fields.is_confirmed() {
        let schedules = context
            .database()
            .rows::<Schedule>(calls::SCHEDULES, &[])
            .await?;
        let Some(schedule) = schedules.into_iter().find(|schedule| schedule.name == name) else {
            return Ok(Outcome::Nothing(format!(
                "There is no schedule {name} any longer."
            )));
        };
        return Ok(Outcome::Ask(Question {
            title: format!("Run schedule {name} now?"),
            text: html! {
                p { "The document of an extra tick is added to queue " strong { (schedule.queue) } ". The other ticks stay as they are." }
                @if !context.app.hide_payloads { pre tabindex="0" { (schedule.payload.as_deref().unwrap_or("{}")) } }
            },
            label: "Run it now".to_owned(),
            call: format!("select * from fetchq.schedule_tick({})", literal(name)),
        }));
    }
    let sql = "select subject, was_created from fetchq.schedule_tick($1)";
    let pushed = context.database().first::<Pushed>(sql, &[&name]).await?;
    Ok(match pushed {
        Some(Pushed {
            subject: Some(subject),
            was_created: Some(true),
        }) => Outcome::Done(format!("Schedule {name} has added the document {subject}.")),
        _ => Outcome::Nothing(format!(
            "Schedule {name} has added no document: there is one of this second already."
        )),
    })
}
