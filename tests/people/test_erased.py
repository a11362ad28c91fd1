"""What of people who were deleted is left in any file of a store: nothing, once it was erased."""

from __future__ import annotations

import hashlib
import random
import shutil
import string
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import duckdb
import pyarrow.parquet as pq
import pytest
from coded_faces import Shown, photo, vector
from coded_store import USER

from pipeline.errors import StoreError, StoreFull
from pipeline.jobs.accounts import delete_account, find_account
from pipeline.jobs.people import People as JobPeople
from pipeline.jobs.store import Store, open_store
from pipeline.people.service import IdentityService
from pipeline.people.types import PostRequest
from pipeline.store.catalog import connection
from pipeline.store.files.segments import codes_of
from pipeline.store.local import LocalStore
from pipeline.store.records import PersonChange
from tests.people.coded_archive import SETTINGS, SIZE, make_store, problems, run_over, serving, write_photo
from tests.people.correcting import People
from tests.store.store_samples import at_fault_points, copied_at_points, failing_at

ACCOUNT = 1
WAYS = ("forget", "without trace", "record", "photos", "missing file", "merged")  # to delete people of a directory
ELSEWHERE = ("directory", "account")  # deleted as a whole


@dataclass
class Traces:
    """What a person leaves, by kind: bytes to search for."""

    name: str
    texts: set[str] = field(default_factory=set)  # also names of before, external ids, tags, metadata, ids, paths
    data: set[bytes] = field(default_factory=set)  # hashes, vectors, pictures

    def note_file(self, path: Path) -> None:
        digest = hashlib.sha256(path.read_bytes())
        self.texts |= {str(path), path.name, digest.hexdigest()}
        self.data.add(digest.digest())

    def note_vector(self, shown: Shown) -> None:
        """As float32, and as the int8 codes of index segments."""
        made = vector(shown, SIZE)
        self.data |= {made.tobytes(), codes_of(made[None]).codes.tobytes()}

    def patterns(self) -> Iterator[tuple[str, bytes]]:
        for text in self.texts | {self.name}:
            yield text, text.encode()
            yield f"{text} (UTF-16)", text.encode("utf-16-le")
            yield f"{text} (JSON)", text.encode("ascii", "backslashreplace")
        for data in self.data:
            yield data[:8].hex(), data


def letters(seed: str, count: int = 12) -> str:
    return "".join(random.Random(seed).choices(string.ascii_letters, k=count))


def uuid_bytes(person_id: str) -> set[bytes]:
    """As text, big-endian, and as DuckDB keeps it: a signed 128 bit number whose sign is turned."""
    raw = UUID(person_id).bytes
    high, low = struct.unpack(">QQ", raw)
    return {person_id.encode(), raw, struct.pack("<QQ", low, high ^ (1 << 63))}


def found(store: Path, traces: Traces) -> dict[str, list[str]]:
    """Where a person is still found: pattern -> files."""
    files = {file.relative_to(store).as_posix(): file for file in store.rglob("*") if file.is_file()}
    contents = {name: file.read_bytes() for name, file in files.items()}
    contents |= {f"rows of {name}": rows(file) for name, file in files.items() if file.suffix == ".parquet"}
    hits = {
        shown: [name for name, content in contents.items() if data in content or data in name.encode()]
        for shown, data in traces.patterns()
    }
    return {shown: names for shown, names in hits.items() if names}


def rows(file: Path) -> bytes:
    """The columns of a Parquet file, without its compression."""
    chunks = (chunk for column in pq.read_table(file).columns for chunk in column.chunks)
    return b"".join(buffer.to_pybytes() for chunk in chunks for buffer in chunk.buffers() if buffer is not None)


class Archive:
    """A store of people with photos of their own in folders of their names, and two on some photos. The first `gone` of
    the directory "main" are deleted later, and all of another directory and another account."""

    def __init__(self, folder: Path, people: int = 40, gone: int = 12, nights: int = 3) -> None:
        self.folder, self.photos, self.store = folder, folder / "photos", make_store(folder / "store")
        self.nights, self.user = nights, letters("user")
        self.deleted = set[str]()  # accounts
        self.names = [letters(f"name {number}") for number in range(people + 2 * len(ELSEWHERE))]
        self.gone = {name: WAYS[number % len(WAYS)] for number, name in enumerate(self.names[:gone])}
        self.gone |= dict(zip(self.names[people:], ELSEWHERE * 2, strict=True))
        self.known = {name: Traces(name) for name in self.gone}
        for number in range(len(self.names)):
            for variant in (1, 2):
                self.add(number, variant)
            self.add(number, 4, quality=0.1)  # it shows nobody, but is labelled
            if number % 4 == 3 and number < people:
                both = Shown(number + 1, 3), Shown(number, 3)
                write_photo(folder / "groups", f"{letters(f'both {number}')}.png", *both)

    def home(self, name: str) -> Path:
        """The folder of somebody's photos."""
        way = self.gone.get(name, "")
        return (self.folder / way if way in ELSEWHERE else self.photos) / name

    def add(self, number: int, variant: int, file: Path | None = None, quality: float = 0.9) -> None:
        """Writes a photo of a person, a new one or over `file`."""
        name = self.names[number]
        shown = Shown(number + 1, variant, quality)
        path = file or self.home(name) / f"{letters(f'{name} {variant}')}.png"
        write_photo(path.parent, path.name, shown)
        if name in self.known:
            self.known[name].note_file(path)
            self.known[name].note_vector(shown)

    def run(self, **run: object) -> None:
        late = replace(SETTINGS, run=replace(SETTINGS.run, **run), store=replace(SETTINGS.store, erase_within=8760.0))
        by_folder = replace(late, source=replace(SETTINGS.source, labels="parent"))
        for source, wishes in (
            (self.photos, {"settings": by_folder}),
            (self.folder / "groups", {"settings": late}),
            (self.folder / "directory", {"settings": by_folder, "directory": "visitors"}),
            (self.folder / "account", {"settings": by_folder, "account": self.user}),
        ):
            if wishes.get("account") not in self.deleted:
                run_over(source, self.store, **{"account": USER, **wishes})

    def night(self, night: int) -> None:
        """Photos come, are renamed, changed and deleted, of the people who are deleted and of others; then a run."""
        for number in (night % len(self.gone), night % len(self.names)):
            name = self.names[number]
            self.add(number, 10 + night)
            photos = sorted(self.home(name).iterdir())
            if night % 3 == 1:
                moved = photos[0].rename(photos[0].with_name(f"{letters(f'moved {name} {night}')}.png"))
                if name in self.known:
                    self.known[name].note_file(moved)
            elif night % 3 == 2:
                self.add(number, 1000 + night, photos[-1])
            elif len(photos) > 3:
                photos[1].unlink()
        self.run()

    @contextmanager
    def people(self) -> Iterator[People]:
        with LocalStore.open(self.store, command="test", erase_within_h=8760.0) as client:
            people = People(client, "", "", "")
            try:
                yield people
            finally:
                people.service.close()

    def ids(self, people: People) -> dict[str, str]:
        with people.service.directories.using(ACCOUNT, "main") as directory:
            return {str(record.name): record.person_id for record in directory.everybody()}

    def note_stored(self) -> None:
        """What the store has of those who are deleted later."""
        with LocalStore.open(self.store, command="look") as client:
            people = client.read("SELECT name, person_id::VARCHAR AS id FROM core.persons").to_pylist()
            media = client.read("SELECT path, pixel_hash FROM core.media WHERE path IS NOT NULL").to_pylist()
            pictures = client.read(
                "SELECT p.name, r.image_guid FROM core.reference_faces r JOIN core.persons p USING (person_id)"
                " WHERE r.image_guid IS NOT NULL"
            ).to_pylist()
            for traces in self.known.values():
                home = f"{self.home(traces.name)}/"
                for row in people:
                    if row["name"] == traces.name:
                        traces.data |= uuid_bytes(row["id"])
                hashes = {row["pixel_hash"] for row in media if row["path"].startswith(home)} - {None}
                traces.texts |= hashes
                traces.data |= set(map(bytes.fromhex, hashes))
                for row in pictures:
                    if row["name"] == traces.name:
                        traces.texts.add(row["image_guid"])
                        traces.data.add(client.read_image(ACCOUNT, row["image_guid"], at_rest=True)[0])


@pytest.fixture(params=["uncompressed", "auto"])
def compression(request: pytest.FixtureRequest) -> Iterator[str]:
    with patch.dict(connection._SETTINGS, force_compression=request.param):
        yield str(request.param)


def pictures_of_others(store: Path) -> set[bytes]:
    """JPEG may make those of two colours equal."""
    with LocalStore.open(store, command="look") as client:
        guids = client.read("SELECT image_guid FROM core.reference_faces WHERE image_guid IS NOT NULL")
        return {client.read_image(ACCOUNT, guid, at_rest=True)[0] for guid in guids["image_guid"].to_pylist()}


def lead_a_life(archive: Archive) -> list[Traces]:
    """Runs, posts, corrections and labels, all of which concern the people who are deleted later."""
    with LocalStore.open(archive.store, command="test") as client:
        client.create_account(archive.user, None)
    archive.run()
    archive.note_stored()
    of_main = [name for name, way in archive.gone.items() if way not in ELSEWHERE]
    with archive.people() as people:
        ids = archive.ids(people)
        for number, name in enumerate(of_main):
            former, external = letters(f"former {name}"), letters(f"external {name}")
            people.correct("name", ids[name], name=former)
            people.correct("name", ids[name], name=name)
            change = PersonChange(
                external_id=external, tags=[letters(f"tag {name}")], metadata={"note": letters(f"note {name}")}
            )
            people.correct("update", ids[name], change=change)
            request = PostRequest(name=name, external_id=external)
            people.service.post(ACCOUNT, "main", photo(Shown(number + 1, 0)), request)
            archive.known[name].note_vector(Shown(number + 1, 0))
            archive.known[name].texts |= {letters(f"{kind} {name}") for kind in ("former", "external", "tag", "note")}
            if archive.gone[name] == "merged":  # with a record of its own
                (face,) = people.service.post(ACCOUNT, "main", photo(Shown(900 + number)), PostRequest(name=name)).faces
                people.correct("merge", ids[name], face.person.record.person_id)
                archive.known[name].note_vector(Shown(900 + number))
                archive.known[name].data |= uuid_bytes(face.person.record.person_id)
        people.client.fold()
    for night in range(archive.nights):
        archive.night(night)
        if night % 30 == 0:
            archive.note_stored()
    archive.note_stored()
    return [*archive.known.values()]


def delete_all(archive: Archive) -> None:
    """Each in its way."""
    names = {way: [name for name, its in archive.gone.items() if its == way] for way in (*WAYS, *ELSEWHERE)}
    with archive.people() as people:
        ids = archive.ids(people)
        for name in names["forget"] + names["merged"]:
            people.correct("forget", ids[name])
        for name in names["without trace"]:
            people.correct("forget", ids[name], no_trace=True)
        for name in names["record"]:
            people.correct("delete", ids[name])
        media = people.client.read("SELECT media_id, path FROM core.media WHERE path IS NOT NULL").to_pylist()
        for name in names["photos"]:
            own = [row["media_id"] for row in media if f"/{name}/" in row["path"]]
            people.correct("forget_photos", media_ids=own)
            people.correct("forget", ids[name])
        people.client.fold()
    for name in names["missing file"] + names["without trace"]:
        shutil.rmtree(archive.home(name))
    archive.run(on_missing="forget")
    with archive.people() as people:
        ids = archive.ids(people)
        for name in names["missing file"]:
            if name in ids:
                people.correct("forget", ids[name])
        people.client.fold()
    with open_store(archive.store, command="test") as opened:
        opened.delete_all(ACCOUNT, "visitors")
        delete_account(opened, find_account(opened, archive.user))
        opened.clean_up()
    archive.deleted.add(archive.user)


@pytest.fixture(scope="module")
def alive(tmp_path_factory: pytest.TempPathFactory) -> tuple[Archive, Traces]:
    """An archive whose catalog shows its texts, and the traces of one of its people."""
    with patch.dict(connection._SETTINGS, force_compression="uncompressed"):
        archive = Archive(tmp_path_factory.mktemp("alive"))
        return archive, lead_a_life(archive)[0]


def forgetting(store: Path, name: str) -> None:
    """What `people forget` does with `store.erase_within: 0`."""
    with LocalStore.open(store, command="test", erase_within_h=0.0) as client:
        people = People(client, "", "", "")
        try:
            with people.service.directories.using(ACCOUNT, "main") as directory:
                (person,) = [record.person_id for record in directory.everybody() if record.name == name]
            people.correct("forget", person)
            client.fold()
        finally:
            people.service.close()


def names_in(store: Path) -> set[str]:
    with LocalStore.open(store, command="look", erase_within_h=0.0) as client:
        return {*client.read("SELECT name FROM core.persons")["name"].to_pylist()}


@pytest.mark.slow
def test_killed_anywhere_the_next_opening_erases_the_rest(alive: tuple[Archive, Traces], tmp_path: Path) -> None:
    archive, traces = alive
    store = Path(shutil.copytree(archive.store, tmp_path / "store"))
    (tmp_path / "copies").mkdir()
    copies = copied_at_points(store, tmp_path / "copies", lambda: forgetting(store, traces.name))
    assert found(store, traces) == {}
    points = {name.split("-", 1)[1] for name in copies}
    assert points >= {
        "change.commit",
        "change.committed",
        "unlink",
        "catalog.write",
        "catalog.rename",
        "current.rename",
    }
    for copy in map(Path, copies.values()):
        if traces.name not in names_in(copy):  # the opening finishes what was begun
            assert found(copy, traces) == {}
        else:
            forgetting(copy, traces.name)
            assert found(copy, traces) == {}


@pytest.mark.slow
def test_on_a_disk_that_is_full_at_any_step_the_next_opening_erases_the_rest(
    alive: tuple[Archive, Traces], tmp_path: Path
) -> None:
    archive, traces = alive
    met: list[str] = []
    store = Path(shutil.copytree(archive.store, tmp_path / "store"))
    with at_fault_points(met.append):
        forgetting(store, traces.name)
    for point in dict.fromkeys(met):
        store = Path(shutil.copytree(archive.store, tmp_path / f"full at {point}"))
        with failing_at(point, StoreFull(path=store, detail="full")), suppress(StoreError):
            forgetting(store, traces.name)
        if traces.name in names_in(store):
            forgetting(store, traces.name)
        assert found(store, traces) == {}, point


def test_nothing_is_left_of_them_in_any_file(tmp_path: Path, compression: str, full: bool) -> None:
    archive = Archive(tmp_path, 300, 30, 365) if full else Archive(tmp_path)
    traces = lead_a_life(archive)
    if compression == "uncompressed":
        for each in traces:  # the same search finds them all before
            before = found(archive.store, each)
            assert each.name in before
            assert len(before) > 10, before
            assert [name for names in before.values() for name in names if name.startswith("rows of")]
    delete_all(archive)
    archive.run()
    with LocalStore.open(archive.store, command="test", erase_within_h=0.0):
        pass
    of_others = pictures_of_others(archive.store)
    for each in traces:
        each.data -= of_others
    left = {each.name: hits for each in traces if (hits := found(archive.store, each))}
    assert left == {}
    assert problems(archive.store) == []
    (catalog,) = archive.store.glob("catalog-*.duckdb")
    with duckdb.connect(str(catalog), read_only=True) as opened:
        assert opened.execute("SELECT free_blocks FROM pragma_database_size()").fetchall() == [(0,)]
        tables = opened.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'core'").fetchall()
        rows = "\n".join(str(opened.execute(f"SELECT * FROM core.{table}").fetchall()) for (table,) in tables)
    assert [text for each in traces for text in {*each.texts, archive.user} if text in rows] == []
    gone = Traces(archive.user, {str(archive.folder / "account")})
    assert found(archive.store, gone) == {}


def forget_all(archive: Archive, opened: Store) -> None:
    people = JobPeople(opened, USER)
    for row in people.all():
        if archive.gone.get(str(row.name)) in WAYS:
            people.forget(row.person_id)
    opened.erase(now=True)


@pytest.mark.slow
def test_erased_while_a_run_a_regroup_an_export_and_posts_go_on(tmp_path: Path) -> None:
    """Those who are forgotten are enrolled again meanwhile."""
    archive = Archive(tmp_path, nights=0)
    traces = [each for each in lead_a_life(archive) if archive.gone[each.name] in WAYS]
    for number in range(20):
        write_photo(archive.folder / "more", f"{number}.png", Shown(200 + number), Shown(200 + number, 1))

    def run_again() -> None:
        assert run_over(archive.folder / "more", archive.store, account=USER).persons > 0

    def regroup_and_export() -> None:
        for number in range(3):
            with open_store(archive.store, command="test") as opened:
                JobPeople(opened, USER).regroup()
                assert opened.export(tmp_path / f"export {number}")["persons"] > 0

    def post(service: IdentityService) -> None:
        for variant in range(20, 40):
            for number, each in enumerate(traces):
                service.post(ACCOUNT, "main", photo(Shown(number + 1, variant)), PostRequest(name=each.name))

    with serving(archive.store) as service, open_store(archive.store, command="test") as opened:
        going = [run_again, regroup_and_export, partial(post, service)]
        with ThreadPoolExecutor(len(going)) as threads:
            working = [threads.submit(work) for work in going]
            while not all(work.done() for work in working):
                forget_all(archive, opened)
            for work in working:
                work.result()
        forget_all(archive, opened)
    for number, each in enumerate(traces):
        for variant in range(20, 40):
            each.note_vector(Shown(number + 1, variant))
    of_others = pictures_of_others(archive.store)
    for each in traces:
        each.data -= of_others
    assert {each.name: hits for each in traces if (hits := found(archive.store, each))} == {}
    assert problems(archive.store) == []
