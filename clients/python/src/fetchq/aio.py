"""The worker with asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import os
import signal as signals
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable
from typing import Any

import psycopg
from typing_extensions import Self

from . import _sql
from ._connect import AsyncLender, AsyncSource, aconnect, arun, connect, heart_source, usable
from ._handling import (
    Crew,
    Heart,
    Line,
    Prepared,
    check,
    check_pool,
    hang_up,
    make_settings,
    outcome_of,
    work_in_thread,
)
from ._runs import Call, Group, Job, Run
from .app import AsyncApp
from .context import AsyncContext, logger, monotonic
from .engine import Engine, Topic
from .errors import Aborted, ConfigError
from .outcomes import Outcome, settlement
from .plugins import Plugin
from .tasks import Doc


class AsyncWorker:
    """Works on the tasks of an app, each handler in a task of the event loop; functions that are not
    asynchronous run in threads.

    It needs connections of its own beside those of the pool: one that waits, one for the heartbeat, which is a
    thread so that no handler can stop it, and as many as ``calls``. It opens them with the parameters of the pool.
    """

    def __init__(
        self,
        app: AsyncApp,
        source: AsyncSource | None = None,
        *,
        name: str | None = None,
        queues: Iterable[str] | None = None,
        plugins: Iterable[Plugin] = (),
        calls: int = 2,
        **options: Any,
    ) -> None:
        """As :class:`~fetchq.Worker`. By default 50 handlers run at once."""
        wanted = None if queues is None else set(queues)
        tasks = [task for task in app.tasks if wanted is None or task.queue in wanted]
        self.app = app
        self.source: AsyncSource = app.lender.source if source is None else source
        self.plugins = [*app.plugins, *plugins]
        settings = make_settings(name, {"concurrency": 50, **options})
        self.engine = Engine(tasks, settings, self.plugins, self._signal)
        self.name = self.engine.worker
        check_pool(self.source, self.engine, [task for task in tasks if task.transaction is True])
        self._lender = AsyncLender(self.source)
        self._heart = Heart(self.engine, lambda: connect(heart_source(self.source)))
        self._threads = Crew(self.engine, lambda job: work_in_thread(self.engine, self.plugins, job))
        self._calls = calls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._turns: dict[str, list[asyncio.Event]] = {"call": [], "wait": [], "tick": []}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._waiting: dict[int, psycopg.AsyncConnection[Any]] = {}
        self._end: asyncio.Task[None] | None = None
        self._watch: asyncio.TimerHandle

    # ------------------------------------------------------------------------------------- for the application

    async def start(self) -> Self:
        """Checks the server, and starts to work."""
        if self._loop is not None:
            raise ConfigError("a worker is started once: make another one")
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._heart.conn = await asyncio.to_thread(self._heart.connect)
        await asyncio.to_thread(check, self._heart.conn, self.engine)
        self._heart.start()
        self._look(monotonic(), 0)
        loops = [self._task(self._caller(), "fetchq-call") for _ in range(self._calls)]
        loops += [self._task(self._waiter(group), "fetchq-wait") for group in self.engine.groups]
        self._end = self._task(self._clock(loops), "fetchq-clock")
        return self

    def stop(self, grace: float | None = None, *, now: bool = False) -> None:
        """Leases no more documents. Handlers have ``grace`` seconds to finish; then they are cancelled, and
        their documents go back without counting the attempt. With ``now``, nobody is
        waited for, and all documents go back. Returns at once: see :meth:`join`."""
        if now:
            self.engine.abandon(monotonic())
        else:
            self.engine.ask_stop(grace)

    async def join(self) -> None:
        """Waits until the worker has stopped. Raises the error that has ended it, if it was one."""
        if self._end is not None:
            await asyncio.shield(self._end)
        if self.engine.fatal is not None:
            raise self.engine.fatal

    async def run(self, *, signals: bool = False) -> None:
        """Works until the worker is stopped, or this task is cancelled. With ``signals``, SIGTERM and SIGINT stop
        it. A second one stops it at once, a third one ends the process."""
        with self._handling() if signals else contextlib.nullcontext():
            await self.start()
            try:
                await self.join()
            except asyncio.CancelledError:
                self.stop()
                await self.join()
                raise

    def health(self) -> dict[str, Any]:
        """For probes: ``ok``, whether the database answers, whether the loops turn, the age of the heartbeat."""
        health = self.engine.health(monotonic())
        health["loops"] = health["loops"] and self._heart.is_alive() and not (self._end is None or self._end.done())
        health["ok"] = health["ok"] and health["loops"]
        return health

    def metrics(self) -> dict[str, Any]:
        """Sums since the start: settled by outcome, lost, stuck, handled, seconds of handlers, calls."""
        return self.engine.metrics()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        await self.join()

    @contextlib.contextmanager
    def _handling(self) -> Generator[None, None, None]:
        loop, seen = asyncio.get_running_loop(), 0

        def handle(number: int) -> None:
            nonlocal seen
            seen += 1
            if seen > 2:
                os._exit(128 + number)
            logger.info("the worker stops%s: signal %d", " at once" if seen == 2 else "", number)
            self.stop(now=seen == 2)

        for number in (signals.SIGTERM, signals.SIGINT):
            loop.add_signal_handler(number, handle, number)
        try:
            yield
        finally:
            for number in (signals.SIGTERM, signals.SIGINT):
                loop.remove_signal_handler(number)

    # ------------------------------------------------------------------------------------------------- loops

    def _task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _signal(self, topic: Topic) -> None:
        if topic == "beat":
            self._heart.wake()
        elif threading.get_ident() == self._thread:
            self._set(topic)
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._set, topic)

    def _set(self, topic: Topic) -> None:
        for turn in self._turns[topic]:
            turn.set()

    def _turn(self, topic: Topic) -> asyncio.Event:
        turn = asyncio.Event()
        self._turns[topic].append(turn)
        return turn

    async def _caller(self) -> None:
        """Makes the calls that settle and lease."""
        engine, turn = self.engine, self._turn("call")
        line: Line | None = None
        while True:
            while not isinstance(todo := engine.take_call(now := monotonic()), Call) and not engine.finished:
                await _until(turn, todo - now)
            if not isinstance(todo, Call):
                break
            try:
                if line is None or not usable(line.conn):
                    line = Line(await aconnect(self.source), engine)
                todo.sent = monotonic()
                rows = await arun(line.conn, todo.query)
            except Exception as error:  # The engine knows what it means.
                engine.failed(todo, error, monotonic(), pid=0 if line is None else line.pid)
                continue
            if line.warnings:
                line.report(engine, todo.lane.queue)
            self._start(engine.answered(todo, rows, monotonic()))
        if line is not None:
            await line.conn.close()

    def _start(self, jobs: list[Job]) -> None:
        for job in jobs:
            if job.task.is_async:
                self._task(self._work(job), "fetchq-handler")
            else:
                self._threads.start([job])

    async def _waiter(self, group: Group) -> None:
        """Waits for documents, for a request to stop, and for leases that are lost."""
        engine, turn = self.engine, self._turn("wait")
        conn: psycopg.AsyncConnection[Any] | None = None
        while True:
            while isinstance(todo := engine.take_wait(group, now := monotonic()), (float, int)) and not engine.finished:
                await _until(turn, todo - now)
            if isinstance(todo, (float, int)):
                break
            try:
                if conn is None or not usable(conn):
                    conn = self._waiting[group.version] = await aconnect(self.source)
                rows = await arun(conn, todo.query)
            except Exception as error:  # The engine knows what it means.
                pause = monotonic() + engine.wait_failed(group, error, monotonic())
                while (left := pause - monotonic()) > 0 and not engine.finished:
                    await _until(turn, left)
            else:
                engine.waited(group, rows[0], monotonic())
        if conn is not None:
            await conn.close()

    async def _clock(self, loops: list[asyncio.Task[None]]) -> None:
        """Looks at deadlines, and interrupts waits that have become outdated."""
        engine, turn = self.engine, self._turn("tick")
        while True:
            due, outdated = engine.tick(monotonic())
            if engine.finished:
                break
            for group in outdated:
                await self._interrupt(group)
            if not outdated:
                await _until(turn, due - monotonic())
        self._watch.cancel()
        deadline = monotonic() + (0 if engine.abandoned else 10)
        while any(not loop.done() for loop in loops):
            for group in engine.groups:
                await self._interrupt(group)
            await asyncio.wait(loops, timeout=0.1)
            if monotonic() >= deadline:
                break
        for loop in loops:
            loop.cancel()
        self._threads.close()
        self._heart.close()
        await asyncio.to_thread(self._heart.join, 5)
        await self._lender.close()

    def _look(self, due: float, warned: float) -> None:
        """Reports a handler that has blocked the event loop. The loop calls this once a second whatever the other
        tasks do, because a handler may block it before one of them knows of the handler."""
        now = monotonic()
        if now - due > 0.5 and now > warned:
            warned = now + 60
            logger.warning(
                "the event loop was blocked for %.1f s: use await, or a handler that is not asynchronous", now - due
            )
        self._watch = asyncio.get_running_loop().call_later(1, self._look, now + 1, warned)

    async def _interrupt(self, group: Group) -> None:
        conn = self._waiting.get(group.version)
        if conn is None or group.call is None:
            return
        try:
            if hasattr(conn, "cancel_safe"):
                await conn.cancel_safe(timeout=5)
            else:
                await asyncio.to_thread(conn.cancel)
        except Exception:  # Such as behind a pooler that has no connection left for a request to cancel.
            hang_up(conn)

    # ---------------------------------------------------------------------------------------------- handlers

    async def _work(self, job: Job) -> None:
        if not self.engine.begin(job, monotonic()):
            return
        prepared = Prepared(self.engine, job, AsyncContext, needed=bool(self.plugins or job.task.transaction))
        if job.task.transaction and prepared.count:
            await self._work_in_transaction(job, prepared)
        else:
            result = await self._call(job, prepared) if prepared.count else None
            self.engine.ended(job, prepared.outcomes(result), monotonic())

    async def _call(self, job: Job, prepared: Prepared) -> Any:
        """Calls a handler with its middleware; gives what it has returned or raised."""
        try:
            if not self.plugins:
                return await self._run_handler(job, prepared)
            async with contextlib.AsyncExitStack() as stack:
                for ctx in prepared.contexts:
                    for plugin in self.plugins:
                        around: Any = plugin.handle(ctx)
                        if hasattr(around, "__aenter__"):
                            await stack.enter_async_context(around)
                        else:
                            stack.enter_context(around)
                try:
                    result = await self._run_handler(job, prepared)
                except Outcome as outcome:
                    result = outcome
                prepared.note(result)
                return result
        except BaseException as error:  # A cancellation ends a handler only.
            return error

    async def _run_handler(self, job: Job, prepared: Prepared) -> Any:
        """While the handler itself runs, an abort cancels this task, and not while its outcome is settled."""
        job.cancel = functools.partial(self._cancel, job)
        job.running = asyncio.current_task()
        if len(job.runs) == 1 and (reason := job.runs[0].reason) is not None:
            raise Aborted(reason)
        try:
            return await prepared.task.function(*prepared.arguments)
        finally:
            job.running = None

    def _cancel(self, job: Job) -> None:
        if self._loop is not None:
            _later(self._loop, lambda: job.running and job.running.cancel())

    async def _work_in_transaction(self, job: Job, prepared: Prepared) -> None:
        engine, task, ctx = self.engine, job.task, prepared.contexts[0]
        run = job.runs[0]
        reruns = 0
        while True:
            phase: Any = "handler"
            conn: Any = None
            ctx.follow_ups = list[Doc]()
            try:
                async with self._transaction(task.transaction) as conn:
                    ctx.conn = conn
                    given = outcome_of(await self._call(job, prepared))
                    if not isinstance(given, Outcome):
                        raise given
                    engine.settles(run)
                    phase = "settle"
                    body = settlement(run.subject, run.lease, given, ctx.follow_ups)
                    await arun(conn, _sql.settle(run.queue, f"[{body}]", "error"))
                    phase = "commit"
                engine.committed(job, given, monotonic())
                return
            except BaseException as error:
                broken = conn is None or (isinstance(conn, psycopg.AsyncConnection) and not usable(conn))
                next_ = engine.after_rollback(job, error, phase, broken, reruns)
                if isinstance(next_, BaseException):
                    engine.ended(job, [next_], monotonic())
                    return
                if next_ == "confirm":
                    await asyncio.sleep(min(2.0, 0.05 * 2**reruns) if reruns else 0)
                if next_ == "drop" or (next_ == "confirm" and not await self._is_ours(run)):
                    engine.dropped(job, monotonic(), None if next_ == "confirm" else str(error))
                    return
            reruns += 1

    @contextlib.asynccontextmanager
    async def _transaction(self, given: Any) -> AsyncGenerator[Any, None]:
        async with self._lender.lend() if given is True else given() as conn:
            yield conn

    async def _is_ours(self, run: Run) -> bool:
        """Asks the server whether a document is still leased: after a commit without an answer, it is not."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()

        def done(problem: BaseException | None) -> None:
            _later(loop, lambda: None if answer.done() else answer.set_result(problem is None))

        self.engine.confirm(run, done)
        return await answer


def _later(loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # The loop is closed.
        loop.call_soon_threadsafe(work)


async def _until(turn: asyncio.Event, seconds: float) -> None:
    """Waits for a signal, or for a time."""
    turn.clear()
    timer = None if seconds == math.inf else asyncio.get_running_loop().call_later(max(0.0, seconds), turn.set)
    try:
        await turn.wait()
    finally:
        if timer is not None:
            timer.cancel()
