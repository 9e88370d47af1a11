# Common helpers of the scripts in this folder. Sourced, never run.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
export PGRX_VERSION=0.18.1                       # the same pin as in Cargo.toml
: "${FETCHQ_T0:=$(date +%s)}"; export FETCHQ_T0  # the clock of the outermost script
HASH=$(printf %s "$ROOT" | sha256sum | cut -c1-8) # tells the state of two checkouts apart

# A bare environment (CI, containers) may lack these; pgrx and cargo need them.
[[ -n ${USER:-} ]] || USER=$(id -un)
[[ -n ${HOME:-} ]] || HOME=$(getent passwd "$USER" | cut -d: -f6)
export USER HOME
if ! command -v cargo >/dev/null && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
  PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi
# RUSTFLAGS would replace the linker flags that keep pgrx' schema section.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

if ((EUID == 0)); then SUDO=; else SUDO=sudo; fi

# ---------------------------------------------------------------- messages --
# All go to stderr, so that a script's stdout stays usable by another script.
step() { printf '[%4d s] %s\n' "$(($(date +%s) - FETCHQ_T0))" "$*" >&2; }
warn() { printf 'warning: %s\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# A sleep without a child process: a killed heartbeat leaves nothing behind
# that would hold our caller's output pipe open.
nap() { read -rt "$1" <> <(:) || :; }

# heartbeat LABEL LOG — every 20 s one line, unless LOG has grown by itself.
# With SHOW=1 the line quotes the last line of LOG (whose output nobody sees).
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

# run_quiet LABEL LOG COMMAND… — output only in LOG, its end shown on failure.
run_quiet() {
  local label=$1 log=$2 hb rc=0; shift 2
  mkdir -p "$(dirname "$log")"; : >"$log"
  SHOW=1 heartbeat "$label" "$log" & hb=$!
  "$@" >"$log" 2>&1 </dev/null || rc=$?
  kill "$hb" 2>/dev/null || :; wait "$hb" 2>/dev/null || :
  if ((rc)); then tail -n 40 "$log" >&2; warn "$label failed (status $rc); all its output: $log"; fi
  return "$rc"
}

# run_logged LABEL LOG COMMAND… — output shown and kept in LOG.
run_logged() {
  local label=$1 log=$2 hb rc=0; shift 2
  mkdir -p "$(dirname "$log")"; : >"$log"
  heartbeat "$label" "$log" & hb=$!
  "$@" 2>&1 </dev/null | tee "$log" || rc=${PIPESTATUS[0]}
  kill "$hb" 2>/dev/null || :; wait "$hb" 2>/dev/null || :
  return "$rc"
}

# need_sudo WHY — a normal user without sudo gets told what was wanted.
need_sudo() {
  [[ -z $SUDO ]] || command -v sudo >/dev/null || die "$1 needs root: run as root, or install sudo"
}

# -------------------------------------------------------------- PostgreSQL --
: "${PG_CONFIG:=/usr/lib/postgresql/15/bin/pg_config}"; export PG_CONFIG

# load_pg — sets PG_MAJOR, FEATURE, PG_BINDIR, PG_LIBDIR; fails when there is no PostgreSQL.
load_pg() {
  [[ -x $PG_CONFIG ]] || die "no pg_config at $PG_CONFIG: run 'make setup', or set PG_CONFIG=/path/to/pg_config"
  [[ $("$PG_CONFIG" --version) =~ ^PostgreSQL\ ([0-9]+) ]] || die "cannot read the version of $PG_CONFIG"
  # shellcheck disable=SC2034  # for the scripts that source this file
  { PG_MAJOR=${BASH_REMATCH[1]}; FEATURE=pg$PG_MAJOR
    PG_BINDIR=$("$PG_CONFIG" --bindir); PG_LIBDIR=$("$PG_CONFIG" --pkglibdir); }
}

# The OS user that servers run as: PostgreSQL refuses to run as root.
if ((EUID == 0)); then SERVER_USER=postgres; else SERVER_USER=$USER; fi

# as_pg COMMAND… — as the server's OS user, from a folder which that user may enter.
as_pg() (
  cd /
  if ((EUID == 0)); then exec runuser -u "$SERVER_USER" -- "$@"; else exec "$@"; fi
)

# as_pg_write FILE — stdin to FILE, which belongs to the server's OS user, mode 600.
# shellcheck disable=SC2016
as_pg_write() { as_pg sh -c 'umask 077; cat >"$1"' _ "$1"; }

# as_pg_dir DIR — make DIR for the server's OS user, closed to all others.
as_pg_dir() {
  if ((EUID == 0)); then install -d -m 700 -o "$SERVER_USER" "$1"; else install -d -m 700 "$1"; fi
}

# ------------------------------------------------------------------- state --
# private_dir DIR — make DIR in a place that everybody may write to, and
# refuse one that somebody else has put there.
private_dir() {
  mkdir -m 755 "$1" 2>/dev/null || :
  [[ -d $1 && ! -L $1 && $(stat -c %u "$1") == "$EUID" ]] || die "$1 is not a folder of user $(id -un): remove it"
}

# local_dir — .pg in the checkout, for locks and logs of the invoking user.
local_dir() {
  install -d -m 755 "$ROOT/.pg" 2>/dev/null || :
  [[ -w $ROOT/.pg ]] || die "$ROOT/.pg cannot be written by $(id -un) (made by another user?): remove it"
}

# load_state — sets STATE, the folder that holds clusters and what their server
# writes: .pg in the checkout, or below /var/tmp when the server's user cannot
# enter the checkout (a checkout in root's home, or in a folder of mode 700).
load_state() {
  local_dir
  if ((EUID == 0)) && ! id "$SERVER_USER" >/dev/null 2>&1; then die "no OS user $SERVER_USER: run 'make setup'"; fi
  STATE=$ROOT/.pg
  if ! as_pg test -x "$STATE"; then
    STATE=$(realpath /var/tmp)/fetchq-$HASH
    private_dir "$STATE"
  fi
}

# with_lock NAME — wait until no other script of this checkout holds NAME; held until we exit.
with_lock() {
  local_dir
  exec 9>"$ROOT/.pg/$1.lock"
  flock -n 9 || { step "waiting for another '$1' in this checkout …"; flock 9; }
}
