#!/usr/bin/env python3
"""Print the crates that are compiled into a binary, with their licences and notices.

    third-party.py FEATURE            those of the library; the feature is such as pg15
    third-party.py console            those of the console, on all platforms of its image
    third-party.py console --write    write them to console/licenses/third-party.txt, for the image
    third-party.py console --check    fail if that file is not current

The licences of most crates ask that a copy of the binary has their notice. Crates that only run
while fetchq is built, such as macros, are not in it, and are left out. The texts are those in
cargo's cache; what is not there is fetched.
"""

import glob
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CONSOLE = os.path.join(ROOT, "console/licenses/third-party.txt")
NOTICES = ("licen[cs]e*", "LICEN[CS]E*", "COPYING*", "copying*", "NOTICE*", "UNLICENSE*", "COPYRIGHT*")


def cargo(*arguments):
    command = ["cargo", arguments[0], "--locked", "--offline", *arguments[1:]]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        # Crates of other packages of the workspace may not have been fetched yet.
        subprocess.run(["cargo", "fetch", "--locked", "--quiet"], cwd=ROOT, check=True)
        done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


def main():
    match sys.argv[1:]:
        case ["console"]:
            print(console(), end="")
        case ["console", "--write"]:
            with open(CONSOLE, "w", encoding="utf-8") as file:
                file.write(console())
        case ["console", "--check"]:
            with open(CONSOLE, encoding="utf-8") as file:
                if file.read() != console():
                    sys.exit(f"{os.path.relpath(CONSOLE, ROOT)} is not current: run scripts/third-party.py console --write")
        case [feature] if feature.startswith("pg"):
            features = ["--no-default-features", "--features", feature]
            print(notices("the library of fetchq", "fetchq", [host()], features), end="")
        case _:
            sys.exit(__doc__)


def console():
    platforms = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"]
    return notices("the console of fetchq", "fetchq-console", platforms, [])


def notices(binary, root, platforms, features):
    """The text about the crates of a binary: first their names, then each licence once."""
    packages = json.loads(cargo("metadata", "--format-version", "1", *features))["packages"]
    about = {(package["name"], package["version"]): package for package in packages}
    lines = [
        line
        for platform in platforms
        for line in cargo("tree", "-p", root, "--edges", "normal,no-proc-macro", "--prefix", "none",
                          "--format", "{p}", "--target", platform, *features).splitlines()
    ]
    names = sorted({tuple(line.split()[:2]) for line in lines if line.strip()})
    output = [f"These Rust crates are compiled into {binary}, and the standard library of Rust\n"
              "(MIT OR Apache-2.0; https://github.com/rust-lang/rust). Where a crate offers several licences, and\n"
              "MIT is one of them, MIT is used.\n\n"]
    texts = {}
    for name, version in names:
        package = about[name, version.removeprefix("v")]
        if package["source"] is None:
            continue  # fetchq itself
        licence = package["license"] or f"see {package['license_file']}"
        output.append(f"{name} {package['version']}: {licence}; {package['repository'] or 'no repository'}\n")
        folder = os.path.dirname(package["manifest_path"])
        found = sorted({path for pattern in NOTICES for path in glob.glob(os.path.join(folder, pattern))})
        if "MIT" in licence.replace("/", " OR ").split(" OR "):
            # One of the licences is enough, and its text is the shortest.
            found = [path for path in found if "MIT" in os.path.basename(path)] or found
        if not found:
            authors = ", ".join(package["authors"]) or "its contributors"
            text = f"Copyright: {authors}\nLicence: {licence}\n"
            texts.setdefault(text, (text, []))[1].append(name)
        for path in found:
            if os.path.isfile(path):
                with open(path, encoding="utf-8", errors="replace") as file:
                    # The same licence may be broken into lines otherwise.
                    text = "\n".join(line.rstrip() for line in file.read().strip().splitlines())
                same = " ".join(text.split())
                texts.setdefault(same, (text + "\n", []))[1].append(name)
    for text, crates in texts.values():
        output.append(f"\n{'=' * 78}\n{', '.join(dict.fromkeys(crates))}\n{'-' * 78}\n{text}")
    return "".join(output)


def host():
    """The platform that cargo builds for here."""
    printed = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
    return next(line.split()[1] for line in printed.splitlines() if line.startswith("host:"))


if __name__ == "__main__":
    main()
