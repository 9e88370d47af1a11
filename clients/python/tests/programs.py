"""An app for tests that start a worker as a process of its own."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import psycopg

from fetchq import App, AsyncApp

QUEUE = os.environ.get("TEST_QUEUE", "programs")
app = App()
aapp = AsyncApp()


def work(payload: dict, ctx: Any) -> Any:
    """Does what its payload says, and stores that it has begun."""
    ctx.step("began", lambda: True)
    if seconds := payload.get("hang"):
        time.sleep(seconds)
    if seconds := payload.get("sleep"):
        ctx.sleep(seconds)
    return {"pid": os.getpid(), "attempt": ctx.attempt}


async def awork(payload: dict, ctx: Any) -> Any:
    await ctx.step("began", lambda: True)
    if seconds := payload.get("hang"):
        time.sleep(seconds)
    if seconds := payload.get("sleep"):
        await asyncio.sleep(seconds)
    return {"pid": os.getpid(), "attempt": ctx.attempt}


def ledger(payload: dict, ctx: Any) -> Any:
    conn: psycopg.Connection[Any] = ctx.conn
    conn.execute(f"insert into {QUEUE}_ledger values (%s)", (ctx.subject,))
    time.sleep(payload.get("hang", 0))


async def aledger(payload: dict, ctx: Any) -> Any:
    await ctx.conn.execute(f"insert into {QUEUE}_ledger values (%s)", (ctx.subject,))
    await asyncio.sleep(payload.get("hang", 0))


LEASE = float(os.environ.get("TEST_LEASE", "30"))
task = app.task(QUEUE, payload=dict, lease=LEASE)(work)
atask = aapp.task(QUEUE, payload=dict, lease=LEASE)(awork)
ltask = app.task(f"{QUEUE}l", payload=dict, lease=LEASE, transaction=True)(ledger)
altask = aapp.task(f"{QUEUE}l", payload=dict, lease=LEASE, transaction=True)(aledger)
