#!/usr/bin/env bash
# Try a Debian package in a Debian of its own: install, use, upgrade, remove and purge it.
#
#   deb-test.sh NEW.deb [OLD.deb]
#
#   PROGRAM=FILE.deb    also install the program, and look at the queues with it
#
# Without OLD.deb the upgrade is from a copy of NEW.deb that has an older version and another
# library file. It needs root, debootstrap, and the Debian mirror that this machine's apt uses. The
# Debian is that of this machine's release. It is made once, in .pg/deb-test, and copied; its
# processes have no network and end with this script.
set -euo pipefail
# shellcheck source=scripts/lib.sh
. "$(dirname "$0")/lib.sh"
((EUID == 0)) || die "run this as root: it makes a root folder, and changes into it"
for tool in debootstrap unshare dpkg-deb; do command -v "$tool" >/dev/null || die "there is no $tool"; done
new=$(realpath "${1:?usage: deb-test.sh NEW.deb [OLD.deb]}")
package=$(dpkg-deb -f "$new" Package)
major=${package#postgresql-} major=${major%-fetchq}
release=$(. /etc/os-release && echo "$VERSION_CODENAME")
with_lock deb-test
dir=$ROOT/.pg/deb-test
base=$dir/$release-$major root=$dir/root
mkdir -p "$dir"

# ---------------------------------------------------------------- a Debian --
if [[ ! -e $base/ready ]]; then
  rm -rf "$base"
  mirror=$(sed -nE 's/^URIs: *([^ ]+).*/\1/p; s/^deb +(\[[^]]*\] +)?([^ ]+).*/\2/p' /etc/apt/sources.list /etc/apt/sources.list.d/*.sources /etc/apt/sources.list.d/*.list 2>/dev/null | head -n 1 || :)
  step "deb-test: debootstrap $release"
  run_quiet debootstrap "$dir/debootstrap.log" debootstrap --variant=minbase "$release" "$base" ${mirror:+"$mirror"}
  # The same sources as here, which have the security updates.
  if compgen -G '/etc/apt/sources.list.d/*.sources' >/dev/null; then
    rm -f "$base/etc/apt/sources.list"
    cp /etc/apt/sources.list.d/*.sources "$base/etc/apt/sources.list.d/"
    # Those of apt.postgresql.org name a file with their key.
    while read -r key; do
      if [[ ! -e $base$key ]]; then install -D -m 644 "$key" "$base$key"; fi
    done < <(sed -nE 's/^Signed-By: *(\/.*)/\1/p' /etc/apt/sources.list.d/*.sources)
  fi
  # Nothing starts by itself.
  printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d"
  chmod 755 "$base/usr/sbin/policy-rc.d"
  step "deb-test: postgresql-$major"
  run_quiet "apt-get" "$dir/apt.log" chroot "$base" env DEBIAN_FRONTEND=noninteractive sh -ec "
    apt-get update
    apt-get install -y --no-install-recommends postgresql-common
    sed -i 's/^#*create_main_cluster.*/create_main_cluster = false/' /etc/postgresql-common/createcluster.conf
    apt-get install -y --no-install-recommends postgresql-$major"
  : >"$base/ready"
fi
rm -rf "$root"
cp -a "$base" "$root"
# shellcheck disable=SC2064
trap "rm -rf '$root'" EXIT

# ------------------------------------------------------------ the packages --
mkdir "$root/packages"
cp "$new" "$root/packages/new.deb"
if [[ -n ${2:-} ]]; then
  cp "$2" "$root/packages/old.deb"
else
  dpkg-deb -R "$new" "$root/packages/old"
  sed -i 's/^Version: .*/Version: 0.1-1/' "$root/packages/old/DEBIAN/control"
  echo >>"$root/packages/old/usr/lib/postgresql/$major/lib/fetchq.so" # What follows the last section of an ELF file is not read.
  sed -i '/fetchq\.so$/d' "$root/packages/old/DEBIAN/md5sums"
  (cd "$root/packages/old" && md5sum "usr/lib/postgresql/$major/lib/fetchq.so" >>DEBIAN/md5sums)
  dpkg-deb --root-owner-group -b "$root/packages/old" "$root/packages/old.deb" >/dev/null
  rm -rf "$root/packages/old"
fi
if [[ -n ${PROGRAM:-} ]]; then cp "$PROGRAM" "$root/packages/program.deb"; fi
dpkg --compare-versions "$(dpkg-deb -f "$root/packages/old.deb" Version)" lt "$(dpkg-deb -f "$new" Version)" || die "the old package is not older than the new one"

# --------------------------------------------------------------- the tests --
cat >"$root/packages/test" <<'TEST'
set -uo pipefail
package=$1 major=$2 bad=0 n=0
export LC_ALL=C.UTF-8 DEBIAN_FRONTEND=noninteractive PGUSER=postgres PGPORT=5599
lib=/usr/lib/postgresql/$major/lib/fetchq.so
extension=/usr/share/postgresql/$major/extension
# check NAME COMMAND… — run a command that has to succeed, and show its output if it does not.
check() {
  local name=$1 out; shift
  n=$((n + 1))
  if out=$("$@" 2>&1); then echo "ok: $name"; else echo "FAILED: $name: $*"; echo "$out" | tail -n 20; bad=$((bad + 1)); fi
}
as_postgres() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }
sql() { as_postgres psql -XqAt -v ON_ERROR_STOP=1 -d postgres -c "$1"; }
is() { local got; got=$(sql "$2") && echo "$got" && [[ $got == "$1" ]]; }
apt() { apt-get -o Dpkg::Use-Pty=0 -y --no-install-recommends "$@"; }
ctl() { pg_ctlcluster "$major" test "$@"; }
none() { local found; found=$("$@"); echo "$found"; [[ -z $found ]]; }
quick_start() {
  zcat -f "/usr/share/doc/$package/README.md"* | sed -n '/^```sql$/,/^```$/p' | sed '/^```sql$/d;/^```$/,$d' >/tmp/quick-start.sql
  as_postgres psql -XqAt -v ON_ERROR_STOP=1 -d postgres -f /tmp/quick-start.sql && is welcome-42 'select subject from sent' &&
    is 'welcome-42|completed' 'select subject, outcome from fetchq_data.mail__history'
}
program_version() { local v; v=$(sql 'select library_version from fetchq.info()') && fetchq --version && [[ $(fetchq --version) == *" $v" ]]; }
# shows TEXT COMMAND… — the output of a command has a text.
shows() { local text=$1 out; shift; out=$("$@"); echo "$out"; [[ $out == *"$text"* ]]; }
serves() {
  local server i page=''
  as_postgres fetchq serve --listen 127.0.0.1:8090 >/tmp/serve.log 2>&1 & server=$!
  for i in {1..100}; do
    page=$(exec 3<>/dev/tcp/127.0.0.1/8090 && printf 'GET /db/postgres HTTP/1.0\r\nHost: 127.0.0.1:8090\r\n\r\n' >&3 && cat <&3) 2>/dev/null && break
    sleep 0.2
  done
  kill "$server"; wait "$server"
  [[ $page == *' 200 '*queues/mail* ]] || { echo "$page" | head -c 2000; cat /tmp/serve.log; return 1; }
}
left() { find / -xdev -path /proc -prune -o -path /packages -prune -o -iname '*fetchq*' -print; }

check "nothing of fetchq is there" none left
check "install" apt install /packages/old.deb
check "the files are as packed" dpkg --verify "$package"
check "the library is there" test -f "$lib"
check "the control file is there" test -f "$extension/fetchq.control"
check "an install script is there" test -f "$(echo "$extension"/fetchq--[0-9].[0-9].[0-9].sql)"
check "copyright" test -f "/usr/share/doc/$package/copyright"
check "README.Debian" test -f "/usr/share/doc/$package/README.Debian"

check "a cluster" pg_createcluster "$major" test --port "$PGPORT" --locale C.UTF-8
check "preload" pg_conftool "$major" test set shared_preload_libraries fetchq
check "start" ctl start
check "create extension" sql 'create extension fetchq'
check "preloaded" is 't|t' 'select is_preloaded, has_shared_memory from fetchq.info()'
# The README of the package shows how to begin.
check "the quick start" quick_start
if [[ -e /packages/program.deb ]]; then
  check "install the program" apt install /packages/program.deb
  check "its files are as packed" dpkg --verify fetchq
  check "its version is that of the extension" program_version
  check "it has a manual page and completions" test -s /usr/share/man/man1/fetchq.1.gz -a -s /usr/share/bash-completion/completions/fetchq
  check "it puts a document" as_postgres fetchq put mail by-hand --payload '{"to": "bob"}'
  check "it shows the document" shows '"by-hand"' as_postgres fetchq show mail by-hand --json
  check "it explains it" as_postgres fetchq explain mail by-hand
  check "it lists the queues" shows '"mail"' as_postgres fetchq list --json
  check "it finds nothing that is wrong" as_postgres fetchq doctor
  check "it serves pages" serves
  check "purge the program" dpkg --purge fetchq
  check "it leaves no file" test ! -e /usr/bin/fetchq
fi
check "the queue of the quick start is dropped" sql "select fetchq.queue_drop('mail'); drop table sent"
check "another queue" sql "select fetchq.queue_create('mail')"
check "push" sql "select count(fetchq.doc_put('mail', 'm' || n, '{}')) from generate_series(1, 1000) n"
check "lease" is m1 "select subject from fetchq.doc_lease('mail', duration => '1 hour')"
before="select count(*), count(*) filter (where status = 2), md5(string_agg(d::text, ',' order by subject)) from fetchq_data.mail__docs d"
state=$(sql "$before")
check "1000 documents, one of them leased" test "${state%|*}" = '1000|1'

# A session that has loaded the old library stays while the package is upgraded.
as_postgres psql -XqAt -d postgres >/tmp/session.out 2>&1 < <(echo "select version from fetchq.info();"; until [[ -e /tmp/upgraded ]]; do sleep 0.1; done; echo "select 'again ' || count(*) from fetchq_data.mail__docs;") &
session=$!
for _ in {1..100}; do [[ -s /tmp/session.out ]] && break; sleep 0.1; done
old=$(md5sum <"$lib")
check "upgrade, while the server runs" apt install /packages/new.deb
check "the library is another one" test "$(md5sum <"$lib")" != "$old"
touch /tmp/upgraded
wait "$session"
check "the session goes on with its old library" grep -q '^again 1000$' /tmp/session.out
check "a new session works before the restart" is "$state" "$before"
check "restart" ctl restart
check "alter extension update" sql 'alter extension fetchq update'
check "versions agree" is t 'select extension_version = library_version from fetchq.info()'
check "documents and lease are as before" is "$state" "$before"
check "the lease is settled by its number" sql "do \$\$ declare l bigint; begin select lease into strict l from fetchq.leases where subject = 'm1'; perform fetchq.doc_complete('mail', 'm1', lease => l); end \$\$"
check "the next is leased" is m2 "select subject from fetchq.doc_lease('mail')"

check "a dump" as_postgres pg_dump -d postgres -f /tmp/dump.sql
check "drop extension" sql 'drop extension fetchq cascade'
check "no preload" pg_conftool "$major" test remove shared_preload_libraries
check "restart without it" ctl restart
check "remove" apt remove "$package"
check "purge" dpkg --purge "$package"
check "the package is unknown" none sh -c "dpkg-query -W -f '\${Status}\n' $package 2>/dev/null | grep -v 'unknown ok not-installed'"
check "nothing of fetchq is left" none left
check "the server goes on" is 1 'select 1'
check "restart after all" ctl restart

check "install again, the new one" apt install /packages/new.deb
check "preload again" pg_conftool "$major" test set shared_preload_libraries fetchq
check "start again" ctl restart
check "the dump comes back" as_postgres psql -Xq -v ON_ERROR_STOP=1 -d postgres -f /tmp/dump.sql
check "with its documents, and the history of the completed one" is '999|1' "select (select count(*) from fetchq_data.mail__docs), count(*) from fetchq_data.mail__history"
ctl stop
check "purge an installed package" apt purge "$package"
check "no file of the package is left" none sh -c "find /usr /etc /var/lib/dpkg -iname '*fetchq*'"
echo "$((n - bad)) passed, $bad failed"
exit $((bad > 0))
TEST
step "deb-test: $(basename "$new") in $release"
# A network and a list of processes of its own: ports are free, and nothing is left when it ends.
unshare --net --pid --mount --fork --kill-child bash -ec '
  mount -t proc proc "$1/proc"
  mount --bind /dev "$1/dev"
  ip link set lo up 2>/dev/null || :
  exec chroot "$1" bash /packages/test "$2" "$3"' _ "$root" "$package" "$major"
