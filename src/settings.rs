//! The settings of fetchq: their defaults, limits and descriptions, and their current values.

use std::ffi::CString;
use std::time::Duration;

use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

/// What sends the notifications of the queues that have them enabled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum Notify {
    /// The background worker sends one notification for many documents, soon after the commit.
    #[name = c"background_worker"]
    BackgroundWorker,
    /// The transaction itself sends one notification for each document when it commits.
    #[name = c"commit"]
    Commit,
}

/// What happens to the leases of a session when the session ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PostgresGucEnum)]
pub enum SessionLeases {
    /// Nothing happens: a lease lasts for its lease duration.
    #[name = c"off"]
    Off,
    /// The leases expire about a second later.
    #[name = c"return"]
    Return,
    /// The leases expire about a second later. They do not expire while the session is alive.
    #[name = c"keep"]
    Keep,
}

/// What happens to a lease when its session ends, or the call that has made it. The numbers are in
/// `fetchq.worker_sessions`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Binding {
    /// As `SessionLeases::Off`.
    Off = 0,
    /// As `SessionLeases::Return`.
    Return = 1,
    /// As `SessionLeases::Keep`.
    Keep = 2,
    /// As `Keep`, but the lease lasts as long as the statement that the client has sent. For
    /// procedures, so there is no such setting.
    Call = 3,
}

impl Binding {
    /// Parses a word, in upper or lower case as PostgreSQL accepts those of a setting.
    pub fn parse(word: &str) -> Option<Self> {
        let words = [
            ("off", Self::Off),
            ("return", Self::Return),
            ("keep", Self::Keep),
            ("call", Self::Call),
        ];
        words
            .into_iter()
            .find_map(|(known, value)| known.eq_ignore_ascii_case(word).then_some(value))
    }
}

/// The client of fetchq 4 that a role uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum Compat {
    /// None: calls behave as fetchq 5 documents them.
    #[name = c"off"]
    Off,
    /// The npm client 4.1.1.
    #[name = c"4.1.1"]
    Npm411,
    /// The npm client 4.2.0.
    #[name = c"4.2.0"]
    Npm420,
    /// Another word for `off`.
    #[name = c""]
    #[hidden = true]
    Empty,
}

/// A setting that is on, off, or as `fetchq.compat` says. The hidden words are those that
/// PostgreSQL accepts for its own switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PostgresGucEnum)]
pub enum Switch {
    /// As `fetchq.compat` says.
    #[name = c"auto"]
    Auto,
    #[name = c"on"]
    On,
    #[name = c"off"]
    Off,
    #[name = c"true"]
    #[hidden = true]
    True,
    #[name = c"false"]
    #[hidden = true]
    False,
    #[name = c"yes"]
    #[hidden = true]
    Yes,
    #[name = c"no"]
    #[hidden = true]
    No,
    #[name = c"1"]
    #[hidden = true]
    One,
    #[name = c"0"]
    #[hidden = true]
    Zero,
}

impl Switch {
    /// Whether it is on. `auto` says what `auto` means at the moment.
    fn is_on(self, auto: bool) -> bool {
        match self {
            Self::Auto => auto,
            Self::On | Self::True | Self::Yes | Self::One => true,
            Self::Off | Self::False | Self::No | Self::Zero => false,
        }
    }
}

static COMPAT: GucSetting<Compat> = GucSetting::<Compat>::new(Compat::Off);

static COMPAT_VERSION: GucSetting<Option<CString>> =
    GucSetting::<Option<CString>>::new(Some(c"auto"));

static LEGACY_QUOTES: GucSetting<Switch> = GucSetting::<Switch>::new(Switch::Auto);

static STRICT: GucSetting<Switch> = GucSetting::<Switch>::new(Switch::Auto);

static SYNCHRONOUS_LEASES: GucSetting<bool> = GucSetting::<bool>::new(false);
static SYNCHRONOUS_SETTLING: GucSetting<bool> = GucSetting::<bool>::new(true);
static LATE_LEASE_SLOTS: GucSetting<i32> = GucSetting::<i32>::new(0);
static LEASE_WRITE_DELAY: GucSetting<i32> = GucSetting::<i32>::new(0);

static DIRECT: GucSetting<bool> = GucSetting::<bool>::new(true);

/// The upper limit of `fetchq.max_workers`. It sizes the board in shared memory.
pub const MAX_WORKERS_LIMIT: usize = 64;

static MAX_WORKERS: GucSetting<i32> = GucSetting::<i32>::new(4);

static BACKGROUND_WORKER: GucSetting<bool> = GucSetting::<bool>::new(true);

static WORKER_NAME: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

static SESSION_LEASES: GucSetting<SessionLeases> =
    GucSetting::<SessionLeases>::new(SessionLeases::Off);

static DATABASES: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

static NOTIFY: GucSetting<Notify> = GucSetting::<Notify>::new(Notify::BackgroundWorker);

static NOTIFY_INTERVAL_MS: GucSetting<i32> = GucSetting::<i32>::new(20);

static MAINTENANCE_TIMEOUT_MS: GucSetting<i32> = GucSetting::<i32>::new(60_000);

static QUEUE_DEFAULTS: GucSetting<Option<CString>> = GucSetting::<Option<CString>>::new(Some(c""));

static NO_WORKER_AFTER_S: GucSetting<i32> = GucSetting::<i32>::new(300);

static READY_SLOTS: GucSetting<i32> = GucSetting::<i32>::new(16_384);

static PLAN_CACHE_QUEUES: GucSetting<i32> = GucSetting::<i32>::new(1000);

/// Defines the settings. Called once in each process, from `_PG_init`.
///
/// `is_preloading` says whether `shared_preload_libraries` loads the library. A setting that
/// sizes shared memory can be fixed at the start of the server only then.
pub fn register(is_preloading: bool) {
    GucRegistry::define_enum_guc(
        c"fetchq.compat",
        c"The version of the npm client of fetchq 4 that the role uses.",
        c"Determines what auto means for fetchq.strict, fetchq.legacy_quotes and fetchq.compat_version. Leave it off for all other drivers.",
        &COMPAT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"fetchq.compat_version",
        c"The version that fetchq.info() reports to fetchq 4 clients.",
        c"The npm clients work only with the version they were built for: 4.0.2 for client 4.2.0, 4.0.0 for client 4.1.1. auto: the version for the client in fetchq.compat, or 4.0.2 if that is off.",
        &COMPAT_VERSION,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"fetchq.legacy_quotes",
        c"Replaces each pair of apostrophes in payloads and messages with a single one.",
        c"The npm clients 4.x need this, because they double every apostrophe. auto: on if fetchq.compat is set, otherwise off.",
        &LEGACY_QUOTES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"fetchq.strict",
        c"Raises an error in cases in which fetchq 4 returned a value.",
        c"These cases are: naming a queue that does not exist, settling a document that is not active, and adding a document that a trigger suppresses. When the setting is off, fetchq returns the same value as fetchq 4 did, and raises a warning in the first two cases. auto: off if fetchq.compat is set, otherwise on.",
        &STRICT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"fetchq.direct",
        c"Reads and writes single documents without the executor where possible.",
        c"When the setting is off, fetchq runs a statement for each call, which is slower. The results are the same.",
        &DIRECT,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"fetchq.synchronous_leases",
        c"Makes transactions that only lease documents wait for the disk and for standbys, as synchronous_commit specifies.",
        c"When the setting is off, such a transaction commits asynchronously. A crash or a failover can then lose the most recent leases: their documents are pending again, as if they had not been leased. The last attempt of a document always waits. All leases wait if fetchq.compat is set, if fetchq is not in shared_preload_libraries, if citus is in that list, and for 10 minutes after a crash or a promotion. Switch the setting on if the list has, before fetchq, another library that writes when a transaction commits: otherwise a crash could lose what that library writes.",
        &SYNCHRONOUS_LEASES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.lease_write_delay",
        c"The time for which a lease is only in shared memory before it is written.",
        c"A document that is settled before is written once less. A crash or a failover loses the leases that were not written yet: their documents are pending again, as if they had not been leased. 0 writes leases at once. Needs fetchq.late_lease_slots.",
        &LEASE_WRITE_DELAY,
        0,
        60_000,
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_bool_guc(
        c"fetchq.synchronous_settling",
        c"Makes transactions that only settle documents, and lease the next ones, wait for the disk and for standbys, as synchronous_commit specifies.",
        c"When the setting is off, such a transaction commits asynchronously. A crash or a failover can then lose what was settled most recently: these documents stay leased until their leases expire, and are then processed again. A transaction that has written anything else always waits, as does one that puts documents, settles the last attempt of a document, or moves a document to a dead-letter queue. All of them wait in the cases in which all leases do: if fetchq.compat is set, if fetchq is not in shared_preload_libraries, if citus is in that list, and for 10 minutes after a crash or a promotion.",
        &SYNCHRONOUS_SETTLING,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_bool_guc(
        c"fetchq.background_worker",
        c"Runs maintenance in background worker processes.",
        c"When the setting is off, something else must call fetchq.mnt_job_run(). Needs fetchq in shared_preload_libraries.",
        &BACKGROUND_WORKER,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.max_workers",
        c"The maximum number of background workers that run at a time, for all databases of the server.",
        c"With more databases than that, the background workers take turns: a database in which something is due gets one. Up to half as many jobs processes (at least one) run alongside them. Each of these processes, and the launcher, takes one of max_worker_processes.",
        &MAX_WORKERS,
        1,
        MAX_WORKERS_LIMIT as i32,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"fetchq.worker",
        c"The name of the worker that leases documents in this session.",
        c"Several sessions can share a name. When it is empty, the name is made up of application_name and the process ID.",
        &WORKER_NAME,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"fetchq.session_leases",
        c"What happens to leases when the session that picked the documents ends.",
        c"off: nothing. return: the leases expire. keep: the leases expire, but they do not expire while the session is alive. The background worker looks for ended sessions every 0.4 seconds, or every two seconds while it serves other databases too. Without it, each maintenance run of the queue does.",
        &SESSION_LEASES,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_string_guc(
        c"fetchq.databases",
        c"The databases that get a background worker, separated by commas.",
        c"When the setting is empty, every database that has the extension gets one.",
        &DATABASES,
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"fetchq.notify",
        c"Selects what sends notifications of documents: the background worker, or each transaction when it commits.",
        c"Transactions that send notifications commit one after another. Where no background worker runs, each transaction sends its own notifications, whatever this setting says.",
        &NOTIFY,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.notify_interval",
        c"The minimum time between two notifications that the background worker sends for a queue.",
        c"After that time it sends one notification for each status that documents have entered in the meantime.",
        &NOTIFY_INTERVAL_MS,
        0,
        60_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"fetchq.maintenance_timeout",
        c"The maximum duration of a transaction of the background worker on a queue.",
        c"A transaction that takes longer is cancelled, and the queue waits for its next attempt. Work that other queues wait for takes at most 10 seconds, whatever this setting says.",
        &MAINTENANCE_TIMEOUT_MS,
        100,
        86_400_000,
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_int_guc(
        c"fetchq.plan_cache_queues",
        c"The number of queues for which a session keeps prepared plans.",
        c"A plan takes about 50 kB, so a queue with three statements in use takes about 150 kB. The plans of the queue that has been unused longest are removed first.",
        &PLAN_CACHE_QUEUES,
        1,
        100_000,
        GucContext::Userset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.no_worker_after",
        c"How long a ready document waits before fetchq.status() reports that no worker takes it.",
        c"The time also begins when the queue is created, when the server starts, and when a document of the queue is leased. Raise it where workers run only once an hour or so. -1: this is never reported.",
        &NO_WORKER_AFTER_S,
        -1,
        i32::MAX,
        GucContext::Userset,
        GucFlags::UNIT_S,
    );
    GucRegistry::define_string_guc(
        c"fetchq.queue_defaults",
        c"The settings that new queues start with, a JSON object as fetchq.queue_create() takes it.",
        c"It replaces all defaults of fetchq: {} means none of them. What the call itself names takes precedence. When the setting is empty, the defaults are those of fetchq, or none if fetchq.compat is set. A queue stores its settings when it is created, so a change affects only queues that are created later.",
        &QUEUE_DEFAULTS,
        GucContext::Suset,
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.late_lease_slots",
        c"The number of leases that can be in shared memory only, see fetchq.lease_write_delay.",
        c"A lease takes about 130 bytes. 0 writes all leases at once. Needs fetchq in shared_preload_libraries, and a restart.",
        &LATE_LEASE_SLOTS,
        0,
        4_000_000,
        if is_preloading {
            GucContext::Postmaster
        } else {
            GucContext::Sighup
        },
        GucFlags::default(),
    );
    GucRegistry::define_int_guc(
        c"fetchq.ready_slots",
        c"The number of ready floor slots in shared memory: one for each version of a queue, and one for each queue.",
        c"A slot takes about 1.2 kB. 0 switches off all shared memory of fetchq, and with it the ready floors and the background workers. Needs fetchq in shared_preload_libraries, and a restart.",
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

/// `fetchq.compat`: the version that `info()` reports to the client, or None when it is off.
fn compat() -> Option<&'static str> {
    match COMPAT.get() {
        Compat::Off | Compat::Empty => None,
        Compat::Npm411 => Some("4.0.0"),
        Compat::Npm420 => Some(DEFAULT_COMPAT_VERSION),
    }
}

/// The version that `info()` reports when no setting says another one.
const DEFAULT_COMPAT_VERSION: &str = "4.0.2";

/// `fetchq.compat_version`: the version that `fetchq.info()` reports.
pub fn compat_version() -> String {
    match COMPAT_VERSION.get() {
        Some(version) if version.as_c_str() != c"auto" && !version.is_empty() => {
            version.to_string_lossy().into_owned()
        }
        _ => compat().unwrap_or(DEFAULT_COMPAT_VERSION).to_owned(),
    }
}

/// `fetchq.legacy_quotes`: whether pairs of apostrophes stand for one.
pub fn legacy_quotes() -> bool {
    LEGACY_QUOTES.get().is_on(compat().is_some())
}

/// `fetchq.strict`: whether errors are raised where fetchq 4 returned a value.
pub fn strict() -> bool {
    STRICT.get().is_on(compat().is_none())
}

/// `fetchq.synchronous_leases`: whether a transaction that only leases documents commits as the
/// session says, and not asynchronously.
///
/// A client of fetchq 4 settles by the subject alone. After a crash that has lost its lease it would
/// settle that of another worker, so its leases always wait.
pub fn synchronous_leases() -> bool {
    SYNCHRONOUS_LEASES.get() || compat().is_some()
}

/// `fetchq.synchronous_settling`: whether a transaction that only settles documents commits as the
/// session says, and not asynchronously.
///
/// A client of fetchq 4 settles by the subject alone, and has never lost a settlement.
pub fn synchronous_settling() -> bool {
    SYNCHRONOUS_SETTLING.get() || compat().is_some()
}

/// `fetchq.late_lease_slots`: the number of late leases that fit into shared memory. 0 when there is none.
pub fn late_lease_slots() -> usize {
    match ready_slots() {
        0 => 0,
        _ => LATE_LEASE_SLOTS.get() as usize,
    }
}

/// How late a lease is written, in microseconds: `of_queue`, or `fetchq.lease_write_delay`. 0: at once, as for a
/// client of fetchq 4, which may look for it with SQL of its own.
pub fn lease_write_delay(of_queue: Option<i64>) -> i64 {
    match compat() {
        None => of_queue.unwrap_or_else(|| i64::from(LEASE_WRITE_DELAY.get()) * 1000),
        Some(_) => 0,
    }
}

/// `fetchq.direct`: whether single documents may be read and written without the executor.
pub fn direct() -> bool {
    DIRECT.get()
}

/// `fetchq.background_worker`: whether background workers run maintenance.
pub fn background_worker() -> bool {
    BACKGROUND_WORKER.get()
}

/// `fetchq.max_workers`: the most background workers that run at a time.
pub fn max_workers() -> usize {
    (MAX_WORKERS.get() as usize).clamp(1, MAX_WORKERS_LIMIT)
}

/// The most jobs processes that run at a time: half of `fetchq.max_workers`, at least one.
pub fn max_jobs_processes() -> usize {
    (max_workers() / 2).max(1)
}

/// `fetchq.worker`: the name of the worker of this session. Empty when it was given none.
pub fn worker_name() -> String {
    WORKER_NAME
        .get()
        .map_or_else(String::new, |v| v.to_string_lossy().into_owned())
}

/// `fetchq.session_leases`: what happens to the leases of this session when it ends.
pub fn session_leases() -> Binding {
    match SESSION_LEASES.get() {
        SessionLeases::Off => Binding::Off,
        SessionLeases::Return => Binding::Return,
        SessionLeases::Keep => Binding::Keep,
    }
}

/// `fetchq.databases`: names separated by commas. Empty when every database is meant.
pub fn databases() -> String {
    DATABASES
        .get()
        .map_or_else(String::new, |v| v.to_string_lossy().into_owned())
}

/// `fetchq.notify`: what sends the notifications of the documents that this session writes.
pub fn notify() -> Notify {
    NOTIFY.get()
}

/// `fetchq.notify_interval`, in microseconds.
pub fn notify_interval_us() -> i64 {
    i64::from(NOTIFY_INTERVAL_MS.get()) * 1000
}

/// `fetchq.maintenance_timeout`.
pub fn maintenance_timeout() -> Duration {
    Duration::from_millis(MAINTENANCE_TIMEOUT_MS.get().unsigned_abs().into())
}

/// `fetchq.no_worker_after`, in microseconds. None: never.
pub fn no_worker_after_us() -> Option<i64> {
    let seconds = i64::from(NO_WORKER_AFTER_S.get());
    (seconds >= 0).then_some(seconds * 1_000_000)
}

/// `fetchq.queue_defaults`: the settings of new queues, as JSON. None: those of fetchq.
pub fn queue_defaults() -> Option<String> {
    match QUEUE_DEFAULTS.get() {
        Some(json) if !json.is_empty() => Some(json.to_string_lossy().into_owned()),
        _ => compat().map(|_| "{}".to_owned()),
    }
}

/// `fetchq.ready_slots`: the number of slots in shared memory. 0 when there is none.
pub fn ready_slots() -> usize {
    READY_SLOTS.get() as usize
}

/// `fetchq.plan_cache_queues`: a number of queues, at least 1.
pub fn plan_cache_queues() -> usize {
    PLAN_CACHE_QUEUES.get() as usize
}
