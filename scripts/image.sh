#!/usr/bin/env bash
# Build the images of docker/Dockerfile, for one major version of PostgreSQL.
#
#   image.sh [TARGET…]      targets: server (the default), cnpg, console
#
# These variables can be set:
#   PG_MAJOR        the major version, 13 to 18; by default that of docker/Dockerfile
#   TAG_PREFIX      the name of the image without the tag: fetchq/fetchq
#   TAG_SUFFIX      added to the tag, for images of several kinds of machines: -amd64
#   POSTGRES_IMAGE, RUST_IMAGE
#                   other base images
#   PUSH=1          push the images to the registry that TAG_PREFIX names
#   DOCKER=podman   another engine
#
# The images are TAG_PREFIX:MAJOR-VERSION and TAG_PREFIX-cnpg:MAJOR-VERSION, of the kind of this
# machine. image-manifest.sh makes one name of the images of several kinds.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/docker.sh
. "$(dirname "$0")/docker.sh"
cd "$ROOT"

major=${PG_MAJOR:-$DEFAULT_MAJOR} prefix=${TAG_PREFIX:-fetchq/fetchq}
[[ $major =~ ^[0-9]+$ ]] && grep -q "^pg$major = " Cargo.toml ||
  die "fetchq is not built for PostgreSQL '$major': Cargo.toml has$(sed -nE 's/^pg([0-9]+) = .*/ \1/p' Cargo.toml | tr -d '\n')"
why=$(no_engine)
[[ -z $why ]] || die "$why: install Docker or podman (DOCKER=podman)"

targets=("$@")
if ((${#targets[@]} == 0)); then targets=(server); fi
options=(--build-arg "PG_MAJOR=$major" --build-arg "FETCHQ_VERSION=$VERSION")
for name in POSTGRES_IMAGE RUST_IMAGE; do
  if [[ -n ${!name:-} ]]; then options+=(--build-arg "$name=${!name}"); fi
done

for target in "${targets[@]}"; do
  case $target in
    server) image=$prefix:$major-$VERSION${TAG_SUFFIX:-} ;;
    cnpg) image=$prefix-cnpg:$major-$VERSION${TAG_SUFFIX:-} ;;
    console) image=$prefix-console:$VERSION${TAG_SUFFIX:-} ;;
    *) die "there is no target '$target'; the targets are: server cnpg console" ;;
  esac
  step "image: building $image (the first build takes about 10 minutes)"
  "$DOCKER" build -f docker/Dockerfile --target "$target" "${options[@]}" -t "$image" .
  if [[ ${PUSH:-0} == 1 ]]; then "$DOCKER" push "$image"; fi
  step "image: built $image"
done
