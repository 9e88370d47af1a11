//! Where queues live that are not in this database.

use pgrx::prelude::*;

use crate::api::entry::{queue_name, respond_write};
use crate::domain::names::{LINE, is_line};
use crate::domain::wording::shorten;
use crate::error::{Error, Result};
use crate::pg::call::{Call, Reply};
use crate::pg::role;
use crate::store::queues::grants;
use crate::store::queues::queue_places;

/// `queue_place_set(queue, place) → was_set`: records on which server a queue lives that is not in
/// this database, as text for people and programs; NULL or an empty text removes the record. False
/// when that changes nothing.
///
/// Fails with `QueueIsHere` while the queue is in this database, with `NotCreator` for a role that
/// may not create queues, with `PlaceOfOther` for a record of another role, and with `BadValue`.
#[pg_extern(sql = false)]
fn queue_place_set(fcinfo: pg_sys::FunctionCallInfo) -> Reply {
    respond_write(fcinfo, |call| {
        let name = queue_name(call, 0)?;
        let place = place(call, 1)?;
        if !grants::may_create_queues() {
            return Err(Error::NotCreator(role::name(role::current())));
        }
        queue_places::set(&name, place).map(Reply::bool)
    })
}

/// A place; None for NULL and for an empty text. Fails with `BadValue`.
fn place(call: &Call, at: usize) -> Result<Option<&str>> {
    let Some(text) = call.opt_text(at).filter(|text| !text.is_empty()) else {
        return Ok(None);
    };
    match is_line(text) {
        true => Ok(Some(text)),
        false => Err(Error::BadValue {
            argument: "place",
            value: shorten(text),
            rule: LINE,
        }),
    }
}
