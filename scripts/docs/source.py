#!/usr/bin/env python3
"""Write docs/internals/source.md: where each SQL function is, and what each source file holds.

    source.py            write the page
    source.py --check    fail with a message when the committed page is stale

It reads src/sql/**/*.sql, the bodies of the entry points in src/api/*.rs, and the first sentence of
the header of each file in src/.
"""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "internals" / "source.md"
SRC = ROOT / "src"

# In the order of the layers, from the top.
LAYERS = ["api", "background", "maintenance", "store", "ready", "signals", "pg", "domain"]

# The layers that an entry point calls.
CALLED = ("store", "maintenance", "waiting", "ready", "signals")

INTRO = """# Source files

This page is written by `make docs` from the source. `make test` fails when it is stale.

Functions belong to families, and a family has one name: the functions of the family `doc_reject`
are declared in `src/sql/functions/doc_reject.sql`, and their entry points are in
`src/api/doc_reject.rs`. The column *calls* names the files of `src/` whose functions the entry point
calls; the statements of a family are in the file of that name in `src/store/`, or in those.

## Functions
"""

# A module that a body names in full.
FULL_PATH = re.compile(r"\bcrate::(\w+)::(\w+)::")

DECLARATION = re.compile(
    r"^create (function|procedure|view) fetchq\.(\w+)(.*?)(?=^(?:create|comment|alter|grant)\b|\Z)",
    re.S | re.M,
)


def declarations():
    """What src/sql/functions/ declares: family, kind, name, and the text of the declaration."""
    for path in sorted((SRC / "sql" / "functions").glob("*.sql")):
        text = re.sub(r"--[^\n]*", "", path.read_text())
        for kind, name, body in DECLARATION.findall(text):
            yield path.stem, kind, name, body


def imports(text):
    """The names by which a file calls modules of CALLED, with the paths of these modules."""
    names = {}
    for line in re.findall(r"^use crate::([^;]+);", text, re.M):
        for path, alias in paths(line):
            parts = path.split("::")
            if parts[0] not in CALLED:
                continue
            if parts == ["waiting"]:
                names[alias or "waiting"] = "waiting.rs"
            elif len(parts) == 2 and (SRC / parts[0] / f"{parts[1]}.rs").exists():
                names[alias or parts[1]] = f"{parts[0]}/{parts[1]}.rs"
    return names


def paths(line):
    """The paths of a `use` line, with their aliases: `a::{b, c as d}` gives a::b and a::c."""
    match = re.fullmatch(r"\s*(?:(.*?)::)?\{(.*)\}\s*", line, re.S)
    if match:
        items = [item.strip() for item in match.group(2).split(",") if item.strip()]
        prefix = f"{match.group(1)}::" if match.group(1) else ""
    else:
        items, prefix = [line.strip()], ""
    for item in items:
        path, _, alias = item.partition(" as ")
        path = (prefix + path).removesuffix("::self")
        yield path, alias.strip()


def bodies(text):
    """The functions of a Rust file: name and body, which ends at the first brace in column 0."""
    return dict(re.findall(r"^(?:pub )?fn (\w+)(.*?)^}", text, re.S | re.M))


def modules(path, function):
    """The modules that a function of a file names, by itself or by functions of that file."""
    text = re.sub(r"//[^\n]*", "", path.read_text())
    called, functions = imports(text), bodies(text)
    if function not in functions:
        sys.exit(f"{path.relative_to(ROOT)} has no function {function}")
    found, seen, todo = set(), set(), [function]
    while todo:
        name = todo.pop()
        seen.add(name)
        body = functions[name]
        found.update(f for alias, f in called.items() if re.search(rf"(?<!:){alias}::", body))
        found.update(f"{layer}/{module}.rs" for layer, module in FULL_PATH.findall(body)
                     if (SRC / layer / f"{module}.rs").exists())
        if "crate::waiting::" in body:
            found.add("waiting.rs")
        todo += [other for other in functions
                 if other not in seen and re.search(rf"(?<![\w.:]){other}\b(?!::)", body)]
    return found


def calls(family, kind, body):
    """What the last column says about one declaration: a set of files, or of functions."""
    if kind == "view":
        return {f"the function `{name}`" for name in re.findall(r"\bfetchq\.(\w+)\(", body)}
    symbol = re.search(r"'MODULE_PATHNAME', '(\w+)_wrapper'", body)
    if not symbol:
        return set()
    return {f"`{m}`" for m in modules(SRC / "api" / f"{family}.rs", symbol.group(1))}


def index():
    """The table of the functions, A to Z."""
    rows = {}
    for family, kind, name, body in declarations():
        label = f"`{name}`" + ("" if kind == "function" else f" ({kind})")
        rows.setdefault((name, label, family), set()).update(calls(family, kind, body))
    for (_, label, family), called in sorted(rows.items()):
        yield f"| {label} | `{family}` | {', '.join(sorted(called))} |".replace("  ", " ")


def bootstrap():
    """The line about the views and functions that src/sql/bootstrap.sql creates."""
    text = re.sub(r"--[^\n]*", "", (SRC / "sql" / "bootstrap.sql").read_text())
    shown = {kind: [f"`{name}`" for name in re.findall(rf"create {kind} fetchq\.(\w+)", text)]
             for kind in ("view", "function")}
    return (f"`src/sql/bootstrap.sql` has the views {' and '.join(sorted(shown['view']))}, "
            f"and in PL/pgSQL\nthe functions {' and '.join(sorted(shown['function']))}.")


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
    out = [INTRO, "| name | family | calls |", "|---|---|---|", *index()]
    out += ["", bootstrap(), "The procedure `work` is in `src/sql/work.sql`, in PL/pgSQL.", ""]
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
