//! The number of the last error of the C library.

unsafe extern "C" {
    #[cfg_attr(target_os = "macos", link_name = "__error")]
    #[cfg_attr(not(target_os = "macos"), link_name = "__errno_location")]
    fn errno_location() -> *mut i32;
}

/// Runs `work`, after which `errno` is what it was before.
///
/// A signal handler must leave it alone: it may run between a system call and the code that reads
/// the error of that call.
pub fn preserve<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: The address is that of a variable of this thread.
    unsafe {
        let errno = errno_location();
        let saved = *errno;
        let result = work();
        *errno = saved;
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_number_is_restored() {
        // SAFETY: As in `preserve`.
        let set = |number| unsafe { *errno_location() = number };
        set(4);
        assert_eq!(preserve(|| set(11)), ());
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(4));
    }
}
