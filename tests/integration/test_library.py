"""The public names of `pipeline`: the examples in their docstrings, and what these don't show."""

from __future__ import annotations

import doctest
import io
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

import pipeline
from pipeline.config import DecodeSettings
from pipeline.errors import (
    BadValue,
    ImageMissing,
    ImageRejected,
    ImageTooLarge,
    ImageTruncated,
    ImageUnsupported,
    StoreLocked,
    TooLittleData,
    UsageError,
)
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.given import read_given
from pipeline.store import export
from pipeline.types import DecodedImage
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
    (folder / "labels.csv").write_text("path,name\nphotos/hopper.jpg,Grace\nphotos/astronaut.png,Eileen\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        run_examples("create_store")
    return folder


def examples() -> dict[str, doctest.DocTest]:
    finder, found = doctest.DocTestFinder(), []
    for place in ("library.opened", "library.extractor", "library.measures", "evaluation.statistics"):
        module = import_module(f"pipeline.{place}")
        names = {name: getattr(pipeline, name) for name in ("create_store", "open_store")}
        found += finder.find(module, "", module, globs={**vars(module), **names})
    return {test.name.removeprefix("."): test for test in found if test.examples}


def run_examples(name: str) -> None:
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL)
    runner.run(examples()[name], out=report.append)
    assert not runner.summarize(verbose=False).failed, "".join(report)


@pytest.mark.parametrize("name", sorted(examples().keys() - {"create_store"}))
def test_the_examples_in_the_docstrings_hold(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run_examples(name)


def test_every_public_name_has_an_example_or_is_a_type() -> None:
    methods = {f"OpenStore.{name}" for name in vars(pipeline.OpenStore) if not name.startswith("_")}
    methods -= {f"OpenStore.{name}" for name in ("path", "calibration", "close")}
    library, types = import_module("pipeline.library"), import_module("pipeline.library.types")
    assert examples().keys() == {*library.__all__, *methods} - {"OpenStore"}
    assert all(name in (pipeline.__doc__ or "") for name in library.__all__)
    assert {*pipeline.__all__} == {*library.__all__} | {name for name in vars(types) if not name.startswith("__")}
    for name in pipeline.__all__:
        assert getattr(pipeline, name) is getattr(library if name in library.__all__ else types, name)
    assert set(pipeline.__all__) <= set(dir(pipeline))
    with pytest.raises(AttributeError, match="no attribute 'identify'"):
        pipeline.identify  # noqa: B018


def test_tables_have_the_columns_and_rows_of_the_export(folder: Path, tmp_path: Path) -> None:
    with pipeline.open_store(folder / "people", settings=SETTINGS) as store:
        tables = {
            "persons": store.persons(),
            "faces": store.faces(),
            "media": store.photos(),
            "embeddings": store.embeddings(),
        }
        store.export(tmp_path / "export")
        with pytest.deprecated_call(match=r"store\.persons\(\)"):
            assert store.people().equals(tables["persons"])
        face_ids, matrix = store.matrix()
    for name, table in tables.items():
        assert table.to_pylist() == pq.read_table(tmp_path / "export" / f"{name}.parquet").to_pylist(), name
    vectors = np.array(tables["embeddings"]["embedding"].to_pylist())
    assert vectors.shape == (2, 512)
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1)
    assert (face_ids.dtype, matrix.dtype) == (np.int64, np.float32)
    assert face_ids.tolist() == tables["embeddings"]["face_id"].to_pylist()
    assert np.array_equal(matrix, vectors)


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
        assert face.identity.person_id in store.persons()["person_id"].to_pylist()
        assert store.faces()["face_id"].to_pylist() == store.embeddings()["face_id"].to_pylist()
        assert store.photos()["status"].to_pylist() == ["ok", "ok"]


def test_the_extractor_takes_pixels_and_files(folder: Path) -> None:
    extractor = pipeline.FaceExtractor.from_settings(weights="casia-webface", settings=SETTINGS)
    file = folder / "photos" / "astronaut.png"
    pixels = np.array(Image.open(file).convert("RGB"))
    both, none = extractor.faces_of_all([pixels, np.zeros((80, 80, 3), np.uint8)])
    assert not isinstance(both, ImageRejected)
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


def forms(file: Path) -> list[pipeline.GivenImage]:
    """An image in each form that the library takes."""
    image = Image.open(file)
    pixels = np.asarray(image.convert("RGB"))
    assert not pixels.flags.writeable
    return [file, str(file), file.read_bytes(), pixels, pixels[::-1][::-1], image]


def test_an_image_is_taken_in_every_form(folder: Path, tmp_path: Path) -> None:
    file = folder / "photos" / "astronaut.png"
    extractor = pipeline.FaceExtractor.from_settings(weights="casia-webface", settings=SETTINGS)
    for form in forms(file)[3:]:
        given = read_given(form, DecodeSettings())
        assert isinstance(given, DecodedImage)
        assert given.pixels.flags.writeable  # or torch warns
        assert given.pixels.flags.c_contiguous
    found = [extractor.faces(form) for form in forms(file)]
    assert len({(face.embedding.tobytes(), face.picture) for (face,) in found}) == 1
    with pipeline.open_store(folder / "people", settings=SETTINGS) as store:
        answers = [*map(store.recognise, forms(file)), *(store.people.recognise(form) for form in forms(file))]
    assert len({(face.box, face.identity) for (face,) in answers}) == 1


def test_a_pil_image_is_turned_and_flattened_as_its_file(folder: Path, tmp_path: Path) -> None:
    extractor = pipeline.FaceExtractor()
    upright = Image.open(folder / "photos" / "astronaut.png").convert("RGBA")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by 90 degrees clockwise
    lying = tmp_path / "lying.png"
    upright.transpose(Image.Transpose.ROTATE_90).save(lying, exif=exif)
    (file,), (image,) = extractor.faces(lying), extractor.faces(Image.open(lying))
    (same,) = extractor.faces(upright)
    assert file.embedding.tobytes() == image.embedding.tobytes() == same.embedding.tobytes()


def test_images_that_cannot_be_used_are_answered_each_for_itself(folder: Path, tmp_path: Path) -> None:
    extractor = pipeline.FaceExtractor.from_settings(
        weights="casia-webface", settings={**SETTINGS, "decode.max_pixels": 400_000}
    )
    good, cut = folder / "photos" / "hopper.jpg", tmp_path / "cut.jpg"
    data = io.BytesIO()
    Image.open(folder / "photos" / "astronaut.png").save(data, "JPEG")
    cut.write_bytes(data.getvalue()[:9000])
    too_large = Image.new("RGB", (1000, 1000))
    with Image.open(cut) as broken:
        given = [good, "absent.jpg", b"no image", broken, too_large, np.asarray(too_large), good]
        first, *rejected, last = extractor.faces_of_all(given)
    assert not isinstance(first, ImageRejected)
    assert not isinstance(last, ImageRejected)
    assert len(first) == len(last) == 1
    kinds = [ImageMissing, ImageUnsupported, ImageTruncated, ImageTooLarge, ImageTooLarge]
    assert [type(each) for each in rejected] == kinds
    assert str(rejected[0]) == "absent.jpg: no such file"
    assert [type(each) for each in extractor.faces_of_all([b""])] == [ImageUnsupported]
    assert extractor.faces_of_all([]) == []
    for wrong in (None, 5, np.zeros((80, 80, 3)), np.zeros((80, 80, 4), np.uint8), np.zeros((0, 80, 3), np.uint8)):
        with pytest.raises(UsageError):
            extractor.faces_of_all([good, wrong])  # type: ignore[list-item]


def test_what_a_run_takes_and_decides_can_be_set_for_it_alone(folder: Path, tmp_path: Path) -> None:
    for name in ("Grace/a.jpg", "Grace/b.gif", "Eileen/a.png"):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(folder / "photos" / "hopper.jpg", tmp_path / "photos" / "Grace" / "a.jpg")
    Image.open(folder / "photos" / "hopper.jpg").save(tmp_path / "photos" / "Grace" / "b.gif")
    shutil.copy(folder / "photos" / "astronaut.png", tmp_path / "photos" / "Eileen" / "a.png")
    with pipeline.create_store(tmp_path / "store", weights="casia-webface", settings=SETTINGS) as store:
        report = store.run(tmp_path / "photos", labels="parent", include="*.jpg")
        assert (report.new, [row.name for row in store.people.all()]) == (1, ["Grace"])
        report = store.run(tmp_path / "photos", labels="parent", exclude=["*.jpg", "*.gif"], threshold=4)
        assert (report.new, report.outcomes, report.label_conflicts[0]["name"]) == (1, {"matched": 1}, "Eileen")
        report = store.run(tmp_path / "photos", settings={"source.exclude": "Grace"}, directory="second")
        assert (report.new, report.outcomes) == (1, {"inserted": 1})
        (face,) = store.recognise(folder / "photos" / "astronaut.png")  # by the T of the store again
        assert face.identity is None
        for settings in ({"threshold": 5.0}, {"labels": "folders"}):
            with pytest.raises(BadValue):
                store.run(tmp_path / "photos", **settings)  # type: ignore[arg-type]
        assert store._store.settings.given == {"model.weights", *SETTINGS}


def test_distances_are_on_the_scale_of_the_threshold(folder: Path) -> None:
    with pipeline.open_store(folder / "people", settings=SETTINGS) as store:
        _, vectors = store.matrix()
        (face,) = store.recognise(folder / "photos" / "hopper.jpg", top=2)
        scale = store.calibration
    distances = pipeline.pairwise_distances(vectors, vectors[:1], scale)
    assert distances.shape == (2, 1)
    assert distances.min() == pytest.approx(0, abs=1e-6)
    scores = (2 - np.sqrt(distances)) / (2 - np.sqrt(0.54))
    assert sorted(scores.ravel()) == pytest.approx(sorted(each.similarity_score for each in face.similar), abs=1e-4)
    raw = pipeline.pairwise_distances(vectors)
    assert raw[0, 1] == pytest.approx(float(((vectors[0] - vectors[1]) ** 2).sum()), abs=1e-6)


def test_an_open_store_is_measured_and_stays_open(folder: Path, tmp_path: Path) -> None:
    labels = folder / "of_all.csv"
    labels.write_text("path,name\nphotos/hopper.jpg,Grace\nphotos/astronaut.png,Eileen\nsmall.jpg,Grace\n")
    with pipeline.create_store(tmp_path / "store", weights="casia-webface", settings=SETTINGS) as store:
        store.run(labels)
        report = pipeline.evaluate_clustering(labels, store=store)
        assert report.result == pipeline.evaluate_clustering(labels, clusters=_clusters(store, tmp_path)).result
        assert (report.result.pairwise.recall, report.figures["identities_from"]) == (1, str(store.path))
        assert pipeline.sweep_thresholds(labels, store=store).result[0].pairwise.recall == 1
        measured = pipeline.evaluate_pairs(folder / "pairs.csv", store=store, settings=SETTINGS)
        assert (measured.result.genuine_pairs, measured.figures["embeddings_from"]) == (1, str(store.path))
        for source in (labels, None):
            with pytest.raises(TooLittleData):
                pipeline.calibrate(source, store=store, settings=SETTINGS)
        with pytest.raises(UsageError, match="--store DIR or --clusters FILE"):
            pipeline.evaluate_clustering(labels)
        assert store.persons().num_rows == 2


def _clusters(store: pipeline.OpenStore, folder: Path) -> Path:
    """The photos and their identities, as a table."""
    file = folder / "clusters.csv"
    people = {row.person_id: store.people.photos(row.person_id) for row in store.people.all()}
    rows = [f"{face['path']},{person_id}" for person_id, faces in people.items() for face in faces]
    file.write_text("\n".join(["path,cluster", *rows]) + "\n")
    return file


def test_the_first_things(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """scripts/first_things.py, on a folder for each of two people."""
    for name, photo in (("Grace", "hopper.jpg"), ("Eileen", "astronaut.png")):
        own = tmp_path / "photos" / name
        own.mkdir(parents=True)
        shutil.copy(folder / "photos" / photo, own)
        Image.open(folder / "photos" / photo).convert("RGB").resize((420, 440)).save(own / "b.jpg")
    for key, value in {"RUN__DEVICE": "cpu", "RUN__THREADS": "1", "MODEL__WEIGHTS": "casia-webface"}.items():
        monkeypatch.setenv(f"FACEPIPE_{key}", value)
    script = Path(pipeline.__file__).parents[1] / "scripts" / "first_things.py"
    assert len(script.read_text().splitlines()) <= 60
    for new in (4, 0):
        monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path / "photos"), str(tmp_path / "store")])
        runpy.run_path(str(script), run_name="__main__")
        said = capsys.readouterr().out
        assert f"{new} new photos" in said
        assert "precision 1.00, recall 1.00" in said
        assert "merged: 4 photos; undone: merge" in said
        shutil.rmtree(tmp_path / "store-parquet")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(script)], cwd=script.parents[1], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


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
