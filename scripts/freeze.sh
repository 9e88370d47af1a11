#!/usr/bin/env bash
# Keep what a release installs, for the tests of later upgrades (suite `versions`): its install script in
# sql/, and a dump of a database with a queue of every kind in tests/upgrade/. Both are written once, when
# the version is released, and never changed. Build the release first.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
load_server
extensions=$PG_SHAREDIR/extension
version=$(sed -n "s/^default_version = '\(.*\)'/\1/p" "$extensions/fetchq.control")
[[ -n $version && $version == "$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)" ]] ||
  die "the version that is installed is not that of Cargo.toml: build it first"
script=sql/fetchq--$version.sql dump=tests/upgrade/fetchq-$version.sql
for file in "$script" "$dump"; do [[ ! -e $file ]] || die "$file exists: version $version is frozen"; done

scripts/cluster.sh freeze reset
FETCHQ_PG_CONF='fsync = off' scripts/cluster.sh freeze start --bare
trap 'scripts/cluster.sh freeze reset' EXIT
eval "$(scripts/cluster.sh freeze env)"
"$PG_BINDIR/createdb" frozen
"$PG_BINDIR/psql" -Xq -v ON_ERROR_STOP=1 -d frozen -c 'create extension fetchq' -f scripts/suites/upgrade/queues.sql >/dev/null
mkdir -p tests/upgrade
# Lines that only some versions of PostgreSQL know: the settings of the session, and the commands of psql.
"$PG_BINDIR/pg_dump" --no-owner -d frozen | sed -E '/^(SET [a-z_]+ = |\\(un)?restrict )/d' >"$dump.new"
mv "$dump.new" "$dump"
cp "$extensions/fetchq--$version.sql" "$script"
step "version $version is frozen: commit $script and $dump"
