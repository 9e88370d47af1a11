//! `fetchq serve`: listens, and answers until it is asked to stop.
use std::sync::Arc;
use std::time::Duration;

use fetchq_connect::ConfigError;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tracing::info;

use crate::cli::ServeArgs;
use crate::connections::{self, Limits};
use crate::db::Databases;
use crate::limits::Places;
use crate::poller;
use crate::router::router;
use crate::security::{Security, SecurityError};
use crate::signals::stop_signal;
use crate::state::AppState;

/// How long requests that run may take when the process is asked to stop.
const GRACE: Duration = Duration::from_secs(3);

/// The header of a request has to arrive within this time. A connection without a request is closed
/// after it, too.
const HEADER_TIMEOUT: Duration = Duration::from_secs(20);

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
    #[error(
        "{0} can be reached from other machines: give --origin with the address that browsers use, such as --origin {1}, \
         once for each. Without it, a page of any site could use the console through the browser of somebody who can \
         reach it"
    )]
    NoOrigin(std::net::SocketAddr, String),
}

/// Serves the console until SIGINT or SIGTERM.
///
/// # Errors
/// A connection string, a file or the address to listen on is wrong.
pub async fn run(args: ServeArgs) -> Result<(), ServeError> {
    let origins = check_listen(&args)?;
    let databases = Arc::new(Databases::new(&args.connect.urls)?);
    let security = Security::new(
        args.auth_header.as_deref(),
        args.password_file.as_deref(),
        &origins,
    )?;
    let app = Arc::new(AppState {
        live: poller::start(&databases),
        databases,
        security,
        streams: Places::new(args.max_streams),
        stopping: watch::Sender::new(false),
        allow_actions: args.allow_actions,
        hide_payloads: args.hide_payloads,
    });
    let listener = TcpListener::bind(args.listen)
        .await
        .map_err(|error| ServeError::Listen(args.listen, error))?;
    let address = listener
        .local_addr()
        .map_err(|error| ServeError::Listen(args.listen, error))?;
    info!("the console is at http://{address}/");
    let stopping = app.clone();
    let stop = async move {
        stop_signal().await;
        stopping.stopping.send_replace(true);
    };
    let limits = Limits {
        all: args.max_connections,
        each: match args.auth_header {
            Some(_) => args.max_connections,
            None => args.max_connections_per_address,
        },
        header_timeout: HEADER_TIMEOUT,
    };
    let open = connections::serve(listener, router(app), &limits, stop).await;
    // A browser that keeps a connection open does not keep the process.
    let _ = tokio::time::timeout(GRACE, open.shutdown()).await;
    Ok(())
}

/// Refuses an address that more people and pages can reach than the options show to be wanted. Returns
/// the origins that were given.
fn check_listen(args: &ServeArgs) -> Result<Vec<String>, ServeError> {
    let is_closed = args.auth_header.is_some() || args.password_file.is_some();
    let is_public = !args.listen.ip().is_loopback();
    if is_public && !is_closed && !args.insecure {
        return Err(ServeError::Public(args.listen));
    }
    // The variable may be empty.
    let given = args.origins.iter().filter(|origin| !origin.is_empty());
    let origins: Vec<String> = given.cloned().collect();
    if is_public && origins.is_empty() {
        let example = match args.listen.ip().is_unspecified() {
            true => format!("http://queues.example.com:{}", args.listen.port()),
            false => format!("http://{}", args.listen),
        };
        return Err(ServeError::NoOrigin(args.listen, example));
    }
    Ok(origins)
}
