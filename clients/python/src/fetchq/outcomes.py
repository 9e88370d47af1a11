"""What becomes of a document: a handler returns an outcome, or raises it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Union

from ._json import clean_text, dumps, quoted

if TYPE_CHECKING:
    from .tasks import Doc

Duration = Union[timedelta, float, int, str]
"""A ``timedelta``, a number of seconds, or the text of an interval such as ``"10 minutes"``."""


def seconds(n: float) -> timedelta:
    """A duration of ``n`` seconds."""
    return timedelta(seconds=n)


def minutes(n: float) -> timedelta:
    """A duration of ``n`` minutes."""
    return timedelta(minutes=n)


def hours(n: float) -> timedelta:
    """A duration of ``n`` hours."""
    return timedelta(hours=n)


def days(n: float) -> timedelta:
    """A duration of ``n`` days."""
    return timedelta(days=n)


def interval(value: Duration) -> str:
    """The text of an interval. Days stay days only in a text: a ``timedelta`` is a number of seconds."""
    if isinstance(value, timedelta):
        return f"{value.days * 86400 + value.seconds}.{value.microseconds:06d} seconds"
    if isinstance(value, str):
        return value
    return f"{float(value):.6f} seconds"


def moment(value: datetime | str) -> str:
    """The text of a time, which must have a time zone: that of this machine need not be that of the server."""
    if isinstance(value, str):
        return value
    if value.tzinfo is None:
        raise ValueError("a time needs a time zone: datetime(…, tzinfo=…), or use a delay")
    return value.isoformat()


class Outcome(Exception):
    """The base of all outcomes. Outcomes are exceptions, so that a handler can raise them from anywhere,
    and values, so that it can return them and tests can compare them."""

    action = ""
    succeeds = False
    then: tuple[Doc, ...]

    def __init__(self, *, then: Sequence[Doc] = ()) -> None:
        super().__init__()
        self.then = tuple(then)

    def keys(self) -> dict[str, Any]:
        """The keys of the settlement beside subject, lease and action."""
        return {}

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if v is not None and v != ())
        return f"{type(self).__name__}({shown})"

    __str__ = __repr__


class Complete(Outcome):
    """The work is done; ``result`` is kept for whoever waits for it, ``payload`` replaces that of the
    document."""

    action = "complete"
    succeeds = True

    def __init__(self, result: Any = None, *, payload: Any = None, then: Sequence[Doc] = ()) -> None:
        super().__init__(then=then)
        self.result = result
        self.payload = payload

    def keys(self) -> dict[str, Any]:
        return {"result": self.result, "payload": self.payload}


class _Timed(Outcome):
    def __init__(
        self, delay: Duration | None = None, *, at: datetime | str | None = None, then: Sequence[Doc] = ()
    ) -> None:
        super().__init__(then=then)
        if delay is not None and at is not None:
            raise ValueError("give a delay or a time, not both")
        self.delay = delay
        self.at = at

    def keys(self) -> dict[str, Any]:
        if self.at is not None:
            return {"due_at": moment(self.at)}
        return {} if self.delay is None else {"delay": interval(self.delay)}


class Snooze(_Timed):
    """Not now: the document is due again after a delay, and the attempt does not count."""

    action = "snooze"


class Reschedule(_Timed):
    """The work is done for this time, and is due again after a delay or at a time. Attempts begin anew."""

    action = "reschedule"
    succeeds = True

    def __init__(
        self,
        delay: Duration | None = None,
        *,
        at: datetime | str | None = None,
        payload: Any = None,
        then: Sequence[Doc] = (),
    ) -> None:
        if delay is None and at is None:
            raise ValueError("a document is rescheduled after a delay or at a time")
        super().__init__(delay, at=at, then=then)
        self.payload = payload

    def keys(self) -> dict[str, Any]:
        return {**super().keys(), "payload": self.payload}


class _Failed(Outcome):
    def __init__(
        self, message: Any = None, *, details: Any = None, ref_id: str | None = None, then: Sequence[Doc] = ()
    ) -> None:
        super().__init__(then=then)
        self.message = None if message is None else describe(message)
        self.details = details
        self.ref_id = ref_id

    def keys(self) -> dict[str, Any]:
        return {"message": self.message, "details": self.details, "ref_id": self.ref_id}


class Retry(_Failed):
    """The attempt has failed. It is repeated after ``delay``, or by the policy of the queue, which also says
    after how many attempts the document is killed."""

    action = "reject"

    def __init__(
        self,
        message: Any = None,
        *,
        delay: Duration | None = None,
        details: Any = None,
        ref_id: str | None = None,
        then: Sequence[Doc] = (),
    ) -> None:
        super().__init__(message, details=details, ref_id=ref_id, then=then)
        self.delay = delay

    def keys(self) -> dict[str, Any]:
        timed = {} if self.delay is None else {"delay": interval(self.delay)}
        return {**super().keys(), **timed}


class Kill(_Failed):
    """The work will never succeed: the document is killed, whatever attempts are left."""

    action = "kill"


class Drop(Outcome):
    """The work is done or needless, and nothing is kept of the document."""

    action = "drop"
    succeeds = True


def describe(error: Any) -> str:
    """The message that a document keeps of an error: at most 2,000 characters, as the server stores them."""
    text = error if isinstance(error, str) else str(error) or repr(error)
    return clean_text(text)[:2000]


def settlement(subject: str, lease: int, outcome: Outcome | None, then: Sequence[Doc] = ()) -> str:
    """The JSON of a settlement; without an outcome the document is completed. It is encoded where the handler has
    ended, so that what cannot be encoded is an error of that handler alone."""
    # The subject came from the server, so only what is added here can be refused.
    action = "complete" if outcome is None else outcome.action
    head = f'{{"subject":{quoted(subject)},"lease":{lease},"action":"{action}"'
    more: dict[str, Any] = {}
    if outcome is not None:
        more = {k: v for k, v in outcome.keys().items() if v is not None}
        then = [*outcome.then, *then] if outcome.succeeds else outcome.then
    if then:
        more["then"] = [doc.as_json() for doc in then]
    return head + (f",{dumps(more)[1:]}" if more else "}")
