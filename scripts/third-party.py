#!/usr/bin/env python3
"""Print the crates that are compiled into the library, with their licences and notices.

    third-party.py FEATURE    such as pg15

The licences of most crates ask that a copy of the binary has their notice. Crates that only run
while fetchq is built, such as macros, are not in it, and are left out. The texts are those in
cargo's cache; the program needs no network.
"""

import glob
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NOTICES = ("licen[cs]e*", "LICEN[CS]E*", "COPYING*", "copying*", "NOTICE*", "UNLICENSE*", "COPYRIGHT*")


def cargo(*arguments):
    command = ["cargo", arguments[0], "--locked", "--offline", *arguments[1:]]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    features = ["--no-default-features", "--features", sys.argv[1]]
    packages = json.loads(cargo("metadata", "--format-version", "1", *features))["packages"]
    about = {(package["name"], package["version"]): package for package in packages}
    tree = cargo("tree", "-p", "fetchq", "--edges", "normal,no-proc-macro", "--prefix", "none",
                 "--format", "{p}", "--target", host(), *features)
    names = sorted({tuple(line.split()[:2]) for line in tree.splitlines() if line.strip()})
    print("These Rust crates are compiled into the library of fetchq, and the standard library of Rust\n"
          "(MIT OR Apache-2.0; https://github.com/rust-lang/rust).\n")
    texts = {}
    for name, version in names:
        package = about[name, version.removeprefix("v")]
        if package["source"] is None:
            continue  # fetchq itself
        licence = package["license"] or f"see {package['license_file']}"
        print(f"{name} {package['version']}: {licence}; {package['repository'] or 'no repository'}")
        folder = os.path.dirname(package["manifest_path"])
        found = sorted({path for pattern in NOTICES for path in glob.glob(os.path.join(folder, pattern))})
        if not found:
            authors = ", ".join(package["authors"]) or "its contributors"
            texts.setdefault(f"Copyright: {authors}\nLicence: {licence}\n", []).append(name)
        for path in found:
            if os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    # The lines of the same licence may be of another length or end otherwise.
                    text = "\n".join(line.rstrip() for line in file.read().strip().splitlines())
                texts.setdefault(text + "\n", []).append(name)
    for text, crates in texts.items():
        print(f"\n{'=' * 78}\n{', '.join(dict.fromkeys(crates))}\n{'-' * 78}\n{text}", end="")


def host():
    """The platform that cargo builds for here."""
    printed = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.split()[1] for line in printed.splitlines() if line.startswith("host:"))


if __name__ == "__main__":
    main()
