"""Help for tests: a recorder instead of a server, one call of a handler, and a worker that empties queues."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from . import _sql
from ._connect import Source, connect, run
from ._handling import Prepared, call
from ._json import dumps
from ._runs import Job, Run, Settings, Stored
from ._verdicts import verdict
from .app import App, record
from .context import AsyncContext, Context, monotonic
from .engine import Engine
from .errors import Reason
from .outcomes import Complete, Outcome
from .tasks import TASK_HEADER, Doc, Put, TaskBase
from .worker import Worker

P = TypeVar("P")


class Fake:
    """What was put, by all apps of the process, while no server was asked."""

    def __init__(self) -> None:
        self.docs: list[Doc] = []
        self._subjects: set[tuple[str, str]] = set()

    def puts(self, task: TaskBase[P]) -> list[P]:
        """The payloads that were put for a task."""
        return [doc.payload for doc in self.of(task)]

    def of(self, task: TaskBase[Any]) -> list[Doc]:
        """The documents that were put for a task, with their options."""
        return [doc for doc in self.docs if doc.task is task]

    def clear(self) -> None:
        self.docs.clear()
        self._subjects.clear()

    def record(self, docs: Sequence[Doc]) -> list[Put]:
        results: list[Put] = []
        for doc in docs:
            dumps(doc.as_json())  # What cannot be sent fails here, too.
            subject = doc.options.get("subject") or f"fake-{len(self.docs) + 1}"
            is_new = (doc.queue, subject) not in self._subjects
            updates = (doc.options.get("mode") or "ignore") not in ("ignore", "once")
            self._subjects.add((doc.queue, subject))
            self.docs.append(doc)
            results.append(Put(subject, "created" if is_new else "updated" if updates else "ignored"))
        return results


@contextlib.contextmanager
def fake() -> Generator[Fake, None, None]:
    """Records puts instead of sending them: ``with fake() as puts: …``. Queries of documents still need a
    server."""
    recorder = Fake()
    before = record(recorder.record)
    try:
        yield recorder
    finally:
        record(before)


class _Alone(Engine):
    """An engine for one call of a handler: progress and steps are stored in the document at hand."""

    def store_progress(self, run: Run, progress: Any, done: Stored | None) -> None:
        run.progress = progress
        if done is not None:
            done(None)


def _job(task: TaskBase[Any], payload: Any, attempts: int, options: dict[str, Any]) -> tuple[_Alone, Job]:
    engine = _Alone([task], Settings(name="test"))
    lane = next(lane for lane in engine.lanes if lane.version == options.get("version", task.version))
    headers = dict(options.get("headers") or {})
    if task.name is not None:
        headers[TASK_HEADER] = task.name
    now = time.time()
    progress = options.get("progress")
    row: tuple[Any, ...] = (
        options.get("subject", "test"),
        dumps(payload),
        dumps(headers),
        attempts,
        options.get("max_attempts", 25),
    )
    row += (1, 60.0, now + 60, now, now, 0, 0, options.get("last_error"))
    run = Run(lane, (*row, None if progress is None else dumps(progress)), monotonic())
    if (reason := options.get("reason")) is not None:
        run.abort(reason)
    return engine, Job(task, [run])


def _verdict(engine: Engine, job: Job, prepared: Prepared, result: Any) -> Outcome:
    given = prepared.outcomes(result)[0]
    run = job.runs[0]
    outcome = given if isinstance(given, Outcome) else verdict(given or Complete(), job.task, run.reason, engine.worker)
    if outcome.succeeds and run.context is not None:
        outcome.then = (*outcome.then, *run.context.follow_ups)
    return outcome


def run_task(
    task: TaskBase[P],
    payload: P | None = None,
    *,
    attempts: int = 1,
    conn: Any = None,
    headers: dict[str, Any] | None = None,
    progress: Any = None,
    reason: Reason | None = None,
    subject: str = "test",
) -> Outcome:
    """Calls the handler of a task once, as a worker does: the payload goes through JSON, and what is returned or
    raised becomes an outcome. ``attempts`` is the number of the attempt, ``conn`` is for a transactional handler,
    ``reason`` tells it to stop from the beginning."""
    options = {"headers": headers, "progress": progress, "reason": reason, "subject": subject}
    engine, job = _job(task, payload, attempts, options)
    prepared = Prepared(engine, job, Context)
    for ctx in prepared.contexts:
        ctx.conn = conn
    return _verdict(engine, job, prepared, call(prepared, ()) if prepared.count else None)


async def arun_task(
    task: TaskBase[P],
    payload: P | None = None,
    *,
    attempts: int = 1,
    conn: Any = None,
    headers: dict[str, Any] | None = None,
    progress: Any = None,
    reason: Reason | None = None,
    subject: str = "test",
) -> Outcome:
    """The same, for an asynchronous handler."""
    options = {"headers": headers, "progress": progress, "reason": reason, "subject": subject}
    engine, job = _job(task, payload, attempts, options)
    prepared = Prepared(engine, job, AsyncContext)
    for ctx in prepared.contexts:
        ctx.conn = conn
    result: Any = None
    if prepared.count:
        try:
            result = await task.function(*prepared.arguments)
        except BaseException as error:
            result = error
    return _verdict(engine, job, prepared, result)


def drain(app: App, source: Source | None = None, *, planned: bool = False, timeout: float = 30) -> dict[str, int]:
    """Works on the queues of an app until nothing is due any more; gives how many documents were settled, by
    outcome. With ``planned``, documents that are due later are due now. Documents that wait for a retry stay."""
    source = app.lender.source if source is None else source
    queues = sorted({task.queue for task in app.tasks})
    deadline = time.monotonic() + timeout
    with contextlib.closing(connect(source)) as conn:
        if planned:
            for queue in queues:
                run(conn, _sql.due_now(queue))
        with Worker(app, source) as worker:
            # Counts are not of one moment: nothing must be there several times in a row.
            still = 0
            while still < 3:
                left = any(run(conn, _sql.open_documents(queue))[0][0] for queue in queues)
                still = 0 if left or worker.metrics()["slots_used"] else still + 1
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the queues {', '.join(queues)} were not empty after {timeout:g} s")
                time.sleep(0.02)
        return dict(worker.metrics()["settled"])
