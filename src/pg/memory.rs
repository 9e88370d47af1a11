//! Memory that is used up is an ERROR of one statement (53200), as in the server itself.
//!
//! The allocator cannot fail, see [`allocator`]. So a call asks before: [`require`] when it begins, and
//! [`provide`] where a list or a result is large. What they allocate is not used: it is the ballast,
//! which the allocator frees when the system has no memory left. The next safe point,
//! [`check_for_interrupts`], then raises the ERROR.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::{PgMemoryContexts, PgSqlErrorCode, pg_sys};

use crate::error::{self, Error, Result};
use crate::pg::allocator::{self, BASE, EXTRA};

/// The bytes that each process holds from its first call on. PostgreSQL needs them as well: pgrx copies
/// an error where a further one would be fatal, and a memory context asks for up to a megabyte at once.
const BASE_BYTES: usize = 4 << 20;

/// The least that a memory context of the server asks for when it needs a large block.
const BLOCK_BYTES: usize = (1 << 20) + 4096;

/// The memory of Rust that a call needs for an element of a list: copies of its parts, and places in
/// vectors and sets, which grow by doubling. The largest is that of a settlement: three times 160 bytes while
/// its vector grows, and what became of it.
const BYTES_FOR_ELEMENT: usize = 576;

/// The memory of Rust that a call needs for a byte of a list or a text.
const COPIES: usize = 4;

/// The memory of Rust that a call needs for a row of a statement, such as a place in a set of subjects.
const BYTES_FOR_ROW: usize = 160;

/// Up to this size the base and the reserve are enough.
const SMALL: usize = BASE_BYTES / 8;

/// Fails with `Error::OutOfMemory` unless there is memory for an ordinary call. Where some was used up,
/// this allocates it again.
#[inline]
pub fn require() -> Result<()> {
    if BASE.bytes() != 0 && !allocator::is_scarce() {
        return Ok(());
    }
    refill()
}

/// As [`require`], in a process that has called fetchq before. Another one allocates nothing.
pub fn require_again() -> Result<()> {
    match HAS_CALLED.load(Ordering::Relaxed) {
        true => require(),
        false => Ok(()),
    }
}

/// Whether this process has called fetchq.
static HAS_CALLED: AtomicBool = AtomicBool::new(false);

#[cold]
fn refill() -> Result<()> {
    HAS_CALLED.store(true, Ordering::Relaxed);
    if !BASE.hold(BASE_BYTES) {
        return Err(Error::OutOfMemory);
    }
    allocator::end_scarcity();
    Ok(())
}

/// A safe point: raises the ERROR of a cancel, or of the end of the session, if one is pending, and
/// `Error::OutOfMemory` when memory was used up.
#[inline]
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
    if allocator::is_scarce() {
        raise_scarcity();
    }
}

#[cold]
fn raise_scarcity() {
    // SAFETY: These are plain variables of this process.
    let may_raise = unsafe { pg_sys::InterruptHoldoffCount == 0 && pg_sys::CritSectionCount == 0 };
    if may_raise {
        error::raise::<()>(Err(Error::OutOfMemory));
    }
}

/// Holds ballast until the end of the call for a list of `elements`, whose parts have `bytes` together.
/// Fails with `Error::OutOfMemory`.
pub fn provide(elements: usize, bytes: usize) -> Result<()> {
    let needed = elements
        .saturating_mul(BYTES_FOR_ELEMENT)
        .saturating_add(bytes.saturating_mul(COPIES));
    if needed <= SMALL || needed <= EXTRA.bytes() || EXTRA.hold(needed) {
        return Ok(());
    }
    Err(Error::OutOfMemory)
}

/// As [`provide`], but raises the error.
#[inline]
pub fn provide_or_raise(elements: usize, bytes: usize) {
    error::raise(provide(elements, bytes));
}

/// As [`provide_or_raise`], for the result of a statement.
#[inline]
pub fn provide_for_rows(rows: usize) {
    provide_or_raise(0, rows.saturating_mul(BYTES_FOR_ROW / COPIES));
}

/// A piece of work at whose end the ballast that it has provided is freed.
pub struct Work {
    /// Nested work leaves the ballast to the work around it.
    is_outermost: bool,
}

impl Work {
    /// Begins a piece of work.
    #[inline]
    pub fn begin() -> Self {
        let is_outermost = EXTRA.bytes() == 0;
        Self { is_outermost }
    }
}

impl Drop for Work {
    #[inline]
    fn drop(&mut self) {
        if self.is_outermost && EXTRA.bytes() != 0 {
            EXTRA.free();
        }
    }
}

unsafe extern "C-unwind" {
    // From `utils/elog.h`. The server calls it while it handles an error, so it must not be guarded.
    fn geterrcode() -> i32;
}

/// Frees the ballast when the message that the server reports now may be an ERROR whose handlers get no
/// memory. pgrx copies an ERROR after the jump out of what has failed, while the server still has the
/// place to jump to and the callbacks of that: an ERROR of the copy would crash the process. Returns
/// whether there is memory for the copy. Must be called from an error context callback.
pub(super) fn free_for_error() -> bool {
    if message_code() == PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as i32
        || !allocator::has_room(BLOCK_BYTES)
    {
        allocator::free_ballast();
        return allocator::has_room(BLOCK_BYTES);
    }
    true
}

fn message_code() -> i32 {
    // SAFETY: The server calls the callbacks while it reports a message.
    unsafe { geterrcode() }
}

/// Returns whether the message that the server reports now has a code of a success or of a warning, as
/// no ERROR has. Must be called from an error context callback.
pub(super) fn is_no_error() -> bool {
    const SUCCESS: i32 = PgSqlErrorCode::ERRCODE_SUCCESSFUL_COMPLETION as i32;
    const WARNING: i32 = PgSqlErrorCode::ERRCODE_WARNING as i32;
    // The class of a code is in its first two characters, of six bits each.
    matches!(message_code() & 0xfff, SUCCESS | WARNING)
}

unsafe extern "C-unwind" fn on_message(_: *mut c_void) {
    free_for_error();
}

/// Runs `work`, which calls the server, where no entry point runs: in a hook, a callback, a background
/// process. When the server has no memory left, the ballast is freed for the handlers of its ERROR.
pub fn watch<R>(work: impl FnOnce() -> R) -> R {
    struct Entry(*mut pg_sys::ErrorContextCallback);
    impl Drop for Entry {
        fn drop(&mut self) {
            // SAFETY: This is a variable of this process. The entry below is no longer used.
            unsafe { pg_sys::error_context_stack = self.0 };
        }
    }
    // SAFETY: The entry lives until the end of this function, and `Entry` removes it before, whether
    // `work` fails or not.
    unsafe {
        let previous = pg_sys::error_context_stack;
        let mut callback = pg_sys::ErrorContextCallback {
            previous,
            callback: Some(on_message),
            arg: std::ptr::null_mut(),
        };
        pg_sys::error_context_stack = &raw mut callback;
        let _entry = Entry(previous);
        work()
    }
}

/// Runs `work`, and frees what it has allocated in the memory of the server. The result must not be
/// there. Loops use it, so that they take the memory of one round.
pub fn freed_after<R>(work: impl FnOnce() -> R) -> R {
    // It is deleted when it is dropped.
    let mut memory = PgMemoryContexts::new("fetchq round");
    // SAFETY: `work` gets no reference to the memory, and by contract its result is not in it.
    unsafe { memory.switch_to(|_| work()) }
}
