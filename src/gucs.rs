//! Settings. Each can be given per session, role, database or server.

use std::ffi::CString;

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting};

static COMPAT_VERSION: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"4.0.2"));
static LEGACY_QUOTES: GucSetting<bool> = GucSetting::<bool>::new(false);
static STRICT: GucSetting<bool> = GucSetting::<bool>::new(false);
static DIRECT: GucSetting<bool> = GucSetting::<bool>::new(true);
static READY_SLOTS: GucSetting<i32> = GucSetting::<i32>::new(16_384);
static PLAN_CACHE_QUEUES: GucSetting<i32> = GucSetting::<i32>::new(1000);

/// `is_preloading`: settings that size shared memory can be fixed only then.
pub fn register(is_preloading: bool) {
    GucRegistry::define_string_guc(
        c"fetchq.compat_version",
        c"The version that fetchq.info() reports to fetchq 4 clients.",
        c"The npm clients work only with the version they were built for: 4.0.2 for client 4.2.0, 4.0.0 for client 4.1.1.",
        &COMPAT_VERSION,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"fetchq.legacy_quotes",
        c"Turns pairs of apostrophes in payloads and messages into single ones.",
        c"For the npm clients 4.x, which double every apostrophe. Leave it off for every other driver.",
        &LEGACY_QUOTES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"fetchq.strict",
        c"Raises an error where fetchq 4 returned a value and fetchq warns.",
        c"Unknown queues, and documents that are not active when they are settled.",
        &STRICT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"fetchq.direct",
        c"Reads and writes single documents without the executor, where that is possible.",
        c"Off: a statement for each, as where it is not possible. The results are the same; it is slower.",
        &DIRECT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.plan_cache_queues",
        c"How many queues a session keeps prepared plans for.",
        c"About 50 kB for each statement in use, so 150 kB for a queue that is pushed, picked and dropped from.",
        &PLAN_CACHE_QUEUES,
        1,
        100_000,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.ready_slots",
        c"How many ready floors the shared memory has room for: one slot for each version of a queue, and one for each queue.",
        c"About 1.2 kB each; 0 switches the ready floors off. Needs shared_preload_libraries and a restart.",
        &READY_SLOTS,
        0,
        4_000_000,
        if is_preloading {
            GucContext::Postmaster
        } else {
            GucContext::Sighup
        },
        GucFlags::default(),
    );
}

pub fn compat_version() -> String {
    COMPAT_VERSION
        .get()
        .map_or_else(String::new, |v| v.to_string_lossy().into_owned())
}

pub fn legacy_quotes() -> bool {
    LEGACY_QUOTES.get()
}

pub fn strict() -> bool {
    STRICT.get()
}

pub fn direct() -> bool {
    DIRECT.get()
}

/// Slots of the shared memory; 0 switches it off.
pub fn ready_slots() -> usize {
    READY_SLOTS.get() as usize
}

/// Queues, at least 1.
pub fn plan_cache_queues() -> usize {
    PLAN_CACHE_QUEUES.get() as usize
}
