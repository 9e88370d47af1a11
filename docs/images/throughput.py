#!/usr/bin/env python3
"""Draws throughput.svg, the plot of the README, from the committed benchmark results.

    docs/images/throughput.py           writes the plot
    docs/images/throughput.py --check   exits with 1 when the plot does not match the results

The left half shows the newest run in bench/results that measured pushes and cycles of fetchq
beside hand-written SQL. The right half shows the newest run that measured both while a snapshot
was held. Runs with late leases (make bench LATE=…) are left out: the plot shows the defaults.
The same results always give the same file, and only the standard library is needed.
"""

import csv
import json
import sys
from pathlib import Path
from statistics import mean, median

from svg import BLUE, FAINT, GRID, INK, ORANGE, Svg, save, shown

RESULTS = Path(__file__).resolve().parent.parent.parent / "bench" / "results"

# The names that the benchmarks give to the two systems.
FETCHQ, HAND_WRITTEN = "fetchq", "bare"
LOADS = {
    "push": ("push 1", "4 clients"),
    "cycle4": ("pick 1, drop 1", "4 clients"),
    "cycle32": ("pick 1, drop 1", "32 clients"),
}

# Seconds from one point of the series to the next.
STEP = 5.0

COLOURS = {FETCHQ: BLUE, HAND_WRITTEN: ORANGE}
LABELS = {FETCHQ: "fetchq", HAND_WRITTEN: "hand-written SQL"}
SHADE = "#f3e9d2"
WIDTH, HEIGHT = 920, 350


class Run:
    """One folder of bench/results."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        meta = json.loads((folder / "meta.json").read_text())
        self.date: str = meta["date"]
        self.with_defaults = meta["what"] != "late"
        self.raw = read(folder / "raw.csv")
        self.series = read(folder / "series.csv")

    def rounds(self, scenario: str, system: str, metric: str) -> dict[str, float]:
        """The values of a metric by round."""
        return {
            row["round"]: float(row["value"])
            for row in self.raw
            if (row["scenario"], row["variant"], row["system"], row["metric"]) == (scenario, "", system, metric)
        }

    def over_time(self, system: str) -> dict[str, list[tuple[float, float]]]:
        """(seconds, jobs per second) of the held scenario by round."""
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in self.series:
            if (row["scenario"], row["system"], row["metric"]) == ("held", system, "jobs_per_s"):
                lines.setdefault(row["round"], []).append((float(row["seconds"]), float(row["value"])))
        return lines


def read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def newest(runs: list[Run], what: str, fits) -> Run:
    found = [run for run in runs if run.with_defaults and fits(run)]
    if not found:
        sys.exit(f"throughput.py: no run in {RESULTS} has {what}")
    return max(found, key=lambda run: (run.date, run.folder.name))


def ratios(svg: Svg, run: Run, left: float, right: float, top: float, bottom: float) -> str:
    """Bars: the throughput of fetchq divided by that of hand-written SQL."""
    scale = (right - left) / 2.5

    def at(ratio: float) -> float:
        return left + ratio * scale

    svg.text(left - 118, 34, "Throughput", font_weight="bold", font_size=15)
    svg.text(left - 118, 54, "divided by that of hand-written SQL", fill=FAINT)
    for tick in (0.0, 0.5, 1.5, 2.0, 2.5):
        svg.line(at(tick), top, at(tick), bottom)
        svg.text(at(tick), bottom + 19, f"{tick:g}", fill=FAINT, text_anchor="middle")
    told = []
    step = (bottom - top) / len(LOADS)
    for place, (scenario, (load, clients)) in enumerate(LOADS.items()):
        own, other = (run.rounds(scenario, system, "rate") for system in (FETCHQ, HAND_WRITTEN))
        ratio = median(own.values()) / median(other.values())
        each = [own[number] / other[number] for number in sorted(own) if number in other]
        middle = top + step * (place + 0.5)
        svg.text(left - 12, middle - 4, load, text_anchor="end")
        svg.text(left - 12, middle + 13, clients, fill=FAINT, text_anchor="end", font_size=12)
        svg.add("rect", x=left, y=middle - 17, width=ratio * scale, height=34, fill=COLOURS[FETCHQ], rx=2)
        # The lowest and the highest ratio within one round.
        svg.line(at(min(each)), middle, at(max(each)), middle, stroke=INK, stroke_width=1.5)
        for end in (min(each), max(each)):
            svg.line(at(end), middle - 5, at(end), middle + 5, stroke=INK, stroke_width=1.5)
        svg.text(at(max(ratio, *each)) + 8, middle + 5, f"{ratio:.2f}", font_weight="bold")
        told.append(f"{load} with {clients} {ratio:.2f}")
    svg.line(at(1), top - 6, at(1), bottom, stroke=COLOURS[HAND_WRITTEN], stroke_width=2)
    svg.text(at(1), bottom + 19, "1", fill=COLOURS[HAND_WRITTEN], text_anchor="middle", font_weight="bold")
    svg.text((left + right) / 2, bottom + 40, "hand-written SQL = 1; more is better", fill=FAINT,
             text_anchor="middle", font_size=12)
    return "Throughput divided by that of hand-written SQL: " + ", ".join(told) + "."


def held(svg: Svg, run: Run, left: float, right: float, top: float, bottom: float) -> str:
    """Lines: jobs per second before, while and after another session holds a snapshot."""
    lines = {system: run.over_time(system) for system in (FETCHQ, HAND_WRITTEN)}
    last = max(seconds for rounds in lines.values() for points in rounds.values() for seconds, _ in points)
    most = max(rate for rounds in lines.values() for points in rounds.values() for _, rate in points)
    limit = -(-most // 5000) * 5000

    def at(seconds: float) -> float:
        return left + (right - left) * seconds / last

    def height(rate: float) -> float:
        return bottom - (bottom - top) * rate / limit

    since, until = (median(run.rounds("held", FETCHQ, name).values()) for name in ("held_from_s", "held_until_s"))
    svg.text(left - 46, 34, "Jobs per second", font_weight="bold", font_size=15)
    svg.text(left - 46, 54, "push, pick, drop with 4 clients", fill=FAINT)
    svg.add("rect", x=at(since), y=top, width=at(until) - at(since), height=bottom - top, fill=SHADE)
    for rate in range(0, int(limit) + 1, 5000):
        svg.line(left, height(rate), right, height(rate))
        svg.text(left - 8, height(rate) + 4, f"{rate:,}", fill=FAINT, text_anchor="end", font_size=12)
    svg.text((at(since) + at(until)) / 2, top + 20, "another session holds a snapshot", fill=FAINT,
             text_anchor="middle", font_style="italic")
    for seconds in range(0, int(last) + 1, 20):
        svg.text(at(seconds), bottom + 19, f"{seconds}", fill=FAINT, text_anchor="middle", font_size=12)
    svg.text((left + right) / 2, bottom + 40, "seconds", fill=FAINT, text_anchor="middle", font_size=12)
    told = []
    for system, rounds in lines.items():
        # A point of the series is the mean of the seconds before it.
        for points in rounds.values():
            svg.add("polyline", points=path(points, at, height), fill="none", stroke=COLOURS[system],
                    stroke_width=1, opacity=0.3)
        together: dict[float, list[float]] = {}
        for points in rounds.values():
            for seconds, rate in points:
                together.setdefault(seconds, []).append(rate)
        middle = [(seconds, mean(rates)) for seconds, rates in sorted(together.items()) if len(rates) == len(rounds)]
        svg.add("polyline", points=path(middle, at, height), fill="none", stroke=COLOURS[system],
                stroke_width=2.5, stroke_linejoin="round")
        end = [rate for seconds, rate in middle if since < seconds - STEP / 2 < until]
        share = median(run.rounds("held", system, "held_to_clean").values())
        label = f"{LABELS[system]} keeps {share:.0%}"
        y = height(mean(end[len(end) // 2:])) + (32 if system == FETCHQ else -16)
        svg.text((at(since) + at(until)) / 2, y, label, fill=COLOURS[system], font_weight="bold", text_anchor="middle")
        told.append(f"{LABELS[system]} keeps {share:.0%}")
    return f"After {until - since:.0f} seconds of a held snapshot " + ", ".join(told) + " of its throughput."


def path(points, at, height) -> str:
    return " ".join(f"{shown(at(seconds - STEP / 2))},{shown(height(rate))}" for seconds, rate in points)


def draw() -> str:
    runs = [Run(folder) for folder in sorted(RESULTS.iterdir()) if (folder / "meta.json").exists()]
    both = (FETCHQ, HAND_WRITTEN)
    loads = newest(runs, "pushes and cycles of both systems",
                   lambda run: all(run.rounds(load, system, "rate") for load in LOADS for system in both))
    snapshot = newest(runs, "a held snapshot for both systems",
                      lambda run: all(run.over_time(system) for system in both))
    svg = Svg(WIDTH, HEIGHT)
    told = ratios(svg, loads, left=142, right=372, top=80, bottom=282)
    told += " " + held(svg, snapshot, left=476, right=892, top=80, bottom=282)
    return svg.picture(told, f"bench/results/{loads.folder.name} and bench/results/{snapshot.folder.name}")


if __name__ == "__main__":
    save(__file__, draw())
