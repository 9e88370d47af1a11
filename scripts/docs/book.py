#!/usr/bin/env python3
"""Makes of docs/ the sources of a site for mdBook, with the READMEs of the packages and the examples.

    book.py FOLDER     write book.toml and src/ into the folder; scripts/book.sh calls it
    book.py --check    write nothing; fail if a page is missing in docs/README.md, or a link has no target

The order of the pages is that of docs/README.md. Links to other files of the checkout lead to the repository."""

import os
import pathlib
import re
import shutil
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/checks"))

import links  # noqa: E402

REPOSITORY = "https://github.com/fetchq/fetchq"
INDEX = "docs/README.md"

# Pages outside docs/, and where the site has them.
ELSEWHERE = {
    "README.md": "about.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "examples/README.md": "examples.md",
    "clients/typescript/README.md": "clients/typescript.md",
    "clients/python/README.md": "clients/python.md",
    "clients/rust/README.md": "clients/rust.md",
}

TITLES = {
    "SECURITY.md": "Reporting a vulnerability",
    "clients/rust/README.md": "Rust",
    "clients/typescript/README.md": "The package for TypeScript",
    "clients/python/README.md": "The package for Python",
}

TOML = """[book]
title = "fetchq"
description = "A queue and a scheduler inside PostgreSQL"
language = "en"

[build]
build-dir = "html"
create-missing = false
use-default-preprocessors = false

[output.html]
git-repository-url = "{repository}"
no-section-label = true
additional-js = [{scripts}]

[output.html.search]
limit-results = 20
boost-title = 3
boost-hierarchy = 2
"""

# mdBook draws no diagrams by itself.
DIAGRAMS = """for (const code of document.querySelectorAll('code.language-mermaid')) {
    const picture = document.createElement('div');
    picture.className = 'mermaid';
    picture.textContent = code.textContent;
    code.parentElement.replaceWith(picture);
}
const isDark = ['navy', 'coal', 'ayu'].some((theme) => document.documentElement.classList.contains(theme));
mermaid.initialize({ startOnLoad: true, theme: isDark ? 'dark' : 'default' });
"""


def pages():
    """The pages of the site: their paths in the checkout, and in the site."""
    found = {}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        name = str(path.relative_to(ROOT))
        found[name] = "index.md" if name == INDEX else name.removeprefix("docs/")
    return found | ELSEWHERE


PAGES = pages()


def title(page):
    return TITLES.get(page) or re.search(r"^# (.*)$", (ROOT / page).read_text(), re.M).group(1).replace("`", "")


def moved(page, link):
    """The link of a page as the site has it."""
    if re.match(r"[a-z][a-z0-9+.-]*:", link, re.I) or link.startswith("#"):
        return link
    path, mark, anchor = link.partition("#")
    target = os.path.normpath(os.path.join("" if path.startswith("/") else os.path.dirname(page), path.lstrip("/")))
    here = os.path.dirname(PAGES[page])
    if target in PAGES:
        return os.path.relpath(PAGES[target], here or ".") + mark + anchor
    if target.startswith("docs/images/"):
        return os.path.relpath(target.removeprefix("docs/"), here or ".")
    kind = "tree" if (ROOT / target).is_dir() else "blob"
    return f"{REPOSITORY}/{kind}/main/{target}{mark}{anchor}"


def text_of(page):
    """A page as the site has it: without comments, and with other links."""
    text = re.sub(r"<!--.*?-->\n*", "", (ROOT / page).read_text(), flags=re.S)
    shown = links.without_code(text)
    made, end = [], 0
    for match in links.LINK.finditer(shown):
        group = next(i for i in (1, 2, 3) if match.group(i))
        made += [text[end:match.start(group)], moved(page, match.group(group))]
        end = match.end(group)
    # mdBook takes all words behind the language for its name.
    return re.sub(r"^( *```)(\w+) [^\n]*$", r"\1\2", "".join([*made, text[end:]]), flags=re.M)


def targets(line):
    """The files that a line of the index links to."""
    return [os.path.normpath(os.path.join("docs", link[0].partition("#")[0])) for link in links.LINK.findall(line)]


def summary():
    """The list of pages, in the order of the index, and the pages that it does not have."""
    lines, listed = ["# Summary", "", "[Documentation](index.md)", "[Why fetchq](about.md)", "[Tutorial](tutorial.md)"], []
    index = (ROOT / INDEX).read_text().splitlines()
    # A page stands where its name begins a row or an item, and not where another row mentions it.
    first = {line: set(targets(re.split(r" \||\):", line, maxsplit=1)[0] + ")")) for line in index}
    for line in index:
        if line.startswith("## "):
            lines += ["", f"# {line[3:]}", ""]
        for target in targets(line):
            is_mentioned = target not in first[line] and any(target in begins for begins in first.values())
            if target in PAGES and not is_mentioned and target not in ("README.md", "docs/tutorial.md", *listed):
                listed.append(target)
                lines.append(f"- [{title(target)}]({PAGES[target]})")
    rest = [page for page in ELSEWHERE if page not in (*listed, "README.md")]
    lines += ["", "# More", "", *(f"- [{title(page)}]({PAGES[page]})" for page in rest)]
    missing = [page for page in PAGES if page not in (*listed, *ELSEWHERE, INDEX, "docs/tutorial.md")]
    return "\n".join(lines) + "\n", missing


def problems(missing):
    """What is wrong with the sources of the site. Targets in the checkout are checked by links.py."""
    for page in missing:
        yield f"{page}: docs/README.md does not link to it"
    for page, place in PAGES.items():
        for match in links.LINK.finditer(links.without_code(text_of(page))):
            link = next(group for group in match.groups() if group)
            if link.startswith(REPOSITORY + "/blob/main/"):
                target = link.removeprefix(REPOSITORY + "/blob/main/").partition("#")[0]
                if not (ROOT / target).exists():
                    yield f"{page}: {link}: there is no such file"
            elif not re.match(r"[a-z][a-z0-9+.-]*:|#", link, re.I):
                target = os.path.normpath(os.path.join(os.path.dirname(place), link.partition("#")[0]))
                if target not in PAGES.values() and not (ROOT / "docs" / target).exists():
                    yield f"{page}: {link}: the site has no {target}"


def write(folder):
    shutil.rmtree(folder / "src", ignore_errors=True)
    for page, place in PAGES.items():
        (folder / "src" / place).parent.mkdir(parents=True, exist_ok=True)
        (folder / "src" / place).write_text(text_of(page))
    (folder / "src/SUMMARY.md").write_text(summary()[0])
    shutil.copytree(ROOT / "docs/images", folder / "src/images", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    scripts = ["mermaid.min.js", "diagrams.js"] if (folder / "mermaid.min.js").exists() else []
    (folder / "diagrams.js").write_text(DIAGRAMS)
    (folder / "book.toml").write_text(TOML.format(repository=REPOSITORY, scripts=", ".join(f'"{name}"' for name in scripts)))


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    wrong = list(problems(summary()[1]))
    if wrong:
        sys.exit("\n".join(wrong))
    if sys.argv[1] == "--check":
        print(f"ok: {len(PAGES)} pages of the site, in the order of docs/README.md")
    else:
        write(pathlib.Path(sys.argv[1]))


if __name__ == "__main__":
    main()
