//! The script of CREATE EXTENSION and ALTER EXTENSION UPDATE that the server runs at the moment.

use pgrx::pg_sys;

/// Returns whether the server runs the script of an extension in this session.
pub fn is_running() -> bool {
    // SAFETY: This reads a variable of this process.
    unsafe { pg_sys::creating_extension }
}

/// Runs `work` as if no script of an extension ran: what it creates does not become a member of the
/// extension, and what it grants counts as a grant of a user, which pg_dump writes down.
pub fn outside<R>(work: impl FnOnce() -> R) -> R {
    struct Saved(bool);
    impl Drop for Saved {
        fn drop(&mut self) {
            // SAFETY: This is the value from before. After an ERROR that nobody catches, the end of
            // the script sets it to false, as it would without this function.
            unsafe { pg_sys::creating_extension = self.0 };
        }
    }
    let _saved = Saved(is_running());
    // SAFETY: The server reads this variable to find out whether an object becomes a member. The OID of
    // the extension, which stays set, counts only while it is true.
    unsafe { pg_sys::creating_extension = false };
    work()
}
