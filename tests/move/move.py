"""A group of queues moves from one server to another and back, under load, while the command that moves it and
both servers are killed at every step. The clients reach the queues through PgBouncer and know no server.

    move.py --folder DIR [--docs N] [--workers N] [--report FILE] [--fsync]

scripts/suites/move.sh runs it. Each line `ok:` or `FAILED:` is a test.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import psycopg

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "ha"))
from client import Ledgers

import checks
import strangers
from checks import CHECKS, QUEUES, Look, describe, frozen, make_tables, rows, totals
from servers import Mover, Pooler, Server, with_parent

STARTED = time.monotonic()
# The groups of PgBouncer. Calls that wait have a name of their own, so that a pause need not wait for them.
GROUP, WAITING, NEIGHBOUR = "work", "work_waiting", "neighbour"


def say(*words):
    print(f"[{time.monotonic() - STARTED:5.1f} s]", *words, flush=True)


class Failed(Exception):
    pass


class Run:
    def __init__(self, options):
        self.options, self.folder = options, Path(options.folder)
        self.ledgers = self.folder / "ledgers"
        self.reader = Ledgers(self.ledgers)
        # What the ledgers say: (event, queue, subject, lease), the times of each event, (time, SQLSTATE, message).
        self.acknowledged, self.times, self.errors = [], defaultdict(list), []
        self.passed = self.failed = 0
        self.clients, self.moves, self.legs = {}, 0, []
        passwords = {user: os.urandom(12).hex() for user in ("postgres", "app")}
        settings = {
            "wal_level": "logical", "fsync": "on" if options.fsync else "off", "max_wal_size": "4GB",
            # A slot and a sender for the subscription, and for each table that is copied at a time.
            "max_replication_slots": 12, "max_wal_senders": 12,
            "max_worker_processes": 24, "max_logical_replication_workers": 12, "max_sync_workers_per_subscription": 6,
            # A subscription that has lost its connection tries again after this time.
            "wal_retrieve_retry_interval": "100ms",
        }
        self.servers = [Server(self.folder, name, passwords, settings) for name in ("one", "two")]
        self.source, self.target = self.servers
        self.pooler = Pooler(self.folder, passwords, {GROUP: self.source, WAITING: self.source, NEIGHBOUR: self.source})

    # --------------------------------------------------------------------------- results --
    def test(self, name, wrong):
        """A test: `wrong` is a list of what is wrong."""
        if wrong:
            self.failed += 1
            print(f"FAILED: {name}", *(f"    {one}" for one in wrong), sep="\n", flush=True)
        else:
            self.passed += 1
            print(f"ok: {name}", flush=True)

    def until(self, what, look, seconds=60, step=0.05):
        """Polls until `look` returns something true; returns it. Errors of the connection count as no."""
        deadline, error = time.monotonic() + seconds, None
        while True:
            try:
                found = look()
                if found:
                    return found
            except psycopg.Error as e:
                error = e
            if time.monotonic() > deadline:
                raise Failed(f"{what}: not within {seconds} s; {error or ''}")
            time.sleep(step)

    # ----------------------------------------------------------------------- preparation --
    def prepare(self):
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        self.ledgers.mkdir()
        threads = [threading.Thread(target=server.make) for server in self.servers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for server in self.servers:
            with server.connect() as db:
                make_tables(db)
                db.execute("create table expected (queue text, subject text, content text)")
                db.execute("grant usage on schema fetchq, fetchq_data to app")
        self.pooler.make()
        with self.source.connect() as db:
            self.fill(db)
            self.before = {"still": frozen(db), "totals": totals(db), "description": describe(db)}
            # What each document of before is like, on both servers.
            db.execute("set timezone = 'UTC'")
            for queue in checks.WORKED:
                db.execute(f"insert into expected select '{queue}', subject, md5((created_at, next_iteration, due_at, seq, payload, headers,"
                           f" version, priority, status, lease, iterations, ordering_key)::text) from fetchq_data.{queue}__docs")
            with self.target.connect() as other, db.cursor().copy("copy expected to stdout") as out, other.cursor().copy("copy expected from stdin") as into:
                for block in out:
                    into.write(block)

    def fill(self, db):
        """Queues of all kinds, with documents in every status."""
        n = self.options.docs
        for queue in (*QUEUES, "neighbour"):
            db.execute("select fetchq.queue_create(%s)", [queue])
            for kind in ("producer", "worker", "reader"):
                db.execute("select fetchq.queue_grant(%s, 'app', %s)", [queue, kind])
        configure = lambda queue, **settings: db.execute("select fetchq.queue_configure(%s, %s)", [queue, json.dumps(settings)])
        configure("jobs", max_attempts=50, dead_letter="dead", history={"dropped": "1 day"}, retry={"base": "1 second"})
        configure("ordered", max_attempts=50, ordered=True)
        configure("still", max_attempts=2, history={"dropped": "1 day", "killed": "1 day"})
        configure("held", lease="1 hour", max_active=100)
        configure("wake", rate={"picks": 1000, "per": "1 second"})
        configure("probe", notify=True, logs_retention="2 days", metrics_retention=[{"retain": "hour", "from": "1 year", "to": "1 day"}])
        db.execute("""
            select fetchq.doc_put('still', 'planned ' || i, jsonb_build_object('text', 'größer ' || i), now() + i * interval '1 day',
                headers => '{"by": "test"}', priority => i, version => i % 2, max_attempts => 7) from generate_series(1, 20) i;
            select fetchq.doc_put('still', 'large', (select jsonb_agg(md5(i::text)) from generate_series(1, 3000) i));
            select fetchq.doc_put('still', 'end ' || i, ordering_key => 'k') from generate_series(1, 8) i;
            do $$ declare d record; begin
                for d in select * from fetchq.doc_lease('still', 9) loop
                    case d.subject
                        when 'end 1', 'end 2' then perform fetchq.doc_complete('still', d.subject, lease => d.lease, result => '{"n": 1}');
                        when 'end 3' then perform fetchq.doc_drop('still', d.subject, lease => d.lease);
                        when 'end 4' then perform fetchq.doc_kill('still', d.subject, lease => d.lease, message => 'killed');
                        when 'end 5' then perform fetchq.doc_reject('still', d.subject, 'no', '{"code": 5}', 'ref', lease => d.lease, delay => '1 day');
                        else perform fetchq.doc_reschedule('still', d.subject, now() + interval '1 day', lease => d.lease);
                    end case;
                end loop;
            end $$;
            select fetchq.doc_put('still', 'leased ' || i) from generate_series(1, 3) i;
            select fetchq.doc_extend('still', subject, '1 day', lease, '{"at": 1}') from fetchq.doc_lease('still', 2, '1 day', worker => 'holder');
            select fetchq.doc_put('still', subject, '{"again": true}', mode => 'merge') from fetchq_data.still__docs where status = 2;
            select fetchq.log_error('still', 'end 6', 'of another program', '{}');
            select fetchq.metric_snap('still');
            select fetchq.worker_stop('nobody');
            select fetchq.schedule_create('second', 'ticks', '1 second', '{"n": 1}', catch_up => 'all', headers => '{"by": "schedule"}');
            select fetchq.schedule_create('yearly', 'ticks', '@yearly', timezone => 'Europe/Berlin', jitter => '1 minute');
            select fetchq.schedule_pause('yearly');
            select fetchq.schedules_sync('shop', '[{"name": "declared", "queue": "ticks", "schedule": "@yearly"}]');
        """)
        # The index of a user moves, too.
        db.execute("create index still_by_text on fetchq_data.still__docs ((payload ->> 'text')) where status >= 0")
        db.execute("insert into fetchq.stop_requests (name, queue_id) select 'holder', id from fetchq.queues where name = 'still'")
        for first in range(1, n + 1, 100000):
            db.execute("select count(fetchq.doc_push('jobs', 'd' || lpad(i::text, 8, '0'), jsonb_build_object('n', i, 'text', repeat('x', 80))))"
                       " from generate_series(%s::int, %s) i", [first, min(n, first + 99999)])
        db.execute("select count(fetchq.doc_put('ordered', 'k' || mod(i, 20) || '-' || lpad(i::text, 9, '0'), ordering_key => 'k' || mod(i, 20))) from generate_series(1, %s) i", [n // 20])

    # ------------------------------------------------------------------------------ load --
    def client(self, role, name, group):
        log = open(self.folder / f"{name}.err", "ab")
        words = [sys.executable, str(HERE / "load.py"), role, name, str(self.ledgers / f"{name}.jsonl"), self.pooler.dsn(group)]
        self.clients[name] = subprocess.Popen(words, stdout=log, stderr=log, preexec_fn=with_parent)

    def start_load(self):
        for n in range(max(2, self.options.workers // 4)):
            self.client("producer", f"p{n}", GROUP)
        for n in range(self.options.workers):
            self.client("worker", f"w{n}", GROUP)
        self.client("probe", "probe", GROUP)
        self.client("waiter", "waiter", WAITING)
        self.client("waker", "waker", GROUP)
        self.client("neighbour", "neighbour", NEIGHBOUR)

    def stop_load(self):
        for name, process in self.clients.items():
            if process.poll() is not None:
                self.test(f"the client {name} runs until the end", [(self.folder / f"{name}.err").read_text()[-1000:]])
            process.kill()
            process.wait()
        self.clients = {}

    def wait_for_load(self, since, what):
        """Waits until each kind of client has gone on after a moment."""
        def look():
            self.read()
            return all(self.times[kind] and self.times[kind][-1] > since for kind in ("push", "lease", "done", "probe", "pop"))
        self.until(f"all clients go on {what}", look, 120, 0.1)

    def read(self):
        """Reads what the clients have noted since the last time."""
        for event in self.reader.fresh():
            kind = event["e"]
            self.times[kind].append(event["t"])
            if kind in ("push", "lease", "done"):
                self.acknowledged.append((kind, event["q"], event["s"], event.get("l")))
            elif kind == "error":
                self.errors.append((event["t"], event["state"], event["m"]))

    # ------------------------------------------------------------------------------ moves --
    def hooks(self, hold=None):
        """The options of the command for PgBouncer. The hook `hold` waits first until a file is there."""
        lead = self.pooler.hook(f"lead {self.pooler.ini} '{self.pooler.target(self.target)}' {GROUP} {WAITING}")
        hooks = {"before": self.pooler.hook(f"pause {GROUP}"), "after": lead, "undo": self.pooler.hook(f"resume {GROUP}")}
        if hold:
            held, go = self.folder / "held", self.folder / "go"
            held.unlink(missing_ok=True)
            go.unlink(missing_ok=True)
            hooks[hold] = f"touch {held} && while [ ! -e {go} ]; do sleep 0.02; done && {hooks[hold]}"
        return [word for name, command in hooks.items() for word in (f"--{name}", command)]

    def mover(self, *options, stop_at=None, hold=None):
        return Mover(self.folder, self.source, self.target, QUEUES, *self.hooks(hold), *options, stop_at=stop_at)

    def leg(self, name, faults=()):
        """A move from the source to the target. Each fault is a step and what happens at it."""
        began = time.monotonic()
        held = self.lease_held()
        watch = Watch(self)
        say(f"{name}: {self.source.name} to {self.target.name}")
        try:
            for step, fault in faults:
                self.fault(name, step, fault)
            mover = self.mover()
            status, line = mover.finish()
            ended = time.monotonic()
            wrong = [] if status == 0 and line.startswith("moved") else [f"status {status}: {line}", *mover.said().splitlines()[-15:]]
            self.test(f"{name}: it is done, and says so: {line}", wrong)
            if wrong:
                raise Failed(f"{name}: {mover.said()[-3000:]}")
        finally:
            wrong = watch.stop()
        self.test(f"{name}: a queue was never live on two servers, and never unknown ({watch.looks} looks)", wrong)
        self.moves += 1
        self.source, self.target = self.target, self.source
        self.test(f"{name}: PgBouncer leads to the new server", [
            group for group in (GROUP, WAITING) if self.pooler.leads_to(group) != self.source.port])
        self.wait_for_load(time.monotonic(), f"after {name}")
        self.status(name)
        self.settle_held(name, held)
        pause = self.pause(began, ended + 2)
        self.legs.append({"name": name, "says": line, "seconds": round(ended - began, 2), **pause})
        say(f"{name}: {self.legs[-1]}")

    def status(self, name):
        """The status of the server that has the queues has nothing that is wrong, soon after the move."""
        bad = []
        def look():
            with self.source.connect() as db:
                bad[:] = rows(db, "select * from fetchq.status() where state in ('late', 'failing', 'not running', 'unknown')")
            # Maintenance of another queue that met the locks of a move tries again, after up to a minute.
            bad[:] = [row for row in bad if 'failing for "neighbour"' not in row[2]]
            return not bad
        try:
            self.until("the status is fine", look, 60, 0.1)
        except Failed:
            pass
        self.test(f"{name}: the status of the new server is fine", bad)
        with self.source.connect() as db:
            ticks = lambda: rows(db, "select ticks from fetchq.schedules where name = 'second'")[0][0]
            before = ticks()
            self.until("the schedule goes on", lambda: ticks() > before)

    def fault(self, name, step, fault):
        """Runs the command up to a step, lets something happen, and leaves it to the next run to go on."""
        goes_on = fault.endswith(GOES_ON)
        what = fault.removesuffix(GOES_ON)
        mover = self.mover(hold=step) if goes_on else self.mover(stop_at=step)
        is_there = (lambda: (self.folder / "held").exists() or mover.process.poll() is not None) if goes_on else mover.wait_stopped
        self.until(f"the command is before {step}", is_there, 300)
        if mover.process.poll() is not None:
            status, line = mover.finish()
            raise Failed(f"{name}: the command did not reach the step {step}, status {status}: {line}\n{mover.said()[-3000:]}")
        say(f"{name}: {fault}, before {step}")
        victim = {OLD: self.source, NEW: self.target, POOLER: self.pooler}.get(what)
        if victim:
            victim.kill()
        if goes_on:
            # The command finds out by itself. It waits for a server, and does not for PgBouncer.
            (self.folder / "go").touch()
            if victim is not self.pooler:
                time.sleep(0.5)
                victim.start()
            status, line = mover.finish()
            if victim is self.pooler:
                victim.start()
            said = mover.said().strip().splitlines()
            is_well = status == 2 if step == "after" else status == 1 and "everything is removed" in mover.said()
            what_it_says = next((text for text in reversed(said) if text.startswith("error: ")), "")
            self.test(f"{name}: {fault}, before {step}: the command clears up what can be called off, and says: {what_it_says}",
                      [] if is_well else [f"status {status}: {line}", *said[-15:]])
        else:
            mover.kill()
            if victim:
                victim.start()
        if what == ABORT:
            self.abort(name, step)
        elif what == REFUSE:
            status, line = self.mover("--abort").finish()
            self.test(f"{name}: --abort before {step} refuses, because the queues have moved", [] if status == 2 else [f"status {status}: {line}"])

    def abort(self, name, step):
        mover = self.mover("--abort")
        status, line = mover.finish()
        wrong = [] if status == 0 else [f"status {status}: {line}", mover.said()[-1000:]]
        with self.source.connect() as old, self.target.connect() as new:
            for db in (old, new):
                wrong += [f"left: {row}" for row in rows(db, "select pubname from pg_publication union all select subname from pg_subscription union all select slot_name from pg_replication_slots")]
            wrong += [f"the new server has {row}" for row in rows(new, "select c.oid::regclass::text from pg_class c where relnamespace = 'fetchq_data'::regnamespace and split_part(relname, '__', 1) = any (%s)", list(QUEUES))]
            wrong += checks.differences(self.before["description"], describe(old))[:5]
        self.test(f"{name}: --abort at {step} leaves the old server as it was, and nothing on the new one", wrong)
        self.wait_for_load(time.monotonic(), "after --abort")

    def lease_held(self):
        """Documents that are leased before the move, and settled after it."""
        with self.source.connect() as db:
            for n in range(5):
                db.execute("select fetchq.doc_put('held', %s)", [f"held {self.moves}-{n}"])
            held = rows(db, "select subject, lease, lease_ends from fetchq.doc_lease('held', 4, worker => 'holder')")
        # A lease that ends with its session lasts until its time is over, where it has no session.
        self.bound = self.source.connect()
        return held + rows(self.bound, "select subject, lease, lease_ends from fetchq.doc_lease('held', 1, worker => 'holder', binding => 'return')")

    def settle_held(self, name, held):
        wrong = []
        with psycopg.connect(self.pooler.dsn(GROUP), autocommit=True, prepare_threshold=None) as db:
            def one(statement, *values):
                try:
                    return db.execute(statement, values).fetchone()[0]
                except psycopg.Error as error:
                    return f"{error.sqlstate}: {error}"
            for n, (subject, lease, ends) in enumerate(held):
                told = rows(db, "select worker, lease, lease_ends from fetchq.lease_list('held') where subject = %s", subject)
                if told != [("holder", lease, ends)]:
                    wrong.append(f"{subject} was leased by holder with {lease} until {ends}, and is by {told}")
                for other in (lease - 1, lease + 1):
                    said = one("select fetchq.doc_complete('held', %s, lease => %s)", subject, other)
                    if not str(said).startswith("55000"):
                        wrong.append(f"{subject}: the lease {other} settles: {said}")
                extended = "select outcome from fetchq.docs_extend('held', pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('subject', %s::text, 'lease', %s::bigint)), '2 hours')"
                if n == 0 and one(extended, subject, lease) != "extended":
                    wrong.append(f"the lease {lease} is not extended")
                    continue
                ends = ends if n else None
                said = one("select fetchq.doc_drop('held', %s, lease => %s)", subject, lease)
                if said != 1:
                    wrong.append(f"{subject}: its lease {lease} does not settle it: {said}")
                if n == 0:
                    held[1:] = [(s, l, e) for s, l, e in rows(db, "select subject, lease, lease_ends from fetchq.lease_list('held')") if s in {h[0] for h in held}]
        self.bound.close()
        self.test(f"{name}: leases of before are extended and settled on the new server, by their numbers alone", wrong)

    def pause(self, began, ended):
        """The longest time without an acknowledged call, in seconds; of the probe, and of another queue's probe."""
        self.read()
        def longest(*kinds):
            times = sorted(t for kind in kinds for t in self.times[kind] if began < t < ended)
            return round(max((b - a for a, b in zip(times, times[1:])), default=0), 3)
        errors = Counter(state or "connection" for t, state, _ in self.errors if began < t < ended)
        return {"no_call_for": longest("push", "lease", "done", "probe"), "no_push_for": longest("push"), "no_settlement_for": longest("done"),
                "no_probe_for": longest("probe"), "no_call_of_another_queue_for": longest("neighbour"), "errors": dict(errors)}

    # ----------------------------------------------------------------------------- checks --
    def look(self):
        # The ledgers first: what they say must be in what is read afterwards.
        self.read()
        return Look(self.source, self.target, self.before, self.acknowledged, self.moves)

    def check(self, when, prove=False):
        """All checks, and for each of them that it fails where it has to."""
        look = self.look()
        try:
            say(f"{when}: {checks.summary(look)}")
            for name, check, damages, at_rest in CHECKS:
                if at_rest and not prove:
                    continue
                self.test(f"{when}: {name}", look.run(check))
                for where, statement in damages if prove else ():
                    found, is_seen = look.prove(check, where, statement)
                    self.test(f"it can fail: {name}: {' '.join(statement.split())}", [] if is_seen else [f"it was not seen: {found}"])
        finally:
            look.close()

    def quiet(self):
        """Stops all that would change something."""
        self.stop_load()
        for server in self.servers:
            with server.connect() as db:
                db.execute("alter system set fetchq.background_worker = off")
                db.execute("select pg_reload_conf()")
        self.lease_held()
        with self.source.connect() as db:
            self.until("the background worker has ended", lambda: not rows(db, "select from pg_stat_activity where backend_type like 'fetchq background worker%'"))
            # The times are counted when the events are packed. While a snapshot is held, some wait.
            self.until("all events are packed", lambda: rows(db, "select fetchq.metric_log_pack()") and not rows(db, "select from fetchq.counter_tail limit 1"))

    def logs(self):
        wrong = []
        for server in self.servers:
            for line in server.log.read_text(errors="replace").splitlines():
                if "PANIC" in line or "panicked" in line or "was terminated by signal 11" in line or "defect" in line:
                    wrong.append(f"{server.name}: {line}")
        self.test("the logs of the servers have no crash and no defect", wrong[:5])

    def remove(self):
        for process in self.clients.values():
            process.kill()
            process.wait()
        self.pooler.kill()
        for server in self.servers:
            server.kill()


class Watch:
    """Looks again and again where the queues are, while they move."""

    def __init__(self, run):
        self.run, self.wrong, self.looks, self.is_over = run, [], 0, False
        self.old, self.new = run.source, run.target
        self.thread = threading.Thread(target=self.watch, daemon=True)
        self.thread.start()

    def watch(self):
        connections = {}
        def one(server, statement):
            db = connections.get(server)
            if db is None or db.closed or db.broken:
                db = connections[server] = server.connect()
            return db.execute(statement, {"q": list(QUEUES)}).fetchone()[0]
        live = "select count(*) from fetchq.queues where name = any (%(q)s)"
        known = f"select ({live}) + (select count(*) from fetchq.queue_places where queue = any (%(q)s))"
        while not self.is_over:
            try:
                # The new one first: what is there stays there. So if the old one has it after that, both have.
                there, here = one(self.new, live), one(self.old, live)
                if there and here:
                    self.wrong.append(f"{there} queues are live on the new server, {here} on the old one")
                if there not in (0, len(QUEUES)) or here not in (0, len(QUEUES)):
                    self.wrong.append(f"{there} queues are live on the new server, {here} on the old one: they do not move together")
                if one(self.old, known) != len(QUEUES):
                    self.wrong.append("the old server neither has a queue nor says where it is")
                self.looks += 1
            except psycopg.Error:
                time.sleep(0.02)
            time.sleep(0.005)
        for db in connections.values():
            db.close()

    def stop(self):
        self.is_over = True
        self.thread.join()
        return self.wrong[:5]


KILL, OLD, NEW, POOLER = "the command is killed", "the old server is killed", "the new server is killed", "PgBouncer is killed"
ABORT, REFUSE = "the command is killed and --abort is run", "the command is killed and --abort is tried"
GOES_ON = " and the command goes on"
BEFORE = ("check", "record", "stage", "publish", "subscribe", "copy", "before", "lock", "catch-up", "verify", "rest", "ready", "commit")
AFTER = ("finish", "after", "clean")
# What happens to each move, and the checks after it. Each row is a move: there, and back.
LEGS = (
    ("undisturbed", []),
    ("the command is killed", [(step, KILL) for step in BEFORE[:-1]] + [("commit", ABORT)] + [(step, REFUSE) for step in AFTER]),
    ("the old server is killed", [("before", OLD + GOES_ON), ("commit", OLD), ("finish", OLD)]),
    ("the new server is killed", [("copy", NEW), ("ready", NEW), ("finish", NEW), ("after", NEW + GOES_ON)]),
    ("PgBouncer is killed", [("lock", POOLER), ("after", POOLER + GOES_ON)]),
)
# And with --all: each server at each step.
ALL = (
    ("the old server is killed at each step", [(step, OLD) for step in BEFORE + AFTER]),
    ("the new server is killed at each step", [("before", NEW + GOES_ON)] + [(step, NEW) for step in BEFORE + AFTER]),
)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True)
    parser.add_argument("--docs", type=int, default=20000)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--fsync", action="store_true")
    parser.add_argument("--all", action="store_true", help="each server is also killed at each step")
    parser.add_argument("--only", help="the moves whose names contain this, or strangers")
    parser.add_argument("--report")
    options = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    run = Run(options)
    # A run that was killed has left its servers.
    run.remove()
    shutil.rmtree(options.folder, ignore_errors=True)
    try:
        run.prepare()
        if not options.only or options.only in "strangers":
            strangers.run(run)
        legs = [leg for leg in LEGS + (ALL if options.all else ()) if not options.only or options.only in leg[0]]
        if legs:
            say(f"{options.docs} documents, {options.workers} workers")
            run.start_load()
            run.wait_for_load(STARTED, "at the beginning")
            for name, faults in legs:
                run.leg(name, faults)
                run.check(name)
            run.quiet()
            run.check("at the end", prove=True)
        run.logs()
    except (Failed, RuntimeError, OSError, psycopg.Error, subprocess.SubprocessError) as failure:
        run.test("the test runs to its end", [f"{type(failure).__name__}: {failure}"])
    finally:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        run.remove()
    for leg in run.legs:
        say(json.dumps(leg))
    if options.report:
        Path(options.report).write_text(json.dumps({"docs": options.docs, "workers": options.workers, "legs": run.legs}, indent=1))
    print(f"{run.passed} passed, {run.failed} failed", flush=True)
    sys.exit(1 if run.failed else 0)


main()
