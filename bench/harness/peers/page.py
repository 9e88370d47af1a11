"""What docs/internals/benchmarks.md shows of the newest full comparison that was not interrupted."""

from ..page import Block
from ..record import Record
from .report import factors, losses, table
from .scenario import VARIANTS
from .systems import PEERS


def lines(record: Record) -> list[str]:
    shown = []
    # One that is newer than the run is not in it.
    peers = [peer for peer in PEERS if any(key[2] == peer.name for key in record.values)]
    for variant in VARIANTS:
        # The report has all; the page has those with the default of PostgreSQL.
        if variant.commit != "on" or not any(key[1] == variant.name for key in record.values):
            continue
        shown += [f"#### {variant.name[0].upper()}{variant.name[1:]}", "", *table(record, peers, variant.name), ""]
        found = factors(record, peers, variant.name)
        if found:
            shown += ["How many times fetchq is better; in bold where it is worse:", "", *found, ""]
    lost = losses(record, peers)
    return [*shown, "#### Where fetchq loses", "", *(lost or ["Nowhere."])]


BLOCK = Block(
    "bench-peers", "bench/run_peers.py",
    is_full=lambda meta: meta.get("what") == "peers" and meta.get("complete") == "yes",
    lines=lines,
)
