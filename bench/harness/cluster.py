"""The temporary server that all scenarios use, and psql for it."""

import os
import subprocess
import time
from pathlib import Path

from .errors import Failed, Interrupted, last_lines

ROOT = Path(__file__).resolve().parents[2]
NAME = "bench"


def memory_mb() -> int:
    with open("/proc/meminfo") as f:
        return int(f.readline().split()[1]) // 1024


def settings() -> dict[str, str]:
    """Returns the settings of the server. All systems have the same, and the report lists them."""
    return {
        "synchronous_commit": "off",
        "shared_buffers": f"{min(2048, memory_mb() // 4)}MB",
        "maintenance_work_mem": "256MB",
        # A checkpoint in the middle of a short load would slow down one system only.
        "max_wal_size": "16GB",
        "min_wal_size": "2GB",
        "checkpoint_timeout": "30min",
        # docs/guides/operations.md advises a lower one than the default of a minute.
        "autovacuum_naptime": "10s",
        # A maintenance call over 10,000 queues locks all their tables.
        "max_locks_per_transaction": "1024",
        "log_checkpoints": "off",
        # In one scenario, 200 sessions wait.
        "max_connections": "260",
    }


def added() -> list[str]:
    """Returns the settings that this run has beside them."""
    return os.environ.get("FETCHQ_PG_CONF", "").strip().splitlines()


class Cluster:
    """scripts/cluster.sh with the name `bench`."""

    # After an interrupt nothing is cleaned up, because the server is removed anyway.
    interrupted = False

    def __init__(self) -> None:
        lines = [f"{name} = '{value}'" for name, value in settings().items()]
        self.conf = "\n".join(lines + added())
        self.env = dict(os.environ)
        self.bindir = Path(os.environ["FETCHQ_PG_BINDIR"])
        self.pkglibdir = Path(subprocess.check_output([self.bindir / "pg_config", "--pkglibdir"], text=True).strip())

    def _script(self, action: str) -> None:
        env = dict(os.environ, FETCHQ_PG_CONF=self.conf)
        done = subprocess.run([ROOT / "scripts/cluster.sh", NAME, action], env=env, stdin=subprocess.DEVNULL)
        if done.returncode:
            raise Failed(f"scripts/cluster.sh {NAME} {action} failed")

    def start(self) -> None:
        self._script("start")
        script = f'eval "$({ROOT}/scripts/cluster.sh {NAME} env)" && env -0'
        out = subprocess.check_output(["bash", "-c", script], text=True)
        wanted = ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGPASSWORD")
        pairs = (line.split("=", 1) for line in out.split("\0") if "=" in line)
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("PG") or k == "PG_CONFIG"}
        self.env.update({k: v for k, v in pairs if k in wanted})
        self.env["PGOPTIONS"] = "-c client_min_messages=warning"

    def reset(self) -> None:
        self._script("reset")

    def answers(self) -> bool:
        try:
            return self.psql("select 1", timeout=30) == "1"
        except Failed:
            return False

    def wait_until_it_answers(self, seconds: float = 60) -> bool:
        """Waits for the server, which restarts itself after a crash, or starts it if it stays
        down."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.answers():
                return True
            time.sleep(1)
        try:
            self.start()
        except Failed:
            return False
        return self.answers()

    def psql(self, sql: str, timeout: float = 1800, database: str | None = None) -> str:
        """Runs a script, each statement in a transaction of its own, and returns unaligned rows."""
        if Cluster.interrupted:
            raise Interrupted
        # A lock that was left behind must cause an error, not an endless wait.
        sql = "set lock_timeout = '60s';\n" + sql
        try:
            done = subprocess.run(
                [self.bindir / "psql", "-XqAt", "-F", "|", "-v", "ON_ERROR_STOP=1", "-f", "-"],
                input=sql, env=self.env | ({"PGDATABASE": database} if database else {}), capture_output=True, text=True, timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"psql took more than {timeout:.0f} s") from None
        if done.returncode:
            raise Failed("psql: " + last_lines(done.stderr.replace("psql: error: ", "")))
        return done.stdout.strip()

    def set(self, name: str, value: str | None) -> None:
        """Changes a setting for all sessions. None restores the value of the start of the
        server."""
        self.psql(f"alter system set {name} = '{value}'" if value is not None else f"alter system reset {name}")
        self.psql("select pg_reload_conf()")
        # The processes of the server read the setting a moment later.
        time.sleep(0.5)

    def rows(self, sql: str) -> list[list[str]]:
        return [line.split("|") for line in self.psql(sql).splitlines() if line]


class Holder:
    """A session that prevents vacuum from removing rows until the session is closed."""

    SNAPSHOT = "begin isolation level repeatable read; select 'held' from pg_class limit 1;"
    # This session has a transaction id instead of a snapshot. It too prevents vacuum from removing
    # newer rows.
    WRITER = "begin; insert into public.held_by_writer values (1); select 'held';"
    # The control, which prevents nothing.
    NOTHING = "begin; select 'held';"

    def __init__(self, cluster: Cluster, sql: str) -> None:
        if sql == self.WRITER:
            cluster.psql("create table if not exists public.held_by_writer (n int)")
        self.process = subprocess.Popen(
            [cluster.bindir / "psql", "-XqAt", "-v", "ON_ERROR_STOP=1"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=cluster.env, text=True,
        )
        assert self.process.stdin and self.process.stdout
        self.process.stdin.write(sql + "\n")
        self.process.stdin.flush()
        if self.process.stdout.readline().strip() != "held":
            self.close()
            raise Failed("the holding session did not start")

    def close(self) -> None:
        # psql ends at the end of its input, and its transaction is rolled back.
        if self.process.stdin and not self.process.stdin.closed:
            self.process.stdin.close()
        self.process.wait(timeout=60)

    def __enter__(self) -> "Holder":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
