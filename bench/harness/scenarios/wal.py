"""Measures how much write-ahead log a document costs."""

import time

from ..errors import Failed
from ..pgbench import Beside, Load
from ..systems import PAYLOAD, System, payload
from .base import PER_DOCUMENT, PER_MEASUREMENT, QUEUE, Bench, Scenario, checked

DEPTH = 20_000
JOBS = 100_000
CLIENTS = 4
PART = "part "
# Payloads by variant.
PAYLOADS = {"": PAYLOAD, "1 kB": payload(96)}


class Wal(Scenario):
    """Runs pushes and then as many cycles. The measure is the bytes of the whole server, so it
    includes maintenance and autovacuum. The last checkpoint is before the fill, so that there
    are few full page images, whose number depends on the time since the checkpoint."""

    name = "wal"
    title = "WAL bytes for each document (push; pick and drop)"
    needs = ("fill", "push", "pick", "drop")
    variants = tuple(PAYLOADS)
    rounds = 3

    def cost(self, bench: Bench, variant: str) -> float:
        return PER_MEASUREMENT + JOBS / 25_000 + JOBS / 10_000 + DEPTH * PER_DOCUMENT

    def measure(self, bench: Bench, system: System, variant: str, number: int) -> dict[str, float]:
        bench.settle_server()
        system.fresh(QUEUE)
        text = PAYLOADS[variant]
        try:
            system.run("fill", queue=QUEUE, n=DEPTH, batch=1, payload=text)
            system.settle()
            with Beside(bench.cluster, system.maintenance()):
                start = self.position(bench)
                self.load(bench, system, ("push",), text)
                pushed = self.position(bench)
                self.load(bench, system, ("pick", "drop"), text)
                # The maintenance that the cycles cause counts for the cycles.
                time.sleep(4)
                done = self.position(bench)
            metrics = {
                "bytes_per_job": (done[0] - start[0]) / JOBS,
                "push": (pushed[0] - start[0]) / JOBS,
                "pick_and_drop": (done[0] - pushed[0]) / JOBS,
                "full_page_images": float(done[1] - start[1]),
            }
            return checked(system, metrics | self.parts(bench, start[0], done[0]))
        finally:
            system.remove(QUEUE)

    @staticmethod
    def load(bench: Bench, system: System, scripts: tuple[str, ...], text: str) -> None:
        script = system.join(scripts, queue=QUEUE, payload=text)
        Load(bench.cluster, script, CLIENTS, transactions=JOBS // CLIENTS).finish()

    @staticmethod
    def parts(bench: Bench, start: int, end: int) -> dict[str, float]:
        """Returns the bytes of a job by type of record, if pg_walinspect is installed."""
        try:
            bench.cluster.psql("create extension if not exists pg_walinspect")
            rows = bench.cluster.rows(
                f"""select "resource_manager/record_type", record_size::numeric / {JOBS}
                from pg_get_wal_stats('0/0'::pg_lsn + {start}, '0/0'::pg_lsn + {end}, true)
                where record_size > {JOBS} order by record_size desc"""
            )
        except Failed:
            return {}
        return {f"{PART}{name}": float(size) for name, size in rows}

    @staticmethod
    def position(bench: Bench) -> tuple[int, int]:
        # Sessions report their counts shortly after their last statement.
        time.sleep(1.5)
        row = bench.cluster.rows("select pg_current_wal_insert_lsn() - '0/0', wal_fpi from pg_stat_wal")[0]
        return int(row[0]), int(row[1])
