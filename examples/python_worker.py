"""A worker: it waits for documents of a queue, works on them one at a time, and settles them.

    python3 python_worker.py QUEUE [NAME]

DATABASE_URL names the server. LEASE is the lease duration in seconds (60). GRACE is the time in
seconds that a job has left after SIGTERM (25). Replace the function `job` with your own.
"""

import os
import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor, wait

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

QUEUE = sys.argv[1]
NAME = sys.argv[2] if len(sys.argv) > 2 else f"python-{os.getpid()}"
LEASE = float(os.environ.get("LEASE", 60))
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
    while wait([running], LEASE / 3).not_done:
        extended = db.execute(
            "select next_iteration, stop from fetchq.doc_extend(%s, %s, make_interval(secs => %s), %s)",
            [QUEUE, doc["subject"], LEASE, doc["lease"]],
        ).fetchone()
        if extended["next_iteration"] is None:  # The document was cancelled.
            stop.set()
        elif extended["stop"]:
            end()


def work(db, pool, doc):
    """Works on a document and settles it."""
    global current
    current = stop = threading.Event()
    running = pool.submit(job, doc["payload"], stop)
    try:
        keep(db, doc, running, stop)
    except psycopg.Error as error:
        print(f"{doc['subject']}: the lease cannot be extended: {error}", file=sys.stderr)
        stop.set()
    failure = running.exception()
    mine = [QUEUE, doc["subject"]]
    if failure is None:
        # The results and the settling are one transaction: both, or neither.
        with db.transaction():
            db.execute("insert into results (subject, result) values (%s, %s)", [doc["subject"], Jsonb(running.result())])
            db.execute("select fetchq.doc_complete(%s, %s, lease => %s)", [*mine, doc["lease"]])
    elif isinstance(failure, Stopped):
        # The document is ready again at once, and the attempt does not count.
        db.execute("select fetchq.doc_snooze(%s, %s, now(), %s)", [*mine, doc["lease"]])
    else:
        # The document is retried by the retry policy of the queue.
        db.execute(
            "select fetchq.doc_reject(%s, %s, left(%s, 2000), %s, lease => %s)",
            [*mine, str(failure), Jsonb({"worker": NAME}), doc["lease"]],
        )


def main():
    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    with (
        ThreadPoolExecutor(1) as pool,
        psycopg.connect(os.environ["DATABASE_URL"], autocommit=True, row_factory=dict_row) as db,
    ):
        # The leases carry this worker's name. They end when this session ends.
        db.execute("select set_config('fetchq.worker', %s, false), set_config('fetchq.session_leases', 'return', false)", [NAME])
        started = db.execute("select clock_timestamp() as now").fetchone()["now"]
        stopped = "select fetchq.worker_stop_requested(%s, %s, %s) as yes"
        while not ending.is_set() and not db.execute(stopped, [QUEUE, NAME, started]).fetchone()["yes"]:
            pick = "select subject, payload, lease from fetchq.doc_pick(%s, 0, 1, make_interval(secs => %s))"
            doc = db.execute(pick, [QUEUE, LEASE]).fetchone()
            if doc is None:
                # The wait holds no snapshot. It is short, because a stop request is read only
                # between waits.
                db.execute("call fetchq.queue_wait(%s, '2 s')", [[QUEUE]])
                continue
            try:
                work(db, pool, doc)
            except psycopg.errors.ObjectNotInPrerequisiteState as error:
                # The document was cancelled, or another worker has it now. The results are
                # rolled back.
                print(error, file=sys.stderr)


if __name__ == "__main__":
    main()
