"""Unpacks what pack.py packed, and checks the GPU of this machine, which needs no network:

    python3 FOLDER/unpack.py --device cuda [other arguments of scripts/gpu_check]

Python and torch with torchvision must be here; the first step says which other packages are missing. It is unpacked
beside the system's temporary files, once.
"""

from __future__ import annotations

import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import time
from pathlib import Path

PACKED = Path(__file__).resolve().parent
BYTES = 4  # of a float32
SECONDS = 555


def unpack(work: Path) -> None:
    """All of it into `work`, whole or not at all."""
    unfinished = Path(f"{work}.unfinished-{os.getpid()}")
    for name in ("packages.tar.xz", "project.tar.xz", "faces.tar"):
        with tarfile.open(PACKED / name) as tar:
            tar.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
            tar.extractall(unfinished / name.partition(".")[0])
    cache = unfinished / "cache" / "facepipe"
    cache.mkdir(parents=True)
    planes = lzma.decompress((PACKED / "weights.xz").read_bytes())
    (cache / "casia-webface.safetensors").write_bytes(interleaved(planes))
    shutil.rmtree(work, ignore_errors=True)
    unfinished.rename(work)


def planes_of(data: bytes) -> bytes:
    """First the bytes at 0, 4, 8, ..., then those at 1, 5, ..., and so on: those of one kind are alike, and shrink."""
    return b"".join(data[place::BYTES] for place in range(BYTES))


def interleaved(planes: bytes) -> bytes:
    """The inverse of `planes_of`."""
    data, start = bytearray(len(planes)), 0
    for place in range(BYTES):
        length = len(range(place, len(planes), BYTES))
        data[place::BYTES] = planes[start : start + length]
        start += length
    return bytes(data)


def main() -> None:
    begun = time.monotonic()
    work = Path(tempfile.gettempdir()) / f"gpu-check-{(PACKED / 'weights.xz').stat().st_mtime_ns}"
    if not work.exists():
        unpack(work)
    path = os.pathsep.join([str(work / "packages"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "XDG_CACHE_HOME": str(work / "cache")}
    environment["BENCH_COMMIT"] = (PACKED / "commit").read_text()
    words = sys.argv[1:]
    for name, value in {
        "--faces": str(work / "faces"),
        "--work": str(work / "work"),
        "--seconds": f"{SECONDS - (time.monotonic() - begun):.0f}",
    }.items():
        words += [] if name in words else [name, value]
    command = [sys.executable, str(work / "project" / "scripts" / "gpu_check"), *words]
    sys.stdout.flush()
    os.execve(sys.executable, command, environment)


if __name__ == "__main__":
    main()
