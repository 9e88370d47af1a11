//! Changes documents without the executor.
//!
//! See `documents.rs` for the reason of this way and for its conditions.

use pgrx::pg_sys;

use crate::domain::document::{DUE_KEY, EXPIRY_KEY, KEY, PICK_KEY};
use crate::domain::status::Status;
use crate::pg::documents::{Change, Column, Documents, Row};
use crate::pg::documents_check::has_assertions;

impl Documents {
    /// Writes the new version of the document that was read last.
    ///
    /// With `wait`, waits for another transaction that has locked the document. Otherwise
    /// leaves such a document alone and returns `Change::Locked`.
    pub fn replace(&mut self, row: &mut Row, wait: bool) -> Change {
        // SAFETY: The tuple is formed by the descriptor of the table, from as many values as
        // it has columns. heap_update copies it into the page.
        unsafe {
            let tuple = self.form(row);
            let change = match self.lock_before_update(row.tid, wait) {
                None => self.update(row.tid, tuple, wait),
                Some(Change::Done) => self.update(row.tid, tuple, true),
                Some(other) => other,
            };
            let is_heap_only = (*(*tuple).t_data).t_infomask2 & pg_sys::HEAP_ONLY_TUPLE as u16 != 0;
            if change == Change::Done && !is_heap_only {
                // The subject is unique already. The check is made because it starts at the
                // first page of the entries of the subject, so that all sessions that insert
                // the same subject lock the same page.
                let unique = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES;
                self.insert_key_entry(row, &mut (*tuple).t_self, unique, true);
                self.insert_status_entry(row, &mut (*tuple).t_self);
            }
            pg_sys::heap_freetuple(tuple);
            change
        }
    }

    /// Locks a row that an update would not wait for, where the update cannot report the lock.
    ///
    /// A server that was built with assertions does not allow `heap_update` to return without
    /// waiting for a lock. There the row is locked first, which writes more. Returns None where
    /// that is not necessary.
    unsafe fn lock_before_update(
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
        // SAFETY: The row was read in this call, so its line pointer exists. The pin that
        // heap_lock_tuple returns is released.
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
        // SAFETY: The row was read in this call, so its line pointer exists.
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
        self.change_of(result, &failure)
    }

    /// Translates the result of `heap_update` or `heap_delete`.
    pub(super) fn change_of(
        &self,
        result: pg_sys::TM_Result::Type,
        failure: &pg_sys::TM_FailureData,
    ) -> Change {
        match result {
            pg_sys::TM_Result::TM_Ok => Change::Done,
            pg_sys::TM_Result::TM_Deleted => Change::Removed,
            pg_sys::TM_Result::TM_Updated => {
                // SAFETY: heap_update has found where the next version is.
                Change::Outdated(unsafe { self.status_of_next_version(failure) })
            }
            // SAFETY: The slot holds the row, and the pin on its page.
            pg_sys::TM_Result::TM_BeingModified
                if !unsafe { self.may_be_locked_by_us(failure.xmax) } =>
            {
                Change::Locked
            }
            _ => Change::Outdated(None),
        }
    }

    /// Reads the status that another transaction has given to a row since it was read.
    ///
    /// Returns None when the version that this transaction wrote is gone.
    unsafe fn status_of_next_version(&self, failure: &pg_sys::TM_FailureData) -> Option<i32> {
        let mut tid = failure.ctid;
        // SAFETY: A version is fetched whether a snapshot shows it or not. The line pointer may
        // have been reused for a row of another transaction, so xmin is compared. The slot
        // keeps the page pinned until it is dropped.
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

    /// Returns whether this transaction may be one of those that have locked the current row.
    ///
    /// Only a statement can find that out for certain.
    unsafe fn may_be_locked_by_us(&self, locker: pg_sys::TransactionId) -> bool {
        // SAFETY: The slot holds the row, and the pin on its page. The bit is a hint, so it is
        // read without a lock.
        unsafe {
            let slot = self.slot as *mut pg_sys::BufferHeapTupleTableSlot;
            let header = (*(*slot).base.tuple).t_data;
            let is_multi = (&raw const (*header).t_infomask).read_volatile()
                & pg_sys::HEAP_XMAX_IS_MULTI as u16
                != 0;
            is_multi || pg_sys::TransactionIdIsCurrentTransactionId(locker)
        }
    }

    /// Removes the document that was read last.
    ///
    /// With `wait`, waits for another transaction that has locked the document. Otherwise
    /// leaves such a document alone and returns `Change::Locked`.
    pub fn remove(&mut self, row: &Row, wait: bool) -> Change {
        let mut failure = pg_sys::TM_FailureData::default();
        let mut tid = row.tid;
        // SAFETY: The row was read in this call, so its line pointer exists.
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
        self.change_of(result, &failure)
    }

    /// Adds a document whose subject was generated. Returns false when the subject exists.
    ///
    /// When two sessions add the same subject in this way at the same time, the result can be
    /// false for both.
    pub fn add(&mut self, row: &mut Row) -> bool {
        // SAFETY: The tuple is formed by the descriptor of the table, from as many values as
        // it has columns. heap_insert copies it into the page.
        unsafe {
            let tuple = self.form(row);
            let command = pg_sys::GetCurrentCommandId(true);
            pg_sys::heap_insert(self.table, tuple, command, 0, std::ptr::null_mut());
            row.tid = (*tuple).t_self;
            let unique = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL;
            let is_new = self.insert_key_entry(row, &mut (*tuple).t_self, unique, false);
            if is_new {
                self.insert_status_entry(row, &mut (*tuple).t_self);
            } else {
                pg_sys::CommandCounterIncrement();
                self.remove(row, true);
            }
            pg_sys::heap_freetuple(tuple);
            is_new
        }
    }

    /// Adds documents whose subjects were generated, as [`Self::add`] does. Says of each whether it was
    /// added.
    ///
    /// The rows of a page are written and logged together, and the entries of one index after the
    /// other, so that neighbours in an index are written while their page is at hand.
    pub fn add_all(&mut self, rows: &mut [Row]) -> Vec<bool> {
        // SAFETY: As in `add`. Each slot holds one tuple of the descriptor of the table until it is
        // cleared, and heap_multi_insert writes into the slot where it has put the row. `drop` frees
        // the slots.
        unsafe {
            for _ in self.slots.len()..rows.len() {
                let desc = (*self.table).rd_att;
                let operations = &raw const pg_sys::TTSOpsHeapTuple;
                self.slots
                    .push(pg_sys::MakeSingleTupleTableSlot(desc, operations));
            }
            for (row, slot) in rows.iter_mut().zip(&self.slots) {
                pg_sys::ExecStoreHeapTuple(self.form(row), *slot, true);
            }
            pg_sys::heap_multi_insert(
                self.table,
                self.slots.as_mut_ptr(),
                rows.len() as i32,
                pg_sys::GetCurrentCommandId(true),
                0,
                std::ptr::null_mut(),
            );
            for (row, slot) in rows.iter_mut().zip(&self.slots) {
                row.tid = (**slot).tts_tid;
                pg_sys::ExecClearTuple(*slot);
            }
            let unique = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_PARTIAL;
            let are_new: Vec<bool> = rows
                .iter()
                .map(|row| self.insert_key_entry(row, &mut { row.tid }, unique, false))
                .collect();
            for (row, _) in rows.iter().zip(&are_new).filter(|(_, is_new)| **is_new) {
                self.insert_status_entry(row, &mut { row.tid });
            }
            if are_new.contains(&false) {
                pg_sys::CommandCounterIncrement();
            }
            for (row, _) in rows.iter().zip(&are_new).filter(|(_, is_new)| !**is_new) {
                self.remove(row, true);
            }
            are_new
        }
    }

    /// Adds a document unless its subject exists, or another session is adding it. Returns
    /// whether the document was added. Waits for no other session.
    ///
    /// As the executor does for ON CONFLICT, the row is inserted speculatively. It carries a
    /// token, and other sessions wait for the lock of that token instead of for this
    /// transaction. Two sessions that insert the same subject do not wait for each other. All
    /// rows carry the same token until this `Documents` is dropped.
    ///
    /// `add` with a look-up that sees uncommitted rows would save the record that confirms the
    /// insertion, 48 bytes. But the row that it leaves when another session was faster holds the
    /// subject until the transaction ends: 16 sessions that push the same three subjects and then
    /// change them ran into deadlocks, and did an eighteenth of the work.
    pub fn add_if_new(&mut self, row: &mut Row) -> bool {
        // SAFETY: As in `add`. The token is removed from the row in both cases. Its lock is
        // released by `drop`, or by the end of the transaction after an ERROR.
        unsafe {
            let tuple = self.form(row);
            let (_, token) = *self.speculation.get_or_insert_with(|| {
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
            let is_new = self.insert_key_entry(row, tid, unique, false);
            if is_new {
                self.insert_status_entry(row, tid);
                pg_sys::heap_finish_speculative(self.table, tid);
            } else {
                pg_sys::heap_abort_speculative(self.table, tid);
            }
            pg_sys::heap_freetuple(tuple);
            is_new
        }
    }

    unsafe fn form(&self, row: &mut Row) -> pg_sys::HeapTuple {
        // SAFETY: There are as many values as the table has columns.
        unsafe {
            let desc = (*self.table).rd_att;
            let tuple =
                pg_sys::heap_form_tuple(desc, row.values.as_mut_ptr(), row.nulls.as_mut_ptr());
            (*tuple).t_tableOid = (*self.table).rd_id;
            tuple
        }
    }

    /// Inserts the entry of a row into the index of the primary key. Returns whether the
    /// subject is unique.
    unsafe fn insert_key_entry(
        &self,
        row: &Row,
        tid: *mut pg_sys::ItemPointerData,
        unique: pg_sys::IndexUniqueCheck::Type,
        is_unchanged: bool,
    ) -> bool {
        // SAFETY: The columns of each index were checked when the queue was opened, and the
        // rest in `open`.
        unsafe { self.insert(self.key, row, &KEY, tid, unique, is_unchanged) }
    }

    /// Inserts the entry of a row into the index of its status, if there is one.
    ///
    /// These are the predicates of the two partial indexes: a document that is completed,
    /// killed or blocked is in neither. One that expires if it does not begin is in a third one.
    unsafe fn insert_status_entry(&self, row: &Row, tid: *mut pg_sys::ItemPointerData) {
        if !row.is_null(Column::ExpiresAt) {
            // SAFETY: As in `insert_key_entry`.
            unsafe { self.insert_expiry_entry(row, tid) };
        }
        if !row.is_null(Column::LockUpgrade) {
            return;
        }
        let not_unique = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO;
        // SAFETY: As in `insert_key_entry`.
        unsafe {
            match Status::from_code(row.int4(Column::Status)) {
                Some(Status::Pending) => {
                    self.insert(self.pick, row, &PICK_KEY, tid, not_unique, false);
                }
                Some(Status::Planned | Status::Active) => {
                    self.insert(self.due, row, &DUE_KEY, tid, not_unique, false);
                }
                _ => {}
            }
        }
    }

    /// Inserts the entry of a row into the index of documents that expire, if it waits for its first
    /// attempt.
    unsafe fn insert_expiry_entry(&self, row: &Row, tid: *mut pg_sys::ItemPointerData) {
        let status = Status::from_code(row.int4(Column::Status));
        let waits = matches!(status, Some(Status::Planned | Status::Pending));
        if !waits || row.int4(Column::Attempts) != 0 {
            return;
        }
        let not_unique = pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO;
        // SAFETY: The table is locked, so its index exists. It was found among the indexes of the table
        // in `open`, and its column was checked when the queue was opened.
        unsafe {
            let index = pg_sys::index_open(self.expiry, pg_sys::RowExclusiveLock as i32);
            self.insert(index, row, &EXPIRY_KEY, tid, not_unique, false);
            pg_sys::index_close(index, pg_sys::NoLock as i32);
        }
    }

    /// Inserts an entry into an index. Returns whether it is unique, where that is checked.
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
        // A B-tree does not read it.
        let mut info = pg_sys::IndexInfo {
            type_: pg_sys::NodeTag::T_IndexInfo,
            ..Default::default()
        };
        // SAFETY: There are as many values as the index has columns, and they have the types
        // of the columns.
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
