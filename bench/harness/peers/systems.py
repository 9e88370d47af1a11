"""The systems that are compared, and how each one is driven."""

import json
from dataclasses import dataclass
from pathlib import Path

from ..cluster import ROOT

FOLDER = ROOT / "bench/peers"
SQL = FOLDER / "sql"
ONE, BATCH = "one at a time", "in batches"

FETCHQ_PURGE = (SQL / "fetchq/purge.sql").read_text()


@dataclass(frozen=True)
class Peer:
    """A system. `name` is its name in the results, and `client` a file of bench/peers/clients, a
    folder of bench/peers/sql, or the driver that has the client in it."""

    name: str
    language: str
    kind: str
    client: str
    # Removes the jobs that wait. Those that are done stay, as they do in production.
    purge: str
    # How it is run, for the report.
    settings: str
    # The package whose version the report shows.
    package: str = ""
    # For SQL: sessions that work at the same time, and documents in a batch.
    sessions: int = 4
    batch: int = 1

    @property
    def is_fetchq(self) -> bool:
        """Whether it is this build. The client of fetchq 4 runs on the SQL of fetchq 4."""
        return self.name.startswith("fetchq ") and self.package != "fetchq"

    # What a scenario asks a system.
    def has(self, _script: str) -> bool:
        return True

    def skips(self, _scenario: str) -> bool:
        return False

    def version(self) -> str:
        if self.is_fetchq:
            return "this build"
        if self.language == "Node":
            lock = json.loads((FOLDER / "package-lock.json").read_text())
            return lock["packages"][f"node_modules/{self.package}"]["version"]
        if self.language == "Python":
            for line in (FOLDER / "requirements.txt").read_text().splitlines():
                if line.startswith(f"{self.package}=="):
                    return line.split("==")[1].split()[0]
        return {"pgq": "3.5, Debian", "pgmq": "bench/peers/vendor/pgmq.sql"}.get(self.package, "unknown")


GRAPHILE_PURGE = "delete from graphile_worker._private_jobs;"
PGMQ_PURGE = (SQL / "pgmq/purge.sql").read_text()

PEERS = [
    Peer("graphile-worker", "Node", ONE, "graphile-worker", GRAPHILE_PURGE,
         "default settings (`maxPoolSize` 10, LISTEN), `concurrentJobs` 4", "graphile-worker"),
    Peer("fetchq Node", "Node", ONE, "fetchq-node", FETCHQ_PURGE,
         "[`@fetchq/client`](../../../clients/typescript/README.md) with node-postgres, `prepare`, `concurrency` 4"),
    Peer("graphile-worker, batches", "Node", BATCH, "graphile-worker-batch", GRAPHILE_PURGE,
         "the settings of its page about performance: `localQueue.size` 500, `completeJobBatchDelay` 0, `failJobBatchDelay` 0; `concurrentJobs` 4",
         "graphile-worker"),
    Peer("pg-boss", "Node", BATCH, "pg-boss", "delete from pgboss.job where state < 'completed';",
         "`notify` and `useListenNotify`, `localConcurrency` 4, `batchSize` 100, `burstWhenBatchFull`; with `batchSize` 1, "
         "a worker does not look again before 0.5 s", "pg-boss"),
    Peer("fetchq 4 client", "Node", BATCH, "fetchq4", "delete from fetchq_data.jobs__docs where status between 0 and 2;",
         "`enableNotifications`, `concurrency` 4, `batch` 10, `delay` 1 ms (by default 250), with its maintenance, on the SQL of fetchq 4", "fetchq"),
    Peer("fetchq Node, batches", "Node", BATCH, "fetchq-node-batch", FETCHQ_PURGE,
         "the same package, batch handlers with `size` 100 and `concurrency` 4"),
    Peer("fetchq Node, loop", "Node", BATCH, "fetchq-node-loop", FETCHQ_PURGE,
         "no package, but the loop of [workers](../../../docs/guides/workers.md#the-loop-in-one-call): `docs_next` with `max_docs` 100, four loops in one process"),
    Peer("procrastinate", "Python", ONE, "procrastinate_app", "delete from procrastinate_jobs where status = 'todo';",
         "default settings (psycopg with a pool, `listen_notify`, jobs are kept), `concurrency` 4", "procrastinate"),
    Peer("fetchq Python", "Python", ONE, "fetchq_python", FETCHQ_PURGE,
         "[`fetchq`](../../../clients/python/README.md) with psycopg, handlers in threads, `concurrency` 4"),
    Peer("pgqueuer", "Python", BATCH, "pgqueuer_app", "delete from pgqueuer where status = 'queued';",
         "default settings (`batch_size` 10, LISTEN, no limit of concurrency), asyncpg and uvloop as its command line", "pgqueuer"),
    Peer("fetchq Python, batches", "Python", BATCH, "fetchq_python_batch", FETCHQ_PURGE,
         "the same package, batch handlers in threads with `size` 100, and `concurrency` 400, which is that of documents"),
    Peer("fetchq Python, loop", "Python", BATCH, "fetchq_python_loop", FETCHQ_PURGE,
         "no package, but the loop of [workers](../../../docs/guides/workers.md#the-loop-in-one-call): `docs_next` with `max_docs` 100, four threads in one process"),
    Peer("fetchq Rust", "Rust", ONE, "driver", FETCHQ_PURGE,
         "[`fetchq-client`](../../../clients/rust/README.md) with tokio-postgres, `concurrency` 4, one thread for the handlers"),
    Peer("pgmq", "SQL", ONE, "pgmq", PGMQ_PURGE,
         "a procedure that loops over `read_with_poll` (5 s, every 100 ms, the default) and `delete`, four sessions", "pgmq"),
    Peer("fetchq SQL", "SQL", ONE, "fetchq", FETCHQ_PURGE,
         "`fetchq.work`, as in [examples/worker.sql](../../../examples/worker.sql), four sessions"),
    Peer("pgmq, batches", "SQL", BATCH, "pgmq", PGMQ_PURGE,
         "the same with batches of 100, each deleted as a whole", "pgmq", batch=100),
    Peer("fetchq SQL, batches", "SQL", BATCH, "fetchq-batch", FETCHQ_PURGE,
         "a procedure that loops over `docs_next` with `max_docs` 100, and calls `queue_wait` when there is nothing, four sessions", batch=100),
    Peer("fetchq SQL, dropping", "SQL", BATCH, "fetchq-drop", FETCHQ_PURGE,
         "the same, but documents are dropped, as pgmq deletes its messages", batch=100),
    Peer("fetchq SQL, pop", "SQL", BATCH, "fetchq-pop", FETCHQ_PURGE,
         "`doc_pop` with `max_docs` 100, handled in the same transaction, four sessions; PgQ gives no leases either", batch=100),
    Peer("PgQ", "SQL", BATCH, "pgq", (SQL / "pgq/purge.sql").read_text(),
         "one consumer, as PgQ gives a batch to one at a time; `pgq.ticker()` once a second, as the daemon pgqd does; a tick for every 500 events or 3 s, the default",
         "pgq", sessions=1),
]


def chosen(patterns: list[str]) -> list[Peer]:
    """Returns the peers whose names have one of the words, or all."""
    return [peer for peer in PEERS if not patterns or any(word.lower() in peer.name.lower() for word in patterns)]


def driver(peer: Peer, action: str) -> list[str | Path]:
    """Returns the command that drives a client, and the first words of a process's command line."""
    if peer.language == "Rust":
        return [ROOT / "target/release/examples/fetchq-bench-peers", action]
    if peer.language == "Node":
        # The Node of the package, which is new enough for all; another architecture has that of PATH.
        own = sorted(FOLDER.glob("node_modules/node-linux-*/bin/node"))
        return [own[0] if own else "node", FOLDER / "driver.mjs", peer.client, action]
    return [ROOT / ".pg/peers/venv/bin/python", FOLDER / "driver.py", peer.client, action]
