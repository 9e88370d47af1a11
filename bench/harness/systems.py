"""A system is a folder of bench/systems with scripts. docs/internals/benchmarks.md describes it."""

import re
import subprocess
from pathlib import Path

from .cluster import ROOT, Cluster
from .errors import Failed

FOLDER = ROOT / "bench/systems"


def payload(tens: int) -> str:
    """Returns a payload of about 40 bytes and ten times `tens`."""
    return '{"to": "somebody@example.com", "text": "' + "0123456789" * tens + '"}'


PAYLOAD = payload(7)  # This has 110 bytes.
CLIENTS = re.compile(r"^-- clients: (\d+)$", re.M)
PER_SECOND = re.compile(r"^-- per second: (\d+)$", re.M)
EVERY = re.compile(r"^-- every: (\d+) (ms|s)$", re.M)
TOKEN = re.compile(r"@[a-z]+@")


class System:
    def __init__(self, name: str, cluster: Cluster) -> None:
        self.name, self.cluster = name, cluster
        self.folder = FOLDER / name
        if not self.folder.is_dir():
            known = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
            raise Failed(f"there is no folder bench/systems/{name}; the folders are: {' '.join(known)}")

    def has(self, script: str) -> bool:
        return (self.folder / f"{script}.sql").exists()

    def skips(self, scenario: str) -> bool:
        """The file `skip` names scenarios that have their scripts, but are not useful for the
        system."""
        path = self.folder / "skip"
        return path.exists() and any(line.split(":")[0] == scenario for line in path.read_text().splitlines())

    def text(self, script: str, **tokens: object) -> str:
        """Returns a script with values in place of its @tokens@."""
        text = (self.folder / f"{script}.sql").read_text()
        for name, value in {"payload": PAYLOAD, **tokens}.items():
            text = text.replace(f"@{name}@", str(value))
        if left := TOKEN.search(text):
            raise Failed(f"{self.name}/{script}.sql needs {left[0]}, which this scenario does not have")
        return text

    def join(self, scripts: tuple[str, ...], **tokens: object) -> str:
        return "".join(self.text(script, **tokens) for script in scripts)

    def run(self, script: str, **tokens: object) -> str:
        return self.cluster.psql(self.text(script, **tokens))

    def clients(self, scripts: tuple[str, ...], wanted: int) -> int:
        """Returns the number of clients. A script may limit it by `-- clients: N`."""
        for script in scripts:
            if found := CLIENTS.search((self.folder / f"{script}.sql").read_text()):
                wanted = min(wanted, int(found[1]))
        return wanted

    def fill_rate(self, script: str, wanted: int) -> int:
        """Returns the documents for each second. A fill may limit it by `-- per second: N`."""
        found = PER_SECOND.search((self.folder / f"{script}.sql").read_text())
        return min(wanted, int(found[1])) if found else wanted

    def install(self) -> None:
        script = self.folder / "install.sh"
        if script.exists() and subprocess.run(["bash", script], stdin=subprocess.DEVNULL).returncode:
            raise Failed(f"bench/systems/{self.name}/install.sh failed")

    # ------------------------------------------------------------- queues --
    def fresh(self, queue: str, setup: str = "setup") -> None:
        """Makes an empty queue, and removes an older one of that name."""
        self.run("teardown", queue=queue)
        self.run(setup, queue=queue)

    def remove(self, queue: str) -> None:
        self.run("teardown", queue=queue)

    def settle(self) -> None:
        """Does the background work of the system after a fill."""
        if self.has("settle"):
            self.run("settle")

    # --------------------------------------------------------- maintenance --
    def maintenance(self) -> str | None:
        """Returns the loop that a real installation runs beside every load."""
        if not self.has("maintain"):
            return None
        text = self.text("maintain")
        every = EVERY.search(text)
        if not every:
            raise Failed(f"{self.name}/maintain.sql has no line `-- every: N s`")
        return text + f"\\sleep {every[1]} {every[2]}\n"

    def pairs(self, script: str, **tokens: object) -> dict[str, str]:
        """Runs a script that prints lines `name|value`, and returns them as a dict."""
        if not self.has(script):
            return {}
        lines = [line.split("|", 1) for line in self.run(script, **tokens).splitlines() if "|" in line]
        return {name: value for name, value in lines}
