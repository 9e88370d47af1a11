//! What a queue is: its registry, its tables, their shape, who may use them, and how a session opens it.

pub mod data_owner;
pub mod grants;
pub mod known_tables;
pub mod open_queue;
pub mod plans;
pub mod policy;
pub mod queue;
pub mod queue_catalog;
pub mod queue_places;
pub mod queue_shape;
pub mod queue_tables;
mod right;
pub mod rights;
pub mod statement;
pub mod triggers;
