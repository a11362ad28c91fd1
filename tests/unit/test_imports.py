"""Imports point one way. The table says what each part of the package may import of the others."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "pipeline"

BASE = {"errors", "types", "faults", "stage_times"}
MODEL_PARTS = BASE | {"config", "device", "models"}
# Images on the device, their resampling, and the compiled loops on which it rests.
IMAGES = {
    "imagebatch",
    "summed_area",
    "kernels",
    "detection_kernels",
    "smooth_kernels",
    "crop_kernels",
    "packed_layers",
    "row_convolutions",
    "column_sums",
    "instructions",
    "workers",
    "compiled",
    "optional_loops",
}
# The matcher, and the arithmetic and the loops on which it rests.
MATCHING = {
    "match",
    "score",
    "bound",
    "shortlist",
    "references",
    "image_lookup",
    "quantized",
    "quantized_kernels",
    "compiled",
}
# A stage and the files that only it is made of.
STAGES = {
    "source": {"source", "source_folder", "source_manifest", "files", "formats"},
    "decode": {"decode", "jpeg", "modes", "formats", "files", "remarks"},
    "detect": {
        "detect",
        "counts",
        "proposals",
        "crop_networks",
        "canvas",
        "canvas_maps",
        "tile_pixels",
        "nms",
        *IMAGES,
    },
    "align": {"align", *IMAGES},
    "quality": {"quality"},
    "embed": {"embed", "counts"},
    "match": MATCHING,
    # Grouping is matching in a given order: it rests on the matcher's arithmetic.
    "group": {"group", *MATCHING},
}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "faults": {"errors"},
    "allocator": set(),
    "stage_times": set(),
    "types": {"errors"},
    "config": {"errors"},
    "device": BASE | {"config"},
    "optional_loops": {"compiled"},
    "models": MODEL_PARTS | {"compiled", "instructions", "optional_loops"},
    "store": BASE | {"config", "store"},
    "wire": {"errors"},
    "remote": BASE | {"store", "wire"},
    "door": BASE | {"store", "remote"},
}
for parts in STAGES.values():
    for part in parts:
        ALLOWED[part] = ALLOWED.get(part, set()) | MODEL_PARTS
for parts in STAGES.values():
    for part in parts:
        ALLOWED[part] |= parts
# What two stages share must not lead from one to the other.
SHARED = {
    "counts",
    "files",
    "formats",
    *IMAGES,
    *MATCHING - {"match"},
}
for part in SHARED:
    ALLOWED[part] = MODEL_PARTS | SHARED
ALLOWED["match"] = MODEL_PARTS | STAGES["match"]
# The same stage on a device: it leaves to `decode` what it cannot do.
ALLOWED["device_decode"] = MODEL_PARTS | STAGES["decode"] | {"workers"}


@functools.cache
def edges() -> list[tuple[str, str, str]]:
    """(file, its part, the part it imports), for every import in the package, also those inside functions."""
    found = []
    for file in sorted(ROOT.rglob("*.py")):
        relative = file.relative_to(ROOT)
        own = relative.parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            found += [(str(relative), own, target) for target in targets(node)]
    return found


def targets(node: ast.AST) -> set[str]:
    """The parts of the package that an import statement names."""
    if isinstance(node, ast.Import):
        return {n.name.split(".")[1] for n in node.names if n.name.startswith("pipeline.")}
    if not isinstance(node, ast.ImportFrom):
        return set()
    assert node.level == 0, "relative imports hide where they lead"
    module = (node.module or "").split(".")
    if module[0] != "pipeline":
        return set()
    return {module[1]} if len(module) > 1 else {name.name for name in node.names}


# Experiments rest on all of the library, but answer nobody and enrol nobody.
EXPERIMENTS = {"evaluation", "comparison"}
NOT_OF_EXPERIMENTS = {"serve", "service", "run", "enrol", "demo"}


def is_allowed(own: str, target: str) -> bool:
    if own in ("cli", "__main__"):
        return True
    if target in ("cli", "__main__"):
        return False
    if own in EXPERIMENTS:
        return target not in NOT_OF_EXPERIMENTS and (target == own or target not in EXPERIMENTS)
    if target in EXPERIMENTS:
        return False
    # What is in no table knows all: run, enrol, search, demo, doctor and their helpers.
    return own not in ALLOWED or target in ALLOWED[own] or own == target


@pytest.mark.parametrize("file", sorted({file for file, _, _ in edges()}))
def test_imports_point_one_way(file: str) -> None:
    reverse = [
        f"{file} imports {target}" for name, own, target in edges() if name == file and not is_allowed(own, target)
    ]
    assert not reverse


def test_the_table_names_parts_that_are_there() -> None:
    parts = {path.name.removesuffix(".py") for path in ROOT.iterdir()}
    assert set(ALLOWED) <= parts


@pytest.mark.parametrize(
    ("own", "target"),
    [
        ("errors", "types"),
        ("config", "device"),
        ("store", "run"),
        ("store", "match"),
        ("models", "embed"),
        ("detect", "decode"),
        ("decode", "source"),
        ("imagebatch", "detect"),
        ("match", "group"),
        ("group", "quality"),
        ("embed", "extract"),
        ("run", "cli"),
        ("evaluation", "service"),
        ("evaluation", "run"),
        ("comparison", "run"),
        ("comparison", "evaluation"),
        ("assembly", "comparison"),
        ("stage_times", "config"),
        ("assembly", "evaluation"),
    ],
)
def test_a_reverse_edge_would_be_found(own: str, target: str) -> None:
    assert not is_allowed(own, target)


def test_an_import_is_seen_however_it_is_written() -> None:
    code = "import pipeline.run\nfrom pipeline import store\ndef f():\n    from pipeline.models.cache import x\n"
    found = set().union(*(targets(node) for node in ast.walk(ast.parse(code))))
    assert found == {"run", "store", "models"}
