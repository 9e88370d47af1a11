"""Running handlers: what threads and asyncio share, and the thread of the heartbeat."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import psycopg

from . import _sql
from ._connect import Row, largest, run
from ._json import loads
from ._runs import Call, Job, Run, Settings
from .app import check_info, missing_extension
from .context import BaseContext, Context, monotonic
from .engine import NO_VERSION, Engine
from .errors import ConfigError, FetchqError, InvalidResult, sqlstate
from .outcomes import Complete, Outcome, describe
from .plugins import Plugin
from .tasks import Batch, TaskBase

logger = logging.getLogger("fetchq")


class Makes(Protocol):
    """The class of a context."""

    def __call__(self, engine: Engine, run: Run, task: TaskBase[Any]) -> BaseContext: ...


class Prepared:
    """The arguments of one call of a handler. Documents whose payload does not decode are settled already."""

    def __init__(self, engine: Engine, job: Job, make: Makes, *, needed: bool = True) -> None:
        """``needed``: contexts are made also for a handler that takes none."""
        task = job.task
        self.job, self.task = job, task
        self.contexts: list[Any] = []
        self.failures: dict[int, BaseException] = {}
        payloads: list[Any] = []
        for one in job.runs:
            try:
                payloads.append(task.decode(loads(one.payload) if one.payload else None, one.lane.version))
            except Exception as error:  # An upcast of the application may raise anything.
                self.failures[id(one)] = error
                continue
            if needed or task.takes_context or task.batch:
                one.context = make(engine, one, task)
                self.contexts.append(one.context)
        self.count = len(payloads)
        self.arguments: list[Any] = [Batch(payloads, self.contexts)] if task.batch else payloads
        if task.takes_context and payloads:
            self.arguments.append(self.contexts if task.batch else self.contexts[0])

    def note(self, result: Any) -> None:
        """Tells the contexts what the handler has returned, for the middleware."""
        if not self.task.batch:
            self.contexts[0].outcome = outcome_of(result)

    def outcomes(self, result: Any) -> list[Outcome | BaseException | None]:
        """The outcome of each document of the job, in its order, from what the handler has returned."""
        if not self.task.batch and not self.failures:
            return [as_outcome(result)]
        results: list[Any] = [result] * self.count
        if self.task.batch and result is not None and not isinstance(result, (Outcome, BaseException)):
            if isinstance(result, (list, tuple)) and len(result) == self.count:  # pyright: ignore
                results = list(result)  # pyright: ignore
            else:
                wrong = InvalidResult(f"{self.task} must return a list with an outcome for each document, or nothing")
                results = [wrong] * self.count
        good = iter(results)
        return [self.failures[id(one)] if id(one) in self.failures else as_outcome(next(good)) for one in self.job.runs]


def outcome_of(value: Any) -> Outcome | BaseException:
    """What a handler has returned or raised, as an outcome; an error stays one, for the rules of the task."""
    given = as_outcome(value)
    return Complete() if given is None else given


def as_outcome(value: Any) -> Outcome | BaseException | None:
    """The same, without an object for None, which completes the document."""
    if value is None or isinstance(value, BaseException):
        return value
    if isinstance(value, type) and issubclass(value, Outcome):
        return value()
    return Complete(value)


def worker_name() -> str:
    """The default name of a worker: host, process and a random number, so that no two are alike."""
    return f"{socket.gethostname()[:100]}-{os.getpid()}-{secrets.token_hex(3)}"


def check(conn: psycopg.Connection[Any], engine: Engine) -> None:
    """Checks at the start that the extension is there and new enough, and that the queues can be worked on."""
    try:
        rows = run(conn, _sql.info())
        preloaded = check_info(rows)
        # A pooler gives its clients numbers of its own.
        engine.pooled = rows[0][2] != conn.info.backend_pid
        for queue in sorted({lane.queue for lane in engine.lanes}):
            # It settles nothing, and fails where the worker could settle nothing.
            run(conn, _sql.settle(queue, "[]"))
    except psycopg.Error as error:
        text = describe(error).splitlines()[0]
        if sqlstate(error) == "42704":
            raise ConfigError(f"{text}: run app.sync() to create the queues of the app") from error
        if sqlstate(error) == "42501":
            raise ConfigError(f"{text}: run fetchq.queue_grant(queue, role, 'worker')") from error
        raise missing_extension(error) or error from error
    if engine.polling:
        logger.info("the worker polls every %g s, as its options say", engine.settings.poll)
    elif not preloaded:
        engine.poll_from_now_on("the library fetchq is not in shared_preload_libraries")
    else:
        for group in engine.groups:
            # Requests to stop count from now on, not from the first wait, which may begin later or be interrupted.
            queues = sorted({lane.queue for lane in group.lanes})
            group.mark = run(conn, _sql.wait(queues, engine.worker, "0", "[]", NO_VERSION, None))[0][3]


def check_pool(source: Any, engine: Engine, tasks: Sequence[TaskBase[Any]]) -> None:
    """Refuses a pool that is smaller than the number of transactional handlers that run at once."""
    wanted = sum(min(t.concurrency or engine.settings.concurrency, engine.settings.concurrency) for t in tasks)
    wanted = min(wanted, engine.settings.concurrency)
    size = largest(source)
    if size is not None and size < 2:
        # A wait for a result would keep every put of this process waiting.
        raise ConfigError(f"the pool has at most {size} connection: give it max_size=2 or more")
    if size is not None and size < wanted:
        raise ConfigError(
            f"the pool has at most {size} connections, and {wanted} transactional handlers may run at once: give it "
            f"max_size={wanted} or more, or the tasks or the worker a smaller concurrency"
        )


class Line:
    """A connection that settles and leases. It collects warnings: ``docs_next`` names in one what was not settled."""

    def __init__(self, conn: Any, engine: Engine) -> None:
        self.conn = conn
        self.pid: int = conn.info.backend_pid
        self.warnings: list[str] = []
        # A statement is planned once, but not behind a pooler, which may lend each transaction another session.
        conn.prepare_threshold = None if engine.pooled else 0
        conn.add_notice_handler(self._add)

    def _add(self, diag: psycopg.errors.Diagnostic) -> None:
        if diag.sqlstate == "55000" and diag.message_primary:
            self.warnings.append(diag.message_primary)

    def report(self, engine: Engine, queue: str) -> None:
        texts, self.warnings = self.warnings, []
        for text in texts:
            engine.unsettled(queue, text)


class Heart(threading.Thread):
    """Extends leases, in a thread and on a connection of its own: neither a handler that keeps the event loop nor
    an empty pool can lose one."""

    def __init__(self, engine: Engine, connect: Callable[[], psycopg.Connection[Any]]) -> None:
        super().__init__(name="fetchq-heart", daemon=True)
        self.engine = engine
        self.connect = connect
        self.conn: psycopg.Connection[Any] | None = None
        self.turn = threading.Condition(engine.lock)
        self.closing = False

    def run(self) -> None:
        while True:
            with self.turn:
                while not self.closing and (left := self.engine.next_beat() - monotonic()) > 0:
                    self.turn.wait(None if left == math.inf else left)
                if self.closing:
                    break
                beats = self.engine.take_beats(monotonic())
            for beat in beats:
                try:
                    if self.conn is None or self.conn.closed:
                        self.conn = self.connect()
                    rows: list[Row] = run(self.conn, beat.query)
                except Exception as error:  # Whatever it is: the next beat comes.
                    pause = self.engine.beat_failed(beat, error, monotonic())
                    if not isinstance(error, FetchqError) and self.conn is not None and sqlstate(error) is None:
                        self.conn.close()
                    with self.turn:
                        self.turn.wait_for(lambda: self.closing, pause)
                else:
                    self.engine.beaten(beat, rows, monotonic())
        if self.conn is not None:
            self.conn.close()

    def wake(self) -> None:
        with self.turn:
            self.turn.notify_all()

    def close(self) -> None:
        with self.turn:
            self.closing = True
            self.turn.notify_all()


class Crew:
    """Threads that are all alike: each makes the call that is due, or runs the next handler, or waits. So a handler
    that ends at once costs no change of threads: the thread that has the answer of a call runs the handlers, and
    makes the next call. Another one is woken meanwhile, which does what is left where a handler waits for something.

    They are daemons. Those of ``concurrent.futures`` are waited for when the interpreter ends, so a handler that hangs
    would keep the process."""

    def __init__(
        self,
        engine: Engine,
        work: Callable[[Job], None],
        call: Callable[[Call], list[Job]] | None = None,
        calls: int = 0,
    ) -> None:
        """``calls`` is how many may be made at once."""
        self._engine = engine
        self._work = work
        self._call = call
        self._lines = calls
        self._turn = threading.Condition(engine.lock)
        self._todo: deque[Job] = deque()
        self._idle = 0
        self._alarm = math.inf  # When one of those that wait looks whether a call is due.
        self._waking = self._closed = False

    def start(self, jobs: Sequence[Job] = ()) -> None:
        """Runs jobs."""
        with self._turn:
            self._todo.extend(jobs)
            self.wake()

    def wake(self) -> None:
        """Lets one more thread look what there is to do, which wakes the next one."""
        with self._turn:
            if self._waking or self._closed:
                return
            self._waking = True
            if self._idle:
                self._turn.notify()
            else:
                threading.Thread(target=self._run, name="fetchq-handler", daemon=True).start()

    def close(self) -> None:
        """Ends the threads that wait, and the others as soon as they have nothing to do."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()

    def _run(self) -> None:
        with self._turn:
            self._waking = False
            work = self._next()
        while work is not None:
            if isinstance(work, Job):
                try:
                    self._work(work)
                except BaseException as error:  # A defect here must not cost a slot.
                    logger.exception("a handler thread failed")
                    self._engine.ended(work, [error] * len(work.runs), monotonic())
            elif self._call is not None:
                jobs = self._call(work)
                with self._turn:
                    self._lines += 1
                    self._todo.extend(jobs)
            work = self._next()

    def _next(self) -> Job | Call | None:
        """What this thread does next; None: nothing any more."""
        with self._turn:
            while True:
                now = monotonic()
                due = self._engine.take_call(now) if self._lines else math.inf
                if isinstance(due, Call):
                    self._lines -= 1
                    if self._todo or (self._lines and self._engine.next_call(now) < self._alarm):
                        self.wake()
                    return due
                if self._todo:
                    job = self._todo.popleft()
                    if self._todo or due < self._alarm:
                        self.wake()
                    return job
                if self._closed:
                    return None
                self._idle += 1
                if due < self._alarm:
                    self._alarm = due
                    self._turn.wait(due - now)
                    if self._alarm == due:
                        self._alarm = math.inf
                else:
                    self._turn.wait()
                self._idle -= 1
                self._waking = False


def work_in_thread(engine: Engine, plugins: Sequence[Plugin], job: Job) -> None:
    """Runs a plain handler in this thread."""
    if not engine.begin(job, monotonic()):
        return
    prepared = Prepared(engine, job, Context, needed=bool(plugins))
    result = call(prepared, plugins) if prepared.count else None
    engine.ended(job, prepared.outcomes(result), monotonic())


def call(prepared: Prepared, plugins: Sequence[Plugin]) -> Any:
    """Calls a handler with its middleware; gives what it has returned or raised."""
    try:
        if not plugins:
            return prepared.task.function(*prepared.arguments)
        with contextlib.ExitStack() as stack:
            for ctx in prepared.contexts:
                for plugin in plugins:
                    stack.enter_context(plugin.handle(ctx))  # type: ignore[arg-type]
            try:
                result = prepared.task.function(*prepared.arguments)
            except Outcome as outcome:
                result = outcome
            prepared.note(result)
            return result
    except BaseException as error:  # SystemExit, too, ends a handler only.
        return error


def hang_up(conn: Any) -> None:
    """Ends a connection that another thread or task waits on: what it waits for fails."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(conn.fileno())) as line:
        line.shutdown(socket.SHUT_RDWR)


def make_settings(name: str | None, options: dict[str, Any]) -> Settings:
    """Options of a worker. A name that the client makes belongs to one process."""
    return Settings(name=name or worker_name(), exclusive=name is None, **options)
