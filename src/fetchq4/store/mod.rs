//! Statements that only the calls of fetchq 4 run.

pub mod doc_push;
pub mod doc_upsert;
pub mod install;
pub mod queue;
pub mod queue_settings;
pub mod retention;
pub mod upgrade;
