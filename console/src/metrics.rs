//! `/metrics`: the numbers of all databases for Prometheus, from `fetchq.metric_export()`.
//!
//! The text is made at most once a second, and requests that arrive while it is made wait for it. So
//! many scrapes cost each database one query a second, and a database never has two of them at a time,
//! also when it takes longer than those who ask wait.
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use fetchq_connect::DbError;
use futures_util::future::join_all;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;
use tokio_postgres::types::Json;
use tracing::warn;

use crate::db::{Database, row};
use crate::state::App;

/// For how long the text is given to everybody who asks.
const FRESH: Duration = Duration::from_secs(1);

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; version=0.0.4; charset=utf-8";

const FAMILIES: &str = "select family, type as kind, help from fetchq.metric_families()";
const SAMPLES: &str = "select family, name, labels, value from fetchq.metric_export()";

/// Names and values of labels.
type Labels = BTreeMap<String, String>;

row! {
    pub struct FamilyRow {
        pub family: String,
        pub kind: String,
        pub help: String,
    }
}

row! {
    pub struct SampleRow {
        pub family: String,
        pub name: String,
        pub labels: Json<Labels>,
        pub value: f64,
    }
}

/// The route, with the texts that were made last.
pub fn routes() -> Router<App> {
    let cache: Arc<Cache> = Arc::default();
    Router::new().route(
        "/metrics",
        get(move |State(app): State<App>, headers: HeaderMap| answer(app, headers, cache.clone())),
    )
}

/// Both formats, and when they were made.
#[derive(Debug)]
struct Texts {
    made: Instant,
    open_metrics: String,
    plain: String,
}

#[derive(Default)]
struct Cache {
    texts: Mutex<Option<Arc<Texts>>>,
}

impl Cache {
    /// The texts, which are not older than a second. Only one caller makes them at a time.
    async fn texts<F>(self: Arc<Self>, read: F) -> Result<Arc<Texts>, MetricsError>
    where
        F: Future<Output = Snapshot> + Send + 'static,
    {
        // It is a task of its own, which goes on when the request is given up. Otherwise the server
        // would still be busy with the query of that request when the next one sends another.
        let made = tokio::spawn(async move {
            let mut texts = self.texts.lock().await;
            if let Some(known) = texts.as_ref().filter(|known| known.made.elapsed() < FRESH) {
                return Ok(known.clone());
            }
            let made = Arc::new(encode(read.await)?);
            *texts = Some(made.clone());
            Ok(made)
        });
        made.await?
    }
}

/// Why there is no text.
#[derive(Debug, thiserror::Error)]
enum MetricsError {
    #[error("a sample cannot be written: {0}")]
    Encode(#[from] fmt::Error),
    #[error("the task ended: {0}")]
    Task(#[from] tokio::task::JoinError),
}

async fn answer(app: App, headers: HeaderMap, cache: Arc<Cache>) -> Response {
    let texts = match cache.texts(read_all(app)).await {
        Ok(texts) => texts,
        Err(error) => {
            warn!("there are no metrics: {error}");
            return axum::http::StatusCode::INTERNAL_SERVER_ERROR.into_response();
        }
    };
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok());
    if accept.is_some_and(|accept| accept.contains("application/openmetrics-text")) {
        ([(CONTENT_TYPE, OPEN_METRICS)], texts.open_metrics.clone()).into_response()
    } else {
        ([(CONTENT_TYPE, PLAIN)], texts.plain.clone()).into_response()
    }
}

/// A sample that is no histogram, or a histogram.
#[derive(Debug)]
enum Sample {
    Number(f64),
    /// The sum, the number, and the bounds with the numbers between each two of them.
    Histogram(f64, u64, Vec<(f64, u64)>),
}

/// A metric family of all databases.
#[derive(Debug)]
struct Family {
    name: String,
    kind: String,
    help: String,
    samples: Vec<(Vec<(String, String)>, Sample)>,
}

/// What `/metrics` shows, in the order of the families.
#[derive(Debug, Default)]
struct Snapshot {
    families: Vec<Family>,
}

async fn read(database: &Database) -> Result<(Vec<FamilyRow>, Vec<SampleRow>), DbError> {
    let families = database.rows(FAMILIES, &[]).await?;
    let samples = database.rows(SAMPLES, &[]).await?;
    Ok((families, samples))
}

/// Reads the metrics of all databases. One that cannot be read has only `fetchq_up`.
async fn read_all(app: App) -> Snapshot {
    let databases = app.databases.all();
    let read = join_all(databases.iter().map(read)).await;
    let mut snapshot = Snapshot::default();
    for (database, read) in databases.iter().zip(read) {
        let is_up = read.is_ok();
        match read {
            Ok((families, samples)) => {
                for row in families {
                    snapshot.family(&row.family, &row.kind, &row.help);
                }
                snapshot.add(&database.name, samples);
            }
            Err(error) => warn!(
                "the metrics of {} cannot be read: {error}{}",
                database.name,
                error
                    .hint
                    .as_ref()
                    .map_or_else(String::new, |hint| format!(" ({hint})")),
            ),
        }
        let up = snapshot.family(
            "fetchq_up",
            "gauge",
            "1 if the metrics of a database could be read, else 0",
        );
        let labels = vec![("database".to_owned(), database.name.clone())];
        up.samples
            .push((labels, Sample::Number(f64::from(u8::from(is_up)))));
    }
    snapshot
}

impl Snapshot {
    /// The family of a name. It is added when it is not there.
    fn family(&mut self, name: &str, kind: &str, help: &str) -> &mut Family {
        let at = self.families.iter().position(|family| family.name == name);
        let at = at.unwrap_or_else(|| {
            self.families.push(Family {
                name: name.to_owned(),
                kind: kind.to_owned(),
                help: help.to_owned(),
                samples: Vec::new(),
            });
            self.families.len() - 1
        });
        &mut self.families[at]
    }

    /// Adds the samples of a database. Those of a family, and of a histogram, follow each other; the
    /// last one of a histogram is the number of its documents.
    fn add(&mut self, database: &str, samples: Vec<SampleRow>) {
        let mut buckets: Vec<(f64, u64)> = Vec::new();
        let mut sum = 0.0;
        let mut below = 0;
        for row in samples {
            let family = self.family(&row.family, "unknown", "");
            let Json(mut labels) = row.labels;
            labels.insert("database".to_owned(), database.to_owned());
            let sample = match row.name.strip_prefix(row.family.as_str()) {
                Some("_bucket") => {
                    // "+Inf" is read as such.
                    let bound = labels.get("le").and_then(|le| le.parse().ok());
                    let n = row.value as u64;
                    buckets.push((bound.unwrap_or(f64::INFINITY), n.saturating_sub(below)));
                    below = n;
                    continue;
                }
                Some("_sum") => {
                    sum = row.value;
                    continue;
                }
                Some("_count") => {
                    below = 0;
                    Sample::Histogram(sum, row.value as u64, std::mem::take(&mut buckets))
                }
                _ => Sample::Number(row.value),
            };
            family.samples.push((labels.into_iter().collect(), sample));
        }
    }
}

impl Collector for Snapshot {
    fn encode(&self, mut encoder: DescriptorEncoder) -> Result<(), fmt::Error> {
        for family in &self.families {
            let kind = match family.kind.as_str() {
                "counter" => MetricType::Counter,
                "gauge" => MetricType::Gauge,
                "histogram" => MetricType::Histogram,
                _ => MetricType::Unknown,
            };
            // The encoder appends it.
            let name = match kind {
                MetricType::Counter => family.name.strip_suffix("_total"),
                _ => None,
            };
            let name = name.unwrap_or(&family.name);
            let mut encoder = encoder.encode_descriptor(name, &family.help, None, kind)?;
            for (labels, sample) in &family.samples {
                write(encoder.encode_family(labels)?, kind, sample)?;
            }
        }
        Ok(())
    }
}

fn write(mut encoder: MetricEncoder, kind: MetricType, sample: &Sample) -> Result<(), fmt::Error> {
    const NONE: Option<&Exemplar<Vec<(String, String)>, f64>> = None;
    match sample {
        Sample::Number(value) if matches!(kind, MetricType::Counter) => {
            encoder.encode_counter(value, NONE)
        }
        Sample::Number(value) => encoder.encode_gauge(value),
        Sample::Histogram(sum, n, buckets) => {
            encoder.encode_histogram::<Vec<(String, String)>>(*sum, *n, buckets, None)
        }
    }
}

fn encode(snapshot: Snapshot) -> Result<Texts, fmt::Error> {
    let counters: Vec<String> = snapshot
        .families
        .iter()
        .filter(|family| family.kind == "counter")
        .filter_map(|family| family.name.strip_suffix("_total").map(str::to_owned))
        .collect();
    let mut registry = Registry::default();
    registry.register_collector(Box::new(snapshot));
    let mut open_metrics = String::new();
    text::encode(&mut open_metrics, &registry)?;
    Ok(Texts {
        made: Instant::now(),
        plain: plain(&open_metrics, &counters),
        open_metrics,
    })
}

/// The text of OpenMetrics in the older format of Prometheus: the family of a counter has the name of
/// its samples, and there is no last line.
fn plain(open_metrics: &str, counters: &[String]) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        let words = [words.next(), words.next(), words.next(), words.next()];
        match words {
            [Some("#"), Some(what), Some(name), Some(rest)]
                if counters.iter().any(|counter| counter == name) =>
            {
                text += &format!("# {what} {name}_total {rest}");
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(family: &str, name: &str, labels: &[(&str, &str)], value: f64) -> SampleRow {
        let labels = labels.iter().copied();
        SampleRow {
            family: family.to_owned(),
            name: name.to_owned(),
            labels: Json(
                labels
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
            ),
            value,
        }
    }

    fn texts() -> Texts {
        let mut snapshot = Snapshot::default();
        snapshot.family("fetchq_pushed_total", "counter", "Documents that entered");
        snapshot.family("fetchq_wait_seconds", "histogram", "How long");
        let queue = [("queue", "a")];
        let bucket = |le: &'static str| [("queue", "a"), ("le", le)];
        snapshot.add(
            "app",
            vec![
                sample(
                    "fetchq_pushed_total",
                    "fetchq_pushed_total",
                    &[("queue", "a\"b\\\nc")],
                    5.0,
                ),
                sample(
                    "fetchq_wait_seconds",
                    "fetchq_wait_seconds_bucket",
                    &bucket("0.001024"),
                    2.0,
                ),
                sample(
                    "fetchq_wait_seconds",
                    "fetchq_wait_seconds_bucket",
                    &bucket("+Inf"),
                    7.0,
                ),
                sample(
                    "fetchq_wait_seconds",
                    "fetchq_wait_seconds_sum",
                    &queue,
                    1.5,
                ),
                sample(
                    "fetchq_wait_seconds",
                    "fetchq_wait_seconds_count",
                    &queue,
                    7.0,
                ),
            ],
        );
        encode(snapshot).unwrap()
    }

    #[test]
    fn samples_become_open_metrics() {
        let text = texts().open_metrics;
        for line in [
            "# TYPE fetchq_pushed counter",
            "fetchq_pushed_total{database=\"app\",queue=\"a\\\"b\\\\\\nc\"} 5.0",
            "fetchq_wait_seconds_bucket{le=\"0.001024\",database=\"app\",queue=\"a\"} 2",
            "fetchq_wait_seconds_bucket{le=\"+Inf\",database=\"app\",queue=\"a\"} 7",
            "fetchq_wait_seconds_sum{database=\"app\",queue=\"a\"} 1.5",
            "fetchq_wait_seconds_count{database=\"app\",queue=\"a\"} 7",
            "# EOF",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
    }

    #[tokio::test]
    async fn a_scrape_that_is_given_up_is_made_once_for_all_who_ask_meanwhile() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let cache: Arc<Cache> = Arc::default();
        let (began, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (go, _) = tokio::sync::watch::channel(false);
        let ask = || {
            let (began, ended, mut may_end) = (began.clone(), ended.clone(), go.subscribe());
            let read = async move {
                began.fetch_add(1, Ordering::SeqCst);
                may_end.wait_for(|go| *go).await.unwrap();
                ended.fetch_add(1, Ordering::SeqCst);
                Snapshot::default()
            };
            tokio::spawn(cache.clone().texts(read))
        };
        let first = ask();
        while began.load(Ordering::SeqCst) == 0 {
            tokio::task::yield_now().await;
        }
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        let others: Vec<_> = (0..10).map(|_| ask()).collect();
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        go.send_replace(true);
        for other in others {
            other.await.unwrap().unwrap();
        }
        let counts = [began, ended].map(|count| count.load(Ordering::SeqCst));
        assert_eq!(counts, [1, 1]);
    }

    #[test]
    fn the_family_of_a_counter_has_the_name_of_its_samples_in_the_older_format() {
        let text = texts().plain;
        for line in [
            "# HELP fetchq_pushed_total Documents that entered",
            "# TYPE fetchq_pushed_total counter",
            "# TYPE fetchq_wait_seconds histogram",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(!text.contains("# EOF"));
    }
}
