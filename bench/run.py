#!/usr/bin/python3
"""Runs the benchmark. `make bench` calls it, and docs/internals/benchmarks.md describes it.

    run.py              measure
    run.py --page       write the bars of the newest full run into docs/internals/benchmarks.md
    run.py --check      check that they are there

These environment variables are its settings: QUICK ONLY SYSTEMS ROUNDS LENGTH FILL RESUME KEEP LATE."""

import os
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import bars, plots, report  # noqa: E402
from harness.cluster import Cluster  # noqa: E402
from harness.command import begin, is_set, number, resumed, rounds, run, setting  # noqa: E402
from harness.errors import Failed  # noqa: E402
from harness.page import PAGE, Block, answer  # noqa: E402
from harness.progress import Progress  # noqa: E402
from harness.record import Record  # noqa: E402
from harness.scenarios import LATE, NAMED_ONLY, QUICK, Bench, Scenario, all_scenarios  # noqa: E402
from harness.systems import System  # noqa: E402

BLOCKS = [
    Block("bench", "bench/run.py", is_full=lambda meta: meta.get("what") == "full", lines=bars.table),
    Block("bench-late", "bench/run.py", is_full=lambda meta: meta.get("what") == "late", lines=bars.late_table),
]

# How late a lease is written. The scenarios in which that matters run, with a background worker.
DELAY = setting("LATE")
if DELAY:
    # Where transactions can be prepared, no lease is late.
    late = (
        f"fetchq.background_worker = on\nmax_prepared_transactions = 0\nfetchq.late_lease_slots = 16384\nfetchq.lease_write_delay = '{DELAY}'\n"
    )
    os.environ["FETCHQ_PG_CONF"] = late + os.environ.get("FETCHQ_PG_CONF", "")


def chosen(only: list[str], quick: bool) -> list[Scenario]:
    every = all_scenarios()
    if not only and DELAY:
        return [scenario for scenario in every if scenario.name in LATE]
    if not only:
        return [scenario for scenario in every if scenario.name in QUICK or not quick and scenario.name not in NAMED_ONLY]
    for pattern in only:
        if not any(fnmatchcase(scenario.name, pattern) for scenario in every):
            raise Failed(f"there is no scenario {pattern}; the scenarios are: {' '.join(scenario.name for scenario in every)}")
    return [scenario for scenario in every if any(fnmatchcase(scenario.name, pattern) for pattern in only)]


def usable(names: list[str], cluster: Cluster, skipped: list[str], progress: Progress) -> list[System]:
    systems = []
    for name in names:
        system = System(name, cluster)
        try:
            system.install()
            systems.append(system)
        except Failed as e:
            skipped.append(f"{name}: left out: {e}")
            progress.say(skipped[-1])
    return systems


def main() -> None:
    progress = Progress()
    quick = is_set("QUICK")
    only = setting("ONLY").split()
    scenarios = chosen(only, quick)
    # The reference and the empty statements are no queues, but the bars need them.
    names = setting("SYSTEMS").split() or ["bare", "fetchq", *([] if quick else ["empty"]), *([] if DELAY else ["reference"]), *([] if quick or DELAY else ["pgq"])]
    resumed()  # A wrong name is an error before the work begins.

    cluster = Cluster()
    skipped: list[str] = []
    systems = usable(names, cluster, skipped, progress)
    cluster.reset()
    cluster.start()

    what = "quick" if quick and not only else re.sub(r"[^a-z0-9]+", "-", "-".join(only))[:60].strip("-") or ("late" if DELAY else "full")
    folder, meta = begin(what, report.facts(cluster, systems))
    record = Record(folder)

    bench = Bench(
        cluster, record, progress, systems, quick,
        fill_rate=int(45_000 * (number("FILL") or (2 if DELAY else 1))),
        rounds=rounds(), seconds=number("LENGTH"),
    )
    for scenario in scenarios:
        progress.plan(scenario.total_cost(bench))
    for system in systems:
        if without := [scenario.name for scenario in scenarios if system not in scenario.taking_part(bench)]:
            skipped.append(f"{system.name} takes no part in: {', '.join(without)}")
            progress.say(skipped[-1])
    progress.say(f"results in {folder}; about {progress.remaining()}")

    def write() -> Path:
        shown = [system.name for system in systems]
        drawn = plots.draw(record, scenarios)
        return report.Report(record, meta, scenarios, shown, skipped).write(drawn)

    try:
        for scenario in scenarios:
            scenario.run(bench)
            # The report is written after each scenario, so that an interrupted run has one.
            write()
    finally:
        path = write()
        progress.say(f"written: {path}")
        print("\n".join(bars.late_table(record) if DELAY else bars.table(record)))
    if record.failures:
        progress.say(f"{len(record.failures)} measurements failed; see the end of {path}")
    for block in BLOCKS:
        if block.is_full(meta):
            block.update()
            progress.say(f"written: {PAGE}")


if __name__ == "__main__":
    answer(BLOCKS, sys.argv[1:])
    run(main)
