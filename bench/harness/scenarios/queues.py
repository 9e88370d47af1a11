"""Measures clients that pick from many queues at random."""

import re

from ..errors import Failed
from ..pgbench import Beside, Load
from ..systems import System
from .base import PER_DOCUMENT, Bench, Scenario, checked

LEVELS = {"1": 1, "1,000": 1_000, "10,000": 10_000}
PARTS = 3  # A measurement is divided into this number of parts, for the spread.
CLIENTS = 4
JOBS = 240_000  # Several seconds, because of 10,000 queues the counters are packed every ten seconds or so.
PER_QUEUE = 0.025  # The seconds to create, fill, maintain and drop a queue.
PER_VISIT = 0.003  # The seconds of the first job of a client in a queue.

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
    than that, so it is measured separately: in one run, each client first visits every queue once,
    and the throughput is measured after that."""

    name = "queues"
    title = "cycle over many queues at random, 4 clients, jobs/s"
    needs = ("pick_any", "drop_any", "fill")
    variants = (*LEVELS,)
    rounds = 1

    def units(self, bench: Bench) -> list[tuple[int, str, System]]:
        # Creating thousands of queues takes longer than measuring, so each level is made once.
        # The level of one queue is first and last, to show whether the machine became slower.
        order = [("1", 1), ("1,000", 1), ("10,000", 1), ("1", 1 + PARTS)]
        return [
            (first, variant, system)
            for system in self.taking_part(bench)
            for variant, first in order
            if not bench.record.has(self.name, variant, system.name, first)
        ]

    def turn(self, bench: Bench, number: int) -> str:
        return ""

    def cost(self, bench: Bench, variant: str) -> float:
        queues = LEVELS[variant]
        load = queues * CLIENTS * PER_VISIT / 2 + JOBS / 6_000
        return load + queues * PER_QUEUE + self.each(queues) * queues * PER_DOCUMENT

    @staticmethod
    def each(queues: int) -> int:
        """Returns the documents of one queue: visits, its share of the jobs, and a large
        reserve."""
        share = JOBS / queues
        return int(CLIENTS + share + 8 * share**0.5) + 10

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        queues = LEVELS[variant]
        names = [f"many_{i}" for i in range(1, queues + 1)]
        try:
            for script in ("teardown", "setup"):
                bench.cluster.psql("".join(system.text(script, queue=name) for name in names))
            n = self.each(queues)
            fills = "".join(system.text("fill", queue=name, n=n, batch=1) for name in names)
            # Each VACUUM reads all of pg_class, which is long with thousands of queues. Therefore
            # one VACUUM serves all queues.
            bench.cluster.psql(re.sub(r"^vacuum .*;\n", "", fills, flags=re.M) + "vacuum analyze;")
            system.settle()
            bench.settle_server()
            parts = self.load(bench, system, queues, JOBS)
            # The caller records the first part. When its number is recorded, all parts are.
            self.keep(bench, system, variant, number, parts[1:], 1)
            return parts[0]
        finally:
            bench.cluster.psql("".join(system.text("teardown", queue=name) for name in names))

    def keep(
        self, bench: Bench, system: System, variant: str, number: int, parts: list[dict[str, float]], skip: int = 0
    ) -> None:
        for i, metrics in enumerate(parts):
            bench.record.add(self.name, variant, system.name, number + skip + i, metrics)
            bench.progress.say(f"{self.name} {variant}, {system.name}: {self.brief(metrics)}")

    @staticmethod
    def load(bench: Bench, system: System, queues: int, jobs: int) -> list[dict[str, float]]:
        script = SCRIPT.replace("@queues@", str(queues)).replace("@clients@", str(CLIENTS))
        script += system.join(("pick_any", "drop_any"), queue="many_", queues=queues)
        with Beside(bench.cluster, system.maintenance()):
            outcome = Load(
                bench.cluster, script, CLIENTS, transactions=queues + jobs // CLIENTS,
                variables={"visited": 0}, log=True,
            ).finish()
        visits, rates = split(outcome.log, queues)
        return [checked(system, {"rate": rate, "first_visit_ms": visits}) for rate in rates]


def split(log: list[tuple[int, float, int]], queues: int) -> tuple[float, list[float]]:
    """Evaluates a log of (client, end, microseconds). Returns the mean of the first visits in
    milliseconds, and the rates while all clients had finished them and none had ended."""
    clients: dict[int, list[tuple[float, int]]] = {}
    for client, end, took in log:
        clients.setdefault(client, []).append((end, took))
    visits = [took for jobs in clients.values() for _, took in jobs[:queues]]
    start = max(jobs[queues - 1][0] for jobs in clients.values())
    stop = min(jobs[-1][0] for jobs in clients.values())
    step = (stop - start) / PARTS
    if step <= 0:
        raise Failed("a client ended before another one had visited every queue")
    counts = [0] * PARTS
    for _, end, _ in log:
        if start < end <= stop:
            counts[min(PARTS - 1, int((end - start) / step))] += 1
    return sum(visits) / len(visits) / 1000, [count / step for count in counts]
