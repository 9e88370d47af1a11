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
    Access, COLUMNS, Indexes, TYPES, has_assertions, has_rights, is_as_made, is_usable,
    may_use_schema,
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
    values: Vec<pg_sys::Datum>,
    nulls: Vec<bool>,
    tid: pg_sys::ItemPointerData,
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
    table: pg_sys::Relation,
    key: pg_sys::Relation,
    pick: pg_sys::Relation,
    due: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    scan: pg_sys::IndexScanDesc,
    has_snapshot: bool,
    /// The mark of rows that may have to go, and the transaction that holds its lock.
    mark: Option<(pg_sys::TransactionId, u32)>,
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
                Access::Delete | Access::Take => pg_sys::CmdType::CMD_DELETE,
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

    /// Writes the new version of a document that was just read. With `wait` false, one
    /// that another transaction has locked is left alone.
    pub fn replace(&mut self, row: &mut Row, wait: bool) -> Change {
        // SAFETY: the tuple is formed by the table's descriptor, from as many values as
        // it has columns; heap_update copies it into the page.
        unsafe {
            let tuple = self.form(row);
            let change = match self.lock_for_assertions(row.tid, wait) {
                None => self.update(row.tid, tuple, wait),
                Some(Change::Done) => self.update(row.tid, tuple, true),
                Some(other) => other,
            };
            let is_heap_only = (*(*tuple).t_data).t_infomask2 & pg_sys::HEAP_ONLY_TUPLE as u16 != 0;
            if change == Change::Done && !is_heap_only {
                // Although it is unique already: the check begins at the first page of
                // its entries, where all that insert the same subject take turns.
                let unique = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES;
                self.index_subject(row, &mut (*tuple).t_self, unique, true);
                self.index_state(row, &mut (*tuple).t_self);
            }
            pg_sys::heap_freetuple(tuple);
            change
        }
    }

    /// A server that was built with assertions does not allow `heap_update` to say that
    /// a row is locked: there a claim locks it first, which writes more. None: no need.
    unsafe fn lock_for_assertions(
        &self,
        tid: pg_sys::ItemPointerData,
        wait: bool,
    ) -> Option<Change> {
        if wait || !has_assertions() {
            return None;
        }
        let mut failure = pg_sys::TM_FailureData::default();
        let mut buffer: pg_sys::Buffer = 0;
        let mut tuple = pg_sys::HeapTupleData {
            t_self: tid,
            ..Default::default()
        };
        // SAFETY: the row was read in this call, so its place exists; the pin that comes
        // back is released.
        unsafe {
            let result = pg_sys::heap_lock_tuple(
                self.table,
                &mut tuple,
                pg_sys::GetCurrentCommandId(true),
                pg_sys::LockTupleMode::LockTupleExclusive,
                pg_sys::LockWaitPolicy::LockWaitSkip,
                false,
                &mut buffer,
                &mut failure,
            );
            pg_sys::ReleaseBuffer(buffer);
            Some(match result {
                pg_sys::TM_Result::TM_Ok => Change::Done,
                pg_sys::TM_Result::TM_WouldBlock => Change::Locked,
                pg_sys::TM_Result::TM_Deleted => Change::Removed,
                _ => Change::Outdated(None),
            })
        }
    }

    unsafe fn update(
        &self,
        mut tid: pg_sys::ItemPointerData,
        tuple: pg_sys::HeapTuple,
        wait: bool,
    ) -> Change {
        let mut failure = pg_sys::TM_FailureData::default();
        let mut mode = pg_sys::LockTupleMode::LockTupleExclusive;
        #[cfg(not(any(feature = "pg13", feature = "pg14", feature = "pg15")))]
        let mut indexes = pg_sys::TU_UpdateIndexes::TU_None;
        // SAFETY: the row was read in this call, so its place exists.
        let result = unsafe {
            pg_sys::heap_update(
                self.table,
                &mut tid,
                tuple,
                pg_sys::GetCurrentCommandId(true),
                std::ptr::null_mut(),
                wait,
                &mut failure,
                &mut mode,
                #[cfg(not(any(feature = "pg13", feature = "pg14", feature = "pg15")))]
                &mut indexes,
            )
        };
        self.what_happened(result, &failure)
    }

    fn what_happened(
        &self,
        result: pg_sys::TM_Result::Type,
        failure: &pg_sys::TM_FailureData,
    ) -> Change {
        match result {
            pg_sys::TM_Result::TM_Ok => Change::Done,
            pg_sys::TM_Result::TM_Deleted => Change::Removed,
            // SAFETY: the place of the next version, as heap_update has found it.
            pg_sys::TM_Result::TM_Updated => Change::Outdated(unsafe { self.status_in(failure) }),
            // SAFETY: the slot holds the row, and the pin on its page.
            pg_sys::TM_Result::TM_BeingModified
                if !unsafe { self.may_be_locked_by_us(failure.xmax) } =>
            {
                Change::Locked
            }
            _ => Change::Outdated(None),
        }
    }

    /// The status that a row was given by who has changed it since it was read.
    unsafe fn status_in(&self, failure: &pg_sys::TM_FailureData) -> Option<i32> {
        let mut tid = failure.ctid;
        // SAFETY: any version is fetched, whoever may see it; one that took the place of
        // a version that is gone was written by another transaction. The slot keeps its
        // page pinned until it is dropped.
        unsafe {
            let fetch = (*(*self.table).rd_tableam).tuple_fetch_row_version?;
            let slot = pg_sys::table_slot_create(self.table, std::ptr::null_mut());
            let any = &raw mut pg_sys::SnapshotAnyData;
            let found =
                pg_sys::ffi::pg_guard_ffi_boundary(|| fetch(self.table, &mut tid, any, slot));
            let mut status = None;
            if found {
                let tuple = (*(slot as *mut pg_sys::BufferHeapTupleTableSlot))
                    .base
                    .tuple;
                if (*(*tuple).t_data).t_choice.t_heap.t_xmin == failure.xmax {
                    let column = Column::Status as usize;
                    pg_sys::slot_getsomeattrs_int(slot, column as i32 + 1);
                    status = Some((*(*slot).tts_values.add(column)).value() as i32);
                }
            }
            pg_sys::ExecDropSingleTupleTableSlot(slot);
            status
        }
    }

    /// Whether it may be this transaction that has locked the current row, by itself or
    /// among others: that is for a statement to find out.
    unsafe fn may_be_locked_by_us(&self, holder: pg_sys::TransactionId) -> bool {
        // SAFETY: as above; the bit is a hint, so it is read without a lock.
        unsafe {
            let slot = self.slot as *mut pg_sys::BufferHeapTupleTableSlot;
            let header = (*(*slot).base.tuple).t_data;
            let is_multi = (&raw const (*header).t_infomask).read_volatile()
                & pg_sys::HEAP_XMAX_IS_MULTI as u16
                != 0;
            is_multi || pg_sys::TransactionIdIsCurrentTransactionId(holder)
        }
    }

    /// Removes a document that was just read. With `wait` false, one that another
    /// transaction has locked is left alone.
    pub fn remove(&mut self, row: &Row, wait: bool) -> Change {
        let mut failure = pg_sys::TM_FailureData::default();
        let mut tid = row.tid;
        // SAFETY: the row was read in this call, so its place exists.
        let result = unsafe {
            pg_sys::heap_delete(
                self.table,
                &mut tid,
                pg_sys::GetCurrentCommandId(true),
                std::ptr::null_mut(),
                wait,
                &mut failure,
                false,
            )
        };
        self.what_happened(result, &failure)
    }

    /// Adds a document whose subject nobody else would think of; false when somebody
    /// has. Of two sessions that add the same subject in this way at the same time,
    /// both would be told so.
    pub fn add(&mut self, row: &mut Row) -> bool {
        // SAFETY: as in `replace`.
        unsafe {
            let tuple = self.form(row);
            let command = pg_sys::GetCurrentCommandId(true);
            pg_sys::heap_insert(self.table, tuple, command, 0, std::ptr::null_mut());
            row.tid = (*tuple).t_self;
            let unique = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL;
            let is_new = self.index_subject(row, &mut (*tuple).t_self, unique, false);
            if is_new {
                self.index_state(row, &mut (*tuple).t_self);
            } else {
                pg_sys::CommandCounterIncrement();
                self.remove(row, true);
            }
            pg_sys::heap_freetuple(tuple);
            is_new
        }
    }

    /// Adds a document if nobody has, or is about to add, its subject; waits for nobody.
    /// As the executor does for ON CONFLICT: a row that may have to go is marked, so that
    /// others wait for the mark and not for this transaction, and two that insert the
    /// same subject do not wait for each other. The mark is the same for all rows until
    /// this is dropped.
    pub fn add_if_new(&mut self, row: &mut Row) -> bool {
        // SAFETY: as in `replace`; the mark is removed from the row in either way. Its
        // lock is given back by `drop`, or by the end of the transaction after an ERROR.
        unsafe {
            let tuple = self.form(row);
            let (_, token) = *self.mark.get_or_insert_with(|| {
                let transaction = pg_sys::GetCurrentTransactionId();
                let token = pg_sys::SpeculativeInsertionLockAcquire(transaction);
                (transaction, token)
            });
            (*(*tuple).t_data).t_ctid = pg_sys::ItemPointerData {
                ip_blkid: pg_sys::BlockIdData {
                    bi_hi: (token >> 16) as u16,
                    bi_lo: token as u16,
                },
                ip_posid: pg_sys::SpecTokenOffsetNumber as u16,
            };
            let command = pg_sys::GetCurrentCommandId(true);
            let options = pg_sys::HEAP_INSERT_SPECULATIVE as i32;
            pg_sys::heap_insert(self.table, tuple, command, options, std::ptr::null_mut());
            let tid = &raw mut (*tuple).t_self;
            let unique = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL;
            let is_new = self.index_subject(row, tid, unique, false);
            if is_new {
                self.index_state(row, tid);
                pg_sys::heap_finish_speculative(self.table, tid);
            } else {
                pg_sys::heap_abort_speculative(self.table, tid);
            }
            pg_sys::heap_freetuple(tuple);
            is_new
        }
    }

    unsafe fn form(&self, row: &mut Row) -> pg_sys::HeapTuple {
        // SAFETY: there are as many values as the table has columns.
        unsafe {
            let desc = (*self.table).rd_att;
            let tuple =
                pg_sys::heap_form_tuple(desc, row.values.as_mut_ptr(), row.nulls.as_mut_ptr());
            (*tuple).t_tableOid = (*self.table).rd_id;
            tuple
        }
    }

    unsafe fn index_subject(
        &self,
        row: &Row,
        tid: *mut pg_sys::ItemPointerData,
        unique: pg_sys::IndexUniqueCheck::Type,
        is_unchanged: bool,
    ) -> bool {
        // SAFETY: the columns of each index were checked when the queue was opened, the
        // rest in `open`.
        unsafe { self.insert(self.key, row, &[Column::Subject], tid, unique, is_unchanged) }
    }

    /// Makes the entry of a row in the index of its state, if there is one.
    unsafe fn index_state(&self, row: &Row, tid: *mut pg_sys::ItemPointerData) {
        if !row.is_null(Column::LockUpgrade) {
            return;
        }
        let often = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO;
        // SAFETY: as above.
        unsafe {
            match row.int4(Column::Status) {
                1 => {
                    let columns = [
                        Column::Version,
                        Column::Priority,
                        Column::NextIteration,
                        Column::Attempts,
                        Column::Seq,
                    ];
                    self.insert(self.pick, row, &columns, tid, often, false);
                }
                0 | 2 => {
                    let columns = [Column::Status, Column::NextIteration, Column::Seq];
                    self.insert(self.due, row, &columns, tid, often, false);
                }
                _ => {}
            }
        }
    }

    unsafe fn insert<const N: usize>(
        &self,
        index: pg_sys::Relation,
        row: &Row,
        columns: &[Column; N],
        tid: *mut pg_sys::ItemPointerData,
        unique: pg_sys::IndexUniqueCheck::Type,
        #[allow(unused_variables)] is_unchanged: bool,
    ) -> bool {
        let mut values = columns.map(|column| row.values[column as usize]);
        let mut nulls = columns.map(|column| row.nulls[column as usize]);
        // A B-tree does not look into it.
        let mut info = pg_sys::IndexInfo {
            type_: pg_sys::NodeTag::T_IndexInfo,
            ..Default::default()
        };
        // SAFETY: as many values as the index has columns, of their types.
        unsafe {
            pg_sys::index_insert(
                index,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
                tid,
                self.table,
                unique,
                #[cfg(not(feature = "pg13"))]
                is_unchanged,
                &mut info,
            )
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
