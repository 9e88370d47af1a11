#!/usr/bin/env bash
# Upgrades of real servers, with queues at work, from one major version of PostgreSQL to another. It is
# not one of the suites that `make test` runs by default, because it needs two installations:
#
#   OLD_PG_CONFIG=/opt/pg17/bin/pg_config NEW_PG_CONFIG=/opt/pg18/bin/pg_config make test SUITE=upgrade
#
# Both default to PG_CONFIG: everything works within one version, too. BUILD=0 uses the fetchq that was
# built last for both. PART=pg_upgrade or PART=logical runs one part only.
set -euo pipefail
# shellcheck source=scripts/suites/common.sh
. "$(dirname "$0")/common.sh"
export OLD_PG_CONFIG=${OLD_PG_CONFIG:-$PG_CONFIG} NEW_PG_CONFIG=${NEW_PG_CONFIG:-$PG_CONFIG}
for config in "$OLD_PG_CONFIG" "$NEW_PG_CONFIG"; do needs "$config"; done
if [[ ${BUILD:-1} != 0 ]]; then
  for config in "$OLD_PG_CONFIG" "$NEW_PG_CONFIG"; do
    if [[ $config != "$PG_CONFIG" || -z ${FETCHQ_COUNTS:-} ]]; then PG_CONFIG=$config scripts/build.sh; fi
  done
fi
for config in "$OLD_PG_CONFIG" "$NEW_PG_CONFIG"; do 
  needs "$("$(server_bindir "$config")/pg_config" --pkglibdir)/fetchq.so"
done
echo "from $("$OLD_PG_CONFIG" --version) to $("$NEW_PG_CONFIG" --version)"
rc=0
for part in ${PART:-pg_upgrade logical}; do bash "scripts/suites/upgrade/$part.sh" || rc=1; done
exit "$rc"
