//! Why a relay ends, or begins anew.
use std::net::SocketAddr;

use crate::commands::error::CommandError;

/// Why a relay ends, or begins anew.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error("source: {0}")]
    Source(CommandError),
    #[error("target: {0}")]
    Target(CommandError),
    #[error("another relay with the name {0} has taken over")]
    Replaced(String),
    #[error("another relay has taken over; this one waits until it is silent")]
    Fenced,
    #[error("cannot listen on {0}: {1}")]
    Listen(SocketAddr, std::io::Error),
}
