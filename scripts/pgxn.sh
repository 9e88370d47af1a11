#!/usr/bin/env bash
# Make the bundle for PGXN: a zip of the files that git knows, and check META.json first.
#
#   pgxn.sh [COMMIT]    HEAD by default; a release is made from its tag: pgxn.sh v5.0.0
#
# The result is target/pgxn/fetchq-VERSION.zip; https://manager.pgxn.org takes it.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
commit=${1:-HEAD}

scripts/checks/packaging.py
# The validator of PGXN itself, where it is installed (cargo install pgxn_meta).
if command -v pgxn_meta >/dev/null; then pgxn_meta META.json; fi

version=$(git show "$commit:META.json" | python3 -c 'import json, sys; print(json.load(sys.stdin)["version"])')
name=fetchq-$version
mkdir -p target/pgxn
# PGXN wants the folder NAME-VERSION in the zip.
git archive --format=zip --prefix="$name/" --output="target/pgxn/$name.zip" "$commit"
step "pgxn: target/pgxn/$name.zip, of commit $(git rev-parse --short=12 "$commit")"
