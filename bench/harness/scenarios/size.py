"""Runs two million jobs at a constant depth with autovacuum, and measures size and throughput."""

import time

from ..errors import Failed
from ..pgbench import Beside, Load
from ..systems import System
from .base import PER_MEASUREMENT, QUEUE, Bench, Scenario, checked

DEPTH = 10_000
JOBS = 2_000_000
CLIENTS = 4
SCRIPTS = ("push", "pick", "drop")
STEP = 2  # The seconds between two points.
EVERY = 5  # The seconds between two measurements of the size.


class Size(Scenario):
    name = "size"
    title = "2 million jobs at constant depth"
    needs = (*SCRIPTS, "fill", "size")
    rounds = 1

    def cost(self, bench: Bench, variant: str) -> float:
        return PER_MEASUREMENT + JOBS / 9_000

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        system.fresh(QUEUE)
        try:
            system.run("fill", queue=QUEUE, n=DEPTH, batch=1)
            system.settle()
            bench.settle_server()
            sizes: list[tuple[float, dict[str, float]]] = []
            with Beside(bench.cluster, system.maintenance()):
                began = time.monotonic()
                script = system.join(SCRIPTS, queue=QUEUE)
                load = Load(bench.cluster, script, CLIENTS, transactions=JOBS // CLIENTS, progress=STEP)
                while load.running():
                    parts = {k: float(v) for k, v in system.pairs("size", queue=QUEUE).items()}
                    sizes.append((time.monotonic() - began, parts))
                    if len(sizes) % 12 == 0 and load.progress:
                        at, rate = load.progress[-1]
                        bench.progress.say(f"size, {system.name}: {at:.0f} s, {rate:,.0f}/s, {sum(parts.values()) / 1e6:.1f} MB")
                    until = time.monotonic() + EVERY
                    while load.running() and time.monotonic() < until:
                        time.sleep(0.2)
                outcome = load.finish()
        finally:
            system.remove(QUEUE)
        record = bench.record
        record.add_series(self.name, variant, system.name, number, "jobs_per_s", outcome.progress)
        for part in sizes[0][1]:
            points = [(at, parts[part]) for at, parts in sizes]
            record.add_series(self.name, variant, system.name, number, part, points)
        totals = [sum(parts.values()) for _, parts in sizes]
        # The last point is left out, because some clients have ended before it.
        first, last = tenths(outcome.progress[:-1])
        return checked(system, {
            "last_to_first_tenth": last / first, "first_tenth": first, "last_tenth": last, "rate": outcome.tps,
            "bytes_end": totals[-1], "bytes_max_first_half": max(totals[: max(1, len(totals) // 2)]),
            "bytes_max": max(totals),
        })


def tenths(points: list[tuple[float, float]]) -> tuple[float, float]:
    """Returns the rates of the first and of the last tenth of the jobs."""
    jobs, at, line = 0.0, 0.0, [(0.0, 0.0)]  # (seconds, jobs so far).
    for end, rate in points:
        jobs, at = jobs + rate * (end - at), end
        line.append((at, jobs))
    if len(line) < 11:
        raise Failed("the run was too short for tenths")

    def when(target: float) -> float:
        for (t0, j0), (t1, j1) in zip(line, line[1:]):
            if j1 >= target:
                return t0 + (t1 - t0) * (target - j0) / ((j1 - j0) or 1)
        return line[-1][0]

    tenth = jobs / 10
    return tenth / when(tenth), tenth / (line[-1][0] - when(9 * tenth))
