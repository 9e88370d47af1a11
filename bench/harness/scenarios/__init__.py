"""Lists all scenarios in the order in which they run."""

from ..cluster import Holder
from .background import Notify, OnTime, Wake, Waiters
from .base import Bench, Scenario
from .depth import DEEPEST, Depth
from .held import Growth, Held
from .queues import Queues
from .size import Size
from .throughput import Delayed, Metrics, Neighbour, Settling, Synchronous, Throughput
from .wal import Wal

CYCLE = ("pick", "drop")
BATCH = ("pick_many", "drop_many")
PRIORITIES = ("push_priority", "pick_priority", "drop")
MILLION = 1_000_000


def all_scenarios() -> list[Scenario]:
    return [
        Throughput("push", "push 1 per transaction, 4 clients, docs/s", ("push",), 4),
        Throughput("cycle1", "cycle (pick 1, drop 1), 1 client, jobs/s", CYCLE, 1, fills=True, rounds=3, seconds=20),
        Throughput("cycle4", "cycle, 4 clients, jobs/s", CYCLE, 4, fills=True, rounds=3, seconds=20),
        Throughput("cycle32", "cycle, 32 clients, jobs/s", CYCLE, 32, fills=True, rounds=3, seconds=20),
        Synchronous("synced8", "cycle, each commit waits for the disk, 8 clients, jobs/s", CYCLE, 8, fills=True, rounds=3),
        Synchronous("synced32", "the same, 32 clients, jobs/s", CYCLE, 32, fills=True, rounds=3),
        Settling("settled8", "the same, settlements do not wait, 8 clients, jobs/s", CYCLE, 8, fills=True, rounds=3),
        Delayed("delayed8", "the same, each commit waits, commit_delay = 150, 8 clients, jobs/s", CYCLE, 8, fills=True, rounds=3),
        Delayed("delayed32", "the same, 32 clients, jobs/s", CYCLE, 32, fills=True, rounds=3),
        Throughput("next4", "settle a job and pick the next, 4 clients, jobs/s", ("next",), 4, fills=True, rounds=3),
        Synchronous("syncednext4", "the same, each commit waits for the disk, jobs/s", ("next",), 4, fills=True, rounds=3),
        Throughput("calendar4", "pick 1 and reschedule it, 4 clients, jobs/s", ("pick", "return"), 4, fills=True, rounds=3),
        Throughput("batch10", "pick 10, drop 10, 4 clients, docs/s", BATCH, 4, 10, fills=True, most=3),
        Throughput("batch100", "pick 100, drop 100, 4 clients, docs/s", BATCH, 4, 100, fills=True, most=5),
        Throughput("complete", "pick 1, complete 1, 4 clients, jobs/s", ("pick", "complete"), 4, fills=True, rounds=3),
        Throughput("bulk1000", "push of 1 million in 1,000s, 4 clients, docs/s", ("push_many",), 4, 1000,
                   total=MILLION, quick_total=200_000),
        Throughput("bulk1000json", "the same as JSON documents with subjects, docs/s", ("push_many_json",), 4, 1000, total=MILLION, rounds=3),
        Throughput("bulk1m", "push of 1 million in one statement, docs/s", ("push_many",), 1, MILLION, total=MILLION, rounds=3),
        Throughput("poll1", "poll of an empty queue, 1 client, polls/s", ("poll",), 1, seconds=5),
        Throughput("poll100", "poll of an empty queue, 100 clients, polls/s", ("poll",), 100, seconds=5),
        Throughput("priorities", "push, pick, drop with 8 priorities interleaved, 4 clients, jobs/s", PRIORITIES, 4,
                   fills=True, suffix="_priority", rounds=3),
        Neighbour("neighbour", "cycle, the neighbour queue empty or with a backlog of 1 million, 4 clients, jobs/s", CYCLE, 4, fills=True,
                  rounds=3),
        Metrics("metrics", "cycle while the counters are read, 16 clients, jobs/s", (*CYCLE,), 16, fills=True),
        Wal(),
        Held("held", "push, pick, drop while a snapshot is held, 4 clients", Holder.SNAPSHOT, rounds=2),
        Held("writer", "the same while a writing transaction is open", Holder.WRITER, rounds=1),
        Held("heldlong", "the same while a snapshot is held for ten minutes", Holder.SNAPSHOT, rounds=1, seconds=600),
        Held("notheld", "the same for ten minutes without a snapshot", Holder.NOTHING, rounds=1, seconds=600),
        Growth(),
        Queues(),
        Depth("planned", "latency of a pick, 1 in 10,000 ready, the rest planned"),
        Depth("completed", "latency of a pick, 1 in 10,000 ready, the rest completed"),
        Depth("leased", "latency of a pick, all ready but a leased tenth at the head"),
        Size(),
        Wake(),
        Waiters(),
        OnTime("ontime", {"10 queues": 10, "1,000 queues": 1_000}),
        OnTime("ontime10k", {"10,000 queues": 10_000}),
        Notify(),
        Depth("planned", "latency of a pick, 100 million rows, 1 in 10,000 ready, the rest planned", "deepest", DEEPEST),
    ]

# These take an hour or 40 GB of disk, so they run only when they are named.
NAMED_ONLY = ("heldlong", "notheld", "deepest_planned")

# These take about two minutes on two cores.
QUICK = ("push", "cycle4", "batch100", "bulk1000", "poll1", "held")

# These show what late leases change, and what they must not.
LATE = ("push", "cycle4", "cycle32", "synced8", "next4", "syncednext4", "calendar4", "batch10", "batch100", "complete", "wal", "held", "growth")

__all__ = ["LATE", "NAMED_ONLY", "QUICK", "Bench", "Scenario", "all_scenarios"]
