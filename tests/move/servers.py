"""Two servers on this machine and PgBouncer before them, and the command that moves queues between the
servers. Each of them can be killed at any moment.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg

HERE = Path(__file__).resolve().parent
BINDIR = os.environ["FETCHQ_PG_BINDIR"]
COMMAND = os.environ["FETCHQ_CONSOLE"]
# PostgreSQL and PgBouncer refuse to run as root.
RUNAS = ["runuser", "-u", os.environ["FETCHQ_RUNAS"], "--"] if os.environ.get("FETCHQ_RUNAS") else []
DATABASE = "fetchq"


def with_parent():
    """The process that is started ends with this one."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port():
    return int(run(HERE.parent.parent / "scripts/free-port.sh"))


def run(*command, **options):
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        raise RuntimeError(f"{command[:6]} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def own(path):
    """Hands a file to the user of the servers."""
    if RUNAS:
        shutil.chown(path, RUNAS[2])


class Server:
    def __init__(self, folder, name, passwords, settings):
        self.folder, self.name, self.passwords = folder / name, name, passwords
        self.data, self.log, self.port = self.folder / "data", self.folder / "log", free_port()
        self.settings = settings

    def make(self):
        self.folder.mkdir()
        own(self.folder)
        file = self.folder / "password"
        file.write_text(self.passwords["postgres"])
        own(file)
        file.chmod(0o600)
        run(*RUNAS, f"{BINDIR}/initdb", "-D", self.data, "--username=postgres", f"--pwfile={file}", "--auth=scram-sha-256",
            "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync", cwd="/")
        settings = {
            "listen_addresses": "127.0.0.1", "port": self.port, "unix_socket_directories": "",
            "shared_preload_libraries": "fetchq", "log_line_prefix": "%m [%p] %q%u@%d ", "max_connections": 150,
            "fetchq.queue_defaults": "{}",
            **self.settings,
        }
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        self.start()
        with self.connect("postgres") as db:
            db.execute(f"create database {DATABASE}")
            db.execute(f"create role app login password '{self.passwords['app']}'")
        with self.connect() as db:
            db.execute("create extension fetchq")

    def start(self):
        # A server that was killed leaves its number, which may belong to another process by now.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        run(*RUNAS, f"{BINDIR}/pg_ctl", "start", "-D", self.data, "-l", self.log, "-w", "-t", "120", "-s", cwd="/",
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8"})

    def processes(self):
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    if os.readlink(entry / "cwd") == str(self.data) and "postgres" in os.readlink(entry / "exe"):
                        found.append(int(entry.name))
                except OSError:
                    pass
        return found

    def kill(self):
        """Ends all its processes at once, as a machine that loses its power does."""
        while pids := self.processes():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.02)

    def connect(self, database=DATABASE, **options):
        return psycopg.connect(self.dsn(database), autocommit=True, connect_timeout=5, **options)

    def dsn(self, database=DATABASE, user="postgres"):
        return f"host=127.0.0.1 port={self.port} dbname={database} user={user} password={self.passwords[user]}"

    def place(self):
        return f"127.0.0.1:{self.port}/{DATABASE}"


class Pooler:
    """PgBouncer in transaction mode, with a name for each group of queues: the map from queues to servers."""

    def __init__(self, folder, passwords, groups):
        self.folder, self.passwords, self.groups = folder / "pooler", passwords, groups
        self.port, self.process = free_port(), None
        self.ini = self.folder / "pgbouncer.ini"

    def make(self):
        self.folder.mkdir()
        own(self.folder)
        users = self.folder / "users"
        users.write_text("".join(f'"{user}" "{password}"\n' for user, password in self.passwords.items()))
        own(users)
        users.chmod(0o600)
        groups = "\n".join(f"{name} = {self.target(server)}" for name, server in self.groups.items())
        self.ini.write_text((HERE / "pgbouncer.ini").read_text().format(groups=groups, port=self.port, folder=self.folder))
        own(self.ini)
        self.start()

    def target(self, server):
        return f"host=127.0.0.1 port={server.port} dbname={DATABASE}"

    def start(self):
        log = open(self.folder / "output", "ab")
        self.process = subprocess.Popen(
            [*RUNAS, shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin"), "--quiet", str(self.ini)],
            cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=with_parent, start_new_session=True,
        )
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.admin("show version")
            except psycopg.Error:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def kill(self):
        """Ends PgBouncer at once, also that of a run that was killed. runuser is only its parent."""
        for entry in Path("/proc").iterdir():
            try:
                # The command has the name of the file in its hooks.
                if entry.name.isdigit() and str(self.ini).encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                pass
        if self.process:
            self.process.wait()

    def admin(self, command):
        with psycopg.connect(
            f"host=127.0.0.1 port={self.port} dbname=pgbouncer user=postgres password={self.passwords['postgres']}",
            autocommit=True, prepare_threshold=None, cursor_factory=psycopg.ClientCursor, connect_timeout=5,
        ) as db:
            found = db.execute(command)
            return found.fetchall() if found.description else None

    def dsn(self, group):
        return f"host=127.0.0.1 port={self.port} dbname={group} user=app password={self.passwords['app']}"

    def leads_to(self, group):
        """The port of the server of a group, as the file says."""
        line = next(line for line in self.ini.read_text().splitlines() if line.startswith(f"{group} = "))
        return int(line.split("port=")[1].split()[0])

    def hook(self, words):
        """The shell command of a hook, as an administrator would write it."""
        where = f"PGHOST=127.0.0.1 PGPORT={self.port} PGUSER=postgres PGPASSWORD={self.passwords['postgres']} PSQL={BINDIR}/psql"
        return f"{where} sh {HERE}/pooler.sh {words}"


class Mover:
    """One run of the command `fetchq move`."""

    def __init__(self, folder, source, target, queues, *options, stop_at=None):
        self.stop_at, self.output = stop_at, folder / f"move-{time.monotonic_ns()}.log"
        words = [COMMAND, "move", "--from", source.dsn(), "--to", target.dsn()]
        for queue in queues:
            words += ["--queue", queue]
        env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        if stop_at:
            env["FETCHQ_MOVE_STOP_AT"] = stop_at
        self.process = subprocess.Popen(
            [*words, *options], cwd="/", env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=open(self.output, "wb"), text=True, preexec_fn=with_parent, start_new_session=True,
        )

    def said(self):
        return self.output.read_text()

    def wait_stopped(self, seconds=300):
        """Waits until the command stands still before a step. False if it has ended instead."""
        deadline = time.monotonic() + seconds
        while f"stopped before step {self.stop_at}\n" not in self.said():
            if self.process.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise RuntimeError(f"the command does not reach the step {self.stop_at}: {self.said()}")
            time.sleep(0.02)
        return True

    def kill(self):
        """Ends the command at once, and its hooks."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.communicate()

    def finish(self, seconds=600):
        """Waits for the end. Returns the status and the last line of its output."""
        try:
            out, _ = self.process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired as e:
            self.kill()
            raise RuntimeError(f"the command does not end within {seconds} s: {self.said()[-2000:]}") from e
        lines = out.strip().splitlines()
        return self.process.returncode, lines[-1] if lines else ""
