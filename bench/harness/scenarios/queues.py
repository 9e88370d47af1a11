"""Measures clients that pick from many queues at random."""

import bisect
import re
import time

from ..errors import Failed
from ..pgbench import Beside, Load
from ..systems import System
from .base import PER_DOCUMENT, Bench, Scenario, checked

LEVELS = {"1": 1, "1,000": 1_000, "10,000": 10_000}
MOST = "10,000"
MANY, ONE = "many_", "one_"
TURNS = 16  # Of many queues, and of one.
# The seconds of a turn. Autovacuum starts every 10 s, reads which of the thousands of tables have changed, and finds that of one
# queue. Two turns must not be a part of that time, or it falls upon the same load each time.
TURN = 1.3
SETTLING = 0.15  # The seconds at the beginning of a turn that are left out.
CLIENTS = 4
FASTEST = 40_000  # No load does more jobs/s. The queues have documents for as many.
PER_QUEUE = 0.025  # The seconds to create, fill, maintain and drop a queue.
PER_VISIT = 0.003  # The seconds of the first job of a client in a queue.
PER_MAINTAINED = 0.0125  # The seconds of maintenance until its session has visited a queue.

# A client first visits every queue once, and begins with another queue than the other clients.
# Then it visits queues at random.
SCRIPT = """\\if :visited < @queues@
\\set number (:visited + :client_id * @queues@ / @clients@) % @queues@ + 1
\\set visited :visited + 1
\\else
\\set number random(1, @queues@)
\\endif
"""


class Queues(Scenario):
    """The first job of a session in a queue reads the catalog and prepares plans. Workers live longer
    than that, so it is measured separately: in one run, each client first visits every queue once, the
    session of maintenance too, and the throughput is measured after that.

    10,000 queues and one take turns of seconds, in the same database. To make 10,000 queues takes minutes, in which
    the machine may become faster or slower by more than the difference."""

    name = "queues"
    title = "cycle over many queues at random, 4 clients, jobs/s"
    needs = ("pick_any", "drop_any", "fill")
    variants = (*LEVELS,)
    rounds = 1

    def units(self, bench: Bench) -> list[tuple[int, str, System]]:
        return [
            (1, variant, system)
            for system in self.taking_part(bench)
            for variant in LEVELS
            if LEVELS[variant] > 1 and not bench.record.has(self.name, variant, system.name, 1)
        ]

    def turn(self, bench: Bench, number: int) -> str:
        return ""

    def cost(self, bench: Bench, variant: str) -> float:
        queues = LEVELS[variant]
        load = queues * max(CLIENTS * PER_VISIT / 2, PER_MAINTAINED) + 2 * TURNS * TURN
        return load + queues * PER_QUEUE + self.each(queues) * queues * PER_DOCUMENT

    @staticmethod
    def each(queues: int) -> int:
        """Returns the documents of one queue: visits, its share of the jobs, and a large
        reserve."""
        share = TURNS * TURN * FASTEST / queues
        return int(CLIENTS + share + 8 * share**0.5) + 10

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        queues = LEVELS[variant]
        sizes = {f"{MANY}{i}": self.each(queues) for i in range(1, queues + 1)} | {f"{ONE}1": self.each(1)}
        try:
            for script in ("teardown", "setup"):
                bench.cluster.psql("".join(system.text(script, queue=name) for name in sizes))
            fills = "".join(system.text("fill", queue=name, n=n, batch=1) for name, n in sizes.items())
            # Each VACUUM reads all of pg_class, which is long with thousands of queues. Therefore
            # one VACUUM serves all queues.
            bench.cluster.psql(re.sub(r"^vacuum .*;\n", "", fills, flags=re.M) + "vacuum analyze;")
            system.settle()
            bench.settle_server()
            many, one = self.load(bench, system, queues)
            for turn, metrics in enumerate(one if variant == MOST else []):
                self.keep(bench, system, "1", number + turn, metrics)
            # The caller records the first turn. When its number is recorded, all turns are.
            for turn, metrics in enumerate(many[1:], 1):
                self.keep(bench, system, variant, number + turn, metrics)
            return many[0]
        finally:
            if system.has("pack"):
                system.run("pack")  # Otherwise each queue that is dropped reads the counters of all.
            # Each transaction that drops tables searches all of the buffers.
            drops = [system.text("teardown", queue=name) for name in sizes]
            for at in range(0, len(drops), 50):
                bench.cluster.psql("".join(["begin;", *drops[at : at + 50], "commit;"]))

    def keep(self, bench: Bench, system: System, variant: str, number: int, metrics: dict[str, float]) -> None:
        bench.record.add(self.name, variant, system.name, number, metrics)
        bench.progress.say(f"{self.name} {variant}, {system.name}: {self.brief(metrics)}")

    @staticmethod
    def load(bench: Bench, system: System, queues: int) -> tuple[list[dict[str, float]], list[dict[str, float]]]:
        """Returns the results of each turn, with many queues and with one. Maintenance runs beside many only."""

        def begin(prefix: str, queues: int) -> Load:
            script = SCRIPT.replace("@queues@", str(queues)).replace("@clients@", str(CLIENTS))
            script += system.join(("pick_any", "drop_any"), queue=prefix, queues=queues)
            return Load(bench.cluster, script, CLIENTS, seconds=3600, variables={"visited": 0}, log=True)

        loads: list[Load] = []
        with Beside(bench.cluster, system.maintenance()) as maintenance:
            try:
                loads.append(begin(MANY, queues))
                visits = after_visits(loads[0], queues)
                loads[0].pause()
                if system.has("visited"):
                    system.run("visited")
                loads.append(begin(ONE, 1))
                after_visits(loads[1], 1)
                spans: list[list[tuple[float, float]]] = [[], []]
                for at in [0, 1] * TURNS:
                    loads[1 - at].pause()
                    if maintenance.load and at == 1:
                        maintenance.load.pause()
                    loads[at].resume()
                    if maintenance.load and at == 0:
                        maintenance.load.resume()
                    time.sleep(SETTLING)
                    start = time.time()
                    time.sleep(TURN - SETTLING)
                    spans[at].append((start, time.time()))
                for load in loads:
                    load.resume()
                # So that pgbench writes the end of its logs.
                time.sleep(SETTLING)
                for load in loads:
                    if not load.running():
                        raise Failed(load.complaint())
                found = [rates(load, times) for load, times in zip(loads, spans, strict=True)]
            finally:
                for load in loads:
                    load.stop()
        return (
            [checked(system, {"rate": rate, "first_visit_ms": visits}) for rate in found[0]],
            [checked(system, {"rate": rate}) for rate in found[1]],
        )


def after_visits(load: Load, queues: int) -> float:
    """Waits until each client has visited every queue. Returns the mean of these visits in milliseconds."""
    while True:
        time.sleep(0.5)
        if not load.running():
            raise Failed(load.complaint())
        took: dict[int, list[int]] = {}
        for client, _, micros in load.transactions():
            took.setdefault(client, []).append(micros)
        if len(took) == CLIENTS and all(len(each) >= queues for each in took.values()):
            visits = [micros for each in took.values() for micros in each[:queues]]
            return sum(visits) / len(visits) / 1000


def rates(load: Load, spans: list[tuple[float, float]]) -> list[float]:
    """Returns the transactions per second in each span of time."""
    ends = sorted(end for _, end, _ in load.transactions())
    return [(bisect.bisect(ends, end) - bisect.bisect(ends, start)) / (end - start) for start, end in spans]
