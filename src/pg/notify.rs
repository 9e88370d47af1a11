//! NOTIFY, and the trigger that sends the channels of a queue.

use pgrx::pg_sys;

use crate::pg::text::c_string;

unsafe extern "C-unwind" {
    // src/backend/commands/async.c; pgrx has no binding for it.
    fn Async_Notify(channel: *const std::ffi::c_char, payload: *const std::ffi::c_char);
}

/// Queues a notification for the end of the transaction.
pub fn notify(channel: &str, payload: &str) {
    let (channel, payload) = (c_string(channel), c_string(payload));
    // SAFETY: both are C strings; an ERROR (a channel that is too long) becomes a
    // panic at the boundary.
    unsafe { pg_sys::ffi::pg_guard_ffi_boundary(|| Async_Notify(channel, payload)) };
}

/// A document that entered a state, as the notify trigger sees it.
pub struct StatusChange {
    pub table: u32,
    pub subject: String,
    pub status: i32,
    /// First argument of the trigger: the queue.
    pub queue: String,
}

/// Reads the row behind an AFTER ... FOR EACH ROW trigger; None when the function was
/// not called by such a trigger, or not on a documents table.
pub fn status_change(call: &super::call::Call) -> Option<StatusChange> {
    // SAFETY: `context` of a trigger call is a TriggerData whose tuples, relation and
    // arguments live as long as the call; the node tag is checked first.
    unsafe {
        let context = (*call.fcinfo()).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            return None;
        }
        let data = &*(context as *const pg_sys::TriggerData);
        let event = data.tg_event;
        let is_after = event & pg_sys::TRIGGER_EVENT_TIMINGMASK == pg_sys::TRIGGER_EVENT_AFTER;
        if event & pg_sys::TRIGGER_EVENT_ROW == 0 || !is_after {
            return None;
        }
        let tuple = match event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => data.tg_trigtuple,
            pg_sys::TRIGGER_EVENT_UPDATE => data.tg_newtuple,
            _ => return None,
        };
        let trigger = &*data.tg_trigger;
        if tuple.is_null() || trigger.tgnargs < 1 {
            return None;
        }
        let desc = (*data.tg_relation).rd_att;
        let text = |column: &std::ffi::CStr| {
            let number = pg_sys::SPI_fnumber(desc, column.as_ptr());
            if number <= 0 {
                return None;
            }
            let value = pg_sys::SPI_getvalue(tuple, desc, number);
            (!value.is_null()).then(|| {
                std::ffi::CStr::from_ptr(value)
                    .to_string_lossy()
                    .into_owned()
            })
        };
        Some(StatusChange {
            table: (*data.tg_relation).rd_id.to_u32(),
            subject: text(c"subject")?,
            status: text(c"status")?.parse().ok()?,
            queue: std::ffi::CStr::from_ptr(*trigger.tgargs)
                .to_string_lossy()
                .into_owned(),
        })
    }
}
