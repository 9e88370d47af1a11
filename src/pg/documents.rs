//! Opens and reads a table of documents through its heap and its indexes, without the executor.
//!
//! To look up a plan, to lock it, and to start and end the executor costs more than the work on
//! a single document. This way is only for a table that is exactly as fetchq created it, which
//! `Queue::documents` checks, and for transactions of isolation level READ COMMITTED.
//! [`Documents::open`] checks what the executor would check. It returns None where the executor
//! is needed, and the caller runs a statement instead. The caller also runs a statement where
//! the outcome cannot be decided here, for example when a row has changed since it was read.
//!
//! `documents_check.rs` has the checks, and `documents_write.rs` has the changes.

use pgrx::pg_sys;

pub use crate::domain::document::Column;
use crate::pg::documents_check::{Access, Indexes, TYPES, is_as_created, is_usable};
use crate::pg::index_walk::{
    COMPARE_INT4, COMPARE_INT8, COMPARE_TIMESTAMPTZ, Identity, begin_scan, equal, row_from,
    row_members, scan_key,
};
use crate::pg::json::Jsonb;
use crate::pg::memory;
use crate::pg::scan_budget::Budget;
use crate::pg::text::text_bytes;
use crate::pg::time;
use crate::pg::value::Arg;

/// The OID of `texteq`. Built-in functions have the same OID in every version of PostgreSQL.
const EQUAL_TEXT: u32 = 67;

/// The OID of `timestamptz_le`.
const LESS_OR_EQUAL_TIMESTAMPTZ: u32 = 1155;

/// How many entries of the pick index are read beyond the number of documents that are wanted. They allow for those
/// that others have picked since the floor was advanced, which happens after 32: most are marked as dead by then, and
/// do not count. Other values were not measured.
const ENTRIES_BESIDE: u32 = 24;

/// Where more documents are wanted, a page is read as a whole: it has up to 180 entries.
const FEW: i32 = 100;

/// Lets a scan begin anew with the keys that it has.
const NO_KEYS: *mut pg_sys::ScanKeyData = std::ptr::null_mut();

/// The columns of one document.
///
/// A value that is passed by reference points into a page or into the memory of the call. It
/// must be used before the next document is read.
pub struct Row {
    /// One value for each column, in the order of the table.
    pub values: Vec<pg_sys::Datum>,
    /// Whether the column is NULL.
    pub nulls: Vec<bool>,
    /// Where the row is in the table.
    pub tid: pg_sys::ItemPointerData,
}

impl Row {
    /// Makes a new document whose columns are all NULL.
    pub fn empty() -> Self {
        Self {
            values: vec![pg_sys::Datum::from(0); TYPES.len()],
            nulls: vec![true; TYPES.len()],
            tid: pg_sys::ItemPointerData::default(),
        }
    }

    /// Returns an `integer` column that is not NULL.
    pub fn int4(&self, column: Column) -> i32 {
        self.values[column as usize].value() as i32
    }

    /// Returns a `bigint` column, or a `timestamptz` column in microseconds since 2000, that is
    /// not NULL.
    pub fn int8(&self, column: Column) -> i64 {
        self.values[column as usize].value() as i64
    }

    /// Returns a `timestamptz` column in microseconds since 2000, or None when it is NULL.
    pub fn timestamp(&self, column: Column) -> Option<i64> {
        (!self.is_null(column)).then(|| self.int8(column))
    }

    /// Returns whether a column is NULL.
    pub fn is_null(&self, column: Column) -> bool {
        self.nulls[column as usize]
    }

    /// Returns whether a document has expired by now, and not by the start of the transaction: it has not
    /// begun, and its time is over.
    pub fn has_expired(&self) -> bool {
        !self.is_null(Column::ExpiresAt)
            && self.int8(Column::ExpiresAt) <= time::clock()
            && self.int4(Column::Attempts) == 0
    }

    /// Returns a column as a value with its type.
    pub fn arg(&self, column: Column) -> Arg {
        let at = column as usize;
        Arg::new(TYPES[at], (!self.nulls[at]).then_some(self.values[at]))
    }

    /// Returns a `jsonb` column as JSON text, or None when it is NULL.
    pub fn json_text(&self, column: Column) -> Option<String> {
        let value = self.values[column as usize];
        (!self.is_null(column)).then(|| Jsonb::from_datum(value).to_text())
    }

    /// Sets a column to a value of its type.
    pub fn set(&mut self, column: Column, value: &Arg) {
        self.values[column as usize] = value.datum();
        self.nulls[column as usize] = value.is_null();
    }
}

impl Row {
    /// Where the row is: its block and the number within it.
    pub fn place(&self) -> (u32, u16) {
        let block = self.tid.ip_blkid;
        let number = u32::from(block.bi_hi) << 16 | u32::from(block.bi_lo);
        (number, self.tid.ip_posid)
    }

    /// What tells the document from all others.
    pub fn identity(&self) -> Identity<'_> {
        Identity {
            subject: self.subject_bytes(),
            seq: self.int8(Column::Seq),
            created_at: self.timestamp(Column::CreatedAt).unwrap_or(0),
        }
    }

    /// The bytes of the subject.
    pub fn subject_bytes(&self) -> &[u8] {
        // SAFETY: A subject is a text, and the row keeps it.
        unsafe { text_bytes(self.values[Column::Subject as usize]) }
    }
}

/// The outcome of an attempt to change a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The document was changed.
    Done,
    /// Another transaction has locked the document, or is changing it.
    Locked,
    /// Another transaction has removed the document since it was read.
    Removed,
    /// Another transaction has changed the document since it was read, and has given it this
    /// status. None when the status is not known, or when this transaction itself has locked
    /// the document.
    Outdated(Option<i32>),
}

/// A table of documents that is open for reading and writing.
pub struct Documents {
    /// The table.
    pub table: pg_sys::Relation,
    /// The index of the primary key.
    pub key: pg_sys::Relation,
    /// The index of documents that are pending. NULL when the access does not need it.
    pub pick: pg_sys::Relation,
    /// The index of planned and active documents. NULL when the access does not need it.
    pub due: pg_sys::Relation,
    /// The index of documents that expire. It is opened where one is written.
    pub expiry: pg_sys::Oid,
    /// The row that was read last. NULL before the first one is read.
    pub slot: *mut pg_sys::TupleTableSlot,
    scan: pg_sys::IndexScanDesc,
    has_snapshot: bool,
    /// The transaction that holds the lock of speculative insertions, and their token.
    pub speculation: Option<(pg_sys::TransactionId, u32)>,
    /// Slots for the rows that are added together.
    pub slots: Vec<*mut pg_sys::TupleTableSlot>,
    /// The members of the row comparison in the keys of the scan, which point here.
    row_members: Box<[pg_sys::ScanKeyData]>,
    /// How much of its range the scan reads, if not all. A key points here.
    budget: Option<Box<Budget>>,
    /// How many rows the scan has returned.
    returned: u32,
}

impl Documents {
    /// Opens a table for one kind of access. Returns None where the executor is needed.
    ///
    /// The caller has locked the table in the mode ROW EXCLUSIVE, and has checked the rights of
    /// the session.
    pub fn open(table: pg_sys::Oid, indexes: &Indexes, access: Access) -> Option<Self> {
        // SAFETY: These are plain variables and caches of this backend. The table is locked,
        // so it and its indexes exist. What is opened here is closed by `drop`, or by the end
        // of the transaction after an ERROR.
        unsafe {
            let permission_hook = &raw const pg_sys::ExecutorCheckPerms_hook;
            if pg_sys::XactIsoLevel > pg_sys::XACT_READ_COMMITTED as i32
                || (*permission_hook).is_some()
            {
                return None;
            }
            let table = pg_sys::table_open(table, pg_sys::NoLock as i32);
            if !is_as_created(table, indexes) {
                pg_sys::table_close(table, pg_sys::NoLock as i32);
                return None;
            }
            let command = match access {
                Access::Insert => pg_sys::CmdType::CMD_INSERT,
                Access::Update => pg_sys::CmdType::CMD_UPDATE,
                Access::Delete | Access::DeleteReady => pg_sys::CmdType::CMD_DELETE,
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
                expiry: indexes.expiry,
                slot: std::ptr::null_mut(),
                scan: std::ptr::null_mut(),
                has_snapshot: false,
                speculation: None,
                slots: Vec::new(),
                row_members: Box::default(),
                budget: None,
                returned: 0,
            };
            let is_usable = [documents.key, documents.pick, documents.due]
                .iter()
                .all(|index| index.is_null() || is_usable(*index));
            is_usable.then_some(documents)
        }
    }

    /// Makes the changes of this transaction visible and takes a snapshot, as each statement does.
    unsafe fn prepare(&mut self) {
        // SAFETY: `drop` pops the snapshot and frees the slot. After an ERROR the end of the (sub)transaction
        // does that.
        unsafe {
            if !self.has_snapshot {
                pg_sys::CommandCounterIncrement();
                pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
                self.has_snapshot = true;
            }
            if self.slot.is_null() {
                self.slot = pg_sys::table_slot_create(self.table, std::ptr::null_mut());
            }
        }
    }

    /// The document in the slot.
    unsafe fn row(&self) -> Row {
        // SAFETY: The slot is filled, and has all columns of the table afterwards.
        unsafe {
            let columns = (*(*self.table).rd_att).natts;
            pg_sys::slot_getsomeattrs_int(self.slot, columns);
            let slot = &*self.slot;
            let columns = columns as usize;
            Row {
                values: std::slice::from_raw_parts(slot.tts_values, columns).to_vec(),
                nulls: std::slice::from_raw_parts(slot.tts_isnull, columns).to_vec(),
                tid: slot.tts_tid,
            }
        }
    }

    /// Begins a scan of an index.
    unsafe fn begin(&mut self, index: pg_sys::Relation, keys: &mut [pg_sys::ScanKeyData]) {
        // SAFETY: The scan is begun for this number of keys, and copies them. `drop` ends it. After an ERROR the
        // end of the (sub)transaction does that.
        unsafe {
            self.prepare();
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

    /// Starts to read the pending documents of a version, in the order of the index.
    ///
    /// `from` is a priority, and the first entry that is read: next_iteration in microseconds
    /// since 2000, attempts, and seq. None reads all priorities. `until` is the latest
    /// next_iteration that is read, in microseconds since 2000. `wanted` is the number of documents
    /// that will probably be read.
    pub fn read_ready(
        &mut self,
        version: i32,
        from: Option<(i32, (i64, i32, i64))>,
        until: i64,
        wanted: i32,
    ) {
        let mut until = scan_key(
            0,
            3,
            pg_sys::BTLessEqualStrategyNumber,
            LESS_OR_EQUAL_TIMESTAMPTZ,
            pg_sys::Datum::from(until),
        );
        let mut keys = vec![equal(1, version)];
        if let Some((priority, (time, attempts, seq))) = from {
            self.row_members = Box::new(row_members(
                3,
                [
                    (COMPARE_TIMESTAMPTZ, pg_sys::Datum::from(time)),
                    (COMPARE_INT4, pg_sys::Datum::from(attempts)),
                    (COMPARE_INT8, pg_sys::Datum::from(seq)),
                ],
            ));
            keys.push(equal(2, priority));
            keys.push(row_from(&mut self.row_members));
            if (0..=FEW).contains(&wanted) {
                let budget = Budget::new(wanted.unsigned_abs() + ENTRIES_BESIDE);
                self.budget.insert(Box::new(budget)).restrict(&mut until);
            }
        }
        keys.push(until);
        // SAFETY: The index is open, because ready documents are read with an access for which
        // `open` opens it. `row_members` and `budget` live as long as the scan.
        unsafe { self.begin(self.pick, &mut keys) };
    }

    /// Reads the document with this subject. Returns None when the snapshot shows none.
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
        // SAFETY: The index is open. A scan that was begun before is one of the same index,
        // because one `Documents` either finds subjects or reads ready documents.
        unsafe {
            if self.scan.is_null() {
                self.begin(self.key, &mut keys);
            } else {
                pg_sys::index_rescan(self.scan, keys.as_mut_ptr(), 1, std::ptr::null_mut(), 0);
            }
        }
        self.next()
    }

    /// Reads the document at a place. Returns None when the snapshot shows none.
    pub fn fetch(&mut self, block: u32, offset: u16) -> Option<Row> {
        // SAFETY: As in `begin` and `next`. The table is locked, so it does not become shorter meanwhile.
        unsafe {
            if !has_block(self.table, block) {
                return None;
            }
            self.prepare();
            let mut tid = pg_sys::ItemPointerData {
                ip_blkid: pg_sys::BlockIdData {
                    bi_hi: (block >> 16) as u16,
                    bi_lo: block as u16,
                },
                ip_posid: offset,
            };
            let fetch = (*(*self.table).rd_tableam).tuple_fetch_row_version?;
            let snapshot = pg_sys::GetActiveSnapshot();
            let (table, slot) = (self.table, self.slot);
            let found =
                pg_sys::ffi::pg_guard_ffi_boundary(|| fetch(table, &mut tid, snapshot, slot));
            found.then(|| self.row())
        }
    }

    /// Reads the next document that the snapshot shows. Returns None at the end.
    pub fn next(&mut self) -> Option<Row> {
        memory::check_for_interrupts();
        let read = |scan, slot| {
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            // SAFETY: A scan was begun, and its slot belongs to the table. The slot keeps the page
            // pinned into which the values point.
            unsafe { pg_sys::index_getnext_slot(scan, forward, slot) }
        };
        let mut found = read(self.scan, self.slot);
        if !found && self.budget.as_ref().is_some_and(|budget| budget.lift()) {
            // The same snapshot shows the same rows once more, also those that were changed through this scan:
            // `prepare` has begun a command, whose own changes the snapshot does not show.
            // SAFETY: The scan keeps its keys.
            unsafe {
                pg_sys::index_rescan(
                    self.scan,
                    NO_KEYS,
                    (*self.scan).numberOfKeys,
                    std::ptr::null_mut(),
                    0,
                )
            };
            found = (0..=self.returned).all(|_| read(self.scan, self.slot));
        }
        self.returned += u32::from(found);
        // SAFETY: The slot is filled.
        found.then(|| unsafe { self.row() })
    }

    /// Returns what a change of the document that was read last would find now, without changing it.
    pub fn state(&self) -> Change {
        let mut failure = pg_sys::TM_FailureData::default();
        // SAFETY: As in `is_free`. The header is read while its page is locked.
        let state = unsafe {
            let slot = self.slot as *mut pg_sys::BufferHeapTupleTableSlot;
            let (tuple, buffer) = ((*slot).base.tuple, (*slot).buffer);
            let command = pg_sys::GetCurrentCommandId(false);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let state = pg_sys::HeapTupleSatisfiesUpdate(tuple, command, buffer);
            let header = &*(*tuple).t_data;
            failure.ctid = header.t_ctid;
            failure.xmax = header.t_choice.t_heap.t_xmax;
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            state
        };
        self.change_of(state, &failure)
    }

    /// Returns whether the document that was read last could be written now.
    ///
    /// It could when no other transaction has locked or changed it.
    pub fn is_free(&self) -> bool {
        // SAFETY: An index scan of a heap table fills a buffer slot and holds its buffer
        // pinned. The content lock is needed to look at hint bits.
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

/// Returns whether a table has a block, which the operating system is asked only if it is not known.
///
/// The caller has locked the table. Whoever makes it shorter waits for that, and sends a message to forget the length
/// before it unlocks the table; who locks it next reads the message. A length that is too small does no harm, so
/// this may trust it where PostgreSQL itself does so in recovery only.
unsafe fn has_block(table: pg_sys::Relation, block: pg_sys::BlockNumber) -> bool {
    let main = pg_sys::ForkNumber::MAIN_FORKNUM;
    // SAFETY: The table is open, and its `rd_smgr` is NULL or valid.
    unsafe {
        // PostgreSQL 13 does not keep the length.
        #[cfg(not(feature = "pg13"))]
        if let Some(file) = (*table).rd_smgr.as_ref() {
            let known = file.smgr_cached_nblocks[main as usize];
            if known != pg_sys::InvalidBlockNumber && block < known {
                return true;
            }
        }
        block < pg_sys::RelationGetNumberOfBlocksInFork(table, main)
    }
}

impl Drop for Documents {
    fn drop(&mut self) {
        // After an ERROR the end of the transaction releases its resources.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: All of this was opened in `open` and `begin`. Locks are kept until the end
        // of the transaction, as the executor does.
        unsafe {
            if let Some((transaction, _)) = self.speculation {
                pg_sys::SpeculativeInsertionLockRelease(transaction);
            }
            if !self.scan.is_null() {
                pg_sys::index_endscan(self.scan);
            }
            if !self.slot.is_null() {
                pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            }
            for slot in self.slots.drain(..) {
                pg_sys::ExecDropSingleTupleTableSlot(slot);
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
