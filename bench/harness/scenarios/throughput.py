"""Measures loads of a fixed time or a fixed amount: pushes, cycles, batches and polls."""

from typing import Any

from ..pgbench import Beside, Load
from ..systems import System
from .base import PER_DOCUMENT, PER_MEASUREMENT, QUEUE, Bench, Scenario, checked


class Throughput(Scenario):
    """Runs one script for some time. The measure is documents per second."""

    quick_seconds = 2.0

    def __init__(
        self, name: str, title: str, scripts: tuple[str, ...], clients: int, documents: int = 1,
        fills: bool = False, total: int | None = None, quick_total: int | None = None, suffix: str = "",
        most: int = 1, rounds: int = 5, seconds: float = 8.0,
    ) -> None:
        self.name, self.title, self.scripts, self.clients_wanted = name, title, scripts, clients
        # The documents of one transaction, and of the whole load if that is fixed.
        self.documents, self.total, self.quick_total = documents, total, quick_total
        # A scenario may have its own `setup` and `fill`, which have this suffix.
        self.fills, self.suffix = fills, suffix
        # A load of batches needs this many times the usual documents for each second.
        self.most = most
        self.rounds, self.seconds = rounds, seconds
        self.needs = scripts + ((f"fill{suffix}",) if fills else ())

    def load_seconds(self, bench: Bench) -> float:
        return bench.seconds or (self.quick_seconds if bench.quick else self.seconds)

    def to_fill(self, bench: Bench, system: System | None = None) -> int:
        if not self.fills:
            return 0
        # Loads that also push need only a constant depth.
        if any(script.startswith("push") for script in self.scripts):
            return 20_000
        rate = self.most * bench.fill_rate
        if system:
            rate = system.fill_rate(f"fill{self.suffix}", rate)
        return int(self.load_seconds(bench) * rate)

    def to_push(self, bench: Bench) -> int | None:
        return self.quick_total if bench.quick and self.quick_total else self.total

    def cost(self, bench: Bench, variant: str) -> float:
        total = self.to_push(bench)
        load = total * PER_DOCUMENT if total else self.load_seconds(bench)
        return PER_MEASUREMENT + load + self.to_fill(bench) * PER_DOCUMENT

    def fill(self, bench: Bench, system: System) -> None:
        setup = f"setup{self.suffix}"
        system.fresh(QUEUE, setup if system.has(setup) else "setup")
        if self.fills:
            system.run(f"fill{self.suffix}", queue=QUEUE, n=self.to_fill(bench, system), batch=self.documents)
        system.settle()

    def load(self, bench: Bench, system: System) -> Load:
        clients = system.clients(self.scripts, self.clients_wanted)
        total = self.to_push(bench)
        return Load(
            bench.cluster, system.join(self.scripts, queue=QUEUE, n=self.documents), clients,
            seconds=None if total else self.load_seconds(bench),
            transactions=max(1, total // self.documents // clients) if total else None,
            variables={"base": 0, "settlements": "[]"},
        )

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        self.fill(bench, system)
        bench.settle_server()
        try:
            with Beside(bench.cluster, system.maintenance()):
                outcome = self.load(bench, system).finish()
            metrics = {"rate": outcome.tps * self.documents, "latency_ms": outcome.latency_ms}
            return checked(system, metrics)
        finally:
            system.remove(QUEUE)


class Synchronous(Throughput):
    """The same load where each commit waits for the disk, as PostgreSQL is set unless told
    otherwise."""

    settings: dict[str, str] = {"synchronous_commit": "on"}

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        database = bench.cluster.env["PGDATABASE"]
        for name, value in self.settings.items():
            bench.cluster.psql(f"alter database {database} set {name} = {value}")
        try:
            return super().measure(bench, system, variant, number)
        finally:
            for name in self.settings:
                bench.cluster.psql(f"alter database {database} reset {name}")


class Settling(Synchronous):
    """The same where only settlements of documents do not wait, which has no counterpart in other systems."""

    settings = {**Synchronous.settings, "fetchq.synchronous_settling": "off"}


class Delayed(Synchronous):
    """The same where a commit waits for others, so that one write to the disk serves several."""

    settings = {**Synchronous.settings, "commit_delay": "150"}


class Neighbour(Throughput):
    """A cycle, alone and beside a queue with a long backlog."""

    backlog = 1_000_000
    variants = ("alone", "with backlog")

    def cost(self, bench: Bench, variant: str) -> float:
        return super().cost(bench, variant) + (self.backlog * PER_DOCUMENT if variant == "with backlog" else 0)

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        try:
            system.fresh("backlog")
            if variant == "with backlog":
                system.run("fill", queue="backlog", n=self.backlog, batch=1)
            return super().measure(bench, system, variant, number)
        finally:
            system.remove("backlog")


class Metrics(Throughput):
    """A cycle, alone and while another session reads the counters, or the statistics, ten times a
    second."""

    # The script of the reader, by variant.
    readers = {"not read": "", "read 10/s": "metrics", "statistics 10/s": "stats"}
    variants = (*readers,)

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.needs += tuple(script for script in self.readers.values() if script)

    def load(self, bench: Bench, system: System) -> Load:
        self.reader: Load | None = None
        if name := self.readers[self.variant]:
            script = system.text(name, queue=QUEUE)
            self.reader = Load(bench.cluster, script, 1, seconds=self.load_seconds(bench), rate=10)
        return super().load(bench, system)

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        self.variant = variant
        metrics = super().measure(bench, system, variant, number)
        if self.reader:
            reads = self.reader.finish()
            metrics |= {"reads_per_s": reads.tps, "read_ms": reads.latency_ms}
        return metrics
