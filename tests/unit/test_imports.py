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
    {"types", "texts"},
    {"config"},
    {"runtime"},
    {"matching", "store"},
    {"models"},
    {"extraction"},
    {"people", "report"},
    {"jobs"},
    {"run"},
    {"tools"},
    {"serve", "evaluation"},
    {"cli", "library"},
]
APART = {("extraction", "store")}  # though it is below
CLOSED = ("store",)  # packages that others import as a whole: their `__init__` has all that others may use
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


def imported_modules(file: Path, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports, also inside functions, but not for types alone."""
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = {f"{node.module}.{name.name}" for name in node.names}
            found.update(names & modules or {str(node.module)})
    return found & modules


def circles(imports: dict[str, set[str]]) -> list[tuple[str, ...]]:
    """Modules that import each other, directly or through others."""
    below = {module: set(own) for module, own in imports.items()}
    while True:
        grown = {module: own.union(*(below[other] for other in own)) for module, own in below.items()}
        if grown == below:
            break
        below = grown
    return sorted({tuple(sorted(o for o in own if m in below[o])) for m, own in below.items() if m in own})


def test_no_modules_import_each_other() -> None:
    """Nor do imports inside functions. The package's `__init__` is left out: it loads its names when they are used."""
    files = {".".join(("pipeline", *file.relative_to(ROOT).with_suffix("").parts)): file for file in ROOT.rglob("*.py")}
    named = {name.removesuffix(".__init__"): file for name, file in files.items() if name != "pipeline.__init__"}
    assert circles({name: imported_modules(file, set(named)) for name, file in named.items()}) == []
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [("b", "c")]


def upward(own: str, code: str) -> list[str]:
    """The imports in `code`, a module of the part `own`, that don't lead down."""
    others = (target for target in imported_parts(code) if target != own)
    return [target for target in others if HEIGHT[target] >= HEIGHT[own] or (own, target) in APART]


def deeper(own: str, code: str) -> list[str]:
    """The modules of closed packages that `code`, a module of the part `own`, imports in place of the package."""
    statements = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = [str(node.module) for node in statements if isinstance(node, ast.ImportFrom)]
    modules += [name.name for node in statements if isinstance(node, ast.Import) for name in node.names]
    inner = tuple(f"pipeline.{part}." for part in CLOSED if part != own)
    return [module for module in modules if module.startswith(inner)]


@pytest.mark.parametrize("file", sorted(ROOT.rglob("*.py")), ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_run_down_the_layers(file: Path) -> None:
    if part_of(file) not in EXEMPT:
        assert not upward(part_of(file), file.read_text("utf-8"))
        assert not deeper(part_of(file), file.read_text("utf-8"))


def test_every_module_is_in_a_layer() -> None:
    assert {part_of(file) for file in ROOT.rglob("*.py")} == set(HEIGHT) | EXEMPT


@pytest.mark.parametrize(
    ("own", "code"),
    [
        ("errors", "import pipeline.types"),
        ("store", "from pipeline.matching.score import exact_dots"),
        ("extraction", "from pipeline import people"),
        ("extraction", "from pipeline.store import records"),
        ("serve", "def late():\n    from pipeline.evaluation import pairs"),
        ("jobs", "import pipeline.cli.run as command"),
    ],
)
def test_an_upward_import_is_found_however_it_is_written(own: str, code: str) -> None:
    assert upward(own, code)


@pytest.mark.parametrize("code", ["from pipeline.store.records import Change", "import pipeline.store.local as local"])
def test_an_import_of_a_module_of_a_closed_package_is_found(code: str) -> None:
    assert deeper("jobs", code)
    assert not deeper("store", code)
    assert not deeper("jobs", "from pipeline.store import Change")
