"""The command line: ``fetchq-worker module:app`` or ``python -m fetchq worker module:app``."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from .aio import AsyncWorker
from .app import App, AsyncApp
from .errors import ConfigError
from .worker import Worker


def _parser(name: str | None) -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="python -m fetchq" if name is None else f"fetchq-{name}")
    if name is None:
        commands = top.add_subparsers(dest="command", required=True)
        _worker(commands.add_parser("worker", help="works on the tasks of an app until SIGTERM"))
        _common(commands.add_parser("sync", help="creates queues, and writes settings and schedules"))
    else:
        top.set_defaults(command=name)
        _worker(top)
    return top


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("app", help="where the app is, as module:attribute")
    parser.add_argument(
        "--database",
        default=os.environ.get("DATABASE_URL"),
        help="connection string; by default that of the app, DATABASE_URL, or the variables of libpq",
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="logs more")


def _worker(parser: argparse.ArgumentParser) -> None:
    _common(parser)
    parser.add_argument("--queue", action="append", help="only this queue; may be repeated")
    parser.add_argument("--concurrency", type=int, help="how many handlers run at once in a process")
    parser.add_argument("--grace", type=float, help="seconds for handlers to finish after SIGTERM (25)")
    parser.add_argument("--name", help="what the worker is called in the database")
    parser.add_argument(
        "--poll", type=float, help="poll with this number of seconds between, instead of waiting in a session"
    )
    parser.add_argument("--processes", type=int, default=1, help="how many processes (1)")


def load(path: str) -> App | AsyncApp:
    """The app that ``module:attribute`` names."""
    module, _, attribute = path.partition(":")
    sys.path.insert(0, os.getcwd())
    found: Any = importlib.import_module(module)
    for part in (attribute or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, (App, AsyncApp)):
        raise ConfigError(f"{path} is no App and no AsyncApp")
    return found


def _options(args: argparse.Namespace) -> dict[str, Any]:
    options = {k: getattr(args, k) for k in ("concurrency", "grace", "name") if getattr(args, k) is not None}
    if args.poll is not None:
        options |= {"polling": True, "poll": args.poll}
    return options


def _work(app: App | AsyncApp, source: Any, args: argparse.Namespace) -> None:
    if isinstance(app, AsyncApp):
        worker = AsyncWorker(app, source, queues=args.queue, **_options(args))
        asyncio.run(worker.run(signals=True))
    else:
        Worker(app, source, queues=args.queue, **_options(args)).run(signals=True)


def _sync(app: App | AsyncApp) -> None:
    if isinstance(app, AsyncApp):
        asyncio.run(app.sync())
    else:
        app.sync()


def _supervise(count: int, argv: Sequence[str]) -> int:
    """Runs processes, passes signals on to them, and ends them all when one of them ends."""
    command = [sys.executable, "-m", "fetchq", "worker", *argv, "--processes", "1"]
    children = [
        subprocess.Popen(command, start_new_session=True)  # noqa: S603
        for _ in range(count)
    ]
    stopping = False

    def forward(number: int, _: object) -> None:
        nonlocal stopping
        stopping = True
        for child in children:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    for child in children:
        if child.pid == ended:
            child.returncode = code
        elif not stopping:
            child.terminate()
    return max([abs(child.wait()) for child in children], default=code)


def main(argv: Sequence[str] | None = None, name: str | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = _parser(name).parse_args(argv)
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    if args.command == "worker" and args.processes > 1:
        return _supervise(args.processes, argv if name == "worker" else argv[1:])
    try:
        app = load(args.app)
        if args.database is not None or app._lender is None:
            app.open(args.database or "")
        if args.command == "sync":
            _sync(app)
        else:
            _work(app, None, args)
    except ConfigError as error:
        print(f"fetchq: {error}", file=sys.stderr)
        return 2
    return 0


def worker() -> None:
    """The command ``fetchq-worker``."""
    sys.exit(main(name="worker"))
