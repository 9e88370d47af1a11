"""Reads the errors and warnings of fetchq from its source.

It understands only the parts of Rust that it needs, and fails with a message where the source has
another shape:

- enums whose variants have `#[error("…")]` (thiserror), in any file of src/ and domain/;
- `fn code()` and `fn hint()` of these enums: a `match` on self, with a nested `match`
  for a variant that wraps another enum, or a call of the function of that enum;
- `warn(ERRCODE_…, format!("…"), "…")`;
- `raise exception '…' using errcode = '…', hint = '…'` in .sql files of src/.
"""

import os
import pathlib
import re
from dataclasses import dataclass

TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/)
  | (?P<raw>b?r(?P<hashes>\#*)".*?"(?P=hashes))
  | (?P<str>[bc]?"(?:[^"\\]|\\.)*")
  | (?P<char>b?'(?:[^'\\]|\\(?:x[0-9a-fA-F]{2}|u\{[^}]*\}|.))')
  | (?P<lifetime>'[A-Za-z_][A-Za-z0-9_]*)
  | (?P<ident>[A-Za-z_][A-Za-z0-9_]*)
  | (?P<num>[0-9][0-9A-Za-z_]*(?:\.[0-9][0-9_]*)?)
  | (?P<punct>=>|::|->|\.\.=|\.\.|.)
    """,
    re.X | re.S,
)
OPEN, CLOSE = "([{", ")]}"


class Unexpected(SystemExit):
    def __init__(self, message):
        super().__init__(f"error: the source is not as scripts/docs/rust.py expects: {message}")


@dataclass
class Token:
    kind: str
    text: str
    where: str

    def __repr__(self):
        return f"{self.text} ({self.where})"


def unquote(kind, text):
    if kind == "raw":
        return text[text.index('"') + 1 : text.rindex('"')]
    text = text[text.index('"') + 1 : -1]
    text = re.sub(r"\\\n\s*", "", text)
    escapes = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
    return re.sub(r"\\(.)", lambda m: escapes.get(m.group(1), m.group(1)), text)


def tokens_of(path, text):
    found, line = [], 1
    for match in TOKEN.finditer(text):
        kind, raw = match.lastgroup, match.group()
        if kind == "hashes":
            kind = "raw"
        if kind != "space":
            if kind in ("raw", "str"):
                found.append(Token("str", unquote(kind, raw), f"{path}:{line}"))
            else:
                found.append(Token(kind, raw, f"{path}:{line}"))
        line += raw.count("\n")
    return found


def closing(tokens, at):
    """Returns the index of the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(tokens)):
        if tokens[i].kind == "punct":
            depth += (tokens[i].text in OPEN) - (tokens[i].text in CLOSE)
            if depth == 0:
                return i
    raise Unexpected(f"the bracket at {tokens[at]!r} is not closed")


def split(tokens, separator):
    """Returns the parts between separators that are outside of brackets."""
    parts, depth = [[]], 0
    for token in tokens:
        if token.kind == "punct":
            depth += (token.text in OPEN) - (token.text in CLOSE)
        if depth == 0 and token.kind == "punct" and token.text == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return [part for part in parts if part]


def is_punct(token, text):
    return token.kind == "punct" and token.text == text


def is_constant(name):
    return len(name) > 1 and name.isupper()


class Source:
    """The tokens of all files of src/ and domain/."""

    def __init__(self, root):
        self.files = {}
        for path in sorted([*(root / "src").rglob("*.rs"), *(root / "domain").rglob("*.rs")]):
            text = path.read_text(encoding="utf-8")
            self.files[str(path.relative_to(root))] = tokens_of(path.relative_to(root), text)
        # constants[name] is {file: value}. A value may name other constants.
        self.constants = {}
        for path, tokens in self.files.items():
            self.read_constants(pathlib.Path(path), tokens)

    def read_constants(self, path, tokens):
        for i, token in enumerate(tokens):
            if token.kind != "ident" or token.text not in ("const", "static"):
                continue
            if tokens[i + 1].kind != "ident" or not is_punct(tokens[i + 2], ":"):
                continue
            depth, start = 0, None
            for n in range(i + 2, len(tokens)):
                if tokens[n].kind == "punct":
                    depth += (tokens[n].text in OPEN) - (tokens[n].text in CLOSE)
                if depth == 0 and start is None and is_punct(tokens[n], "="):
                    start = n + 1
                if depth == 0 and is_punct(tokens[n], ";"):
                    if start is not None:
                        files = self.constants.setdefault(tokens[i + 1].text, {})
                        files[path] = tokens[start:n]
                    break

    def constant(self, name, module=None):
        """Returns the value of a constant: a number, or the words of a list, or None."""
        files = self.constants.get(name, {})
        if module:
            files = {p: v for p, v in files.items() if module in (p.stem, p.parent.name)}
        values = {self.evaluate(tokens) for tokens in files.values()}
        if len(values) > 1:
            raise Unexpected(f"there is more than one constant {name}: name its module")
        return values.pop() if values else None

    def evaluate(self, tokens):
        words = [t.text for t in tokens if t.kind == "str"]
        if words:
            return ", ".join(words)
        formula = ""
        for token in tokens:
            if token.kind == "num":
                formula += re.sub(r"_?[iuf](8|16|32|64|128|size)$", "", token.text).replace("_", "")
            elif token.kind == "ident" and token.text.isupper() and self.constant(token.text):
                formula += self.constant(token.text)
            elif token.kind == "punct" and token.text in "+-*()":
                formula += token.text
            else:
                return None
        return str(eval(formula)) if re.fullmatch(r"[0-9+*().-]+", formula) else None

    def expression(self, tokens):
        """Returns the value of an argument of a message if it is a constant, or None."""
        at = next((n for n, t in enumerate(tokens) if t.kind == "ident" and is_constant(t.text)), None)
        if at is None:
            return None
        module = tokens[at - 2].text if at >= 2 and is_punct(tokens[at - 1], "::") else None
        return self.constant(tokens[at].text, module)

    def message(self, template, arguments):
        """Returns a format string with its arguments, such as "queue <queue> is …"."""
        named, positional = {}, []
        for argument in arguments:
            if len(argument) > 2 and argument[0].kind == "ident" and is_punct(argument[1], "="):
                named[argument[0].text] = self.expression(argument[2:])
            else:
                positional.append(self.expression(argument))
        next_one = iter(positional)

        def fill(match):
            name = match.group(1)
            if name in named:
                return named[name] or f"<{name}>"
            if name == "":
                return next(next_one, None) or "…"
            if name.isdigit():
                return "…"
            return is_constant(name) and self.constant(name) or f"<{name}>"

        text = template.replace("{{", "\0").replace("}}", "\1")
        text = re.sub(r"\{([A-Za-z0-9_]*)(?::[^}]*)?\}", fill, text)
        return text.replace("\0", "{").replace("\1", "}")

    # -- enums -----------------------------------------------------------------

    def enums(self):
        """Returns the variants of each enum with messages: name → (message, wrapped enum)."""
        found = {}
        for tokens in self.files.values():
            for i, token in enumerate(tokens):
                if token.kind == "ident" and token.text == "enum" and tokens[i + 1].kind == "ident":
                    body = next(n for n in range(i, len(tokens)) if is_punct(tokens[n], "{"))
                    variants = self.variants(tokens[body + 1 : closing(tokens, body)])
                    texts = [text for text, _ in variants.values()]
                    name = tokens[i + 1].text
                    if not any(texts):
                        continue
                    if not all(texts):
                        raise Unexpected(f"enum {name} has variants with and without #[error(…)]")
                    if name in found:
                        raise Unexpected(f"there are two enums {name} with #[error(…)]")
                    found[name] = variants
        return found

    def variants(self, body):
        variants = {}
        for part in split(body, ","):
            text = wrapped = None
            while len(part) > 1 and is_punct(part[0], "#"):
                end = closing(part, 1)
                attribute, part = part[2:end], part[end + 1 :]
                if attribute and attribute[0].text == "error":
                    inner = attribute[2 : closing(attribute, 1)]
                    if inner[0].kind == "str":
                        text = self.message(inner[0].text, split(inner, ",")[1:])
                    elif inner[0].text == "transparent":
                        text = "transparent"
                    else:
                        raise Unexpected(f"the attribute at {inner[0]!r}")
            if not part:
                continue
            if text == "transparent":
                wrapped = [t.text for t in part if t.kind == "ident"][-1]
            variants[part[0].text] = (text, wrapped)
        return variants

    # -- fn code(), fn hint() ---------------------------------------------------

    def functions(self, name, enums):
        """Returns the bodies of `fn NAME(&self)` in the impls of the enums: (enum, tokens)."""
        for tokens in self.files.values():
            for i, token in enumerate(tokens):
                if not (token.kind == "ident" and token.text == "impl"):
                    continue
                body = next((n for n in range(i, len(tokens)) if is_punct(tokens[n], "{")), None)
                if body is None:
                    continue
                of = [t.text for t in tokens[i:body] if t.kind == "ident"][-1]
                if of not in enums:
                    continue
                end = closing(tokens, body)
                for n in range(body, end):
                    if tokens[n].text == "fn" and tokens[n + 1].text == name:
                        start = next(m for m in range(n, end) if is_punct(tokens[m], "{"))
                        yield of, tokens[start + 1 : closing(tokens, start)]

    def table(self, function, enums, value):
        """Returns the results of `function`: (enum, variant) → [(condition, value)]."""
        found = {}
        for of, body in self.functions(function, enums):
            at = next((n for n, t in enumerate(body) if t.text == "match"), None)
            if at is None:
                raise Unexpected(f"fn {function}() of {of} has no match, at {body[0]!r}")
            self.arms(body, at, of, enums, value, found)
        if not found:
            raise Unexpected(f"there is no fn {function}() of {', '.join(enums)}")
        return found

    def arms(self, tokens, at, of, enums, value, found):
        start = next(n for n in range(at, len(tokens)) if is_punct(tokens[n], "{"))
        rest = tokens[start + 1 : closing(tokens, start)]
        while rest:
            arrow, depth = None, 0
            for n, token in enumerate(rest):
                if token.kind == "punct":
                    depth += (token.text in OPEN) - (token.text in CLOSE)
                if depth == 0 and is_punct(token, "=>"):
                    arrow = n
                    break
            if arrow is None:
                raise Unexpected(f"a match arm without => at {rest[0]!r}")
            pattern, rest = rest[:arrow], rest[arrow + 1 :]
            if rest and is_punct(rest[0], "{"):
                end = closing(rest, 0) + 1
            elif rest and rest[0].text == "match":
                end = closing(rest, next(n for n, t in enumerate(rest) if is_punct(t, "{"))) + 1
            else:
                end, depth = len(rest), 0
                for n, token in enumerate(rest):
                    if token.kind == "punct":
                        depth += (token.text in OPEN) - (token.text in CLOSE)
                    if depth == 0 and is_punct(token, ","):
                        end = n
                        break
            expression, rest = rest[:end], rest[end:]
            if rest and is_punct(rest[0], ","):
                rest = rest[1:]
            if expression and is_punct(expression[0], "{"):
                expression = expression[1:-1]
            self.arm(pattern, expression, of, enums, value, found)

    def arm(self, pattern, expression, of, enums, value, found):
        guard = next((n for n, t in enumerate(pattern) if t.text == "if"), len(pattern))
        names = []
        for alternative in split(pattern[:guard], "|"):
            path = []
            for token in alternative:
                if token.kind == "ident":
                    path.append(token.text)
                elif not is_punct(token, "::"):
                    break
            condition = " ".join(
                f"{alternative[n - 1].text} is {alternative[n + 1].text}"
                for n in range(1, len(alternative) - 1)
                if is_punct(alternative[n], ":") and alternative[n + 1].text in ("true", "false")
            )
            enum = of if len(path) < 2 or path[0] == "Self" else path[-2]
            if enum not in enums:
                raise Unexpected(f"the pattern at {pattern[0]!r} names the unknown enum {enum}")
            if path[-1] == "_":
                names += [(enum, v, "") for v in enums[enum] if (enum, v) not in found]
            elif path[-1] not in enums[enum]:
                raise Unexpected(f"the pattern at {pattern[0]!r} names the unknown variant {path[-1]}")
            else:
                names.append((enum, path[-1], condition))
        if expression and expression[0].text == "match":
            inner = {enums[e][v][1] for e, v, _ in names}
            if len(inner) != 1 or None in inner:
                raise Unexpected(f"the match at {expression[0]!r} is not about an enum that is wrapped")
            self.arms(expression, 0, inner.pop(), enums, value, found)
            return
        if [t.text for t in expression[:3]] in (["error", ".", "code"], ["error", ".", "hint"]):
            self.positions.update((enum, variant) for enum, variant, _ in names)
            return  # The error of an element of a list: its code and hint are those of another error.
        wraps = [n for n in names if enums[n[0]][n[1]][1]]
        if wraps and not any(t.kind == "str" for t in expression):
            return  # The expression calls the function of the wrapped enum.
        for enum, variant, condition in names:
            found.setdefault((enum, variant), []).append((condition, value(expression)))

    def errcode(self, expression):
        codes = {t.text for t in expression if t.kind == "ident" and t.text.startswith("ERRCODE_")}
        if len(codes) != 1:
            raise Unexpected(f"the code at {expression[0]!r} is not one ERRCODE_…")
        return codes.pop()

    def text(self, expression):
        """Returns the text of a literal or of format!(…), and "" for None and String::new()."""
        at = next((n for n, t in enumerate(expression) if t.kind == "str"), None)
        if at is None:
            if {t.text for t in expression} & {"None", "new", "default"}:
                return ""
            raise Unexpected(f"the text at {expression[0]!r} is no literal")
        is_format = any(t.text == "format" for t in expression[:at])
        if not is_format:
            return expression[at].text
        open_at = max(n for n in range(at) if is_punct(expression[n], "("))
        inner = expression[open_at + 1 : closing(expression, open_at)]
        return self.message(inner[0].text, split(inner, ",")[1:])

    # -- the lists of the pages ----------------------------------------------------

    def errors(self):
        """Returns all errors: (errcode, message, hint)."""
        enums = self.enums()
        if "Error" not in enums:
            raise Unexpected("there is no enum Error with #[error(…)]")
        # Errors that only add a position to another error.
        self.positions = set()
        codes = self.table("code", enums, self.errcode)
        hints = self.table("hint", enums, self.text)
        wrapped = {w for variants in enums.values() for _, w in variants.values() if w}
        found = []
        for enum, variants in enums.items():
            if enum != "Error" and enum not in wrapped:
                raise Unexpected(f"enum {enum} has messages, but no Error wraps it")
            for variant, (message, wraps) in variants.items():
                if (enum, variant) in self.positions:
                    continue
                if wraps:
                    if wraps not in enums:
                        raise Unexpected(f"{enum}::{variant} wraps {wraps}, which has no messages")
                    continue
                for what, table in (("code", codes), ("hint", hints)):
                    if (enum, variant) not in table:
                        raise Unexpected(f"fn {what}() does not handle {enum}::{variant}")
                code = {value for _, value in codes[enum, variant]}
                if len(code) != 1:
                    raise Unexpected(f"{enum}::{variant} has more than one code")
                texts = [text for _, text in hints[enum, variant]]
                found.append((code.pop(), message, " / ".join(dict.fromkeys(texts))))
        return found

    def warnings(self):
        """Returns all warnings: (errcode, message, hint)."""
        found = []
        for tokens in self.files.values():
            for i, token in enumerate(tokens[:-1]):
                if token.text != "warn" or not is_punct(tokens[i + 1], "("):
                    continue
                arguments = split(tokens[i + 2 : closing(tokens, i + 1)], ",")
                names = [t.text for part in arguments[:1] for t in part]
                if not any(name.startswith("ERRCODE_") for name in names):
                    continue  # This is the function itself, or a method.
                if len(arguments) != 3:
                    raise Unexpected(f"the call at {token!r} has not 3 arguments")
                hint = self.text(arguments[2])
                found.append((self.errcode(arguments[0]), self.text(arguments[1]), hint))
        return found


RAISE = re.compile(r"raise\s+(exception|warning)\s+'((?:[^']|'')*)'(.*?);", re.S)


def raised_by_sql(root):
    """Returns what PL/pgSQL raises: (kind, condition name, message, hint)."""
    found = []
    for path in sorted((root / "src").rglob("*.sql")):
        text = re.sub(r"--[^\n]*", "", path.read_text(encoding="utf-8"))
        for kind, message, rest in RAISE.findall(text):
            code = re.search(r"errcode\s*=\s*'([a-z_]+)'", rest)
            hint = re.search(r"hint\s*=\s*'((?:[^']|'')*)'", rest)
            if code is None or message == "%":
                continue  # This raises again an error that was caught.
            message = message.replace("%%", "\0").replace("%", "…").replace("\0", "%")
            hint = hint.group(1) if hint else ""
            found.append((kind, code.group(1), message.replace("''", "'"), hint.replace("''", "'")))
    return found


LINE = re.compile(r"^(\w{5})\s+[EWS]\s+(ERRCODE_\w+)(?:\s+(\w+))?", re.M)


def conditions():
    """Returns the error codes of PostgreSQL: ERRCODE_… → (SQLSTATE, condition name)."""
    path = os.environ.get("FETCHQ_ERRCODES", "")
    if not path or not pathlib.Path(path).exists():
        raise SystemExit(f"error: no list of error codes at '{path}' (FETCHQ_ERRCODES)")
    text = pathlib.Path(path).read_text(encoding="utf-8")
    lines = LINE.findall(text)
    # A macro without a name is an alias: its SQLSTATE has the name of another one.
    names = {state: name for state, _, name in reversed(lines) if name}
    return {macro: (state, name or names.get(state, "")) for state, macro, name in lines}
