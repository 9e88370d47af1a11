#!/usr/bin/python3
"""Compares fetchq with the queues that people pick instead. `make bench-peers` calls it, and
docs/internals/benchmarks.md describes it.

    run_peers.py            measure
    run_peers.py --page     write the results of the newest full run into docs/internals/benchmarks.md
    run_peers.py --check    check that they are there

These environment variables are its settings: QUICK ONLY ROUNDS MINUTES PROCESSES RESUME KEEP."""

import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

# The background worker runs, as in an installation: it wakes waiters, and takes back leases.
os.environ["FETCHQ_PG_CONF"] = "fetchq.background_worker = on\n" + os.environ.get("FETCHQ_PG_CONF", "")

from harness import report  # noqa: E402
from harness.cluster import Cluster  # noqa: E402
from harness.command import begin, is_set, number, resumed, rounds, run, setting  # noqa: E402
from harness.errors import Failed, last_lines  # noqa: E402
from harness.page import PAGE, answer  # noqa: E402
from harness.peers.page import BLOCK  # noqa: E402
from harness.peers.report import PeersReport  # noqa: E402
from harness.peers.scenario import QUICK, Peers, Plan  # noqa: E402
from harness.peers.systems import FOLDER, Peer, chosen  # noqa: E402
from harness.progress import Progress  # noqa: E402
from harness.record import Record  # noqa: E402
from harness.scenarios import Bench  # noqa: E402


def installed(peers: list[Peer], skipped: list[str], progress: Progress) -> tuple[list[Peer], Path | None]:
    """Installs what the systems need. One that cannot be installed is left out."""
    needs = {"Node": "node", "Python": "python", "Rust": "rust"}
    wanted = {needs.get(peer.language) or (peer.package if peer.package == "pgq" else "") for peer in peers} - {""}
    wrong: dict[str, str] = {}
    pgq = None
    for part in sorted(wanted):
        done = subprocess.run(["bash", FOLDER / "install.sh", part], stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode:
            wrong[part] = last_lines(done.stderr, 4)
        elif part == "pgq":
            pgq = Path(done.stdout.strip())
    usable = []
    for peer in peers:
        part = needs.get(peer.language) or peer.package
        if part in wrong:
            skipped.append(f"{peer.name}: left out, because it could not be installed: {wrong[part]}")
            progress.say(skipped[-1])
        else:
            usable.append(peer)
    return usable, pgq


def main() -> None:
    began = time.monotonic()
    progress = Progress()
    quick = is_set("QUICK")
    resumed()  # A wrong name is an error before the work begins.
    peers = chosen([word.strip() for word in setting("ONLY").split(",") if word.strip()])
    if not peers:
        raise Failed("ONLY: there is no such system")

    cluster = Cluster()
    skipped: list[str] = []
    peers, pgq = installed(peers, skipped, progress)
    cluster.reset()
    cluster.start()

    processes = int(number("PROCESSES") or 1)
    what = "peers" + (f"-{processes}-processes" if processes > 1 else "") + ("-quick" if quick else "") + ("-some" if setting("ONLY") else "")
    folder, meta = begin(what, report.facts(cluster, []))
    record = Record(folder)

    minutes = number("MINUTES") or 32
    scenario = Peers(QUICK if quick else Plan(), pgq, began + minutes * 60, processes)
    bench = Bench(cluster, record, progress, peers, quick, fill_rate=0,  # type: ignore[arg-type]
                  rounds=rounds(), seconds=None)
    progress.plan(scenario.total_cost(bench))
    progress.say(f"results in {folder}; about {progress.remaining()}")
    try:
        scenario.run(bench)
    finally:
        if scenario.late:
            skipped.append(f"{len(scenario.late)} measurements were left out, because the run would have taken more than {minutes:g} minutes: "
                           + "; ".join(scenario.late))
        path = PeersReport(record, meta, peers, skipped, quick, processes).write()
        progress.say(f"written: {path}")
    if record.failures:
        progress.say(f"{len(record.failures)} measurements failed; see the end of {path}")
    report.keep_meta(folder, meta | {"complete": "yes"})
    if meta["what"] == "peers":
        BLOCK.update()
        progress.say(f"written: {PAGE}")


if __name__ == "__main__":
    answer([BLOCK], sys.argv[1:])
    run(main)
