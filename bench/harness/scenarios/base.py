"""Defines a scenario, and the order of its measurements."""

import time
from dataclasses import dataclass

from .. import machine
from ..cluster import Cluster
from ..errors import Failed, cause
from ..progress import Progress
from ..record import Record
from ..systems import System

QUEUE = "jobs"
# Rough costs in seconds, for the expected remaining time.
PER_DOCUMENT = 8e-6
PER_MEASUREMENT = 1.5


@dataclass
class Bench:
    """The objects and settings that every scenario uses."""

    cluster: Cluster
    record: Record
    progress: Progress
    systems: list[System]
    quick: bool
    # The number of documents that a fill has for each second of a load.
    # A faster machine needs more.
    fill_rate: int
    rounds: int | None
    seconds: float | None

    def settle_server(self) -> None:
        """Runs a checkpoint, so that there is none in the middle of a measurement."""
        self.cluster.psql("checkpoint")


class Scenario:
    """The systems alternate within each round, and each round begins with another system. A machine
    that becomes slower during the run is therefore slower for all systems."""

    name = ""
    title = ""
    needs: tuple[str, ...] = ()
    variants: tuple[str, ...] = ("",)
    rounds = 5
    quick_rounds = 2

    # ------------------------------------------------- for the subclasses --
    def cost(self, bench: Bench, variant: str) -> float:
        """Returns roughly how many seconds one measurement takes."""
        raise NotImplementedError

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        raise NotImplementedError

    def prepare(self, bench: Bench, systems: list[System]) -> None:
        """Runs once before the first measurement."""

    def prepare_cost(self, bench: Bench, systems: list[System]) -> float:
        return 0.0

    def clean_up(self, bench: Bench, systems: list[System]) -> None:
        """Runs once after the last measurement, also after a failure."""

    def turn(self, bench: Bench, number: int) -> str:
        """Returns the number of the measurement, for the progress line."""
        return f"round {number} of {self.how_many(bench)}, "

    # --------------------------------------------------------------- order --
    def how_many(self, bench: Bench) -> int:
        return bench.rounds or (self.quick_rounds if bench.quick else self.rounds)

    def taking_part(self, bench: Bench) -> list[System]:
        return [
            system for system in bench.systems
            if all(system.has(script) for script in self.needs) and not system.skips(self.name)
        ]

    def units(self, bench: Bench) -> list[tuple[int, str, System]]:
        """Returns the missing measurements in order: (round, variant, system)."""
        systems = self.taking_part(bench)
        found = []
        for number in range(1, self.how_many(bench) + 1):
            for variant in self.variants:
                turn = number % len(systems) if systems else 0
                for system in systems[turn:] + systems[:turn]:
                    if not bench.record.has(self.name, variant, system.name, number):
                        found.append((number, variant, system))
        return found

    def total_cost(self, bench: Bench) -> float:
        units = self.units(bench)
        if not units:
            return 0.0
        systems = self.taking_part(bench)
        return self.prepare_cost(bench, systems) + sum(self.cost(bench, variant) for _, variant, _ in units)

    def run(self, bench: Bench) -> None:
        units = self.units(bench)
        if not units:
            return
        systems = self.taking_part(bench)
        progress = bench.progress
        others = machine.busy()
        bench.record.add("machine", self.name, "all", 1, {"busy": others})
        if others > machine.BUSY:
            progress.say(f"{self.name}: WARNING: other processes use {others:.0%} of the machine, so the numbers will be wrong")
        try:
            planned, began = self.prepare_cost(bench, systems), time.monotonic()
            if planned:
                progress.say(f"{self.name}: preparing, about {planned:.0f} s")
            self.prepare(bench, systems)
            progress.done(planned, time.monotonic() - began)
            for number, variant, system in units:
                self._unit(bench, number, variant, system)
        except Failed as e:
            progress.say(f"{self.name}: FAILED: {e}")
            for number, variant, system in units:
                if not bench.record.has(self.name, variant, system.name, number):
                    bench.record.fail(self.name, variant, system.name, number, f"not measured: {e}")
        finally:
            try:
                self.clean_up(bench, systems)
            except Failed as e:
                progress.say(f"{self.name}: cleaning up failed: {e}")

    def _unit(self, bench: Bench, number: int, variant: str, system: System) -> None:
        record, progress = bench.record, bench.progress
        what = f"{self.name}{' ' + variant if variant else ''}, {self.turn(bench, number)}{system.name}"
        planned, began = self.cost(bench, variant), time.monotonic()
        try:
            metrics = self.measure(bench, system, variant, number)
            record.add(self.name, variant, system.name, number, metrics)
            result = self.brief(metrics)
        except Failed as e:
            record.fail(self.name, variant, system.name, number, str(cause(e)))
            result = f"FAILED: {cause(e)}"
            if not bench.cluster.wait_until_it_answers():
                raise Failed("the server is down and does not start again") from None
        progress.done(planned, time.monotonic() - began)
        progress.say(f"{what}: {result}   ({progress.remaining()} left)")

    def brief(self, metrics: dict[str, float]) -> str:
        """Returns the first metrics of a measurement, for the progress line."""
        return ", ".join(f"{name} {value:,.4g}" if value < 100 else f"{name} {value:,.0f}" for name, value in list(metrics.items())[:3])


def checked(system: System, metrics: dict[str, float]) -> dict[str, float]:
    """Adds the error counts of the system by its check.sql. Each must be 0."""
    for name, value in system.pairs("check").items():
        metrics[f"check {name}"] = float(value)
    return metrics
