//! Calls of triggers: the rows that fired them, and statements that fire none.
//!
//! The rows are decoded by the numbers of their columns, because that is faster than by their
//! names.

use pgrx::pg_sys;

use crate::pg::call::{Call, Reply};
use crate::pg::documents::Column;
use crate::pg::documents_check::TYPES;
use crate::pg::json::Jsonb;

/// The number and the type of a column.
type ColumnType = (i32, pg_sys::Oid);

const SUBJECT: ColumnType = column(Column::Subject);
const VERSION: ColumnType = column(Column::Version);
const PRIORITY: ColumnType = column(Column::Priority);
const STATUS: ColumnType = column(Column::Status);
const ATTEMPTS: ColumnType = column(Column::Attempts);
const ITERATIONS: ColumnType = column(Column::Iterations);
const NEXT_ITERATION: ColumnType = column(Column::NextIteration);
const LOCK_UPGRADE: ColumnType = column(Column::LockUpgrade);
const SEQ: ColumnType = column(Column::Seq);
const EXPIRES_AT: ColumnType = column(Column::ExpiresAt);
const ORDERING_KEY: ColumnType = column(Column::OrderingKey);
const QUEUED: ColumnType = column(Column::Queued);

const fn column(column: Column) -> ColumnType {
    (column.number() as i32, TYPES[column as usize])
}

/// A row that a trigger was called with.
struct Tuple {
    tuple: pg_sys::HeapTuple,
    desc: pg_sys::TupleDesc,
}

impl Tuple {
    /// Returns whether the row has a column with this number and this type.
    unsafe fn has_column(&self, (number, oid): ColumnType) -> bool {
        // SAFETY: The descriptor is that of the relation of the trigger, which is open. The
        // number is checked before it is used.
        unsafe { number <= (*self.desc).natts && pg_sys::SPI_gettypeid(self.desc, number) == oid }
    }

    /// Reads a number or a point in time from a column of this type, or None for NULL.
    unsafe fn value(&self, (number, _): ColumnType) -> Option<i64> {
        let mut is_null = false;
        // SAFETY: The tuple belongs to the descriptor. The caller has checked that the column
        // exists, and that its type is passed by value.
        unsafe {
            let datum = pg_sys::heap_getattr(self.tuple, number, self.desc, &mut is_null);
            (!is_null).then(|| datum.value() as i64)
        }
    }

    /// Reads the text form of the column with this number, or None for NULL.
    unsafe fn text(&self, number: i32) -> Option<String> {
        // SAFETY: The tuple belongs to the descriptor, and the caller has checked the number.
        // The result is a C string in the memory of this call, or NULL.
        unsafe {
            let text = pg_sys::SPI_getvalue(self.tuple, self.desc, number);
            (!text.is_null()).then(|| {
                std::ffi::CStr::from_ptr(text)
                    .to_string_lossy()
                    .into_owned()
            })
        }
    }

    /// Reads a member of a `jsonb` column, if it is a string.
    unsafe fn member(&self, number: i32, key: &str) -> Option<String> {
        let mut is_null = false;
        // SAFETY: The tuple belongs to the descriptor. The caller has checked that the column exists and
        // that it is a jsonb.
        let datum = unsafe { pg_sys::heap_getattr(self.tuple, number, self.desc, &mut is_null) };
        if is_null {
            return None;
        }
        let members = Jsonb::from_datum(datum).value().members()?;
        let (_, value) = members.into_iter().find(|(name, _)| name == key)?;
        value.text()
    }

    /// Reads the text form of the column with this name. Returns None when the column is NULL
    /// or does not exist.
    unsafe fn text_of_name(&self, name: &std::ffi::CStr) -> Option<String> {
        // SAFETY: The descriptor is that of the relation of the trigger, which is open.
        unsafe {
            let number = pg_sys::SPI_fnumber(self.desc, name.as_ptr());
            if number <= 0 {
                return None;
            }
            self.text(number)
        }
    }
}

/// Returns the data of a trigger call, or None when the function was not called as a trigger.
unsafe fn trigger_data(call: &Call) -> Option<&pg_sys::TriggerData> {
    // SAFETY: The context of a trigger call is a TriggerData that lives as long as the call.
    // Its node tag is checked before it is read.
    unsafe {
        let context = (*call.fcinfo()).context;
        if context.is_null() || (*context).type_ != pg_sys::NodeTag::T_TriggerData {
            return None;
        }
        Some(&*(context as *const pg_sys::TriggerData))
    }
}

/// Returns the new row of an AFTER INSERT or UPDATE … FOR EACH ROW trigger.
///
/// Returns None when the function was not called by such a trigger.
unsafe fn new_row(call: &Call) -> Option<(&pg_sys::TriggerData, Tuple)> {
    // SAFETY: The relation of a trigger call is open, and its tuples live as long as the call.
    unsafe {
        let data = trigger_data(call)?;
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
        let desc = (*data.tg_relation).rd_att;
        (!tuple.is_null()).then_some((data, Tuple { tuple, desc }))
    }
}

/// Returns the table of an AFTER … FOR EACH ROW trigger, and whether the row was deleted. None when the
/// function was not called by such a trigger.
unsafe fn table_of_row(call: &Call) -> Option<(pg_sys::Oid, bool)> {
    // SAFETY: The relation of a trigger call is open.
    unsafe {
        let data = trigger_data(call)?;
        let event = data.tg_event;
        let is_after = event & pg_sys::TRIGGER_EVENT_TIMINGMASK == pg_sys::TRIGGER_EVENT_AFTER;
        let is_delete = event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_DELETE;
        (is_after && event & pg_sys::TRIGGER_EVENT_ROW != 0)
            .then(|| ((*data.tg_relation).rd_id, is_delete))
    }
}

/// A document that was inserted or updated: the columns of its index entries.
pub struct WrittenDocument {
    /// The table of documents.
    pub table: pg_sys::Oid,
    /// The version of the document.
    pub version: i32,
    /// The priority of the document.
    pub priority: i32,
    /// The code of the status.
    pub status: i32,
    /// The number of attempts.
    pub attempts: i32,
    /// When the document is due, in microseconds since 2000.
    pub next_iteration: i64,
    /// The number of the document in its queue.
    pub seq: i64,
    /// When it expires if it has not begun by then, in microseconds since 2000. None: it does not.
    pub expires_at: Option<i64>,
}

/// The row of a call of the ready trigger.
pub enum WrittenRow {
    /// The row is a document.
    Document(WrittenDocument),
    /// The row was deleted.
    Deleted(pg_sys::Oid),
    /// The table has other columns than a table of documents, or one of them is NULL. The ready
    /// floors use no index of such a table.
    OtherColumns(pg_sys::Oid),
    /// The function was not called by an AFTER … FOR EACH ROW trigger.
    NotFromRowTrigger,
}

/// Reads the row of an AFTER … FOR EACH ROW trigger on a table of documents.
pub fn written_row(call: &Call) -> WrittenRow {
    const COLUMNS: [ColumnType; 6] = [VERSION, PRIORITY, STATUS, ATTEMPTS, NEXT_ITERATION, SEQ];
    // SAFETY: Tuple and relation live as long as the call. The number and the type of each
    // column are checked before it is read.
    unsafe {
        let (table, (_, row)) = match (table_of_row(call), new_row(call)) {
            (Some((table, true)), _) => return WrittenRow::Deleted(table),
            (Some((table, false)), Some(row)) => (table, row),
            _ => return WrittenRow::NotFromRowTrigger,
        };
        let mut values = [0; COLUMNS.len()];
        for (value, column) in values.iter_mut().zip(COLUMNS) {
            if !row.has_column(column) {
                return WrittenRow::OtherColumns(table);
            }
            let Some(found) = row.value(column) else {
                return WrittenRow::OtherColumns(table);
            };
            *value = found;
        }
        if !row.has_column(EXPIRES_AT) {
            return WrittenRow::OtherColumns(table);
        }
        let [version, priority, status, attempts, next_iteration, seq] = values;
        WrittenRow::Document(WrittenDocument {
            table,
            version: version as i32,
            priority: priority as i32,
            status: status as i32,
            attempts: attempts as i32,
            next_iteration,
            seq,
            expires_at: row.value(EXPIRES_AT),
        })
    }
}

/// Reads the column `name` of the row of an AFTER INSERT or UPDATE … FOR EACH ROW trigger.
///
/// Returns None when the function was not called by such a trigger, or when there is no name.
pub fn written_queue_name(call: &Call) -> Option<String> {
    // SAFETY: Tuple and relation live as long as the call.
    unsafe {
        let (_, row) = new_row(call)?;
        row.text_of_name(c"name")
    }
}

/// A document that has entered a status, as the notify trigger reads it.
pub struct StatusChange {
    /// The OID of the table of documents.
    pub table: u32,
    /// The subject of the document.
    pub subject: String,
    /// The code of the status.
    pub status: i32,
    /// The name of the queue, which is the first argument of the trigger.
    pub queue: String,
}

/// Reads the row of an AFTER INSERT or UPDATE … FOR EACH ROW trigger that has an argument.
///
/// Returns None when the function was not called by such a trigger, or when the table is not a
/// table of documents. The columns are found by their names, because nothing has checked the
/// table.
pub fn status_change(call: &Call) -> Option<StatusChange> {
    // SAFETY: Tuple, relation and arguments live as long as the call. An argument is a C
    // string.
    unsafe {
        let (data, row) = new_row(call)?;
        let trigger = &*data.tg_trigger;
        if trigger.tgnargs < 1 {
            return None;
        }
        Some(StatusChange {
            table: (*data.tg_relation).rd_id.to_u32(),
            subject: row.text_of_name(c"subject")?,
            status: row.text_of_name(c"status")?.parse().ok()?,
            queue: std::ffi::CStr::from_ptr(*trigger.tgargs)
                .to_string_lossy()
                .into_owned(),
        })
    }
}

/// A document as the triggers of the cap and of the order read it.
#[derive(Debug)]
pub struct TriggerDocument {
    /// The subject of the document.
    pub subject: String,
    /// The code of the status.
    pub status: i32,
    /// The number of attempts.
    pub attempts: i32,
    /// The number of iterations.
    pub iterations: i64,
    /// When the document is due, in microseconds since 2000.
    pub next_iteration: i64,
    /// The number of the document in its queue.
    pub seq: i64,
    /// Whether the document is blocked by an earlier one of its ordering key. Then its
    /// `lock_upgrade` is infinite.
    pub is_blocked: bool,
    /// The ordering key of the document.
    pub ordering_key: Option<String>,
    /// That of what was put on it while it was leased. Only in a row before an event.
    pub queued_key: Option<String>,
}

/// The event for which a trigger is called.
pub struct TriggerEvent {
    /// The table of documents.
    pub table: pg_sys::Oid,
    /// Whether the trigger is called before the event.
    pub is_before: bool,
    /// The row before an UPDATE or DELETE.
    pub old: Option<TriggerDocument>,
    /// The row after an INSERT or UPDATE.
    pub new: Option<TriggerDocument>,
}

/// Reads the event and the rows of a trigger call. A statement trigger has no rows.
///
/// Returns None when the function was not called as a trigger, or when the table has other
/// columns than a table of documents.
pub fn event(call: &Call) -> Option<TriggerEvent> {
    // SAFETY: Tuples and relation live as long as the call.
    unsafe {
        let data = trigger_data(call)?;
        let event = data.tg_event;
        let timing = event & pg_sys::TRIGGER_EVENT_TIMINGMASK;
        let mut trigger_event = TriggerEvent {
            table: (*data.tg_relation).rd_id,
            is_before: timing == pg_sys::TRIGGER_EVENT_BEFORE,
            old: None,
            new: None,
        };
        if event & pg_sys::TRIGGER_EVENT_ROW == 0 {
            return Some(trigger_event);
        }
        let desc = (*data.tg_relation).rd_att;
        let (old, new) = match event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => (None, Some(data.tg_trigtuple)),
            pg_sys::TRIGGER_EVENT_DELETE => (Some(data.tg_trigtuple), None),
            _ => (Some(data.tg_trigtuple), Some(data.tg_newtuple)),
        };
        if let Some(tuple) = old {
            trigger_event.old = Some(document(&Tuple { tuple, desc })?);
        }
        if let Some(tuple) = new {
            let row = Tuple { tuple, desc };
            let mut doc = document(&row)?;
            if trigger_event.is_before {
                doc.queued_key = row.member(QUEUED.0, "ordering_key");
            }
            trigger_event.new = Some(doc);
        }
        Some(trigger_event)
    }
}

/// Reads a document. Returns None when the table has other columns than a table of documents.
unsafe fn document(row: &Tuple) -> Option<TriggerDocument> {
    const COLUMNS: [ColumnType; 9] = [
        SUBJECT,
        STATUS,
        ATTEMPTS,
        ITERATIONS,
        NEXT_ITERATION,
        LOCK_UPGRADE,
        SEQ,
        ORDERING_KEY,
        QUEUED,
    ];
    // SAFETY: The tuple belongs to the descriptor. The number and the type of each column are
    // checked before it is read.
    unsafe {
        if row.tuple.is_null() || !COLUMNS.iter().all(|column| row.has_column(*column)) {
            return None;
        }
        Some(TriggerDocument {
            subject: row.text(SUBJECT.0)?,
            status: row.value(STATUS)? as i32,
            attempts: row.value(ATTEMPTS)? as i32,
            iterations: row.value(ITERATIONS)?,
            next_iteration: row.value(NEXT_ITERATION)?,
            is_blocked: row.value(LOCK_UPGRADE) == Some(i64::MAX),
            seq: row.value(SEQ)?,
            ordering_key: row.text(ORDERING_KEY.0),
            queued_key: None,
        })
    }
}

/// Makes the result of a trigger that runs before the update of a row.
///
/// With `is_allowed` it is the new row. Otherwise it is no row, so that the row is not updated.
/// The call must be one for which [`event`] has returned such an event.
pub fn before_row_result(call: &Call, is_allowed: bool) -> Reply {
    if !is_allowed {
        return Reply::trigger();
    }
    // SAFETY: `event` has read this call as one before the update of a row.
    unsafe {
        let data = &*((*call.fcinfo()).context as *const pg_sys::TriggerData);
        Reply::tuple(data.tg_newtuple)
    }
}

/// Prevents the row triggers of a table from being called, until this is dropped.
///
/// That is so for statements of this session that start meanwhile. It is only for a table that
/// has no triggers but those of fetchq, and for statements whose rows the caller notes itself.
/// The server then queues no event for each row, which costs several times as much as the note.
pub struct SuppressedTriggers {
    relation: pg_sys::Relation,
    triggers: i32,
}

impl SuppressedTriggers {
    /// Suppresses the row triggers of a table that the caller has locked.
    ///
    /// Does nothing when the number of its triggers is not `triggers`.
    pub fn begin(table: pg_sys::Oid, triggers: i32) -> Self {
        // SAFETY: The look-up in the relation cache returns NULL for a table that does not
        // exist.
        let relation = unsafe { pg_sys::RelationIdGetRelation(table) };
        set_row_triggers(relation, triggers, false);
        Self { relation, triggers }
    }
}

impl Drop for SuppressedTriggers {
    fn drop(&mut self) {
        set_row_triggers(self.relation, self.triggers, true);
        // After an ERROR the end of the transaction releases the reference.
        if !self.relation.is_null() && !std::thread::panicking() {
            // SAFETY: `begin` has taken a reference.
            unsafe { pg_sys::RelationClose(self.relation) };
        }
    }
}

/// Sets whether the relation cache shows row triggers AFTER INSERT, AFTER UPDATE and AFTER DELETE.
///
/// The executor copies these flags of the relation cache of the session when a statement starts,
/// and reads them to learn whether there is a trigger to call. Later they are set back to what
/// the table has. A description that the cache has rebuilt meanwhile has the true flags anyway.
fn set_row_triggers(relation: pg_sys::Relation, number: i32, is_shown: bool) {
    // SAFETY: The entry of the cache does not move while it is referenced. What it points to is
    // replaced together with the pointer.
    unsafe {
        if relation.is_null() {
            return;
        }
        let triggers = (*relation).trigdesc;
        if !triggers.is_null() && (*triggers).numtriggers == number {
            (*triggers).trig_insert_after_row = is_shown;
            (*triggers).trig_update_after_row = is_shown;
            (*triggers).trig_delete_after_row = is_shown;
        }
    }
}
