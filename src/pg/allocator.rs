//! The allocator of the library. It passes every request to the one of the system.
//!
//! Where that has no memory left, Rust aborts the process, and PostgreSQL then ends all sessions. So
//! this allocator has memory of its own for that case:
//!
//! - the reserve, a static area. It is part of each process from its fork on, and no page of it is in
//!   memory before it is used. It serves small requests.
//! - the ballast, blocks that are allocated and never used (see `pg::memory`). When they are freed,
//!   the system has memory again, for PostgreSQL too.
//!
//! A request that needs one of them sets a mark, [`is_scarce`], which the next safe point turns into an
//! ERROR. Only when both are used up, the session ends, as with `pg_terminate_backend()`: an allocator
//! can neither fail nor unwind.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};

/// The bytes of the reserve.
const RESERVE_BYTES: usize = 1 << 20;

/// The bytes of a granule: blocks of the reserve begin and end at multiples of it.
const GRANULE: usize = 64;

const GRANULES: usize = RESERVE_BYTES / GRANULE;

/// Where the part of the reserve ends that small requests take before the ballast is freed.
const FIRST_PART: usize = GRANULES / 2;

/// Where the part of the reserve ends that only the end of the session takes.
const CALL_PART: usize = GRANULES / 4 * 3;

/// The largest request that is small.
const SMALL: usize = 16 * 1024;

/// The alignment of the reserve, which is the largest that it serves.
const MAX_ALIGN: usize = 4096;

/// Which granules of the reserve are in use. GlobalAlloc passes the size of a block that is freed, so
/// the blocks need no headers.
struct Granules([u64; GRANULES / 64]);

impl Granules {
    const fn unused() -> Self {
        Self([0; GRANULES / 64])
    }

    fn is_used(&self, at: usize) -> bool {
        self.0[at / 64] & (1 << (at % 64)) != 0
    }

    /// Takes `n` granules in a row below `end`, the first at a multiple of `step`. Returns the first.
    fn take(&mut self, n: usize, step: usize, end: usize) -> Option<usize> {
        let mut first = 0;
        while first + n <= end {
            match (first..first + n).rev().find(|at| self.is_used(*at)) {
                Some(used) => first = (used + 1).next_multiple_of(step),
                None => {
                    (first..first + n).for_each(|at| self.0[at / 64] |= 1 << (at % 64));
                    return Some(first);
                }
            }
        }
        None
    }

    fn give_back(&mut self, first: usize, n: usize) {
        (first..first + n).for_each(|at| self.0[at / 64] &= !(1 << (at % 64)));
    }
}

/// The number of granules that a block of this size takes.
fn granules_of(bytes: usize) -> usize {
    bytes.div_ceil(GRANULE).max(1)
}

#[repr(C, align(4096))]
struct Area([u8; RESERVE_BYTES]);

struct Reserve {
    area: UnsafeCell<Area>,
    granules: UnsafeCell<Granules>,
    is_locked: AtomicBool,
}

// SAFETY: The granules are used only while `is_locked` is held, and each byte of the area belongs to
// the one block that has its granule.
unsafe impl Sync for Reserve {}

static RESERVE: Reserve = Reserve {
    area: UnsafeCell::new(Area([0; RESERVE_BYTES])),
    granules: UnsafeCell::new(Granules::unused()),
    is_locked: AtomicBool::new(false),
};

impl Reserve {
    /// Returns whether a block is in the reserve. This is all that the reserve adds to a block that is
    /// freed.
    #[inline(always)]
    fn has(&self, block: *mut u8) -> bool {
        (block as usize).wrapping_sub(self.area.get() as usize) < RESERVE_BYTES
    }

    /// Uses the granules. Returns None when another thread does so: it must not wait for one that a
    /// fork has left behind. The server has no threads.
    fn with_granules<R>(&self, work: impl FnOnce(&mut Granules) -> R) -> Option<R> {
        for _ in 0..1000 {
            let lock = self.is_locked.compare_exchange_weak(
                false,
                true,
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            if lock.is_ok() {
                // SAFETY: The lock is held.
                let result = work(unsafe { &mut *self.granules.get() });
                self.is_locked.store(false, Ordering::Release);
                return Some(result);
            }
            std::hint::spin_loop();
        }
        None
    }

    /// Takes a block from the granules below `end`. Returns NULL if it does not fit.
    fn take(&self, layout: Layout, end: usize) -> *mut u8 {
        if layout.align() > MAX_ALIGN {
            return std::ptr::null_mut();
        }
        let (n, step) = (
            granules_of(layout.size()),
            layout.align().div_ceil(GRANULE).max(1),
        );
        match self.with_granules(|granules| granules.take(n, step, end)) {
            // SAFETY: `end` is not above the number of granules, so the block is in the area.
            Some(Some(first)) => unsafe { self.area.get().cast::<u8>().add(first * GRANULE) },
            _ => std::ptr::null_mut(),
        }
    }

    /// Gives a block back that `take` has returned.
    fn give_back(&self, block: *mut u8, bytes: usize) {
        let first = (block as usize - self.area.get() as usize) / GRANULE;
        // Where it is locked, the block is lost.
        let _ = self.with_granules(|granules| granules.give_back(first, granules_of(bytes)));
    }
}

/// A block that is allocated and not used. Its first word is its size.
pub(super) struct Ballast(AtomicPtr<usize>);

/// What each process holds from its first call on.
pub(super) static BASE: Ballast = Ballast::none();

/// What a call holds that has a large argument or a large result.
pub(super) static EXTRA: Ballast = Ballast::none();

impl Ballast {
    const fn none() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes.max(size_of::<usize>()), align_of::<usize>()).ok()
    }

    /// Returns the bytes that are held.
    #[inline]
    pub(super) fn bytes(&self) -> usize {
        let block = self.0.load(Ordering::Relaxed);
        // SAFETY: The block belongs to this process, and its first word was written by `hold`.
        if block.is_null() {
            0
        } else {
            unsafe { *block }
        }
    }

    /// Allocates the ballast anew. Returns whether there is memory for it; where not, nothing is held.
    pub(super) fn hold(&self, bytes: usize) -> bool {
        self.free();
        let Some(layout) = Self::layout(bytes) else {
            return false;
        };
        // SAFETY: The size is not 0. The block has room for its first word.
        unsafe {
            let block = System.alloc(layout).cast::<usize>();
            if block.is_null() {
                return false;
            }
            *block = layout.size();
            self.0.store(block, Ordering::Relaxed);
        }
        true
    }

    /// Frees what is held. Returns whether there was something.
    pub(super) fn free(&self) -> bool {
        let block = self.0.swap(std::ptr::null_mut(), Ordering::Relaxed);
        if block.is_null() {
            return false;
        }
        // SAFETY: `hold` has allocated the block with this layout. Nobody else has it after the swap.
        unsafe {
            if let Some(layout) = Self::layout(*block) {
                System.dealloc(block.cast(), layout);
            }
        }
        true
    }
}

/// Frees all ballast. Returns whether there was any.
pub(super) fn free_ballast() -> bool {
    // Both of them, whatever the first one had.
    BASE.free() | EXTRA.free()
}

/// Returns whether the system has so much memory at once.
pub(super) fn has_room(bytes: usize) -> bool {
    let ballast = Ballast::none();
    let has_room = ballast.hold(bytes);
    ballast.free();
    has_room
}

static IS_SCARCE: AtomicBool = AtomicBool::new(false);

/// Returns whether a request had to be served from the reserve or by freeing the ballast.
#[inline(always)]
pub(super) fn is_scarce() -> bool {
    IS_SCARCE.load(Ordering::Relaxed)
}

/// Removes the mark that [`is_scarce`] reads.
pub(super) fn end_scarcity() {
    IS_SCARCE.store(false, Ordering::Relaxed);
}

struct Allocator;

// A unit test is no process of a server.
#[cfg(not(test))]
#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: Each block comes from the system or from the reserve, and goes back to where its address
// says that it is from. Nothing here unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: As the caller promises.
        unsafe {
            let block = System.alloc(layout);
            if block.is_null() {
                return without_system(layout);
            }
            block
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: As the caller promises. A block that is not NULL has the size of the layout.
        unsafe {
            let mut block = System.alloc_zeroed(layout);
            if block.is_null() {
                block = without_system(layout);
                if !block.is_null() {
                    block.write_bytes(0, layout.size());
                }
            }
            block
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if RESERVE.has(block) {
            return RESERVE.give_back(block, layout.size());
        }
        // SAFETY: A block that is not in the reserve is the system's.
        unsafe { System.dealloc(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: As the caller promises. A block that is not in the reserve is the system's.
        unsafe {
            if !RESERVE.has(block) {
                let moved = System.realloc(block, layout, size);
                if !moved.is_null() {
                    return moved;
                }
            }
            move_block(self, block, layout, size)
        }
    }
}

/// Serves a request for which the system has no memory.
#[cold]
#[inline(never)]
unsafe fn without_system(layout: Layout) -> *mut u8 {
    IS_SCARCE.store(true, Ordering::Relaxed);
    if layout.size() <= SMALL {
        let block = RESERVE.take(layout, FIRST_PART);
        if !block.is_null() {
            return block;
        }
    }
    if free_ballast() {
        // SAFETY: As the caller of the allocator promises.
        let block = unsafe { System.alloc(layout) };
        if !block.is_null() {
            return block;
        }
    }
    let block = RESERVE.take(layout, CALL_PART);
    if !block.is_null() {
        return block;
    }
    // A unit test has no session.
    if cfg!(not(test)) {
        end_session();
    }
    RESERVE.take(layout, GRANULES)
}

/// Changes the size of a block that is in the reserve, or for which the system has no memory.
#[cold]
#[inline(never)]
unsafe fn move_block(
    allocator: &Allocator,
    block: *mut u8,
    layout: Layout,
    size: usize,
) -> *mut u8 {
    if RESERVE.has(block) && granules_of(size) == granules_of(layout.size()) {
        return block;
    }
    // SAFETY: The caller promises that the new size is valid with this alignment. The blocks do not
    // overlap, because the old one is freed last.
    unsafe {
        let wanted = Layout::from_size_align_unchecked(size, layout.align());
        let moved = allocator.alloc(wanted);
        if !moved.is_null() {
            moved.copy_from_nonoverlapping(block, layout.size().min(size));
            allocator.dealloc(block, layout);
        }
        moved
    }
}

/// Whether this session ends because it has no memory left.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

unsafe extern "C-unwind" {
    // From `utils/elog.h`. The bindings of pgrx guard these functions by code that allocates.
    fn errstart(level: c_int, domain: *const c_char) -> bool;
    fn errcode(code: c_int) -> c_int;
    fn errmsg(format: *const c_char, ...) -> c_int;
    fn errdetail(format: *const c_char, ...) -> c_int;
    fn errfinish(file: *const c_char, line: c_int, function: *const c_char);
}

/// Ends the session by a FATAL error, which rolls back its transaction and frees its locks. Returns
/// only where that is impossible: in the postmaster, and in a session that ends already.
pub(super) fn end_session() {
    // SAFETY: This is a plain variable of the process. A FATAL error does not return, and jumps
    // nowhere: it runs the exit callbacks of the process. The functions that add a context to a message
    // are left out, because they allocate. The library starts no threads.
    unsafe {
        if !pg_sys::IsUnderPostmaster || IS_ENDING.swap(true, Ordering::Relaxed) {
            return;
        }
        pg_sys::error_context_stack = std::ptr::null_mut();
        if errstart(PgLogLevel::FATAL as c_int, std::ptr::null()) {
            errcode(PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int);
            errmsg(c"out of memory".as_ptr());
            errdetail(c"The reserve of fetchq is used up, so the session ends.".as_ptr());
            errfinish(
                c"allocator.rs".as_ptr(),
                line!() as c_int,
                c"end_session".as_ptr(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn granules_are_taken_in_a_row_and_given_back() {
        let mut granules = Granules::unused();
        assert_eq!(granules.take(3, 1, GRANULES), Some(0));
        assert_eq!(granules.take(1, 1, GRANULES), Some(3));
        assert_eq!(granules.take(2, 4, GRANULES), Some(4));
        granules.give_back(0, 3);
        assert_eq!(granules.take(4, 1, GRANULES), Some(6));
        assert_eq!(granules.take(2, 1, GRANULES), Some(0));
        assert_eq!(granules.take(1, 64, GRANULES), Some(64));
    }

    #[test]
    fn a_part_of_the_granules_is_kept_back() {
        let mut granules = Granules::unused();
        let mut n = 0;
        while granules.take(1, 1, FIRST_PART).is_some() {
            n += 1;
        }
        assert_eq!(n, FIRST_PART);
        assert_eq!(granules.take(1, 1, CALL_PART), Some(FIRST_PART));
        assert_eq!(granules.take(GRANULES, 1, GRANULES), None);
    }

    #[test]
    fn a_block_of_the_reserve_grows_shrinks_and_goes_back() {
        let layout = |size, align| Layout::from_size_align(size, align).unwrap();
        let block = RESERVE.take(layout(100, 8), CALL_PART);
        assert!(RESERVE.has(block));
        // SAFETY: The blocks have the sizes that are passed.
        unsafe {
            block.write_bytes(7, 100);
            let same = Allocator.realloc(block, layout(100, 8), 128);
            assert_eq!(same, block);
            // The system has memory, so the block moves there.
            let moved = Allocator.realloc(block, layout(128, 8), 1000);
            assert!(!RESERVE.has(moved));
            assert_eq!(moved.add(99).read(), 7);
            Allocator.dealloc(moved, layout(1000, 8));
        }
        let aligned = RESERVE.take(layout(10, 4096), CALL_PART);
        assert_eq!(aligned as usize % 4096, 0);
        RESERVE.give_back(aligned, 10);
        assert!(RESERVE.take(layout(10, 8192), CALL_PART).is_null());
        assert!(
            RESERVE
                .take(layout(RESERVE_BYTES + 1, 1), GRANULES)
                .is_null()
        );
    }

    #[test]
    fn ballast_is_held_and_freed() {
        let ballast = Ballast::none();
        assert_eq!(ballast.bytes(), 0);
        assert!(ballast.hold(1 << 20));
        assert_eq!(ballast.bytes(), 1 << 20);
        assert!(!ballast.hold(usize::MAX));
        assert!(!ballast.free());
    }
}
