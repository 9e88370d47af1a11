"""What the engine keeps in mind: documents, jobs, lanes, and calls on their way."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable
from typing import Any, Literal

from . import _sql
from ._connect import Row
from ._json import loads
from .context import BaseContext
from .errors import ConfigError, Reason
from .outcomes import interval
from .tasks import TaskBase

Stored = Callable[[BaseException | None], None]


class Settings:
    """Options of a worker."""

    def __init__(
        self,
        *,
        name: str,
        exclusive: bool = True,
        concurrency: int = 10,
        grace: float = 25,
        abort_grace: float = 5,
        stuck_after: float = 10,
        free_stuck: bool = False,
        polling: bool = False,
        poll: float = 1.0,
        wait: float = 60.0,
        max_bytes: int = 64 << 20,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        if concurrency < 1 or not 1 <= len(name) <= 200:
            raise ConfigError("a worker has a concurrency of at least 1, and a name of 1 to 200 characters")
        self.name = name
        self.exclusive = exclusive
        self.concurrency = concurrency
        self.grace = grace
        self.abort_grace = abort_grace
        self.stuck_after = stuck_after
        self.free_stuck = free_stuck
        self.polling = polling
        self.poll = poll
        self.wait = wait
        self.max_bytes = max_bytes
        self.redact = redact


class Slots:
    """The slots of a task, which all its versions share."""

    def __init__(self, limit: int, weight: int) -> None:
        self.limit = limit
        self.weight = weight
        self.jobs = 0


class Settled:
    """A settlement on its way. ``run`` is None for a document that was leased without our knowing."""

    resent = False
    tries = 0

    def __init__(self, run: Run | None, body: str, action: str, last_resort: bool = False) -> None:
        self.run = run
        self.body = body
        self.action = action
        self.last_resort = last_resort


class Lane:
    """One version of one queue: at most one call at a time settles and leases its documents."""

    def __init__(self, queue: str, version: int, slots: Slots) -> None:
        self.queue = queue
        self.version = version
        self.slots = slots
        self.tasks: dict[str | None, TaskBase[Any]] = {}
        self.task: TaskBase[Any] | None = None  # Of a document that names none.
        self.lease: str | None = None
        self.batch = 1
        self.ready = True  # There may be documents.
        self.calling = False
        self.settle: list[Settled] = []
        self.settle_at = math.inf
        self.held: list[Settled] = []  # They conflict again and again, and must not keep the others waiting.
        self.held_at = math.inf
        self.not_before = 0.0
        self.failures = 0
        self.isolate = 0  # The server has refused a list of this length: settle one at a time.
        self.misses = 0
        self.quiet_at = math.inf
        self.poll_at = math.inf
        self.sweeps: list[tuple[float, int]] = []
        self.closed = False  # The worker was asked to stop for this queue.


class Run:
    """A document that is leased."""

    # What most documents never get is not written for each of them.
    dirty = stuck = limited = settling = gone = False
    aborted_at = timeout_at = math.inf
    reason: Reason | None = None
    started: float | None = None
    stored: tuple[Stored, ...] = ()
    job: Job | None = None
    context: BaseContext | None = None
    _stop: threading.Event | None = None

    def __init__(self, lane: Lane, row: Row, sent: float, jitter: float = 1.0) -> None:
        self.lane = lane
        self.queue = lane.queue
        (self.subject, self.payload, headers, self.attempts, self.max_attempts, self.lease, seconds, self.ends,
         self.created_at, self.due_at, self.priority, self.iterations, self.last_error, progress) = row  # fmt: skip
        self.key: tuple[str, str] = (lane.queue, self.subject)
        self.headers: dict[str, Any] = loads(headers) if headers else {}
        self.progress: Any = loads(progress) if progress else None
        self.size = len(self.payload or "")
        self.seconds = seconds
        self.sent = self.beat_sent = sent
        # Not from the time of the answer: the lease began before it.
        self.deadline = sent + seconds
        self.next_beat = sent + self.seconds / 3 * jitter

    @property
    def stop(self) -> threading.Event:
        """Set when the run is aborted. It is made for a handler that asks for it."""
        if self._stop is None:
            self._stop = threading.Event()
            if self.reason is not None:
                self._stop.set()
        return self._stop

    def abort(self, reason: Reason) -> None:
        self.reason = reason
        if self._stop is not None:
            self._stop.set()


class Job:
    """Documents that one call of a handler works on: one, or a batch."""

    cancel: Callable[[], None] | None = None  # Set by the driver: aborts the handler.
    running: Any = None  # In asyncio, the task, while the handler itself runs.
    ended = False

    def __init__(self, task: TaskBase[Any], runs: list[Run]) -> None:
        self.task = task
        self.runs = runs
        self.slots = runs[0].lane.slots


class Call:
    """A call for a lane. ``leases`` looks for documents that were leased by a call without an answer."""

    def __init__(
        self, lane: Lane, what: Literal["next", "settle", "leases"], settled: list[Settled], max_docs: int
    ) -> None:
        self.lane = lane
        self.what = what
        self.settled = settled
        self.max_docs = max_docs
        self.sent = 0.0
        self.pid = 0
        self.query = _sql.info()


class Beat:
    """A call that extends leases."""

    def __init__(self, runs: list[Run], query: _sql.Query, sent: float) -> None:
        self.runs = runs
        self.query = query
        self.sent = sent
        self.stored = {run.key: run.stored for run in runs}
        for run in runs:
            run.stored = ()


class Group:
    """The lanes of a version, for which one session waits."""

    def __init__(self, version: int, lanes: list[Lane], *, first: bool) -> None:
        self.version = version
        self.lanes = lanes
        self.first = first
        self.mark: list[int] | None = None
        self.call: WaitCall | None = None
        self.not_before = 0.0
        self.busy_at = math.inf  # Since when all slots are taken, or since the wait before has ended.
        self.interrupted_at = -math.inf
        self.timeout = math.inf
        self.failures = 0


class WaitCall:
    def __init__(
        self, queues: set[str], watched: dict[tuple[str, str], int], query: _sql.Query, sent: float, longest: float
    ) -> None:
        self.longest = longest
        self.queues = queues
        self.watched = watched
        self.query = query
        self.sent = sent
        self.interrupted = False


def lanes_of(tasks: Iterable[TaskBase[Any]], concurrency: int) -> list[Lane]:
    """A lane for each version of each queue. Tasks that share a queue share its slots."""
    lanes: dict[tuple[str, int], Lane] = {}
    slots: dict[str, Slots] = {}
    for task in tasks:
        limit = min(task.concurrency or concurrency, concurrency)
        if (shared := slots.get(task.queue)) is None:
            shared = slots[task.queue] = Slots(limit, task.weight)
        else:
            shared.limit = min(shared.limit + limit, concurrency)
        for version in task.versions():
            lane = lanes.setdefault((task.queue, version), Lane(task.queue, version, shared))
            lane.tasks.setdefault(task.name, task)
            lane.batch = max(lane.batch, task.batch)
            if task.lease is not None:
                lane.lease = interval(task.lease)
    for lane in lanes.values():
        lane.task = next(iter(lane.tasks.values())) if len(lane.tasks) == 1 else lane.tasks.get(None)
    return list(lanes.values())
