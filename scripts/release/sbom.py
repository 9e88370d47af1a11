#!/usr/bin/env python3
"""Print a list of contents (CycloneDX, JSON) so that the same commit gives the same file.

    sbom.py FILE FOLDER              that of FILE, in which paths below FOLDER are cut
    sbom.py FILE FOLDER PACKAGES     with the packages of Debian that PACKAGES lists: name, version, architecture

The tools write the time, a random number, and where the source was.
"""

import datetime
import json
import os
import sys
import urllib.parse
import uuid


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    file, folder, *packages = sys.argv[1:]
    with open(file, encoding="utf-8") as text:
        bom = json.loads(text.read().replace(folder.rstrip("/") + "/", ""))
    for name in packages:
        with open(name, encoding="utf-8") as lines:
            bom["components"] += [debian(*line.split()) for line in lines if line.strip()]
    at = datetime.datetime.fromtimestamp(int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    root = bom["metadata"]["component"]
    if root.get("purl", "").startswith("pkg:npm/"):  # npm gives a package the name of its folder.
        root["group"], root["name"] = urllib.parse.unquote(root["purl"]).removeprefix("pkg:npm/").rsplit("@", 1)[0].split("/")
    bom["metadata"]["timestamp"] = at.strftime("%Y-%m-%dT%H:%M:%SZ")
    bom.pop("serialNumber", None)
    for part in ("components", "dependencies"):
        bom[part] = sorted(bom.get(part, []), key=lambda entry: entry.get("bom-ref") or entry.get("ref"))
    # A number that follows from the content.
    number = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(bom, sort_keys=True))
    print(json.dumps({"$schema": f"http://cyclonedx.org/schema/bom-{bom['specVersion']}.schema.json", **bom, "serialNumber": f"urn:uuid:{number}"}, indent=1))


def debian(name, version, architecture):
    purl = f"pkg:deb/debian/{name}@{urllib.parse.quote(version)}?arch={architecture}"
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    main()
