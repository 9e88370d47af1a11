#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod client;
mod context;
mod driver;
mod engine;
mod error;
#[cfg(feature = "otel")]
pub mod otel;
mod outcome;
mod postgres;
mod sql;
#[cfg(feature = "sqlx")]
mod sqlx;
mod task;
pub mod testing;
mod text;
mod worker;

pub use client::{Cancelled, Client, Declare, Document, Put, PutResult, Waited};
pub use context::{Context, TxContext};
pub use driver::{Driver, Executor, Query, Row, Session, Tx};
pub use engine::{Health, Metrics};
pub use error::{Aborted, BoxError, Error, InvalidPayload, Kind, Reason};
pub use outcome::Outcome;
pub use postgres::{Lent, TokioPostgres};
pub use task::{Doc, Handling, NextPut, Plugin, Putting, TASK_HEADER, Task, Unique};
pub use text::{Interval, describe};
pub use worker::{On, Running, Worker};

/// The least version of the extension that this crate works with.
pub const LEAST_VERSION: [u32; 3] = [5, 0, 0];
