"""Workers as processes: signals, kill -9, a server that crashes, a pooler."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from conftest import Db, until

ROOT = Path(__file__).resolve().parents[3]
HERE = Path(__file__).parent


class Program:
    """`python -m fetchq worker programs:app` for queues of the test."""

    def __init__(self, kind: str, queue: str, url: str, *options: str, lease: float = 30) -> None:
        app = "programs:app" if kind == "sync" else "programs:aapp"
        environment = {
            **os.environ,
            "TEST_QUEUE": queue,
            "TEST_LEASE": str(lease),
            "PYTHONPATH": f"{HERE}:{HERE.parent}/src",
        }
        command = [sys.executable, "-m", "fetchq", "worker", app, "--database", url, *options]
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, env=environment, cwd=HERE, stderr=self.log)

    def send(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, seconds: float = 30) -> tuple[int, str]:
        return self.process.wait(seconds), self.errors()

    def errors(self) -> str:
        """What it has written to stderr."""
        with open(f"/proc/self/fd/{self.log.fileno()}") as file:
            return file.read()


@pytest.fixture(params=["sync", "async"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def queue(db: Db) -> Iterator[str]:
    queue = db.queue()
    db.sql("select fetchq.queue_create(%s)", f"{queue}l")
    db.queues.append(f"{queue}l")
    db.sql(f"create table {queue}_ledger (subject text)")
    yield queue
    db.sql(f"drop table {queue}_ledger")


def put(db: Db, queue: str, subject: str, payload: str = "{}") -> None:
    db.sql("select fetchq.doc_put(%s, %s, %s)", queue, subject, payload)


def has_begun(db: Db, queue: str, subject: str) -> bool:
    """Whether its handler has. What is leased and has not begun goes back at once."""
    return db.value("select progress is not null from fetchq.doc_get(%s, %s)", queue, subject)


def test_a_first_signal_waits_and_a_second_one_ends_at_once(db: Db, kind: str, queue: str, url: str) -> None:
    program = Program(kind, queue, url, "--grace", "600")
    put(db, queue, "short", '{"sleep": 1.5}')
    put(db, queue, "long", '{"sleep": 600}')
    until("both have begun", lambda: has_begun(db, queue, "short") and has_begun(db, queue, "long"))
    program.send(signal.SIGTERM)
    until("it is completed", lambda: db.state(queue, "short") == ("completed", 0))
    assert program.process.poll() is None
    program.send(signal.SIGTERM)
    code, errors = program.end()
    assert code == 0, errors
    assert db.state(queue, "long") == ("pending", 0)


@pytest.mark.parametrize("text", ["", "\n", "no command\n", '\n{"id": 1, "do": "hello"}\n\n'])
def test_the_adapter_ends_with_its_input(kind: str, text: str) -> None:
    adapter = HERE.parent / "conformance/adapter.py"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, adapter, kind], stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stdin and process.stdout
        process.stdin.write(text)
        process.stdin.flush()
        # A command that is not answered yet would be given up with the input.
        reply = process.stdout.readline() if '"id"' in text else '"reply": 1'
        assert '"reply": 1' in reply
        rest, _ = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, "")


def test_a_handler_that_hangs_does_not_keep_the_process(db: Db, queue: str, url: str) -> None:
    program = Program("sync", queue, url, "--grace", "0.5")
    put(db, queue, "hangs", '{"hang": 600}')
    until("it runs", lambda: has_begun(db, queue, "hangs"))
    program.send(signal.SIGTERM)
    code, errors = program.end()
    assert code == 0 and "does not stop" in errors
    assert db.state(queue, "hangs") == ("pending", 0)


def test_after_kill_9_another_worker_goes_on(db: Db, kind: str, queue: str, url: str) -> None:
    program = Program(kind, queue, url, lease=2)
    put(db, queue, "a", '{"sleep": 4}')
    put(db, f"{queue}l", "b", '{"hang": 4}')
    until("both run", lambda: db.state(queue, "a")[0] == db.state(f"{queue}l", "b")[0] == "active")
    program.send(signal.SIGKILL)
    program.end()
    other = Program(kind, queue, url, lease=2)

    def done() -> bool:
        db.sql("select * from fetchq.mnt()")
        return db.state(queue, "a")[0] == db.state(f"{queue}l", "b")[0] == "completed"

    until("both are completed by the other worker", done)
    assert db.sql(f"select subject from {queue}_ledger") == [("b",)]
    other.send(signal.SIGTERM)
    assert other.end()[0] == 0


def cluster(name: str, *words: str) -> str:
    return subprocess.run(
        [ROOT / "scripts/cluster.sh", name, *words], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout


def test_a_server_that_crashes_loses_nothing(kind: str) -> None:
    name = f"pyc{kind}"
    cluster(name, "start")
    try:
        variables = dict(
            line.removeprefix("export ").split("=", 1) for line in cluster(name, "env").splitlines() if "=" in line
        )
        url, data = variables["FETCHQ_URL"], variables["FETCHQ_PGDATA"]
        db = Db(url)
        queue = db.queue()
        db.sql("select fetchq.queue_create(%s)", f"{queue}l")
        db.sql(f"create table {queue}_ledger (subject text)")
        program = Program(kind, queue, url)
        for n in range(20):
            put(db, queue, f"d{n}", '{"sleep": 1}')
            put(db, f"{queue}l", f"l{n}", '{"hang": 0.3}')
        until("some run", lambda: db.value("select count(*) from fetchq.lease_list()") > 4)
        db.conn.close()
        os.kill(int(Path(data, "postmaster.pid").read_text().split()[0]), signal.SIGQUIT)
        time.sleep(1)
        cluster(name, "start")
        db = Db(url)

        def done() -> bool:
            db.sql("select * from fetchq.mnt()")
            completed = "select succeeded from fetchq.queue_stats(%s)"
            return db.value(completed, queue) == db.value(completed, f"{queue}l") == 20

        until("all are completed", done, 60)
        written = db.sql(f"select subject, count(*) from {queue}_ledger group by 1 order by 1")
        assert len(written) == 20 and all(count == 1 for _, count in written)
        program.send(signal.SIGTERM)
        code, errors = program.end()
        assert code == 0 and "is repeated" in errors, errors
        db.conn.close()
    finally:
        cluster(name, "reset")


@pytest.fixture
def pooler(tmp_path: Path, url: str) -> Iterator[str]:
    """PgBouncer in transaction mode, with two connections to the server."""
    folder = ROOT / ".pg" / f"python-pooler-{os.getpid()}"
    process = subprocess.Popen([ROOT / "scripts/pooler.sh", folder], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = process.stdout.readline().strip()
    parts = psycopg.conninfo.conninfo_to_dict(url)
    address = f"postgres://{parts['user']}:{parts['password']}@127.0.0.1:{port}/{parts['dbname']}"

    def answers() -> bool:
        try:
            psycopg.connect(address, connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    until("the pooler answers", answers)
    yield address
    process.terminate()
    process.wait()


def test_behind_a_pooler_that_is_too_small_workers_poll(db: Db, kind: str, queue: str, pooler: str) -> None:
    """Each of three workers would keep one of two connections to wait."""
    programs = [Program(kind, queue, pooler) for _ in range(3)]
    for n in range(20):
        put(db, queue, f"d{n}", '{"sleep": 0.2}')
        put(db, f"{queue}l", f"l{n}")
        time.sleep(0.1)
    completed = "select succeeded from fetchq.queue_stats(%s)"
    until("all are completed", lambda: db.value(completed, queue) == db.value(completed, f"{queue}l") == 20, 60)
    assert db.value(f"select count(*) from {queue}_ledger") == 20
    # Now all of them are idle, and two sessions keep both connections.
    until("one of them says that it polls", lambda: any("polls every" in p.errors() for p in programs), 60)
    for n in range(5):
        put(db, queue, f"late{n}")
        until("it is completed", lambda n=n: db.state(queue, f"late{n}")[0] == "completed", 60)
    for program in programs:
        program.send(signal.SIGTERM)
    for program in programs:
        code, errors = program.end(60)
        assert code == 0, errors
        assert errors.count("polls every") <= 1


def test_commands_end_with_a_clear_error(url: str) -> None:
    def run(*words: str) -> Any:
        environment = {**os.environ, "PYTHONPATH": str(HERE)}
        command = [sys.executable, "-m", "fetchq", *words]
        return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=HERE, check=False)

    wrong = run("worker", "programs:QUEUE")
    assert wrong.returncode == 2 and "is no App" in wrong.stderr
    missing = run("worker", "programs:app", "--database", url)
    assert missing.returncode == 2 and "app.sync()" in missing.stderr and "Traceback" not in missing.stderr
    assert run("--help").returncode == 0


def test_several_processes(db: Db, queue: str, url: str) -> None:
    program = Program("sync", queue, url, "--processes", "2")
    for n in range(20):
        put(db, queue, f"d{n}", '{"sleep": 0.3}')
    pids = "select count(distinct result ->> 'pid') from fetchq.docs_list(%s)"
    until("both have worked", lambda: db.value(pids, queue) == 2)
    program.send(signal.SIGTERM)
    assert program.end()[0] == 0
