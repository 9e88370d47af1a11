"""Apps: where tasks, settings of queues and schedules are declared, and where documents are put."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, TypedDict, TypeVar, cast

from typing_extensions import Unpack

from . import _sql
from ._connect import AsyncLender, AsyncSource, Lender, Row, Source, arun, run
from ._json import dumps
from .errors import ConfigError, sqlstate
from .outcomes import Duration, interval
from .plugins import Plugin
from .tasks import (
    AsyncTask,
    Batch,
    Cancelled,
    Doc,
    Document,
    Put,
    PutOptions,
    RetryRule,
    Task,
    TaskBase,
    Waited,
    lists,
)

if TYPE_CHECKING:
    import psycopg

P = TypeVar("P")
T = TypeVar("T", bound=TaskBase[Any])
S = TypeVar("S")

LEAST_VERSION = (5, 0, 0)
"""The least version of the extension that this package works with."""


class TaskOptions(TypedDict, total=False):
    """Options of a task."""

    name: str | None
    """Its name, where several tasks share the queue. Puts write it into a header."""
    version: int
    """The version of its payloads. Workers lease no others, but those from which ``upcast`` leads to it."""
    payload: Any
    """The type of its payloads, in place of the annotation of the handler."""
    concurrency: int | None
    """How many handlers run at once in a process; by default as many as the worker allows."""
    weight: int
    """Its share of the slots of the process where queues compete for them."""
    lease: Duration | None
    """How long a lease lasts between two heartbeats; by default as the queue is set."""
    timeout: Duration | None
    """How long the handler may run. Then it is stopped, and the attempt has failed."""
    retry: RetryRule
    transaction: Any
    """True: the handler gets ``ctx.conn`` in a transaction, in which its document is settled, too. Or a function
    that gives a context manager of a connection with a transaction, such as ``sessionmaker.begin``."""
    conflicts: int
    """How often a transactional handler runs anew after a serialization failure or a deadlock."""
    on_invalid: Literal["reject", "kill"]
    """What becomes of a document whose payload cannot be decoded."""
    defaults: PutOptions
    """Options of its puts."""


class _Base(Generic[T, S]):
    """What apps with threads and with asyncio share: the declarations."""

    _task: type[Any]

    def __init__(self, source: Any = None, *, name: str | None = None, plugins: Iterable[Plugin] = ()) -> None:
        self.name = name
        self.tasks: list[T] = []
        self.plugins: list[Plugin] = list(plugins)
        self.queues: dict[str, dict[str, Any]] = {}
        self.schedules: dict[str, dict[str, Any]] = {}
        self._lender: Any = None
        if source is not None:
            self.open(source)

    def open(self, source: S) -> None:
        """Names where connections come from: a pool, which stays yours, a connection string, or a function
        that connects. Nothing connects before it is needed."""
        raise NotImplementedError

    def use(self, plugin: Plugin) -> None:
        """Registers a middleware."""
        self.plugins.append(plugin)

    def queue(self, name: str, **settings: Any) -> None:
        """Declares settings of a queue, which :meth:`sync` writes: ``app.queue("mail", max_active=100)``."""
        self.queues.setdefault(name, {}).update(settings)

    def schedule(
        self,
        name: str,
        cron: str,
        task: TaskBase[P],
        payload: P | None = None,
        *,
        timezone: str = "UTC",
        **options: Any,
    ) -> None:
        """Declares a schedule, which :meth:`sync` writes. ``cron`` may also be an interval, and ``options`` are those
        of ``schedule_create``, such as ``catch_up`` and ``jitter``. Schedules belong to the name of the app: those that
        it does not declare any more are dropped."""
        if self.name is None:
            raise ConfigError("an app needs a name to own schedules: App(name=…)")
        doc = task.doc(payload).as_json()
        body: dict[str, Any] = {"name": name, "schedule": cron, "timezone": timezone}
        body |= {key: doc[key] for key in ("queue", "payload", "headers", "version", "priority") if key in doc}
        body |= {k: interval(v) if isinstance(v, timedelta) else v for k, v in options.items()}
        self.schedules[name] = body

    def _add(self, function: Callable[..., Any], queue: str, options: dict[str, Any]) -> T:
        timeout = options.pop("timeout", None)
        around = sys._getframe(2).f_locals  # Where the handler is defined.
        task = self._task(app=self, function=function, queue=queue, timeout=_seconds(timeout), around=around, **options)
        if any((t.queue, t.name, t.version) == (queue, task.name, task.version) for t in self.tasks):
            raise ConfigError(f"{task} with version {task.version} is declared twice: give one of them a name")
        self.tasks.append(task)
        return cast("T", task)

    @contextlib.contextmanager
    def _around(self, docs: Sequence[Doc]) -> Generator[None, None, None]:
        with contextlib.ExitStack() as stack:
            for plugin in self.plugins:
                stack.enter_context(plugin.put(docs))
            yield

    def _steps(self) -> list[tuple[_sql.Query, _sql.Query | None]]:
        """Pairs of a call that creates a queue, and one for a queue that was there before."""
        steps: list[tuple[_sql.Query, _sql.Query | None]] = []
        for queue in sorted({t.queue for t in self.tasks} | self.queues.keys()):
            settings = dumps(self.queues.get(queue, {}))
            again = _sql.configure(queue, settings) if self.queues.get(queue) else None
            steps.append((_sql.create(queue, settings), again))
        return steps


def _seconds(timeout: Duration | None) -> float | None:
    if timeout is None or isinstance(timeout, (int, float)):
        return timeout
    if isinstance(timeout, str):
        raise ConfigError("a timeout is a timedelta or a number of seconds")
    return timeout.total_seconds()


def check_info(rows: list[Row]) -> bool:
    """Whether the library is preloaded; raises if the extension is too old."""
    version, preloaded = str(rows[0][0]), bool(rows[0][1])
    numbers = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in version.split(".")[:3])
    if numbers < LEAST_VERSION:
        least = ".".join(map(str, LEAST_VERSION))
        raise ConfigError(
            f"the extension fetchq of this database is version {version}, and this client needs {least}: "
            "run ALTER EXTENSION fetchq UPDATE"
        )
    return preloaded


def missing_extension(error: BaseException) -> ConfigError | None:
    """The clear error for a database without the extension."""
    if sqlstate(error) in ("3F000", "42883", "42P01"):
        return ConfigError("this database has no extension fetchq 5: run CREATE EXTENSION fetchq")
    return None


_recorder: Callable[[Sequence[Doc]], list[Put]] | None = None


def record(
    recorder: Callable[[Sequence[Doc]], list[Put]] | None,
) -> Callable[[Sequence[Doc]], list[Put]] | None:
    """Sends all puts of this process to a function instead of a server; gives the one before. For tests."""
    global _recorder
    before, _recorder = _recorder, recorder
    return before


class App(_Base[Task[Any], Source]):
    """Declarations and producers, with threads."""

    _task = Task
    _lender: Lender | None

    def open(self, source: Source) -> None:
        self._lender = Lender(source)

    def close(self) -> None:
        """Closes what the app has opened itself. A pool of yours stays open."""
        if self._lender is not None:
            self._lender.close()

    @property
    def lender(self) -> Lender:
        if self._lender is None:
            raise ConfigError("the app has no connections: call app.open(pool), or give conn=…")
        return self._lender

    def task(
        self, queue: str, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[Concatenate[P, ...], Any]], Task[P]]:
        """Declares the task of a queue. The handler takes a payload, and perhaps a :class:`~fetchq.Context`."""

        def add(function: Callable[Concatenate[P, ...], Any]) -> Task[P]:
            task = self._add(function, queue, dict(options))
            if task.is_async:
                raise ConfigError(f"{task}: a handler that is asynchronous needs AsyncApp")
            return task

        return add

    def batch_task(
        self, queue: str, *, size: int, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[Concatenate[Batch[P], ...], Any]], Task[P]]:
        """Declares a task whose handler takes a :class:`~fetchq.Batch` of up to ``size`` documents. It returns
        nothing, or a list with an outcome for each. If it raises, all of them have failed."""

        def add(function: Callable[Concatenate[Batch[P], ...], Any]) -> Task[P]:
            return self._add(function, queue, {**options, "batch": size})

        return add

    def put_many(self, docs: Sequence[Doc], *, conn: Any = None) -> list[Put]:
        """Puts documents of any tasks, which ``task.doc(…)`` has made. All are put, or none."""
        if not docs:
            return []
        with self._around(docs):
            if _recorder is not None:
                return _recorder(docs)
            return [Put(*row) for row in self._run(lists(docs), conn)]

    def get(self, queue: str, subject: str, *, conn: Any = None) -> Document | None:
        """A document as it is now, or as the history has it."""
        rows = self._run(_sql.get(queue, subject), conn)
        return Document.read(rows[0][0]) if rows else None

    def cancel(self, queue: str, subject: str, *, conn: Any = None) -> Cancelled:
        """Cancels a document; its worker stops."""
        return Cancelled(*self._run(_sql.cancel(queue, subject), conn)[0])

    def wait(self, queue: str, subject: str, timeout: Duration = 30) -> Waited:
        """Waits until a document is settled. It needs a connection for as long as it waits."""
        with self.lender.lend() as conn, _autocommit(conn):
            return Waited(*run(conn, _sql.await_(queue, subject, interval(timeout)))[0])

    def sync(self, conn: Any = None) -> None:
        """Creates the queues of all tasks, writes the settings that are declared, and makes the schedules of
        this app, if it has a name, those that are declared. It is for a deployment, with the rights to do that."""
        with contextlib.ExitStack() as stack:
            if conn is None:
                conn = stack.enter_context(self.lender.lend())
            check_info(run(conn, _sql.info()))
            for create, again in self._steps():
                if not run(conn, create)[0][0] and again is not None:
                    run(conn, again)
            if self.name is not None:
                run(conn, _sql.schedules(self.name, dumps(list(self.schedules.values()))))

    def _run(self, query: _sql.Query, conn: Any) -> list[Row]:
        if conn is not None:
            return run(conn, query)
        with self.lender.lend() as mine:
            return run(mine, query)


@contextlib.contextmanager
def _autocommit(conn: psycopg.Connection[Any]) -> Generator[None, None, None]:
    before = conn.autocommit
    conn.autocommit = True
    try:
        yield
    finally:
        if not conn.closed:
            conn.autocommit = before


class AsyncApp(_Base[AsyncTask[Any], AsyncSource]):
    """Declarations and producers, with asyncio. Handlers are ``async def``, or functions that run in threads."""

    _task = AsyncTask
    _lender: AsyncLender | None

    def open(self, source: AsyncSource) -> None:
        self._lender = AsyncLender(source)

    async def close(self) -> None:
        """Closes what the app has opened itself. A pool of yours stays open."""
        if self._lender is not None:
            await self._lender.close()

    @property
    def lender(self) -> AsyncLender:
        if self._lender is None:
            raise ConfigError("the app has no connections: call app.open(pool), or give conn=…")
        return self._lender

    def task(
        self, queue: str, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[Concatenate[P, ...], Any]], AsyncTask[P]]:
        """Declares the task of a queue. The handler takes a payload, and perhaps an
        :class:`~fetchq.AsyncContext`."""

        def add(function: Callable[Concatenate[P, ...], Any]) -> AsyncTask[P]:
            task = self._add(function, queue, dict(options))
            if task.transaction and not task.is_async:
                raise ConfigError(f"{task}: a transactional handler of AsyncApp is asynchronous")
            return task

        return add

    def batch_task(
        self, queue: str, *, size: int, **options: Unpack[TaskOptions]
    ) -> Callable[[Callable[Concatenate[Batch[P], ...], Any]], AsyncTask[P]]:
        """Declares a task whose handler takes a :class:`~fetchq.Batch` of up to ``size`` documents. It returns
        nothing, or a list with an outcome for each. If it raises, all of them have failed."""

        def add(function: Callable[Concatenate[Batch[P], ...], Any]) -> AsyncTask[P]:
            return self._add(function, queue, {**options, "batch": size})

        return add

    async def put_many(self, docs: Sequence[Doc], *, conn: Any = None) -> list[Put]:
        """Puts documents of any tasks, which ``task.doc(…)`` has made. All are put, or none."""
        if not docs:
            return []
        with self._around(docs):
            if _recorder is not None:
                return _recorder(docs)
            return [Put(*row) for row in await self._run(lists(docs), conn)]

    async def get(self, queue: str, subject: str, *, conn: Any = None) -> Document | None:
        """A document as it is now, or as the history has it."""
        rows = await self._run(_sql.get(queue, subject), conn)
        return Document.read(rows[0][0]) if rows else None

    async def cancel(self, queue: str, subject: str, *, conn: Any = None) -> Cancelled:
        """Cancels a document; its worker stops."""
        return Cancelled(*(await self._run(_sql.cancel(queue, subject), conn))[0])

    async def wait(self, queue: str, subject: str, timeout: Duration = 30) -> Waited:
        """Waits until a document is settled. It needs a connection for as long as it waits."""
        async with self.lender.lend() as conn:
            before = conn.autocommit
            await conn.set_autocommit(True)
            try:
                return Waited(*(await arun(conn, _sql.await_(queue, subject, interval(timeout))))[0])
            finally:
                if not conn.closed:
                    await conn.set_autocommit(before)

    async def sync(self, conn: Any = None) -> None:
        """Creates the queues of all tasks, writes the settings that are declared, and makes the schedules of
        this app, if it has a name, those that are declared. It is for a deployment, with the rights to do that."""
        async with contextlib.AsyncExitStack() as stack:
            if conn is None:
                conn = await stack.enter_async_context(self.lender.lend())
            check_info(await arun(conn, _sql.info()))
            for create, again in self._steps():
                if not (await arun(conn, create))[0][0] and again is not None:
                    await arun(conn, again)
            if self.name is not None:
                await arun(conn, _sql.schedules(self.name, dumps(list(self.schedules.values()))))

    async def _run(self, query: _sql.Query, conn: Any) -> list[Row]:
        if conn is not None:
            return await arun(conn, query)
        async with self.lender.lend() as mine:
            return await arun(mine, query)
