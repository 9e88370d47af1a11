"""fetchq through examples/python_worker.py. It works on one document at a time, so the worker process
runs as many copies of it as jobs at a time, each in a thread. Two parts differ: the job does nothing,
and as it has no results, the document is completed without a transaction around a row of results."""

import asyncio
import os
import re
import sys
import threading
import traceback
import types
from pathlib import Path

import psycopg
from psycopg.types.json import Jsonb

QUEUE = "jobs"
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python_worker.py"


class Producer:
    def __init__(self, sessions):
        self.free = asyncio.Queue()
        for session in sessions:
            self.free.put_nowait(session)

    async def execute(self, query, *arguments):
        session = await self.free.get()
        try:
            await session.execute(query, arguments)
        finally:
            self.free.put_nowait(session)

    async def one(self, job):
        await self.execute("select fetchq.doc_append(%s, %s)", QUEUE, Jsonb(job))

    async def many(self, jobs):
        await self.execute("select count(*) from fetchq.doc_append_many(%s, %s)", QUEUE, [Jsonb(job) for job in jobs])

    async def close(self):
        pass


class Threads:
    """Runs a function in several threads. An error of one ends the process."""

    def __init__(self, functions, end):
        self.end = end
        self.threads = [threading.Thread(target=self.guarded, args=[function], daemon=True) for function in functions]
        for thread in self.threads:
            thread.start()

    def guarded(self, function):
        try:
            function()
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)

    async def stop(self):
        self.end()
        for thread in self.threads:
            await asyncio.to_thread(thread.join, 4)


async def setup(url):
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as db:
        await db.execute("create extension fetchq")
        await db.execute("select fetchq.queue_create(%s)", [QUEUE])


async def producer(url, clients):
    return Producer([await psycopg.AsyncConnection.connect(url, autocommit=True) for _ in range(clients)])


def example():
    """Returns the text of the example, without what only a program with results and signals needs."""
    text = EXAMPLE.read_text()
    for part, instead in (
        (r"^ *signal\.signal\(signal\.SIGTERM, end\)\n *signal\.signal\(signal\.SIGINT, end\)\n", ""),
        (r'^( *)with db\.transaction\(\):\n *db\.execute\("insert into results.*\n *(return next_doc\(.*\n)', r"\1\2"),
    ):
        text, count = re.subn(part, instead, text, flags=re.M)
        if count != 1:
            raise RuntimeError(f"examples/python_worker.py has changed: no {part}")
    return compile(text, str(EXAMPLE), "exec")


async def worker(url, concurrency, handle):
    code = example()
    sys.argv = [str(EXAMPLE), QUEUE]
    copies = []
    for number in range(concurrency):
        copy = types.ModuleType(f"python_worker_{number}")
        exec(code, copy.__dict__)
        copy.job = lambda payload, stop: handle(payload)
        copies.append(copy)

    def end():
        for copy in copies:
            copy.ending.set()

    return Threads([copy.main for copy in copies], end)
