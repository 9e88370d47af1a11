#!/usr/bin/env bash
# The entrypoint of the image. It runs the one of the official image with the same arguments. When
# the data folder was made by another image, and does not preload fetchq, it first says so: the
# server would start, but without background worker and ready floors. It changes nothing.
set -Eeuo pipefail

# as_server COMMAND… — run a command as the user that the server is going to run as.
as_server() { if [[ $(id -u) == 0 ]]; then gosu postgres "$@"; else "$@"; fi; }

# preloads OPTION… — print the libraries that the server preloads with these options.
# `postgres -C` reads the configuration of the data folder, and starts no server.
preloads() { as_server postgres -C shared_preload_libraries "$@" 2>/dev/null; }

if [[ ${1:-} == -* ]]; then set -- postgres "$@"; fi
# A new data folder gets its configuration from the image, and a folder that cannot be read is for
# the server to report.
if [[ ${1:-} == postgres ]] && as_server test -s "${PGDATA:-}/PG_VERSION" && libraries=$(preloads "${@:2}"); then
  if [[ ! ,${libraries//[[:space:]\"\']/}, =~ ,(.*/)?fetchq(\.so)?, ]]; then
    cat >&2 <<MESSAGE
WARNING: fetchq is in this image, but the data folder $PGDATA does not preload it,
  because another image made it. The server starts without fetchq's background worker.
  To use fetchq, run this as a superuser, restart the container, and create the extension:
    alter system set shared_preload_libraries = ${libraries:+$libraries, }fetchq;
    create extension if not exists fetchq;
MESSAGE
  fi
fi
exec docker-entrypoint.sh "$@"
