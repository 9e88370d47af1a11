#!/usr/bin/env bash
# Check the files for Docker against the checkout, without an engine. It takes a second, and it
# builds and runs nothing: `make test SUITE=image` does.
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
# Every file that .dockerignore lets through is used: each other one would make the build run again.
while read -r rule; do
  if [[ $rule == '!'* && " ${sources[*]} " != *" ${rule#!} "* && " ${sources[*]} " != *" ${rule#!}/"* ]]; then
    fail ".dockerignore lets ${rule#!} through, which $file does not copy"
  fi
done <.dockerignore

# Everything that cargo uses in the checkout is copied too, and the manifest of each member.
members=$(sed -nE 's/^members *= *\[(.*)\].*/\1/p' Cargo.toml | tr -d '",')
for s in .cargo build.rs rust-toolchain.toml rust-toolchain; do
  if [[ -e $s && " ${sources[*]} " != *" $s "* ]]; then fail "$file does not copy $s, which cargo uses"; fi
done
for s in $members; do
  [[ " ${sources[*]} " == *" $s/Cargo.toml "* ]] || fail "$file does not copy $s/Cargo.toml, which cargo reads"
done

# line PATTERN — print the number of the first line of the Dockerfile that matches.
line() { grep -nE -m 1 -- "$1" "$file" | cut -d: -f1; }
# The dependencies are built before the sources are copied, so that they are cached.
src=$(line '^COPY src ' || echo 0) dependencies=$(line 'cargo build --release --lib' || echo 0)
((0 < dependencies && dependencies < src)) || fail "$file copies src before it has built the dependencies"
# The build downloads no script that it runs.
! grep -nE '^[^#]*(curl|wget)\b' "$file" || fail "$file downloads a file"
# The base images can be replaced, and nothing else is taken from a registry.
while read -r from; do
  [[ $from == *'{POSTGRES_IMAGE}' || $from == *'{RUST_IMAGE}' || $from == scratch ]] || fail "$file is based on $from"
done < <(awk '$1 == "FROM" { print $2 }' "$file")
# The default target is the server.
[[ $(awk '$1 == "FROM" { last = $NF } END { print last }' "$file") == server ]] || fail "the last target of $file is not server"

# The Dockerfile uses the same tools and the same build as the scripts.
has() { grep -qF -- "$1" "$2" || fail "$2 lacks: $1"; }
for f in "$file" scripts/build.sh; do has "cargo build --release --lib --no-default-features --features" "$f"; done
has "scripts/install.sh" "$file"
version=$(scripts/version.py)
# The image of the console has the licences of what is compiled into it; make lint compares them.
has "console/licenses/third-party.txt" "$file"
major=$(sed -n 's/^ARG PG_MAJOR=//p' "$file")
has "\"pgrx/pg$major\"" Cargo.toml
# The default is a patch release of the minor version that the manifest names.
rust=$(sed -nE 's/^rust-version *= *"(.*)"/\1/p' Cargo.toml)
has "ARG RUST_VERSION=$rust" "$file"

# The compose file parses, names files that exist, and all its services but the console have the
# same image.
if /usr/bin/python3 -c 'import yaml' 2>/dev/null; then
  /usr/bin/python3 - "$version" "$major" <<'PY' || fail "docker/compose.yml does not parse, names a file that does not exist, or another version"
import os, sys, yaml
services = yaml.safe_load(open("docker/compose.yml"))["services"]
build = services["fetchq"]["build"]
assert os.path.isfile(os.path.join("docker", build["context"], build["dockerfile"])), build
assert build["target"] == "server", build
# Both are the program, and can be reached from this machine only.
for program in (services["console"], services["relay"]):
    assert program["image"] == "${TAG_PREFIX:-fetchq/fetchq}-console:" + sys.argv[1], program
    assert program["build"] == {**build, "target": "console"}, program
    assert all(port.startswith("127.0.0.1:") for port in program["ports"]), program
images = {service["image"] for name, service in services.items() if name not in ("console", "relay", "shop")}
assert images == {"${TAG_PREFIX:-fetchq/fetchq}:${PG_MAJOR:-%s}-%s" % (sys.argv[2], sys.argv[1])}, images
for service in services.values():
    for volume in service.get("volumes", []):
        source = volume.split(":")[0]
        assert not source.startswith(".") or os.path.exists(os.path.join("docker", source)), volume
PY
else
  ! grep -q "$(printf '\t')" docker/compose.yml || fail "docker/compose.yml has tabs"
  has "dockerfile: docker/Dockerfile" docker/compose.yml
fi

((bad == 0)) && echo "docker: the files agree with the checkout"
