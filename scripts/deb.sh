#!/usr/bin/env bash
# Build a Debian package of fetchq, and check it with lintian.
#
#   deb.sh             the extension, for the PostgreSQL of PG_CONFIG: postgresql-15-fetchq
#   deb.sh program     the program fetchq, with its manual page and completions: fetchq
#
#   DEB_VERSION      5.0.0-1+deb12 for the commit with the tag v5.0.0, built on Debian 12, and
#                    5.0.0~git20261122.1a2b3c4-1+deb12, which is older, for another commit
#   DEB_MAINTAINER   "Name <mail>" in the package
#
# The extension is for a server from Debian or from PostgreSQL's own repository (apt.postgresql.org).
# It has to be built on the release of Debian that it is for. The result is in target/deb. Its dates
# are those of the commit.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
what=${1:-extension}
tools=(dpkg-buildpackage dh lintian)
case $what in
  extension) load_pg; package=postgresql-$PG_MAJOR-fetchq ;;
  program) PG_MAJOR='' package=fetchq; tools+=(help2man) ;;
  *) die "there is no package '$what': deb.sh, or deb.sh program" ;;
esac

for tool in "${tools[@]}"; do
  command -v "$tool" >/dev/null || die "there is no $tool: apt-get install dpkg-dev debhelper lintian help2man"
done
[[ $what == program || $PG_LIBDIR == /usr/lib/postgresql/$PG_MAJOR/lib ]] ||
  die "$PG_CONFIG is not a server of Debian's (its libraries are in $PG_LIBDIR): install postgresql-$PG_MAJOR and postgresql-server-dev-$PG_MAJOR, and set PG_CONFIG=/usr/lib/postgresql/$PG_MAJOR/bin/pg_config"
git rev-parse --git-dir >/dev/null 2>&1 || die "this is no git checkout: the version and the date of a package are those of its commit"

upstream=$(scripts/version.py)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# shellcheck disable=SC2154
read -r release number < <(. /etc/os-release && echo "${VERSION_CODENAME:-unknown}" "$ID$VERSION_ID")
if [[ -z ${DEB_VERSION:-} ]]; then
  DEB_VERSION=$upstream
  if [[ $(git describe --exact-match --match "v$upstream" 2>/dev/null || :) != "v$upstream" ]]; then
    DEB_VERSION+=~git$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y%m%d).$(git rev-parse --short=7 HEAD)
  fi
  # The same commit has a package for each release, and that of the newer release is the newer one.
  DEB_VERSION+=-1+${number/debian/deb}
  if [[ -n $(git status --porcelain) ]]; then warn "the checkout has changes that are not committed; the package has them, too"; fi
fi
maintainer=${DEB_MAINTAINER:-fetchq contributors <contributors@fetchq.invalid>}

# Cargo uses the network only for crates that it has never fetched.
cargo fetch --locked --offline >/dev/null 2>&1 || cargo fetch --locked
export CARGO_NET_OFFLINE=true

out=${CARGO_TARGET_DIR:-target}/deb
# The symbols go into a package of their own (-dbgsym), from which gdb and perf take names and lines.
# Other builds have none, so this one has its own folder.
export CARGO_PROFILE_RELEASE_DEBUG=line-tables-only CARGO_TARGET_DIR=$ROOT/target/deb/cargo
build=$out/build-$package
rm -rf "$build"
mkdir -p "$build/debian" "$build/doc"
cp -R README.md CHANGELOG.md docs "$build/doc/"
if [[ $what == extension ]]; then
  DESTDIR=$build/root scripts/install.sh
  scripts/third-party.py "$FEATURE" >"$build/doc/third-party"
  templates=(control.in copyright.in rules README.Debian docs)
else
  step "deb: building the program (the first build takes about 4 minutes)"
  run_quiet "build" "$ROOT/.pg/deb-build.log" cargo build --locked --release -p fetchq-console --bin fetchq
  fetchq=$build/root/usr/bin/fetchq share=$build/root/usr/share
  install -D -m 755 "$CARGO_TARGET_DIR/release/fetchq" "$fetchq"
  mkdir -p "$share"/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d,man/man1}
  "$fetchq" completions bash >"$share/bash-completion/completions/fetchq"
  "$fetchq" completions zsh >"$share/zsh/vendor-completions/_fetchq"
  "$fetchq" completions fish >"$share/fish/vendor_completions.d/fetchq.fish"
  help2man --no-info --name "queues of fetchq in a browser and in the shell" \
    --version-string "$upstream" "$fetchq" >"$share/man/man1/fetchq.1"
  cp console/licenses/third-party.txt "$build/doc/third-party"
  templates=(program.control.in copyright.in rules program.docs)
fi
for file in "${templates[@]}"; do
  to=${file%.in} to=${to#program.}
  sed -e "s/@PACKAGE@/$package/g" -e "s/@PG_MAJOR@/$PG_MAJOR/g" -e "s/@MAINTAINER@/$maintainer/" "packaging/debian/$file" >"$build/debian/$to"
done
# The licence, in the format of the file: one blank before each line, and a dot in empty ones.
sed -e '1d' -e 's/^$/./' -e 's/^/ /' LICENSE | fold -s -w 78 | sed -e 's/^\([^ ]\)/ \1/' -e 's/ *$//' >"$build/licence"
sed -i -e "/^@LICENCE@/{r $build/licence" -e 'd}' "$build/debian/copyright"
chmod +x "$build/debian/rules"
cat >"$build/debian/changelog" <<CHANGELOG
fetchq ($DEB_VERSION) $release; urgency=medium

  * Package of fetchq $upstream, commit $(git rev-parse --short=12 HEAD). CHANGELOG.md says what is new.

 -- $maintainer  $(date -u -R -d "@$SOURCE_DATE_EPOCH")
CHANGELOG
mkdir -p "$build/debian/source"
echo '3.0 (quilt)' >"$build/debian/source/format"

step "deb: $package $DEB_VERSION for $release"
# -d: Build-Depends are for debhelper alone, which is there.
(cd "$build" && run_quiet "dpkg-buildpackage" "$ROOT/.pg/deb.log" dpkg-buildpackage -b -us -uc -d)
deb=$out/${package}_${DEB_VERSION}_$(dpkg --print-architecture).deb
changes=$out/fetchq_${DEB_VERSION}_$(dpkg --print-architecture).changes
[[ -f $deb ]] || die "dpkg-buildpackage made no $deb; its output is in $ROOT/.pg/deb.log"

step "deb: lintian"
allow_root=()
if ((EUID == 0)); then allow_root=(--allow-root); fi
lintian "${allow_root[@]}" --fail-on error,warning --display-info "$changes" || die "lintian is not content"
rm -rf "$build"
step "deb: $deb"
