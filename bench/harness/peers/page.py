"""Writes the results of the newest full comparison into docs/internals/benchmarks.md, and checks that
they are there."""

import sys
from pathlib import Path

from ..cluster import ROOT
from ..record import Record
from ..report import read_meta
from .report import factors, losses, table
from .scenario import VARIANTS
from .systems import PEERS

PAGE = ROOT / "docs/internals/benchmarks.md"
BEGIN, END = "<!-- bench-peers: begin -->", "<!-- bench-peers: end -->"


def newest() -> Path | None:
    """Returns the folder of the newest full run that was not interrupted."""
    def is_full(folder: Path) -> bool:
        meta = read_meta(folder)
        return meta.get("what") == "peers" and meta.get("complete") == "yes" and (folder / "raw.csv").exists()

    found = [folder for folder in (ROOT / "bench/results").glob("*-peers*") if is_full(folder)]
    return max(found, key=lambda folder: (read_meta(folder).get("date", ""), folder.name), default=None)


def text() -> str:
    folder = newest()
    if not folder:
        return "No full run has been committed yet."
    meta, record = read_meta(folder), Record(folder)
    where = f"../../bench/results/{folder.name}"
    lines = [
        f"The run of {meta['date'][:10]} on {meta['machine']}, PostgreSQL {meta['PostgreSQL'].split()[0]}. "
        f"[The report]({where}/README.md) has the plots, the versions, the settings and all rounds. "
        "Medians; **only ratios travel**.", "",
    ]
    for variant in VARIANTS:
        if not any(key[1] == variant.name for key in record.values):
            continue
        lines += [f"#### {variant.name[0].upper()}{variant.name[1:]}", "", *table(record, PEERS, variant.name), ""]
        found = factors(record, PEERS, variant.name)
        if found:
            lines += ["How many times fetchq is better; in bold where it is worse:", "", *found, ""]
    lost = losses(record, PEERS)
    lines += ["#### Where fetchq loses", "", *(lost or ["Nowhere."])]
    return "\n".join(lines)


def split() -> tuple[str, str, str]:
    page = PAGE.read_text()
    if BEGIN not in page or END not in page:
        sys.exit(f"{PAGE} has no lines {BEGIN} and {END}")
    before, rest = page.split(BEGIN, 1)
    shown, after = rest.split(END, 1)
    return before, shown, after


def update() -> None:
    before, _, after = split()
    PAGE.write_text(f"{before}{BEGIN}\n{text()}\n{END}{after}")


def check() -> None:
    _, shown, _ = split()
    if shown.strip() != text().strip():
        sys.exit(f"FAILED: {PAGE.relative_to(ROOT)} does not have the numbers of the newest full run of bench-peers: run bench/run_peers.py --page")
    print("ok: the page has the numbers of the newest full run of bench-peers")
