"""The public names of `pipeline`: the examples in their docstrings, and what these don't show."""

from __future__ import annotations

import doctest
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import pipeline
import pipeline.library
from pipeline.errors import ImageRejected, StoreLocked, UsageError
from pipeline.extraction.extractor import BatchExtractor
from pipeline.store import export
from tests.serve.served import serving

SETTINGS = {"run.device": "cpu", "run.threads": 1}
LOADERS = ("jobs.models", "run.stages", "evaluation.portraits")


@pytest.fixture(scope="module", autouse=True)
def _loaded_once(extractor: BatchExtractor) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for module in LOADERS:
            patch.setattr(f"pipeline.{module}.load_extractor", lambda *_: extractor)
        yield


@pytest.fixture(scope="module")
def folder(hopper_path: Path, astronaut_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """photos/ with the two portraits, people/ with a store of them as the example of `create_store` makes it, and
    pairs.csv with a pair of one person and a pair of two."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "photos").mkdir()
    shutil.copy(hopper_path, folder / "photos" / "hopper.jpg")
    shutil.copy(astronaut_path, folder / "photos" / "astronaut.png")
    Image.open(hopper_path).convert("RGB").resize((400, 470)).save(folder / "small.jpg")
    lines = ["path_a,path_b,same", "photos/hopper.jpg,small.jpg,1", "photos/astronaut.png,small.jpg,0"]
    (folder / "pairs.csv").write_text("\n".join(lines) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_examples("create_store")
    return folder


def examples() -> dict[str, doctest.DocTest]:
    finder = doctest.DocTestFinder()
    tests = finder.find(pipeline.library, "library", globs=dict(vars(pipeline.library)))
    return {test.name.removeprefix("library."): test for test in tests if test.examples}


def run_examples(name: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    runner.run(examples()[name], out=report.append)
    assert not runner.summarize(verbose=False).failed, "".join(report)


@pytest.mark.parametrize("name", sorted(examples().keys() - {"create_store"}))
def test_the_examples_in_the_docstrings_hold(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run_examples(name)


def test_every_public_name_has_an_example() -> None:
    methods = {
        f"OpenStore.{name}"
        for name in ("run", "report", "recognise", "people", "changes", "faces", "photos", "embeddings")
    }
    assert examples().keys() == {*pipeline.__all__, *methods} - {"OpenStore"}
    for name in pipeline.__all__:
        assert name in (pipeline.__doc__ or "")
        assert getattr(pipeline, name) is getattr(pipeline.library, name)
    assert set(pipeline.__all__) <= set(dir(pipeline))
    with pytest.raises(AttributeError, match="no attribute 'identify'"):
        pipeline.identify  # noqa: B018


def test_tables_have_the_columns_and_rows_of_the_export(folder: Path, tmp_path: Path) -> None:
    with pipeline.open_store(folder / "people", settings=SETTINGS) as store:
        tables = {
            "persons": store.people(),
            "faces": store.faces(),
            "media": store.photos(),
            "embeddings": store.embeddings(),
        }
        store._store.export(tmp_path / "export")
    for name, table in tables.items():
        assert table.to_pylist() == pq.read_table(tmp_path / "export" / f"{name}.parquet").to_pylist(), name
    vectors = np.array(tables["embeddings"]["embedding"].to_pylist())
    assert vectors.shape == (2, 512)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)


def test_embeddings_come_in_pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pipeline.open_store(folder / "people") as store:
        at_once = store.embeddings()
        for rows in (1, 2):
            monkeypatch.setattr(export, "_CHUNK_ROWS", rows)
            assert store.embeddings().equals(at_once)


def test_a_run_is_seen_by_what_the_store_recognises_next(folder: Path, tmp_path: Path) -> None:
    photo = folder / "photos" / "hopper.jpg"
    with pipeline.create_store(tmp_path / "store", weights="casia-webface", settings=SETTINGS) as store:
        store.run(folder / "photos" / ".." / "photos", directory="second")
        (face,) = store.recognise(photo.read_bytes(), directory="main")
        assert (face.identity, face.similar) == (None, [])
        with pytest.raises(UsageError, match="1 to 64 printable"):
            store.recognise(photo, directory="a/b")
        store.run(folder / "photos")
        (face,) = store.recognise(photo, top=1)
        assert face.identity is not None
        assert [candidate.person_id for candidate in face.similar] == [face.identity.person_id]
        with pytest.raises(StoreLocked):
            pipeline.open_store(tmp_path / "store")
    store.close()
    with pytest.raises(UsageError, match="open it with open_store"):
        pipeline.create_store(tmp_path / "store")


def test_a_store_that_a_server_holds(folder: Path, tmp_path: Path, extractor: BatchExtractor) -> None:
    with serving(tmp_path / "store", extractor), pipeline.open_store(tmp_path / "store", settings=SETTINGS) as store:
        report = store.run(folder / "photos")
        assert (report.persons, store.run(folder / "photos").already_in) == (2, 2)
        (face,) = store.recognise(folder / "photos" / "hopper.jpg")
        assert face.identity is not None
        assert face.identity.person_id in store.people()["person_id"].to_pylist()
        assert store.faces()["face_id"].to_pylist() == store.embeddings()["face_id"].to_pylist()
        assert store.photos()["status"].to_pylist() == ["ok", "ok"]


def test_the_extractor_takes_pixels_and_files(folder: Path) -> None:
    extractor = pipeline.FaceExtractor.from_settings(weights="casia-webface", settings=SETTINGS)
    file = folder / "photos" / "astronaut.png"
    pixels = np.array(Image.open(file).convert("RGB"))
    both, none = extractor.faces_of_all([pixels, np.zeros((80, 80, 3), np.uint8)])
    (face,) = both
    (same,) = extractor.faces(file.read_bytes())
    assert none == []
    assert np.allclose(face.box, same.box)
    assert np.allclose(face.embedding, same.embedding, atol=1e-5)
    assert (face.landmarks.shape, face.embedding.dtype) == ((5, 2), np.float32)
    assert 0 < face.confidence <= 1
    with pytest.raises(UsageError, match=r"\[80, 80\] uint8"):
        extractor.faces(np.zeros((80, 80), np.uint8))
    with pytest.raises(ImageRejected):
        extractor.faces(b"no image")


def test_importing_the_package_loads_no_library() -> None:
    code = (
        "import sys, pipeline\n"
        "heavy = {'torch', 'duckdb', 'pyarrow', 'numpy'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
        "pipeline.open_store\n"
        "assert 'torch' not in sys.modules\n"
        "import pydoc; text = pydoc.plain(pydoc.render_doc(pipeline))\n"
        "assert 'def create_store' in text or 'create_store(' in text, text\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_two_checkouts_on_the_path_do_not_merge(tmp_path: Path) -> None:
    """`pipeline` is a package of one folder: a second one on the path adds no modules to it."""
    (tmp_path / "pipeline").mkdir()
    (tmp_path / "pipeline" / "stray.py").write_text("")
    own = Path(pipeline.__file__).parents[1]
    code = (
        f"import sys\nsys.path[:0] = [{str(own)!r}, {str(tmp_path)!r}]\nimport pipeline\nprint(list(pipeline.__path__))"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == str([str(own / "pipeline")])
    result = subprocess.run([sys.executable, "-c", f"{code}\nimport pipeline.stray"], capture_output=True, text=True)
    assert "No module named 'pipeline.stray'" in result.stderr


def test_a_store_without_calibration_is_made_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for calibration, count in (("none", 1), (None, 0)):
        caplog.clear()
        path = tmp_path / str(calibration)
        pipeline.create_store(path, weights="casia-webface", calibration=calibration, settings=SETTINGS).close()
        warnings = [record for record in caplog.records if "not calibrated" in record.getMessage()]
        assert [record.name for record in warnings] == ["facepipe"] * count
