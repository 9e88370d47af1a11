#!/usr/bin/env bash
# Prepare a machine of CI: install a major version of PostgreSQL with its server headers.
#
#   prepare.sh MAJOR [PACKAGE…]    and other packages
#
# What Debian or Ubuntu does not have comes from apt.postgresql.org, by the script that
# postgresql-common has for it. Where it is installed already, this does nothing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
major=${1:?usage: prepare.sh MAJOR}
[[ $major =~ ^[0-9]+$ ]] || die "the major version must be a number, not '$major'"
shift
config=/usr/lib/postgresql/$major/bin/pg_config

# The checks ask git for the files. In a container of CI the checkout belongs to another user.
if ! git -C "$ROOT" rev-parse >/dev/null 2>&1 && [[ -n ${CI:-} ]]; then git config --global --add safe.directory "$ROOT"; fi

if [[ ! -x $config || ! -f $("$config" --pgxs) ]]; then
  need_sudo "installing packages"
  export DEBIAN_FRONTEND=noninteractive
  step "prepare: installing PostgreSQL $major"
  $SUDO apt-get update -qq
  $SUDO apt-get install -qq -y --no-install-recommends ca-certificates postgresql-common >/dev/null
  # Packages of Debian start a system cluster, which no test uses.
  $SUDO sed -ri 's/^#? *(create_main_cluster) .*$/\1 = false/' /etc/postgresql-common/createcluster.conf
  if [[ -z $(apt-cache search --names-only "^postgresql-$major\$") ]]; then
    $SUDO /usr/share/postgresql-common/pgdg/apt.postgresql.org.sh -y
  fi
  $SUDO apt-get install -qq -y --no-install-recommends "postgresql-$major" "postgresql-server-dev-$major" >/dev/null
fi
if (($#)); then
  need_sudo "installing packages"
  step "prepare: installing $*"
  $SUDO apt-get update -qq
  $SUDO env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null
fi
step "prepare: $("$config" --version), $config"
