#!/usr/bin/env bash
# Install what `make ha` needs from Debian: Patroni, etcd, HAProxy. No service of them is started, now
# or at a boot. When everything is there, it does nothing.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
with_lock setup

packages=(patroni etcd-server etcd-client haproxy iproute2 python3-etcd python3-psycopg)
services=(patroni etcd haproxy)
command -v dpkg-query >/dev/null || die "this is not a Debian system: install Patroni, etcd, HAProxy, iproute2 and psycopg 3 yourself"
have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
missing=()
for package in "${packages[@]}"; do
  grep -qxF "$package" <<<"$have" || missing+=("$package")
done
if ((${#missing[@]} == 0)); then exit 0; fi

need_sudo "installing packages"
step "ha: installing ${missing[*]}"
apt_get() {
  $SUDO env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold "$@"
}
policy=/usr/sbin/policy-rc.d is_placed=0
if [[ ! -e $policy ]]; then
  # shellcheck disable=SC2064
  trap "$SUDO rm -f $policy" EXIT
  printf '#!/bin/sh\nexit 101\n' | $SUDO tee "$policy" >/dev/null
  $SUDO chmod 755 "$policy"
  is_placed=1
fi
run_quiet "apt-get update" "$ROOT/.pg/ha-apt.log" apt_get update
run_quiet "apt-get install" "$ROOT/.pg/ha-apt.log" apt_get install -y --no-install-recommends "${missing[@]}"
for service in "${services[@]}"; do
  if [[ -e /etc/init.d/$service ]]; then $SUDO update-rc.d "$service" disable >/dev/null; fi
  # The file is there and the manager of services runs: a system that boots with systemd.
  if [[ -d /run/systemd/system ]]; then $SUDO systemctl disable --now "$service" >/dev/null 2>&1 || :; fi
done
if ((is_placed)); then $SUDO rm -f "$policy"; trap - EXIT; fi
step "ha: ready"
