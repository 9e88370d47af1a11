#!/usr/bin/env bash
# Build the Docker image and run it.
# These variables can be set: PG_MAJOR, PORT, BIND, POSTGRES_PASSWORD, NAME.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$ROOT"

major=${PG_MAJOR:-17} port=${PORT:-5432} name=${NAME:-fetchq}
version=$(sed -nE 's/^version *= *"(.*)"/\1/p' Cargo.toml | head -n 1)
image=fetchq/fetchq:$major-$version

command -v docker >/dev/null || die "there is no docker command: 'make production' needs Docker; 'make run' works without it"
docker info >/dev/null 2>&1 || die "the Docker engine does not answer, and 'docker info' says why: start it, or use 'make run'"

step "production: building $image (the first build takes about 10 minutes)"
docker build -f docker/Dockerfile --build-arg "PG_MAJOR=$major" --build-arg "FETCHQ_VERSION=$version" -t "$image" .

step "production: starting container $name on port $port"
docker stop "$name" >/dev/null 2>&1 || : # First stop it cleanly.
docker rm -f "$name" >/dev/null 2>&1 || : # Its data stays in the volume.
mount=/var/lib/postgresql/data
if ((major >= 18)); then mount=/var/lib/postgresql; fi
docker run -d --name "$name" --restart unless-stopped --shm-size 256m -p "${BIND:-127.0.0.1}:$port:5432" \
  -e POSTGRES_PASSWORD="${POSTGRES_PASSWORD:-postgres}" -v "$name-data-$major:$mount" "$image" >/dev/null

for _ in {1..60}; do
  state=$(docker inspect -f '{{.State.Status}} {{.State.Health.Status}}' "$name")
  case $state in
    'running healthy')
      step "production: ready"
      echo "connect: psql postgres://postgres:${POSTGRES_PASSWORD:-postgres}@127.0.0.1:$port/postgres"
      echo "stop:    docker stop $name"
      exit
      ;;
    running*) nap 2 ;;
    *) break ;;
  esac
done
docker logs --tail 30 "$name" >&2
die "container $name is not healthy ($state)"
