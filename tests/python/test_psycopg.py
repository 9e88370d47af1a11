"""Tests of psycopg 3, with typed bound parameters, against the server of FETCHQ_URL."""

import json
import os
import time
import unittest
from datetime import datetime, timedelta, timezone

import psycopg
from psycopg import conninfo, errors, sql
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb

URL = os.environ["FETCHQ_URL"]
DATABASE = "python_psycopg"
HOSTILE = "it's | '' | ''' | \"double\" | back\\slash \\' \\n | $$ $1 %s | line\nbreak | 🦊 漢字"
HOSTILE_PAYLOAD = {"text": HOSTILE, "key's \"\\\" 🦊": [HOSTILE, {"nested": HOSTILE}]}
PAST = datetime(2020, 1, 1, tzinfo=timezone.utc)


def connect(database=DATABASE, **options):
    return psycopg.connect(conninfo.make_conninfo(URL, dbname=database), autocommit=True, **options)


def drop_database(admin):
    # FORCE is needed because background workers may be connected.
    admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(DATABASE)))


def setUpModule():
    with connect("postgres") as admin:
        drop_database(admin)
        admin.execute(sql.SQL("create database {} template template0").format(sql.Identifier(DATABASE)))
    with connect() as db:
        db.execute("create extension fetchq")


def tearDownModule():
    with connect("postgres") as admin:
        drop_database(admin)


class Case(unittest.TestCase):
    """Each test has a connection, and a queue that is named after the test."""

    def setUp(self):
        self.queue = self.id().rsplit(".", 1)[1][:40]
        self.db = connect(row_factory=dict_row)
        self.addCleanup(self.db.close)
        self.one("select * from fetchq.queue_create(%s)", self.queue)

    def tearDown(self):
        if not self.db.closed:
            self.assert_counters()

    def assert_counters(self):
        """Asserts that the gauges equal a real count."""
        counted = self.one("select * from fetchq.metric_compute(%s)", self.queue)
        common = self.one("select * from fetchq.metric_get_common(%s)", self.queue)
        self.assertEqual(counted, {name: common[name] for name in counted})

    def all(self, query, *params, **options):
        return self.db.execute(query, params, **options).fetchall()

    def one(self, query, *params, **options):
        rows = self.all(query, *params, **options)
        self.assertEqual(len(rows), 1, query)
        return rows[0]

    def push(self, subject, payload=None, at=PAST):
        row = self.one("select * from fetchq.doc_push(%s, %s, %s, %s)", self.queue, subject, Jsonb(payload), at)
        self.assertEqual(row, {"queued_docs": 1})

    def pick(self, limit=1, duration="5m"):
        return self.all("select * from fetchq.doc_pick(%s, %s, %s, %s)", self.queue, 0, limit, duration)

    def statuses(self):
        docs = sql.Identifier("fetchq_data", f"{self.queue}__docs")
        rows = self.all(sql.SQL("select subject, status from {}").format(docs))
        return {row["subject"]: row["status"] for row in rows}


class Calls(Case):
    def test_every_form_of_push(self):
        q, one = self.queue, self.one
        queued = {"queued_docs": 1}
        self.assertEqual(one("select * from fetchq.doc_push(%s, %s)", q, "two"), queued)
        self.assertEqual(one("select * from fetchq.doc_push(%s, %s, %s)", q, "three", Jsonb({"n": 3})), queued)
        self.assertEqual(one("select * from fetchq.doc_push(%s, %s, %s, %s)", q, "four", Jsonb([4]), PAST), queued)
        self.assertEqual(one("select * from fetchq.doc_push(%s, %s, %s, %s, %s, %s)", q, "six", 0, 7, PAST, Jsonb({"n": 6})), queued)
        self.assertEqual(one("select * from fetchq.doc_push(%s, %s, %s, %s)", q, 0, PAST, "('list', 70000, '{}', {DATA})"), queued)
        self.assertEqual(one("select * from fetchq.doc_push(%s, %s)", q, "two"), {"queued_docs": 0})
        appended = [
            one("select * from fetchq.doc_append(%s, %s)", q, Jsonb({"n": 1}))["subject"],
            one("select * from fetchq.doc_append(%s, %s, %s, %s)", q, Jsonb({"n": 2}), 0, 1)["subject"],
        ]
        row = one("select * from fetchq.doc_upsert(%s, %s, %s, %s, %s, %s)", q, "up", 0, 2, PAST, Jsonb({}))
        self.assertEqual(row, {"queued_docs": 1, "updated_docs": 0})
        row = one("select * from fetchq.doc_upsert(%s, %s, %s, %s, %s, %s)", q, "up", 0, 3, PAST, Jsonb({"n": 9}))
        self.assertEqual(row, {"queued_docs": 0, "updated_docs": 1})
        picked = [doc["subject"] for doc in self.pick(100)]
        self.assertEqual(picked, ["list", "six", "up", appended[1], "four", "two", "three", appended[0]])

    def test_named_arguments(self):
        row = self.one(
            "select * from fetchq.doc_push(queue => %s, subject => %s, payload => %s, next_iteration => %s)",
            self.queue, "named", Jsonb({"n": 1}), PAST,
        )
        self.assertEqual(row, {"queued_docs": 1})
        rows = self.all("select * from fetchq.doc_pick(queue => %s, duration => %s)", self.queue, timedelta(minutes=1))
        self.assertEqual([doc["payload"] for doc in rows], [{"n": 1}])

    def test_every_form_of_pick(self):
        forms = {
            "one": ("(%s)", ()),
            "limit": ("(%s, %s)", (1,)),  # The type is smallint.
            "interval": ("(%s, %s)", (timedelta(minutes=5),)),
            "text": ("(%s, %s)", ("5m",)),
            "full text": ("(%s, %s, %s, %s)", (0, 1, "5 minutes")),
            "full interval": ("(%s, %s, %s, %s)", (0, 1, timedelta(minutes=5))),
            "cast interval": ("(%s, %s, %s, %s::interval)", (0, 1, "5m")),
        }
        for subject, (arguments, params) in forms.items():
            with self.subTest(subject):
                self.push(subject, {"n": 1})
                doc = self.one(f"select *, next_iteration - now() as lease from fetchq.doc_pick{arguments}", self.queue, *params)
                self.assertEqual(doc.pop("lease"), timedelta(minutes=5))
                for column in ("created_at", "next_iteration"):
                    self.assertIsNotNone(doc.pop(column).tzinfo)
                self.assertEqual(doc, {
                    "subject": subject, "payload": {"n": 1}, "version": 0, "priority": 0, "attempts": 1,
                    "iterations": 0, "last_iteration": None, "lock_upgrade": None,
                })

    def test_settling(self):
        q = self.queue
        subjects = ["complete", "kill", "drop", "later", "now", "reject"]
        for subject in subjects:
            self.push(subject, {"n": 1})
        self.assertEqual(len(self.pick(10)), len(subjects))
        later = datetime.now(timezone.utc) + timedelta(hours=1)
        calls = [
            ("doc_complete(%s, %s, %s)", (q, "complete", Jsonb({"n": 2}))),
            ("doc_kill(%s, %s)", (q, "kill")),
            ("doc_drop(%s, %s)", (q, "drop")),
            ("doc_reschedule(%s, %s, %s)", (q, "later", later)),
            ("doc_reschedule(%s, %s, %s, %s)", (q, "now", PAST, Jsonb({"n": 3}))),
            ("doc_reject(%s, %s, %s, %s, %s)", (q, "reject", HOSTILE, Jsonb(HOSTILE_PAYLOAD), HOSTILE)),
        ]
        for expected in (1, 0):  # At the second call, no document is active.
            self.db.execute(f"set fetchq.strict = {'on' if expected else 'off'}")
            for call, params in calls:
                with self.subTest(call, expected=expected):
                    self.assertEqual(self.one(f"select * from fetchq.{call}", *params), {"affected_rows": expected})
        self.assertEqual(self.statuses(), {"complete": 3, "kill": -1, "later": 0, "now": 1, "reject": 1})
        self.assertEqual(
            self.all("select subject, message, details, ref_id from fetchq_data.test_settling__logs"),
            [{"subject": "reject", "message": HOSTILE, "details": HOSTILE_PAYLOAD, "ref_id": HOSTILE}],
        )
        steps = self.all("select * from fetchq.trace(%s, %s)", "reject", "DESC")
        self.assertEqual([(row["step"], row["type"]) for row in steps], [(2, "error"), (1, "document")])

    def test_hostile_text_survives_three_rounds(self):
        self.push(HOSTILE[:50], HOSTILE_PAYLOAD)
        for _ in range(3):
            (doc,) = self.pick()
            self.assertEqual((doc["subject"], doc["payload"]), (HOSTILE[:50], HOSTILE_PAYLOAD))
            self.one("select * from fetchq.doc_reschedule(%s, %s, %s, %s)", self.queue, doc["subject"], PAST, Jsonb(doc["payload"]))
        (doc,) = self.pick()
        self.assertEqual((doc["payload"], doc["iterations"]), (HOSTILE_PAYLOAD, 3))

    def test_queue_settings(self):
        q, one = self.queue, self.one
        self.assertEqual(one("select * from fetchq.queue_create(%s)", q)["was_created"], False)
        self.assertEqual(one("select * from fetchq.queue_set_max_attempts(%s, %s)", q, 3)["affected_rows"], 1)
        self.assertEqual(one("select * from fetchq.queue_set_current_version(%s, %s)", q, 70000)["affected_rows"], 1)
        self.assertEqual(one("select * from fetchq.queue_set_logs_retention(%s, %s)", q, "7 days")["affected_rows"], 1)
        policy = [{"retain": "minute", "from": "1h", "to": "0s"}]
        self.assertEqual(one("select * from fetchq.queue_set_metrics_retention(%s, %s)", q, json.dumps(policy))["affected_rows"], 1)
        row = one("select max_attempts, current_version, logs_retention, metrics_retention from fetchq.queues where name = %s", q)
        self.assertEqual(row, {"max_attempts": 3, "current_version": 70000, "logs_retention": "7 days", "metrics_retention": policy})
        self.assertEqual(one("select * from fetchq.queue_status(%s)", q)["is_active"], True)
        self.assertEqual(one("select * from fetchq.queue_drop_indexes(%s)", q), {"was_dropped": True})
        self.assertEqual(one("select * from fetchq.queue_create_indexes(%s, %s, %s)", q, 0, 5), {"was_created": True})
        self.assertEqual(one("select * from fetchq.queue_drop_version(%s, %s)", q, 70000), {"was_dropped": False})

    def test_logs_and_metrics_retention(self):
        q, one = self.queue, self.one
        for message in ("a", "b"):
            self.assertEqual(one("select * from fetchq.log_error(%s, %s, %s, %s)", q, "s", message, Jsonb({})), {"queued_logs": True})
        self.assertEqual(one("select * from fetchq.queue_drop_logs(%s, %s)", q, "1 hour"), {"affected_rows": 0})
        tomorrow = datetime.now(timezone.utc) + timedelta(days=1)
        self.assertEqual(one("select * from fetchq.queue_drop_logs(%s, %s)", q, tomorrow), {"affected_rows": 2})
        self.push("s")
        self.assertEqual(one("select * from fetchq.metric_snap(%s, %s)", q, "ent"), {"success": True, "inserts": 1})
        self.assertEqual(one("select * from fetchq.metric_snap(%s, %s)", q, Jsonb(["ent", "cnt"])), {"success": True, "inserts": 2})
        # If one unit of time has two snapshots of a metric, the newest is kept.
        policy = Jsonb([{"retain": "century", "from": "1000y", "to": "0s"}])
        self.assertEqual(one("select * from fetchq.queue_drop_metrics(%s, %s)", q, policy), {"removed_rows": 1})

    def test_metrics(self):
        q, one = self.queue, self.one
        self.assertEqual(one("select * from fetchq.metric_set(%s, %s, %s)", q, "m", 5), {"current_value": 5, "was_created": True})
        self.assertEqual(one("select * from fetchq.metric_increment(%s, %s, %s)", q, "m", 70000), {"current_value": 70005, "was_created": False})
        for call, value in (("increment", 7), ("decrement", 2)):
            self.assertEqual(one(f"select * from fetchq.metric_log_{call}(%s, %s, %s)", q, "m", value), {"affected_rows": 1})
        self.assertGreaterEqual(one("select * from fetchq.metric_log_pack()")["affected_rows"], 2)
        row = one("select * from fetchq.metric_get(%s, %s)", q, "m")
        self.assertEqual((row["current_value"], row["does_exists"]), (70010, True))
        self.assertEqual(one("select * from fetchq.metric_get_total(%s)", "m"), {"current_value": 70010, "does_exists": True})

    def test_maintenance(self):
        q, one = self.queue, self.one
        self.push("planned", at=datetime.now(timezone.utc) + timedelta(milliseconds=1))
        deadline = time.monotonic() + 10
        while self.statuses() != {"planned": 1}:
            self.assertLess(time.monotonic(), deadline, "never became pending")
            one("select * from fetchq.mnt_run(%s, %s)", q, 10)
        self.assertEqual(len(self.pick(duration=timedelta(0))), 1)
        self.assertEqual(one("select * from fetchq.mnt_run(%s, %s)", q, 10)["rescheduled_count"], 1)
        self.assertGreaterEqual(one("select * from fetchq.mnt(%s)", "5m")["processed"], 4)
        self.assertTrue(one("select * from fetchq.mnt_job_run(%s, %s)", "1 minute", 5)["success"])


class Protocol(Case):
    def test_types_of_variables(self):
        self.push("a")
        self.push("b")
        one = self.one
        self.assertEqual(one("select * from fetchq.doc_push(%s::varchar, %s::varchar)", self.queue, "c"), {"queued_docs": 1})
        self.assertEqual(one("select subject from fetchq.doc_pick(%s::varchar, %s::varchar)", self.queue, "5m"), {"subject": "a"})
        self.assertEqual(one("select subject from fetchq.doc_pick(%s::text, %s, %s, %s::varchar)", self.queue, 0, 1, "5m"), {"subject": "b"})
        self.assertEqual(one("select * from fetchq.doc_complete(%s::varchar, %s::varchar)", self.queue, "a"), {"affected_rows": 1})
        reject = "select * from fetchq.doc_reject(%s::varchar, %s::varchar, %s::varchar, %s, %s::varchar)"
        self.assertEqual(one(reject, self.queue, "b", "why", Jsonb({}), "ref"), {"affected_rows": 1})
        self.assertEqual(one("select * from fetchq.metric_get(%s::varchar, %s::varchar)", self.queue, "ent")["current_value"], 3)
        self.db.execute("""
            do $$
            declare
                q varchar(40) := 'test_types_of_variables'; s varchar := 'd'; body jsonb := '{}';
                small smallint := 0; lease varchar := '5m'; n int;
            begin
                select queued_docs into strict n from fetchq.doc_push(q, s, small, small, now(), body);
                perform from fetchq.doc_pick(q, small, 100::smallint, lease);
                assert found;
                select affected_rows into strict n from fetchq.doc_kill(q, s, body);
                assert n = 1;
            end $$""")

    def test_binary_parameters_and_results(self):
        cursor = self.db.cursor(binary=True)
        row = cursor.execute(
            "select * from fetchq.doc_push(%b, %b, %b, %b, %b, %b)",
            (self.queue, "s", 0, 1, PAST, Jsonb(HOSTILE_PAYLOAD)),
        ).fetchone()
        self.assertEqual(row, {"queued_docs": 1})
        doc = cursor.execute("select * from fetchq.doc_pick(%b, %b, %b, %b)", (self.queue, 0, 1, timedelta(minutes=5))).fetchone()
        self.assertEqual((doc["payload"], doc["iterations"]), (HOSTILE_PAYLOAD, 0))

    def test_prepared_statements(self):
        """Runs more than five times, because the server may then choose a generic plan."""
        rounds = 20
        for n in range(rounds):
            self.one("select * from fetchq.doc_push(%s, %s, %s)", self.queue, f"s{n:02}", Jsonb({"n": n}), prepare=True)
        for n in range(rounds):
            doc = self.one("select * from fetchq.doc_pick(%s, %s, %s, %s)", self.queue, 0, 1, timedelta(minutes=1), prepare=True)
            self.assertEqual(doc["payload"], {"n": n})
            row = self.one("select * from fetchq.doc_complete(%s, %s)", self.queue, doc["subject"], prepare=True)
            self.assertEqual(row, {"affected_rows": 1})
        prepared = self.one("select count(*) as n from pg_prepared_statements where statement like '%%fetchq.doc_%%' and not from_sql")
        self.assertEqual(prepared["n"], 3)

    def test_prepared_statements_outlive_the_queue(self):
        for _ in range(3):
            for n in range(6):
                self.one("select * from fetchq.doc_push(%s, %s)", self.queue, f"s{n}", prepare=True)
            self.assertEqual(len(self.all("select * from fetchq.doc_pick(%s, %s)", self.queue, 10, prepare=True)), 6)
            self.assertTrue(self.one("select * from fetchq.queue_drop(%s)", self.queue, prepare=True)["was_dropped"])
            self.assertTrue(self.one("select * from fetchq.queue_create(%s)", self.queue, prepare=True)["was_created"])

    def test_pipeline(self):
        with self.db.pipeline():
            pushes = [
                self.db.execute("select * from fetchq.doc_push(%s, %s, %s)", (self.queue, f"s{n:03}", Jsonb({"n": n})))
                for n in range(100)
            ]
            picked = self.db.execute("select subject from fetchq.doc_pick(%s, %s)", (self.queue, 100))
            completed = [self.db.execute("select * from fetchq.doc_complete(%s, %s)", (self.queue, f"s{n:03}")) for n in range(100)]
        self.assertEqual({cursor.fetchone()["queued_docs"] for cursor in pushes}, {1})
        self.assertEqual([row["subject"] for row in picked], [f"s{n:03}" for n in range(100)])
        self.assertEqual({cursor.fetchone()["affected_rows"] for cursor in completed}, {1})

    def test_pipeline_after_an_error(self):
        with self.assertRaises(errors.InvalidName):
            with self.db.pipeline(), self.db.transaction():
                self.db.execute("select * from fetchq.doc_push(%s, %s)", (self.queue, "undone"))
                self.db.execute("select * from fetchq.doc_push(%s, %s)", ("bad name", "s"))
        self.assertEqual(self.statuses(), {})
        self.push("after")

    def test_executemany(self):
        cursor = self.db.cursor()
        cursor.executemany("select * from fetchq.doc_push(%s, %s)", [(self.queue, f"s{n}") for n in range(50)])
        self.assertEqual(len(self.statuses()), 50)

    def test_transactions_and_savepoints(self):
        with self.db.transaction(force_rollback=True):
            self.push("rolled back")
            # Counters are also exact inside of the transaction.
            self.assert_counters()
            self.assertEqual(self.one("select * from fetchq.metric_get(%s, %s)", self.queue, "ent")["current_value"], 1)
        with self.db.transaction():
            self.push("kept")
            with self.db.transaction(force_rollback=True):
                self.assertEqual(len(self.pick()), 1)
                self.push("savepoint")
                self.assert_counters()
        self.assertEqual(self.statuses(), {"kept": 1})
        common = self.one("select * from fetchq.metric_get_common(%s)", self.queue)
        self.assertEqual((common["ent"], common["pkd"]), (1, 0))

    def test_copy(self):
        docs = sql.Identifier("fetchq_data", f"{self.queue}__docs")
        query = sql.SQL("copy {} (subject, status, next_iteration, payload) from stdin").format(docs)
        with self.db.cursor().copy(query) as copy:
            for n in range(1000):
                copy.write_row((f"s{n:04}", 1, PAST + timedelta(seconds=n), Jsonb({"n": n})))
        counted = self.one("select * from fetchq.metric_reset(%s)", self.queue)
        self.assertEqual(counted, {"cnt": 1000, "pln": 0, "pnd": 1000, "act": 0, "cpl": 0, "kll": 0})
        self.assertEqual([doc["payload"]["n"] for doc in self.pick(1000)], list(range(1000)))


class Notifications(Case):
    def setUp(self):
        super().setUp()
        self.heard = []
        self.listener = connect()
        self.addCleanup(self.listener.close)
        self.listener.add_notify_handler(lambda message: self.heard.append((message.channel, message.payload)))

    def listen(self, *channels):
        for channel in (*channels, "probe"):
            self.listener.execute(sql.SQL("listen {}").format(sql.Identifier(channel)))

    def wait(self):
        """Returns all notifications so far. The probe is sent after all others."""
        self.db.execute("notify probe")
        deadline = time.monotonic() + 10
        while ("probe", "") not in self.heard:
            self.assertLess(time.monotonic(), deadline, self.heard)
            self.listener.execute("select")
        heard, self.heard[:] = [message for message in self.heard if message[0] != "probe"], []
        return heard

    def test_states(self):
        q = self.queue
        channel = {state: f"fetchq__{q}__{state}" for state in ("pln", "pnd", "act", "cpl", "kll")}
        self.listen(*channel.values())
        self.push("silent")
        self.assertEqual(self.wait(), [])
        self.assertEqual(self.one("select * from fetchq.queue_enable_notify(%s)", q), {"success": True})

        subject = "it's 🦊"
        self.push(subject, at=datetime.now(timezone.utc) + timedelta(days=1))
        self.assertEqual(self.wait(), [(channel["pln"], subject)])
        self.one("select * from fetchq.doc_upsert(%s, %s, %s, %s, %s, %s)", q, subject, 0, 0, PAST, Jsonb({}))
        self.assertEqual(self.wait(), [(channel["pnd"], subject)])
        self.pick(2)
        self.assertEqual(sorted(self.wait()), sorted([(channel["act"], "silent"), (channel["act"], subject)]))
        self.one("select * from fetchq.doc_complete(%s, %s)", q, subject)
        self.assertEqual(self.wait(), [(channel["cpl"], subject)])
        self.one("select * from fetchq.doc_kill(%s, %s)", q, "silent")
        self.assertEqual(self.wait(), [(channel["kll"], "silent")])

        with self.db.transaction(force_rollback=True):
            self.push("rolled back")
        self.assertEqual(self.wait(), [])
        self.assertEqual(self.one("select * from fetchq.queue_disable_notify(%s)", q), {"success": True})
        self.push("silent again")
        self.assertEqual(self.wait(), [])

    def test_queues(self):
        self.listen("fetchq_queue_create", "fetchq_queue_drop")
        self.one("select * from fetchq.queue_create(%s)", "Announced")
        self.one("select * from fetchq.queue_create(%s)", "announced")  # The queue exists already.
        self.assertEqual(self.wait(), [("fetchq_queue_create", "announced")])
        self.one("select * from fetchq.queue_drop(%s)", "announced")
        with self.assertRaises(psycopg.errors.UndefinedObject):
            self.one("select * from fetchq.queue_drop(%s)", "announced")
        self.assertEqual(self.wait(), [("fetchq_queue_drop", "announced")])

    def test_registry_changes(self):
        self.listen("fetchq_on_change")

        def change(query, *params):
            self.db.execute(query, params)
            ((channel, text),) = self.wait()
            self.assertEqual(channel, "fetchq_on_change")
            message = json.loads(text)
            self.assertEqual((message["schema"], message["table"]), ("fetchq", "queues"))
            self.assertIsNotNone(datetime.fromisoformat(message["timestamp"]).tzinfo)
            return message

        created = change("select * from fetchq.queue_create('changes')")
        self.assertEqual((created["operation"], created["old_data"], created["new_data"]["name"]), ("INSERT", None, "changes"))
        updated = change("update fetchq.queues set is_active = false where name = 'changes'")
        self.assertEqual(updated["operation"], "UPDATE")
        self.assertEqual((updated["old_data"]["is_active"], updated["new_data"]["is_active"]), (True, False))

        # A change that is too long for a notification must not fail, and is still announced.
        big = change("update fetchq.queues set config = %s where name = 'changes'", Jsonb({"text": "🦊" * 5000}))
        self.assertEqual(big["operation"], "UPDATE")
        stored = self.one("select config from fetchq.queues where name = 'changes'")
        self.assertEqual(len(stored["config"]["text"]), 5000)

        dropped = change("select * from fetchq.queue_drop('changes')")
        self.assertEqual((dropped["operation"], dropped["new_data"]), ("DELETE", None))


class Errors(Case):
    def test_a_cancelled_maintenance_run_leaves_no_transaction(self):
        """With autocommit the session must be usable at once, and must have no lock."""
        with connect() as other:
            # Maintenance waits for no lock, but for what the owner has attached to the table.
            other.execute("create function slowly() returns trigger language plpgsql as $$begin perform pg_sleep(30); return new; end$$")
            other.execute(f"create trigger slowly before update on fetchq_data.{self.queue}__docs for each row execute function slowly()")
            other.execute(f"insert into fetchq_data.{self.queue}__docs (subject, next_iteration) values ('slow', now() - interval '1 hour')")
            self.db.execute("update fetchq.jobs set next_iteration = now() - interval '1 day' where queue = %s", (self.queue,))
            self.db.execute("set statement_timeout = '200ms'")
            with self.assertRaises(psycopg.errors.QueryCanceled):
                self.db.execute("select * from fetchq.mnt_job_run(4)")
            self.assertEqual(self.db.info.transaction_status, psycopg.pq.TransactionStatus.IDLE)
            self.assertEqual(self.one("select 1 as one"), {"one": 1})
            self.db.execute("reset statement_timeout")
            # The claim was rolled back with everything else.
            self.assertEqual(other.execute("select count(*) from fetchq.jobs where queue = %s and attempts > 0", (self.queue,)).fetchone()[0], 0)
            other.execute("drop function slowly cascade")
        self.assertEqual(self.one("select * from fetchq.mnt_job_run(4)")["success"], True)

    def test_sqlstates(self):
        self.push("waiting")
        q = self.queue
        cases = [
            ("42602", "queue_create(%s)", ('x"; drop table y',)),
            ("42602", "queue_create(%s)", ("",)),
            ("42602", "queue_create(%s)", ("x" * 41,)),
            ("42602", "doc_push(%s, %s)", ("1digit", "s")),
            ("42602", "doc_pick(%s)", ("no such-name",)),
            ("22001", "doc_push(%s, %s)", (q, "x" * 256)),
            ("22001", "doc_upsert(%s, %s, %s, %s, %s, %s)", (q, "x" * 256, 0, 0, PAST, Jsonb({}))),
            ("22023", "doc_pick(%s, %s)", (q, -1)),
            ("22023", "mnt_run(%s, %s)", (q, -1)),
            ("22023", "doc_pick(%s, %s)", (q, timedelta(minutes=-5))),
            ("22023", "doc_push(%s, %s, %s, %s)", (q, 0, PAST, "('s', 1 + 1, '{}', {DATA})")),
            ("22023", "doc_push(%s, %s, %s, %s)", (q, 0, PAST, "(pg_sleep(1), 0, '{}', {DATA})")),
            ("22023", "queue_set_metrics_retention(%s, %s)", (q, '[{"retain": 1}]')),
            ("22007", "doc_pick(%s, %s)", (q, "not an interval")),
            ("22007", "queue_set_logs_retention(%s, %s)", (q, "nonsense")),
            ("22007", "doc_push(%s, %s, %s, %s)", (q, "s", Jsonb({}), "not a time")),
            ("22P02", "doc_push(%s, %s, %s)", (q, "s", "{bad json")),
            ("22P02", "doc_push(%s, %s, %s, %s)", (q, 0, PAST, "('s', 0, '{bad json', {DATA})")),
            ("22004", "doc_push(%s, %s)", (q, None)),
            ("22004", "doc_pick(%s, %s, %s, %s)", (q, 0, None, "5m")),
        ]
        for state, call, params in cases:
            with self.subTest(call, params=params):
                with self.assertRaises(psycopg.Error) as caught:
                    self.db.execute(f"select * from fetchq.{call}", params)
                self.assertEqual(caught.exception.sqlstate, state, caught.exception)
        self.assertEqual(self.statuses(), {"waiting": 1})

    def test_own_errors_have_hints(self):
        for call, params in (("queue_create(%s)", ("no-dash",)), ("doc_push(%s, %s)", (self.queue, "x" * 256)), ("doc_pick(%s, %s)", (self.queue, -1))):
            with self.subTest(call), self.assertRaises(psycopg.Error) as caught:
                self.db.execute(f"select * from fetchq.{call}", params)
            self.assertTrue(caught.exception.diag.message_hint)

    def collect_notices(self):
        notices = []
        # The argument of a handler is valid during the call only.
        self.db.add_notice_handler(lambda n: notices.append((n.severity_nonlocalized, n.sqlstate, n.message_primary, n.message_hint)))
        return notices

    LENIENT = [
        # (call, parameters, the value that fetchq 4 returned, sqlstate, words of the message)
        ("doc_push(%s, %s)", ("nowhere", "s"), [{"queued_docs": 0}], "42704", 'queue "nowhere" does not exist'),
        ("doc_append(%s, %s)", ("nowhere", Jsonb({})), [{"subject": None}], "42704", 'queue "nowhere" does not exist'),
        ("doc_pick(%s)", ("nowhere",), [], "42704", 'queue "nowhere" does not exist'),
        ("doc_complete(%s, %s)", ("nowhere", "s"), [{"affected_rows": 0}], "42704", 'queue "nowhere" does not exist'),
        ("doc_complete(%s, %s)", ("test_lenient", "absent"), [{"affected_rows": 0}], "55000", '"absent"'),
        ("doc_complete(%s, %s)", ("test_lenient", "waiting"), [{"affected_rows": 0}], "55000", "pending"),
        ("doc_kill(%s, %s)", ("test_lenient", "waiting"), [{"affected_rows": 0}], "55000", "pending"),
        ("doc_drop(%s, %s)", ("test_lenient", "waiting"), [{"affected_rows": 0}], "55000", "pending"),
        ("doc_reschedule(%s, %s, %s)", ("test_lenient", "waiting", PAST), [{"affected_rows": 0}], "55000", "pending"),
        ("doc_reject(%s, %s, %s, %s)", ("test_lenient", "waiting", "m", Jsonb({})), [{"affected_rows": 0}], "55000", "pending"),
    ]

    def test_lenient(self):
        """fetchq 4 was silent. Now there is an error, and with compat a warning and the old value."""
        self.push("waiting")
        self.db.execute("set fetchq.compat = '4.2.0'")
        notices = self.collect_notices()
        for call, params, value, state, words in self.LENIENT:
            with self.subTest(call, params=params):
                notices.clear()
                self.assertEqual(self.all(f"select * from fetchq.{call}", *params), value)
                ((severity, sqlstate, message, hint),) = notices
                self.assertEqual((severity, sqlstate), ("WARNING", state))
                self.assertIn(words, message)
                self.assertTrue(hint)
        self.db.execute("reset fetchq.compat")
        for call, params, _, state, words in self.LENIENT:
            with self.subTest(call, params=params, strict=True):
                notices.clear()
                if call.startswith(("doc_kill", "doc_drop")):
                    # Nobody has leased it, so nobody can lose it.
                    with self.db.transaction(force_rollback=True):
                        self.assertEqual(self.all(f"select * from fetchq.{call}", *params), [{"affected_rows": 1}])
                    continue
                with self.assertRaises(psycopg.Error) as caught:
                    self.db.execute(f"select * from fetchq.{call}", params)
                self.assertEqual(caught.exception.sqlstate, state)
                self.assertIn(words, caught.exception.diag.message_primary)
                self.assertEqual(notices, [])
        self.assertEqual(self.statuses(), {"waiting": 1})

    def test_a_role_without_rights(self):
        self.push("waiting")
        role = sql.Identifier("python_nobody")
        with self.db.transaction(force_rollback=True):
            self.db.execute(sql.SQL("create role {}").format(role))
            for step in ("nothing", "usage"):
                if step == "usage":
                    self.db.execute(sql.SQL("grant usage on schema fetchq, fetchq_data to {}").format(role))
                self.db.execute(sql.SQL("set local role {}").format(role))
                for call, params in (
                    ("doc_push(%s, %s)", (self.queue, "s")),
                    ("doc_pick(%s)", (self.queue,)),
                    ("queue_create(%s)", ("other",)),
                    ("queue_drop(%s)", (self.queue,)),
                    ("metric_get(%s)", (self.queue,)),
                    ("destroy_with_terrible_consequences()", ()),
                ):
                    with self.subTest(call, step=step), self.assertRaises(errors.InsufficientPrivilege):
                        with self.db.transaction():
                            self.db.execute(f"select * from fetchq.{call}", params)
                # Calls for all queues concern those that the role manages: none.
                if step == "usage":
                    self.assertEqual(self.all("select * from fetchq.mnt_run_all(%s)", 10), [])
                self.db.execute("reset role")
        self.assertEqual(self.statuses(), {"waiting": 1})

    def test_read_only_transactions(self):
        self.push("waiting")
        self.db.read_only = True
        with self.db.transaction():
            self.assertEqual(self.one("select * from fetchq.metric_get(%s, %s)", self.queue, "cnt")["current_value"], 1)
        for call, params in (("doc_pick(%s)", (self.queue,)), ("doc_push(%s, %s)", (self.queue, "s"))):
            with self.subTest(call), self.assertRaises(errors.ReadOnlySqlTransaction), self.db.transaction():
                self.db.execute(f"select * from fetchq.{call}", params)


if __name__ == "__main__":
    unittest.main()
