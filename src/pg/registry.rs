//! The rights with which the library's own statements reach the registry, the tables of the
//! schema `fetchq`.
//!
//! Nobody needs rights on the registry. A statement of the library names its tables, and there
//! the server checks the rights of the role that owns the table, as it does for the tables of a
//! view. All the rest of the statement, such as the tables of a queue, functions, casts and
//! triggers, is checked and run as the caller, so that nothing of a user ever runs with other
//! rights than before. The library has asked whether the caller may do what the statement does
//! (`store/rights.rs`).
//!
//! A statement is recognized by the address of its text, which is alive while it is analyzed. A
//! statement of a user, such as one in a trigger that fires meanwhile, has another address,
//! whatever its text is.

use std::cell::Cell;
use std::ffi::{c_char, c_void};
use std::ptr;

use pgrx::{pg_guard, pg_sys};

use crate::pg::relation;
use crate::pg::text::c_string;

thread_local! {
    /// The address of the text of the statement of the library that is being run, or NULL.
    static TEXT: Cell<*const c_char> = const { Cell::new(ptr::null()) };
}

/// A statement of the library while it is prepared, planned or run. Dropping it restores the
/// statement that called it, also after an ERROR.
pub(super) struct OwnStatement(*const c_char);

impl OwnStatement {
    /// Declares the text at this address to be a statement of the library, which contains no
    /// identifier of a user. The text must stay where it is until this is dropped.
    pub(super) fn begin(text: *const c_char) -> Self {
        Self(TEXT.replace(text))
    }
}

impl Drop for OwnStatement {
    fn drop(&mut self) {
        TEXT.set(self.0);
    }
}

static mut PREVIOUS_HOOK: pg_sys::post_parse_analyze_hook_type = None;

/// Installs the hook that the server calls after it has analyzed a statement. Must be called when
/// the library is loaded.
pub fn install() {
    // SAFETY: A library is loaded by one thread, and once in a process. Hooks form a chain.
    unsafe {
        PREVIOUS_HOOK = pg_sys::post_parse_analyze_hook;
        pg_sys::post_parse_analyze_hook = Some(analyzed);
    }
}

/// The hook.
#[cfg(not(feature = "pg13"))]
#[pg_guard]
unsafe extern "C-unwind" fn analyzed(
    state: *mut pg_sys::ParseState,
    query: *mut pg_sys::Query,
    jumble: *mut pg_sys::JumbleState,
) {
    // SAFETY: The server passes a statement that it has analyzed.
    unsafe {
        grant_registry(state, query);
        if let Some(previous) = PREVIOUS_HOOK {
            previous(state, query, jumble);
        }
    }
}

/// The hook.
#[cfg(feature = "pg13")]
#[pg_guard]
unsafe extern "C-unwind" fn analyzed(state: *mut pg_sys::ParseState, query: *mut pg_sys::Query) {
    // SAFETY: The server passes a statement that it has analyzed.
    unsafe {
        grant_registry(state, query);
        if let Some(previous) = PREVIOUS_HOOK {
            previous(state, query);
        }
    }
}

/// Has the tables of the registry in a statement of the library checked as their owner.
///
/// # Safety
///
/// The pointers are those of a hook that is called after the analysis of a statement.
unsafe fn grant_registry(state: *mut pg_sys::ParseState, query: *mut pg_sys::Query) {
    let text = TEXT.get();
    // SAFETY: The state is alive. Its text is compared by address and not read.
    unsafe {
        if text.is_null() || state.is_null() || (*state).p_sourcetext != text {
            return;
        }
        let mut schema = pg_sys::get_namespace_oid(c_string("fetchq"), true);
        if schema != pg_sys::InvalidOid {
            walk(query.cast(), (&raw mut schema).cast());
        }
    }
}

/// Visits a statement with all its parts. `schema` points to the OID of the schema `fetchq`.
#[pg_guard]
unsafe extern "C-unwind" fn walk(node: *mut pg_sys::Node, schema: *mut c_void) -> bool {
    // SAFETY: The walkers of the server pass nodes of the statement, or NULL. The tag of a node
    // is checked before it is used.
    unsafe {
        if node.is_null() {
            return false;
        }
        if (*node).type_ != pg_sys::NodeTag::T_Query {
            return walker::expression(node, Some(walk), schema);
        }
        let query: *mut pg_sys::Query = node.cast();
        check_as_owners(query, *schema.cast());
        walker::query(query, Some(walk), schema)
    }
}

/// Sets the role whose rights the server checks, for each table of a schema that one level of a
/// statement names.
#[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15"))]
unsafe fn check_as_owners(query: *mut pg_sys::Query, schema: pg_sys::Oid) {
    // SAFETY: The elements of the list are range table entries.
    unsafe {
        for entry in pointers::<pg_sys::RangeTblEntry>((*query).rtable) {
            if (*entry).rtekind == pg_sys::RTEKind::RTE_RELATION
                && let Some(owner) = owner_within((*entry).relid, schema)
            {
                (*entry).checkAsUser = owner;
            }
        }
    }
}

/// Sets the role whose rights the server checks, for each table of a schema that one level of a
/// statement names.
#[cfg(not(any(feature = "pg13", feature = "pg14", feature = "pg15")))]
unsafe fn check_as_owners(query: *mut pg_sys::Query, schema: pg_sys::Oid) {
    // SAFETY: The elements of the list say which rights are needed on one table each.
    unsafe {
        for entry in pointers::<pg_sys::RTEPermissionInfo>((*query).rteperminfos) {
            if let Some(owner) = owner_within((*entry).relid, schema) {
                (*entry).checkAsUser = owner;
            }
        }
    }
}

/// Returns the pointers in a list of the server.
unsafe fn pointers<T>(list: *mut pg_sys::List) -> impl Iterator<Item = *mut T> {
    // SAFETY: An empty list is NULL. The elements of another one are an array.
    let cells = unsafe {
        match list.is_null() {
            true => &[][..],
            false => std::slice::from_raw_parts((*list).elements, (*list).length as usize),
        }
    };
    // SAFETY: The caller names the type of the elements.
    cells.iter().map(|cell| unsafe { cell.ptr_value.cast() })
}

/// Returns the owner of a table or view if it is in a schema.
fn owner_within(table: pg_sys::Oid, schema: pg_sys::Oid) -> Option<pg_sys::Oid> {
    relation::class(table)
        .filter(|class| class.schema == schema)
        .map(|class| class.owner)
}

/// The walkers of the server, which have other names in some versions.
mod walker {
    use super::{c_void, pg_sys};

    pub(super) type Callback =
        Option<unsafe extern "C-unwind" fn(*mut pg_sys::Node, *mut c_void) -> bool>;

    #[cfg(any(feature = "pg13", feature = "pg14", feature = "pg15"))]
    unsafe extern "C-unwind" {
        /// From `nodes/nodeFuncs.h`, for which pgrx has no binding.
        fn expression_tree_walker(
            node: *mut pg_sys::Node,
            walker: Callback,
            context: *mut c_void,
        ) -> bool;
        /// From `nodes/nodeFuncs.h`, for which pgrx has no binding.
        fn query_tree_walker(
            query: *mut pg_sys::Query,
            walker: Callback,
            context: *mut c_void,
            flags: std::ffi::c_int,
        ) -> bool;
    }

    #[cfg(not(any(feature = "pg13", feature = "pg14", feature = "pg15")))]
    use pg_sys::{
        expression_tree_walker_impl as expression_tree_walker,
        query_tree_walker_impl as query_tree_walker,
    };

    pub(super) unsafe fn expression(
        node: *mut pg_sys::Node,
        walker: Callback,
        context: *mut c_void,
    ) -> bool {
        // SAFETY: The caller passes a node of a statement. The boundary turns an ERROR into a
        // panic, as for every function that pgrx binds.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| expression_tree_walker(node, walker, context))
        }
    }

    pub(super) unsafe fn query(
        query: *mut pg_sys::Query,
        walker: Callback,
        context: *mut c_void,
    ) -> bool {
        // SAFETY: As above.
        unsafe {
            pg_sys::ffi::pg_guard_ffi_boundary(|| query_tree_walker(query, walker, context, 0))
        }
    }
}
