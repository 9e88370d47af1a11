#!/usr/bin/env bash
# Say how to reach the dev server.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
load_pg
eval "$("$ROOT/scripts/cluster.sh" dev env)"

cat <<TEXT

The dev server is running; connect with one of

  make psql
  $PG_BINDIR/psql -h $PGHOST -p $PGPORT -U postgres fetchq
  $PG_BINDIR/psql $FETCHQ_URL

and stop it with

  make stop

TEXT
