"""Puts in the transactions of all kinds of connections."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from conftest import Db
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from fetchq import App, AsyncApp, ConfigError, Unique, hours, minutes


@dataclass
class Mail:
    to: str


def of_sqlalchemy(url: str, driver: str = "psycopg") -> str:
    return url.replace("postgres://", f"postgresql+{driver}://")


def declare(db: Db, source: Any = None) -> Any:
    app = App(source)

    @app.task(db.queue())
    def mail(payload: Mail) -> None: ...

    return mail


def declare_async(db: Db, source: Any = None) -> Any:
    app = AsyncApp(source)

    @app.task(db.queue())
    async def mail(payload: Mail) -> None: ...

    return mail


def count(db: Db, task: Any) -> int:
    return db.value("select count(*) from fetchq.docs_list(%s)", task.queue)


def test_psycopg_with_its_transaction_and_any_row_factory(db: Db, url: str) -> None:
    mail = declare(db)
    with psycopg.connect(url, row_factory=dict_row) as conn:
        put = mail.put(Mail("ann"), subject="a", conn=conn)
        assert put == ("a", "created") and count(db, mail) == 0
        assert mail.put(Mail("bob"), subject="a", conn=conn).action == "ignored"
        conn.commit()
        assert mail.get("a", conn=conn).payload == {"to": "ann"}
        mail.put(Mail("c"), conn=conn)
        conn.rollback()
        assert count(db, mail) == 1


def test_sqlalchemy_session_and_connection(db: Db, url: str) -> None:
    mail = declare(db)
    engine = sqlalchemy.create_engine(of_sqlalchemy(url))
    with Session(engine) as session:
        mail.put(Mail("ann"), subject="it's : a % b", conn=session)
        assert count(db, mail) == 0
        session.commit()
        mail.put(Mail("bob"), conn=session)
        session.rollback()
    with engine.begin() as conn:
        assert mail.put(Mail("c"), conn=conn).action == "created"
    assert count(db, mail) == 2
    engine.dispose()


def test_django(db: Db, url: str) -> None:
    import django
    from django.conf import settings

    parts = psycopg.conninfo.conninfo_to_dict(url)
    if not settings.configured:
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts["dbname"], "USER": parts["user"]}
        database |= {"PASSWORD": parts["password"], "HOST": parts["host"], "PORT": parts["port"]}
        settings.configure(DATABASES={"default": database}, INSTALLED_APPS=["fetchq.django"])
        django.setup()
    from django.db import DatabaseError, connection, transaction

    from fetchq.django import conninfo

    mail = declare(db)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        mail.put(Mail("ann"), conn=connection)
        raise ZeroDivisionError
    with transaction.atomic():
        mail.put(Mail("bob"), conn=connection)
    assert count(db, mail) == 1
    guide = Path(__file__).resolve().parents[3] / "docs/guides/python.md"
    (recipe,) = re.findall(r"^```py\n(from django\.db .*?)^```", guide.read_text(), re.DOTALL | re.MULTILINE)
    names = {"send_mail": mail, "Mail": Mail}
    with pytest.raises(DatabaseError), transaction.atomic():
        exec(recipe, names)  # There is no such table.
    assert not db.state(mail.queue, "fay")
    db.sql("create table accounts (email text)")
    try:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            exec(recipe, names)
            raise ZeroDivisionError
        assert not db.state(mail.queue, "fay") and not db.sql("table accounts")
        exec(recipe, names)
        assert db.state(mail.queue, "fay") == ("pending", 0) and db.sql("table accounts") == [("fay@example.com",)]
    finally:
        db.sql("drop table accounts")
    with psycopg.connect(conninfo()) as conn:
        assert mail.put_many([Mail("x")], conn=conn)[0].action == "created"
    connection.close()


def test_asynchronous_connections(db: Db, url: str) -> None:
    mail = declare_async(db)

    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(url) as conn:
            await mail.put(Mail("ann"), conn=conn)
            await conn.rollback()
            await mail.put(Mail("ann"), conn=conn)
        engine = create_async_engine(of_sqlalchemy(url))
        async with AsyncSession(engine) as session:
            await mail.put(Mail("bob"), conn=session)
            await session.commit()
        await engine.dispose()
        engine = create_async_engine(of_sqlalchemy(url, "asyncpg"))
        async with engine.begin() as connection:
            await mail.put(Mail("carl"), conn=connection)
        await engine.dispose()
        other = await asyncpg.connect(url)
        await other.set_type_codec("jsonb", schema="pg_catalog", encoder=repr, decoder=str)
        async with other.transaction():
            puts = await mail.put_many([Mail("d"), mail.doc(Mail("e"), subject="e", delay=minutes(1))], conn=other)
            assert [put.action for put in puts] == ["created", "created"]
        assert (await mail.get("e", conn=other)).payload == {"to": "e"}
        await other.close()

    asyncio.run(main())
    assert count(db, mail) == 5


def test_options_reach_the_document(db: Db, url: str) -> None:
    mail = declare(db, url)
    options: Any = {"priority": 3, "ordering_key": "7", "max_attempts": 8, "headers": {"t": 1}, "expires_in": hours(1)}
    mail.put(Mail("ann"), subject="a", delay=minutes(10), **options)
    doc = mail.get("a")
    assert doc is not None and doc.status == "planned"
    assert (doc.priority, doc.ordering_key, doc.max_attempts, doc.headers) == (3, "7", 8, {"t": 1})
    assert 599 <= (doc.due_at - doc.created_at).total_seconds() <= 601
    assert mail.put(Mail("bob"), subject="a", mode="replace").action == "updated"
    assert mail.cancel("a") == (True, "pending") and not mail.cancel("a")
    assert mail.get("nobody") is None
    mail.app.close()


def test_a_list_is_put_whole_or_not_at_all(db: Db, url: str) -> None:
    mail = declare(db, url)
    with pytest.raises(psycopg.Error) as caught:
        mail.put_many([Mail("ann"), mail.doc(Mail("bob"), delay="-1 hour")])
    assert "document 2" in str(caught.value)
    assert count(db, mail) == 0 and mail.put_many([]) == []


def test_pools_stay_open(db: Db, url: str) -> None:
    with ConnectionPool(url, min_size=1, max_size=2, open=True) as pool:
        mail = declare(db, pool)
        mail.put(Mail("ann"), subject="a")
        assert mail.wait("a", 0.05).status == "pending"
        mail.app.close()
        assert not pool.closed and mail.put(Mail("b")).action == "created"

    async def main() -> None:
        async with AsyncConnectionPool(url, min_size=1, max_size=2, open=False) as pool:
            task = declare_async(db, pool)
            await task.put(Mail("ann"), subject="a")
            assert (await task.wait("a", 0.05)).status == "pending"
            await task.app.close()
            assert not pool.closed

    asyncio.run(main())


def test_a_connection_of_another_kind_is_refused(db: Db, url: str) -> None:
    with pytest.raises(ConfigError, match="AsyncApp"):

        async def main() -> None:
            async with await psycopg.AsyncConnection.connect(url) as conn:
                declare(db).put(Mail("ann"), conn=conn)

        asyncio.run(main())
    with pytest.raises(ConfigError, match="int"):
        declare(db).put(Mail("ann"), conn=7)
    with pytest.raises(ConfigError, match="str"):
        asyncio.run(declare_async(db).put(Mail("ann"), conn="x"))


def test_sync_creates_queues_and_writes_settings(db: Db, url: str) -> None:
    mail = declare(db, url)
    other = f"{mail.queue}x"
    mail.app.queue(mail.queue, max_active=7)
    mail.app.queue(other, max_attempts=3)
    db.queues.append(other)
    mail.app.sync()
    mail.app.sync()
    assert db.value("select fetchq.queue_settings(%s) ->> 'max_active'", mail.queue) == "7"
    assert db.value("select fetchq.queue_settings(%s) ->> 'max_attempts'", other) == "3"


def has_unique(db: Db) -> bool:
    return db.value("select to_regprocedure('fetchq.schedules_sync(text, jsonb)') is not null")


def test_unique_documents_and_schedules(db: Db, url: str) -> None:
    if not has_unique(db):
        pytest.skip("this server has neither")
    mail = declare(db, url)
    first = mail.put(Mail("ann"), unique=Unique(["to"], hours(1)))
    second = mail.put(Mail("ann"), unique=Unique(["to"], hours(1)))
    assert (first.action, second.action) == ("created", "ignored") and first.subject == second.subject
    with pytest.raises(ConfigError, match="name"):
        mail.app.schedule("x", "* * * * *", mail)
    mail.app.name = mail.queue
    mail.app.schedule(mail.queue[-20:], "30 2 * * *", mail, Mail("x"), timezone="Europe/Berlin")
    mail.app.sync()
    found = db.sql("select timezone from fetchq.schedule_list() where queue = %s", mail.queue)
    assert found == [("Europe/Berlin",)]
    mail.app.schedules.clear()
    mail.app.sync()
    assert not db.sql("select timezone from fetchq.schedule_list() where queue = %s", mail.queue)
