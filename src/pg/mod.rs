//! The one home of `unsafe`: everything that talks to the server's C functions.
//! Each block names the invariant it relies on. What the rest of the code sees is
//! safe to call from any backend that runs a function of this extension.

pub mod append;
pub mod call;
pub mod catalog;
pub mod documents;
pub mod documents_check;
pub mod documents_write;
pub mod index_walk;
pub mod invalidation;
pub mod json;
pub mod notify;
pub mod operators;
pub mod planner;
pub mod procedure;
pub mod process;
pub mod random;
pub mod relation;
pub mod scan;
pub mod session;
pub mod shared;
pub mod spi;
pub mod subtransaction;
pub mod text;
pub mod time;
pub mod transaction;
pub mod trigger;
pub mod value;
pub mod zone;
