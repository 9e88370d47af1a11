"""A worker: it waits for documents of a queue, works on them one at a time, and settles them.

    python3 python_worker.py QUEUE [NAME]

DATABASE_URL names the server. LEASE is the lease duration in seconds (60). GRACE is the time in
seconds that a job has left after SIGTERM (25). Replace the function `job` with your own.
"""

import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

QUEUE = sys.argv[1]
NAME = sys.argv[2] if len(sys.argv) > 2 else f"python-{os.getpid()}"
LEASE = timedelta(seconds=float(os.environ.get("LEASE", 60)))
GRACE = float(os.environ.get("GRACE", 25))


class Stopped(Exception):
    pass


def job(payload, stop):
    """The work. It checks `stop` as often as it can, and ends when `stop` is set."""
    if stop.wait(payload.get("sleep", 0)):
        raise Stopped
    if "fail" in payload:
        raise RuntimeError(payload["fail"])
    return {"worked": True}


# Set after SIGTERM or a call of worker_stop(): the worker picks no more documents.
ending = threading.Event()
# Set when the running job must stop.
current = threading.Event()


def end(*_):
    if not ending.is_set():
        ending.set()
        timer = threading.Timer(GRACE, lambda: current.set())
        timer.daemon = True
        timer.start()


def keep(db, doc, running, stop):
    """Extends the lease while the job runs, and stops the job when the lease is lost."""
    while wait([running], LEASE.total_seconds() / 3).not_done:
        extended = db.execute(
            "select next_iteration, stop from fetchq.doc_extend(%s, %s, %s, %s)",
            [QUEUE, doc["subject"], LEASE, doc["lease"]],
        ).fetchone()
        if extended["next_iteration"] is None:  # The document was cancelled.
            stop.set()
        elif extended["stop"]:
            end()


def next_doc(db, settlements, max_docs):
    """Settles documents, and leases other ones: one call, one transaction. The lease carries this
    worker's name, and ends when this session ends. Fails when a lease was lost."""
    return db.execute(
        """select subject, payload, lease from fetchq.docs_next(%s, %s, %s, %s,
            worker => %s, binding => 'return', on_lost => 'error')""",
        [QUEUE, Jsonb(settlements), max_docs, LEASE, NAME],
    ).fetchone()


def settle(db, settlement, max_docs, *results):
    """Settles a document, and returns the next one. The results and the settling are one
    transaction: both, or neither."""
    with db.transaction():
        for result in results:
            db.execute("insert into results (subject, result) values (%s, %s)", [settlement["subject"], Jsonb(result)])
        return next_doc(db, [settlement], max_docs)


def text(error):
    """What the document keeps of an error: PostgreSQL stores neither a NUL nor half a character. fetchq
    cuts a message that is too long."""
    message = (str(error) or repr(error)).replace("\0", "")
    return message.encode("utf-8", "replace").decode()


def reject(mine, error):
    """The settlement of a document that has failed. It is retried by the retry policy of the queue."""
    return mine | {"action": "reject", "message": text(error), "details": {"worker": NAME}}


def is_lost(error):
    """Whether fetchq says that the lease was lost: the document was cancelled, or another worker has
    it now. SQL of your own can raise that SQLSTATE, too, but then the function is another one."""
    return error.sqlstate == "55000" and error.diag.source_function == "fetchq"


def work(db, pool, doc):
    """Works on a document, settles it, and returns the next one."""
    global current
    current = stop = threading.Event()
    running = pool.submit(job, doc["payload"], stop)
    try:
        keep(db, doc, running, stop)
    except psycopg.Error as error:
        print(f"{doc['subject']}: the lease cannot be extended: {error}", file=sys.stderr)
        stop.set()
    failure = running.exception()
    mine = {"subject": doc["subject"], "lease": doc["lease"]}
    results = []
    if failure is None:
        results = [running.result()]
        settlement = mine | {"action": "complete"}
    elif isinstance(failure, Stopped):
        # The document is ready again at once, and the attempt does not count.
        settlement = mine | {"action": "snooze"}
    else:
        settlement = reject(mine, failure)
    try:
        return settle(db, settlement, 0 if ending.is_set() else 1, *results)
    except Exception as error:
        print(f"{doc['subject']}: {error}", file=sys.stderr)
    # Perhaps it was the next document that could not be leased. So settle this one alone. The next
    # call leases alone, and its error ends the worker.
    try:
        return settle(db, settlement, 0, *results)
    except Exception as error:
        # The results cannot be written, or the lease was lost, which the rejection tells.
        settlement = reject(mine, error)
    try:
        return settle(db, settlement, 0)
    except psycopg.Error as error:
        if not is_lost(error):
            raise


class Requests:
    """Asks, once a second, whether worker_stop() was called for this worker."""

    def __init__(self, db):
        self.db = db
        self.started = db.execute("select clock_timestamp() as now").fetchone()["now"]
        self.asked = 0

    def ask(self):
        if time.monotonic() - self.asked >= 1:
            self.asked = time.monotonic()
            stopped = "select fetchq.worker_stop_requested(%s, %s, %s) as yes"
            if self.db.execute(stopped, [QUEUE, NAME, self.started]).fetchone()["yes"]:
                end()
        return ending.is_set()


def main():
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, row_factory=dict_row) as db,
    ):
        requests = Requests(db)
        doc = None
        while not requests.ask():
            doc = work(db, pool, doc) if doc else next_doc(db, [], 1)
            if not doc and not ending.is_set():
                # The wait holds no snapshot. It is short, because a stop request is read only
                # between waits.
                db.execute("call fetchq.queue_wait(%s, '1 s')", [[QUEUE]])
        if doc:
            # Hands back the document that was leased last: the work on it has not begun.
            unworked = [{"subject": doc["subject"], "lease": doc["lease"], "action": "snooze"}]
            db.execute("select outcome from fetchq.docs_settle(%s, %s)", [QUEUE, Jsonb(unworked)])


if __name__ == "__main__":
    main()
