"""The code of the README and of the guide runs as it stands there, block after block."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest
from conftest import Db

from fetchq.testing import drain

HERE = Path(__file__).resolve().parents[1]
PAGES = {"README.md": HERE / "README.md", "python.md": HERE.parents[1] / "docs/guides/python.md"}


@pytest.mark.parametrize("page", PAGES)
def test_the_code_runs(page: str, db: Db, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{db.queue()}_docs"
    db.sql(f"create database {name}")
    address = f"{url.rsplit('/', 1)[0]}/{name}"
    Db(address).sql("create extension fetchq")
    monkeypatch.setenv("DATABASE_URL", address)
    blocks = re.findall(r"^```python\n(.*?)^```", PAGES[page].read_text(), re.DOTALL | re.MULTILINE)
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
        else:
            # The middleware of the last block has written it.
            headers = "select count(*) from fetchq.queue_history('mail') h where h.headers ->> 'tenant' = 'acme'"
            assert seen.value(headers) == 1
    finally:
        for thing in ("pool", "app"):
            if thing in space:
                space[thing].close()
        db.sql(f"drop database {name} with (force)")


def test_the_code_of_the_first_page_runs(db: Db, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{db.queue()}_first"
    db.sql(f"create database {name}")
    address = f"{url.rsplit('/', 1)[0]}/{name}"
    seen = Db(address)
    seen.sql("create extension fetchq; create table users (mail text)")
    monkeypatch.setenv("DATABASE_URL", address)
    page = (HERE.parents[1] / "README.md").read_text()
    (block,) = re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
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
        db.sql(f"drop database {name} with (force)")
