"""Clients of the cluster. Each one notes in a file what the server has acknowledged, a line of JSON for
each event, and goes on after an error.

    load.py ROLE NAME FILE CONNINFO
"""

import sys
import time

import psycopg

from client import Client, Ledger, is_lost

ROLE, NAME, FILE, CONNINFO = sys.argv[1:5]
# How long a call may take before the client closes its connection.
PATIENCE = 8.0
LEASE = 40

note = Ledger(NAME, FILE).note


def pause():
    time.sleep(0.2)


def produce(client):
    queues = ("ha", "pops", "ha", "jobs", "ha", "pops")
    n = 0
    while True:
        n += 1
        queue, subject = queues[n % len(queues)], f"{NAME}-{n}"

        def push(db):
            with db.transaction():
                db.execute("insert into ha_pushed values (%s, %s) on conflict do nothing", [queue, subject])
                db.execute("select fetchq.doc_push(%s, %s, '{}', now())", [queue, subject])

        while True:
            try:
                client.run(push)
                note("push", q=queue, s=subject)
                break
            except psycopg.Error as error:
                note("error", s=subject, m=str(error).strip()[:160])
                client.close()
                pause()
        time.sleep(0.02)


def work(client):
    held = []  # Documents that are leased here and were not settled yet.
    while True:
        try:
            if not held:
                leased = client.run(lambda db: db.execute(
                    "select subject, lease, attempts from fetchq.doc_lease('ha', 4, make_interval(secs => %s), worker => %s)",
                    [LEASE, NAME]).fetchall())
                for subject, lease, attempts in leased:
                    note("lease", s=subject, l=lease, a=attempts)
                held = [(s, l) for s, l, _ in leased]
                if not held:
                    client.run(lambda db: db.execute("call fetchq.queue_wait('{ha}', '2 s')"))
                    continue
            time.sleep(0.02)
            subject, lease = held[0]

            def settle(db):
                with db.transaction():
                    db.execute("insert into ha_results values (%s, %s, %s)", [subject, lease, NAME])
                    db.execute("select fetchq.doc_complete('ha', %s, lease => %s)", [subject, lease])

            client.run(settle)
            note("done", s=subject, l=lease)
            held.pop(0)
        except psycopg.Error as error:
            if is_lost(error):
                note("lost", s=held[0][0], l=held[0][1])
                held.pop(0)
                continue
            note("error", s=held[0][0] if held else None, m=str(error).strip()[:160])
            client.close()
            pause()


def pop(client):
    while True:
        def take(db):
            with db.transaction():
                rows = db.execute("select subject from fetchq.doc_pop('pops', 0, 3)").fetchall()
                for (subject,) in rows:
                    db.execute("insert into ha_popped values (%s)", [subject])
                return rows

        try:
            rows = client.run(take)
            for (subject,) in rows:
                note("pop", s=subject)
            time.sleep(0.03 if rows else 0.2)
        except psycopg.Error as error:
            note("error", s=None, m=str(error).strip()[:160])
            client.close()
            pause()


def probe(client):
    """One write after the other, to measure for how long there is no service."""
    while True:
        try:
            client.run(lambda db: db.execute("select fetchq.doc_put('probe', %s, mode => 'replace')", [NAME]))
            note("probe")
            time.sleep(0.05)
        except psycopg.Error:
            client.close()
            time.sleep(0.05)


with_patience = Client(CONNINFO, 2.0 if ROLE == "probe" else PATIENCE)
{"producer": produce, "worker": work, "popper": pop, "probe": probe}[ROLE](with_patience)
