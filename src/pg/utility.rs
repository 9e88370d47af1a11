//! Commands that the server runs: a function is called when a prepared transaction has ended.

use std::sync::OnceLock;

use pgrx::pg_sys;

static ON_PREPARED_END: OnceLock<fn()> = OnceLock::new();

static mut PREVIOUS_HOOK: pg_sys::ProcessUtility_hook_type = None;

/// Registers a function that is called in a session after its COMMIT PREPARED or ROLLBACK PREPARED, when
/// other sessions see what has become of the transaction. The function must raise no ERROR.
///
/// To be called once, when the library is loaded.
pub fn on_prepared_end(function: fn()) {
    if ON_PREPARED_END.set(function).is_ok() {
        // SAFETY: A library is loaded by one thread, and once in a process. Hooks form a chain.
        unsafe {
            PREVIOUS_HOOK = pg_sys::ProcessUtility_hook;
            pg_sys::ProcessUtility_hook = Some(run);
        }
    }
}

/// Returns whether a command is COMMIT PREPARED or ROLLBACK PREPARED.
///
/// # Safety
///
/// The pointer is that of a command that the server is about to run.
unsafe fn ends_prepared(command: *const pg_sys::PlannedStmt) -> bool {
    // SAFETY: The tag of a node is checked before the node is used.
    unsafe {
        let node = (*command).utilityStmt;
        !node.is_null()
            && (*node).type_ == pg_sys::NodeTag::T_TransactionStmt
            && matches!(
                (*node.cast::<pg_sys::TransactionStmt>()).kind,
                pg_sys::TransactionStmtKind::TRANS_STMT_COMMIT_PREPARED
                    | pg_sys::TransactionStmtKind::TRANS_STMT_ROLLBACK_PREPARED
            )
    }
}

fn ended() {
    if let Some(function) = ON_PREPARED_END.get() {
        function();
    }
}

// The command runs without the guard of pgrx, which would turn its errors into panics and back: they
// pass through the hook, which has nothing to clean up.
#[cfg(not(feature = "pg13"))]
mod server {
    use std::ffi::c_char;

    use pgrx::pg_sys;

    unsafe extern "C-unwind" {
        /// Runs a command as the server does without hooks.
        /// Runs a command as the server does without hooks.
        #[link_name = "standard_ProcessUtility"]
        pub fn standard(
            command: *mut pg_sys::PlannedStmt,
            text: *const c_char,
            is_read_only_tree: bool,
            context: pg_sys::ProcessUtilityContext::Type,
            params: pg_sys::ParamListInfo,
            environment: *mut pg_sys::QueryEnvironment,
            destination: *mut pg_sys::DestReceiver,
            completion: *mut pg_sys::QueryCompletion,
        );
    }
}

#[cfg(feature = "pg13")]
mod server {
    use std::ffi::c_char;

    use pgrx::pg_sys;

    unsafe extern "C-unwind" {
        /// Runs a command as the server does without hooks.
        /// Runs a command as the server does without hooks.
        #[link_name = "standard_ProcessUtility"]
        pub fn standard(
            command: *mut pg_sys::PlannedStmt,
            text: *const c_char,
            context: pg_sys::ProcessUtilityContext::Type,
            params: pg_sys::ParamListInfo,
            environment: *mut pg_sys::QueryEnvironment,
            destination: *mut pg_sys::DestReceiver,
            completion: *mut pg_sys::QueryCompletion,
        );
    }
}

/// The hook.
// Its arguments are those that the server passes.
#[allow(clippy::too_many_arguments)]
#[cfg(not(feature = "pg13"))]
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn run(
    command: *mut pg_sys::PlannedStmt,
    text: *const std::ffi::c_char,
    is_read_only_tree: bool,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: The server passes a command that is to be run. It may be gone afterwards, so it is looked
    // at before.
    unsafe {
        let ends = ends_prepared(command);
        let next = PREVIOUS_HOOK.unwrap_or(server::standard);
        next(
            command,
            text,
            is_read_only_tree,
            context,
            params,
            environment,
            destination,
            completion,
        );
        if ends {
            ended();
        }
    }
}

/// The hook.
#[cfg(feature = "pg13")]
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn run(
    command: *mut pg_sys::PlannedStmt,
    text: *const std::ffi::c_char,
    context: pg_sys::ProcessUtilityContext::Type,
    params: pg_sys::ParamListInfo,
    environment: *mut pg_sys::QueryEnvironment,
    destination: *mut pg_sys::DestReceiver,
    completion: *mut pg_sys::QueryCompletion,
) {
    // SAFETY: The server passes a command that is to be run. It may be gone afterwards, so it is looked
    // at before.
    unsafe {
        let ends = ends_prepared(command);
        let next = PREVIOUS_HOOK.unwrap_or(server::standard);
        next(
            command,
            text,
            context,
            params,
            environment,
            destination,
            completion,
        );
        if ends {
            ended();
        }
    }
}
