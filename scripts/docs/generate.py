"""Writes docs/reference/*.md from the templates in pages/, or compares them with --check.

A template is Markdown. Each placeholder is a line of its own:

  {{functions NAME …}}    the functions of these names, with all their signatures; those of layer 5
                          are in functions.md, and compatible calls, which src/fetchq4/sql/
                          declares, in functions-fetchq4.md
  {{both}}                the compatible calls that belong to layer 5 too
  {{triggers NAME …}}     trigger functions
  {{table NAME …}}        tables and views, with their columns
  {{setting NAME}}        a setting; prose about it may follow
  {{settings}}            a list of all settings
  {{jobs}}                the maintenance jobs and their settings
  {{events}} {{metrics}}  the counter events and the metrics
  {{errors}} {{warnings}} the errors and the warnings

The catalog knows names, types, defaults, and a sentence about each object. The meaning of arguments
and columns is in descriptions.ini. It is an error when an object of the catalog is in no page, or
has no description, and when a description is not used.
"""

import configparser
import difflib
import json
import pathlib
import re
import sys

import catalog
import rust

ROOT = pathlib.Path(__file__).resolve().parents[2]
HERE = pathlib.Path(__file__).resolve().parent
OUT = ROOT / "docs" / "reference"
NOTE = "<!-- Written by scripts/docs.sh: change scripts/docs/, or the comments in src/sql/. -->"

# The page of layer 5, and that of the compatible calls.
LAYER_5, COMPATIBLE = "functions.md", "functions-fetchq4.md"

problems = []


def code(text):
    return f"`{text}`" if text else ""


def cell(text):
    """Returns text for a cell of a table."""
    return re.sub(r"\s+", " ", text or "").replace("|", "\\|").strip()


def sentence(text):
    text = (text or "").strip()
    return text if not text or text[-1] in ".!?:" else text + "."


def table(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell(c) for c in row) + " |" for row in rows]
    return "\n".join(lines)


class Descriptions:
    def __init__(self):
        self.ini = configparser.ConfigParser(interpolation=None, delimiters=("=",), comment_prefixes=("#",))
        self.ini.optionxform = str
        self.ini.read(HERE / "descriptions.ini", encoding="utf-8")
        self.used = set()

    def find(self, section, *keys):
        """Returns the description of the first key that exists."""
        for key in keys:
            if self.ini.has_option(section, key):
                self.used.add((section, key))
                return self.ini.get(section, key)
        problems.append(f"descriptions.ini has no {keys[0]} in [{section}]")
        return "?"

    def unused(self):
        for section in self.ini.sections():
            for key in self.ini.options(section):
                if (section, key) not in self.used:
                    problems.append(f"descriptions.ini has {key} in [{section}], which nothing uses")


class Pages:
    def __init__(self):
        self.words = Descriptions()
        self.functions = catalog.functions()
        self.tables = catalog.tables()
        self.settings = catalog.settings()
        self.events = catalog.events()
        self.jobs = catalog.jobs()
        self.source = rust.Source(ROOT)
        self.conditions = rust.conditions()
        self.compatible = {
            name
            for script in (ROOT / "src" / "fetchq4" / "sql").glob("*.sql")
            for name in re.findall(r"^create function fetchq\.(\w+)\(", script.read_text(encoding="utf-8"), re.M)
        }
        contract = json.loads((ROOT / "tests" / "contract.json").read_text(encoding="utf-8"))
        # Calls of fetchq 4 that are on the page of all others.
        self.both = [name for name, call in contract["calls"].items() if call.get("fetchq 4")]
        # The name of the page that is being written.
        self.page = ""
        # The first function that returns rows of each named type.
        self.row_types = {}
        self.placed = {"functions": [], "triggers": [], "table": [], "setting": []}
        if not self.settings:
            problems.append("pg_settings has no setting of fetchq")

    # -- functions ----------------------------------------------------------------

    def inputs(self, function):
        return [a for a in function["arguments"] if a["mode"] in "ibv"]

    def outputs(self, function):
        return [a for a in function["arguments"] if a["mode"] in "otb"]

    def signature(self, function):
        inputs = ", ".join(f"{a['name']} {a['type']}".strip() for a in self.inputs(function))
        return f"{function['name']}({inputs})"

    def do_functions(self, *names):
        parts = []
        for name in names:
            self.placed["functions"].append(name)
            forms = [f for f in self.functions if f["name"] == name and not f["is_trigger"]]
            if not forms:
                problems.append(f"{self.page}: the catalog has no function {name}")
                continue
            is_compatible = name in self.compatible
            right = COMPATIBLE if is_compatible else LAYER_5
            if self.page != right:
                problems.append(f"{self.page}: {name} belongs to {right}")
            parts.append(self.one_function(name, forms))
        return "\n\n".join(parts)

    def do_both(self):
        return ", ".join(f"[`{name}`]({LAYER_5}#{name})" for name in self.both)

    def one_function(self, name, forms):
        lines = [f"### {name}", ""]
        for form in forms:
            if not form["comment"]:
                problems.append(f"{self.signature(form)} has no comment")
            what = "A procedure: CALL it. " if form["is_procedure"] else ""
            lines.append(f"- `{self.signature(form)}`: {what}{sentence(form['comment']).replace('<', '&lt;')}")
        if name in self.both:
            lines += ["", f"Also a [call of fetchq 4]({COMPATIBLE})."]
        seen, rows = set(), []
        for form in forms:
            for a in self.inputs(form):
                key = (a["name"], self.default(a["default"]))
                text = self.words.find("arguments", f"{name}.{a['name']}", a["name"])
                if key not in seen:
                    seen.add(key)
                    rows.append((*key, text))
        # An argument that has a default in some of the signatures only is shown with its default.
        shown = []
        for argument, default, text in rows:
            if not default and any(a == argument and d for a, d, _ in rows):
                continue
            shown.append((code(argument), code(default), text))
        if shown:
            lines += ["", table(("Argument", "Default", "Meaning"), shown)]
        results = []
        for form in forms:
            result = self.result(form)
            if result not in results:
                results.append(result)
        lines += ["", "\n\n".join(results)]
        return "\n".join(lines)

    def default(self, text):
        if text is None:
            return ""
        return re.sub(r"::[a-z ]+(\[\])?(\(\d+\))?$", "", text)

    DOCUMENT = "doc_pick"

    def result(self, function):
        outputs = self.outputs(function)
        name = function["name"]
        if function["row_type"]:
            return self.rows_of_type(function)
        rows = "Returns rows" if function["returns_rows"] else "Returns one row"
        if not outputs:
            text = self.words.find("results", name)
            return f"Returns `{function['result']}`: {sentence(text)}"
        columns = [a["name"] for a in outputs]
        document = [a["name"] for f in self.functions if f["name"] == self.DOCUMENT for a in self.outputs(f)]
        document = list(dict.fromkeys(document))
        link = "[columns of a document](#columns-of-a-document)"
        if columns == document[:-1]:
            return f"Returns rows with the {link}, without `{document[-1]}`."
        if name == self.DOCUMENT:
            return f"Returns rows with the {link}."
        if len(outputs) == 1 and not function["returns_rows"]:
            a = outputs[0]
            text = self.words.find("results", f"{name}.{a['name']}", a["name"])
            return f"Returns `{a['name']} {a['type']}`: {sentence(text)}"
        cells = [
            (code(a["name"]), a["type"], self.words.find("results", f"{name}.{a['name']}", a["name"]))
            for a in outputs
        ]
        return f"{rows}:\n\n" + table(("Column", "Type", "Meaning"), cells)

    def rows_of_type(self, function):
        row_type = function["result"]
        first = self.row_types.setdefault(row_type, function["name"])
        if first != function["name"]:
            return f"Returns rows of the type `{row_type}`, as [{first}](#{first}) does."
        name = row_type.removeprefix("fetchq.")

        def keys(column):
            return f"{name}.{column}", f"{function['name']}.{column}", column

        rows = "rows" if function["returns_rows"] else "one row"
        cells = [
            (code(a["name"]), a["type"], self.words.find("results", *keys(a["name"])))
            for a in function["row_type"]
        ]
        return f"Returns {rows} of the type `{row_type}`:\n\n" + table(("Column", "Type", "Meaning"), cells)

    def do_document(self):
        pick = next(f for f in self.functions if f["name"] == self.DOCUMENT)
        return table(
            ("Column", "Type", "Meaning"),
            [
                (code(a["name"]), a["type"], self.words.find("results", f"document.{a['name']}"))
                for a in self.outputs(pick)
            ],
        )

    def do_triggers(self, *names):
        rows = []
        for name in names:
            self.placed["triggers"].append(name)
            found = [f for f in self.functions if f["name"] == name and f["is_trigger"]]
            if not found:
                problems.append(f"{self.page}: the catalog has no trigger function {name}")
            rows += [(code(f"{name}()"), sentence(f["comment"])) for f in found]
        return table(("Function", "What it does"), rows)

    # -- tables -------------------------------------------------------------------

    def do_table(self, *names):
        parts = []
        for name in names:
            self.placed["table"].append(name)
            found = [t for t in self.tables if self.table_name(t) == name]
            if not found:
                problems.append(f"the catalog has no table {name}")
                continue
            parts.append(self.one_table(name, found[0]))
        return "\n\n".join(parts)

    def table_name(self, t):
        return re.sub(r"^mail__", "<queue>__", t["name"]) if t["schema"] == "fetchq_data" else t["name"]

    def one_table(self, name, t):
        short = name.replace("<queue>__", "queue_")
        what = "A view" if t["is_view"] else "A table"
        comment = t["comment"] or self.words.find("tables", name)
        rows = []
        for c in t["columns"]:
            text = c["comment"] or self.words.find("columns", f"{short}.{c['name']}", c["name"])
            default = "numbered" if c["identity"] else code(self.default((c["default"] or "").replace("pg_catalog.", "") or None))
            kind = c["type"] + (" not null" if c["not_null"] else "")
            rows.append((code(c["name"]), kind, default, text) if not t["is_view"] else (code(c["name"]), kind, text))
        head = ("Column", "Type", "Meaning") if t["is_view"] else ("Column", "Type", "Default", "Meaning")
        heading = name if t["schema"] == "fetchq_data" else f"{t['schema']}.{name}"
        heading = f"fetchq_data.{name}" if t["schema"] == "fetchq_data" else heading
        return f"### `{heading}`\n\n{what}. {sentence(comment)}\n\n{table(head, rows)}"

    # -- settings -----------------------------------------------------------------

    CONTEXT = {
        "user": "session, role, database, or server",
        "superuser": "session, role, database, or server, by superusers and by roles with `grant set on parameter` (PostgreSQL 15 or newer)",
        "sighup": "server, applied by `select pg_reload_conf()`",
        "postmaster": "server, applied by a restart",
        "backend": "start of a session",
    }

    def amount(self, setting, value):
        """Returns a number with its unit, as SHOW displays it."""
        if setting["type"] != "integer" or not setting["unit"] or not value:
            return value
        number, unit = int(value), setting["unit"]
        for bigger, factor, name in (("ms", 1000, "s"), ("s", 60, "min"), ("min", 60, "h"), ("h", 24, "d")):
            if unit == bigger and number and number % factor == 0:
                number, unit = number // factor, name
        return f"{number}{unit}" if number else "0"

    def setting_default(self, s):
        return self.amount(s, s["default"]) or "(empty)"

    def setting_range(self, s):
        if s["type"] == "enum":
            return ", ".join(f"`{v}`" for v in s["values"])
        if s["type"] == "integer":
            return f"{self.amount(s, s['min'])} to {self.amount(s, s['max'])}"
        return ""

    def do_settings(self):
        rows = [
            (f"[`{s['name']}`](#{s['name'].replace('.', '')})", s["type"], code(self.setting_default(s)), sentence(s["short"]))
            for s in self.settings
        ]
        return table(("Setting", "Type", "Default", "Meaning"), rows)

    def do_setting(self, name):
        self.placed["setting"].append(name)
        found = [s for s in self.settings if s["name"] == name]
        if not found:
            problems.append(f"settings.md: the server has no setting {name}")
            return ""
        s = found[0]
        facts = [("Type", s["type"]), ("Default", code(self.setting_default(s))), ("Values", self.setting_range(s)),
                 ("Can be set for", self.CONTEXT.get(s["context"], s["context"]))]
        facts = [f"| {k} | {v} |" for k, v in facts if v]
        text = f"{sentence(s['short'])} {sentence(s['long'])}".strip()
        return f"### {name}\n\n| | |\n|---|---|\n" + "\n".join(facts) + f"\n\n{text}"

    def do_jobs(self):
        rows = []
        for j in self.jobs:
            s = j["settings"]
            where = "all queues" if j["queue"] == "*" else "each queue"
            unknown = set(s) - {"delay", "duration", "limit"}
            if unknown:
                problems.append(f"the job {j['task']} has settings that the page does not show: {unknown}")
            text = self.words.find("jobs", j["task"])
            rows.append((code(j["task"]), where, *(str(s.get(k, "")) for k in ("delay", "duration", "limit")), text))
        rows.sort(key=lambda row: (row[1] == "all queues", 0))
        return table(("Task", "Runs for", "`delay`", "`duration`", "`limit`", "What it does"), rows)

    # -- counters -----------------------------------------------------------------

    def do_events(self):
        rows = []
        for e in self.events:
            deltas = " ".join(f"{'+' if sign > 0 else '-'}{metric}" for metric, sign in e["deltas"])
            # Those of leases that were not written have the pick in them.
            name = e["name"].removeprefix("pick, ")
            text = self.words.find("events", name)
            if name != e["name"]:
                text = f"{name}, of a document whose lease was not written yet"
            rows.append((str(e["event"]), e["name"], code(deltas), text))
        return table(("Event", "Name", "Effect", "When"), rows)

    def do_metrics(self):
        order = []
        for e in self.events:
            order += [m for m, _ in e["deltas"] if m not in order]
        listed = [m for m in self.words.ini.options("metrics")]
        problems.extend(f"descriptions.ini has no metric {m} in [metrics]" for m in order if m not in listed)
        problems.extend(f"descriptions.ini has metric {m}, which no event changes" for m in listed if m not in order)
        rows = []
        for m in listed:
            kind, _, text = self.words.find("metrics", m).partition(": ")
            signs = {sign for e in self.events for metric, sign in e["deltas"] if metric == m}
            is_gauge = signs == {1, -1}
            if kind != ("gauge" if is_gauge else "total"):
                problems.append(f"descriptions.ini: metric {m} is a {'gauge' if is_gauge else 'total'}")
            name = "`v0`, `v1`, …" if m == "v" else code(m)
            rows.append((name, kind, text))
        return table(("Metric", "Kind", "Meaning"), rows)

    # -- errors -------------------------------------------------------------------

    def by_state(self, entries):
        """Returns a section for each SQLSTATE of (SQLSTATE, condition name, message, hint)."""
        parts = []
        for state in sorted({e[0] for e in entries}):
            names = sorted({e[1] for e in entries if e[0] == state and e[1]})
            rows = sorted({(self.literal(e[2]), self.literal_names(e[3])) for e in entries if e[0] == state})
            title = f"### {state} {names[0]}" if names else f"### {state}"
            parts.append(title + "\n\n" + table(("Message", "Hint"), rows))
        return "\n\n".join(parts)

    def literal(self, text):
        return f"`` {text} ``" if "`" in text else f"`{text}`"

    def literal_names(self, text):
        """Escapes a hint, so that its placeholders and its JSON are displayed as they are."""
        return sentence(text).replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_")

    def do_errors(self):
        entries = []
        for macro, message, hint in self.source.errors():
            entries.append((*self.condition(macro), message, hint))
        names = {name: (state, name) for state, name in self.conditions.values() if name}
        for kind, name, message, hint in rust.raised_by_sql(ROOT):
            if kind == "exception":
                if name not in names:
                    problems.append(f"A .sql file of src raises {name}, which PostgreSQL does not know")
                    continue
                entries.append((*names[name], message, hint))
        return self.by_state(entries)

    def do_warnings(self):
        return self.by_state([(*self.condition(c), message, hint) for c, message, hint in self.source.warnings()])

    def condition(self, macro):
        if macro in self.conditions:
            return self.conditions[macro]
        # pgrx has shorter names for some of them.
        ends = {v for k, v in self.conditions.items() if k.endswith(macro.removeprefix("ERRCODE_"))}
        if len(ends) == 1:
            return ends.pop()
        problems.append(f"PostgreSQL does not know {macro}")
        return ("?????", "")

    # -- pages --------------------------------------------------------------------

    def fill(self, template):
        def one(match):
            words = match.group(1).split()
            method = getattr(self, f"do_{words[0]}", None)
            if method is None:
                raise SystemExit(f"error: {template.name}: unknown placeholder {match.group(0)}")
            return method(*words[1:])

        self.page = template.name
        text = re.sub(r"^\{\{(.*?)\}\}$", one, template.read_text(encoding="utf-8"), flags=re.M | re.S)
        title, _, rest = text.partition("\n")
        return f"{title}\n\n{NOTE}\n{rest.rstrip()}\n"

    def check_placed(self):
        there = {
            "functions": {f["name"] for f in self.functions if not f["is_trigger"]},
            "triggers": {f["name"] for f in self.functions if f["is_trigger"]},
            "table": {self.table_name(t) for t in self.tables},
            "setting": {s["name"] for s in self.settings},
        }
        for kind, names in there.items():
            for name in sorted(names - set(self.placed[kind])):
                problems.append(f"{name} is in no page: add it to a {{{{{kind} …}}}} of scripts/docs/pages/")
            for name in {n for n in self.placed[kind] if self.placed[kind].count(n) > 1}:
                problems.append(f"{name} is in the pages twice")


def main():
    check = sys.argv[1:] == ["--check"]
    if sys.argv[1:] and not check:
        raise SystemExit(__doc__)
    pages = Pages()
    templates = sorted((HERE / "pages").glob("*.md"))
    new = {OUT / t.name: pages.fill(t) for t in templates}
    pages.check_placed()
    pages.words.unused()
    if problems:
        raise SystemExit("\n".join(f"error: {p}" for p in problems))
    strays = [p for p in OUT.glob("*.md") if p not in new]
    if not check:
        OUT.mkdir(parents=True, exist_ok=True)
        for path, text in new.items():
            path.write_text(text, encoding="utf-8")
        for path in strays:
            print(f"warning: {path.relative_to(ROOT)} has no template")
        print(f"{OUT.relative_to(ROOT)}: {', '.join(p.name for p in new)}")
        return
    stale = [f"{p.relative_to(ROOT)} has no template" for p in strays]
    for path, text in new.items():
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        name = str(path.relative_to(ROOT))
        if old != text:
            stale.append(f"{name} is stale: run 'make docs', and commit what it writes")
            diff = difflib.unified_diff(old.splitlines(True), text.splitlines(True), name, f"{name} (new)", n=1)
            sys.stdout.writelines(list(diff)[:200])
    if stale:
        raise SystemExit("\n".join(f"error: {s}" for s in stale))
    print(f"{OUT.relative_to(ROOT)} is up to date: {len(new)} pages")


if __name__ == "__main__":
    main()
