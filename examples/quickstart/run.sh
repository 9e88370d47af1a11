#!/usr/bin/env bash
# The quick start: every file below FOLDER becomes a document, worker processes hash
# it, one of them is killed, and the end proves that each file was processed once.
#
#   run.sh [FOLDER]     (default /usr/share/doc)
#
# The server is that of the libpq variables (PGHOST, PGPORT, …), as set by
#   eval "$(scripts/cluster.sh dev env)"
# WORKERS=8             number of worker processes (default 4, at least 2)
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# The system's own Python: psycopg comes from apt.
exec "${PYTHON:-/usr/bin/python3}" "$here/quickstart.py" "${1:-/usr/share/doc}" --workers "${WORKERS:-4}"
