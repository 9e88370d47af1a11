#!/usr/bin/env python3
"""Check that no name in the SQL of the library is looked up in the search_path of a caller.

    sql_names.py              check this checkout; each name without a schema is one line
    sql_names.py --fix        write pg_catalog, or the markers of an operator, where that is all
                              that is missing
    sql_names.py --self-test  check the rules on the statements of sql_names.cases

A statement of the library may run with the rights of another role than the caller, who decides
what a name without a schema means. Every string of the library that contains SQL is read, and every
function of a .sql file of src that does not set a search_path. All else in these files runs under the
search_path that its script sets, which is checked as well.

What the server looks up by name, and what has to be written here instead:

  now()                   pg_catalog.now()
  x::text, text '…'       x::pg_catalog.text; the types with keywords, such as int and varchar(40),
                          are always those of pg_catalog
  a = b                   a {=} b, in .sql files a operator(pg_catalog.=) b
  a in (…), a not in (…)  a {=} any (…), a {<>} all (…)
  a between b and c       a {>=} b and a {<=} c
  a like b                a {~~} b
  case a when b then …    case when a {=} b then …
  nullif(a, b)            case when a {=} b then null else a end
  a is distinct from b    a comparison, and what is to happen to NULL
  join … using (a)        join … on b.a {=} c.a; the same for NATURAL
  -1::bigint              (-1)::bigint: the cast comes first, and the sign is an operator
  unnest(a, b)            rows from (pg_catalog.unnest(a), pg_catalog.unnest(b)): with a schema, the
                          server does not take it apart
  collate "C"             collate pg_catalog."C"
  (a text_pattern_ops)    (a pg_catalog.text_pattern_ops)
  pg_class                pg_catalog.pg_class
  'x'::regclass           a name with its schema in the string, too

What it does not look up by name: greatest, least, ORDER BY, DISTINCT, GROUP BY, UNION and windows
compare by the operator class of the type; coalesce, extract, AT TIME ZONE, current_timestamp and
array[…] are part of the grammar. A cast belongs to its two types, whatever the search_path is.
Without a schema, fetchq's own relations would be found by nobody.

It needs only Python. This is the cheap guard; tests/client/tests/search_path.rs is the proof, with
the parser of the server.
"""

import contextlib
import io
import os
import re
import sys
import tempfile

import layers

# ------------------------------------------------------------------ reading --
# The text is that of the source file: a quote of SQL is \" in a string of Rust, and braces of
# format!() are doubled.
TOKEN = re.compile(
    r"""(?P<space>(?:\s|\\[nt]|\\\n|--(?:(?!\\n)[^\n])*|/\*.*?\*/)+)
      | (?P<string>[eE]?'(?:[^']|'')*')
      | (?P<body>\$(?P<tag>[a-z_]*)\$.*?\$(?P=tag)\$)
      | (?P<quoted>\\?"[^"\\]*\\?")
      | (?P<marker>\{\{?[-+*/<>=~!@\#%^&|?`]+\}\}?|\{[\w.$:?]*\})
      | (?P<parameter>\$\d+)
      | (?P<number>\d+(?:\.\d+)?|\.\d+)
      | (?P<word>[A-Za-z_]\w*)
      | (?P<cast>::)
      | (?P<operator>:=|=>|\.\.|[-+*/<>=~!@\#%^&|?`]+)
      | (?P<other>.)
    """,
    re.S | re.X,
)


class Token:
    """A token: what it is, its text, and its place in the file."""

    def __init__(self, kind, text, offset, doubled=False):
        self.kind, self.text, self.offset, self.doubled = kind, text, offset, doubled
        self.low = text.lower() if kind == "word" else text

    def __repr__(self):
        return self.text


def tokens(text, offset=0, doubled=False):
    """The tokens of a statement. `doubled`: its braces are doubled, as in format!()."""
    found = []
    for match in TOKEN.finditer(text):
        if match.lastgroup != "space" and match.group("space") is None:
            kind = next(k for k in match.re.groupindex if k != "tag" and match.group(k) is not None)
            found.append(Token(kind, match.group(), offset + match.start(), doubled))
    return found


# ------------------------------------------------------------------- the words --
def words(text):
    return frozenset(text.split())


# Types that are part of the grammar: the parser itself puts pg_catalog before them.
TYPES_OF_GRAMMAR = words(
    """bigint bit boolean char character dec decimal double float int integer interval national nchar
    numeric real setof smallint time timestamp varchar"""
)
# Types that are names like any other. A word of these is a type where a type can be.
TYPES = words(
    """bool bpchar bytea cardinal_number cid date float4 float8 inet int2 int4 int8 json jsonb name oid
    record regclass regnamespace regoper regoperator regproc regprocedure regrole regtype text tid
    timestamptz timetz tstzrange uuid xid xid8 int4range int8range anyarray anyelement void"""
)
# Types whose text is looked up in the search_path when it is read.
LOOK_UP = words("regclass regoper regoperator regproc regprocedure regtype to_regclass to_regproc to_regtype")
# Words before a parenthesis that call no function of a name.
NOT_FUNCTIONS = words(
    """all and any array as asc between by case cast check coalesce conflict cube default desc
    distinct do else end exists extract filter for from greatest group grouping having identity if ilike in include
    into is isnull join key lateral least like limit materialized not notnull nullif nulls offset on only
    operator or order overlay over partition position range references returning rollup row rows
    select set sets similar some then trim truncate union unique update using values variadic when where while
    window with within xmlelement elsif return perform until"""
) | TYPES_OF_GRAMMAR
# Words that can stand before a type's word without naming a column that has the type.
KEYWORDS = NOT_FUNCTIONS | words(
    """alter analyze columns create cross delete drop execute explain full function grant inner
    insert left lock natural null outer procedure raise recursive revoke right schema sequence table to
    trigger type using view call language column index"""
)
AFTER_SIGN = words("select and or not when then else in by limit offset returning where between case default")


# ------------------------------------------------------------------- the rules --
class Statement:
    """The tokens of a statement, and what is wrong with them."""

    def __init__(self, found):
        self.tokens = found
        self.closes = {}
        self.opens = {}
        stack = []
        for i, token in enumerate(found):
            if token.text in ("(", "["):
                stack.append(i)
            elif token.text in (")", "]") and stack:
                self.closes[stack[-1]] = i
                self.opens[i] = stack.pop()

    def low(self, i):
        return self.tokens[i].low if 0 <= i < len(self.tokens) else ""

    def kind(self, i):
        return self.tokens[i].kind if 0 <= i < len(self.tokens) else ""

    def is_name(self, i):
        return self.kind(i) in ("word", "quoted")

    def problems(self):
        """Yields (token, what is wrong, what --fix inserts before it or None)."""
        for i, token in enumerate(self.tokens):
            for rule in (self.function, self.type, self.operator, self.hidden_operator, self.rest):
                found = rule(i, token)
                if found:
                    yield (token, *found)
                    break

    def function(self, i, token):
        if token.kind != "word" or self.low(i + 1) != "(":
            return None
        if token.low == "unnest" and self.has_comma(i + 1):
            return "unnest() of several arrays", None
        if self.low(i - 1) == "." or token.low in NOT_FUNCTIONS:
            return None
        before = self.low(i - 1)
        if before in ("into", "table", "index", "constraint", "trigger", "procedure"):
            return None  # A relation with the names of its columns, and others of a definition.
        end = self.closes.get(i + 1)
        if before == "," and self.low(end + 1) == "as" and self.low(end + 2) in ("(", "materialized", "not"):
            return None  # A query of WITH.
        is_after_name = self.is_name(i - 1) and before not in KEYWORDS
        if (is_after_name or before in (")", "as", "with", "recursive")) and self.is_list(i + 1):
            return None  # An alias with the names of its columns.
        return f"function {token}()", "pg_catalog."

    def has_comma(self, i):
        """Whether a parenthesis has a comma that is in no other one."""
        at = i + 1
        while at < self.closes.get(i, i):
            if self.low(at) == ",":
                return True
            at = self.closes.get(at, at) + 1
        return False

    def is_list(self, i):
        """Whether a parenthesis has nothing but names in it, as the columns of an alias."""
        end = self.closes.get(i, i)
        inner = self.tokens[i + 1 : end]
        return bool(inner) and all(t.kind in ("word", "quoted") or t.text in (",", ".", "[", "]") for t in inner)

    def type(self, i, token):
        if token.kind not in ("word", "quoted") or self.low(i - 1) == ".":
            return None
        before = self.low(i - 1)
        if before == "::":
            if token.low in TYPES_OF_GRAMMAR or self.low(i + 1) == ".":
                return None
            return f"type {token}", "pg_catalog."
        if token.low not in TYPES or self.low(i + 1) in (".", "{=}"):
            return None
        if self.kind(i + 1) == "string" and before != "as":
            return f"type {token}", "pg_catalog."
        if before == "as" and self.low(i + 1) in (")", "[") and self.cast_opens(i):
            return f"type {token}", "pg_catalog."
        # The definition of a column.
        is_column = self.is_name(i - 1) and before not in KEYWORDS and self.low(i - 2) in ("(", ",", "column", "exists")
        if is_column and self.low(i + 1) in (",", ")", "not", "default", "collate", "generated", "primary", "[", ""):
            return f"type {token}", "pg_catalog."
        return None

    def cast_opens(self, i):
        depth = 0
        for j in range(i, -1, -1):
            depth += (self.low(j) == ")") - (self.low(j) == "(")
            if depth < 0:
                return self.low(j - 1) == "cast"
        return False

    def is_sign(self, i):
        """A sign before a number is part of it, unless a cast follows the number."""
        if self.kind(i + 1) != "number":
            return False
        before = self.low(i - 1)
        is_unary = (
            i == 0
            or before in ("(", ",", "[", "::")
            or before in AFTER_SIGN
            or self.kind(i - 1) in ("marker", "operator")
        )
        return is_unary and self.kind(i + 2) != "cast"

    def is_assignment(self, i):
        """UPDATE … SET a = b, (c, d) = (…), and SET LOCAL a = b."""
        start = i - 1
        if self.low(start) == ")":
            start = self.opens.get(start, start)
        elif not self.is_name(start) and self.kind(start) != "marker":
            return False
        if self.low(start - 1) == ".":
            start -= 2  # A setting of fetchq.
        if self.low(start - 1) in ("set", "local", "session", "diagnostics", "using"):
            return True
        if self.low(start - 1) not in (",", "(") and self.kind(start - 1) != "marker":
            return False
        # The assignments before this one, or WITH (…) of a table.
        depth = 0
        for j in range(start - 1, -1, -1):
            text = self.low(j)
            if text in (")", "]"):
                depth += 1
            elif text in ("(", "["):
                if depth == 0:
                    return self.low(j - 1) in ("with", "set")
                depth -= 1
            elif depth == 0 and text in ("set", "diagnostics"):
                return True
            elif depth == 0 and text == "using":
                return True  # RAISE … USING errcode = …
            elif depth == 0 and text in ("where", "select", "from", "on", "and", "or", ";", "returning"):
                return False
        return False

    def operator(self, i, token):
        if token.kind != "operator" or token.text in (":=", "=>", ".."):
            return None
        before, after = self.low(i - 1), self.low(i + 1)
        if before == "." and self.low(i - 2) == "pg_catalog":
            return None
        if token.text == "*" and (before in ("(", ".", ",", "select", "all", "returning") or self.kind(i - 1) == ""):
            return None
        if token.text in ("-", "+") and self.is_sign(i):
            return None
        if token.text == "=" and self.is_assignment(i):
            return None
        return f"operator {token}", "{"

    def hidden_operator(self, i, token):
        """Syntax for which the server looks up an operator by its name."""
        if token.kind != "word" or self.low(i - 1) == ".":
            return None
        word, before, after = token.low, self.low(i - 1), self.low(i + 1)
        is_hidden = (
            word == "in" and after == "("
            or word == "between" and before not in ("rows", "range", "groups")
            or word in ("like", "ilike") and before != "("
            or word == "similar" and after == "to"
            or word == "nullif" and after == "("
            or word == "natural"
            or word == "distinct" and before in ("is", "not") and after == "from"
            or word == "case" and after != "when" and self.has_when(i)
            or word == "using" and after == "("
        )
        return (f"operator of {word}", None) if is_hidden else None

    def has_when(self, i):
        """Whether this is an expression, and not the CASE of a text for people."""
        return any(token.low == "when" for token in self.tokens[i:])

    def rest(self, i, token):
        word, before, after = token.low, self.low(i - 1), self.low(i + 1)
        if before == "collate" and word != "pg_catalog":
            return f"collation {token}", "pg_catalog."
        if token.kind == "word" and word.endswith("_ops") and before != ".":
            return f"operator class {token}", "pg_catalog."
        if token.kind == "word" and word.startswith("pg_") and self.is_relation(i):
            return f"relation {token}", "pg_catalog."
        if token.kind == "string" and "." not in token.text and "%" not in token.text and self.is_looked_up(i):
            return f"name in {token}", None
        return None

    def is_relation(self, i):
        """Not an alias, a setting, a schema, or an item of GET STACKED DIAGNOSTICS."""
        before, after = self.low(i - 1), self.low(i + 1)
        return before not in (".", "as", "local", "set", "=") and after != "."

    def is_looked_up(self, i):
        if self.low(i + 1) == "::":
            j = i + 4 if self.low(i + 3) == "." else i + 2
            return self.low(j) in LOOK_UP
        return self.low(i - 1) == "(" and self.low(i - 2) in LOOK_UP


# ------------------------------------------------------------------- src/store, src/pg --
# A string with one of these is SQL. A message for people has none of them.
IS_SQL = re.compile(
    r"^\s*(?:select|insert into|update|delete from|with|create|alter|drop|truncate|grant|revoke|lock"
    r"|set (?:local )?\w+ (?:=|to)|reset|and|or|where|from|cross join|left join|join|union|order by|case|when|coalesce\()\b"
    r"|\b(?:select|from only|order by|is null|is not null|end) |\bfrom (?:fetchq|pg_|information_)"
    r"|::(?:\w+\.)?[a-z]|\{[-+*/<>=~!@#%^&|?`]+\}|\$\d"
    r"|^[a-z_]+\([^ ()]*\)$"
)


PATH_OF_RUST = re.compile(r"\w+(?:::\w+)+$")


def pieces(file):
    """The SQL of a file of Rust, as lists of tokens. The strings of a concat!() are one."""
    spans = [
        (m.start(), layers.end_of_block(file.code, m.end() - 1))
        for m in re.finditer(r"\bconcat!\s*\(", file.code)
    ]
    formats = [
        (m.start(), layers.end_of_block(file.code, m.end() - 1))
        for m in re.finditer(r"\b(?:format|format_args|write|writeln)!\s*\(", file.code)
    ]
    inside = lambda offset, of: next((s for s in of if s[0] <= offset < s[1]), None)
    groups = {}
    for offset, text in file.strings:
        start = offset + file.text[offset:].index(text)
        doubled = inside(offset, formats) is not None
        found = tokens(text, start, doubled)
        key = inside(offset, spans) or (offset, offset)
        texts, parts = groups.setdefault(key, ([], []))
        if parts:
            # What is between the strings may be the value of another macro.
            parts.append(Token("marker", "{…}", offset))
        texts.append(text)
        parts.extend(found)
    for texts, parts in groups.values():
        if any(IS_SQL.search(text) and not PATH_OF_RUST.match(text) for text in texts):
            yield Statement(parts)


# ------------------------------------------------------------------------- src/**/*.sql --
PATH = "set search_path = pg_catalog, pg_temp"
PROCEDURE = re.compile(r"^create (?:or replace )?(?:function|procedure)\b", re.M)


def unpinned(text):
    """The functions of a script without a search_path: Statement of the body."""
    for match in PROCEDURE.finditer(text):
        body = re.compile(r"\bas\s+(\$\w*\$)").search(text, match.end())
        header_end = text.find(";", match.end())
        if body is None or (header_end != -1 and header_end < body.start()):
            continue  # The body is in the library.
        header = text[match.start() : body.start()]
        if PATH in header:
            continue
        end = text.index(body.group(1), body.end())
        yield Statement(tokens(text[body.end() : end], body.end()))


def script_problems(path, text):
    """What is wrong in a .sql file of src: (offset, message, fix)."""
    plain = re.sub(r"--[^\n]*", lambda m: " " * len(m.group()), text)
    for match in re.finditer(r"\bset (local )?search_path\b[^\n]*", plain):
        if not re.match(r"set (local )?search_path = pg_catalog, pg_temp\s*(;|as\b|$)", match.group()):
            yield match.start(), "search_path is not pg_catalog, pg_temp", None
    if path.endswith(SCRIPTS) and "\nset local search_path = pg_catalog, pg_temp;" not in plain:
        yield 0, "the script sets no search_path", None
    # The functions of an upgrade are gone when the script ends, and run within it alone.
    if os.path.join("fetchq4", "upgrade") in path:
        return
    for statement in unpinned(text):
        for token, what, fix in statement.problems():
            yield token.offset, f"{what} without a schema", (token, fix)


# The scripts that begin a transaction of their own; the others are parts of them.
SCRIPTS = ("bootstrap.sql", "check.sql", "carry.sql", "clean.sql")


# --------------------------------------------------------------------------- check --
def rust_problems(file):
    for statement in pieces(file):
        for token, what, fix in statement.problems():
            yield token.offset, f"{what} without a schema", (token, fix)


def fixed(text, fixes, is_rust):
    """The text of a file with what is missing."""
    for token, fix in sorted(fixes, key=lambda f: -f[0].offset):
        at, end = token.offset, token.offset + len(token.text)
        if fix == "{":
            braces = ("{{", "}}") if token.doubled else ("{", "}")
            if not is_rust:
                braces = ("operator(pg_catalog.", ")")
            text = text[:at] + braces[0] + token.text + braces[1] + text[end:]
        elif fix:
            text = text[:at] + fix + text[at:]
    return text


def read(root):
    """Yields the path, the text and the problems of each file, and whether it is Rust."""
    for file in layers.Tree(root).files:
        if file.unit not in ("domain", "error"):
            yield file.path, file.text, list(rust_problems(file)), True
    for folder, _, names in sorted(os.walk(os.path.join(root, "src"))):
        for name in sorted(names):
            if name.endswith(".sql"):
                path = os.path.join(folder, name)
                with open(path, encoding="utf-8") as f:
                    text = f.read()
                path = os.path.relpath(path, root)
                yield path, text, list(script_problems(path, text)), False


def check(root, fix):
    files = bad = 0
    for path, text, found, is_rust in read(root):
        files += 1
        fixes = [f for _, _, f in found if f and f[1]]
        if fix and fixes:
            with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                f.write(fixed(text, fixes, is_rust))
            found = [p for p in found if p[2] not in fixes]
        for offset, message, _ in sorted(found, key=lambda p: p[0]):
            bad += 1
            print(f"{path}:{text.count(chr(10), 0, offset) + 1}: {message}")
    print(f"{'FAILED' if bad else 'ok'}: the names in {files} files have schemas"
          + (f" ({bad} have none)" if bad else ""))
    return bad


# ----------------------------------------------------------------------- self-test --
def found_in(root):
    """The messages about a tree, and how many of them --fix would not repair."""
    found = [p for _, _, problems, _ in read(root) for p in problems]
    return [message for _, message, _ in found], sum(not (fix and fix[1]) for _, _, fix in found)


def self_test():
    failed = number = 0
    for number, (name, files, wanted) in enumerate(layers.cases(__file__), 1):
        with tempfile.TemporaryDirectory() as root:
            layers.write(root, files)
            found, stay = found_in(root)
            with contextlib.redirect_stdout(io.StringIO()):
                check(root, True)
            left = found_in(root)[0]
        wrong = len(found) != len(wanted) or any(w not in f for w, f in zip(wanted, found))
        if wrong or len(left) != stay:
            failed += 1
            print(f"FAILED: {name}\n  wanted: {wanted}\n  found:  {found}\n  after --fix: {left}")
    print(f"{'FAILED' if failed else 'ok'}: {number} small trees")
    return failed


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        sys.exit(self_test() > 0)
    if arguments not in ([], ["--fix"]):
        sys.exit(__doc__.strip())
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.exit(check(root, bool(arguments)) > 0)


if __name__ == "__main__":
    main()
