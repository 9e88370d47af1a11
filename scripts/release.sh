#!/usr/bin/env bash
# Build what a release consists of into dist/, install each package into an empty environment, and run its
# quick start there. Nothing is published: docs/internals/release.md has the steps of a maintainer.
#
#   release.sh                 everything
#   release.sh npm python      only these; the others in dist/ stay
#
#   DOCKER=podman              another engine for the images
#   PG_CONFIGS="…"             the PostgreSQL installations that get a package and an image; by default those
#                              in /usr/lib/postgresql that have server headers
#
# All packages are made of the commit that is checked out. A failure does not keep the others from being
# built and tried; the closing lines name it, and the status is 1.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/docker.sh
. "$(dirname "$0")/docker.sh"
cd "$ROOT"

# What is built, in this order, and what it is. Each has a function in release/build.sh and one in release/try.sh.
declare -A WHAT=(
  [source]="the source"
  [pgxn]="the bundle for PGXN"
  [deb]="the extension, for Debian"
  [program]="the program fetchq, for Debian"
  [npm]="@fetchq/client, for TypeScript and Node"
  [python]="fetchq, for Python"
  [rust]="fetchq-client, for Rust"
  [image]="the images"
)
ALL=(source pgxn deb program npm python rust image)
# Packages that are made of one folder, and are left out while there is none.
declare -A FOLDER=([npm]=clients/typescript/package.json [python]=clients/python/pyproject.toml [rust]=clients/rust/Cargo.toml)

if (($#)); then parts=("$@"); else parts=("${ALL[@]}"); fi
for part in "${parts[@]}"; do [[ -n ${WHAT[$part]:-} ]] || die "there is no package '$part'; there are: ${ALL[*]}"; done
# The other packages are made of the unpacked source. Who asks only for them does not wait until it is tried.
is_source_tried=1
if [[ " ${parts[*]} " != *' source '* ]]; then parts=(source "${parts[@]}") is_source_tried=0; fi

with_lock release
git rev-parse --git-dir >/dev/null 2>&1 || die "this is no git checkout: a release is made of a commit"
[[ -z $(git status --porcelain) ]] || die "the checkout has changes that are not committed, and a release is made of a commit: 'git status' lists them"
scripts/setup.sh --release
scripts/version.py --check >&2
scripts/checks/packaging.py >&2

DIST=$ROOT/dist WORK=$ROOT/target/release-work LOGS=$ROOT/.pg/release-logs
SOURCE=$WORK/source/fetchq-$VERSION SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
if [[ -z ${PG_CONFIGS:-} ]]; then
  for config in /usr/lib/postgresql/*/bin/pg_config; do
    if [[ -x $config && -f $("$config" --pgxs) ]]; then PG_CONFIGS+="${PG_CONFIGS:+ }$config"; fi
  done
fi
[[ -n ${PG_CONFIGS:-} ]] || die "there is no PostgreSQL with server headers in /usr/lib/postgresql: PG_CONFIGS names others"
export DIST WORK SOURCE SOURCE_DATE_EPOCH PG_CONFIGS VERSION TZ=UTC LC_ALL=C.UTF-8
mkdir -p "$DIST" "$WORK" "$LOGS"
if (($# == 0)); then rm -rf "${DIST:?}" "${WORK:?}"; mkdir -p "$DIST" "$WORK"; fi
rm -f "$DIST"/{MANIFEST.md,SHA256SUMS}

# ----------------------------------------------------------------- build, try --
declare -A result=()
failed=0
# absent PART — say why a part cannot be built on this machine, or nothing.
absent() {
  if [[ -n ${FOLDER[$1]:-} && ! -e ${FOLDER[$1]} ]]; then echo "there is no ${FOLDER[$1]}"; fi
  if [[ $1 == image ]]; then no_engine; fi
}
for part in "${parts[@]}"; do
  why=$(absent "$part")
  if [[ -n $why ]]; then
    step "release: $part is left out: $why"
    result[$part]="NOT BUILT: $why"
    rm -f "$WORK/$part.files"
    continue
  fi
  step "release: building ${WHAT[$part]}"
  if run_quiet "building $part" "$LOGS/build-$part.log" scripts/release/build.sh "$part"; then
    result[$part]=built
  else
    result[$part]="FAILED: it was not built (see ${LOGS#"$ROOT/"}/build-$part.log)"; failed=$((failed + 1))
  fi
done
for part in "${parts[@]}"; do
  if [[ ${result[$part]} != built ]]; then continue; fi
  if [[ $part == source ]] && ((!is_source_tried)); then result[$part]="not tried: it was not asked for"; continue; fi
  step "release: installing and running ${WHAT[$part]}"
  if run_quiet "trying $part" "$LOGS/try-$part.log" scripts/release/try.sh "$part"; then
    result[$part]=$(sed -n 's/^tried: //p' "$LOGS/try-$part.log" | tail -n 1)
    step "release: ok: ${result[$part]}"
  else
    result[$part]="FAILED (see ${LOGS#"$ROOT/"}/try-$part.log)"; failed=$((failed + 1))
  fi
done
commit=$(git rev-parse HEAD)
for part in "${parts[@]}"; do echo "$commit ${result[$part]}" >"$WORK/$part.result"; done

# ------------------------------------------------------------ manifest and sums --
{
  echo "# fetchq $VERSION"
  echo
  echo "Made of commit $commit of $(git log -1 --format=%cI), on $(. /etc/os-release && echo "$PRETTY_NAME"), $(uname -m)."
  echo "\`sha256sum -c SHA256SUMS\` compares the files. Files named \`*.cdx.json\` list what is in a package (CycloneDX)."
  echo
  echo "| file | bytes | what | tried |"
  echo "|---|---|---|---|"
  for part in "${ALL[@]}"; do
    said=$(cat "$WORK/$part.result" 2>/dev/null || echo "$commit NOT BUILT: it was not asked for")
    if [[ $said == "$commit "* ]]; then said=${said#* }; else said="OF COMMIT $said"; fi
    if [[ ! -s $WORK/$part.files ]]; then echo "| – | – | ${WHAT[$part]} | $said |"; continue; fi
    while read -r file; do
      what=${WHAT[$part]} how=$said
      case $file in
        *.cdx.json) what="list of contents" how=– ;;
        *-dbgsym_*) what="its symbols" how=– ;;
      esac
      if [[ -e $DIST/$file ]]; then echo "| $file | $(stat -c %s "$DIST/$file") | $what | $how |"; fi
    done <"$WORK/$part.files"
  done
} >"$DIST/MANIFEST.md"
(cd "$DIST" && find . -type f ! -name SHA256SUMS -printf '%P\n' | LC_ALL=C sort | xargs -d '\n' sha256sum >SHA256SUMS)

# ---------------------------------------------------------------------- the end --
echo
for part in "${parts[@]}"; do printf '%-8s %s\n' "$part" "${result[$part]}"; done
step "release: $(wc -l <"$DIST/SHA256SUMS") files of fetchq $VERSION are in $DIST; MANIFEST.md describes them"
for part in "${parts[@]}"; do
  if [[ ${result[$part]} == NOT* ]]; then warn "$part is not in dist/: ${result[$part]#NOT BUILT: }"; fi
done
if ((failed)); then die "$failed of ${#parts[@]} packages failed; do not publish this"; fi
