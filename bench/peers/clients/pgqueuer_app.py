"""pgqueuer as its command line runs it: asyncpg and uvloop, batches of 10, woken by NOTIFY."""

import asyncio
import json

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from pgqueuer.queries import Queries

run = uvloop.run


class Producer:
    def __init__(self, pool):
        self.pool, self.queries = pool, Queries(AsyncpgPoolDriver(pool))

    async def one(self, job):
        await self.queries.enqueue("job", json.dumps(job).encode())

    async def many(self, jobs):
        await self.queries.enqueue(["job"] * len(jobs), [json.dumps(job).encode() for job in jobs], [0] * len(jobs))

    async def close(self):
        await self.pool.close()


class Worker:
    def __init__(self, queuer, running):
        self.queuer, self.running = queuer, running

    async def stop(self):
        self.queuer.shutdown.set()
        await asyncio.wait([self.running], timeout=3)


async def setup(url):
    db = await asyncpg.connect(url)
    await Queries(AsyncpgDriver(db)).install()
    await db.close()


async def producer(url, clients):
    return Producer(await asyncpg.create_pool(url, min_size=clients, max_size=clients))


async def worker(url, concurrency, handle):
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

    @queuer.entrypoint("job")
    async def job(found):
        handle(json.loads(found.payload))

    return Worker(queuer, asyncio.ensure_future(queuer.run()))
