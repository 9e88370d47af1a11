#!/usr/bin/env bash
# Formatting, lints, and the syntax of the scripts: one test each.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"

scripts_parse() {
  local f
  for f in scripts/*.sh scripts/suites/*.sh .ci/run; do bash -n "$f" || return 1; done
}

# The pictures of the documentation are those that their scripts draw now.
pictures_match() {
  local f
  for f in docs/images/*.svg; do "${f%.svg}.py" --check || return 1; done
}

one fmt cargo fmt --all --check
# Without the tests first: unwrap and expect are denied there only.
one clippy cargo clippy --no-default-features --features "$FEATURE" -- -D warnings
one clippy-tests cargo clippy --all-targets --no-default-features --features "$FEATURE pg_test" -- -D warnings
if [[ -e tests/client/Cargo.toml ]]; then
  one clippy-client cargo clippy -p fetchq-client-tests -p fetchq-rust-worker --all-targets -- -D warnings
else
  echo "FAILED: clippy-client: tests/client/Cargo.toml does not exist"
  count 0 1
fi
one scripts scripts_parse
one pictures pictures_match
