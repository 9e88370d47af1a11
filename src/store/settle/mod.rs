//! What becomes of documents: settled one by one or in lists, moved, dead letters, and bulk actions.

pub mod dead_letters;
pub mod doc_settle;
pub mod docs_admin;
pub mod docs_settle;
pub mod effect;
pub mod follow_ups;
pub mod history_list;
pub mod move_documents;
pub mod redrive;
mod repeated;
pub mod restore;
pub mod settlement;
