#!/usr/bin/env bash
# Try `make install DESTDIR=…`: nothing is written elsewhere, and a private PostgreSQL loads the
# files. That is a copy of the server below the same folder, and with PostgreSQL 18 also the server
# itself with its paths set, for the files as they are and for the image volume of CloudNativePG.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
load_pg
cd "$ROOT"

dir=$(as_pg mktemp -d /tmp/fetchq-install-XXXXXX)
bin=''
end() {
  local rc=$?
  trap - EXIT
  if [[ -n $bin ]]; then as_pg "$bin/pg_ctl" stop -D "$dir/data" -m immediate -s >/dev/null 2>&1 || :; fi
  rm -rf "$dir"
  exit "$rc"
}
trap end EXIT
passed=0
ok() { echo "ok: $*"; passed=$((passed + 1)); }

# try NAME BINDIR [SETTING…] — make a cluster, preload fetchq, and run the quick start of the README.
try() {
  local name=$1 setting; bin=$2; shift 2
  rm -rf "$dir/data"
  as_pg "$bin/initdb" -D "$dir/data" -U postgres --auth=trust --encoding=UTF8 --locale=C --no-sync >/dev/null
  { printf '%s\n' "listen_addresses = ''" "unix_socket_directories = '$dir'" "shared_preload_libraries = 'fetchq'" 'fsync = off'
    for setting in "$@"; do echo "$setting"; done; } | as_pg tee -a "$dir/data/postgresql.conf" >/dev/null
  as_pg "$bin/pg_ctl" start -D "$dir/data" -l "$dir/log" -w -s || { as_pg tail -n 20 "$dir/log" >&2; die "$name: the server does not start"; }
  local got
  got=$({ echo 'create extension fetchq; select is_preloaded and has_shared_memory from fetchq.info();'
    scripts/release/quickstart.py sql README.md
    echo "select 'sent', subject from sent; select subject, outcome from fetchq_data.mail__history;"
  } | as_pg "$bin/psql" -XqAt -v ON_ERROR_STOP=1 -h "$dir" -U postgres -d postgres 2>&1
  ) || die "$name: $got"
  as_pg "$bin/pg_ctl" stop -D "$dir/data" -m fast -s
  bin=''
  [[ $got == t$'\n'*sent\|welcome-42$'\n'welcome-42\|completed ]] || die "$name: $got"
  ok "$name"
}

libdir=$PG_LIBDIR sharedir=$PG_SHAREDIR
touch "$dir/before"
DESTDIR=$dir/dest scripts/install.sh
for file in "$libdir/fetchq.so" "$sharedir/extension/fetchq.control"; do
  [[ -f $dir/dest$file ]] || die "there is no $dir/dest$file"
done
[[ -z $(find "$libdir" "$sharedir" -newer "$dir/before" -iname '*fetchq*') ]] || die "files outside DESTDIR were written"
ok "everything is below DESTDIR"
chmod -R a+rX "$dir/dest"

if ((PG_MAJOR >= 18)); then
  try "PostgreSQL with extension_control_path" "$PG_BINDIR" \
    "extension_control_path = '$dir/dest$sharedir:\$system'" "dynamic_library_path = '$dir/dest$libdir:\$libdir'"
  # The layout of the image, and the settings of the operator.
  mkdir -p "$dir/extensions/fetchq/share"
  cp -R "$dir/dest$libdir" "$dir/extensions/fetchq/lib"
  cp -R "$dir/dest$sharedir/extension" "$dir/extensions/fetchq/share/extension"
  chmod -R a+rX "$dir/extensions"
  try "the image volume of CloudNativePG" "$PG_BINDIR" \
    "extension_control_path = '\$system:$dir/extensions/fetchq/share'" "dynamic_library_path = '\$libdir:$dir/extensions/fetchq/lib'"
fi

copy_server "$dir/dest"
try "a copy of the server below DESTDIR" "$dir/dest$PG_BINDIR"
cmp -s "$dir/dest$libdir/fetchq.so" "$BUILT/fetchq.so" || die "the copy has another library"
ok "which has the library that was built"
echo "$passed passed, 0 failed"
