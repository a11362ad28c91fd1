"""What of people who were deleted is left in any file of a store: nothing, once it was erased."""

from __future__ import annotations

import random
import shutil
import string
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from unittest.mock import patch
from uuid import UUID

import duckdb
import pyarrow.parquet as pq
import pytest
from coded_faces import Shown, photo, vector

from pipeline.errors import StoreError, StoreFull
from pipeline.people.types import PostRequest
from pipeline.store.catalog import connection
from pipeline.store.local import LocalStore
from pipeline.store.records import PersonChange
from tests.people.coded_archive import SETTINGS, SIZE, make_store, problems, run_over, write_photo
from tests.people.correcting import People
from tests.store.store_samples import at_fault_points, copied_at_points, failing_at

PEOPLE, GONE = 40, 12  # a tenth of them is deleted in each way
ACCOUNT = 1


@dataclass
class Traces:
    """What a person leaves, by kind: bytes to search for."""

    name: str
    texts: set[str] = field(default_factory=set)  # also names of before, external ids, tags, metadata, ids, paths
    data: set[bytes] = field(default_factory=set)  # hashes, vectors, pictures

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
    """A store of PEOPLE with photos of their own in folders of their names, and two on some photos."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.photos, self.store = folder, folder / "photos", make_store(folder / "store")
        self.names = [letters(f"name {number}") for number in range(PEOPLE)]
        for number, name in enumerate(self.names):
            for variant in (1, 2):
                write_photo(self.photos / name, f"{letters(f'{name} {variant}')}.png", Shown(number + 1, variant))
            if number % 4 == 3:
                both = Shown(number + 1, 3), Shown(number, 3)
                write_photo(folder / "groups", f"{letters(f'both {number}')}.png", *both)

    def run(self, **run: object) -> None:
        late = replace(SETTINGS, run=replace(SETTINGS.run, **run), store=replace(SETTINGS.store, erase_within=8760.0))
        by_folder = replace(late, source=replace(SETTINGS.source, labels="parent"))
        run_over(self.photos, self.store, settings=by_folder)
        run_over(self.folder / "groups", self.store, settings=late)

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

    def traces(self, number: int) -> Traces:
        """Of a person of this number, as the store has it now."""
        traces = Traces(self.names[number])
        own = str(self.photos / traces.name)
        with LocalStore.open(self.store, command="look") as client:
            (person,) = client.read(
                "SELECT person_id::VARCHAR AS id, external_id FROM core.persons WHERE name = ?", [traces.name]
            ).to_pylist()
            media = client.read("SELECT * FROM core.media WHERE starts_with(path, ?)", [own]).to_pylist()
            pictures = client.read(
                "SELECT image_guid FROM core.reference_faces WHERE person_id = ? AND image_guid IS NOT NULL",
                [person["id"]],
            )["image_guid"].to_pylist()
            for guid in pictures:
                traces.texts.add(guid)
                traces.data.add(client.read_image(ACCOUNT, guid, at_rest=True)[0])
        traces.data |= uuid_bytes(person["id"])
        traces.texts |= {person["external_id"]} - {None}
        for row in media:
            traces.texts |= {row["path"], Path(row["path"]).name, row["sha256"], row["pixel_hash"]}
            traces.data |= {bytes.fromhex(row["sha256"]), bytes.fromhex(row["pixel_hash"])}
        for variant in (0, 1, 2, 3):
            traces.data.add(vector(Shown(number + 1, variant), SIZE).tobytes())
        return traces


@pytest.fixture(params=["uncompressed", "auto"])
def compression(request: pytest.FixtureRequest) -> Iterator[str]:
    with patch.dict(connection._SETTINGS, force_compression=request.param):
        yield str(request.param)


def lead_a_life(archive: Archive) -> list[Traces]:
    """Runs, posts, corrections and labels, all of which concern the people who are deleted later."""
    archive.run()
    with archive.people() as people:
        ids = archive.ids(people)
        for number, name in enumerate(archive.names[:GONE]):
            former, external = letters(f"former {name}"), letters(f"external {name}")
            people.correct("name", ids[name], name=former)
            people.correct("name", ids[name], name=name)
            change = PersonChange(
                external_id=external, tags=[letters(f"tag {name}")], metadata={"note": letters(f"note {name}")}
            )
            people.correct("update", ids[name], change=change)
            people.service.post(
                ACCOUNT, "main", photo(Shown(number + 1, 0)), PostRequest(name=name, external_id=external)
            )
        people.client.fold()
    traces = [archive.traces(number) for number in range(GONE)]
    for each in traces:
        each.texts |= {letters(f"{kind} {each.name}") for kind in ("former", "external", "tag", "note")}
    return traces


def delete_all(archive: Archive, traces: list[Traces]) -> None:
    """Three people in each way."""
    names = [each.name for each in traces]
    with archive.people() as people:
        ids = archive.ids(people)
        for name in names[:3]:
            people.correct("forget", ids[name])
        for name in names[3:6]:
            people.correct("delete", ids[name])
        media = people.client.read("SELECT media_id, path FROM core.media WHERE path IS NOT NULL").to_pylist()
        for name in names[6:9]:
            own = [row["media_id"] for row in media if f"/{name}/" in row["path"]]
            people.correct("forget_photos", media_ids=own)
            people.correct("forget", ids[name])
        people.client.fold()
    for name in names[9:12]:
        shutil.rmtree(archive.photos / name)
    archive.run(on_missing="forget")
    with archive.people() as people:
        ids = archive.ids(people)
        for name in names[9:12]:
            if name in ids:
                people.correct("forget", ids[name])
        people.client.fold()


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


def test_nothing_is_left_of_them_in_any_file(tmp_path: Path, compression: str) -> None:
    archive = Archive(tmp_path)
    traces = lead_a_life(archive)
    if compression == "uncompressed":
        for each in traces:  # the same search finds them all before
            before = found(archive.store, each)
            assert each.name in before
            assert len(before) > 10, before
            assert [name for names in before.values() for name in names if name.startswith("rows of")]
    delete_all(archive, traces)
    with LocalStore.open(archive.store, command="test", erase_within_h=0.0):
        pass
    left = {each.name: hits for each in traces if (hits := found(archive.store, each))}
    assert left == {}
    assert problems(archive.store) == []
    (catalog,) = archive.store.glob("catalog-*.duckdb")
    with duckdb.connect(str(catalog), read_only=True) as opened:
        assert opened.execute("SELECT free_blocks FROM pragma_database_size()").fetchall() == [(0,)]
        tables = opened.execute("SELECT table_name FROM duckdb_tables() WHERE schema_name = 'core'").fetchall()
        rows = "\n".join(str(opened.execute(f"SELECT * FROM core.{table}").fetchall()) for (table,) in tables)
    assert [text for each in traces for text in each.texts if text in rows] == []
