"""Errors of the client, and what an error of the database means for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

Reason = Literal["cancelled", "lost", "timeout", "shutdown"]
"""Why a handler has to stop."""


class FetchqError(Exception):
    """The base of all errors that this package raises by itself."""


class ConfigError(FetchqError):
    """Something is declared or set up in a way that cannot work. It is not worth trying again."""


class InvalidPayload(FetchqError):
    """The payload of a document is not what the task declares."""


class InvalidResult(FetchqError):
    """What a handler has returned cannot be stored as JSON."""


class Aborted(FetchqError):
    """A handler has to stop. ``reason`` says why: ``cancelled``, ``lost``, ``timeout`` or ``shutdown``."""

    def __init__(self, reason: Reason, message: str | None = None) -> None:
        super().__init__(message or f"stopped: {reason}")
        self.reason: Reason = reason


Kind = Literal["connection", "conflict", "lost", "config", "data"]

_CONNECTION = ("08", "57P", "53", "58", "XX")
_CONFLICT = ("40001", "40P01", "55P03", "57014", "25006")
_CONFIG = ("42501", "42883", "42P01", "3F000", "3D000", "42704", "28", "0A000")


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    todo: list[BaseException | None] = [error]
    while todo:
        one = todo.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        original = getattr(one, "orig", None)  # SQLAlchemy keeps the error of the driver there.
        todo += [original if isinstance(original, BaseException) else None, one.__cause__]


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of an error of psycopg, asyncpg, SQLAlchemy or Django; None: the server sent none."""
    for one in _chain(error):
        for name in ("sqlstate", "pgcode"):
            state = getattr(one, name, None)
            if isinstance(state, str):
                return state
    return None


def is_lost(error: BaseException) -> bool:
    """Whether fetchq says that a lease was lost. SQL of the application may raise that SQLSTATE too, but
    then the routine is another one."""
    if sqlstate(error) != "55000":
        return False
    for one in _chain(error):
        diag = getattr(one, "diag", None)
        routine = getattr(diag, "source_function", None) or getattr(one, "routine", None)
        if isinstance(routine, str):
            return routine == "fetchq"
    return False


def is_database(error: BaseException) -> bool:
    """Whether an error comes from a driver of PostgreSQL, or from the connection itself."""
    for one in _chain(error):
        if isinstance(one, OSError):
            return True
        for base in type(one).__mro__:
            if base.__module__.split(".")[0] in ("psycopg", "psycopg2", "psycopg_pool", "asyncpg"):
                return True
    return False


def kind(error: BaseException) -> Kind:
    """What the runtime does after an error in a call of its own.

    ``connection``: connect again, and repeat. ``conflict``: repeat. ``lost``: a lease does not hold.
    ``config``: rights or declarations are wrong. ``data``: the server refuses what was sent.
    """
    state = sqlstate(error)
    if state is None or state.startswith(_CONNECTION):
        return "connection"
    if state in _CONFLICT:
        return "conflict"
    if is_lost(error):
        return "lost"
    if state.startswith(_CONFIG):
        return "config"
    return "data"
