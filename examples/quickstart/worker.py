"""One worker process of the quick start: it leases documents in batches, hashes their files, and
settles each batch with the call that leases the next one.

Round one reschedules the document for round two. Round two compares the hash and completes the
document. A document whose file cannot be read, or has changed, is rejected.
"""

import argparse
import base64
import hashlib
import json
import os
import signal
import sys
import time

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

QUEUE = "quickstart"

# The row of the ledger and the settlement are one transaction, so neither exists without the other.
LEDGER = "insert into quickstart_ledger (round, subject, sha256, worker) values (%s, %s, %s, %s)"
# Both fail when a lease was lost, and the rows of the ledger are rolled back with them.
SETTLE = "select subject, outcome from fetchq.docs_settle(%s, %s, on_lost => 'error')"
# Settles a batch, and leases the next one in the same call.
NEXT = """
select subject, payload, lease
from fetchq.docs_next(%s, %s, max_docs => %s, duration => %s, worker => %s, on_lost => 'error')"""


class Changed(Exception):
    pass


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def work(document, args):
    """Processes one document, and returns how to settle it, and its row of the ledger if it has
    one."""
    payload = document["payload"]
    mine = {"subject": document["subject"], "lease": document["lease"]}
    # A name that is not valid UTF-8 cannot be in JSON, so the payload also has it as base64.
    path = base64.b64decode(payload["raw"]) if "raw" in payload else payload["path"]
    try:
        found = sha256(path)
        if payload.get("sha256", found) != found:
            raise Changed("the file has changed since round 1")
    except (OSError, Changed) as error:
        return mine | {"action": "reject", "message": str(error)[:2000], "details": {"path": payload["path"]}}, None
    this_round = payload["round"] + 1
    mine["payload"] = payload | {"sha256": found, "round": this_round}
    entry = [this_round, mine["subject"], found, args.number]
    if this_round == 1:
        return mine | {"action": "reschedule", "delay": args.delay}, entry
    return mine | {"action": "complete"}, entry


def settle(db, settled, call, *arguments):
    """Settles documents and writes their rows of the ledger, and returns the rows of the call.
    Returns none when a lease was lost: the documents come back when their leases expire."""
    settlements, entries = settled
    try:
        with db.transaction(), db.cursor() as cursor:
            cursor.executemany(LEDGER, entries)
            return cursor.execute(call, [QUEUE, Jsonb(settlements), *arguments]).fetchall()
    except psycopg.errors.ObjectNotInPrerequisiteState as error:
        print(f"worker: {error}", file=sys.stderr)
        return []


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("--batch", type=int, default=25)
    parser.add_argument("--lease", default="10s")
    parser.add_argument("--delay", default="5s")
    parser.add_argument("--hang", action="store_true", help="hang in the middle of the first batch")
    args = parser.parse_args()

    # On SIGTERM, finish the batch and end. The parent handles Ctrl-C.
    asked_to_stop = []
    signal.signal(signal.SIGTERM, lambda *_: asked_to_stop.append(True))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()

    name = f"quickstart worker {args.number}"
    settled = [[], []]
    with psycopg.connect("", autocommit=True, row_factory=dict_row, application_name=name) as db:
        while not asked_to_stop and os.getppid() == parent:
            # The leases are committed before the work starts, so they outlive this process.
            documents = settle(db, settled, NEXT, args.batch, args.lease, name)
            if not documents:
                settled = [[], []]
                db.execute("call fetchq.queue_wait(%s, '0.5 s')", [[QUEUE]])
                continue

            held = documents[len(documents) // 2 :] if args.hang else []
            done = [work(document, args) for document in documents[: len(documents) - len(held)]]
            settled = [[settlement for settlement, _ in done], [entry for _, entry in done if entry]]
            if args.hang:
                settle(db, settled, SETTLE)
                print(json.dumps([document["subject"] for document in held]), flush=True)
                while os.getppid() == parent:
                    time.sleep(1)
        settle(db, settled, SETTLE)


if __name__ == "__main__":
    try:
        main()
    except psycopg.Error as error:
        sys.exit(f"worker: {error}")
