#!/usr/bin/env python3
"""Check that the files and headings exist that the Markdown files of this checkout link to, and
the files that comments in the crates and scripts/ name.

    links.py [FILE…]     all Markdown files that git knows, by default, but not the templates
                         of generated pages: their links are those of the pages; and all comments
    links.py --self-test check that paths in comments are found
"""

import functools
import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LINK = re.compile(
    r"""!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+"[^"]*")?\s*\)
      | ^\s*\[[^\]]+\]:\s*(\S+)
      | <(?:a|img|source)\b[^>]*?\b(?:href|src|srcset)="([^"]+)"
    """,
    re.M | re.X,
)


def without_code(text):
    """Returns the text with blanks in place of code blocks and code spans."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group())
    text = re.sub(r"^( *)(```+|~~~+).*?^\1\2[`~]*[ \t]*$", blank, text, flags=re.S | re.M)
    return re.sub(r"(`+)(?:(?!\1).)+?\1", blank, text)


@functools.cache
def anchors(path):
    """Returns the anchors of a page: its headings, as GitHub writes them, and ids in HTML."""
    with open(path, encoding="utf-8") as f:
        text = f.read()
    found, seen = set(re.findall(r"\b(?:id|name)=\"([^\"]+)\"", text)), {}
    in_code = False
    for line in text.splitlines():
        if re.match(r"\s*(```|~~~)", line):
            in_code = not in_code
        heading = re.match(r"#{1,6}\s+(.*?)\s*#*$", line)
        if in_code or not heading:
            continue
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1))
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        n = seen[anchor] = seen.get(anchor, -1) + 1
        found.add(f"{anchor}-{n}" if n else anchor)
    return found


def check(page):
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        text = without_code(f.read())
    for match in LINK.finditer(text):
        link = next(group for group in match.groups() if group)
        if re.match(r"[a-z][a-z0-9+.-]*:", link, re.I):
            continue  # The link leads to another site.
        path, _, anchor = link.partition("#")
        where = f"{page}:{text.count(chr(10), 0, match.start()) + 1}: {link}"
        folder = "" if path.startswith("/") else os.path.dirname(page)
        target = os.path.join(ROOT, folder, path.lstrip("/")) if path else os.path.join(ROOT, page)
        if not os.path.exists(target):
            yield f"{where}: there is no file {os.path.relpath(target, ROOT)}"
        elif anchor and target.endswith(".md") and anchor not in anchors(os.path.normpath(target)):
            yield f"{where}: {os.path.relpath(target, ROOT)} has no heading #{anchor}"


# What a comment of each kind of file looks like. In Python and shell a "#" within a line may be
# something else, so only lines that begin with it count, and the docstring of a Python file.
COMMENTS = {
    ".rs": re.compile(r"//[^\n]*"),
    ".sql": re.compile(r"--[^\n]*"),
    ".sh": re.compile(r"^[ \t]*#[^\n]*", re.M),
    ".py": re.compile(r"^[ \t]*#[^\n]*|\A(?:#![^\n]*\n)?\"\"\".*?\"\"\"", re.M | re.S),
}

# A path from the top of the checkout: a page, a source file of a crate, or anything in tests/. What has a
# placeholder (docs/images/*.py, src/store/FAMILY.rs, tests/<suite>) is none. A path that stands
# within a longer one, such as PostgreSQL's src/backend/commands/async.c, has another suffix.
PATH = re.compile(
    r"(?<![\w./:*-])(docs/[\w./-]+\.md|(?:[a-z]+/)?src/[\w./-]+\.(?:rs|sql)|tests/[\w./-]*\w)"
    r"(?P<rest>[\w/*<>{}…$]?)"
)


def paths_of(comment):
    """Returns the paths that a comment names, with their places in it; none with a placeholder."""
    found = []
    for match in PATH.finditer(comment):
        path = match.group(1)
        names = re.split(r"[/.]", path)
        if not match.group("rest") and not any(re.fullmatch(r"[A-Z_]{2,}", n) for n in names[1:-1]):
            found.append((match.start(), path))
    return found


def check_comments(file):
    with open(os.path.join(ROOT, file), encoding="utf-8") as f:
        text = f.read()
    for comment in COMMENTS[os.path.splitext(file)[1]].finditer(text):
        for place, path in paths_of(comment.group()):
            if not os.path.exists(os.path.join(ROOT, path)):
                line = text.count("\n", 0, comment.start() + place) + 1
                yield f"{file}:{line}: there is no file {path}"


def self_test():
    there = "See docs/a.md, `src/b/c.rs:12`, domain/src/d.rs and tests/client."
    none = "docs/*.md src/**/x.rs tests/<suite> tests/NAME/x.rs src/store/FAMILY.rs ../src/a.rs "
    none += "src/b/a.c"
    good = [path for _, path in paths_of(there)] == ["docs/a.md", "src/b/c.rs", "domain/src/d.rs", "tests/client"]
    if not good or paths_of(none):
        sys.exit(f"links.py: paths are not found as they should be: {paths_of(there + none)}")
    print("ok: paths in comments are found")


def listed(*patterns):
    """Returns the files that git knows, or would add, and that exist."""
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *patterns]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.split()
    return [file for file in found if os.path.exists(os.path.join(ROOT, file))]


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    pages, files = sys.argv[1:], []
    if not pages:
        pages = [page for page in listed("*.md") if not page.startswith("scripts/")]
        if not pages:  # a copy without git
            pages = glob.glob("*.md", root_dir=ROOT)
            pages += glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)
        files = [f for f in listed("src", "domain", "connect", "mover", "console", "scripts") if os.path.splitext(f)[1] in COMMENTS]
    wrong = [message for page in pages for message in check(page)]
    wrong += [message for file in files for message in check_comments(file)]
    summary = f"{len(pages)} pages, comments of {len(files)} files: all links are valid"
    print("\n".join(wrong) or summary)
    sys.exit(len(wrong) > 0)


if __name__ == "__main__":
    main()
