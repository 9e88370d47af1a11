"""fetchq through its package for Python, with as many handlers at a time, in threads, as jobs at a time."""

import asyncio
import sys
from pathlib import Path

import psycopg
from psycopg_pool import AsyncConnectionPool

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "clients" / "python" / "src"))
from fetchq import App, AsyncApp, Worker  # noqa: E402

QUEUE = "jobs"
# The size of the batches of those clients that handle batches.
BATCH = 100


class Producer:
    def __init__(self, pool):
        self.pool = pool
        app = AsyncApp(pool)

        @app.task(QUEUE)
        async def task(payload: dict): ...

        self.one = task.put
        self.many = task.put_many

    async def close(self):
        await self.pool.close()


def declare(app, handle):
    @app.task(QUEUE)
    def task(payload: dict):
        handle(payload)


class Work:
    """A worker. `declare` gives it its task."""

    def __init__(self, url, concurrency, handle, declare=declare):
        app = App(url)
        declare(app, handle)
        self.worker = Worker(app, concurrency=concurrency).start()

    async def stop(self):
        self.worker.stop()
        await asyncio.to_thread(self.worker.join, 4)


async def setup(url):
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        await db.execute("create extension fetchq")
        await db.execute("select fetchq.queue_create(%s)", [QUEUE])


async def producer(url, clients):
    pool = AsyncConnectionPool(url, min_size=clients, max_size=clients, open=False)
    await pool.open(wait=True)
    return Producer(pool)


async def worker(url, concurrency, handle):
    return await asyncio.to_thread(Work, url, concurrency, handle)
