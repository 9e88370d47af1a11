"""Draws the plots of a comparison with other queues, with matplotlib where it is installed."""

from pathlib import Path

from ..record import Record
from .systems import Peer

MINE, OTHER = ("#d1495b", "#e9a3ad"), ("#30638e", "#9fb9cc")
SCENARIO = "peers"
CLEAN_ON, CLEAN_OFF = "synchronous_commit on", "synchronous_commit off"
HELD_ON, HELD_OFF = "on, snapshot held", "off, snapshot held"
# (file, title, unit, whether the axis is logarithmic, [(variant, metric, label)]): two bars for each system.
PLOTS = [
    ("rate_on", "Jobs per second, synchronous_commit = on", "jobs/s", True, [(CLEAN_ON, "rate", "clean"), (HELD_ON, "rate", "snapshot held")]),
    ("rate_off", "Jobs per second, synchronous_commit = off", "jobs/s", True, [(CLEAN_OFF, "rate", "clean"), (HELD_OFF, "rate", "snapshot held")]),
    ("enqueue", "Enqueued per second, synchronous_commit = on", "jobs/s", True, [(CLEAN_ON, "single", "one per call"), (CLEAN_ON, "bulk", "1,000 per call")]),
    ("latency", "Latency at 100 jobs/s, synchronous_commit = on", "ms", True, [(CLEAN_ON, "p50_ms", "p50"), (CLEAN_ON, "p99_ms", "p99")]),
    ("latency_held", "Latency at 100 jobs/s while a snapshot is held, synchronous_commit = on", "ms", True, [(HELD_ON, "p50_ms", "p50"), (HELD_ON, "p99_ms", "p99")]),
    ("cpu", "Processor time of the server for each job", "µs", False, [(CLEAN_OFF, "cpu_us", "clean"), (HELD_OFF, "cpu_us", "snapshot held")]),
    ("wal", "WAL for each job", "bytes", False, [(CLEAN_OFF, "wal", "clean"), (HELD_OFF, "wal", "snapshot held")]),
]


def draw(record: Record, peers: list[Peer]) -> list[tuple[str, str]]:
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
    from matplotlib.patches import Patch

    found = []
    for name, title, unit, log, bars in PLOTS:
        shown = [peer for peer in peers if any(record.median(SCENARIO, variant, peer.name, metric) for variant, metric, _ in bars)]
        if not shown:
            continue
        figure, axes = pyplot.subplots(figsize=(7, 0.9 + 0.42 * len(shown)))
        for row, peer in enumerate(shown):
            for i, (variant, metric, _) in enumerate(bars):
                value = record.median(SCENARIO, variant, peer.name, metric)
                if value is None:
                    continue
                at = row + (i - 0.5) * 0.38
                axes.barh(at, value, height=0.36, color=(MINE if peer.is_fetchq else OTHER)[i])
                axes.annotate(f"{value:,.0f}" if value >= 100 else f"{value:.3g}", (value, at), xytext=(3, 0), textcoords="offset points", va="center", fontsize=7)
        axes.set_yticks(range(len(shown)), [f"{peer.name} ({peer.language})" if peer.language not in peer.name else peer.name for peer in shown])
        axes.invert_yaxis()
        if log:
            axes.set_xscale("log")
        axes.set_xlabel(unit)
        axes.set_title(title, fontsize=9)
        axes.legend(handles=[Patch(color=OTHER[i], label=label) for i, (_, _, label) in enumerate(bars)], frameon=False, fontsize=8)
        path: Path = record.folder / f"{name}.svg"
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)
        found.append((title, path.name))
    return found
