"""What becomes of a document whose handler has failed."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import Any, TypeVar, cast

from ._json import clean
from .context import logger
from .errors import Aborted, InvalidPayload, Reason
from .outcomes import Duration, Kill, Outcome, Retry, Snooze, describe
from .tasks import TaskBase

T = TypeVar("T", bound="Outcome | None")


def verdict(error: BaseException, task: TaskBase[Any] | None, reason: Reason | None, worker: str) -> Outcome:
    """What becomes of a document whose handler has failed."""
    if isinstance(error, Outcome):
        return error
    if reason in ("shutdown", "timeout") and was_aborted(error):
        if reason == "shutdown":
            return Snooze()
        limit = task.timeout if task else None
        error = TimeoutError(f"timeout: the handler was stopped after {limit:g} s" if limit else "timeout")
    elif isinstance(error, InvalidPayload) and task is not None and task.on_invalid == "kill":
        return Kill(error, details=_details(error, worker))
    given = _rule(task, error) if task is not None else None
    if given is None:
        return Retry(error, details=_details(error, worker))
    if isinstance(given, (Retry, Kill)):
        if given.message is None:
            given.message = describe(error)
        if given.details is None:
            given.details = _details(error, worker)
    return given


def _rule(task: TaskBase[Any], error: BaseException) -> Outcome | None:
    for base in type(error).__mro__:
        if (rule := task.retry.get(base)) is None:
            continue
        try:
            value: Any = rule
            if callable(value) and not isinstance(value, type):
                value = value(error)
            if isinstance(value, type) and issubclass(value, Outcome):
                value = value()
            if value is None or isinstance(value, Outcome):
                # A copy, because the message of this error is written into it.
                return None if value is None else _copy(value)
            return Retry(error, delay=cast("Duration", value))
        except Exception as problem:  # The rule of the application is wrong.
            logger.error("%s: the rule for %s fails: %s", task, base.__name__, describe(problem))
            return None
    return None


def _details(error: BaseException, worker: str) -> dict[str, Any]:
    stack = "".join(traceback.format_exception(type(error), error, error.__traceback__, limit=-20))
    kind = type(error)
    return {
        "error": f"{kind.__module__}.{kind.__qualname__}",
        "stack": stack[-4000:],
        "worker": worker,
    }


def redacted(outcome: T, hook: Callable[[str], str] | None) -> T:
    if isinstance(outcome, (Retry, Kill)):
        outcome.details = clean(outcome.details)
        if hook is not None:
            outcome.message = None if outcome.message is None else describe(hook(outcome.message))
            outcome.details = _map(outcome.details, hook)
    return outcome


def was_aborted(error: BaseException) -> bool:
    """Whether an error comes of an abort, also where the handler has wrapped it."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        if isinstance(one, (Aborted, asyncio.CancelledError)):
            return True
        seen.add(id(one))
        # An error that is raised `from None` says that it has another reason.
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return False


def _copy(outcome: Outcome) -> Outcome:
    copy: Outcome = type(outcome).__new__(type(outcome))
    copy.__dict__.update(outcome.__dict__)
    return copy


def _map(value: Any, hook: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return hook(value)
    if isinstance(value, dict):
        return {k: _map(v, hook) for k, v in value.items()}  # pyright: ignore
    if isinstance(value, list):
        return [_map(v, hook) for v in value]  # pyright: ignore
    return value
