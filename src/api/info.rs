//! Versions, traces of subjects, and functions that only old clients call.

use pgrx::prelude::*;

use crate::api::entry::{respond, respond_always, respond_write, subject};
use crate::domain::version::LIBRARY;
use crate::error::Error;
use crate::pg::call::Reply;
use crate::pg::value::Arg;
use crate::pg::{acl, session};
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

/// `init() → was_initialized`: always true. fetchq 4 clients call it at their start; nothing
/// remains to be done once the extension exists.
#[pg_extern(sql = false)]
fn init(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_always(fcinfo, |_| Ok(Reply::bool(true)))
}

/// `upgrade__310__320()`, `upgrade__320__330()`, `upgrade__330__400()`: the upgrades of fetchq
/// 3, which old clients may call. They do nothing and return true.
#[pg_extern(sql = false)]
fn upgrade_nothing(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_always(fcinfo, |_| Ok(Reply::bool(true)))
}

/// `destroy_with_terrible_consequences() → was_destroyed`: drops the extension with every
/// queue.
///
/// Fails with `NotOwner` when the caller is neither a superuser nor the owner of the extension.
#[pg_extern(sql = false)]
fn destroy(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |_| {
        if !acl::owns_extension() {
            return Err(Error::NotOwner);
        }
        info::destroy();
        Ok(Reply::bool(true))
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
