#!/usr/bin/env bash
# Check the files for Docker against the checkout, without a Docker engine.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"
file=docker/Dockerfile bad=0
fail() { echo "docker: $*"; bad=1; }

# Every source that is copied from the checkout exists, and .dockerignore lets it through.
mapfile -t sources < <(awk '$1 == "COPY" && $2 !~ /^--from/ { for (i = 2; i < NF; i++) print $i }' "$file")
((${#sources[@]})) || fail "no COPY line found in $file"
for s in "${sources[@]}"; do
  [[ -e $s ]] || fail "$file copies $s, which does not exist"
  let_through=0
  while read -r rule; do
    if [[ $rule == '!'* && $s/ == "${rule#!}"/* ]]; then let_through=1; fi
  done <.dockerignore
  ((let_through)) || fail ".dockerignore keeps $s out"
done

# Everything that cargo uses in the checkout is copied too.
members=$(sed -nE 's/^members *= *\[(.*)\].*/\1/p' Cargo.toml | tr -d '",')
for s in .cargo build.rs rust-toolchain.toml rust-toolchain $members; do
  if [[ -e $s && $s != . && " ${sources[*]} " != *" $s "* ]]; then fail "$file does not copy $s, which cargo uses"; fi
done

# The Dockerfile uses the same tools and the same build as the scripts.
has() { grep -qF -- "$1" "$2" || fail "$2 lacks: $1"; }
has "cargo install cargo-pgrx --version" "$file"
has "ARG PGRX_VERSION=$PGRX_VERSION" "$file"
has "pgrx = \"=$PGRX_VERSION\"" Cargo.toml
for f in "$file" scripts/build.sh; do
  has "cargo pgrx package --pg-config" "$f"
  has "--no-default-features --features" "$f"
done
! grep -q '^[^#]*RUSTFLAGS' "$file" || fail "$file sets RUSTFLAGS, which breaks pgrx"
version=$(sed -nE 's/^version *= *"(.*)"/\1/p' Cargo.toml | head -n 1)
has "ARG FETCHQ_VERSION=$version" "$file"
has "FETCHQ_VERSION: \"$version\"" docker/compose.yml
major=$(sed -n 's/^ARG PG_MAJOR=//p' "$file")
has "\"pgrx/pg$major\"" Cargo.toml
# The default is a patch release of the minor version that the manifest names.
rust=$(sed -nE 's/^rust-version *= *"(.*)"/\1/p' Cargo.toml)
has "ARG RUST_VERSION=$rust" "$file"

# The compose file parses, and names files that exist.
if /usr/bin/python3 -c 'import yaml' 2>/dev/null; then
  /usr/bin/python3 - <<'PY' || fail "docker/compose.yml does not parse, or names a file that does not exist"
import os, yaml
build = yaml.safe_load(open("docker/compose.yml"))["services"]["fetchq"]["build"]
assert os.path.isfile(os.path.join("docker", build["context"], build["dockerfile"])), build
PY
else
  ! grep -q "$(printf '\t')" docker/compose.yml || fail "docker/compose.yml has tabs"
  has "dockerfile: docker/Dockerfile" docker/compose.yml
fi

((bad == 0)) && echo "docker: files agree with the checkout"
