//! Reads only the beginning of a range of an index, where a few documents are wanted.
//!
//! PostgreSQL reads all entries of a page that are in the range before it returns the first row: up to 180, which
//! was most of what a pick of one document read. A budget is part of the comparison of the entries with the end of
//! the range. When it is spent, the comparison says that the range is over. Whoever reads has to begin anew then,
//! without a budget, and passes by what it has read.

use std::cell::Cell;

use pgrx::pg_sys;

/// How many more entries a scan reads.
pub(super) struct Budget {
    left: Cell<u32>,
    is_spent: Cell<bool>,
}

impl Budget {
    pub(super) fn new(entries: u32) -> Self {
        Self {
            left: Cell::new(entries),
            is_spent: Cell::new(false),
        }
    }

    /// Ends the budget, so that the scan reads to the end of the range from now on. Returns whether it was spent.
    pub(super) fn lift(&self) -> bool {
        self.left.set(u32::MAX);
        self.is_spent.replace(false)
    }

    /// Makes a key of a scan keep to the budget. The key compares a `timestamptz` with the end of the range. The
    /// budget must live as long as the scan, and must not be moved meanwhile.
    ///
    /// From PostgreSQL 17 on, a scan assumes of a page what it has found for the last entry of it, so the key
    /// stays as it is there.
    pub(super) fn restrict(&self, key: &mut pg_sys::ScanKeyData) {
        if cfg!(any(
            feature = "pg13",
            feature = "pg14",
            feature = "pg15",
            feature = "pg16"
        )) {
            key.sk_func.fn_addr = Some(is_in_range);
            key.sk_func.fn_extra = (&raw const *self).cast_mut().cast();
        }
    }
}

/// `timestamptz_le`, as long as the budget lasts.
unsafe extern "C-unwind" fn is_in_range(call: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL compares an entry with a key of `restrict`, which has the budget. Neither is NULL.
    let (budget, is_before_end) = unsafe {
        let budget = &*(*(*call).flinfo).fn_extra.cast::<Budget>();
        let args = (*call).args.as_slice(2);
        let [entry, end] = [&args[0], &args[1]].map(|arg| arg.value.value() as i64);
        (budget, entry <= end)
    };
    if is_before_end {
        match budget.left.get() {
            0 => budget.is_spent.set(true),
            left => budget.left.set(left - 1),
        }
    }
    pg_sys::Datum::from(is_before_end && !budget.is_spent.get())
}
