//! Everything that calls the server's C functions, and all `unsafe` of the project.
//!
//! Each `unsafe` block has a SAFETY comment that names the invariant it relies on. The public
//! functions of these modules are safe to call in any process that runs code of fetchq.

pub mod acl;
mod allocator;
pub mod append;
mod array;
pub mod call;
pub mod catalog;
pub mod control_file;
pub mod deadline;
pub mod documents;
pub mod documents_check;
pub mod documents_write;
pub mod durability;
pub mod errno;
pub mod extension_script;
pub mod hash;
pub mod index_look;
pub mod index_walk;
pub mod invalidation;
pub mod json;
pub mod lasting;
pub mod lock_wait;
pub mod memory;
pub mod notify;
pub mod operators;
pub mod passing_error;
pub mod planner;
pub mod procedure;
pub mod process;
mod process_settings;
pub mod random;
pub mod relation;
pub mod role;
pub mod row_holder;
pub mod row_sink;
pub mod scan;
mod scan_budget;
pub mod session;
pub mod shared;
pub mod snapshot;
pub mod spi;
pub mod subtransaction;
pub mod text;
pub mod time;
pub mod timeline;
pub mod transaction;
pub mod trigger;
pub mod utility;
pub mod value;
pub mod version;
pub mod virtual_transaction;
pub mod zone;
