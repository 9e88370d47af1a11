//! Actions on workers and schedules.
use maud::html;

use super::{Failure, Fields, Outcome, Question, affected, documents, was};
use crate::calls::{self, Schedule};
use crate::row;
use crate::web::context::Context;

row! {
    /// A subject that was made.
    struct Made {
        subject: String,
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
            call: format!("select fetchq.{what}('{}')", name.replace('\'', "''")),
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

/// Pushes the document of a schedule now, beside its ticks.
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
                p { "A document with the payload of the schedule is added to queue " strong { (schedule.queue) } ". Its ticks stay as they are." }
                @if !context.app.hide_payloads { pre tabindex="0" { (schedule.payload.as_deref().unwrap_or("{}")) } }
            },
            label: "Run it now".to_owned(),
            call: "select fetchq.doc_append(queue, payload, version => version, priority => priority, headers => headers) from fetchq.schedule_list()".to_owned(),
        }));
    }
    let sql = "select fetchq.doc_append(s.queue::text, s.payload, version => s.version, priority => s.priority, headers => s.headers)::text as subject
         from fetchq.schedule_list() s where s.name = $1";
    Ok(
        match context.database().first::<Made>(sql, &[&name]).await? {
            Some(made) => Outcome::Done(format!(
                "Schedule {name} has added the document {}.",
                made.subject
            )),
            None => Outcome::Nothing(format!("There is no schedule {name} any longer.")),
        },
    )
}
