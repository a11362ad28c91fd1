"""Labels that change for photos whose bytes do not: who is renamed, whose faces become others', and what is left."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from coded_faces import Shown, photo

from pipeline.jobs.people import People
from pipeline.jobs.run_report import RunReport
from pipeline.jobs.store import open_store
from pipeline.people import corrections
from pipeline.people.labels import labels_followed
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.run.dry_run import dry_run
from pipeline.run.run import RunRequest
from pipeline.store.local import LocalStore
from pipeline.store.records import PersonChange
from pipeline.store.schema import TABLES
from tests.asking import ask_for
from tests.people.coded_archive import SETTINGS, make_store, problems, run_over, serving, write_photo
from tests.store.store_samples import failing_at

PARENTS = replace(SETTINGS, source=replace(SETTINGS.source, labels="parent"))
Said = str | tuple[str | None, str | None]


class Nights:
    """Photos with labels in a manifest, or by their folders, and a store."""

    def __init__(self, folder: Path) -> None:
        self.photos = folder / "photos"
        self.manifest = folder / "named.csv"
        self.store = make_store(folder / "store")
        self.settings = SETTINGS

    def shows(self, **faces: Shown) -> None:
        for name, face in faces.items():
            write_photo(self.photos, f"{name}.png", face)

    def path(self, name: str) -> str:
        return str(self.photos / f"{name}.png")

    def say(self, **labels: Said) -> RunReport:
        """A night with this manifest."""
        rows = [(self.path(n), *((said, None) if isinstance(said, str) else said)) for n, said in labels.items()]
        return self.say_rows(*rows)

    def say_rows(self, *rows: tuple[str | None, ...]) -> RunReport:
        with self.manifest.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("path", "name", "external_id"), *rows])
        return run_over(self.manifest, self.store, settings=self.settings)

    def by_folders(self) -> RunReport:
        """A night with the names of the folders."""
        return run_over(self.photos, self.store, settings=PARENTS)

    def with_people(self, act: Callable[[People], Any]) -> Any:
        with open_store(self.store, SETTINGS, command="test") as store:
            return act(People(store))

    def owners(self) -> dict[str, str | None]:
        """Photo -> whose its face is."""
        found: dict[str, str | None] = {}
        for row in self.with_people(lambda people: people.all()):
            for face in self.with_people(lambda people, who=row.person_id: people.photos(who)):
                found[Path(face["path"]).stem] = row.person_id
        return found

    def called(self) -> dict[str, tuple[str | None, str | None]]:
        """Photo -> the name and the external id of its person."""
        names = {row.person_id: (row.name, row.external_id) for row in self.with_people(lambda people: people.all())}
        return {photo: names[str(person)] for photo, person in self.owners().items()}

    def names(self) -> dict[str, str | None]:
        return {photo: name for photo, (name, _) in self.called().items()}

    def facts(self) -> list[tuple[str, str]]:
        with open_store(self.store, command="test") as store:
            return [(row["kind"], row["origin"]) for row in store.table("facts").read_all().to_pylist()]

    def last_report(self) -> Mapping[str, Any]:
        """As the store keeps it."""
        with open_store(self.store, command="test") as store:
            row = store.runs().last
        assert row is not None
        found: dict[str, Any] = json.loads((self.store / "runs" / row.run_id / "run.json").read_text())
        return found


@pytest.fixture
def nights(tmp_path: Path) -> Nights:
    return Nights(tmp_path)


@pytest.fixture(params=["here", "served"])
def held(request: pytest.FixtureRequest, nights: Nights) -> Iterator[IdentityService | None]:
    with serving(nights.store) if request.param == "served" else nullcontext() as service:
        yield service


def ids(report: RunReport) -> tuple[int, int, int]:
    return report.renamed, report.relabelled, report.unsettled


def test_a_run_without_labels_says_that_they_were_removed(nights: Nights) -> None:
    for folder, face in (("Anna", Shown(1)), ("Berta", Shown(2))):
        write_photo(nights.photos / folder, "1.png", face)
    nights.by_folders()
    request = RunRequest(nights.photos, nights.store, SETTINGS)
    assert "            2 labels changed, 2 of them removed" in dry_run(request).lines()
    report = run_over(nights.photos, nights.store)
    assert (report.labels_changed, report.labels_removed) == (2, 2)
    lines = [line for line in report.lines() if line.startswith("labels")]
    assert lines == ["labels      2 removed (a run without --labels has none); all names stay"]
    assert {row.name for row in nights.with_people(lambda people: people.all())} == {"Anna", "Berta"}
    again = [line for line in nights.by_folders().lines() if line.startswith("labels")]
    assert again == ["labels      2 changed: 0 people renamed, 0 faces became others', 0 not followed"]


@pytest.mark.slow
def test_a_person_all_of_whose_photos_have_a_new_name_has_it(nights: Nights) -> None:
    odd = ["x" * 1000, "👩‍👩‍👧 \U0001f1e9\U0001f1ea", "ברטה\u202e", 'a"b,\\ c', "O'Neil; DROP TABLE"]
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(2), **{f"odd{k}": Shown(10 + k) for k in range(len(odd))})
    first: dict[str, Said] = {"a": "Anna", "b": "Anna", "c": "Cid"} | {f"odd{k}": str(k) for k in range(len(odd))}
    nights.say(**first)
    before = nights.owners()
    second: dict[str, Said] = {"a": "Berta", "b": "Berta", "c": "Cid"} | {f"odd{k}": n for k, n in enumerate(odd)}
    report = nights.say(**second)
    assert (ids(report), report.labels_changed, report.images) == ((6, 0, 0), 7, 0)
    assert (nights.names(), nights.owners()) == (second, before)
    renamed = report.renamed_persons[0]
    assert (renamed["person_id"], renamed["old_name"], renamed["name"]) == (before["a"], "Anna", "Berta")
    assert nights.last_report()["renamed_persons"][0] == {"person_id": before["a"]}
    rows = [(nights.path(photo), f" {name} ", " ") for photo, name in second.items()]
    assert nights.say_rows(*rows).labels_changed == 0  # blanks say nothing
    assert problems(nights.store) == []


@pytest.mark.slow
def test_a_folder_that_is_renamed_renames_its_person(nights: Nights, held: IdentityService | None) -> None:
    """Undone it is not done again."""
    write_photo(nights.photos / "Anna", "a.png", Shown(1))
    write_photo(nights.photos / "Anna", "b.png", Shown(1, 1))
    write_photo(nights.photos / "Cid", "c.png", Shown(2))
    nights.by_folders()
    before = nights.owners()
    (nights.photos / "Anna").rename(nights.photos / "Berta")
    tried = dry_run(RunRequest(nights.photos, nights.store, PARENTS))
    assert (tried.labels_changed, tried.moved) == (2, 2)
    assert "            2 labels changed" in tried.lines()
    assert nights.names()["a"] == "Anna"
    report = nights.by_folders()
    assert (ids(report), report.moved) == ((1, 0, 0), 2)
    assert (nights.names(), nights.owners()) == ({"a": "Berta", "b": "Berta", "c": "Cid"}, before)
    assert f'            renamed: {before["a"]}  "Anna" -> "Berta"' in report.lines()
    assert nights.facts() == []
    assert nights.by_folders().labels_changed == 0
    if held is not None:
        with held.directories.using(1, "main") as opened:
            assert sorted(str(record.name) for record in opened.everybody()) == ["Berta", "Cid"]
    assert nights.with_people(lambda people: people.undo(origin="label")).kind == "label"
    assert nights.names() == {"a": "Anna", "b": "Anna", "c": "Cid"}
    assert nights.by_folders().labels_changed == 0
    assert nights.names()["a"] == "Anna"


@pytest.mark.slow
def test_a_photo_among_others_becomes_another_persons(nights: Nights, held: IdentityService | None) -> None:
    """Its person's reference, put into the folder of somebody who is there, and of somebody new."""
    for number in range(4):
        write_photo(nights.photos / "Anna", f"a{number}.png", Shown(1, number))
    write_photo(nights.photos / "Cid", "c.png", Shown(2))
    nights.by_folders()
    before = nights.owners()
    (nights.photos / "Dora").mkdir()
    (nights.photos / "Anna" / "a0.png").rename(nights.photos / "Cid" / "a0.png")
    for number in (1, 2):
        (nights.photos / "Anna" / f"a{number}.png").rename(nights.photos / "Dora" / f"a{number}.png")
    report = nights.by_folders()
    assert (ids(report), report.moved) == ((0, 3, 0), 3)
    assert nights.names() == {"a0": "Cid", "a1": "Dora", "a2": "Dora", "a3": "Anna", "c": "Cid"}
    owners = nights.owners()
    assert [owners[photo] for photo in ("a0", "a3", "c")] == [before["c"], before["a0"], before["c"]]
    assert nights.facts() == [("is", "label")] * 3
    (first, *_) = report.relabelled_faces
    assert (first["path"], first["old_person_id"]) == (str(nights.photos / "Cid" / "a0.png"), before["a0"])
    assert first["person_id"] == before["c"]
    kept = nights.last_report()["relabelled_faces"][0]
    assert not {"name", "old_name"} & kept.keys()
    # A later run and a regroup hold to it: the faces are Anna's by their vectors.
    write_photo(nights.photos, "copy.png", Shown(1, 1))
    nights.by_folders()
    nights.with_people(lambda people: people.regroup())
    assert nights.names() == {"a0": "Cid", "a1": "Dora", "a2": "Dora", "a3": "Anna", "c": "Cid", "copy": "Dora"}


def test_who_came_in_meanwhile_with_the_name_is_meant(nights: Nights, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not two people of one name."""
    nights.shows(a=Shown(1), b=Shown(1, 1))
    nights.say(a="Anna", b="Anna")
    posted: list[str] = []

    def deciding(*args: Any) -> Any:
        decided = labels_followed(*args)
        if not posted:
            (face,) = service.post(1, "main", photo(Shown(2)), PostRequest(name="Dora")).faces
            assert face.person is not None
            posted.append(face.person.record.person_id)
        return decided

    monkeypatch.setattr(corrections, "labels_followed", deciding)
    with serving(nights.store) as service:
        report = nights.say(a="Dora", b="Anna")
    assert (ids(report), report.relabelled_faces[0]["person_id"]) == ((0, 1, 0), posted[0])
    assert sorted(row.name or "" for row in nights.with_people(lambda people: people.all())) == ["Anna", "Dora"]


@pytest.mark.slow
def test_undone_all_is_as_it_was(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(2), d=Shown(3), e=Shown(3, 1))
    nights.say(a="Anna", b="Anna", c="Cid", d="Dora", e="Dora")
    before = nights.called(), nights.owners()
    report = nights.say(a="Cid", b="Anna", c="Clara", d="Dora", e="Eve")
    assert ids(report) == (1, 2, 0)  # Cid is Clara now, so that this Cid is somebody new
    assert nights.names() == {"a": "Cid", "b": "Anna", "c": "Clara", "d": "Dora", "e": "Eve"}
    nights.with_people(lambda people: people.undo(origin="label"))
    assert (nights.called(), nights.owners(), nights.facts()) == (*before, [])
    assert nights.say(a="Cid", b="Anna", c="Clara", d="Dora", e="Eve").labels_changed == 0
    assert problems(nights.store) == []


@pytest.mark.slow
def test_who_was_renamed_by_hand_is_listed_until_it_is_settled(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1))
    nights.say(a="Anna", b="Anna")
    nights.with_people(lambda people: people.name("Anna", "Anna Maria"))
    person = nights.owners()["a"]
    for said in ({"a": "Berta", "b": "Berta"}, {"a": "Berta", "b": "Anna"}):
        report = nights.say(**said)
        assert ids(report)[:2] == (0, 0)
        assert report.unsettled == report.labels_changed == sum(name == "Berta" for name in said.values())
        listed = report.unsettled_labels[0]
        assert (listed["path"], listed["name"], listed["person_name"]) == (nights.path("a"), "Berta", "Anna Maria")
        assert (listed["person_id"], listed["reason"]) == (person, "renamed by hand")
        shown = f'"Anna Maria" -> "Berta": {nights.path("a")} ({person}; renamed by hand)'
        assert f"            not followed: {shown}" in report.lines()
    assert len(list(nights.store.glob("runs/*/run.json"))) == 1  # these nights changed nothing
    assert set(nights.names().values()) == {"Anna Maria"}
    nights.with_people(lambda people: people.name("Anna Maria", "Berta"))
    assert ids(nights.say(a="Berta", b="Berta")) == (0, 0, 0)
    assert ids(nights.say(a="Carla", b="Carla")) == (1, 0, 0)  # by labels again


@pytest.mark.slow
def test_one_person_with_several_new_names(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1))
    nights.say(a="Anna", b="Anna")
    report = nights.say(a="Berta", b="Clara")
    assert ids(report) == (0, 0, 2)
    assert {entry["reason"] for entry in report.unsettled_labels} == {"several new names for one person"}
    assert [entry["name"] for entry in report.unsettled_labels] == ["Berta", "Clara"]
    assert set(nights.names().values()) == {"Anna"}
    assert ids(nights.say(a="Berta", b="Berta")) == (1, 0, 0)


@pytest.mark.slow
def test_corrections_of_users_come_first(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(1, 2), d=Shown(1, 3), e=Shown(1, 4), z=Shown(2))
    said = dict.fromkeys("abcde", "Anna") | {"z": "Zoe"}
    nights.say(**said)

    def correct(people: People) -> None:
        faces = {Path(face["path"]).stem: face["face_id"] for face in people.photos("Anna")}
        people.move(faces["a"], "Anna")
        people.move(faces["b"], None)
        people.move(faces["c"], "Zoe")
        people.move(faces["c"], "Anna")
        people.move(faces["d"], "Zoe")

    nights.with_people(correct)
    facts = nights.facts()
    report = nights.say(**(said | dict.fromkeys("abd", "Zoe") | {"c": "Cid"}))
    assert {Path(u["path"]).stem: u["reason"] for u in report.unsettled_labels} == dict.fromkeys(
        "abc", "a correction says otherwise"
    )
    assert ids(report) == (0, 0, 3)  # d is Zoe's already
    assert nights.names() == {"a": "Anna", "c": "Anna", "d": "Zoe", "e": "Anna", "z": "Zoe"}
    assert nights.facts() == facts


@pytest.mark.slow
def test_a_name_that_several_people_have_says_of_no_face_whose_it_is(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(2), d=Shown(3))
    nights.say(a="Anna", b="Anna", c=("Cid", "1"), d=("Cid", "2"))
    report = nights.say(a="Cid", b="Anna", c=("Cid", "1"), d=("Cid", "2"))
    assert (ids(report), report.unsettled_labels[0]["reason"]) == ((0, 0, 1), "several people have this name")
    assert ids(nights.say(a=("Cid", "2"), b="Anna", c=("Cid", "1"), d=("Cid", "2"))) == (0, 1, 0)
    owners = nights.owners()
    assert owners["a"] == owners["d"] != owners["c"]


@pytest.mark.parametrize("once", [False, True])
def test_a_label_puts_nobody_on_a_photo_twice(
    nights: Nights,
    held: IdentityService | None,
    once: bool,
) -> None:
    nights.settings = replace(SETTINGS, match=replace(SETTINGS.match, once_per_photo=once))
    nights.shows(a=Shown(1), b=Shown(2), c=Shown(2, 1))
    write_photo(nights.photos, "both.png", Shown(2, 2), Shown(1, 2))
    nights.say(a="Ann", b="Bob", c="Bob", both="Bob")
    report = nights.say(a="Ann", b="Bob", c="Bob", both="Ann")
    assert ids(report) == ((0, 0, 1) if once else (0, 1, 0))
    if once:
        assert report.unsettled_labels[0]["reason"] == "another face of the photo is this person"
    again = nights.say(a="Ann", b="Bob", c="Bob", both="Ann")
    assert ids(again) == ((0, 0, 1) if once else (0, 0, 0))
    if once:
        nights.with_people(lambda people: people.allow_twice(nights.path("both")))
        assert ids(nights.say(a="Ann", b="Bob", c="Bob", both="Ann")) == (0, 1, 0)


@pytest.mark.slow
def test_what_a_label_does_not_say_stays(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(2))
    nights.say(a=(None, None), b=(None, None), c=("Cid", "7"))
    assert ids(nights.say(a="Anna", b=(None, None), c="Clara")) == (2, 0, 0)  # a first name, and one beside an id
    assert nights.called() == {"a": ("Anna", None), "b": ("Anna", None), "c": ("Clara", "7")}
    assert ids(nights.say(a=("Anna", "1"), b="Anna", c=(None, None))) == (1, 0, 0)
    assert nights.called() == {"a": ("Anna", "1"), "b": ("Anna", "1"), "c": ("Clara", "7")}
    assert nights.say(a=("Anna", "1"), b="Anna", c=(None, None)).labels_changed == 0


@pytest.mark.slow
def test_an_external_id_given_by_hand_is_kept(nights: Nights) -> None:
    nights.shows(a=Shown(1))
    nights.say(a="Anna")
    with serving(nights.store) as service:
        ask_for(service, "update", 1, "main", [str(nights.owners()["a"])], PersonChange(external_id="7"))
    assert ids(nights.say(a=("Berta", "8"))) == (0, 0, 1)
    assert ids(nights.say(a="Berta")) == (1, 0, 0)
    assert nights.called() == {"a": ("Berta", "7")}


@pytest.mark.slow
def test_photos_with_another_name_before_are_no_obstacle(nights: Nights) -> None:
    """A photo of Zoe that a run took for Anna's."""
    nights.shows(a=Shown(1), b=Shown(1, 1), z=Shown(1, 2))
    nights.say(a="Anna", b="Anna", z="Zoe")
    assert ids(nights.say(a="Berta", b="Berta", z="Zoe")) == (1, 0, 0)
    assert set(nights.names().values()) == {"Berta"}
    assert ids(nights.say(a="Berta", b="Berta", z="Zora")) == (0, 1, 0)
    assert nights.names() == {"a": "Berta", "b": "Berta", "z": "Zora"}


@pytest.mark.slow
def test_a_merged_person_is_one(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(2))
    nights.say(a="Anna", b="Bea")
    nights.with_people(lambda people: people.merge("Anna", "Bea"))
    assert ids(nights.say(a="Anna", b="Anna")) == (0, 0, 0)
    assert nights.say(a="Anna", b="Anna").labels_changed == 0
    assert ids(nights.say(a="Berta", b="Berta")) == (1, 0, 0)
    assert set(nights.names().values()) == {"Berta"}


NFC, NFD = "Zo\u00eb", "Zoe\u0308"


@pytest.mark.slow
def test_a_name_in_another_form_of_unicode_is_the_same(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(2), d=Shown(2, 1))
    assert nights.say(a=NFC, b=NFD, c="Cid", d="Cid").label_conflicts == []
    assert nights.say(a=NFD, b=NFC, c="Cid", d="Cid").labels_changed == 0
    assert ids(nights.say(a=NFD, b=NFC, c="Cid", d=NFD)) == (0, 1, 0)
    zoe = (NFC, "7")
    assert ids(nights.say(a=(NFD, "7"), b=zoe, c="Cid", d=(NFD, "7"))) == (1, 0, 0)
    assert nights.called() == {"a": zoe, "b": zoe, "c": ("Cid", None), "d": zoe}
    assert nights.with_people(lambda people: people.find(NFD)) == nights.owners()["d"]
    assert nights.with_people(lambda people: people.find(NFD.upper())) == nights.owners()["d"]
    assert ids(nights.say(a=("Ada", "7"), b=("Ada", "7"), c="Cid", d=("Ada", "7"))) == (1, 0, 0)
    assert problems(nights.store) == []


def test_the_name_of_who_was_forgotten_is_nowhere_in_another_form(nights: Nights) -> None:
    """Nor where a photo of somebody else was labelled so."""
    nights.shows(a=Shown(1), b=Shown(2), c=Shown(2, 1))
    nights.say(a=NFC, b="Bob", c=NFD)
    nights.with_people(lambda people: people.forget(NFC))
    with LocalStore.open(nights.store, command="test") as client:
        assert {row["name"] for row in client.read("SELECT name FROM core.media").to_pylist()} == {"Bob", None}
    assert nights.names() == {"b": "Bob", "c": "Bob"}


@pytest.mark.slow
def test_photos_that_vanished_do_not_count_and_edited_ones_by_their_new_label(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(1, 2))
    nights.say(a="Anna", b="Anna", c="Anna")
    (nights.photos / "c.png").unlink()
    nights.shows(b=Shown(1, 3))
    report = nights.say(a="Berta", b="Berta", c="Anna")
    assert (ids(report), report.labels_changed, report.changed) == ((1, 0, 0), 1, 1)
    assert set(nights.names().values()) == {"Berta"}
    assert report.label_conflicts == []
    nights.shows(b=Shown(1, 4))  # a new photo at the path, and another name: nothing follows for the old one
    assert nights.say(a="Berta", b="Zoe", c="Anna").labels_changed == 0


@pytest.mark.slow
def test_a_photo_that_was_edited_earlier_is_no_obstacle(nights: Nights) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1))
    nights.say(a="Anna", b="Anna")
    nights.shows(a=Shown(1, 2))
    nights.say(a="Anna", b="Anna")
    assert ids(nights.say(a="Berta", b="Berta")) == (1, 0, 0)
    assert nights.say(a="Berta", b="Berta").labels_changed == 0
    assert set(nights.names().values()) == {"Berta"}


def test_of_rows_for_one_photo_the_first_counts(nights: Nights) -> None:
    nights.shows(a=Shown(1))
    one, other = (nights.path("a"), "Anna", None), (nights.path("a"), "Berta", None)
    nights.say_rows(one, other)
    assert nights.say_rows(one, other).labels_changed == 0
    assert ids(nights.say_rows(other, one)) == (1, 0, 0)
    assert nights.names() == {"a": "Berta"}


@pytest.mark.slow
def test_labels_of_photos_that_show_nobody_are_only_noted(nights: Nights) -> None:
    nights.shows(a=Shown(1), poor=Shown(2, 0, 0.1))
    write_photo(nights.photos, "none.png")
    nights.say(a="Anna", poor="Bea", none="Cid")
    with failing_at("note_labels.commit", KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        nights.say(a="Anna", poor="Bertha", none=(None, None))
    report = nights.say(a="Anna", poor="Bertha", none=(None, None))
    assert (ids(report), report.labels_changed) == ((0, 0, 0), 2)
    assert nights.say(a="Anna", poor="Bertha", none=(None, None)).labels_changed == 0
    with LocalStore.open(nights.store, command="test") as client:
        assert client.read("SELECT name FROM core.media ORDER BY path")["name"].to_pylist() == ["Anna", None, "Bertha"]
    assert problems(nights.store) == []


@pytest.mark.slow
def test_nothing_follows_for_who_was_forgotten(nights: Nights) -> None:
    """Nor for a photo whose label named them, though its face is somebody else's."""
    nights.shows(a=Shown(1), b=Shown(1, 1), z=Shown(2))
    nights.say(a="Anna", b="Anna", z="Zoe")

    def forget(people: People) -> None:
        (face,) = [face["face_id"] for face in people.photos("Anna") if face["path"] == nights.path("b")]
        people.move(face, "Zoe")
        people.forget("Anna")

    nights.with_people(forget)
    for name in ("Anna", "Berta"):
        report = nights.say(a=name, b=name, z="Zoe")
        assert (report.labels_changed, ids(report)) == (0, (0, 0, 0))
    assert nights.names() == {"b": "Zoe", "z": "Zoe"}
    assert b"Berta" not in b"".join(file.read_bytes() for file in nights.store.rglob("*.json"))


def _face_on_b(people: People, who: str) -> int:
    return next(int(face["face_id"]) for face in people.photos(who) if Path(face["path"]).stem == "b")


def _split(nights: Nights, said: dict[str, Said]) -> None:
    nights.with_people(lambda people: people.split("Anna", [_face_on_b(people, "Anna")]))
    nights.shows(b=Shown(1, 3))
    nights.say(**said)
    nights.with_people(lambda people: people.forget("Anna"))


def _named_and_split(nights: Nights, said: dict[str, Said]) -> None:
    nights.with_people(lambda people: people.name("Anna", "Hannah"))
    nights.with_people(lambda people: people.split("Hannah", [_face_on_b(people, "Hannah")]))
    nights.shows(b=Shown(1, 3))
    nights.say(**said)
    nights.with_people(lambda people: people.forget("Hannah"))


def _undone(nights: Nights, said: dict[str, Said]) -> None:
    """By that label the face was Anna's for a night."""
    nights.say(**said | {"z": "Anna"})
    nights.with_people(lambda people: people.undo(origin="label"))
    nights.shows(z=Shown(2, 3))
    nights.say(**said | {"z": "Anna"})
    nights.with_people(lambda people: people.forget("Anna"))


def _forgotten_before(nights: Nights, said: dict[str, Said]) -> None:
    """Then two photos are saved again: of one the face is Zoe's, of the other it makes a new person."""
    nights.with_people(lambda people: people.move(_face_on_b(people, "Anna"), "Zoe"))
    nights.with_people(lambda people: people.forget("Anna"))
    nights.shows(b=Shown(1, 3))
    write_photo(nights.photos, "both.png", Shown(1, 4), Shown(2, 4))
    assert nights.say(**said).changed == 2


@pytest.mark.slow
@pytest.mark.parametrize("change", [_split, _named_and_split, _undone, _forgotten_before])
def test_the_name_of_who_was_forgotten_is_nowhere(nights: Nights, change: Callable[..., None]) -> None:
    """Nor a digest of it, and not by photos that show others and were saved again."""
    nights.shows(a=Shown(1), b=Shown(1, 1), z=Shown(2), y=Shown(2, 1))
    write_photo(nights.photos, "both.png", Shown(1, 2), Shown(2, 2))
    said: dict[str, Said] = dict.fromkeys("yz", "Zoe") | dict.fromkeys(("a", "b", "both"), "Anna")
    rows = [(nights.path(photo), str(name), None) for photo, name in said.items()]
    nights.say_rows(*rows, *rows)
    change(nights, said)
    with LocalStore.open(nights.store, command="test") as client:
        kept = "".join(str(client.read(f"SELECT * FROM core.{table}").to_pylist()) for table in TABLES)
        digests = client.digests_of_labels([("Anna", None), ("Zoe", None)])
    assert [text in kept for text in ("nna", digests[0], "Zoe", digests[1])] == [False, False, True, True]
    assert problems(nights.store) == []


def test_who_has_the_former_name_of_who_was_forgotten_keeps_labels(nights: Nights) -> None:
    """Hannah was known by Anna's name, and photos of Anna were taken to be hers."""
    nights.shows(a=Shown(1), b=Shown(1, 1))
    nights.manifest.write_text(f"path,name,place\n{nights.path('a')},Anna,home\n{nights.path('b')},Anna,away\n")
    run_over(nights.manifest, nights.store)

    def forget(people: People) -> None:
        new = people.split("Anna", [_face_on_b(people, "Anna")]).persons[0]
        people.name("Anna", "Hannah")
        people.name(new, "Anna")
        people.forget("Hannah")

    nights.with_people(forget)
    with LocalStore.open(nights.store, command="test") as client:
        kept = client.read("SELECT path, name, extra FROM core.media ORDER BY media_id").to_pylist()
    assert [(row["name"], row["extra"]) for row in kept] == [(None, None), ("Anna", '{"place": "away"}')]


@pytest.mark.slow
def test_a_face_stays_where_nobody_could_be_known_by_another(nights: Nights) -> None:
    nights.settings = replace(SETTINGS, run=replace(SETTINGS.run, on_missing="keep"))
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(2), d=Shown(2, 1))
    nights.say(a="Anna", b="Anna", c="Cid", d="Cid")
    (nights.photos / "b.png").rename(nights.photos.parent / "away")
    said: dict[str, Said] = {"a": "Zoe", "b": "Anna", "c": "Cid", "d": "Zoe"}
    report = nights.say(**said)
    assert (ids(report), report.unsettled_labels[0]["reason"]) == ((0, 1, 1), "no picture of a face can be had")
    assert "name" not in nights.last_report()["unsettled_labels"][0]
    assert nights.names() == {"a": "Anna", "b": "Anna", "c": "Cid", "d": "Zoe"}
    (nights.photos.parent / "away").rename(nights.photos / "b.png")
    assert ids(nights.say(**said)) == (0, 1, 0)
    assert nights.names() == {"a": "Zoe", "b": "Anna", "c": "Cid", "d": "Zoe"}
    assert problems(nights.store) == []


@pytest.mark.slow
@pytest.mark.parametrize("point", ["plan_run.committed", "change.commit", "change.committed"])
def test_a_night_that_broke_off_is_repeated(nights: Nights, point: str) -> None:
    nights.shows(a=Shown(1), b=Shown(1, 1), c=Shown(2), d=Shown(3))
    nights.say(a="Anna", b="Anna", c="Cid", d="Dora")
    said: dict[str, Said] = {"a": "Cid", "b": "Anna", "c": "Cid", "d": "Dana"}
    with failing_at(point, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        nights.say(**said)
    nights.say(**said)
    assert nights.names() == {"a": "Cid", "b": "Anna", "c": "Cid", "d": "Dana"}
    assert nights.facts() == [("is", "label")]
    assert nights.say(**said).labels_changed == 0
    assert problems(nights.store) == []
