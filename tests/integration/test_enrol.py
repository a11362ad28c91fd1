"""What becomes of every face: the contract's rules, on real faces and over shards, runs and directories."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path

import pytest
from PIL import Image

from pipeline.config import Settings
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import Decoder
from pipeline.people.service import IdentityService
from pipeline.store.local import LocalStore
from tests.asking import ask_for
from tests.identities.planted import listed
from tests.integration.conftest import Runner
from tests.integration.snapshot import assert_whole, occurrences, snapshot

pytestmark = pytest.mark.usefixtures("loaded_once")


@pytest.fixture
def photos(tmp_path: Path, hopper_path: Path, astronaut_path: Path) -> Path:
    """a.jpg and a-flip.png show Hopper, b.jpg shows Collins, both.png both, a-twice.png Hopper two times."""
    folder = tmp_path / "photos"
    folder.mkdir()
    a = Image.open(hopper_path).convert("RGB").resize((256, 300))
    b = Image.open(astronaut_path).convert("RGB").resize((300, 300))
    a.save(folder / "a.jpg", quality=95)
    a.transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(folder / "a-flip.png")
    b.save(folder / "b.jpg", quality=95)
    _side_by_side(a, b).save(folder / "both.png")
    _side_by_side(a, a.transpose(Image.Transpose.FLIP_LEFT_RIGHT)).save(folder / "a-twice.png")
    return folder


def _side_by_side(left: Image.Image, right: Image.Image) -> Image.Image:
    image = Image.new("RGB", (560, 300))
    image.paste(left, (0, 0))
    image.paste(right, (260, 0))
    return image


def _manifest(folder: Path, *rows: dict[str, str], name: str = "rows.jsonl") -> Path:
    (folder / name).write_text("\n".join(map(json.dumps, rows)))
    return folder / name


def _faces(store: Path) -> list[tuple[str, int, str]]:
    """(file, ordinal, outcome) of every face."""
    return sorted((Path(f[0]).name, f[2], f[3]) for f in snapshot(store)["faces"])


def test_an_unnamed_photo_enrols_all_its_faces_a_named_one_the_largest(
    photos: Path, runner: Runner, tmp_path: Path
) -> None:
    rows = [
        {"path": "both.png", "name": "Grace", "directory": "named"},
        {"path": "both.png", "external_id": "g-1", "directory": "numbered"},
        {"path": "both.png", "directory": "unnamed"},
    ]
    report = runner(_manifest(photos, *rows))
    found = snapshot(tmp_path / "store")
    assert Counter((f[1], f[2], f[3]) for f in found["faces"]) == Counter(
        [
            *(("named", 0, "inserted"), ("named", 1, "recognised")),
            *(("numbered", 0, "inserted"), ("numbered", 1, "recognised")),
            *(("unnamed", 0, "inserted"), ("unnamed", 1, "inserted")),
        ]
    )
    assert sorted((p[3], p[1], p[2]) for p in found["persons"] if p[3] != "unnamed") == [
        ("named", "Grace", None),
        ("numbered", None, "g-1"),
    ]
    assert (report.work.decoded, report.statuses) == (1, {"duplicate": 2, "ok": 1})
    assert_whole(tmp_path / "store")


@pytest.mark.slow
def test_a_photo_counts_once_for_a_person_however_often_it_shows_them(
    photos: Path, runner: Runner, tmp_path: Path
) -> None:
    """Inserted and met again in one photo: 1. Met twice in a later one: 1 more. A copy of it: 1 more."""
    rows = [{"path": name} for name in ("a-twice.png", "a.jpg", "a-copy.png", "both.png")]
    (photos / "a-copy.png").write_bytes((photos / "a-twice.png").read_bytes())
    runner(_manifest(photos, *rows))
    faces = _faces(tmp_path / "store")
    assert sorted(outcome for name, _, outcome in faces if name == "a-twice.png") == ["inserted", "matched"]
    assert [outcome for name, _, outcome in faces if name == "a-copy.png"] == ["matched", "matched"]
    # The first file by name stands for the person: the copy sorts before the photo it was inserted by.
    assert occurrences(tmp_path / "store") == {("a-copy.png", "main"): 4, ("both.png", "main"): 1}


@pytest.mark.slow
@pytest.mark.parametrize("shard_rows", [1, 2, 10])
def test_shards_change_nothing(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path, shard_rows: int
) -> None:
    """The same rows in shards of one (every copy looks into an earlier shard), of two, and in one shard."""
    names = ("b.jpg", "a.jpg", "b2.jpg", "a-flip.png", "a2.jpg", "both.png", "b3.jpg")
    for copy, original in (("a2.jpg", "a.jpg"), ("b2.jpg", "b.jpg"), ("b3.jpg", "b.jpg")):
        (photos / copy).write_bytes((photos / original).read_bytes())
    changed = dataclasses.replace(settings, run=dataclasses.replace(settings.run, shard_rows=shard_rows))
    report = runner(_manifest(photos, *({"path": name} for name in names)), settings=changed)
    assert (report.work.decoded, report.persons, report.statuses) == (4, 2, {"duplicate": 3, "ok": 4})
    assert occurrences(tmp_path / "store") == {("a-flip.png", "main"): 4, ("b.jpg", "main"): 4}
    assert [f for f in _faces(tmp_path / "store") if f[2] == "inserted"] == [
        ("a.jpg", 0, "inserted"),
        ("b.jpg", 0, "inserted"),
    ]
    folders = list((tmp_path / "store" / "objects").glob("*/*"))
    assert len(folders) == (2 if shard_rows == 1 else 1)  # a shard's pictures share one
    assert list((tmp_path / "store" / "runs").glob("*/shards/*")) == []  # the last copy is in
    assert_whole(tmp_path / "store")


@pytest.mark.slow
def test_a_face_that_was_rejected_is_looked_at_again_in_a_later_run(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    """A rejected face leaves no embedding, so its bytes are extracted once more; then they are known."""
    strict = dataclasses.replace(settings, match=dataclasses.replace(settings.match, min_fsq=1.0))
    first = runner(_manifest(photos, {"path": "a.jpg"}), settings=strict)
    assert (first.outcomes, first.persons, first.rejected) == ({"rejected": 1}, 0, {"sharpness": 1})
    assert list((tmp_path / "store" / "embeddings").rglob("*.parquet")) == []
    second = runner(_manifest(photos, {"path": "a.jpg"}, name="second.jsonl"))
    assert (second.outcomes, second.statuses, second.work.decoded) == ({"inserted": 1}, {"ok": 1}, 1)
    third = runner(_manifest(photos, {"path": "a.jpg"}, name="third.jsonl"))
    assert (third.outcomes, third.statuses, third.work.decoded) == ({"matched": 1}, {"duplicate": 1}, 0)
    assert occurrences(tmp_path / "store") == {("a.jpg", "main"): 2}
    assert_whole(tmp_path / "store")


@pytest.mark.slow
def test_the_gate_stops_insertion_and_not_recognition(
    photos: Path, runner: Runner, settings: Settings, tmp_path: Path
) -> None:
    runner(_manifest(photos, {"path": "a.jpg"}))
    strict = dataclasses.replace(settings, match=dataclasses.replace(settings.match, min_fcq=1.0))
    rows = [{"path": "a-flip.png"}, {"path": "b.jpg"}, {"path": "both.png", "name": "Grace"}]
    report = runner(_manifest(photos, *rows, name="more.jsonl"), settings=strict)
    assert _faces(tmp_path / "store") == [
        ("a-flip.png", 0, "matched"),
        ("a.jpg", 0, "inserted"),
        ("b.jpg", 0, "rejected"),
        ("both.png", 0, "matched"),
        ("both.png", 1, "recognised"),  # it may not be inserted anyway, so no gate was asked
    ]
    assert report.rejected == {"contrast": 1}


@pytest.mark.slow
def test_two_records_of_a_merged_person_in_one_photo_count_once(
    photos: Path, runner: Runner, settings: Settings, extractor: BatchExtractor, tmp_path: Path
) -> None:
    """As a post of it counts."""
    runner(_manifest(photos, {"path": "a.jpg"}, {"path": "b.jpg"}))
    with LocalStore.open(tmp_path / "store", command="test") as client:
        service = IdentityService(client, extractor, Decoder(settings.decode), settings)
        account = client.account_id("default")
        ask_for(service, "merge", account, "main", [view.record.person_id for view in listed(service, account, "main")])
        service.close()
    runner(_manifest(photos, {"path": "both.png"}, name="both.jsonl"))
    assert sum(occurrences(tmp_path / "store").values()) == 3


@pytest.mark.slow
def test_directories_do_not_see_each_other(photos: Path, runner: Runner, tmp_path: Path) -> None:
    """Two directories by turns in the same shards, with the same file in both."""
    rows = [{"path": name, "directory": d} for name in ("a.jpg", "a-flip.png", "b.jpg") for d in ("one", "two")]
    rows.append({"path": "a.jpg", "directory": "one"})
    report = runner(_manifest(photos, *rows))
    assert (report.persons, report.work.decoded) == (4, 3)
    assert report.statuses == {"duplicate": 3, "duplicate_row": 1, "ok": 3}
    assert occurrences(tmp_path / "store") == {
        ("a-flip.png", "one"): 2,
        ("a-flip.png", "two"): 2,
        ("b.jpg", "one"): 1,
        ("b.jpg", "two"): 1,
    }
    assert runner(photos / "rows.jsonl").already_in == 7
    assert_whole(tmp_path / "store")


@pytest.mark.slow
def test_accounts_do_not_see_each_other(photos: Path, runner: Runner, tmp_path: Path) -> None:
    """Not even by what is called a duplicate."""
    source = _manifest(photos, {"path": "a.jpg"})
    runner(source, account="ann")
    with LocalStore.open(tmp_path / "store", command="test") as client:
        client.create_account("bob", None)
    report = runner(source, account="bob")
    assert (report.new, report.statuses, report.outcomes, report.persons) == (1, {"ok": 1}, {"inserted": 1}, 1)


def test_another_name_or_id_is_a_conflict_and_the_match_stands(photos: Path, runner: Runner, tmp_path: Path) -> None:
    rows = [
        {"path": "a.jpg", "name": "Grace", "external_id": "x"},
        {"path": "b.jpg", "name": "Eileen", "external_id": "x"},  # allowed, and listed
        {"path": "a-flip.png", "name": "Grace"},  # says nothing against it
        {"path": "both.png", "name": "Grace", "external_id": "y"},
        {"path": "a-twice.png", "name": "Eileen"},
    ]
    report = runner(_manifest(photos, *rows))
    assert [(Path(c["path"]).name, c["external_id"], c["person_name"]) for c in report.label_conflicts] == [
        ("both.png", "y", "Grace"),
        ("a-twice.png", None, "Grace"),
    ]
    assert report.shared_external_id == [{"directory": "main", "external_id": "x", "persons": 2}]
    (kept,) = (tmp_path / "store" / "runs").glob("*/run.json")  # whoever is deleted later must not be named there
    assert json.loads(kept.read_text())["shared_external_id"] == [{"directory": "main", "persons": 2}]
    assert all(set(c) == {"path", "person_id"} for c in json.loads(kept.read_text())["label_conflicts"])
    assert "Eileen" not in kept.read_text()
    assert [outcome for _, _, outcome in _faces(tmp_path / "store")].count("inserted") == 2
    names = sorted((p[1], p[4]) for p in snapshot(tmp_path / "store")["persons"])
    assert names == [("Eileen", 2), ("Grace", 4)]


def test_a_known_photo_without_a_face_keeps_what_is_known_of_it(photos: Path, runner: Runner, tmp_path: Path) -> None:
    Image.new("RGB", (60, 40), (90, 120, 60)).save(photos / "empty.png")
    runner(_manifest(photos, {"path": "empty.png"}))
    report = runner(_manifest(photos, {"path": "empty.png"}, name="again.jsonl"))
    assert (report.statuses, report.work.decoded) == ({"duplicate": 1}, 0)
    kept = {(m[3], m[5], m[6], m[7]) for m in snapshot(tmp_path / "store")["media"]}
    assert len(kept) == 1
    assert next(iter(kept))[1:] == (60, 40, "png")
