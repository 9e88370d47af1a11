"""Tasks: what a queue holds, and the function that works on it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar, Union, get_args

from typing_extensions import Unpack, get_type_hints

from . import _sql, codec
from ._json import dumps, loads
from .errors import ConfigError
from .outcomes import Duration, Outcome, interval, moment

if TYPE_CHECKING:
    from .app import App, AsyncApp
    from .context import Context

P = TypeVar("P")
TASK_HEADER = "fetchq-task"
"""The header that names the task of a document where several share a queue."""

Verdict = Union[Outcome, type[Outcome], Duration]
RetryRule = Mapping[type[BaseException], "Verdict | Callable[[Any], Verdict | None]"]
"""What becomes of a document by the class of the error: an outcome, a delay, or a function of the error.
``None`` leaves it to the policy of the queue, as does an error that is not listed."""

Mode = Literal["ignore", "replace", "merge", "earliest", "debounce", "reset", "once"]


@dataclass(frozen=True)
class Unique:
    """At most one document with these values of its payload in each period: ``Unique(["to"], hours(1))``. Without
    keys the whole payload counts, without a period it is for ever. The server makes the subject."""

    by: Sequence[str] = ()
    per: Duration | None = None


class PutOptions(TypedDict, total=False):
    """Options of a put. They are the arguments of ``fetchq.doc_put``, and all times are those of the server."""

    subject: str | None
    """Unique in the queue; without it one is made that is unique among all servers."""
    delay: Duration | None
    at: datetime | str | None
    """When it is due, in place of ``delay``."""
    expires_in: Duration | None
    priority: int
    mode: Mode | str
    """What happens if the subject exists: ``ignore``, ``replace``, ``merge``, ``earliest``, ``debounce``,
    ``reset`` or ``once``."""
    ordering_key: str | None
    max_attempts: int | None
    headers: Mapping[str, Any] | None
    unique: Unique | None
    version: int


@dataclass
class Doc:
    """A document that is to be put. ``task.doc(payload, …)`` makes it, for ``put_many`` and ``then``."""

    task: TaskBase[Any]
    payload: Any
    options: PutOptions
    headers: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def queue(self) -> str:
        return self.task.queue

    def as_json(self) -> dict[str, Any]:
        """The element of a list for ``fetchq.doc_put_many``."""
        given = self.options
        body: dict[str, Any] = {"queue": self.queue, "version": given.get("version", self.task.version)}
        if self.payload is not None:
            body["payload"] = self.payload
        for name in ("subject", "mode", "priority", "ordering_key", "max_attempts"):
            if (value := given.get(name)) is not None:
                body[name] = value
        for name in ("delay", "expires_in"):
            if (value := given.get(name)) is not None:
                body[name] = interval(value)  # type: ignore[arg-type]
        if (at := given.get("at")) is not None:
            body["due_at"] = moment(at)
        if (unique := given.get("unique")) is not None:
            body["unique_by"] = list(unique.by)
            if unique.per is not None:
                body["unique_per"] = interval(unique.per)
        headers = {**(given.get("headers") or {}), **self.headers}
        if self.task.name is not None:
            headers[TASK_HEADER] = self.task.name
        if headers:
            body["headers"] = headers
        return body


class Put(NamedTuple):
    """What a put has done: ``created``, ``updated``, ``queued`` (it runs once more) or ``ignored``."""

    subject: str
    action: str


class Cancelled(NamedTuple):
    """Whether a document was cancelled, and the status that it had; it is true if it was."""

    was_cancelled: bool
    status: str | None

    def __bool__(self) -> bool:
        return self.was_cancelled


class Waited(NamedTuple):
    """What became of a document: ``completed``, ``killed`` or ``dropped``. If the time is over, ``planned``,
    ``pending`` or ``active``."""

    status: str
    result: Any
    message: str | None

    @property
    def is_settled(self) -> bool:
        return self.status in ("completed", "killed", "dropped")


_TIMES = ("created_at", "due_at", "picked_at", "settled_at", "lease_ends", "expires_at")


@dataclass(frozen=True)
class Document:
    """A document as it is now, or as the history has it. Its fields are the columns of ``fetchq.doc_get``."""

    subject: str
    status: str
    payload: Any
    headers: dict[str, Any] | None
    version: int
    priority: int
    attempts: int
    max_attempts: int | None
    iterations: int
    created_at: datetime | str | None
    due_at: datetime | str | None
    picked_at: datetime | str | None
    settled_at: datetime | str | None
    lease_ends: datetime | str | None
    worker: str | None
    result: Any
    progress: Any
    last_error: str | None
    ordering_key: str | None
    origin: Any
    queued: Any
    is_from_history: bool
    expires_at: datetime | str | None

    @classmethod
    def read(cls, text: str) -> Document:
        """Reads the JSON of a row. A time that Python does not have, such as ``infinity``, stays a text."""
        row: dict[str, Any] = loads(text)
        for name in _TIMES:
            row[name] = _time(row.get(name))
        values: dict[str, Any] = {f.name: row.get(f.name) for f in fields(cls)}
        return cls(**values)


def _time(value: str | None) -> datetime | str | None:
    if value is None:
        return None
    head, plus, zone = value.partition("+")
    date, dot, fraction = head.partition(".")
    if dot:  # Python 3.10 reads three or six digits only.
        value = f"{date}.{fraction:0<6}{plus}{zone}"
    try:
        return datetime.fromisoformat(value).astimezone(timezone.utc)
    except (ValueError, OverflowError):
        return value


class Batch(Sequence[P]):
    """The payloads of several documents, with a context for each. It is what a batch handler gets."""

    def __init__(self, payloads: Sequence[P], contexts: Sequence[Context]) -> None:
        self.payloads = payloads
        self.contexts = contexts

    def __getitem__(self, index: Any) -> Any:
        return self.payloads[index]  # pyright: ignore[reportUnknownVariableType]

    def __len__(self) -> int:
        return len(self.payloads)

    def items(self) -> Iterable[tuple[P, Context]]:
        """Pairs of a payload and its context."""
        return zip(self.payloads, self.contexts, strict=True)


def payload_type(function: Callable[..., Any], around: dict[str, Any], *, batch: bool) -> Any:
    """The type of the first argument of a handler, as it is annotated. ``around`` has the names of the function in
    which the handler is defined."""
    try:
        names = list(inspect.signature(function).parameters)
        hints = get_type_hints(function, localns=around, include_extras=True)
    except (NameError, TypeError) as error:
        raise ConfigError(f"the annotations of {_name(function)} cannot be read: {error}") from error
    if not names or len(names) > 2:
        raise ConfigError(f"{_name(function)} must take a payload, and perhaps a context")
    kind: Any = hints.get(names[0], Any)
    return (get_args(kind) or (Any,))[0] if batch else kind  # pyright: ignore


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", repr(function))


@dataclass(eq=False)
class TaskBase(Generic[P]):
    """The declaration of a task. ``@app.task`` makes it."""

    app: Any
    function: Callable[..., Any]
    queue: str
    name: str | None = None
    version: int = 0
    payload: Any = None
    concurrency: int | None = None
    weight: int = 1
    lease: Duration | None = None
    timeout: float | None = None
    retry: RetryRule = field(default_factory=dict[type[BaseException], Any])
    transaction: Any = False
    conflicts: int = 0
    batch: int = 0
    on_invalid: Literal["reject", "kill"] = "reject"
    defaults: PutOptions = field(default_factory=PutOptions)
    upcasts: dict[int, Callable[[Any], Any]] = field(default_factory=dict[int, Callable[[Any], Any]])
    around: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)

    def __post_init__(self) -> None:
        if self.payload is None:
            self.payload = payload_type(self.function, self.around, batch=self.batch > 0)
        self.around = {}
        kind = self.payload
        self.read = codec.decoder(kind)
        self.takes_context = len(inspect.signature(self.function).parameters) == 2
        self.is_async = inspect.iscoroutinefunction(self.function)
        self.__name__ = getattr(self.function, "__name__", "task")
        self.__doc__ = self.function.__doc__
        self.__wrapped__ = self.function
        if self.version < 0 or (self.concurrency is not None and self.concurrency < 1):
            raise ConfigError(f"{self}: version and concurrency must not be negative")
        if self.batch and self.transaction:
            raise ConfigError(f"{self}: a batch cannot be transactional")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Calls the handler itself, as in a unit test."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<task {self.label}>"

    @property
    def label(self) -> str:
        return self.queue if self.name is None else f"{self.queue}/{self.name}"

    def upcast(self, version: int) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
        """Declares how a payload of ``version`` becomes one of the next version. Workers lease that version
        too, and pass its payloads through all functions up to their own version."""

        def add(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            if not 0 <= version < self.version:
                raise ConfigError(f"{self}: there is nothing to make of version {version}")
            self.upcasts[version] = function
            return function

        return add

    def versions(self) -> list[int]:
        """The versions that this task can work on: its own, and those from which upcasts lead to it."""
        known, version = [self.version], self.version - 1
        while version in self.upcasts:
            known.append(version)
            version -= 1
        return known

    def decode(self, value: Any, version: int) -> P:
        """The payload of a document of a version."""
        for step in range(version, self.version):
            value = codec.decode(self.upcasts[step], value)
        decoded: P = codec.decode(self.read, value)
        return decoded

    def doc(self, payload: P | None = None, **options: Unpack[PutOptions]) -> Doc:
        """A document to be put, by ``put_many`` or as what follows another one (``then``)."""
        return Doc(self, payload, {**self.defaults, **options})

    def _docs(self, items: Iterable[P | Doc]) -> list[Doc]:
        return [item if isinstance(item, Doc) else self.doc(item) for item in items]


class Task(TaskBase[P]):
    """A task of an :class:`~fetchq.App`. ``conn`` is a connection of psycopg, SQLAlchemy or Django: the call
    is then part of its transaction. Without it, the call is a transaction of its own."""

    app: App

    def put(self, payload: P | None = None, *, conn: Any = None, **options: Unpack[PutOptions]) -> Put:
        """Puts a document."""
        return self.app.put_many([self.doc(payload, **options)], conn=conn)[0]

    def put_many(self, items: Iterable[P | Doc], *, conn: Any = None) -> list[Put]:
        """Puts documents: payloads, or what :meth:`doc` has made. All are put, or none."""
        return self.app.put_many(self._docs(items), conn=conn)

    def get(self, subject: str, *, conn: Any = None) -> Document | None:
        """The document as it is now, or as the history has it."""
        return self.app.get(self.queue, subject, conn=conn)

    def cancel(self, subject: str, *, conn: Any = None) -> Cancelled:
        """Cancels a document that is planned, pending or active; its worker stops."""
        return self.app.cancel(self.queue, subject, conn=conn)

    def wait(self, subject: str, timeout: Duration = 30) -> Waited:
        """Waits until the document is settled. Put and commit first."""
        return self.app.wait(self.queue, subject, timeout)


class AsyncTask(TaskBase[P]):
    """A task of an :class:`~fetchq.AsyncApp`. ``conn`` is an asynchronous connection of psycopg, SQLAlchemy or
    asyncpg: the call is then part of its transaction."""

    app: AsyncApp

    async def put(self, payload: P | None = None, *, conn: Any = None, **options: Unpack[PutOptions]) -> Put:
        """Puts a document."""
        return (await self.app.put_many([self.doc(payload, **options)], conn=conn))[0]

    async def put_many(self, items: Iterable[P | Doc], *, conn: Any = None) -> list[Put]:
        """Puts documents: payloads, or what :meth:`doc` has made. All are put, or none."""
        return await self.app.put_many(self._docs(items), conn=conn)

    async def get(self, subject: str, *, conn: Any = None) -> Document | None:
        """The document as it is now, or as the history has it."""
        return await self.app.get(self.queue, subject, conn=conn)

    async def cancel(self, subject: str, *, conn: Any = None) -> Cancelled:
        """Cancels a document that is planned, pending or active; its worker stops."""
        return await self.app.cancel(self.queue, subject, conn=conn)

    async def wait(self, subject: str, timeout: Duration = 30) -> Waited:
        """Waits until the document is settled. Put and commit first."""
        return await self.app.wait(self.queue, subject, timeout)


def lists(docs: Sequence[Doc]) -> _sql.Query:
    """The call that puts a list of documents."""
    return _sql.put(dumps([doc.as_json() for doc in docs]))
