#!/usr/bin/env python3
"""Check the files for packages against the checkout: names of files, form. Versions: scripts/version.py."""

import json
import os
import re
import sys
import tomllib

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WRONG = []


def expect(condition, message):
    if not condition:
        WRONG.append(message)


def read(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as file:
        return file.read()


def pgxn(majors):
    """META.json: what version 1.0.0 of PGXN's specification demands."""
    meta = json.loads(read("META.json"))
    mandatory = ("name", "version", "abstract", "maintainer", "license", "provides", "meta-spec")
    for key in mandatory:
        expect(meta.get(key), f"META.json has no {key}, which is mandatory")
    expect(meta["meta-spec"]["version"] == "1.0.0", "META.json: meta-spec is not 1.0.0")
    for provided in meta["provides"].values():
        for key in ("file", "docfile"):
            expect(os.path.exists(os.path.join(ROOT, provided[key])), f"META.json: no file {provided[key]}")
    least = meta["prereqs"]["runtime"]["requires"]["PostgreSQL"]
    expect(least == f"{min(majors)}.0.0", f"META.json asks for PostgreSQL {least}; Cargo.toml begins with {min(majors)}")


def trunk(majors):
    """Trunk.toml: the fields that have no default."""
    file = tomllib.loads(read("Trunk.toml"))
    for key in ("name", "version", "license", "categories"):
        expect(file["extension"].get(key), f"Trunk.toml has no {key}, which is mandatory")
    expect(file["build"].get("platform"), "Trunk.toml has no platform, which is mandatory")
    expect(int(file["build"]["postgres_version"]) in majors, "Trunk.toml: Cargo.toml has no feature for its PostgreSQL")


def cloudnativepg():
    """The examples: that they name an image, and that they parse where a parser is installed."""
    folder = "packaging/cloudnativepg"
    for name in sorted(os.listdir(os.path.join(ROOT, folder))):
        text = read(f"{folder}/{name}")
        expect(re.search(r"fetchq/fetchq\S*:\d+-[0-9.]+[0-9]", text), f"{folder}/{name} names no image of fetchq")
        try:
            import yaml
        except ImportError:
            continue
        for document in yaml.safe_load_all(text):
            kind = document.get("kind")
            expect(document.get("apiVersion") == "postgresql.cnpg.io/v1", f"{folder}/{name}: {kind}: apiVersion")
            expect(kind in ("Cluster", "Database"), f"{folder}/{name}: kind {kind}")
            if kind == "Cluster":
                preload = document["spec"]["postgresql"]["shared_preload_libraries"]
                expect("fetchq" in preload, f"{folder}/{name} does not preload fetchq")


def clients():
    """Each package of a client has the licence in it: its tools take only files below its folder."""
    for name in sorted(os.listdir(os.path.join(ROOT, "clients"))):
        path = f"clients/{name}/LICENSE"
        there = os.path.isfile(os.path.join(ROOT, path))
        expect(there and read(path) == read("LICENSE"), f"{path} is not a copy of LICENSE")


def main():
    cargo = tomllib.loads(read("Cargo.toml"))
    majors = [int(feature[2:]) for feature in cargo["features"] if re.fullmatch(r"pg\d+", feature)]
    pgxn(majors)
    trunk(majors)
    cloudnativepg()
    clients()
    for message in WRONG:
        print(message)
    if WRONG:
        sys.exit(1)
    print("the files for packages agree with the checkout")


if __name__ == "__main__":
    main()
