//! Variables of a process that own memory.
//!
//! The standard library registers the destructor of such a variable when it is first used. The C
//! library allocates for that, and ends the process when there is no memory: see [`super::allocator`].
//! A process of a server exits as a whole, so nothing is lost without destructors.

use std::cell::RefCell;
use std::mem::ManuallyDrop;

/// The type of a variable in `thread_local!` that owns memory.
pub type Lasting<T> = ManuallyDrop<RefCell<T>>;

/// Makes the first value of such a variable.
pub const fn lasting<T>(value: T) -> Lasting<T> {
    ManuallyDrop::new(RefCell::new(value))
}
