//! Tells the plan cache which tables changed.

use std::cell::{Cell, RefCell};

use pgrx::pg_sys;

/// More than this many changed tables between two calls: everything is looked up anew.
const MAX_CHANGED: usize = 256;

struct Changed {
    tables: Vec<pg_sys::Oid>,
    all: bool,
}

thread_local! {
    static CHANGED: RefCell<Changed> = const { RefCell::new(Changed { tables: Vec::new(), all: false }) };
}

/// How many tables can be watched.
const WATCHED: usize = 8;

struct Watch {
    tables: Cell<[u32; WATCHED]>,
    has_fired: Cell<bool>,
    remembered: Cell<u32>,
}

thread_local! {
    static WATCH: Watch = const {
        Watch {
            tables: Cell::new([0; WATCHED]),
            has_fired: Cell::new(false),
            remembered: Cell::new(0),
        }
    };
}

/// Watches these tables, and forgets what was remembered.
pub fn watch(tables: &[pg_sys::Oid]) {
    let mut watched = [0; WATCHED];
    for (at, table) in watched.iter_mut().zip(tables) {
        *at = table.to_u32();
    }
    WATCH.with(|watch| {
        watch.tables.set(watched);
        watch.has_fired.set(false);
        watch.remembered.set(0);
    });
}

/// Remembers a table until one of those watched changes.
pub fn remember(table: pg_sys::Oid) {
    WATCH.with(|watch| watch.remembered.set(table.to_u32()));
}

/// The table that is remembered.
pub fn watched() -> Option<pg_sys::Oid> {
    WATCH.with(|watch| {
        let table = watch.remembered.get();
        (table != 0 && !watch.has_fired.get()).then(|| pg_sys::Oid::from(table))
    })
}

/// What changed since the last look.
pub enum Invalidated {
    Nothing,
    Tables(Vec<pg_sys::Oid>),
    Everything,
}

/// Registers the callback, once in the life of a process.
pub fn register() {
    // SAFETY: called from _PG_init only; the callback lives as long as the process.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_change), pg_sys::Datum::from(0)) };
}

/// Runs whenever PostgreSQL processes an invalidation, so it may not fail, query or
/// free anything: it notes the table down.
unsafe extern "C-unwind" fn on_change(_: pg_sys::Datum, table: pg_sys::Oid) {
    // try_with: at the exit of a process there is nothing left to note.
    let _ = WATCH.try_with(|watch| {
        if table == pg_sys::InvalidOid || watch.tables.get().contains(&table.to_u32()) {
            watch.has_fired.set(true);
        }
    });
    let _ = CHANGED.try_with(|changed| {
        if let Ok(mut changed) = changed.try_borrow_mut() {
            if table == pg_sys::InvalidOid || changed.tables.len() >= MAX_CHANGED {
                changed.all = true;
                changed.tables.clear();
            } else if !changed.all {
                changed.tables.push(table);
            }
        }
    });
}

/// Takes what was noted since the last call.
pub fn take() -> Invalidated {
    CHANGED.with(|changed| {
        let mut changed = changed.borrow_mut();
        if changed.all {
            changed.all = false;
            Invalidated::Everything
        } else if changed.tables.is_empty() {
            Invalidated::Nothing
        } else {
            Invalidated::Tables(std::mem::take(&mut changed.tables))
        }
    })
}
