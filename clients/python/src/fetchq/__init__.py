"""Producers and workers for fetchq, the queue inside PostgreSQL.

>>> from fetchq import App, Context
>>> app = App()
>>> @app.task("mail")
... def send_mail(mail: dict, ctx: Context) -> None: ...

``send_mail.put({"to": "ann"}, conn=conn)`` puts a document in the transaction of a connection;
``Worker(app, pool).run()`` works on them.
"""

from .aio import AsyncWorker
from .app import App, AsyncApp
from .context import AsyncContext, Context
from .errors import Aborted, ConfigError, FetchqError, InvalidPayload, InvalidResult
from .outcomes import (
    Complete,
    Drop,
    Kill,
    Outcome,
    Reschedule,
    Retry,
    Snooze,
    days,
    hours,
    minutes,
    seconds,
)
from .plugins import Plugin
from .tasks import AsyncTask, Batch, Cancelled, Doc, Document, Put, Task, Unique, Waited
from .worker import Worker

__version__ = "5.0.0"

__all__ = [
    "Aborted",
    "App",
    "AsyncApp",
    "AsyncContext",
    "AsyncTask",
    "AsyncWorker",
    "Batch",
    "Cancelled",
    "Complete",
    "ConfigError",
    "Context",
    "Doc",
    "Document",
    "Drop",
    "FetchqError",
    "InvalidPayload",
    "InvalidResult",
    "Kill",
    "Outcome",
    "Plugin",
    "Put",
    "Reschedule",
    "Retry",
    "Snooze",
    "Task",
    "Unique",
    "Waited",
    "Worker",
    "days",
    "hours",
    "minutes",
    "seconds",
]
