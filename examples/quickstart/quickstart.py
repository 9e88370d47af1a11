"""Adds a document for every file below a folder, runs the workers and the maintenance, and checks that each
file was processed exactly once in each of two rounds."""

import argparse
import base64
import hashlib
import json
import os
import selectors
import signal
import stat
import subprocess
import sys
import time

import psycopg
from psycopg.types.json import Jsonb

from worker import QUEUE

# The lease duration of the worker that is killed. It is short, so that its documents soon return.
SHORT_LEASE = "3s"
# The lease duration of the other workers. It is enough for a batch with some large files.
LEASE = "10s"
# The time from round one of a document to its round two.
DELAY = "5s"
# The run fails after this time without progress, in seconds.
PATIENCE = 60
# The number of documents in one call.
CHUNK = 1000

METRICS = {
    "ent": "entered", "pkd": "picked", "prc": "processed", "res": "rescheduled",
    "rej": "rejected", "orp": "orphaned", "err": "errors", "drp": "dropped",
    "cnt": "documents", "pln": "planned", "pnd": "pending", "act": "active",
    "cpl": "completed", "kll": "killed",
}

started = time.monotonic()


def say(text):
    print(f"[{time.monotonic() - started:5.1f} s] {text}", flush=True)


def files_below(folder):
    """Returns every regular file. Names are bytes, because a file name need not be text."""
    for here, _, names in os.walk(os.fsencode(folder)):
        for name in names:
            path = os.path.join(here, name)
            try:
                if stat.S_ISREG(os.lstat(path).st_mode):
                    yield path
            except FileNotFoundError:
                pass


def document(path):
    """Returns (subject, payload) of a file. The subject is a hash, because a path can be too
    long."""
    payload = {"path": path.decode("utf-8", "backslashreplace"), "round": 0}
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        payload["raw"] = base64.b64encode(path).decode()
    return hashlib.md5(path).hexdigest(), payload


def put(db, paths):
    """Adds documents with one call for each thousand, and returns how many were new."""
    added = 0
    for at in range(0, len(paths), CHUNK):
        documents = [
            {"subject": subject, "payload": payload} for subject, payload in map(document, paths[at : at + CHUNK])
        ]
        added += db.execute(
            "select count(*) from fetchq.doc_put_many(%s, %s, 'once') where action = 'created'", [QUEUE, Jsonb(documents)]
        ).fetchone()[0]
    return added


class Workers:
    """The worker processes. None is left behind, however the run ends."""

    def __init__(self):
        self.running = {}

    def start(self, number, *options, lease=LEASE):
        command = [sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "worker.py")]
        process = subprocess.Popen(
            [*command, str(number), "--lease", lease, "--delay", DELAY, *options],
            stdout=subprocess.PIPE, text=True,
        )
        self.running[number] = process
        return process

    def check(self):
        for number, process in self.running.items():
            if process.poll() is not None:
                sys.exit(f"error: worker {number} ended with status {process.returncode}")

    def kill(self, number):
        process = self.running.pop(number)
        process.send_signal(signal.SIGKILL)
        return process.wait()

    def stop(self):
        """Asks all workers to finish, and returns those that ended with an error."""
        for process in self.running.values():
            process.terminate()
        bad = [n for n, process in self.running.items() if process.wait(timeout=30) != 0]
        self.running.clear()
        return bad

    def clean_up(self):
        for process in self.running.values():
            process.kill()
            process.wait()


def first_line(process):
    """Returns the first line that a process prints. Ends the run if there is none."""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        if selector.select(timeout=PATIENCE) and (line := process.stdout.readline()):
            return line
    sys.exit("error: the first worker got no document")


def common(db):
    cursor = db.execute("select * from fetchq.metric_get_common(%s)", [QUEUE])
    return dict(zip([column.name for column in cursor.description], cursor.fetchone()))


def watch(db, workers, files):
    """Runs the maintenance and shows the counters until no document is left to do."""
    shown, progressed, last = 0.0, time.monotonic(), None
    while True:
        workers.check()
        # Returns documents with an expired lease, and makes planned documents pending.
        db.execute("select * from fetchq.mnt_run(%s, 5000)", [QUEUE])
        now = time.monotonic()
        counters = common(db)
        done = counters["cpl"] + counters["kll"] == files
        if done or now - shown >= 1:
            shown = now
            db.execute("select fetchq.metric_log_pack()")
            say("round 1: {res:6} hashed   round 2: {cpl:6} completed   "
                "now: {pnd} pending, {act} active, {pln} planned, {kll} killed".format(**counters))
        if done:
            return
        if counters != last:
            last, progressed = counters, now
        elif now - progressed > PATIENCE:
            sys.exit(f"error: no progress for {PATIENCE} seconds")
        time.sleep(0.1)


def check(db, files, held):
    """Returns every claim of the quick start as (what, expected, found)."""
    def one(sql, *args):
        return db.execute(sql, args).fetchone()[0]

    counters = common(db)
    cursor = db.execute("select * from fetchq.metric_compute(%s)", [QUEUE])
    counted = dict(zip([column.name for column in cursor.description], cursor.fetchone()))
    killed = one("select count(*) from fetchq_data.quickstart__docs where status = -1")
    ledger = "select count(*) from quickstart_ledger where round = %s"

    yield "documents in the queue", files, one("select count(*) from fetchq_data.quickstart__docs")
    yield "documents completed, or killed after 3 rejections", files, killed + one(
        "select count(*) from fetchq_data.quickstart__docs where status = 3")
    yield "ledger, round 1: rows = distinct documents", one(
        "select count(distinct subject) from quickstart_ledger where round = 1"), one(ledger, 1)
    yield "ledger, round 2: rows = distinct documents", one(
        "select count(distinct subject) from quickstart_ledger where round = 2"), one(ledger, 2)
    yield "ledger, round 2: rows = completed documents", files - killed, one(ledger, 2)
    yield "documents without both rounds that are not killed", 0, one("""
        select count(*) from fetchq_data.quickstart__docs d
        where status <> -1 and (select array_agg(round order by round) from quickstart_ledger l
                                where l.subject = d.subject) is distinct from '{1,2}'""")
    yield "payloads that differ from the ledger", 0, one("""
        select count(*) from quickstart_ledger l join fetchq_data.quickstart__docs d using (subject)
        where d.payload ->> 'sha256' is distinct from l.sha256""")
    yield "killed documents without 3 log lines", 0, one("""
        select count(*) from fetchq_data.quickstart__docs d where status = -1
        and (select count(*) from fetchq_data.quickstart__logs l where l.subject = d.subject) < 3""")
    yield "documents of the killed worker that no other worker finished", 0, one("""
        select count(*) from unnest(%s::text[]) as held (subject)
        where not exists (select from quickstart_ledger l where l.subject = held.subject and l.round = 1 and l.worker <> 1)
          and not exists (select from fetchq_data.quickstart__docs d where d.subject = held.subject and d.status = -1)""", held)
    yield "documents of the killed worker are among the orphaned", True, counters["orp"] >= len(held)
    for gauge, value in counted.items():
        yield f"counter {gauge} = real count", value, counters[gauge]
    yield "counter ent", files, counters["ent"]
    yield "counter res = ledger, round 1", one(ledger, 1), counters["res"]
    yield "counter pkd = prc + orp", counters["prc"] + counters["orp"], counters["pkd"]
    yield "counter prc = res + cpl + rej", counters["res"] + counters["cpl"] + counters["rej"], counters["prc"]


def run(db, workers, folder, number):
    db.execute("drop table if exists quickstart_ledger")
    if db.execute("select from fetchq.queue_stats() where queue = %s", [QUEUE]).fetchone() is not None:
        db.execute("select fetchq.queue_drop(%s)", [QUEUE])
    # The checks at the end read the documents in the table, so what is settled stays there.
    settings = {"max_attempts": 3, "retry": {"base": "1 s"}, "history": None}
    db.execute("select fetchq.queue_create(%s, %s)", [QUEUE, Jsonb(settings)])
    # It has no unique key, so that a document that is processed twice is seen.
    db.execute("create table quickstart_ledger (round int, subject text, sha256 text, worker int)")

    paths = list(files_below(folder))
    files = len(paths)
    if not files:
        sys.exit(f"error: there is no file below {folder}")
    added = put(db, paths)
    say(f"added {added} documents, one for each file below {folder}")
    if added != files:
        sys.exit(f"error: {files} files, but {added} documents were added")

    # The first worker hangs in the middle of a batch and is killed there. The others start
    # before that, so that they compete for its documents.
    victim = workers.start(1, "--hang", "--batch", str(min(25, files)), lease=SHORT_LEASE)
    held = json.loads(first_line(victim))
    for n in range(2, number + 1):
        workers.start(n)
    say(f"{number} workers run; worker 1 hangs with {len(held)} documents leased for {SHORT_LEASE}")
    workers.kill(1)
    say("worker 1 was killed with kill -9; its documents return when their lease expires")

    watch(db, workers, files)
    bad = workers.stop()
    if bad:
        sys.exit(f"error: these workers ended with an error: {bad}")

    print("\nmetric         value")
    for metric, value in common(db).items():
        print(f"{metric} {METRICS[metric]:<12}{value:>6}")
    returned = db.execute("""
        select count(distinct l.subject), count(distinct l.worker) from quickstart_ledger l
        where l.round = 1 and l.subject = any (%s)""", [held]).fetchone()
    print(f"\nother workers finished {returned[0]} of the {len(held)} documents of worker 1; number of these workers: {returned[1]}")
    rejected = db.execute("""
        select message, count(distinct subject), min(details ->> 'path')
        from fetchq_data.quickstart__logs group by 1 order by 2 desc limit 5""").fetchall()
    for message, count, example in rejected:
        print(f"rejected: {count} × {message}, for example {example}")

    wrong = [c for c in check(db, files, held) if c[1] != c[2]]
    for what, expected, found in wrong:
        print(f"WRONG: {what}: expected {expected}, found {found}")
    killed = common(db)["kll"]
    if wrong:
        print(f"\nquickstart: FAILED, {len(wrong)} checks are wrong")
        return 1
    took = time.monotonic() - started
    aside = f" ({killed} could not be processed: they were rejected three times and killed)" if killed else ""
    print(f"\nquickstart: OK, {files} files, each processed exactly once in each of two rounds{aside}, {took:.1f} s")
    return 0


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--workers", type=int, default=4)
    args = parser.parse_args()
    if args.workers < 2:
        parser.error("one worker is killed: at least 2 are needed")
    if not os.path.isdir(args.folder):
        parser.error(f"no folder {args.folder}")

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    workers = Workers()
    try:
        with psycopg.connect("", autocommit=True, application_name="quickstart") as db:
            return run(db, workers, os.path.abspath(args.folder), args.workers)
    except KeyboardInterrupt:
        return 130
    except psycopg.Error as error:
        sys.exit(f"error: {error}")
    finally:
        workers.clean_up()


if __name__ == "__main__":
    sys.exit(main())
