"""Enrolling photos as shards gives what posting them one by one gives: the same identities, matches and rejections."""

from __future__ import annotations

import hashlib
import itertools
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.pixel_hash import PixelHash
from pipeline.extraction.rows import EXTRACT, MANIFEST_SCHEMA, REUSE_MEDIA, REUSE_ROW, shard_schema
from pipeline.people.service import IdentityService
from pipeline.people.types import FaceResult, PostRequest
from pipeline.store.local import LocalStore
from pipeline.types import DUPLICATE, NO_FACE, OK
from tests.asking import ask_for
from tests.identities.planted import SIZE, Face, PlantedExtractor, listed, near, settings
from tests.stored import stored_people

DIRECTORIES = ("main", "second", "third")
# Neighbours match at the usual threshold, others don't: whose a face is depends on who came before it.
VECTORS = [near(person, distance, (person + 1) % 3) for person in range(3) for distance in (0.0, 0.5, 1.0)]
QUALITIES = ((0.9, 0.9, 0.9), (0.9, 0.9, 0.9), (0.1, 0.9, 0.9), (0.9, 0.3, 0.3))
HEADERS = ((None, None), ("Ann", "1"), ("Bob", "2"), ("Bob", None), (None, "1"))
_numbers = itertools.count()


@dataclass(frozen=True)
class Row:
    """A photo to enrol: which of the drawn ones, which of its two files, its directory and its labels."""

    photo: int
    copy: int
    directory: str
    headers: tuple[str | None, str | None]

    @property
    def request(self) -> dict[str, Any]:
        name, external_id = self.headers
        return {"name": name, "external_id": external_id, "insert_all": self.headers == (None, None)}


@dataclass(frozen=True)
class Archive:
    """Photos already posted, which persons of each directory are merged then, and the rows to enrol."""

    photos: Sequence[Sequence[tuple[int, int]]]  # by photo and face: the vector, the quality
    before: Sequence[Row]
    merges: Mapping[str, Sequence[tuple[int, int]]]
    rows: Sequence[Row]
    shard_rows: int
    second_run: int  # the rows from here on are a run of their own
    threshold: float
    once: bool  # nobody twice on a photo


@st.composite
def archives(draw: st.DrawFn) -> Archive:
    face = st.tuples(st.integers(0, len(VECTORS) - 1), st.integers(0, len(QUALITIES) - 1))
    photos = draw(st.lists(st.lists(face, max_size=3), min_size=1, max_size=4))
    directories = st.sampled_from(DIRECTORIES[: draw(st.integers(1, 3))])
    row = st.builds(Row, st.integers(0, len(photos) - 1), st.integers(0, 1), directories, st.sampled_from(HEADERS))
    pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=2)
    rows = draw(st.lists(row, min_size=1, max_size=10))
    return Archive(
        photos,
        draw(st.lists(row, max_size=4)),
        draw(st.fixed_dictionaries(dict.fromkeys(DIRECTORIES, pairs))),
        rows,
        draw(st.integers(1, len(rows))),
        draw(st.integers(0, len(rows))),
        draw(st.sampled_from([0.0, 0.0, 0.09, 0.54, 0.54, 1.5, 4.0])),
        draw(st.booleans()),
    )


@dataclass
class World:
    """A service, and two accounts that get the same photos: one by shards, the other by posts."""

    client: LocalStore
    people: IdentityService
    extractor: PlantedExtractor
    folder: Path

    def accounts(self) -> tuple[int, int]:
        number = next(_numbers)
        return self.client.create_account(f"shards-{number}", None), self.client.create_account(f"posts-{number}", None)

    def plant(self, archive: Archive) -> list[list[bytes]]:
        """The two files of each photo."""
        places = [(90, 0), (60, 100), (40, 200)]  # the side and the offset of its faces, from the largest
        return [
            self.extractor.copies(
                2,
                *(
                    Face(VECTORS[vector], side, x, QUALITIES[quality])
                    for (vector, quality), (side, x) in zip(faces, places, strict=False)
                ),
            )
            for faces in archive.photos
        ]

    def post(self, account: int, row: Row, photos: list[list[bytes]], threshold: float) -> Sequence[FaceResult]:
        request = PostRequest(update=False, threshold=threshold, **row.request)
        return self.people.post(account, row.directory, photos[row.photo][row.copy], request).faces

    def merge(self, account: int, archive: Archive) -> None:
        for directory, pairs in archive.merges.items():
            persons = [record.person_id for record in self.people.records(account, directory)]
            for pair in pairs:
                if max(pair) < len(persons):
                    ask_for(self.people, "merge", account, directory, [persons[k] for k in pair])

    def enrol(self, account: int, archive: Archive, rows: Sequence[Row], photos: list[list[bytes]]) -> str:
        """A run of these rows, planned and extracted as the command does it."""
        match = {**asdict(settings().match), "threshold": archive.threshold, "once_per_photo": archive.once}
        if not archive.once:
            del match["once_per_photo"]  # as in a plan of an earlier version
        plan = {"shard_rows": archive.shard_rows, "match": match}
        run = self.client.begin_run(f"rows {next(_numbers)}", "manifest", account, "main", plan)
        manifest = self._manifest(account, rows, photos)
        batches = pa.Table.from_pylist(manifest, MANIFEST_SCHEMA).to_batches()
        self.client.write_manifest(run.run_id, batches, MANIFEST_SCHEMA, shard_rows=archive.shard_rows)
        shards = -(-len(rows) // archive.shard_rows)
        self.client.plan_run(run.run_id, len(rows), shards)
        extracted = [self._extracted(row, planned) for row, planned in zip(rows, manifest, strict=True)]
        for shard in range(shards):
            part = extracted[shard * archive.shard_rows : (shard + 1) * archive.shard_rows]
            table = pa.Table.from_pylist(part, shard_schema(SIZE))
            self.client.write_run_shard(run.run_id, shard, table, {})
        for shard in range(shards):
            self.people.enrol_shard(run.run_id, shard)
        self.client.finish_run(run.run_id, {})
        return run.run_id

    def _manifest(self, account: int, rows: Sequence[Row], photos: list[list[bytes]]) -> list[dict[str, Any]]:
        hashes = [hashlib.sha256(photos[row.photo][row.copy]).hexdigest() for row in rows]
        in_store, first = self.client.media_of_hashes(account, hashes), dict[str, int]()
        manifest = []
        for number, (row, sha256) in enumerate(zip(rows, hashes, strict=True)):
            file, data = self.folder / f"{sha256}.png", photos[row.photo][row.copy]
            file.write_bytes(data)
            action: dict[str, Any] = {"action": EXTRACT}
            if sha256 in first:
                action = {"action": REUSE_ROW, "source_row": first[sha256]}
            elif sha256 in in_store:
                action = {"action": REUSE_MEDIA, "source_media": in_store[sha256]}
            else:
                first[sha256] = number
            name, external_id = row.headers
            labels = {"directory": row.directory, "name": name, "external_id": external_id}
            content = {"file": os.fsencode(file), "sha256": sha256, "bytes": len(data)}
            manifest.append({"row": number, "path": f"{number}.png", **labels, **content, **action})
        return manifest

    def _extracted(self, row: Row, planned: Mapping[str, Any]) -> dict[str, Any]:
        fields = {"row": planned["row"], "sha256": planned["sha256"]}
        if planned["action"] != EXTRACT:
            return {**fields, "status": DUPLICATE}
        image = Decoder(settings().decode)(Path(os.fsdecode(planned["file"])).read_bytes())
        (faces,) = self.extractor.extract([image])
        size = {"width": image.width, "height": image.height, "format": image.format}
        status = OK if len(faces) else NO_FACE
        pixel_hash = PixelHash(self.client.identity.pixel_key)(image.pixels)
        return {**fields, **size, "pixel_hash": pixel_hash, "status": status, "faces": faces.to_pylist()}

    def decided_in_run(self, run_id: str) -> list[tuple[int, int, str, str, str | None, float | None]]:
        """(row, face, outcome, reasons, person, score) of all faces."""
        rows = self.client.read(
            "SELECT m.row, f.ordinal, f.outcome, coalesce(d.rejection_reasons, '') AS reasons,"
            " f.person_id::VARCHAR AS person, d.similarity_score AS score"
            " FROM core.media m JOIN core.faces f USING (media_id) LEFT JOIN core.detections d USING (face_id)"
            " WHERE m.run_id = ? ORDER BY m.row, f.ordinal",
            [run_id],
        ).to_pylist()
        return [(r["row"], r["ordinal"], r["outcome"], r["reasons"], r["person"], r["score"]) for r in rows]

    def everybody(self, account: int, directory: str) -> list[Any]:
        """All that is kept of the persons of a directory but ids, guids and times, in the order of insertion."""
        stored = stored_people(self.client, account, directory)
        views = listed(self.people, account, directory)
        places = {view.record.person_id: place for place, view in enumerate(views)}
        return [
            (
                (view.record.name, view.record.external_id, view.record.occurrence, view.occurrence),
                places[view.root.person_id],
                places.get(str(view.record.parent_id)),
                (vector.tobytes(), hashes, box.tolist()),
            )
            for view, vector, hashes, box in zip(views, stored.vectors, stored.image_hashes, stored.boxes, strict=True)
        ]


@pytest.fixture
def world(client: LocalStore, people: IdentityService, extractor: PlantedExtractor, tmp_path: Path) -> World:
    folder = tmp_path / "photos"
    folder.mkdir()
    return World(client, people, extractor, folder)


def decided_by_post(row: int, faces: Sequence[FaceResult]) -> Iterator[tuple[Any, ...]]:
    for ordinal, face in enumerate(faces):
        outcome = "inserted" if face.inserted else "rejected" if face.rejected else "recognised"
        if face.person is None:
            yield row, ordinal, outcome, ",".join(face.rejected), None, None
        else:
            outcome = "inserted" if face.inserted else "matched"
            yield row, ordinal, outcome, "", face.person.record.person_id, face.score


@pytest.mark.slow
def test_shards_equal_posts(world: World, full: bool) -> None:
    @examples(max_examples=400 if full else 15, suppress_health_check=[HealthCheck.too_slow])
    @given(archives())
    def check(archive: Archive) -> None:
        photos = world.plant(archive)
        world.people._post_handler.take_generation(replace(settings().match, once_per_photo=archive.once))
        shards, posts = world.accounts()
        for account in (shards, posts):
            for row in archive.before:
                world.post(account, row, photos, 0.54)
            world.merge(account, archive)
        posted = [
            decided
            for number, row in enumerate(archive.rows)
            for decided in decided_by_post(number, world.post(posts, row, photos, archive.threshold))
        ]
        parts = archive.rows[: archive.second_run], archive.rows[archive.second_run :]
        enrolled: list[tuple[Any, ...]] = []
        for first, part in zip((0, archive.second_run), parts, strict=True):
            if part:
                run_id = world.enrol(shards, archive, part, photos)
                enrolled += [(first + row, *decided) for row, *decided in world.decided_in_run(run_id)]
        for directory in DIRECTORIES:
            assert world.everybody(shards, directory) == world.everybody(posts, directory)
        if archive.once:
            assert not twice(named(world, posts, archive, posted))
        assert named(world, shards, archive, enrolled) == named(world, posts, archive, posted)

    check()


def twice(decided: Sequence[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """The rows with two faces of one person."""
    shown = Counter((row, person) for row, _, _, _, person, _ in decided if person is not None)
    return [who for who, count in shown.items() if count > 1]


def named(world: World, account: int, archive: Archive, decided: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """The decisions with each person's root by its place in its directory; ids differ between accounts."""
    places = {}
    for directory in DIRECTORIES:
        views = listed(world.people, account, directory)
        order = {view.record.person_id: place for place, view in enumerate(views)}
        places[directory] = {view.record.person_id: order[view.root.person_id] for view in views}
    return [
        (row, ordinal, outcome, reasons, places[archive.rows[row].directory].get(person), score)
        for row, ordinal, outcome, reasons, person, score in decided
    ]
