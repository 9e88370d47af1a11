"""Failover under load: the primary is killed, frozen or cut off, or asked to leave its place (switch), again and
again.

    failover.py [--kinds kill,freeze,cut,switch] [--rounds N] [--async] [--synchronous-leases] [--dsn haproxy|hosts]
                [--folder DIR] [--report FILE]

Run by scripts/ha.sh. With synchronous replication, nothing that was acknowledged may be lost. Without,
what was lost is counted. The rules of leases hold in both cases.
"""

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter, defaultdict
from pathlib import Path

import psycopg

from client import Ledgers
from cluster import OUTSIDE, ROOT, SUBNET, NODES, Cluster, with_parent

HERE = Path(__file__).resolve().parent
PYTHON = sys.executable
# How long a worker of load.py leases a document: the same number as there.
LEASE = 40
BOUND_SECONDS = 60
BAD_STATES = ("late", "failing", "not running", "unknown")
CONSOLE = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "client" / "fetchq"
STARTED = time.monotonic()


def say(*words):
    print(f"[{time.monotonic() - STARTED:5.0f} s]", *words, flush=True)


class Failed(Exception):
    pass


class Run:
    def __init__(self, options):
        self.options = options
        self.folder = Path(options.folder)
        self.cluster = Cluster(self.folder / "cluster", not options.asynchronous)
        self.clients, self.inside, self.failures, self.rounds = [], [], [], []
        self.lost_before = defaultdict(set)
        self.logs = self.folder / "logs"

    # ------------------------------------------------------------------ connections --
    def conninfo(self):
        """How the clients outside of the nodes reach the primary."""
        common = f"dbname=fetchq user=postgres password={self.cluster.password}"
        if self.options.dsn == "haproxy":
            return f"host={OUTSIDE} port=5000 {common}"
        hosts = ",".join(f"{SUBNET}.{n}" for n in NODES)
        return (f"host={hosts} port=5432 target_session_attrs=read-write tcp_user_timeout=2000 "
                f"keepalives_idle=2 keepalives_interval=1 keepalives_count=3 connect_timeout=2 {common}")

    def check(self, ok, what):
        if not ok:
            self.failures.append(what)
            say("FAILED:", what)

    def until(self, what, seconds, look, step=0.1):
        """Polls until `look` returns something true; returns it. Errors of the connection count as no."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                found = look()
                if found:
                    return found
            except psycopg.Error:
                pass
            if time.monotonic() > deadline:
                raise Failed(f"{what}: not within {seconds} s")
            time.sleep(step)

    # ------------------------------------------------------------------------- load --
    def prepare(self):
        # Processes of a run that was killed may still write there.
        self.cluster.remove()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.folder.chmod(0o755)
        self.logs.mkdir()
        self.logs.chmod(0o777)
        self.cluster.start()
        with self.cluster.primary().connect() as db:
            db.execute("create table ha_pushed (queue text, subject text, primary key (queue, subject))")
            # Without unique keys: whatever is done twice is seen.
            db.execute("create table ha_results (subject text, lease bigint, worker text)")
            db.execute("create table ha_popped (subject text)")
            db.execute("create table results (subject text, result jsonb)")
            for queue in ("ha", "pops", "jobs", "fence", "bound", "wake", "probe", "ticks"):
                db.execute("select fetchq.queue_create(%s)", [queue])
                # A document never runs out of attempts here.
                db.execute("select fetchq.queue_configure(%s, '{\"max_attempts\": 1000}')", [queue])
            db.execute("select fetchq.schedule_create('second', 'ticks', '1 second', catch_up => 'all')")
            if self.options.synchronous_leases:
                db.execute("alter database fetchq set fetchq.synchronous_leases = on")

    def client(self, role, name, conninfo=None, node=None):
        words = [PYTHON, str(HERE / "load.py"), role, name, str(self.logs / f"{name}.jsonl"), conninfo or self.conninfo()]
        if node:
            self.inside.append(node.spawn("clients", *words))
        else:
            log = open(self.logs / f"{name}.err", "ab")
            self.clients.append(subprocess.Popen(words, stdout=log, stderr=log, preexec_fn=with_parent))

    def start_load(self):
        for n in (1, 2):
            self.client("producer", f"p{n}")
        for n in (1, 2, 3):
            self.client("worker", f"w{n}")
        self.client("popper", "o1")
        self.client("probe", "probe")
        self.example_runs = True
        self.example = threading.Thread(target=self.run_example, daemon=True)
        self.example.start()

    def run_example(self):
        """The worker of examples/ in Python. It connects again by itself, and is started again if it ends."""
        env = {**os.environ, "DATABASE_URL": self.conninfo()}
        program = str(ROOT / "examples" / "python_worker.py")
        with open(self.logs / "example.err", "ab") as log:
            while self.example_runs:
                worker = subprocess.Popen([os.environ["FETCHQ_PYTHON"], program], env=env, stdout=log, stderr=log, preexec_fn=with_parent)
                # As a probe of its health would end it: where the server stands still and nothing is between
                # them, the example waits for its answer.
                ends_at = time.monotonic() + 45
                while worker.poll() is None:
                    if not self.example_runs or time.monotonic() > ends_at:
                        worker.kill()
                    time.sleep(0.2)
                time.sleep(0.3)

    def stop_producers(self):
        for process in self.clients[:2]:
            process.kill()
            process.wait()

    def stop_load(self):
        self.example_runs = False
        for process in self.clients + self.inside:
            process.kill()
            process.wait()
        self.example.join(10)

    # ------------------------------------------------------------------------ a round --
    def round(self, number, kind):
        cluster = self.cluster
        cluster.wait_healthy()
        old = cluster.primary()
        others = [node for node in cluster.nodes if node is not old]
        result = {"round": number, "kind": kind, "node": old.name}
        with old.connect() as db:
            before = db.execute("select timeline_id from pg_control_checkpoint()").fetchone()[0]
            fence = [f"f{number}-{n}" for n in range(4)]
            for subject in fence:
                db.execute("select fetchq.doc_put('fence', %s)", [subject])
            db.execute("select fetchq.doc_put('bound', %s)", [f"b{number}"])
        # A session whose lease ends with it.
        bound = old.connect()
        bound.execute("select fetchq.doc_lease('bound', 1, '1 hour', binding => 'return')")
        for role, name in (("producer", f"in{number}"), ("worker", f"iw{number}")):
            # They are on the machine of the primary, so they reach it when nobody else does.
            path = self.logs / f"{name}.jsonl"
            path.touch()
            shutil.chown(path, "postgres")
            self.client(role, name, f"host=127.0.0.1 dbname=fetchq user=postgres password={cluster.password}", old)
        time.sleep(4)

        # The leases of the fence are the last thing that happens on the old primary. Where the link is down
        # they are lost with it.
        is_unplugged = kind == "cut" or (kind == "kill" and number % 2 == 0)
        fault = time.monotonic()
        if is_unplugged:
            old.plug(False)
        rows = old.inside("select subject || ' ' || lease from fetchq.doc_lease('fence', 10, '1 hour')")
        leased = {subject: int(lease) for subject, lease in (row.split() for row in rows)}
        if kind == "kill":
            old.signal(signal.SIGKILL)
        elif kind == "freeze":
            old.signal(signal.SIGSTOP)
        elif kind == "switch":
            old.switch_over()
        result["unreplicated"] = is_unplugged
        say(f"round {number}: {kind} {old.name}" + (", its last leases not replicated" if is_unplugged and kind == "kill" else ""))
        self.check(set(leased) >= set(fence), f"round {number}: the documents of the fence were leased")

        new = self.until("a new primary", 120, lambda: next((n for n in others if n.role() == "primary"), None))
        promoted = time.monotonic()
        result["promoted"] = promoted - fault
        self.after_promotion(number, new, promoted, result)
        self.fence(number, new, leased, result, "after the promotion")
        self.read_standby(next(n for n in others if n is not new), number, kind)

        if kind == "kill":
            old.plug(True)
            old.start()
        elif kind == "cut":
            old.plug(True)
        elif kind == "freeze":
            old.signal(signal.SIGCONT)
        cluster.wait_healthy()
        result["healthy"] = time.monotonic() - fault
        after = cluster.primary()
        with after.connect() as db:
            result["timelines"] = [before, db.execute("select timeline_id from pg_control_checkpoint()").fetchone()[0]]
        self.fence(number, after, leased, result, "after the old primary is back")
        for process in self.inside:
            # It was started by runuser, which is not its parent's child only.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        for pid in old.pids():
            try:
                if b"load.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError):
                pass
        self.inside = []
        try:
            bound.close()
        except psycopg.Error:
            pass
        self.check_acknowledged(number, fault, result)
        self.measure_gap(fault, result)
        self.rounds.append(result)
        say(f"round {number}:", json.dumps({k: round(v, 2) if isinstance(v, float) else v for k, v in result.items()}))

    def after_promotion(self, number, new, promoted, result):
        """How long it takes until everything is as it should be on the new primary."""
        since = lambda: time.monotonic() - promoted
        name = f"b{number}"
        found, sessions = {}, []

        def first(key, seconds, statement, wanted=True):
            def look():
                with new.connect() as db:
                    return db.execute(statement).fetchone()[0] == wanted
            try:
                self.until(f"round {number}: {key}", seconds, look)
                found[key] = since()
            except Failed as failure:
                self.check(False, str(failure))
                with new.connect() as db:
                    say(db.execute("select * from fetchq.status()").fetchall())

        def wake():
            with new.connect() as waiter:
                done = {}

                def wait():
                    try:
                        done["queue"] = waiter.execute("call fetchq.queue_wait('{wake}', '30 s')").fetchone()[0]
                    except psycopg.Error as error:
                        done["queue"] = str(error)
                    done["at"] = time.monotonic()
                thread = threading.Thread(target=wait)
                thread.start()
                time.sleep(0.5)
                try:
                    with new.connect() as db:
                        db.execute("select fetchq.doc_put('wake', %s)", [f"k{number}"])
                except psycopg.Error as error:
                    self.check(False, f"round {number}: a push on the new primary: {error}")
                committed = time.monotonic()
                thread.join(40)
                self.check(done.get("queue") == "wake", f"round {number}: a waiter was woken: {done}")
                # The waiter may be there before the answer of the commit.
                found["woken"] = max(0.0, done.get("at", committed) - committed)
                with new.connect() as db:
                    db.execute("select fetchq.doc_pop('wake', 0, 10)")

        threads = [threading.Thread(target=wake)] + [threading.Thread(target=first, args=a) for a in (
            ("status", 90, f"select count(*) = 0 from fetchq.status() where state = any ('{{{','.join(BAD_STATES)}}}')"),
            ("worker", 90, "select count(*) > 0 from fetchq.status() where component = 'background worker' and state in ('running', 'idle')"),
            ("tick", 90, f"select count(*) > 0 from fetchq_data.ticks__docs where created_at > to_timestamp({time.time()})"),
            ("first_write", 90, f"select fetchq.doc_put('probe', 'first-{number}') is not null"),
            ("bound", BOUND_SECONDS, f"select status from fetchq_data.bound__docs where subject = '{name}'", 1),
        )]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        result["after"] = found
        with new.connect() as db:
            result["floor_misses"] = db.execute("select floor_misses from fetchq.ready_stats()").fetchone()[0]
            self.check(result["floor_misses"] == 0, f"round {number}: floor misses")
            db.execute("select fetchq.doc_drop('bound', subject, lease) from fetchq.doc_lease('bound', 10)")

    def fence(self, number, node, leased, result, when):
        """A lease of before the failover settles its document, or is lost for good."""
        lost = survived = 0
        for subject, lease in leased.items():
            with node.connect() as db:
                row = db.execute("select status, lease from fetchq_data.fence__docs where subject = %s", [subject]).fetchone()
                if row == (2, lease):
                    survived += 1
                    continue
                lost += 1
                self.refused(db, subject, lease, f"round {number}, {when}")
                if row[0] == 1:
                    again = dict(db.execute("select subject, lease from fetchq.doc_lease('fence', 10, '1 hour')").fetchall())
                    for other, greater in again.items():
                        old = leased.get(other)
                        self.check(old is None or greater > old, f"round {number}, {when}: {other} had lease {old} and got {greater}")
                    self.refused(db, subject, lease, f"round {number}, {when}, leased again")
        result.setdefault("fence", []).append({"lost": lost, "survived": survived})

    def refused(self, db, subject, lease, when):
        try:
            db.execute("select fetchq.doc_complete('fence', %s, lease => %s)", [subject, lease])
            self.check(False, f"{when}: the lost lease {lease} settled {subject}")
        except psycopg.Error as error:
            self.check(error.sqlstate == "55000", f"{when}: {error}")

    def read_standby(self, node, number, kind):
        """The calls that read, and the console, on a standby."""
        statements = (
            "select * from fetchq.queue_stats('ha')", "select * from fetchq.status()", "select * from fetchq.docs_list('ha')",
            "select * from fetchq.doc_get('probe', 'probe')", "select * from fetchq.metric_export()", "select * from fetchq.schedule_list()",
            "select * from fetchq.lease_list()",
        )
        def read():
            with node.connect() as db:
                if not db.execute("select pg_is_in_recovery()").fetchone()[0]:
                    return "it is no standby"
                for statement in statements:
                    try:
                        rows = db.execute(statement).fetchall()
                    except psycopg.errors.DatabaseError as error:
                        # Patroni may restart a standby at this moment, to rewind it.
                        if error.sqlstate in (None, "57P01", "57P02", "57P03"):
                            raise
                        return f"{statement}: {error}"
                    if not rows and "lease_list" not in statement:
                        return f"no rows: {statement}"
            return "read"
        said = self.until(f"round {number}: a standby answers", 60, read)
        self.check(said == "read", f"round {number}: on a standby: {said}")
        if number > 1:
            return
        if not CONSOLE.exists():
            say(f"the console was not built, so it is not tried: {CONSOLE}")
            return
        url = f"postgres://postgres:{self.cluster.password}@{node.address}/fetchq"
        listen = f"{OUTSIDE}:8090"
        env = {"FETCHQ_URL": url, "FETCHQ_LISTEN": listen, "PATH": os.environ["PATH"]}
        log = open(self.logs / "console.err", "ab")
        program = subprocess.Popen([CONSOLE, "serve", "--insecure", "--origin", f"http://{listen}"], env=env, stdout=log, stderr=log, preexec_fn=with_parent)
        try:
            def get(path):
                with urllib.request.urlopen(f"http://{listen}{path}", timeout=10) as reply:
                    return reply.status, reply.geturl(), reply.read().decode()
            def answers():
                try:
                    return get("/")
                except OSError:
                    return None
            _, home, _ = self.until("the console", 20, answers)
            database = home.removeprefix(f"http://{listen}").split("?")[0].rstrip("/")
            for path in ("", "/queues/ha", "/queues/probe", "/workers", "/schedules", "/maintenance"):
                try:
                    status, _, text = get(database + path)
                    self.check(status == 200 and "<html" in text, f"the console of a standby: {path}: {status}")
                except OSError as error:
                    self.check(False, f"the console of a standby: {database}{path}: {error}")
            say(f"the console reads the standby {node.name}")
        except Failed as failure:
            self.check(False, str(failure))
        finally:
            program.kill()
            program.wait()

    # ------------------------------------------------------------------------ checks --
    def events(self):
        return Ledgers(self.logs).fresh()

    def check_acknowledged(self, number, fault, result):
        """What was acknowledged is there."""
        acknowledged = {"push": {}, "done": {}, "pop": {}}
        # Events come first: what they say must be in what is read afterwards.
        for event in self.events():
            if event["e"] in acknowledged:
                key = (event["q"], event["s"]) if event["e"] == "push" else event["s"]
                acknowledged[event["e"]][key] = event["t"]

        def read():
            with psycopg.connect(self.conninfo(), autocommit=True, connect_timeout=2) as db, db.transaction():
                db.execute("set transaction isolation level repeatable read")
                pushed = set(db.execute("select queue, subject from ha_pushed").fetchall())
                there = set(db.execute("select 'ha', subject from fetchq_data.ha__docs union all select 'jobs', subject from fetchq_data.jobs__docs").fetchall())
                done = {s for (s,) in db.execute("select r.subject from ha_results r where not exists "
                    "(select from fetchq_data.ha__docs d where d.subject = r.subject and d.status <> 3)")}
                popped = {s for (s,) in db.execute("select p.subject from ha_popped p where not exists "
                    "(select from fetchq_data.pops__docs d where d.subject = p.subject)")}
                pops = {("pops", s) for (s,) in db.execute("select subject from fetchq_data.pops__docs union all select subject from ha_popped")}
                return (pushed & (there | pops)), done, popped
        pushed, done, popped = self.until("the documents are read", 30, read)
        lost = {}
        for event, found in (("push", pushed), ("done", done), ("pop", popped)):
            missing = set(acknowledged[event]) - found - self.lost_before[event]
            self.lost_before[event] |= missing
            if missing:
                ages = sorted(acknowledged[event][key] - fault for key in missing)
                lost[event] = {"count": len(missing), "first": round(ages[0], 3), "last": round(ages[-1], 3)}
            if not self.options.asynchronous:
                self.check(not missing, f"round {number}: acknowledged and lost: {event}: {sorted(missing)[:5]} of {len(missing)}")
        result["acknowledged"] = {event: len(keys) for event, keys in acknowledged.items()}
        result["lost"] = lost

    def measure_gap(self, fault, result):
        """The longest time between two writes of the probe that succeeded, around the fault."""
        times = [e["t"] for e in self.events() if e["e"] == "probe" and e["t"] > fault - 2]
        gaps = [(b - a, a) for a, b in zip(times, times[1:]) if b > fault]
        result["gap"] = max(gaps)[0]
        # A second gap: when the old primary comes back.
        result["gaps"] = [round(g, 2) for g, _ in gaps if g > 1.0]
        done = [e["t"] for e in self.events() if e["e"] == "done" and e["w"].startswith("w") and e["t"] > fault - 2]
        gaps = [b - a for a, b in zip(done, done[1:]) if b > fault]
        if gaps:
            result["settle_gap"] = max(gaps)

    def check_leases(self):
        """The numbers of leases, and which documents two workers had at a time."""
        given, last, ended, twice = defaultdict(list), {}, {}, []
        settled = {}
        errors = Counter()
        for event in self.events():
            subject = event.get("s")
            if event["e"] == "lease":
                number = event["l"]
                self.check(number not in given[subject], f"{subject} got lease {number} twice")
                if subject in last and last[subject][0] >= number:
                    self.check(False, f"{subject} got lease {number} after {last[subject][0]}")
                if subject in last and (subject, last[subject][0]) not in ended and event["t"] < last[subject][1] + LEASE - 1:
                    twice.append((subject, last[subject][0], number))
                given[subject].append(number)
                last[subject] = (number, event["t"])
            elif event["e"] == "done":
                ended[subject, event["l"]] = True
                settled.setdefault(subject, []).append(event["l"])
            elif event["e"] == "lost":
                ended[subject, event["l"]] = True
                errors["settled with a lost lease: refused"] += 1
            elif event["e"] == "error":
                errors["errors of a connection"] += 1
        doubly = {s: leases for s, leases in settled.items() if len(leases) > 1}
        if self.options.asynchronous:
            say(f"documents that two leases settled, the first one lost with a server: {len(doubly)}")
        else:
            self.check(not doubly, f"settled twice: {list(doubly.items())[:5]}")
        if self.options.synchronous_leases and not self.options.asynchronous:
            self.check(not twice, f"leased twice at a time: {twice[:5]}")
        return {"leases": sum(map(len, given.values())), "leased again while a worker had a lost lease": len(twice), **errors}

    def finish(self):
        """Everything is settled; the counters are exact."""
        self.stop_producers()
        self.cluster.wait_healthy()
        node = self.cluster.primary()
        def is_drained():
            with node.connect() as db:
                return db.execute("select (select count(*) from fetchq_data.ha__docs where status in (0, 1, 2)) "
                    "+ (select count(*) from fetchq_data.jobs__docs where status in (0, 1, 2)) + (select count(*) from fetchq_data.pops__docs)").fetchone()[0] == 0
        self.until("the queues are drained", 180, is_drained, 1)
        self.stop_load()
        with node.connect() as db:
            one = lambda statement: db.execute(statement).fetchone()
            db.execute("select fetchq.schedule_pause('second')")
            for queue in ("ha", "pops", "jobs", "fence", "bound", "ticks"):
                counted = one(f"select cnt, pln, pnd, act, kll, cpl from fetchq.metric_compute('{queue}')")
                told = one(f"select cnt, pln, pnd, act, kll, cpl from fetchq.metric_get_common('{queue}')")
                self.check(counted == told, f"counters of {queue}: counted {counted}, told {told}")
            for queue, table in (("ha", "ha_results"), ("jobs", "results"), ("pops", "ha_popped")):
                told = dict(db.execute("select metric, sum(value)::bigint from fetchq.metrics_exact where queue = %s group by 1", [queue]).fetchall())
                pushed = one(f"select count(*) from ha_pushed where queue = '{queue}'")[0]
                results, subjects = one(f"select count(*), count(distinct subject) from {table}")
                self.check(results == subjects, f"{table}: {results} results of {subjects} documents")
                self.check(told.get("ent") == pushed, f"{queue}: {pushed} pushed, {told.get('ent')} told")
                self.check(told.get("suc") == results == pushed, f"{queue}: {results} results, {told.get('suc')} told, {pushed} pushed")
            ticks, times, told = one("select count(*), count(distinct next_iteration), (select ticks from fetchq.schedule_list() where name = 'second') from fetchq_data.ticks__docs")
            self.check(ticks == times == told, f"{ticks} ticks at {times} times, {told} told")
            missing = one("select max(next_iteration) - min(next_iteration), count(*) from fetchq_data.ticks__docs")
            self.check(missing[0].total_seconds() + 1 == missing[1], f"ticks: {missing[1]} in {missing[0]}")
        leases = self.check_leases()
        return {"ticks": ticks, **leases}

    def summary(self, totals):
        say("totals:", json.dumps(totals))
        for kind in dict.fromkeys(r["kind"] for r in self.rounds):
            rounds = [r for r in self.rounds if r["kind"] == kind]
            def spread(values):
                values = [v for v in values if v is not None]
                return f"{statistics.median(values):.1f} / {max(values):.1f}" if values else "-"
            lost = Counter()
            for r in rounds:
                for event, what in r["lost"].items():
                    lost[event] += what["count"]
            after = lambda key: spread([r["after"].get(key) for r in rounds])
            say(f"{kind}: {len(rounds)} rounds; median / maximum in seconds: no service {spread([r['gap'] for r in rounds])}; "
                f"promoted {spread([r['promoted'] for r in rounds])}; after the promotion: first write {after('first_write')}, "
                f"status {after('status')}, background worker {after('worker')}, tick {after('tick')}, bound leases {after('bound')}, "
                f"a waiter is woken {after('woken')}; all nodes again {spread([r['healthy'] for r in rounds])}; "
                f"leases of the fence lost {sum(r['fence'][-1]['lost'] for r in rounds)}; lost {dict(lost)}")
        if self.options.report:
            Path(self.options.report).write_text(json.dumps({"totals": totals, "rounds": self.rounds, "failures": self.failures}, indent=1))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default="kill,freeze,cut")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--async", dest="asynchronous", action="store_true")
    parser.add_argument("--synchronous-leases", action="store_true")
    parser.add_argument("--dsn", choices=("haproxy", "hosts"), default="haproxy")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--report")
    options = parser.parse_args()
    is_ending = threading.Event()

    def interrupted(number, _):
        # Another signal must not interrupt the removal.
        if not is_ending.is_set():
            is_ending.set()
            sys.exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, interrupted)
    run = Run(options)
    is_done, totals = False, {}
    try:
        run.prepare()
        say("the cluster runs")
        run.start_load()
        number = 0
        for _ in range(options.rounds):
            for kind in options.kinds.split(","):
                number += 1
                run.round(number, kind)
        totals = run.finish()
        is_done = True
    except (Failed, RuntimeError, psycopg.Error, subprocess.CalledProcessError) as failure:
        run.failures.append(f"{type(failure).__name__}: {failure}")
        say("FAILED:", run.failures[-1], getattr(failure, "stderr", ""))
    finally:
        is_ending.set()
        for process in run.clients:
            process.kill()
        run.example_runs = False
        run.cluster.remove()
    if run.rounds:
        run.summary(totals)
    say("passed" if is_done and not run.failures else f"{len(run.failures)} failures")
    sys.exit(0 if is_done and not run.failures else 1)


main()
