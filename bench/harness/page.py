"""Writes the results of the newest full run into docs/internals/benchmarks.md, between two marks, and
checks that they are there. Each runner has a block of its own."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .cluster import ROOT
from .record import Record
from .report import read_meta

PAGE = ROOT / "docs/internals/benchmarks.md"
RESULTS = ROOT / "bench/results"


@dataclass
class Block:
    """What a runner writes into the page."""

    name: str
    """The name in the marks, and what the runner is called in messages."""
    command: str
    """What writes the block."""
    is_full: Callable[[dict[str, str]], bool]
    """Says whether the facts in meta.json are those of a run that the page may show."""
    lines: Callable[[Record], list[str]]

    @property
    def marks(self) -> tuple[str, str]:
        return f"<!-- {self.name}: begin -->", f"<!-- {self.name}: end -->"

    def newest(self) -> Path | None:
        found = [path.parent for path in RESULTS.glob("*/raw.csv") if self.is_full(read_meta(path.parent))]
        return max(found, key=lambda folder: (read_meta(folder).get("date", ""), folder.name), default=None)

    def text(self) -> str:
        folder = self.newest()
        if not folder:
            return "No full run has been committed yet."
        meta = read_meta(folder)
        return "\n".join([
            f"The run of {meta['date'][:10]} on {meta['machine']}, PostgreSQL {meta['PostgreSQL'].split()[0]}. "
            f"[The report](../../bench/results/{folder.name}/README.md) has the plots, the versions, the settings "
            "and all rounds. Medians; **only ratios travel**.",
            "",
            *self.lines(Record(folder)),
        ])

    def split(self) -> tuple[str, str, str]:
        begin, end = self.marks
        page = PAGE.read_text()
        if begin not in page or end not in page:
            sys.exit(f"{PAGE} has no lines {begin} and {end}")
        before, rest = page.split(begin, 1)
        shown, after = rest.split(end, 1)
        return before, shown, after

    def update(self) -> None:
        begin, end = self.marks
        before, _, after = self.split()
        PAGE.write_text(f"{before}{begin}\n{self.text()}\n{end}{after}")

    def check(self) -> None:
        _, shown, _ = self.split()
        if shown.strip() != self.text().strip():
            sys.exit(f"FAILED: {PAGE.relative_to(ROOT)} does not have the numbers of the newest full run of {self.name}: run {self.command} --page")
        print(f"ok: the page has the numbers of the newest full run of {self.name}")


def answer(blocks: list[Block], arguments: list[str]) -> None:
    """Ends the process when the arguments ask for the page. Without arguments the runner measures."""
    if not arguments:
        return
    known = {"--page": Block.update, "--check": Block.check}
    if len(arguments) != 1 or arguments[0] not in known:
        sys.exit(f"usage: {blocks[0].command} [--page | --check]")
    for block in blocks:
        known[arguments[0]](block)
    sys.exit()
