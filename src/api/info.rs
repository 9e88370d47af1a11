//! What is installed, traces, and the calls that old clients make.

use crate::pg::session;
use crate::ready::floors;
use crate::signals::board;
use crate::store::info;
use pgrx::prelude::*;

use crate::api::entry::{respond, respond_write, subject};
use crate::error::Error;
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::settings;

/// `info()`: `version` is what fetchq 4 clients compare with their own.
#[pg_extern(sql = false)]
fn info(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let compat = settings::compat_version();
        let installed = info::extension_version();
        Ok(call.record(&[
            Arg::from(compat.as_str()),
            Arg::from(installed.as_deref()),
            Arg::from(env!("CARGO_PKG_VERSION")),
            Arg::from(session::is_preloaded()),
            Arg::from(board::has_background_worker()),
            Arg::from(floors::is_available()),
        ]))
    })
}

/// `init()`: nothing is left to do once the extension exists.
#[pg_extern(sql = false)]
fn init(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |_| Ok(Reply::bool(true)))
}

/// The upgrades of fetchq 3, which old clients may call: nothing to do.
#[pg_extern(sql = false)]
fn upgrade_nothing(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |_| Ok(Reply::bool(true)))
}

/// `destroy_with_terrible_consequences()`
#[pg_extern(sql = false)]
fn destroy(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |_| {
        if !info::owns_extension() {
            return Err(Error::NotOwner);
        }
        info::destroy();
        Ok(Reply::bool(true))
    })
}

/// `trace(subject, direction)`
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
