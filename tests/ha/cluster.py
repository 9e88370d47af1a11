"""Three nodes on this machine, each in a network namespace of its own, with etcd, Patroni and
PostgreSQL; HAProxy and the clients are outside of them. Needs root.

A node that is killed, frozen or cut off is so with all its processes, as a machine is.
"""

import ctypes
import hashlib
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.request
from pathlib import Path

import psycopg

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HASH = hashlib.sha256(str(ROOT).encode()).hexdigest()
# Names and addresses of another checkout are others. The name of an interface has 15 bytes at most.
PREFIX = f"fq{HASH[:5]}"
BRIDGE = f"{PREFIX}br"
SUBNET = f"10.177.{int(HASH[5:7], 16)}"
OUTSIDE = f"{SUBNET}.254"
BINDIR = os.environ["FETCHQ_PG_BINDIR"]
NODES = (1, 2, 3)


def run(*command, check=True, **kwargs):
    return subprocess.run([str(word) for word in command], check=check, capture_output=True, text=True, **kwargs)


def with_parent():
    """The process that is started ends with this one."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Node:
    def __init__(self, cluster, n):
        self.cluster, self.n = cluster, n
        self.name, self.space, self.link = f"node{n}", f"{PREFIX}n{n}", f"{PREFIX}v{n}"
        self.address = f"{SUBNET}.{n}"
        self.folder = cluster.folder / self.name

    def make(self):
        run("ip", "netns", "add", self.space)
        run("ip", "link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        run("ip", "link", "set", self.link, "master", BRIDGE, "up")
        run("ip", "-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        run("ip", "-n", self.space, "link", "set", "eth0", "up")
        run("ip", "-n", self.space, "link", "set", "lo", "up")
        self.folder.mkdir()
        shutil.chown(self.folder, "postgres")
        self.folder.chmod(0o700)
        etcd_hosts = ",".join(f"{SUBNET}.{n}:2379" for n in NODES)
        text = (HERE / "patroni.yml").read_text().format(
            name=self.name, address=self.address, etcd_hosts=etcd_hosts, folder=self.folder, bindir=BINDIR,
            password=self.cluster.password, synchronous=str(self.cluster.synchronous).lower(),
        )
        (self.folder / "patroni.yml").write_text(text)
        shutil.chown(self.folder / "patroni.yml", "postgres")

    def spawn(self, name, *command, env=None):
        """Starts a program in the node. Its output goes to a file."""
        log = open(self.folder / f"{name}.log", "ab")
        words = ["ip", "netns", "exec", self.space, "runuser", "-u", "postgres", "--", *map(str, command)]
        return subprocess.Popen(
            words, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", **(env or {})},
        )

    def start(self):
        peers = ",".join(f"node{n}=http://{SUBNET}.{n}:2380" for n in NODES)
        url = f"http://{self.address}"
        self.processes = [
            # The times are for a machine that is busy with other things.
            self.spawn(
                "etcd", "etcd", "--name", self.name, "--data-dir", self.folder / "etcd", "--heartbeat-interval", "250",
                "--election-timeout", "2500", "--listen-client-urls", f"{url}:2379", "--advertise-client-urls", f"{url}:2379",
                "--listen-peer-urls", f"{url}:2380", "--initial-advertise-peer-urls", f"{url}:2380",
                "--initial-cluster", peers, "--enable-v2", "--logger", "zap", "--log-level", "warn",
            ),
            self.spawn("patroni", "patroni", self.folder / "patroni.yml"),
        ]

    def pids(self):
        return [int(pid) for pid in run("ip", "netns", "pids", self.space, check=False).stdout.split()]

    def signal(self, number):
        """Sends a signal to all processes of the node, until there is none that has not got it."""
        sent = set()
        while left := set(self.pids()) - sent:
            for pid in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            sent |= left
        if number == signal.SIGKILL:
            while self.pids():
                time.sleep(0.02)
            for process in self.processes:
                process.wait()

    def plug(self, is_in):
        run("ip", "link", "set", self.link, "up" if is_in else "down")

    def dsn(self, **more):
        return {
            "host": self.address, "port": 5432, "user": "postgres", "dbname": "fetchq",
            "password": self.cluster.password, "connect_timeout": 2, "tcp_user_timeout": 2000, **more,
        }

    def connect(self, **more):
        return psycopg.connect(**self.dsn(**more), autocommit=True)

    def inside(self, statement):
        """The rows of a statement, as lines, by a session within the node."""
        words = [f"{BINDIR}/psql", "-XqAt", "-h", self.folder, "-U", "postgres", "-d", "fetchq"]
        # Nothing is waited for: the standbys may be out of reach.
        words += ["-c", "set synchronous_commit = off", "-c", statement]
        return run("ip", "netns", "exec", self.space, "runuser", "-u", "postgres", "--", *words, cwd="/").stdout.splitlines()

    def role(self):
        """primary, standby, or None when it does not answer."""
        try:
            with self.connect(dbname="postgres", connect_timeout=2) as db:
                return "standby" if db.execute("select pg_is_in_recovery()").fetchone()[0] else "primary"
        except psycopg.Error:
            return None

    def patroni(self):
        """What Patroni says of the node; {} when it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.address}:8008/patroni", timeout=2) as reply:
                return json.load(reply)
        except (OSError, ValueError):
            return {}

    def switch_over(self):
        """Has Patroni promote another node in place of this one, the primary."""
        request = urllib.request.Request(
            f"http://{self.address}:8008/switchover", json.dumps({"leader": self.name}).encode(), method="POST",
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            reply.read()

    def remove(self):
        for _ in range(100):
            pids = self.pids()
            if not pids:
                break
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)
        run("ip", "netns", "del", self.space, check=False)
        run("ip", "link", "del", self.link, check=False)


class Cluster:
    def __init__(self, folder, synchronous):
        self.folder, self.synchronous = Path(folder), synchronous
        self.password = os.urandom(12).hex()
        self.nodes = [Node(self, n) for n in NODES]
        self.haproxy = None

    def start(self):
        self.folder.mkdir()
        self.folder.chmod(0o755)
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{OUTSIDE}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for node in self.nodes:
            node.make()
        for node in self.nodes:
            node.start()
        servers = "\n".join(f"    server {n.name} {n.address}:5432 check port 8008" for n in self.nodes)
        text = (HERE / "haproxy.cfg").read_text().format(address=OUTSIDE, servers=servers)
        (self.folder / "haproxy.cfg").write_text(text)
        log = open(self.folder / "haproxy.log", "ab")
        self.haproxy = subprocess.Popen(
            ["/usr/sbin/haproxy", "-db", "-f", self.folder / "haproxy.cfg"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            preexec_fn=with_parent,
        )
        self.wait_healthy()
        with self.primary().connect(dbname="postgres") as db:
            db.execute("create database fetchq")
        with self.primary().connect() as db:
            db.execute("create extension fetchq")

    def primary(self):
        """The node that is the primary; None while there is none, or while two say so."""
        found = [node for node in self.nodes if node.role() == "primary"]
        return found[0] if len(found) == 1 else None

    def is_healthy(self):
        states = [node.patroni() for node in self.nodes]
        if sorted(state.get("role", "") for state in states) != ["master", "replica", "replica"]:
            return False
        if any(state.get("state") != "running" for state in states):
            return False
        primary = next(state for state in states if state["role"] == "master")
        streaming = [r for r in primary.get("replication", []) if r["state"] == "streaming"]
        if len(streaming) != 2 or self.primary() is None:
            return False
        return not self.synchronous or any(r["sync_state"] in ("sync", "quorum") for r in streaming)

    def wait_healthy(self, seconds=180):
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            if time.monotonic() > deadline:
                states = {node.name: node.patroni() for node in self.nodes}
                raise RuntimeError(f"the cluster is not healthy after {seconds} s: {states}")
            time.sleep(0.5)

    def remove(self):
        """Ends all processes of the cluster, also of one that was not removed, and removes its data."""
        if self.haproxy:
            self.haproxy.kill()
            self.haproxy.wait()
            self.haproxy = None
        for node in self.nodes:
            node.remove()
        run("ip", "link", "del", BRIDGE, check=False)
        if not os.environ.get("HA_KEEP"):
            shutil.rmtree(self.folder, ignore_errors=True)
