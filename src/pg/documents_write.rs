//! Documents without the executor: what changes them. See `documents.rs`.

use super::documents::{Change, Column, Documents, Row};
use crate::pg::documents_check::has_assertions;
use pgrx::pg_sys;

impl Documents {
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
