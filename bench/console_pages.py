"""Measure the pages of the console: scripts/bench-console.sh.

Three databases: `one` has one queue with 1,000 documents, `many` has many queues, and `large` has
many documents in one queue. Each page is loaded ROUNDS times in turn from the three, by one console that has
actions allowed, and the medians are compared.
"""

import os
import re
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

import psycopg

QUEUES = int(os.environ.get("QUEUES", "10000"))
DOCUMENTS = int(os.environ.get("DOCUMENTS", "10000000"))
ROUNDS = 7
# Queues that one transaction creates.
BATCH = 200
# Documents that one call adds.
LIST = 5000


def connect(database):
    return psycopg.connect(f"dbname={database}", autocommit=True)


def step(text):
    print(f"[{time.monotonic() - BEGIN:4.0f} s] {text}", file=sys.stderr, flush=True)


def run(database, statement, batches):
    """Runs a statement for each of the batches, in two sessions."""
    batches = iter(batches)
    lock = threading.Lock()
    errors = []

    def work():
        try:
            with connect(database) as db:
                db.execute("set synchronous_commit = off")
                while True:
                    with lock:
                        batch = next(batches, None)
                    if batch is None or errors:
                        return
                    db.execute(statement, batch)
        except psycopg.Error as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        sys.exit(f"{statement}: {errors[0]}")


CREATE = "select fetchq.queue_create('q' || n) from generate_series(%s::int, %s::int - 1) n"
APPEND = """select count(*) from fetchq.doc_append_many('mail',
    (select array_agg(jsonb_build_object('n', n)) from generate_series(%s::int, %s::int - 1) n))"""


def ranges(begin, end, size):
    """The numbers from `begin` to before `end`, in pieces."""
    return ([first, min(first + size, end)] for first in range(begin, end, size))


def fill(database, queues, documents):
    """Makes a database. What its pages show beside the documents is the same in all of them."""
    with connect("postgres") as db:
        db.execute(f"drop database if exists {database} with (force)")
        db.execute(f"create database {database}")
    with connect(database) as db:
        db.execute("create extension fetchq")
        db.execute("""select fetchq.queue_create('mail', '{"history": {"dropped": "1 day"}, "dead_letter": null}')""")
        run(database, CREATE, ranges(1, queues, BATCH))
        run(database, APPEND, ranges(0, documents, LIST))
        # A document that failed, some that are leased, killed and in the history.
        db.execute("select fetchq.doc_put('mail', 'shown', '{\"to\": \"ann\"}', priority => 9)")
        db.execute("set fetchq.worker = 'w'; select fetchq.doc_pick('mail', 1); reset fetchq.worker")
        db.execute("select fetchq.doc_reject('mail', 'shown', 'no luck', delay => '1 day')")
        db.execute("select fetchq.doc_drop('mail', subject, lease) from fetchq.doc_lease('mail', 100)")
        db.execute("select fetchq.doc_kill('mail', subject, lease => lease) from fetchq.doc_lease('mail', 20)")
        db.execute("select fetchq.doc_lease('mail', 100, '1 day', worker => 'w')")
        db.execute("select fetchq.schedule_create('nightly', 'mail', '30 2 * * *', timezone => 'UTC')")
        db.execute("vacuum analyze")


PAGES = {
    "queues": "",
    "queues, by oldest, page 2": "?sort=oldest&page=1",
    "queues, a search": "?q=ai",
    "a queue": "/queues/mail",
    "documents": "/queues/mail/documents",
    "documents, killed": "/queues/mail/documents?status=killed",
    "documents, by the beginning of the subject": "/queues/mail/documents?subject=show%25",
    "documents, by payload, reads 100,000 at most": "/queues/mail/documents?payload=" + urllib.parse.quote('{"to": "nobody"}'),
    "a document": "/queues/mail/document?subject=shown",
    "a document in all queues": "/queues/mail/document?subject=shown&trace=true",
    "history": "/queues/mail/history",
    "settings": "/queues/mail/settings",
    "dead letters": "/dead-letters",
    "workers": "/workers",
    "workers of a queue": "/workers?queue=mail",
    "schedules": "/schedules",
    "maintenance": "/maintenance",
}


def load(url):
    """Loads a page. Returns the milliseconds."""
    begin = time.monotonic()
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            answer.read()
    except urllib.error.HTTPError as error:
        sys.exit(f"{url}: {error.code}: {error.read().decode()[:2000]}")
    return (time.monotonic() - begin) * 1000


def start():
    urls = [word for name in DATABASES for word in ("--url", os.environ["FETCHQ_URL"].rsplit("/", 1)[0] + "/" + name)]
    console = subprocess.Popen(
        [os.environ["FETCHQ_CONSOLE"], "serve", "--listen", "127.0.0.1:0", "--allow-actions", *urls],
        stderr=subprocess.PIPE, text=True,
    )
    for line in console.stderr:
        if found := re.search(r"(http://[0-9.:]+)/", line):
            threading.Thread(target=console.stderr.read, daemon=True).start()
            return console, found[1]
    sys.exit("the console did not start")


def shown(milliseconds):
    return f"{milliseconds:.1f}" if milliseconds < 10 else f"{milliseconds:.0f}"


def main():
    for name, (queues, documents) in DATABASES.items():
        step(f"database {name}: {queues:,} queues, {documents:,} documents")
        fill(name, queues, documents)
    step("measuring")
    console, address = start()
    try:
        first = [load(f"{address}/db/{name}") for name in DATABASES]
        rows = [("the first page after the start", first)]
        for page, path in PAGES.items():
            times = {name: [] for name in DATABASES}
            for _ in range(ROUNDS + 1):
                for name in DATABASES:
                    times[name].append(load(f"{address}/db/{name}{path}"))
            # The first load prepares the statements.
            rows.append((page, [statistics.median(values[1:]) for values in times.values()]))
        times = []
        for _ in range(3):
            time.sleep(1.1)  # The text is kept for a second.
            times.append(load(f"{address}/metrics"))
        rows.append(("/metrics of the three databases", [None, statistics.median(times), None]))
    finally:
        console.terminate()
        console.wait()
    with connect("one") as db:
        server = db.execute("select split_part(version(), ' ', 2)").fetchone()[0]
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False).stdout.strip()
    level = os.environ.get("CARGO_PROFILE_RELEASE_OPT_LEVEL", "3")
    step("done")
    print(f"PostgreSQL {server}, fetchq {commit} (opt-level {level}), {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"Milliseconds, median of {ROUNDS}; in parentheses the ratio to one queue with 1,000 documents.\n")
    print(f"| page | one queue | {QUEUES:,} queues | {DOCUMENTS:,} documents |")
    print("|---|---|---|---|")
    for page, (one, *others) in rows:
        cells = ["–" if one is None else shown(one)]
        for value in others:
            ratio = "" if one is None else f" ({value / one:.1f})"
            cells.append("–" if value is None else shown(value) + ratio)
        print(f"| {page} | {' | '.join(cells)} |")


DATABASES = {"one": (1, 1000), "many": (QUEUES, 1000), "large": (1, DOCUMENTS)}
BEGIN = time.monotonic()

if __name__ == "__main__":
    main()
