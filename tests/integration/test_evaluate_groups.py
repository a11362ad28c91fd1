"""`facepipe evaluate identification`, `clustering` and `detection` over a real store of a few photos."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from pipeline.config import AVERAGE_LINK, SEQUENTIAL
from pipeline.evaluation.clustering import evaluate_clustering
from pipeline.evaluation.report import DELETED
from pipeline.evaluation.sweep import THRESHOLDS
from pipeline.extraction.extractor import BatchExtractor
from pipeline.matching import calibration
from pipeline.matching.calibration import cut_for
from pipeline.models.registry import CASIA_WEBFACE, REGISTRY
from pipeline.store.commits.removal import remove_persons
from pipeline.store.local import LocalStore
from tests.cli.report import answer, facepipe
from tests.serve.served import serving

HOPPER, COLLINS = "Grace Hopper", "Eileen Collins"
LABELS = {
    "a1.jpg": HOPPER,
    "a2.png": HOPPER,
    "d-copy.jpg": HOPPER,
    "g1.webp": HOPPER,
    "b1.jpg": COLLINS,
    "b2.jpg": COLLINS,
    "h1.bmp": COLLINS,
    "e-noise.png": "Nobody",
    "f-broken.jpg": HOPPER,
    "gone.jpg": COLLINS,
}
GALLERY = ("a1.jpg", "b1.jpg")


def evaluate(*words: object) -> Result:
    return facepipe("evaluate", *words)


def report_of(*words: object, exit_code: int = 0) -> dict[str, Any]:
    return answer("evaluate", *words, exit_code=exit_code)


@pytest.fixture
def photos(archive: Path) -> Path:
    return archive / "photos"


@pytest.fixture(scope="module")
def labels(archive: Path) -> Path:
    rows = [f"photos/{path},{name},{'gallery' if path in GALLERY else 'probe'}" for path, name in LABELS.items()]
    (archive / "labels.csv").write_text("path,name,set\n" + "\n".join(rows) + "\n", "utf-8")
    return archive / "labels.csv"


@pytest.fixture
def store(archive: Path) -> Path:
    return archive / "store"


@pytest.mark.slow
def test_clustering_of_a_store(labels: Path, store: Path, photos: Path, tmp_path: Path) -> None:
    report = report_of("clustering", labels, "--store", store, "--out", tmp_path / "figures")
    assert report["labelled_photos"] == 10
    assert report["faces"] + report["ungrouped"] == 7
    assert report["skipped"] == {"no face found": 1, "not in the store": 1} | {
        reason: 1 for reason in report["skipped"] if reason.startswith("truncated")
    }
    assert sum(report["skipped"].values()) == 3
    assert report["skipped_examples"]["not in the store"] == [str(photos / "gone.jpg")]
    assert report["unlabelled_photos"] == 1  # c-both.png
    # The same, computed from the store's rows: each photo but c-both.png shows one face.
    with LocalStore.open(store, command="test") as client:
        rows = client.read("SELECT path, person_id FROM main.faces").to_pylist()
    pairs = [(row["path"], LABELS.get(Path(row["path"]).name), row["person_id"]) for row in rows]
    labelled = [(path, name, identity) for path, name, identity in pairs if name is not None]
    expected = evaluate_clustering(*(list(column) for column in zip(*labelled, strict=True)))
    assert report["bcubed"] == pytest.approx(asdict(expected.bcubed))
    assert report["pairwise"] == pytest.approx(asdict(expected.pairwise))
    assert report["people"] == 2
    assert json.loads((tmp_path / "figures" / "clustering.json").read_text("utf-8")) == report
    assert "BCubed" in (tmp_path / "figures" / "clustering.html").read_text("utf-8")


@pytest.mark.slow
def test_a_sweep_groups_the_labelled_faces_by_both_methods(labels: Path, store: Path, tmp_path: Path) -> None:
    report = report_of("clustering", labels, "--store", store, "--sweep", "--out", tmp_path)
    assert (report["faces"], report["people"]) == (7, 2)
    rows = {(row["method"], row["threshold"]): row for row in report["sweep"]}
    assert len(rows) == 2 * len(THRESHOLDS)
    for method in (SEQUENTIAL, AVERAGE_LINK):
        low, high = rows[method, THRESHOLDS[0]], rows[method, THRESHOLDS[-1]]
        assert low["identities"] >= high["identities"]
        assert high["pairwise"] == {"precision": 1.0, "recall": 1.0, "f": 1.0}
    page = (tmp_path / "clustering.html").read_text("utf-8")
    assert page.count("<svg") == 2
    one = report_of("clustering", labels, "--store", store, "--sweep", "--method", AVERAGE_LINK)
    assert one["sweep"] == [row for row in report["sweep"] if row["method"] == AVERAGE_LINK]
    for words, option in ((["--sweep"], "--store"), (["--store", store, "--method", SEQUENTIAL], "--sweep")):
        assert option in report_of("clustering", labels, *words, exit_code=2)["message"]


def test_a_cut_follows_from_a_precision_and_the_people(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("regroup", "--store", store, "--method", AVERAGE_LINK, "--dry-run")
    found = answer(*words)["regrouping"]
    with LocalStore.open(store, command="test") as client:
        people = client.read("SELECT count(*) AS n FROM main.persons WHERE person_id = root_person_id")["n"][0].as_py()
    assert found["people"] == people
    assert found["cut"] == cut_for(REGISTRY[CASIA_WEBFACE].cuts, 0.99, people)
    precise = answer(*words, "--precision", 0.999)["regrouping"]
    assert precise["cut"] < found["cut"]
    assert "measured on news photos; yours" in facepipe(*words).output
    monkeypatch.setattr(calibration, "CHECKED_PEOPLE", people - 1)
    assert "measured on news photos, extrapolated to so many: expect less; yours" in facepipe(*words).output


@pytest.mark.slow
def test_clustering_shows_pictures_of_what_is_wrong(photos: Path, labels: Path, tmp_path: Path) -> None:
    clusters = tmp_path / "clusters.csv"
    rows = ["a1.jpg,1", "b1.jpg,1", "b2.jpg,2", "zzz.jpg,9"]
    clusters.write_text("path,cluster\n" + "".join(f"{photos}/{row}\n" for row in rows), "utf-8")
    report = report_of("clustering", labels, "--clusters", clusters, "--out", tmp_path)
    assert (report["faces"], report["identities"], report["unlabelled_photos"]) == (3, 2, 1)
    assert report["pairwise"] == {"precision": 0.0, "recall": 0.0, "f": 0.0}
    assert report["worst_mixed"][0]["parts"][0]["images"] == [str(photos / "a1.jpg")]
    assert report["worst_split"][0]["name"] == COLLINS
    page = (tmp_path / "clustering.html").read_text("utf-8")
    assert page.count("data:image/jpeg;base64,") == 4
    assert HOPPER in page
    assert "http://" not in page.replace("http://www.w3.org/", "")


def test_a_photo_of_several_counts_by_the_face_nearest_its_centre(store: Path, photos: Path, tmp_path: Path) -> None:
    both = str(photos / "c-both.png")
    with LocalStore.open(store, command="test") as client:
        rows = client.read("SELECT * FROM main.faces JOIN main.media USING (path) WHERE path = ?", [both]).to_pylist()
    assert len({row["person_id"] for row in rows}) == len(rows) == 2
    central = min(
        rows, key=lambda r: abs(r["x1"] + r["x2"] - r["width"]) ** 2 + abs(r["y1"] + r["y2"] - r["height"]) ** 2
    )
    leftmost = min(rows, key=lambda r: r["x1"])  # Hopper
    together = {}
    for name in ("a1.jpg", "b1.jpg"):
        file = tmp_path / "both.csv"
        file.write_text(f"path,name\n{both},Whoever\n{photos / name},Whoever\n", "utf-8")
        report = report_of("clustering", file, "--store", store)
        assert report["photos_with_several_faces"] == 1
        together[name] = report["identities"] == 1
    assert together == {"a1.jpg": central is leftmost, "b1.jpg": central is not leftmost}


def test_clustering_that_cannot_be_done(labels: Path, store: Path, tmp_path: Path) -> None:
    assert evaluate("clustering", labels).exit_code == 2
    assert evaluate("clustering", labels, "--store", store, "--clusters", labels).exit_code == 2
    assert evaluate("clustering", labels, "--store", tmp_path / "none").exit_code == 40
    assert evaluate("clustering", tmp_path / "none.csv", "--store", store).exit_code == 10
    assert evaluate("clustering", labels, "--store", store, "--account", "nobody").exit_code == 46
    elsewhere = evaluate("clustering", labels, "--store", store, "--directory", "other")
    assert elsewhere.exit_code == 4
    assert "holds none of the 10 labelled photos" in elsewhere.output


def test_identification_in_a_store(labels: Path, store: Path, tmp_path: Path) -> None:
    report = report_of("identification", labels, "--store", store, "--out", tmp_path)
    assert (report["gallery_people"], report["gallery_images"]) == (2, 2)
    assert report["rank_1"] == 1
    assert report["mated_searches"] == 5 - report["skipped"].get(
        "the store keeps no embedding of a face that its quality gate rejected", 0
    )
    assert (report["non_mated_searches"], report["probes_without_face"]) == (1, 1)  # the noise
    assert [rate["fnir"] for rate in report["fnir_at_fpir"]] == [None, None, None]
    assert report["fpir_at_threshold"] == 0
    page = (tmp_path / "identification.html").read_text("utf-8")
    assert "not measurable (needs 30 non-mated searches)" in page
    assert "<svg" in page


def test_identification_by_the_models(labels: Path) -> None:
    report = report_of("identification", labels, "--weights", "casia-webface", "--device", "cpu")
    assert report["rank_1"] == 1
    assert report["gallery_images"] == 2
    assert report["skipped"]["missing: no such file"] == 1
    assert any(reason.startswith("truncated") for reason in report["skipped"])


def test_a_gallery_of_the_first_photos(labels: Path, store: Path) -> None:
    report = report_of("identification", labels, "--store", store, "--gallery-per-person", 1)
    assert report["gallery_people"] == 2
    assert report["rank_1"] == 1
    assert "2 people" in evaluate("identification", labels, "--store", store, "--gallery-per-person", 1).output


def test_identification_that_cannot_be_done(labels: Path, store: Path, photos: Path, tmp_path: Path) -> None:
    other_model = evaluate("identification", labels, "--store", store, "--weights", "vggface2")
    assert other_model.exit_code == 45
    unset = tmp_path / "unset.csv"
    unset.write_text(labels.read_text("utf-8").replace("gallery", "reference").replace("photos", str(photos)), "utf-8")
    assert evaluate("identification", unset, "--store", store).exit_code == 12
    alone = evaluate("identification", labels, "--store", store, "--gallery-per-person", 9)
    assert alone.exit_code == 4
    assert "nobody is enrolled" in alone.output


@pytest.fixture
def boxes(store: Path, photos: Path, tmp_path: Path) -> Path:
    """The store's boxes moved by a pixel, one box without a face, one image without a face, and a missing image."""
    with LocalStore.open(store, command="test") as client:
        rows = client.read("SELECT DISTINCT path, x1, y1, x2, y2 FROM main.faces ORDER BY ALL").to_pylist()
    lines = [f"{row['path']},{row['x1'] + 1},{row['y1']},{row['x2'] + 1},{row['y2']}" for row in rows]
    lines += [f"{photos / 'a1.jpg'},0,0,9,9", f"{photos / 'e-noise.png'},,,,", f"{photos / 'gone.jpg'},1,1,9,9"]
    file = tmp_path / "boxes.csv"
    file.write_text("path,x1,y1,x2,y2\n" + "\n".join(lines) + "\n", "utf-8")
    return file


def test_detection_from_a_store_and_by_the_detector(boxes: Path, store: Path, tmp_path: Path) -> None:
    stored = report_of("detection", boxes, "--store", store, "--out", tmp_path)
    assert stored["skipped"] == {"not in the store": 1}
    assert (stored["faces"], stored["found"], stored["false_alarms"]) == (stored["found"] + 1, stored["found"], 0)
    assert stored["found"] >= 9
    assert stored["average_precision"] == pytest.approx(stored["recall"])
    assert [image["missed"] for image in stored["worst_images"]] == [1]
    assert "<svg" in (tmp_path / "detection.html").read_text("utf-8")
    detected = report_of("detection", boxes, "--device", "cpu")
    assert detected["skipped"] == {"missing: no such file": 1}
    for figure in ("images", "faces", "found", "false_alarms"):
        assert detected[figure] == stored[figure]
    assert np.allclose(detected["confidences"], stored["confidences"], atol=1e-4)


def test_detection_with_small_faces_left_out(boxes: Path, store: Path) -> None:
    report = report_of("detection", boxes, "--store", store, "--min-px", 20)
    assert (report["recall"], report["precision"], report["ignored_faces"]) == (1, 1, 1)
    assert "recall      100.00%" in evaluate("detection", boxes, "--store", store, "--min-px", 20).output


def test_an_error_names_the_reasons_where_no_photo_can_be_read(boxes: Path, labels: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone.csv"
    gone.write_text(f"path,x1,y1,x2,y2,name,set\n{tmp_path}/x.jpg,1,1,99,99,Ann,gallery\n", "utf-8")
    for command in ("detection", "identification"):
        error = report_of(command, gone, "--device", "cpu", exit_code=4)
        assert error["message"].endswith(" Left out: 1: missing: no such file.")


def test_a_folder_that_cannot_be_written_fails_before_the_work(labels: Path, store: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        error = report_of("clustering", labels, "--store", store, "--out", out, exit_code=2)
        assert "--out" in error["message"]


def test_detection_that_cannot_be_done(boxes: Path, store: Path, tmp_path: Path) -> None:
    assert evaluate("detection").exit_code == 2
    assert evaluate("detection", tmp_path / "none.xml").exit_code == 10
    assert report_of("detection", boxes, "--store", store, "--min-px", 9999, exit_code=4)["error"] == "input-error"
    (tmp_path / "odd.xml").write_text("<html/>", "utf-8")
    assert report_of("detection", tmp_path / "odd.xml", exit_code=15)["error"] == "boxes-invalid"
    assert evaluate("detection", boxes, "--store", store, "--directory", "other").exit_code == 4


def test_a_page_is_one_file_and_no_folder_is_made_without_out(labels: Path, store: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    evaluate("clustering", labels, "--store", store)
    assert sorted(tmp_path.iterdir()) == before


def changed(store: Path, copy: Path, *statements: str) -> Path:
    """A copy of the store, with its catalog changed by the statements."""
    shutil.copytree(store, copy)
    with LocalStore.open(copy, command="test") as client:
        for statement in statements:
            client.submit(lambda catalog, sql=statement: catalog.execute(sql))
    return copy


def test_merged_identities_count_as_their_root(labels: Path, store: Path, tmp_path: Path) -> None:
    join = (
        "UPDATE core.persons SET parent_id = (SELECT person_id FROM core.persons ORDER BY seq LIMIT 1)"
        " WHERE seq > (SELECT min(seq) FROM core.persons)"
    )
    report = report_of("clustering", labels, "--store", changed(store, tmp_path / "merged", join))
    assert report_of("clustering", labels, "--store", store)["identities"] > 1
    assert report["identities"] == 1
    assert report["bcubed"]["recall"] == 1


def test_the_latest_row_of_a_path_counts(labels: Path, store: Path, photos: Path, tmp_path: Path) -> None:
    # As after a run over changed files: a1.jpg is now a photo of the other person.
    a1, b2 = (str(photos / name) for name in ("a1.jpg", "b2.jpg"))
    copy = changed(store, tmp_path / "later", f"UPDATE core.media SET path = '{a1}' WHERE path = '{b2}'")
    with LocalStore.open(copy, command="test") as client:
        rows = client.read("SELECT person_id FROM main.faces WHERE path = ? ORDER BY media_id", [a1]).to_pylist()
    assert len({row["person_id"] for row in rows}) == 2
    only = tmp_path / "only.csv"
    only.write_text(f"path,name\n{a1},{COLLINS}\n{photos / 'b1.jpg'},{COLLINS}\n", "utf-8")
    assert report_of("clustering", only, "--store", copy)["bcubed"]["recall"] == 1
    assert report_of("clustering", only, "--store", store)["bcubed"]["recall"] == 0.5


def test_photos_of_deleted_people_are_skipped(
    labels: Path, boxes: Path, store: Path, photos: Path, tmp_path: Path
) -> None:
    """They count neither as faceless nor as missed, and no other face on them becomes the central one."""
    both = [str(photos / "c-both.png")]
    with LocalStore.open(shutil.copytree(store, tmp_path / "copy"), command="test") as client:
        sql = "SELECT person_id FROM main.faces WHERE path = ? ORDER BY x1 LIMIT 1"
        hopper = client.read(sql, both)["person_id"].to_pylist()
        sql = "SELECT account_id, directory_id FROM core.persons JOIN core.directories USING (directory_id)"
        (place,) = client.read(f"{sql} WHERE person_id = ?", hopper).to_pylist()
        client.submit(lambda catalog: remove_persons(catalog, *place.values(), hopper, frozenset()))
    clustering = report_of("clustering", labels, "--store", tmp_path / "copy")
    assert clustering["skipped"]["not in the store"] >= 1  # those that showed nobody else
    assert clustering["skipped"]["no face found"] == 1  # the noise
    detection = report_of("detection", boxes, "--store", tmp_path / "copy")
    assert detection["skipped"][DELETED] == 1
    assert detection["skipped_examples"][DELETED].count(both[0]) == 1
    assert detection["found"] == detection["faces"]


def test_a_store_behind_a_server_gives_the_same_figures(
    labels: Path, boxes: Path, store: Path, extractor: BatchExtractor
) -> None:
    commands = [("clustering", labels), ("detection", boxes), ("identification", labels, "--device", "cpu")]
    direct = [report_of(*words, "--store", store) for words in commands]
    with serving(store, extractor):
        through = [report_of(*words, "--store", store) for words in commands]
    for report in (*direct, *through):
        del report["date"]
    assert through == direct


def test_folders_of_people_against_a_table(photos: Path, tmp_path: Path) -> None:
    for name in ("a1.jpg", "b1.jpg", "b2.jpg"):
        folder = tmp_path / "people" / LABELS[name]
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(photos / name, folder)
    clusters = tmp_path / "clusters.jsonl"
    cluster_of = {f"people/{HOPPER}/a1.jpg": 0, f"people/{COLLINS}/b1.jpg": 1, f"people/{COLLINS}/b2.jpg": 1}
    clusters.write_text(
        "".join(json.dumps({"path": path, "cluster": c}) + "\n" for path, c in cluster_of.items()), "utf-8"
    )
    report = report_of("clustering", tmp_path / "people", "--labels", "parent", "--clusters", clusters)
    assert (report["people"], report["people_found_exactly"], report["pairwise"]["f"]) == (2, 2, 1)
    assert evaluate("clustering", tmp_path / "people", "--clusters", clusters).exit_code == 2
