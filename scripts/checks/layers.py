#!/usr/bin/env python3
"""Check the structure of src/: the direction of imports, circles, and what belongs where.

    layers.py              check this checkout, one line for each rule
    layers.py --self-test  check the rules themselves on small trees: each must fail and pass
    layers.py --graph      print which file imports which

Nothing but Python is needed. The source is read as text: comments, strings and test code
(items below `#[cfg(test)]` or `#[cfg(any(test, feature = "pg_test"))]`) do not count.
"""

import collections
import os
import re
import sys
import tempfile

# What each unit of src/ (a folder, or a file beside lib.rs) may import.
BASE = ["domain"]
PG = ["error", "settings", *BASE]
SIGNALS = ["pg", *PG]
READY = ["signals", *SIGNALS]
STORE = ["ready", *READY]
SERVICES = ["store", *STORE]
LAYERS = {
    "domain": [],
    "error": PG,
    "settings": PG,
    "pg": PG,
    "signals": SIGNALS,
    "ready": READY,
    "store": STORE,
    "maintenance": SERVICES,
    "waiting": SERVICES,
    "background": ["maintenance", *SERVICES],
    "api": ["waiting", "maintenance", *SERVICES],
}
LAYERS["lib"] = list(LAYERS)
MAX_LINES = 500

# ------------------------------------------------------------------ reading --
TOKEN = re.compile(
    r"""//[^\n]*
      | /\*
      | \b(?:br|cr|r)(?P<hashes>\#*)"(?P<raw>.*?)"(?P=hashes)
      | (?:\b[bc])?"(?P<text>(?:[^"\\]|\\.)*)"
      | b?'(?:\\(?:u\{[^}]*\}|x..|.)|[^\\'\n])'
    """,
    re.S | re.X,
)


def end_of_comment(text, start):
    """The end of a block comment, which may contain others."""
    depth, at = 0, start
    for mark in re.finditer(r"/\*|\*/", text[start:]):
        depth += 1 if mark.group() == "/*" else -1
        at = start + mark.end()
        if depth == 0:
            return at
    return len(text)


def blank(text):
    return re.sub(r"[^\n]", " ", text)


def strip(text):
    """The code without comments and literals (same length), and the strings: (offset, text)."""
    code, strings, at = [], [], 0
    while match := TOKEN.search(text, at):
        code.append(text[at : match.start()])
        end = match.end()
        if match.group().startswith("/*"):
            end = end_of_comment(text, match.start())
        for group in ("raw", "text"):
            if match.group(group) is not None:
                strings.append((match.start(), match.group(group)))
        code.append(blank(text[match.start() : end]))
        at = end
    code.append(text[at:])
    return "".join(code), strings


def end_of_block(code, start):
    """The offset behind the bracket that closes the one at `start`."""
    depth = 0
    for mark in re.finditer(r"[{}()\[\]]", code[start:]):
        depth += 1 if mark.group() in "{([" else -1
        if depth == 0:
            return start + mark.end()
    return len(code)


def end_of_item(code, start):
    """The offset behind the item that begins at `start`: its `;` or its block."""
    at = start
    while mark := re.search(r"[;{(\[]", code[at:]):
        at += mark.start()
        if code[at] == ";":
            return at + 1
        end = end_of_block(code, at)
        if code[at] == "{" and not re.match(r"\s*(?:;|as\b)", code[end:]):
            return end
        at = end
    return len(code)


TEST = re.compile(r"#\s*(!?)\s*\[\s*cfg\s*\(([^\]]*)\)\s*\]")


def tests(code):
    """Spans of test code, names of modules in files of their own, whether all is test code."""
    spans, files = [], set()
    for match in TEST.finditer(code):
        # (the string "pg_test" is blank by now)
        if not re.search(r"\btest\b", match.group(2)) or re.search(r"\bnot\b", match.group(2)):
            continue
        if match.group(1):
            return [(0, len(code))], files, True
        if any(a <= match.start() < b for a, b in spans):
            continue
        end = end_of_item(code, match.end())
        item = code[match.end() : end]
        if name := re.search(r"\bmod\s+(\w+)\s*;$", item):
            files.add(name.group(1))
        spans.append((match.start(), end))
    return spans, files, False


class File:
    """A source file: its module path, its code without tests, its strings."""

    def __init__(self, root, path):
        self.path = os.path.relpath(path, root)
        module = os.path.relpath(path, os.path.join(root, "src"))[:-3].split(os.sep)
        self.unit = module[0]
        if module[-1] == "mod":
            module = module[:-1]
        self.module = () if module == ["lib"] else tuple(module)
        with open(path, encoding="utf-8") as f:
            self.text = f.read()
        self.code, self.strings = strip(self.text)
        spans, self.test_files, self.is_test = tests(self.code)
        self.test_lines = 0
        for start, end in spans:
            self.test_lines += self.code.count("\n", start, end) + 1
            self.code = self.code[:start] + blank(self.code[start:end]) + self.code[end:]
            self.strings = [s for s in self.strings if not start <= s[0] < end]

    def line(self, offset):
        return self.text.count("\n", 0, offset) + 1

    def lines(self):
        return self.text.count("\n") + (not self.text.endswith("\n")) - self.test_lines


def expand(tree):
    """The paths of a use tree, and the name that each brings in: `a::{b as c, d::*}`."""
    tree = tree.strip()
    if group := re.fullmatch(r"((?:[\w$]+\s*::\s*)*)\{(.*)\}", tree, re.S):
        parts, depth, start, inner = [], 0, 0, group.group(2)
        for i, c in enumerate(inner + ","):
            depth += (c == "{") - (c == "}")
            if c == "," and depth == 0:
                parts.append(inner[start:i])
                start = i + 1
        return [found for p in parts if p.strip() for found in expand(group.group(1) + p)]
    path, _, alias = re.sub(r"\s*::\s*", "::", tree).partition(" as ")
    names = path.split("::")
    if names[-1] == "self":
        names.pop()
    return [(names, alias.strip() or names[-1])]


class Tree:
    """All source files below ROOT/src, and who imports whom."""

    def __init__(self, root):
        self.root = root
        files = []
        for folder, _, names in sorted(os.walk(os.path.join(root, "src"))):
            files += [File(root, os.path.join(folder, n)) for n in sorted(names) if n.endswith(".rs")]
        test = {(*f.module, name) for f in files for name in f.test_files}
        self.files = [
            f for f in files
            if not f.is_test and not any(f.module[:n] in test for n in range(1, len(f.module) + 1))
        ]
        self.modules = {f.module: f for f in self.files}
        self.names = {f.path: {} for f in self.files}  # what `use` brings in: name → path
        self.uses = {f.path: [] for f in self.files}
        for f in self.files:
            self.read_uses(f)
        # imports[a][b]: the first line of file a that imports file b, and what it says there
        self.imports = {f.path: {} for f in self.files}
        for f in self.files:
            self.read_imports(f)

    def scope(self, file, offset):
        """The module at an offset: that of the file, or one written in it."""
        module = file.module
        for match in re.finditer(r"\bmod\s+(\w+)\s*\{", file.code[:offset]):
            if end_of_block(file.code, match.end() - 1) > offset:
                module = (*module, match.group(1))
        return module

    def absolute(self, file, names, offset):
        """The path from the root of the crate; None for another crate's."""
        scope = self.scope(file, offset)
        if names[0] in ("crate", "$crate"):
            return tuple(names[1:])
        if names[0] == "self":
            return (*scope, *names[1:])
        if names[0] == "super":
            while names and names[0] == "super":
                scope, names = scope[:-1], names[1:]
            return (*scope, *names)
        if (*scope, names[0]) in self.modules:
            return (*scope, *names)
        if names[0] in self.names[file.path]:
            return (*self.names[file.path][names[0]], *names[1:])
        return None

    def read_uses(self, file):
        for match in re.finditer(r"(\bpub\b\s*(?:\([^)]*\))?\s*)?\buse\s+([^;]+);", file.code):
            for names, alias in expand(match.group(2)):
                path = self.absolute(file, names, match.start())
                if path is None:
                    continue
                self.uses[file.path].append((match.start(), path, "use " + "::".join(names)))
                if alias not in ("_", "*"):
                    self.names[file.path][alias] = path

    def target(self, path, hops=8):
        """The file that a path leads to, through what other modules re-export."""
        for n in range(len(path), -1, -1):
            file = self.modules.get(path[:n])
            if file is None:
                continue
            exported = self.names[file.path].get(path[n]) if n < len(path) else None
            if exported and hops:
                return self.target((*exported, *path[n + 1 :]), hops - 1)
            return file
        return None

    def read_imports(self, file):
        found = list(self.uses[file.path])
        code = re.sub(r"\bpub\s*\([^)]*\)", lambda m: blank(m.group()), file.code)
        code = re.sub(r"\buse\s+[^;]+;", lambda m: blank(m.group()), code)
        for match in re.finditer(r"(?<![\w:$])(\$?[A-Za-z_]\w*(?:\s*::\s*[A-Za-z_]\w*)+)", code):
            names = re.split(r"\s*::\s*", match.group(1))
            path = self.absolute(file, names, match.start())
            if path is not None:
                found.append((match.start(), path, "::".join(names)))
        for offset, path, text in sorted(found):
            target = self.target(path)
            if target and target is not file:
                self.imports[file.path].setdefault(target.path, (file.line(offset), text))

    def arrow(self, a, b):
        line, text = self.imports[a][b]
        return f"{a}:{line} imports {b} ({text})"


# -------------------------------------------------------------------- rules --
def shortest_circle(graph, start):
    """The shortest way from a node back to itself, or None."""
    before, queue = {}, collections.deque([start])
    while queue:
        node = queue.popleft()
        for target in sorted(graph.get(node, ())):
            if target == start:
                way = [node]
                while way[-1] != start:
                    way.append(before[way[-1]])
                return way[::-1]
            if target not in before:
                before[target] = node
                queue.append(target)
    return None


def circles(graph):
    """Circles of a graph, the shortest first; no two of them share a node."""
    seen, found = set(), []
    ways = [way for node in sorted(graph) if (way := shortest_circle(graph, node))]
    for way in sorted(ways, key=len):
        if not seen & set(way):
            seen |= set(way)
            found.append(way)
    return found


def steps(way):
    return list(zip(way, way[1:] + way[:1]))


def no_circle_of_files(tree):
    for way in circles(tree.imports):
        yield "a circle between files:\n" + "\n".join(f"    {tree.arrow(a, b)}" for a, b in steps(way))


def no_circle_of_folders(tree):
    """Among the folders of one folder; in src/ itself, a file beside lib.rs is one too."""
    folders = collections.defaultdict(dict)  # parent → {(child, child): (file, file)}
    for a, targets in tree.imports.items():
        for b in targets:
            x, y = a.split("/")[1:], b.split("/")[1:]
            n = next(i for i in range(len(x)) if i == len(y) or x[i] != y[i])
            if n and (n + 1 >= len(x) or n + 1 >= len(y)):
                continue  # a file and its neighbours: the rule of files
            x, y = x[n].removesuffix(".rs"), y[n].removesuffix(".rs")
            if x != y and "lib" not in (x, y):
                folders["/".join(a.split("/")[: n + 1])].setdefault((x, y), (a, b))
    for parent, edges in sorted(folders.items()):
        graph = collections.defaultdict(set)
        for x, y in edges:
            graph[x].add(y)
        for way in circles(graph):
            yield f"a circle between folders of {parent}: {' → '.join([*way, way[0]])}\n" + "\n".join(
                f"    {tree.arrow(*edges[step])}" for step in steps(way)
            )


def direction(tree):
    for f in tree.files:
        if f.unit not in LAYERS:
            yield f"{f.path} is in no layer: move it, or give {f.unit} a place in LAYERS of scripts/checks/layers.py"
    for a, targets in sorted(tree.imports.items()):
        for b in sorted(targets):
            x, y = (p.split("/")[1].removesuffix(".rs") for p in (a, b))
            if x != y and x in LAYERS and y in LAYERS and y not in LAYERS[x]:
                yield f"{tree.arrow(a, b)}: {x} may import {', '.join(LAYERS[x]) or 'nothing'}"
    for f in tree.files:
        if f.unit == "domain" and (match := re.search(r"\bpgrx(?:_\w+)?\b", f.code)):
            yield f"{f.path}:{f.line(match.start())} imports pgrx: domain knows nothing of PostgreSQL"


def no_spi_in_api(tree):
    spi = os.path.join("src", "pg", "spi.rs")
    for a, targets in sorted(tree.imports.items()):
        if a.split("/")[1] == "api" and spi in targets:
            yield f"{tree.arrow(a, spi)}: a statement and the call that runs it belong in src/store/"


def size(tree):
    for f in tree.files:
        if f.lines() > MAX_LINES:
            yield f"{f.path} has {f.lines()} lines without its tests, more than {MAX_LINES}: split it"


def unsafe_code(tree):
    for f in tree.files:
        if f.unit == "pg":
            continue
        # The main function of a background worker must have its own name in the library.
        code = re.sub(r"#\[unsafe\(no_mangle\)\]", lambda m: blank(m.group()), f.code)
        for match in re.finditer(r"\bunsafe\b", code):
            yield f"{f.path}:{f.line(match.start())} has unsafe code: it belongs in src/pg/"


# (Messages for people begin with a capital: "Select a queue".)
SQL = re.compile(
    r"\s*(?:(?:select|update)\s|(?:insert|merge)\s+into\s|delete\s+from\s|(?:create|alter|drop|lock|truncate)\s+table\s"
    r"|create\s+(?:unique\s+)?index\s|with\s+(?:recursive\s+)?\w+\s+as\s)"
)


def sql_text(tree):
    for f in tree.files:
        if f.unit in ("store", "sql"):
            continue
        for offset, text in f.strings:
            if SQL.match(text) or SQL.match(text.lower()) and text.lstrip()[:6].isupper():
                start = " ".join(text.split())[:40]
                yield f"{f.path}:{f.line(offset)} has SQL text (\"{start}…\"): it belongs in src/store/"


ENTRY = re.compile(r"#\[pg_extern\b[^\]]*\](?:\s*#\[[^\]]*\])*\s*(?:pub\s*(?:\([^)]*\))?\s*)?(?:unsafe\s+)?(?:extern\s+)?fn\s+(\w+)")
RAW_ENTRY = re.compile(r"\bfn\s+(\w+_wrapper)\b")
DECLARED = re.compile(r"'MODULE_PATHNAME'\s*,\s*'(\w+)'")


def entry_points(tree):
    """`doc_pop` of src/api/doc_pick.rs is declared in src/sql/functions/doc_pick.sql, and only there."""
    folder = os.path.join(tree.root, "src", "sql", "functions")
    if not os.path.isdir(folder):
        yield "src/sql/functions does not exist: the declarations are there, a file for each of src/api/"
        return
    defined, declared = {}, {}  # symbol → (family, where)
    for f in tree.files:
        found = [(m.start(1), m.group(1) + "_wrapper") for m in ENTRY.finditer(f.code)]
        found += [(m.start(1), m.group(1)) for m in RAW_ENTRY.finditer(f.code)]
        for offset, symbol in found:
            where = f"{f.path}:{f.line(offset)}"
            if f.unit != "api" or len(f.module) < 2:
                yield f"{where} defines {symbol}: entry points belong in a file of src/api/"
            else:
                defined[symbol] = (f.module[1], where)
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".sql"):
            continue
        with open(os.path.join(folder, name), encoding="utf-8") as file:
            text = re.sub(r"--[^\n]*", lambda m: blank(m.group()), file.read())
        if name[:-4] not in {f.module[1] for f in tree.files if f.unit == "api" and len(f.module) > 1}:
            yield f"src/sql/functions/{name} has no src/api/{name[:-4]}.rs beside it"
        for match in DECLARED.finditer(text):
            where = f"src/sql/functions/{name}:{text.count(chr(10), 0, match.start()) + 1}"
            symbol, family = match.group(1), name[:-4]
            # (several functions of SQL may share a symbol)
            known = declared.setdefault(symbol, (family, where))
            if known[0] != family:
                yield f"{where} declares {symbol}, and so does {known[1]}: it belongs in one file"
    for symbol, (family, where) in sorted(defined.items()):
        if symbol not in declared:
            yield f"{where} defines {symbol}, which src/sql/functions/{family}.sql does not declare"
        elif declared[symbol][0] != family:
            yield f"{where} defines {symbol}, which is declared in {declared[symbol][1]}: it belongs in src/sql/functions/{family}.sql"
    for symbol, (family, where) in sorted(declared.items()):
        if symbol not in defined:
            yield f"{where} declares {symbol}, which src/api/{family}.rs does not define"


RULES = {
    "no circle between files": no_circle_of_files,
    "no circle between folders": no_circle_of_folders,
    "imports go down": direction,
    "src/api runs no statements": no_spi_in_api,
    "no file is too long": size,
    "unsafe code is in src/pg": unsafe_code,
    "SQL text is in src/store and src/sql": sql_text,
    "entry points and declarations are in files of the same name": entry_points,
}

# ---------------------------------------------------------------- self-test --
OK_ENTRY = {
    "src/api/queue.rs": "#[pg_extern(sql = false)]\nfn queue_create(f: X) -> Y { store::queue::create() }",
    "src/sql/functions/queue.sql": "create function f() as 'MODULE_PATHNAME', 'queue_create_wrapper';",
}
# Rule, tree, and what the message must say; nothing: the rule must pass.
CASES = [
    ("no circle between files", {"src/store/a.rs": "use super::b::B;", "src/store/b.rs": "use crate::store::c::C;",
     "src/store/c.rs": "fn f() { crate::store::a::f() }"},
     ["src/store/a.rs:1 imports src/store/b.rs (use super::b::B)", "src/store/c.rs:1 imports src/store/a.rs (crate::store::a::f)"]),
    ("no circle between files", {"src/store/mod.rs": "mod a;\npub fn help() {}\npub use a::A;", "src/store/a.rs": "use super::help;"},
     ["src/store/mod.rs:3 imports src/store/a.rs", "src/store/a.rs:1 imports src/store/mod.rs"]),
    # What is re-exported counts as an import of where it comes from; aliases are followed.
    ("no circle between files", {"src/store/mod.rs": "mod a;\nmod b;\npub use a::A;", "src/store/a.rs": "", "src/store/b.rs": "use super::A;"}, []),
    ("no circle between files", {"src/pg/mod.rs": "mod a;\nmod b;", "src/pg/a.rs": "use crate::pg::b as other;\nfn f() { other::g() }",
     "src/pg/b.rs": "use super::a::{self as first};\nfn g() { first::f() }"}, ["src/pg/a.rs:1", "src/pg/b.rs:1"]),
    ("no circle between files", {"src/store/mod.rs": "pub(in crate::store) fn f() {}\nmod a;", "src/store/a.rs": "use super::f;\n// use super::b::B;\n/* /* */ use super::b::B; */\n"
     "const S: &str = r#\"use super::b::B;\"#;\n#[cfg(test)]\nmod tests { use crate::store::b::B; }\n#[cfg(any(test, feature = \"pg_test\"))]\n#[pg_schema]\nmod more { use crate::store::b::B; }\n"
     "fn life<'a>(x: &'a str) -> char { '\"' }", "src/store/b.rs": "use super::a::A;"}, []),
    ("no circle between files", {"src/store/a.rs": "#[cfg(test)]\nmod tests;", "src/store/a/tests.rs": "use crate::store::b::B;", "src/store/b.rs": "use super::a::A;"}, []),
    ("no circle between folders", {"src/store/a.rs": "use crate::pg::b::B;", "src/pg/b.rs": "", "src/pg/c.rs": "use crate::store::d::D;", "src/store/d.rs": ""},
     ["pg → store → pg", "src/store/a.rs:1 imports src/pg/b.rs", "src/pg/c.rs:1 imports src/store/d.rs"]),
    ("no circle between folders", {"src/store/x/a.rs": "use crate::store::y::a::A;", "src/store/y/a.rs": "", "src/store/y/b.rs": "use crate::store::x::b::B;", "src/store/x/b.rs": ""},
     ["folders of src/store: x → y → x"]),
    ("no circle between folders", {"src/store/x/a.rs": "use crate::store::b::B;\nuse crate::pg::c::C;", "src/store/b.rs": "use crate::store::x::c::C;", "src/store/x/c.rs": "", "src/pg/c.rs": ""}, []),
    ("imports go down", {"src/store/a.rs": "use crate::api::b::B;", "src/api/b.rs": ""}, ["src/store/a.rs:1 imports src/api/b.rs (use crate::api::b::B): store may import ready"]),
    ("imports go down", {"src/ready/mod.rs": "fn f() { crate::store::g() }", "src/store/mod.rs": ""}, ["src/ready/mod.rs:1 imports src/store/mod.rs"]),
    ("imports go down", {"src/api/a.rs": "use crate::background;", "src/background/mod.rs": ""}, ["src/api/a.rs:1"]),
    ("imports go down", {"src/background/a.rs": "use crate::waiting;", "src/waiting.rs": ""}, ["src/background/a.rs:1"]),
    ("imports go down", {"src/waiting.rs": "use crate::maintenance::x;", "src/maintenance/mod.rs": ""}, ["src/waiting.rs:1"]),
    ("imports go down", {"src/pg/a.rs": "use crate::is_preloaded;", "src/lib.rs": ""}, ["src/pg/a.rs:1 imports src/lib.rs"]),
    ("imports go down", {"src/domain/a.rs": "\nuse pgrx::prelude::*;"}, ["src/domain/a.rs:2 imports pgrx"]),
    ("imports go down", {"src/domain/a.rs": "use crate::error::Error;", "src/error.rs": ""}, ["domain may import nothing"]),
    ("imports go down", {"src/attic/a.rs": ""}, ["src/attic/a.rs is in no layer"]),
    ("imports go down", {"src/lib.rs": "mod api;\nmod background;\nfn f() { background::install(); api::g() }", "src/background/mod.rs": "use crate::maintenance;", "src/api/mod.rs": "use crate::waiting;",
     "src/waiting.rs": "use crate::store::a;", "src/maintenance/mod.rs": "use crate::store::a;", "src/store/a.rs": "use crate::ready;", "src/ready/mod.rs": "use crate::signals;",
     "src/signals/mod.rs": "use crate::pg;", "src/pg/mod.rs": "use crate::{error::Error, settings};", "src/error.rs": "use crate::domain::x;", "src/settings.rs": "use crate::domain::x; use pgrx::y;",
     "src/domain/mod.rs": "// as pgrx does"}, []),
    ("src/api runs no statements", {"src/api/a.rs": "use crate::pg::{relation, spi};", "src/pg/mod.rs": "pub mod spi;\npub mod relation;", "src/pg/spi.rs": "", "src/pg/relation.rs": ""},
     ["src/api/a.rs:1 imports src/pg/spi.rs (use crate::pg::spi): a statement and the call that runs it belong in src/store/"]),
    ("src/api runs no statements", {"src/api/a.rs": "fn f() { crate::pg::spi::connect(g) }", "src/pg/spi.rs": ""}, ["src/api/a.rs:1"]),
    ("src/api runs no statements", {"src/api/a.rs": "use crate::store::b;\nuse crate::pg::call::Call;\n// use crate::pg::spi;", "src/store/b.rs": "use crate::pg::spi;",
     "src/pg/spi.rs": "", "src/pg/call.rs": "use crate::pg::spi::Rows;"}, []),
    ("no file is too long", {"src/pg/a.rs": "fn f() {}\n" * 501}, ["src/pg/a.rs has 501 lines"]),
    ("no file is too long", {"src/pg/a.rs": "fn f() {}\n" * 500 + "#[cfg(test)]\nmod tests {\n" + "fn f() {}\n" * 300 + "}\n"}, []),
    ("unsafe code is in src/pg", {"src/store/a.rs": "fn f() {\n    unsafe { g() }\n}"}, ["src/store/a.rs:2 has unsafe code"]),
    ("unsafe code is in src/pg", {"src/pg/a.rs": "unsafe fn f() {}", "src/background/mod.rs": "#[unsafe(no_mangle)]\npub extern \"C-unwind\" fn main() {} // unsafe", "src/store/b.rs": "#[allow(unsafe_code)]\nfn f() {}"}, []),
    ("SQL text is in src/store and src/sql", {"src/api/a.rs": "const A: &str = \"\n    select 1\";"}, ["src/api/a.rs:1 has SQL text (\"select 1"]),
    ("SQL text is in src/store and src/sql", {"src/pg/a.rs": "fn f() { run(r#\"ALTER TABLE x\"#, format!(\"delete from {t}\")) }"}, ["\"ALTER TABLE x", "\"delete from {t}"]),
    ("SQL text is in src/store and src/sql", {"src/store/a.rs": "const A: &str = \"select 1\";", "src/api/a.rs": "const A: &str = \"Update the extension.\"; // \"select 1\"\n"
     "const B: &str = \"selected\";\n#[cfg(test)]\nfn f() { run(\"select 1\") }\nconst C: char = '\"';\nconst D: &str = \"update\";"}, []),
    ("entry points and declarations are in files of the same name", {"src/api/queue.rs": ""}, ["src/sql/functions does not exist"]),
    ("entry points and declarations are in files of the same name", OK_ENTRY | {"src/sql/functions/queue.sql": "-- 'MODULE_PATHNAME', 'queue_create_wrapper'"},
     ["src/api/queue.rs:2 defines queue_create_wrapper, which src/sql/functions/queue.sql does not declare"]),
    ("entry points and declarations are in files of the same name", OK_ENTRY | {"src/api/queue.rs": ""}, ["src/sql/functions/queue.sql:1 declares queue_create_wrapper, which src/api/queue.rs does not define"]),
    ("entry points and declarations are in files of the same name", OK_ENTRY | {"src/sql/functions/queue.sql": "", "src/api/doc_pick.rs": "", "src/sql/functions/doc_pick.sql": OK_ENTRY["src/sql/functions/queue.sql"]},
     ["it belongs in src/sql/functions/queue.sql"]),
    ("entry points and declarations are in files of the same name", OK_ENTRY | {"src/api/doc_pick.rs": "", "src/sql/functions/doc_pick.sql": OK_ENTRY["src/sql/functions/queue.sql"]}, ["and so does"]),
    ("entry points and declarations are in files of the same name", OK_ENTRY | {"src/store/queue.rs": "#[pg_extern]\nfn x() {}"}, ["src/store/queue.rs:2 defines x_wrapper: entry points belong in a file of src/api/"]),
    ("entry points and declarations are in files of the same name", OK_ENTRY | {"src/sql/functions/other.sql": ""}, ["src/sql/functions/other.sql has no src/api/other.rs"]),
    ("entry points and declarations are in files of the same name", OK_ENTRY | {"src/api/mod.rs": "mod queue;",
     "src/api/doc_pick.rs": "#[pg_guard]\npub extern \"C-unwind\" fn doc_pick_wrapper() {}", "src/sql/functions/doc_pick.sql": "as 'MODULE_PATHNAME', 'doc_pick_wrapper';\nas 'MODULE_PATHNAME', 'doc_pick_wrapper';"}, []),
]


def self_test():
    failed = 0
    seen = {rule: set() for rule in RULES}
    for rule, files, wanted in CASES:
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                path = os.path.join(root, path)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
            found = list(RULES[rule](Tree(root)))
        text = "\n".join(found)
        seen[rule].add(bool(wanted))
        if bool(found) != bool(wanted) or not all(w in text for w in wanted):
            failed += 1
            print(f"FAILED: {rule}: on {files}\n  wanted: {wanted or 'nothing'}\n  found:  {text or 'nothing'}")
    for rule, both in seen.items():
        if both != {True, False}:
            failed += 1
            print(f"FAILED: {rule}: the self-test does not see it fail and pass")
    print(f"{'FAILED' if failed else 'ok'}: the rules on {len(CASES)} small trees")
    return failed


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        sys.exit(self_test() > 0)
    tree = Tree(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    if arguments == ["--graph"]:
        for a, targets in sorted(tree.imports.items()):
            print(f"{a} → {', '.join(sorted(targets)) or 'nothing'}")
        return
    if arguments:
        sys.exit(__doc__.strip())
    failed = 0
    for name, rule in RULES.items():
        found = list(rule(tree))
        for message in found:
            print(f"  {message}")
        print(f"{'FAILED' if found else 'ok'}: {name}{f' ({len(found)} found)' if found else ''}")
        failed += bool(found)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
