//! What changes something: each action is one call of the SQL API. What cannot be undone says what
//! it will do first, and asks.
use std::collections::HashMap;

use axum::extract::Form;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use maud::{Markup, html};
use serde_json::Value;
use tokio_postgres::types::ToSql;
use tracing::info;

use super::Page;
use super::context::Context;
use super::filter::exactly;
use super::format::count;
use super::layout::{self, Section, source};
use super::problem::Problem;
use super::settings;
use crate::calls::Schedule;
use crate::db::{DbError, DbErrorKind};
use crate::row;
use crate::security::Flash;

row! {
    /// How many rows a call has changed.
    struct Affected {
        affected: i64,
    }
}

row! {
    /// Whether a call has changed something.
    struct Was {
        was: Option<bool>,
    }
}

row! {
    /// The answer of `doc_cancel`.
    struct Cancelled {
        was_cancelled: Option<bool>,
        status: Option<String>,
    }
}

row! {
    /// A subject that was made.
    struct Made {
        subject: String,
    }
}

/// The fields of a form.
struct Fields(HashMap<String, String>);

/// What an action came to: a message, or a question.
enum Outcome {
    Done(String),
    Nothing(String),
    Ask(Question),
}

struct Question {
    title: String,
    text: Markup,
    label: String,
    call: String,
}

/// Why an action was not done.
enum Failure {
    Form(String),
    Call(DbError),
}

impl From<DbError> for Failure {
    fn from(error: DbError) -> Self {
        Self::Call(error)
    }
}

impl Fields {
    fn get(&self, name: &str) -> &str {
        self.0.get(name).map(String::as_str).unwrap_or_default()
    }

    fn needed(&self, name: &str) -> Result<&str, Failure> {
        let value = self.get(name);
        if value.trim().is_empty() {
            Err(Failure::Form(format!("{name} is missing.")))
        } else {
            Ok(value)
        }
    }

    fn number(&self, name: &str) -> Result<i32, Failure> {
        let text = self.needed(name)?.trim();
        text.parse()
            .map_err(|_| Failure::Form(format!("{name} has to be a whole number, not “{text}”.")))
    }

    fn is_confirmed(&self) -> bool {
        self.get("confirm") == "yes"
    }
}

/// `POST /db/{db}/act`
pub async fn act(context: Context, Form(fields): Form<HashMap<String, String>>) -> Page {
    let fields = Fields(fields);
    if !context.app.allow_actions {
        let text = "The console is read-only. Start it with --allow-actions to change something.";
        return Err(Problem::new(
            &context,
            StatusCode::FORBIDDEN,
            "Actions are not allowed",
            text,
        ));
    }
    if !context
        .app
        .security
        .is_token(&context.session, fields.get("csrf"))
    {
        let text = "The page with this button is from before the console started, or from another browser. \
                    Go back, reload it, and try again.";
        return Err(Problem::new(
            &context,
            StatusCode::FORBIDDEN,
            "The form is stale",
            text,
        ));
    }
    let user = context.session.user.as_deref().unwrap_or("somebody");
    let outcome = run(&context, &fields).await;
    let what = (
        fields.get("do"),
        fields.get("queue"),
        fields.get("subject"),
        fields.get("name"),
    );
    let flash = match outcome {
        Ok(Outcome::Ask(question)) => return Ok(ask(&context, &fields, &question)),
        Ok(Outcome::Done(text)) => {
            info!("{user:?}: {what:?}: {text:?}");
            Flash {
                is_error: false,
                text,
            }
        }
        Ok(Outcome::Nothing(text)) | Err(Failure::Form(text)) => Flash {
            is_error: true,
            text,
        },
        Err(Failure::Call(error)) if error.kind == DbErrorKind::Unreachable => {
            return Err(context.problem(error));
        }
        Err(Failure::Call(error)) => {
            info!("{user:?}: {what:?} was refused: {:?}", error.message);
            let hint = error
                .hint
                .map(|hint| format!(" What to do: {hint}"))
                .unwrap_or_default();
            Flash {
                is_error: true,
                text: format!("{}.{hint}", error.message.trim_end_matches('.')),
            }
        }
    };
    context.live().refresh();
    let mut response = Redirect::to(&back(&context, fields.get("back"))).into_response();
    if let Ok(cookie) = HeaderValue::from_str(&context.app.security.flash_cookie(&flash)) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
    Ok(response)
}

/// Where to go after an action: a page of this database, and nowhere else.
fn back(context: &Context, wanted: &str) -> String {
    let home = context.address("");
    let is_ours = wanted
        .strip_prefix(&home)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '?']));
    if is_ours && !wanted.contains(['\r', '\n', '\\']) {
        wanted.to_owned()
    } else {
        home
    }
}

fn ask(context: &Context, fields: &Fields, question: &Question) -> Response {
    let mut hidden: Vec<(&String, &String)> = fields
        .0
        .iter()
        .filter(|(name, _)| *name != "confirm")
        .collect();
    hidden.sort();
    let body = html! {
        h1 { (question.title) }
        (question.text)
        (source(&question.call))
        form class="act block" method="post" action=(context.address("/act")) {
            @for (name, value) in hidden { input type="hidden" name=(name) value=(value); }
            input type="hidden" name="confirm" value="yes";
            button class="danger" { (question.label) }
            " "
            a href=(back(context, fields.get("back"))) { "Change nothing" }
        }
    };
    layout::page(context, &question.title, Section::None, None, &body).into_response()
}

async fn run(context: &Context, fields: &Fields) -> Result<Outcome, Failure> {
    match fields.get("do") {
        what @ ("queue_pause" | "queue_resume") => pause(context, fields, what).await,
        "queue_configure" => configure(context, fields).await,
        "queue_redrive" => redrive(context, fields).await,
        what @ ("docs_retry" | "docs_kill" | "docs_drop" | "docs_move" | "docs_set_priority") => {
            bulk(context, fields, what).await
        }
        what if what.starts_with("doc_") => document(context, fields, what).await,
        what if what.starts_with("worker_") => worker(context, fields, what).await,
        what if what.starts_with("schedule_") => schedule(context, fields, what).await,
        other => Err(Failure::Form(format!("There is no action “{other}”."))),
    }
}

async fn affected(
    context: &Context,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<i64, DbError> {
    Ok(context
        .database()
        .first::<Affected>(sql, params)
        .await?
        .map_or(0, |row| row.affected))
}

async fn was(
    context: &Context,
    sql: &str,
    params: &[&(dyn ToSql + Sync)],
) -> Result<bool, DbError> {
    Ok(context
        .database()
        .first::<Was>(sql, params)
        .await?
        .and_then(|row| row.was)
        .unwrap_or(false))
}

fn documents(number: i64) -> String {
    if number == 1 {
        "1 document".to_owned()
    } else {
        format!("{} documents", count(Some(number)))
    }
}

async fn pause(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
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

async fn configure(context: &Context, fields: &Fields) -> Result<Outcome, Failure> {
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

async fn redrive(context: &Context, fields: &Fields) -> Result<Outcome, Failure> {
    let queue = fields.needed("queue")?;
    if !fields.is_confirmed() {
        let snapshot = context.live().fresh().await?;
        let killed = snapshot
            .queue(queue)
            .and_then(|stat| stat.killed)
            .unwrap_or(0);
        return Ok(Outcome::Ask(Question {
            title: format!("Redrive queue {queue}?"),
            text: html! {
                p {
                    "Up to 1,000 documents that failed come back, the oldest first: killed documents of the queue (there are "
                    (count(Some(killed))) "), its dead letters in other queues, and dead letters of other queues in this one. "
                    "They are due at once, with all their attempts."
                }
            },
            label: "Redrive".to_owned(),
            call: format!("select fetchq.queue_redrive('{queue}', max_docs => 1000)"),
        }));
    }
    let number = affected(
        context,
        "select fetchq.queue_redrive($1, max_docs => 1000) as affected",
        &[&queue],
    )
    .await?;
    Ok(if number == 0 {
        Outcome::Nothing(
            "No document came back: there is none, or its subject exists again.".to_owned(),
        )
    } else {
        Outcome::Done(format!("{} came back.", documents(number)))
    })
}

async fn bulk(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
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
    let needs_all = is_empty && matches!(what, "docs_kill" | "docs_drop" | "docs_move");
    let filter = if needs_all {
        serde_json::json!({"all": true})
    } else {
        filter
    };
    let max_docs = fields.number("max_docs")?;
    let dry_run = !fields.is_confirmed();
    let end = "filter => $2, max_docs => $3, dry_run => $4) as affected";
    let (number, verb, call) = match what {
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
                format!("moved to {target}"),
                format!("docs_move('{queue}', '{target}', '{filter}', {max_docs})"),
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
            let call = format!("docs_set_priority('{queue}', {priority}, '{filter}', {max_docs})");
            (number, format!("given priority {priority}"), call)
        }
        _ => {
            let verb = match what {
                "docs_retry" => "retried",
                "docs_kill" => "killed",
                _ => "dropped",
            };
            let sql = format!("select fetchq.{what}($1, {end}");
            let number = affected(context, &sql, &[&queue, &filter, &max_docs, &dry_run]).await?;
            (
                number,
                verb.to_owned(),
                format!("{what}('{queue}', '{filter}', {max_docs})"),
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
        title: format!("{}: {verb}?", documents(number)),
        text: html! {
            p {
                strong { (documents(number)) } " of queue " strong { (queue) } " would be " (verb) ". The filter is " code { (filter) } "."
                @if is_cut { " That is the limit of this action; there may be more." }
            }
        },
        label: format!("Yes: {} {verb}", documents(number)),
        call: format!("select fetchq.{call}"),
    }))
}

async fn document(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
    let (queue, subject) = (fields.needed("queue")?, fields.needed("subject")?);
    let only = serde_json::json!({"subject": exactly(subject)});
    let nothing = || {
        Outcome::Nothing(format!(
            "Document {subject} is as it was: its status changed meanwhile."
        ))
    };
    let (number, done) = match what {
        "doc_retry" => {
            let sql = "select fetchq.docs_retry($1, $2, max_docs => 1) as affected";
            (
                affected(context, sql, &[&queue, &only]).await?,
                "is due now",
            )
        }
        "doc_revive" => {
            let sql = "select fetchq.doc_revive($1, $2) as affected";
            (
                affected(context, sql, &[&queue, &subject]).await?,
                "is planned again, with all its attempts",
            )
        }
        "doc_release" => {
            let sql = "select fetchq.doc_snooze($1, $2)::bigint as affected";
            (
                affected(context, sql, &[&queue, &subject]).await?,
                "was given back; the attempt does not count",
            )
        }
        "doc_priority" => {
            let priority = fields.number("priority")?;
            let sql = "select fetchq.docs_set_priority($1, $2, $3, max_docs => 1) as affected";
            (
                affected(context, sql, &[&queue, &priority, &only]).await?,
                "has the new priority",
            )
        }
        "doc_time" => return time(context, queue, subject, fields.needed("time")?).await,
        "doc_cancel" => return cancel(context, fields, queue, subject).await,
        other => return Err(Failure::Form(format!("There is no action “{other}”."))),
    };
    Ok(if number == 0 {
        nothing()
    } else {
        Outcome::Done(format!("Document {subject} {done}."))
    })
}

/// Gives a document another time. `doc_put` replaces payload and headers too, so it gets those that
/// the document has.
async fn time(
    context: &Context,
    queue: &str,
    subject: &str,
    text: &str,
) -> Result<Outcome, Failure> {
    let is_point = text
        .trim()
        .chars()
        .take(4)
        .filter(char::is_ascii_digit)
        .count()
        == 4
        && text.contains('-');
    let is_point = is_point || text.trim().eq_ignore_ascii_case("infinity");
    let due = if is_point {
        "next_iteration => $3::text::timestamptz"
    } else {
        "delay => $3::text::interval"
    };
    let sql = format!(
        "select fetchq.doc_put($1, $2, payload => d.payload, headers => d.headers, {due}, mode => 'debounce') = 'updated' as was
         from fetchq.doc_get($1, $2) d where not d.is_from_history and d.status in ('planned', 'pending')"
    );
    Ok(
        if was(context, &sql, &[&queue, &subject, &text.trim()]).await? {
            Outcome::Done(format!("Document {subject} has the new time."))
        } else {
            Outcome::Nothing(format!(
                "Document {subject} is as it was: its status changed meanwhile."
            ))
        },
    )
}

async fn cancel(
    context: &Context,
    fields: &Fields,
    queue: &str,
    subject: &str,
) -> Result<Outcome, Failure> {
    if !fields.is_confirmed() {
        return Ok(Outcome::Ask(Question {
            title: "Cancel this document?".to_owned(),
            text: html! {
                p { "Document " strong { (subject) } " of queue " strong { (queue) } " is killed. If a worker has it, that worker loses its lease." }
            },
            label: "Cancel the document".to_owned(),
            call: format!(
                "select * from fetchq.doc_cancel('{queue}', '{}')",
                subject.replace('\'', "''")
            ),
        }));
    }
    let sql = "select was_cancelled, status from fetchq.doc_cancel($1, $2)";
    let answer = context
        .database()
        .first::<Cancelled>(sql, &[&queue, &subject])
        .await?;
    let status = answer.as_ref().and_then(|answer| answer.status.clone());
    Ok(
        match (answer.and_then(|answer| answer.was_cancelled), status) {
            (Some(true), Some(status)) => Outcome::Done(format!(
                "Document {subject} was {status}, and is cancelled."
            )),
            (_, Some(status)) => Outcome::Nothing(format!(
                "Document {subject} is {status}: there is nothing to cancel."
            )),
            _ => Outcome::Nothing(format!("There is no document {subject} any longer.")),
        },
    )
}

async fn worker(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
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

async fn schedule(context: &Context, fields: &Fields, what: &str) -> Result<Outcome, Failure> {
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
            .rows::<Schedule>(crate::calls::SCHEDULES, &[])
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
