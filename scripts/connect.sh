#!/usr/bin/env bash
# Show how to connect to the dev server.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
load_server
eval "$("$ROOT/scripts/cluster.sh" dev env)"

cat <<TEXT

The dev server is running. Connect with one of:

  make psql
  $PG_BINDIR/psql -h $PGHOST -p $PGPORT -U postgres fetchq
  $PG_BINDIR/psql $FETCHQ_URL

Stop it with:

  make stop

TEXT
