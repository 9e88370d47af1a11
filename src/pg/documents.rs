//! Reads and writes single documents through the heap and the indexes of their table,
//! without the executor: looking a plan up, locking, starting and ending it costs more
//! than the work itself.
//!
//! Only for a table that is just as fetchq made it (`Queue::documents` knows), in READ
//! COMMITTED. What the executor would check is checked in `open`; where more is asked
//! than that, it gives None, and the caller runs a statement instead. What can not be
//! decided here (a row that changed meanwhile) is left to the statement too.

use pgrx::pg_sys;

use crate::pg::documents_check::{
    Access, COLUMNS, Indexes, TYPES, has_rights, is_as_made, is_usable, may_use_schema,
};
use crate::pg::index_walk::{
    COMPARE_INT4, COMPARE_INT8, COMPARE_TIMESTAMPTZ, begin_scan, equal, row_from, row_members,
    scan_key,
};
use crate::pg::value::Arg;

/// Built-in functions keep their numbers in every version of PostgreSQL.
const EQUAL_TEXT: u32 = 67;

const LESS_OR_EQUAL_TIMESTAMPTZ: u32 = 1155;

/// The columns of the documents, in the order of the table (src/store/queue_tables.rs).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(usize)]
pub enum Column {
    Subject,
    Version,
    Priority,
    Status,
    Attempts,
    Iterations,
    NextIteration,
    LockUpgrade,
    CreatedAt,
    LastIteration,
    Payload,
    Seq,
    Lease,
    WorkerSession,
    OrderingKey,
    MaxAttempts,
    LastError,
    /// (read and written by statements only)
    #[allow(dead_code)]
    Origin,
}

/// One document, taken apart. What is by reference points into a page, or into memory
/// of the call: use it before the next one is read.
pub struct Row {
    pub values: Vec<pg_sys::Datum>,
    pub nulls: Vec<bool>,
    pub tid: pg_sys::ItemPointerData,
}

impl Row {
    /// A new document, all columns NULL.
    pub fn empty() -> Self {
        Self {
            values: vec![pg_sys::Datum::from(0); COLUMNS],
            nulls: vec![true; COLUMNS],
            tid: pg_sys::ItemPointerData::default(),
        }
    }

    /// A column of four bytes.
    pub fn int4(&self, column: Column) -> i32 {
        self.values[column as usize].value() as i32
    }

    /// A column of eight bytes: a number, or a point in time.
    pub fn int8(&self, column: Column) -> i64 {
        self.values[column as usize].value() as i64
    }

    pub fn is_null(&self, column: Column) -> bool {
        self.nulls[column as usize]
    }

    pub fn arg(&self, column: Column) -> Arg {
        let at = column as usize;
        Arg::new(TYPES[at], (!self.nulls[at]).then_some(self.values[at]))
    }

    /// The value is of the column's type.
    pub fn set(&mut self, column: Column, value: &Arg) {
        self.values[column as usize] = value.datum();
        self.nulls[column as usize] = value.is_null();
    }
}

/// What became of an attempt to change a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    Done,
    /// Another transaction has locked it, or is changing it.
    Locked,
    Removed,
    /// Somebody has changed it since it was read, and given it this status; None where
    /// that is not known, or where this transaction itself has locked it.
    Outdated(Option<i32>),
}

/// A table of documents that is open for reading and writing.
pub struct Documents {
    pub table: pg_sys::Relation,
    pub key: pg_sys::Relation,
    pub pick: pg_sys::Relation,
    pub due: pg_sys::Relation,
    pub slot: *mut pg_sys::TupleTableSlot,
    scan: pg_sys::IndexScanDesc,
    has_snapshot: bool,
    /// The mark of rows that may have to go, and the transaction that holds its lock.
    pub mark: Option<(pg_sys::TransactionId, u32)>,
    /// What a comparison of rows in the scan's keys points to.
    members: Box<[pg_sys::ScanKeyData]>,
}

impl Documents {
    /// Opens a table that the caller has locked as a writer does. None where only the
    /// executor will do.
    pub fn open(table: pg_sys::Oid, indexes: &Indexes, access: Access) -> Option<Self> {
        // SAFETY: plain variables and caches of this backend. The table is locked, so it
        // and its indexes exist; what is opened is closed when this is dropped, or by
        // the end of the transaction after an ERROR.
        unsafe {
            let rights_hook = &raw const pg_sys::ExecutorCheckPerms_hook;
            if pg_sys::XactIsoLevel > pg_sys::XACT_READ_COMMITTED as i32
                || (*rights_hook).is_some()
                || !has_rights(table, access)
            {
                return None;
            }
            let table = pg_sys::table_open(table, pg_sys::NoLock as i32);
            if !is_as_made(table, indexes) || !may_use_schema(table) {
                pg_sys::table_close(table, pg_sys::NoLock as i32);
                return None;
            }
            let command = match access {
                Access::Insert => pg_sys::CmdType::CMD_INSERT,
                Access::Update => pg_sys::CmdType::CMD_UPDATE,
                Access::Delete | Access::PickMode => pg_sys::CmdType::CMD_DELETE,
            };
            pg_sys::CheckCmdReplicaIdentity(table, command);
            let open = |index, is_needed| {
                if is_needed {
                    pg_sys::index_open(index, pg_sys::RowExclusiveLock as i32)
                } else {
                    std::ptr::null_mut()
                }
            };
            let documents = Self {
                table,
                key: open(indexes.key, true),
                pick: open(indexes.pick, access != Access::Delete),
                due: open(
                    indexes.due,
                    matches!(access, Access::Insert | Access::Update),
                ),
                slot: std::ptr::null_mut(),
                scan: std::ptr::null_mut(),
                has_snapshot: false,
                mark: None,
                members: Box::default(),
            };
            let is_usable = [documents.key, documents.pick, documents.due]
                .iter()
                .all(|index| index.is_null() || is_usable(*index));
            is_usable.then_some(documents)
        }
    }

    /// Makes what this transaction has done visible, and takes a snapshot, as each
    /// statement does.
    unsafe fn begin(&mut self, index: pg_sys::Relation, keys: &mut [pg_sys::ScanKeyData]) {
        // SAFETY: as many keys as the scan is begun for, which copies them. The snapshot
        // is popped, the scan ended and the slot freed when this
        // is dropped; after an ERROR the end of the (sub)transaction does that.
        unsafe {
            pg_sys::CommandCounterIncrement();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
            self.has_snapshot = true;
            self.slot = pg_sys::table_slot_create(self.table, std::ptr::null_mut());
            let snapshot = pg_sys::GetActiveSnapshot();
            self.scan = begin_scan(self.table, index, snapshot, keys.len());
            pg_sys::index_rescan(
                self.scan,
                keys.as_mut_ptr(),
                keys.len() as i32,
                std::ptr::null_mut(),
                0,
            );
        }
    }

    /// Starts to read what can be picked of a version, in order, up to a point in time:
    /// of one priority from a place (next_iteration, attempts, seq) on, or of all.
    pub fn read_ready(&mut self, version: i32, from: Option<(i32, (i64, i32, i64))>, until: i64) {
        let until = scan_key(
            0,
            3,
            pg_sys::BTLessEqualStrategyNumber,
            LESS_OR_EQUAL_TIMESTAMPTZ,
            pg_sys::Datum::from(until),
        );
        let mut keys = vec![equal(1, version)];
        if let Some((priority, (time, attempts, seq))) = from {
            self.members = Box::new(row_members(
                3,
                [
                    (COMPARE_TIMESTAMPTZ, pg_sys::Datum::from(time)),
                    (COMPARE_INT4, pg_sys::Datum::from(attempts)),
                    (COMPARE_INT8, pg_sys::Datum::from(seq)),
                ],
            ));
            keys.push(equal(2, priority));
            keys.push(row_from(&mut self.members));
        }
        keys.push(until);
        // SAFETY: the index is open, because documents are read to be updated.
        unsafe { self.begin(self.pick, &mut keys) };
    }

    /// Looks for a document.
    pub fn find(&mut self, subject: &str) -> Option<Row> {
        let subject = Arg::from(subject);
        let mut key = scan_key(
            0,
            1,
            pg_sys::BTEqualStrategyNumber,
            EQUAL_TEXT,
            subject.datum(),
        );
        key.sk_collation = pg_sys::C_COLLATION_OID;
        let mut keys = [key];
        // SAFETY: the index is open; a scan that was begun was one of the same kind,
        // because a list is looked for in one go.
        unsafe {
            if self.scan.is_null() {
                self.begin(self.key, &mut keys);
            } else {
                pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), 1, std::ptr::null_mut(), 0);
            }
        }
        self.next()
    }

    /// The next document that can be seen.
    pub fn next(&mut self) -> Option<Row> {
        pgrx::check_for_interrupts!();
        // SAFETY: a scan was begun, and its slot belongs to the table. The slot keeps the
        // page pinned that the values point into.
        unsafe {
            let found = pg_sys::index_getnext_slot(
                self.scan,
                pg_sys::ScanDirection::ForwardScanDirection,
                self.slot,
            );
            if !found {
                return None;
            }
            let columns = (*(*self.table).rd_att).natts;
            pg_sys::slot_getsomeattrs_int(self.slot, columns);
            let slot = &*self.slot;
            let columns = columns as usize;
            Some(Row {
                values: std::slice::from_raw_parts(slot.tts_values, columns).to_vec(),
                nulls: std::slice::from_raw_parts(slot.tts_isnull, columns).to_vec(),
                tid: slot.tts_tid,
            })
        }
    }

    /// Whether the document that was just read could be written now: no other transaction
    /// has locked it, or has changed it.
    pub fn is_free(&self) -> bool {
        // SAFETY: an index scan of a heap table fills a buffer slot and holds its buffer
        // pinned; the content lock is needed to look at hint bits.
        unsafe {
            let slot = self.slot as *mut pg_sys::BufferHeapTupleTableSlot;
            let buffer = (*slot).buffer;
            let command = pg_sys::GetCurrentCommandId(false);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let state = pg_sys::HeapTupleSatisfiesUpdate((*slot).base.tuple, command, buffer);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            state == pg_sys::TM_Result::TM_Ok
        }
    }
}

impl Drop for Documents {
    fn drop(&mut self) {
        // After an ERROR the transaction's resources go by themselves.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: opened in `open` and `begin`; locks are kept until the end of the
        // transaction, as the executor does.
        unsafe {
            if let Some((transaction, _)) = self.mark {
                pg_sys::SpeculativeInsertionLockRelease(transaction);
            }
            if !self.scan.is_null() {
                pg_sys::index_endscan(self.scan);
            }
            if !self.slot.is_null() {
                pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            }
            if self.has_snapshot {
                pg_sys::PopActiveSnapshot();
            }
            for index in [self.key, self.pick, self.due] {
                if !index.is_null() {
                    pg_sys::index_close(index, pg_sys::NoLock as i32);
                }
            }
            pg_sys::table_close(self.table, pg_sys::NoLock as i32);
        }
    }
}
