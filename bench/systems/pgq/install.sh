#!/usr/bin/env bash
# Install PgQ from Debian, for the PostgreSQL of the benchmark. Status 1 means that it cannot be
# installed here.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../../scripts/lib.sh"
load_pg
have() { [[ -e $("$PG_CONFIG" --sharedir)/extension/pgq.control ]]; }
if have; then exit 0; fi
[[ $PG_CONFIG == /usr/lib/postgresql/*/bin/pg_config ]] || { warn "pgq: this script installs it for a PostgreSQL of Debian only, so install it for $PG_CONFIG yourself"; exit 1; }
command -v apt-get >/dev/null || { warn "pgq: there is no apt-get to install it"; exit 1; }
need_sudo "installing postgresql-$PG_MAJOR-pgq3"
step "pgq: installing postgresql-$PG_MAJOR-pgq3"
apt_get() { $SUDO env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 "$@"; }
log=$ROOT/.pg/bench-apt.log
# The package lists may be empty or old.
run_quiet "apt-get update" "$log" apt_get update || :
run_quiet "apt-get install" "$log" apt_get install -y --no-install-recommends "postgresql-$PG_MAJOR-pgq3"
have
