"""The photos of all steps: the corpora of scripts/bench, made of the user's photos or of two portraits."""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from corpora import SHARE_OF_A, make_corpus, read_sources, two_people

from gpu_check.findings import Findings
from gpu_check.options import Options
from pipeline.extraction.images.decode import Decoder
from pipeline.tools.sample_photos import write_samples
from pipeline.types import DecodedImage

CORPORA = "abc"
_IMAGES, _QUICK_IMAGES = 256, 8  # of a: 250 x 250; so 32 and 2 of b (1 MP), 8 and 2 of c (12 MP)
_HOPPER, _COLLINS = "10-hopper.jpg", "11-collins.png"


def photos(options: Options, found: Findings) -> None:
    folder = faces(options)
    with ThreadPoolExecutor(len(CORPORA)) as pool:
        made = dict(zip(CORPORA, pool.map(corpus, [options] * len(CORPORA), CORPORA), strict=True))
    sizes = {name: round(sum(file.stat().st_size for file in files) / len(files) / 1e3) for name, files in made.items()}
    found.put("corpora", {name: {"images": len(files), "mean_kb": sizes[name]} for name, files in made.items()})
    sources = read_sources(folder)
    found.headline = f"made of {len(sources.portraits)} portraits and {len(sources.groups)} group photos"


def images(options: Options) -> int:
    """Of corpus a, as `--images` of the benchmarks has it."""
    return _QUICK_IMAGES if options.quick else _IMAGES


def faces(options: Options) -> Path:
    """The user's folder of photos, or one of the two portraits that the demo begins with."""
    if options.faces is not None:
        return options.faces
    folder = options.work / "two-people"
    return folder if folder.exists() else two_portraits(folder)


def two_portraits(folder: Path) -> Path:
    """`folder`, whole or not at all, as the benchmarks take it, with the demo's two portraits."""
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        samples = Path(scratch) / "samples"
        write_samples(samples)
        return two_people(Path(scratch) / folder.name, samples / _HOPPER, samples / _COLLINS).rename(folder)


def corpus(options: Options, name: str) -> list[Path]:
    """The files of corpus `name`, made where they are not there, with the arguments that the benchmarks make them."""
    count = max(2, round(images(options) * SHARE_OF_A[name]))
    return make_corpus(name, read_sources(faces(options)), options.work / "bench", count)


def decoded(options: Options, name: str, count: int) -> list[DecodedImage]:
    """`count` images of a corpus; the same ones again where there are fewer."""
    files = corpus(options, name)
    decoder = Decoder(options.settings().decode)
    opened = [decoder(file.read_bytes()) for file in files[:count]]
    return [opened[number % len(opened)] for number in range(count)]
