//! Why a document does not run.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, subject};
use crate::pg::call::Reply;
use crate::store::reports::doc_explain as store;

/// `doc_explain(queue, subject)`: a row for each reason why a document does not run.
///
/// Fails with `UnknownQueue`, and with `NoRight` when the caller may not read the documents, as
/// `doc_get` does.
#[pg_extern(sql = false)]
fn doc_explain(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let subject = subject(call, 1)?;
        let mut out = call.rows();
        store::explain(&name, subject, &mut out)?;
        Ok(out.done())
    })
}
