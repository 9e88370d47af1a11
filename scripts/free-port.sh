#!/usr/bin/env bash
# Print a TCP port that nothing on this machine listens on, below the ports that the kernel gives to
# clients. A server that is started again on one of those may find it taken by a connection of anybody.
#
#   free-port.sh        print a free port
#   free-port.sh PORT   succeed if this one is free
set -euo pipefail

is_free() {
  if [[ -x /usr/bin/python3 ]]; then
    /usr/bin/python3 - "$1" <<'PY'
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # PostgreSQL does the same.
try: s.bind(("127.0.0.1", int(sys.argv[1])))
except OSError: sys.exit(1)
PY
  else
    if (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; then return 1; fi
  fi
}

if (($#)); then is_free "$1"; exit; fi
low=32768
if [[ -r /proc/sys/net/ipv4/ip_local_port_range ]]; then read -r low _ </proc/sys/net/ipv4/ip_local_port_range; fi
# Where the kernel gives almost all ports to clients, there is no better range.
if ((low < 12000)); then low=60000; fi
for _ in {1..100}; do
  port=$((10000 + (RANDOM * 32768 + RANDOM) % (low - 10000)))
  if is_free "$port"; then echo "$port"; exit; fi
done
echo "there is no free port below $low" >&2
exit 1
