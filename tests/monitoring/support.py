"""What the tests of monitoring share: a database under load, the console, and Prometheus.

The variables of libpq say where the server is, and FETCHQ_CONSOLE where the console is.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import urllib.parse
import urllib.request

import psycopg
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "packaging" / "monitoring"
CONSOLE = os.environ["FETCHQ_CONSOLE"]
DATABASE = "monitoring"
DEADLINE = 60  # seconds
# A name that no queue can have, which a client has inserted into the registry.
ODD = 'a "b"\\\n<c>'


def connect(database=DATABASE):
    return psycopg.connect(dbname=database, autocommit=True)


def poll(what, done):
    """Returns what `done` returns, once that is true."""
    end = time.monotonic() + DEADLINE
    while True:
        found = done()
        if found:
            return found
        assert time.monotonic() < end, f"timed out while waiting until {what}"
        time.sleep(0.2)


class Load:
    """Clients that push and settle documents in all ways, and maintenance."""

    def __init__(self):
        self.is_to_end = threading.Event()
        self.failures = []
        work = (self.produce, self.work, self.work, self.maintain)
        self.threads = [threading.Thread(target=self.run, args=(one,), daemon=True) for one in work]

    def start(self):
        for thread in self.threads:
            thread.start()

    def run(self, work):
        try:
            with connect() as db:
                while not self.is_to_end.is_set():
                    work(db)
        except Exception as e:  # The test that reads the failures shows it.
            self.failures.append(e)

    def produce(self, db):
        db.execute("select fetchq.doc_append('mail', jsonb_build_object('n', n)) from generate_series(1, 5) n")
        db.execute("select fetchq.doc_append('mail', '{}', delay => interval '0.2 s')")
        db.execute("select fetchq.doc_append('idle', '{}') where random() < 0.1")
        time.sleep(0.01)

    def work(self, db):
        docs = db.execute("select subject from fetchq.doc_pick('mail', 0, 4, interval '1 s')").fetchall()
        ways = (
            "select fetchq.doc_complete('mail', %s)",
            "select fetchq.doc_reject('mail', %s, 'no', '{}', delay => interval '0.1 s')",
            "select fetchq.doc_reschedule('mail', %s, now() + interval '1 s')",
            "select fetchq.doc_kill('mail', %s)",
        )
        for at, (subject,) in enumerate(docs):
            # The lease of some expires.
            if hash(subject) % 20:
                db.execute(ways[at if hash(subject) % 3 == 0 else 0], [subject])
        time.sleep(0.01)

    def maintain(self, db):
        db.execute("select * from fetchq.mnt()")
        time.sleep(0.05)

    def stop(self):
        self.is_to_end.set()
        for thread in self.threads:
            thread.join()
        assert not self.failures, self.failures


def prepare():
    """Makes the database and its queues."""
    with connect("postgres") as db:
        db.execute(f"drop database if exists {DATABASE} with (force)")
        db.execute(f"create database {DATABASE} template template0 encoding 'UTF8'")
        db.execute(f"alter database {DATABASE} set fetchq.strict = off")
    with connect() as db:
        db.execute("create extension fetchq")
        db.execute("select fetchq.queue_create(q) from unnest(array['mail', 'dead', 'idle', 'paused', 'killed']) q")
        db.execute("""select from fetchq.queue_configure('mail', '{"dead_letter": "dead", "max_attempts": 3}')""")
        db.execute("select fetchq.doc_append('paused', '{}'), fetchq.queue_pause('paused')")
        db.execute("select fetchq.doc_append('killed', '{}'), fetchq.doc_append('killed', '{}')")
        db.execute("select fetchq.doc_kill('killed', subject, lease => lease) from fetchq.doc_lease('killed')")
        db.execute("select fetchq.schedule_create('daily', 'mail', '@daily')")
        db.execute("insert into fetchq.queues (name) values (%s)", [ODD])


class Process:
    """A program that is ended with the tests. Its output is a file."""

    def __init__(self, arguments, folder, name, **environment):
        self.log = pathlib.Path(folder) / f"{name}.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                arguments, stdout=log, stderr=log, env={**os.environ, "NO_COLOR": "1", **environment}
            )

    def wait_for(self, pattern):
        def found():
            assert self.process.poll() is None, self.log.read_text()
            return re.search(pattern, self.log.read_text())

        return poll(f"{self.log} has {pattern}", found)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def url_of(database=DATABASE):
    host = urllib.parse.quote(os.environ["PGHOST"], safe="")
    user = os.environ["PGUSER"]
    return f"postgres://{user}@{host}:{os.environ['PGPORT']}/{database}"


def start_console(folder, name, *urls):
    """Starts the console. Returns the process and its address."""
    options = [word for url in urls for word in ("--url", url)]
    process = Process([CONSOLE, "serve", "--listen", "127.0.0.1:0", *options], folder, name)
    address = process.wait_for(r"http://127\.0\.0\.1:\d+")[0]
    return process, address


def get(address, accept=None):
    """Returns the content type and the text of an address."""
    request = urllib.request.Request(address, headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=DEADLINE) as response:
        return response.headers["Content-Type"], response.read().decode()


LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


def unescape(text):
    return re.sub(r"\\.", lambda found: UNESCAPED[found[0]], text)


def parse(text):
    """The samples of a text: their values by their names and labels."""
    samples = {}
    for line in text.splitlines():
        if line.startswith("#") or not line:
            continue
        name, labels, value = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line).groups()
        labels = frozenset((key, unescape(text)) for key, text in LABEL.findall(labels or ""))
        assert (name, labels) not in samples, f"twice: {line}"
        samples[name, labels] = float(value)
    return samples


class Prometheus:
    """A server that scrapes an address every second, with the rules of the repository."""

    def __init__(self, folder, address):
        port = subprocess.check_output([ROOT / "scripts/free-port.sh"], text=True).strip()
        config = yaml.safe_load((FILES / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        job = config["scrape_configs"][0]
        job["scrape_interval"] = "1s"
        job["static_configs"] = [{"targets": [address.removeprefix("http://")]}]
        config["rule_files"] = [str(FILES / "fetchq.rules.yml")]
        path = pathlib.Path(folder) / "prometheus.yml"
        path.write_text(yaml.safe_dump(config))
        data = pathlib.Path(folder) / "prometheus"
        self.base = f"http://127.0.0.1:{port}"
        self.process = Process(
            [
                "prometheus",
                f"--config.file={path}",
                f"--storage.tsdb.path={data}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            folder,
            "prometheus",
        )
        self.process.wait_for("Server is ready")

    def api(self, path, **arguments):
        address = f"{self.base}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            answer = json.loads(get(address)[1])
        except urllib.error.HTTPError as e:
            raise AssertionError(f"{path} {arguments}: {e.read().decode()}") from e
        assert answer["status"] == "success", answer
        return answer["data"]

    def query(self, expression):
        """The labels and the values of an expression that are numbers."""
        found = self.api("query", query=expression)
        assert found["resultType"] == "vector", (expression, found)
        values = [(one["metric"], float(one["value"][1])) for one in found["result"]]
        return [(labels, value) for labels, value in values if value == value]

    def stop(self):
        self.process.stop()


class Folder:
    """A folder that is removed, unless the tests fail."""

    def __init__(self):
        self.path = tempfile.mkdtemp(prefix="fetchq-monitoring-")

    def remove(self):
        shutil.rmtree(self.path)
