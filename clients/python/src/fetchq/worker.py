"""The worker with threads."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal as signals
import threading
from collections.abc import Callable, Generator, Iterable
from types import FrameType
from typing import Any

import psycopg
from typing_extensions import Self

from . import _sql
from ._connect import Lender, Source, connect, run, usable
from ._handling import (
    Crew,
    Heart,
    Line,
    Prepared,
    call,
    check,
    check_pool,
    hang_up,
    make_settings,
    outcome_of,
    work_in_thread,
)
from ._runs import Call, Group, Job
from .app import App
from .context import Context, logger, monotonic
from .engine import Engine, Topic
from .errors import ConfigError
from .outcomes import Outcome, settlement
from .plugins import Plugin
from .tasks import Doc


class Worker:
    """Works on the tasks of an app, each handler in a thread.

    It needs connections of its own beside those of the pool: one that waits, one for the heartbeat, and as many as
    ``calls``. It opens them with the parameters of the pool. The pool itself serves transactional handlers.
    """

    def __init__(
        self,
        app: App,
        source: Source | None = None,
        *,
        name: str | None = None,
        queues: Iterable[str] | None = None,
        plugins: Iterable[Plugin] = (),
        calls: int = 2,
        **options: Any,
    ) -> None:
        """``source`` is where connections come from, by default that of the app. ``name`` is what the worker is
        called in the database; a name that is given may be shared by processes. ``queues`` are those to work on, by
        default all of the app. The options are those of :class:`~fetchq.engine.Settings`: ``concurrency``,
        ``grace`` and others."""
        wanted = None if queues is None else set(queues)
        tasks = [task for task in app.tasks if wanted is None or task.queue in wanted]
        self.app = app
        self.source: Source = app.lender.source if source is None else source
        self.plugins = [*app.plugins, *plugins]
        self.engine = Engine(tasks, make_settings(name, options), self.plugins, self._signal)
        self.name = self.engine.worker
        check_pool(self.source, self.engine, [task for task in tasks if task.transaction is True])
        self._lender = Lender(self.source)
        self._turns: dict[Topic, threading.Condition] = {
            topic: threading.Condition(self.engine.lock) for topic in ("wait", "tick")
        }
        self._heart = Heart(self.engine, lambda: connect(self.source))
        self._crew = Crew(self.engine, self._work, self._call, calls)
        self._threads: list[threading.Thread] = []
        self._lines: list[Line] = []  # That are free.
        self._calling: set[Line] = set()
        self._waiting: dict[int, psycopg.Connection[Any]] = {}
        self._started = False
        self._ended = threading.Event()

    # ------------------------------------------------------------------------------------- for the application

    def start(self) -> Self:
        """Checks the server, and starts to work. Returns at once."""
        if self._started:
            raise ConfigError("a worker is started once: make another one")
        self._started = True
        first = connect(self.source)
        try:
            check(first, self.engine)
            self._heart.conn = connect(self.source)
        except BaseException:
            first.close()
            raise
        self._lines.append(Line(first, self.engine))
        self._heart.start()
        self._spawn("clock", self._clock)
        self._crew.wake()
        for group in self.engine.groups:
            self._spawn(f"wait-{group.version}", functools.partial(self._waiter, group))
        return self

    def stop(self, grace: float | None = None, *, now: bool = False) -> None:
        """Leases no more documents. Handlers have ``grace`` seconds to finish; then the worker asks them to stop, and
        their documents go back without counting the attempt. With ``now``, nobody is
        waited for, and all documents go back. Returns at once: see :meth:`join`."""
        if now:
            self.engine.abandon(monotonic())
        else:
            self.engine.ask_stop(grace)

    def join(self, timeout: float | None = None) -> bool:
        """Waits until the worker has stopped. Raises the error that has ended it, if it was one."""
        ended = self._ended.wait(timeout)
        if ended and self.engine.fatal is not None:
            raise self.engine.fatal
        return ended

    def run(self, *, signals: bool = False) -> None:
        """Works until the worker is stopped. With ``signals``, SIGTERM and SIGINT stop it. A second one
        stops it at once, a third one ends the process."""
        with self._handling() if signals else contextlib.nullcontext():
            self.start()
            self.join()

    def health(self) -> dict[str, Any]:
        """For probes: ``ok``, whether the database answers, whether the loops turn, the age of the heartbeat."""
        health = self.engine.health(monotonic())
        health["loops"] = health["loops"] and self._started and all(t.is_alive() for t in self._threads)
        health["ok"] = health["ok"] and health["loops"]
        return health

    def metrics(self) -> dict[str, Any]:
        """Sums since the start: settled by outcome, lost, stuck, handled, seconds of handlers, calls."""
        return self.engine.metrics()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    @contextlib.contextmanager
    def _handling(self) -> Generator[None, None, None]:
        seen = 0

        def handle(number: int, _: FrameType | None) -> None:
            nonlocal seen
            seen += 1
            if seen > 2:
                os._exit(128 + number)
            logger.info("the worker stops%s: signal %d", " at once" if seen == 2 else "", number)
            # In a thread: the signal may have interrupted code of this thread that has the lock.
            threading.Thread(target=self.stop, kwargs={"now": seen == 2}, daemon=True).start()

        before = {number: signals.signal(number, handle) for number in (signals.SIGTERM, signals.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signals.signal(number, handler)

    # ----------------------------------------------------------------------------------------------- threads

    def _spawn(self, name: str, work: Callable[[], None]) -> None:
        thread = threading.Thread(target=work, name=f"fetchq-{name}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _signal(self, topic: Topic) -> None:
        if topic == "beat":
            self._heart.wake()
        elif topic == "call":
            self._crew.wake()
        else:
            with self._turns[topic]:
                self._turns[topic].notify_all()

    def _call(self, todo: Call) -> list[Job]:
        """Makes a call that settles and leases; gives what is to be started."""
        engine = self.engine
        line: Line | None = None
        try:
            line = self._lines.pop() if self._lines else Line(connect(self.source), engine)
            self._calling.add(line)
            todo.sent = monotonic()
            rows = run(line.conn, todo.query)
            if line.warnings:
                line.report(engine, todo.lane.queue)
            return engine.answered(todo, rows, monotonic())
        except Exception as error:  # The engine knows what it means.
            engine.failed(todo, error, monotonic(), pid=0 if line is None else line.pid)
            return []
        finally:
            if line is not None:
                self._calling.discard(line)
                if usable(line.conn):
                    self._lines.append(line)

    def _waiter(self, group: Group) -> None:
        """Waits for documents, for a request to stop, and for leases that are lost."""
        engine, turn = self.engine, self._turns["wait"]
        conn: psycopg.Connection[Any] | None = None
        while True:
            with turn:
                while isinstance(todo := engine.take_wait(group, now := monotonic()), (float, int)):
                    if engine.finished:
                        break
                    turn.wait(None if todo == math.inf else max(0.0, todo - now))
            if isinstance(todo, (float, int)):
                break
            try:
                if conn is None or not usable(conn):
                    conn = self._waiting[group.version] = connect(self.source)
                rows = run(conn, todo.query)
            except Exception as error:  # The engine knows what it means.
                pause = engine.wait_failed(group, error, monotonic())
                with turn:
                    turn.wait_for(lambda: engine.finished, pause)
            else:
                engine.waited(group, rows[0], monotonic())
        if conn is not None:
            conn.close()

    def _clock(self) -> None:
        """Looks at deadlines, and interrupts waits that have become outdated."""
        engine, turn = self.engine, self._turns["tick"]
        while True:
            with turn:
                due, outdated = engine.tick(monotonic())
                if engine.finished:
                    break
                if not outdated:
                    turn.wait(max(0.0, due - monotonic()))
            for group in outdated:
                self._interrupt(group)
        for line in list(self._calling) if engine.abandoned else ():
            hang_up(line.conn)
        self._end()

    def _interrupt(self, group: Group) -> None:
        conn = self._waiting.get(group.version)
        if conn is None or group.call is None:
            return
        try:
            if hasattr(conn, "cancel_safe"):
                conn.cancel_safe(timeout=5)
            else:
                conn.cancel()
        except Exception:  # Such as behind a pooler that has no connection left for a request to cancel.
            hang_up(conn)

    def _end(self) -> None:
        self._crew.close()
        me, deadline = threading.current_thread(), monotonic() + 10
        while any(t.is_alive() for t in self._threads if t is not me) and monotonic() < deadline:
            for group in self.engine.groups:
                self._interrupt(group)
            for thread in self._threads:
                if thread is not me:
                    thread.join(0.05)
        self._heart.close()
        self._heart.join(5)
        for line in self._lines:
            line.conn.close()
        self._lender.close()
        self._ended.set()

    # ---------------------------------------------------------------------------------------------- handlers

    def _work(self, job: Job) -> None:
        if not job.task.transaction:
            work_in_thread(self.engine, self.plugins, job)
        elif self.engine.begin(job, monotonic()):
            prepared = Prepared(self.engine, job, Context)
            if prepared.count:
                self._work_in_transaction(job, prepared)
            else:
                self.engine.ended(job, prepared.outcomes(None), monotonic())

    def _work_in_transaction(self, job: Job, prepared: Prepared) -> None:
        engine, task, ctx = self.engine, job.task, prepared.contexts[0]
        run_ = job.runs[0]
        reruns = 0
        while True:
            phase: Any = "handler"
            conn: Any = None
            ctx.follow_ups = list[Doc]()
            try:
                with self._transaction(task.transaction) as conn:
                    ctx.conn = conn
                    given = outcome_of(call(prepared, self.plugins))
                    if not isinstance(given, Outcome):
                        raise given
                    engine.settles(run_)
                    phase = "settle"
                    body = settlement(run_.subject, run_.lease, given, ctx.follow_ups)
                    run(conn, _sql.settle(run_.queue, f"[{body}]", "error"))
                    phase = "commit"
                engine.committed(job, given, monotonic())
                return
            except BaseException as error:
                next_ = engine.after_rollback(job, error, phase, conn is None or not _usable(conn), reruns)
                if isinstance(next_, BaseException):
                    engine.ended(job, [next_], monotonic())
                    return
                if next_ == "confirm":
                    run_.stop.wait(min(2.0, 0.05 * 2**reruns) if reruns else 0)
                if next_ == "drop" or (next_ == "confirm" and not self._is_ours(run_)):
                    engine.dropped(job, monotonic(), None if next_ == "confirm" else str(error))
                    return
            reruns += 1

    @contextlib.contextmanager
    def _transaction(self, given: Any) -> Generator[Any, None, None]:
        with self._lender.lend() if given is True else given() as conn:
            yield conn

    def _is_ours(self, one: Any) -> bool:
        """Asks the server whether a document is still leased: after a commit without an answer, it is not."""
        answered, problems = threading.Event(), list[BaseException]()

        def done(problem: BaseException | None) -> None:
            problems.extend([problem] if problem else [])
            answered.set()

        self.engine.confirm(one, done)
        answered.wait()
        return not problems


def _usable(conn: Any) -> bool:
    return usable(conn) if isinstance(conn, psycopg.Connection) else True
