//! `fetchq serve`: listens, and answers until it is asked to stop.
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::info;

use crate::cli::ServeArgs;
use crate::db::{ConfigError, Databases};
use crate::poller::{self, Live};
use crate::router::router;
use crate::security::{Security, SecurityError};
use crate::state::AppState;

/// How long requests that run may take when the process is asked to stop.
const GRACE: Duration = Duration::from_secs(3);

/// Why the console cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Security(#[from] SecurityError),
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
    let security = Security::new(
        args.auth_header.as_deref(),
        args.password_file.as_deref(),
        args.origin.as_deref(),
        args.listen.ip().is_loopback(),
    )?;
    let live = databases
        .all()
        .iter()
        .map(|_| Arc::new(Live::default()))
        .collect();
    let app = Arc::new(AppState {
        databases,
        live,
        security,
        stopping: watch::Sender::new(false),
        allow_actions: args.allow_actions,
        hide_payloads: args.hide_payloads,
    });
    poller::start(&app);
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| ServeError::Listen(args.listen, error))?;
    let address = listener.local_addr().map_err(ServeError::Stopped)?;
    info!("the console is at http://{address}/");
    let stopping = app.clone();
    let stop = async move {
        stop_signal().await;
        stopping.stopping.send_replace(true);
    };
    let server = axum::serve(listener, router(app.clone()))
        .with_graceful_shutdown(stop)
        .into_future();
    let mut asked = app.stopping.subscribe();
    // A browser that keeps a connection open does not keep the process.
    let late = async move {
        let _ = asked.wait_for(|asked| *asked).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        done = server => done.map_err(ServeError::Stopped),
        () = late => Ok(()),
    }
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
