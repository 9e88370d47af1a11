//! Walks along an index of the documents.
//!
//! A walk reads every entry, whether a snapshot shows its row or not. It passes over the entries
//! of rows that are dead for good, and ends at the first entry of another row.

use pgrx::pg_sys;

use crate::domain::document;
use crate::pg::memory;
use crate::pg::text::text_bytes;

/// The OID of `btint4cmp`. Built-in functions have the same OID in every version of PostgreSQL.
pub(super) const COMPARE_INT4: u32 = 351;

/// The OID of `btint8cmp`.
pub(super) const COMPARE_INT8: u32 = 842;

/// The OID of `timestamptz_cmp`.
pub(super) const COMPARE_TIMESTAMPTZ: u32 = 1314;

/// The OID of `int4eq`.
const EQUAL_INT4: u32 = 65;

/// The OID of `int4lt`.
pub(super) const LESS_INT4: u32 = 66;

/// The OID of `int4gt`.
const GREATER_INT4: u32 = 147;

/// What tells a document from all others, also from those that have had its subject before.
pub struct Identity<'a> {
    pub subject: &'a [u8],
    pub seq: i64,
    pub created_at: i64,
}

/// Says which documents of a table a walk passes over, beside those that are not there.
pub type Passed = fn(pg_sys::Oid, &Identity) -> bool;

/// The number of entries that are passed between two checks for interrupts.
pub(super) const INTERRUPTS_EVERY: u64 = 1000;

/// The most columns that an index can have (`INDEX_MAX_KEYS`).
const INDEX_MAX_KEYS: usize = 32;

/// The value of a column of an index entry.
#[derive(Debug, Clone, Copy)]
pub enum Column {
    /// An `integer`.
    Int4(i32),
    /// A `bigint`.
    Int8(i64),
    /// A `timestamptz`, in microseconds since 2000.
    Timestamptz(i64),
}

impl Column {
    pub(super) fn datum(self) -> pg_sys::Datum {
        match self {
            Self::Int4(v) => pg_sys::Datum::from(v),
            Self::Int8(v) | Self::Timestamptz(v) => pg_sys::Datum::from(v),
        }
    }

    /// The OID of the type.
    pub(super) fn oid(&self) -> pg_sys::Oid {
        match self {
            Self::Int4(_) => pg_sys::INT4OID,
            Self::Int8(_) => pg_sys::INT8OID,
            Self::Timestamptz(_) => pg_sys::TIMESTAMPTZOID,
        }
    }

    /// The OID of the function that compares values of this type.
    pub(super) fn comparison(self) -> u32 {
        match self {
            Self::Int4(_) => COMPARE_INT4,
            Self::Int8(_) => COMPARE_INT8,
            Self::Timestamptz(_) => COMPARE_TIMESTAMPTZ,
        }
    }

    /// Makes a column of the same type with another value.
    pub(super) fn with(self, datum: pg_sys::Datum) -> Self {
        match self {
            Self::Int4(_) => Self::Int4(datum.value() as i32),
            Self::Int8(_) => Self::Int8(datum.value() as i64),
            Self::Timestamptz(_) => Self::Timestamptz(datum.value() as i64),
        }
    }
}

/// A table and one of its indexes that are open for a walk.
///
/// The caller holds a lock on the table.
pub(super) struct Walk {
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    slot: *mut pg_sys::TupleTableSlot,
    scan: pg_sys::IndexScanDesc,
}

impl Walk {
    pub(super) unsafe fn open(table: pg_sys::Oid, index: pg_sys::Oid, keys: usize) -> Self {
        // SAFETY: The table is locked, so it exists and its index cannot be dropped. After an
        // ERROR the end of the transaction releases what was opened.
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

    /// Starts, or starts again, at the first entry that satisfies the keys.
    pub(super) unsafe fn start(&mut self, keys: &mut [pg_sys::ScanKeyData]) {
        // SAFETY: The scan was begun for this number of keys. It copies them, except for the
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

    /// Goes to the next entry. Returns false at the end.
    pub(super) unsafe fn next(&mut self) -> bool {
        // SAFETY: The scan is open.
        unsafe {
            pg_sys::index_getnext_slot(
                self.scan,
                pg_sys::ScanDirection::ForwardScanDirection,
                self.slot,
            )
        }
    }

    /// Reads N columns of the current entry, after `prefix` columns that are skipped. Returns
    /// None when one of them is NULL.
    ///
    /// The values are those of the entry and not those of the row. An index that was created
    /// later than a chain of heap-only updates leads to versions with other values.
    pub(super) unsafe fn columns<const N: usize>(
        &self,
        prefix: usize,
    ) -> Option<[pg_sys::Datum; N]> {
        let mut values = [pg_sys::Datum::from(0); INDEX_MAX_KEYS];
        let mut nulls = [false; INDEX_MAX_KEYS];
        // SAFETY: `open` asked the scan to keep the tuple of the entry, which belongs to the
        // descriptor of the index. All columns are passed by value, which was checked when the
        // queue was opened.
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

    /// Returns whether the current row is dead for every snapshot that will be taken.
    unsafe fn is_dead(&self) -> bool {
        use pg_sys::HTSV_Result::{HEAPTUPLE_DEAD, HEAPTUPLE_RECENTLY_DEAD};
        // SAFETY: An index scan of a heap table fills a buffer slot and holds its buffer
        // pinned. The content lock is needed to look at hint bits. Both kinds of dead rows are
        // treated alike, so any horizon can be given.
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

impl Walk {
    /// Returns whether the current row is a document that is passed over. One whose table is not as fetchq
    /// made it is none.
    pub(super) unsafe fn is_passed(&self, table: pg_sys::Oid, is_passed: Option<Passed>) -> bool {
        let Some(is_passed) = is_passed else {
            return false;
        };
        const COLUMNS: [(usize, pg_sys::Oid); 3] = [
            (document::Column::Subject as usize, pg_sys::VARCHAROID),
            (document::Column::Seq as usize, pg_sys::INT8OID),
            (document::Column::CreatedAt as usize, pg_sys::TIMESTAMPTZOID),
        ];
        // SAFETY: The slot holds the row, and the pin on its page.
        unsafe {
            let desc = (*self.slot).tts_tupleDescriptor;
            let is_as_made =
                |(at, oid): &(usize, _)| pg_sys::SPI_gettypeid(desc, *at as i32 + 1) == *oid;
            if !COLUMNS.iter().all(is_as_made) {
                return false;
            }
            pg_sys::slot_getsomeattrs_int(self.slot, document::Column::CreatedAt as i32 + 1);
            let [subject, seq, created_at] = COLUMNS.map(|(at, _)| {
                let is_null = *(*self.slot).tts_isnull.add(at);
                (!is_null).then(|| *(*self.slot).tts_values.add(at))
            });
            subject.is_some_and(|subject| {
                let document = Identity {
                    subject: text_bytes(subject),
                    seq: seq.map_or(0, |datum| datum.value() as i64),
                    created_at: created_at.map_or(0, |datum| datum.value() as i64),
                };
                is_passed(table, &document)
            })
        }
    }

    /// Returns whether a snapshot shows the current row.
    pub(super) unsafe fn is_visible(&self, snapshot: pg_sys::Snapshot) -> bool {
        // SAFETY: As in `is_dead`. The snapshot is registered.
        unsafe {
            let slot = self.slot as *mut pg_sys::BufferHeapTupleTableSlot;
            let buffer = (*slot).buffer;
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            let is_visible =
                pg_sys::HeapTupleSatisfiesVisibility((*slot).base.tuple, snapshot, buffer);
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_UNLOCK as i32);
            is_visible
        }
    }
}

impl Drop for Walk {
    fn drop(&mut self) {
        // After an ERROR the end of the transaction releases its resources.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: All of this was opened in `open`. The lock on the index is kept until the end
        // of the transaction, as the executor does.
        unsafe {
            pg_sys::index_endscan(self.scan);
            pg_sys::ExecDropSingleTupleTableSlot(self.slot);
            pg_sys::index_close(self.index, pg_sys::NoLock as i32);
            pg_sys::table_close(self.table, pg_sys::NoLock as i32);
        }
    }
}

/// Begins an index scan with this number of keys. The caller gives the keys later.
pub(super) unsafe fn begin_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    keys: usize,
) -> pg_sys::IndexScanDesc {
    // SAFETY: The relations of the caller are open, and its snapshot lives as long as the
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

/// Makes a scan key: `column`, counted from 1, compared with `value` by `function`.
pub(super) fn scan_key(
    flags: u32,
    column: usize,
    strategy: u32,
    function: u32,
    value: pg_sys::Datum,
) -> pg_sys::ScanKeyData {
    let mut key = pg_sys::ScanKeyData::default();
    // SAFETY: This looks the function up, which exists, and fills in the key.
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

/// Makes a scan key: an `integer` column, counted from 1, equals `value`.
pub(super) fn equal(column: usize, value: i32) -> pg_sys::ScanKeyData {
    let value = pg_sys::Datum::from(value);
    scan_key(0, column, pg_sys::BTEqualStrategyNumber, EQUAL_INT4, value)
}

/// Makes the members of a row comparison `(column, …) >= (value, …)`.
///
/// `first` is the first column, counted from 1. `values` has, for each column from there on, the
/// OID of the function that compares it, and the value.
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

/// Makes the key of a row comparison, at which the scan starts.
///
/// `members` must live as long as the scan, because the key points to them.
pub(super) fn row_from(members: &mut [pg_sys::ScanKeyData]) -> pg_sys::ScanKeyData {
    pg_sys::ScanKeyData {
        sk_flags: pg_sys::SK_ROW_HEADER as i32,
        sk_attno: members[0].sk_attno,
        sk_strategy: pg_sys::BTGreaterEqualStrategyNumber as u16,
        sk_argument: pg_sys::Datum::from(members.as_mut_ptr()),
        ..Default::default()
    }
}

/// The scan keys of the entries from one on: the first columns equal `prefix`, and the columns after
/// them are at least those of `from`.
pub(super) struct RangeKeys<const N: usize> {
    prefix: Vec<pg_sys::ScanKeyData>,
    members: [pg_sys::ScanKeyData; N],
}

impl<const N: usize> RangeKeys<N> {
    pub(super) fn new(prefix: &[i32], from: [Column; N]) -> Self {
        let columns = prefix.iter().enumerate();
        Self {
            prefix: columns.map(|(at, value)| equal(at + 1, *value)).collect(),
            members: row_members(
                prefix.len() + 1,
                from.map(|column| (column.comparison(), column.datum())),
            ),
        }
    }

    /// Returns the number of keys for which a walk is to be opened.
    pub(super) fn number(&self) -> usize {
        self.prefix.len() + 1
    }

    /// Starts a walk at the first of the entries. The keys must live as long as the walk, which
    /// points to them, and must not be moved meanwhile.
    pub(super) unsafe fn start(&mut self, walk: &mut Walk) {
        let mut keys = self.prefix.clone();
        keys.push(row_from(&mut self.members));
        // SAFETY: The walk was opened for this number of keys, and copies them, except for the
        // members of the row comparison, which the caller keeps.
        unsafe { walk.start(&mut keys) };
    }
}

/// What a walk does with an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Visit {
    /// It ends there, whatever the row is.
    Stop,
    /// It passes by, whatever the row is.
    Pass,
    /// It looks at the row.
    Look,
}

/// Walks from `from` to the first entry for which `visit` says to stop, or to look and whose row is alive, or
/// may become alive, and whose subject is not passed over. Returns the columns of that entry, or None at the
/// end.
///
/// Only entries whose first columns equal `prefix` are read. `from` has the columns after the
/// prefix. Returns `from` itself when an entry has a NULL, because then nothing is proven.
/// `on_progress` is called after every 1000 entries. The caller has locked `table`.
pub fn first_alive<const N: usize>(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    prefix: &[i32],
    from: [Column; N],
    visit: impl Fn(&[Column; N]) -> Visit,
    is_passed: Option<Passed>,
    on_progress: impl Fn(),
) -> Option<[Column; N]> {
    let mut keys = RangeKeys::new(prefix, from);

    // SAFETY: The caller has locked the table. `keys` lives until the scan is over.
    unsafe {
        let mut walk = Walk::open(table, index, keys.number());
        keys.start(&mut walk);
        let mut passed = 0u64;
        while walk.next() {
            // A NOT NULL constraint was dropped, so nothing is proven from here on.
            let Some(datums) = walk.columns::<N>(prefix.len()) else {
                return Some(from);
            };
            let entry = std::array::from_fn(|at| from[at].with(datums[at]));
            let is_over = || walk.is_dead() || walk.is_passed(table, is_passed);
            let is_found = match visit(&entry) {
                Visit::Stop => true,
                Visit::Pass => false,
                Visit::Look => !is_over(),
            };
            if is_found {
                return Some(entry);
            }
            passed += 1;
            if passed.is_multiple_of(INTERRUPTS_EVERY) {
                memory::check_for_interrupts();
                on_progress();
            }
        }
        None
    }
}

/// Walks over a whole index with one column, a `timestamptz`, to the first entry before `end` whose row is
/// alive, or may become alive. Returns its time, in microseconds since 2000. The caller has locked `table`.
pub fn first_alive_before(table: pg_sys::Oid, index: pg_sys::Oid, end: i64) -> Option<i64> {
    // SAFETY: The caller has locked the table.
    unsafe {
        let mut walk = Walk::open(table, index, 0);
        walk.start(&mut []);
        let mut passed = 0u64;
        while walk.next() {
            let [datum] = walk.columns::<1>(0)?;
            let time = datum.value() as i64;
            if time >= end {
                return None;
            }
            if !walk.is_dead() {
                return Some(time);
            }
            passed += 1;
            if passed.is_multiple_of(INTERRUPTS_EVERY) {
                memory::check_for_interrupts();
            }
        }
        None
    }
}

/// Returns whether an index has an entry whose first column, an `integer`, equals `first`, of
/// whatever row. The caller has locked `table`.
pub fn has_entries(table: pg_sys::Oid, index: pg_sys::Oid, first: i32) -> bool {
    // SAFETY: The caller has locked the table.
    unsafe {
        let mut walk = Walk::open(table, index, 1);
        walk.start(&mut [equal(1, first)]);
        walk.next()
    }
}

/// Lists the distinct values of the first column of an index, in ascending order, as
/// [`distinct_second_column`] does. NULL is none of them.
pub fn distinct_first_column(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    limit: usize,
) -> Option<Vec<i32>> {
    let next = (pg_sys::BTGreaterStrategyNumber, GREATER_INT4);
    distinct(table, index, None, next, limit)
}

/// Lists the distinct values of the second column of an index, in descending order, among the
/// entries whose first column equals `first`.
///
/// Entries of dead rows count too. Both columns are `integer`, and the index has the second one
/// in descending order. Returns None when there are more than `limit` values, or when one is
/// NULL. The caller has locked `table`.
pub fn distinct_second_column(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    first: i32,
    limit: usize,
) -> Option<Vec<i32>> {
    // The index has this column in descending order, so the next value is less.
    let next = (pg_sys::BTLessStrategyNumber, LESS_INT4);
    distinct(table, index, Some(first), next, limit)
}

/// As [`distinct_second_column`], without `first` of the first column. `next`: the strategy and the function
/// that compare the next value with the one before it, in the order of the index.
fn distinct(
    table: pg_sys::Oid,
    index: pg_sys::Oid,
    first: Option<i32>,
    (strategy, function): (u32, u32),
    limit: usize,
) -> Option<Vec<i32>> {
    let prefix: Vec<_> = first.into_iter().map(|first| equal(1, first)).collect();
    let mut found = Vec::new();
    // SAFETY: The caller has locked the table.
    unsafe {
        let mut walk = Walk::open(table, index, prefix.len());
        walk.start(&mut prefix.clone());
        if !walk.next() {
            return Some(found);
        }
        let [datum] = walk.columns::<1>(prefix.len())?;
        let mut value = datum.value() as i32;
        found.push(value);
        std::mem::drop(walk);
        let mut walk = Walk::open(table, index, prefix.len() + 1);
        loop {
            let value_before = pg_sys::Datum::from(value);
            let mut keys = prefix.clone();
            keys.push(scan_key(
                0,
                prefix.len() + 1,
                strategy,
                function,
                value_before,
            ));
            walk.start(&mut keys);
            if !walk.next() {
                return Some(found);
            }
            let [datum] = walk.columns::<1>(prefix.len())?;
            value = datum.value() as i32;
            if found.len() == limit {
                return None;
            }
            found.push(value);
        }
    }
}
