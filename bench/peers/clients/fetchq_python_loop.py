"""fetchq through the loop in one call of docs/guides/workers.md, which examples/quickstart/worker.py
uses: `docs_next` settles a batch of documents and leases the next one."""

import asyncio
import os
import sys
import threading
import traceback

import psycopg
from fetchq_python import BATCH, QUEUE, producer, setup  # noqa: F401
from psycopg.types.json import Jsonb


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


async def worker(url, concurrency, handle):
    ending = threading.Event()

    def loop():
        with psycopg.connect(url, autocommit=True) as db:
            settlements = []
            while not ending.is_set():
                documents = db.execute(
                    "select subject, payload, lease from fetchq.docs_next(%s, %s, max_docs => %s)",
                    [QUEUE, Jsonb(settlements), BATCH],
                ).fetchall()
                settlements = []
                for subject, payload, lease in documents:
                    handle(payload)
                    settlements.append({"subject": subject, "lease": lease, "action": "complete"})
                if not documents:
                    db.execute("call fetchq.queue_wait(%s, '1 s')", [[QUEUE]])
            db.execute("select count(*) from fetchq.docs_settle(%s, %s)", [QUEUE, Jsonb(settlements)])

    return Threads([loop] * concurrency, ending.set)
