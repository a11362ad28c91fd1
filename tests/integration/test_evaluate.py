"""`facepipe evaluate pairs` and `calibrate` on real photos, from a store and from the models."""

from __future__ import annotations

import dataclasses
import html
import json
import shlex
import shutil
from datetime import datetime, timedelta, timezone
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import Settings, load_settings
from pipeline.errors import BadValue, EmbeddingInvalid, FacepipeError, StoreDamaged, StoreMismatch
from pipeline.evaluation.portraits import Portraits, extract_portraits, stored_portraits
from pipeline.evaluation.report import DELETED, NOT_IN_STORE, NOT_KEPT
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.jobs.calibration_file import write_calibration
from pipeline.jobs.store import Store
from pipeline.jobs.store_identity import make_identity, resolve_threshold
from pipeline.matching.calibration import Calibration
from pipeline.models.registry import weight_set
from pipeline.store.catalog.opening import has_store
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe
from tests.integration.conftest import Runner
from tests.store.store_samples import remove_faces

MISLABELLED = Path(__file__).resolve().parents[2] / "scripts/bench/lfw-mislabelled.txt"
NAMES = ["a1.jpg", "a2.png", "b1.jpg", "b2.jpg", "c-both.png", "d-copy.jpg", "e-noise.png", "g1.webp"]
LINES = """path_a,path_b,same
a1.jpg,a2.png,1
b1.jpg,b2.jpg,1
a1.jpg,b1.jpg,0
a2.png,b2.jpg,0
b2.jpg,a2.png,0
g1.webp,e-noise.png,0
g1.webp,absent.jpg,1
f-broken.jpg,b1.jpg,0
"""


@pytest.fixture
def photos(archive: Path) -> Path:
    return archive / "photos"


@pytest.fixture
def filled(archive: Path) -> Path:
    """The store of the photos. A test that changes it takes `copied`."""
    return archive / "store"


@pytest.fixture
def copied(filled: Path, tmp_path: Path) -> Path:
    """A copy of the store, to be changed."""
    return shutil.copytree(filled, tmp_path / "copied")


def stored(store: Path, photos: Path, names: list[str]) -> Portraits:
    with LocalStore.open(store, command="test") as client:
        return stored_portraits(Store(client, load_settings(environ={})), [str(photos / name) for name in names])


@pytest.mark.slow
def test_a_store_has_the_embeddings_that_the_models_make(photos: Path, filled: Path, extractor: BatchExtractor) -> None:
    paths = [photos / name for name in [*NAMES, "f-broken.jpg", "absent.jpg"]]
    advanced: list[int] = []
    computed = extract_portraits(extractor, {str(p): p for p in paths}, advanced.append)
    read = stored(filled, photos, [*NAMES, "f-broken.jpg", "absent.jpg"])
    assert sum(advanced) == len(paths)
    assert list(read.paths) == list(computed.paths) == [str(photos / name) for name in NAMES]
    np.testing.assert_allclose(read.embeddings, computed.embeddings, atol=1e-5)
    assert read.has_face.tolist() == [name != "e-noise.png" for name in NAMES]
    assert computed.skipped.keys() == read.skipped.keys()
    assert read.skipped[str(photos / "absent.jpg")] == NOT_IN_STORE
    assert read.skipped[str(photos / "f-broken.jpg")] == computed.skipped[str(photos / "f-broken.jpg")]
    assert read.skipped[str(photos / "f-broken.jpg")].startswith("truncated: ")


@pytest.mark.slow
def test_the_face_nearest_the_centre_is_taken(photos: Path, extractor: BatchExtractor) -> None:
    both = photos / "c-both.png"
    image = Decoder(extractor.settings.decode)(both.read_bytes())
    (faces,) = extractor.extract([image])
    assert len(faces) == 2
    middle = [(faces["x1"][k].as_py() + faces["x2"][k].as_py()) / 2 for k in range(2)]
    nearest = int(np.argmin(np.abs(np.array(middle) - image.width / 2)))
    portraits = extract_portraits(extractor, {str(both): both})
    np.testing.assert_allclose(portraits.embeddings[0], faces["embedding"][nearest].as_py(), atol=1e-6)


@pytest.mark.slow
def test_a_rejected_face_is_distinguished_from_no_face(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    strict = dataclasses.replace(settings, match=dataclasses.replace(settings.match, min_fsq=1.0))
    runner(photos, settings=strict)
    portraits = stored(tmp_path / "store", photos, ["a1.jpg", "e-noise.png"])
    assert list(portraits.paths) == [str(photos / "e-noise.png")]
    assert portraits.skipped == {str(photos / "a1.jpg"): NOT_KEPT}


def test_a_deleted_person_is_distinguished_from_no_face(photos: Path, copied: Path) -> None:
    with LocalStore.open(copied, command="test") as client:
        remove_faces(client)
    portraits = stored(copied, photos, ["a1.jpg", "e-noise.png"])
    assert list(portraits.paths) == [str(photos / "e-noise.png")]
    assert portraits.skipped == {str(photos / "a1.jpg"): DELETED}


@pytest.mark.parametrize(
    ("lost", "error", "message"), [(True, StoreDamaged, "no embedding of face"), (False, EmbeddingInvalid, "norm nan")]
)
def test_a_damaged_embedding_is_distinguished_from_no_face(
    photos: Path, copied: Path, lost: bool, error: type[FacepipeError], message: str
) -> None:
    (file,) = [f for f in (copied / "embeddings").rglob("*.parquet") if len(pq.read_table(f)) == 3][:1]
    table = pq.read_table(file)
    vectors = np.stack(table["embedding"].to_pylist()).astype(np.float32)
    vectors[0] = np.nan
    broken = pa.FixedSizeListArray.from_arrays(vectors.ravel(), vectors.shape[1]).cast(table.schema.field(1).type)
    changed = table.slice(1) if lost else pa.table([table["face_id"], broken], schema=table.schema)
    pq.write_table(changed, file)
    with pytest.raises(error, match=message):
        stored(copied, photos, NAMES)


@pytest.mark.slow
def test_pairs_from_a_store(photos: Path, filled: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text(LINES)
    words = ("evaluate", "pairs", pairs, "--images", photos, "--store", filled, "--out", tmp_path / "out")
    report = answer(*words)
    assert (report["pairs"], report["genuine_pairs"], report["pairs_without_face"]) == (5, 2, 1)
    assert report["accuracy"] == 4 / 5
    assert (report["threshold"], report["threshold_asked"]) == (0.54, 0.54)
    assert set(report["fnmr_at_fmr"].values()) == {None}
    assert sum(report["skipped"].values()) == 3
    assert report["skipped"]["the same pair once more"] == 1
    assert report["weights"] == "casia-webface"
    assert json.loads((tmp_path / "out" / "pairs.json").read_text()) == report
    page = (tmp_path / "out" / "pairs.html").read_text()
    assert report["facepipe"] == version("facepipe")
    assert report["command"] == shlex.join(["facepipe", *map(str, words), "--json"])
    assert abs(datetime.fromisoformat(report["date"]) - datetime.now(timezone.utc)) < timedelta(minutes=5)
    for told in ("casia-webface", report["facepipe"], report["date"], html.escape(report["command"])):
        assert f"<td>{told}</td>" in page
    assert page.count("<svg") == 3
    assert "not in the store" in page
    shown = facepipe(*words)
    assert "accuracy    80.00%" in shown.stdout
    assert "not measurable (needs 300 impostor pairs) at FMR 0.01" in shown.stdout
    assert "skipped     1: a photo of the pair: not in the store" in shown.stdout


@pytest.mark.slow
def test_pairs_from_the_models(photos: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("".join(LINES.splitlines(keepends=True)[:5]))
    words = ("evaluate", "pairs", pairs, "--images", photos, "--device", "cpu", "--weights", "casia-webface")
    report = answer(*words, "--threshold", "4")
    assert (report["pairs"], report["accuracy"], report["threshold"]) == (4, 0.5, 4.0)
    report = answer(*words, "--train", pairs, "--calibration", "none")
    assert (report["accuracy"], report["threshold_from"]) == (1.0, "the training pairs")
    assert report["calibration"]["exponent"] == 1.0


def test_what_cannot_be_measured_is_refused(photos: Path, filled: Path, tmp_path: Path) -> None:
    pairs = tmp_path / "pairs.csv"
    pairs.write_text("path_a,path_b,same\na1.jpg,a2.png,1\n")
    words = (pairs, "--images", photos, "--store", filled)
    assert "all of one person" in answer("evaluate", "pairs", *words, exit_code=4)["message"]
    assert "needs the people's names" in answer("evaluate", "pairs", *words, "--all-pairs", exit_code=2)["message"]
    other = answer("evaluate", "pairs", *words, "--weights", "vggface2", exit_code=45)
    assert other["error"] == "store-mismatch"
    pairs.write_text(LINES)
    assert answer("calibrate", *words, "--fmr", "1e-2", exit_code=17)["error"] == "too-little-data"
    assert "at most 0.1" in answer("calibrate", *words, "--fmr", "0.5", exit_code=2)["message"]
    folder = answer("calibrate", *words, "--out", tmp_path, exit_code=2)
    assert "is a folder" in folder["message"]
    (tmp_path / "calibration.json").write_text("mine")
    assert (
        "there already" in answer("calibrate", *words, "--out", tmp_path / "calibration.json", exit_code=2)["message"]
    )
    assert (tmp_path / "calibration.json").read_text() == "mine"
    # A threshold as a rate, which needs a calibration, does not keep anybody from making one.
    rate = answer("calibrate", *words, "--fmr", "1e-2", "--set", "match.threshold=fmr:1e-4", exit_code=17)
    assert "Left out: 1: " in rate["message"]
    assert "has a name" in answer("calibrate", "--store", filled, exit_code=4)["message"]
    assert "Name labelled photos" in answer("calibrate", exit_code=2)["message"]


@pytest.fixture
def calibrated(settings: Settings, tmp_path: Path) -> Settings:
    """Settings with a calibration file, and a threshold as a rate."""
    file = tmp_path / "calibration.json"
    calibration = Calibration(1.5, "planted", 1e-3, "", ((1e-4, 0.3), (1e-3, 0.5)))
    write_calibration(file, calibration, make_identity(settings), {})
    flags = {"model.calibration": str(file), "match.threshold": "fmr:1e-3", "run.device": "cpu"}
    return load_settings(environ={}, flags={**flags, "model.weights": "casia-webface"})


@pytest.mark.slow
def test_a_new_store_takes_the_calibration_and_the_rate(
    photos: Path, runner: Runner, calibrated: Settings, settings: Settings, tmp_path: Path
) -> None:
    report = runner(photos, settings=calibrated)
    assert report.warnings == ()
    with LocalStore.open(tmp_path / "store", command="test") as client:
        assert Calibration.from_dict(client.identity.calibration).exponent == 1.5
        assert report.calibration == "T = 0.54 stands for a false match rate of 0.001 on planted"
        assert f"weights     casia-webface; {report.calibration}" in report.lines()
        planned = client.run_row(str(report.run_id)).settings["match"]
        assert (planned["threshold"], planned["threshold_fmr"]) == (0.5, 1e-3)
        assert resolve_threshold(calibrated, client.identity).match.threshold == 0.5
    other = dataclasses.replace(settings, model=dataclasses.replace(settings.model, calibration="none"))
    with pytest.raises(StoreMismatch, match="calibration"):
        runner(photos, settings=other)


def test_a_rate_outside_the_calibration_makes_no_store(
    photos: Path, runner: Runner, calibrated: Settings, tmp_path: Path
) -> None:
    beyond = dataclasses.replace(calibrated, match=dataclasses.replace(calibrated.match, threshold_fmr=1e-6))
    with pytest.raises(BadValue, match="fmr:1e-06"):
        runner(photos, settings=beyond)
    assert not has_store(tmp_path / "store")


@pytest.mark.slow
@pytest.mark.faces
def test_calibrating_on_labelled_portraits(faces_dir: Path, tmp_path: Path) -> None:
    """The first photos of some people of LFW, as a folder with labels: a rough fit, and its file."""
    folder = tmp_path / "people"
    chosen = [d for d in sorted((faces_dir / "lfw-view1" / "images").iterdir()) if len(list(d.glob("*.jpg"))) >= 3][:10]
    for person in chosen:
        (folder / person.name).mkdir(parents=True)
        for file in sorted(person.glob("*.jpg"))[:3]:
            (folder / person.name / file.name).write_bytes(file.read_bytes())
    out = tmp_path / "calibration.json"
    words = ("calibrate", folder, "--labels", "parent", "--device", "cpu", "--weights", "casia-webface")
    report = answer(*words, "--fmr", "1e-2", "--out", out, "--dataset", "a few of LFW")
    assert report["people"] == 10
    assert report["impostor_pairs"] <= 10 * 9 // 2 * 9
    assert report["exponent_interval_95"][0] < report["exponent"] < report["exponent_interval_95"][1]
    assert report["calibration"]["dataset"].startswith("a few of LFW, ")
    assert json.loads(out.read_text())["calibration"] == report["calibration"]
    assert answer(*words, "--fmr", "1e-5", exit_code=17)["error"] == "too-little-data"
    lowest = answer(*words)["calibration"]
    assert lowest["fmr"] == lowest["thresholds"][0][0] < 1e-2
    assert f"a false match rate of {lowest['fmr']:g} and not 1e-05" in lowest["note"]
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(f"{chosen[0].name}/{next((folder / chosen[0].name).iterdir()).name} # somebody else\n")
    without = answer(*words, "--fmr", "1e-2", "--leave-out", wrong)
    assert without["photos"] == report["photos"] - 1
    assert "1 photos left out by wrong.txt" in without["calibration"]["note"]
    assert without["skipped"]["in the list of photos to leave out"] == 1


@pytest.mark.faces
@pytest.mark.slow
@pytest.mark.parametrize("name", ["casia-webface", "sface"])
def test_the_registry_states_what_the_command_finds(faces_dir: Path, name: str, full: bool) -> None:
    """On all photos of the training people of LFW view 1."""
    if not full:
        pytest.skip("embeds 3,437 photos: with --full")
    lfw = faces_dir / "lfw-view1"
    words = (lfw / "pairsDevTrain.txt", "--images", lfw / "images", "--all-pairs", "--leave-out", MISLABELLED)
    report = answer("calibrate", *words, "--device", "cpu", "--weights", name)
    found, facts = Calibration.from_dict(report["calibration"]), weight_set(name).calibration
    assert (found.fmr, found.exponent) == (facts.fmr, pytest.approx(facts.exponent, abs=2e-3))
    for table, stated in ((found.thresholds, facts.thresholds), (found.intervals, facts.intervals)):
        np.testing.assert_allclose(table, stated, rtol=0, atol=2e-3)
    assert report["skipped"]["in the list of photos to leave out"] == 4
    assert f"{report['skipped']['in the list of photos to leave out']} mislabelled photos left out" in facts.note
