"""Both runtimes against a server: what becomes of documents."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any

import pytest
from conftest import Db, until

from fetchq import Complete, ConfigError, Drop, Kill, Plugin, Reschedule, Retry, Snooze, Worker

SOON = 15.0


def settled(db: Db, queue: str, subject: str, status: str) -> Any:
    return until(f"{subject} is {status}", lambda: (db.state(queue, subject) or ("",))[0] == status)


def test_outcomes_by_return_value_and_by_error(db: Db, side: Any) -> None:
    queue = db.queue()
    outcomes = {
        "complete": Complete({"n": 1}),
        "value": {"n": 2},
        "snooze": Snooze("1 hour"),
        "reschedule": Reschedule(3600, payload={"x": 1}),
        "reject": Retry("not yet", delay="1 hour"),
        "kill": Kill("gone"),
        "drop": Drop,
    }

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any:
        outcome = outcomes[payload["what"]]
        if payload["raised"] and isinstance(outcome, BaseException):
            raise outcome
        return outcome

    subjects = [(f"{what}-{raised}", what, raised) for what in outcomes for raised in (False, True)]
    docs = [work.doc({"what": what, "raised": raised}, subject=name) for name, what, raised in subjects]
    side.call(side.app.put_many, docs)
    worker = side.work()
    until("all are handled", lambda: sum(worker.metrics()["settled"].values()) == len(docs))
    for raised in (False, True):
        assert db.state(queue, f"complete-{raised}") == ("completed", 0)
        assert db.state(queue, f"snooze-{raised}") == ("planned", 0)
        assert db.state(queue, f"reschedule-{raised}")[0] == "planned"
        assert db.state(queue, f"reject-{raised}")[1] == 1
        assert db.state(queue, f"kill-{raised}")[0] == "killed"
        assert db.value("select payload from fetchq.doc_get(%s, %s)", queue, f"reschedule-{raised}") == {"x": 1}
    assert side.call(work.wait, "value-False", 1).result == {"n": 2}
    assert side.call(work.wait, "kill-True", 1).message == "gone"


def test_what_follows_is_put_if_the_document_succeeds(db: Db, side: Any) -> None:
    first, second = db.queue(), db.queue()

    @side.task(second)
    async def after(payload: Any, ctx: Any) -> Any:
        return payload

    @side.task(first)
    async def before(payload: Any, ctx: Any) -> Any:
        ctx.then(after.doc({"n": 1}, subject=f"after-{ctx.subject}"))
        if payload.get("fail"):
            raise ValueError("no")
        return Complete(then=[after.doc(subject=f"also-{ctx.subject}")])

    side.call(before.put, {}, subject="good")
    side.call(before.put, {"fail": True}, subject="bad")
    side.work()
    for subject in ("after-good", "also-good"):
        until("it is completed", lambda s=subject: db.state(second, s) == ("completed", 0))
    until("the other has failed", lambda: db.has_failed(first, "bad"))
    assert not db.state(second, "after-bad")


def test_a_payload_that_does_not_decode_is_rejected_and_the_loop_goes_on(db: Db, side: Any, caplog: Any) -> None:
    queue = db.queue()

    @side.task(queue, payload=dict[str, int])
    async def work(payload: Any, ctx: Any) -> Any:
        return payload["n"]

    db.sql("select fetchq.doc_put(%s, 'bad', %s)", queue, '{"n": "many"}')
    db.sql("select fetchq.doc_put(%s, 'good', %s)", queue, '{"n": 1}')
    side.work()
    assert side.call(work.wait, "good", SOON).result == 1
    until("it is rejected", lambda: db.has_failed(queue, "bad"))
    assert "payload.n must be of type int" in db.value("select last_error from fetchq.doc_get(%s, 'bad')", queue)
    line = next(record for record in caplog.records if getattr(record, "subject", "") == "bad")
    assert line.queue == queue and line.levelno == logging.WARNING and "bad" in line.getMessage()


def test_a_result_that_is_no_json_is_an_error_of_its_document(db: Db, side: Any) -> None:
    queue = db.queue()

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any:
        return object() if payload["bad"] else "a\0b" if payload["nul"] else 1

    side.call(work.put, {"bad": True, "nul": False}, subject="bad")
    side.call(work.put, {"bad": False, "nul": True}, subject="nul")
    side.call(work.put, {"bad": False, "nul": False}, subject="good")
    side.work()
    assert side.call(work.wait, "good", SOON).result == 1
    for subject in ("bad", "nul"):
        until("it is rejected", lambda s=subject: db.has_failed(queue, s))


def test_a_settlement_that_the_server_refuses_spares_the_others(db: Db, side: Any) -> None:
    queue = db.queue()

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any:
        return Snooze("-1 hour") if payload["bad"] else 1

    docs = [work.doc({"bad": n == 3}, subject=f"d{n}") for n in range(8)]
    side.call(side.app.put_many, docs)
    side.work()
    for n in range(8):
        if n != 3:
            assert side.call(work.wait, f"d{n}", SOON).status == "completed"
    until("it is rejected", lambda: db.has_failed(queue, "d3"))
    assert "was refused" in db.value("select last_error from fetchq.doc_get(%s, 'd3')", queue)


def test_a_transactional_handler_commits_with_its_document(db: Db, side: Any) -> None:
    queue = db.queue()
    db.sql(f"create table {queue}_rows (subject text)")

    @side.task(queue, transaction=True)
    async def work(payload: Any, ctx: Any) -> Any:
        await side.execute(ctx, f"insert into {queue}_rows values ('{ctx.subject}')")
        if payload.get("cancel"):
            db.sql("select * from fetchq.doc_cancel(%s, %s)", queue, ctx.subject)
        if payload.get("fail"):
            raise ValueError("no")
        if payload.get("kill"):
            return Kill("committed")
        return 7

    for subject in ("good", "fail", "cancel", "kill"):
        side.call(work.put, {subject: True}, subject=subject)
    worker = side.work()
    assert side.call(work.wait, "good", SOON).result == 7
    until("all are handled", lambda: worker.metrics()["handled"] == 4)
    until("it is rejected", lambda: db.has_failed(queue, "fail"))
    until("it is killed", lambda: db.state(queue, "kill")[0] == "killed")
    assert sorted(row[0] for row in db.sql(f"select subject from {queue}_rows")) == ["good", "kill"]
    db.sql(f"drop table {queue}_rows")


def test_a_step_is_kept_over_retries_beside_progress(db: Db, side: Any) -> None:
    queue = db.queue('{"retry": {"base": "1 ms"}}')
    calls: list[int] = []
    seen: list[Any] = []

    @side.task(queue, retry={ValueError: Retry(delay=0)})
    async def work(payload: Any, ctx: Any) -> Any:
        seen.append(ctx.stored)
        ctx.progress({"pages": ctx.attempt})
        value = await side.step(ctx, "render", lambda: calls.append(1) or {"html": "x"})
        if ctx.attempt < 3:
            raise ValueError("again")
        return value

    side.call(work.put, {}, subject="a")
    side.work()
    assert side.call(work.wait, "a", SOON).result == {"html": "x"}
    assert calls == [1] and seen == [None, {"pages": 1}, {"pages": 2}]


def test_a_cancel_reaches_a_handler_that_runs(db: Db, side: Any) -> None:
    queue = db.queue()
    reasons: list[Any] = []
    began = threading.Event()

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any:
        began.set()
        try:
            await side.sleep(ctx, 60)
        finally:
            reasons.append(ctx.reason)

    side.call(work.put, {}, subject="a")
    worker = side.work()
    assert began.wait(SOON)
    at = time.monotonic()
    assert side.call(work.cancel, "a")
    until("it knows", lambda: reasons)
    assert reasons == ["cancelled"] and time.monotonic() - at < 20
    until("it has ended", lambda: worker.metrics()["slots_used"] == 0)
    assert worker.metrics()["settled"] == {}
    assert db.state(queue, "a")[0] == "killed"


def test_a_cancel_and_a_stop_reach_a_worker_without_a_free_slot(db: Db, side: Any) -> None:
    queue = db.queue()
    reasons: dict[str, Any] = {}
    began = threading.Semaphore(0)

    @side.task(queue, lease=3600)  # The first heartbeat would tell it after a quarter of an hour at the earliest.
    async def work(payload: Any, ctx: Any) -> Any:
        began.release()
        try:
            await side.sleep(ctx, 600)
        finally:
            reasons[ctx.subject] = ctx.reason

    for subject in ("a", "b", "c"):
        side.call(work.put, {}, subject=subject)
    worker = side.work(concurrency=2, grace=0)
    assert began.acquire(timeout=SOON) and began.acquire(timeout=SOON)
    assert side.call(work.cancel, "a")
    until("the cancel reaches it", lambda: "a" in reasons, SOON)
    assert began.acquire(timeout=SOON), "the slot is given to the next document"
    db.sql("select fetchq.worker_stop(%s)", worker.name)
    until("the stop reaches it", lambda: {"b", "c"} <= reasons.keys(), SOON)
    side.join(worker)
    assert reasons == {"a": "cancelled", "b": "shutdown", "c": "shutdown"}
    assert [db.state(queue, subject) for subject in "bc"] == [("pending", 0)] * 2
    assert db.state(queue, "a")[0] == "killed"


def test_the_heartbeat_outlasts_the_lease_and_a_blocked_handler(db: Db, side: Any) -> None:
    queue = db.queue()

    @side.task(queue, lease=1.5)
    async def work(payload: Any, ctx: Any) -> Any:
        time.sleep(4)  # Whatever a handler does: in asyncio it keeps the event loop.
        return "done"

    side.call(work.put, {}, subject="a")
    side.work()
    worst = 99.0
    until("it runs", lambda: db.state(queue, "a") == ("active", 1))
    while db.state(queue, "a")[0] == "active":
        left = "select extract(epoch from lease_ends - clock_timestamp()) from fetchq.doc_get(%s, 'a')"
        worst = min(worst, float(db.value(left, queue) or worst))
        time.sleep(0.1)
    assert worst > 0, "the lease has never ended"
    assert db.state(queue, "a") == ("completed", 0)


def test_a_timeout_rejects(db: Db, side: Any) -> None:
    queue = db.queue()

    @side.task(queue, timeout=0.5)
    async def work(payload: Any, ctx: Any) -> Any:
        await side.sleep(ctx, 60)

    side.call(work.put, {}, subject="a")
    side.work()
    until("it is rejected", lambda: db.has_failed(queue, "a"))
    assert "timeout" in db.value("select last_error from fetchq.doc_get(%s, 'a')", queue)


def test_a_stop_waits_then_hands_back(db: Db, side: Any) -> None:
    queue = db.queue()
    running = threading.Semaphore(0)

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any:
        running.release()
        await side.sleep(ctx, payload["seconds"])
        return "finished"

    side.call(work.put, {"seconds": 1}, subject="short")
    side.call(work.put, {"seconds": 60}, subject="long")
    worker = side.work(grace=2)
    running.acquire()
    running.acquire()
    worker.stop()
    side.call(work.put, {"seconds": 0}, subject="late")
    side.join(worker)
    assert db.state(queue, "short") == ("completed", 0)
    assert db.state(queue, "long") == ("pending", 0), "the attempt does not count"
    assert db.state(queue, "late") == ("pending", 0)


def test_worker_stop_of_the_server_ends_an_idle_and_a_busy_worker(db: Db, side: Any) -> None:
    queue = db.queue()

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any: ...

    worker = side.work()
    time.sleep(0.5)
    db.sql("select fetchq.worker_stop(%s)", worker.name)
    side.join(worker)
    busy = side.work(concurrency=1)
    stop = threading.Event()

    def feed() -> None:
        while not stop.is_set():
            side.call(side.app.put_many, [work.doc({}) for _ in range(200)])

    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        until("it is busy", lambda: busy.metrics()["handled"] > 50)
        db.sql("select fetchq.worker_stop(%s)", busy.name)
        side.join(busy)
    finally:
        stop.set()
        feeder.join()


def test_a_stop_that_comes_before_the_first_wait_is_not_missed(db: Db, side: Any) -> None:
    queue = db.queue()

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any:
        db.sql("select fetchq.worker_stop(%s)", payload["name"])

    side.call(work.put, {"name": queue})
    worker = side.work(concurrency=1, name=queue)
    side.join(worker)


def test_several_tasks_share_a_queue_and_versions_are_converted(db: Db, side: Any) -> None:
    queue = db.queue()
    log: list[Any] = []

    @side.task(queue, name="one", version=2)
    async def one(payload: Any, ctx: Any) -> Any:
        log.append(("one", payload, ctx.version))

    @side.task(queue, name="two", version=2)
    async def two(payload: Any, ctx: Any) -> Any:
        log.append(("two", payload, ctx.version))

    one.upcast(1)(lambda payload: {**payload, "second": True})
    one.upcast(0)(lambda payload: {**payload, "first": True})
    side.call(one.put, {"n": 1})
    side.call(two.put, {"n": 2})
    side.call(one.put, {"n": 3}, version=0)
    db.sql("select fetchq.doc_put(%s, 'newer', version => 3)", queue)
    side.work()
    until("all are handled", lambda: len(log) == 3)
    assert sorted(log, key=lambda entry: entry[1]["n"]) == [
        ("one", {"n": 1}, 2),
        ("two", {"n": 2}, 2),
        ("one", {"n": 3, "first": True, "second": True}, 0),
    ]
    assert db.state(queue, "newer") == ("pending", 0)


def test_batches(db: Db, url: str) -> None:
    from fetchq import App, Batch

    app = App(url)
    sizes: list[int] = []

    @app.batch_task(db.queue(), size=5, concurrency=1)
    def many(batch: Batch[dict]) -> Any:
        sizes.append(len(batch))
        return [Kill("bad") if payload["n"] == 2 else payload["n"] for payload, _ in batch.items()]

    many.put_many([many.doc({"n": n}, subject=f"d{n}") for n in range(7)])
    with Worker(app):
        assert [many.wait(f"d{n}", SOON).result for n in range(7)] == [0, 1, None, 3, 4, 5, 6]
    assert db.state(many.queue, "d2")[0] == "killed" and max(sizes) == 5 and sum(sizes) == 7
    app.close()


def test_middleware_surrounds_in_order(db: Db, side: Any) -> None:
    log: list[str] = []

    class Named(Plugin):
        def __init__(self, name: str) -> None:
            self.name = name

        @contextlib.contextmanager
        def put(self, docs: Any) -> Any:
            log.append(f"{self.name} put")
            docs[0].headers[self.name] = True
            yield

        @contextlib.contextmanager
        def handle(self, ctx: Any) -> Any:
            log.append(f"{self.name} handle")
            yield
            log.append(f"{self.name} {ctx.outcome.action}")

    side.app.use(Named("outer"))
    side.app.use(Named("inner"))
    queue = db.queue()

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any:
        return sorted(ctx.headers)

    side.call(work.put, {}, subject="a")
    side.work()
    assert side.call(work.wait, "a", SOON).result == ["inner", "outer"]
    assert log == ["outer put", "inner put", "outer handle", "inner handle", "inner complete", "outer complete"]


def test_a_start_that_cannot_work_is_one_clear_error(db: Db, side: Any, url: str) -> None:
    @side.task("no_such_queue_here")
    async def work(payload: Any, ctx: Any) -> Any: ...

    with pytest.raises(ConfigError, match=r"app\.sync"):
        side.work()
    name = f"{db.queue()}db"
    db.sql(f"create database {name}")
    try:
        base = url.rsplit("/", 1)[0]
        side.app.open(f"{base}/{name}")
        with pytest.raises(ConfigError, match="CREATE EXTENSION"):
            side.work()
    finally:
        db.sql(f"drop database {name} with (force)")


def test_a_pool_that_is_too_small_is_refused(db: Db, url: str) -> None:
    from psycopg_pool import ConnectionPool

    from fetchq import App

    with ConnectionPool(url, min_size=0, max_size=2, open=True) as pool:
        app = App(pool)

        @app.task(db.queue(), transaction=True)
        def work(payload: dict) -> None: ...

        with pytest.raises(ConfigError, match="max_size=10"):
            Worker(app, concurrency=10)
        Worker(app, concurrency=2)


def test_an_idle_worker_is_silent(db: Db, side: Any) -> None:
    queue = db.queue()

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any: ...

    worker = side.work()
    side.call(work.put, {}, subject="a")
    side.call(work.wait, "a", SOON)
    time.sleep(1)
    before = worker.metrics()["calls"]
    seen = (
        "select count(*), max(query_start)::text from pg_stat_activity"
        " where query like '%%worker_wait%%' and pid <> pg_backend_pid()"
    )
    waiting = db.sql(seen)
    time.sleep(5)
    assert worker.metrics()["calls"] == before
    assert db.sql(seen) == waiting, "one wait, and no other call"
    assert worker.health()["ok"]


def test_errors_of_handlers_are_told_with_their_stack(db: Db, side: Any) -> None:
    queue = db.queue()

    @side.task(queue)
    async def work(payload: Any, ctx: Any) -> Any:
        raise ValueError("a secret \0 and \ud800 half")

    side.call(work.put, {}, subject="a")
    side.work(redact=lambda text: text.replace("secret", "***"))
    until("it is rejected", lambda: db.has_failed(queue, "a"))
    (message, details) = db.sql("select message, details from fetchq.doc_errors(%s, 'a')", queue)[0]
    assert message == "a ***  and \ufffd half"
    assert details["error"] == "builtins.ValueError" and "raise ValueError" in details["stack"]
    assert "secret" not in str(details)
