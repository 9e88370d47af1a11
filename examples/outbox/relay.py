"""A relay: puts what transactions of one server have written into its table `outbox` into queues of
another server, each row once.

    python3 relay.py

SOURCE and TARGET are the connection strings of the two servers, and NAME names the source on the target.
BATCH is the number of rows that are moved at a time (100), and INTERVAL how often it looks for rows, in
seconds (0.2). Of several relays of one source, the one that was started last moves rows.
"""

import os
import signal
import sys
import threading

import psycopg
from psycopg.types.json import Jsonb

NAME = os.environ.get("NAME", "source")
BATCH = int(os.environ.get("BATCH", 100))
INTERVAL = float(os.environ.get("INTERVAL", 0.2))

ending = threading.Event()


class Replaced(Exception):
    pass


class Relay:
    def __init__(self, source, target):
        self.source, self.target = source, target
        # From here on no other relay writes into the target: one that has read rows and stood still since
        # must not bring them when they were moved and forgotten.
        self.number = target.execute(
            """insert into outbox_relays values (%s, 1)
               on conflict (source) do update set relay = outbox_relays.relay + 1 returning relay""",
            [NAME],
        ).fetchone()[0]
        # What an earlier relay has moved and removed from the source can be forgotten.
        received = target.execute("select id from outbox_received where source = %s", [NAME]).fetchall()
        received = [number for (number,) in received]
        left = source.execute("select id from outbox where id = any(%s)", [received]).fetchall()
        self.removed = list(set(received) - {number for (number,) in left})

    def move(self):
        """Moves a batch. Returns the number of rows."""
        rows = self.source.execute(
            "select id, queue, subject, payload from outbox order by id limit %s", [BATCH]
        ).fetchall()
        if not rows and not self.removed:
            return 0
        ids = [row[0] for row in rows]
        # The documents and the note that they have come are one transaction.
        with self.target.transaction():
            mine = "select from outbox_relays where source = %s and relay = %s for share"
            if self.target.execute(mine, [NAME, self.number]).fetchone() is None:
                raise Replaced
            self.target.execute("delete from outbox_received where source = %s and id = any(%s)", [NAME, self.removed])
            new = self.target.execute(
                """insert into outbox_received select %s, id from unnest(%s::bigint[]) id
                   on conflict do nothing returning id""",
                [NAME, ids],
            ).fetchall()
            new = {number for (number,) in new}
            queues = {}
            for number, queue, subject, payload in rows:
                if number in new:
                    queues.setdefault(queue, []).append({"subject": subject, "payload": payload})
            for queue, docs in queues.items():
                self.target.execute("select from fetchq.doc_put_many(%s, %s)", [queue, Jsonb(docs)])
        # A crash before this line has the rows read once more, and the note keeps them from being put again.
        self.source.execute("delete from outbox where id = any(%s)", [ids])
        self.removed = ids
        return len(rows)


def main():
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    signal.signal(signal.SIGINT, lambda *_: ending.set())
    while not ending.is_set():
        try:
            with (
                psycopg.connect(os.environ["SOURCE"], autocommit=True) as source,
                psycopg.connect(os.environ["TARGET"], autocommit=True) as target,
            ):
                relay = Relay(source, target)
                while not ending.is_set():
                    if relay.move() < BATCH:
                        ending.wait(INTERVAL)
        except Replaced:
            sys.exit("another relay has taken over")
        except psycopg.OperationalError as error:
            # A server restarts, or is out of reach.
            print(f"trying again: {error}", file=sys.stderr)
            ending.wait(0.5)


if __name__ == "__main__":
    main()
