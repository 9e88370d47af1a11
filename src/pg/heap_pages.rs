//! Reads the pages of a table of small integers, without the executor.
//!
//! The caller learns of each page whether all transactions that wrote it had ended before the
//! snapshot, and the position in the WAL of the last change of the page (its LSN). While the LSN
//! stays the same, so do the rows, and the page shows the same rows to every later snapshot. So the
//! caller can remember what it has made of the rows, and need not read them again.

use pgrx::pg_sys;

use crate::domain::xid::Xid;
use crate::pg::snapshot::Snapshot;
use crate::pg::{memory, scan, session};

/// What a page was when it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Page {
    /// The position in the WAL of its last change. 0 where changes are not written to the WAL, so
    /// that nothing can be remembered of the page.
    pub lsn: u64,
    /// The last transaction that has written it, where all of them had ended before the snapshot.
    /// None: the rows of the page are not the same for every later snapshot.
    pub settled: Option<Xid>,
}

/// A table whose columns are all of type `integer` or `smallint`, while its pages are read.
pub struct Pages<'a, const N: usize> {
    relation: pg_sys::Relation,
    snapshot: &'a Snapshot,
    strategy: pg_sys::BufferAccessStrategy,
    blocks: u32,
    /// The length of each column in bytes.
    widths: [u8; N],
    rows: Vec<[Option<i32>; N]>,
}

/// Returns the numbers of bytes of these types. None when one of them is no integer of at most 4
/// bytes.
fn widths<const N: usize>(types: [pg_sys::Oid; N]) -> Option<[u8; N]> {
    let mut widths = [0; N];
    for (width, oid) in widths.iter_mut().zip(types) {
        *width = match oid {
            pg_sys::INT4OID => 4,
            pg_sys::INT2OID => 2,
            _ => return None,
        };
    }
    Some(widths)
}

impl<'a, const N: usize> Pages<'a, N> {
    /// Opens a table, which the caller has locked. None when it has to be read by [`rows`]: it is no
    /// heap with N columns of these types, or the reads must leave predicate locks.
    pub fn open(table: pg_sys::Oid, snapshot: &'a Snapshot) -> Option<Self> {
        if session::is_serializable() {
            return None;
        }
        // SAFETY: The table is locked. It is closed when this is dropped, or by the resource owner
        // after an ERROR.
        unsafe {
            let relation = pg_sys::table_open(table, pg_sys::NoLock as i32);
            let desc = (*relation).rd_att;
            let is_heap = (*(*relation).rd_rel).relam == pg_sys::HEAP_TABLE_AM_OID;
            let is_local = (*(*relation).rd_rel).relpersistence
                == pg_sys::RELPERSISTENCE_TEMP as std::ffi::c_char;
            // The value of a column that was added later, in the rows of before.
            let constraints = (*desc).constr;
            let has_missing = !constraints.is_null() && !(*constraints).missing.is_null();
            let widths = match (*desc).natts as usize == N && !has_missing {
                true => widths::<N>(std::array::from_fn(|at| {
                    pg_sys::SPI_gettypeid(desc, at as i32 + 1)
                })),
                false => None,
            };
            let Some(widths) = widths.filter(|_| is_heap && !is_local) else {
                pg_sys::table_close(relation, pg_sys::NoLock as i32);
                return None;
            };
            let blocks =
                pg_sys::RelationGetNumberOfBlocksInFork(relation, pg_sys::ForkNumber::MAIN_FORKNUM);
            // A large table must not take the buffers from the others.
            let is_large = blocks > pg_sys::NBuffers as u32 / 4;
            let strategy = match is_large {
                true => pg_sys::GetAccessStrategy(pg_sys::BufferAccessStrategyType::BAS_BULKREAD),
                false => std::ptr::null_mut(),
            };
            Some(Self {
                relation,
                snapshot,
                strategy,
                blocks,
                widths,
                rows: Vec::new(),
            })
        }
    }

    /// The number of pages. Rows that the snapshot shows are in no other.
    pub fn len(&self) -> u32 {
        self.blocks
    }

    /// The number of the file, which changes when the table is truncated.
    pub fn file(&self) -> u32 {
        // SAFETY: The relation is open.
        unsafe { u32::from((*(*self.relation).rd_rel).relfilenode) }
    }

    /// The transaction before which all have ended for the snapshot.
    pub fn horizon(&self) -> Xid {
        self.snapshot.horizon()
    }

    /// The position in the WAL of the last change of a page, 0 where that is not known.
    pub fn lsn(&self, block: u32) -> u64 {
        // SAFETY: As in `read`.
        unsafe {
            let buffer = self.lock(block);
            let lsn = self.lsn_of(buffer);
            pg_sys::UnlockReleaseBuffer(buffer);
            lsn
        }
    }

    /// Calls `visit` with each row of a page that the snapshot shows.
    pub fn read(&mut self, block: u32, mut visit: impl FnMut([Option<i32>; N])) -> Page {
        memory::check_for_interrupts();
        self.rows.clear();
        // SAFETY: The page is in a buffer that is pinned and locked until the rows are copied. After
        // an ERROR the resource owner releases both.
        let page = unsafe {
            let buffer = self.lock(block);
            let page = self.copy_rows(block, buffer);
            pg_sys::UnlockReleaseBuffer(buffer);
            page
        };
        for row in &self.rows {
            visit(*row);
        }
        page
    }

    unsafe fn lock(&self, block: u32) -> pg_sys::Buffer {
        // SAFETY: The relation is open and has the page: no page is cut off while the caller has
        // its lock.
        unsafe {
            let buffer = pg_sys::ReadBufferExtended(
                self.relation,
                pg_sys::ForkNumber::MAIN_FORKNUM,
                block,
                pg_sys::ReadBufferMode::RBM_NORMAL,
                self.strategy,
            );
            pg_sys::LockBuffer(buffer, pg_sys::BUFFER_LOCK_SHARE as i32);
            buffer
        }
    }

    unsafe fn lsn_of(&self, buffer: pg_sys::Buffer) -> u64 {
        // SAFETY: The relation is open, and the buffer is pinned and locked.
        unsafe {
            let is_logged = (*(*self.relation).rd_rel).relpersistence
                == pg_sys::RELPERSISTENCE_PERMANENT as std::ffi::c_char;
            if is_logged {
                pg_sys::BufferGetLSNAtomic(buffer)
            } else {
                0
            }
        }
    }

    /// Copies the visible rows of a page, whose buffer is locked.
    unsafe fn copy_rows(&mut self, block: u32, buffer: pg_sys::Buffer) -> Page {
        let horizon = self.horizon();
        let mut settled = Some(Xid::NONE);
        // SAFETY: The layout of a page, of line pointers and of rows is the same in all versions. A
        // locked page is consistent: its line pointers of the kind LP_NORMAL point to rows in it.
        unsafe {
            let start: *mut std::ffi::c_char = pg_sys::BufferGetPage(buffer).cast();
            let header = start as *mut pg_sys::PageHeaderData;
            let begin = std::mem::offset_of!(pg_sys::PageHeaderData, pd_linp);
            let used = ((*header).pd_lower as usize).saturating_sub(begin);
            let items: *const u32 = (*header).pd_linp.as_ptr().cast();
            let table = (*self.relation).rd_id;
            for at in 0..used / std::mem::size_of::<u32>() {
                let item = LinePointer::of(*items.add(at));
                if item.flags != pg_sys::LP_NORMAL {
                    continue;
                }
                let row = start.add(item.offset as usize) as pg_sys::HeapTupleHeader;
                settled = settled
                    .zip(last_writer(&*row, horizon))
                    .map(|(last, writer)| last.latest(writer));
                let is_visible = is_plainly_visible(&*row, horizon) || {
                    let mut tuple = pg_sys::HeapTupleData {
                        t_len: item.length,
                        t_tableOid: table,
                        t_data: row,
                        ..Default::default()
                    };
                    tuple.t_self.ip_blkid.bi_hi = (block >> 16) as u16;
                    tuple.t_self.ip_blkid.bi_lo = block as u16;
                    tuple.t_self.ip_posid = at as u16 + 1;
                    pg_sys::HeapTupleSatisfiesVisibility(&mut tuple, self.snapshot.ptr(), buffer)
                };
                if is_visible {
                    self.rows.push(columns(row, self.widths));
                }
            }
            Page {
                lsn: self.lsn_of(buffer),
                settled,
            }
        }
    }
}

impl<const N: usize> Drop for Pages<'_, N> {
    fn drop(&mut self) {
        // After an ERROR the end of the transaction releases them.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: `open` has opened the relation and made the strategy, which may be NULL.
        unsafe {
            pg_sys::FreeAccessStrategy(self.strategy);
            pg_sys::table_close(self.relation, pg_sys::NoLock as i32);
        }
    }
}

/// A line pointer of a page.
struct LinePointer {
    offset: u32,
    flags: u32,
    length: u32,
}

impl LinePointer {
    /// The parts are bit fields of 15, 2 and 15 bits, which compilers lay out from the end at which
    /// the platform has the first byte. What bindgen makes of them takes longer than the rest of a row.
    fn of(bits: u32) -> Self {
        let (low, flags, high) = (bits & 0x7fff, bits >> 15 & 3, bits >> 17);
        let (offset, length) = match cfg!(target_endian = "little") {
            true => (low, high),
            false => (high, low),
        };
        Self {
            offset,
            flags,
            length,
        }
    }
}

fn has(row: &pg_sys::HeapTupleHeaderData, flags: u32) -> bool {
    u32::from(row.t_infomask) & flags == flags
}

/// A row that was written so long ago that its transaction ID means nothing any longer.
const FROZEN: u32 = pg_sys::HEAP_XMIN_COMMITTED | pg_sys::HEAP_XMIN_INVALID;

unsafe fn writers(row: &pg_sys::HeapTupleHeaderData) -> (Xid, Xid) {
    // SAFETY: Every row on a page has these fields.
    let fields = unsafe { row.t_choice.t_heap };
    (
        Xid::new(fields.t_xmin.into()),
        Xid::new(fields.t_xmax.into()),
    )
}

/// Returns the last transaction that has written a row. None when one of them had not ended before
/// the horizon, or is not known.
unsafe fn last_writer(row: &pg_sys::HeapTupleHeaderData, horizon: Xid) -> Option<Xid> {
    // SAFETY: As above.
    let (inserter, deleter) = unsafe { writers(row) };
    if u32::from(row.t_infomask) & pg_sys::HEAP_MOVED != 0 {
        return None;
    }
    let inserter = match has(row, FROZEN) {
        true => Xid::NONE,
        false => inserter,
    };
    let deleter = match (
        has(row, pg_sys::HEAP_XMAX_INVALID),
        has(row, pg_sys::HEAP_XMAX_IS_MULTI),
    ) {
        (true, _) => Xid::NONE,
        (false, true) => return None,
        (false, false) => deleter,
    };
    (inserter.is_before(horizon) && deleter.is_before(horizon)).then(|| inserter.latest(deleter))
}

/// Returns whether a row is visible for a reason that is on the page: it is known that its inserter
/// has committed, before the snapshot, and that nobody has deleted it. This is the first thing that
/// the server itself looks at.
unsafe fn is_plainly_visible(row: &pg_sys::HeapTupleHeaderData, horizon: Xid) -> bool {
    if !has(row, pg_sys::HEAP_XMAX_INVALID | pg_sys::HEAP_XMIN_COMMITTED) {
        return false;
    }
    // SAFETY: As above.
    has(row, FROZEN) || unsafe { writers(row) }.0.is_before(horizon)
}

/// Reads the columns of a row, which have these lengths and are aligned to them.
unsafe fn columns<const N: usize>(
    row: pg_sys::HeapTupleHeader,
    widths: [u8; N],
) -> [Option<i32>; N] {
    let mut columns = [None; N];
    // SAFETY: A row begins at its offset with the columns that are not NULL. The bits of those are
    // set, where the row has any that is NULL. A row with fewer columns than the table was written
    // before those were added, without a default, as `open` has checked.
    unsafe {
        let header = &*row;
        let has_nulls = has(header, pg_sys::HEAP_HASNULL);
        let bits = header.t_bits.as_ptr();
        let data = (row as *const u8).add(header.t_hoff as usize);
        let written = usize::from(header.t_infomask2) & pg_sys::HEAP_NATTS_MASK as usize;
        let mut at = 0;
        for (number, width) in widths.iter().enumerate().take(written) {
            if has_nulls && *bits.add(number / 8) & (1 << (number % 8)) == 0 {
                continue;
            }
            let width = usize::from(*width);
            at = (at + width - 1) & !(width - 1);
            columns[number] = Some(match width {
                4 => data.add(at).cast::<i32>().read(),
                _ => i32::from(data.add(at).cast::<i16>().read()),
            });
            at += width;
        }
    }
    columns
}

/// Calls `visit` with each row of a table that a snapshot shows, whatever kind of table it is, and
/// leaves predicate locks. The caller has locked the table.
///
/// Raises an ERROR when the table has not these columns.
pub fn rows<const N: usize>(
    table: pg_sys::Oid,
    names: [&str; N],
    snapshot: &Snapshot,
    mut visit: impl FnMut([Option<i32>; N]),
) {
    let mut numbers = None;
    scan::each_in(table, snapshot, |tuple, desc| {
        let numbers = numbers.get_or_insert_with(|| scan::numbers(desc, names));
        let values = scan::columns(tuple, desc, *numbers);
        visit(values.map(|datum| datum.map(|datum| datum.value() as i32)));
    });
}
