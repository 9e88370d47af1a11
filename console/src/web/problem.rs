//! Errors as pages: what is wrong, and what to do.
use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use fetchq_connect::{DbError, DbErrorKind};
use maud::{Markup, html};

use super::context::Context;
use super::layout::{self, Section};
use crate::poller::Snapshot;

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
    fn from_error(context: Context, error: DbError) -> Self {
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

impl Context {
    /// The page that says what went wrong with a call.
    pub fn problem(&self, error: DbError) -> Box<Problem> {
        Box::new(Problem::from_error(self.clone(), error))
    }

    /// The numbers as of now.
    ///
    /// # Errors
    /// The page that says why there are none.
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>, Box<Problem>> {
        let snapshot = self.live().fresh().await;
        snapshot.map_err(|error| self.problem(error))
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
