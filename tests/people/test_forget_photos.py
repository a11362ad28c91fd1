"""Photos that are forgotten: what goes with them, who stays, and what later runs leave out."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, photo

import pipeline
from pipeline.errors import ImageMissing, ObjectUnknown, PhotoUnknown, StoreFull, UndoBlocked
from pipeline.people import reference_pictures
from pipeline.people.types import PostRequest
from pipeline.store.catalog.connection import Catalog
from pipeline.store.checks.check import check_store
from pipeline.store.local import LocalStore
from pipeline.store.records import NO_ROWS, CorrectionRequest, PersonChange
from tests.asking import ask_for
from tests.people.coded_archive import make_store, problems, run_over, serving, write_photo
from tests.people.correcting import People
from tests.store.store_samples import failing_at

A1, A2, BOTH, C2, D3, POOR = range(1, 7)  # media ids of the photos, in the order of their names


def forget(people: People, *media: int) -> Any:
    return people.correct("forget_photos", media_ids=media)


def media_rows(client: LocalStore) -> dict[int, dict[str, Any]]:
    rows = client.read("SELECT * FROM core.media ORDER BY media_id").to_pylist()
    return {row["media_id"]: row for row in rows}


def counters(people: People) -> dict[str, int]:
    return {record.person_id: record.occurrence for record in people.state()["records"]}


@pytest.fixture
def unreadable(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes photos with these names unreadable; without names all are."""
    read = reference_pictures.pictures_of_photo

    def make(*names: str) -> None:
        def reading(file: str, *args: Any) -> list[bytes]:
            if not names or Path(file).name in names:
                raise ImageMissing
            return read(file, *args)

        monkeypatch.setattr(reference_pictures, "pictures_of_photo", reading)

    return make


def test_what_goes_with_photos_and_who_stays(people: People) -> None:
    people.correct("name", people.two, name="Bea")
    before = counters(people)
    answer = forget(people, A1, C2, BOTH, D3)
    assert (answer.kind, answer.correction_id) == ("forget_photos", None)
    assert (answer.gone, list(answer.faces)) == ([people.three], [1, 3, 4, 5, 6])
    assert people.owners() == {2: people.one, 7: None}
    assert people.reference(people.one) == 2  # the only one that is left
    assert people.who(Shown(1)) == people.one
    assert people.who(Shown(2)) is None  # Bea has no face
    assert people.who(Shown(3)) is None
    assert counters(people) == {person: before[person] for person in (people.one, people.two)}
    rows = media_rows(people.client)
    assert {media: row["status"] for media, row in rows.items()} == {
        **dict.fromkeys((A1, BOTH, C2, D3), "forgotten"),
        A2: "ok",
        POOR: "ok",
    }
    assert all(rows[A1][name] is None for name in ("path", "sha256", "pixel_hash", "name", "external_id", "extra"))
    assert people.client.read("SELECT media_id FROM core.files ORDER BY 1")["media_id"].to_pylist() == [A2, POOR]
    people.client.fold()
    left = people.client.read_table("embeddings").read_all()["face_id"].to_pylist()
    assert left == [2]
    assert check_store(people.client).problems == []


def test_a_face_of_nobody_goes_as_well(people: People) -> None:
    assert forget(people, POOR).faces == [7]
    assert 7 not in people.owners()


@pytest.mark.parametrize("named", [True, False])
def test_who_is_on_no_photo_that_can_be_read_is_known_without_a_picture(
    people: People, store: Path, unreadable: Callable[..., None], named: bool
) -> None:
    if named:
        people.correct("name", people.one, name="Ann")
    unreadable()
    forget(people, A1, D3)
    assert people.reference(people.one) == 3  # the best
    assert people.who(Shown(1)) == people.one
    with pytest.raises(ObjectUnknown):
        people.service.face_image(people.account, "main", people.one)
    people.close()
    with LocalStore.open(store, command="test") as client:
        again = People(client, people.one, people.two, people.three)
        assert again.state()["pictures"][people.one] is None
        assert again.who(Shown(1)) == people.one
        ask_for(again.service, "update", again.account, "main", [people.one], PersonChange(tags=("x",)))
        assert again.who(Shown(1)) == people.one
        again.service.post(again.account, "main", photo(Shown(1, 9)), PostRequest())  # which replaces the reference
        assert again.service.face_image(again.account, "main", people.one).data
        again.correct("forget", people.one)
        again.close()


def test_the_next_best_photo_that_can_be_read_gives_the_picture(
    people: People, unreadable: Callable[..., None]
) -> None:
    unreadable("b-both.png")
    forget(people, A1)
    assert people.reference(people.one) == 2
    assert people.state()["pictures"][people.one] is not None


def test_faces_of_which_no_vector_is_stored_stay_whose_they_are(people: People) -> None:
    people.correct("move", people.three, faces=(7,))
    forget(people, D3)
    assert people.owners()[7] == people.three
    assert people.reference(people.three) is None
    assert people.who(Shown(3)) is None
    people.correct("move", people.three, faces=(5,))
    assert people.reference(people.three) == 5
    forget(people, C2)
    forget(people, POOR)
    assert people.three not in counters(people)


def test_of_merged_people_those_without_face_go(people: People) -> None:
    people.correct("merge", people.one, people.two)
    people.correct("not_same", people.one, people.three)
    forget(people, A1, A2, BOTH)
    records = {record.person_id: record.parent_id for record in people.state()["records"]}
    assert records == {people.two: None, people.three: None}
    assert people.facts() == {("not_same", *sorted((people.two, people.three)))}


def test_several_of_a_merged_set_go_at_once(people: People) -> None:
    people.correct("merge", people.one, people.two, people.three)
    new = people.correct("split", people.one, faces=(2,)).persons[0]
    forget(people, A1, BOTH, C2)
    records = {record.person_id: record.parent_id for record in people.state()["records"]}
    assert records == {people.three: None, new: None}
    assert ("not_same", *sorted((people.three, new))) in people.facts()


def test_it_is_no_correction_to_undo_and_stands_in_the_way_of_one(people: People) -> None:
    people.correct("name", people.two, name="Bea")
    people.correct("move", people.two, faces=(1,))
    forget(people, A1)
    before = people.state()
    with pytest.raises(UndoBlocked, match="since then the face 1 is gone"):
        people.correct("undo")
    assert people.state() == before


def test_a_correction_that_shows_who_went_goes_too(people: People) -> None:
    people.correct("name", people.two, name="Bea")
    people.correct("hide", people.three)
    assert forget(people, D3).gone == [people.three]
    assert people.correct("undo").kind == "name"


@pytest.mark.slow
def test_all_photos_of_a_directory_leave(people: People, store: Path, archive: Path) -> None:
    people.correct("merge", people.one, people.two)
    forget(people, A1, A2, BOTH, C2, D3)
    assert people.client.directories() == []
    kept = people.client.read("SELECT kind, before, person_ids FROM core.corrections").to_pylist()
    assert kept == [{"kind": "forget_photos", "before": NO_ROWS, "person_ids": []}], "who went, and nothing else"
    forget(people, POOR)  # nobody is there, and a photo is
    people.close()
    report = run_over(archive, store)
    assert (report.new, report.forgotten) == (0, 6)
    assert problems(store) == []


def test_what_is_forgotten_already_is_left_as_it_is(people: People) -> None:
    forget(people, A1)
    before = people.state(), media_rows(people.client)
    assert list(forget(people, A1).faces) == []
    assert (people.state(), media_rows(people.client)) == before
    assert list(forget(people, A1, A2).faces) == [2]
    assert list(forget(people).faces) == []


def test_photos_of_others_are_unknown_and_nothing_is_done(people: People) -> None:
    people.service.post(people.account, "main", photo(Shown(9)), PostRequest())
    posted = max(media_rows(people.client))
    other = people.client.create_account("bob", None)
    before = people.state(), media_rows(people.client)
    for account, directory, media in [
        (people.account, "main", [A1, 99]),
        (people.account, "main", [A1, posted]),
        (people.account, "other", [A1]),
        (other, "main", [A1]),
    ]:
        with pytest.raises(PhotoUnknown, match=str(media[-1])):
            people.service.correct(CorrectionRequest(account, directory, "forget_photos", media_ids=media))
    assert (people.state(), media_rows(people.client)) == before


@pytest.mark.slow
def test_later_runs_leave_out_what_no_other_photo_has(people: People, store: Path, tmp_path: Path) -> None:
    """A copy keeps its faces, and its bytes may come again. A path stays out whatever its bytes are."""
    people.close()
    source = tmp_path / "photos"
    first = write_photo(source, "1.png", Shown(20))
    shutil.copy(first, source / "2-copy.png")
    write_photo(source, "3.png", Shown(21))
    manifest = tmp_path / "rows.csv"
    lines = [first, first, source / "2-copy.png", source / "3.png"]
    manifest.write_text("\n".join(["path", *map(str, lines)]), "utf-8")
    run_over(manifest, store)
    with LocalStore.open(store, command="test") as client:
        again = People(client)
        rows = media_rows(client)
        one, repeated, copy, three = sorted(media for media in rows if media > POOR)
        assert (rows[copy]["duplicate_of"], rows[repeated]["status"]) == (one, "duplicate_row")
        person = again.who(Shown(20))
        forget(again, one, three)
        assert again.who(Shown(20)) == person
        rows = media_rows(client)
        assert rows[repeated]["path"] is None
        assert rows[copy]["path"] == str(source / "2-copy.png")
        kinds = sorted(row["kind"] for row in client.read("SELECT kind FROM core.forgotten").to_pylist())
        assert kinds == ["path", "path", "sha256"]
        again.close()
    write_photo(source, "1.png", Shown(20, 5))
    shutil.copy(source / "2-copy.png", source / "4.png")  # the bytes that the copy has
    shutil.copy(source / "3.png", source / "5.png")  # the bytes of what was forgotten
    report = run_over(source, store)
    assert (report.new, report.forgotten) == (2, 3)
    assert problems(store) == []


@pytest.mark.slow
def test_many_photos_take_as_many_statements_as_few(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: Path, people: People
) -> None:
    """Of persons who go, who lose their reference and who keep it."""
    people.close()
    source = tmp_path / "photos"
    for person in range(12):
        write_photo(source, f"{person:02}-0.png", Shown(100 + person))
        if person % 3:
            write_photo(source, f"{person:02}-{person % 3}.png", Shown(100 + person, 1))
    run_over(source, store)
    count = 0
    for name in ("rows", "execute", "read"):
        original = getattr(Catalog, name)

        def counted(*args: Any, _original: Any = original) -> Any:
            nonlocal count
            count += 1
            return _original(*args)

        monkeypatch.setattr(Catalog, name, counted)
    counts = []
    with LocalStore.open(store, command="test") as client:
        again = People(client)
        media = [media for media, row in media_rows(client).items() if Path(row["path"]).name.endswith("-0.png")]
        for part in (media[:3], media[3:]):
            count = 0
            again.service.correct(CorrectionRequest(again.account, "main", "forget_photos", media_ids=part))
            counts.append(count)
        assert check_store(client).problems == []
        again.close()
    assert counts[1] < counts[0] + 5


@pytest.mark.parametrize("served", [True, False])
def test_it_works_beside_a_server_and_from_python(store: Path, served: bool) -> None:
    with serving(store) if served else nullcontext() as service, pipeline.open_store(store) as opened:
        (three,) = (row.person_id for row in opened.people.all()[2:])
        assert opened.people.forget_photos([D3]).gone == [three]
        assert len(opened.people.all()) == 2
        with pytest.raises(PhotoUnknown):
            opened.people.forget_photos([99])
        if service is not None:
            (found,) = service.post(1, "main", photo(Shown(3)), PostRequest(insert=False, update=False)).faces
            assert found.person is None
    assert problems(store) == []


@pytest.mark.parametrize("point", ["change.begin", "change.commit", "object.write"])
def test_a_full_disk_changes_nothing(people: People, point: str) -> None:
    before = people.state(), media_rows(people.client)
    with failing_at(point, StoreFull(path=people.client.path, detail="no space left")), pytest.raises(StoreFull):
        forget(people, A1, D3)
    assert (people.state(), media_rows(people.client)) == before
    forget(people, A1, D3)
    assert people.who(Shown(1)) == people.one


def test_nothing_else_changes(people: People) -> None:
    before = people.state()
    forget(people, C2)
    after = people.state()
    assert after["faces"] == [face for face in before["faces"] if face.face_id != 5]
    assert after["records"] == [replace(record, modified_at=record.added_at) for record in before["records"]]
    assert (after["references"], after["facts"]) == (before["references"], before["facts"])


@pytest.mark.slow
def test_copies_that_leave_together_hand_their_facts_on_once(tmp_path: Path) -> None:
    photos, store = tmp_path / "photos", make_store(tmp_path / "store")
    original = write_photo(photos, "a.png", Shown(1))
    shutil.copy(original, photos / "b.png")
    write_photo(photos, "z.png", Shown(2))
    run_over(photos, store)
    with LocalStore.open(store, command="test") as client:
        people = People(client, "", "", "")
        other = next(face.person_id for face in people.faces() if face.face_id == 3)
        people.correct("move", other, faces=(1, 2))
        people.service.close()
    shutil.copy(original, photos / "c.png")
    run_over(photos, store)
    with LocalStore.open(store, command="test") as client:
        people = People(client, "", "", "")
        forget(people, 1, 2)  # which checks the store
        assert ("is", 4, other) in people.facts()
        people.service.close()
    assert problems(store) == []
