#!/usr/bin/env bash
# Run the tests inside the crate: those without a server (#[test]), and those that a server runs. These
# are functions that SQL can call, in a library that is built with the feature pg_test and installed into
# a server of its own: `#[pg_extern(sql = false)]` in a module of tests.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
# shellcheck source=scripts/suites/upgrade/common.sh
. "$(dirname "$0")/upgrade/common.sh"
begin unit
PORT=54361 # The server is named by its port.

rc=0
keep "$SCRATCH" cargo test --lib --no-default-features --features "$FEATURE" || rc=$?
sum_cargo "$SCRATCH" "$rc"

cargo build --lib --no-default-features --features "$FEATURE pg_test" || { count 0 1; exit 1; }
copy_server "$DIR/pg"
BUILT=$DIR/built
gather "${CARGO_TARGET_DIR:-target}/debug/libfetchq.so"
put_files "$DIR/pg" >/dev/null
init "$DIR/pg${PG_BINDIR#"$SERVER"}" "$DIR/server" "$PORT"
start "$DIR/server"
psql_on "$PORT" postgres -c 'create database unit' -c '\c unit' -c 'create extension fetchq'

# passes SYMBOL — a test of the library passes. What it does is rolled back.
passes() {
  psql_on "$PORT" unit >/dev/null <<SQL
begin;
create function pg_temp.test() returns void language c as '\$libdir/fetchq', '$1';
select pg_temp.test();
rollback;
SQL
}
# The functions of the API are declared in sql/, the tests are not.
mapfile -t tests < <(nm -D --defined-only "$BUILT/fetchq.so" | sed -n 's/.* T \([a-z0-9_]*_wrapper\)$/\1/p' |
  grep -v '^pg_finfo_' | grep -vwFf <(grep -ohE '[a-z0-9_]+_wrapper' "$BUILT"/*.sql | sort -u))
((${#tests[@]})) || { echo "FAILED: the library has no tests"; count 0 1; }
for test in "${tests[@]}"; do one "${test%_wrapper}" passes "$test"; done
stop "$DIR/server"
finish
