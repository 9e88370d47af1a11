#!/usr/bin/env bash
# Install the clients that the benchmark compares, in folders that git ignores, and nothing into the
# system: the packages of npm into bench/peers/node_modules, those of PyPI into .pg/peers/venv, and
# PgQ, unpacked from its Debian package, into .pg/peers/pgq.
#
#   install.sh node | python | rust | pgq
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../../scripts/lib.sh"
load_pg
load_state
here=$ROOT/bench/peers
log=$ROOT/.pg/bench-peers-install.log

# done_before FOLDER FILE… — whether FOLDER was installed from files with the same content.
stamp() { cat "$@" | sha256sum; }
done_before() { [[ $(cat "$1/.installed" 2>/dev/null) == "$(stamp "${@:2}")" ]]; }

case ${1:-} in
  node)
    command -v npm >/dev/null || die "there is no npm"
    run_quiet "bench-peers: the package for TypeScript" "$log" flock "$ROOT/.pg/typescript.lock" "$ROOT/clients/typescript/conformance/build"
    done_before "$here/node_modules" "$here/package-lock.json" && exit 0
    cd "$here"
    # The scripts of packages are not run. node-linux-* has the Node that the newest versions need,
    # because that of Debian may be older.
    run_quiet "bench-peers: npm ci" "$log" npm ci --no-audit --no-fund --ignore-scripts
    stamp package-lock.json >node_modules/.installed
    ;;
  python)
    venv=$ROOT/.pg/peers/venv
    done_before "$venv" "$here/requirements.txt" && exit 0
    rm -rf "$venv"
    run_quiet "bench-peers: venv" "$log" /usr/bin/python3 -m venv "$venv"
    run_quiet "bench-peers: pip install" "$log" "$venv/bin/pip" install --require-hashes --disable-pip-version-check -r "$here/requirements.txt"
    stamp "$here/requirements.txt" >"$venv/.installed"
    ;;
  rust)
    run_quiet "bench-peers: the crate for Rust" "$log" cargo build --quiet --release --locked -p fetchq-client --example fetchq-bench-peers
    ;;
  pgq)
    # The server loads its library, so its user must be able to read it.
    folder=$STATE/peers-pgq
    if [[ ! -e $folder/pgq.sql ]]; then
      command -v apt-get >/dev/null || die "there is no apt-get to download postgresql-$PG_MAJOR-pgq3"
      scratch=$(mktemp -d)
      trap 'rm -rf "$scratch"' EXIT
      cd "$scratch"
      download() { run_quiet "bench-peers: download of PgQ" "$log" apt-get -qq download "postgresql-$PG_MAJOR-pgq3"; }
      # The package lists may be empty or old.
      download || { $SUDO apt-get -qq update >&2 || :; download; }
      dpkg-deb -x ./*.deb package
      mkdir -p "$folder"
      chmod 755 "$folder"
      install -m 644 "package/usr/lib/postgresql/$PG_MAJOR/lib/"*.so "$folder"
      dpkg-deb -f ./*.deb Version >"$folder/version"
      # The script refers to libraries that are not in the folder of the server.
      sed "s#'\$libdir/\(pgq_[a-z]*\)'#'$folder/\1'#" "package/usr/share/postgresql/$PG_MAJOR/contrib/pgq.sql" >"$folder/pgq.sql"
      chmod 644 "$folder/pgq.sql"
    fi
    echo "$folder"
    ;;
  *) die "install.sh: node, python, rust or pgq" ;;
esac
