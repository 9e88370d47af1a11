//! What changes something: each action is one call of the SQL API. What cannot be undone says what
//! it will do first, and asks.
mod document;
mod others;
mod outcome;
mod queues;

use std::collections::HashMap;

use axum::extract::Form;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Redirect, Response};
use fetchq_connect::DbErrorKind;
use maud::html;
use tracing::info;

use self::outcome::{Failure, Fields, Outcome, Question};
use super::Page;
use super::context::Context;
use super::layout::{self, Section, source};
use super::problem::Problem;
use crate::security::Flash;

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
        what @ ("queue_pause" | "queue_resume") => queues::pause(context, fields, what).await,
        "queue_configure" => queues::configure(context, fields).await,
        "queue_redrive" => queues::redrive(context, fields).await,
        what @ ("docs_retry" | "docs_kill" | "docs_drop" | "docs_move" | "docs_set_priority"
        | "docs_set_due") => queues::bulk(context, fields, what).await,
        what if what.starts_with("doc_") => document::document(context, fields, what).await,
        what if what.starts_with("worker_") => others::worker(context, fields, what).await,
        what if what.starts_with("schedule_") => others::schedule(context, fields, what).await,
        other => Err(Failure::Form(format!("There is no action “{other}”."))),
    }
}
