//! The rules of fetchq that do not need PostgreSQL: names, statuses, counter events, schedules,
//! and the texts that callers pass.
//!
//! Nothing here imports pgrx, so plain unit tests cover all of it.

pub mod counter_events;
pub mod document;
pub mod fair_share;
pub mod filter;
pub mod history_filter;
pub mod invalid;
pub mod jobs;
pub mod lease_number;
pub mod legacy_quotes;
pub mod library_list;
pub mod list_length;
pub mod local_time;
pub mod metric_family;
pub mod names;
pub mod push_list;
pub mod put_mode;
pub mod queue_settings;
pub mod retention;
pub mod retry;
pub mod rhythm;
pub mod schedule;
pub mod settled_pages;
pub mod settlement;
pub mod status;
pub mod subjects;
pub mod timing;
pub mod version;
pub mod wording;
pub mod xid;
