"""Tests of the worker loop for Python in examples/."""

import os
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import psycopg
from psycopg import conninfo, sql
from psycopg.types.json import Jsonb

URL = os.environ["FETCHQ_URL"]
DATABASE = "python_examples"
PROGRAM = Path(__file__).resolve().parents[2] / "examples" / "python_worker.py"
HERE = conninfo.make_conninfo(URL, dbname=DATABASE)


def drop_database(admin):
    # FORCE is needed because background workers may be connected.
    admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(DATABASE)))


def setUpModule():
    with psycopg.connect(URL, dbname="postgres", autocommit=True) as admin:
        drop_database(admin)
        admin.execute(sql.SQL("create database {} template template0").format(sql.Identifier(DATABASE)))
    with psycopg.connect(HERE, autocommit=True) as db:
        db.execute("create extension fetchq")
        db.execute("create table results (subject text, result jsonb)")


def tearDownModule():
    with psycopg.connect(URL, dbname="postgres", autocommit=True) as admin:
        drop_database(admin)


class Worker(unittest.TestCase):
    def setUp(self):
        self.db = psycopg.connect(HERE, autocommit=True)
        self.addCleanup(self.db.close)
        self.one("select fetchq.queue_create('q')")
        self.one("select fetchq.queue_truncate('q')")
        self.db.execute("truncate results")
        self.one('''select fetchq.queue_configure('q', '{"retry": {"base": "1 day"}}')''')

    def tearDown(self):
        counted = "select cnt, pln, pnd, act, kll, cpl from "
        self.assertEqual(self.one(counted + "fetchq.metric_compute('q')"), self.one(counted + "fetchq.metric_get_common('q')"))

    def one(self, query, *params):
        return self.db.execute(query, params).fetchone()

    def put(self, subject, **payload):
        self.assertEqual(self.one("select fetchq.doc_put('q', %s, %s)", subject, Jsonb(payload)), ("created",))

    def state(self, subject):
        return self.one("select status, attempts from fetchq_data.q__docs where subject = %s", subject)

    def becomes(self, subject, *wanted):
        """Waits for a status and a number of attempts, and runs maintenance meanwhile."""
        deadline = time.monotonic() + 30
        while self.state(subject) != wanted:
            self.assertLess(time.monotonic(), deadline, f"{subject} is {self.state(subject)}, not {wanted}")
            self.one("select fetchq.mnt_run('q', 100)")
            time.sleep(0.02)

    def start(self, grace, lease, program=PROGRAM):
        env = os.environ | {"DATABASE_URL": HERE, "GRACE": str(grace), "LEASE": str(lease)}
        worker = subprocess.Popen([sys.executable, program, "q", "example"], env=env)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        return worker

    def test_work(self):
        """Results, errors, a job that is cancelled, a job longer than its lease, a clean end."""
        self.put("good")
        self.put("bad", fail="bad luck")
        worker = self.start(20, 3)
        self.becomes("good", 3, 0)
        self.becomes("bad", 1, 1)
        self.assertEqual(self.one("select last_error from fetchq_data.q__docs where subject = 'bad'"), ("bad luck",))
        self.put("cancelled", sleep=600)
        self.becomes("cancelled", 2, 1)
        self.one("select fetchq.doc_cancel('q', 'cancelled')")
        self.put("long", sleep=5)
        self.becomes("long", 2, 1)
        worker.terminate()
        self.becomes("long", 3, 0)
        self.assertEqual(worker.wait(30), 0)
        results = self.db.execute("select subject, result from results order by 1").fetchall()
        self.assertEqual(results, [("good", {"worked": True}), ("long", {"worked": True})])

    def test_no_time(self):
        self.put("endless", sleep=600)
        worker = self.start(0.3, 60)
        self.becomes("endless", 2, 1)
        worker.terminate()
        self.assertEqual(worker.wait(30), 0)
        self.assertEqual(self.state("endless"), (1, 0))

    def test_kill(self):
        self.put("endless", sleep=600)
        worker = self.start(20, 86400)
        self.becomes("endless", 2, 1)
        worker.kill()
        self.assertEqual(worker.wait(30), -signal.SIGKILL)
        self.becomes("endless", 1, 1)

    def test_failures(self):
        """A document that fails is rejected with its error, and the worker goes on."""
        for statement in (
            "create sequence unused",
            """create function fails() returns trigger language plpgsql as
                'begin perform currval(''unused''); return new; end'""",
            # The results cannot be written, with the SQLSTATE of a lost lease.
            """create trigger refuse before insert on results
                for each row when (new.subject = 'refused') execute function fails()""",
            """create trigger refuse before update on fetchq_data.q__docs
                for each row when (new.status = 2 and new.subject = 'stuck') execute function fails()""",
        ):
            self.db.execute(statement)
        self.addCleanup(self.db.execute, "drop sequence unused; drop function fails() cascade")
        # A job that raises what its payload says, and returns what is no JSON.
        source = PROGRAM.read_text()
        raises = 'raise RuntimeError(payload["fail"])'
        self.assertIn(raises, source)
        source = source.replace(raises, 'raise eval(payload["fail"])').replace('return {"worked": True}', 'return {"worked": {1} if "set" in payload else True}')
        changed = tempfile.NamedTemporaryFile("w", suffix=".py")
        self.addCleanup(changed.close)
        changed.write(source)
        changed.flush()
        failures = {
            "long": ("RuntimeError('é' * 9000)", "é" * 2000),
            "nul": (r"RuntimeError('a\0b')", "ab"),
            "half": (r"RuntimeError('a\ud800b')", "a?b"),
            "empty": ("AssertionError()", "AssertionError()"),
        }
        for subject, (error, _) in failures.items():
            self.put(subject, fail=error)
        self.put("set", set=True)
        self.put("refused")
        self.put("after")
        worker = self.start(20, 60, changed.name)
        self.becomes("after", 3, 0)
        told = "select last_error from fetchq_data.q__docs where subject = %s"
        for subject, (_, message) in failures.items():
            self.assertEqual(self.state(subject), (1, 1), subject)
            self.assertEqual(self.one(told, subject), (message,))
        self.assertIn("not JSON serializable", self.one(told, "set")[0])
        self.assertIn("currval of sequence", self.one(told, "refused")[0])
        self.one("select fetchq.worker_stop('example')")
        self.assertEqual(worker.wait(30), 0)

        # The finished document is settled, and the error of the next one ends the worker.
        self.put("first")
        self.put("stuck")
        worker = self.start(20, 60)
        self.assertNotEqual(worker.wait(30), 0)
        self.assertEqual(self.state("first"), (3, 0))
        self.assertEqual(self.state("stuck"), (1, 0))
        results = self.db.execute("select subject from results order by 1").fetchall()
        self.assertEqual(results, [("after",), ("first",)])

    def test_stop(self):
        worker = self.start(20, 60)
        self.put("last")
        self.becomes("last", 3, 0)
        self.one("select fetchq.worker_stop('example')")
        self.assertEqual(worker.wait(30), 0)


if __name__ == "__main__":
    unittest.main()
