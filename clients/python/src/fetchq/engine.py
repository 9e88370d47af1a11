"""The worker without its input and output: what it has to do next, and what an answer means.

The engine knows neither threads nor an event loop nor a connection. A driver asks it for calls (:meth:`take_call`,
:meth:`take_beats`, :meth:`take_wait`), makes them, and reports the answers; it starts the jobs that an answer
brings, and reports what became of them. All times are monotonic seconds that the driver passes in. Each method
takes the lock by itself, because the heartbeat is a thread of its own even in asyncio.
"""

from __future__ import annotations

import functools
import logging
import math
import random
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

from . import _sql
from ._connect import Row
from ._json import dumps
from ._runs import Beat, Call, Group, Job, Lane, Run, Settings, Settled, Stored, WaitCall, lanes_of
from ._verdicts import redacted, verdict
from .context import logger
from .errors import (
    Aborted,
    ConfigError,
    InvalidResult,
    Reason,
    is_database,
    is_lost,
    kind,
    sqlstate,
)
from .outcomes import Kill, Outcome, Retry, Snooze, describe, interval, settlement
from .plugins import Plugin
from .tasks import TASK_HEADER, Doc, TaskBase

Topic = Literal["call", "wait", "beat", "tick"]

BATCH = 0.003
"""For how long settlements are collected while other handlers run."""
WATCH_AFTER = 0.03
"""From which age on the waiting session watches the lease of a document, and a worker without a free slot waits
to be asked to stop. Most handlers have ended before, and need no wait to be begun anew."""
AGAIN = 0.06
"""After how long a request to interrupt a wait is repeated."""
NO_VERSION = -(2**31)
"""No document has this version: a wait for it ends only for a request to stop or for what becomes of a lease."""
HOLD = 0.05
"""For how long a queue without documents may be left out of the wait."""
POOLED_WAIT = 10.0
"""The longest wait behind a pooler."""
RERUNS = 10
"""How often a transactional handler runs anew after its connection has broken. A pool may hand out several
connections that a restart of the server has ended; but a handler may also be what ends them."""
CROWDED = 2.0
"""A call that takes so long while a session waits may be held up by a pooler that is too small."""


class Engine:
    def __init__(
        self,
        tasks: Iterable[TaskBase[Any]],
        settings: Settings,
        plugins: Sequence[Plugin] = (),
        signal: Callable[[Topic], None] = lambda _: None,
    ) -> None:
        self.settings = settings
        self.worker = settings.name
        self.plugins = plugins
        self.signal = signal
        self.lock = threading.RLock()
        self.lanes = lanes_of(tasks, settings.concurrency)
        if not self.lanes:
            raise ConfigError("the app has no tasks: is the module imported that declares them?")
        self.slots = list({id(lane.slots): lane.slots for lane in self.lanes}.values())
        versions = sorted({lane.version for lane in self.lanes})
        self.groups = [
            Group(v, [lane for lane in self.lanes if lane.version == v], first=v == versions[0]) for v in versions
        ]
        self.runs: dict[tuple[str, str], Run] = {}
        self.jobs = 0
        self.bytes = 0
        self.mean = 65536.0  # The expected size of a payload, as long as none was seen.
        self.calls: set[Call] = set()
        self.beats: set[Beat] = set()
        self.polling = settings.polling
        self.pooled = False
        self.crowded_at: float | None = None
        self.stopping = False
        self.aborting = False
        self.stop_at = math.inf
        self.give_up_at = math.inf
        self.gave_up = False
        self.abandon_at = math.inf
        self.abandoned = False
        self.fatal: BaseException | None = None
        self.beat_at = self.tick_at = math.inf
        self.last_beat: float | None = None
        self.last_call: float | None = None
        self.down_since: float | None = None
        self.unknown: dict[str, float] = {}
        self.settled: dict[str, int] = {}
        self.counts: dict[str, float] = dict.fromkeys(("lost", "stuck", "handled", "calls"), 0)
        self.counts |= {"handler_seconds": 0.0, "heartbeat_lag": 0.0}

    # ------------------------------------------------------------------------------------------ calls

    def take_call(self, now: float) -> Call | float:
        """The next call that is due, or when one will be, if nothing happens before."""
        with self.lock:
            for lane in self.lanes:
                if self._due(lane, now) > now:
                    continue
                self.lanes.remove(lane)  # The others come first next time.
                self.lanes.append(lane)
                call = self._call(lane, now)
                call.sent = now
                lane.calling = True
                lane.quiet_at = math.inf
                self.calls.add(call)
                return call
            return self.next_call(now)

    def next_call(self, now: float) -> float:
        """When a call is due, if nothing happens before."""
        with self.lock:
            return min(self._due(lane, now) for lane in self.lanes)

    def _due(self, lane: Lane, now: float) -> float:
        if lane.calling or self.abandoned or (self.gave_up and self.finished):
            return math.inf
        due = min(lane.sweeps[0][0] if lane.sweeps else math.inf, lane.held_at if lane.held else math.inf)
        if lane.settle:
            due = min(due, now if lane.slots.jobs == 0 or self.stopping else lane.settle_at)
        elif (lane.ready or now >= lane.poll_at) and not self.stopping and self._room(lane) > 0:
            due = now
        elif lane.poll_at < due and not self.stopping and self._room(lane) > 0:
            due = lane.poll_at
        return max(due, lane.not_before)

    def _call(self, lane: Lane, now: float) -> Call:
        if lane.sweeps and lane.sweeps[0][0] <= now:
            call = Call(lane, "leases", [], 0)
            call.pid = lane.sweeps.pop(0)[1]
            call.query = _sql.leases(lane.queue, self.worker, call.pid, self.settings.exclusive)
            return call
        if lane.held and lane.held_at <= now:
            call = Call(lane, "settle", [lane.held.pop(0)], 0)
            call.query = _sql.settle(lane.queue, f"[{call.settled[0].body}]")
            return call
        settled = lane.settle[:1] if lane.isolate else lane.settle[:500]
        lane.settle = lane.settle[len(settled) :]
        lane.settle_at = math.inf
        body = "[" + ",".join(one.body for one in settled) + "]"
        # What was sent before is sent alone: the server then says of each document what has become of it.
        alone = self.stopping or lane.isolate or any(one.resent for one in settled)
        room = 0 if alone else self._room(lane)
        if room <= 0:
            call = Call(lane, "settle", settled, 0)
            call.query = _sql.settle(lane.queue, body)
        else:
            call = Call(lane, "next", settled, room)
            call.query = _sql.next_(lane.queue, body, room, lane.lease, lane.version, self.worker)
        return call

    def _room(self, lane: Lane) -> int:
        """For how many documents there is room: by the task, by the process, and by their size."""
        if lane.closed:
            return 0
        limit, slots = self.settings.concurrency, lane.slots
        free = limit - self.jobs
        if len(self.slots) > 1 and free > 0:
            total = sum(s.weight for s in self.slots)
            hungry = {id(other.slots) for other in self.lanes if other.ready}
            for other in self.slots:
                if other is not slots and id(other) in hungry:
                    share = min(max(1, limit * other.weight // total), other.limit)
                    free -= max(0, share - other.jobs)
            share = min(max(1, limit * slots.weight // total), slots.limit)
            free = min(max(free, share - slots.jobs), limit - self.jobs)
        free = min(free, slots.limit - slots.jobs)
        if free <= 0:
            return 0
        room = free * lane.batch
        fitting = int(max(0, self.settings.max_bytes - self.bytes) / self.mean)
        return min(room, fitting if self.bytes else max(1, fitting))

    def answered(self, call: Call, rows: list[Row], now: float) -> list[Job]:
        """A call has succeeded: what was sent is settled, and what it has leased is to be started."""
        with self.lock:
            lane = self._done(call, now)
            lane.failures = 0
            if call.what == "leases":
                self._hand_back(call, rows, now)
                lane.ready = True
                return []
            if call.what == "settle":
                self._report(call, rows)
            for one in call.settled:
                self._is_settled(one.run, one.action)
            lane.isolate = max(0, lane.isolate - 1)
            jobs = self._lease(call, rows, now) if call.what == "next" else []
            if call.max_docs:
                lane.ready = len(rows) >= call.max_docs
                lane.misses = lane.misses + 1 if not rows and not call.settled else 0
            if not lane.ready:
                jitter = random.uniform(0, min(1.0, 0.01 * 2**lane.misses)) if lane.misses else 0.0
                lane.quiet_at = now + jitter
                lane.poll_at = now + self.settings.poll * random.uniform(0.75, 1.25) if self.polling else math.inf
                self.signal("wait")
                self.signal("tick")
            return jobs

    def _done(self, call: Call, now: float) -> Lane:
        self.calls.discard(call)
        call.lane.calling = False
        self.counts["calls"] += 1
        self.last_call, self.down_since = now, None
        self._was_held_up(call.sent, now)
        if self.plugins:
            self.observe("call", now - call.sent, call=call.what, queue=call.lane.queue)
        return call.lane

    def _was_held_up(self, sent: float, now: float) -> None:
        """Whether a call went on as soon as the waiting session had given its connection back."""
        if self.crowded_at is not None and sent < self.crowded_at:
            if now - self.crowded_at < 1:
                self.poll_from_now_on("a call was held up while a session waited: the pooler has too few connections")
            self.crowded_at = None
        elif self.pooled and now - sent > CROWDED:
            self.poll_from_now_on("a call was held up by other sessions: the pooler has too few connections")

    def _lease(self, call: Call, rows: list[Row], now: float) -> list[Job]:
        lane, runs = call.lane, self.runs
        jobs: list[Job] = []
        batches: dict[int, Job] = {}
        jitter = random.uniform(0.8, 1.0)
        for row in rows:
            run = Run(lane, row, call.sent, jitter)
            # A lease number of ours that is older was lost, or its settlement came before.
            if (former := runs.get(run.key)) is not None:
                self._abort(former, "lost", now)
                self._forget(former)
            runs[run.key] = run
            self.bytes += run.size
            self.mean += (run.size + 100 - self.mean) / 10
            task = lane.task if not run.headers else self._task(lane, run)
            if task is None or self.stopping:
                self._finish(run, Snooze(self._unknown(run) if task is None else None), now)
                continue
            if task.batch and (job := batches.get(id(task))) is not None and len(job.runs) < task.batch:
                job.runs.append(run)
            else:
                job = Job(task, [run])
                jobs.append(job)
                batches[id(task)] = job
            run.job = job
        self.jobs += len(jobs)
        lane.slots.jobs += len(jobs)
        if rows:
            if self.tick_at > now + (WATCH_AFTER if self.groups[0].call is not None else 0.25):
                self.signal("tick")
            if call.sent + rows[0][6] / 3 * jitter < self.beat_at:
                self.signal("beat")
            self.observe("slots", self.jobs)
        return jobs

    def _task(self, lane: Lane, run: Run) -> TaskBase[Any] | None:
        name = run.headers.get(TASK_HEADER)
        if not isinstance(name, str):
            return lane.task
        return lane.tasks.get(name) or (lane.tasks.get(None) if len(lane.tasks) == 1 else None)

    def _unknown(self, run: Run) -> float:
        """How long a document of a task that this process does not know is left to others: each time longer."""
        name = str(run.headers.get(TASK_HEADER))
        delay = min(300.0, self.unknown.get(name, 5.0) * 2)
        self.unknown[name] = delay
        self._log(logging.WARNING, run, "there is no task %r here: snoozed for %d s", name, delay)
        return delay

    def _report(self, call: Call, rows: list[Row]) -> None:
        for one, (subject, outcome, status) in zip(call.settled, rows, strict=False):
            # What was settled by a call whose answer was lost is no loss. The server says so ("repeated"), but
            # where a document has left the queue, or is due again.
            if one.resent and one.action in ("drop", "snooze"):
                continue
            if outcome in ("lost", "missing", "not_active") and one.run is not None:
                self.lost(one.run.queue, subject, f"{outcome}, {status}")

    def lost(self, queue: str, subject: str, why: str) -> None:
        """A lease was lost before its document was settled: another worker has it, or it was cancelled."""
        self.counts["lost"] += 1
        self.observe("lost", 1, queue=queue)
        extra = {"queue": queue, "subject": subject, "worker": self.worker}
        logger.warning("%s: %s was not settled: %s", queue, subject, why, extra=extra)

    def unsettled(self, queue: str, warning: str) -> None:
        """The server has warned of documents that were not settled, with their names."""
        with self.lock:
            number = int(warning.split(" ", 1)[0]) if warning[:1].isdigit() else 1
            self.counts["lost"] += number
            self.observe("lost", number, queue=queue)
            logger.warning("%s", warning, extra={"queue": queue, "worker": self.worker})

    def _is_settled(self, run: Run | None, action: str) -> None:
        self.settled[action] = self.settled.get(action, 0) + 1
        if run is not None:
            self._forget(run)

    def failed(self, call: Call, error: BaseException, now: float, *, pid: int = 0) -> None:
        """A call has failed. What it was to settle is kept."""
        with self.lock:
            lane = self._done(call, now)
            lane.settle = call.settled + lane.settle
            lane.settle_at = now
            lane.ready = True  # It is not known whether there are documents.
            lane.failures += 1
            what = kind(error)
            if what == "data" and call.what == "leases":
                return
            if what == "connection":
                for one in call.settled:
                    one.resent = True
                if self.down_since is None:
                    self.down_since = now
                if call.what == "next":
                    # It may have leased documents without our knowing. The server may still be at it.
                    lane.sweeps = [(now + 0.5, pid), (now + 10.0, pid)]
                lane.not_before = now + backoff(lane.failures)
                self._warn_call(call, error, lane)
            elif what == "conflict":
                self._conflict(lane, call, error, now)
            elif call.settled:
                self._refused(lane, call, error, now)
            elif what == "config":
                self._end(error)
            else:
                lane.not_before = now + backoff(lane.failures)
                self._warn_call(call, error, lane)
            self.signal("call")

    def _conflict(self, lane: Lane, call: Call, error: BaseException, now: float) -> None:
        """Deadlocks and the like: try again at once, later alone, and then from time to time beside the others."""
        lane.not_before = now + random.uniform(0.005, 0.02) * 2 ** min(lane.failures, 8)
        for one in call.settled:
            one.tries += 1
        if not call.settled or call.settled[0].tries < 3:
            return
        if len(call.settled) > 1:
            lane.isolate = len(call.settled)
            return
        one = lane.settle.pop(0)
        lane.held.append(one)
        lane.held_at = now + backoff(one.tries - 2)
        lane.isolate = max(0, lane.isolate - 1)
        lane.not_before = now
        if one.tries in (3, 8):
            logger.warning("%s: a settlement conflicts, and is repeated: %s", lane.queue, describe(error))

    def _warn_call(self, call: Call, error: BaseException, lane: Lane) -> None:
        level = logging.WARNING if lane.failures in (1, 5) or lane.failures % 20 == 0 else logging.DEBUG
        logger.log(level, "%s: %s failed, and is repeated: %s", lane.queue, call.what, describe(error))

    def _refused(self, lane: Lane, call: Call, error: BaseException, now: float) -> None:
        """The server refuses a list of settlements: find out which one, and reject that document."""
        if len(call.settled) > 1:
            lane.isolate = len(call.settled)
            return
        one = lane.settle.pop(0)
        run = one.run
        if run is None or one.last_resort:
            logger.error("%s: a settlement is refused, and the lease expires: %s", lane.queue, describe(error))
            if run is not None:
                self._forget(run)
            return
        self._log(logging.ERROR, run, "the settlement is refused: %s", describe(error))
        outcome = Retry(f"the settlement was refused: {describe(error)}")
        body = settlement(run.subject, run.lease, redacted(outcome, self.settings.redact))
        lane.settle.insert(0, Settled(run, body, outcome.action, last_resort=True))
        lane.settle_at = now

    def _hand_back(self, call: Call, rows: list[Row], now: float) -> None:
        lane = call.lane
        others = any(c.lane.queue == lane.queue for c in self.calls)
        for subject, lease in rows:
            run = self.runs.get((lane.queue, subject))
            if run is not None and run.lease == lease:
                continue
            if others:  # The answer of another call may bring it.
                lane.sweeps = [(now + 1.0, call.pid), *lane.sweeps]
                break
            logger.info("%s: %s was leased by a call without an answer, and goes back", lane.queue, subject)
            lane.settle.append(Settled(None, settlement(subject, lease, Snooze()), "snooze"))
        lane.settle_at = now

    def _end(self, error: BaseException) -> None:
        """Rights or declarations are wrong: the worker stops, and its ``run`` raises the error."""
        if self.fatal is None:
            self.fatal = error
            logger.error("the worker stops: %s", describe(error))
        self.ask_stop()

    # ----------------------------------------------------------------------------------------- handlers

    def begin(self, job: Job, now: float) -> bool:
        """A handler is about to start. False: it must not, because the worker stops or the lease is gone."""
        with self.lock:
            timeout_at = now + job.task.timeout if job.task.timeout else math.inf
            for run in job.runs[:]:
                if self.stopping or run.reason is not None or run.deadline <= now:
                    job.runs.remove(run)
                    if run.reason is None:
                        self._finish(run, Snooze(), now)
                    else:
                        self._forget(run)
                run.started, run.timeout_at = now, timeout_at
            if not job.runs:
                self._release(job)
            return bool(job.runs)

    def ended(self, job: Job, outcomes: Sequence[Outcome | BaseException | None], now: float) -> None:
        """A handler has ended, with an outcome, an error, or None for each document."""
        with self.lock:
            self._release(job)
            for run, outcome in zip(job.runs, outcomes, strict=True):
                self._handled(run, job.task, now)
                if run.gone or run.settling:
                    continue
                if run.reason in ("cancelled", "lost") or (run.stuck and now >= run.deadline):
                    self._forget(run)
                    continue
                if run.reason == "timeout" and not isinstance(outcome, BaseException):
                    outcome = Aborted("timeout")  # It has ended in spite of it, but too late.
                if outcome is not None and not isinstance(outcome, Outcome):
                    outcome = verdict(outcome, job.task, run.reason, self.worker)
                self._finish(run, outcome, now, () if run.context is None else run.context.follow_ups)
            if job.slots.jobs == 0:
                self.signal("call")

    def _handled(self, run: Run, task: TaskBase[Any], now: float) -> None:
        took = now - (run.started or now)
        self.counts["handled"] += 1
        self.counts["handler_seconds"] += took
        if self.plugins:
            self.observe("handled", took, queue=run.queue, task=task.label)

    def settles(self, run: Run) -> None:
        """A transactional handler has ended, and its settlement is about to be sent: from now on the lease ends by
        that, and nothing aborts it. Raises if it was aborted before."""
        with self.lock:
            if run.reason in ("cancelled", "lost", "timeout"):
                raise Aborted(run.reason)
            run.settling = True

    def committed(self, job: Job, outcome: Outcome, now: float) -> None:
        """A transactional handler has committed its writes and its settlement."""
        with self.lock:
            self._release(job)
            for run in job.runs:
                self._handled(run, job.task, now)
                self._log_outcome(run, outcome, outcome.action)
                self._is_settled(run, outcome.action)
            self.signal("call")  # There is room, and no settlement that says so.

    def dropped(self, job: Job, now: float, why: str | None = None) -> None:
        """A handler has ended whose document is not ours any more: there is nothing to settle."""
        with self.lock:
            self._release(job)
            for run in job.runs:
                self._handled(run, job.task, now)
                if why is not None and run.reason is None:
                    self.lost(run.queue, run.subject, why)
                self._forget(run)
            self.signal("call")

    def after_rollback(
        self,
        job: Job,
        error: BaseException,
        phase: Literal["handler", "settle", "commit"],
        broken: bool,
        reruns: int,
    ) -> Literal["again", "confirm", "drop"] | BaseException:
        """What a driver does after a transaction without a commit: run the handler again, ask first whether the
        document is still ours, nothing, or settle by the error."""
        run = job.runs[0]
        run.settling = False
        if run.reason in ("cancelled", "lost") or (phase != "handler" and is_lost(error)):
            return "drop"
        if isinstance(error, Outcome) or run.reason is not None:
            return error
        what = kind(error) if is_database(error) else "data"
        # The connection has broken. Was it committed? Only an answer to a commit would say so.
        if what == "connection" and (broken or phase == "commit") and reruns < RERUNS:
            return "confirm"
        if what == "conflict" and sqlstate(error) in ("40001", "40P01") and reruns < job.task.conflicts:
            return "again"
        if phase == "settle" and what == "data":
            return InvalidResult(f"the settlement was refused: {describe(error)}")
        return error

    def _release(self, job: Job) -> None:
        if job.ended:
            return
        job.ended = True
        self.jobs -= 1
        job.slots.jobs -= 1
        if self.jobs == self.settings.concurrency - 1:
            self.signal("call")  # Queues that had no slot left may have one now.

    def _finish(self, run: Run, outcome: Outcome | None, now: float, then: Sequence[Doc] = ()) -> None:
        """Settles a document by an outcome, or completes it."""
        outcome = redacted(outcome, self.settings.redact)
        try:
            body = settlement(run.subject, run.lease, outcome, then)
        except Exception as error:  # Whatever a handler has returned.
            problem = InvalidResult(f"the outcome cannot be stored as JSON: {error}")
            outcome = redacted(verdict(problem, None, run.reason, self.worker), self.settings.redact)
            body = settlement(run.subject, run.lease, outcome)
        action = "complete" if outcome is None else outcome.action
        self._log_outcome(run, outcome, action)
        run.settling = True
        one = Settled(run, body, action)
        if run.dirty and not (outcome is None or outcome.succeeds) and not run.stuck:
            # The next attempt has to find the progress of this one: it is stored first.
            run.next_beat = 0.0
            run.stored += (functools.partial(self._queue_later, one, run),)
            self.signal("beat")
        else:
            self._queue(one, run, now + min(BATCH, run.seconds / 10))

    def _queue_later(self, one: Settled, run: Run, _: BaseException | None) -> None:
        if not run.gone:
            self._queue(one, run, 0.0)

    def _queue(self, one: Settled, run: Run, at: float) -> None:
        lane = run.lane
        lane.settle.append(one)
        if at < lane.settle_at:
            lane.settle_at = at
            if not lane.calling:
                self.signal("call")

    def _log_outcome(self, run: Run, outcome: Outcome | None, action: str) -> None:
        if self.plugins:
            self.observe("settled", 1, queue=run.queue, outcome=action)
        if not isinstance(outcome, (Retry, Kill)):
            return
        last = isinstance(outcome, Kill) or (run.max_attempts is not None and run.attempts >= run.max_attempts)
        self._log(
            logging.ERROR if last else logging.WARNING,
            run,
            "attempt %s of %s %s: %s",
            run.attempts,
            run.max_attempts,
            "was killed" if isinstance(outcome, Kill) else "failed",
            outcome.message,
        )

    def _log(self, level: int, run: Run, message: str, *args: Any) -> None:
        extra = {"queue": run.queue, "subject": run.subject, "attempt": run.attempts, "worker": self.worker}
        logger.log(level, f"%s: %s: {message}", run.queue, run.subject, *args, extra=extra)

    def _forget(self, run: Run) -> None:
        """The document is not ours any more."""
        if run.gone:
            return
        run.gone = True
        self.bytes -= run.size
        if self.runs.get(run.key) is run:
            del self.runs[run.key]
        for done in run.stored:
            done(Aborted(run.reason or "lost"))
        run.stored = ()
        if self.stopping and not self.runs:
            self._wake_all()

    def _abort(self, run: Run, reason: Reason, now: float) -> None:
        if run.reason is not None or run.settling or run.gone:
            return
        run.abort(reason)
        run.aborted_at = now
        job = run.job
        if reason == "lost":
            self.counts["lost"] += 1
            self.observe("lost", 1, queue=run.queue)
        self.observe("aborted", 1, queue=run.queue, reason=reason)
        self._log(logging.INFO if reason == "shutdown" else logging.WARNING, run, "stopped: %s", reason)
        for done in run.stored:
            done(Aborted(reason))
        run.stored = ()
        if run.started is None or job is None:
            return
        # One of a batch only: its handler sees that by its context.
        if job.cancel is not None and all(one.reason is not None for one in job.runs):
            job.cancel()

    # ---------------------------------------------------------------------------------------- heartbeat

    def store_progress(self, run: Run, progress: Any, done: Stored | None) -> None:
        """Stores the progress of a document with the next heartbeat: at once if somebody waits for it."""
        with self.lock:
            if run.gone or run.reason is not None:
                if done is not None:
                    done(Aborted(run.reason or "lost"))
                return
            run.progress = progress
            run.dirty = True
            run.next_beat = 0.0 if done is not None else min(run.next_beat, run.beat_sent + 1.0)
            if done is not None:
                run.stored += (done,)
            self.signal("beat")

    def confirm(self, run: Run, done: Stored) -> None:
        """Asks the server whether a lease still holds, after a commit without an answer."""
        with self.lock:
            if run.gone or run.reason is not None:
                done(Aborted(run.reason or "lost"))
                return
            run.stored += (done,)
            run.next_beat = 0.0
            self.signal("beat")

    def next_beat(self) -> float:
        with self.lock:
            beats = (run.next_beat for run in self.runs.values() if self._extends(run))
            self.beat_at = min(beats, default=math.inf)
            return self.beat_at

    def _extends(self, run: Run) -> bool:
        if run.stuck or run.gone or run.reason in ("cancelled", "lost"):
            return False
        return not run.limited or bool(run.stored) or run.dirty

    def take_beats(self, now: float) -> list[Beat]:
        """The calls that extend leases which are due: one for each lease duration."""
        with self.lock:
            groups: dict[str | None, list[Run]] = {}
            due: set[str | None] = set()
            for run in self.runs.values():
                if not self._extends(run):
                    continue
                groups.setdefault(run.lane.lease, []).append(run)
                if run.next_beat <= now:
                    due.add(run.lane.lease)
                    late = now - run.next_beat if run.next_beat else 0.0
                    self.counts["heartbeat_lag"] = max(late, self.counts["heartbeat_lag"] * 0.9)
            beats = [self._beat(lease, groups[lease], now) for lease in due]
            self.beats.update(beats)
            return beats

    def _beat(self, lease: str | None, runs: list[Run], now: float) -> Beat:
        # Those that would be due soon come along.
        runs = [run for run in runs if run.next_beat <= now + run.seconds / 6 or run.dirty or run.stored]
        items: list[dict[str, Any]] = []
        for run in runs:
            item: dict[str, Any] = {"queue": run.queue, "subject": run.subject, "lease": run.lease}
            if run.dirty:
                item["progress"] = run.progress
                run.dirty = False
            run.next_beat = math.inf
            items.append(item)
        return Beat(runs, _sql.extend(dumps(items), lease), now)

    def beaten(self, beat: Beat, rows: list[Row], now: float) -> None:
        """Leases were extended, or not."""
        with self.lock:
            self.last_beat, self.down_since = now, None
            self.beats.discard(beat)
            self._was_held_up(beat.sent, now)
            self.counts["calls"] += 1
            self.observe("call", now - beat.sent, call="extend")
            runs = {run.key: run for run in beat.runs}
            stop: set[str] = set()
            for queue, subject, outcome, ends, asked in rows:
                run = runs[queue, subject]
                if asked:
                    stop.add(queue)
                stored = beat.stored[run.key]
                if outcome in ("extended", "limited"):
                    if outcome == "limited":
                        run.deadline += ends - run.ends
                        run.limited = True
                    else:
                        run.deadline = beat.sent + run.seconds
                    run.ends = ends
                    run.beat_sent = beat.sent
                    run.next_beat = min(run.next_beat, beat.sent + run.seconds / 3 * random.uniform(0.8, 1.0))
                    if run.dirty and run.next_beat > now + 1:
                        run.next_beat = now + 1
                    for done in stored:
                        done(None)
                elif run.settling:
                    for done in stored:  # Its settlement says what has become of it.
                        done(Aborted("lost"))
                else:
                    run.stored += stored
                    self._abort(run, "cancelled" if outcome == "cancelled" else "lost", now)
            for queue in stop:
                self._asked_to_stop(queue)
            self.signal("beat")

    def _asked_to_stop(self, queue: str | None) -> None:
        """Somebody has called worker_stop(): for all queues, or for one, if he may not work on the others."""
        for lane in self.lanes:
            lane.closed = lane.closed or queue is None or lane.queue == queue
        if all(lane.closed for lane in self.lanes) and not self.stopping:
            logger.info("the worker was asked to stop")
            self.ask_stop()

    def beat_failed(self, beat: Beat, error: BaseException, now: float) -> float:
        """A heartbeat has failed. Gives for how long to wait before the next one."""
        with self.lock:
            what = kind(error)
            self.beats.discard(beat)
            if what == "connection" and self.down_since is None:
                self.down_since = now
            for run in beat.runs:
                run.next_beat = now
                stored = beat.stored[run.key]
                if what == "data":
                    # Progress that the server refuses must not cost the leases of all others.
                    for done in stored:
                        done(error)
                else:
                    run.dirty = run.dirty or run.progress is not None
                    run.stored += stored
            if what == "config":
                self._end(error)
            logger.warning("the heartbeat failed: %s", describe(error))
            shortest = min((run.seconds for run in beat.runs), default=10.0)
            return min(random.uniform(0.2, 0.4), shortest / 20)

    # ------------------------------------------------------------------------------------------- waiting

    def take_wait(self, group: Group, now: float) -> WaitCall | float:
        """The wait that a session should make now, or until when it has none to make."""
        with self.lock:
            if self.polling or self.abandoned:
                return math.inf
            if self.crowded_at is not None and now < self.crowded_at + 1.5:
                return self.crowded_at + 1.5
            quiet = {lane.queue for lane in group.lanes if self._quiet(lane, now)}
            group.busy_at = math.inf if quiet else min(group.busy_at, now)
            if len(quiet) < len(group.lanes) and now < group.not_before:
                return group.not_before
            pending = min((lane.quiet_at for lane in group.lanes if now < lane.quiet_at < math.inf), default=math.inf)
            if pending < now + HOLD:
                return pending
            watched, younger = self._watchable(now) if group.first else ({}, math.inf)
            # Behind a pooler, each wait keeps a connection from all other programs.
            longest = min(self.settings.wait, POOLED_WAIT if self.pooled else math.inf) * random.uniform(0.9, 1.0)
            queues, version = quiet, group.version
            if quiet:
                longest = min(longest, younger - now)
            elif not group.first or (self.stopping and not watched):
                return younger
            else:
                # No slot is free. The waiting session waits for requests to stop, and for what becomes of leases.
                if now < (begin := group.busy_at + WATCH_AFTER):
                    return begin
                queues = set[str]() if self.stopping else {lane.queue for lane in self.lanes if not lane.closed}
                version = NO_VERSION
            leases = [{"queue": r.queue, "subject": r.subject, "lease": r.lease} for r in watched.values()]
            text = interval(max(0.001, min(longest, group.timeout)))
            query = _sql.wait(sorted(queues), self.worker, text, dumps(leases), version, group.mark)
            group.call = WaitCall(
                quiet, {key: run.lease for key, run in watched.items()}, query, now, min(longest, group.timeout)
            )
            if younger < self.tick_at:
                self.signal("tick")
            return group.call

    def _quiet(self, lane: Lane, now: float) -> bool:
        """Whether a lane needs somebody to say that there are documents."""
        if lane.ready or lane.calling or lane.settle or self.stopping or now < lane.not_before:
            return False
        return now >= lane.quiet_at and self._room(lane) > 0

    def _watchable(self, now: float) -> tuple[dict[tuple[str, str], Run], float]:
        """The leases that the waiting session should watch, and when another one will be old enough."""
        old: dict[tuple[str, str], Run] = {}
        younger = math.inf
        for key, run in self.runs.items():
            if run.reason is not None or run.settling:
                continue
            if run.sent + WATCH_AFTER <= now:
                old[key] = run
            else:
                younger = min(younger, run.sent + WATCH_AFTER)
        return old, younger

    def waited(self, group: Group, row: Row, now: float) -> None:
        """A wait has ended with an event, or with None when its time was over."""
        with self.lock:
            call, group.call = group.call, None
            event, queue, subjects, group.mark = row[0], row[1], row[2], row[3]
            group.failures = 0
            group.busy_at, self.down_since = math.inf, None
            if call is not None and now - call.sent > call.longest + (CROWDED if self.pooled else 5):
                self.poll_from_now_on("a wait has taken longer than asked: the pooler has too few connections")
            if event in ("ready", "resumed"):
                group.not_before = now + HOLD
                for lane in group.lanes:
                    if lane.queue == queue:
                        lane.ready = True
                self.signal("call")
            elif event == "stop":
                self._asked_to_stop(queue)
            elif event in ("cancelled", "lost"):
                for subject in subjects or ():
                    run = self.runs.get((queue, subject))
                    # It may have been settled since the wait began, and leased anew.
                    is_watched = run is not None and call is not None and call.watched.get(run.key) == run.lease
                    if run is not None and is_watched and not run.settling:
                        self._abort(run, event, now)
                group.not_before = now + HOLD

    def wait_failed(self, group: Group, error: BaseException, now: float) -> float:
        """A wait has failed. Gives for how long to wait before the next one."""
        with self.lock:
            call, group.call = group.call, None
            if self.finished or (now - group.interrupted_at < 2 and kind(error) == "conflict"):
                return 0.0  # A request to cancel may also reach the wait after the one that it was for.
            group.failures += 1
            what = kind(error)
            if what == "conflict" and call is not None:  # A statement_timeout ends each wait.
                group.timeout = max(1.0, (now - call.sent) * 0.8)
                return random.uniform(0, 0.1)
            if what == "config":
                self._end(error)
            level = logging.WARNING if group.failures in (1, 5) else logging.DEBUG
            logger.log(level, "waiting failed, and is repeated: %s", describe(error))
            return backoff(group.failures)

    def poll_from_now_on(self, why: str) -> None:
        """No session waits any more: queues without documents are asked again and again."""
        with self.lock:
            if self.polling:
                return
            self.polling = True
            logger.warning("the worker polls every %g s: %s", self.settings.poll, why)
            for lane in self.lanes:
                lane.poll_at = 0.0
            self._wake_all()

    # --------------------------------------------------------------------------------------------- time

    def tick(self, now: float) -> tuple[float, list[Group]]:
        """Looks at all deadlines. Gives when to look again, and the waits that are to be interrupted."""
        with self.lock:
            for run in list(self.runs.values()):
                self._tick_run(run, now)
            if self.stopping:
                self._tick_stop(now)
            restart = [group for group in self.groups if self._outdated(group, now)]
            if self.crowded_at is None and not self.polling:
                slow = any(now - sent > CROWDED for sent in [c.sent for c in self.calls] + [b.sent for b in self.beats])
                if slow and (waiting := [g for g in self.groups if g.call is not None]):
                    self.crowded_at = now
                    restart = waiting
            for group in restart:
                group.interrupted_at = now
                if group.call is not None:
                    group.call.interrupted = True
            pending = [x.quiet_at + HOLD for x in self.lanes if now < x.quiet_at + HOLD < math.inf]
            again = any(group.call is not None and group.call.interrupted for group in self.groups)
            busy = bool(self.runs or self.stopping or self.calls or again)
            first = self.groups[0]
            if first.call is not None:
                old, watch_at = self._watchable(now)
                if any(key not in first.call.watched for key in old):
                    watch_at = now
                pending.append(max(watch_at, first.interrupted_at + AGAIN, now + 0.005))
            self.tick_at = min([now + 0.2 if busy else now + 30, *pending])
            return self.tick_at, restart

    def _tick_run(self, run: Run, now: float) -> None:
        if now >= run.deadline and not run.settling:
            self._abort(run, "lost", now)
        if now >= run.timeout_at and not run.settling:
            self._abort(run, "timeout", now)
        if not run.stuck and now - run.aborted_at > self.settings.stuck_after and run.job and not run.job.ended:
            run.stuck = True
            self.counts["stuck"] += 1
            self.observe("stuck", 1, queue=run.queue)
            self._log(logging.WARNING, run, "the handler is stuck: it does not stop (%s)", run.reason)
            if self.settings.free_stuck:
                self._release(run.job)

    def _tick_stop(self, now: float) -> None:
        self.abandoned = now >= min(self.abandon_at, self.give_up_at + 10)
        if self.stop_at is math.inf:
            self.stop_at = now + self.settings.grace
            self.give_up_at = self.stop_at + self.settings.abort_grace
        if now >= self.stop_at and not self.aborting:
            self.aborting = True
            for run in list(self.runs.values()):
                self._abort(run, "shutdown", now)
        if now >= self.give_up_at and not self.gave_up:
            self.gave_up = True
            for run in list(self.runs.values()):
                if run.reason in ("cancelled", "lost"):
                    self._forget(run)
                elif not run.settling:
                    self._log(logging.ERROR, run, "the handler does not stop, and its document goes back")
                    self._finish(run, Snooze(), now)
            self._wake_all()
        if self.finished:
            self._wake_all()

    def _outdated(self, group: Group, now: float) -> bool:
        call = group.call
        # A request to cancel that comes before the wait has begun does nothing: it is repeated.
        if call is None or now - group.interrupted_at < AGAIN:
            return False
        if call.interrupted or self.polling or (self.finished and not self.runs):
            return True
        if self.stopping and call.queues:
            return True
        for lane in group.lanes:
            if lane.queue not in call.queues and self._quiet(lane, now) and now >= lane.quiet_at + HOLD:
                return True
        return group.first and any(key not in call.watched for key in self._watchable(now)[0])

    def ask_stop(self, grace: float | None = None) -> None:
        """Leases no more, and ends when all is settled, or when the grace is over."""
        with self.lock:
            if grace is not None:
                self.settings.grace = grace
                self.stop_at = math.inf
            self.stopping = True
            self._wake_all()

    def abandon(self, now: float) -> None:
        """Ends at once: it asks handlers to stop, and their documents go back without waiting for them. A server
        that does not answer is waited for two seconds."""
        with self.lock:
            self.stopping, self.stop_at, self.give_up_at = True, now, now
            self.abandon_at = now + 2
            self._tick_stop(now)
            self._wake_all()

    @property
    def finished(self) -> bool:
        """Whether a stop is complete."""
        with self.lock:
            if self.abandoned:
                return True
            if not self.stopping or self.calls:
                return False
            left = self.runs or any(lane.settle or lane.held for lane in self.lanes)
            return not left or (self.gave_up and self.down_since is not None)

    def _wake_all(self) -> None:
        for topic in ("call", "wait", "beat", "tick"):
            self.signal(topic)

    def observe(self, event: str, value: float, **attributes: Any) -> None:
        if not self.plugins:
            return
        for plugin in self.plugins:
            plugin.observe(event, value, attributes)

    def health(self, now: float) -> dict[str, Any]:
        """For probes: whether the server answers, and when it did last."""
        with self.lock:
            late = any(run.next_beat < now - run.seconds / 3 for run in self.runs.values() if self._extends(run))
            late = late or any(now - beat.sent > 10 for beat in self.beats)
            return {
                "ok": self.down_since is None and self.fatal is None and not late,
                "database": self.down_since is None,
                "loops": not late,
                "heartbeat_age": None if self.last_beat is None else now - self.last_beat,
                "stopping": self.stopping,
                "polling": self.polling,
                "running": self.jobs,
                "slots": self.settings.concurrency,
                "worker": self.worker,
            }

    def metrics(self) -> dict[str, Any]:
        """Sums since the start."""
        with self.lock:
            used = {"slots_used": self.jobs, "slots": self.settings.concurrency}
            return {"settled": dict(self.settled), **self.counts, **used}


def backoff(failures: int) -> float:
    """From 250 ms to 30 s, with jitter."""
    return min(30.0, 0.25 * 2.0 ** min(failures - 1, 10)) * random.uniform(0.75, 1.25)
