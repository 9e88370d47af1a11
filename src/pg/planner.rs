//! Planner settings of the hot statements.
//!
//! A hot statement has one right plan, whatever the statistics say at the moment it
//! happens to be planned: an empty table that was just analyzed, or one that grew by
//! a million rows since. The settings are in force while that one statement is being
//! planned, never while it runs: a user's trigger must not see them, and the settings
//! machinery, which they bypass because it costs microseconds each, would remember
//! them as the session's own.

use std::ffi::CStr;

use pgrx::pg_sys;

/// In force until dropped; a panic or ERROR unwinds through it.
struct HotPlanner {
    seqscan: bool,
    bitmapscan: bool,
    sort: bool,
    indexscan: bool,
    tidscan: bool,
    jit: bool,
}

impl HotPlanner {
    fn enter() -> Self {
        // SAFETY: plain variables of this backend, which has one thread; restored by
        // Drop, also when an ERROR unwinds.
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
            // A generic plan guesses LIMIT $n as a tenth of the table: on a large one
            // that alone would be above jit_above_cost.
            pg_sys::jit_enabled = false;
            saved
        }
    }
}

impl Drop for HotPlanner {
    fn drop(&mut self) {
        // SAFETY: as above.
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

/// Makes sure that a kept plan has a valid generic plan, made under our settings. The
/// locks taken here stay, so nothing can invalidate it before the statement runs.
pub(super) fn plan(ptr: pg_sys::SPIPlanPtr) {
    let _settings = HotPlanner::enter();
    // SAFETY: ptr is a kept plan of one statement, and an SPI connection is open; the
    // reference that this call takes is given back at once, the plan source keeps one.
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

/// Runs `work` under another value of a setting, by the settings machinery.
fn with_setting<R>(name: &CStr, value: &CStr, work: impl FnOnce() -> R) -> R {
    // SAFETY: a nest level of its own, closed below, or by the end of the
    // (sub)transaction after an ERROR: what a function's SET clause does.
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
        let result = work();
        pg_sys::AtEOXact_GUC(true, level);
        result
    }
}

/// Runs `work` with nothing but PostgreSQL's own in the search path, which decides how
/// expressions are written out.
pub fn with_plain_search_path<R>(work: impl FnOnce() -> R) -> R {
    with_setting(c"search_path", c"pg_catalog, pg_temp", work)
}

/// Runs `work` with generic plans where the session forces custom ones, which is the
/// one setting that outranks what a plan asks for. Rare, so by the settings machinery.
pub(super) fn with_generic_plans<R>(work: impl FnOnce() -> R) -> R {
    // SAFETY: a plain variable of this backend.
    let mode = unsafe { pg_sys::plan_cache_mode };
    if mode != pg_sys::PlanCacheMode::PLAN_CACHE_MODE_FORCE_CUSTOM_PLAN as i32 {
        return work();
    }
    with_setting(c"plan_cache_mode", c"force_generic_plan", work)
}
