//! Pages without the frame, for requests that are refused before they reach a database.
use std::time::Duration;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, html};

use crate::assets;

/// A page that says why.
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
