//! What only the update scripts of the extension call.

use pgrx::prelude::*;

use crate::api::entry::respond_write;
use crate::fetchq4::store::upgrade;
use crate::pg::call::Reply;

/// `run_outside_extension(sql)`: runs statements of an update script whose objects belong to users, not
/// to the extension. The script declares it, and drops it again.
///
/// Fails with `NoUpdate` when no script of an extension runs, and as the statements do.
#[pg_extern(sql = false)]
fn run_outside_extension(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        upgrade::run_outside_extension(call.text(0, "sql")?)?;
        Ok(Reply::null())
    })
}
