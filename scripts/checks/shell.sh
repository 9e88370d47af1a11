#!/usr/bin/env bash
# The scripts parse, and shellcheck warns of nothing where it is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(find .ci scripts examples docs docker -type f \( -name '*.sh' -o -path '.ci/run' -o -path 'scripts/hooks/*' \) | sort)
for f in "${files[@]}"; do bash -n "$f"; done
if command -v shellcheck >/dev/null; then
  shellcheck --severity=warning -x "${files[@]}"
  echo "${#files[@]} scripts parse, and shellcheck warns of nothing"
else
  echo "${#files[@]} scripts parse (there is no shellcheck here)"
fi
