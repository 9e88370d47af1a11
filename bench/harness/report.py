"""Writes README.md of a run: the measurements, the machine, and the comparison."""

import hashlib
import json
import os
import platform
import subprocess
import time
from pathlib import Path

from . import bars, machine
from .cluster import ROOT, Cluster, added, memory_mb, settings
from .record import Record
from .scenarios import Scenario
from .scenarios.background import Background
from .scenarios.depth import Depth
from .scenarios.held import Growth, Held
from .scenarios.queues import Queues
from .scenarios.size import Size
from .scenarios.throughput import Throughput
from .scenarios.wal import PART, Wal
from .systems import System

# The report shows these metrics in MB.
BYTES = ("size_held", "bytes_end", "bytes_max_first_half", "bytes_max")


def git(*args: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *args], capture_output=True, text=True)
    return done.stdout.strip()


def library(cluster: Cluster) -> str:
    """Returns a hash of the build, because a continued run must use the same build."""
    path = cluster.pkglibdir / "fetchq.so"
    return hashlib.sha256(path.read_bytes()).hexdigest()[:12] if path.exists() else "none"


def processor() -> str:
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def facts(cluster: Cluster, systems: list[System]) -> dict[str, str]:
    """Returns the facts on which the numbers depend."""
    found = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "machine": f"{os.cpu_count()} cores of {processor()}, {memory_mb() / 1024:.0f} GB, Linux {platform.release()}",
        "PostgreSQL": cluster.psql("show server_version"),
        "checkout": git("describe", "--always", "--dirty", "--exclude=*") or "unknown",
        "fetchq.so": library(cluster),
    }
    for system in systems:
        if about := ", ".join(f"{name} {value}" for name, value in system.pairs("about").items()):
            found[system.name] = about
    return found


def number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def megabytes(value: float | None) -> str:
    return "–" if value is None else f"{value / 1e6:,.1f}"


def ratio(record: Record, scenario: str, variant: str, metric: str) -> str:
    bar = bars.Bar("", (scenario, variant, bars.MINE, metric), (scenario, variant, bars.OTHER, metric), 0)
    value, spread = bar.value(record), bar.range(record)
    if value is None or spread is None:
        return "–"
    return f"{value:.2f} ({spread[0]:.2f} to {spread[1]:.2f})"


def cell(record: Record, scenario: str, variant: str, system: str, metric: str) -> str:
    spread = record.spread(scenario, variant, system, metric)
    if not spread:
        return "–"
    show = megabytes if metric in BYTES else number
    low, middle, high = show(spread[0]), show(record.median(scenario, variant, system, metric)), show(spread[1])
    return f"{middle} ({low} to {high})" if low != high else middle


class Report:
    def __init__(
        self, record: Record, meta: dict[str, str], scenarios: list[Scenario], names: list[str], skipped: list[str]
    ) -> None:
        self.record, self.meta, self.names, self.skipped = record, meta, names, skipped
        self.scenarios = scenarios
        self.lines: list[str] = []

    def has(self, scenario: Scenario) -> bool:
        return any(key[0] == scenario.name for key in self.record.values)

    def of(self, kind: type[Scenario]) -> list[Scenario]:
        return [scenario for scenario in self.scenarios if isinstance(scenario, kind) and self.has(scenario)]

    def section(self, title: str, *lines: str) -> None:
        self.lines += [f"## {title}", "", *lines, ""]

    def grid(self, first: str, rows: list[tuple[str, str, str, str]], ratios: bool = True) -> list[str]:
        """Makes a table of rows (label, scenario, variant, metric). Empty rows and columns are
        left out."""
        median = self.record.median
        rows = [row for row in rows if any(median(*row[1:3], name, row[3]) is not None for name in self.names)]
        names = [name for name in self.names if any(median(*row[1:3], name, row[3]) is not None for row in rows)]
        ratios = ratios and bars.MINE in names and bars.OTHER in names
        head = [first, *names] + (["fetchq ÷ bare"] if ratios else [])
        lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
        for label, scenario, variant, metric in rows:
            cells = [cell(self.record, scenario, variant, name, metric) for name in names]
            if ratios:
                cells.append(ratio(self.record, scenario, variant, metric))
            lines.append("| " + " | ".join([label, *cells]) + " |")
        return lines

    def write(self, plots: list[tuple[str, str]]) -> Path:
        self.lines = [f"# Benchmark, {self.meta['date'][:10]}, {self.meta['what']}", ""]
        self.lines += [
            "Medians of the rounds, in brackets the lowest and the highest. How this is measured: "
            "[docs/internals/benchmarks.md](../../../docs/internals/benchmarks.md). Raw values: [raw.csv](raw.csv)"
            + (", over time: [series.csv](series.csv)." if self.record.series else "."),
            "",
        ]
        if self.meta["what"] == "quick":
            self.lines += ["This is a quick run: loads take 2 s, bulk loads have 200,000 documents, and a snapshot is held for 12 s. Its verdicts are hints.", ""]
        self.section("Bars", *(bars.late_table if self.meta.get("what") == "late" else bars.table)(self.record))
        self.throughput()
        self.held()
        self.growth()
        self.depth()
        self.wal()
        self.size()
        self.background()
        for title, file in plots:
            self.lines += [f"![{title}]({file})", ""]
        self.trouble()
        shown = {k: v for k, v in self.meta.items() if k not in ("what",)}
        self.section("Machine and settings", *[f"- {name}: {value}" for name, value in shown.items()], "",
                     "Server settings, the same for all: " + ", ".join([f"`{k} = {v}`" for k, v in settings().items()] + [f"`{line}`" for line in added()]) + ".")
        path = self.record.folder / "README.md"
        path.write_text("\n".join(self.lines).rstrip() + "\n")
        return path

    def throughput(self) -> None:
        rows = [
            (f"{scenario.title}{', ' + variant if variant else ''}", scenario.name, variant, "rate")
            for scenario in self.of(Throughput) + self.of(Queues)
            for variant in scenario.variants
        ]
        if not rows:
            return
        notes = []
        for name in self.names:
            reads = self.record.median("metrics", "read 10/s", name, "reads_per_s")
            if reads is not None:
                took = self.record.median("metrics", "read 10/s", name, "read_ms")
                notes.append(f"{name}: the counters were read {reads:.1f} times a second, in {number(took)} ms each.")
        for name in self.names:
            for variant in Queues.variants:
                visit = self.record.median("queues", variant, name, "first_visit_ms")
                if visit is not None:
                    notes.append(f"{name}, {variant} queues: the first job of a session in a queue takes {number(visit)} ms.")
        self.section("Throughput", *self.grid("scenario", rows), *([""] + [f"- {note}" for note in notes] if notes else []))

    def held(self) -> None:
        for scenario in self.of(Held):
            rows = [(label, scenario.name, "", metric) for label, metric in (
                ("clean, jobs/s", "clean"), ("at the end of the held phase, jobs/s", "held"),
                ("held ÷ clean", "held_to_clean"), ("after the release, jobs/s", "after"),
                ("seconds until 90 % of clean", "recovery_s"), ("tables and indexes when held, MB", "size_held"))]
            self.section(scenario.title[0].upper() + scenario.title[1:], *self.grid("", rows))

    def growth(self) -> None:
        for scenario in self.of(Growth):
            rows = [("bytes for each job of push, pick and drop", scenario.name, "", "bytes_per_job")]
            self.section(scenario.title[0].upper() + scenario.title[1:], *self.grid("", rows))

    def depth(self) -> None:
        for scenario in self.of(Depth):
            rows = [(f"{variant} rows, {metric[:3]}, µs", scenario.name, variant, metric)
                    for metric in ("p50_us", "p99_us") for variant in scenario.variants]
            self.section(scenario.title[0].upper() + scenario.title[1:], *self.grid("", rows))

    def wal(self) -> None:
        for scenario in self.of(Wal):
            rows = []
            for variant in scenario.variants:
                before = f"{variant}: " if variant else ""
                rows += [(before + label, scenario.name, variant, metric) for label, metric in (
                    ("push, pick and drop", "bytes_per_job"), ("push", "push"), ("pick and drop", "pick_and_drop"),
                    ("full page images in all", "full_page_images"))]
                parts = sorted({metric for key, metrics in self.record.values.items() if key[:2] == (scenario.name, variant)
                                for metric in metrics if metric.startswith(PART)})
                rows += [(f"{before}of it {part.removeprefix(PART)}", scenario.name, variant, part) for part in parts]
            self.section(scenario.title, *self.grid("", rows, ratios=False))

    def size(self) -> None:
        for scenario in self.of(Size):
            rows = [(label, scenario.name, "", metric) for label, metric in (
                ("jobs/s", "rate"), ("first tenth, jobs/s", "first_tenth"), ("last tenth, jobs/s", "last_tenth"),
                ("last ÷ first tenth", "last_to_first_tenth"), ("size at the end, MB", "bytes_end"),
                ("largest size in the first half, MB", "bytes_max_first_half"), ("largest size, MB", "bytes_max"))]
            self.section(scenario.title, *self.grid("", rows))

    def background(self) -> None:
        for scenario in self.of(Background):
            rows = [(f"{variant}{': ' if variant else ''}{label}", scenario.name, variant, metric)
                    for variant in scenario.variants for label, metric in scenario.shown]
            self.section(scenario.title[0].upper() + scenario.title[1:], *self.grid("", rows, ratios=False))

    def trouble(self) -> None:
        lines = []
        for (scenario, variant, system), metrics in self.record.values.items():
            for metric, rounds in metrics.items():
                if metric.startswith("check ") and any(rounds.values()):
                    lines.append(f"- {scenario} {variant} {system}: **{metric[6:]} is {max(rounds.values()):g}**, but it must be 0")
        for (scenario, variant, _), metrics in self.record.values.items():
            if scenario == "machine" and max(metrics["busy"].values()) > machine.BUSY:
                lines.append(f"- just before {variant}, other processes used {max(metrics['busy'].values()):.0%} of the machine, so its numbers are doubtful")
        lines += [f"- {scenario} {variant}, {system}, round {round_}: failed: {why}"
                  for scenario, variant, system, round_, why in self.record.failures]
        lines += [f"- {line}" for line in self.skipped]
        self.section("Failed, doubtful, or not measured", *(lines or ["Nothing."]))


def keep_meta(folder: Path, meta: dict[str, str]) -> None:
    (folder / "meta.json").write_text(json.dumps(meta, indent=1, ensure_ascii=False) + "\n")


def read_meta(folder: Path) -> dict[str, str]:
    path = folder / "meta.json"
    return json.loads(path.read_text()) if path.exists() else {}
