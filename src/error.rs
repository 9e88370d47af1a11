//! Every error of fetchq: its message, its SQLSTATE, and a hint that says what to do. A message
//! says what happened and why.

mod hint;

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

use crate::domain::invalid::Invalid;
use crate::domain::status::Status;
use crate::domain::wording::{describe, describe_column, describe_lost, describe_right, shorten};

/// What can go wrong in a call, other than an error of the server.
///
/// `found` is the state of a document that is not active: the outer `None` when there is no such
/// document, the inner one when its status is unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("argument \"{argument}\" of {function}() must not be null")]
    NullArgument {
        function: String,
        argument: &'static str,
    },
    #[error("\"{argument}\" must not be negative, got {got}")]
    NegativeLimit { argument: &'static str, got: i32 },
    #[error("\"{argument}\" must be a finite interval that is not negative")]
    BadDuration { argument: &'static str },
    #[error("\"{0}\" cannot be read: {1}")]
    BadInterval(&'static str, String),
    #[error(
        "{limit} documents of queue \"{queue}\" were read, {found} of them match, and there are more"
    )]
    TooMuchToRead {
        queue: String,
        limit: i32,
        found: i32,
        last: String,
    },
    #[error(
        "{limit} entries of the history of queue \"{queue}\" were read, {found} of them match, and there are more"
    )]
    TooMuchHistory {
        queue: String,
        limit: i32,
        found: i32,
        last: String,
    },
    #[error("another session has locked {0}")]
    RegistryBusy(String),
    #[error("the library has version {library}, the extension in this database {catalog}")]
    OtherVersion {
        library: &'static str,
        catalog: String,
    },
    /// `store::queue_places::unknown` makes this one, or the next one.
    #[error("queue \"{0}\" does not exist")]
    UnknownQueue(UnknownName),
    #[error("queue \"{queue}\" lives on another server: {place}")]
    QueueElsewhere { queue: String, place: String },
    #[error("queue \"{0}\" exists in this database")]
    QueueIsHere(String),
    #[error("role \"{0}\" may not say where queues live: it may not create queues")]
    NotCreator(String),
    #[error(
        "role \"{role}\" may not change where queue \"{queue}\" lives: another role has recorded it"
    )]
    PlaceOfOther { role: String, queue: String },
    #[error("document \"{subject}\" of queue \"{queue}\" is not active: {}", describe(*.found))]
    NotActive {
        queue: String,
        subject: String,
        found: Option<Option<Status>>,
    },
    /// `call` is what the worker called: `complete` for `doc_complete`, and for a list of such calls.
    #[error(
        "document \"{subject}\" of queue \"{queue}\" is settled by its lease number only, and the call names none"
    )]
    LeaseNeeded {
        queue: String,
        subject: String,
        call: &'static str,
    },
    #[error("the payload of {function}() is the number {number}, and no lease is given")]
    LeaseAsPayload { function: String, number: String },
    #[error("lease {lease} of document \"{subject}\" of queue \"{queue}\" was lost: {}", describe_lost(*.found))]
    LeaseLost {
        queue: String,
        subject: String,
        lease: i64,
        found: Option<Option<Status>>,
    },
    #[error("document \"{subject}\" of queue \"{queue}\" was settled under lease {lease} before")]
    SettledBefore {
        queue: String,
        subject: String,
        lease: i64,
        /// The status that it has. None: it has left the table, or its status is unknown.
        found: Option<Status>,
    },
    /// A document that is not in the table. `lease`: the one that the caller names.
    #[error("document \"{subject}\" of queue \"{queue}\" is in the history: it was {outcome}")]
    InHistory {
        queue: String,
        subject: String,
        lease: Option<i64>,
        outcome: String,
    },
    #[error(
        "lease {lease} of {n} of {of} documents of queue \"{queue}\" was lost, \"{first}\" among them"
    )]
    SomeLeasesLost {
        queue: String,
        first: String,
        lease: i64,
        n: usize,
        of: usize,
    },
    #[error("{n} of {of} documents of queue \"{queue}\" are not active, \"{first}\" among them")]
    SomeNotActive {
        queue: String,
        first: String,
        n: usize,
        of: usize,
    },
    #[error("array \"{argument}\" of {function}() must not contain null")]
    NullElement {
        function: String,
        argument: &'static str,
    },
    #[error("there are {got} {argument} for {subjects} subjects")]
    ListLengths {
        subjects: usize,
        argument: &'static str,
        got: usize,
    },
    #[error("array \"{argument}\" of {function}() must have one dimension")]
    ManyDimensions {
        function: String,
        argument: &'static str,
    },
    #[error(
        "a payload of document \"{subject}\" of queue \"{queue}\" cannot be merged: it is not a JSON object"
    )]
    NotMergeable { queue: String, subject: String },
    #[error("argument \"docs\" is not a JSON array")]
    NoList,
    #[error("document {at} of the list is not valid: {reason}")]
    BadDocument { at: i64, reason: String },
    #[error("document {at} of the list is not valid: {error}")]
    InList { at: i64, error: Box<Error> },
    #[error("the documents of \"then\" of settlement {at} are not valid: {error}")]
    InThen { at: usize, error: Box<Error> },
    #[error("\"{one}\" and \"{other}\" must not be given both")]
    BothGiven {
        one: &'static str,
        other: &'static str,
    },
    #[error("\"{given}\" is given without \"{needed}\"")]
    AlsoNeeded {
        given: &'static str,
        needed: &'static str,
    },
    #[error("out of memory")]
    OutOfMemory,
    #[error("neither \"{one}\" nor \"{other}\" is given")]
    NeitherGiven {
        one: &'static str,
        other: &'static str,
    },
    #[error("\"{argument}\" is too long: it ends after the last point in time")]
    LongDuration { argument: &'static str },
    #[error("{function}() cannot write: {}", if *.standby { "this server is a hot standby" } else { "the transaction is read only" })]
    ReadOnly { function: String, standby: bool },
    #[error("{0}() requires isolation level READ COMMITTED")]
    KeepsSnapshot(&'static str),
    #[error(
        "could not serialize access: a limit or the order of queue \"{0}\" was set after the snapshot of the transaction was taken"
    )]
    OlderSnapshot(String),
    #[error(
        "could not serialize access: a document of the history of queue \"{0}\" was settled again after the snapshot of the transaction was taken"
    )]
    OlderHistory(String),
    #[error("late leases of queue \"{0}\" cannot be written")]
    LeasesNotWritten(String),
    #[error("{0}() cannot wait inside a transaction block or a function")]
    InTransaction(String),
    #[error("document \"{subject}\" of queue \"{queue}\" does not exist")]
    NoDocument { queue: String, subject: String },
    #[error("{function}() accepts 1 to {max} queues, got {got}")]
    NumberOfQueues {
        function: String,
        max: usize,
        got: usize,
    },
    #[error("table {table} of queue \"{queue}\" already exists, but the queue is not registered")]
    StrayTable { queue: String, table: String },
    #[error("document \"{subject}\" of queue \"{queue}\" can neither be added nor found")]
    HiddenDocument { queue: String, subject: String },
    #[error(
        "queue \"{queue}\" cannot be created: {message}: the transaction keeps the locks of all queues that it creates"
    )]
    TooManyLocks { queue: String, message: String },
    #[error("queue \"{0}\" can neither be registered nor found")]
    HiddenQueue(String),
    #[error("column {column} of a result has type {found}, expected {expected}")]
    ColumnType {
        column: i32,
        found: String,
        expected: String,
    },
    #[error(
        "table fetchq_data.{table} is not as fetchq made it: column \"{column}\" {}",
        describe_column(found.as_deref(), expected)
    )]
    AlteredColumn {
        table: String,
        column: String,
        /// The type that it has. None: there is no such column.
        found: Option<String>,
        expected: String,
    },
    #[error("unknown unit of time: {:?}", shorten(.0))]
    BadUnit(String),
    #[error("unknown direction: {:?}", shorten(.0))]
    BadDirection(String),
    #[error(
        "invalid value for \"{argument}\": {}, expected {rule}",
        shorten(value)
    )]
    BadValue {
        argument: &'static str,
        value: String,
        rule: &'static str,
    },
    #[error("{0}() must be called by a trigger that fetchq has created")]
    BadTrigger(String),
    #[error("only a superuser or the owner of the extension can do this")]
    NotOwner,
    #[error("only a script of the extension can do this, while the server runs it")]
    NoUpdate,
    #[error("role \"{role}\" {} queue \"{queue}\"", describe_right(*.kind))]
    NoRight {
        role: String,
        queue: String,
        /// The kind of grant that is missing. None: only the owner may do it.
        kind: Option<&'static str>,
    },
    #[error("role \"{role}\" is {held} of queue \"{queue}\", which includes {kind}")]
    IncludedGrant {
        role: String,
        queue: String,
        kind: &'static str,
        held: &'static str,
    },
    #[error("role \"{role}\" is still {kind} of queue \"{queue}\": another role has granted it")]
    OtherGrantor {
        role: String,
        queue: String,
        kind: &'static str,
    },
    #[error("role \"{}\" does not exist", shorten(.0))]
    UnknownRole(String),
    #[error(
        "an index of queue \"{0}\" cannot be created: its docs table has a column of another type"
    )]
    AlteredTable(String),
    #[error("the job that packs the counters of all queues is not for this role")]
    NotPacker,
    #[error("unknown maintenance task \"{task}\" of queue \"{queue}\"")]
    UnknownTask { task: String, queue: String },
    #[error("schedule \"{}\" does not exist", shorten(.0))]
    UnknownSchedule(String),
    #[error("queue \"{queue}\" has no schedule \"{}\"", shorten(name))]
    UnknownScheduleOf { name: String, queue: String },
    #[error("schedule \"{0}\" already exists")]
    ScheduleExists(String),
    /// `owner`: the one that has declared it, if one has.
    #[error("schedule \"{name}\" already exists: {}", describe_owner(owner.as_deref()))]
    ScheduleOfOther { name: String, owner: Option<String> },
    #[error("the schedules are not a JSON array, but a JSON {0}")]
    NoSchedules(&'static str),
    #[error("schedule {at} of the list{} is not valid: {reason}", quoted(name))]
    BadListedSchedule {
        at: usize,
        /// Empty where it has none.
        name: String,
        reason: String,
    },
    #[error("schedule {at} of the list{} is not valid: {error}", quoted(name))]
    InSchedules {
        at: usize,
        name: String,
        error: Box<Error>,
    },
    #[error("schedule \"{0}\" can neither be added nor found")]
    HiddenSchedule(String),
    #[error(
        "{:?} is neither a cron expression nor an interval: {reason}",
        shorten(given)
    )]
    BadSchedule { given: String, reason: String },
    #[error("schedule {:?} never ticks", shorten(.0))]
    NeverTicks(String),
    #[error("time zone \"{}\" is unknown", shorten(.0))]
    UnknownZone(String),
    #[error("document \"{subject}\" of queue \"{queue}\" is neither killed nor completed: {}", describe(*.found))]
    NotSettled {
        queue: String,
        subject: String,
        found: Option<Option<Status>>,
    },
    #[error("document \"{subject}\" of queue \"{queue}\" is neither planned nor pending: {}", describe(*.found))]
    NotWaiting {
        queue: String,
        subject: String,
        found: Option<Option<Status>>,
    },
    #[error("a filter without conditions would let {0}() act on every document")]
    FilterOfAll(String),
    #[error("the setting fetchq.queue_defaults cannot be applied: {0}")]
    BadDefaults(String),
    #[error("the dead-letter queue \"{target}\" of queue \"{queue}\" does not exist")]
    DeadLetterGone { queue: String, target: String },
    #[error(
        "the dead-letter queue \"{target}\" of queue \"{queue}\" lives on another server: {place}"
    )]
    DeadLetterElsewhere {
        queue: String,
        target: String,
        place: String,
    },
    #[error("table fetchq_data.{table} is locked by another session")]
    TableBusy { table: String },
    #[error("table fetchq_data.{table} of queue \"{queue}\" does not exist")]
    TableMissing { queue: String, table: String },
    #[error(
        "documents of queue \"{queue}\" may not move to its dead-letter queue \"{target}\", which has to be set again: role \"{role}\", which set it, {reason}"
    )]
    MayNotMove {
        queue: String,
        role: String,
        target: String,
        reason: &'static str,
    },
    #[error("role {maker}, which made the schedule, {reason}")]
    MayNotPush { maker: String, reason: String },
    #[error("the documents of queue \"{0}\" have no sequence numbers")]
    NoNumbers(String),
    #[error("{n} of {of} documents cannot be added to queue \"{queue}\"")]
    NotAdded { queue: String, n: usize, of: usize },
    #[error("document \"{subject}\" of queue \"{queue}\" cannot be settled, it is kept as it is")]
    KeptAsItIs { queue: String, subject: String },
    #[error(
        "what was put on document \"{subject}\" of queue \"{queue}\" while it was leased is dropped: {reason}"
    )]
    QueuedDropped {
        queue: String,
        subject: String,
        reason: String,
    },
    #[error("{n} documents of queue \"{queue}\" cannot be removed")]
    NotRemoved { queue: String, n: usize },
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// The name of a queue that does not exist.
#[derive(Debug)]
pub struct UnknownName {
    pub name: String,
    /// The queue of the caller whose name is nearest, if one is near.
    pub nearest: Option<String>,
}

impl std::fmt::Display for UnknownName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

fn describe_owner(owner: Option<&str>) -> String {
    match owner {
        Some(owner) => format!("\"{}\" declares it", shorten(owner)),
        None => "it was made by hand".to_owned(),
    }
}

/// A name in quotation marks, after a space.
fn quoted(name: &str) -> String {
    match name {
        "" => String::new(),
        name => format!(" (\"{name}\")"),
    }
}

/// A result with an error of fetchq.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The SQLSTATE.
    pub fn code(&self) -> PgSqlErrorCode {
        use PgSqlErrorCode::*;
        match self {
            Self::NullArgument { .. } | Self::NullElement { .. } | Self::NeitherGiven { .. } => {
                ERRCODE_NULL_VALUE_NOT_ALLOWED
            }
            Self::ListLengths { .. } | Self::ManyDimensions { .. } => ERRCODE_ARRAY_ELEMENT_ERROR,
            Self::InList { error, .. }
            | Self::InThen { error, .. }
            | Self::InSchedules { error, .. } => error.code(),
            Self::LongDuration { .. } => ERRCODE_DATETIME_FIELD_OVERFLOW,
            Self::BadInterval(..) => ERRCODE_INVALID_DATETIME_FORMAT,
            Self::NegativeLimit { .. }
            | Self::BadDocument { .. }
            | Self::NoList
            | Self::NotMergeable { .. }
            | Self::BothGiven { .. }
            | Self::AlsoNeeded { .. }
            | Self::BadDuration { .. }
            | Self::BadUnit(_)
            | Self::BadDirection(_)
            | Self::BadSchedule { .. }
            | Self::NoSchedules(_)
            | Self::BadListedSchedule { .. }
            | Self::NeverTicks(_)
            | Self::UnknownZone(_)
            | Self::NumberOfQueues { .. }
            | Self::LeaseAsPayload { .. }
            | Self::BadValue { .. } => ERRCODE_INVALID_PARAMETER_VALUE,
            // DeadLetterGone has not the SQLSTATE of a lost lease: the worker still has its lease.
            Self::UnknownQueue(_)
            | Self::UnknownTask { .. }
            | Self::UnknownSchedule(_)
            | Self::UnknownScheduleOf { .. }
            | Self::UnknownRole(_)
            | Self::DeadLetterGone { .. } => ERRCODE_UNDEFINED_OBJECT,
            // No other error has it. In the words of SQL, a catalog is a database.
            Self::QueueElsewhere { .. } | Self::DeadLetterElsewhere { .. } => {
                ERRCODE_INVALID_CATALOG_NAME
            }
            Self::ScheduleExists(_) | Self::ScheduleOfOther { .. } | Self::QueueIsHere(_) => {
                ERRCODE_DUPLICATE_OBJECT
            }
            Self::NotActive { .. }
            | Self::SomeNotActive { .. }
            | Self::LeaseLost { .. }
            | Self::SettledBefore { .. }
            | Self::LeaseNeeded { .. }
            | Self::InHistory { .. }
            | Self::NotSettled { .. }
            | Self::NotWaiting { .. }
            | Self::IncludedGrant { .. }
            | Self::OtherGrantor { .. }
            | Self::SomeLeasesLost { .. } => ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            Self::ReadOnly { .. } => ERRCODE_READ_ONLY_SQL_TRANSACTION,
            Self::HiddenDocument { .. } | Self::HiddenQueue(_) | Self::HiddenSchedule(_) => {
                ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE
            }
            Self::KeepsSnapshot(_) => ERRCODE_FEATURE_NOT_SUPPORTED,
            Self::LeasesNotWritten(_) => ERRCODE_LOCK_NOT_AVAILABLE,
            Self::OtherVersion { .. } => ERRCODE_INVALID_SCHEMA_DEFINITION,
            Self::OlderSnapshot(_) | Self::OlderHistory(_) => ERRCODE_T_R_SERIALIZATION_FAILURE,
            Self::InTransaction(_) => ERRCODE_ACTIVE_SQL_TRANSACTION,
            Self::NoDocument { .. } => ERRCODE_NO_DATA_FOUND,
            Self::ColumnType { .. } => ERRCODE_DATATYPE_MISMATCH,
            Self::StrayTable { .. } => ERRCODE_DUPLICATE_TABLE,
            Self::BadTrigger(_) => ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
            Self::FilterOfAll(_) => ERRCODE_CARDINALITY_VIOLATION,
            Self::BadDefaults(_) => ERRCODE_CONFIG_FILE_ERROR,
            Self::NoNumbers(_) | Self::AlteredTable(_) | Self::AlteredColumn { .. } => {
                ERRCODE_INVALID_TABLE_DEFINITION
            }
            Self::NotAdded { .. } | Self::NotRemoved { .. } | Self::KeptAsItIs { .. } => {
                ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION
            }
            Self::QueuedDropped { .. } => ERRCODE_WARNING,
            Self::NotOwner
            | Self::NotPacker
            | Self::NotCreator(_)
            | Self::PlaceOfOther { .. }
            | Self::NoRight { .. }
            | Self::MayNotMove { .. }
            | Self::MayNotPush { .. } => ERRCODE_INSUFFICIENT_PRIVILEGE,
            Self::NoUpdate => ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            Self::TooManyLocks { .. } | Self::OutOfMemory => ERRCODE_OUT_OF_MEMORY,
            Self::TooMuchToRead { .. } | Self::TooMuchHistory { .. } => {
                ERRCODE_PROGRAM_LIMIT_EXCEEDED
            }
            Self::TableBusy { .. } | Self::RegistryBusy(_) => ERRCODE_LOCK_NOT_AVAILABLE,
            Self::TableMissing { .. } => ERRCODE_UNDEFINED_TABLE,
            Self::Invalid(invalid) => match invalid {
                Invalid::QueueName(_) | Invalid::MetricName(_) | Invalid::ScheduleName(_) => {
                    ERRCODE_INVALID_NAME
                }
                Invalid::UnknownSetting(_) => ERRCODE_UNDEFINED_PARAMETER,
                Invalid::SubjectLength { .. }
                | Invalid::KeyLength { .. }
                | Invalid::SettlementLength { .. } => ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
                Invalid::EmptySubject => ERRCODE_INVALID_PARAMETER_VALUE,
                Invalid::LongList { .. } | Invalid::LongJson { .. } => {
                    ERRCODE_PROGRAM_LIMIT_EXCEEDED
                }
                Invalid::DocumentList { .. }
                | Invalid::Settlements(_)
                | Invalid::Settlement { .. }
                | Invalid::NamedLeases { .. }
                | Invalid::NamedLease { .. }
                | Invalid::Filter(_)
                | Invalid::HistoryFilter(_)
                | Invalid::Setting { .. }
                | Invalid::Settings(_)
                | Invalid::Retention(_)
                | Invalid::JobSettings { .. } => ERRCODE_INVALID_PARAMETER_VALUE,
            },
        }
    }

    /// Returns whether the queue that was looked for is not in this database.
    pub fn is_missing_queue(&self) -> bool {
        matches!(self, Self::UnknownQueue(_) | Self::QueueElsewhere { .. })
    }

    /// The error of an element of a list of documents. `at` counts from 0.
    pub fn in_list(self, at: usize) -> Self {
        Self::InList {
            at: at as i64 + 1,
            error: Box::new(self),
        }
    }

    /// The error of the documents that a settlement brings along. `at` counts from 0.
    pub fn in_then(self, at: usize) -> Self {
        Self::InThen {
            at: at + 1,
            error: Box::new(self),
        }
    }

    /// The error of an element of a list of schedules. `at` counts from 0.
    pub fn in_schedules(self, at: usize, name: &str) -> Self {
        Self::InSchedules {
            at: at + 1,
            name: shorten(name),
            error: Box::new(self),
        }
    }

    /// Reports the error as a WARNING, and returns.
    pub fn warn(&self) {
        self.report().report(PgLogLevel::WARNING);
    }

    /// The report for the server: message, SQLSTATE and hint.
    fn report(&self) -> ErrorReport {
        ErrorReport::new(self.code(), self.to_string(), "fetchq").set_hint(self.hint())
    }
}

impl From<Error> for ErrorReport {
    fn from(error: Error) -> Self {
        error.report()
    }
}

/// Returns the value of a result, and raises its error as an ERROR. That is a panic, as an ERROR of
/// the server is, so both undo the subtransaction around them.
pub fn raise<T>(result: Result<T>) -> T {
    result.unwrap_or_else(|e| {
        e.report().report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    })
}

/// Reports a NOTICE.
pub fn notice(code: PgSqlErrorCode, message: String, hint: &str) {
    ErrorReport::new(code, message, "fetchq")
        .set_hint(hint)
        .report(PgLogLevel::NOTICE);
}

/// Reports a WARNING that belongs to no error.
pub fn warn(code: PgSqlErrorCode, message: String, hint: &str) {
    ErrorReport::new(code, message, "fetchq")
        .set_hint(hint)
        .report(PgLogLevel::WARNING);
}

/// Writes a line to the log of the server.
pub fn log(message: String) {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_INTERNAL_ERROR, message, "fetchq")
        .report(PgLogLevel::LOG);
}
