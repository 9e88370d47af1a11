"""Runs a mixed load while another session prevents vacuum from removing rows."""

import time
from statistics import mean

from ..cluster import Holder
from ..errors import Failed
from ..pgbench import Beside, Load
from ..systems import System
from .base import PER_DOCUMENT, PER_MEASUREMENT, QUEUE, Bench, Scenario, checked

DEPTH = 10_000
CLIENTS = 4
SCRIPTS = ("push", "pick", "drop")


def size_of(system: System) -> float:
    """Returns the bytes of the tables and indexes of the queue."""
    return sum(float(value) for value in system.pairs("size", queue=QUEUE).values())


class Held(Scenario):
    """A run has a clean phase, a held phase, and a phase after the release. The ratio compares
    the end of the held phase with the clean phase of the same run."""

    rounds = 2
    quick_rounds = 1
    needs = (*SCRIPTS, "fill")

    def __init__(self, name: str, title: str, holder: str, rounds: int, seconds: int = 90) -> None:
        self.name, self.title, self.holder, self.rounds, self.seconds = name, title, holder, rounds, seconds

    def phases(self, bench: Bench) -> tuple[int, int, int, int]:
        """Returns seconds: clean, held, after the release, and between two points."""
        return (5, 12, 4, 1) if bench.quick else (20, self.seconds, 30, 5)

    def cost(self, bench: Bench, variant: str) -> float:
        return sum(self.phases(bench)[:3]) + PER_MEASUREMENT + DEPTH * PER_DOCUMENT

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        clean, held, after, step = self.phases(bench)
        system.fresh(QUEUE)
        system.run("fill", queue=QUEUE, n=DEPTH, batch=1)
        system.settle()
        bench.settle_server()
        try:
            with Beside(bench.cluster, system.maintenance()):
                load = Load(
                    bench.cluster, system.join(SCRIPTS, queue=QUEUE), CLIENTS,
                    seconds=clean + held + after, progress=step,
                )
                self.wait(load, clean)
                with Holder(bench.cluster, self.holder):
                    bench.progress.say(f"{self.name}, {system.name}: held now, for {held} s")
                    self.wait(load, held)
                    size = size_of(system)
                bench.progress.say(f"{self.name}, {system.name}: released")
                outcome = load.finish()
        finally:
            system.remove(QUEUE)
        bench.record.add_series(self.name, variant, system.name, number, "jobs_per_s", outcome.progress)
        return checked(system, self.summary(bench, outcome.progress) | {"size_held": size})

    @staticmethod
    def wait(load: Load, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if not load.running():
                load.finish()
                raise Failed("the load ended early")
            time.sleep(min(0.5, max(0.0, until - time.monotonic())))

    def summary(self, bench: Bench, points: list[tuple[float, float]]) -> dict[str, float]:
        clean, held, after, step = self.phases(bench)

        def between(start: float, end: float) -> float:
            # The point at t is the mean of the interval that ends at t.
            found = [rate for at, rate in points if start + step - 0.5 <= at <= end + 0.5]
            if not found:
                raise Failed("pgbench reported no progress")
            return mean(found)

        before = between(step, clean)  # This leaves out the first interval.
        end = between(clean + held - 3 * step, clean + held)
        last = between(clean + held + after - 2 * step, clean + held + after)
        recovered = [at for at, rate in points if at > clean + held + 0.5 and rate >= 0.9 * before]
        metrics = {
            "held_to_clean": end / before, "clean": before, "held": end, "after": last,
            "held_from_s": float(clean), "held_until_s": float(clean + held),
        }
        if recovered:
            metrics["recovery_s"] = recovered[0] - clean - held
        return metrics


class Growth(Scenario):
    """The same number of jobs in a new queue while a snapshot is held. A load of a fixed time would do more
    jobs in a faster system, and the free space of a used table would hide the growth."""

    name = "growth"
    title = "growth of tables and indexes while a snapshot is held"
    rounds = 1
    quick_rounds = 1
    needs = (*SCRIPTS, "fill", "size")

    @staticmethod
    def jobs(bench: Bench) -> int:
        return 4_000 if bench.quick else 20_000

    def cost(self, bench: Bench, variant: str) -> float:
        return PER_MEASUREMENT + self.jobs(bench) / 500

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        system.fresh(QUEUE)
        # Each client finds a document, whatever the others have locked.
        system.run("fill", queue=QUEUE, n=100, batch=1)
        system.settle()
        bench.settle_server()
        jobs = self.jobs(bench)
        try:
            with Beside(bench.cluster, system.maintenance()), Holder(bench.cluster, Holder.SNAPSHOT):
                before = size_of(system)
                Load(bench.cluster, system.join(SCRIPTS, queue=QUEUE), CLIENTS, transactions=jobs // CLIENTS).finish()
                grown = size_of(system) - before
        finally:
            system.remove(QUEUE)
        return checked(system, {"bytes_per_job": grown / jobs})
