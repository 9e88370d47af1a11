# What the suites share. Sourced, never run.
# shellcheck shell=bash
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
cd "$ROOT" || exit
load_pg

# count PASSED FAILED — may be called more than once.
count() { echo "$1 $2" >>"${FETCHQ_COUNTS:-/dev/null}"; }

# needs PATH — end with one failed test when the suite's files are not there.
needs() {
  [[ -e $1 ]] && return
  echo "FAILED: $1 does not exist"
  count 0 1
  exit 1
}

# one NAME COMMAND… — a command that is one test.
one() {
  local name=$1; shift
  echo "--- $name: $*"
  if "$@"; then echo "ok: $name"; count 1 0; else echo "FAILED: $name"; count 0 1; fi
}

# keep FILE COMMAND… — show a command's output and keep it, to read counts from.
keep() {
  local file=$1 rc=0; shift
  "$@" 2>&1 | tee "$file" || rc=${PIPESTATUS[0]}
  return "$rc"
}

# scratch — a temporary file that goes away with the suite.
scratch() {
  SCRATCH=$(mktemp)
  trap 'rm -f "$SCRATCH"' EXIT
}

# sum_cargo FILE — count by all `test result:` lines; a cargo that failed
# elsewhere (STATUS not 0, no test failed) is one more failure.
sum_cargo() {
  local ok bad
  read -r ok bad < <(awk '/^test result:/ { for (i = 2; i <= NF; i++) {
      if ($i ~ /^passed/) p += $(i - 1); if ($i ~ /^failed/) f += $(i - 1) } }
    END { print p + 0, f + 0 }' "$1")
  if (($2 != 0 && bad == 0)); then bad=1; fi
  count "$ok" "$bad"
}

# run_pg_regress RUNNER FOLDER DATABASE — pg_regress or its isolation sister, on
# a fresh database with the extension, over the server of the environment.
run_pg_regress() {
  local runner=$1 folder=$2 db=$3 out rc=0 total ok bad
  needs "$folder/schedule"
  [[ -x $runner ]] || { echo "FAILED: no $runner (server headers package)"; count 0 1; exit 1; }
  out=$ROOT/.pg/out-$db # a name that no cluster can have
  rm -rf "$out"; mkdir -p "$out"
  scratch
  (
    export PGOPTIONS='-c client_min_messages=warning'
    # (force: background workers may be connected)
    "$PG_BINDIR/psql" -Xq -v ON_ERROR_STOP=1 -d postgres \
      -c "drop database if exists $db with (force)" \
      -c "create database $db template template0 encoding 'UTF8' locale 'C.UTF-8'" \
      -c "alter database $db set lc_messages = 'C'"
    "$PG_BINDIR/psql" -Xq -v ON_ERROR_STOP=1 -d "$db" -c 'create extension fetchq'
  )
  keep "$SCRATCH" "$runner" --inputdir="$folder" --outputdir="$out" --bindir="$PG_BINDIR" \
    --use-existing --dbname="$db" --schedule="$folder/schedule" \
    --host="$PGHOST" --port="$PGPORT" --user="$PGUSER" || rc=$?
  # By the schedule, so that tests which a crash kept from running count as failed.
  total=$(sed -n 's/^test:[[:space:]]*//p' "$folder/schedule" | wc -w)
  # (up to PostgreSQL 15: "test name ... ok 12 ms"; later TAP: "ok 1 - name 12 ms")
  ok=$(grep -cE '^(test|    ) .* \.\.\. +ok( |$)|^ok [0-9]+ ' "$SCRATCH" || :)
  bad=$((total - ok))
  if ((rc != 0 && bad == 0)); then bad=1; fi
  if [[ -s $out/regression.diffs ]]; then
    echo "--- first 200 lines of $out/regression.diffs"
    head -n 200 "$out/regression.diffs"
  fi
  count "$ok" "$bad"
  return "$rc"
}
