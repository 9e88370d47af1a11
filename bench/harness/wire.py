"""A session for what pgbench cannot do: LISTEN, waiting, and the time of a single call.

It sends simple queries of the protocol over the Unix socket, which needs no password."""

import re
import select
import socket
import struct

from .cluster import Cluster, Interrupted
from .errors import Failed

VARIABLE = re.compile(r"(?<!:):(?!:)([a-z_]+)")
Row = dict[str, str | None]


class Session:
    def __init__(self, cluster: Cluster, timeout: float = 120) -> None:
        env = cluster.env
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(timeout)
        self.socket.connect(f"{env['PGHOST']}/.s.PGSQL.{env['PGPORT']}")
        self.buffer = b""
        # The number of notifications that were received but not yet returned.
        self.heard = 0
        words = ("user", env["PGUSER"], "database", env["PGDATABASE"], "application_name", "bench", "")
        body = struct.pack("!i", 196608) + b"".join(word.encode() + b"\0" for word in words)
        self.socket.sendall(struct.pack("!i", len(body) + 4) + body)
        self.result()

    def send(self, sql: str) -> None:
        if Cluster.interrupted:
            raise Interrupted
        body = sql.encode() + b"\0"
        self.socket.sendall(b"Q" + struct.pack("!i", len(body) + 4) + body)

    def _receive(self) -> None:
        got = self.socket.recv(65536)
        if not got:
            raise Failed("the server closed a session")
        self.buffer += got

    def _message(self) -> tuple[bytes, bytes]:
        while len(self.buffer) < 5 or len(self.buffer) < 1 + struct.unpack("!i", self.buffer[1:5])[0]:
            self._receive()
        end = 1 + struct.unpack("!i", self.buffer[1:5])[0]
        kind, body, self.buffer = self.buffer[:1], self.buffer[5:end], self.buffer[end:]
        if kind == b"A":
            self.heard += 1
        return kind, body

    def result(self) -> list[Row]:
        """Waits for the end of the query, and returns its rows."""
        names: list[str] = []
        rows: list[Row] = []
        wrong = ""
        while True:
            kind, body = self._message()
            if kind == b"Z":
                break
            if kind == b"T":
                names = column_names(body)
            elif kind == b"D":
                rows.append(dict(zip(names, values(body))))
            elif kind == b"E":
                fields = {part[:1]: part[1:].decode(errors="replace") for part in body.split(b"\0") if part}
                wrong = fields.get(b"M", "an error")
            elif kind == b"R" and body != b"\0\0\0\0":
                raise Failed("the server requires a password over its Unix socket")
        if wrong:
            raise Failed(wrong)
        return rows

    def query(self, sql: str) -> list[Row]:
        self.send(sql)
        return self.result()

    def run(self, script: str, variables: Row | None = None) -> Row:
        """Runs a pgbench script of one statement. Returns the variables of \\gset, or {} without
        a row."""
        sql = script.replace("\\gset", "")
        if variables:
            sql = VARIABLE.sub(lambda found: literal(variables[found[1]]), sql)
        rows = self.query(sql)
        return rows[0] if rows else {}

    def listen(self, seconds: float) -> bool:
        """Waits for a notification, and returns whether there was one."""
        while not self.heard:
            ready, _, _ = select.select([self.socket], [], [], max(0.0, seconds))
            if not ready:
                return False
            self._receive()
            while len(self.buffer) >= 5 and len(self.buffer) > struct.unpack("!i", self.buffer[1:5])[0]:
                self._message()
        self.heard = 0
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def literal(value: str | None) -> str:
    return "null" if value is None else "'" + value.replace("'", "''") + "'"


def column_names(body: bytes) -> list[str]:
    names, at = [], 2
    for _ in range(struct.unpack("!h", body[:2])[0]):
        end = body.index(b"\0", at)
        names.append(body[at:end].decode())
        at = end + 19  # Skip the end of the name, and 18 bytes about its type.
    return names


def values(body: bytes) -> list[str | None]:
    found: list[str | None] = []
    at = 2
    for _ in range(struct.unpack("!h", body[:2])[0]):
        length = struct.unpack("!i", body[at:at + 4])[0]
        at += 4
        found.append(None if length < 0 else body[at:at + length].decode())
        at += max(0, length)
    return found
