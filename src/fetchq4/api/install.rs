//! What old clients call to install, upgrade and remove fetchq.

use pgrx::prelude::*;

use crate::api::entry::{respond_always, respond_write};
use crate::error::Error;
use crate::fetchq4::store::install;
use crate::pg::acl;
use crate::pg::call::Reply;

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
        install::destroy();
        Ok(Reply::bool(true))
    })
}
