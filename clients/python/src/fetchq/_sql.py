"""Every statement of the client, and how it is written for each driver.

Parameters are texts, integers, lists of texts, or NULL, with a cast: so each driver sends them alike, no type
has to be registered, and no setting of the session matters.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any, NamedTuple


class Query(NamedTuple):
    """A statement with parameters by name, as ``:name``."""

    text: str
    values: dict[str, Any]

    def pyformat(self) -> str:
        """For psycopg and Django: ``%(name)s``."""
        return _pyformat(self.text)

    def numbered(self) -> tuple[str, list[Any]]:
        """For asyncpg: ``$1``, and the values in that order."""
        text, names = _numbered(self.text)
        return text, [self.values[name] for name in names]


_NAME = re.compile(r"(?<!:):([a-z_]+)")


@functools.lru_cache(maxsize=64)
def _pyformat(text: str) -> str:
    return _NAME.sub(r"%(\1)s", text)


@functools.lru_cache(maxsize=64)
def _numbered(text: str) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return _NAME.sub(number, text), tuple(names)


def _text(name: str) -> str:
    return f"cast(:{name} as text)"


def _json(name: str) -> str:
    # Through text: a codec for jsonb that the application has registered would encode it once more.
    return f"cast(cast(:{name} as text) as jsonb)"


def _interval(name: str) -> str:
    return f"cast(cast(:{name} as text) as interval)"


_PUT = f"select p.subject, p.action from fetchq.doc_put_many({_text('queue')}, {_json('docs')}) p"
_GET = f"select cast(pg_catalog.to_jsonb(d) as text) from fetchq.doc_get({_text('queue')}, {_text('subject')}) d"
_CANCEL = f"select c.was_cancelled, c.status from fetchq.doc_cancel({_text('queue')}, {_text('subject')}) c"
_AWAIT = f"call fetchq.doc_await({_text('queue')}, {_text('subject')}, {_interval('timeout')})"
_INFO = "select i.extension_version, i.is_preloaded, pg_catalog.pg_backend_pid() from fetchq.info() i"
_CREATE = f"select c.was_created from fetchq.queue_create({_text('queue')}, {_json('settings')}) c"
_CONFIGURE = f"select cast(fetchq.queue_configure({_text('queue')}, {_json('settings')}) as text)"
_SCHEDULES = f"select s.name, s.action from fetchq.schedules_sync({_text('owner')}, {_json('schedules')}) s"
_NEXT = f"""select d.subject, cast(d.payload as text), cast(d.headers as text), d.attempts, d.max_attempts,
 d.lease, pg_catalog.date_part('epoch', d.lease_ends - d.picked_at),
 pg_catalog.date_part('epoch', d.lease_ends), pg_catalog.date_part('epoch', d.created_at),
 pg_catalog.date_part('epoch', d.due_at), d.priority, d.iterations, d.last_error, cast(d.progress as text)
 from fetchq.docs_next({_text("queue")}, {_json("settlements")}, cast(:max_docs as int), {_interval("lease")},
 cast(:version as int), {_text("worker")}, on_lost => 'warning') d"""
_SETTLE = (
    "select s.subject, s.outcome, s.status"
    f" from fetchq.docs_settle({_text('queue')}, {_json('settlements')}, {_text('on_lost')}) s"
)
_EXTEND = f"""select e.queue, e.subject, e.outcome, pg_catalog.date_part('epoch', e.lease_ends), e.stop
 from fetchq.docs_extend(null, {_json("list")}, {_interval("lease")}) e"""
_WAIT = f"""call fetchq.worker_wait(cast(:queues as text[]), {_text("worker")}, {_interval("timeout")},
 {_json("leases")}, cast(:version as int), mark => cast(:mark as bigint[]))"""
_LEASES = f"""select l.subject, l.lease from fetchq.lease_list({_text("queue")}) l
 where l.worker = {_text("worker")} and (l.pid = cast(:pid as int) or cast(:exclusive as int) = 1)"""

_DUE_NOW = (
    f"select fetchq.docs_retry({_text('queue')}, pg_catalog.jsonb_build_object('status', 'planned'),"
    " max_docs => 1000000)"
)
_OPEN = f"select s.ready + s.active from fetchq.queue_stats({_text('queue')}) s"


def put(docs: str, queue: str | None = None) -> Query:
    return Query(_PUT, {"queue": queue, "docs": docs})


def get(queue: str, subject: str) -> Query:
    return Query(_GET, {"queue": queue, "subject": subject})


def cancel(queue: str, subject: str) -> Query:
    return Query(_CANCEL, {"queue": queue, "subject": subject})


def await_(queue: str, subject: str, timeout: str) -> Query:
    return Query(_AWAIT, {"queue": queue, "subject": subject, "timeout": timeout})


def info() -> Query:
    return Query(_INFO, {})


def create(queue: str, settings: str) -> Query:
    return Query(_CREATE, {"queue": queue, "settings": settings})


def configure(queue: str, settings: str) -> Query:
    return Query(_CONFIGURE, {"queue": queue, "settings": settings})


def schedules(owner: str, schedules: str) -> Query:
    return Query(_SCHEDULES, {"owner": owner, "schedules": schedules})


def next_(queue: str, settlements: str, max_docs: int, lease: str | None, version: int, worker: str) -> Query:
    values = {"queue": queue, "settlements": settlements, "max_docs": max_docs}
    return Query(_NEXT, {**values, "lease": lease, "version": version, "worker": worker})


def settle(queue: str, settlements: str, on_lost: str = "report") -> Query:
    return Query(_SETTLE, {"queue": queue, "settlements": settlements, "on_lost": on_lost})


def extend(extensions: str, lease: str | None) -> Query:
    return Query(_EXTEND, {"list": extensions, "lease": lease})


def wait(queues: Sequence[str], worker: str, timeout: str, leases: str, version: int, mark: list[int] | None) -> Query:
    values = {"queues": list(queues), "worker": worker, "timeout": timeout}
    return Query(_WAIT, {**values, "leases": leases, "version": version, "mark": mark})


def due_now(queue: str) -> Query:
    return Query(_DUE_NOW, {"queue": queue})


def open_documents(queue: str) -> Query:
    return Query(_OPEN, {"queue": queue})


def leases(queue: str, worker: str, pid: int, exclusive: bool) -> Query:
    return Query(_LEASES, {"queue": queue, "worker": worker, "pid": pid, "exclusive": int(exclusive)})
