//! Every error of fetchq: its message, its SQLSTATE, and a hint that says what to do. A message
//! says what happened and why.

use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{PgLogLevel, PgSqlErrorCode};

use crate::domain::invalid::Invalid;
use crate::domain::status::Status;
use crate::domain::wording::{
    Writer, describe, describe_lost, describe_right, describe_writer, shorten,
};
use crate::domain::{filter, queue_settings, schedule, settlement, version};

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
    #[error("another session has locked {0}")]
    RegistryBusy(String),
    #[error("the library has version {library}, the extension in this database {catalog}")]
    OtherVersion {
        library: &'static str,
        catalog: String,
    },
    #[error("queue \"{0}\" does not exist")]
    UnknownQueue(String),
    #[error("document \"{subject}\" of queue \"{queue}\" is not active: {}", describe(*.found))]
    NotActive {
        queue: String,
        subject: String,
        found: Option<Option<Status>>,
    },
    #[error("lease {lease} of document \"{subject}\" of queue \"{queue}\" was lost: {}", describe_lost(*.found))]
    LeaseLost {
        queue: String,
        subject: String,
        lease: i64,
        found: Option<Option<Status>>,
    },
    #[error("lease {lease} of queue \"{queue}\" holds none of the documents any more")]
    LeaseGone { queue: String, lease: i64 },
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
    #[error("\"{one}\" and \"{other}\" must not be given both")]
    BothGiven {
        one: &'static str,
        other: &'static str,
    },
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
    #[error("the name fetchq_data.{name} is in use by an index of role \"{owner}\"")]
    NameInUse { name: String, owner: String },
    #[error("document \"{subject}\" of queue \"{queue}\" can neither be added nor found")]
    HiddenDocument { queue: String, subject: String },
    #[error("queue \"{0}\" can neither be registered nor found")]
    HiddenQueue(String),
    #[error("column {column} of a result has type {found}, expected {expected}")]
    ColumnType {
        column: i32,
        found: String,
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
    #[error("only a superuser or the owner of the extension can destroy fetchq")]
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
    #[error("schedule \"{0}\" already exists")]
    ScheduleExists(String),
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
    #[error("a filter without conditions would let {0}() act on every document")]
    FilterOfAll(String),
    #[error(
        "the row of fetchq.queue_defaults with setting \"{setting}\" cannot be applied: {reason}"
    )]
    BadDefault { setting: String, reason: String },
    #[error("the dead-letter queue \"{target}\" of queue \"{queue}\" does not exist")]
    DeadLetterGone { queue: String, target: String },
    #[error(
        "table fetchq_data.{table} belongs to role \"{table_owner}\", but queue \"{queue}\" belongs to role \"{owner}\""
    )]
    OtherOwner {
        queue: String,
        table: String,
        table_owner: String,
        owner: String,
    },
    #[error("table fetchq_data.{table} is locked by another session")]
    TableBusy { table: String },
    #[error("table fetchq_data.{table} of queue \"{queue}\" does not exist")]
    TableMissing { queue: String, table: String },
    #[error(
        "role \"{owner}\", which owns queue \"{queue}\", may not push into its dead-letter queue \"{target}\""
    )]
    MayNotMove {
        queue: String,
        owner: String,
        target: String,
    },
    #[error(
        "documents of queue \"{queue}\" with an origin do not go to queue \"{target}\": {} can write into the first and may not push into the second", describe_writer(role, *.kind)
    )]
    MayNotCarry {
        queue: String,
        target: String,
        role: String,
        kind: Writer,
    },
    #[error("role {maker}, which made the schedule, {reason}")]
    MayNotPush { maker: String, reason: String },
    #[error("the documents of queue \"{0}\" have no sequence numbers")]
    NoNumbers(String),
    #[error("{n} of {of} documents cannot be added to queue \"{queue}\"")]
    NotAdded { queue: String, n: usize, of: usize },
    #[error("document \"{subject}\" of queue \"{queue}\" cannot be settled, it is kept as it is")]
    KeptAsItIs { queue: String, subject: String },
    #[error("{n} documents of queue \"{queue}\" cannot be removed")]
    NotRemoved { queue: String, n: usize },
    #[error(transparent)]
    Invalid(#[from] Invalid),
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
            Self::InList { error, .. } => error.code(),
            Self::LongDuration { .. } => ERRCODE_DATETIME_FIELD_OVERFLOW,
            Self::BadInterval(..) => ERRCODE_INVALID_DATETIME_FORMAT,
            Self::NegativeLimit { .. }
            | Self::BadDocument { .. }
            | Self::NoList
            | Self::NotMergeable { .. }
            | Self::BothGiven { .. }
            | Self::BadDuration { .. }
            | Self::BadUnit(_)
            | Self::BadDirection(_)
            | Self::BadSchedule { .. }
            | Self::NeverTicks(_)
            | Self::UnknownZone(_)
            | Self::NumberOfQueues { .. }
            | Self::BadValue { .. } => ERRCODE_INVALID_PARAMETER_VALUE,
            // DeadLetterGone has not the SQLSTATE of a lost lease: the worker still has its lease.
            Self::UnknownQueue(_)
            | Self::UnknownTask { .. }
            | Self::UnknownSchedule(_)
            | Self::UnknownRole(_)
            | Self::DeadLetterGone { .. } => ERRCODE_UNDEFINED_OBJECT,
            Self::ScheduleExists(_) => ERRCODE_DUPLICATE_OBJECT,
            Self::NotActive { .. }
            | Self::SomeNotActive { .. }
            | Self::LeaseLost { .. }
            | Self::LeaseGone { .. }
            | Self::NotSettled { .. }
            | Self::IncludedGrant { .. }
            | Self::OtherGrantor { .. }
            | Self::SomeLeasesLost { .. } => ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            Self::ReadOnly { .. } => ERRCODE_READ_ONLY_SQL_TRANSACTION,
            Self::HiddenDocument { .. } | Self::HiddenQueue(_) | Self::HiddenSchedule(_) => {
                ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE
            }
            Self::KeepsSnapshot(_) => ERRCODE_FEATURE_NOT_SUPPORTED,
            Self::OtherVersion { .. } => ERRCODE_INVALID_SCHEMA_DEFINITION,
            Self::OlderSnapshot(_) => ERRCODE_T_R_SERIALIZATION_FAILURE,
            Self::InTransaction(_) => ERRCODE_ACTIVE_SQL_TRANSACTION,
            Self::NoDocument { .. } => ERRCODE_NO_DATA_FOUND,
            Self::ColumnType { .. } => ERRCODE_DATATYPE_MISMATCH,
            Self::StrayTable { .. } | Self::NameInUse { .. } => ERRCODE_DUPLICATE_TABLE,
            Self::BadTrigger(_) => ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
            Self::FilterOfAll(_) => ERRCODE_CARDINALITY_VIOLATION,
            Self::BadDefault { .. } => ERRCODE_CONFIG_FILE_ERROR,
            Self::NoNumbers(_) | Self::AlteredTable(_) => ERRCODE_INVALID_TABLE_DEFINITION,
            Self::NotAdded { .. } | Self::NotRemoved { .. } | Self::KeptAsItIs { .. } => {
                ERRCODE_TRIGGERED_DATA_CHANGE_VIOLATION
            }
            Self::NotOwner
            | Self::NotPacker
            | Self::NoRight { .. }
            | Self::MayNotMove { .. }
            | Self::MayNotCarry { .. }
            | Self::MayNotPush { .. } => ERRCODE_INSUFFICIENT_PRIVILEGE,
            Self::NoUpdate => ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
            Self::OtherOwner { .. } => ERRCODE_INVALID_OBJECT_DEFINITION,
            Self::TooMuchToRead { .. } => ERRCODE_PROGRAM_LIMIT_EXCEEDED,
            Self::TableBusy { .. } | Self::RegistryBusy(_) => ERRCODE_LOCK_NOT_AVAILABLE,
            Self::TableMissing { .. } => ERRCODE_UNDEFINED_TABLE,
            Self::Invalid(invalid) => match invalid {
                Invalid::QueueName(_) | Invalid::MetricName(_) | Invalid::ScheduleName(_) => {
                    ERRCODE_INVALID_NAME
                }
                Invalid::UnknownSetting(_) => ERRCODE_UNDEFINED_PARAMETER,
                Invalid::SubjectLength { .. }
                | Invalid::KeyLength { .. }
                | Invalid::MessageLength { .. }
                | Invalid::SettlementLength { .. } => ERRCODE_STRING_DATA_RIGHT_TRUNCATION,
                Invalid::DocumentList { .. }
                | Invalid::Settlements(_)
                | Invalid::Settlement { .. }
                | Invalid::Filter(_)
                | Invalid::Setting { .. }
                | Invalid::Settings(_)
                | Invalid::Retention(_)
                | Invalid::JobSettings { .. } => ERRCODE_INVALID_PARAMETER_VALUE,
            },
        }
    }

    /// What the caller can do.
    pub fn hint(&self) -> String {
        match self {
            Self::NullArgument { .. } => "Pass a value, or omit the argument if it has a default.".into(),
            Self::NegativeLimit { .. } => "Pass 0 or more.".into(),
            Self::BadDuration { .. } | Self::BadInterval(..) | Self::LongDuration { .. } => "Pass an interval such as '5m' or '1 hour'.".into(),
            Self::NeitherGiven { one, other } => format!("Pass {one} or {other}."),
            Self::BothGiven { one, other } => format!("Pass {one} or {other}, and omit the other one."),
            Self::InList { error, .. } => error.hint(),
            Self::UnknownQueue(queue) => {
                format!("Create it with: select * from fetchq.queue_create('{queue}')")
            }
            Self::OtherVersion { catalog, .. } if version::is_newer_than(catalog) => "Run in this database: alter extension fetchq update".into(),
            Self::OtherVersion { catalog, .. } => format!("Install the files of fetchq {catalog}, then connect again, or restart the server where it preloads the library."),
            Self::NullElement { .. } => "Remove the null element.".into(),
            Self::ListLengths { .. } => "Pass one element for each subject, or no list at all.".into(),
            Self::ManyDimensions { .. } => "Pass a plain list such as array['a', 'b'].".into(),
            Self::BadDocument { .. } | Self::NoList => r#"Pass an array such as [{"subject": "s1", "payload": {}, "version": 0, "priority": 0, "next_iteration": "2030-01-01"}]; only the subject is needed."#.into(),
            Self::NotMergeable { .. } => "Merge JSON objects only, or use the mode replace, which accepts any payload.".into(),
            Self::NotActive { .. } | Self::SomeNotActive { .. } => "Only an active document can be settled: the lease may have expired, or another session has settled the document.".into(),
            Self::LeaseLost { .. } | Self::SomeLeasesLost { .. } => "The lease expired, the session that it was bound to ended, or the document was cancelled or released. Roll back the work that was done for it. Call doc_extend() before a lease expires.".into(),
            Self::LeaseGone { .. } => "Its documents were settled, or the lease expired, or they were cancelled or released. Roll back the work that was done for those that you have not settled. Call lease_extend() before a lease expires.".into(),
            Self::ReadOnly { standby: true, .. } => "Connect to the primary server.".into(),
            Self::ReadOnly { standby: false, .. } => "Call it in a read-write transaction.".into(),
            Self::StrayTable { table, .. } => format!("Drop or rename {table}, then create the queue."),
            Self::NameInUse { name, .. } => format!("That role or a superuser can drop it: select indrelid::regclass from pg_index where indexrelid = 'fetchq_data.{name}'::regclass says which table has it. Then: alter table ... drop constraint \"{name}\""),
            Self::HiddenDocument { .. } => "A row-level security policy hides it, or a trigger suppresses the insert.".into(),
            Self::HiddenQueue(_) => "A row-level security policy on fetchq.queues hides it, or a trigger suppresses the insert.".into(),
            Self::ColumnType { .. } => "A table of fetchq was altered. Restore the type of the column.".into(),
            Self::KeepsSnapshot(_) => "An older snapshot would count documents that no longer exist. Use: set transaction isolation level read committed".into(),
            Self::OlderSnapshot(_) => "Roll back and retry the transaction.".into(),
            Self::InTransaction(_) => "CALL it as a statement of its own with no transaction open: as asyncpg, node-postgres, tokio-postgres, JDBC and psql do by default; with psycopg set autocommit = True on the connection.".into(),
            Self::NoDocument { .. } => "Commit the push before you wait. A document that was settled before is known only where the queue keeps it: in the table, or by the setting history.".into(),
            Self::NumberOfQueues { got: 0, .. } => "Pass the names of the queues.".into(),
            Self::NumberOfQueues { .. } => "Wait for more queues in further sessions.".into(),
            Self::BadUnit(_) => "Use a unit that date_trunc() knows: microseconds, milliseconds, second, minute, hour, day, week, month, quarter, year, decade, century or millennium.".into(),
            Self::BadDirection(_) => "Use 'ASC' or 'DESC'.".into(),
            Self::BadValue { rule, .. } => format!("Pass {rule}."),
            Self::BadTrigger(_) => "Use fetchq.queue_create(), or settings of fetchq.queue_configure(), which create the triggers.".into(),
            Self::NotSettled { .. } => "Only a document that was killed or completed can be revived.".into(),
            Self::DeadLetterGone { queue, .. } => format!("Create that queue, or remove the setting with: select fetchq.queue_configure('{queue}', '{{\"dead_letter\": null}}')"),
            Self::FilterOfAll(_) => "Name a condition such as {\"status\": \"killed\"}, or pass {\"all\": true} if you mean every document.".into(),
            Self::BadDefault { setting, .. } => format!("The owner of the extension can correct the row, or remove it with: delete from fetchq.queue_defaults where setting = '{}'", setting.replace('\'', "''")),
            Self::NoNumbers(_) => "The column seq was altered. Make it an identity column again.".into(),
            Self::NotAdded { queue, .. } => format!("Nothing was added. A trigger suppresses the insert; \\d fetchq_data.\"{queue}__docs\" shows the triggers. Change it, or remove it."),
            Self::KeptAsItIs { queue, .. } => format!("A trigger suppresses the change, or a row-level security policy hides it; \\d fetchq_data.\"{queue}__docs\" shows both. The lease still holds."),
            Self::NotRemoved { .. } => "A row-level security policy hides them, or a trigger keeps them. Remove the policy or the trigger.".into(),
            Self::OtherOwner { table, owner, .. } => format!("Maintenance acts as the owner of the documents, and touches no table of another role. Drop the table if it is not yours, or: alter table fetchq_data.{table} owner to \"{owner}\""),
            Self::TableBusy { .. } => "It is tried again.".into(),
            Self::TableMissing { .. } => "For the history, set it again with fetchq.queue_configure(), which creates it.".into(),
            Self::MayNotMove { owner, target, .. } => format!("The owner of queue \"{target}\" can run: select fetchq.queue_grant('{target}', '{}', 'producer'). Policies on its documents must not restrict that role.", owner.replace('\'', "''")),
            Self::MayNotCarry { target, role, kind: Writer::Owner, .. } => format!("The role could have changed them. The owner of queue \"{target}\" can run: select fetchq.queue_grant('{target}', '{}', 'producer')", role.replace('\'', "''")),
            Self::MayNotCarry { queue, target, role, kind: Writer::Grantee } => format!("The role could have added or changed them. The owner of queue \"{target}\" can run: select fetchq.queue_grant('{target}', '{}', 'producer'). Or the owner of queue \"{queue}\" can remove what the role has written, and run: revoke insert, update, trigger on fetchq_data.\"{queue}__docs\" from \"{}\"", role.replace('\'', "''"), role.replace('"', "\"\"")),
            Self::MayNotCarry { queue, kind: Writer::Public, .. } => format!("Anybody could have added or changed them. The owner of queue \"{queue}\" can remove what others have written, and run: revoke insert, update, trigger on fetchq_data.\"{queue}__docs\" from public"),
            Self::TooMuchToRead { found, last, .. } => format!("Filter by the status planned, pending or active or by the beginning of the subject, which have an index. Or read in parts: max_docs => {found} for what was found, then go on with after => '{}'", last.replace('\'', "''")),
            Self::RegistryBusy(_) => "Try again; nothing is waited for. The view pg_locks shows who has locked it.".into(),
            Self::MayNotPush { .. } => "A role that may push into the queue can take it over: call fetchq.schedule_create() with replace => true.".into(),
            Self::NoUpdate => "Run: alter extension fetchq update".into(),
            Self::NotOwner => "Connect as a superuser, or as the role that created the extension.".into(),
            Self::NoRight { role, queue, kind: Some(kind) } => format!("The owner of the queue can run: select fetchq.queue_grant('{queue}', '{}', '{kind}')", role.replace('\'', "''")),
            Self::NoRight { queue, .. } => format!("Connect as the owner of fetchq_data.\"{queue}__docs\", or as a superuser."),
            Self::IncludedGrant { role, queue, held, .. } => format!("Run: select fetchq.queue_revoke('{queue}', '{}', '{held}')", role.replace('\'', "''")),
            Self::OtherGrantor { queue, .. } => format!("See who has granted what with \\dp fetchq_data.\"{queue}__docs\", and revoke the grant option of that role with: revoke … cascade"),
            Self::AlteredTable(_) => "Give the columns the types that fetchq has created, or create the index as a superuser.".into(),
            Self::NotPacker => "The owner of the extension can run: grant execute on function fetchq.metric_log_pack() to the role".into(),
            Self::UnknownRole(_) => "See pg_roles for the names.".into(),
            Self::UnknownTask { .. } => "The tasks are mnt, sts, cmp, drp and lgp. Correct or delete the row in fetchq.jobs.".into(),
            Self::UnknownSchedule(_) => "See fetchq.schedule_list() for the names.".into(),
            Self::ScheduleExists(_) => "Pass replace => true to change it.".into(),
            Self::HiddenSchedule(_) => "A row-level security policy on fetchq.schedules hides it, or a trigger suppresses the insert.".into(),
            Self::BadSchedule { .. } => "Pass a cron expression such as '30 2 * * mon-fri' (with seconds: '0 30 2 * * mon-fri') or '@daily', or an interval of whole seconds such as '5 minutes' or '1 month'.".into(),
            Self::NeverTicks(_) => "Use days that exist, and leave time for a tick between starts_at and ends_at.".into(),
            Self::UnknownZone(_) => "Use a name of pg_timezone_names, such as 'Europe/Berlin'.".into(),
            Self::Invalid(invalid) => match invalid {
                Invalid::ScheduleName(_) => format!("The name of a schedule has 1 to {} characters, none of them a control character: it becomes part of the subjects.", schedule::NAME_MAX),
                Invalid::QueueName(_) => "A queue name starts with a letter or an underscore, continues with letters, digits and underscores, and has at most 40 characters; it is folded to lower case.".into(),
                Invalid::MessageLength { .. } => "Put long texts into the details.".into(),
                Invalid::KeyLength { .. } => "Use a shorter key, such as a hash of the long one.".into(),
                Invalid::SubjectLength { .. } => "Use a shorter subject, such as a hash of the long one.".into(),
                Invalid::Settlements(_) => r#"Pass an array such as [{"subject": "s1", "lease": 7, "action": "complete"}]."#.into(),
                Invalid::Settlement { .. } => format!("Nothing was settled. The actions are {}, and the keys {}.", settlement::ACTIONS, settlement::KEYS),
                Invalid::SettlementLength { .. } => "Nothing was settled. Use a shorter subject, such as a hash of the long one, and put long messages into the details.".into(),
                Invalid::MetricName(_) => "A metric name has 1 to 40 characters.".into(),
                Invalid::DocumentList { .. } => "Write the list as ('subject', priority, 'json payload', {DATA}), ...; only literals are allowed.".into(),
                Invalid::Filter(_) => format!("The keys of a filter are {}.", filter::KEYS.join(", ")),
                Invalid::UnknownSetting(_) => format!("The settings are {}, where retry.base is the key base of the object in retry.", queue_settings::keys()),
                Invalid::Setting { .. } => "Nothing was changed. See fetchq.queue_settings() for the current values; null resets a setting to its default.".into(),
                Invalid::Settings(_) => "Pass an object such as {\"max_attempts\": 3, \"retry\": {\"base\": \"30 s\"}}.".into(),
                Invalid::Retention(_) => "Use a list such as [{\"retain\": \"minute\", \"from\": \"1h\", \"to\": \"0s\"}].".into(),
                Invalid::JobSettings { .. } => "Use settings such as {\"delay\": \"5m\", \"duration\": \"1m\", \"limit\": 500}.".into(),
            },
        }
    }

    /// The error of an element of a list of documents. `at` counts from 0.
    pub fn in_list(self, at: usize) -> Self {
        Self::InList {
            at: at as i64 + 1,
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
