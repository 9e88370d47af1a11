"""Runs pgbench, the only driver of loads."""

import os
import re
import signal
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from .cluster import Cluster
from .errors import Failed, last_lines

PROGRESS = re.compile(r"^progress: ([\d.]+) s, ([\d.]+) tps")
TPS = re.compile(r"^tps = ([\d.]+)", re.M)
COUNT = re.compile(r"^number of transactions actually processed: (\d+)", re.M)
LATENCY = re.compile(r"^latency average = ([\d.]+) ms", re.M)


@dataclass
class Outcome:
    """The report of pgbench at its end."""

    tps: float
    transactions: int
    latency_ms: float
    # (seconds since the start, transactions per second in the interval) of each report.
    progress: list[tuple[float, float]] = field(default_factory=list)
    # (client, time of its end, microseconds) of each transaction. It is empty without `log`.
    log: list[tuple[int, float, int]] = field(default_factory=list)


class Load:
    """A running pgbench. It uses prepared statements, and does not vacuum."""

    def __init__(
        self, cluster: Cluster, script: str, clients: int = 1, seconds: float | None = None,
        transactions: int | None = None, variables: dict[str, object] | None = None,
        progress: int | None = None, log: bool = False, rate: float | None = None,
        database: str | None = None,
    ) -> None:
        self.dir = tempfile.TemporaryDirectory(prefix="fetchq-bench-")
        self.log = log
        path = Path(self.dir.name)
        (path / "script.sql").write_text(script)
        # More threads than cores would not run at the same time.
        threads = max(1, min(clients, os.cpu_count() or 1))
        args = [cluster.bindir / "pgbench", "-n", "-M", "prepared", "-c", str(clients), "-j", str(threads)]
        args += ["-f", "script.sql"]
        if seconds is not None:
            args += ["-T", str(max(1, round(seconds)))]
        if transactions is not None:
            args += ["-t", str(transactions)]
        for name, value in (variables or {}).items():
            args += ["-D", f"{name}={value}"]
        if progress:
            args += ["-P", str(progress)]
        if log:
            args += ["-l", "--log-prefix=log"]
        if rate:
            args += ["-R", str(rate)]
        self.process = subprocess.Popen(
            args, cwd=path, env=cluster.env | ({"PGDATABASE": database} if database else {}), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.errors: list[str] = []
        self.progress: list[tuple[float, float]] = []
        self.out: list[str] = []
        # Threads read both pipes all the time, so that pgbench never waits for the harness.
        self.readers = [
            threading.Thread(target=self._read_errors, daemon=True),
            threading.Thread(target=self._read_output, daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def _read_errors(self) -> None:
        assert self.process.stderr
        for line in self.process.stderr:
            if found := PROGRESS.match(line):
                self.progress.append((float(found[1]), float(found[2])))
            else:
                self.errors.append(line)

    def _read_output(self) -> None:
        assert self.process.stdout
        self.out.extend(self.process.stdout)

    def running(self) -> bool:
        return self.process.poll() is None

    def pause(self) -> None:
        """Stops pgbench for a while. Each client stays where it is, also in the middle of a transaction."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends pgbench early. Its measurement is lost."""
        if self.running():
            self.resume()
            self.process.terminate()
        self._gone()
        self.dir.cleanup()

    def _gone(self, timeout: float | None = None) -> None:
        self.process.wait(timeout)
        for reader in self.readers:
            reader.join()

    def complaint(self) -> str:
        # The first error is the cause, and "Run was aborted" is its consequence.
        wanted = [line for line in self.errors if "error" in line.lower() or "aborted" in line]
        line = wanted[0].strip() if wanted else last_lines("".join(self.errors)) or "ended early"
        return "pgbench: " + line.removeprefix("pgbench: error: ")

    def finish(self, timeout: float = 3600) -> Outcome:
        """Waits for the end. It fails when a client was aborted, because the numbers are invalid
        then."""
        try:
            self._gone(timeout)
        except subprocess.TimeoutExpired:
            self.stop()
            raise Failed(f"pgbench did not end in {timeout:.0f} s") from None
        try:
            out = "".join(self.out)
            if self.process.returncode != 0 or not (tps := TPS.search(out)):
                raise Failed(self.complaint())
            count, latency = COUNT.search(out), LATENCY.search(out)
            return Outcome(
                float(tps[1]), int(count[1]) if count else 0, float(latency[1]) if latency else 0.0,
                self.progress, self.transactions() if self.log else [],
            )
        finally:
            self.dir.cleanup()

    def transactions(self) -> list[tuple[int, float, int]]:
        """Returns what its log has by now, as in the outcome."""
        found = []
        # There is one file for each thread. The transactions of a client are in order.
        for path in sorted(Path(self.dir.name).glob("log.*")):
            with open(path) as f:
                for line in f:
                    if not line.endswith("\n"):
                        break  # pgbench is just writing it.
                    client, _, took, _, seconds, micros = line.split()[:6]
                    found.append((int(client), int(seconds) + int(micros) / 1e6, int(took)))
        return found


class Beside:
    """A load that runs beside the measured load until the end of the block."""

    def __init__(self, cluster: Cluster, script: str | None) -> None:
        self.cluster, self.script = cluster, script
        self.load: Load | None = None

    def __enter__(self) -> "Beside":
        if self.script:
            # The harness ends this load. The limit is for the case that the runner is killed.
            self.load = Load(self.cluster, self.script, seconds=3600)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if not self.load:
            return
        alive = self.load.running()
        self.load.stop()
        if not alive and kind is None:
            raise Failed("the maintenance beside the load ended: " + self.load.complaint())
