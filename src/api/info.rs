//! Versions, and traces of subjects.

use pgrx::prelude::*;

use crate::api::entry::{respond, respond_always, subject};
use crate::domain::version::LIBRARY;
use crate::error::Error;
use crate::pg::call::Reply;
use crate::pg::session;
use crate::pg::value::Arg;
use crate::ready::floors;
use crate::settings;
use crate::signals::board;
use crate::store::documents::info;

/// `info()`: versions of fetchq, and which parts of it are active. fetchq 4 clients compare the
/// column `version` with their own, so it is the setting `fetchq.compat_version`.
#[pg_extern(sql = false)]
fn info(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_always(fcinfo, |call| {
        let compat = settings::compat_version();
        let installed = info::extension_version();
        Ok(call.record(&[
            Arg::from(compat.as_str()),
            Arg::from(installed.as_deref()),
            Arg::from(LIBRARY),
            Arg::from(session::is_preloaded()),
            Arg::from(board::is_served()),
            Arg::from(floors::is_available()),
        ]))
    })
}

/// `trace(subject, direction) → steps`: the document and the log entries of a subject in every
/// queue, numbered from 1. `direction` is `ASC` or `DESC`, in upper or lower case; any other
/// value fails with `BadDirection`.
#[pg_extern(sql = false)]
fn trace(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let subject = subject(call, 0)?;
        let direction = call.text(1, "direction")?;
        let is_descending = match direction.to_ascii_uppercase().as_str() {
            "ASC" => false,
            "DESC" => true,
            _ => return Err(Error::BadDirection(direction.to_owned())),
        };
        let mut out = call.rows();
        info::trace(subject, is_descending, &mut out);
        Ok(out.done())
    })
}
