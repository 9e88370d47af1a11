//! The pages.
pub mod actions;
pub mod charts;
pub mod context;
pub mod dead_letters;
pub mod document;
pub mod documents;
pub mod filter;
pub mod format;
mod forms;
pub mod history;
pub mod layout;
pub mod live;
pub mod maintenance;
pub mod overview;
mod part;
pub mod plain;
pub mod problem;
pub mod queue;
pub mod schedules;
pub mod settings;
mod spark;
pub mod workers;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{Redirect, Response};

use self::context::encode;
use self::plain::plain;
use self::problem::Problem;
use crate::state::App;

/// `trace` reads every queue. With more queues than that, a page calls it only if it is asked to.
const MAX_QUEUES: usize = 500;

/// What a page answers: itself, or the page about an error.
pub type Page = Result<Response, Box<Problem>>;

/// `GET /`: the first database.
pub async fn home(State(app): State<App>) -> Redirect {
    Redirect::to(&format!("/db/{}", encode(&app.databases.first().name)))
}

/// Answers every address that there is not.
pub async fn nothing() -> Response {
    plain(
        StatusCode::NOT_FOUND,
        "No such page",
        "The console has no page of this address.",
    )
}
