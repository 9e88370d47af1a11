"""The code of the README and of the guides runs as it stands there, block after block, and the worker in examples/."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import Db, until

from fetchq.testing import drain

HERE = Path(__file__).resolve().parents[1]
ROOT = HERE.parents[1]
PAGES = {"README.md": HERE / "README.md"} | {p: ROOT / "docs/guides" / p for p in ("python.md", "recipes.md")}
# The blocks of code, and what a page adds in comments.
BLOCK = re.compile(r"^```python\n(.*?)^```|^<!-- run python: (.*?) -->$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def address(db: Db, url: str) -> Iterator[str]:
    """A database of its own."""
    name = f"{db.queue()}_docs"
    db.sql(f"create database {name}")
    address = f"{url.rsplit('/', 1)[0]}/{name}"
    Db(address).sql("create extension fetchq")
    yield address
    db.sql(f"drop database {name} with (force)")


@pytest.mark.parametrize("page", PAGES)
def test_the_code_runs(page: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", address)
    blocks = [code or added for code, added in BLOCK.findall(PAGES[page].read_text())]
    assert len(blocks) > 3
    module = types.ModuleType("docs")
    monkeypatch.setitem(sys.modules, "docs", module)
    space = vars(module)
    try:
        for number, block in enumerate(blocks):
            exec(compile(block, f"{page}, block {number + 1}", "exec"), space)
        drain(space["app"])
        seen = Db(address)
        kept = "select count(*) from fetchq.queue_stats() where succeeded > 0"
        assert seen.value(kept) >= (2 if page == "README.md" else 4)
        if page == "README.md":
            assert seen.value("select count(*) from users") == 2
        elif page == "python.md":
            # The middleware of the last block has written it.
            headers = "select count(*) from fetchq.queue_history('mail') h where h.headers ->> 'tenant' = 'acme'"
            assert seen.value(headers) == 1
    finally:
        for thing in ("pool", "app"):
            if thing in space:
                space[thing].close()


def test_the_code_of_the_first_page_runs(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = Db(address)
    seen.sql("create table users (mail text)")
    monkeypatch.setenv("DATABASE_URL", address)
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    module = types.ModuleType("first")
    monkeypatch.setitem(sys.modules, "first", module)
    try:
        exec(compile(block, "README.md", "exec"), vars(module))
        drain(vars(module)["app"])
        assert seen.value("select count(*) from users") == 1
        assert seen.value("select succeeded from fetchq.queue_stats('welcome')") == 1
    finally:
        if "app" in vars(module):
            vars(module)["app"].close()


def test_the_example_writes_results_rejects_what_fails_and_stops(address: str) -> None:
    db = Db(address)
    db.sql("create table results (subject text, result jsonb)")
    db.sql("select fetchq.queue_create('jobs')")
    db.sql("select fetchq.doc_put('jobs', 'first')")
    db.sql("""select fetchq.doc_put('jobs', 'second', '{"fail": "bad luck"}')""")
    program = [sys.executable, str(ROOT / "examples" / "python_worker.py")]
    with subprocess.Popen(program, env={**os.environ, "DATABASE_URL": address}) as worker:
        try:
            until("a result", lambda: db.sql("select subject from results"))
            until("a rejection", lambda: db.has_failed("jobs", "second"))
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(30) == 0
        finally:
            worker.kill()
    assert db.sql("select subject, result from results") == [("first", {"worked": True})]
    assert db.value("select last_error from fetchq.doc_get('jobs', 'second')") == "bad luck"
