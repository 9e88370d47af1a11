//! Errors of the server that pass through a call of fetchq, such as that of a user's trigger.
//!
//! pgrx turns such an ERROR into a panic, and raises a new ERROR where the call ends. On that way
//! it keeps message, detail and hint, but loses the context (which function, which line), the names
//! of schema, table, column, type and constraint, and every SQLSTATE that it does not know. With
//! `RUST_BACKTRACE` it writes a backtrace into the detail. This file puts back what was lost.
//!
//! The server calls the functions of `error_context_stack` for each message, the innermost first,
//! before it goes to the handler of an ERROR. During a call of fetchq one of them, [`remember`],
//! copies an ERROR as it is at that moment: with the context of what the call has run. When the
//! call fails, another one, [`complete`], is left there. It adds the copy to the new ERROR, before
//! those around the call add their own context. The statement of fetchq itself is left out.

use crate::pg::lasting::{Lasting, lasting};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys::panic::{CaughtError, ErrorReport, ErrorReportWithLevel};
use pgrx::{PgSqlErrorCode, pg_sys};

use crate::pg::{allocator, memory};

unsafe extern "C-unwind" {
    // From `utils/elog.h`. The bindings of pgrx leave these functions out, or guard them, which
    // is not possible while the server handles an error.
    fn CopyErrorData() -> *mut pg_sys::ErrorData;
    fn FreeErrorData(error: *mut pg_sys::ErrorData);
    fn errcode(code: c_int) -> c_int;
    fn errdetail(format: *const c_char, ...) -> c_int;
    fn errdetail_log(format: *const c_char, ...) -> c_int;
    fn errhint(format: *const c_char, ...) -> c_int;
    fn errcontext_msg(format: *const c_char, ...) -> c_int;
    fn InLocalUserIdChange() -> bool;
    fn err_generic_string(field: c_int, text: *const c_char) -> c_int;
    fn internalerrposition(position: c_int) -> c_int;
    fn internalerrquery(query: *const c_char) -> c_int;
}

/// An ERROR of the server.
struct Raised {
    code: c_int,
    line: c_int,
    message: Option<CString>,
    detail: Option<CString>,
    detail_log: Option<CString>,
    hint: Option<CString>,
    context: Option<CString>,
    /// The names of schema, table, column, type and constraint.
    names: [Option<CString>; NAMES.len()],
    position: c_int,
    query: Option<CString>,
}

/// The fields of a message that have the names of objects.
const NAMES: [u8; 5] = [
    pg_sys::PG_DIAG_SCHEMA_NAME,
    pg_sys::PG_DIAG_TABLE_NAME,
    pg_sys::PG_DIAG_COLUMN_NAME,
    pg_sys::PG_DIAG_DATATYPE_NAME,
    pg_sys::PG_DIAG_CONSTRAINT_NAME,
];

impl Raised {
    /// Copies the message that the server reports now. Returns None unless it is an ERROR.
    unsafe fn current() -> Option<Self> {
        // SAFETY: The caller was called by the server while it reports a message. The copy is made
        // in memory that outlives the message, and freed here. Each text is a C string or NULL.
        unsafe {
            let previous = pg_sys::CurrentMemoryContext;
            pg_sys::CurrentMemoryContext = pg_sys::TopMemoryContext;
            let error = CopyErrorData();
            pg_sys::CurrentMemoryContext = previous;
            let text =
                |text: *mut c_char| (!text.is_null()).then(|| CStr::from_ptr(text).to_owned());
            let data = &*error;
            let raised = (data.elevel >= pgrx::PgLogLevel::ERROR as c_int).then(|| Self {
                code: data.sqlerrcode,
                line: data.lineno,
                message: text(data.message),
                detail: text(data.detail),
                detail_log: text(data.detail_log),
                hint: text(data.hint),
                context: text(data.context),
                names: [
                    text(data.schema_name),
                    text(data.table_name),
                    text(data.column_name),
                    text(data.datatype_name),
                    text(data.constraint_name),
                ],
                position: data.internalpos,
                query: text(data.internalquery),
            });
            FreeErrorData(error);
            raised
        }
    }

    /// Adds what pgrx does not keep to the message that the server reports now.
    unsafe fn add_to_current(&self) {
        const TEXT: *const c_char = c"%s".as_ptr();
        // SAFETY: As in `current`. The functions copy the texts.
        unsafe {
            errcode(self.code);
            if let Some(detail) = &self.detail {
                errdetail(TEXT, detail.as_ptr());
            }
            if let Some(detail) = &self.detail_log {
                errdetail_log(TEXT, detail.as_ptr());
            }
            if let Some(hint) = &self.hint {
                errhint(TEXT, hint.as_ptr());
            }
            if let Some(context) = &self.context {
                errcontext_msg(TEXT, context.as_ptr());
            }
            for (field, name) in NAMES.iter().zip(&self.names) {
                if let Some(name) = name {
                    err_generic_string(c_int::from(*field), name.as_ptr());
                }
            }
            if let Some(query) = &self.query {
                internalerrposition(self.position);
                internalerrquery(query.as_ptr());
            }
        }
    }
}

/// How the server begins the line of a statement in a context.
const STATEMENT: &[u8] = b"SQL statement \"";

/// Removes the statement of fetchq from a context, which is at its end. A statement of a user's
/// function is followed by a line with the function.
fn without_own_statement(context: &CStr) -> Option<CString> {
    let text = context.to_bytes();
    let is_start =
        |at: &usize| text[*at..].starts_with(STATEMENT) && (*at == 0 || text[*at - 1] == b'\n');
    let last = (0..text.len()).rev().find(is_start);
    match last.filter(|_| text.ends_with(b"\"")) {
        // The line break before it goes, too.
        Some(at) => CString::new(&text[..at.saturating_sub(1)]).ok(),
        None => Some(context.to_owned()),
    }
    .filter(|rest| !rest.is_empty())
}

impl Raised {
    /// Removes what only concerns the statement of fetchq that the ERROR has passed.
    fn remove_own_statement(&mut self) {
        // The position is one in that statement, unless a function has added its context.
        if self.context.is_none() {
            self.query = None;
        }
        self.context = self.context.as_deref().and_then(without_own_statement);
    }
}

thread_local! {
    /// The last ERROR of the call that fails now.
    static FAILED: Lasting<Option<Raised>> = const { lasting(None) };
}

/// The entry of `error_context_stack` that calls `complete`. One is enough: it is used from the
/// end of a call that fails to the new ERROR, and nothing else is called in between.
static mut COMPLETE: pg_sys::ErrorContextCallback = pg_sys::ErrorContextCallback {
    previous: std::ptr::null_mut(),
    callback: Some(complete),
    arg: std::ptr::null_mut(),
};

/// What to do when a right is missing while fetchq acts as another role than the caller, which the
/// message of the server does not name.
const HINT_DENIED: &CStr = c"fetchq acts as the owner of schema fetchq_data here. The row \"data owner\" of fetchq.status() says what that role lacks. What a trigger of yours uses has to be granted to that role.";

/// What to do when a function of a trigger does not find a name.
const HINT_SEARCH_PATH: &CStr = c"fetchq runs the function of a trigger with search_path = pg_catalog, pg_temp. Name schemas in full, or set search_path on the function.";

impl Raised {
    /// The hint where the ERROR may come of the role as which fetchq acts, or of its search path.
    fn hint_of_role(&self) -> Option<&'static CStr> {
        let is = |code| self.code == code as c_int;
        if is(PgSqlErrorCode::ERRCODE_INSUFFICIENT_PRIVILEGE) {
            return self.hint.is_none().then_some(HINT_DENIED);
        }
        let is_name = is(PgSqlErrorCode::ERRCODE_UNDEFINED_TABLE)
            || is(PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION);
        (is_name && self.context.is_some()).then_some(HINT_SEARCH_PATH)
    }
}

/// Returns a hint with another one after it: a trigger's own must not be lost.
fn joined(first: Option<&CStr>, second: &CStr) -> CString {
    let Some(first) = first else {
        return second.to_owned();
    };
    let both = [first.to_bytes(), second.to_bytes()].join(&b' ');
    CString::new(both).unwrap_or_else(|_| second.to_owned())
}

/// Keeps a copy of each ERROR in the `Option<Raised>` to which `slot` points.
unsafe extern "C-unwind" fn remember(slot: *mut c_void) {
    // SAFETY: `keep` has put the address of its variable here, and removes it from the stack
    // before the variable goes out of scope.
    unsafe {
        if memory::is_no_error() {
            return;
        }
        // Neither this function nor pgrx could copy the ERROR, and one more in here has no way out.
        if !memory::free_for_error() {
            allocator::end_session();
        }
        if let Some(mut raised) = Raised::current() {
            raised.remove_own_statement();
            if let Some(hint) = raised.hint_of_role().filter(|_| InLocalUserIdChange()) {
                let hint = joined(raised.hint.as_deref(), hint);
                errhint(c"%s".as_ptr(), hint.as_ptr());
                raised.hint = Some(hint);
            }
            *(slot as *mut Option<Raised>) = Some(raised);
        }
    }
}

/// Completes the ERROR that pgrx raises anew, if that is the one that was remembered.
unsafe extern "C-unwind" fn complete(_: *mut c_void) {
    let Some(failed) = FAILED.with(|failed| failed.take()) else {
        return;
    };
    // SAFETY: The server calls this while it reports a message.
    unsafe {
        // The call may have failed with an error of its own, after an ERROR that was caught.
        if let Some(current) = Raised::current()
            && (&current.message, current.line) == (&failed.message, failed.line)
        {
            failed.add_to_current();
        }
    }
}

/// Runs the body of an entry point, so that an ERROR of the server leaves it as it was raised.
pub fn keep<R>(body: impl FnOnce() -> R) -> R {
    let mut raised: Option<Raised> = None;
    // SAFETY: These are variables of this process. The entry of the stack lives until the end of
    // this function, and `Entry` removes it before, whether the body fails or not.
    unsafe {
        let previous = pg_sys::error_context_stack;
        let mut callback = pg_sys::ErrorContextCallback {
            previous,
            callback: Some(remember),
            arg: (&raw mut raised).cast(),
        };
        pg_sys::error_context_stack = &raw mut callback;
        let _entry = Entry {
            previous,
            raised: &raw mut raised,
        };
        body()
    }
}

/// Runs `work`, which reads a value from a text. When the server cannot read it, passes the message
/// to `explain`, which may raise another ERROR instead.
pub fn replace_bad_value<R>(work: impl FnOnce() -> R, explain: impl FnOnce(&str)) -> R {
    let is_bad_value = |code| {
        matches!(
            code,
            PgSqlErrorCode::ERRCODE_INVALID_DATETIME_FORMAT
                | PgSqlErrorCode::ERRCODE_DATETIME_FIELD_OVERFLOW
                | PgSqlErrorCode::ERRCODE_INTERVAL_FIELD_OVERFLOW
                | PgSqlErrorCode::ERRCODE_INVALID_TIME_ZONE_DISPLACEMENT_VALUE
                | PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE
        )
    };
    replace(work, is_bad_value, explain)
}

/// Runs `work`, which locks several tables. When the server has no memory left for that, passes the
/// message to `explain`, which may raise another ERROR instead.
pub fn replace_out_of_memory<R>(work: impl FnOnce() -> R, explain: impl FnOnce(&str)) -> R {
    let is_meant = |code| code == PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY;
    replace(work, is_meant, explain)
}

fn replace<R>(
    work: impl FnOnce() -> R,
    is_meant: impl Fn(PgSqlErrorCode) -> bool,
    explain: impl FnOnce(&str),
) -> R {
    // An ERROR of the server is a panic. A call without one pays nothing for this.
    std::panic::catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        if let Some(CaughtError::PostgresError(error)) = panic.downcast_ref()
            && is_meant(error.sql_error_code())
        {
            explain(error.message());
        }
        std::panic::resume_unwind(panic)
    })
}

/// Runs `work`, which reads a value that the caller has passed. When the server refuses the value
/// (class 22 of SQLSTATE), returns its message. The call must fail then: what has failed is not
/// rolled back.
pub fn refusal<R>(work: impl FnOnce() -> R) -> Result<R, String> {
    let class = |code: PgSqlErrorCode| code as c_int & 0xfff;
    std::panic::catch_unwind(AssertUnwindSafe(work)).map_err(|panic| {
        if let Some(CaughtError::PostgresError(error)) = panic.downcast_ref()
            && class(error.sql_error_code()) == class(PgSqlErrorCode::ERRCODE_DATA_EXCEPTION)
        {
            return error.message().to_owned();
        }
        std::panic::resume_unwind(panic)
    })
}

/// The entry of `error_context_stack` that a call has made.
struct Entry {
    previous: *mut pg_sys::ErrorContextCallback,
    raised: *mut Option<Raised>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // SAFETY: `keep` has set both, and its variable still lives. The handler of the new ERROR
        // restores the stack as it was before the call.
        unsafe {
            pg_sys::error_context_stack = self.previous;
            if std::thread::panicking()
                && let Some(raised) = (*self.raised).take()
            {
                FAILED.with(|failed| failed.replace(Some(raised)));
                let complete = &raw mut COMPLETE;
                (*complete).previous = self.previous;
                pg_sys::error_context_stack = complete;
            }
        }
    }
}

/// Prepares a process for errors. Called from `_PG_init`, after pgrx has installed its own hook for
/// panics.
pub fn prepare() {
    prevent_backtraces();
    register_destructor();
}

/// Has pgrx use its variable with the place of a panic, as it does with each ERROR of the server. The
/// C library allocates memory for its destructor at the first use, and without memory aborts the
/// process.
fn register_destructor() {
    let use_place = || std::panic::resume_unwind(Box::new("no defect"));
    pgrx::PgTryBuilder::new(use_place)
        .catch_rust_panic(|_| ())
        .execute();
}

/// Has no backtrace made for an ERROR, of the server or of fetchq, for which pgrx uses panics. A panic
/// that is a defect keeps its backtrace.
fn prevent_backtraces() {
    let of_pgrx = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let payload = panic.payload();
        let is_error = payload.is::<CaughtError>()
            || payload.is::<ErrorReportWithLevel>()
            || payload.is::<ErrorReport>();
        if !is_error {
            of_pgrx(panic);
        }
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_statement_is_removed_from_a_context() {
        let of_function = c"PL/pgSQL function f() line 4 at RAISE";
        for (context, rest) in [
            (c"SQL statement \"select 1\n where \"a\" = 'b'\"", None),
            (
                c"PL/pgSQL function f() line 4 at RAISE\nSQL statement \"insert\n into x\"",
                Some(of_function),
            ),
            (of_function, Some(of_function)),
            (
                c"SQL statement \"insert\"\nPL/pgSQL function f() line 4 at SQL statement",
                Some(c"SQL statement \"insert\"\nPL/pgSQL function f() line 4 at SQL statement"),
            ),
        ] {
            assert_eq!(without_own_statement(context).as_deref(), rest);
        }
    }
}
