//! Reading documents.

use pgrx::prelude::*;

use crate::api::docs_admin::filter_or_empty;
use crate::api::entry::{limit_or, queue_name, respond, subject};
use crate::domain::filter;
use crate::pg::call::Reply;
use crate::store::documents::doc_selection::BulkRequest;
use crate::store::documents::reading;

/// `doc_get(queue, subject)`: a document, from the table or from the history.
///
/// Fails with `UnknownQueue`, and with `NoRight` when the caller may not read the documents, as the
/// other two functions here do.
#[pg_extern(sql = false)]
fn doc_get(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let subject = subject(call, 1)?;
        let mut out = call.rows();
        reading::get(&name, subject, &mut out)?;
        Ok(out.done())
    })
}

/// `docs_list(queue, filter, max_docs, after)`: a page of the documents that match a filter.
///
/// Fails with `NegativeLimit` when `max_docs` is below 0, with `Invalid` for a filter that is not
/// valid, and with `TooMuchToRead`.
#[pg_extern(sql = false)]
fn docs_list(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let json = filter_or_empty(call, 1);
        let filter = filter::parse(&json.to_short_text("filter")?)?;
        let request = BulkRequest {
            filter: &filter,
            json,
            limit: limit_or(call, 2, "max_docs", 100)?,
            dry_run: true,
        };
        let mut out = call.rows();
        reading::list(&name, &request, call.opt_text(3), &mut out)?;
        Ok(out.done())
    })
}

/// `doc_errors(queue, subject, max_docs)`: the failed attempts of a document.
///
/// Fails with `NegativeLimit` when `max_docs` is below 0.
#[pg_extern(sql = false)]
fn doc_errors(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let subject = subject(call, 1)?;
        let limit = limit_or(call, 2, "max_docs", 100)?;
        let mut out = call.rows();
        reading::errors(&name, subject, limit, &mut out)?;
        Ok(out.done())
    })
}
