"""Photos whose files change: their faces go on being whose they were, and only what is not on them any more leaves."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from coded_faces import SIDE, CodedExtractor, Shown, photo, pixels, shown
from PIL import Image

from pipeline.errors import StoreFull
from pipeline.people import reference_pictures
from pipeline.store.checks.check import check_store
from pipeline.store.files.objects import object_file
from pipeline.store.local import LocalStore
from pipeline.store.records import CorrectionRequest, PersonChange
from tests.cli.report import facepipe
from tests.people.changes import held
from tests.people.coded_archive import (
    SETTINGS,
    SIZE,
    ArchiveExtractor,
    make_store,
    problems,
    run_over,
    serving,
    write_photo,
)
from tests.people.correcting import People
from tests.store.store_samples import failing_at

HERE = """
    SELECT m.path, f.ordinal, f.outcome, f.person_id::VARCHAR AS person, f.face_id, p.name, p.occurrence,
        f.face_id IN (SELECT face_id FROM core.reference_faces) AS reference,
        f.face_id IN (SELECT face_id FROM core.embeddings) AS vector
    FROM core.faces f JOIN core.media m USING (media_id) LEFT JOIN core.persons p USING (person_id)
    WHERE f.outcome <> 'removed' ORDER BY m.path, m.media_id, f.ordinal
"""


class Archive:
    """Photos of a test's own, and the store that runs make of them, which must be whole after each."""

    def __init__(self, folder: Path) -> None:
        self.photos, self.store = folder / "photos", make_store(folder / "store")

    def write(self, name: str, *faces: Shown) -> Path:
        return write_photo(self.photos, name, *faces)

    def run(self) -> Any:
        report = run_over(self.photos, self.store)
        assert problems(self.store) == []
        return report

    def faces(self) -> dict[tuple[str, int], dict[str, Any]]:
        """By photo and ordinal: each photo has one row with faces."""
        with LocalStore.open(self.store, command="test") as client:
            rows = client.read(HERE).to_pylist()
        found = {(Path(row["path"]).name, row["ordinal"]): row for row in rows}
        assert len(found) == len(rows)
        return found

    def read(self, sql: str) -> list[dict[str, Any]]:
        with LocalStore.open(self.store, command="test") as client:
            rows: list[dict[str, Any]] = client.read(sql).to_pylist()
        return rows

    def correct(self, kind: str, *persons: str, faces: tuple[int, ...] = (), **more: Any) -> Any:
        with LocalStore.open(self.store, command="test") as client:
            people = People(client, "", "", "")
            try:
                return people.correct(kind, *persons, faces=faces, **more)
            finally:
                people.service.close()

    def persons(self) -> dict[str, tuple[str | None, int]]:
        rows = self.read("SELECT person_id::VARCHAR AS person, name, occurrence FROM core.persons")
        return {row["person"]: (row["name"], row["occurrence"]) for row in rows}


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path)


@pytest.mark.slow
def test_a_photo_that_is_saved_again_keeps_its_face(archive: Archive) -> None:
    """Whatever its quality is now: the person is known by it, and was seen no more often."""
    archive.write("a.png", Shown(1))
    archive.write("b.png", Shown(1, 1))
    archive.run()
    before = archive.faces()
    (person,) = archive.persons()
    picture = archive.read("SELECT image_guid FROM core.reference_faces")[0]["image_guid"]
    archive.correct("name", person, name="Ann")
    for quality in (0.8, 0.1):
        archive.write("a.png", Shown(1, 5, quality))
        report = archive.run()
        assert (report.changed, report.new) == (1, 0)
        after = archive.faces()
        new = after["a.png", 0]
        assert new["face_id"] != before["a.png", 0]["face_id"]
        assert (new["person"], new["outcome"], new["reference"], new["vector"]) == (person, "matched", True, True)
        assert archive.persons() == {person: ("Ann", 2)}
    rows = archive.read("SELECT status, path, sha256 FROM core.media ORDER BY media_id")
    assert [row["status"] for row in rows] == ["replaced", "ok", "replaced", "ok"]
    assert (rows[0]["path"], rows[0]["sha256"]) == (None, None)
    assert not archive.store.joinpath(object_file(picture)).exists()
    assert archive.run().already_in == 2


@pytest.mark.slow
def test_back_and_forth_is_a_change_each_time(archive: Archive) -> None:
    one, other = photo(Shown(1)), photo(Shown(1, 3))
    path = archive.write("a.png")
    persons = []
    for data in (one, other, one, other):
        path.write_bytes(data)
        report = archive.run()
        assert report.changed == (len(persons) > 0)
        persons.append(archive.faces()["a.png", 0]["person"])
        assert len(archive.faces()) == 1
    assert len(set(persons)) == 1
    assert list(archive.persons().values()) == [(None, 1)]


@pytest.mark.slow
def test_faces_that_change_places_keep_their_persons(archive: Archive) -> None:
    """As in a photo that was turned: wherever they are now."""
    archive.write("a.png", Shown(1), Shown(2))
    archive.run()
    before = archive.faces()
    archive.write("a.png", Shown(2, 3), Shown(1, 3))
    archive.run()
    after = archive.faces()
    assert after["a.png", 0]["person"] == before["a.png", 1]["person"]
    assert after["a.png", 1]["person"] == before["a.png", 0]["person"]
    assert [occurrence for _, occurrence in archive.persons().values()] == [1, 1]


@pytest.mark.slow
def test_a_photo_that_lies_on_its_side_keeps_what_it_showed(archive: Archive) -> None:
    path = archive.write("a.png", Shown(1), Shown(2))
    archive.run()
    before = archive.faces()
    Image.fromarray(np.rot90(pixels(Shown(1), Shown(2)))).save(path)
    archive.run()
    assert archive.faces() == before
    statuses = [row["status"] for row in archive.read("SELECT status FROM core.media ORDER BY media_id")]
    assert statuses == ["ok", "no_face"]
    archive.write("a.png", Shown(1, 1), Shown(2, 1))
    archive.run()
    assert [row["person"] for row in archive.faces().values()] == [row["person"] for row in before.values()]
    statuses = [row["status"] for row in archive.read("SELECT status FROM core.media ORDER BY media_id")]
    assert statuses == ["replaced", "replaced", "ok"]


@pytest.mark.slow
def test_a_square_that_lies_on_its_side_keeps_what_it_showed(archive: Archive) -> None:
    path = archive.write("a.png", Shown(1))
    archive.run()
    before = archive.faces()
    Image.fromarray(np.rot90(pixels(Shown(1)))).save(path)
    archive.run()
    assert archive.faces() == before
    archive.write("a.png", Shown(1, 1))
    archive.run()
    assert [row["person"] for row in archive.faces().values()] == [row["person"] for row in before.values()]


@pytest.mark.slow
def test_a_poor_face_on_a_photo_that_lies_on_its_side_replaces_nobody(archive: Archive) -> None:
    """The detector finds one in some of them; it looks like none of those that the photo showed."""
    archive.write("a.png", Shown(1))
    archive.run()
    (before,) = archive.faces().values()
    archive.write("a.png", Shown(9, 0, 0.1))
    archive.run()
    faces = archive.read(f"SELECT person, outcome FROM ({HERE})")
    assert faces == [{"person": before["person"], "outcome": "inserted"}, {"person": None, "outcome": "rejected"}]
    archive.write("a.png", Shown(1, 1))
    archive.run()
    (after,) = archive.faces().values()
    assert (after["person"], after["reference"]) == (before["person"], True)


@pytest.mark.slow
def test_turned_by_exif_only(archive: Archive) -> None:
    """The pixels lie on their side, and EXIF says so: upright, all is where it was."""
    path = archive.write("a.png", Shown(1), Shown(2))
    archive.run()
    before = archive.faces()
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise
    data = io.BytesIO()
    Image.fromarray(np.rot90(pixels(Shown(1, 4), Shown(2, 4)))).save(data, "PNG", exif=exif)
    path.write_bytes(data.getvalue())
    archive.run()
    after = archive.faces()
    assert [row["person"] for row in after.values()] == [row["person"] for row in before.values()]
    assert all(row["reference"] for row in after.values())


@pytest.mark.slow
def test_a_resized_photo(archive: Archive, monkeypatch: pytest.MonkeyPatch) -> None:
    """Boxes are compared as parts of the photo: its faces are too poor to be like the earlier ones."""

    def extract(self: CodedExtractor, images: Any, *_: Any) -> list[pa.Table]:
        tables = []
        for image in images:
            scale = image.pixels.shape[0] // SIDE
            table = self.table(shown(image.pixels[::scale, ::scale]))
            for number, name in enumerate(("x1", "y1", "x2", "y2")):
                table = table.set_column(number, table.schema.field(name), pc.multiply(table[name], np.float32(scale)))
            tables.append(table)
        return tables

    monkeypatch.setattr(ArchiveExtractor, "extract", extract)
    path = archive.write("a.png", Shown(1), Shown(2))
    archive.run()
    before = archive.faces()
    large = pixels(Shown(1, 6, 0.1), Shown(2, 6, 0.1)).repeat(3, 0).repeat(3, 1)
    Image.fromarray(large).save(path)
    archive.run()
    assert [row["person"] for row in archive.faces().values()] == [row["person"] for row in before.values()]


@pytest.mark.slow
def test_who_is_cropped_away_leaves(archive: Archive) -> None:
    archive.write("a.png", Shown(1), Shown(2), Shown(3), Shown(4))
    archive.write("b.png", Shown(2, 1))
    archive.run()
    before = archive.faces()
    one, two, three, four = (before["a.png", k]["person"] for k in range(4))
    archive.correct("name", three, name="Cid")
    archive.write("a.png", Shown(1))
    archive.run()
    after = archive.faces()
    assert {key: row["person"] for key, row in after.items()} == {("a.png", 0): one, ("b.png", 0): two}
    assert after["b.png", 0]["reference"]  # the best of those that are left
    assert archive.persons() == {one: (None, 1), two: (None, 2), three: ("Cid", 1)}
    with LocalStore.open(archive.store, command="test") as client:
        client.fold()
        assert client.read_table("embeddings").read_all().num_rows == 2
        assert check_store(client).problems == []
    assert four not in archive.persons()


@pytest.mark.slow
def test_a_stranger_at_the_same_place_is_nobody_who_was_there(archive: Archive) -> None:
    archive.write("DSC_0001.png", Shown(1))
    archive.run()
    ((person, _),) = archive.persons().items()
    archive.correct("name", person, name="Ann")
    archive.write("DSC_0001.png", Shown(2))
    archive.run()
    assert archive.faces()["DSC_0001.png", 0]["person"] != person
    assert archive.persons()[person] == ("Ann", 1)  # without a face
    archive.write("DSC_0001.png", Shown(3))
    archive.run()
    assert len(archive.persons()) == 2  # who had no name is gone


@pytest.mark.slow
def test_the_report_says_who_lost_and_gained_faces(archive: Archive) -> None:
    """By name, or by the beginning of the id. A merged set is one, and who loses one face for another lost none."""
    archive.write("a.png", Shown(1), Shown(2), Shown(3), Shown(4))
    archive.write("b.png", Shown(4, 1))
    archive.write("c.png", Shown(5))
    archive.run()
    one, two, _, four = (archive.faces()["a.png", k]["person"] for k in range(4))
    five = archive.faces()["c.png", 0]["person"]
    archive.correct("name", one, name="Ann")
    archive.correct("name", four, name="Dora")
    archive.correct("merge", four, five)
    archive.write("a.png", Shown(3, 1), Shown(6))
    archive.write("b.png", Shown(1, 1), Shown(5, 1))
    report = run_through_command(archive)
    six = archive.faces()["a.png", 1]["person"]
    a, b = str(archive.photos / "a.png"), str(archive.photos / "b.png")
    told = [
        (one, "Ann", a, "lost"),
        (two, None, a, "deleted"),
        (four, "Dora", a, "lost"),
        (six, None, a, "gained"),
        (one, "Ann", b, "gained"),
    ]
    answer = json.loads(report.stdout)
    assert {(f["person_id"], f["name"], f["path"], f["change"]) for f in answer["face_changes"]} == {*told}
    assert (answer["faces_lost"], answer["faces_gained"], answer["people_deleted"]) == (3, 2, 1)
    (line,) = [line for line in report.stderr.splitlines() if "photos changed" in line]
    assert line == (
        f"facepipe: Because photos changed: {two[:8]} lost the last face and was deleted; Ann lost a face; Dora lost"
        f" a face; Ann gained a face; {six[:8]} gained a face."
    )
    page = Path(answer["pages"][0]).read_text("utf-8")
    assert "Who lost or gained a face, because a photo changed" in page
    assert f"{two[:8]}</td><td>{a}</td><td>deleted" in page
    (kept,) = [f for f in report_in_store(archive, answer["run_id"])["face_changes"] if f["person_id"] == four]
    assert kept == {"person_id": four, "path": a, "change": "lost"}
    again = run_through_command(archive)
    assert json.loads(again.stdout)["face_changes"] == []
    assert "photos changed" not in again.stderr


def run_through_command(archive: Archive) -> Any:
    """`facepipe run --json`."""
    with patch("pipeline.run.stages.load_extractor", lambda *_: ArchiveExtractor(SIZE)):
        result = facepipe("run", archive.photos, "--store", archive.store, "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    assert problems(archive.store) == []
    return result


def report_in_store(archive: Archive, run_id: str) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((archive.store / "runs" / run_id / "run.json").read_text())
    return report


@pytest.mark.slow
def test_a_resumed_run_says_whom_the_first_part_changed(archive: Archive) -> None:
    for name, person in (("a.png", 1), ("b.png", 2)):
        archive.write(name, Shown(person))
    archive.run()
    for name, person in (("a.png", 3), ("b.png", 4)):
        archive.write(name, Shown(person))
    one_each = replace(SETTINGS, run=replace(SETTINGS.run, shard_rows=1))
    commit, done = LocalStore.commit_prepared, []

    def first_only(self: LocalStore, prepared: Any) -> Any:
        if done:
            raise StoreFull(path=archive.store, detail="no space left")
        done.append(prepared)
        return commit(self, prepared)

    with patch.object(LocalStore, "commit_prepared", first_only), pytest.raises(StoreFull):
        run_over(archive.photos, archive.store, settings=one_each)
    report = archive.run()
    assert (report.faces_lost, report.faces_gained, report.people_deleted) == (2, 2, 2)
    changes = [(Path(f["path"]).name, f["change"]) for f in report.face_changes]
    assert changes == [("a.png", "deleted"), ("a.png", "gained"), ("b.png", "deleted"), ("b.png", "gained")]


@pytest.mark.slow
def test_files_that_exchange_names(archive: Archive) -> None:
    """Who is seen at another path now stays who it is: what is there is decided before what was there leaves."""
    for name, person in (("a.png", 1), ("b.png", 2)):
        archive.write(name, Shown(person))
    archive.run()
    before = archive.faces()
    for name, person in (("a.png", 2), ("b.png", 1)):
        archive.write(name, Shown(person))
    report = archive.run()
    assert (report.changed, report.moved) == (2, 0)
    after = archive.faces()
    assert after["a.png", 0]["person"] == before["b.png", 0]["person"]
    assert after["b.png", 0]["person"] == before["a.png", 0]["person"]
    assert all(row["reference"] for row in after.values())


@pytest.mark.slow
def test_what_was_stated_of_a_face_is_stated_of_the_one_that_it_is_now(archive: Archive) -> None:
    archive.write("a.png", Shown(1), Shown(2), Shown(3))
    archive.write("b.png", Shown(4))
    archive.run()
    before = archive.faces()
    four = before["b.png", 0]["person"]
    ids = [before["a.png", k]["face_id"] for k in range(3)]
    archive.correct("move", four, faces=(ids[0],))
    archive.correct("move", faces=(ids[1],))
    facts = archive.read("SELECT * FROM core.facts ORDER BY ALL")
    archive.write("a.png", Shown(2, 1), Shown(1, 1, 0.1), Shown(3, 1))
    archive.run()
    after = archive.faces()
    assert [after["a.png", k]["person"] for k in range(3)] == [None, four, before["a.png", 2]["person"]]
    assert [after["a.png", k]["outcome"] for k in range(3)] == ["recognised", "matched", "matched"]
    new = {ids[0]: after["a.png", 1]["face_id"], ids[1]: after["a.png", 0]["face_id"]}
    moved = sorted(({**fact, "face_id": new[fact["face_id"]]} for fact in facts), key=str)
    assert sorted(archive.read("SELECT * FROM core.facts"), key=str) == moved
    assert [fact["kind"] for fact in facts] == ["is", "nobody"]


@pytest.mark.slow
def test_a_copy_of_the_old_bytes_keeps_its_faces_and_what_was_stated(archive: Archive, tmp_path: Path) -> None:
    first = archive.write("a.png", Shown(1))
    archive.write("b.png", Shown(2))
    archive.run()
    two = archive.faces()["b.png", 0]["person"]
    archive.correct("name", archive.faces()["a.png", 0]["person"], name="Ann")
    archive.correct("move", two, faces=(1,))
    shutil.copy(first, archive.photos / "copy.png")
    archive.run()
    assert archive.faces()["copy.png", 0]["person"] == two
    old = first.read_bytes()
    archive.write("a.png", Shown(1, 4))
    (archive.photos / "later.png").write_bytes(old)
    archive.run()
    faces = archive.faces()
    assert {name: row["person"] for (name, _), row in faces.items()} == dict.fromkeys(
        ("a.png", "b.png", "copy.png", "later.png"), two
    )
    stated = archive.read("SELECT kind, face_id FROM core.facts WHERE kind = 'is' ORDER BY face_id")
    assert {row["face_id"] for row in stated} == {faces[name, 0]["face_id"] for name in ("a.png", "copy.png")}


@pytest.mark.slow
def test_an_edited_photo_beside_its_original(archive: Archive) -> None:
    """The original is new, with the bytes that the path had before: those leave, and can't be used for it."""
    archive.write("a.png", Shown(1))
    archive.run()
    before = archive.faces()["a.png", 0]["person"]
    shutil.copy(archive.photos / "a.png", archive.photos / "a_original.png")
    archive.write("a.png", Shown(1, 2))
    report = archive.run()
    assert (report.changed, report.new) == (1, 1)
    assert {row["person"] for row in archive.faces().values()} == {before}
    assert archive.persons() == {before: (None, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "folder"])
def test_a_file_that_cannot_be_used_now_takes_nothing_away(archive: Archive, damage: str) -> None:
    path = archive.write("a.png", Shown(1))
    archive.write("b.png", Shown(2))
    archive.run()
    before = archive.faces()
    path.write_bytes(path.read_bytes()[:70])
    if damage == "folder":
        path.unlink()
        path.mkdir()
    archive.run()
    assert archive.faces() == before
    if damage == "folder":
        path.rmdir()
    archive.write("a.png", Shown(1, 1))
    archive.run()
    assert archive.faces()["a.png", 0]["person"] == before["a.png", 0]["person"]
    rows = archive.read("SELECT status FROM core.media ORDER BY media_id")
    assert {row["status"] for row in rows} == {"replaced", "ok"}


@pytest.mark.slow
def test_people_who_are_merged_and_hidden(archive: Archive) -> None:
    archive.write("a.png", Shown(1), Shown(2), Shown(3))
    archive.write("b.png", Shown(1, 1))
    archive.run()
    one, two, three = (archive.faces()["a.png", k]["person"] for k in range(3))
    archive.correct("merge", one, two)
    archive.correct("hide", three)
    archive.write("a.png", Shown(2, 1), Shown(3, 1))
    archive.run()
    rows = archive.read("SELECT person_id::VARCHAR AS person, parent_id::VARCHAR AS parent, ignored FROM core.persons")
    assert {row["person"]: (row["parent"], row["ignored"]) for row in rows} == {
        one: (None, False),
        two: (one, False),
        three: (None, True),
    }
    archive.write("b.png", Shown(7))
    archive.run()  # the root goes
    parents = {
        row["person"]: row["parent"]
        for row in archive.read("SELECT person_id::VARCHAR AS person, parent_id::VARCHAR AS parent FROM core.persons")
    }
    assert one not in parents
    assert parents[two] is None


@pytest.mark.slow
def test_the_last_person_of_a_directory(archive: Archive) -> None:
    path = archive.write("a.png", Shown(1))
    archive.run()
    Image.fromarray(pixels().repeat(2, 1)).save(path)  # cropped, so it does not only lie on its side
    archive.run()
    assert archive.read("SELECT 1 AS x FROM core.directories") == []


@pytest.mark.slow
def test_who_is_on_no_photo_that_can_be_read_is_known_without_a_picture(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive.write("a.png", Shown(1))
    archive.write("b.png", Shown(1, 1))
    archive.run()
    (person,) = archive.persons()
    monkeypatch.setattr(reference_pictures.Pictures, "_picture_of", lambda *_: None)
    archive.write("a.png", Shown(2))
    archive.run()
    assert archive.faces()["b.png", 0]["reference"]
    archive.write("c.png", Shown(1, 2))
    archive.run()
    assert archive.faces()["c.png", 0]["person"] == person


def made_of(store: Path) -> dict[str, Any]:
    """All that a store holds of its photos, without names that are drawn."""
    with LocalStore.open(store, command="test") as client:
        faces = client.read(HERE).to_pylist()
        media = client.read("SELECT * EXCLUDE (run_id, added_at) FROM core.media ORDER BY media_id").to_pylist()
        files = client.read("SELECT path, media_id FROM core.files ORDER BY ALL").to_pylist()
        counts = client.read("SELECT * EXCLUDE (created_at, fact_key, pixel_key) FROM core.store").to_pylist()
        facts = client.read("SELECT kind, face_id, person_id::VARCHAR AS p, origin FROM core.facts ORDER BY ALL")
        persons = client.read("SELECT person_id::VARCHAR AS id, seq, name, occurrence FROM core.persons ORDER BY seq")
        references = client.read("SELECT face_id, seq FROM core.reference_faces ORDER BY ALL").to_pylist()
        pictures = client.read("SELECT sha256 FROM core.objects ORDER BY ALL").to_pylist()
    order = {row["id"]: number for number, row in enumerate(persons.to_pylist())}
    return {
        "faces": [{**row, "person": order.get(row["person"])} for row in faces],
        "media": media,
        "files": files,
        "counts": counts,
        "facts": [{**row, "p": order[row["p"]]} for row in facts.to_pylist()],
        "persons": [{**row, "id": order[row["id"]]} for row in persons.to_pylist()],
        "references": references,
        "pictures": pictures,
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["commit_shard.begin", "commit_shard.commit", "commit_shard.committed", "object.write"]
)
def test_a_run_that_fails_goes_on_as_if_nothing_was(archive: Archive, tmp_path: Path, point: str) -> None:
    archive.write("a.png", Shown(1), Shown(2))
    archive.write("b.png", Shown(1, 1))
    archive.write("c.png", Shown(3))
    archive.run()
    archive.correct("name", archive.faces()["a.png", 0]["person"], name="Ann")
    archive.correct("move", archive.faces()["c.png", 0]["person"], faces=(2,))
    shutil.copytree(archive.store, tmp_path / "undisturbed")
    archive.write("a.png", Shown(2, 1), Shown(4))
    archive.write("c.png", Shown(3, 1))
    run_over(archive.photos, tmp_path / "undisturbed")
    before = made_of(archive.store)
    with failing_at(point, StoreFull(path=archive.store, detail="no space left")), pytest.raises(StoreFull):
        run_over(archive.photos, archive.store)
    if point != "commit_shard.committed":
        assert made_of(archive.store) == before
    archive.run()
    assert made_of(archive.store) == made_of(tmp_path / "undisturbed")


@pytest.mark.slow
def test_what_a_failed_run_was_replacing_the_next_command_erases(archive: Archive, tmp_path: Path) -> None:
    archive.write("a.png", Shown(1), Shown(2))
    archive.write("b.png", Shown(3))
    archive.run()
    shutil.copytree(archive.store, tmp_path / "undisturbed")
    archive.write("a.png", Shown(2, 1), Shown(4))
    run_over(archive.photos, tmp_path / "undisturbed")
    erased = held(archive.store) - held(tmp_path / "undisturbed")
    assert {type(item) for item in erased} == {bytes, str}
    full = StoreFull(path=archive.store, detail="no space left")
    with failing_at("commit_shard.committed", full), pytest.raises(StoreFull):
        run_over(archive.photos, archive.store)
    assert held(archive.store) & erased
    assert facepipe("people", "list", "--store", archive.store).exit_code == 0
    assert held(archive.store) & erased == set()


def _renamed(service: Any, person: str) -> None:
    service.correct(CorrectionRequest(1, "main", "name", [person], change=PersonChange(name="Ann")))


def _forgotten(service: Any, person: str) -> None:
    service.correct(CorrectionRequest(1, "main", "forget", [person]))


def _split(service: Any, _: str) -> None:
    service.correct(CorrectionRequest(1, "main", "move", [], [1]))


@pytest.mark.slow
@pytest.mark.parametrize("change", [None, _renamed, _forgotten, _split])
def test_beside_a_server_what_is_put_right_meanwhile_counts(
    archive: Archive, change: Callable[[Any, str], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is decided anew where a correction came in between."""
    archive.write("a.png", Shown(1))
    archive.write("b.png", Shown(2))
    archive.run()
    person = archive.faces()["a.png", 0]["person"]
    archive.write("a.png", Shown(1, 2))
    prepare = LocalStore.prepare_shard
    with serving(archive.store) if change else nullcontext() as service:

        def prepared(self: LocalStore, commit: Any) -> Any:
            nonlocal change
            done, after = prepare(self, commit), change
            change = None
            if after is not None:
                after(service, person)
            return done

        monkeypatch.setattr(LocalStore, "prepare_shard", prepared)
        wanted, done = change, run_over(archive.photos, archive.store)
        assert done.changed == 1
        if service is not None:
            with service.directories.using(1, "main") as opened:
                records = {record.person_id: record.name for record in opened.everybody()}
    assert problems(archive.store) == []
    row = archive.faces().get(("a.png", 0))
    if wanted is _forgotten:
        assert row is None  # nor is anybody else on it
    elif row is None:
        raise AssertionError
    elif wanted is _renamed:
        assert (row["person"], row["name"], row["reference"]) == (person, "Ann", True)
    elif wanted is _split:
        assert (row["person"], row["outcome"]) == (None, "recognised")
    else:
        assert (row["person"], row["reference"]) == (person, True)
    if wanted is not None:
        assert records == {p: name for p, (name, _) in archive.persons().items()}
