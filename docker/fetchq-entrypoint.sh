#!/usr/bin/env bash
# The entrypoint of the image. It runs the one of the official image with the same arguments. When
# the data folder does not preload fetchq, as one that another image has made, it first says so: the
# server starts, but without background worker and ready floors. It changes nothing.
set -Eeuo pipefail

# as_server COMMAND… — run a command as the user that the server is going to run as.
as_server() { if [[ $(id -u) == 0 ]]; then gosu postgres "$@"; else "$@"; fi; }

# preloads OPTION… — print the libraries that the server preloads with these options.
# `postgres -C` reads the configuration of the data folder, and starts no server.
preloads() { as_server postgres -C shared_preload_libraries "$@" 2>/dev/null; }

# warn LIBRARIES OPTION… — say what is to be done.
warn() {
  local loaded=() library list=''
  IFS=',' read -ra loaded <<<"$1"; shift
  echo "WARNING: fetchq is not preloaded, so it has no background worker: the data folder $PGDATA" >&2
  echo "  was made by another image, or its configuration was changed." >&2
  if [[ $* == *shared_preload_libraries* ]]; then
    echo "  The command sets shared_preload_libraries: add fetchq to that option." >&2
    return
  fi
  for library in "${loaded[@]}"; do
    library=${library//[[:space:]\"]/}
    list+="'${library//\'/\'\'}', "
  done
  cat >&2 <<MESSAGE
  To use fetchq, run this as a superuser, restart the container, and create the extension:
    alter system set shared_preload_libraries = $list'fetchq';
    create extension if not exists fetchq;
MESSAGE
}

if [[ ${1:-} == -* ]]; then set -- postgres "$@"; fi
# A new data folder gets its configuration from the image, and a folder that cannot be read is for
# the server to report.
if [[ ${1:-} == postgres ]] && as_server test -s "${PGDATA:-}/PG_VERSION" && libraries=$(preloads "${@:2}"); then
  if [[ ! ,${libraries//[[:space:]\"]/}, =~ ,([^,]*/)?fetchq(\.so)?, ]]; then warn "$libraries" "${@:2}"; fi
fi
exec docker-entrypoint.sh "$@"
