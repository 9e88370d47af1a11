"""fetchq through the loop in one call of docs/guides/workers.md, which examples/quickstart/worker.py
uses: `docs_next` settles a batch of documents and leases the next one."""

import threading

import psycopg
from fetchq_python import QUEUE, Threads, producer, setup  # noqa: F401
from psycopg.types.json import Jsonb

BATCH = 100


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
