#!/usr/bin/env bash
# Build the Docker image and run it.
# These variables can be set: PG_MAJOR, PORT, BIND, POSTGRES_PASSWORD, NAME, DOCKER=podman.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
# shellcheck source=scripts/docker.sh
. "$(dirname "$0")/docker.sh"
cd "$ROOT"

major=${PG_MAJOR:-$DEFAULT_MAJOR} port=${PORT:-5432} name=${NAME:-fetchq}
image=fetchq/fetchq:$major-$VERSION
why=$(no_engine)
[[ -z $why ]] || die "$why: 'make production' needs Docker, or podman with DOCKER=podman; 'make run' works without both"

PG_MAJOR=$major TAG_PREFIX=fetchq/fetchq scripts/image.sh server

step "production: starting container $name on port $port"
"$DOCKER" stop "$name" >/dev/null 2>&1 || : # First stop it cleanly.
"$DOCKER" rm -f "$name" >/dev/null 2>&1 || : # Its data stays in the volume.
"$DOCKER" run -d --name "$name" --restart unless-stopped --shm-size 256m -p "${BIND:-127.0.0.1}:$port:5432" \
  -e POSTGRES_PASSWORD="${POSTGRES_PASSWORD:-postgres}" -v "$name-data-$major:$(data_mount "$major")" "$image" >/dev/null

wait_healthy "$name" 120 >&2 || die "container $name is not healthy; its log is above"
step "production: ready"
echo "connect: psql postgres://postgres:${POSTGRES_PASSWORD:-postgres}@127.0.0.1:$port/postgres"
echo "stop:    $DOCKER stop $name"
