//! The rules of fetchq that do not need PostgreSQL: names, statuses, counter events, schedules,
//! and the texts that callers pass.
//!
//! It is a crate without pgrx, so plain unit tests cover all of it. The extension, the console and `fetchq
//! move` share it.
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

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
pub mod reason;
pub mod retention;
pub mod retry;
pub mod rhythm;
pub mod schedule;
pub mod settlement;
pub mod status;
pub mod subjects;
pub mod timing;
pub mod unique;
pub mod version;
pub mod wording;
