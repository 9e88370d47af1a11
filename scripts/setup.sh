#!/usr/bin/env bash
# Install what the project needs and this machine lacks. It is made for Debian 12.
# When everything is there, it does nothing and takes less than a second.
#
#   setup.sh              what `make run` needs, and whoever builds
#   setup.sh --tests      also what the tests need: three times as many packages
#   setup.sh --browser    also the browser of the suite `console`
#   setup.sh --release    also what builds and tries packages; what is not Debian's goes into .pg/release-tools
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
with_lock setup
cd "$ROOT"

# ------------------------------------------------------------ apt packages --
packages=(ca-certificates clang gcc libc6-dev make pkg-config procps python3 python3-psycopg)
if [[ ${1:-} == --release ]]; then packages+=(debhelper debootstrap dpkg-dev git gzip help2man lintian python3-venv unzip util-linux); fi
if [[ ${1:-} == --tests || ${1:-} == --browser || ${1:-} == --release ]]; then
  packages+=(curl pgbouncer prometheus python3-asyncpg python3-yaml shellcheck tmux)
  if ! command -v node >/dev/null; then packages+=(nodejs npm); elif ! command -v npm >/dev/null; then packages+=(npm); fi
fi
if [[ ${1:-} == --browser ]] && ! command -v chromium >/dev/null; then packages+=(chromium); fi
# Debian starts a service of the system for each of these. The tests run their own.
services=(pgbouncer prometheus)
default_pg=/usr/lib/postgresql/15/bin/pg_config
# With another PG_CONFIG, only the tools come from apt. For root, postgresql-common also creates the
# user `postgres`.
if [[ $PG_CONFIG == "$default_pg" ]]; then packages+=(postgresql-15 postgresql-server-dev-15); fi
if ((EUID == 0)); then packages+=(postgresql-common); fi

missing_packages() {
  local have p
  have=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 2>/dev/null | sed -n 's/^installed //p')
  for p in "${packages[@]}"; do grep -qxF "$p" <<<"$have" || echo "$p"; done
  grep -qxE 'libclang-[0-9]+-dev' <<<"$have" || echo LIBCLANG
}

apt_get() {
  $SUDO env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    -o Dpkg::Options::=--force-confold "$@"
}

install_packages() {
  need_sudo "installing packages"
  local log=$ROOT/.pg/setup-apt.log list=("$@")
  local conf=/etc/postgresql-common/createcluster.conf policy=/usr/sbin/policy-rc.d
  run_quiet "apt-get update" "$log" apt_get update
  # Debian 12 has libclang 14. Other releases have an unversioned package.
  if [[ " ${list[*]} " == *" LIBCLANG "* ]]; then
    list=("${list[@]/LIBCLANG}")
    if apt-cache show libclang-14-dev >/dev/null 2>&1; then list+=(libclang-14-dev); else list+=(libclang-dev); fi
  fi
  mapfile -t list < <(printf '%s\n' "${list[@]}" | grep .)
  # Debian creates and starts a system cluster for a new server package. The project does not use
  # it, so this switches it off, unless the machine has its own settings.
  if [[ " ${list[*]} " == *" postgresql-15 "* && ! -e $conf ]]; then
    $SUDO mkdir -p "$(dirname "$conf")"
    echo 'create_main_cluster = false' | $SUDO tee "$conf" >/dev/null
  fi
  # Debian starts services of the system, too, now and at each boot. Nothing is started while packages
  # are installed, and these stay off.
  local service new=() is_placed=0
  for service in "${services[@]}"; do
    if [[ " ${list[*]} " == *" $service "* ]]; then new+=("$service"); fi
  done
  if ((${#new[@]})) && [[ ! -e $policy ]]; then
    # shellcheck disable=SC2064
    trap "$SUDO rm -f $policy" EXIT
    printf '#!/bin/sh\nexit 101\n' | $SUDO tee "$policy" >/dev/null
    $SUDO chmod 755 "$policy"
    is_placed=1
  fi
  run_quiet "apt-get install" "$log" apt_get install -y --no-install-recommends "${list[@]}"
  for service in "${new[@]}"; do $SUDO update-rc.d "$service" disable >/dev/null; done
  if ((is_placed)); then $SUDO rm -f "$policy"; trap - EXIT; fi
}

if command -v dpkg-query >/dev/null; then
  mapfile -t missing < <(missing_packages)
  if ((${#missing[@]})); then
    step "setup: installing ${missing[*]/LIBCLANG/libclang}"
    install_packages "${missing[@]}"
  fi
else
  warn "this is not a Debian system: install PostgreSQL with its server headers, clang, libclang, gcc, make and psycopg yourself, and for tests node, npm, asyncpg, PyYAML, PgBouncer, Prometheus, ShellCheck and tmux"
fi
load_pg
[[ -f $("$PG_CONFIG" --pgxs) ]] || die "$PG_CONFIG has no server headers (pgxs): install them"

# -------------------------------------------------------------------- Rust --
command -v cargo >/dev/null || die "there is no cargo: install Rust 1.95 or newer with rustup (see rustup.rs), then run this again"
if ! cargo clippy --version >/dev/null 2>&1 || ! cargo fmt --version >/dev/null 2>&1; then
  step "setup: adding rustfmt and clippy"
  rustup component add rustfmt clippy || warn "rustfmt or clippy could not be added: 'make lint' will fail"
fi

# ------------------------------------------------- what builds the packages --
if [[ ${1:-} == --release ]]; then
  tools=$ROOT/.pg/release-tools cyclonedx=0.5.9
  if [[ $("$tools/bin/cargo-cyclonedx" cyclonedx --version 2>/dev/null) != *" $cyclonedx" ]]; then
    step "setup: building cargo-cyclonedx $cyclonedx"
    run_quiet "cargo install" "$ROOT/.pg/setup-cargo.log" cargo install --quiet --locked --root "$tools" --version "=$cyclonedx" cargo-cyclonedx
  fi
  if ! cmp -s scripts/release/requirements.txt "$tools/python/installed"; then
    step "setup: installing $(tr '\n' ' ' <scripts/release/requirements.txt)"
    rm -rf "$tools/python"
    /usr/bin/python3 -m venv "$tools/python"
    run_quiet "pip install" "$ROOT/.pg/setup-pip.log" "$tools/python/bin/pip" install --disable-pip-version-check -r scripts/release/requirements.txt
    cp scripts/release/requirements.txt "$tools/python/installed"
  fi
fi

step "setup: ready (PostgreSQL $PG_MAJOR)"
