#!/usr/bin/env bash
# Check formatting, lints, the structure of src/, links and scripts. Each is one test.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"

one fmt cargo fmt --all --check
# This checks the library, where unwrap and expect are denied, and its tests.
one clippy cargo clippy --all-targets --no-default-features --features "$FEATURE" -- -D warnings
if [[ -e tests/client/Cargo.toml ]]; then
  one clippy-client cargo clippy -p fetchq-client-tests -p fetchq-conformance --all-targets -- -D warnings
else
  echo "FAILED: clippy-client: tests/client/Cargo.toml does not exist"
  count 0 1
fi
one clippy-console cargo clippy -p fetchq-console -p fetchq-mover -p fetchq-connect --all-targets -- -D warnings
# Each rule is one line of output and one test.
echo '--- layers: scripts/checks/layers.py'
scratch
rc=0 bad=0
keep "$SCRATCH" scripts/checks/layers.py || rc=$?
bad=$(grep -c '^FAILED: ' "$SCRATCH" || :)
if ((rc != 0 && bad == 0)); then bad=1; fi
count "$(grep -c '^ok: ' "$SCRATCH" || :)" "$bad"
one layers-self-test scripts/checks/layers.py --self-test
one sql-names scripts/checks/sql_names.py
one sql-names-self-test scripts/checks/sql_names.py --self-test
one words scripts/checks/words.py
one words-self-test scripts/checks/words.py --self-test
one links scripts/checks/links.py
one links-self-test scripts/checks/links.py --self-test
one book scripts/docs/book.py --check
one workflows scripts/checks/workflows.py
one workflows-self-test scripts/checks/workflows.py --self-test
one packaging scripts/checks/packaging.py
one third-party scripts/third-party.py console --check
one scripts scripts/checks/shell.sh
one bench bench/run.py --check
one bench-peers bench/run_peers.py --check
