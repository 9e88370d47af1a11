//! `fetchq serve`: listens, and answers until it is asked to stop.
use std::sync::Arc;

use tokio::net::TcpListener;
use tracing::info;

use crate::cli::ServeArgs;
use crate::db::{ConfigError, Databases};
use crate::router::router;
use crate::state::AppState;

/// Why the console cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("cannot listen on {0}: {1}")]
    Listen(std::net::SocketAddr, std::io::Error),
    #[error(
        "{0} can be reached from other machines: give --password-file or --auth-header, or say --insecure"
    )]
    Public(std::net::SocketAddr),
    #[error("the server stopped: {0}")]
    Stopped(std::io::Error),
}

/// Serves the console until SIGINT or SIGTERM.
///
/// # Errors
/// A connection string, a file or the address to listen on is wrong.
pub async fn run(args: ServeArgs) -> Result<(), ServeError> {
    let is_closed = args.auth_header.is_some() || args.password_file.is_some();
    if !args.listen.ip().is_loopback() && !is_closed && !args.insecure {
        return Err(ServeError::Public(args.listen));
    }
    let databases = Databases::new(&args.connect.urls)?;
    let app = Arc::new(AppState {
        databases,
        allow_actions: args.allow_actions,
        hide_payloads: args.hide_payloads,
    });
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| ServeError::Listen(args.listen, error))?;
    let address = listener.local_addr().map_err(ServeError::Stopped)?;
    info!("the console is at http://{address}/");
    axum::serve(listener, router(app))
        .with_graceful_shutdown(stop_signal())
        .await
        .map_err(ServeError::Stopped)
}

/// Ends when the process is asked to stop.
async fn stop_signal() {
    let interrupt = tokio::signal::ctrl_c();
    let mut terminate =
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(signal) => signal,
            Err(_) => return,
        };
    tokio::select! {
        _ = interrupt => (),
        _ = terminate.recv() => (),
    }
}
