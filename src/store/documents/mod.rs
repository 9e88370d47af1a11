//! Documents until they are settled: put, changed, leased, extended, awaited and read, and what the history keeps of them.

pub mod bookkeeping;
pub mod doc_append;
pub mod doc_await;
pub mod doc_cancel;
pub mod doc_extend;
pub mod doc_lease;
pub mod doc_options;
pub mod doc_push;
pub mod doc_put;
pub mod doc_put_many;
pub mod doc_selection;
pub mod error_log;
pub mod history;
pub mod history_worker;
pub mod info;
pub mod late_leases;
pub mod lease_check;
pub mod lease_durability;
pub mod leases;
pub mod pick_columns;
pub mod queue_turns;
pub mod queued;
pub mod reading;
pub mod stop_requests;
