"""Draws plots as SVG, with matplotlib where it is installed."""

from pathlib import Path

from . import bars
from .record import Record
from .scenarios import Scenario
from .scenarios.depth import Depth
from .scenarios.held import Held
from .scenarios.queues import Queues
from .scenarios.throughput import Throughput

COLOURS = {"fetchq": "#d1495b", "bare": "#30638e", "pgq": "#7a9e7e", "reference": "#8d8d8d", "empty": "#c4b7a6"}


def draw(record: Record, scenarios: list[Scenario]) -> list[tuple[str, str]]:
    """Returns (title, file) of each plot. The list is empty without matplotlib."""
    try:
        import matplotlib
    except ImportError:
        return []
    matplotlib.use("svg")
    # The same values give the same file, and text stays text.
    matplotlib.rcParams.update({"svg.hashsalt": "fetchq", "svg.fonttype": "none", "font.size": 9,
                                "axes.spines.top": False, "axes.spines.right": False})
    from matplotlib import pyplot

    found: list[tuple[str, str]] = []

    def save(figure: object, title: str, name: str) -> None:
        path: Path = record.folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")  # type: ignore[attr-defined]
        pyplot.close(figure)  # type: ignore[arg-type]
        found.append((title, path.name))

    ratios(record, scenarios, pyplot, save)
    for scenario in scenarios:
        if isinstance(scenario, Held):
            over_time(record, scenario.name, "jobs_per_s", scenario.title, "jobs/s", 1.0, pyplot, save)
        if isinstance(scenario, Depth):
            depth(record, scenario, pyplot, save)
    over_time(record, "size", "jobs_per_s", "2 million jobs at constant depth: throughput", "jobs/s", 1.0, pyplot, save)
    over_time(record, "size", None, "2 million jobs at constant depth: size", "MB", 1e-6, pyplot, save)
    return found


def ratios(record, scenarios, pyplot, save) -> None:
    """Draws fetchq ÷ bare of all throughputs, with the spread of the rounds."""
    labels, middles, lows, highs = [], [], [], []
    for scenario in scenarios:
        if not isinstance(scenario, (Throughput, Queues)):
            continue
        for variant in scenario.variants:
            bar = bars.Bar("", (scenario.name, variant, bars.MINE, "rate"), (scenario.name, variant, bars.OTHER, "rate"), 0)
            value, spread = bar.value(record), bar.range(record)
            if value is None or spread is None:
                continue
            labels.append(f"{scenario.name} {variant}".strip())
            middles.append(value)
            # A ratio of medians can lie outside the ratios of the rounds.
            lows.append(max(0.0, value - spread[0]))
            highs.append(max(0.0, spread[1] - value))
    if not labels:
        return
    figure, axes = pyplot.subplots(figsize=(7, 0.8 + 0.32 * len(labels)))
    axes.barh(labels, middles, xerr=[lows, highs], color=COLOURS["fetchq"], height=0.6, error_kw={"lw": 0.8})
    axes.axvline(1, color="black", lw=0.8, ls="--")
    axes.invert_yaxis()
    axes.set_xlabel("throughput, fetchq ÷ hand-written SQL")
    save(figure, "Throughput, fetchq ÷ hand-written SQL", "ratios")


def over_time(record, scenario, metric, title, unit, factor, pyplot, save) -> None:
    """Draws one line for each system and round. Without a metric, it draws the sum of all sizes."""
    lines = []
    for (name, _, system), points in sorted(record.series.items()):
        if name != scenario:
            continue
        for number in sorted({point[0] for point in points}):
            sums: dict[float, float] = {}
            for round_, at, what, value in points:
                if round_ == number and (what == metric or (metric is None and what != "jobs_per_s")):
                    sums[at] = sums.get(at, 0.0) + value * factor
            if sums:
                lines.append((system, number, sorted(sums.items())))
    if not lines:
        return
    figure, axes = pyplot.subplots(figsize=(7, 3))
    for system, number, points in lines:
        axes.plot(*zip(*points), color=COLOURS.get(system), lw=1.4, alpha=1.0 if number == 1 else 0.5,
                  label=system if number == 1 else None)
    # Only the scenarios with a held snapshot have these.
    start, end = (record.median(scenario, "", lines[0][0], name) for name in ("held_from_s", "held_until_s"))
    if start is not None and end is not None:
        axes.axvspan(start, end, color="black", alpha=0.06, lw=0, label="held")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("seconds")
    axes.set_ylabel(unit)
    axes.set_title(title, fontsize=9)
    axes.legend(frameon=False)
    save(figure, title, f"{scenario}_{'size' if metric is None else 'rate'}")


def depth(record, scenario, pyplot, save) -> None:
    systems = [key[2] for key in record.values if key[0] == scenario.name]
    if not systems:
        return
    figure, axes = pyplot.subplots(figsize=(5, 3))
    for system in dict.fromkeys(systems):
        points = [(rows, record.median(scenario.name, variant, system, "p50_us")) for variant, rows in scenario.depths.items()]
        points = [(rows, value) for rows, value in points if value is not None]
        axes.plot(*zip(*points), marker="o", color=COLOURS.get(system), label=system)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("rows")
    axes.set_ylabel("p50, µs")
    axes.set_title(scenario.title, fontsize=9)
    axes.legend(frameon=False)
    save(figure, scenario.title, scenario.name)
