//! The settings of a queue, and who has rights on it.
use axum::extract::Path;
use axum::response::IntoResponse;
use maud::{Markup, html};
use serde_json::{Map, Value};

use super::Page;
use super::context::Context;
use super::format::literal;
use super::layout::{self, Column::Text, Section, source};
use super::problem;
use crate::calls::{self, Grant, Settings};

/// A setting: its key, with a dot where it is inside an object, and what it means.
const KEYS: [(&str, &str); 19] = [
    ("max_attempts", "Attempts until a document is killed"),
    ("retry.base", "Delay after the first attempt"),
    (
        "retry.factor",
        "Factor by which each further delay is longer",
    ),
    ("retry.max_delay", "Longest delay"),
    ("retry.jitter", "Share of the delay that is random, 0 to 1"),
    ("dead_letter", "Dead-letter queue"),
    ("history.completed", "How long completed documents are kept"),
    ("history.killed", "How long killed documents are kept"),
    ("history.dropped", "How long dropped documents are kept"),
    ("max_active", "Documents that can be active at a time"),
    ("max_active_per_key", "Active documents of one ordering key"),
    ("rate.picks", "Documents that can be picked within rate.per"),
    ("rate.per", "Interval of the rate"),
    (
        "ordered",
        "Documents of an ordering key run one at a time (true or false)",
    ),
    (
        "notify",
        "Documents are announced on channels (true or false)",
    ),
    (
        "lease",
        "How long a lease lasts, where the worker does not say",
    ),
    ("logs_retention", "How long log entries are kept"),
    ("current_version", "For clients: which version is current"),
    (
        "metrics_retention",
        "Which snapshots of metrics are kept (JSON)",
    ),
];

/// `GET /db/{db}/queues/{queue}/settings`
pub async fn settings(context: Context, Path((_, queue)): Path<(String, String)>) -> Page {
    let database = context.database();
    let found = database
        .first::<Settings>(calls::QUEUE_SETTINGS, &[&queue])
        .await;
    let all = found
        .map_err(|error| context.problem(error))?
        .map(|row| row.settings)
        .unwrap_or_default();
    let grants = database.rows::<Grant>(calls::QUEUE_GRANTS, &[&queue]).await;
    let body = html! {
        (layout::queue_tabs(&context, &queue, "/settings"))
        section aria-labelledby="settings-title" {
            h2 id="settings-title" { "Settings" }
            (form(&context, &queue, &all))
            (source(&format!("select fetchq.queue_settings({})", literal(&queue))))
        }
        section aria-labelledby="grants-title" {
            h2 id="grants-title" { "Rights" }
            @match &grants {
                Err(error) => (problem::inline(&context, error)),
                Ok(grants) => (layout::table("the rights", &[Text("Role"), Text("Kind"), Text("How")], &html! {
                    @for grant in grants {
                        tr {
                            th scope="row" { (grant.role) }
                            td { (grant.kind.as_deref().unwrap_or("–")) }
                            td { (if grant.is_direct == Some(false) { "as a member of a role" } else { "directly" }) }
                        }
                    }
                })),
            }
            (source(&format!("select * from fetchq.queue_grants({})", literal(&queue))))
        }
    };
    Ok(layout::page(
        &context,
        &format!("Settings of {queue}"),
        Section::Queues,
        None,
        &body,
    )
    .into_response())
}

fn form(context: &Context, queue: &str, all: &Value) -> Markup {
    let can_change = context.app.allow_actions;
    let fields = html! {
        div class="settings stack" {
            (layout::table("the settings", &[Text("Setting"), Text("Value"), Text("Meaning")], &html! {
                @for (key, meaning) in KEYS {
                    @let value = shown(get(all, key));
                    tr {
                        th scope="row" { @if can_change { label for=(key) { code { (key) } } } @else { code { (key) } } }
                        td {
                            @if can_change {
                                input type="hidden" name=(format!("was.{key}")) value=(value);
                                input id=(key) name=(format!("new.{key}")) type="text" value=(value) placeholder="none" autocomplete="off" spellcheck="false";
                            } @else if value.is_empty() { span class="muted" { "none" } } @else { (value) }
                        }
                        td { (meaning) }
                    }
                }
            }))
        }
        @if can_change {
            p { "Only what you change is written. An empty field resets a setting to its default." }
            button { "Change settings" }
        }
    };
    html! {
        @if can_change {
            form class="act block" method="post" action=(context.address("/act")) {
                input type="hidden" name="csrf" value=(context.session.token);
                input type="hidden" name="back" value=(context.queue_address(queue, "/settings"));
                input type="hidden" name="do" value="queue_configure";
                input type="hidden" name="queue" value=(queue);
                (fields)
            }
        } @else { (fields) }
    }
}

fn get<'a>(all: &'a Value, key: &str) -> &'a Value {
    let found = match key.split_once('.') {
        Some((outer, inner)) => all.get(outer).and_then(|value| value.get(inner)),
        None => all.get(key),
    };
    found.unwrap_or(&Value::Null)
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The settings that differ from what the form had shown, for `queue_configure`. So two people who
/// change different settings do not undo one another.
pub fn changed(field: impl Fn(&str) -> Option<String>) -> Map<String, Value> {
    let mut settings = Map::new();
    for (key, _) in KEYS {
        let (Some(was), Some(new)) = (field(&format!("was.{key}")), field(&format!("new.{key}")))
        else {
            continue;
        };
        let (was, new) = (was.trim(), new.trim());
        if was == new {
            continue;
        }
        let value = if new.is_empty() {
            Value::Null
        } else {
            // Numbers, true, false and lists are JSON; intervals and names are not.
            match serde_json::from_str::<Value>(new) {
                Ok(value) if !is_text(key) => value,
                _ => Value::from(new),
            }
        };
        match key.split_once('.') {
            Some((outer, inner)) => {
                let object = settings
                    .entry(outer)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let Some(object) = object.as_object_mut() {
                    object.insert(inner.to_owned(), value);
                }
            }
            None => {
                settings.insert(key.to_owned(), value);
            }
        }
    }
    settings
}

fn is_text(key: &str) -> bool {
    key.starts_with("history.")
        || [
            "retry.base",
            "retry.max_delay",
            "rate.per",
            "lease",
            "logs_retention",
            "dead_letter",
        ]
        .contains(&key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_changed_is_written() {
        let fields = [
            ("was.max_attempts", "5"),
            ("new.max_attempts", "7"),
            ("was.retry.base", ""),
            ("new.retry.base", "10"),
            ("was.retry.factor", "2"),
            ("new.retry.factor", "2"),
            ("was.dead_letter", "dead"),
            ("new.dead_letter", ""),
        ];
        let field = |name: &str| {
            fields
                .iter()
                .find(|(key, _)| *key == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let expected =
            serde_json::json!({"max_attempts": 7, "retry": {"base": "10"}, "dead_letter": null});
        assert_eq!(Value::Object(changed(field)), expected);
    }
}
