"""Calls every function of layer 5 from psycopg 3 and from asyncpg, with the types that are natural in
Python, directly and through PgBouncer in transaction mode. The calls are in tests/contract.json."""

import asyncio
import json
import os
import signal
import subprocess
import time
import unittest
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import asyncpg
import psycopg
from psycopg import sql
from psycopg.types.json import Jsonb

ROOT = Path(__file__).resolve().parents[2]
URL = os.environ["FETCHQ_URL"]
CALLS = json.loads((ROOT / "tests/contract.json").read_text(encoding="utf-8"))


def url_of(database, port=None):
    """Returns the URL of a database, on the server itself or on another port."""
    parts = urlsplit(URL)
    place = parts.netloc if port is None else f"{parts.netloc.rpartition(':')[0]}:{port}"
    return urlunsplit((parts.scheme, place, f"/{database}", "", ""))


def create_database(name):
    drop_database(name)
    with psycopg.connect(url_of("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("create database {} template template0").format(sql.Identifier(name)))
    with psycopg.connect(url_of(name), autocommit=True) as db:
        db.execute("create extension fetchq")
        for statement in CALLS["prepare"]:
            db.execute(statement)


def drop_database(name):
    with psycopg.connect(url_of("postgres"), autocommit=True) as admin:
        admin.execute(sql.SQL("drop database if exists {} with (force)").format(sql.Identifier(name)))


class Pooler:
    """PgBouncer in front of the server, by scripts/pooler.sh."""

    def __init__(self, name):
        folder = os.path.join(os.environ["FETCHQ_STATE_DIR"], f"pooler-{name}")
        command = [str(ROOT / "scripts/pooler.sh"), folder]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.port = int(self.process.stdout.readline())

    def wait_for(self, database):
        """Waits until it answers."""
        deadline = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(url_of(database, self.port)).close()
                return
            except psycopg.OperationalError:
                assert self.process.poll() is None, "PgBouncer has ended"
                assert time.monotonic() < deadline, "PgBouncer does not answer"
                time.sleep(0.05)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.process.stdout.close()


def kind_of(value):
    """Returns the kind of a value, and what it is made of."""
    if isinstance(value, dict):
        ((kind, content),) = value.items()
        return kind, content
    return "plain", value


def python_time(text):
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def statement_of(call, name, places):
    """Returns the statement of a call, with a placeholder for each argument."""
    named = ", ".join(f"{a} => {p}" for a, p in zip(call["arguments"], places))
    verb = "call" if call.get("procedure") else "select * from"
    return f"{verb} fetchq.{name}({named})"


class Psycopg:
    """psycopg 3: the types of Python as they are; Jsonb() for JSON."""

    async def connect(self, url):
        # Prepared statements belong to a server connection, which a pooler shares.
        self.db = await psycopg.AsyncConnection.connect(url, autocommit=True, prepare_threshold=None)

    async def run(self, statement):
        await self.db.execute(statement)

    async def value(self, query):
        return (await (await self.db.execute(query)).fetchone())[0]

    async def natural(self, value):
        kind, content = kind_of(value)
        if kind == "json":
            return Jsonb(content)
        if kind == "jsons":
            return [Jsonb(c) for c in content]
        if kind == "interval":
            return timedelta(seconds=content)
        if kind == "time":
            return python_time(content)
        if kind == "value of":
            return await self.value(content)
        return content

    async def call(self, name, call):
        values = [await self.natural(v) for v in call["arguments"].values()]
        statement = statement_of(call, name, ["%s"] * len(values))
        cursor = await self.db.execute(statement, values)
        # A procedure without results has no rows to read.
        return len(await cursor.fetchall()) if cursor.description else 0

    async def close(self):
        await self.db.close()


class Asyncpg:
    """asyncpg: the types of Python as they are; json.dumps() for JSON."""

    async def connect(self, url):
        self.db = await asyncpg.connect(url, statement_cache_size=0)

    async def run(self, statement):
        await self.db.execute(statement)

    async def value(self, query):
        return await self.db.fetchval(query)

    async def natural(self, value):
        kind, content = kind_of(value)
        if kind == "json":
            return json.dumps(content)
        if kind == "jsons":
            return [json.dumps(c) for c in content]
        if kind == "interval":
            return timedelta(seconds=content)
        if kind == "time":
            return python_time(content)
        if kind == "value of":
            return await self.value(content)
        return content

    async def call(self, name, call):
        values = [await self.natural(v) for v in call["arguments"].values()]
        statement = statement_of(call, name, [f"${i + 1}" for i in range(len(values))])
        return len(await self.db.fetch(statement, *values))

    async def close(self):
        await self.db.close()


async def one_call(driver, name, call):
    """Makes a call, and asserts what it does."""
    is_procedure = call.get("procedure", False)
    # What is not a procedure leaves nothing behind. A procedure ends its own transactions.
    if not is_procedure:
        await driver.run("begin")
    try:
        for statement in call.get("before", []):
            await driver.run(statement)
        rows = await driver.call(name, call)
        expected = call.get("rows", 1)
        if expected is not None:
            assert rows == expected, f"{rows} rows instead of {expected}"
        if "check" in call:
            assert await driver.value(call["check"]) is True, f"this is not true: {call['check']}"
    finally:
        for statement in call.get("after", []):
            await driver.run(statement)
        if not is_procedure:
            await driver.run("rollback")


class Calls(unittest.TestCase):
    def calls(self, driver, database, port=None):
        async def all_calls():
            await driver.connect(url_of(database, port))
            for name, call in CALLS["calls"].items():
                with self.subTest(name):
                    await one_call(driver, name, call)
            await driver.close()

        self.assertGreater(len(CALLS["calls"]), 60)
        asyncio.run(all_calls())

    def calls_on(self, driver, database):
        create_database(database)
        self.addCleanup(drop_database, database)
        self.calls(driver, database)

    def calls_behind_a_pooler(self, driver, database):
        create_database(database)
        self.addCleanup(drop_database, database)
        pooler = Pooler(database)
        self.addCleanup(pooler.end)
        pooler.wait_for(database)
        self.calls(driver, database, pooler.port)

    def test_psycopg_calls_every_function(self):
        self.calls_on(Psycopg(), "python_calls")

    def test_asyncpg_calls_every_function(self):
        self.calls_on(Asyncpg(), "python_calls_a")

    def test_psycopg_calls_every_function_behind_a_pooler(self):
        self.calls_behind_a_pooler(Psycopg(), "python_pooled")

    def test_asyncpg_calls_every_function_behind_a_pooler(self):
        self.calls_behind_a_pooler(Asyncpg(), "python_pooled_a")


class Guide(unittest.TestCase):
    """What docs/guides/drivers.md and docs/guides/poolers.md say."""

    def setUp(self):
        self.database = f"python_{self.id().rsplit('.', 1)[1]}"[:60]
        create_database(self.database)
        self.addCleanup(drop_database, self.database)

    WAIT = "call fetchq.queue_wait(queues => {}, timeout => {})"

    def test_psycopg_needs_autocommit_and_jsonb(self):
        wait = self.WAIT.format("%s", "%s")
        with psycopg.connect(url_of(self.database)) as db:
            with self.assertRaises(psycopg.errors.ActiveSqlTransaction):
                db.execute(wait, (["q"], timedelta(seconds=30)))
        with psycopg.connect(url_of(self.database), autocommit=True) as db:
            self.assertEqual(db.execute(wait, (["q"], timedelta(seconds=30))).fetchone(), ("q",))
            docs = db.execute("select * from fetchq.doc_lease(%s, duration => %s)", ("q", timedelta(minutes=5)))
            self.assertEqual([column.name for column in docs.description][:2], ["subject", "payload"])
            with self.assertRaises(psycopg.ProgrammingError):
                db.execute("select fetchq.doc_put(%s, %s, payload => %s)", ("q", "a", {"n": 1}))
            db.execute("select fetchq.doc_put(%s, %s, payload => %s)", ("q", "a", Jsonb({"n": 1})))

    def test_asyncpg_takes_only_matching_types(self):
        async def check():
            db = await asyncpg.connect(url_of(self.database))
            wait = self.WAIT.format("$1", "$2")
            with self.assertRaises(asyncpg.DataError):
                await db.fetch(wait, ["q"], "30 seconds")
            self.assertEqual((await db.fetch(wait, ["q"], timedelta(seconds=30)))[0]["ready"], "q")
            await db.set_type_codec("jsonb", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)
            await db.fetch("select fetchq.doc_put($1, $2, payload => $3)", "q", "a", {"n": 1})
            doc = await db.fetchrow("select * from fetchq.doc_get($1, $2)", "q", "a")
            self.assertEqual(doc["payload"], {"n": 1})
            await db.close()

        asyncio.run(check())

    def test_drivers_that_prepare_fail_behind_a_pooler(self):
        pooler = Pooler(self.database)
        self.addCleanup(pooler.end)
        pooler.wait_for(self.database)
        url = url_of(self.database, pooler.port)

        async def by_asyncpg(**options):
            first, second = await asyncpg.connect(url, **options), await asyncpg.connect(url, **options)
            get = "select * from fetchq.doc_get($1, $2)"
            try:
                await first.fetch(get, "q", "pending")
                # It holds the connection that was used last, so that the first client gets another.
                await second.execute("begin")
                await first.fetch(get, "q", "pending")
                await second.execute("rollback")
            finally:
                first.terminate()
                second.terminate()

        def by_psycopg(**options):
            with psycopg.connect(url, autocommit=True, **options) as first, \
                    psycopg.connect(url, autocommit=True, **options) as second:
                for db in [first] * 8 + [second] * 8:
                    db.execute("select * from fetchq.doc_get(%s, %s)", ("q", "pending"))

        with self.assertRaises(asyncpg.InvalidSQLStatementNameError):
            asyncio.run(by_asyncpg())
        with self.assertRaises(psycopg.errors.DuplicatePreparedStatement):
            by_psycopg()
        # What the sessions of the pool have prepared stays there: others have other connections.
        with psycopg.connect(url_of("postgres"), autocommit=True) as admin:
            admin.execute("select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", (self.database,))
        pooler.wait_for(self.database)
        asyncio.run(by_asyncpg(statement_cache_size=0))
        by_psycopg(prepare_threshold=None)


if __name__ == "__main__":
    unittest.main()
