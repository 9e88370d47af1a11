//! The row behind a trigger of the documents, and statements that need none.

use pgrx::pg_sys;

use crate::pg::call::{Call, Reply};

/// A row that was inserted or updated, as the ready trigger sees it.
pub struct Written {
    pub table: pg_sys::Oid,
    pub version: i32,
    pub priority: i32,
    pub status: i32,
    pub attempts: i32,
    pub next_iteration: i64,
    pub seq: i64,
}

/// Columns of the documents by number, and their types (src/store/queue_tables.rs).
/// A table that differs has no index that the floors would use.
const COLUMNS: [(i32, pg_sys::Oid); 6] = [
    (2, pg_sys::INT4OID),
    (3, pg_sys::INT4OID),
    (4, pg_sys::INT4OID),
    (5, pg_sys::INT4OID),
    (7, pg_sys::TIMESTAMPTZOID),
    (12, pg_sys::INT8OID),
];

/// What a call as a trigger is about.
pub enum Row {
    Written(Written),
    /// A table with other columns than ours.
    Foreign,
    /// Not called by an AFTER ... FOR EACH ROW trigger.
    NoTrigger,
}

/// What a trigger is called with. None: it was not called as one.
unsafe fn data_of(call: &Call) -> Option<&pg_sys::TriggerData> {
    // SAFETY: `context` of a trigger call is a TriggerData that lives as long as the call;
    // the node tag is checked first.
    unsafe {
        let context = (*call.fcinfo()).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            return None;
        }
        Some(&*(context as *const pg_sys::TriggerData))
    }
}

/// The row that an AFTER ... FOR EACH ROW trigger for INSERT or UPDATE is called with.
unsafe fn row_after(call: &Call) -> Option<(&pg_sys::TriggerData, pg_sys::HeapTuple)> {
    // SAFETY: as above.
    let data = unsafe { data_of(call)? };
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
    (!tuple.is_null()).then_some((data, tuple))
}

/// Reads the row behind an AFTER ... FOR EACH ROW trigger.
pub fn written_row(call: &Call) -> Row {
    // SAFETY: tuples and relation live as long as the call. Number and type of each column
    // are checked before it is read.
    unsafe {
        let Some((data, tuple)) = row_after(call) else {
            return Row::NoTrigger;
        };
        let desc = (*data.tg_relation).rd_att;
        let mut values = [pg_sys::Datum::from(0); COLUMNS.len()];
        for (value, (number, oid)) in values.iter_mut().zip(COLUMNS) {
            let is_ours = number <= (*desc).natts && pg_sys::SPI_gettypeid(desc, number) == oid;
            if !is_ours {
                return Row::Foreign;
            }
            let mut is_null = false;
            *value = pg_sys::heap_getattr(tuple, number, desc, &mut is_null);
            if is_null {
                return Row::Foreign;
            }
        }
        let int = |at: usize| values[at].value() as i32;
        Row::Written(Written {
            table: (*data.tg_relation).rd_id,
            version: int(0),
            priority: int(1),
            status: int(2),
            attempts: int(3),
            next_iteration: values[4].value() as i64,
            seq: values[5].value() as i64,
        })
    }
}

/// The column `name` of the row behind an AFTER ... FOR EACH ROW trigger for INSERT or
/// UPDATE; None where there is none.
pub fn written_queue_name(call: &Call) -> Option<String> {
    // SAFETY: as in `written`; the column is looked up by its name, and its output is a
    // C string of this call's memory.
    unsafe {
        let (data, tuple) = row_after(call)?;
        let desc = (*data.tg_relation).rd_att;
        let number = pg_sys::SPI_fnumber(desc, c"name".as_ptr());
        if number <= 0 {
            return None;
        }
        let text = pg_sys::SPI_getvalue(tuple, desc, number);
        if text.is_null() {
            return None;
        }
        Some(
            std::ffi::CStr::from_ptr(text)
                .to_string_lossy()
                .into_owned(),
        )
    }
}

/// A document as a trigger of the limits or of the order sees it.
#[derive(Debug)]
pub struct Document {
    pub subject: String,
    pub status: i32,
    pub attempts: i32,
    pub iterations: i64,
    pub next_iteration: i64,
    pub seq: i64,
    /// Its `lock_upgrade` is infinite.
    pub is_held: bool,
    pub ordering_key: Option<String>,
}

/// What a trigger was fired by.
pub struct TriggerEvent {
    pub table: pg_sys::Oid,
    pub is_before: bool,
    pub old: Option<Document>,
    pub new: Option<Document>,
}

/// Columns of a `Document`, as above.
const DOCUMENT: [(i32, pg_sys::Oid); 8] = [
    (1, pg_sys::VARCHAROID),
    (4, pg_sys::INT4OID),
    (5, pg_sys::INT4OID),
    (6, pg_sys::INT8OID),
    (7, pg_sys::TIMESTAMPTZOID),
    (8, pg_sys::TIMESTAMPTZOID),
    (12, pg_sys::INT8OID),
    (15, pg_sys::TEXTOID),
];

/// Reads the rows behind a trigger; neither is there for one of a whole statement. None:
/// no trigger, or of a table with other columns than ours.
pub fn event(call: &Call) -> Option<TriggerEvent> {
    // SAFETY: as in `written`.
    unsafe {
        let data = data_of(call)?;
        let event = data.tg_event;
        let timing = event & pg_sys::TRIGGER_EVENT_TIMINGMASK;
        let mut fired = TriggerEvent {
            table: (*data.tg_relation).rd_id,
            is_before: timing == pg_sys::TRIGGER_EVENT_BEFORE,
            old: None,
            new: None,
        };
        if event & pg_sys::TRIGGER_EVENT_ROW == 0 {
            return Some(fired);
        }
        let desc = (*data.tg_relation).rd_att;
        let (old, new) = match event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => (None, Some(data.tg_trigtuple)),
            pg_sys::TRIGGER_EVENT_DELETE => (Some(data.tg_trigtuple), None),
            _ => (Some(data.tg_trigtuple), Some(data.tg_newtuple)),
        };
        if let Some(tuple) = old {
            fired.old = Some(document(tuple, desc)?);
        }
        if let Some(tuple) = new {
            fired.new = Some(document(tuple, desc)?);
        }
        Some(fired)
    }
}

unsafe fn document(tuple: pg_sys::HeapTuple, desc: pg_sys::TupleDesc) -> Option<Document> {
    // SAFETY: the tuple belongs to the descriptor; number and type of each column are
    // checked before it is read.
    unsafe {
        let is_ours = DOCUMENT.iter().all(|(number, oid)| {
            *number <= (*desc).natts && pg_sys::SPI_gettypeid(desc, *number) == *oid
        });
        if tuple.is_null() || !is_ours {
            return None;
        }
        let value = |number| {
            let mut is_null = false;
            let datum = pg_sys::heap_getattr(tuple, number, desc, &mut is_null);
            (!is_null).then(|| datum.value() as i64)
        };
        let text = |number| {
            let text = pg_sys::SPI_getvalue(tuple, desc, number);
            (!text.is_null()).then(|| {
                std::ffi::CStr::from_ptr(text)
                    .to_string_lossy()
                    .into_owned()
            })
        };
        Some(Document {
            subject: text(1)?,
            status: value(4)? as i32,
            attempts: value(5)? as i32,
            iterations: value(6)?,
            next_iteration: value(7)?,
            is_held: value(8) == Some(i64::MAX),
            seq: value(12)?,
            ordering_key: text(15),
        })
    }
}

/// What a trigger that runs before an update gives back: the new row, or nothing, so
/// that the row stays as it is.
pub fn before_row_result(call: &Call, goes_on: bool) -> Reply {
    if !goes_on {
        return Reply::trigger();
    }
    // SAFETY: only for a call that `fired` has read as one before the update of a row.
    unsafe {
        let data = &*((*call.fcinfo()).context as *const pg_sys::TriggerData);
        Reply::tuple(data.tg_newtuple)
    }
}

/// While this lives, statements of this session that begin to write the table do not
/// run its row triggers. Only for a table that has no others than fetchq's, and for
/// statements whose rows the caller notes: it saves the server from queueing an
/// event for each row, which costs several times what the note costs.
pub struct SuppressedTriggers {
    relation: pg_sys::Relation,
    triggers: i32,
}

impl SuppressedTriggers {
    /// The table is locked by the caller, and has so many triggers.
    pub fn begin(table: pg_sys::Oid, triggers: i32) -> Self {
        // SAFETY: the look-up in the relation cache gives NULL for a table that is gone.
        let relation = unsafe { pg_sys::RelationIdGetRelation(table) };
        set_row_triggers(relation, triggers, false);
        Self { relation, triggers }
    }
}

impl Drop for SuppressedTriggers {
    fn drop(&mut self) {
        set_row_triggers(self.relation, self.triggers, true);
        // After an ERROR the end of the transaction gives the reference back.
        if !self.relation.is_null() && !std::thread::panicking() {
            // SAFETY: referenced in begin.
            unsafe { pg_sys::RelationClose(self.relation) };
        }
    }
}

/// The executor copies these hints of the relation cache, which is this session's own,
/// when a statement starts, and asks them whether there is a trigger to run. They are
/// set back to what the table has; a description that the cache has rebuilt meanwhile
/// has the true ones anyway.
fn set_row_triggers(relation: pg_sys::Relation, number: i32, run: bool) {
    // SAFETY: the entry stays at its place while it is referenced, and what it points
    // to is replaced together with the pointer.
    unsafe {
        if relation.is_null() {
            return;
        }
        let triggers = (*relation).trigdesc;
        if !triggers.is_null() && (*triggers).numtriggers == number {
            (*triggers).trig_insert_after_row = run;
            (*triggers).trig_update_after_row = run;
        }
    }
}
