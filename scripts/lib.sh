# Common helpers of the scripts in this folder. The scripts source this file.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
: "${FETCHQ_T0:=$(date +%s)}"; export FETCHQ_T0  # the clock of the outermost script
HASH=$(printf %s "$ROOT" | sha256sum | cut -c1-8) # separates the state of two checkouts

# cargo needs these variables, which a bare environment of CI or a container may lack.
[[ -n ${USER:-} ]] || USER=$(id -un)
[[ -n ${HOME:-} ]] || HOME=$(getent passwd "$USER" | cut -d: -f6)
export USER HOME
if ! command -v cargo >/dev/null && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
  PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
fi

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
# PG_CONFIG names a PostgreSQL that is installed on this machine. fetchq is built for it, and only `make
# install` writes into it. The servers of this checkout run from a copy of it, into which `make build`
# installs: they disturb neither the servers of other checkouts nor those of the machine.
: "${PG_CONFIG:=/usr/lib/postgresql/15/bin/pg_config}"
export PG_CONFIG
export PGRX_PG_CONFIG_PATH=$PG_CONFIG # The build script of pgrx reads it.

# load_pg — set PG_MAJOR and FEATURE, the folders of the installation, and BUILT, the folder with the
# files of the last build for it. Fail when there is no PostgreSQL.
load_pg() {
  [[ -x $PG_CONFIG ]] || die "no pg_config at $PG_CONFIG: run 'make setup', or set PG_CONFIG=/path/to/pg_config"
  [[ $("$PG_CONFIG" --version) =~ ^PostgreSQL\ ([0-9]+) ]] || die "cannot read the version of $PG_CONFIG"
  # shellcheck disable=SC2034  # The scripts that source this file use them.
  { PG_MAJOR=${BASH_REMATCH[1]}; FEATURE=pg$PG_MAJOR
    PG_BINDIR=$("$PG_CONFIG" --bindir); PG_LIBDIR=$("$PG_CONFIG" --pkglibdir)
    PG_SHAREDIR=$("$PG_CONFIG" --sharedir); BUILT=${CARGO_TARGET_DIR:-$ROOT/target}/fetchq-$FEATURE; }
}

# load_server — the same, but the folders are those of the copy from which the servers of this checkout
# run. It makes the copy, and brings it up to date with the installation. Each installation has its own.
load_server() {
  local name
  load_pg
  load_state
  name=${PG_BINDIR%/bin} name=${name#/}
  SERVER=$STATE/server-${name//\//-} # No cluster can have a name with a hyphen.
  copy_server "$SERVER"
  PG_BINDIR=$SERVER$PG_BINDIR PG_LIBDIR=$SERVER$PG_LIBDIR PG_SHAREDIR=$SERVER$PG_SHAREDIR
}

# server_bindir PG_CONFIG — print the folder of the programs of that copy, of another installation.
server_bindir() (PG_CONFIG=$1; load_server; echo "$PG_BINDIR")

# copy_server FOLDER — copy the installation that load_pg has found below FOLDER, or bring such a copy up
# to date. PostgreSQL finds its files relative to its programs. So the programs are copied, and the
# libraries and other files are linked. A fetchq in the installation is left out.
copy_server() {
  local bin lib share from state=$1/copied
  bin=$("$PG_CONFIG" --bindir) lib=$("$PG_CONFIG" --pkglibdir) share=$("$PG_CONFIG" --sharedir)
  from=$(stat -L -c '%n %Y %s' "$bin/postgres" "$bin" "$lib" "$share" "$share/extension")
  if [[ $(cat "$state" 2>/dev/null) == "$from" ]]; then return; fi
  mkdir -p "$1"
  (
    umask 022
    flock 8
    if [[ $(cat "$state" 2>/dev/null) == "$from" ]]; then return; fi
    step "server: copying ${bin%/bin} into $1"
    install -d -m 755 "$1$bin" "$1$lib" "$1$share/extension"
    # A program that runs cannot be overwritten, but it can be replaced.
    cp -L --remove-destination --preserve=mode "$bin"/* "$1$bin/"
    link "$lib" "$1$lib"
    link "$share" "$1$share" ! -name extension
    link "$share/extension" "$1$share/extension"
    # Programs of some installations look for their libraries relative to their own place.
    mkdir -p "$1$("$PG_CONFIG" --libdir)"
    link "$("$PG_CONFIG" --libdir)" "$1$("$PG_CONFIG" --libdir)" -name 'libpq.so*'
    find "$1" -xtype l -delete # what is no longer installed
    echo "$from" >"$state"
  ) 8>"$1/lock"
}
link() {
  find "$1" -mindepth 1 -maxdepth 1 ! -name 'fetchq*' "${@:3}" -exec ln -sfn -t "$2" {} +
}

# gather LIBRARY — fill BUILT with the files that PostgreSQL needs, under the names that it looks for: the
# library, the control file, the install script of this version, and the upgrade scripts.
gather() {
  local version
  version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$ROOT/Cargo.toml" | head -n 1)
  rm -rf "${BUILT:?}"
  mkdir -p "$BUILT"
  cp "$1" "$BUILT/fetchq.so"
  sed "s/@CARGO_VERSION@/$version/" "$ROOT/fetchq.control" >"$BUILT/fetchq.control"
  cp "$ROOT"/sql/fetchq--*--*.sql "$BUILT/"
  cp "$ROOT/sql/install.sql" "$BUILT/fetchq--$version.sql" # build.rs writes it.
}

# put_files PREFIX — install the files of the last build into the installation of PG_CONFIG, where PREFIX
# takes the place of the root folder: a copy of the server, or DESTDIR. Prints the paths. Each file is
# written under a temporary name and renamed: writing into the library would crash a server that has
# loaded it.
put_files() {
  local file to
  for file in "$BUILT"/*; do
    to=$1$("$PG_CONFIG" --sharedir)/extension
    if [[ $file == *.so ]]; then to=$1$("$PG_CONFIG" --pkglibdir); fi
    install -d -m 755 "$to"
    to+=/${file##*/}
    if [[ $file == *.so ]]; then install -m 755 "$file" "$to.new"; else install -m 644 "$file" "$to.new"; fi
    mv -f "$to.new" "$to"
    echo "$to"
  done
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
