#!/usr/bin/env bash
# The generated parts of the documentation, and the claims of its prose, against the
# server and the source. (That its SQL runs is a test of the suite client.)
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
needs docs/reference

if ((PG_MAJOR == 15)); then
  one docs scripts/docs.sh --check
else
  # The pages are those of PostgreSQL 15: how others write types and defaults may differ.
  one docs-syntax python3 -c 'import ast, sys; [ast.parse(open(f).read()) for f in sys.argv[1:]]' scripts/docs/*.py
fi
