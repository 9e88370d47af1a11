"""Checks claims that the prose of README.md and docs/**/*.md makes about the code.

A claim stands next to the prose that makes it, in a comment that is not displayed:

  <!-- check: setting NAME = VALUE -->   the default of a setting, as in settings.md
  <!-- check: job TASK KEY = VALUE -->   a setting that a job of a new queue has
  <!-- check: const FILE = NUMBER -->    FILE.rs (or FILE/*.rs) in src/ or domain/ has a constant
                                         of this value, whatever its name; such as 400_000
                                         for "every 0.4 seconds" in microseconds;
                                         FILE may be a choice: wait|waiting
  <!-- sql: QUERY => VALUE -->           the query gives the value, as psql -At shows it, in a
                                         database with the extension and the queue mail

It is an error when a claim is wrong or cannot be read, and when there is no claim at all.
"""

import pathlib
import re
import sys

import catalog
import generate
import rust

ROOT = generate.ROOT
CLAIM = re.compile(r"<!--\s*(check|sql):\s*(.*?)\s*-->", re.S)


class Claims:
    def __init__(self):
        # The value is compared as the generated page shows it.
        pages = generate.Pages()
        self.settings = {s["name"]: pages.setting_default(s) for s in pages.settings}
        self.jobs = {j["task"]: j["settings"] for j in pages.jobs}
        self.source = rust.Source(ROOT)

    def setting(self, words):
        return self.settings.get(words[0], "no such setting")

    def job(self, words):
        return str(self.jobs.get(words[0], {}).get(words[1], "no such setting"))

    def const(self, words, wanted):
        wanted = wanted.replace("_", "")
        found = set()
        for files in self.source.constants.values():
            for path, tokens in files.items():
                if {path.stem, path.parent.name} & set(words[0].split("|")):
                    found.add(self.source.evaluate(tokens))
        return wanted if wanted in found else f"{words[0]}.rs has no constant of this value"

    def check(self, kind, text):
        """Returns the problem of a claim, or None."""
        claim, separator, wanted = text.rpartition("=>" if kind == "sql" else "=")
        claim, wanted = claim.strip(), wanted.strip()
        if not separator:
            return "it has no value"
        if kind == "sql":
            found = catalog.value(claim)
        else:
            what, *words = claim.split()
            if what == "setting" and len(words) == 1:
                found = self.setting(words)
            elif what == "job" and len(words) == 2:
                found = self.job(words)
            elif what == "const" and len(words) == 1:
                found, wanted = self.const(words, wanted), wanted.replace("_", "")
            else:
                return "it cannot be read"
        return None if found == wanted else f"it is: {found}"


def main():
    claims, n, wrong = Claims(), 0, []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        for match in CLAIM.finditer(text):
            n += 1
            problem = claims.check(match.group(1), match.group(2))
            if problem:
                line = text.count("\n", 0, match.start()) + 1
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {match.group(2)}: {problem}")
    if wrong:
        sys.exit("\n".join(f"error: {w}" for w in wrong))
    if n == 0:
        sys.exit("error: there is no claim in the documentation")
    print(f"{n} claims of the prose are true")


if __name__ == "__main__":
    main()
