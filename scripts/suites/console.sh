#!/usr/bin/env bash
# Test the console: a real server under load, and a real Chromium.
#
#   console.sh --compile    only build the program
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs tests/console/package-lock.json
scratch

if [[ ${1:-} == --compile ]]; then
  cargo build --profile client -p fetchq-console
  exit
fi

# The unit tests of the program are counted with the others. Those of `fetchq move` are in the suite `move`.
rc=0
keep "$SCRATCH" cargo test --profile client -p fetchq-console -p fetchq-connect || rc=$?
sum_cargo "$SCRATCH" "$rc"
status=$rc
cargo build --profile client -p fetchq-console
FETCHQ_CONSOLE=${CARGO_TARGET_DIR:-$ROOT/target}/client/fetchq
export FETCHQ_CONSOLE

if ! CHROMIUM=$(command -v chromium || command -v google-chrome); then
  skipped console 'there is no chromium: install it'
  exit "$status"
fi
export CHROMIUM
cd tests/console
npm ci --no-audit --no-fund

# The TAP reporter prints "# pass 3", and the spec reporter prints "ℹ pass 3".
sum() { sed -nE "s/^(#|ℹ) ($1) ([0-9]+)\$/\\3/p" "$SCRATCH" | awk '{ n += $1 } END { print n + 0 }'; }
rc=0
# The timeout ends a test file that does not exit.
keep "$SCRATCH" timeout -k 10 600 npm test || rc=$?
ok=$(sum pass) bad=$(sum 'fail|cancelled')
if ((rc != 0 && bad == 0)); then bad=1; fi
count "$ok" "$bad"
if ((rc != 0)); then status=$rc; fi
exit "$status"
