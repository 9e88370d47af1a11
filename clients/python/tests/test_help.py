"""What helps applications to test, and OpenTelemetry."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from conftest import Db
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fetchq import Aborted, App, AsyncApp, Complete, Context, Kill, Retry, Snooze, Worker
from fetchq.otel import OpenTelemetry
from fetchq.testing import arun_task, drain, fake, run_task


@dataclass
class Mail:
    to: str


app = App()


@app.task("mail", retry={LookupError: Kill})
def send_mail(mail: Mail, ctx: Context) -> Any:
    if mail.to == "nobody":
        raise KeyError(mail.to)
    if ctx.attempt > 1:
        return Snooze(5)
    ctx.then(send_mail.doc(Mail("next")))
    return ctx.step("render", lambda: f"to {mail.to}")


def test_the_fake_records_puts(fetchq_fake: Any) -> None:
    assert send_mail.put(Mail("ann"), subject="a") == ("a", "created")
    assert send_mail.put(Mail("bob"), subject="a").action == "ignored"
    send_mail.put_many([Mail("c")])
    assert fetchq_fake.puts(send_mail) == [Mail("ann"), Mail("bob"), Mail("c")]
    assert fetchq_fake.of(send_mail)[0].options["subject"] == "a"
    with pytest.raises(TypeError):
        send_mail.put(Mail(object()))  # type: ignore[arg-type]
    with fake() as inner:
        send_mail.put(Mail("d"))
    assert len(inner.docs) == 1 and len(fetchq_fake.docs) == 3
    fetchq_fake.clear()
    assert not fetchq_fake.docs


def test_a_handler_is_called_once() -> None:
    assert run_task(send_mail, Mail("ann")) == Complete("to ann", then=[send_mail.doc(Mail("next"))])
    assert run_task(send_mail, Mail("ann"), attempts=2) == Snooze(5)
    killed = run_task(send_mail, Mail("nobody"))
    assert isinstance(killed, Kill) and killed.message == "'nobody'"
    broken = run_task(send_mail, {"to": 1})  # type: ignore[arg-type]
    assert isinstance(broken, Retry) and "payload.to" in str(broken.message)
    assert run_task(send_mail, Mail("x"), reason="shutdown") == Snooze()


def test_an_asynchronous_handler_is_called_once() -> None:
    other = AsyncApp()

    @other.task("mail")
    async def send(mail: Mail, ctx: Any) -> Any:
        ctx.check()
        return await ctx.step("x", lambda: mail.to)

    assert asyncio.run(arun_task(send, Mail("ann"))) == Complete("ann")
    assert asyncio.run(arun_task(send, Mail("ann"), reason="shutdown")) == Snooze()
    assert asyncio.run(arun_task(send, Mail("ann"), progress={"fetchq-steps": {"x": 1}})) == Complete(1)
    with pytest.raises(Aborted):
        raise Aborted("lost")


def test_drain_empties_queues(db: Db, url: str) -> None:
    mine = App(url)

    @mine.task(db.queue())
    def work(payload: dict) -> None:
        if payload.get("more"):
            work.put({"more": payload["more"] - 1})

    work.put({"more": 3})
    work.put({}, delay="1 hour")
    assert drain(mine) == {"complete": 4}
    assert drain(mine, planned=True) == {"complete": 1}
    mine.close()


def test_the_plugin_of_pytest(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from fetchq import App
        app = App()
        @app.task("mail")
        def mail(payload: dict): ...
        def test_it(fetchq_fake):
            mail.put({"n": 1})
            assert fetchq_fake.puts(mail) == [{"n": 1}]
        def test_without_a_server(fetchq_db): ...
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", "-q")
    result.assert_outcomes(passed=1, skipped=1)


def test_traces_and_metrics(db: Db, url: str) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    reader = InMemoryMetricReader()
    traced = App(url, plugins=[OpenTelemetry(provider, MeterProvider([reader]))])
    inner: list[Any] = []

    @traced.task(db.queue())
    def work(payload: dict, ctx: Context) -> Any:
        with provider.get_tracer("app").start_as_current_span("inside"):
            inner.append(ctx.headers["traceparent"])
        if payload["fail"]:
            raise ValueError("no")

    with provider.get_tracer("app").start_as_current_span("request") as request:
        work.put({"fail": False}, subject="a")
    work.put({"fail": True}, subject="b")
    drain(traced)
    named = {
        (s.name, s.attributes.get("messaging.message.id")): s
        for s in spans.get_finished_spans()
        if s.attributes is not None
    }
    sent = next(s for s in spans.get_finished_spans() if s.name == f"send {work.queue}")
    good, bad = named[f"process {work.queue}", "a"], named[f"process {work.queue}", "b"]
    assert sent.context.trace_id == request.get_span_context().trace_id
    assert good.parent is None and good.links[0].context.span_id == sent.context.span_id
    assert good.context.trace_id != sent.context.trace_id
    assert good.attributes["fetchq.outcome"] == "complete" and bad.status.status_code.name == "ERROR"
    inside = next(s for s in spans.get_finished_spans() if s.name == "inside")
    assert inside.parent is not None and len(inner) == 2
    data = reader.get_metrics_data()
    assert data is not None
    names = {m.name for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}
    assert {"fetchq.client.settled", "fetchq.client.handler.duration", "fetchq.client.call.duration"} <= names
    traced.close()


def test_a_worker_can_be_made_where_nothing_listens() -> None:
    lonely = App("postgres://nobody@127.0.0.1:1/none?connect_timeout=1")

    @lonely.task("a")
    def work(payload: dict) -> None: ...

    worker = Worker(lonely)
    assert not worker.health()["loops"]
    worker.stop()
