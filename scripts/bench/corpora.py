"""The photos of the speed benchmarks, made once from real photos: pasted on larger canvases or enlarged, never noise.

`a` Labeled Faces in the Wild as it is (250 x 250), `b` scenes of 1 MP, `c` scenes of 12 MP, `d` a mix of sizes with
group photos. A scene is one photo enlarged to fill it, with up to two photos pasted on it, one in four of them a group
photo; so small and large faces, sharp and soft parts come together. The same arguments make the same files.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image, ImageOps

from pipeline.evaluation.bench.harness import Timing

CORPORA = "abcd"
SIZES = {"b": (1152, 864), "c": (4000, 3000)}
# Images of each corpus, by those of `a`: some seconds of work, so that what a run costs once does not count.
SHARE_OF_A = {"a": 1.0, "b": 1 / 8, "c": 1 / 32, "d": 1 / 4}
VERSION = 1  # of the recipe; a new one makes the files again
_QUALITY = (85, 96)
_PLACED_HEIGHTS = (0.25, 0.6)  # of the scene's
_GROUP_SHARE = 0.25
_LARGEST_MIXED = (2048, 1536)


@dataclass(frozen=True)
class Sources:
    """Real photos by kind."""

    portraits: Sequence[Path]  # one person each, about square
    groups: Sequence[Path]


# The files of one corpus -> timings by variant, and figures.
Measure: TypeAlias = Callable[[list[Path]], tuple[dict[str, Timing], dict[str, Any]]]
# (random numbers, sources, (number, count), target file) -> nothing: writes photo `number` of `count`.
Maker: TypeAlias = Callable[[np.random.Generator, Sources, tuple[int, int], Path], None]


def read_sources(faces: Path) -> Sources:
    """The photos of `faces`, which holds lfw-view1/images and groups-with-boxes."""
    portraits = sorted((faces / "lfw-view1" / "images").glob("*/*.jpg"))
    groups = sorted((faces / "groups-with-boxes").glob("*.jpg"))
    if not portraits or not groups:
        raise SystemExit(f"{faces} does not hold lfw-view1/images and groups-with-boxes")
    return Sources(portraits, groups)


def two_people(folder: Path, hopper: Path, collins: Path) -> Path:
    """`folder` as `read_sources` takes it, made of the demo's two portraits: each in 250 x 250, and both in a group."""
    faces = []
    for path in (hopper, collins):
        picture = ImageOps.fit(_read(path), (250, 250), centering=(0.4, 0.1))
        person = folder / "lfw-view1" / "images" / path.stem
        person.mkdir(parents=True)
        picture.save(person / f"{path.stem}_0001.jpg", quality=95)
        faces.append(picture)
    group = Image.new("RGB", (520, 260), "grey")
    group.paste(faces[0], (0, 5))
    group.paste(faces[1], (260, 5))
    (folder / "groups-with-boxes").mkdir()
    group.save(folder / "groups-with-boxes" / "both.jpg", quality=95)
    return folder


def add_corpus_arguments(parser: argparse.ArgumentParser, images: int, repeats: int) -> None:
    """Adds the arguments of `measure_corpora`, and how often to repeat."""
    parser.add_argument("--faces", type=Path, required=True, help="the folder of photos")
    parser.add_argument("--work", type=Path, required=True, help="where the corpora are made, and found again")
    parser.add_argument(
        "--images", type=int, default=images, help="photos of a; an eighth of that of b, 1/32 of c, a quarter of d"
    )
    parser.add_argument("--corpus", nargs="+", choices=list(CORPORA), default=list(CORPORA))
    parser.add_argument("--repeats", type=int, default=repeats)


def measure_corpora(arguments: argparse.Namespace, measure: Measure) -> tuple[dict[str, Timing], dict[str, Any]]:
    """What `measure` gives for each corpus, which is made if need be: timings by "<corpus>_<variant>", figures by
    corpus."""
    sources = read_sources(arguments.faces)
    timings: dict[str, Timing] = {}
    figures: dict[str, Any] = {}
    for name in arguments.corpus:
        files = make_corpus(name, sources, arguments.work, max(2, round(arguments.images * SHARE_OF_A[name])))
        of_corpus, figures[name] = measure(files)
        timings |= {f"{name}_{variant}": timing for variant, timing in of_corpus.items()}
    return timings, figures


def load_pictures(files: Sequence[Path]) -> list[Image.Image]:
    """The photos in memory, for benchmarks of one stage."""
    return [_read(file) for file in files]


def make_corpus(name: str, sources: Sources, work: Path, count: int, seed: int = 5) -> list[Path]:
    """`count` JPEG files of corpus `name` in `work`. Files that an earlier call with the same arguments made stay."""
    folder = work / f"{name}-{count}"
    made_of = {"version": VERSION, "seed": seed, "portraits": len(sources.portraits), "groups": len(sources.groups)}
    note = folder / "made-of.json"
    if not note.exists() or json.loads(note.read_text("utf-8")) != made_of:
        unfinished = work / f"{folder.name}.unfinished-{os.getpid()}"
        unfinished.mkdir(parents=True)
        rng = np.random.default_rng([seed, ord(name)])
        for number in range(count):
            _MAKERS[name](rng, sources, (number, count), unfinished / f"{number:05d}.jpg")
        (unfinished / note.name).write_text(json.dumps(made_of), "utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    return sorted(folder.glob("*.jpg"))


def distinct(files: Sequence[Path], folder: Path, first: int = 0) -> list[Path]:
    """Copies of `files` in `folder`, numbered from `first` on, no two with the same bytes: so a run decodes each of
    them, and their pixels are the files' own."""
    copies = [folder / f"{first + number:06d}.jpg" for number in range(len(files))]
    for file, copy in zip(files, copies, strict=True):
        copy.write_bytes(file.read_bytes() + copy.stem.encode())
    return copies


def scene(rng: np.random.Generator, sources: Sources, size: tuple[int, int]) -> Image.Image:
    """One portrait enlarged to fill `size` (width, height), with up to two photos pasted on it."""
    picture = ImageOps.fit(_photo(rng, sources.portraits), size, Image.Resampling.BICUBIC, centering=(0.5, 0.4))
    for _ in range(int(rng.integers(0, 3))):
        group = rng.random() < _GROUP_SHARE
        photo = _photo(rng, sources.groups if group else sources.portraits)
        height = round(size[1] * rng.uniform(*_PLACED_HEIGHTS))
        photo = photo.resize((min(size[0], round(photo.width * height / photo.height)), height))
        spare = (size[0] - photo.width, size[1] - photo.height)
        picture.paste(photo, (int(rng.integers(0, spare[0] + 1)), int(rng.integers(0, spare[1] + 1))))
    return picture


def _photo(rng: np.random.Generator, files: Sequence[Path]) -> Image.Image:
    return _read(files[int(rng.integers(len(files)))])


def _read(file: Path) -> Image.Image:
    with Image.open(file) as image:
        picture: Image.Image = image.convert("RGB")
    return picture


def _save(rng: np.random.Generator, picture: Image.Image, target: Path) -> None:
    picture.save(target, quality=int(rng.integers(*_QUALITY)))


def _as_it_is(_: np.random.Generator, sources: Sources, place: tuple[int, int], target: Path) -> None:
    """Every k-th portrait in order; from the first again where there are too few."""
    number, count = place
    step = max(1, len(sources.portraits) // count)
    shutil.copyfile(sources.portraits[number * step % len(sources.portraits)], target)


def _fixed(size: tuple[int, int]) -> Maker:
    def make(rng: np.random.Generator, sources: Sources, _: tuple[int, int], target: Path) -> None:
        _save(rng, scene(rng, sources, size), target)

    return make


def _mixed(rng: np.random.Generator, sources: Sources, place: tuple[int, int], target: Path) -> None:
    """Of eight: three portraits as they are, three group photos at one to two times their size, one scene of 1 MP
    and one of any size up to 3 MP, landscape or portrait."""
    kind = place[0] % 8
    if kind < 3:
        shutil.copyfile(sources.portraits[int(rng.integers(len(sources.portraits)))], target)
    elif kind < 6:
        photo = _photo(rng, sources.groups)
        scale = min(rng.uniform(1, 2), _LARGEST_MIXED[0] / max(photo.size))
        _save(rng, photo.resize((round(photo.width * scale), round(photo.height * scale))), target)
    elif kind == 6:
        _save(rng, scene(rng, sources, SIZES["b"]), target)
    else:
        size = (int(rng.integers(800, _LARGEST_MIXED[0] + 1)), int(rng.integers(600, _LARGEST_MIXED[1] + 1)))
        _save(rng, scene(rng, sources, size if rng.random() < 0.5 else size[::-1]), target)


_MAKERS: dict[str, Maker] = {
    "a": _as_it_is,
    "b": _fixed(SIZES["b"]),
    "c": _fixed(SIZES["c"]),
    "d": _mixed,
}
