#!/usr/bin/env bash
# Check that the scripts parse, and that shellcheck has no warnings where it is installed.
set -euo pipefail
cd "$(dirname "$0")/../.."
mapfile -t files < <(find .ci scripts examples docs docker -type f \( -name '*.sh' -o -path '.ci/run' -o -path 'scripts/hooks/*' \) | sort)
for f in "${files[@]}"; do bash -n "$f"; done
if command -v shellcheck >/dev/null; then
  shellcheck --severity=warning -x "${files[@]}"
  echo "${#files[@]} scripts parse, and shellcheck has no warnings"
else
  echo "${#files[@]} scripts parse; shellcheck is not installed"
fi
