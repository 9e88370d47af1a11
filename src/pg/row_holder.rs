//! Who has locked or changed a row in a transaction that is open. For reports, which wait for nobody.

use pgrx::pg_sys;

use crate::pg::transaction;

/// The open transaction of another session that has locked or changed a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowHolder {
    /// The whole transaction.
    pub transaction: pg_sys::TransactionId,
    /// It has locked the row, and has not changed it.
    pub is_lock: bool,
}

/// Returns who has a row of a table. Of several transactions, the one that has changed the row counts, or
/// else the one with the strongest lock. None for a row that is gone, and for a table that is no heap.
///
/// SQL shows `xmax` without saying whether it is the number of a transaction, or that of a list of
/// transactions, which is made where several have locked the row, or a subtransaction after the
/// transaction itself. The caller has locked the table, and a statement of it has just read the row.
pub fn row_holder(table: pg_sys::Oid, tid: pg_sys::ItemPointerData) -> Option<RowHolder> {
    let (xmax, flags) = xmax(table, tid)?;
    if flags & pg_sys::HEAP_XMAX_INVALID != 0 {
        return None;
    }
    if flags & pg_sys::HEAP_XMAX_IS_MULTI == 0 {
        return Some(RowHolder {
            transaction: transaction::running(xmax)?,
            is_lock: flags & pg_sys::HEAP_XMAX_LOCK_ONLY != 0,
        });
    }
    let mut members = members(xmax, flags);
    members.sort_by_key(|(_, strength)| std::cmp::Reverse(*strength));
    members.into_iter().find_map(|(member, strength)| {
        Some(RowHolder {
            transaction: transaction::running(member)?,
            is_lock: strength < pg_sys::MultiXactStatus::MultiXactStatusNoKeyUpdate,
        })
    })
}

/// Reads `xmax` of a row, and the flags that say what it is.
fn xmax(table: pg_sys::Oid, tid: pg_sys::ItemPointerData) -> Option<(pg_sys::TransactionId, u32)> {
    let mut tuple = pg_sys::HeapTupleData {
        t_self: tid,
        ..Default::default()
    };
    let mut buffer = pg_sys::InvalidBuffer as pg_sys::Buffer;
    // SAFETY: The caller has locked the table. The row was read a moment ago, so its block exists: to
    // truncate the table needs a lock that the caller's keeps away. The header is read while the buffer
    // is pinned and its content is locked.
    unsafe {
        let relation = pg_sys::try_relation_open(table, pg_sys::NoLock as i32);
        if relation.is_null() {
            return None;
        }
        let is_found = (*(*relation).rd_rel).relam == pg_sys::HEAP_TABLE_AM_OID
            && pg_sys::heap_fetch(
                relation,
                &raw mut pg_sys::SnapshotAnyData,
                &mut tuple,
                &mut buffer,
                #[cfg(not(any(feature = "pg13", feature = "pg14")))]
                false,
            );
        let found = is_found.then(|| {
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let header = &*tuple.t_data;
            let found = (header.t_choice.t_heap.t_xmax, u32::from(header.t_infomask));
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            pg_sys::ReleaseBuffer(buffer);
            found
        });
        pg_sys::relation_close(relation, pg_sys::NoLock as i32);
        found
    }
}

/// The transactions of a list, and how strong the lock of each is. A list that pg_upgrade has taken over
/// is empty.
fn members(
    list: pg_sys::MultiXactId,
    flags: u32,
) -> Vec<(pg_sys::TransactionId, pg_sys::MultiXactStatus::Type)> {
    let is_lock = flags & pg_sys::HEAP_XMAX_LOCK_ONLY != 0;
    let strengths = pg_sys::HEAP_XMAX_EXCL_LOCK | pg_sys::HEAP_XMAX_KEYSHR_LOCK;
    let is_upgraded = is_lock && flags & strengths == 0;
    let mut found = std::ptr::null_mut::<pg_sys::MultiXactMember>();
    // SAFETY: The list is that of a row that vacuum has not frozen, so it exists. It is copied into
    // memory of this call.
    unsafe {
        let n = pg_sys::GetMultiXactIdMembers(list, &mut found, is_upgraded, is_lock);
        let all = match usize::try_from(n) {
            Ok(n @ 1..) => std::slice::from_raw_parts(found, n),
            _ => return Vec::new(),
        };
        let copied = all
            .iter()
            .map(|member| (member.xid, member.status))
            .collect();
        pg_sys::pfree(found.cast());
        copied
    }
}
