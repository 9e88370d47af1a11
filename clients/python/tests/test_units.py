"""What needs no server: payload types, outcomes, JSON, errors, and the engine with a clock of its own."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from fetchq import (
    App,
    Batch,
    Complete,
    ConfigError,
    Context,
    Drop,
    InvalidPayload,
    Kill,
    Reschedule,
    Retry,
    Snooze,
    Unique,
    hours,
    minutes,
)
from fetchq._json import clean_text, dumps, loads
from fetchq._runs import Call, Run, Settings
from fetchq._sql import Query
from fetchq._verdicts import verdict
from fetchq.codec import decode, decoder
from fetchq.engine import CROWDED, HOLD, NO_VERSION, WATCH_AFTER, Engine
from fetchq.errors import Aborted, kind
from fetchq.outcomes import describe, interval, moment, settlement


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Inner:
    n: int


@dataclass
class Mail:
    to: str
    at: datetime
    inner: list[Inner]
    id: UUID
    price: Decimal = Decimal(0)
    colour: Colour = Colour.RED
    kind: Literal["a", "b"] = "a"
    pair: tuple[int, str] = (1, "x")
    tags: set[str] = field(default_factory=set)
    more: dict[str, float] = field(default_factory=dict)
    last: int | None = None


class Typed(TypedDict, total=False):
    n: int


class Model(pydantic.BaseModel):
    to: str
    n: int = 0


class Struct(msgspec.Struct):
    to: str
    n: int = 0


ID = UUID("01234567-89ab-7def-8123-456789abcdef")


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        (Mail, Mail("ann", datetime(2026, 1, 2, tzinfo=timezone.utc), [Inner(1)], ID, Decimal("1.50"), tags={"x"})),
        (Model, Model(to="ann", n=3)),
        (Struct, Struct("ann", 3)),
        (Typed, {"n": 1, "more": [1]}),
        (dict, {"any": [1, None, {"x": 1.5}]}),
        (Any, [1, 2]),
        (list[Inner], [Inner(1), Inner(2)]),
    ],
)
def test_payloads_go_to_json_and_back(type_: Any, value: Any) -> None:
    assert decode(decoder(type_), loads(dumps(value))) == value


@pytest.mark.parametrize(
    ("type_", "value", "where"),
    [
        (Inner, {"n": "many"}, "payload.n"),
        (Inner, {"n": True}, "payload.n"),
        (Inner, {}, "has no n"),
        (Inner, [], "an object"),
        (list[Inner], [{"n": 1}, {"n": None}], "payload[1].n"),
        (Model, {"n": 1}, "to"),
        (Struct, {"n": 1}, "to"),
        (Typed, {"n": 1.5}, "payload.n"),
    ],
)
def test_a_payload_that_does_not_fit_is_an_error_that_names_the_place(type_: Any, value: Any, where: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        decode(decoder(type_), value)
    assert where in str(caught.value)


def test_json_is_what_postgresql_takes() -> None:
    assert dumps({"a": "\\u0000"}) == '{"a":"\\\\u0000"}'
    for bad in ("a\0b", "\ud800", float("nan"), float("inf")):
        with pytest.raises(ValueError):
            dumps({"a": [bad]})
    with pytest.raises(TypeError):
        dumps({"a": object()})
    assert clean_text("a\0b\ud800ü") == "ab\ufffdü"
    assert clean_text("\ud83d\ude00") == "😀"


def test_durations_and_times() -> None:
    assert interval(minutes(1.5)) == "90.000000 seconds"
    assert interval(timedelta(days=1, microseconds=1)) == "86400.000001 seconds"
    assert interval(2) == "2.000000 seconds"
    assert interval("1 month") == "1 month"
    with pytest.raises(ValueError, match="time zone"):
        moment(datetime(2026, 1, 1))


def test_settlements() -> None:
    app = App()

    @app.task("next")
    def follow(payload: dict) -> None: ...

    body = settlement("s", 7, Complete({"x": 1}, then=[follow.doc({"n": 1}, delay=5)]))
    assert loads(body) == {
        "subject": "s",
        "lease": 7,
        "action": "complete",
        "result": {"x": 1},
        "then": [{"queue": "next", "version": 0, "payload": {"n": 1}, "delay": "5.000000 seconds"}],
    }
    assert loads(settlement("s", 7, Retry("no\0", delay=1)))["message"] == "no"
    assert loads(settlement("s", 7, Snooze()))["action"] == "snooze"
    # What follows a success is not put after a failure.
    assert "then" not in loads(settlement("s", 7, Kill("x"), [follow.doc()]))
    assert len(describe("x" * 5000)) == 2000
    with pytest.raises(ValueError):
        Reschedule()
    assert Complete(1) == Complete(1) != Complete(2)
    assert repr(Kill("gone")) == "Kill(message='gone')"


def test_documents_have_the_keys_of_doc_put() -> None:
    app = App()

    @app.task("mail", name="send", version=2, defaults={"priority": 5})
    def send(payload: dict) -> None: ...

    at = datetime(2030, 1, 1, tzinfo=timezone.utc)
    doc = send.doc({"x": 1}, subject="a", at=at, expires_in=hours(1), unique=Unique(["to"], hours(2)), headers={"t": 1})
    assert doc.as_json() == {
        "queue": "mail",
        "version": 2,
        "payload": {"x": 1},
        "subject": "a",
        "priority": 5,
        "due_at": "2030-01-01T00:00:00+00:00",
        "expires_in": "3600.000000 seconds",
        "unique_by": ["to"],
        "unique_per": "7200.000000 seconds",
        "headers": {"t": 1, "fetchq-task": "send"},
    }


def test_declarations_that_cannot_work_are_refused() -> None:
    app = App()
    with pytest.raises(ConfigError, match="AsyncApp"):

        @app.task("a")
        async def one(payload: dict) -> None: ...

    with pytest.raises(ConfigError, match="payload"):

        @app.task("b")
        def two() -> None: ...  # type: ignore[arg-type]

    @app.task("c")
    def three(payload: dict) -> None: ...

    with pytest.raises(ConfigError, match="twice"):

        @app.task("c")
        def four(payload: dict) -> None: ...

    with pytest.raises(ConfigError, match=r"app\.open"):
        three.put({})
    with pytest.raises(ConfigError, match="nothing to make"):
        three.upcast(0)(lambda payload: payload)


def test_a_batch_task_has_the_type_of_its_elements() -> None:
    app = App()

    @app.batch_task("many", size=3)
    def many(batch: Batch[Inner]) -> None: ...

    assert many.payload is Inner


def test_statements_are_written_for_each_driver() -> None:
    query = Query("select cast(:a as text), :b, x::int, cast(:a as int)", {"a": 1, "b": 2})
    assert query.pyformat() == "select cast(%(a)s as text), %(b)s, x::int, cast(%(a)s as int)"
    assert query.numbered() == ("select cast($1 as text), $2, x::int, cast($1 as int)", [1, 2])


class Gone(Exception):
    pass


class Later(Exception):
    after = 30


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (Gone("x"), Kill("x")),
        (Later("y"), Snooze(30)),
        (KeyError("z"), Retry("'z'", delay=5)),
        (OSError("o"), Retry("o")),
        (Drop(), Drop()),
    ],
)
def test_rules_decide_by_the_error(error: BaseException, outcome: Any) -> None:
    app = App()
    rules: Any = {Gone: Kill, Later: lambda e: Snooze(e.after), LookupError: 5, OSError: lambda e: None}

    @app.task("a", retry=rules)
    def task(payload: dict) -> None: ...

    given = verdict(error, task, None, "w")
    if isinstance(given, (Retry, Kill)):
        assert "Error" in given.details["error"] or "Gone" in given.details["error"]
        given.details = None
    assert given == outcome


def test_an_abort_is_no_failure() -> None:
    assert verdict(Aborted("shutdown"), None, "shutdown", "w") == Snooze()
    wrapped = ValueError("wrapped")
    wrapped.__cause__ = Aborted("shutdown")
    assert verdict(wrapped, None, "shutdown", "w") == Snooze()
    assert isinstance(verdict(ValueError("other"), None, "shutdown", "w"), Retry)
    assert "timeout" in verdict(Aborted("timeout"), None, "timeout", "w").message  # type: ignore[attr-defined]


def test_errors_without_an_answer_are_of_the_connection() -> None:
    assert kind(OSError("gone")) == "connection"


# ---------------------------------------------------------------------------------------------- the engine


def make(concurrency: int = 4, queues: str = "a", **options: Any) -> Engine:
    app = App()
    for queue in queues:

        def work(payload: dict, ctx: Context) -> None: ...

        app.task(queue, weight=options.pop(f"weight_{queue}", 1))(work)
    return Engine(app.tasks, Settings(name="w", concurrency=concurrency, **options))


def row(subject: str, lease: int = 11, seconds: float = 60.0, headers: str | None = None, payload: str = "{}") -> Any:
    return (subject, payload, headers, 1, 5, lease, seconds, 1000.0 + seconds, 1000.0, 1000.0, 0, 0, None, None)


def lease(engine: Engine, now: float, *rows: Any) -> Any:
    call = engine.take_call(now)
    assert isinstance(call, Call) and call.what == "next"
    return engine.answered(call, list(rows), now)


def test_the_engine_asks_for_no_more_than_there_is_room() -> None:
    engine = make(concurrency=4)
    call = engine.take_call(0.0)
    assert isinstance(call, Call) and call.max_docs == 4
    assert not isinstance(engine.take_call(0.0), Call), "one call at a time"
    jobs = engine.answered(call, [row("a"), row("b")], 0.1)
    assert [job.runs[0].subject for job in jobs] == ["a", "b"]
    assert not isinstance(engine.take_call(0.2), Call), "there were fewer than asked for"
    engine.waited(engine.groups[0], ("ready", "a", None, 1), 0.3)
    call = engine.take_call(0.3)
    assert isinstance(call, Call) and call.max_docs == 2


def test_handlers_that_end_at_once_are_settled_by_one_call() -> None:
    engine = make(concurrency=20)
    first = engine.take_call(0.0)
    assert isinstance(first, Call) and first.max_docs == 20
    jobs = engine.answered(first, [row(f"a{n}") for n in range(20)], 0.0)
    for job in jobs:
        assert not isinstance(engine.take_call(0.001), Call), "what has ended waits for the others"
        engine.begin(job, 0.0)
        engine.ended(job, [Complete()], 0.001)
    second = engine.take_call(0.001)
    assert isinstance(second, Call) and len(second.settled) == 20 and second.max_docs == 20


def test_settlements_wait_for_others_only_while_some_run() -> None:
    engine = make()
    jobs = lease(engine, 0.0, row("a"), row("b"))
    for job in jobs:
        assert engine.begin(job, 0.0)
    engine.ended(jobs[0], [Complete()], 1.0)
    assert not isinstance(engine.take_call(1.0), Call)
    assert engine.next_call(1.0) == pytest.approx(1.003)
    engine.ended(jobs[1], [Complete()], 1.001)
    call = engine.take_call(1.001)
    assert isinstance(call, Call) and len(call.settled) == 2 and call.max_docs == 4
    engine.answered(call, [], 1.002)
    assert engine.metrics()["settled"] == {"complete": 2} and not engine.runs


def test_what_a_broken_connection_was_to_settle_is_sent_again() -> None:
    engine = make()
    jobs = lease(engine, 0.0, row("a"))
    engine.begin(jobs[0], 0.0)
    engine.ended(jobs[0], [Complete()], 1.0)
    call = engine.take_call(1.0)
    assert isinstance(call, Call)
    engine.failed(call, OSError("cut"), 1.1, pid=7)
    assert not isinstance(engine.take_call(1.1), Call) and not engine.health(1.1)["database"]
    again = engine.take_call(2.0)
    assert isinstance(again, Call) and again.what == "leases", "what was leased without an answer"
    engine.answered(again, [("a", 11), ("stray", 13)], 2.0)
    settle = engine.take_call(2.0)
    assert isinstance(settle, Call) and len(settle.settled) == 2
    assert '"stray","lease":13,"action":"snooze"' in settle.query.values["settlements"]


def test_a_lease_ends_by_the_clock_of_the_client() -> None:
    engine = make()
    job = lease(engine, 0.0, row("a", seconds=9.0))[0]
    engine.begin(job, 0.1)
    assert 2.4 - 1e-9 <= engine.next_beat() <= 3.0
    beat = engine.take_beats(3.0)[0]
    assert engine.next_beat() == math.inf
    engine.beaten(beat, [("a", "a", "extended", 1012.0, False)], 3.1)
    engine.tick(11.9)
    assert job.runs[0].reason is None, "9 s from when the heartbeat was sent"
    engine.tick(12.1)
    assert job.runs[0].reason == "lost" and job.runs[0].stop.is_set()
    engine.ended(job, [Complete()], 12.2)
    assert engine.next_call(20.0) == math.inf, "there is nothing to settle"


def test_the_end_of_max_run_is_kept() -> None:
    engine = make()
    job = lease(engine, 0.0, row("a", seconds=9.0))[0]
    engine.begin(job, 0.0)
    beat = engine.take_beats(3.0)[0]
    engine.beaten(beat, [("a", "a", "limited", 1010.0, False)], 3.0)
    assert engine.next_beat() == math.inf
    engine.tick(9.9)
    assert job.runs[0].reason is None
    engine.tick(10.1)
    assert job.runs[0].reason == "lost"


def test_a_handler_that_hangs_is_extended_no_more() -> None:
    engine = make(stuck_after=2)
    job = lease(engine, 0.0, row("a"))[0]
    job.task.timeout = 1.0
    engine.begin(job, 0.0)
    engine.tick(1.1)
    assert job.runs[0].reason == "timeout"
    engine.tick(3.2)
    assert engine.metrics()["stuck"] == 1 and engine.next_beat() == math.inf and engine.jobs == 1


def test_a_refused_list_is_sent_one_by_one() -> None:
    class Refused(Exception):
        sqlstate = "22023"

    engine = make()
    jobs = lease(engine, 0.0, row("good"), row("bad"))
    for job in jobs:
        engine.begin(job, 0.0)
    engine.ended(jobs[0], [Complete()], 1.0)
    engine.ended(jobs[1], [Snooze("-1 hour")], 1.0)
    call = engine.take_call(1.0)
    assert isinstance(call, Call)
    engine.failed(call, Refused(), 1.0)
    one = engine.take_call(1.0)
    assert isinstance(one, Call) and [s.action for s in one.settled] == ["complete"]
    engine.answered(one, [("good", "settled", None)], 1.0)
    two = engine.take_call(1.0)
    assert isinstance(two, Call) and [s.action for s in two.settled] == ["snooze"]
    engine.failed(two, Refused("delay"), 1.0)
    three = engine.take_call(1.0)
    assert isinstance(three, Call) and [s.action for s in three.settled] == ["reject"]
    assert "was refused" in three.query.values["settlements"]
    engine.answered(three, [("bad", "settled", None)], 1.0)
    assert not engine.runs


def test_weights_share_the_slots_of_the_process() -> None:
    engine = make(concurrency=7, queues="ab", weight_a=2)
    first = engine.take_call(0.0)
    assert isinstance(first, Call) and first.lane.queue == "a" and first.max_docs == 5
    engine.answered(first, [row(f"a{n}") for n in range(5)], 0.0)
    second = engine.take_call(0.0)
    assert isinstance(second, Call) and second.lane.queue == "b" and second.max_docs == 2
    engine.answered(second, [], 0.0)
    # The other queue is empty: all slots are free for this one.
    third = engine.take_call(0.0)
    assert isinstance(third, Call) and third.max_docs == 2


def test_payloads_in_memory_have_a_limit() -> None:
    engine = make(concurrency=100, max_bytes=100_000)
    call = engine.take_call(0.0)
    assert isinstance(call, Call) and call.max_docs == 1
    engine.answered(call, [row("a", payload='"' + "x" * 200_000 + '"')], 0.0)
    assert not isinstance(engine.take_call(0.0), Call)


def test_a_session_waits_for_quiet_queues_and_is_interrupted_when_another_becomes_quiet() -> None:
    engine = make(queues="ab")
    group = engine.groups[0]
    for _ in range(2):
        call = engine.take_call(0.0)
        assert isinstance(call, Call)
        engine.answered(call, [row("x")] * 0 if call.lane.queue == "a" else [row("b1")], 0.0)
    engine.lanes[0].misses = engine.lanes[1].misses = 0
    for lane in engine.lanes:
        lane.quiet_at = 0.0
        lane.ready = lane.queue == "b"
    wait = engine.take_wait(group, 0.1)
    assert not isinstance(wait, float) and wait.queues == {"a"}
    engine.lanes[0].ready = engine.lanes[1].ready = False
    engine.lanes[0].quiet_at = engine.lanes[1].quiet_at = 0.2
    assert engine.tick(0.21)[1] == []
    assert engine.tick(0.2 + HOLD)[1] == [group]
    assert engine.tick(0.2 + HOLD + 0.01)[1] == [], "a request to cancel has its time"
    assert engine.tick(0.6)[1] == [group], "and is repeated"

    class Cancelled(Exception):
        sqlstate = "57014"

    assert engine.wait_failed(group, Cancelled(), 0.7) == 0.0


def test_a_session_watches_leases_and_for_a_stop_while_all_slots_are_taken() -> None:
    engine = make(concurrency=1)
    group = engine.groups[0]
    engine.begin(lease(engine, 0.0, row("x"))[0], 0.0)
    assert isinstance(engine.take_wait(group, 0.0), float), "most handlers are short"
    wait = engine.take_wait(group, WATCH_AFTER)
    assert not isinstance(wait, float) and wait.longest > 30, "it does not ask again and again"
    assert set(wait.watched) == {("a", "x")} and wait.query.values["queues"] == ["a"]
    assert wait.query.values["version"] == NO_VERSION
    engine.waited(group, ("cancelled", "a", ["x"], None), 0.1)
    assert engine.runs["a", "x"].reason == "cancelled"


def test_a_lease_that_ended_is_not_the_next_one_of_its_document() -> None:
    engine = make()
    group = engine.groups[0]
    engine.begin(lease(engine, 0.0, row("x", lease=11))[0], 0.0)
    wait = engine.take_wait(group, WATCH_AFTER)
    assert not isinstance(wait, float) and wait.watched == {("a", "x"): 11}
    engine.runs["a", "x"] = Run(engine.lanes[0], row("x", lease=13), 0.1)
    engine.waited(group, ("lost", "a", ["x"], None), 0.1)
    assert engine.runs["a", "x"].reason is None


def test_a_wait_that_has_begun_is_interrupted_for_a_younger_lease() -> None:
    engine = make(concurrency=2)
    group = engine.groups[0]
    engine.begin(lease(engine, 0.0, row("x"), row("y"))[0], 0.0)
    assert isinstance(engine.take_wait(group, 0.0), float)
    engine.tick(0.0)
    engine.runs["a", "y"].sent = 0.02
    signals: list[str] = []
    engine.signal = signals.append
    wait = engine.take_wait(group, WATCH_AFTER)
    assert not isinstance(wait, float) and set(wait.watched) == {("a", "x")}
    assert signals == ["tick"], "somebody has to look when the other one is old enough"
    due = engine.tick(WATCH_AFTER)[0]
    assert due == 0.02 + WATCH_AFTER and engine.tick(due)[1] == [group]
    engine.waited(group, (None, None, None, None), due)
    engine.take_wait(group, due)
    wait = engine.take_wait(group, due + WATCH_AFTER)
    assert not isinstance(wait, float) and set(wait.watched) == {("a", "x"), ("a", "y")}
    engine.runs["a", "z"] = Run(engine.lanes[0], row("z"), 1.0)
    due, interrupted = engine.tick(1.0)
    assert due == 1.0 + WATCH_AFTER and interrupted == []
    assert engine.tick(due)[1] == [group]


def test_a_pooler_that_is_too_small_is_noticed(caplog: pytest.LogCaptureFixture) -> None:
    engine = make(queues="ab")
    call = engine.take_call(0.0)
    assert isinstance(call, Call)
    engine.answered(call, [], 0.0)
    wait = engine.take_wait(engine.groups[0], 1.0)
    assert not isinstance(wait, float)
    slow = engine.take_call(1.0)
    assert isinstance(slow, Call)
    assert engine.tick(1.1 + CROWDED)[1] == [engine.groups[0]]
    engine.answered(slow, [], 1.2 + CROWDED)
    assert engine.polling and engine.take_wait(engine.groups[0], 9.0) == math.inf
    assert [r for r in caplog.records if "polls every" in r.message] and len(caplog.records) == 1


def test_a_stop_that_comes_before_the_start_is_not_forgotten() -> None:
    engine = make()
    engine.ask_stop()
    assert not isinstance(engine.take_call(0.0), Call) and engine.finished


def test_an_unknown_task_is_left_to_others_for_longer_each_time() -> None:
    app = App()

    @app.task("a", name="known")
    def known(payload: dict) -> None: ...

    @app.task("a", name="other")
    def other(payload: dict) -> None: ...

    engine = Engine(app.tasks, Settings(name="w"))
    jobs = lease(
        engine, 0.0, row("x", headers='{"fetchq-task": "unknown"}'), row("y", headers='{"fetchq-task": "known"}')
    )
    assert [job.task for job in jobs] == [known]
    call = engine.take_call(1.0)
    assert (
        isinstance(call, Call) and '"action":"snooze","delay":"10.000000 seconds"' in call.query.values["settlements"]
    )


def test_a_conflict_that_stays_keeps_no_other_document_waiting() -> None:
    class Conflict(Exception):
        sqlstate = "40001"

    engine = make()
    job = lease(engine, 0.0, row("bad"))[0]
    engine.begin(job, 0.0)
    engine.ended(job, [Complete()], 1.0)
    now = 1.0
    for _ in range(3):
        now += 1
        call = engine.take_call(now)
        assert isinstance(call, Call) and len(call.settled) == 1
        engine.failed(call, Conflict(), now)
    call = engine.take_call(now)
    assert isinstance(call, Call) and call.what == "next" and not call.settled, (
        "although nothing has said that there are documents"
    )
    engine.answered(call, [], now)
    again = engine.take_call(now + 1)
    assert isinstance(again, Call) and again.what == "settle" and len(again.settled) == 1
    engine.answered(again, [("bad", "settled", None)], now + 1)
    assert not engine.runs and engine.next_call(now + 2) == math.inf


def test_progress_is_stored_before_a_failure_is_settled() -> None:
    engine = make()
    job = lease(engine, 0.0, row("a"))[0]
    engine.begin(job, 0.0)
    engine.store_progress(job.runs[0], {"pages": 3}, None)
    engine.ended(job, [ValueError("no")], 0.5)
    assert not isinstance(engine.take_call(1.0), Call)
    beat = engine.take_beats(1.0)[0]
    assert '"progress":{"pages":3}' in beat.query.values["list"]
    engine.beaten(beat, [("a", "a", "extended", 1060.0, False)], 1.0)
    call = engine.take_call(1.0)
    assert isinstance(call, Call) and call.settled[0].action == "reject"
