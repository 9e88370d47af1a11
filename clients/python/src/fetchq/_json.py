"""JSON as PostgreSQL takes it: no NUL, no half of a surrogate pair, no NaN."""

from __future__ import annotations

import dataclasses
import enum
import json
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

_read = json.JSONDecoder().raw_decode


def loads(text: str) -> Any:
    """The value of a JSON text as PostgreSQL writes it: without space around it."""
    return _read(text)[0]


def clean_text(text: str) -> str:
    """A text without what PostgreSQL refuses."""
    if "\0" in text:
        text = text.replace("\0", "")
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean(value: Any) -> Any:
    """A copy of a JSON value in which each text is clean."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(k)): clean(v) for k, v in value.items()}  # pyright: ignore
    if isinstance(value, (list, tuple)):
        return [clean(v) for v in value]  # pyright: ignore
    return value


def plain(value: Any) -> Any:
    """What ``json`` does not know by itself, as something that it knows."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (UUID, Decimal)):
        return str(value)
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset)):
        return list(value)  # pyright: ignore
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return dump(mode="json")
    if hasattr(value, "__struct_fields__"):
        import msgspec

        return msgspec.to_builtins(value)
    raise TypeError(f"{type(value).__name__} has no form in JSON")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain).encode
quoted = json.encoder.encode_basestring
"""The JSON of a text."""


def dumps(value: Any) -> str:
    """The JSON of a value. Raises ``ValueError`` or ``TypeError`` where PostgreSQL would refuse it."""
    text = _encode(value)
    if "\\u0000" in text:  # Perhaps a backslash that is followed by that text.
        _refuse_nul(loads(text))
    if not text.isascii():
        text.encode()  # Half of a surrogate pair is a UnicodeEncodeError, which is a ValueError.
    return text


def _refuse_nul(value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value:
            raise ValueError("PostgreSQL cannot store a text with a NUL character")
    elif isinstance(value, dict):
        for k, v in value.items():  # pyright: ignore
            _refuse_nul(k)
            _refuse_nul(v)
    elif isinstance(value, list):
        for v in value:  # pyright: ignore
            _refuse_nul(v)
