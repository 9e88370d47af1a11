//! How a relay is doing: for Prometheus, for probes, and for the mark.
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::routing::get;
use tokio::net::TcpListener;
use tracing::warn;

/// A complaint is not repeated within this time.
const QUIET: Duration = Duration::from_secs(60);

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Phase {
    #[default]
    Connecting,
    StandingBy,
    Carrying,
}

#[derive(Debug, Default)]
struct Numbers {
    phase: Phase,
    carried: u64,
    refused: u64,
    results: u64,
    losses: u64,
    waiting: i64,
    lag: f64,
    blocked: BTreeMap<String, String>,
    progress: bool,
    complained: Option<Instant>,
}

/// How a relay is doing.
#[derive(Debug, Default)]
pub struct Status(Mutex<Numbers>);

impl Status {
    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn stands_by(&self) {
        self.numbers().phase = Phase::StandingBy;
    }

    pub fn begins(&self, carried: u64) {
        let mut numbers = self.numbers();
        numbers.phase = Phase::Carrying;
        numbers.carried = carried;
        numbers.progress = true;
    }

    /// A connection is lost, or another relay has taken over.
    pub fn lost(&self) {
        let mut numbers = self.numbers();
        numbers.phase = Phase::Connecting;
        numbers.losses += 1;
    }

    /// Whether the relay had begun since this was asked last.
    pub fn take_progress(&self) -> bool {
        std::mem::take(&mut self.numbers().progress)
    }

    /// How many were carried in all, how many were refused now, and how long the first of them has waited.
    pub fn carried(&self, carried: u64, refused: usize, lag: f64) {
        let mut numbers = self.numbers();
        numbers.carried = carried;
        numbers.refused += u64::try_from(refused).unwrap_or(0);
        numbers.lag = lag;
    }

    /// The queues that take nothing: why, as far as it was said now.
    pub fn blocks(&self, why: &BTreeMap<String, String>, all: &[String]) {
        let mut numbers = self.numbers();
        numbers.blocked.retain(|queue, _| all.contains(queue));
        numbers
            .blocked
            .extend(why.iter().map(|(queue, why)| (queue.clone(), why.clone())));
    }

    pub fn counted(&self, waiting: i64, lag: f64) {
        let mut numbers = self.numbers();
        numbers.waiting = waiting;
        numbers.lag = lag;
    }

    pub fn arrived(&self, n: usize) {
        self.numbers().results += u64::try_from(n).unwrap_or(0);
    }

    /// Says what is wrong and goes on, once a minute.
    pub fn complains(&self, message: &str) {
        let mut numbers = self.numbers();
        if numbers.complained.is_none_or(|at| at.elapsed() > QUIET) {
            numbers.complained = Some(Instant::now());
            warn!("{message}");
        }
    }

    pub fn waiting(&self) -> i64 {
        self.numbers().waiting
    }

    pub fn lag(&self) -> f64 {
        self.numbers().lag
    }

    pub fn refused(&self) -> u64 {
        self.numbers().refused
    }

    pub fn blocked(&self) -> BTreeMap<String, String> {
        self.numbers().blocked.clone()
    }

    fn metrics(&self) -> String {
        let numbers = self.numbers();
        let mut text = String::new();
        let mut family = |name: &str, kind: &str, help: &str, value: &dyn std::fmt::Display| {
            // A String takes everything.
            let _ = write!(
                text,
                "# HELP fetchq_relay_{name} {help}\n# TYPE fetchq_relay_{name} {kind}\nfetchq_relay_{name} {value}\n"
            );
        };
        let is = |phase| u8::from(numbers.phase == phase);
        family(
            "carrying",
            "gauge",
            "Whether this relay is connected to both servers and carries documents.",
            &is(Phase::Carrying),
        );
        family(
            "standing_by",
            "gauge",
            "Whether this relay waits because another one carries documents.",
            &is(Phase::StandingBy),
        );
        family(
            "carried_total",
            "counter",
            "Documents of the outbox that were put into queues, by all relays.",
            &numbers.carried,
        );
        family(
            "refused_total",
            "counter",
            "Documents that the target has refused since this relay was started.",
            &numbers.refused,
        );
        family(
            "results_total",
            "counter",
            "Results that were brought back since this relay was started.",
            &numbers.results,
        );
        family(
            "losses_total",
            "counter",
            "Connections that were lost since this relay was started.",
            &numbers.losses,
        );
        family(
            "waiting",
            "gauge",
            "Documents that wait in the outbox, counted up to 100000.",
            &numbers.waiting,
        );
        family(
            "lag_seconds",
            "gauge",
            "How long the first document that waits has waited.",
            &numbers.lag,
        );
        family(
            "blocked_queues",
            "gauge",
            "Queues that take nothing: they are not there, or a right lacks.",
            &numbers.blocked.len(),
        );
        text
    }
}

/// Serves the numbers.
///
/// # Errors
/// The address cannot be listened on.
pub async fn serve(address: SocketAddr, status: Arc<Status>) -> std::io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    let metrics = |State(status): State<Arc<Status>>| async move {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], status.metrics())
    };
    // A relay that stands by is well.
    let health = |State(status): State<Arc<Status>>| async move {
        match status.numbers().phase {
            Phase::Connecting => (StatusCode::SERVICE_UNAVAILABLE, "connecting\n"),
            Phase::StandingBy => (StatusCode::OK, "standing by\n"),
            Phase::Carrying => (StatusCode::OK, "carrying\n"),
        }
    };
    let app = Router::new()
        .route("/metrics", get(metrics))
        .route("/health", get(health))
        .with_state(status);
    tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, app).await {
            warn!("metrics are no longer served: {error}");
        }
    });
    Ok(())
}
