# Common helpers of the suites. The suites source this file.
# shellcheck shell=bash
# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
cd "$ROOT" || exit
load_server

# count PASSED FAILED [SKIPPED] — add to the counts of the suite. A suite may call it more than once.
count() { echo "$1 $2 ${3:-0}" >>"${FETCHQ_COUNTS:-/dev/null}"; }

# needs PATH — end with one failed test when a file of the suite does not exist.
needs() {
  [[ -e $1 ]] && return
  echo "FAILED: $1 does not exist"
  count 0 1
  exit 1
}

# one NAME COMMAND… — run a command that counts as one test.
one() {
  local name=$1; shift
  echo "--- $name: $*"
  if "$@"; then echo "ok: $name"; count 1 0; else echo "FAILED: $name"; count 0 1; fi
}

# skipped NAME WHY — say that a test cannot run on this machine. It counts neither as passed nor as
# failed.
skipped() { echo "skipped: $1: $2"; count 0 0 1; }

# keep FILE COMMAND… — show the output of a command, and keep it in FILE to read counts from it.
keep() {
  local file=$1 rc=0; shift
  "$@" 2>&1 | tee "$file" || rc=${PIPESTATUS[0]}
  return "$rc"
}

# scratch — make a temporary file that is removed at the end of the suite.
scratch() {
  SCRATCH=$(mktemp)
  trap 'rm -f "$SCRATCH"' EXIT
}

# sum_cargo FILE STATUS — count by all `test result:` lines of FILE. When cargo has failed without
# a failed test, that is one more failure.
sum_cargo() {
  local ok bad
  read -r ok bad < <(awk '/^test result:/ { for (i = 2; i <= NF; i++) {
      if ($i ~ /^passed/) p += $(i - 1); if ($i ~ /^failed/) f += $(i - 1) } }
    END { print p + 0, f + 0 }' "$1")
  if (($2 != 0 && bad == 0)); then bad=1; fi
  count "$ok" "$bad"
}

# run_unittest FOLDER — run the tests of a folder with the system's Python, because psycopg comes from
# apt. Returns its status.
run_unittest() {
  local rc=0 ran last ok bad
  scratch
  keep "$SCRATCH" /usr/bin/python3 -m unittest discover -v -s "$1" || rc=$?
  ran=$(sed -nE 's/^Ran ([0-9]+) tests? in .*/\1/p' "$SCRATCH" | tail -n 1)
  last=$(grep -E '^(OK|FAILED|NO TESTS RAN)' "$SCRATCH" | tail -n 1 || :)
  number() { sed -nE "s/.*[( ]$1=([0-9]+).*/\\1/p" <<<"$last" | grep . || echo 0; }
  bad=$(($(number failures) + $(number errors) + $(number 'unexpected successes')))
  ok=$((${ran:-0} - bad - $(number skipped) - $(number 'expected failures')))
  if ((ok < 0)); then ok=0; fi
  if ((rc != 0 && bad == 0)); then bad=1; fi
  count "$ok" "$bad"
  return "$rc"
}

# run_pg_regress RUNNER FOLDER DATABASE — run pg_regress or pg_isolation_regress in a fresh
# database with the extension, on the server of the environment. DATA_OWNER: the role, made here, to which
# the tables of all queues are given.
run_pg_regress() {
  local runner=$1 folder=$2 db=$3 out rc=0 total ok bad
  needs "$folder/schedule"
  # Not every installation has the runners: they come with the server headers of Debian and of a
  # build from source.
  if [[ ! -x $runner ]]; then
    echo "skipped: there is no $runner"
    count 0 0 1
    exit 0
  fi
  out=$ROOT/.pg/out-$db # No cluster can have a name with a hyphen.
  rm -rf "$out"; mkdir -p "$out"
  scratch
  (
    export PGOPTIONS='-c client_min_messages=warning'
    # FORCE is needed because background workers may be connected.
    "$PG_BINDIR/psql" -Xq -v ON_ERROR_STOP=1 -d postgres \
      -c "drop database if exists $db with (force)" \
      -c "create database $db template template0 encoding 'UTF8' locale 'C.UTF-8'" \
      -c "alter database $db set lc_messages = 'C'"
    "$PG_BINDIR/psql" -Xq -v ON_ERROR_STOP=1 -d "$db" -c 'create extension fetchq'
    if [[ -n ${DATA_OWNER:-} ]]; then
      "$PG_BINDIR/psql" -Xq -v ON_ERROR_STOP=1 -d "$db" \
        -c "do \$\$ begin if to_regrole('$DATA_OWNER') is null then create role $DATA_OWNER; end if; end \$\$" \
        -c "select fetchq.data_owner_set('$DATA_OWNER')" >/dev/null
    fi
  )
  keep "$SCRATCH" "$runner" --inputdir="$folder" --outputdir="$out" --bindir="$PG_BINDIR" \
    --use-existing --dbname="$db" --schedule="$folder/schedule" \
    --host="$PGHOST" --port="$PGPORT" --user="$PGUSER" || rc=$?
  # The failures are counted by the schedule, so that tests that a crash has prevented count as
  # failed.
  total=$(sed -n 's/^test:[[:space:]]*//p' "$folder/schedule" | wc -w)
  # PostgreSQL 15 and earlier write "test name ... ok 12 ms"; later versions write TAP,
  # "ok 1 - name 12 ms".
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
