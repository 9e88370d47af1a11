# Common helpers of the scripts that run Docker, or podman: DOCKER=podman. The scripts source this
# file after lib.sh.
# shellcheck shell=bash

# Without DOCKER it is docker, or podman where there is no docker.
if [[ -z ${DOCKER:-} ]]; then
  DOCKER=docker
  if ! command -v docker >/dev/null && command -v podman >/dev/null; then DOCKER=podman; fi
fi
export DOCKER
# podman builds images in the format OCI by default, which has no health check.
export BUILDAH_FORMAT=docker

# shellcheck disable=SC2034  # The scripts that source this file use them.
VERSION=$("$ROOT/scripts/version.py")
# shellcheck disable=SC2034  # This is the major version that docker/Dockerfile has by default.
DEFAULT_MAJOR=$(sed -n 's/^ARG PG_MAJOR=//p' "$ROOT/docker/Dockerfile" | head -n 1)

# no_engine — print why no container can run, or nothing.
no_engine() {
  if ! command -v "$DOCKER" >/dev/null; then
    echo "there is no $DOCKER command"
  elif ! "$DOCKER" info >/dev/null 2>&1; then
    echo "the engine of '$DOCKER' does not answer, and '$DOCKER info' says why"
  fi
}

# is_podman — true if DOCKER is podman, also under another name.
is_podman() { "$DOCKER" --version 2>/dev/null | grep -qi podman; }

# data_mount MAJOR — print where the official image of a major version has its volume.
data_mount() { if (($1 >= 18)); then echo /var/lib/postgresql; else echo /var/lib/postgresql/data; fi; }

# health NAME — print the state of a container and the result of its health check.
health() {
  # podman has systemd repeat the check. Without systemd nobody does, so this runs it.
  if is_podman; then "$DOCKER" healthcheck run "$1" >/dev/null 2>&1 || :; fi
  "$DOCKER" inspect -f '{{.State.Status}} {{if .State.Health}}{{.State.Health.Status}}{{end}}' "$1" 2>/dev/null || echo "there is none"
}

# wait_healthy NAME SECONDS — wait until the health check of a container succeeds.
wait_healthy() {
  local state=unknown deadline=$((SECONDS + $2))
  while ((SECONDS < deadline)); do
    state=$(health "$1")
    if [[ $state == 'running healthy' ]]; then return; fi
    if [[ $state == exited* || $state == dead* ]]; then break; fi
    sleep 0.5
  done
  echo "container $1 is not healthy: $state"
  "$DOCKER" logs --tail 30 "$1" 2>&1
  return 1
}
