#!/usr/bin/python3
"""Runs the benchmark. `make bench` calls it, and docs/internals/benchmarks.md describes it.

These environment variables are its settings: QUICK ONLY SYSTEMS ROUNDS LENGTH FILL RESUME KEEP."""

import os
import re
import signal
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from harness import plots, report  # noqa: E402
from harness.cluster import ROOT, Cluster  # noqa: E402
from harness.errors import Failed, Interrupted  # noqa: E402
from harness.progress import Progress  # noqa: E402
from harness.record import Record  # noqa: E402
from harness.scenarios import QUICK, Bench, Scenario, all_scenarios  # noqa: E402
from harness.systems import System  # noqa: E402

RESULTS = ROOT / "bench/results"


def setting(name: str) -> str:
    return os.environ.get(name, "").strip()


def chosen(only: list[str], quick: bool) -> list[Scenario]:
    every = all_scenarios()
    if not only:
        return [scenario for scenario in every if not quick or scenario.name in QUICK]
    for pattern in only:
        if not any(fnmatchcase(scenario.name, pattern) for scenario in every):
            raise Failed(f"there is no scenario {pattern}; the scenarios are: {' '.join(scenario.name for scenario in every)}")
    return [scenario for scenario in every if any(fnmatchcase(scenario.name, pattern) for pattern in only)]


def results_folder(what: str) -> Path:
    base = RESULTS / f"{time.strftime('%Y-%m-%d')}-{what}"
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}-{n}")
    return folder


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
    quick = setting("QUICK") not in ("", "0")
    only = setting("ONLY").split()
    scenarios = chosen(only, quick)
    # The reference is not a queue, but some bars need it.
    names = setting("SYSTEMS").split() or (["bare", "fetchq", "reference"] + ([] if quick else ["pgq"]))
    resumed = setting("RESUME")
    if resumed and not Path(resumed).is_dir():
        raise Failed(f"RESUME: there is no folder {resumed}")

    cluster = Cluster()
    skipped: list[str] = []
    systems = usable(names, cluster, skipped, progress)
    cluster.reset()
    cluster.start()

    what = "quick" if quick and not only else re.sub(r"[^a-z0-9]+", "-", "-".join(only))[:60].strip("-") or "full"
    folder = Path(resumed) if resumed else results_folder(what)
    meta = {"what": what, **report.facts(cluster, systems)}
    if resumed:
        before = report.read_meta(folder)
        if before.get("fetchq.so") not in (None, meta["fetchq.so"]):
            raise Failed(f"{folder} was measured with another build of fetchq: start a new run")
        meta["date"] = before.get("date", meta["date"])
        meta["what"] = before.get("what", what)
    record = Record(folder)
    report.keep_meta(folder, meta)

    bench = Bench(
        cluster, record, progress, systems, quick,
        fill_rate=int(25_000 * float(setting("FILL") or 1)),
        rounds=int(setting("ROUNDS")) if setting("ROUNDS") else None,
        seconds=float(setting("LENGTH")) if setting("LENGTH") else None,
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
        print("\n".join(report.bars.table(record)))
    if record.failures:
        progress.say(f"{len(record.failures)} measurements failed; see the end of {path}")


def interrupt(*_: object) -> None:
    # A second signal must not interrupt the end of the run.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    Cluster.interrupted = True
    raise Interrupted


if __name__ == "__main__":
    # SIGTERM ends the run as Ctrl-C does: the report is written, and the server is removed.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    status = 0
    try:
        main()
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    except Interrupted:
        print("interrupted: continue with RESUME=<folder>", file=sys.stderr)
        status = 130
    finally:
        if not setting("KEEP"):
            Cluster().reset()
    sys.exit(status)
