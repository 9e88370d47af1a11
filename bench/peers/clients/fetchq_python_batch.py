"""fetchq through its package for Python, with handlers, in threads, that get batches."""

import asyncio

from fetchq_python import BATCH, QUEUE, Work, producer, setup  # noqa: F401


def declare(app, handle):
    @app.batch_task(QUEUE, size=BATCH)
    def task(batch):
        for payload, _ in batch.items():
            handle(payload)


async def worker(url, concurrency, handle):
    return await asyncio.to_thread(Work, url, concurrency * BATCH, handle, declare)
