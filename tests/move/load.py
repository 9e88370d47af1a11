"""Clients of the queues that move. Each one notes in a ledger what the server has acknowledged, and goes on
after an error. They know the name of a database of PgBouncer, and no server.

    load.py ROLE NAME LEDGER CONNINFO

Each call also writes a row into a table beside the queues, in the same transaction: `pushed`, `leased` or
`settled`. These tables stay where they are, so together they say what has happened on each server.
"""

import sys
import time
import zlib
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "ha"))
from client import Client, Ledger, is_lost

ROLE, NAME, FILE, CONNINFO = sys.argv[1:5]
# A call waits in PgBouncer while the queues move.
PATIENCE = 60.0
# In seconds; the same number is in checks.py.
LEASE = 30
KEYS = 3  # Ordering keys of each producer.

note = Ledger(NAME, FILE).note


def note_error(error, **fields):
    """Notes an error; one of a queue that lives elsewhere is expected, and so is one of a connection."""
    note("error", state=error.sqlstate, m=str(error).strip()[:200], **fields)


def again(client, work, **fields):
    """Runs work(db) until it is acknowledged. Raises that a lease was lost."""
    while True:
        try:
            return client.run(work)
        except psycopg.Error as error:
            if is_lost(error):
                raise
            note_error(error, **fields)
            # The transaction is over, but it is not known what the connection is good for.
            client.close()
            time.sleep(0.1)


def produce(client):
    n = 0
    while True:
        n += 1
        if n % 4 == 0:
            key = f"{NAME}-{n // 4 % KEYS}"
            queue, subject = "ordered", f"{key}-{n:09}"
            call = "fetchq.doc_put('ordered', %(subject)s, ordering_key => %(key)s, mode => 'once')"
        else:
            key, queue, subject = None, "jobs", f"{NAME}-{n}"
            call = "fetchq.doc_put('jobs', %(subject)s, %(payload)s, priority => %(n)s %% 3, delay => %(delay)s, headers => '{\"by\": \"load\"}', mode => 'once')"
        delay = "1.5 s" if n % 5 == 0 else None

        def push(db):
            # It is one statement, and so one transaction.
            db.execute(
                f"with noted as (insert into pushed (queue, subject) values (%(queue)s, %(subject)s)) select {call}",
                {"queue": queue, "subject": subject, "key": key, "n": n, "delay": delay, "payload": f'{{"n": {n}}}'},
            )

        again(client, push, s=subject)
        note("push", q=queue, s=subject)
        time.sleep(0.02)


def fate(queue, subject, attempts):
    """How a document is settled. It says the same each time it is asked."""
    number = zlib.crc32(subject.encode())
    if attempts <= number % 4 % 3:
        return "reject"
    # What a producer of this load has pushed stays in the table. So a push whose answer was lost is
    # repeated without a second document.
    if queue == "jobs" and subject.startswith("d"):
        return ("complete", "drop", "kill", "complete")[number // 4 % 4]
    return "complete"


SETTLING = {
    "complete": "fetchq.doc_complete(%(queue)s, %(subject)s, lease => %(lease)s, result => '{\"ok\": true}')",
    "drop": "fetchq.doc_drop(%(queue)s, %(subject)s, lease => %(lease)s)",
    "kill": "fetchq.doc_kill(%(queue)s, %(subject)s, lease => %(lease)s, message => 'killed')",
    "reject": "fetchq.doc_reject(%(queue)s, %(subject)s, 'no', ref_id => %(lease)s::text, lease => %(lease)s, delay => '0.3 s')",
}


def work(client):
    rounds = 0
    while True:
        rounds += 1
        queue, n = ("ordered", 3) if rounds % 3 == 0 else ("jobs", 4)

        def lease(db):
            return db.execute(
                "with leased as materialized (select subject, lease, attempts from fetchq.doc_lease(%(queue)s, %(n)s,"
                " make_interval(secs => %(lease)s), worker => %(worker)s)),"
                " noted as (insert into leased (queue, subject, lease, attempts, worker)"
                " select %(queue)s, subject, lease, attempts, %(worker)s from leased)"
                " select * from leased",
                {"queue": queue, "n": n, "lease": LEASE, "worker": NAME},
            ).fetchall()

        held = again(client, lease, q=queue)
        for subject, number, attempts in held:
            note("lease", q=queue, s=subject, l=number, a=attempts)
        if not held:
            time.sleep(0.05)
        for subject, number, attempts in held:
            how = fate(queue, subject, attempts)

            def settle(db):
                db.execute(
                    "with noted as (insert into settled (queue, subject, lease, how) values (%(queue)s, %(subject)s, %(lease)s, %(how)s))"
                    f" select {SETTLING[how]}",
                    {"queue": queue, "subject": subject, "lease": number, "how": how},
                )

            time.sleep(0.02)
            try:
                again(client, settle, s=subject)
                note("done", q=queue, s=subject, l=number, how=how)
            except psycopg.Error as error:
                # It was settled by a call whose answer was lost, or it has expired.
                note("lost", q=queue, s=subject, l=number)
                client.close()


def wait(client):
    """Waits for a document of a queue, which the wakers push."""
    while True:
        found = again(client, lambda db: db.execute("call fetchq.queue_wait('{wake}', '1 s')").fetchone())
        if found and found[0]:
            rows = again(client, lambda db: db.execute("select subject from fetchq.doc_pop('wake', 0, 10)").fetchall())
            for (subject,) in rows:
                note("pop", s=subject)
        note("wait")


def probe(client):
    """One write after the other, to measure for how long there is no service."""
    queue, n = {"probe": "probe", "waker": "wake", "neighbour": "neighbour"}[ROLE], 0
    while True:
        n += 1
        subject = NAME if ROLE != "waker" else f"{NAME}-{n}"
        again(client, lambda db: db.execute("select fetchq.doc_put(%s, %s, mode => 'replace')", [queue, subject]))
        note(ROLE, s=subject)
        time.sleep(0.2 if ROLE == "waker" else 0.02)


ROLES = {"producer": produce, "worker": work, "waiter": wait, "probe": probe, "waker": probe, "neighbour": probe}
# Behind PgBouncer 1.18 a client cannot prepare statements.
ROLES[ROLE](Client(CONNINFO, PATIENCE, prepare_threshold=None))
