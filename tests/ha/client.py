"""What the clients of a test with faults have: a ledger of what the server has acknowledged, a line of JSON for
each event, and a connection that is made again after an error.

A call that ends with an error of the connection may have been done or not. A producer repeats it with the
same subject, and a worker repeats it with the same lease.
"""

import json
import os
import socket
import threading
import time

import psycopg


class Ledger:
    def __init__(self, name, file):
        self.name, self.file = name, open(file, "a", buffering=1)

    def note(self, event, **fields):
        self.file.write(json.dumps({"e": event, "t": time.monotonic(), "w": self.name, **fields}) + "\n")


class Client:
    """A connection that is made again after an error, and whose calls end.

    `patience` is how long a call may take before the client closes its connection. The kernel of a machine
    whose processes stand still answers all packets, so that no timeout of TCP ends such a call.
    """

    def __init__(self, conninfo, patience, **options):
        self.conninfo, self.options = conninfo, options
        self.db, self.since, self.patience = None, None, patience
        threading.Thread(target=self.watch, daemon=True).start()

    def watch(self):
        while True:
            time.sleep(0.1)
            since, db = self.since, self.db
            if since and db and time.monotonic() - since > self.patience:
                try:
                    # It does not wait for the server, as a cancel request would.
                    fd = socket.socket(fileno=os.dup(db.fileno()))
                    fd.shutdown(socket.SHUT_RDWR)
                    fd.close()
                except (OSError, psycopg.Error):
                    pass

    def run(self, work):
        """Runs work(db) on a connection. Raises what the server says."""
        if self.db is None or self.db.closed or self.db.broken:
            self.db = psycopg.connect(self.conninfo, autocommit=True, connect_timeout=2, **self.options)
            # The warning of a commit that was not replicated is no acknowledgement.
            self.warned = []
            self.db.add_notice_handler(lambda n: self.warned.append(n.message_primary))
        self.since = time.monotonic()
        self.warned.clear()
        try:
            result = work(self.db)
            if any("might not have been replicated" in w for w in self.warned):
                raise psycopg.OperationalError("not replicated")
            return result
        finally:
            self.since = None

    def close(self):
        if self.db is not None:
            try:
                self.db.close()
            except psycopg.Error:
                pass
            self.db = None


def is_lost(error):
    return error.sqlstate == "55000" and "was lost" in str(error)


class Ledgers:
    """Reads the ledgers of a folder, also while clients write them."""

    def __init__(self, folder):
        self.folder, self.read_until = folder, {}

    def fresh(self):
        """The events since the last call, in the order of their time."""
        events = []
        for path in self.folder.glob("*.jsonl"):
            with open(path, "rb") as file:
                file.seek(self.read_until.get(path, 0))
                text = file.read()
            # The last line may be half written, for now or, where its client was killed, for good.
            whole = text.rfind(b"\n") + 1
            self.read_until[path] = self.read_until.get(path, 0) + whole
            for line in text[:whole].splitlines():
                try:
                    events.append(json.loads(line))
                except ValueError:
                    pass  # A client that was killed had written half of it.
        events.sort(key=lambda event: event["t"])
        return events
