#!/usr/bin/env python3
"""Check the structure of the crates: the direction of imports, circles, and the place of code.

    layers.py              check this checkout, and print one line for each rule
    layers.py --self-test  check the rules on small trees: each rule must fail and pass
    layers.py --graph      print which file imports which

It needs only Python. The source is read as text: comments, strings and test code
(items below `#[cfg(test)]` or `#[cfg(any(test, feature = "pg_test"))]`) do not count.
"""

import collections
import os
import re
import sys
import tempfile

# The crates, by the folders of their sources. What one of them may use of another one its Cargo.toml says.
EXTENSION = "src"
CRATES = [EXTENSION, "domain/src", "connect/src", "mover/src", "console/src"]

# What each unit of src/ may import. A unit is a folder, or a file beside lib.rs.
PG = ["error", "settings"]
SIGNALS = ["pg", *PG]
READY = ["signals", *SIGNALS]
LATE = ["ready", *READY]
STORE = ["late", *LATE]
SERVICES = ["store", *STORE]
LAYERS = {
    "error": PG,
    "settings": PG,
    "pg": PG,
    "signals": SIGNALS,
    "ready": READY,
    "late": LATE,
    "store": STORE,
    "maintenance": SERVICES,
    "waiting": SERVICES,
    "background": ["maintenance", *SERVICES],
    "api": ["waiting", "maintenance", *SERVICES],
}
LAYERS["fetchq4"] = ["api", *LAYERS["api"]]
LAYERS["lib"] = list(LAYERS)

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
    """Returns the end of a block comment, which may contain other block comments."""
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
    """Returns the code with blanked comments and literals, and the strings: (offset, text)."""
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
    """Returns the offset behind the bracket that closes the one at `start`."""
    depth = 0
    for mark in re.finditer(r"[{}()\[\]]", code[start:]):
        depth += 1 if mark.group() in "{([" else -1
        if depth == 0:
            return start + mark.end()
    return len(code)


def end_of_item(code, start):
    """Returns the offset behind the item that begins at `start`: its `;` or its block."""
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
    """Returns spans of test code, names of test modules in other files, and if all is test code."""
    spans, files = [], set()
    for match in TEST.finditer(code):
        # The string "pg_test" has been blanked before.
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

    def __init__(self, root, folder, path):
        self.path = os.path.relpath(path, root)
        module = os.path.relpath(path, os.path.join(root, folder))[:-3].split(os.sep)
        self.unit = module[0]
        if module[-1] == "mod":
            module = module[:-1]
        self.module = () if module in (["lib"], ["main"]) else tuple(module)
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
    """Returns the paths of a use tree, `a::{b as c, d::*}`, and the name that each defines."""
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
    """All source files of a crate, and the imports between them."""

    def __init__(self, root, crate=EXTENSION):
        self.root, self.crate = root, crate
        files = []
        for folder, _, names in sorted(os.walk(os.path.join(root, crate))):
            paths = [os.path.join(folder, n) for n in sorted(names) if n.endswith(".rs")]
            files += [File(root, crate, path) for path in paths]
        test = {(*f.module, name) for f in files for name in f.test_files}
        self.files = [
            f for f in files
            if not f.is_test and not any(f.module[:n] in test for n in range(1, len(f.module) + 1))
        ]
        self.modules = {f.module: f for f in self.files}
        # The names of `use`: name → path, or None for what is of another crate.
        self.names = {f.path: {} for f in self.files}
        self.uses = {f.path: [] for f in self.files}
        for f in self.files:
            self.read_uses(f)
        # imports[a][b]: the first line of file a that imports file b, and its text.
        self.imports = {f.path: {} for f in self.files}
        for f in self.files:
            self.read_imports(f)

    def scope(self, file, offset):
        """Returns the module at an offset: the module of the file, or an inline module."""
        module = file.module
        for match in re.finditer(r"\bmod\s+(\w+)\s*\{", file.code[:offset]):
            if end_of_block(file.code, match.end() - 1) > offset:
                module = (*module, match.group(1))
        return module

    def absolute(self, file, names, offset):
        """Returns the path from the root of the crate, or None for a path of another crate."""
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
        used = self.names[file.path].get(names[0])
        return used and (*used, *names[1:])

    def read_uses(self, file):
        for match in re.finditer(r"(\bpub\b\s*(?:\([^)]*\))?\s*)?\buse\s+([^;]+);", file.code):
            for names, alias in expand(match.group(2)):
                path = self.absolute(file, names, match.start())
                # One name alone is a macro of this file.
                if alias not in ("_", "*") and names != [alias]:
                    self.names[file.path][alias] = path
                if path is not None:
                    self.uses[file.path].append((match.start(), path, "use " + "::".join(names)))

    def target(self, path):
        """Returns the file that a path leads to, or None where that is another crate."""
        for n in range(len(path), -1, -1):
            file = self.modules.get(path[:n])
            if file:
                is_here = n == len(path) or self.names[file.path].get(path[n], path)
                return file if is_here else None
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

    def inside(self, path):
        """Returns the parts of a path below the folder of the crate."""
        return path[len(self.crate) + 1 :].split("/")

    def arrow(self, a, b):
        line, text = self.imports[a][b]
        return f"{a}:{line} imports {b} ({text})"


# -------------------------------------------------------------------- rules --
def shortest_circle(graph, start):
    """Returns the shortest way from a node back to itself, or None."""
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
    """Returns circles of a graph, the shortest first. No two of them share a node."""
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
        arrows = [f"    {tree.arrow(a, b)}" for a, b in steps(way)]
        yield "\n".join(["a circle between files:", *arrows])


def no_circle_of_folders(tree):
    """The folders of a folder have no circle. A file beside lib.rs or main.rs is a folder."""
    folders = collections.defaultdict(dict)  # parent → {(child, child): (file, file)}
    for a, targets in tree.imports.items():
        for b in targets:
            x, y = tree.inside(a), tree.inside(b)
            n = next(i for i in range(len(x)) if i == len(y) or x[i] != y[i])
            if n and (n + 1 >= len(x) or n + 1 >= len(y)):
                continue  # The rule of files covers a file and its neighbours.
            x, y = x[n].removesuffix(".rs"), y[n].removesuffix(".rs")
            if x != y and not {"lib", "main"} & {x, y}:
                parent = "/".join([tree.crate, *tree.inside(a)[:n]])
                folders[parent].setdefault((x, y), (a, b))
    for parent, edges in sorted(folders.items()):
        graph = collections.defaultdict(set)
        for x, y in edges:
            graph[x].add(y)
        for way in circles(graph):
            names = " → ".join([*way, way[0]])
            arrows = [f"    {tree.arrow(*edges[step])}" for step in steps(way)]
            yield "\n".join([f"a circle between folders of {parent}: {names}", *arrows])


def direction(tree):
    for f in tree.files:
        if f.unit not in LAYERS:
            place = f"give {f.unit} a place in LAYERS of scripts/checks/layers.py"
            yield f"{f.path} is in no layer: move the file, or {place}"
    for a, targets in sorted(tree.imports.items()):
        for b in sorted(targets):
            x, y = (p.split("/")[1].removesuffix(".rs") for p in (a, b))
            if x != y and x in LAYERS and y in LAYERS and y not in LAYERS[x]:
                yield f"{tree.arrow(a, b)}: {x} may import {', '.join(LAYERS[x])}"


def no_spi_in_api(tree):
    spi = os.path.join("src", "pg", "spi.rs")
    for a, targets in sorted(tree.imports.items()):
        if a.startswith(tuple(f"{folder}/" for folder in ENTRIES)) and spi in targets:
            yield f"{tree.arrow(a, spi)}: a statement and the call that runs it belong in src/store/"


# A message for people begins with a capital letter, such as "Select a queue".
SQL = re.compile(
    r"\s*(?:(?:select|update)\s|(?:insert|merge)\s+into\s|delete\s+from\s"
    r"|(?:create|alter|drop|lock|truncate)\s+table\s"
    r"|create\s+(?:unique\s+)?index\s|with\s+(?:recursive\s+)?\w+\s+as\s)"
)


def sql_text(tree):
    for f in tree.files:
        if f.unit in ("store", "sql") or f.module[:2] == ("fetchq4", "store"):
            continue
        for offset, text in f.strings:
            if SQL.match(text) or SQL.match(text.lower()) and text.lstrip()[:6].isupper():
                start = " ".join(text.split())[:40]
                where = f"{f.path}:{f.line(offset)}"
                yield f'{where} has SQL text ("{start}…"): it belongs in src/store/'


ENTRY = re.compile(
    r"#\[pg_extern\b[^\]]*\](?:\s*#\[[^\]]*\])*\s*"
    r"(?:pub\s*(?:\([^)]*\))?\s*)?(?:unsafe\s+)?(?:extern\s+)?fn\s+(\w+)"
)
RAW_ENTRY = re.compile(r"\bfn\s+(\w+_wrapper)\b")
# The folders of entry points, and of their declarations.
ENTRIES = {"src/api": "src/sql/functions", "src/fetchq4/api": "src/fetchq4/sql"}
DECLARED = re.compile(r"'MODULE_PATHNAME'\s*,\s*'(\w+)'")


def place_of(file):
    """The folder of entry points that a file is in, and its family; (None, None) elsewhere."""
    folder, name = os.path.split(file.path)
    return (folder, name[:-3]) if folder in ENTRIES and name != "mod.rs" else (None, None)


def declarations(tree, families):
    """Yields the symbols of the declarations: (symbol, (folder, family), where), or a message."""
    for folder, declared_in in ENTRIES.items():
        path = os.path.join(tree.root, declared_in)
        if not os.path.isdir(path):
            if folder in {f for f, _ in families}:
                yield f"{declared_in} does not exist: it has a file of declarations for each of {folder}/"
            continue
        for name in sorted(n for n in os.listdir(path) if n.endswith(".sql")):
            with open(os.path.join(path, name), encoding="utf-8") as file:
                text = re.sub(r"--[^\n]*", lambda m: blank(m.group()), file.read())
            if (folder, name[:-4]) not in families:
                yield f"{declared_in}/{name} has no {folder}/{name[:-4]}.rs beside it"
            for match in DECLARED.finditer(text):
                where = f"{declared_in}/{name}:{text.count(chr(10), 0, match.start()) + 1}"
                yield match.group(1), (folder, name[:-4]), where


def entry_points(tree):
    """`doc_pop` of src/api/doc_lease.rs is declared in src/sql/functions/doc_lease.sql only."""
    families = {place_of(f) for f in tree.files}
    defined, declared = {}, {}  # symbol → ((folder, family), where)
    for f in tree.files:
        found = [(m.start(1), m.group(1) + "_wrapper") for m in ENTRY.finditer(f.code)]
        found += [(m.start(1), m.group(1)) for m in RAW_ENTRY.finditer(f.code)]
        for offset, symbol in found:
            where = f"{f.path}:{f.line(offset)}"
            if place_of(f)[0] is None:
                yield f"{where} defines {symbol}: entry points belong in a file of {'/ or '.join(ENTRIES)}/"
            else:
                defined[symbol] = (place_of(f), where)
    for found in declarations(tree, families):
        if isinstance(found, str):
            yield found
            continue
        symbol, family, where = found
        # Several SQL functions may share a symbol.
        known = declared.setdefault(symbol, (family, where))
        if known[0] != family:
            yield f"{where} declares {symbol}, and so does {known[1]}: it belongs in one file"
    for symbol, ((folder, family), where) in sorted(defined.items()):
        place = f"{ENTRIES[folder]}/{family}.sql"
        if symbol not in declared:
            yield f"{where} defines {symbol}, which {place} does not declare"
        elif declared[symbol][0] != (folder, family):
            yield f"{where} defines {symbol}, which is declared in {declared[symbol][1]}: it belongs in {place}"
    for symbol, ((folder, family), where) in sorted(declared.items()):
        if symbol not in defined:
            yield f"{where} declares {symbol}, which {folder}/{family}.rs does not define"


PUBLIC = re.compile(
    r"^[ ]*pub (?:const |unsafe |extern \"[^\"]*\" )*(fn|struct|enum|trait|const|static|type) (\w+)",
    re.M,
)


def documented(tree):
    """Each public item has a comment above it, beyond its attributes. The console has no API."""
    for f in tree.files if tree.crate != "console/src" else ():
        lines = f.text.split("\n")
        for match in PUBLIC.finditer(f.code):
            at = f.line(match.start()) - 2
            while at >= 0 and lines[at].strip().startswith("#["):
                at -= 1
            if at < 0 or not lines[at].strip().startswith(("///", "//")):
                yield f"{f.path}:{at + 2} has no comment on {match.group(1)} {match.group(2)}"


# The families whose calls go elsewhere than to src/store/: their file below src/.
ELSEWHERE = {"waiting": "src/waiting.rs"}


def families(tree):
    """`doc_settle` of src/api/doc_settle.rs has its statements in src/store/settle/doc_settle.rs."""
    paths = {f.path for f in tree.files}
    for f in tree.files:
        if f.unit != "api" or len(f.module) < 2 or "#[pg_extern" not in f.code:
            continue
        name = f"{f.module[1]}.rs"
        wanted = ELSEWHERE.get(f.module[1])
        stores = {p for p in paths if re.fullmatch(f"src/store/(?:[a-z]+/)?{name}", p)}
        if wanted not in paths and not stores:
            place = wanted or f"{name} in a room of src/store/"
            yield f"{f.path} has entry points, and {place} does not exist"


# A pattern binds nothing, as in `Err(Error::UnknownQueue(_))`.
UNKNOWN_QUEUE = re.compile(r"\bError::UnknownQueue\s*\(\s*(?!_\s*\))")


def unknown_queues(tree):
    """A queue that is not here may live on another server, which one file looks up."""
    maker = os.path.join("src", "store", "queues", "queue_places.rs")
    for f in tree.files:
        for match in UNKNOWN_QUEUE.finditer(f.code) if f.path != maker else ():
            where = f"{f.path}:{f.line(match.start())}"
            yield f"{where} makes Error::UnknownQueue: call queue_places::unknown()"


RULES = {
    "no circle between files": no_circle_of_files,
    "no circle between folders": no_circle_of_folders,
    "imports go down": direction,
    "src/api runs no statements": no_spi_in_api,
    "SQL text is in files of statements": sql_text,
    "entry points and declarations are in files of the same name": entry_points,
    "statements are in files of the same name": families,
    "public items are documented": documented,
    "one file makes the error of an unknown queue": unknown_queues,
}

# The rules that hold in each crate. The others are those of the extension.
EVERYWHERE = (no_circle_of_files, no_circle_of_folders, documented)


def breaches(rule, trees):
    """Returns what a rule finds in the crates in which it holds."""
    held = [tree for tree in trees if rule in EVERYWHERE or tree.crate == EXTENSION]
    return [message for tree in held for message in rule(tree)]


# ---------------------------------------------------------------- self-test --
def cases(script=__file__):
    """Returns the trees of SCRIPT.cases: the rule, the files, and the texts of the messages."""
    with open(os.path.splitext(os.path.abspath(script))[0] + ".cases", encoding="utf-8") as f:
        text = f.read()
    for case in re.split(r"^>>> ", text, flags=re.M)[1:]:
        head, *files = re.split(r"^=== ", case, flags=re.M)
        rule, *wanted = head.strip().split("\n!!! ")
        tree = {}
        for file in files:
            path, _, content = file.partition("\n")
            lines = re.sub(
                r"^@repeat (\d+) (.*)\n", lambda m: f"{m[2]}\n" * int(m[1]), content, flags=re.M
            )
            tree[path] = lines.rstrip("\n") + "\n"
        yield rule, tree, wanted


def write(root, files):
    """Writes the files of a case."""
    for path, text in files.items():
        path = os.path.join(root, path)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8") as f:
            f.write(text)


def self_test():
    failed, number = 0, 0
    seen = {rule: set() for rule in RULES}
    for number, (rule, files, wanted) in enumerate(cases(), 1):
        with tempfile.TemporaryDirectory() as root:
            write(root, files)
            found = breaches(RULES[rule], [Tree(root, crate) for crate in CRATES])
        text = "\n".join(found)
        seen[rule].add(bool(wanted))
        if bool(found) != bool(wanted) or not all(w in text for w in wanted):
            failed += 1
            print(f"FAILED: {rule}: on {files}")
            print(f"  wanted: {wanted or 'nothing'}\n  found:  {text or 'nothing'}")
    for rule, both in seen.items():
        if both != {True, False}:
            failed += 1
            print(f"FAILED: {rule}: the self-test does not see it fail and pass")
    print(f"{'FAILED' if failed else 'ok'}: the rules on {number} small trees")
    return failed


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        sys.exit(self_test() > 0)
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    trees = [Tree(root, crate) for crate in CRATES]
    if arguments == ["--graph"]:
        for a, targets in sorted(edge for tree in trees for edge in tree.imports.items()):
            print(f"{a} → {', '.join(sorted(targets)) or 'nothing'}")
        return
    if arguments:
        sys.exit(__doc__.strip())
    failed = 0
    for name, rule in RULES.items():
        found = breaches(rule, trees)
        for message in found:
            print(f"  {message}")
        print(f"{'FAILED' if found else 'ok'}: {name}{f' ({len(found)} found)' if found else ''}")
        failed += bool(found)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
