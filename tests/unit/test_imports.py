"""Imports run one way through the layers of the package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2] / "pipeline"

# From the bottom up. A layer imports those below it; packages in one layer don't import each other.
LAYERS: list[set[str]] = [
    {"errors"},
    {"types"},
    {"config"},
    {"runtime"},
    {"models", "matching", "store"},
    {"extraction"},
    {"identities", "pages"},
    {"jobs"},
    {"serve", "evaluation"},
    {"cli", "library"},
]
HEIGHT = {part: height for height, layer in enumerate(LAYERS) for part in layer}
EXEMPT = {"__init__", "__main__"}  # the public names, and the command line's entry


def part_of(file: Path) -> str:
    return file.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_parts(code: str) -> Iterator[str]:
    """The parts of the package that the import statements of `code` name, also those inside functions."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            modules = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where they lead"
            modules = [f"{node.module}.{name.name}" for name in node.names]
        else:
            continue
        yield from (module.split(".")[1] for module in modules if module.startswith("pipeline."))


def upward(own: str, code: str) -> list[str]:
    """The imports in `code`, a module of the part `own`, that don't lead down."""
    return [target for target in imported_parts(code) if target != own and HEIGHT[target] >= HEIGHT[own]]


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_run_down_the_layers(file: Path) -> None:
    if part_of(file) not in EXEMPT:
        assert not upward(part_of(file), file.read_text("utf-8"))


def test_every_module_is_in_a_layer() -> None:
    assert {part_of(file) for file in ROOT.rglob("*.py")} == set(HEIGHT) | EXEMPT


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ("errors", "import pipeline.types"),
        ("store", "from pipeline.matching.score import exact_dots"),
        ("extraction", "from pipeline import identities"),
        ("serve", "def late():\n    from pipeline.evaluation import pairs"),
        ("jobs", "import pipeline.cli.run as command"),
    ],
)
def test_an_upward_import_is_found_however_it_is_written(own: str, code: str) -> None:
    assert upward(own, code)
