//! Planner settings of the hot statements.
//!
//! A hot statement has one right plan, whatever the statistics say at the moment it
//! happens to be planned: an empty table that was just analyzed, or one that grew by
//! a million rows since. Plans are made at the first run and again after an
//! invalidation, so the settings are in force during every run. They are set
//! directly, not through the settings machinery: that costs microseconds each, and
//! nothing but the planning of this one statement may see them.

use pgrx::pg_sys;

/// In force until dropped; a panic or ERROR unwinds through it.
pub struct HotPlanner {
    seqscan: bool,
    bitmapscan: bool,
    sort: bool,
    indexscan: bool,
    tidscan: bool,
    jit: bool,
    plan_cache_mode: i32,
}

impl HotPlanner {
    pub fn enter() -> Self {
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
                plan_cache_mode: pg_sys::plan_cache_mode,
            };
            pg_sys::enable_seqscan = false;
            pg_sys::enable_bitmapscan = false;
            pg_sys::enable_sort = false;
            pg_sys::enable_indexscan = true;
            pg_sys::enable_tidscan = true;
            // A generic plan guesses LIMIT $n as a tenth of the table: on a large one
            // that alone would be above jit_above_cost.
            pg_sys::jit_enabled = false;
            pg_sys::plan_cache_mode =
                pg_sys::PlanCacheMode::PLAN_CACHE_MODE_FORCE_GENERIC_PLAN as i32;
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
            pg_sys::plan_cache_mode = self.plan_cache_mode;
        }
    }
}
