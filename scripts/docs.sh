#!/usr/bin/env bash
# Write the generated parts of the documentation, or check that they are up to date.
#
#   docs.sh           write docs/reference/*.md and the pictures of docs/images/*.py
#   docs.sh --check   change nothing; fail with a diff when a committed file is stale,
#                     or when a claim in the prose is wrong (scripts/docs/claims.py)
#
# It needs a superuser on a running server that has the extension installed, named by the libpq
# variables: eval "$(scripts/cluster.sh dev env)". It creates a database of its own and reads the
# catalog there, so the content of other databases does not matter.
#
# The pages and their sources:
#   functions.md, tables.md, counters.md   the catalog, and descriptions.ini
#   settings.md                            pg_settings
#   errors.md                              src/**/*.rs, domain/**/*.rs and src/**/*.sql
# The prose of the pages is in scripts/docs/pages/. Each picture has a script of its own.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
load_server

case ${1:-} in '' | --check) ;; *) sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;; esac
mode=("$@")
export PYTHONDONTWRITEBYTECODE=1 PGOPTIONS='-c client_min_messages=warning'
export FETCHQ_PSQL=$PG_BINDIR/psql
export FETCHQ_ERRCODES=$PG_SHAREDIR/errcodes.txt

db=fetchq_docs
drop() { "$FETCHQ_PSQL" -Xq -d postgres -c "drop database if exists $db with (force)"; }
trap drop EXIT
drop
"$FETCHQ_PSQL" -Xq -v ON_ERROR_STOP=1 -d postgres -c "create database $db template template0 encoding 'UTF8'"
export PGDATABASE=$db
"$FETCHQ_PSQL" -Xq -v ON_ERROR_STOP=1 <<'SQL'
create extension fetchq;
\o /dev/null
select from fetchq.queue_create('mail');
select from fetchq.queue_configure('mail', '{"history": {"completed": "1 day"}}');
SQL

rc=0
python3 scripts/docs/generate.py "${mode[@]}" || rc=1
if [[ ${1:-} == --check ]]; then python3 scripts/docs/claims.py || rc=1; fi
for picture in docs/images/*.py; do
  [[ -e $picture ]] || continue
  python3 "$picture" "${mode[@]}" || { warn "$picture failed"; rc=1; }
done
exit "$rc"
