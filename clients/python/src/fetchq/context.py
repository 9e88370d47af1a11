"""What a handler knows about its document, and what it can say while it works."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Awaitable, Callable, MutableMapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ._json import clean, dumps, loads
from .errors import Aborted, Reason

if TYPE_CHECKING:
    from ._runs import Run
    from .engine import Engine
    from .tasks import Doc, TaskBase

R = TypeVar("R")
STEPS = "fetchq-steps"
"""The key of the progress of a document under which results of steps are kept."""

logger = logging.getLogger("fetchq")
monotonic = time.monotonic
"""The clock of all deadlines: it is not set, and does not stop."""


class DocumentLog(logging.LoggerAdapter["logging.Logger"]):
    """A logger whose lines name the document."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs


class BaseContext:
    """What contexts of threads and of asyncio share."""

    def __init__(self, engine: Engine, run: Run, task: TaskBase[Any]) -> None:
        self._engine = engine
        self._run = run
        self.task: TaskBase[Any] = task
        self.queue: str = run.queue
        self.subject: str = run.subject
        self.version: int = run.lane.version
        self.lease: int = run.lease
        """The number of the lease."""
        self.attempt: int = run.attempts
        """The number of this attempt, from 1 on."""
        self.max_attempts: int | None = run.max_attempts
        self.priority: int = run.priority
        self.headers: dict[str, Any] = run.headers
        self.last_error: str | None = run.last_error
        """Why the attempt before has failed."""
        self.worker: str = engine.worker
        self.conn: Any = None
        """In a transactional handler: the connection, in its transaction."""
        self.follow_ups: list[Doc] = []
        self.outcome: Any = None
        """What the handler has returned, for middleware that looks at it afterwards."""
        fields = {
            "queue": run.queue,
            "subject": run.subject,
            "attempt": run.attempts,
            "worker": engine.worker,
        }
        self.log = DocumentLog(logger, fields)
        """A logger that names the document in each line."""

    @property
    def created_at(self) -> datetime:
        """When the document was put."""
        return datetime.fromtimestamp(self._run.created_at, timezone.utc)

    @property
    def due_at(self) -> datetime:
        """When it was due."""
        return datetime.fromtimestamp(self._run.due_at, timezone.utc)

    @property
    def reason(self) -> Reason | None:
        """Why the handler has to stop: ``cancelled``, ``lost``, ``timeout`` or ``shutdown``. None: it need not."""
        return self._run.reason

    @property
    def is_last_attempt(self) -> bool:
        return self.max_attempts is not None and self.attempt >= self.max_attempts

    @property
    def stored(self) -> Any:
        """The progress that this attempt or one before has stored, without the results of steps."""
        value: Any = self._run.progress
        if not isinstance(value, dict) or STEPS not in value:
            return value  # pyright: ignore
        rest: dict[str, Any] = {k: v for k, v in value.items() if k != STEPS}  # pyright: ignore
        return rest.get("value", rest or None) if rest.keys() <= {"value"} else rest

    def then(self, *docs: Doc) -> None:
        """Puts documents in the commit that settles this one, if it succeeds."""
        self.follow_ups += docs

    def progress(self, value: Any) -> None:
        """Says how far the work has come. The server stores it with the next heartbeat, at the latest after a
        second; the next attempt finds it in :attr:`stored`."""
        self._engine.store_progress(self._run, self._with_steps(value), None)

    def _steps(self) -> dict[str, Any]:
        value = self._run.progress
        if isinstance(value, dict):
            return cast("dict[str, Any]", value.get(STEPS) or {})  # pyright: ignore
        return {}

    def _with_steps(self, value: Any) -> Any:
        steps = self._steps()
        value = clean(loads(dumps(value)))
        if not steps:
            return value
        rest = cast("dict[str, Any]", value if isinstance(value, dict) else {"value": value})
        return {**rest, STEPS: steps}

    def _store_step(self, name: str, value: Any, done: Callable[[BaseException | None], None]) -> Any:
        """Keeps the result of a step, and gives it as the next attempt will find it."""
        value = loads(dumps(value))
        before = self._run.progress
        rest: dict[str, Any]
        if isinstance(before, dict):
            rest = {k: v for k, v in before.items() if k != STEPS}  # pyright: ignore
        else:
            rest = {} if before is None else {"value": before}
        self._engine.store_progress(self._run, {**rest, STEPS: {**self._steps(), name: value}}, done)
        return value


class Context(BaseContext):
    """The context of a handler that runs in a thread."""

    @property
    def stop(self) -> threading.Event:
        """Set when the handler has to stop. Wait for it instead of sleeping."""
        return self._run.stop

    def check(self) -> None:
        """Raises :class:`~fetchq.Aborted` when the handler has to stop."""
        if self.reason is not None:
            raise Aborted(self.reason)

    def sleep(self, seconds: float) -> None:
        """Sleeps, and raises :class:`~fetchq.Aborted` as soon as the handler has to stop."""
        self._run.stop.wait(seconds)
        self.check()

    def step(self, name: str, function: Callable[[], R]) -> R:
        """The result of a function, which is kept over retries: it is called only where no attempt before has
        kept it. The result is JSON, small, and stored before this returns."""
        self.check()
        steps = self._steps()
        if name in steps:
            return cast("R", steps[name])
        value = function()
        stored, problems = threading.Event(), list[BaseException]()

        def done(problem: BaseException | None) -> None:
            problems.extend([problem] if problem else [])
            stored.set()

        kept = self._store_step(name, value, done)
        while not stored.wait(0.5):
            self.check()
        if problems:
            raise problems[0]
        return cast("R", kept)


class AsyncContext(BaseContext):
    """The context of a handler that runs in an event loop. When it has to stop, its task is cancelled, and
    :attr:`reason` says why."""

    def check(self) -> None:
        """Raises :class:`~fetchq.Aborted` when the handler has to stop."""
        if self.reason is not None:
            raise Aborted(self.reason)

    async def sleep(self, seconds: float) -> None:
        """Sleeps, or ends when the handler has to stop."""
        self.check()
        await asyncio.sleep(seconds)

    async def step(self, name: str, function: Callable[[], Awaitable[R] | R]) -> R:
        """The result of a function, which is kept over retries: it is called only where no attempt before has
        kept it. The result is JSON, small, and stored before this returns."""
        self.check()
        steps = self._steps()
        if name in steps:
            return cast("R", steps[name])
        value = function()
        if inspect.isawaitable(value):
            value = await value
        loop = asyncio.get_running_loop()
        stored: asyncio.Future[BaseException | None] = loop.create_future()

        def done(problem: BaseException | None) -> None:
            loop.call_soon_threadsafe(_resolve, stored, problem)

        kept = self._store_step(name, value, done)
        if problem := await stored:
            raise problem
        return cast("R", kept)


def _resolve(future: asyncio.Future[R], value: R) -> None:
    if not future.done():
        future.set_result(value)
