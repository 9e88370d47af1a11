//! The history of queues: reading it, and trimming it.

use pgrx::prelude::*;

use crate::api::docs_admin::filter_or_empty;
use crate::api::entry::{limit_or, queue_name, respond, respond_write};
use crate::domain::history_filter;
use crate::domain::names::QueueName;
use crate::domain::wording::shorten;
use crate::error::{Error, Result};
use crate::maintenance::retention;
use crate::pg::call::Reply;
use crate::store::queues::open_queue::Queue;
use crate::store::queues::rights::{self, Right};
use crate::store::settle::history_list::{self, Page};

/// `queue_trim_history(queue, max_docs) → affected`: removes documents that have been in
/// the history of a queue for longer than it keeps them, the oldest first, at most `max_docs`.
///
/// Fails with `UnknownQueue`, and with `NegativeLimit` when `max_docs` is below 0.
#[pg_extern(sql = false)]
fn queue_trim_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let limit = call.limit(1, "max_docs")?;
        let trimmed = rights::with(&name, Right::Manage, || {
            // A queue that is opened for the caller is never busy: the caller waits.
            let trimmed = retention::trim(&*Queue::open_for(&name, Right::Manage)?, limit, true)?;
            Ok(trimmed.done().unwrap_or(0))
        });
        trimmed.map(Reply::count)
    })
}

/// `queue_drop_history(queue, filter, max_docs, dry_run) → affected`: removes entries that match a filter
/// from the history of a queue, the oldest first. With `dry_run` they are only counted.
///
/// Fails with `UnknownQueue` and `NoRight`, with `NegativeLimit` when `max_docs` is below 0, with
/// `Invalid` for a filter that is not valid, with `FilterOfAll` for one without a condition.
#[pg_extern(sql = false)]
fn queue_drop_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let json = filter_or_empty(call, 1);
        let filter = history_filter::parse(&json.to_short_text("filter")?, true)?;
        if filter.is_empty() && !filter.document.all {
            return Err(Error::FilterOfAll(call.function_name()));
        }
        let page = Page {
            filter: &filter,
            json,
            limit: Some(limit_or(call, 2, "max_docs", 1000)?),
            after: None,
        };
        let dry_run = call.opt_bool(3).unwrap_or(false);
        let dropped = rights::with(&name, Right::Manage, || {
            history_list::drop_entries(&name, &page, dry_run)
        });
        dropped.map(Reply::count)
    })
}

/// `queue_history(queue, filter, max_docs, after) → documents`: the history of a queue, the newest
/// entries first; with NULL, of all queues whose history the caller may read.
///
/// Fails with `UnknownQueue` and `NoRight`, with `NegativeLimit` when `max_docs` is below 0, with
/// `Invalid` for a filter that is not valid, with `BadValue` when `after` is no position, with `AlsoNeeded` for a filter
/// or a page without a queue, and with `TooMuchHistory`.
#[pg_extern(sql = false)]
fn queue_history(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = call.opt_text(0).map(QueueName::parse).transpose()?;
        if let Some(name) = &name {
            rights::require(name, Right::Read)?;
        }
        let json = filter_or_empty(call, 1);
        let text = json.to_short_text("filter")?;
        let filter = history_filter::parse(&text, false)?;
        let limit = match call.is_null(2) {
            true => None,
            false => Some(call.limit(2, "max_docs")?),
        };
        let after = call.opt_text(3).map(position).transpose()?;
        let mut out = call.rows();
        let Some(name) = name else {
            let given = [
                (text != "{}", "filter"),
                (limit.is_some(), "max_docs"),
                (after.is_some(), "after"),
            ];
            if let Some((_, given)) = given.into_iter().find(|(is_given, _)| *is_given) {
                return Err(Error::AlsoNeeded {
                    given,
                    needed: "queue",
                });
            }
            history_list::all(&mut out);
            return Ok(out.done());
        };
        let page = Page {
            filter: &filter,
            json,
            limit,
            after,
        };
        rights::with(&name, Right::Read, || {
            history_list::page(&name, &page, &mut out)
        })?;
        Ok(out.done())
    })
}

/// The position of an entry. Fails with `BadValue`.
fn position(text: &str) -> Result<(i64, i64)> {
    history_list::parse_position(text).ok_or_else(|| Error::BadValue {
        argument: "after",
        value: shorten(text),
        rule: "the position of the last row of the page before",
    })
}
