//! Rights on queues: granting, revoking and listing them.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond, respond_write};
use crate::domain::names::QueueName;
use crate::error::{Error, Result};
use crate::pg::acl;
use crate::pg::call::{Call, Reply};
use crate::store::queues::data_owner;
use crate::store::queues::grants;
use crate::store::queues::queue;
use crate::store::queues::rights::{self, Right};

/// `queue_grant(queue, role, kind) → was_granted`: makes a role a reader, producer, worker or
/// manager of a queue; false when it was one before.
///
/// Fails with `NoRight` unless the caller owns the queue, and with `UnknownQueue`, `UnknownRole`
/// or `BadValue`.
#[pg_extern(sql = false)]
fn queue_grant(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| change(call, grants::grant))
}

/// `queue_revoke(queue, role, kind) → was_revoked`: takes a kind of grant from a role; false when
/// the role did not have it.
///
/// Fails with `NoRight` unless the caller owns the queue, with `IncludedGrant` when the role has a
/// kind that includes this one, and with `UnknownQueue`, `UnknownRole` or `BadValue`.
#[pg_extern(sql = false)]
fn queue_revoke(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| change(call, grants::revoke))
}

/// `data_owner_set(role) → was_changed`: gives the schema `fetchq_data` and the tables of all queues to
/// a role, as which fetchq then runs its statements; false when all of it was that role's before. It
/// needs no login, and should be no superuser.
///
/// Fails with `NotOwner` unless the caller owns the extension, with `UnknownRole`, and where the server
/// does not let the caller change the owner.
#[pg_extern(sql = false)]
fn data_owner_set(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let role = call.text(0, "role")?;
        match acl::owns_extension() {
            true => data_owner::set(role).map(Reply::bool),
            false => Err(Error::NotOwner),
        }
    })
}

/// Reads queue, role and kind, and changes the grants of a queue that the caller owns.
fn change(
    call: &Call,
    change: impl FnOnce(&QueueName, &str, &str) -> Result<bool>,
) -> Result<Reply> {
    let name = queue_name(call, 0)?;
    let role = call.text(1, "role")?;
    let kind = call.text(2, "kind")?;
    let changed = rights::with(&name, Right::Own, || {
        queue::lock_now(&name)?;
        change(&name, role, kind)
    });
    changed.map(Reply::bool)
}

/// `queue_grants(queue) → (queue, role, kind, is_direct)`: which roles have which rights on a queue;
/// with NULL, on all queues on which the caller has a right. `is_direct`: the role owns the queue,
/// or was granted the kind itself; false for a member of such a role.
///
/// Fails with `UnknownQueue` and with `NoRight`.
#[pg_extern(sql = false)]
fn queue_grants(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = call.opt_text(0).map(QueueName::parse).transpose()?;
        if let Some(name) = &name {
            rights::require(name, Right::Any)?;
            queue::id(name)?;
        }
        let mut out = call.rows();
        grants::list(name.as_ref(), &mut out)?;
        Ok(out.done())
    })
}

/// `queue_has_right(queue, kind) → has_right`: whether the caller has the rights of a reader,
/// producer, worker, manager or owner of a queue, or any right on it. Only the owner of the
/// extension has rights on a queue that does not exist.
///
/// Fails with `BadValue` for an unknown kind.
#[pg_extern(sql = false)]
fn queue_has_right(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let right = Right::parse(call.text(1, "kind")?)?;
        Ok(Reply::bool(rights::has(&name, right)))
    })
}
