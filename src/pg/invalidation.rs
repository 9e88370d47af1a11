//! Collects which tables have changed, from the invalidation messages of the server.
//!
//! The cache of open queues asks for these tables at the start of each call, and so does what reports
//! know of tables.

use crate::pg::lasting::{Lasting, lasting};
use std::cell::Cell;

use pgrx::pg_sys;

/// When more tables than this have changed between two calls, everything counts as changed. As many
/// messages as the queue of the server has: a session that is further behind learns from the server that
/// everything has changed. With less, a session with thousands of queues would forget them all when
/// autovacuum has visited some tables while it was at work on a document: a vacuum is a message for the
/// table and each of its indexes.
const MAX_CHANGED: usize = 4096;

struct Changed {
    tables: Vec<pg_sys::Oid>,
    all: bool,
}

impl Changed {
    /// The state before a reader asks for the first time. Nothing is collected for one that never asks.
    const UNREAD: Self = Self {
        tables: Vec::new(),
        all: true,
    };
}

/// Who asks which tables have changed. Each of them learns of every change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The cache of open queues.
    OpenQueues,
    /// What reports know of tables.
    Reports,
}

thread_local! {
    static CHANGED: Lasting<[Changed; 2]> = const { lasting([Changed::UNREAD, Changed::UNREAD]) };
}

/// The number of tables that can be watched at a time.
const MAX_WATCHED: usize = 16;

/// Catalogs or tables on which a remembered look-up depends.
struct Watch {
    tables: Cell<[u32; MAX_WATCHED]>,
    has_fired: Cell<bool>,
    /// The result of the look-up. 0 when there is none.
    remembered: Cell<u32>,
}

thread_local! {
    static WATCH: Watch = const {
        Watch {
            tables: Cell::new([0; MAX_WATCHED]),
            has_fired: Cell::new(false),
            remembered: Cell::new(0),
        }
    };
}

thread_local! {
    /// The table `fetchq.queues`, while the library is known to fit the catalog. Otherwise 0.
    static REGISTRY: Cell<u32> = const { Cell::new(0) };
}

/// Returns whether the library is known to fit the catalog: nothing has changed the definition of
/// the registry since [`know_registry`].
pub fn knows_registry() -> bool {
    REGISTRY.get() != 0
}

/// Remembers that the library fits the catalog, until the definition of this table changes.
pub fn know_registry(registry: pg_sys::Oid) {
    REGISTRY.set(registry.to_u32());
}

/// Forgets what [`know_registry`] has remembered.
pub fn forget_registry() {
    REGISTRY.set(0);
}

/// Watches these tables from now on, and forgets the remembered table. Tables that do not exist are
/// 0.
pub fn watch<const N: usize>(tables: [pg_sys::Oid; N]) {
    const {
        assert!(
            N <= MAX_WATCHED,
            "these are more tables than can be watched"
        )
    };
    let mut watched = [0; MAX_WATCHED];
    for (at, table) in watched.iter_mut().zip(tables) {
        *at = table.to_u32();
    }
    WATCH.with(|watch| {
        watch.tables.set(watched);
        watch.has_fired.set(false);
        watch.remembered.set(0);
    });
}

/// Remembers a table until one of the watched tables changes.
pub fn remember(table: pg_sys::Oid) {
    WATCH.with(|watch| watch.remembered.set(table.to_u32()));
}

/// Returns the remembered table, unless a watched table has changed since.
pub fn watched() -> Option<pg_sys::Oid> {
    WATCH.with(|watch| {
        let table = watch.remembered.get();
        (table != 0 && !watch.has_fired.get()).then(|| pg_sys::Oid::from(table))
    })
}

/// The tables that have changed since the last call of [`take`] for the same reader. Everything in the first call.
pub enum Invalidated {
    /// No table has changed.
    Nothing,
    /// These tables have changed. A table can occur more than once.
    Tables(Vec<pg_sys::Oid>),
    /// Every table may have changed.
    Everything,
}

/// Registers the callback that collects the tables. Must be called once in each process.
pub fn register() {
    // SAFETY: This is called from _PG_init only. The callback lives as long as the process.
    unsafe { pg_sys::CacheRegisterRelcacheCallback(Some(on_change), pg_sys::Datum::from(0)) };
}

/// Collects a table that has changed.
///
/// PostgreSQL calls this whenever it processes an invalidation message. So it must not raise an
/// error, run a query or free the cached queues.
unsafe extern "C-unwind" fn on_change(_: pg_sys::Datum, table: pg_sys::Oid) {
    // try_with is used because the thread-local values may be gone when the process exits.
    let _ = WATCH.try_with(|watch| {
        if table == pg_sys::InvalidOid || watch.tables.get().contains(&table.to_u32()) {
            watch.has_fired.set(true);
        }
    });
    let _ = REGISTRY.try_with(|registry| {
        if table == pg_sys::InvalidOid || registry.get() == table.to_u32() {
            registry.set(0);
        }
    });
    let _ = CHANGED.try_with(|changed| {
        if let Ok(mut changed) = changed.try_borrow_mut() {
            for changed in changed.iter_mut() {
                if table == pg_sys::InvalidOid || changed.tables.len() >= MAX_CHANGED {
                    changed.all = true;
                    changed.tables.clear();
                } else if !changed.all {
                    changed.tables.push(table);
                }
            }
        }
    });
}

/// Returns what has changed since the last call for the same reader, and forgets it.
pub fn take(reader: Reader) -> Invalidated {
    CHANGED.with(|changed| {
        let changed = &mut changed.borrow_mut()[reader as usize];
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
