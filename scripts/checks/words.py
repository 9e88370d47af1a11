#!/usr/bin/env python3
"""Check the words of code and documentation: one word for one thing, and plain English.

    words.py               check this checkout; each line that uses a word to avoid is named
    words.py --self-test   check that each rule finds its word

The glossary is docs/concepts/glossary.md. A line that has to use such a word ends in a
comment with the text `words: ok`.
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent

# A pattern, what to write instead, and a line that the pattern has to find.
RULES = [
    (r"\bcan not\b", "cannot", "it can not be"),
    (r"\bnot any ?more\b", "no longer", "it is not any more"),
    (r"\b(is|are|was|were) told\b", "say who tells whom, in the active voice", "what is told"),
    (r"\b[Ww]ho (waits|picks|holds)\b", "waiter, worker, the worker that holds the lease", "who waits"),
    (r"\b[Ss]o many\b(?! that)", "the number, or 'as many as'", "so many rows"),
    (r"\bsisters?\b", "the other ones", "its sisters"),
    (r"\b(bury|buries|buried|burials?)\b", "move to the dead-letter queue", "it buries"),
]

# What is checked: text that people read and write. Goldens, results and vendored files are not.
SUFFIXES = {".rs", ".sql", ".md", ".py", ".sh", ".js", ".mjs", ".toml", ".yml", ".spec", ""}
LEFT_OUT = ("bench/results/", "tests/npm/node_modules/", "LICENSE", "Cargo.lock")


def found_in(text):
    """The rules that a text breaks: line number, pattern's advice, line."""
    for number, line in enumerate(text.splitlines(), 1):
        if "words: ok" in line:
            continue
        for pattern, advice, _ in RULES:
            match = re.search(pattern, line)
            if match:
                yield number, match.group(0), advice


def self_test():
    bad = [pattern for pattern, _, example in RULES if not re.search(pattern, example)]
    fine = "It cannot be picked, and as many as ten sessions wait. so many that it stops"
    bad += [word for _, word, _ in found_in(fine)]
    if bad:
        sys.exit(f"words.py: these rules do not work: {bad}")
    print(f"ok: {len(RULES)} rules find their words")


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    files = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")
    count = bad = 0
    for name in filter(None, files):
        path = ROOT / name
        if name.startswith(LEFT_OUT) or path.suffix not in SUFFIXES or path == Path(__file__):
            continue
        try:
            text = path.read_text()
        except (UnicodeDecodeError, FileNotFoundError, IsADirectoryError):
            continue
        count += 1
        for number, word, advice in found_in(text):
            bad += 1
            print(f"{name}:{number}: '{word}': write {advice}")
    if bad:
        sys.exit(f"FAILED: {bad} lines use words to avoid")
    print(f"ok: {count} files use the words of the glossary")


if __name__ == "__main__":
    main()
