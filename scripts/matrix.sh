#!/usr/bin/env bash
# Build fetchq for every PostgreSQL, and run the suites on each, one after the other.
#
#   matrix.sh [SUITE…]    all suites but `docker` by default
#
# PG_CONFIGS="…"    the pg_config of each installation; by default all of Debian's, and those in
#                   /opt/pg*
#
# Each installation has a folder in .pg/matrix, with what cargo builds (up to 3 GB), and the
# logs. After a failure the next suite runs. The table at the end is also written to
# .pg/matrix/table.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

if (($#)); then suites=("$@"); else suites=(lint unit regress docs isolation client npm python quickstart); fi
for suite in "${suites[@]}"; do
  [[ -f scripts/suites/$suite.sh ]] || die "there is no suite '$suite'"
done
if [[ -n ${PG_CONFIGS:-} ]]; then
  read -ra configs <<<"$PG_CONFIGS"
else
  mapfile -t configs < <(compgen -G '/usr/lib/postgresql/*/bin/pg_config'; compgen -G '/opt/pg*/bin/pg_config')
fi
((${#configs[@]})) || die "there is no pg_config in /usr/lib/postgresql/*/bin or /opt/pg*/bin: name some in PG_CONFIGS"
with_lock matrix
matrix=$ROOT/.pg/matrix
mkdir -p "$matrix"

# isolation_runner PG_CONFIG — print the runner of the isolation tests of an installation, if any.
isolation_runner() {
  local runner
  runner=$(dirname "$("$1" --pgxs)")/../test/isolation/pg_isolation_regress
  if [[ -x $runner ]]; then realpath "$runner"; fi
}
# A server without one is tested by that of another installation, the first that has one.
borrowed=
for config in "${configs[@]}" /usr/lib/postgresql/*/bin/pg_config /opt/pg*/bin/pg_config; do
  if [[ -z $borrowed && -x $config ]]; then borrowed=$(isolation_runner "$config"); fi
done

rows=() failed=0
declare -A seen=()
# add VERSION SUITE PASSED FAILED SKIPPED TIME INSTALLATION — add a row to the table.
add() { rows+=("$(printf '%-10s %-11s %7s %7s %8s %8s  %s' "$@")"); }

# leave_out VERSION CONFIG WHY — add a row for an installation on which nothing runs. That is not a
# failure, unless PG_CONFIGS names it.
leave_out() {
  warn "$2 is left out: $3"
  add "$1" - - - - - "$2: left out, $3"
  if [[ -n ${PG_CONFIGS:-} ]]; then failed=1; fi
}

for config in "${configs[@]}"; do
  if [[ ! -x $config ]]; then leave_out - "$config" "it does not exist"; continue; fi
  version=$("$config" --version | sed -E 's/^PostgreSQL ([^ ]+).*/\1/')
  major=${version%%[!0-9]*}
  libdir=$(realpath "$("$config" --pkglibdir)")
  if [[ -n ${seen[$libdir]:-} ]]; then leave_out "$version" "$config" "it is the same installation as ${seen[$libdir]}"; continue; fi
  seen[$libdir]=$config
  if ! grep -q "^pg$major = " Cargo.toml; then leave_out "$version" "$config" "Cargo.toml has no feature pg$major"; continue; fi
  if [[ ! -f $("$config" --pgxs) ]]; then leave_out "$version" "$config" "it has no server headers (pgxs)"; continue; fi

  name=$(dirname "$(dirname "$config")")
  name=${name#/} name=${name//\//-}
  dir=$matrix/$name
  mkdir -p "$dir"
  rm -rf "$dir/logs"
  step "matrix: PostgreSQL $version, $config (logs: $dir)"
  unset ISOLATION_REGRESS
  if [[ -n $borrowed && -z $(isolation_runner "$config") ]]; then
    step "matrix: $config has no pg_isolation_regress, so this uses $borrowed"
    export ISOLATION_REGRESS=$borrowed
  fi
  began=$SECONDS rc=0
  # 9>&-: the servers of the tests must not keep the lock of this script.
  PG_CONFIG=$config CARGO_TARGET_DIR=$dir/target scripts/test.sh "${suites[@]}" \
    </dev/null 9>&- 2>&1 | tee "$dir/log" || rc=${PIPESTATUS[0]}
  if [[ -d .pg/test-logs ]]; then cp -R .pg/test-logs "$dir/logs"; fi
  bad=0
  while read -r suite ok wrong skipped time; do
    add "$version" "$suite" "$ok" "$wrong" "$skipped" "$time s" "$config"
    bad=$((bad + wrong))
  done < <(cat "$dir/logs/summary" 2>/dev/null)
  # test.sh itself may have ended before it wrote a row.
  if ((rc != 0 && bad == 0)); then add "$version" '?' 0 1 0 "$((SECONDS - began)) s" "$config"; fi
  if ((rc)); then failed=1; fi
done

{
  printf 'commit %s\n\n' "$(git describe --always --dirty 2>/dev/null || echo unknown)"
  printf '%-10s %-11s %7s %7s %8s %8s  %s\n' version suite passed failed skipped time installation
  printf '%s\n' "${rows[@]}"
} | tee "$matrix/table"
((failed == 0))
