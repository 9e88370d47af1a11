//! Walks along an index of the documents that see every entry, whoever may see its
//! row: what is dead for good is passed over, the first that is not ends the walk.

use pgrx::pg_sys;

/// `btint4cmp`, `btint8cmp`, `timestamptz_cmp`, `int4eq`, `int4lt`: built-in functions
/// keep their numbers in every version of PostgreSQL.
pub(super) const COMPARE_INT4: u32 = 351;

pub(super) const COMPARE_INT8: u32 = 842;

pub(super) const COMPARE_TIMESTAMPTZ: u32 = 1314;

const EQUAL_INT4: u32 = 65;

const LESS_INT4: u32 = 66;

/// How many entries are passed between two looks at pending interrupts.
const INTERRUPTS_EVERY: u64 = 1000;

/// A column of a place in the index.
#[derive(Debug, Clone, Copy)]
pub enum Column {
    Int4(i32),
    Int8(i64),
    Timestamptz(i64),
}

impl Column {
    fn datum(self) -> pg_sys::Datum {
        match self {
            Self::Int4(v) => pg_sys::Datum::from(v),
            Self::Int8(v) | Self::Timestamptz(v) => pg_sys::Datum::from(v),
        }
    }

    fn compare(self) -> u32 {
        match self {
            Self::Int4(_) => COMPARE_INT4,
            Self::Int8(_) => COMPARE_INT8,
            Self::Timestamptz(_) => COMPARE_TIMESTAMPTZ,
        }
    }

    /// The same kind of column with another value.
    fn with(self, datum: pg_sys::Datum) -> Self {
        match self {
            Self::Int4(_) => Self::Int4(datum.value() as i32),
            Self::Int8(_) => Self::Int8(datum.value() as i64),
            Self::Timestamptz(_) => Self::Timestamptz(datum.value() as i64),
        }
    }
}

/// A table and one of its indexes, open for a walk. The caller holds a lock on the
/// table until the end of the transaction.
struct Open {
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    scan: pg_sys::IndexScanDesc,
}

impl Open {
    unsafe fn new(table: pg_sys::Oid, index: pg_sys::Oid, keys: usize) -> Self {
        // SAFETY: both exist (the table is locked, so its index can not be dropped);
        // an ERROR on the way releases everything with the transaction's resources.
        unsafe {
            let table = pg_sys::table_open(table, pg_sys::NoLock as i32);
            let index = pg_sys::index_open(index, pg_sys::AccessShareLock as i32);
            let slot = pg_sys::table_slot_create(table, std::ptr::null_mut());
            let snapshot = &raw mut pg_sys::SnapshotAnyData;
            let scan = begin_scan(table, index, snapshot, keys);
            (*scan).xs_want_itup = true;
            Self {
                table,
                index,
                slot,
                scan,
            }
        }
    }

    unsafe fn start(&mut self, keys: &mut [pg_sys::ScanKeyData]) {
        // SAFETY: as many keys as the scan was begun for; they are copied, but for the
        // members of a row comparison, which the caller keeps.
        unsafe {
            pg_sys::index_rescan(
                self.scan,
                keys.as_mut_ptr(),
                keys.len() as i32,
                std::ptr::null_mut(),
                0,
            );
        }
    }

    /// Goes to the next entry; false at the end.
    unsafe fn next(&mut self) -> bool {
        // SAFETY: the scan is open.
        unsafe {
            pg_sys::index_getnext_slot(
                self.scan,
                pg_sys::ScanDirection::ForwardScanDirection,
                self.slot,
            )
        }
    }

    /// The first N columns of the index behind a prefix, as the current entry has them;
    /// None when one is NULL. Not those of the row: an index that was made later than
    /// a chain of heap-only updates leads to versions with other values.
    unsafe fn place<const N: usize>(&self, prefix: usize) -> Option<[pg_sys::Datum; N]> {
        const MAX: usize = 32; // INDEX_MAX_KEYS
        let mut values = [pg_sys::Datum::from(0); MAX];
        let mut nulls = [false; MAX];
        // SAFETY: the scan was told to keep the entry's tuple, which belongs to the
        // index's descriptor; all columns are by value (checked when the queue was
        // opened).
        unsafe {
            let tuple = (*self.scan).xs_itup;
            if tuple.is_null() {
                return None;
            }
            pg_sys::index_deform_tuple(
                tuple,
                (*self.scan).xs_itupdesc,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
        }
        if nulls[prefix..prefix + N].iter().any(|is_null| *is_null) {
            return None;
        }
        Some(std::array::from_fn(|at| values[prefix + at]))
    }

    /// Whether the current row is dead for every snapshot to come.
    unsafe fn is_dead(&self) -> bool {
        use pg_sys::HTSV_Result::{HEAPTUPLE_DEAD, HEAPTUPLE_RECENTLY_DEAD};
        // SAFETY: an index scan of a heap table fills a buffer slot and holds its
        // buffer pinned; the content lock is needed to look at hint bits. Both kinds
        // of dead are treated alike, so any horizon does.
        unsafe {
            let slot = self.slot as *mut pg_sys::BufferHeapTupleTableSlot;
            let buffer = (*slot).buffer;
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let state = pg_sys::HeapTupleSatisfiesVacuum(
                (*slot).base.tuple,
                pg_sys::FirstNormalTransactionId,
                buffer,
            );
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            state == HEAPTUPLE_DEAD || state == HEAPTUPLE_RECENTLY_DEAD
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // After an ERROR the transaction's resources go by themselves.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: opened in new; the lock on the index is kept until the end of the
        // transaction, as the executor does.
        unsafe {
            pg_sys::index_endscan(self.scan);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::index_close(self.index, pg_sys::NoLock as i32);
            pg_sys::table_close(self.table, pg_sys::NoLock as i32);
        }
    }
}

/// `index_beginscan`.
pub(super) unsafe fn begin_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: usize,
) -> pg_sys::IndexScanDesc {
    // SAFETY: the caller's relations are open, and its snapshot lives as long as the
    // scan.
    unsafe {
        pg_sys::index_beginscan(
            table,
            index,
            snapshot,
            #[cfg(feature = "pg18")]
            std::ptr::null_mut(),
            keys as i32,
            0,
        )
    }
}

pub(super) fn scan_key(
    flags: u32,
    column: usize,
    strategy: u32,
    function: u32,
    value: pg_sys::Datum,
) -> pg_sys::ScanKeyData {
    let mut key = pg_sys::ScanKeyData::default();
    // SAFETY: looks the function up and fills the key in.
    unsafe {
        pg_sys::ScanKeyEntryInitialize(
            &mut key,
            flags as i32,
            column as i16,
            strategy as u16,
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            pg_sys::Oid::from(function),
            value,
        );
    }
    key
}

pub(super) fn equal(column: usize, value: i32) -> pg_sys::ScanKeyData {
    let value = pg_sys::Datum::from(value);
    scan_key(0, column, pg_sys::BTEqualStrategyNumber, EQUAL_INT4, value)
}

/// The members of a comparison of rows (column, ...) >= (value, ...), from a column on:
/// the function that compares, and the value.
pub(super) fn row_members<const N: usize>(
    first: usize,
    values: [(u32, pg_sys::Datum); N],
) -> [pg_sys::ScanKeyData; N] {
    std::array::from_fn(|at| {
        let last = if at + 1 == N { pg_sys::SK_ROW_END } else { 0 };
        scan_key(
            pg_sys::SK_ROW_MEMBER | last,
            first + at,
            pg_sys::BTGreaterEqualStrategyNumber,
            values[at].0,
            values[at].1,
        )
    })
}

/// The key of a comparison of rows, which is a boundary of the index, where the scan
/// starts. The members live as long as the scan.
pub(super) fn row_from(members: &mut [pg_sys::ScanKeyData]) -> pg_sys::ScanKeyData {
    pg_sys::ScanKeyData {
        sk_flags: pg_sys::SK_ROW_HEADER as i32,
        sk_attno: members[0].sk_attno,
        sk_strategy: pg_sys::BTGreaterEqualStrategyNumber as u16,
        sk_argument: pg_sys::Datum::from(members.as_mut_ptr()),
        ..Default::default()
    }
}

/// Walks from `from` on, among the entries whose first columns equal `prefix`, to the
/// first whose row is alive, or may yet be, or that `is_beyond` says is far enough; says
/// where that is, or None at the end. `goes_on` is called now and then on a long way.
pub fn first_alive<const N: usize>(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    prefix: &[i32],
    from: [Column; N],
    is_beyond: impl Fn(&[Column; N]) -> bool,
    goes_on: impl Fn(),
) -> Option<[Column; N]> {
    let mut members = row_members(
        prefix.len() + 1,
        from.map(|column| (column.compare(), column.datum())),
    );
    let row = row_from(&mut members);
    let mut keys: Vec<pg_sys::ScanKeyData> = prefix
        .iter()
        .enumerate()
        .map(|(at, value)| equal(at + 1, *value))
        .collect();
    keys.push(row);

    // SAFETY: as described at each function; `members` lives until the scan is over.
    unsafe {
        let mut open = Open::new(table, index, keys.len());
        open.start(&mut keys);
        let mut passed = 0u64;
        while open.next() {
            // Somebody dropped a NOT NULL: nothing is proven from here on.
            let Some(datums) = open.place::<N>(prefix.len()) else {
                return Some(from);
            };
            let place = std::array::from_fn(|at| from[at].with(datums[at]));
            if is_beyond(&place) || !open.is_dead() {
                return Some(place);
            }
            passed += 1;
            if passed.is_multiple_of(INTERRUPTS_EVERY) {
                pgrx::check_for_interrupts!();
                goes_on();
            }
        }
        None
    }
}

/// The different values of the second column among the entries with this first one,
/// dead or alive, from the start of the index; None when there are more than `limit`.
pub fn second_column(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    first: i32,
    limit: usize,
) -> Option<Vec<i32>> {
    let mut found = Vec::new();
    // SAFETY: as above.
    unsafe {
        let mut open = Open::new(table, index, 1);
        open.start(&mut [equal(1, first)]);
        if !open.next() {
            return Some(found);
        }
        let [datum] = open.place::<1>(1)?;
        let mut value = datum.value() as i32;
        found.push(value);
        std::mem::drop(open);
        // The index has this column in descending order: the next one is less.
        let mut open = Open::new(table, index, 2);
        loop {
            let less = scan_key(
                0,
                2,
                pg_sys::BTLessStrategyNumber,
                LESS_INT4,
                pg_sys::Datum::from(value),
            );
            open.start(&mut [equal(1, first), less]);
            if !open.next() {
                return Some(found);
            }
            let [datum] = open.place::<1>(1)?;
            value = datum.value() as i32;
            if found.len() == limit {
                return None;
            }
            found.push(value);
        }
    }
}
