#!/usr/bin/env bash
# Run PgBouncer in transaction mode in front of a server, for tests. It has two connections for
# each database and user, so clients share them.
#
#   pooler.sh DIR   run until it is killed; DIR (made here) has its files, and its log
#
# POOL_SIZE=n   as many connections; PORT=n   a port that is known to be free
#
# The server is named by PGHOST (a socket folder), PGPORT, PGUSER and PGPASSWORD, as `cluster.sh env`
# prints them. The first line of the output is the port on 127.0.0.1. This process becomes
# PgBouncer, which also ends when the process that started it ends.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
DIR=${1:?"pooler.sh DIR"}
PATH=$PATH:/usr/sbin
pgbouncer=$(command -v pgbouncer) || die "there is no pgbouncer: run 'make setup'"

as_pg_dir "$DIR"
# From 1.24 on, PgBouncer keeps track of prepared statements by default. Here it does not, as in every
# version before. Versions before 1.21 refuse the setting.
prepared=
version=$("$pgbouncer" --version | sed -n 's/^PgBouncer //p')
if printf '1.21\n%s\n' "$version" | sort -CV; then prepared='max_prepared_statements = 0'; fi
port=${PORT:-$("$ROOT/scripts/free-port.sh")}
echo "\"$PGUSER\" \"$PGPASSWORD\"" | as_pg_write "$DIR/users"
as_pg_write "$DIR/pgbouncer.ini" <<INI
[databases]
* = host=$PGHOST port=$PGPORT

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $port
unix_socket_dir =
auth_type = scram-sha-256
auth_file = $DIR/users
pool_mode = transaction
default_pool_size = ${POOL_SIZE:-2}
max_client_conn = 100
$prepared
logfile = $DIR/log
INI
# PgBouncer refuses to run as root.
as=()
if ((EUID == 0)); then as=(--reuid "$SERVER_USER" --regid "$(id -gn "$SERVER_USER")" --init-groups); fi
echo "$port"
cd /
exec setpriv "${as[@]}" --pdeathsig TERM "$pgbouncer" --quiet "$DIR/pgbouncer.ini" >"/dev/null" 2>&1
