"""Traces and metrics for OpenTelemetry: ``App(plugins=[OpenTelemetry()])``. Needs the extra ``otel``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence
from typing import Any

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.propagators.composite import CompositePropagator
from opentelemetry.trace import Link, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from .context import BaseContext, Context
from .outcomes import Kill, Outcome, Retry, describe
from .plugins import Plugin
from .tasks import Doc, TaskBase

# The attributes of messaging are still in development, so their names stand here and nowhere else.
SYSTEM = "messaging.system"
DESTINATION = "messaging.destination.name"
OPERATION = "messaging.operation.type"
OPERATION_NAME = "messaging.operation.name"
MESSAGE_ID = "messaging.message.id"
COUNT = "messaging.batch.message_count"

_W3C = CompositePropagator([TraceContextTextMapPropagator(), W3CBaggagePropagator()])


def read_trace(headers: dict[str, Any]) -> contexts.Context:
    """The trace context that a document carries. What is no text, or is not valid, is as if it was not there."""
    return _W3C.extract({k: v for k, v in headers.items() if isinstance(v, str)}, context=contexts.Context())


class OpenTelemetry(Plugin):
    """A producer span around each put, which documents carry in their headers (``traceparent``, ``tracestate``,
    ``baggage``), and a consumer span around each handler: the root of a trace of its own, with a link to the
    producer. With ``child``, or where a function of the task says so, the first attempt is a child of it."""

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
        *,
        child: bool | Callable[[TaskBase[Any]], bool] = False,
    ) -> None:
        self._tracer = trace.get_tracer("fetchq", tracer_provider=tracer_provider)
        self._child = child
        meter = metrics.get_meter("fetchq", meter_provider=meter_provider)
        count, measure = meter.create_counter, meter.create_histogram
        self._counters = {
            "settled": count("fetchq.client.settled", description="Documents that were settled, by outcome"),
            "lost": count("fetchq.client.lost", description="Leases that were lost"),
            "stuck": count("fetchq.client.stuck", description="Handlers that did not stop"),
            "aborted": count("fetchq.client.aborted", description="Handlers that were stopped, by reason"),
        }
        self._histograms = {
            "handled": measure("fetchq.client.handler.duration", "s", description="Time of handlers"),
            "call": measure("fetchq.client.call.duration", "s", description="Time of calls to the server"),
        }
        self._slots = meter.create_gauge("fetchq.client.slots", description="Handlers that run")

    @contextlib.contextmanager
    def put(self, docs: Sequence[Doc]) -> Generator[None, None, None]:
        queues = sorted({doc.queue for doc in docs})
        attributes: dict[str, Any] = {SYSTEM: "fetchq", OPERATION: "send", OPERATION_NAME: "send", COUNT: len(docs)}
        name = "send"
        if len(queues) == 1:
            attributes[DESTINATION] = queues[0]
            name = f"send {queues[0]}"
        with self._tracer.start_as_current_span(name, kind=SpanKind.PRODUCER, attributes=attributes):
            for doc in docs:
                _W3C.inject(doc.headers)
            yield

    @contextlib.contextmanager
    def handle(self, ctx: Context) -> Generator[None, None, None]:
        around = read_trace(ctx.headers)
        producer = trace.get_current_span(around).get_span_context()
        links = [Link(producer)] if producer.is_valid else []
        child = self._child(ctx.task) if callable(self._child) else self._child
        if child and ctx.attempt == 1:
            links = []
        else:
            around = trace.set_span_in_context(trace.INVALID_SPAN, around)
        attributes: dict[str, Any] = {SYSTEM: "fetchq", DESTINATION: ctx.queue, MESSAGE_ID: ctx.subject}
        attributes |= {OPERATION: "process", OPERATION_NAME: "process", "fetchq.attempt": ctx.attempt}
        token = contexts.attach(around)
        try:
            with self._tracer.start_as_current_span(
                f"process {ctx.queue}",
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=links,
                set_status_on_exception=False,
                record_exception=False,
            ) as span:
                try:
                    yield
                except BaseException as error:
                    if not isinstance(error, Outcome):
                        span.record_exception(error)
                        span.set_status(Status(StatusCode.ERROR, describe(error)))
                    raise
                self._note(span, ctx)
        finally:
            contexts.detach(token)

    def _note(self, span: trace.Span, ctx: BaseContext) -> None:
        outcome = ctx.outcome
        if isinstance(outcome, Outcome):
            span.set_attribute("fetchq.outcome", outcome.action)
            if isinstance(outcome, (Retry, Kill)):
                span.set_status(Status(StatusCode.ERROR, outcome.message))

    def observe(self, event: str, value: float, attributes: dict[str, Any]) -> None:
        if (counter := self._counters.get(event)) is not None:
            counter.add(value, attributes)
        elif (histogram := self._histograms.get(event)) is not None:
            histogram.record(value, attributes)
        elif event == "slots":
            self._slots.set(value)
