"""Adapters for the conformance suite: lines of JSON on stdin and stdout, and calls of the public API.

The protocol is that of tests/conformance/README.md. Whatever stands here translates; nothing of it repairs.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import logging
import os
import platform
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypedDict

import psycopg
from psycopg_pool import AsyncConnectionPool, ConnectionPool

import fetchq
from fetchq import (
    Aborted,
    App,
    AsyncApp,
    AsyncWorker,
    Complete,
    Drop,
    Kill,
    Plugin,
    Reschedule,
    Retry,
    Snooze,
    Unique,
    Worker,
)
from fetchq.errors import ConfigError, kind, sqlstate
from fetchq.outcomes import describe, interval
from fetchq.tasks import TASK_HEADER, Doc

SYNC = sys.argv[1] == "sync"
CAPABILITIES = [
    "transactional", "rerun", "signals", "shared", "upcast", "unique", "sync", "step", "progress", "then", "redact",
    "middleware", "trace", "metrics", "health", "max_bytes", "weight", "polling", "threads" if SYNC else "loop",
]  # fmt: skip
_out = threading.Lock()


def send(line: dict[str, Any]) -> None:
    with _out:
        sys.stdout.write(json.dumps(line, default=str) + "\n")
        sys.stdout.flush()


class AppError(Exception):
    kind = "Error"


def app_error(name: str | None) -> type[AppError]:
    return type(name or "AppError", (AppError,), {"kind": name})


KINDS: dict[str, type[AppError]] = {}


def kind_class(name: str | None) -> type[AppError]:
    if name is None:
        return AppError
    return KINDS.setdefault(name, app_error(name))


class Payload(TypedDict, total=False):
    n: int | None
    to: str | None
    upcast: list[int] | None
    script: list[Any]
    scripts: list[list[Any]]


UNITS = {"microsecond": 1e-6, "millisecond": 1e-3, "second": 1, "minute": 60, "hour": 3600, "day": 86400}


def seconds_of(text: str | float | None) -> float | None:
    if text is None or isinstance(text, (int, float)):
        return text
    match = re.fullmatch(r"(-?[\d.]+) (\w+?)s?", text)
    assert match, text
    return float(match[1]) * UNITS[match[2]]


def options_of(options: dict[str, Any] | None) -> dict[str, Any]:
    given = dict(options or {})
    if (unique := given.get("unique")) is not None:
        given["unique"] = Unique(unique.get("by") or (), unique.get("per"))
    return {k: v for k, v in given.items() if v is not None}


def utf16(units: list[int]) -> str:
    return b"".join(u.to_bytes(2, "little") for u in units).decode("utf-16-le", "surrogatepass")


def cancelled(answer: fetchq.Cancelled) -> dict[str, Any]:
    return {"cancelled": answer.was_cancelled, "status": answer.status}


def error_of(error: BaseException) -> dict[str, Any]:
    state = sqlstate(error)
    if isinstance(error, ConfigError):
        code = "config"
    elif isinstance(error, Unsupported):
        code = "unsupported"
    elif isinstance(error, (fetchq.FetchqError, ValueError, TypeError)):
        code = "invalid"
    elif isinstance(error, psycopg.Error):
        code = kind(error)
    else:
        code = "other"
    return {"code": code, "message": str(error), **({"sqlstate": state} if state else {})}


class Unsupported(Exception):
    pass


class Middleware(Plugin):
    def __init__(self, name: str) -> None:
        self.name = name

    @contextlib.contextmanager
    def _around(self, what: str, queue: str, subject: Any):
        fields = {"event": "middleware", "name": self.name, "around": what, "queue": queue, "subject": subject}
        send({**fields, "at": "before"})
        try:
            yield
        finally:
            send({**fields, "at": "after"})

    def put(self, docs):
        return self._around("put", docs[0].queue, docs[0].options.get("subject"))

    def handle(self, ctx):
        return self._around("handle", ctx.queue, ctx.subject)


def open_telemetry(child: Callable[[Any], bool] = lambda _: False) -> Any:
    """The plugin. Its import costs a second of a processor, so that only those scenarios pay which are about traces."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult

    from fetchq.otel import OpenTelemetry

    class Spans(SpanExporter):
        def export(self, spans):
            for span in spans:
                send(span_event(span))
            return SpanExportResult.SUCCESS

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Spans()))
    return OpenTelemetry(provider, child=child)


def span_event(span: Any) -> dict[str, Any]:
    context = span.get_span_context()
    return {
        "event": "span", "name": span.name, "kind": span.kind.name.lower(),
        "trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}",
        "parent_id": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [{"trace_id": f"{x.context.trace_id:032x}", "span_id": f"{x.context.span_id:016x}"} for x in span.links],
        "attributes": dict(span.attributes or {}), "status": span.status.status_code.name.lower(),
    }  # fmt: skip


class Log(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fields = {k: getattr(record, k) for k in ("queue", "subject", "attempt") if hasattr(record, k)}
        level = "error" if record.levelno >= logging.ERROR else "warn" if record.levelno >= logging.WARNING else "info"
        worker = HANDLES.get(getattr(record, "worker", None))
        if hasattr(record, "worker"):
            fields["worker"] = record.worker
        send({"event": "log", "worker": worker, "level": level, "message": record.getMessage(), "fields": fields})


HANDLES: dict[Any, str] = {}  # the handle of a worker by its name in the database


class Adapter:
    """What both adapters share."""

    def __init__(self) -> None:
        self.url = ""
        self.pool: Any = None
        self.client: Any = None
        self.workers: dict[str, Any] = {}
        self.plugins: list[Plugin] = []
        self.redact: Callable[[str], str] | None = None
        self.trace = False
        self.child: set[str] = set()
        self.puts: dict[tuple[str, str | None], Any] = {}

    def plugins_of(self, line: dict[str, Any]) -> None:
        self.trace = bool(line.get("trace"))
        self.plugins = [Middleware(name) for name in line.get("middleware") or ()]
        if self.trace:
            self.plugins.append(open_telemetry(lambda task: task.queue in self.child))
        if line.get("redact"):
            self.redact = lambda text: text.replace("secret", "***")

    def doc(self, fields: dict[str, Any], app: Any = None) -> Doc:
        """A document for any queue: its task is declared on the fly, as producers of another program do."""
        key = (fields["queue"], fields.get("task"))
        if key not in self.puts:

            async def work(payload: dict, ctx: Any) -> None: ...  # noqa: ARG001

            def work_sync(payload: dict, ctx: Any) -> None: ...  # noqa: ARG001

            declared = App() if SYNC else AsyncApp()
            function: Any = work_sync if SYNC else work
            self.puts[key] = declared.task(fields["queue"], name=fields.get("task"))(function)
        options = options_of(fields.get("options"))
        if fields.get("subject") is not None:
            options["subject"] = fields["subject"]
        return self.puts[key].doc(fields.get("payload"), **options)

    def declare(self, app: Any, given: dict[str, Any], handler: Callable[[str], Any]) -> None:
        retry = {kind_class(rule["kind"]): verdict_of(rule) for rule in given.get("retry") or ()}
        options: dict[str, Any] = {
            "name": given.get("task"),
            "version": given.get("version") or 0,
            "payload": Payload,
            "concurrency": given.get("concurrency"),
            "lease": given.get("lease"),
            "timeout": seconds_of(given.get("timeout")),
            "weight": given.get("weight") or 1,
            "transaction": bool(given.get("transactional")),
            "conflicts": 5 if given.get("rerun") else 0,
            "on_invalid": given.get("poison") or "reject",
            "retry": retry,
        }
        task = app.task(given["queue"], **options)(handler(given.get("task")))
        if given.get("trace_child"):
            self.child.add(given["queue"])
        if given.get("upcast"):
            for version in range(options["version"]):
                task.upcast(version)(
                    lambda payload, to=version + 1: {**payload, "upcast": [*(payload.get("upcast") or []), to]}
                )

    def worker_options(self, line: dict[str, Any]) -> dict[str, Any]:
        names = {"concurrency": "concurrency", "grace": "grace", "max_bytes": "max_bytes", "stuck_after": "stuck_after"}
        options = {to: line[name] for name, to in names.items() if line.get(name) is not None}
        if line.get("polling"):
            options |= {"polling": True, "poll": 0.2}
        return {**options, "name": line.get("name"), "redact": self.redact}

    def health(self, worker: Any) -> dict[str, Any]:
        return {k: v for k, v in worker.health().items() if k in ("ok", "database", "loops", "heartbeat_age")}

    def hello(self) -> dict[str, Any]:
        return {
            "protocol": 1, "name": f"python-{sys.argv[1]}", "pid": os.getpid(),
            "language": f"Python {platform.python_version()}", "client": f"fetchq {fetchq.__version__}",
            "driver": f"psycopg {psycopg.__version__}", "capabilities": CAPABILITIES,
        }  # fmt: skip

    def vector(self, line: dict[str, Any]) -> Any:
        what = line["kind"]
        if what == "message":
            text = (
                utf16(line["input_utf16"])
                if "input_utf16" in line
                else utf16([line["input_repeat"][0]]) * line["input_repeat"][1]
            )
            return describe(AppError(text))
        if what == "interval":
            return interval(timedelta(seconds=line["seconds"]))
        if what == "headers":
            given = {"queue": "q", "task": line.get("task"), "options": {"headers": line.get("headers")}}
            doc = self.doc(given)
            if not line.get("context"):
                return doc.as_json().get("headers") or {}
            from opentelemetry.sdk.trace import TracerProvider

            from fetchq.otel import OpenTelemetry

            with in_context(line["context"]), OpenTelemetry(TracerProvider()).put([doc]):
                return doc.as_json().get("headers") or {}
        if what == "consumer":
            from opentelemetry.baggage import get_all as baggage_of
            from opentelemetry.trace import get_current_span

            from fetchq.otel import read_trace

            headers = line["headers"]
            around = read_trace(headers)
            span = get_current_span(around).get_span_context()
            bag = ",".join(f"{k}={v}" for k, v in baggage_of(around).items())
            task = headers.get(TASK_HEADER)
            return {
                "task": task if isinstance(task, str) else None,
                "trace_id": f"{span.trace_id:032x}" if span.is_valid else None,
                "span_id": f"{span.span_id:016x}" if span.is_valid else None,
                "baggage": bag or None,
            }
        if what == "retry":
            return kind(server_error(line["sqlstate"], line.get("routine")))
        raise Unsupported(what)


def server_error(state: str, routine: str | None) -> BaseException:
    class Diag:
        source_function = routine

    class FromServer(psycopg.DatabaseError):
        diag = Diag()  # type: ignore[assignment]

    FromServer.sqlstate = state
    return FromServer("of the server")


@contextlib.contextmanager
def in_context(fields: dict[str, Any] | None):
    from opentelemetry import context as otel_contexts

    from fetchq.otel import read_trace

    token = otel_contexts.attach(read_trace(fields or {}))
    try:
        yield
    finally:
        otel_contexts.detach(token)


def verdict_of(rule: dict[str, Any]) -> Any:
    if rule["op"] in ("reject", "throw"):
        return Retry(rule.get("message"), delay=rule.get("delay"))
    return outcome_of(rule, lambda _: None)


def outcome_of(op: dict[str, Any], doc: Callable[[dict[str, Any]], Any]) -> Any:
    then = [doc(one) for one in op.get("then") or ()]
    what = op["op"]
    if what == "complete":
        return Complete(op.get("result"), payload=op.get("payload"), then=then)
    if what == "snooze":
        return Snooze(op.get("delay"), then=then)
    if what == "reschedule":
        return Reschedule(op["delay"], payload=op.get("payload"), then=then)
    if what == "reject":
        return Retry(op.get("message"), delay=op.get("delay"), details=op.get("details"), then=then)
    if what == "kill":
        return Kill(op.get("message"), details=op.get("details"), then=then)
    if what == "drop":
        return Drop(then=then)
    if what == "invalid":
        return Reschedule("-1 hour")
    if what == "throw":
        raise kind_class(op.get("kind"))(utf16(op["message_utf16"]) if "message_utf16" in op else op["message"])
    raise Unsupported(what)


def attempt_of(ctx: Any, worker: str) -> dict[str, Any]:
    return {
        "worker": worker,
        "queue": ctx.queue,
        "subject": ctx.subject,
        "attempt": ctx.attempt,
        "lease": str(ctx.lease),
    }


def began(ctx: Any, where: dict[str, Any], task: str | None, payload: Any) -> None:
    more = {"task": task, "version": ctx.version, "payload": payload, "headers": ctx.headers, "progress": ctx.stored}
    send({"event": "began", **where, **more})


def script_of(payload: Any, attempt: int) -> list[Any]:
    if scripts := payload.get("scripts"):
        return scripts[min(attempt, len(scripts)) - 1]
    return payload.get("script") or []


class FailedWhileStopping(AppError):
    pass


STOPPED = FailedWhileStopping("failed while stopping")


def block(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def read(take: Callable[[dict[str, Any]], None], end: Callable[[], Any]) -> None:
    """Reads commands until the end of the input, which ends the program, as does a line that is no command."""
    try:
        for text in sys.stdin:
            if text.strip():
                take(json.loads(text))
    finally:
        end()


# ------------------------------------------------------------------------------------------------- threads


class Sync(Adapter):
    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, threading.Event] = {}
        self.lock = threading.Lock()

    def gate(self, name: str) -> threading.Event:
        with self.lock:
            return self.gates.setdefault(name, threading.Event())

    def run(self) -> None:
        self.signals: Any = None
        self.over = threading.Event()
        # Signals reach the main thread only, which waits for nothing else.
        threading.Thread(target=read, args=(self.take, self.over.set), daemon=True).start()
        while not self.over.wait(0.1):
            if (todo := self.signals) is not None:
                self.signals = None
                todo()
        for worker in self.workers.values():
            worker.stop(grace=0)
        for worker in self.workers.values():
            worker.join(10)
        os._exit(0)

    def take(self, line: dict[str, Any]) -> None:
        threading.Thread(target=self.answer, args=(line,), daemon=True).start()

    def answer(self, line: dict[str, Any]) -> None:
        try:
            send({"reply": line["id"], "ok": self.do(line)})
        except BaseException as error:
            send({"reply": line["id"], "error": error_of(error)})

    def do(self, line: dict[str, Any]) -> Any:
        what = line["do"]
        if what == "hello":
            return self.hello()
        if what == "exit":
            self.over.set()
            threading.Event().wait()
        if what == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "vector":
            return {"output": self.vector(line)}
        if what == "open":
            self.gate(line["gate"]).set()
            return {}
        if what == "connect":
            self.url = line["url"]
            kwargs: dict[str, Any] = {"prepare_threshold": None} if line.get("pooled") else {}
            self.plugins_of(line)
            self.pool = ConnectionPool(self.url, min_size=0, max_size=line["pool"], kwargs=kwargs, open=True)
            self.client = App(self.pool, plugins=self.plugins)
            return {}
        if what == "put":
            return self.put(line)
        if what == "put_many":
            return {"puts": [p._asdict() for p in self.client.put_many([self.doc(one) for one in line["docs"]])]}
        if what == "cancel":
            return cancelled(self.client.cancel(line["queue"], line["subject"]))
        if what == "get":
            doc = self.client.get(line["queue"], line["subject"])
            names = ("subject", "status", "attempts", "payload", "result", "last_error")
            return {"doc": None if doc is None else {name: getattr(doc, name) for name in names}}
        if what == "wait":
            return self.client.wait(line["queue"], line["subject"], line.get("timeout") or 30)._asdict()
        if what == "sync":
            declare_sync(self.client, line, self.doc)
            self.client.sync()
            return {}
        if what == "start":
            return self.start(line)
        worker = self.workers.get(line.get("worker", ""))
        if what == "stop" and worker is not None:
            worker.stop(now=bool(line.get("now")))
            return {}
        if what == "health" and worker is not None:
            return self.health(worker)
        if what == "metrics" and worker is not None:
            return worker.metrics()
        raise Unsupported(what)

    def put(self, line: dict[str, Any]) -> Any:
        doc = self.doc(line)
        with in_context(line.get("context")) if self.trace else contextlib.nullcontext():
            if (tx := line.get("tx")) is None:
                return self.client.put_many([doc])[0]._asdict()
            with psycopg.connect(self.url) as conn:
                if tx.get("sql"):
                    conn.execute(tx["sql"])
                done = self.client.put_many([doc], conn=conn)[0]
                if tx["end"] == "rollback":
                    conn.rollback()
                return done._asdict()

    def start(self, line: dict[str, Any]) -> Any:
        handle = line["worker"]
        app = App(self.pool, plugins=self.plugins)
        for task in line["tasks"]:
            self.declare(app, task, lambda name: lambda payload, ctx: self.handle(handle, name, payload, ctx))
        worker = Worker(app, **self.worker_options(line))
        self.workers[handle] = worker
        HANDLES[worker.name] = handle
        started, problems = threading.Event(), list[BaseException]()
        begin = worker.start

        def start() -> Any:
            try:
                return begin()
            except BaseException as error:
                problems.append(error)
                raise
            finally:
                started.set()

        worker.start = start  # type: ignore[method-assign]

        def work() -> None:
            error = None
            try:
                worker.run(signals=bool(line.get("signals")))
            except BaseException as problem:
                error = error_of(problem)
            if not problems:
                send({"event": "stopped", "worker": handle, "error": error})

        if line.get("signals"):
            self.signals = work
        else:
            threading.Thread(target=work, daemon=True).start()
        started.wait()
        if problems:
            raise problems[0]
        return {}

    def handle(self, worker: str, task: str | None, payload: Any, ctx: Any) -> Any:
        where = attempt_of(ctx, worker)
        began(ctx, where, task, payload)
        how = "returned"
        try:
            for op in script_of(payload, ctx.attempt):
                given, ends = self.operate(op, ctx, where)
                if ends:
                    return given
            return None
        except Aborted:
            how = "aborted"
            raise
        except BaseException:
            how = "raised"
            raise
        finally:
            send({"event": "ended", **where, "how": how})

    def operate(self, op: dict[str, Any], ctx: Any, where: dict[str, Any]) -> tuple[Any, bool]:
        what = op["op"]
        if what in ("sleep", "gate"):
            return self.pause(op, ctx, where)
        if what == "block":
            block(op["seconds"])
        elif what == "step":
            ran: list[int] = []
            value = ctx.step(op["name"], lambda: ran.append(1) or op["value"])
            send({"event": "step", **where, "name": op["name"], "ran": bool(ran), "value": value})
        elif what == "progress":
            ctx.progress(op["value"])
        elif what == "log":
            ctx.log.info(op["message"])
        elif what == "sql":
            ctx.conn.execute(op["sql"])
        elif what == "put":
            self.client.put_many([self.doc(op)], conn=ctx.conn)
        elif what == "hold":
            conns = []
            for _ in range(op["connections"]):
                with contextlib.suppress(Exception):
                    conns.append(self.pool.getconn(timeout=5))
            send({"event": "held", **where, "connections": len(conns)})
            self.gate(op["gate"]).wait()
            for conn in conns:
                self.pool.putconn(conn)
        elif what == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            return outcome_of(op, self.doc), True
        return None, False

    def pause(self, op: dict[str, Any], ctx: Any, where: dict[str, Any]) -> tuple[Any, bool]:
        end = time.monotonic() + op["seconds"] if op["op"] == "sleep" else float("inf")
        gate = self.gate(op["gate"]) if op["op"] == "gate" else None
        told = False
        while time.monotonic() < end and not (gate is not None and gate.is_set()):
            if told:
                time.sleep(0.02)
            elif ctx.stop.wait(min(0.02, max(0.0, end - time.monotonic()))):
                told = True
                send({"event": "aborted", **where, "reason": ctx.reason})
                on = op.get("on_abort") or "raise"
                if on == "raise":
                    ctx.check()
                elif on == "complete":
                    return Complete({"aborted": ctx.reason}), True
                elif on == "throw":
                    raise FailedWhileStopping("failed while stopping")
        return None, False


# ------------------------------------------------------------------------------------------------- asyncio


class Async(Adapter):
    def __init__(self) -> None:
        super().__init__()
        self.gates: dict[str, asyncio.Event] = {}
        self.tasks: set[asyncio.Task[Any]] = set()

    def gate(self, name: str) -> asyncio.Event:
        return self.gates.setdefault(name, asyncio.Event())

    def spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def run(self) -> None:
        self.over = asyncio.Event()
        loop = asyncio.get_running_loop()

        def take(line: dict[str, Any]) -> None:
            loop.call_soon_threadsafe(lambda: self.spawn(self.answer(line)))

        end = functools.partial(loop.call_soon_threadsafe, self.over.set)
        threading.Thread(target=read, args=(take, end), daemon=True).start()
        await self.over.wait()
        for worker in self.workers.values():
            worker.stop(grace=0)
        await asyncio.wait(
            [asyncio.ensure_future(w.join()) for w in self.workers.values()] or [asyncio.sleep(0)], timeout=10
        ) if self.workers else None
        os._exit(0)

    async def answer(self, line: dict[str, Any]) -> None:
        try:
            send({"reply": line["id"], "ok": await self.do(line)})
        except BaseException as error:
            send({"reply": line["id"], "error": error_of(error)})

    async def do(self, line: dict[str, Any]) -> Any:
        what = line["do"]
        if what == "hello":
            return self.hello()
        if what == "exit":
            self.over.set()
            await asyncio.Event().wait()
        if what == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        if what == "vector":
            return {"output": self.vector(line)}
        if what == "open":
            self.gate(line["gate"]).set()
            return {}
        if what == "connect":
            self.url = line["url"]
            kwargs: dict[str, Any] = {"prepare_threshold": None} if line.get("pooled") else {}
            self.plugins_of(line)
            self.pool = AsyncConnectionPool(self.url, min_size=0, max_size=line["pool"], kwargs=kwargs, open=False)
            await self.pool.open()
            self.client = AsyncApp(self.pool, plugins=self.plugins)
            return {}
        if what == "put":
            return await self.put(line)
        if what == "put_many":
            return {"puts": [p._asdict() for p in await self.client.put_many([self.doc(one) for one in line["docs"]])]}
        if what == "cancel":
            return cancelled(await self.client.cancel(line["queue"], line["subject"]))
        if what == "get":
            doc = await self.client.get(line["queue"], line["subject"])
            names = ("subject", "status", "attempts", "payload", "result", "last_error")
            return {"doc": None if doc is None else {name: getattr(doc, name) for name in names}}
        if what == "wait":
            return (await self.client.wait(line["queue"], line["subject"], line.get("timeout") or 30))._asdict()
        if what == "sync":
            declare_sync(self.client, line, self.doc)
            await self.client.sync()
            return {}
        if what == "start":
            return await self.start(line)
        worker = self.workers.get(line.get("worker", ""))
        if what == "stop" and worker is not None:
            worker.stop(now=bool(line.get("now")))
            return {}
        if what == "health" and worker is not None:
            return self.health(worker)
        if what == "metrics" and worker is not None:
            return worker.metrics()
        raise Unsupported(what)

    async def put(self, line: dict[str, Any]) -> Any:
        doc = self.doc(line)
        with in_context(line.get("context")) if self.trace else contextlib.nullcontext():
            if (tx := line.get("tx")) is None:
                return (await self.client.put_many([doc]))[0]._asdict()
            async with await psycopg.AsyncConnection.connect(self.url) as conn:
                if tx.get("sql"):
                    await conn.execute(tx["sql"])
                done = (await self.client.put_many([doc], conn=conn))[0]
                if tx["end"] == "rollback":
                    await conn.rollback()
                return done._asdict()

    async def start(self, line: dict[str, Any]) -> Any:
        handle = line["worker"]
        app = AsyncApp(self.pool, plugins=self.plugins)

        def handler(name: str | None) -> Any:
            async def work(payload: Any, ctx: Any) -> Any:
                return await self.handle(handle, name, payload, ctx)

            return work

        for task in line["tasks"]:
            self.declare(app, task, handler)
        worker = AsyncWorker(app, **self.worker_options(line))
        self.workers[handle] = worker
        HANDLES[worker.name] = handle
        started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        begin = worker.start

        async def start() -> Any:
            try:
                given = await begin()
            except BaseException as error:
                started.set_exception(error)
                raise
            started.set_result(None)
            return given

        worker.start = start  # type: ignore[method-assign]

        async def work() -> None:
            error = None
            try:
                await worker.run(signals=bool(line.get("signals")))
            except BaseException as problem:
                error = error_of(problem)
            if started.exception() is None:
                send({"event": "stopped", "worker": handle, "error": error})

        self.spawn(work())
        await started
        return {}

    async def handle(self, worker: str, task: str | None, payload: Any, ctx: Any) -> Any:
        where = attempt_of(ctx, worker)
        began(ctx, where, task, payload)
        how = "returned"
        try:
            for op in script_of(payload, ctx.attempt):
                given, ends = await self.operate(op, ctx, where)
                if ends:
                    return given
            return None
        except (Aborted, asyncio.CancelledError):
            how = "aborted"
            raise
        except BaseException:
            how = "raised"
            raise
        finally:
            send({"event": "ended", **where, "how": how})

    async def operate(self, op: dict[str, Any], ctx: Any, where: dict[str, Any]) -> tuple[Any, bool]:
        what = op["op"]
        if what in ("sleep", "gate"):
            return await self.pause(op, ctx, where)
        if what == "block":
            block(op["seconds"])
        elif what == "step":
            ran: list[int] = []
            value = await ctx.step(op["name"], lambda: ran.append(1) or op["value"])
            send({"event": "step", **where, "name": op["name"], "ran": bool(ran), "value": value})
        elif what == "progress":
            ctx.progress(op["value"])
        elif what == "log":
            ctx.log.info(op["message"])
        elif what == "sql":
            await ctx.conn.execute(op["sql"])
        elif what == "put":
            await self.client.put_many([self.doc(op)], conn=ctx.conn)
        elif what == "hold":
            conns = []
            for _ in range(op["connections"]):
                with contextlib.suppress(Exception):
                    conns.append(await self.pool.getconn(timeout=5))
            send({"event": "held", **where, "connections": len(conns)})
            await self.gate(op["gate"]).wait()
            for conn in conns:
                await self.pool.putconn(conn)
        elif what == "crash":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            return outcome_of(op, self.doc), True
        return None, False

    async def pause(self, op: dict[str, Any], ctx: Any, where: dict[str, Any]) -> tuple[Any, bool]:
        waiting = asyncio.ensure_future(
            asyncio.sleep(op["seconds"]) if op["op"] == "sleep" else self.gate(op["gate"]).wait()
        )
        told = False
        while not waiting.done():
            try:
                await asyncio.shield(waiting)
            except asyncio.CancelledError:
                if told:
                    continue
                told = True
                send({"event": "aborted", **where, "reason": ctx.reason})
                on = op.get("on_abort") or "raise"
                if on == "raise":
                    raise
                if on == "complete":
                    return Complete({"aborted": ctx.reason}), True
                if on == "throw":
                    raise FailedWhileStopping("failed while stopping") from None
        return None, False


def declare_sync(client: Any, line: dict[str, Any], doc: Callable[[dict[str, Any]], Doc]) -> None:
    client.name = "of " + " ".join(line.get("queues") or line.get("schedules") or ())
    for queue, settings in (line.get("queues") or {}).items():
        client.queue(queue, **settings)
    for name, schedule in (line.get("schedules") or {}).items():
        task = doc({"queue": schedule["queue"], "task": schedule.get("task")}).task
        client.schedule(
            name, schedule["cron"], task, schedule.get("payload"), timezone=schedule.get("timezone") or "UTC"
        )


if __name__ == "__main__":
    logger = logging.getLogger("fetchq")
    logger.setLevel(logging.INFO)
    logger.addHandler(Log())
    logger.propagate = False
    if SYNC:
        Sync().run()
    else:
        asyncio.run(Async().run())
