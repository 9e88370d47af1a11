#!/usr/bin/env python3
"""Print the quick start of a README: the code that a reader copies.

    quickstart.py sql README.md      the first block of SQL
    quickstart.py python README.md   the first block of Python
    quickstart.py rust README.md     the first block of Rust, with the lines that the documentation hides
    quickstart.py ts README.md       all blocks of TypeScript in one program, imports first, with what
                                     the comments <!-- run: … --> add

`quickstart.py install README.md` prints the packages that its first `npm install` or `pip install` names.
"""

import re
import shlex
import sys


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    kind, path = sys.argv[1:]
    with open(path, encoding="utf-8") as file:
        text = file.read()
    if kind == "install":
        line = re.search(r"^(?:npm|pip) install (.*)$|^cargo add (.*)$", text, re.M)
        words = shlex.split(next(group for group in line.groups() if group), comments=True) if line else []
        print("\n".join(words))
        return
    if kind == "ts":
        found = [block or added for block, added in re.findall(r"^```ts\n(.*?)^```$|^<!-- run: (.*?) -->$", text, re.S | re.M)]
    else:
        found = re.findall(rf"^```{kind}\b[^\n]*\n(.*?)^```$", text, re.S | re.M)[:1]
    lines = [line for block in found for line in block.splitlines()]
    if not lines:
        sys.exit(f"{path} has no code of {kind}")
    if kind == "rust":
        lines = [re.sub(r"^# |^#$", "", line) for line in lines]
    if kind == "ts":
        imports = dict.fromkeys(["import assert from 'node:assert/strict';", *(line for line in lines if line.startswith("import "))])
        lines = [*imports, *(line for line in lines if not line.startswith("import "))]
    print("\n".join(lines))


if __name__ == "__main__":
    main()
