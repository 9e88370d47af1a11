//! How the process is asked to stop.

/// Ends when the process is asked to stop.
pub async fn stop_signal() {
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
