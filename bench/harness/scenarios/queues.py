"""One client picks from many queues at random."""

from math import sqrt

from ..pgbench import Beside, Load
from ..systems import System
from .base import PER_DOCUMENT, Bench, Scenario, checked

LEVELS = {"1": 1, "1,000": 1_000, "5,000": 5_000}
SAMPLES = 3
SECONDS = 8.0
CLIENTS = 4
PER_QUEUE = 0.02  # seconds to create, fill, maintain and drop one


class Queues(Scenario):
    """Making thousands of queues takes longer than measuring, so a round is one
    level with several samples, and the level of one queue comes at both ends."""

    name = "queues"
    title = "cycle over many queues at random, 4 clients, jobs/s"
    needs = ("pick_any", "drop_any", "fill")
    variants = tuple(LEVELS)
    rounds = 1

    def units(self, bench: Bench) -> list[tuple[int, str, System]]:
        found = []
        for system in self.taking_part(bench):
            # Numbers of samples are the rounds of the record.
            order = [("1", 1), ("1,000", 1), ("5,000", 1), ("1", 1 + SAMPLES)]
            found += [
                (first, variant, system)
                for variant, first in order
                if not bench.record.has(self.name, variant, system.name, first)
            ]
        return found

    def turn(self, bench: Bench, number: int) -> str:
        return ""

    def cost(self, bench: Bench, variant: str) -> float:
        samples = SAMPLES * ((bench.seconds or SECONDS) + 1)
        return samples + LEVELS[variant] * PER_QUEUE + self.each(bench, LEVELS[variant]) * LEVELS[variant] * PER_DOCUMENT

    @staticmethod
    def each(bench: Bench, queues: int) -> int:
        """Documents of one queue: its share of all samples, and six sigma more."""
        share = SAMPLES * (bench.seconds or SECONDS) * bench.fill_rate / queues
        return int(share + 6 * sqrt(share)) + 1

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        queues = LEVELS[variant]
        names = [f"many_{i}" for i in range(1, queues + 1)]
        try:
            for script in ("teardown", "setup"):
                bench.cluster.psql("".join(system.text(script, queue=name) for name in names))
            n = self.each(bench, queues)
            bench.cluster.psql("".join(system.text("fill", queue=name, n=n, batch=1) for name in names))
            system.settle()
            bench.settle_server()
            script = system.join(("pick_any", "drop_any"), queue="many_", queues=queues)
            for extra in range(SAMPLES - 1, -1, -1):
                with Beside(bench.cluster, system.maintenance()):
                    outcome = Load(bench.cluster, script, CLIENTS, seconds=bench.seconds or SECONDS).finish()
                metrics = checked(system, {"rate": outcome.tps, "latency_ms": outcome.latency_ms})
                if extra:
                    bench.record.add(self.name, variant, system.name, number + extra, metrics)
                    bench.progress.say(f"{self.name} {variant}, {system.name}: {self.brief(metrics)}")
            # The last one is recorded by the caller, so that its number means: all are there.
            return metrics
        finally:
            bench.cluster.psql("".join(system.text("teardown", queue=name) for name in names))
