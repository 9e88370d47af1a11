#!/usr/bin/env python3
"""Write docs/internals/source.md: where each SQL function is, and what each source file holds.

    source.py            write the page
    source.py --check    fail with a message when the committed page is stale

It reads src/sql/functions/*.sql and the first sentence of the header of each file in src/.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "internals" / "source.md"
SRC = ROOT / "src"

# The families whose calls go elsewhere than to a file of src/store/.
ELSEWHERE = {"waiting": "waiting.rs"}

# In the order of the layers, from the top.
LAYERS = ["api", "background", "maintenance", "store", "ready", "signals", "pg", "domain"]

INTRO = """# Source files

This page is written by `make docs` from the source. `make test` fails when it is stale.

A family of functions has one name: `doc_reject` is declared in `src/sql/functions/doc_reject.sql`,
its entry point is in `src/api/doc_reject.rs`, and its statements are in `src/store/doc_reject.rs`.

## Functions
"""


def families():
    """Family, names of its functions in the order of their declaration."""
    for path in sorted((SRC / "sql" / "functions").glob("*.sql")):
        text = re.sub(r"--[^\n]*", "", path.read_text())
        names = re.findall(r"create (?:function|procedure|view) fetchq\.(\w+)", text)
        yield path.stem, list(dict.fromkeys(names))


def sentence(path):
    """The first sentence of the header of a file."""
    mark = "//!" if path.suffix == ".rs" else "--"
    lines = []
    for line in path.read_text().splitlines():
        if line.startswith(mark):
            if not line[len(mark):].strip() and lines:
                break
            lines.append(line[len(mark):].strip())
        elif lines or line.strip():
            break
    text = " ".join(lines).strip()
    match = re.match(r"(.+?)\.(\s|$)", text)
    if not match:
        sys.exit(f"{path.relative_to(ROOT)} has no header with a sentence")
    return match.group(1).replace("|", "\\|") + "."


def page():
    """The text of the page."""
    out = [INTRO, "| family | functions, views, procedures |", "|---|---|"]
    for family, names in families():
        where = ELSEWHERE.get(family, f"store/{family}.rs")
        if not (SRC / where).exists():
            sys.exit(f"src/{where} does not exist, but src/sql/functions/{family}.sql does")
        shown = ", ".join(f"`{name}`" for name in names)
        note = f" (calls `src/{where}`)" if family in ELSEWHERE else ""
        out.append(f"| `{family}`{note} | {shown} |")
    out += ["", "The procedure `work` is in `src/sql/work.sql`, in PL/pgSQL.", ""]
    for folder in ["", *LAYERS, "sql"]:
        base = SRC / folder if folder else SRC
        files = sorted(p for p in base.glob("*.rs")) + sorted(base.glob("*.sql"))
        title = f"src/{folder}/" if folder else "src/"
        out += [f"## {title}", ""]
        head = base / "mod.rs"
        if folder and head.exists():
            out += [sentence(head), ""]
        out += ["| file | what it holds |", "|---|---|"]
        for path in files:
            if path.name != "mod.rs":
                out.append(f"| `{path.name}` | {sentence(path)} |")
        out.append("")
    return "\n".join(out).rstrip("\n") + "\n"


def main():
    text = page()
    if sys.argv[1:] == ["--check"]:
        if not PAGE.exists() or PAGE.read_text() != text:
            sys.exit("docs/internals/source.md is stale: run 'make docs'")
        print("docs/internals/source.md is up to date")
    else:
        PAGE.write_text(text)
        print("docs/internals/source.md: written")


if __name__ == "__main__":
    main()
