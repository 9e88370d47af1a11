//! Settings. Each can be given per session, role, database or server.

use std::ffi::CString;

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

/// Who sends the notifications of the queues that have them enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum Notify {
    /// The worker, a moment after the commit, once for many documents.
    #[name = c"worker"]
    Worker,
    /// The transaction itself, once for each document.
    #[name = c"commit"]
    Commit,
}

/// What becomes of leases when the session that holds them ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PostgresGucEnum)]
pub enum SessionLeases {
    /// Nothing: they last as long as they were given for.
    #[name = c"off"]
    Off,
    /// They end about a second later.
    #[name = c"return"]
    Return,
    /// The same; and while the session lives they do not end.
    #[name = c"keep"]
    Keep,
}

static COMPAT_VERSION: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"4.0.2"));

static LEGACY_QUOTES: GucSetting<bool> = GucSetting::<bool>::new(false);

static STRICT: GucSetting<bool> = GucSetting::<bool>::new(false);

static DIRECT: GucSetting<bool> = GucSetting::<bool>::new(true);

static WORKER: GucSetting<bool> = GucSetting::<bool>::new(true);

static WORKER_NAME: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

static SESSION_LEASES: GucSetting<SessionLeases> =
    GucSetting::<SessionLeases>::new(SessionLeases::Off);

static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

static NOTIFY: GucSetting<Notify> = GucSetting::<Notify>::new(Notify::Worker);

static NOTIFY_INTERVAL: GucSetting<i32> = GucSetting::<i32>::new(20);

static MAX_WAIT: GucSetting<i32> = GucSetting::<i32>::new(10_000);

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
    GucRegistry::define_bool_guc(
        c"fetchq.background_worker",
        c"Runs maintenance in background processes.",
        c"Off: something else has to call fetchq.mnt_job_run(). Needs shared_preload_libraries.",
        &WORKER,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"fetchq.worker",
        c"The name of the worker that picks in this session.",
        c"Several sessions of a node can share one. Empty: the application's name and the number of the process.",
        &WORKER_NAME,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"fetchq.session_leases",
        c"What becomes of leases when the session that picked ends: off nothing, return they end too, keep the same and they last as long as it does.",
        c"The worker, or whoever runs maintenance, looks every second which sessions have ended.",
        &SESSION_LEASES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"fetchq.databases",
        c"The databases that get a worker, separated by commas.",
        c"Empty: each that has the extension.",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"fetchq.notify",
        c"Who sends the notifications of documents: the worker, or each transaction.",
        c"A transaction that notifies makes all others that do wait for its commit. Where no worker runs it is always commit.",
        &NOTIFY,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.notify_interval",
        c"The shortest time between two notifications that the worker sends for one queue.",
        c"What happens meanwhile is announced by one notification for each state.",
        &NOTIFY_INTERVAL,
        0,
        60_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"fetchq.max_wait",
        c"The longest time that fetchq.doc_pick_wait() waits.",
        c"It holds a snapshot while it waits; fetchq.queue_wait() holds none and has no limit.",
        &MAX_WAIT,
        0,
        3_600_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
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

pub fn worker() -> bool {
    WORKER.get()
}

/// Empty: the session has no name of its own.
pub fn worker_name() -> String {
    WORKER_NAME
        .get()
        .map_or_else(String::new, |v| v.to_string_lossy().into_owned())
}

pub fn session_leases() -> SessionLeases {
    SESSION_LEASES.get()
}

pub fn databases() -> String {
    DATABASES
        .get()
        .map_or_else(String::new, |v| v.to_string_lossy().into_owned())
}

pub fn notify() -> Notify {
    NOTIFY.get()
}

/// Microseconds.
pub fn notify_interval() -> i64 {
    i64::from(NOTIFY_INTERVAL.get()) * 1000
}

/// Microseconds.
pub fn max_wait() -> i64 {
    i64::from(MAX_WAIT.get()) * 1000
}

/// Slots of the shared memory; 0 switches it off.
pub fn ready_slots() -> usize {
    READY_SLOTS.get() as usize
}

/// Queues, at least 1.
pub fn plan_cache_queues() -> usize {
    PLAN_CACHE_QUEUES.get() as usize
}
