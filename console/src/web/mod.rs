//! The pages.
use axum::extract::State;
use maud::{DOCTYPE, Markup, html};

use crate::state::App;

/// The first page: the databases.
pub async fn home(State(app): State<App>) -> Markup {
    html! {
        (DOCTYPE)
        html lang="en" {
            head { title { "fetchq" } }
            body {
                ul { @for database in app.databases.all() { li { (database.name) " " (database.label) } } }
            }
        }
    }
}
