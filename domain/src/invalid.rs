//! The errors of the rules in this folder.

use crate::wording::shorten;

/// Says what is wrong with a value that a caller passed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    #[error("invalid queue name: {:?}", shorten(.0))]
    QueueName(String),
    #[error("the subject exceeds the limit of {max} characters: it has {got}")]
    SubjectLength { got: usize, max: usize },
    #[error("the subject is empty")]
    EmptySubject,
    #[error("the ordering key exceeds the limit of {max} characters: it has {got}")]
    KeyLength { got: usize, max: usize },
    #[error("\"{list}\" exceeds the limit of {max} elements: it has {got}")]
    LongList {
        list: &'static str,
        got: usize,
        max: usize,
    },
    #[error("\"{argument}\" exceeds the limit of {max} bytes: it has {got}")]
    LongJson {
        argument: &'static str,
        got: usize,
        max: usize,
    },
    #[error("invalid schedule name: {:?}", shorten(.0))]
    ScheduleName(String),
    #[error("invalid metric name: {:?}", shorten(.0))]
    MetricName(String),
    #[error("invalid document list at character {at}: {reason}")]
    DocumentList { at: usize, reason: String },
    #[error("the settlements are not a JSON array, but a JSON {0}")]
    Settlements(&'static str),
    #[error("settlement {at} is not valid: {reason}")]
    Settlement { at: usize, reason: String },
    #[error("settlement {at} is not valid: {too_long}")]
    SettlementLength { at: usize, too_long: Box<Invalid> },
    #[error("the {list} are not a JSON array, but a JSON {kind}")]
    NamedLeases {
        list: &'static str,
        kind: &'static str,
    },
    #[error("{one} {at} is not valid: {reason}")]
    NamedLease {
        one: &'static str,
        at: usize,
        reason: String,
    },
    #[error("invalid filter: {0}")]
    Filter(String),
    #[error("invalid filter: {0}")]
    HistoryFilter(String),
    #[error("there is no setting {:?} of a queue", shorten(.0))]
    UnknownSetting(String),
    #[error(
        "invalid value for setting \"{key}\": {}, expected {rule}",
        shorten(value)
    )]
    Setting {
        key: String,
        value: String,
        rule: &'static str,
    },
    #[error("the settings are not a JSON object: {}", shorten(.0))]
    Settings(String),
    #[error("invalid metrics retention policy: {0}")]
    Retention(String),
    #[error("invalid settings of job {id} ({task} of queue {queue:?}): {reason}")]
    JobSettings {
        id: i32,
        task: String,
        queue: String,
        reason: String,
    },
}
