#!/usr/bin/env bash
# Build one package of a release into DIST, with its list of contents: build.sh PART. scripts/release.sh calls it,
# and sets DIST, WORK, SOURCE, SOURCE_DATE_EPOCH, PG_CONFIGS and VERSION.
#
# What does not need git is built in the unpacked source, so that the archive has all that it takes.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/../lib.sh"
# shellcheck source=scripts/docker.sh
. "$(dirname "$0")/../docker.sh"
part=$1
cd "$ROOT"
tools=$ROOT/.pg/release-tools
arch=$(dpkg --print-architecture)
files=$WORK/$part.files
# Of a part that was built before, no file stays.
if [[ -s $files ]]; then while read -r file; do rm -f "${DIST:?}/$file"; done <"$files"; fi
: >"$files"

# put FILE [NAME] — copy a file into DIST, and remember that it belongs to this part.
put() {
  local name=${2:-${1##*/}}
  if [[ $1 != "$DIST/$name" ]]; then install -m 644 "$1" "$DIST/$name"; fi
  chmod 644 "$DIST/$name"
  echo "$name" >>"$files"
}

# sbom NAME FILE [PACKAGES] — put a list of contents, without what differs from run to run and from machine to
# machine, and with the packages of Debian in PACKAGES.
sbom() {
  scripts/release/sbom.py "$2" "$WORK" ${3:+"$3"} >"$WORK/$1.cdx.json"
  put "$WORK/$1.cdx.json"
}

# crate PACKAGE [OPTION…] — print the file with that of a crate in the unpacked source: the crates that are compiled in.
crate() {
  local package=$1 folder; shift
  folder=$(cd "$SOURCE" && cargo metadata --offline --no-deps --format-version 1 |
    /usr/bin/python3 -c 'import json, os, sys
print(next(os.path.dirname(p["manifest_path"]) for p in json.load(sys.stdin)["packages"] if p["name"] == sys.argv[1]))' "$package")
  (cd "$SOURCE" && PATH=$tools/bin:$PATH cargo cyclonedx -q --manifest-path "$folder/Cargo.toml" --format json --spec-version 1.5 \
    --no-build-deps --override-filename sbom "$@" >&2)
  echo "$folder/sbom.json"
}

source_() {
  local tar=$DIST/fetchq-$VERSION-source.tar.gz
  git archive --format=tar --prefix="fetchq-$VERSION/" HEAD | gzip -n -9 >"$tar"
  put "$tar"
  rm -rf "${SOURCE:?}"
  mkdir -p "${SOURCE%/*}"
  tar -C "${SOURCE%/*}" -xmzf "$tar"
}

pgxn() {
  scripts/pgxn.sh HEAD
  put "target/pgxn/fetchq-$VERSION.zip" "fetchq-$VERSION-pgxn.zip"
}

# debs PATTERN — put the packages that deb.sh has written since the file `before`.
debs() {
  local deb found=0
  while read -r deb; do put "$deb"; found=1; done < <(find "${CARGO_TARGET_DIR:-target}/deb" -maxdepth 1 -name "$1" -newer "$WORK/before" | LC_ALL=C sort)
  ((found)) || die "scripts/deb.sh has written no $1"
}
deb() {
  local config major
  touch "$WORK/before"
  for config in $PG_CONFIGS; do PG_CONFIG=$config scripts/deb.sh; done
  debs 'postgresql-*.deb'
  for config in $PG_CONFIGS; do
    major=$("$config" --version | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
    sbom "postgresql-$major-fetchq" "$(crate fetchq --no-default-features --features "pg$major")"
  done
}
program() {
  touch "$WORK/before"
  scripts/deb.sh program
  debs 'fetchq*.deb'
  sbom fetchq-program "$(crate fetchq-console)"
}

npm() {
  cd "$SOURCE/clients/typescript"
  command npm ci --no-audit --no-fund
  command npm pack --pack-destination "$DIST"
  put "$DIST/fetchq-client-$VERSION.tgz"
  command npm sbom --sbom-format cyclonedx --sbom-type library --package-lock-only --omit dev --omit optional --omit peer >"$WORK/npm.json"
  cd "$ROOT"
  sbom fetchq-client-npm "$WORK/npm.json"
}

python() {
  local bin=$tools/python/bin venv=$WORK/python
  "$bin/python" -m build --no-isolation --outdir "$DIST" "$SOURCE/clients/python"
  put "$DIST/fetchq-$VERSION-py3-none-any.whl"
  put "$DIST/fetchq-$VERSION.tar.gz"
  # How PyPI shows the README, and whether it takes the metadata.
  "$bin/twine" check --strict "$DIST/fetchq-$VERSION-py3-none-any.whl" "$DIST/fetchq-$VERSION.tar.gz"
  rm -rf "$venv"
  "$bin/python" -m venv --without-pip "$venv"
  "$bin/pip" --python "$venv/bin/python" install --quiet --disable-pip-version-check "$DIST/fetchq-$VERSION-py3-none-any.whl"
  "$bin/cyclonedx-py" environment --pyproject "$SOURCE/clients/python/pyproject.toml" --of JSON --output-reproducible "$venv/bin/python" >"$WORK/python.json"
  sbom fetchq-python "$WORK/python.json"
}

rust() {
  # The check of the package compiles it; see try.sh.
  (cd "$SOURCE" && cargo package -p fetchq-client --no-verify --target-dir "$WORK/package")
  put "$WORK/package/package/fetchq-client-$VERSION.crate"
  sbom fetchq-client-rust "$(crate fetchq-client)"
}

# save IMAGE NAME CRATES — put an image as a file that `docker load` takes, and what is in it: the crates, and the
# packages of Debian.
save() {
  "$DOCKER" save "$1" | gzip -n >"$DIST/$2.tar.gz"
  put "$DIST/$2.tar.gz"
  # shellcheck disable=SC2016  # dpkg-query reads the variables.
  "$DOCKER" run --rm --entrypoint dpkg-query "$1" -W -f '${Package} ${Version} ${Architecture}\n' >"$WORK/$2.packages"
  sbom "$2" "$3" "$WORK/$2.packages"
}
image() {
  local config major
  for config in $PG_CONFIGS; do
    major=$("$config" --version | sed -nE 's/^PostgreSQL ([0-9]+).*/\1/p')
    (cd "$SOURCE" && PG_MAJOR=$major TAG_PREFIX=fetchq/fetchq scripts/image.sh server console)
    save "fetchq/fetchq:$major-$VERSION" "fetchq-image-$major-$VERSION-$arch" "$(crate fetchq --no-default-features --features "pg$major")"
  done
  save "fetchq/fetchq-console:$VERSION" "fetchq-console-image-$VERSION-$arch" "$(crate fetchq-console)"
}

if [[ $part == source ]]; then source_; else "$part"; fi
