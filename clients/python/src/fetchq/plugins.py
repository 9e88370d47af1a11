"""Middleware: what runs around each put and each handler."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import Context
    from .tasks import Doc


class Plugin:
    """A middleware. Each method gives a context manager, so that one class serves threads and asyncio; those
    that are registered first are outermost. A plugin sees documents and contexts, and cannot change a lease."""

    def put(self, docs: Sequence[Doc]) -> AbstractContextManager[Any]:  # noqa: ARG002
        """Around a put. It may change ``doc.headers``."""
        return contextlib.nullcontext()

    def handle(self, ctx: Context) -> AbstractContextManager[Any] | AbstractAsyncContextManager[Any]:  # noqa: ARG002
        """Around a handler, for each document. In asyncio it may be an asynchronous context manager."""
        return contextlib.nullcontext()

    def observe(self, event: str, value: float, attributes: dict[str, Any]) -> None:  # noqa: ARG002
        """Told of what the runtime measures: ``settled`` (by ``outcome``), ``handled`` (seconds of a handler),
        ``lost``, ``stuck``, ``aborted`` (by ``reason``), ``call`` (seconds of a call to the server, by ``call``),
        ``slots`` (handlers that run). It must return at once."""
        return
