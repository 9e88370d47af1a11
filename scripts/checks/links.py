#!/usr/bin/env python3
"""Check that the files and headings exist that the Markdown files of this checkout link to.

    links.py [FILE…]    all Markdown files that git knows, by default, but not the templates
                        of generated pages: their links are those of the pages
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


def main():
    pages = sys.argv[1:]
    if not pages:
        command = ["git", "ls-files", "-co", "--exclude-standard", "*.md"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        pages = [p for p in listed.stdout.split() if not p.startswith("scripts/")]
        pages = [page for page in pages if os.path.exists(os.path.join(ROOT, page))]
        if not pages:  # a copy without git
            pages = glob.glob("*.md", root_dir=ROOT)
            pages += glob.glob("docs/**/*.md", root_dir=ROOT, recursive=True)
    wrong = [message for page in pages for message in check(page)]
    print("\n".join(wrong) or f"{len(pages)} pages: all links are valid")
    sys.exit(len(wrong) > 0)


if __name__ == "__main__":
    main()
