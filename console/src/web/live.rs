//! Server-sent events: the regions of a page, whenever the poller has new numbers.
use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::extract::Query;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use fetchq_connect::DbError;
use futures_util::stream::{self, Stream, StreamExt};
use maud::Markup;
use serde::Deserialize;
use tokio::sync::watch;

use super::context::Context;
use super::plain::too_many;
use super::{charts, maintenance, overview, queue};
use crate::limits::{Client, Place};
use crate::poller::{Latest, Snapshot, Viewer};

/// Which page listens.
#[derive(Debug, Clone, Deserialize)]
pub struct View {
    view: String,
    #[serde(default)]
    queue: String,
    #[serde(default)]
    q: String,
    #[serde(default)]
    sort: String,
    #[serde(default)]
    page: usize,
}

struct Listener {
    context: Context,
    view: View,
    receiver: watch::Receiver<Latest>,
    stopping: watch::Receiver<bool>,
    /// What was sent for each region, so that nothing is sent twice.
    sent: HashMap<&'static str, String>,
    is_first: bool,
    _viewer: Viewer,
    _place: Place<Client>,
}

/// When a page that was refused asks again.
const RETRY_AFTER: Duration = Duration::from_secs(10);

/// `GET /db/{db}/live`
pub async fn live(context: Context, Query(view): Query<View>) -> Response {
    let Some(place) = context.app.streams.take(context.session.client.clone()) else {
        let text = "Too many pages listen for you.";
        return too_many("Too many pages", text, RETRY_AFTER);
    };
    let (viewer, receiver) = context.live().open();
    let stopping = context.app.stopping.subscribe();
    let listener = Listener {
        context,
        view,
        receiver,
        stopping,
        sent: HashMap::new(),
        is_first: true,
        _viewer: viewer,
        _place: place,
    };
    let events = stream::unfold(listener, next).flat_map(stream::iter);
    Sse::new(with_type(events))
        .keep_alive(KeepAlive::default())
        .into_response()
}

fn with_type<S: Stream<Item = Event>>(events: S) -> impl Stream<Item = Result<Event, Infallible>> {
    events.map(Ok)
}

async fn next(mut listener: Listener) -> Option<(Vec<Event>, Listener)> {
    if !listener.is_first {
        tokio::select! {
            changed = listener.receiver.changed() => changed.ok()?,
            _ = listener.stopping.wait_for(|stopping| *stopping) => return None,
        }
    }
    listener.is_first = false;
    let latest = listener.receiver.borrow_and_update().clone();
    let mut events = Vec::new();
    match latest {
        Some(Ok(snapshot)) => {
            for (region, text) in listener.regions(&snapshot) {
                if listener.sent.get(region) != Some(&text) {
                    events.push(Event::default().event(region).data(&text));
                    listener.sent.insert(region, text);
                }
            }
            if listener.view.view == "queue" {
                let point = listener
                    .context
                    .live()
                    .ring(|ring| ring.newest(&listener.view.queue));
                if let Some(point) = point {
                    events.push(
                        Event::default()
                            .event("point")
                            .data(charts::point(&point).to_string()),
                    );
                }
            }
            events.push(Event::default().event("state").data("live"));
        }
        Some(Err(DbError { message, .. })) => {
            let text = one_line(&format!("The database does not answer: {message}"));
            events.push(Event::default().event("state").data(text));
        }
        None => (),
    }
    Some((events, listener))
}

impl Listener {
    fn regions(&self, snapshot: &Snapshot) -> Vec<(&'static str, String)> {
        let markup: Vec<(&'static str, Markup)> = match self.view.view.as_str() {
            "overview" => {
                let View { q, sort, page, .. } = &self.view;
                let choice = overview::Choice {
                    q: q.clone(),
                    sort: sort.clone(),
                    page: *page,
                };
                vec![
                    ("problems", overview::problems(&self.context, snapshot)),
                    ("queues", overview::queues(&self.context, &choice, snapshot)),
                ]
            }
            "queue" => vec![(
                "numbers",
                queue::numbers(&self.context, &self.view.queue, snapshot),
            )],
            "maintenance" => vec![("status", maintenance::status(snapshot))],
            _ => Vec::new(),
        };
        markup
            .into_iter()
            .map(|(region, markup)| (region, one_line(&markup.into_string())))
            .collect()
    }
}

/// Events cannot have carriage returns, and markup does not need them.
fn one_line(text: &str) -> String {
    text.replace(['\r', '\n'], " ")
}
