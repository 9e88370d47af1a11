//! The frame of all pages.
use maud::{DOCTYPE, Markup, html};

use super::context::{Context, encode};
use crate::assets;

/// The parts of the console, as the navigation shows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Queues,
    DeadLetters,
    Workers,
    Schedules,
    Maintenance,
    None,
}

const SECTIONS: [(Section, &str, &str); 5] = [
    (Section::Queues, "Queues", ""),
    (Section::DeadLetters, "Dead letters", "/dead-letters"),
    (Section::Workers, "Workers", "/workers"),
    (Section::Schedules, "Schedules", "/schedules"),
    (Section::Maintenance, "Maintenance", "/maintenance"),
];

/// A whole page. `live` is the address of the events that keep its regions up to date.
pub fn page(
    context: &Context,
    title: &str,
    section: Section,
    live: Option<&str>,
    body: &Markup,
) -> Markup {
    let database = context.database();
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) " · " (database.name) " · fetchq" }
                link rel="icon" type="image/svg+xml" href=(assets::ICON.address());
                link rel="stylesheet" href=(assets::CHART_STYLE.address());
                link rel="stylesheet" href=(assets::STYLE.address());
                script src=(assets::CHART_SCRIPT.address()) defer {}
                script src=(assets::SCRIPT.address()) defer {}
            }
            body data-live=[live] {
                a class="skip" href="#main" { "Skip to the content" }
                header class="top" {
                    a class="brand" href=(context.address("")) { "fetchq" }
                    nav aria-label="Sections" {
                        ul {
                            @for (this, name, address) in SECTIONS {
                                li {
                                    a href=(context.address(address)) aria-current=[(this == section).then_some("page")] {
                                        (name)
                                    }
                                }
                            }
                        }
                    }
                    (databases(context))
                }
                main id="main" tabindex="-1" {
                    @if let Some(flash) = &context.session.flash {
                        div class=(if flash.is_error { "notice bad" } else { "notice good" })
                            role=(if flash.is_error { "alert" } else { "status" }) { p { (flash.text) } }
                    }
                    (body)
                }
                footer {
                    p {
                        @if let Some(user) = &context.session.user { "Logged in as " (user) ". " }
                        @if context.app.allow_actions {
                            "Actions are allowed."
                        } @else {
                            "Read-only: start the console with " code { "--allow-actions" } " to change something."
                        }
                    }
                    @if live.is_some() {
                        p {
                            button type="button" id="pause-live" hidden { "Pause updates" }
                            " "
                            span id="live-state" role="status" { noscript { "Reload the page for new numbers." } }
                        }
                    }
                }
            }
        }
    }
}

/// The switch between databases, or the name of the only one.
fn databases(context: &Context) -> Markup {
    let this = context.database();
    let all = context.app.databases.all();
    html! {
        @if all.len() > 1 {
            details class="databases" {
                summary { span class="label" { "Database " } (this.name) }
                ul {
                    @for other in all {
                        li {
                            a href=(format!("/db/{}", encode(&other.name)))
                              aria-current=[(other.name == this.name).then_some("true")] {
                                (other.name) " " span class="muted" { (other.label) }
                            }
                        }
                    }
                }
            }
        } @else {
            span class="databases" { span class="label" { "Database " } (this.name) }
        }
    }
}

/// The head of a column of a table.
#[derive(Debug, Clone, Copy)]
pub enum Column<'a> {
    Text(&'a str),
    /// Its cells have the class `number`, too.
    Number(&'a str),
}

/// A table with a row of heads. `label` names it for screen readers. It scrolls in itself where it is
/// wider than the window.
pub fn table(label: &str, columns: &[Column], rows: &Markup) -> Markup {
    let heads = html! {
        @for column in columns {
            @match column {
                Column::Text(name) => th scope="col" { (name) },
                Column::Number(name) => th scope="col" class="number" { (name) },
            }
        }
    };
    table_with(label, &heads, rows)
}

/// As [`table`], with heads that are more than texts.
pub fn table_with(label: &str, heads: &Markup, rows: &Markup) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-label=(format!("Table of {label}")) {
            table {
                thead { tr { (heads) } }
                tbody { (rows) }
            }
        }
    }
}

/// The links to other pages of a table: to the first one unless this is it, and to the next one. With
/// `cut`, the reason why this page is short.
pub fn pager(label: &str, first: Option<&str>, next: Option<&str>, cut: Option<&str>) -> Markup {
    html! {
        @if let Some(cut) = cut { p class="notice warn" { (cut) "." } }
        @if first.is_some() || next.is_some() {
            nav class="pager" aria-label=(format!("Pages of {label}")) {
                @if let Some(first) = first { a href=(first) { "First page" } }
                @if let Some(next) = next { a rel="next" href=(next) { (if cut.is_some() { "Go on" } else { "Next page" }) } }
            }
        }
    }
}

/// Says by which call of the SQL API a part can be had in psql.
pub fn source(call: &str) -> Markup {
    html! { p class="source" { "By " code { (call) } } }
}

/// The links above the pages of a queue.
pub fn queue_tabs(context: &Context, queue: &str, this: &str) -> Markup {
    let tabs = [
        ("", "State"),
        ("/documents", "Documents"),
        ("/history", "History"),
        ("/settings", "Settings"),
    ];
    html! {
        p class="crumbs" { a href=(context.address("")) { "Queues" } " / " }
        h1 { "Queue " span class="name" { (queue) } }
        nav class="tabs" aria-label="Pages of the queue" {
            ul {
                @for (page, name) in tabs {
                    li {
                        a href=(context.queue_address(queue, page)) aria-current=[(page == this).then_some("page")] { (name) }
                    }
                }
            }
        }
    }
}
