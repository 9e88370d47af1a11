//! Planner settings of the hot statements.
//!
//! A hot statement has one right plan, whatever the statistics say at the moment when it is
//! planned. The table may have been empty when it was analyzed, or may have grown by a million
//! rows since. The settings are in force only while that one statement is planned, and never
//! while it runs, because a trigger of a user must not see them. They are set as plain
//! variables, because the functions of the server that change settings cost microseconds each.
//! If they were in force longer, those functions would remember them as the session's own.

use std::ffi::CStr;

use pgrx::pg_sys;

/// The planner settings of the session, which are set back when this is dropped.
///
/// A panic or an ERROR unwinds through `drop` too.
struct SavedPlannerSettings {
    seqscan: bool,
    bitmapscan: bool,
    sort: bool,
    indexscan: bool,
    tidscan: bool,
    jit: bool,
}

impl SavedPlannerSettings {
    /// Saves the settings of the session and sets those of the hot statements.
    fn replace() -> Self {
        // SAFETY: These are plain variables of this backend, which has one thread. `drop`
        // restores them, also when an ERROR unwinds.
        unsafe {
            let saved = Self {
                seqscan: pg_sys::enable_seqscan,
                bitmapscan: pg_sys::enable_bitmapscan,
                sort: pg_sys::enable_sort,
                indexscan: pg_sys::enable_indexscan,
                tidscan: pg_sys::enable_tidscan,
                jit: pg_sys::jit_enabled,
            };
            pg_sys::enable_seqscan = false;
            pg_sys::enable_bitmapscan = false;
            pg_sys::enable_sort = false;
            pg_sys::enable_indexscan = true;
            pg_sys::enable_tidscan = true;
            // A generic plan assumes that LIMIT $n is a tenth of the table. On a large table
            // that alone would exceed jit_above_cost.
            pg_sys::jit_enabled = false;
            saved
        }
    }
}

impl Drop for SavedPlannerSettings {
    fn drop(&mut self) {
        // SAFETY: These are plain variables of this backend, which has one thread.
        unsafe {
            pg_sys::enable_seqscan = self.seqscan;
            pg_sys::enable_bitmapscan = self.bitmapscan;
            pg_sys::enable_sort = self.sort;
            pg_sys::enable_indexscan = self.indexscan;
            pg_sys::enable_tidscan = self.tidscan;
            pg_sys::jit_enabled = self.jit;
        }
    }
}

/// Makes sure that a prepared statement has a valid generic plan, made under the settings of the
/// hot statements.
///
/// The locks that planning takes are kept, so nothing can invalidate the plan before the
/// statement runs.
pub(super) fn plan(ptr: pg_sys::SPIPlanPtr) {
    let _saved = SavedPlannerSettings::replace();
    // SAFETY: `ptr` is a kept plan of one statement, and an SPI connection is open. The
    // reference that this call takes is released at once. The plan source keeps its own.
    unsafe {
        let planned = pg_sys::SPI_plan_get_cached_plan(ptr);
        if !planned.is_null() {
            #[cfg(feature = "pg13")]
            pg_sys::ReleaseCachedPlan(planned, true);
            #[cfg(not(feature = "pg13"))]
            pg_sys::ReleaseCachedPlan(planned, pg_sys::CurrentResourceOwner);
        }
    }
}

/// Runs `work` under another value of a setting, as the SET clause of a function does.
fn with_setting<R>(name: &CStr, value: &CStr, work: impl FnOnce() -> R) -> R {
    let level = begin_setting(name, value);
    let result = work();
    end_settings(level);
    result
}

/// Gives a setting another value until [`end_settings`]. Returns the level of settings for it.
fn begin_setting(name: &CStr, value: &CStr) -> i32 {
    // SAFETY: The nest level is closed by `end_settings`, or by the end of the (sub)transaction
    // after an ERROR.
    unsafe {
        let level = pg_sys::NewGUCNestLevel();
        pg_sys::set_config_option(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_USERSET,
            pg_sys::GucSource::PGC_S_SESSION,
            pg_sys::GucAction::GUC_ACTION_SAVE,
            true,
            0,
            false,
        );
        level
    }
}

/// Gives the settings of a level the values that they had before.
fn end_settings(level: i32) {
    // SAFETY: The level was begun by `begin_setting`.
    unsafe { pg_sys::AtEOXact_GUC(true, level) };
}

const PLAIN_SEARCH_PATH: &CStr = c"pg_catalog, pg_temp";

/// Only the system catalogs are in the search path while this lives. Statements then find no objects of
/// users, and the server writes out expressions with qualified names.
pub struct PlainSearchPath {
    /// The level of the setting. None where the path was this one before.
    level: Option<i32>,
}

impl PlainSearchPath {
    /// Sets the search path.
    pub fn begin() -> Self {
        // SAFETY: This is a plain variable of this backend, a C string or NULL.
        let is_set = unsafe {
            let path = pg_sys::namespace_search_path;
            !path.is_null() && CStr::from_ptr(path) == PLAIN_SEARCH_PATH
        };
        let level = (!is_set).then(|| begin_setting(c"search_path", PLAIN_SEARCH_PATH));
        Self { level }
    }
}

impl Drop for PlainSearchPath {
    fn drop(&mut self) {
        // After an ERROR the end of the (sub)transaction restores the settings.
        if let Some(level) = self.level.filter(|_| !std::thread::panicking()) {
            end_settings(level);
        }
    }
}

/// Runs `work`, whose statements are planned to read by an index in its order: the statistics of the
/// tables of a queue are nearly always wrong.
///
/// A small table without an index is still read as a whole, and its scan then has a cost beyond
/// `jit_above_cost`. Without this setting, a look-up of one document took 280 ms instead of 0.7.
pub fn with_index_scans<R>(work: impl FnOnce() -> R) -> R {
    with_setting(c"jit", c"off", || {
        with_setting(c"enable_seqscan", c"off", || {
            with_setting(c"enable_bitmapscan", c"off", work)
        })
    })
}

/// Runs `work` so that it waits for each lock for a second at most, or for the time that the session
/// has set if that is shorter. A wait that takes longer raises an ERROR (55P03).
pub fn with_short_lock_waits<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: This is a plain variable of this backend.
    let timeout = unsafe { pg_sys::LockTimeout };
    match timeout {
        1..=1000 => work(),
        _ => with_setting(c"lock_timeout", c"1s", work),
    }
}

/// Runs `work`, which defines tables and indexes, with the settings that every role has at first:
/// where and how the tables are stored is not for the caller to choose.
pub fn with_plain_storage<R>(work: impl FnOnce() -> R) -> R {
    with_setting(c"default_tablespace", c"", || {
        with_setting(c"default_table_access_method", c"heap", work)
    })
}

/// Runs `work` with generic plans, also where the session forces custom plans.
///
/// `plan_cache_mode` is the one setting that overrides what a prepared statement asks for. It is
/// rarely set, so the cost of changing it does not matter.
pub(super) fn with_generic_plans<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: This is a plain variable of this backend.
    let mode = unsafe { pg_sys::plan_cache_mode };
    if mode != pg_sys::PlanCacheMode::PLAN_CACHE_MODE_FORCE_CUSTOM_PLAN as i32 {
        return work();
    }
    with_setting(c"plan_cache_mode", c"force_generic_plan", work)
}
