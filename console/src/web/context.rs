//! What a handler of a page knows about its request.
use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{FromRequestParts, Path};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use super::plain::plain;
use crate::db::Database;
use crate::poller::Live;
use crate::security::Session;
use crate::state::App;

/// The database of the address, and the person.
#[derive(Clone)]
pub struct Context {
    pub app: App,
    pub session: Session,
    index: usize,
}

impl FromRequestParts<App> for Context {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Response> {
        let Ok(Path(path)) = Path::<HashMap<String, String>>::from_request_parts(parts, app).await
        else {
            return Err(StatusCode::BAD_REQUEST.into_response());
        };
        let Some(session) = parts.extensions.get::<Session>().cloned() else {
            return Err(StatusCode::INTERNAL_SERVER_ERROR.into_response());
        };
        let name = path.get("db").map(String::as_str).unwrap_or_default();
        let Some(index) = app.databases.position(name) else {
            let text = "The console is not connected to a database of that name.";
            return Err(plain(StatusCode::NOT_FOUND, "No such database", text));
        };
        Ok(Self {
            app: app.clone(),
            session,
            index,
        })
    }
}

impl Context {
    /// The database of the address.
    pub fn database(&self) -> &Database {
        // The index comes from the same list, which is never empty.
        self.app
            .databases
            .all()
            .get(self.index)
            .unwrap_or_else(|| self.app.databases.first())
    }

    /// The numbers that the poller keeps for this database.
    pub fn live(&self) -> Arc<Live> {
        self.app.live.get(self.index).cloned().unwrap_or_default()
    }

    /// The address of a page of this database.
    pub fn address(&self, page: &str) -> String {
        format!("/db/{}{page}", encode(&self.database().name))
    }

    /// The address of a page of a queue.
    pub fn queue_address(&self, queue: &str, page: &str) -> String {
        self.address(&format!("/queues/{}{page}", encode(queue)))
    }

    /// The address of the page of a document.
    pub fn document_address(&self, queue: &str, subject: &str) -> String {
        self.queue_address(queue, &format!("/document?subject={}", encode(subject)))
    }
}

/// All but the characters that mean themselves everywhere in an address.
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// Escapes a text for a part of a path or a query.
pub fn encode(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}
