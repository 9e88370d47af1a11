//! Errors as pages: what is wrong, and what to do.
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use fetchq_connect::{DbError, DbErrorKind};
use maud::{DOCTYPE, Markup, html};

use super::context::Context;
use super::layout::{self, Section};
use crate::assets;

/// A page about an error, with the frame of all pages.
pub struct Problem {
    context: Context,
    status: StatusCode,
    title: &'static str,
    text: String,
    hint: Option<String>,
    code: Option<String>,
}

impl Problem {
    /// What a failed call means.
    pub fn from_error(context: Context, error: DbError) -> Self {
        let (status, title) = match error.kind {
            DbErrorKind::Unreachable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The database cannot be reached",
            ),
            DbErrorKind::NoExtension => (
                StatusCode::SERVICE_UNAVAILABLE,
                "There is no extension fetchq",
            ),
            DbErrorKind::OldExtension => (
                StatusCode::SERVICE_UNAVAILABLE,
                "The extension fetchq is too old",
            ),
            DbErrorKind::Forbidden => (
                StatusCode::FORBIDDEN,
                "The role of the console lacks a right",
            ),
            DbErrorKind::Missing => (StatusCode::NOT_FOUND, "There is nothing of that name"),
            DbErrorKind::Refused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "The database refused the call",
            ),
        };
        let hint = error.hint.clone().or_else(|| hint(&context, &error));
        Self {
            context,
            status,
            title,
            text: error.message,
            hint,
            code: error.code,
        }
    }

    /// A page about something that is not an error of the database.
    pub fn new(
        context: &Context,
        status: StatusCode,
        title: &'static str,
        text: &str,
    ) -> Box<Self> {
        Box::new(Self {
            context: context.clone(),
            status,
            title,
            text: text.to_owned(),
            hint: None,
            code: None,
        })
    }
}

/// What to do about errors whose hint PostgreSQL leaves out.
fn hint(context: &Context, error: &DbError) -> Option<String> {
    let name = &context.database().name;
    match error.kind {
        DbErrorKind::Unreachable => Some(format!(
            "Check that the server runs, and the connection string of the console ({}). \
             The console tries again by itself.",
            context.database().label
        )),
        DbErrorKind::NoExtension => {
            Some(format!("A superuser can run in database {name}: create extension fetchq"))
        }
        DbErrorKind::OldExtension => Some(
            "The console needs fetchq 5. Install its files, then run: alter extension fetchq update".to_owned(),
        ),
        DbErrorKind::Forbidden if error.message.contains("schema") => Some(format!(
            "The owner of the extension can run: grant usage on schema fetchq, fetchq_data to {}",
            context.database().user
        )),
        _ => None,
    }
}

impl IntoResponse for Box<Problem> {
    fn into_response(self) -> Response {
        let body = html! {
            h1 { (self.title) }
            (notice(&self.text, self.hint.as_deref(), self.code.as_deref()))
        };
        (
            self.status,
            layout::page(&self.context, self.title, Section::None, None, &body),
        )
            .into_response()
    }
}

/// An error inside a page.
pub fn notice(text: &str, hint: Option<&str>, code: Option<&str>) -> Markup {
    html! {
        div class="notice bad" role="alert" {
            p { (text) @if let Some(code) = code { " " span class="muted" { "(" (code) ")" } } }
            @if let Some(hint) = hint { p { strong { "What to do: " } (hint) } }
        }
    }
}

/// An error of a call inside a page, for a part that the role may not see.
pub fn inline(context: &Context, error: &DbError) -> Markup {
    let hint = error.hint.clone().or_else(|| hint(context, error));
    notice(&error.message, hint.as_deref(), error.code.as_deref())
}

/// A page without the frame, for requests that are refused before they reach a database.
pub fn plain(status: StatusCode, title: &str, text: &str) -> Response {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · fetchq" }
                link rel="stylesheet" href=(assets::STYLE.address());
            }
            body { main id="main" { h1 { (title) } p { (text) } p { a href="/" { "To the console" } } } }
        }
    };
    (status, page).into_response()
}

/// The page for somebody who has to wait.
pub fn too_many(title: &str, text: &str, pause: Duration) -> Response {
    // Half a second is no reason to come back too early.
    let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
    let text = format!("{text} Try again in {seconds} s.");
    let mut response = plain(StatusCode::TOO_MANY_REQUESTS, title, &text);
    response
        .headers_mut()
        .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    response
}
