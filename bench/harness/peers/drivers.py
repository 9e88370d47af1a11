"""Producers and workers: programs in the language of a client, or sessions that run SQL."""

import json
import os
import queue
import signal
import subprocess
import threading
import time
from pathlib import Path

from ..cluster import Cluster
from ..errors import Failed, last_lines
from ..pgbench import Load
from ..systems import PAYLOAD
from ..wire import Session
from .systems import SQL, Peer, driver

START, STOP = 30.0, 10.0  # Seconds that a program has.
Points = list[tuple[float, int]]


class Program:
    """A program that reads commands as lines of JSON, and writes answers."""

    def __init__(self, cluster: Cluster, peer: Peer, action: str, concurrency: int) -> None:
        env = cluster.env
        url = f"postgres://{env['PGUSER']}@/{env['PGDATABASE']}?host={env['PGHOST']}&port={env['PGPORT']}"
        self.name = f"{peer.name}, {action}"
        self.process = subprocess.Popen(
            driver(peer, action),
            env={k: v for k, v in env.items() if k != "PGOPTIONS"} | {
                "DATABASE_URL": url, "CONCURRENCY": str(concurrency), "NODE_ENV": "production", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            # It gets a process group, so that it can be killed with its children.
            start_new_session=True,
        )
        self.answers: queue.Queue[dict | None] = queue.Queue()
        self.points: Points = []
        self.errors: list[str] = []
        self.readers = [threading.Thread(target=target, daemon=True) for target in (self._read, self._read_errors)]
        for reader in self.readers:
            reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            try:
                answer = json.loads(line)
            except ValueError:
                self.errors.append(line)
                continue
            if "at" in answer:
                self.points.append((answer["at"], answer["done"]))
            else:
                self.answers.put(answer)
        self.answers.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            # A program that complains about each job must not fill the memory.
            if len(self.errors) < 1000:
                self.errors.append(line)

    def answer(self, seconds: float) -> dict:
        try:
            found = self.answers.get(timeout=seconds)
        except queue.Empty:
            raise Failed(f"{self.name}: no answer in {seconds:.0f} s: {last_lines(''.join(self.errors))}") from None
        if found is None:
            self.process.wait(STOP)
            raise Failed(f"{self.name}: ended with status {self.process.returncode}: {last_lines(''.join(self.errors), 6)}")
        return found

    def command(self, limit: float, **options: object) -> dict:
        assert self.process.stdin
        try:
            self.process.stdin.write(json.dumps(options) + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # The answer says why it ended.
        return self.answer(limit)

    def end(self) -> None:
        """Closes stdin, which asks the program to end."""
        assert self.process.stdin
        try:
            self.process.stdin.close()
        except OSError:
            pass

    def wait(self) -> None:
        """Waits for the end, and fails when the program had an error."""
        try:
            status = self.process.wait(STOP)
        except subprocess.TimeoutExpired:
            return  # Its measurement is complete; kill() ends it.
        if status:
            raise Failed(f"{self.name}: ended with status {status}: {last_lines(''.join(self.errors), 6)}")

    def kill(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        for reader in self.readers:
            reader.join(STOP)


def run_program(cluster: Cluster, peer: Peer, action: str) -> None:
    """Runs a program that needs no commands until its end."""
    program = Program(cluster, peer, action, 1)
    try:
        program.end()
        if program.answers.get(timeout=START) is None:
            program.wait()
    except queue.Empty:
        raise Failed(f"{program.name}: did not end in {START:.0f} s: {last_lines(''.join(program.errors))}") from None
    finally:
        program.kill()


# --------------------------------------------------------------- clients --
class ClientProducer:
    def __init__(self, cluster: Cluster, peer: Peer, clients: int) -> None:
        self.program = Program(cluster, peer, "produce", clients)
        self.clients = clients

    def start(self) -> None:
        self.program.answer(START)

    def single(self, seconds: float) -> dict:
        return self.program.command(seconds + 15, command="single", clients=self.clients, seconds=seconds)

    def bulk(self, count: int, batch: int, seconds: float) -> dict:
        return self.program.command(seconds + 20, command="bulk", count=count, batch=batch, seconds=seconds)

    def pace(self, rate: float, seconds: float) -> dict:
        return self.program.command(seconds + 15, command="pace", rate=rate, seconds=seconds)

    def close(self) -> None:
        self.program.end()
        self.program.kill()


class ClientWorker:
    """Worker processes, each with the same number of jobs at a time."""

    def __init__(self, cluster: Cluster, peer: Peer, concurrency: int, processes: int) -> None:
        self.programs = [Program(cluster, peer, "work", concurrency) for _ in range(processes)]

    def start(self) -> None:
        for program in self.programs:
            program.answer(START)

    def points(self) -> Points:
        """Returns (seconds, jobs done) of all processes together."""
        if len(self.programs) == 1:
            return list(self.programs[0].points)
        found: Points = []
        latest = [0] * len(self.programs)
        for at, number, done in sorted((at, i, done) for i, program in enumerate(self.programs) for at, done in list(program.points)):
            latest[number] = done
            found.append((at, sum(latest)))
        return found

    def stop(self) -> tuple[int, list[float]]:
        """Returns how many jobs were done, and their latencies."""
        for program in self.programs:
            program.end()
        done, latencies = 0, []
        for program in self.programs:
            last = program.answer(STOP)
            done += last["done"]
            latencies += last["latencies"]
        return done, latencies

    def alive(self) -> None:
        for program in self.programs:
            if program.process.poll() is not None:
                program.answer(STOP)

    def close(self) -> None:
        for program in self.programs:
            program.kill()


# ------------------------------------------------------------------- SQL --
def script(peer: Peer, name: str, **tokens: object) -> str:
    # The folders of one system differ in what the worker does, and the rest is in the first of them.
    folders = (SQL / peer.client, SQL / peer.client.split("-")[0])
    text = next(file for folder in folders if (file := folder / f"{name}.sql").exists()).read_text()
    for token, value in {"payload": PAYLOAD, "batch": peer.batch, **tokens}.items():
        text = text.replace(f"@{token}@", str(value))
    return text


class SqlProducer:
    def __init__(self, cluster: Cluster, peer: Peer, clients: int) -> None:
        self.cluster, self.peer, self.clients = cluster, peer, clients

    def start(self) -> None:
        pass

    def single(self, seconds: float) -> dict:
        outcome = Load(self.cluster, script(self.peer, "one"), self.clients, seconds=seconds).finish(seconds + 30)
        return {"count": outcome.transactions, "seconds": outcome.transactions / outcome.tps}

    def bulk(self, count: int, batch: int, seconds: float) -> dict:
        load = Load(self.cluster, script(self.peer, "many", n=batch), 1, transactions=count // batch)
        outcome = load.finish(seconds + 30)
        return {"count": outcome.transactions * batch, "seconds": outcome.transactions / outcome.tps}

    def pace(self, rate: float, seconds: float) -> dict:
        text = script(self.peer, "one", payload='{"to": "somebody@example.com", "t": @t@, "text": "' + "0123456789" * 5 + '"}')
        began, count = time.monotonic(), int(rate * seconds)
        with Session(self.cluster) as session:
            for i in range(count):
                time.sleep(max(0.0, began + i / rate - time.monotonic()))
                session.query(text.replace("@t@", f"{time.time():.6f}"))
        return {"count": count, "seconds": time.monotonic() - began}

    def close(self) -> None:
        pass


class Sessions:
    """psql sessions that run a script until they are stopped."""

    def __init__(self, cluster: Cluster, text: str, count: int) -> None:
        self.cluster = cluster
        self.processes = [
            subprocess.Popen(
                [cluster.bindir / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-f", "-"],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                env=cluster.env | {"PGAPPNAME": "bench-session"}, start_new_session=True,
            )
            for _ in range(count)
        ]
        for process in self.processes:
            assert process.stdin
            process.stdin.write(text)
            process.stdin.close()

    def alive(self) -> None:
        for process in self.processes:
            if process.poll() is not None:
                assert process.stderr
                raise Failed(f"a session ended: {last_lines(process.stderr.read())}")

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()
            if process.stderr:
                process.stderr.close()


class SqlWorker:
    def __init__(self, cluster: Cluster, peer: Peer, concurrency: int, processes: int) -> None:
        self.cluster = cluster
        self.found: Points = []
        self.session = Session(cluster)
        self.before = self._done()
        self.ending = threading.Event()
        self.reader = threading.Thread(target=self._watch, daemon=True)
        self.sessions = Sessions(cluster, script(peer, "work"), peer.sessions)
        self.reader.start()

    def start(self) -> None:
        pass

    def _done(self) -> int:
        row = self.session.query("select case when is_called then last_value else 0 end as n from bench_done")[0]
        return int(row["n"] or 0)

    def _watch(self) -> None:
        try:
            while not self.ending.wait(0.02):
                self.found.append((time.monotonic(), self._done() - self.before))
        except (Failed, OSError):
            pass  # alive() reports a server that is down.

    def points(self) -> Points:
        return list(self.found)

    def alive(self) -> None:
        self.sessions.alive()

    def _end(self) -> None:
        self.ending.set()
        self.reader.join(STOP)

    def stop(self) -> tuple[int, list[float]]:
        self.sessions.alive()
        self._end()
        # The sessions of the server do not notice by themselves that psql is gone.
        self.session.query(
            "select pg_terminate_backend(pid) from pg_stat_activity "
            "where datname = current_database() and application_name = 'bench-session' and query not like '%bench_tick%'"
        )
        rows = self.session.query("select ms from bench_seen")
        return self._done() - self.before, [float(row["ms"] or 0) for row in rows]

    def close(self) -> None:
        self._end()
        self.sessions.close()
        self.session.close()


def setup(cluster: Cluster, peer: Peer, pgq: Path | None) -> None:
    if peer.language != "SQL":
        return run_program(cluster, peer, "setup")
    if peer.package == "pgq":
        if pgq is None:
            raise Failed("PgQ is not installed")
        cluster.psql((pgq / "pgq.sql").read_text())
    cluster.psql((SQL / "handler.sql").read_text())
    # A script may include another file, relative to its own folder.
    text = (SQL / peer.client / "setup.sql").read_text()
    cluster.psql(text.replace("\\ir ", f"\\i {SQL / peer.client}/"))
    return None


def producer(cluster: Cluster, peer: Peer, clients: int) -> ClientProducer | SqlProducer:
    return (SqlProducer if peer.language == "SQL" else ClientProducer)(cluster, peer, clients)


def worker(cluster: Cluster, peer: Peer, concurrency: int, processes: int) -> ClientWorker | SqlWorker:
    return (SqlWorker if peer.language == "SQL" else ClientWorker)(cluster, peer, concurrency, processes)
