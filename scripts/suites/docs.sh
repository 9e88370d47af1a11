#!/usr/bin/env bash
# Check the generated parts of the documentation, and the claims of its prose, against the server
# and the source. The suite `client` tests that the SQL of the documentation runs.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs docs/reference

if ((PG_MAJOR == 15)); then
  one docs scripts/docs.sh --check
else
  # The pages are made on PostgreSQL 15. Other versions may write types and defaults differently.
  one docs-syntax python3 -c 'import ast, sys; [ast.parse(open(f).read()) for f in sys.argv[1:]]' scripts/docs/*.py
fi
