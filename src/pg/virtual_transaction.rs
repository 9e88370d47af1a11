//! The virtual transaction of this session: what other sessions wait for that need its end. It exists without
//! a transaction ID.

use pgrx::pg_sys;

/// A virtual transaction, in 64 bits. 0: none.
pub type Number = u64;

/// Returns that of this session, which is in a transaction.
pub fn current() -> Number {
    // SAFETY: Every session that is connected to a database has an entry among the processes, and writes to
    // it alone.
    unsafe {
        let process = &*pg_sys::MyProc;
        #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15", feature = "pg16"))]
        let (session, number) = (pg_sys::MyBackendId, process.lxid);
        #[cfg(any(feature = "pg17", feature = "pg18"))]
        let (session, number) = (pg_sys::MyProcNumber, process.vxid.lxid);
        (session as u32 as u64) << 32 | u64::from(number)
    }
}

/// Waits until a virtual transaction has ended. The server finds deadlocks.
pub fn wait_for(of: Number) {
    // SAFETY: Each pair of numbers is allowed: one that has ended, or never was, is not waited for.
    unsafe {
        let transaction = pg_sys::VirtualTransactionId {
            #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15", feature = "pg16"))]
            backendId: (of >> 32) as pg_sys::BackendId,
            #[cfg(any(feature = "pg17", feature = "pg18"))]
            procNumber: (of >> 32) as pg_sys::ProcNumber,
            localTransactionId: of as u32,
        };
        pg_sys::VirtualXactLock(transaction, true);
    }
}
