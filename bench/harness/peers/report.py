"""Writes README.md of a comparison with other queues, and its plots."""

from pathlib import Path

from .. import machine
from ..cluster import settings
from ..record import Record
from ..report import number
from .plots import draw
from .scenario import VARIANTS, Plan
from .systems import Peer

# (metric, title, whether more is better)
METRICS = [
    ("rate", "jobs/s", True),
    ("single", "enqueue 1, jobs/s", True),
    ("bulk", "enqueue 1,000s, jobs/s", True),
    ("p50_ms", "latency p50, ms", False),
    ("p99_ms", "latency p99, ms", False),
    ("cpu_us", "server CPU/job, µs", False),
    ("wal", "WAL/job, bytes", False),
]
SCENARIO = "peers"
# A difference within this factor is not called a win or a loss.
SAME = 1.05


def groups(peers: list[Peer]) -> list[list[Peer]]:
    """Returns the systems of one language and kind together."""
    found: dict[tuple[str, str], list[Peer]] = {}
    for peer in peers:
        found.setdefault((peer.language, peer.kind), []).append(peer)
    return list(found.values())


def better(record: Record, variant: str, mine: Peer, other: Peer, metric: str, more: bool) -> float | None:
    """Returns how many times fetchq is better: the ratio of the medians, inverted for costs."""
    my, their = (record.median(SCENARIO, variant, peer.name, metric) for peer in (mine, other))
    if not my or not their:
        return None
    return my / their if more else their / my


def factor(value: float | None) -> str:
    if value is None:
        return "–"
    shown = f"{value:.2f}" if value < 10 else f"{value:,.0f}"
    return f"**{shown}**" if value < 1 / SAME else shown


def table(record: Record, peers: list[Peer], variant: str) -> list[str]:
    lines = ["| | system | " + " | ".join(title for _, title, _ in METRICS) + " |", "|---|---|" + "---|" * len(METRICS)]
    for group in groups(peers):
        for i, peer in enumerate(group):
            cells = [number(record.median(SCENARIO, variant, peer.name, metric)) for metric, _, _ in METRICS]
            if all(cell == "–" for cell in cells):
                cells = ["failed"] + [""] * (len(METRICS) - 1)
            name = f"**{peer.name}**" if peer.is_fetchq else peer.name
            lines.append("| " + " | ".join([f"{peer.language}, {peer.kind}" if i == 0 else "", name, *cells]) + " |")
    return lines


def pairs(peers: list[Peer]) -> list[tuple[Peer, Peer]]:
    """Returns (fetchq, other) of the same language and kind."""
    return [(mine, other) for group in groups(peers) for mine in group if mine.is_fetchq for other in group if not other.is_fetchq]


def factors(record: Record, peers: list[Peer], variant: str) -> list[str]:
    lines = ["| fetchq beside | " + " | ".join(title for _, title, _ in METRICS) + " |", "|---|" + "---|" * len(METRICS)]
    for mine, other in pairs(peers):
        cells = [factor(better(record, variant, mine, other, metric, more)) for metric, _, more in METRICS]
        if any(cell != "–" for cell in cells):
            lines.append(f"| {other.name} ({mine.name}) | " + " | ".join(cells) + " |")
    return lines if len(lines) > 2 else []


def losses(record: Record, peers: list[Peer]) -> list[str]:
    """Returns a line for each system that is better than fetchq in something."""
    lines = []
    for mine, other in pairs(peers):
        lost = []
        for metric, title, more in METRICS:
            where = [f"{value:.2f} ({variant.name})" for variant in VARIANTS
                     if (value := better(record, variant.name, mine, other, metric, more)) is not None and value < 1 / SAME]
            if where:
                lost.append(f"{title}: {', '.join(where)}")
        if lost:
            lines.append(f"- **{other.name}** is better than {mine.name} in " + "; ".join(lost) + ".")
    return lines


def versions(peers: list[Peer]) -> list[str]:
    lines = ["| system | version | how it is run |", "|---|---|---|"]
    return lines + [f"| {peer.name} | {peer.version()} | {peer.settings} |" for peer in peers]


class PeersReport:
    def __init__(self, record: Record, meta: dict[str, str], peers: list[Peer], skipped: list[str], quick: bool, processes: int) -> None:
        self.record, self.meta, self.peers, self.skipped, self.quick = record, meta, peers, skipped, quick
        self.processes = processes
        self.lines: list[str] = []

    def section(self, title: str, *lines: str) -> None:
        self.lines += [f"## {title}", "", *lines, ""]

    def write(self) -> Path:
        record, peers, plan = self.record, self.peers, Plan()
        self.lines = [f"# fetchq beside other queues, {self.meta['date'][:10]}", ""]
        if self.quick:
            self.lines += ["**This is a quick run. It shows that each system works; its numbers are no results.**", ""]
        self.lines += [
            "Medians of the rounds. How this is measured: "
            "[docs/internals/benchmarks.md](../../../docs/internals/benchmarks.md#beside-other-queues). "
            "Every value of every round: [raw.csv](raw.csv).", "",
        ]
        shown = [variant for variant in VARIANTS if any(key[1] == variant.name for key in record.values)]
        lost = losses(record, peers)
        self.section("Where fetchq loses",
                     "Factors by which fetchq is better than a system of the same language and kind, where they are below 1.", "",
                     *(lost or ["Nowhere."]))
        for variant in shown:
            self.section(variant.name[0].upper() + variant.name[1:], *table(record, peers, variant.name))
            found = factors(record, peers, variant.name)
            if found:
                self.lines += ["How many times fetchq is better; in bold where it is worse.", "", *found, ""]
        self.section("Rounds", *self.spread(shown))
        for title, file in draw(record, peers):
            self.lines += [f"![{title}]({file})", ""]
        self.section("Systems", *versions(peers))
        if not self.quick:
            self.section("Load", f"Payloads of about 110 bytes, handlers that do nothing, 4 jobs at a time in {number(self.processes)} process{'es' if self.processes > 1 else ''}. "
                         f"Each round has a fresh database: {plan.single} s of single jobs from 4 loops, {plan.bulk:,} jobs in lists of {plan.batch:,}, "
                         f"{plan.work:g} s of work, and {plan.pace:g} s at 100 jobs/s.")
        self.trouble()
        self.section("Machine and settings", *[f"- {name}: {value}" for name, value in self.meta.items() if name != "what"], "",
                     "Server settings, the same for all: "
                     + ", ".join(f"`{k} = {v}`" for k, v in settings().items() if k != "synchronous_commit")
                     + ", `fetchq.background_worker = on`.")
        path = record.folder / "README.md"
        path.write_text("\n".join(self.lines).rstrip() + "\n")
        return path

    def spread(self, shown: list) -> list[str]:
        lines = ["Lowest to highest jobs/s of the rounds.", "", "| system | " + " | ".join(v.name for v in shown) + " |", "|---|" + "---|" * len(shown)]
        for peer in self.peers:
            cells = []
            for variant in shown:
                found = self.record.spread(SCENARIO, variant.name, peer.name, "rate")
                count = len(self.record.rounds(SCENARIO, variant.name, peer.name, "rate"))
                cells.append(f"{number(found[0])} to {number(found[1])} ({count})" if found else "–")
            lines.append(f"| {peer.name} | " + " | ".join(cells) + " |")
        return lines

    def trouble(self) -> None:
        lines = []
        for (scenario, variant, _), metrics in self.record.values.items():
            if scenario == "machine" and max(metrics["busy"].values()) > machine.BUSY:
                lines.append(f"- just before {variant}, other processes used {max(metrics['busy'].values()):.0%} of the machine, so the numbers are doubtful")
        for (_, variant, system), metrics in self.record.values.items():
            if any(metrics.get("missing", {}).values()):
                lines.append(f"- {system}, {variant}: up to {max(metrics['missing'].values()):.0f} jobs of the latency load were not done at its end")
        lines += [f"- {system}, {variant}, round {round_}: failed: {why}" for _, variant, system, round_, why in self.record.failures]
        lines += [f"- {line}" for line in self.skipped]
        self.section("Failed, doubtful, or not measured", *(lines or ["Nothing."]))
