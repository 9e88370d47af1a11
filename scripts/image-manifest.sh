#!/usr/bin/env bash
# Give the images of several kinds of machines one name. They were pushed by scripts/image.sh, on a
# machine of each kind, with TAG_SUFFIX=-amd64 and so on.
#
#   image-manifest.sh ARCHITECTURE…      for example: image-manifest.sh amd64 arm64
#
# PG_MAJOR, TAG_PREFIX and DOCKER are those of scripts/image.sh. PUSH=1 pushes the result.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/docker.sh
. "$(dirname "$0")/docker.sh"
(($#)) || die "usage: image-manifest.sh ARCHITECTURE…"
major=${PG_MAJOR:-$DEFAULT_MAJOR} prefix=${TAG_PREFIX:-fetchq/fetchq}
why=$(no_engine)
[[ -z $why ]] || die "$why"

for image in "$prefix:$major-$VERSION" "$prefix-cnpg:$major-$VERSION"; do
  "$DOCKER" manifest rm "$image" >/dev/null 2>&1 || :
  "$DOCKER" manifest create "$image" "${@/#/$image-}"
  if [[ ${PUSH:-0} == 1 ]]; then
    if is_podman; then "$DOCKER" manifest push --all "$image" "docker://$image"; else "$DOCKER" manifest push "$image"; fi
  fi
  step "image: $image is of $*"
done
