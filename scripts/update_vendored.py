#!/usr/bin/env python
"""Fetches the JavaScript that lies in this repository from the npm registry, as scripts/vendored.json says.

python scripts/update_vendored.py                   writes the files of the recorded versions again
python scripts/update_vendored.py preact=11.2.0     takes another version of a package, and records its hashes

A package's archive must have the hash that the registry gave for it when its version was taken, and each file the
SHA-256 that is recorded; else nothing is written. tests/scripts/test_vendored.py compares the files with the record.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import sys
import tarfile
import urllib.request
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
RECORD: Final = ROOT / "scripts" / "vendored.json"
REGISTRY: Final = "https://registry.npmjs.org"
# Browsers resolve no bare names without an import map, and a strict CSP allows no inline one.
_IMPORTS: Final = {b'from"preact"': b'from"./preact.js"'}


def main(wishes: list[str]) -> None:
    """`wishes`: NAME=VERSION each."""
    record = json.loads(RECORD.read_text("utf-8"))
    for wish in wishes:
        name, _, version = wish.partition("=")
        if name not in record or not version:
            sys.exit(f"{wish}: NAME=VERSION is wanted, of {', '.join(record)}")
        _take_version(record[name], name, version)
    written = {file: data for name, package in record.items() for file, data in _files_of(name, package).items()}
    for file, data in written.items():
        (ROOT / file).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / file).write_bytes(data)
    RECORD.write_text(json.dumps(record, indent=2) + "\n", "utf-8")


def _take_version(package: dict[str, Any], name: str, version: str) -> None:
    """Fills in what the registry says of this version, and forgets the hashes of the files."""
    about = json.loads(_fetch(f"{REGISTRY}/{name}/{version}"))
    archive, integrity = about["dist"]["tarball"], about["dist"]["integrity"]
    package |= {"version": version, "licence": about["license"], "archive": archive, "integrity": integrity}
    for file in package["files"].values():
        file["sha256"] = None


def _files_of(name: str, package: dict[str, Any]) -> dict[str, bytes]:
    """The package's files by their place in this repository. Hashes that are not recorded yet are filled in."""
    archive = _fetch(package["archive"])
    digest = "sha512-" + base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if digest != package["integrity"]:
        sys.exit(f"{name}: the archive is not the one that is recorded: {digest}")
    found = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for place, file in package["files"].items():
            member = members.extractfile("package/" + file["from"])
            assert member is not None, f"{name} has no {file['from']}"
            data = member.read()
            for bare, relative in _IMPORTS.items():
                data = data.replace(bare, relative)
            sha256 = hashlib.sha256(data).hexdigest()
            if file["sha256"] not in (None, sha256):
                sys.exit(f"{place}: not the file that is recorded: {sha256}")
            file["sha256"] = sha256
            found[place] = data
    return found


def _fetch(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        return bytes(answer.read())


if __name__ == "__main__":
    main(sys.argv[1:])
