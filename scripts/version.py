#!/usr/bin/env python3
"""The version of this checkout. It stands in Cargo.toml, and every other place repeats it.

    version.py               print it
    version.py --check       fail where a place has another version, or where a file repeats the
                             version that is not listed here
    version.py --set 5.0.1   write a version into all places; make version V=5.0.1
    version.py --self-test   set another version in a copy of the checkout, and look

Packages of Python and npm do not know versions such as 5.0.1-rc1, so there are none.
"""

import glob
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NUMBER = r"\d+\.\d+\.\d+"

# A file, and what stands before each version in it. Files that are not there yet are left out.
PLACES = [
    ("Cargo.toml", r'^version = "'),  # [package], which is the source, and [workspace.package]
    ("META.json", r'"version": "(?=\d+\.\d+\.\d+",?\n(?!      "url))'),
    ("Trunk.toml", r'^version = "'),
    ("clients/*/package.json", r'^  "version": "'),
    ("clients/*/package-lock.json", r'\A\{\n  "name": "[^"]*",\n  "version": "'),
    ("clients/*/package-lock.json", r'^    "": \{\n      "name": "[^"]*",\n      "version": "'),
    ("clients/*/pyproject.toml", r'^version = "'),
    ("clients/*/src/*/__init__.py", r'^__version__ = "'),
    ("docker/Dockerfile", r"^ARG FETCHQ_VERSION=|fetchq/fetchq:\d+-"),
    ("docker/compose.yml", r'FETCHQ_VERSION: "|fetchq\}:\$\{PG_MAJOR:-\d+\}-|fetchq\}-console:'),
    ("packaging/cloudnativepg/*.yaml", r'^ +version: "|fetchq/fetchq(?:-cnpg)?:\d+-'),
    ("docs/guides/*.md", r"[\w.]+/fetchq(?:-cnpg)?:\d+-|fetchq/fetchq-console:"),
    ("tests/conformance/README.md", r'"client": "fetchq '),
    ("tests/pg_regress/expected/metric_export.out", r'"version": "'),
]
# Manifests with the version of the workspace, whose packages Cargo.lock names.
MEMBERS = "Cargo.lock"

# Lines like these repeat a version. Each file that has one with this version is a place.
REPEATS = re.compile(r"(?i)version\W{1,8}(\d+\.\d+\.\d+)\b|fetchq(?:-console|-cnpg)?:(?:\d+-)?(\d+\.\d+\.\d+)\b")
# Files that name a version that stays, such as the one that fetchq 4 is upgraded to.
STAY = re.compile(
    r"^(bench/|CHANGELOG\.md|Cargo\.lock|.*package-lock\.json|build\.rs|sql/|tests/upgrade/|scripts/(version\.py|deb\.sh)|"
    r"docs/guides/(upgrade|migrating-from-fetchq-4)\.md|clients/[^/]*/src/.*\.(ts|rs)$|.*\.(png|svg)$)"
)


def pattern(before):
    return re.compile(f"({before})({NUMBER})", re.M)


def places(root):
    """Each place that is there: its file, its pattern, and the versions in it."""
    for files, before in PLACES:
        found = [(path, pattern(before)) for path in sorted(root.glob(files))]
        for path, regex in found:
            text = path.read_text(encoding="utf-8")
            versions = [match[2] for match in regex.finditer(text)]
            if versions or "*" not in files:
                yield path, regex, versions


def source(root):
    return pattern(r'\A\[package\]\nname = "fetchq"\nversion = "').search((root / "Cargo.toml").read_text())[2]


def members(root):
    """The crates of the checkout that have its version: their names."""
    for path in sorted([*root.glob("*/Cargo.toml"), *root.glob("*/*/Cargo.toml")]):
        text = path.read_text(encoding="utf-8")
        if re.search(r"^version\.workspace = true", text, re.M):
            yield re.search(r'^name = "(.*)"', text, re.M)[1]
    yield "fetchq"


def check(root):
    version = source(root)
    wrong = []
    for path, _, versions in places(root):
        if not versions:
            wrong.append(f"{path.relative_to(root)}: there is no version where it should stand")
        if others := set(versions) - {version}:
            wrong.append(f"{path.relative_to(root)}: {', '.join(sorted(others))}, and Cargo.toml has {version}")
    lock = (root / MEMBERS).read_text(encoding="utf-8")
    for name in members(root):
        match = re.search(rf'^name = "{name}"\nversion = "(.*)"', lock, re.M)
        if not match or match[1] != version:
            wrong.append(f"{MEMBERS}: {name} is {match[1] if match else 'missing'}, not {version}")
    return wrong


def unlisted(root):
    """Files that git knows, which repeat the version and are no place."""
    version = source(root)
    listed = {path for path, _, _ in places(root)}
    files = subprocess.run(["git", "ls-files", "-z"], cwd=root, check=True, capture_output=True, text=True).stdout
    for name in filter(None, files.split("\0")):
        path = root / name
        if path in listed or STAY.match(name) or not path.is_file():
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if any(version in match.groups() for match in REPEATS.finditer(line)):
                yield f"{name}:{number} repeats the version: list the file in scripts/version.py"


def write(root, version):
    for path, regex, versions in list(places(root)):
        if versions:
            text = path.read_text(encoding="utf-8")
            path.write_text(regex.sub(lambda match: match[1] + version, text), encoding="utf-8")
    lock = (root / MEMBERS).read_text(encoding="utf-8")
    for name in members(root):
        lock = re.sub(rf'^(name = "{name}"\nversion = ").*"', rf'\g<1>{version}"', lock, flags=re.M)
    (root / MEMBERS).write_text(lock, encoding="utf-8")


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        files = {path for path, _, _ in places(ROOT)} | {ROOT / MEMBERS}
        files |= {Path(path) for path in glob.glob(f"{ROOT}/*/Cargo.toml") + glob.glob(f"{ROOT}/clients/*/Cargo.toml")}
        for path in files:
            (copy / path.relative_to(ROOT)).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, copy / path.relative_to(ROOT))
        old = source(copy)
        write(copy, "98.7.6")
        wrong = check(copy)
        assert source(copy) == "98.7.6" and not wrong, wrong
        # Each place is found when it alone has the old version.
        for path, regex, _ in list(places(copy)):
            text = path.read_text(encoding="utf-8")
            path.write_text(regex.sub(lambda match: match[1] + old, text), encoding="utf-8")
            assert check(copy), f"{path.relative_to(copy)} with another version is not found"
            path.write_text(text, encoding="utf-8")
        print(f"ok: the version is written into {len(files)} files, and each is looked at")


def main():
    match sys.argv[1:]:
        case []:
            print(source(ROOT))
        case ["--check"]:
            wrong = check(ROOT) + list(unlisted(ROOT))
            if wrong:
                sys.exit("\n".join(wrong))
            print(f"the version is {source(ROOT)} everywhere")
        case ["--set", version] if re.fullmatch(NUMBER, version):
            write(ROOT, version)
            wrong = check(ROOT)
            if wrong:
                sys.exit("\n".join(wrong))
            print(f"the version is {version} everywhere; a section of CHANGELOG.md is yours to write")
        case ["--set", version]:
            sys.exit(f"'{version}' is no version: three numbers with dots, such as 5.0.1")
        case ["--self-test"]:
            self_test()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
