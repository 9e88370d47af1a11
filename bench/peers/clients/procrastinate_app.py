"""procrastinate with its default settings: psycopg with a pool, woken by NOTIFY, jobs are kept."""

import asyncio
import logging

import procrastinate

logging.disable(logging.WARNING)


class Producer:
    def __init__(self, app, task):
        self.app, self.task = app, task

    async def one(self, job):
        await self.task.defer_async(job=job)

    async def many(self, jobs):
        await self.task.batch_defer_async(*[{"job": job} for job in jobs])

    async def close(self):
        await self.app.close_async()


class Worker:
    def __init__(self, app, running):
        self.app, self.running = app, running

    async def stop(self):
        self.running.cancel()
        await asyncio.wait([self.running], timeout=3)


async def opened(url, handle=None):
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    @app.task(name="job", queue="jobs")
    async def task(job):
        handle(job)

    await app.open_async()
    return app, task


async def setup(url):
    app, _ = await opened(url)
    await app.schema_manager.apply_schema_async()
    await app.close_async()


async def producer(url, clients):
    return Producer(*await opened(url))


async def worker(url, concurrency, handle):
    app, _ = await opened(url, handle)
    running = asyncio.ensure_future(app.run_worker_async(queues=["jobs"], concurrency=concurrency, install_signal_handlers=False))
    return Worker(app, running)
