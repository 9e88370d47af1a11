"""The bars: the limits that fetchq must reach, and the verdicts."""

from dataclasses import dataclass

from .record import Record

MINE, OTHER, ALONE, EMPTY = "fetchq", "bare", "reference", "empty"
# (scenario, variant, system, metric)
Key = tuple[str, str, str, str]


@dataclass
class Bar:
    """Compares `over` ÷ `under`, or `over` alone, with a limit."""

    what: str
    over: Key
    under: Key | None
    limit: float
    at_most: bool = False
    digits: int = 2

    def value(self, record: Record) -> float | None:
        over = record.median(*self.over)
        under = record.median(*self.under) if self.under else 1.0
        return over / under if over is not None and under else None

    def range(self, record: Record) -> tuple[float, float] | None:
        """Returns the lowest and the highest ratio. Each ratio is within one round."""
        over = record.rounds(*self.over)
        under = record.rounds(*self.under) if self.under else {number: 1.0 for number in over}
        ratios = [over[number] / under[number] for number in over if under.get(number)]
        return (min(ratios), max(ratios)) if ratios else None

    def ceiling(self, record: Record) -> float | None:
        """Returns the same for statements that do nothing."""
        scenario, variant, _, metric = self.over
        return Bar("", (scenario, variant, EMPTY, metric), self.under, 0).value(record)

    def passed(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit


def against(scenario: str, other: str = OTHER, metric: str = "rate") -> tuple[Key, Key]:
    return (scenario, "", MINE, metric), (scenario, "", other, metric)


def within(scenario: str, over: str, under: str, metric: str = "rate") -> tuple[Key, Key]:
    return (scenario, over, MINE, metric), (scenario, under, MINE, metric)


BARS = [
    Bar("push 1 per transaction ÷ hand-written", *against("push"), 1.0),
    Bar("cycle, 4 clients ÷ hand-written", *against("cycle4"), 2.2),
    Bar("cycle, 32 clients ÷ hand-written", *against("cycle32"), 2.0),
    Bar("cycle, each commit waits for the disk, 8 clients ÷ hand-written", *against("synced8"), 1.6),
    Bar("the same, 32 clients", *against("synced32"), 1.6),
    Bar("the same, 8 clients, fetchq.synchronous_settling = off", *against("settled8"), 3.0),
    Bar("settle and pick the next in one call, 4 clients ÷ hand-written cycle", *against("next4"), 3.0),
    Bar("the same, each commit waits for the disk", *against("syncednext4"), 2.2),
    Bar("pick 1 and reschedule, 4 clients ÷ hand-written", *against("calendar4"), 2.0),
    Bar("batch of 100, pick and drop ÷ hand-written", *against("batch100"), 1.5),
    Bar("push of 1 million in 1,000s ÷ INSERT … SELECT into the hand-written table", *against("bulk1000"), 1.0),
    Bar("push of 1 million in 1,000s ÷ INSERT … SELECT into the same table shape", *against("bulk1000", ALONE), 1.0),
    Bar("throughput at the end of a held snapshot ÷ clean", ("held", "", MINE, "held_to_clean"), None, 0.97),
    Bar("throughput at the end of ten minutes of a held snapshot ÷ clean", ("heldlong", "", MINE, "held_to_clean"), None, 0.95),
    Bar("growth of tables and indexes for each job under a held snapshot ÷ hand-written", *against("growth", metric="bytes_per_job"), 1.0,
        at_most=True),
    Bar("throughput at the end of an open writing transaction ÷ clean", ("writer", "", MINE, "held_to_clean"), None, 0.95),
    Bar("pick p50, 10M ÷ 1k rows, the rest planned", *within("depth_planned", "10M", "1k", "p50_us"), 1.3, at_most=True),
    Bar("pick p50, 10M ÷ 1k rows, the rest completed", *within("depth_completed", "10M", "1k", "p50_us"), 1.3, at_most=True),
    Bar("pick p50, 10M ÷ 1k rows, the head leased", *within("depth_leased", "10M", "1k", "p50_us"), 1.3, at_most=True),
    Bar("pick p50, 100M ÷ 1k rows, the rest planned", *within("deepest_planned", "100M", "1k", "p50_us"), 1.3, at_most=True),
    Bar("poll of an empty queue ÷ SELECT 1, 1 client", *against("poll1", ALONE), 0.9),
    Bar("poll of an empty queue ÷ SELECT 1, 100 clients", *against("poll100", ALONE), 0.85),
    Bar("poll of an empty queue ÷ hand-written poll, 100 clients", *against("poll100"), 0.95),
    Bar("cycle over 10,000 queues ÷ 1 queue", *within("queues", "10,000", "1"), 0.85),
    Bar("cycle, metrics read 10/s ÷ not read, 16 clients", *within("metrics", "read 10/s", "not read"), 0.97),
    Bar("the same, queue_stats()", *within("metrics", "statistics 10/s", "not read"), 0.97),
    Bar("WAL bytes for each job (push, pick, drop)", ("wal", "", MINE, "bytes_per_job"), None, 800, at_most=True, digits=0),
    Bar("last ÷ first tenth of 2 million jobs", ("size", "", MINE, "last_to_first_tenth"), None, 0.97),
    # The size is bounded: at the end it is about the largest size of the first half.
    Bar("size at the end ÷ largest in the first half", ("size", "", MINE, "bytes_end"),
        ("size", "", MINE, "bytes_max_first_half"), 1.25, at_most=True),
    Bar("from push to pick through queue_wait, p50, ms", ("wake", "queue_wait", MINE, "p50_ms"), None, 1.5, at_most=True),
    Bar("from push to pick through queue_wait, p99, ms", ("wake", "queue_wait", MINE, "p99_ms"), None, 10, at_most=True),
    Bar("200 waiting sessions, share of one core, %", ("waiters", "", MINE, "share"), None, 2, at_most=True),
    Bar("waiting sessions with a snapshot", ("waiters", "", MINE, "with_snapshot"), None, 0, at_most=True, digits=0),
    Bar("lateness of planned documents, median, ms", ("ontime", "10 queues", MINE, "p50_ms"), None, 20, at_most=True, digits=1),
    Bar("the same, 10 busy queues of 1,000", ("ontime", "1,000 queues", MINE, "p50_ms"), None, 20, at_most=True, digits=1),
    Bar("the same, 10 busy queues of 10,000", ("ontime10k", "10,000 queues", MINE, "p50_ms"), None, 20, at_most=True, digits=1),
    # The report also shows notifications by commits, for comparison. They are no bar.
    Bar("NOTIFY of another database, beside a queue that the background worker announces ÷ a silent one", *within("notify", "background_worker", "silent"), 0.95),
]

# With late leases: docs/concepts/leases.md#late-leases.
LATE_BARS = [
    Bar("push 1 per transaction ÷ hand-written", *against("push"), 1.0),
    Bar("cycle, 4 clients ÷ hand-written", *against("cycle4"), 2.2),
    Bar("cycle, 32 clients ÷ hand-written", *against("cycle32"), 2.0),
    Bar("cycle, each commit waits for the disk, 8 clients ÷ hand-written", *against("synced8"), 1.6),
    Bar("settle and pick the next in one call, 4 clients ÷ hand-written cycle", *against("next4"), 3.0),
    Bar("the same, each commit waits for the disk", *against("syncednext4"), 2.0),
    Bar("pick 1 and reschedule, 4 clients ÷ hand-written", *against("calendar4"), 2.0),
    Bar("batch of 100, pick and drop ÷ hand-written", *against("batch100"), 1.7),
    Bar("throughput at the end of a held snapshot ÷ clean", ("held", "", MINE, "held_to_clean"), None, 0.9),
    Bar("growth of tables and indexes for each job under a held snapshot ÷ hand-written", *against("growth", metric="bytes_per_job"), 1.0,
        at_most=True),
    Bar("WAL bytes for each job (push, pick, drop)", ("wal", "", MINE, "bytes_per_job"), None, 760, at_most=True, digits=0),
]


def late_table(record: Record) -> list[str]:
    return table(record, LATE_BARS)


def table(record: Record, bars: list[Bar] = BARS) -> list[str]:
    # Runs before 2026-11-29 did not measure statements that do nothing.
    ceilings = any(bar.ceiling(record) is not None for bar in bars)
    head = ["bar", "measured", "lowest to highest round", "wanted", *(["statements that do nothing"] if ceilings else [])]
    lines = ["| " + " | ".join(head) + " | |", "|" + "---|" * (len(head) + 1)]
    missing = []
    for bar in bars:
        wanted = f"at {'most' if bar.at_most else 'least'} {bar.limit:,g}"
        value, spread = bar.value(record), bar.range(record)
        if value is None or spread is None:
            missing.append(bar.what)
            continue
        shown = f"{value:,.{bar.digits}f}"
        low, high = (f"{end:,.{bar.digits}f}" for end in spread)
        # With few rounds and a value near the bar, the spread shows how certain the verdict is.
        verdict = "pass" if bar.passed(value) else "**fail**"
        cells = [bar.what, shown, f"{low} to {high}", wanted]
        if ceilings:
            ceiling = bar.ceiling(record)
            cells.append("" if ceiling is None else f"{ceiling:,.{bar.digits}f}")
        lines.append("| " + " | ".join([*cells, verdict]) + " |")
    if len(missing) == len(bars):
        return ["No bar was measured."]
    return lines + (["", "Not measured: " + "; ".join(missing) + "."] if missing else [])
