#!/usr/bin/env bash
# The quick start: every file below FOLDER becomes a document, and worker processes hash it.
# One of the workers is killed. At the end, checks prove that each file was processed once.
#
#   run.sh [FOLDER]     (default /usr/share/doc)
#
# The libpq variables (PGHOST, PGPORT, …) name the server, as set by
#   eval "$(scripts/cluster.sh dev env)"
# WORKERS=8             number of worker processes: 4 by default, at least 2
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)
# Use the system's Python, because psycopg comes from apt.
exec "${PYTHON:-/usr/bin/python3}" "$here/quickstart.py" "${1:-/usr/share/doc}" --workers "${WORKERS:-4}"
