"""Running a statement on whatever connection there is, and getting connections for the runtime."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, TypeGuard, Union, cast

import psycopg
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import tuple_row

from ._sql import Query
from .errors import ConfigError

if TYPE_CHECKING:
    from psycopg_pool import AsyncConnectionPool, ConnectionPool

Row = tuple[Any, ...]
Source = Union[str, "ConnectionPool[Any]", Callable[[], "psycopg.Connection[Any]"]]
"""Where connections come from: a connection string, a pool of psycopg, or a function that connects."""
AsyncSource = Union[str, "AsyncConnectionPool[Any]", Callable[[], "Awaitable[psycopg.AsyncConnection[Any]]"]]
"""The same, with asyncio."""

# Without these, a server that vanishes is noticed after hours. What the application sets counts more.
_DEFAULTS: dict[str, Any] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 20_000,
    "fallback_application_name": "fetchq",
}


def is_sync(conn: Any) -> TypeGuard[psycopg.Connection[Any]]:
    return isinstance(conn, psycopg.Connection)


def is_async(conn: Any) -> TypeGuard[psycopg.AsyncConnection[Any]]:
    return isinstance(conn, psycopg.AsyncConnection)


def _roots(conn: Any) -> set[str]:
    return {base.__module__.split(".")[0] for base in type(conn).__mro__}


def run(conn: Any, query: Query) -> list[Row]:
    """Runs a statement on a connection of psycopg, SQLAlchemy (also a ``Session``) or Django."""
    if is_sync(conn):
        with conn.cursor(row_factory=tuple_row) as cursor:
            cursor.execute(query.pyformat(), query.values)  # pyright: ignore[reportArgumentType]
            return cursor.fetchall() if cursor.description else []
    roots = _roots(conn)
    if "sqlalchemy" in roots:
        from sqlalchemy import text

        result = conn.execute(text(query.text), query.values)
        return [tuple(row) for row in result]
    if "django" in roots or hasattr(conn, "cursor"):
        if isinstance(conn, psycopg.AsyncConnection):
            raise ConfigError("this is an asynchronous connection: use AsyncApp")
        with conn.cursor() as cursor:
            cursor.execute(query.pyformat(), query.values)
            return [tuple(row) for row in cursor.fetchall()]
    raise ConfigError(f"conn is a {type(conn).__name__}: give one of psycopg, SQLAlchemy or Django")


async def arun(conn: Any, query: Query) -> list[Row]:
    """Runs a statement on a connection of psycopg, SQLAlchemy (also an ``AsyncSession``) or asyncpg."""
    if is_async(conn):
        async with conn.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(query.pyformat(), query.values)  # pyright: ignore[reportArgumentType]
            return await cursor.fetchall() if cursor.description else []
    roots = _roots(conn)
    if "sqlalchemy" in roots:
        from sqlalchemy import text

        result = await conn.execute(text(query.text), query.values)
        return [tuple(row) for row in result]
    if "asyncpg" in roots:
        statement, values = query.numbered()
        return [tuple(row) for row in await conn.fetch(statement, *values)]
    raise ConfigError(f"conn is a {type(conn).__name__}: give an asynchronous one of psycopg, SQLAlchemy or asyncpg")


def _parameters(source: Any) -> tuple[str, dict[str, Any]]:
    """What a pool connects with, which may be functions of it."""
    conninfo: Any = _given(source.conninfo)
    kwargs: Any = _given(source.kwargs)
    return conninfo or "", dict(kwargs or {})


def _given(value: Any) -> Any:
    return value() if callable(value) else value


def _arguments(conninfo: str, kwargs: dict[str, Any]) -> dict[str, Any]:
    given = conninfo_to_dict(conninfo)
    for name in ("row_factory", "cursor_factory", "autocommit", "prepare_threshold"):
        kwargs.pop(name, None)
    # Nothing is prepared, so that a pooler can lend each transaction another session of the server.
    defaults = {k: v for k, v in _DEFAULTS.items() if k not in given}
    return {**defaults, **kwargs, "autocommit": True, "prepare_threshold": None}


def connect(source: Source | AsyncSource) -> psycopg.Connection[Any]:
    """A new connection of the runtime's own, with the parameters of the source."""
    if isinstance(source, str):
        return psycopg.connect(source, **_arguments(source, {}))
    if hasattr(source, "conninfo"):
        conninfo, kwargs = _parameters(source)
        return psycopg.connect(conninfo, **_arguments(conninfo, kwargs))
    conn = cast("psycopg.Connection[Any]", cast("Callable[[], Any]", source)())
    conn.autocommit = True
    conn.prepare_threshold = None
    return conn


async def aconnect(source: AsyncSource) -> psycopg.AsyncConnection[Any]:
    """The same, with asyncio."""
    if isinstance(source, str):
        return await psycopg.AsyncConnection.connect(source, **_arguments(source, {}))
    if hasattr(source, "conninfo"):
        conninfo, kwargs = _parameters(source)
        return await psycopg.AsyncConnection.connect(conninfo, **_arguments(conninfo, kwargs))
    conn: psycopg.AsyncConnection[Any] = await cast("Any", source)()
    await conn.set_autocommit(True)
    conn.prepare_threshold = None
    return conn


def heart_source(source: AsyncSource) -> Source:
    """Where a worker with asyncio gets the connection of its heartbeat, which is a thread of its own."""
    if isinstance(source, str) or hasattr(source, "conninfo"):
        return cast("Source", source)
    raise ConfigError("a worker with asyncio needs a connection string or a pool, not a function")


def usable(conn: Any) -> bool:
    return not conn.closed and not getattr(conn, "broken", False)


class Lender:
    """Lends connections: those of a pool, or its own, which it keeps for the next one. It is for puts without
    a connection, for waits for results, and for transactional handlers."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._free: list[psycopg.Connection[Any]] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def lend(self) -> Generator[psycopg.Connection[Any], None, None]:
        if hasattr(self.source, "conninfo"):
            with cast("ConnectionPool[Any]", self.source).connection() as conn:
                yield conn
            return
        with self._lock:
            mine = self._free.pop() if self._free else None
        conn = mine if mine is not None and usable(mine) else connect(self.source)
        conn.autocommit = False
        try:
            with _finished(conn):
                yield conn
        finally:
            if usable(conn) and len(self._free) < 10:
                with self._lock:
                    self._free.append(conn)
            else:
                conn.close()

    def close(self) -> None:
        with self._lock:
            mine, self._free = self._free, []
        for conn in mine:
            conn.close()


@contextlib.contextmanager
def _finished(conn: psycopg.Connection[Any]) -> Generator[None, None, None]:
    try:
        yield
    except BaseException:
        if usable(conn):
            with contextlib.suppress(psycopg.Error):
                conn.rollback()
        raise
    conn.commit()


class AsyncLender:
    """The same, with asyncio."""

    def __init__(self, source: AsyncSource) -> None:
        self.source = source
        self._free: list[psycopg.AsyncConnection[Any]] = []

    @contextlib.asynccontextmanager
    async def lend(self) -> AsyncGenerator[psycopg.AsyncConnection[Any], None]:
        if hasattr(self.source, "conninfo"):
            async with cast("AsyncConnectionPool[Any]", self.source).connection() as conn:
                yield conn
            return
        mine = self._free.pop() if self._free else None
        conn = mine if mine is not None and usable(mine) else await aconnect(self.source)
        await conn.set_autocommit(False)
        try:
            async with _afinished(conn):
                yield conn
        finally:
            if usable(conn) and len(self._free) < 10:
                self._free.append(conn)
            else:
                await conn.close()

    async def close(self) -> None:
        mine, self._free = self._free, []
        for conn in mine:
            await conn.close()


@contextlib.asynccontextmanager
async def _afinished(conn: psycopg.AsyncConnection[Any]) -> AsyncGenerator[None, None]:
    try:
        yield
    except BaseException:
        if usable(conn):
            with contextlib.suppress(psycopg.Error):
                await conn.rollback()
        raise
    await conn.commit()


def largest(source: Any) -> int | None:
    """How many connections a pool can have; None: it has no limit."""
    size = getattr(source, "max_size", None)
    return size if isinstance(size, int) else None
