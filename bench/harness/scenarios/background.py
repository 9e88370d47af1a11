"""Scenarios of the background worker: documents on time, waiters, and notifications."""

import json
import random
import threading
import time
from pathlib import Path
from statistics import quantiles

from ..cluster import Cluster
from ..errors import Failed
from ..pgbench import Load
from ..systems import System
from ..wire import Session
from .base import PER_MEASUREMENT, QUEUE, Bench, Scenario, checked

# The loads of these scenarios are light, because a busy machine would increase the latencies.
PER_SECOND = 100
NOTIFY = "fetchq.notify"


class Background(Scenario):
    """The background worker runs, and no client runs maintenance."""

    # (label, metric) of the rows of the report, for each variant.
    shown: tuple[tuple[str, str], ...] = ()
    rounds = 3
    seconds = 20.0
    quick_seconds = 5.0

    def load_seconds(self, bench: Bench) -> float:
        return bench.seconds or (self.quick_seconds if bench.quick else self.seconds)

    def cost(self, bench: Bench, variant: str) -> float:
        return self.load_seconds(bench) + PER_MEASUREMENT

    def prepare(self, bench: Bench, systems: list[System]) -> None:
        bench.cluster.set("fetchq.background_worker", "on")
        until = time.monotonic() + 30
        # Earlier builds call the process "fetchq worker".
        while not processes(bench.cluster, "fetchq%worker"):
            if time.monotonic() > until:
                raise Failed("the background worker does not start")
            time.sleep(0.1)

    def clean_up(self, bench: Bench, systems: list[System]) -> None:
        bench.cluster.set("fetchq.background_worker", None)


def processes(cluster: Cluster, kind: str) -> list[int]:
    rows = cluster.rows(f"select pid from pg_stat_activity where backend_type like '{kind}%'")
    return [int(row[0]) for row in rows]


def knows_notify(cluster: Cluster) -> bool:
    """Returns whether the background worker of this build can send notifications."""
    return cluster.psql(f"load 'fetchq'; select count(*) from pg_settings where name = '{NOTIFY}'") == "1"


def latencies(milliseconds: list[float], pushed: int) -> dict[str, float]:
    if len(milliseconds) < 10:
        raise Failed(f"only {len(milliseconds)} of {pushed} documents were picked")
    cuts = quantiles(milliseconds, n=100)
    return {
        "p50_ms": cuts[49], "p90_ms": cuts[89], "p99_ms": cuts[98], "max_ms": max(milliseconds),
        "documents": float(len(milliseconds)), "check missing": float(pushed - len(milliseconds)),
    }


class Pusher(threading.Thread):
    """Pushes documents at random moments, at an average rate, in a session of its own. The payload
    identifies the document; `at` has the time from which its latency counts."""

    def __init__(self, bench: Bench, system: System, script: str, queues: list[str], rate: float, ahead: float, seconds: float) -> None:
        super().__init__(daemon=True)
        self.session = Session(bench.cluster)
        self.texts = [system.text(script, queue=queue, payload='{"key": "@"}', key="@", at="%") for queue in queues]
        self.rate, self.ahead, self.seconds = rate, ahead, seconds
        self.at: dict[str, float] = {}
        self.wrong: Exception | None = None

    def run(self) -> None:
        dice = random.Random(1)
        next_one, end = time.time(), time.time() + self.seconds
        try:
            while next_one < end:
                time.sleep(max(0.0, next_one - time.time()))
                key = f"k{len(self.at)}"
                at = time.time() + self.ahead
                self.at[key] = at
                text = self.texts[len(self.at) % len(self.texts)]
                self.session.query(text.replace("@", key).replace("%", f"{at:.6f}"))
                next_one += dice.expovariate(self.rate)
        except (Failed, OSError) as e:
            self.wrong = e
        finally:
            self.session.close()


def take_all(session: Session, pick: str, drop: str, came: dict[str, float]) -> None:
    """Picks until the queue is empty, and records when each document was picked."""
    while document := session.run(pick):
        now = time.time()
        came[json.loads(document["payload"] or "{}")["key"]] = now
        session.run(drop, document)


def lateness(pusher: Pusher, came: dict[str, float]) -> dict[str, float]:
    pusher.join(60)
    if pusher.wrong:
        raise Failed(f"pushing: {pusher.wrong}")
    late = [(at - pusher.at[key]) * 1000 for key, at in came.items() if key in pusher.at]
    return latencies(late, len(pusher.at))


LATENCY = (("p50, ms", "p50_ms"), ("p90, ms", "p90_ms"), ("p99, ms", "p99_ms"), ("max, ms", "max_ms"))


class Wake(Background):
    """One session pushes, and another one picks. The latency is the time from the moment before the
    push is sent until the other session has the document."""

    name = "wake"
    title = "from push to pick, 100 documents/s"
    needs = ("push", "pick", "drop", "teardown")
    variants = ("queue_wait", "LISTEN", "LISTEN, by the worker", "poll 100 ms")
    shown = LATENCY

    def units(self, bench: Bench) -> list[tuple[int, str, System]]:
        def can(variant: str, system: System) -> bool:
            if variant == "queue_wait":
                return system.has("wait")
            if variant == "LISTEN, by the worker":
                return system.has("announce") and system.name == "fetchq" and self.knows
            return variant != "LISTEN" or system.has("announce")

        self.knows = knows_notify(bench.cluster)
        return [unit for unit in super().units(bench) if can(unit[1], unit[2])]

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        system.fresh(QUEUE)
        try:
            if variant.startswith("LISTEN"):
                system.run("announce", queue=QUEUE)
                if self.knows:
                    bench.cluster.set(NOTIFY, "background_worker" if "worker" in variant else "commit")
            bench.settle_server()
            return checked(system, self.load(bench, system, variant))
        finally:
            if self.knows:
                bench.cluster.set(NOTIFY, None)
            system.remove(QUEUE)

    def load(self, bench: Bench, system: System, variant: str) -> dict[str, float]:
        pick, drop = system.text("pick", queue=QUEUE), system.text("drop", queue=QUEUE)
        came: dict[str, float] = {}
        seconds = self.load_seconds(bench)
        with Session(bench.cluster) as session:
            if variant == "queue_wait":
                wait = system.text("wait", queue=QUEUE)

                def until_woken() -> object:
                    return session.query(wait)
            elif variant.startswith("LISTEN"):
                session.query(system.text("listen", queue=QUEUE))

                def until_woken() -> object:
                    return session.listen(1.0)
            else:
                def until_woken() -> object:
                    return time.sleep(0.1)

            pusher = Pusher(bench, system, "push", [QUEUE], PER_SECOND, 0.0, seconds)
            pusher.start()
            end = time.time() + seconds + 2.0
            while time.time() < end and (pusher.is_alive() or len(came) < len(pusher.at)):
                until_woken()
                take_all(session, pick, drop, came)
            return lateness(pusher, came)


class OnTime(Background):
    """Documents are planned half a second ahead. The lateness is the time from the planned
    moment until a waiting session has the document."""

    title = "lateness of planned documents"
    needs = ("plan", "wait_any", "pick", "drop", "setup", "teardown")
    shown = LATENCY
    busy = 10
    ahead = 0.5

    def __init__(self, name: str, queues: dict[str, int]) -> None:
        self.name, self.queues, self.variants = name, queues, tuple(queues)
        self.title = f"{self.title}, {self.busy} busy queues among others" if max(queues.values()) > self.busy else self.title

    def units(self, bench: Bench) -> list[tuple[int, str, System]]:
        # Creating queues takes longer than measuring, so all rounds of a variant run together.
        return sorted(super().units(bench), key=lambda unit: self.queues[unit[1]])

    def prepare_cost(self, bench: Bench, systems: list[System]) -> float:
        return 0.03 * max(self.queues.values()) * len(systems)

    def prepare(self, bench: Bench, systems: list[System]) -> None:
        super().prepare(bench, systems)
        self.made = 0

    def make(self, bench: Bench, system: System, queues: int) -> None:
        """Makes the queues of the variant. The first are busy, the others have a document for
        tomorrow."""
        texts = []
        for number in range(self.made, queues):
            name = f"ontime_{number}"
            texts += [system.text(script, queue=name) for script in ("teardown", "setup")]
            if number >= self.busy:
                texts.append(system.text("plan", queue=name, key="later", at=int(time.time()) + 86_400))
        for number in range(queues, self.made):
            texts.append(system.text("teardown", queue=f"ontime_{number}"))
        if texts:
            bench.progress.say(f"{self.name}: creating {queues} queues")
            bench.cluster.psql("\n".join(texts), timeout=3600)
            system.settle()
        self.made = queues

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        queues = self.queues[variant]
        self.make(bench, system, queues)
        bench.settle_server()
        busy = [f"ontime_{number}" for number in range(min(self.busy, queues))]
        wait = system.text("wait_any", queues=",".join(busy))
        pick = {queue: system.text("pick", queue=queue) for queue in busy}
        drop = {queue: system.text("drop", queue=queue) for queue in busy}
        came: dict[str, float] = {}
        seconds = self.load_seconds(bench)
        with Session(bench.cluster) as session:
            pusher = Pusher(bench, system, "plan", busy, PER_SECOND / 2, self.ahead, seconds)
            pusher.start()
            end = time.time() + seconds + self.ahead + 5.0
            while time.time() < end and (pusher.is_alive() or len(came) < len(pusher.at)):
                queue = session.run(wait).get("ready")
                if queue:
                    take_all(session, pick[queue], drop[queue], came)
            metrics = lateness(pusher, came)
        return checked(system, metrics)

    def clean_up(self, bench: Bench, systems: list[System]) -> None:
        for system in systems:
            bench.cluster.psql("\n".join(system.text("teardown", queue=f"ontime_{n}") for n in range(self.made)), timeout=3600)
        super().clean_up(bench, systems)


def on_cpu(pid: int) -> float:
    """Returns the CPU seconds of a process, in nanoseconds if the kernel has them, or in ticks."""
    path = Path(f"/proc/{pid}")
    try:
        return int((path / "schedstat").read_text().split()[0]) / 1e9
    except OSError:
        fields = (path / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / 100


class Waiters(Background):
    """Sessions wait for a document that is never pushed. The measure is their CPU time in total."""

    name = "waiters"
    title = "200 sessions wait on a quiet queue"
    needs = ("wait", "setup", "teardown")
    shown = (("share of a core, %", "share"), ("the same of launcher and background worker, %", "own_share"), ("of them with a snapshot", "with_snapshot"))
    seconds = 30.0
    rounds = 3
    sessions = 200

    def cost(self, bench: Bench, variant: str) -> float:
        return super().cost(bench, variant) + 3

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        system.fresh(QUEUE)
        sessions: list[Session] = []
        try:
            pids = []
            for _ in range(self.sessions):
                sessions.append(session := Session(bench.cluster))
                pids.append(int(session.query("select pg_backend_pid() as pid")[0]["pid"] or 0))
            seconds = self.load_seconds(bench)
            wait = system.text("wait", queue=QUEUE).replace("'5 s'", f"'{seconds + 60:.0f} s'")
            for session in sessions:
                session.send(wait)
            time.sleep(3)
            own = processes(bench.cluster, "fetchq ")
            before = [sum(map(on_cpu, some)) for some in (pids, own)]
            began = time.monotonic()
            held = []
            while time.monotonic() < began + seconds:
                time.sleep(seconds / 10)
                row = bench.cluster.rows(
                    f"""select count(*) filter (where backend_xmin is not null or backend_xid is not null),
                        count(*) filter (where state = 'active')
                    from pg_stat_activity where pid = any ('{{{",".join(map(str, pids))}}}')"""
                )[0]
                held.append(int(row[0]))
                if int(row[1]) != self.sessions:
                    raise Failed(f"only {row[1]} of {self.sessions} sessions wait")
            took = time.monotonic() - began
            after = [sum(map(on_cpu, some)) for some in (pids, own)]
            shares = [100 * (b - a) / took for a, b in zip(before, after)]
            return checked(system, {"share": shares[0], "own_share": shares[1], "with_snapshot": float(max(held))})
        finally:
            for session in sessions:
                session.close()
            # A waiter does not notice that its client has disconnected.
            bench.cluster.psql("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'bench'")
            system.remove(QUEUE)


class Notify(Background):
    """Sessions of another database notify each other, beside a queue that announces its
    documents or does not. A commit that notifies takes a lock of the whole server until the
    commit is on disk. Therefore the commits of this scenario wait for the disk."""

    name = "notify"
    title = "NOTIFY of another database beside a queue that announces, 4 clients, transactions/s"
    needs = ("announce", "fill", "push", "pick", "drop")
    shown = (("unrelated", "rate"), ("queue, jobs/s", "jobs"))
    variants = ("silent", "announces", "commit", "background_worker")
    rounds = 5
    seconds = 8.0
    other = "bench_other"
    clients = 4
    jobs = 300

    def units(self, bench: Bench) -> list[tuple[int, str, System]]:
        self.knows = knows_notify(bench.cluster)
        left_out = ("announces",) if self.knows else ("commit", "background_worker")
        return [unit for unit in super().units(bench) if unit[1] not in left_out]

    def prepare(self, bench: Bench, systems: list[System]) -> None:
        super().prepare(bench, systems)
        mine = bench.cluster.env["PGDATABASE"]
        bench.cluster.psql(
            f"""drop database if exists {self.other};
            create database {self.other};
            alter database {self.other} set synchronous_commit = on;
            alter database {mine} set synchronous_commit = on"""
        )
        bench.cluster.psql("create table small (n int primary key, k int); insert into small select n, 0 from generate_series(1, 1000) n",
                           database=self.other)

    def clean_up(self, bench: Bench, systems: list[System]) -> None:
        bench.cluster.psql(f"alter database {bench.cluster.env['PGDATABASE']} reset synchronous_commit; drop database if exists {self.other}")
        super().clean_up(bench, systems)

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        system.fresh(QUEUE)
        try:
            # The queue always has some documents, so that no client finds it empty.
            system.run("fill", queue=QUEUE, n=1_000, batch=1)
            if variant != "silent":
                system.run("announce", queue=QUEUE)
            if self.knows and variant != "silent":
                bench.cluster.set(NOTIFY, variant)
            bench.settle_server()
            seconds = self.load_seconds(bench)
            # The rate is fixed, because a slower queue would leave more time to the others.
            queue = Load(bench.cluster, system.join(("push", "pick", "drop"), queue=QUEUE), self.clients, seconds=seconds + 2, rate=self.jobs)
            time.sleep(1)
            script = "\\set n random(1, 1000)\nbegin;\nupdate small set k = k + 1 where n = :n;\nnotify other, 'x';\ncommit;\n"
            others = Load(bench.cluster, script, self.clients, seconds=seconds, database=self.other).finish()
            jobs = queue.finish()
            return checked(system, {"rate": others.tps, "jobs": jobs.tps})
        finally:
            if self.knows:
                bench.cluster.set(NOTIFY, None)
            system.remove(QUEUE)
