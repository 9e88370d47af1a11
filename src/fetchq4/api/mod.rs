//! The entry points. Each reads its arguments, calls what the calls of fetchq 5 call too, or `store`
//! where nothing else does that, and shapes the result.

mod doc_pick;
mod doc_push;
mod doc_upsert;
mod install;
mod maintenance;
mod metrics;
mod queue;
mod queue_settings;
mod retention;
mod upgrade;
