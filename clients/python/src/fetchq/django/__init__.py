"""Django: ``INSTALLED_APPS += ["fetchq.django"]``, then ``manage.py fetchq_worker project.tasks:app``.

``task.put(…, conn=django.db.connection)`` puts in the transaction of a request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from psycopg.conninfo import make_conninfo

from ..plugins import Plugin

if TYPE_CHECKING:
    from ..context import Context


def conninfo(alias: str = "default") -> str:
    """The connection string of a database of the settings: ``app.open(conninfo())``."""
    from django.db import connections

    parameters: dict[str, Any] = connections[alias].get_connection_params()
    known = {k: v for k, v in parameters.items() if isinstance(v, (str, int)) and k not in _NOT_OF_LIBPQ}
    return make_conninfo("", **known)


_NOT_OF_LIBPQ = ("prepare_threshold", "isolation_level", "server_side_binding", "assume_role", "pool", "autocommit")


@contextlib.contextmanager
def atomic(using: str = "default") -> Generator[Any, None, None]:
    """For transactional handlers that use models: ``@app.task("ledger", transaction=atomic)``."""
    from django.db import connections, transaction

    with transaction.atomic(using=using):
        yield connections[using]


class Connections(Plugin):
    """Closes connections that are too old or broken around each handler, as Django does around a request."""

    @contextlib.contextmanager
    def handle(self, ctx: Context) -> Generator[None, None, None]:  # noqa: ARG002
        from django.db import close_old_connections

        close_old_connections()
        try:
            yield
        finally:
            close_old_connections()
