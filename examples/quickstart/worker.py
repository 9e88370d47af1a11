"""One worker process of the quick start: it picks documents in batches, hashes their files, and
settles the documents.

Round one plans round two by doc_reschedule(). Round two compares the hash and completes the
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

QUEUE = "quickstart"

# A settling function returns 1 if this worker still had the lease, and 0 otherwise. The same
# statement writes the row of the ledger, so neither exists without the other.
RESCHEDULE = """
with settled as (
    select fetchq.doc_reschedule(%(queue)s, %(subject)s, now() + %(delay)s::interval, %(payload)s::jsonb) as n)
insert into quickstart_ledger (round, subject, sha256, worker)
select 1, %(subject)s, %(sha256)s, %(worker)s from settled where n = 1"""
COMPLETE = """
with settled as (
    select fetchq.doc_complete(%(queue)s, %(subject)s, %(payload)s::jsonb) as n)
insert into quickstart_ledger (round, subject, sha256, worker)
select 2, %(subject)s, %(sha256)s, %(worker)s from settled where n = 1"""
REJECT = "select fetchq.doc_reject(%(queue)s, %(subject)s, %(message)s, %(details)s::jsonb)"


class Changed(Exception):
    pass


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def work(document, args):
    """Processes one document, and returns how to settle it: (statement, parameters)."""
    payload = document["payload"]
    call = {"queue": QUEUE, "subject": document["subject"], "worker": args.number}
    # A name that is not valid UTF-8 cannot be in JSON, so the payload also has it as base64.
    path = base64.b64decode(payload["raw"]) if "raw" in payload else payload["path"]
    try:
        found = sha256(path)
        if payload.get("sha256", found) != found:
            raise Changed("the file has changed since round 1")
    except (OSError, Changed) as error:
        details = json.dumps({"path": payload["path"]})
        return REJECT, call | {"message": str(error)[:2000], "details": details}
    this_round = payload["round"] + 1
    call |= {"sha256": found, "payload": json.dumps(payload | {"sha256": found, "round": this_round})}
    if this_round == 1:
        return RESCHEDULE, call | {"delay": args.delay}
    return COMPLETE, call


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

    with psycopg.connect("", application_name=f"quickstart worker {args.number}") as db:
        db.row_factory = psycopg.rows.dict_row
        while not asked_to_stop and os.getppid() == parent:
            # The lease is committed before the work starts, so it outlives this process.
            documents = db.execute(
                "select subject, payload from fetchq.doc_pick(%s, 0, %s, %s)",
                [QUEUE, args.batch, args.lease],
            ).fetchall()
            db.commit()
            if not documents:
                time.sleep(0.1)
                continue

            held = documents[len(documents) // 2 :] if args.hang else []
            for document in documents[: len(documents) - len(held)]:
                db.execute(*work(document, args))
            db.commit()
            if args.hang:
                print(json.dumps([document["subject"] for document in held]), flush=True)
                while os.getppid() == parent:
                    time.sleep(1)


if __name__ == "__main__":
    try:
        main()
    except psycopg.Error as error:
        sys.exit(f"worker: {error}")
