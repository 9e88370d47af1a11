#!/bin/sh
# The hooks of `fetchq move`: hold back the clients of groups of queues, and lead them to another server.
# Each can be run again, because the command that calls it can.
#
#   pooler.sh pause GROUP…                       clients wait from their next transaction on
#   pooler.sh resume GROUP…                      clients go on where they were
#   pooler.sh lead INI CONNECTION GROUP…         clients are led to another server, and go on
#
# PGHOST, PGPORT, PGUSER and PGPASSWORD name PgBouncer; INI is its file.
set -eu

admin() { "${PSQL:-psql}" -XqA -v ON_ERROR_STOP=1 -d pgbouncer -c "$1"; }

# is_paused GROUP — PgBouncer refuses to pause a name that is paused, and to resume one that is not. Without an
# answer the script ends: `set -e` does not hold where a condition is asked.
is_paused() {
  databases=$(admin 'show databases') || exit
  echo "$databases" | awk -F '|' -v name="$1" \
    'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "paused") column = i } $1 == name && $column == 1 { found = 1 } END { exit !found }'
}
pause() { for group; do is_paused "$group" || admin "PAUSE $group"; done; }
resume() { for group; do if is_paused "$group"; then admin "RESUME $group"; fi; done; }

action=$1; shift
case $action in
  pause) pause "$@" ;;
  resume) resume "$@" ;;
  lead)
    ini=$1 connection=$2; shift 2
    for group; do sed -i "s|^$group = .*|$group = $connection|" "$ini"; done
    admin RELOAD
    resume "$@"
    ;;
  *) echo "unknown action $action" >&2; exit 2 ;;
esac
