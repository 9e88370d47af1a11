"""Compares workers with a bare loop of docs_next, with handlers that do nothing, and measures latency and idle calls.

    DATABASE_URL=… python bench/throughput.py [DOCUMENTS] [CONCURRENCY] [ROUNDS]

Prints ratios to the bare loop, of which each round has one of its own.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import psycopg

from fetchq import App, AsyncApp, AsyncWorker, Worker

URL = os.environ["DATABASE_URL"]
DOCUMENTS = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
CONCURRENCY = int(sys.argv[2]) if len(sys.argv) > 2 else 50
ROUNDS = int(sys.argv[3]) if len(sys.argv) > 3 else 3
QUEUE = "bench_python"

app = App(URL)
aapp = AsyncApp(URL)


@app.task(QUEUE)
def work(payload: dict) -> None: ...


@aapp.task(QUEUE)
async def awork(payload: dict) -> None: ...


def fill(conn: psycopg.Connection[Any], documents: int) -> None:
    conn.execute("select fetchq.queue_truncate(%s, true)", [QUEUE])
    for first in range(0, documents, 5000):
        docs = [{"subject": f"d{n}", "payload": {"n": n}} for n in range(first, min(first + 5000, documents))]
        conn.execute("select count(*) from fetchq.doc_put_many(%s, %s)", [QUEUE, json.dumps(docs)])
    conn.execute("vacuum analyze fetchq_data.bench_python__docs")


def bare() -> float:
    """One session, one document after the other in lists: settles a list and leases the next one."""
    with psycopg.connect(URL, autocommit=True, prepare_threshold=None) as conn:
        start = time.monotonic()
        settlements: list[Any] = []
        while True:
            rows = conn.execute(
                "select subject, payload, lease from fetchq.docs_next(%s, %s, %s, worker => 'bare')",
                [QUEUE, json.dumps(settlements), CONCURRENCY],
            ).fetchall()
            if not rows:
                return time.monotonic() - start
            settlements = [{"subject": s, "lease": lease, "action": "complete"} for s, _, lease in rows]


def threads() -> float:
    worker = Worker(app, concurrency=CONCURRENCY)
    start = time.monotonic()
    with worker:
        while sum(worker.metrics()["settled"].values()) < DOCUMENTS:
            time.sleep(0.005)
        return time.monotonic() - start


def tasks() -> float:
    async def main() -> float:
        worker = AsyncWorker(aapp, concurrency=CONCURRENCY)
        start = time.monotonic()
        async with worker:
            while sum(worker.metrics()["settled"].values()) < DOCUMENTS:
                await asyncio.sleep(0.005)
            return time.monotonic() - start

    return asyncio.run(main())


def latency(count: int = 200) -> list[float]:
    """Milliseconds from the begin of a put to the begin of its handler."""
    seen: list[float] = []
    timed = App(URL)

    @timed.task(QUEUE)
    def stamp(payload: dict) -> None:
        seen.append((time.monotonic() - payload["at"]) * 1000)

    with Worker(timed):
        time.sleep(0.5)
        for n in range(count):
            stamp.put({"at": time.monotonic()})
            while len(seen) <= n:
                time.sleep(0.001)
            time.sleep(0.01)
    timed.close()
    return seen


def main() -> None:
    with psycopg.connect(URL, autocommit=True) as conn:
        conn.execute("select fetchq.queue_create(%s, %s)", [QUEUE, json.dumps({"history": None})])
        ways: dict[str, Callable[[], float]] = {"bare loop": bare, "Worker": threads, "AsyncWorker": tasks}
        ratios: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(ROUNDS):
            took: dict[str, float] = {}
            for way, run in ways.items():
                fill(conn, DOCUMENTS)
                took[way] = run()
            for way, seconds in took.items():
                ratios[way].append(took["bare loop"] / seconds)
            print({way: f"{DOCUMENTS / seconds:.0f}/s" for way, seconds in took.items()}, file=sys.stderr)
        for way, values in ratios.items():
            print(f"{way}: {statistics.median(values):.2f} of the bare loop")
        if os.environ.get("SHORT"):
            return
        fill(conn, 0)
        values = sorted(latency())
        print(f"put to handled: median {values[100]:.1f} ms, 95 % {values[190]:.1f} ms")
        with Worker(app) as worker:
            time.sleep(2)
            before = worker.metrics()["calls"]
            time.sleep(60)
            print(f"calls of an idle worker in a minute, beside the wait: {worker.metrics()['calls'] - before:.0f}")
        conn.execute("select fetchq.queue_drop(%s)", [QUEUE])


if __name__ == "__main__":
    main()
