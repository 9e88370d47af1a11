#!/usr/bin/env bash
# Test clients/rust: format, lint, documentation, and its tests against the server, with the code of its pages.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs clients/rust/Cargo.toml
scratch
client=(--profile client -p fetchq-client --all-features --locked)

one rustfmt cargo fmt -p fetchq-client --check
one clippy cargo clippy "${client[@]}" --all-targets -- -D warnings
RUSTDOCFLAGS='-D warnings' one rustdoc cargo doc "${client[@]}" --no-deps --quiet
one "the adapter for the conformance" clients/rust/conformance/build

rc=0
# The timeout ends tests that hang. All share one server, and most of what they do is to wait.
keep "$SCRATCH" timeout -k 10 300 cargo test "${client[@]}" --no-fail-fast || rc=$?
sum_cargo "$SCRATCH" "$rc"
exit "$rc"
