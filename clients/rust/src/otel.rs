//! Spans and metrics for OpenTelemetry: `client.with(OpenTelemetry::new())`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use futures_util::FutureExt as _;
use opentelemetry::global::{self, BoxedTracer};
use opentelemetry::metrics::Histogram;
use opentelemetry::propagation::TextMapPropagator;
use opentelemetry::trace::{FutureExt, Link, SpanKind, Status, TraceContextExt, Tracer};
use opentelemetry::{Context as Trace, KeyValue};
use opentelemetry_sdk::propagation::{BaggagePropagator, TraceContextPropagator};
use serde_json::{Map, Value};

use crate::context::Context;
use crate::error::told;
use crate::task::{Doc, Handling, NextPut, Plugin, Putting};
use crate::worker::Running;

// The attributes of messaging are still in development, so their names stand here and nowhere else.
const SYSTEM: &str = "messaging.system";
const DESTINATION: &str = "messaging.destination.name";
const OPERATION: &str = "messaging.operation.type";
const OPERATION_NAME: &str = "messaging.operation.name";
const MESSAGE_ID: &str = "messaging.message.id";
const COUNT: &str = "messaging.batch.message_count";

/// A producer span around each put, which documents carry in their headers (`traceparent`, `tracestate`, `baggage`), and
/// a consumer span around each handler: the root of a trace of its own, with a link to the producer.
pub struct OpenTelemetry<T = BoxedTracer> {
    tracer: T,
    child: Arc<dyn Fn(&Context) -> bool + Send + Sync>,
    duration: Histogram<f64>,
}

impl<T> fmt::Debug for OpenTelemetry<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenTelemetry").finish_non_exhaustive()
    }
}

impl Default for OpenTelemetry {
    fn default() -> Self {
        Self::new()
    }
}

impl OpenTelemetry {
    /// With the global providers.
    pub fn new() -> Self {
        Self::with_tracer(global::tracer("fetchq"))
    }
}

impl<T> OpenTelemetry<T> {
    /// With a tracer of your own.
    pub fn with_tracer(tracer: T) -> Self {
        let meter = global::meter("fetchq");
        let duration = meter.f64_histogram("fetchq.client.handler.duration");
        Self {
            tracer,
            child: Arc::new(|_| false),
            duration: duration
                .with_unit("s")
                .with_description("Time of handlers")
                .build(),
        }
    }

    /// The span of a first attempt is a child of that of the producer, in place of a link, where this says so.
    pub fn child_if(mut self, child: impl Fn(&Context) -> bool + Send + Sync + 'static) -> Self {
        self.child = Arc::new(child);
        self
    }
}

/// The trace context that a document carries. What is no text, or is not valid, is as if it was not there.
pub fn read_trace(headers: &Map<String, Value>) -> Trace {
    let texts = carrier(headers);
    let trace = BaggagePropagator::new().extract_with_context(&Trace::new(), &texts);
    TraceContextPropagator::new().extract_with_context(&trace, &texts)
}

fn carrier(headers: &Map<String, Value>) -> HashMap<String, String> {
    let texts = headers
        .iter()
        .filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    texts.collect()
}

fn write_trace(trace: &Trace) -> Map<String, Value> {
    let mut texts = HashMap::new();
    TraceContextPropagator::new().inject_context(trace, &mut texts);
    BaggagePropagator::new().inject_context(trace, &mut texts);
    texts
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| (key, value.into()))
        .collect()
}

impl<T> Plugin for OpenTelemetry<T>
where
    T: Tracer + Send + Sync + 'static,
    T::Span: Send + Sync + 'static,
{
    fn put<'a>(&'a self, docs: Vec<Doc>, next: NextPut<'a>) -> Putting<'a> {
        let mut attributes = vec![
            KeyValue::new(SYSTEM, "fetchq"),
            KeyValue::new(OPERATION, "send"),
            KeyValue::new(OPERATION_NAME, "send"),
            KeyValue::new(COUNT, docs.len() as i64),
        ];
        let mut name = "send".to_owned();
        let queue = docs.first().map(|doc| doc.queue().to_owned());
        if let Some(queue) = queue.filter(|queue| docs.iter().all(|doc| doc.queue() == queue)) {
            name = format!("send {queue}");
            attributes.push(KeyValue::new(DESTINATION, queue));
        }
        let span = self.tracer.span_builder(name);
        let span = span
            .with_kind(SpanKind::Producer)
            .with_attributes(attributes);
        let trace = Trace::current_with_span(span.start(&self.tracer));
        let headers = write_trace(&trace);
        let docs = docs
            .into_iter()
            .map(|doc| doc.with_headers(headers.clone()));
        let docs = docs.collect();
        let around = trace.clone();
        async move {
            let done = next(docs).await;
            if let Err(error) = &done {
                trace.span().set_status(Status::error(told(error)));
            }
            trace.span().end();
            done
        }
        .with_context(around)
        .boxed()
    }

    fn handle<'a>(&'a self, context: &'a Context, next: Handling<'a>) -> Handling<'a> {
        let given = read_trace(context.headers());
        let producer = given.span().span_context().clone();
        let queue = context.queue().to_owned();
        let mut span = self
            .tracer
            .span_builder(format!("process {queue}"))
            .with_kind(SpanKind::Consumer)
            .with_attributes([
                KeyValue::new(SYSTEM, "fetchq"),
                KeyValue::new(DESTINATION, queue.clone()),
                KeyValue::new(MESSAGE_ID, context.subject().to_owned()),
                KeyValue::new(OPERATION, "process"),
                KeyValue::new(OPERATION_NAME, "process"),
                KeyValue::new("fetchq.attempt", context.attempt()),
            ]);
        let mut parent = given;
        if context.attempt() != 1 || !(self.child)(context) {
            if producer.is_valid() {
                span = span.with_links(vec![Link::with_context(producer)]);
            }
            let texts = carrier(context.headers());
            parent = BaggagePropagator::new().extract_with_context(&Trace::new(), &texts);
        }
        let trace = parent.with_span(span.start_with_context(&self.tracer, &parent));
        let around = trace.clone();
        async move {
            let began = Instant::now();
            let result = next.await;
            let span = trace.span();
            match &result {
                Ok(outcome) => {
                    span.set_attribute(KeyValue::new("fetchq.outcome", outcome.action()));
                    if outcome.fails() {
                        span.set_status(Status::error(outcome.message().to_owned()));
                    }
                }
                Err(error) => {
                    span.record_error(&**error);
                    span.set_status(Status::error(told(&**error)));
                }
            }
            span.end();
            let queue = [KeyValue::new(DESTINATION, queue)];
            self.duration.record(began.elapsed().as_secs_f64(), &queue);
            result
        }
        .with_context(around)
        .boxed()
    }
}

/// Gives the sums of a worker to the global provider of metrics. What the server knows, such as the depth of queues, it
/// exports itself.
pub fn observe(running: &Running) {
    let meter = global::meter("fetchq");
    let worker = KeyValue::new("fetchq.worker", running.name().to_owned());
    let (of, name) = (running.clone(), worker.clone());
    let settled = meter
        .u64_observable_counter("fetchq.client.settled")
        .with_description("Documents that were settled, by outcome");
    settled
        .with_callback(move |to| {
            for (outcome, count) in of.metrics().settled {
                to.observe(
                    count,
                    &[name.clone(), KeyValue::new("fetchq.outcome", outcome)],
                );
            }
        })
        .build();
    type Read = fn(&crate::Metrics) -> u64;
    let sums: [(&'static str, &'static str, Read); 3] = [
        ("fetchq.client.lost", "Leases that were lost", |m| m.lost),
        ("fetchq.client.stuck", "Handlers that did not stop", |m| {
            m.stuck
        }),
        (
            "fetchq.client.calls",
            "Calls that settle, lease and extend",
            |m| m.calls,
        ),
    ];
    for (instrument, description, read) in sums {
        let (of, name) = (running.clone(), worker.clone());
        let counter = meter
            .u64_observable_counter(instrument)
            .with_description(description);
        counter
            .with_callback(move |to| to.observe(read(&of.metrics()), std::slice::from_ref(&name)))
            .build();
    }
    let of = running.clone();
    let slots = meter
        .u64_observable_gauge("fetchq.client.slots")
        .with_description("Handlers that run");
    slots
        .with_callback(move |to| {
            to.observe(
                of.metrics().slots_used as u64,
                std::slice::from_ref(&worker),
            )
        })
        .build();
}
