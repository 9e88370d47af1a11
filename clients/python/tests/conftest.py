"""Tests against a real server need FETCHQ_URL, as `scripts/cluster.sh NAME env` prints it."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from fetchq import App, AsyncApp, AsyncWorker, Worker

pytest_plugins = ["pytester"]
DEADLINE = 30.0


def until(what: str, check: Callable[[], Any], seconds: float = DEADLINE) -> Any:
    """Polls until something is so."""
    end = time.monotonic() + seconds
    while not (value := check()):
        assert time.monotonic() < end, f"{what}: not after {seconds} s"
        time.sleep(0.02)
    return value


@pytest.fixture(scope="session")
def url() -> str:
    value = os.environ.get("FETCHQ_URL")
    if not value:
        pytest.skip("FETCHQ_URL is not set")
    return value


class Db:
    """A session of the test, and queues that are the test's own."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.conn = psycopg.connect(url, autocommit=True)
        self.count = 0
        self.queues: list[str] = []

    def sql(self, text: str, *values: Any) -> list[tuple[Any, ...]]:
        cursor = self.conn.execute(text, values)
        return cursor.fetchall() if cursor.description else []

    def value(self, text: str, *values: Any) -> Any:
        return self.sql(text, *values)[0][0]

    def queue(self, settings: str = '{"keep_completed": null}') -> str:
        name = f"t{os.getpid()}_{time.monotonic_ns() % 10**9}"
        self.sql("select fetchq.queue_create(%s)", name)
        self.queues.append(name)
        return name

    def state(self, queue: str, subject: str) -> tuple[Any, ...]:
        """Status and attempts of a document; nothing: it is not there."""
        rows = self.sql("select status, attempts from fetchq.doc_get(%s, %s)", queue, subject)
        return rows[0] if rows else ()

    def has_failed(self, queue: str, subject: str) -> bool:
        """Whether the first attempt has failed. An attempt that runs counts, too."""
        status, attempts = self.state(queue, subject)
        return attempts == 1 and status != "active"


@pytest.fixture
def db(url: str) -> Iterator[Db]:
    db = Db(url)
    yield db
    for queue in db.queues:
        db.sql("select fetchq.queue_drop(%s)", queue)
    db.conn.close()


class Side:
    """One of both runtimes, so that each scenario stands once. Handlers are written as coroutines; that of the
    runtime with threads never suspends."""

    name = ""

    def task(self, queue: str, **options: Any) -> Callable[[Any], Any]:
        raise NotImplementedError


class SyncSide(Side):
    name = "sync"

    def __init__(self, url: str) -> None:
        self.app = App(url)
        self.workers: list[Worker] = []

    def task(self, queue: str, **options: Any) -> Callable[[Any], Any]:
        def add(function: Any) -> Any:
            def handler(payload: Any, ctx: Any) -> Any:
                work = function(payload, ctx)
                try:
                    work.send(None)
                except StopIteration as end:
                    return end.value
                raise AssertionError("the coroutine has waited")

            return self.app.task(queue, **{"payload": dict, **options})(handler)

        return add

    async def sleep(self, ctx: Any, seconds: float) -> None:
        ctx.sleep(seconds)

    async def step(self, ctx: Any, name: str, function: Any) -> Any:
        return ctx.step(name, function)

    async def execute(self, ctx: Any, text: str) -> None:
        ctx.conn.execute(text)

    def work(self, **options: Any) -> Worker:
        worker = Worker(self.app, **{"concurrency": 10, **options}).start()
        self.workers.append(worker)
        return worker

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    def join(self, worker: Any, seconds: float = DEADLINE) -> None:
        assert worker.join(seconds), "the worker does not stop"

    def close(self) -> None:
        for worker in self.workers:
            worker.stop(now=True)
            worker.join(10)
        self.app.close()


class AsyncSide(Side):
    name = "async"

    def __init__(self, url: str) -> None:
        self.app = AsyncApp(url)
        self.workers: list[AsyncWorker] = []
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()

    def call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(function(*args, **kwargs), self.loop).result(60)

    def task(self, queue: str, **options: Any) -> Callable[[Any], Any]:
        return self.app.task(queue, **{"payload": dict, **options})

    async def sleep(self, ctx: Any, seconds: float) -> None:
        await ctx.sleep(seconds)

    async def step(self, ctx: Any, name: str, function: Any) -> Any:
        return await ctx.step(name, function)

    async def execute(self, ctx: Any, text: str) -> None:
        await ctx.conn.execute(text)

    def work(self, **options: Any) -> AsyncWorker:
        worker = AsyncWorker(self.app, **{"concurrency": 10, **options})
        self.call(worker.start)
        self.workers.append(worker)
        return worker

    def join(self, worker: Any, seconds: float = DEADLINE) -> None:
        asyncio.run_coroutine_threadsafe(worker.join(), self.loop).result(seconds)

    def close(self) -> None:
        for worker in self.workers:
            self.loop.call_soon_threadsafe(lambda w=worker: w.stop(now=True))
            self.join(worker, 15)
        self.call(self.app.close)
        self.loop.call_soon_threadsafe(self.loop.stop)


@pytest.fixture(params=["sync", "async"])
def side(request: pytest.FixtureRequest, url: str) -> Iterator[Any]:
    side = SyncSide(url) if request.param == "sync" else AsyncSide(url)
    yield side
    side.close()
