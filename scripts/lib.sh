# Common helpers of the scripts in this folder. The scripts source this file.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
export PGRX_VERSION=0.18.1                       # the version that Cargo.toml pins
: "${FETCHQ_T0:=$(date +%s)}"; export FETCHQ_T0  # the clock of the outermost script
HASH=$(printf %s "$ROOT" | sha256sum | cut -c1-8) # separates the state of two checkouts

# pgrx and cargo need these variables, which a bare environment of CI or a container may lack.
[[ -n ${USER:-} ]] || USER=$(id -un)
[[ -n ${HOME:-} ]] || HOME=$(getent passwd "$USER" | cut -d: -f6)
export USER HOME
if ! command -v cargo >/dev/null && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
  PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi
# RUSTFLAGS would replace the linker flags that keep the schema section of pgrx.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

if ((EUID == 0)); then SUDO=; else SUDO=sudo; fi

# ---------------------------------------------------------------- messages --
# All messages go to stderr, so that another script can use the stdout of a script.
step() { printf '[%4d s] %s\n' "$(($(date +%s) - FETCHQ_T0))" "$*" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# nap SECONDS — sleep without a child process. A killed heartbeat must leave no process behind
# that keeps the output pipe of the caller open.
nap() { read -rt "$1" <> <(:) || :; }

# heartbeat LABEL LOG — print one line every 20 s, unless LOG has grown meanwhile.
# With SHOW=1 the line quotes the last line of LOG, whose output is not shown otherwise.
heartbeat() {
  local size=-1 new
  while nap 20; kill -0 $$ 2>/dev/null; do
    new=$(stat -c %s "$2" 2>/dev/null || echo 0)
    if [[ ${SHOW:-0} == 1 ]]; then
      step "… $1: $(tail -c 300 "$2" | tr '\r' '\n' | sed 's/^ *//' | grep . | tail -n 1 || :)"
    elif ((new == size)); then
      step "… $1 is still running"
    fi
    size=$new
  done
}

# run_quiet LABEL LOG COMMAND… — write the output to LOG only, and show its end on failure.
run_quiet() {
  local label=$1 log=$2 hb rc=0; shift 2
  mkdir -p "$(dirname "$log")"; : >"$log"
  SHOW=1 heartbeat "$label" "$log" & hb=$!
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  kill "$hb" 2>/dev/null || :; wait "$hb" 2>/dev/null || :
  if ((rc)); then tail -n 40 "$log" >&2; warn "$label failed with status $rc; its output is in $log"; fi
  return "$rc"
}

# run_logged LABEL LOG COMMAND… — show the output, and keep it in LOG.
run_logged() {
  local label=$1 log=$2 hb rc=0; shift 2
  mkdir -p "$(dirname "$log")"; : >"$log"
  heartbeat "$label" "$log" & hb=$!
  "$@" 2>&1 </dev/null | tee "$log" || rc=${PIPESTATUS[0]}
  kill "$hb" 2>/dev/null || :; wait "$hb" 2>/dev/null || :
  return "$rc"
}

# need_sudo WHY — end with a message when the user is not root and there is no sudo.
need_sudo() {
  [[ -z $SUDO ]] || command -v sudo >/dev/null || die "$1 needs root: run as root, or install sudo"
}

# -------------------------------------------------------------- PostgreSQL --
: "${PG_CONFIG:=/usr/lib/postgresql/15/bin/pg_config}"; export PG_CONFIG

# load_pg — set PG_MAJOR, FEATURE, PG_BINDIR and PG_LIBDIR; fail when there is no PostgreSQL.
load_pg() {
  [[ -x $PG_CONFIG ]] || die "no pg_config at $PG_CONFIG: run 'make setup', or set PG_CONFIG=/path/to/pg_config"
  [[ $("$PG_CONFIG" --version) =~ ^PostgreSQL\ ([0-9]+) ]] || die "cannot read the version of $PG_CONFIG"
  # shellcheck disable=SC2034  # The scripts that source this file use them.
  { PG_MAJOR=${BASH_REMATCH[1]}; FEATURE=pg$PG_MAJOR
    PG_BINDIR=$("$PG_CONFIG" --bindir); PG_LIBDIR=$("$PG_CONFIG" --pkglibdir); }
}

# The OS user that servers run as. PostgreSQL refuses to run as root.
if ((EUID == 0)); then SERVER_USER=postgres; else SERVER_USER=$USER; fi

# as_pg COMMAND… — run a command as the server's OS user, in a folder that this user may enter.
as_pg() (
  cd /
  if ((EUID == 0)); then exec runuser -u "$SERVER_USER" -- "$@"; else exec "$@"; fi
)

# as_pg_write FILE — write stdin to FILE, which belongs to the server's OS user and has mode 600.
# shellcheck disable=SC2016
as_pg_write() { as_pg sh -c 'umask 077; cat >"$1"' _ "$1"; }

# as_pg_dir DIR — make the folder DIR, which only the server's OS user may enter.
as_pg_dir() {
  if ((EUID == 0)); then install -d -m 700 -o "$SERVER_USER" "$1"; else install -d -m 700 "$1"; fi
}

# ------------------------------------------------------------------- state --
# private_dir DIR — make the folder DIR in a world-writable place. Fail when another user has made
# something of that name there.
private_dir() {
  mkdir -m 755 "$1" 2>/dev/null || :
  [[ -d $1 && ! -L $1 && $(stat -c %u "$1") == "$EUID" ]] || die "$1 is not a folder that belongs to user $(id -un): remove it"
}

# local_dir — make .pg in the checkout, for locks and logs of the invoking user.
local_dir() {
  install -d -m 755 "$ROOT/.pg" 2>/dev/null || :
  [[ -w $ROOT/.pg ]] || die "$(id -un) cannot write to $ROOT/.pg, which another user may have made: remove it"
}

# load_state — set STATE, the folder for clusters and for the files that their servers write.
# It is .pg in the checkout. When the server's user cannot enter the checkout, it is a folder below
# /var/tmp. That is so for a checkout in root's home, or in a folder of mode 700.
load_state() {
  local_dir
  if ((EUID == 0)) && ! id "$SERVER_USER" >/dev/null 2>&1; then die "no OS user $SERVER_USER: run 'make setup'"; fi
  STATE=$ROOT/.pg
  if ! as_pg test -x "$STATE"; then
    STATE=$(realpath /var/tmp)/fetchq-$HASH
    private_dir "$STATE"
  fi
}

# with_lock NAME — wait until no other script of this checkout has the lock NAME, and keep it
# until this script ends.
with_lock() {
  local_dir
  exec 9>"$ROOT/.pg/$1.lock"
  flock -n 9 || { step "waiting for another '$1' in this checkout …"; flock 9; }
}
