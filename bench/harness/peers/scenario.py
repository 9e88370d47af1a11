"""Measures one system in one round: enqueue, work off a backlog, latency at a fixed rate."""

import copy
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from ..cluster import Cluster, Holder
from ..errors import Failed
from ..scenarios.base import Bench, Scenario
from ..wire import Session
from . import drivers
from .systems import SQL, Peer

DATABASE = "peers"
CONCURRENCY = 4
RATE = 100
TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Variant:
    name: str
    commit: str
    held: bool
    # What waits for the disk is most of a latency, so it is measured in three of the four.
    latency: bool


VARIANTS = [
    Variant("synchronous_commit on", "on", False, True),
    Variant("synchronous_commit off", "off", False, True),
    Variant("on, snapshot held", "on", True, True),
    Variant("off, snapshot held", "off", True, False),
]


@dataclass(frozen=True)
class Plan:
    """Seconds and counts of the phases."""

    single: int = 1  # pgbench takes whole seconds.
    bulk: int = 20_000
    bulk_limit: float = 2.0
    batch: int = 1000
    work: float = 2.0
    pace: float = 2.5
    # What systems with long pauses between two looks need at the end of the last phase.
    rest: float = 3.0


QUICK = Plan(bulk=2000, bulk_limit=1.0, work=1.0, pace=1.0)


class Server:
    """What the whole server has used: processor time of all its processes, and bytes of WAL."""

    def __init__(self, cluster: Cluster) -> None:
        self.postmaster = cluster.psql("select pg_read_file('postmaster.pid')").split()[0]
        # Its own session, because a new one for each look would be in the numbers.
        self.session = Session(cluster)

    def used(self) -> tuple[float, float]:
        wal = self.session.query("select pg_current_wal_insert_lsn() - '0/0' as n")[0]["n"]
        return self.processor(), float(wal or 0)

    def processor(self) -> float:
        ticks = 0
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                text = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            # The name of the program, in parentheses, may contain blanks.
            fields = text[text.rindex(")") + 2:].split()
            parent, own, ended = fields[1], fields[11:13], fields[13:15]
            if entry == self.postmaster:
                # The postmaster counts its children that have ended.
                ticks += sum(map(int, own + ended))
            elif parent == self.postmaster:
                ticks += sum(map(int, own))
        return ticks / TICK

    def close(self) -> None:
        self.session.close()


def variant_of(name: str) -> Variant:
    return next(found for found in VARIANTS if found.name == name)


def rate(points: drivers.Points, seconds: float, backlog: int) -> float:
    """Returns jobs per second. It leaves out the first half second of work, and the end of the
    backlog if it was reached."""
    begin = next((at for at, done in points if done), None)
    if begin is None:
        raise Failed("no job was done")
    full = [(at, done) for at, done in points if begin <= at <= begin + seconds and done <= 0.98 * backlog]
    steady = [point for point in full if point[0] >= begin + 0.5]
    # A backlog that is gone at once: from the last look before the first job to the look that found
    # the end.
    if len(steady) < 3 or steady[-1][0] - steady[0][0] < 0.3:
        before = max((point for point in points if point[0] < begin), default=(begin, 0))
        top = max(done for _, done in points)
        end = next(at for at, done in points if done == top)
        if end <= before[0]:
            raise Failed("the backlog was too short")
        return top / (end - before[0])
    (first, before_), (last, after) = steady[0], steady[-1]
    return (after - before_) / (last - first)


class Peers(Scenario):
    name = "peers"
    title = "jobs through each system's own worker"
    variants = tuple(variant.name for variant in VARIANTS)
    rounds = 3
    quick_rounds = 1
    HELD_ROUNDS = 2

    def __init__(self, plan: Plan, pgq: Path | None, deadline: float, processes: int) -> None:
        self.plan, self.pgq, self.deadline, self.processes = plan, pgq, deadline, processes
        self.commit = ""
        # What was left out because the time was over.
        self.late: list[str] = []

    def cost(self, bench: Bench, variant: str) -> float:
        plan, how = self.plan, variant_of(variant)
        work = (plan.bulk / 20_000 + plan.work + 0.5) * (2 if how.held else 1)
        return 2.2 + plan.single + work + (plan.pace + 1.4 if how.latency else 0)

    def units(self, bench: Bench) -> list[tuple[int, str, Peer]]:
        held = {variant.name for variant in VARIANTS if variant.held}
        most = bench.rounds or self.HELD_ROUNDS
        if bench.quick:
            # A quick run shows that each system works, with all phases.
            wanted = {VARIANTS[1].name, VARIANTS[2].name}
        else:
            wanted = set(self.variants)
        return [(number, variant, peer) for number, variant, peer in super().units(bench)
                if variant in wanted and not (variant in held and number > most)]

    def _unit(self, bench: Bench, number: int, variant: str, system: Peer) -> None:
        cost = self.cost(bench, variant)
        if time.monotonic() + cost > self.deadline:
            self.late.append(f"{system.name}, {variant}, round {number}")
            bench.progress.skip(cost)
            return
        super()._unit(bench, number, variant, system)

    # ------------------------------------------------------------ measure --
    def measure(self, bench: Bench, system: Peer, variant: str, number: int) -> dict[str, float]:
        how = variant_of(variant)
        admin = bench.cluster
        if self.commit != how.commit:
            admin.set("synchronous_commit", how.commit)
            self.commit = how.commit
        self.drop(admin)
        admin.psql(f"create database {DATABASE} template template0", database="postgres")
        cluster = copy.copy(admin)
        cluster.env = admin.env | {"PGDATABASE": DATABASE}
        metrics: dict[str, float] = {}
        try:
            drivers.setup(cluster, system, self.pgq)
            bench.settle_server()
            with ExitStack() as stack:
                beside = SQL / system.client / "beside.sql"
                if system.language == "SQL" and beside.exists():
                    stack.callback(drivers.Sessions(cluster, beside.read_text(), 1).close)
                if how.held:
                    stack.enter_context(Holder(cluster, Holder.SNAPSHOT))
                server = Server(cluster)
                stack.callback(server.close)
                producer = drivers.producer(cluster, system, CONCURRENCY)
                stack.callback(producer.close)
                producer.start()
                self.enqueue(server, producer, metrics)
                if how.held:
                    # What these jobs leave behind cannot be removed, and is in the way of the next ones.
                    self.work(cluster, system, server, {})
                    self.backlog = producer.bulk(self.plan.bulk, self.plan.batch, self.plan.bulk_limit)["count"]
                self.work(cluster, system, server, metrics)
                if how.latency:
                    self.latency(cluster, system, server, producer, metrics)
        except Exception as failure:
            # Whatever is wrong with one system, the others are measured.
            if not isinstance(failure, Failed):
                failure = Failed(f"{type(failure).__name__}: {failure}")
            if not metrics:
                raise failure from None
            # What was measured before counts, and the report names what was not.
            bench.record.fail(self.name, variant, system.name, number, str(failure))
            bench.progress.say(f"{system.name}: FAILED: {failure}")
        finally:
            if not Cluster.interrupted:
                self.drop(admin)
        return metrics

    @staticmethod
    def drop(cluster: Cluster) -> None:
        cluster.psql(f"drop database if exists {DATABASE} with (force)", database="postgres")

    def enqueue(self, server: Server, producer: drivers.ClientProducer, metrics: dict[str, float]) -> None:
        plan = self.plan
        before = server.used()
        one = producer.single(plan.single)
        after = server.used()
        metrics["single"] = one["count"] / one["seconds"]
        metrics["single_cpu_us"], metrics["single_wal"] = per_job(before, after, one["count"])
        many = producer.bulk(plan.bulk, plan.batch, plan.bulk_limit)
        last = server.used()
        metrics["bulk"] = many["count"] / many["seconds"]
        metrics["bulk_cpu_us"], metrics["bulk_wal"] = per_job(after, last, many["count"])
        self.backlog = one["count"] + many["count"]

    def work(self, cluster: Cluster, peer: Peer, server: Server, metrics: dict[str, float]) -> None:
        # As autovacuum would have done by then.
        cluster.psql("vacuum (analyze)")
        before = server.used()
        worker = drivers.worker(cluster, peer, CONCURRENCY, self.processes)
        try:
            worker.start()
            self.until(worker, lambda points: bool(points) and points[-1][1] >= self.backlog, first=20, most=self.plan.work + 0.1)
            done, _ = worker.stop()
            after = server.used()
        finally:
            worker.close()
        metrics["rate"] = rate(worker.points(), self.plan.work, self.backlog)
        metrics["work_cpu_us"], metrics["work_wal"] = per_job(before, after, done)
        if "single" in metrics:
            metrics["cpu_us"] = metrics["single_cpu_us"] + metrics["work_cpu_us"]
            metrics["wal"] = metrics["single_wal"] + metrics["work_wal"]

    def latency(self, cluster: Cluster, peer: Peer, server: Server, producer: drivers.ClientProducer, metrics: dict[str, float]) -> None:
        cluster.psql(peer.purge)
        cluster.psql("vacuum (analyze)")
        if peer.language == "SQL":
            cluster.psql((SQL / "latency.sql").read_text())
        worker = drivers.worker(cluster, peer, CONCURRENCY, self.processes)
        try:
            worker.start()
            # A worker that has just been started looks by itself.
            time.sleep(0.7)
            before = server.used()
            began = time.monotonic()
            sent = producer.pace(RATE, self.plan.pace)["count"]
            self.rest(cluster, peer, worker, sent)
            seconds = time.monotonic() - began
            after = server.used()
            _, late = worker.stop()
        finally:
            worker.close()
        if len(late) < 10:
            raise Failed(f"only {len(late)} of {sent} jobs were done")
        cuts = quantiles(late, n=100, method="inclusive")
        metrics |= {
            "p50_ms": cuts[49], "p99_ms": cuts[98], "max_ms": max(late),
            "paced_cpu_share": 100 * (after[0] - before[0]) / seconds, "missing": float(sent - len(late)),
        }

    def rest(self, cluster: Cluster, peer: Peer, worker: drivers.ClientWorker, sent: int) -> None:
        """Waits until the jobs are done."""
        until = time.monotonic() + self.plan.rest
        while time.monotonic() < until:
            worker.alive()
            if peer.language == "SQL":
                done = int(cluster.psql("select count(*) from bench_seen"))
            else:
                points = worker.points()
                done = points[-1][1] if points else 0
            if done >= sent:
                return
            time.sleep(0.1)

    @staticmethod
    def until(worker: drivers.ClientWorker, enough: Callable[[drivers.Points], bool], first: float, most: float) -> None:
        """Waits at most `first` seconds for the first job, and then `most` seconds, or less."""
        start, begin = time.monotonic(), None
        while True:
            worker.alive()
            points = worker.points()
            if begin is None:
                begin = next((time.monotonic() for _, done in points if done), None)
                if begin is None and time.monotonic() > start + first:
                    raise Failed(f"no job was done in {first:.0f} s")
            elif enough(points) or time.monotonic() > begin + most:
                return
            time.sleep(0.05)

    def brief(self, metrics: dict[str, float]) -> str:
        shown = {"jobs/s": "rate", "single/s": "single", "bulk/s": "bulk", "p50 ms": "p50_ms", "p99 ms": "p99_ms"}
        return ", ".join(f"{name} {metrics[metric]:,.4g}" for name, metric in shown.items() if metric in metrics)


def per_job(before: tuple[float, float], after: tuple[float, float], count: int) -> tuple[float, float]:
    """Returns microseconds of processor time and bytes of WAL for each job."""
    if not count:
        raise Failed("no job was done")
    return (after[0] - before[0]) * 1e6 / count, (after[1] - before[1]) / count
