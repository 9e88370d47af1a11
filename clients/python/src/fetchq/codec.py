"""Payloads: from the type that a task declares to JSON, and back.

A type is a plain ``dict`` or ``Any``, a dataclass, a ``TypedDict``, a ``BaseModel`` of pydantic, a ``Struct``
of msgspec, or a type that these are made of. Decoding checks: what does not fit is an
:class:`~fetchq.InvalidPayload` that names the place.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from collections.abc import Callable, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from typing_extensions import NotRequired, Required, is_typeddict

from .errors import InvalidPayload

Decoder = Callable[[Any], Any]
_NONE = type(None)
_TEXTS: dict[Any, Callable[[str], Any]] = {
    datetime: lambda text: datetime.fromisoformat(text.replace("Z", "+00:00")),
    date: date.fromisoformat,
    time: time.fromisoformat,
    UUID: UUID,
    Decimal: Decimal,
}


def decoder(kind: Any) -> Decoder:
    """A function that makes a value of a type from decoded JSON."""
    if kind in (Any, object, dict, Mapping) or kind is None:
        return lambda value: value
    if hasattr(kind, "model_validate"):
        return kind.model_validate  # type: ignore[no-any-return]
    if hasattr(kind, "__struct_fields__"):
        import msgspec

        return lambda value: msgspec.convert(value, kind)
    return lambda value: _read(kind, value, "payload")


def decode(read: Decoder, value: Any) -> Any:
    """A value of the declared type, or :class:`~fetchq.InvalidPayload`."""
    try:
        return read(value)
    except InvalidPayload:
        raise
    except Exception as error:  # Validators may raise anything.
        raise InvalidPayload(f"the payload does not fit: {error}") from error


def _wrong(where: str, want: str, value: Any) -> InvalidPayload:
    shown = repr(value)
    return InvalidPayload(f"{where} must be {want}, not {shown if len(shown) < 80 else shown[:80] + '…'}")


def _fields(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _read(kind: Any, value: Any, where: str) -> Any:
    """Reads a value as a type, structure by structure."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Annotated, Required, NotRequired):
        return _read(args[0], value, where)
    if kind in (Any, object):
        return value
    if kind is _NONE or kind is None:
        if value is not None:
            raise _wrong(where, "null", value)
        return None
    if origin in (Union, types.UnionType):
        return _read_union(args, value, where)
    if origin is Literal:
        if value not in args:
            raise _wrong(where, f"one of {args}", value)
        return value
    if hasattr(kind, "model_validate") or hasattr(kind, "__struct_fields__"):
        return decoder(kind)(value)
    if dataclasses.is_dataclass(kind) or is_typeddict(kind):
        return _read_object(kind, value, where)
    if origin in (list, set, frozenset, tuple) or kind in (list, set, frozenset, tuple):
        return _read_list(origin or kind, args, value, where)
    if origin in (dict, Mapping) or kind in (dict, Mapping):
        if not isinstance(value, dict):
            raise _wrong(where, "an object", value)
        inner = args[1] if args else Any
        return {k: _read(inner, v, f"{where}.{k}") for k, v in value.items()}  # pyright: ignore
    return _read_scalar(kind, value, where)


def _read_union(args: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and _NONE in args:
        return None
    errors: list[str] = []
    for one in args:
        try:
            return _read(one, value, where)
        except Exception as error:  # The next type may fit.
            errors.append(str(error))
    raise InvalidPayload("; ".join(errors))


def _read_object(kind: Any, value: Any, where: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(where, "an object", value)
    given: dict[str, Any] = value  # pyright: ignore
    hints = _fields(kind)
    if is_typeddict(kind):
        needed = set(kind.__required_keys__)
    else:
        declared = {f.name: f for f in dataclasses.fields(kind) if f.init}
        hints = {name: hints[name] for name in declared}
        unset = dataclasses.MISSING
        needed = {n for n, f in declared.items() if f.default is unset and f.default_factory is unset}
    if missing := sorted(needed - given.keys()):
        raise InvalidPayload(f"{where} has no {', '.join(missing)}")
    values = {n: _read(h, given[n], f"{where}.{n}") for n, h in hints.items() if n in given}
    # A newer producer may know more keys. A dataclass has no place for them.
    return {**given, **values} if is_typeddict(kind) else kind(**values)


def _read_list(kind: Any, args: tuple[Any, ...], value: Any, where: str) -> Any:
    if not isinstance(value, list):
        raise _wrong(where, "an array", value)
    items: list[Any] = value  # pyright: ignore
    if kind is tuple and args and args[-1] is not Ellipsis:
        if len(items) != len(args):
            raise _wrong(where, f"an array of {len(args)}", items)
        return tuple(_read(t, v, f"{where}[{i}]") for i, (t, v) in enumerate(zip(args, items, strict=True)))
    inner = args[0] if args else Any
    make = cast("Callable[[Any], Any]", kind)
    return make(_read(inner, v, f"{where}[{i}]") for i, v in enumerate(items))


def _read_scalar(kind: Any, value: Any, where: str) -> Any:
    if hasattr(kind, "__supertype__"):  # NewType
        return _read(kind.__supertype__, value, where)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (str, int, float, bool):
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _wrong(where, f"of type {kind.__name__}", value)
        return value
    name = getattr(kind, "__name__", repr(kind))
    try:
        if kind in _TEXTS and isinstance(value, (str, int, float)):
            return _TEXTS[kind](str(value))
        if kind is timedelta and isinstance(value, (int, float)):
            return timedelta(seconds=value)
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return kind(value)
    except (ValueError, ArithmeticError) as error:
        raise _wrong(where, f"of type {name}", value) from error
    if isinstance(kind, type) and isinstance(value, kind):
        return value  # pyright: ignore
    raise _wrong(where, f"of type {name}", value)
