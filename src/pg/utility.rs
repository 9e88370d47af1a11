//! Commands that the server runs: functions are called when a prepared transaction has ended, and when a
//! table of documents was altered.

use std::ffi::CStr;
use std::sync::OnceLock;

use pgrx::pg_sys;

use crate::pg::relation;

/// The functions that are called after a command. They must raise no ERROR.
#[derive(Debug, Clone, Copy)]
pub struct Listener {
    /// Called in a session after its COMMIT PREPARED or ROLLBACK PREPARED, when other sessions see what has
    /// become of the transaction.
    pub prepared_ended: fn(),
    /// Called after an ALTER TABLE of a table of documents, in its transaction.
    pub documents_altered: fn(pg_sys::Oid),
}

static LISTENER: OnceLock<Listener> = OnceLock::new();

static mut PREVIOUS_HOOK: pg_sys::ProcessUtility_hook_type = None;

/// Registers the functions that are called after commands.
///
/// To be called once, when the library is loaded.
pub fn listen(listener: Listener) {
    if LISTENER.set(listener).is_ok() {
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

/// Returns the table of documents that a command alters.
///
/// # Safety
///
/// The pointer is that of a command that the server is about to run.
unsafe fn altered_documents(command: *const pg_sys::PlannedStmt) -> Option<pg_sys::Oid> {
    // SAFETY: The tag of a node is checked before the node is used. Its names are C strings, or NULL.
    unsafe {
        let node = (*command).utilityStmt;
        if node.is_null() || (*node).type_ != pg_sys::NodeTag::T_AlterTableStmt {
            return None;
        }
        let relation = (*node.cast::<pg_sys::AlterTableStmt>()).relation;
        if relation.is_null() || (*relation).relname.is_null() {
            return None;
        }
        // Without a schema the name may be that of another table, and nothing comes of it.
        let schema = (*relation).schemaname;
        let name = CStr::from_ptr((*relation).relname).to_str().ok()?;
        let is_data = schema.is_null() || CStr::from_ptr(schema) == c"fetchq_data";
        (is_data && name.ends_with("__docs"))
            .then(|| relation::lookup_data_table(name))
            .flatten()
    }
}

/// What is to be said of a command after it has run. It has no destructor: an error of the command leaves
/// the hook without one.
#[derive(Clone, Copy)]
struct Seen {
    ends_prepared: bool,
    altered: Option<pg_sys::Oid>,
}

impl Seen {
    unsafe fn look(command: *const pg_sys::PlannedStmt) -> Self {
        // SAFETY: The caller passes a command that the server is about to run.
        unsafe {
            Self {
                ends_prepared: ends_prepared(command),
                altered: altered_documents(command),
            }
        }
    }

    fn has_run(self) {
        let Some(listener) = LISTENER.get() else {
            return;
        };
        if self.ends_prepared {
            (listener.prepared_ended)();
        }
        if let Some(table) = self.altered {
            (listener.documents_altered)(table);
        }
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
        let seen = Seen::look(command);
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
        seen.has_run();
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
        let seen = Seen::look(command);
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
        seen.has_run();
    }
}
