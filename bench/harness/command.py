"""What the runners share: their settings, the folder of a run, and how a run ends."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from . import report
from .cluster import ROOT, Cluster
from .errors import Failed, Interrupted

RESULTS = ROOT / "bench/results"
# What a resumed run keeps of the run that it continues.
KEPT = ("date", "what")


def setting(name: str) -> str:
    return os.environ.get(name, "").strip()


def is_set(name: str) -> bool:
    return setting(name) not in ("", "0")


def number(name: str) -> float | None:
    return float(setting(name)) if setting(name) else None


def rounds() -> int | None:
    return int(setting("ROUNDS")) if setting("ROUNDS") else None


def resumed() -> Path | None:
    """Returns the folder of the run to continue, if RESUME names one."""
    if not setting("RESUME"):
        return None
    folder = Path(setting("RESUME"))
    if not folder.is_dir():
        raise Failed(f"RESUME: there is no folder {folder}")
    return folder


def new_folder(what: str) -> Path:
    base = RESULTS / f"{time.strftime('%Y-%m-%d')}-{what}"
    folder, n = base, 1
    while folder.exists():
        n += 1
        folder = base.with_name(f"{base.name}-{n}")
    return folder


def begin(what: str, facts: dict[str, str]) -> tuple[Path, dict[str, str]]:
    """Returns the folder of the run, and what its meta.json says, which it writes."""
    meta = {"what": what, **facts}
    folder = resumed()
    if folder:
        before = report.read_meta(folder)
        if before.get("fetchq.so") not in (None, meta["fetchq.so"]):
            raise Failed(f"{folder} was measured with another build of fetchq: start a new run")
        meta |= {name: before[name] for name in KEPT if name in before}
    else:
        folder = new_folder(what)
        folder.mkdir(parents=True)
    report.keep_meta(folder, meta)
    return folder, meta


def interrupt(*_: object) -> None:
    # A second signal must not interrupt the end of the run.
    for which in (signal.SIGINT, signal.SIGTERM):
        signal.signal(which, signal.SIG_IGN)
    Cluster.interrupted = True
    raise Interrupted


def run(main: Callable[[], None]) -> None:
    """Runs `main`, removes its server, and ends the process."""
    # SIGTERM ends the run as Ctrl-C does: the report is written, and the server is removed.
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, interrupt)
    status = 0
    try:
        main()
    except Failed as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    except Interrupted:
        print("interrupted: continue with RESUME=<folder>", file=sys.stderr)
        status = 130
    finally:
        if not setting("KEEP"):
            Cluster().reset()
    sys.exit(status)
