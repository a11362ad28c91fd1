"""Index segments: what is written is read, and nothing that was changed since is ever used."""

from __future__ import annotations

import dataclasses
import gc
import hashlib
import json
import os
import struct
import subprocess
import sys
import threading
import tracemalloc
import uuid
import weakref
import zlib
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import StoreDamaged, StoreFull
from pipeline.store.files import segments
from pipeline.store.files.durable import Folder
from pipeline.store.files.faults import FILE_STEPS
from pipeline.store.files.mapped_rows import BLOCK_BYTES, BlockSums, CheckedBlocks, MappedRows
from pipeline.store.files.segment_header import PAGE_BYTES, Header
from pipeline.store.files.segments import (
    MAX_ROWS,
    Segment,
    SegmentKey,
    SegmentRows,
    SegmentUnusable,
    VectorCodes,
    codes_of,
    image_table,
    uuid_bytes,
)
from tests.store.store_samples import failing_at, flip, no_room, sha, unit_vectors
from tests.store.test_disk import in_namespace

NAME = "references/g0001/7-1.segment"
IMAGE_KEY = b"of images" * 3
ROWS, SIZE = 3001, 65  # rows of 260 bytes, some of which begin in one block and end in the next
KEY = SegmentKey("ab" * 16, 1, 7, SIZE)
COLUMNS = ("vectors", "codes", "scales", "errors", "seq", "order", "person_ids", "boxes")


def person_id(number: int) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, f"person {number}"))


def person_of(row: np.ndarray) -> str:
    """The text of the UUID with these bytes."""
    return str(uuid.UUID(bytes=row.tobytes()))


def hashes_of(count: int) -> list[tuple[str, ...]]:
    """Of the photos of so many rows: none, one or two."""
    return [(sha(f"{n}"), sha(f"pixels {n}"))[: n % 3] for n in range(count)]


def rows_of(count: int, size: int = SIZE, hashes: Sequence[tuple[str, ...]] | None = None) -> SegmentRows:
    vectors = unit_vectors(count, seed=count, size=size)
    rng = np.random.default_rng(count)
    return SegmentRows(
        vectors=vectors,
        codes=codes_of(vectors),
        seq=np.cumsum(rng.integers(1, 9, count)),
        order=rng.permutation(count),
        person_ids=uuid_bytes([person_id(n) for n in range(count)]),
        boxes=rng.uniform(-5, 500, (count, 4)).astype(np.float32),
        images=image_table(hashes_of(count) if hashes is None else hashes, IMAGE_KEY),
    )


def write(folder: Folder, rows: SegmentRows) -> int:
    return segments.write(folder, NAME, dataclasses.replace(KEY, embedding_size=rows.vectors.shape[1]), rows, IMAGE_KEY)


def open_in(folder: Folder, key: SegmentKey = KEY, image_key: bytes = IMAGE_KEY) -> Segment:
    return Segment.open(folder, NAME, key, image_key)


def written(folder: Folder, rows: SegmentRows) -> Segment:
    write(folder, rows)
    return open_in(folder, dataclasses.replace(KEY, embedding_size=rows.vectors.shape[1]))


def expected_columns(rows: SegmentRows) -> dict[str, np.ndarray]:
    return {**{name: getattr(rows, name, None) for name in COLUMNS}, **rows.codes._asdict()}


def look_up_all(segment: Segment) -> None:
    for number, hashes in enumerate(hashes_of(len(segment))):
        segment.person_row(person_id(number))
        for text in hashes:
            segment.image_rows(text)


@pytest.fixture(scope="module")
def rows() -> SegmentRows:
    return rows_of(ROWS)


@pytest.fixture(scope="module")
def content(rows: SegmentRows, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A file of several blocks."""
    folder = Folder(tmp_path_factory.mktemp("content"))
    write(folder, rows)
    return folder.path(NAME).read_bytes()


@pytest.fixture
def folder(content: bytes, tmp_path: Path) -> Folder:
    """A folder with the segment, which the test may damage."""
    return holding(content, tmp_path)


def holding(data: bytes, path: Path) -> Folder:
    folder = Folder(path)
    folder.make(NAME.rpartition("/")[0])
    folder.path(NAME).write_bytes(data)
    return folder


# Round trip


@pytest.mark.parametrize("count", [1, 2, ROWS])
def test_what_was_written_is_read_bit_for_bit(tmp_path: Path, count: int) -> None:
    rows = rows_of(count)
    folder = Folder(tmp_path)
    size = write(folder, rows)
    segment = open_in(folder)
    assert len(segment) == count
    assert segment.file_bytes == size == folder.path(NAME).stat().st_size
    norms = np.linalg.norm(rows.vectors.astype(np.float64), axis=1)
    assert segment.max_norm == pytest.approx(norms.max(), rel=2.0**-48)
    some = np.random.default_rng(1).integers(count, size=20)
    for name, column in expected_columns(rows).items():
        stored: MappedRows[Any] = getattr(segment, name)
        assert len(stored) == count
        assert not stored.array.flags.writeable
        assert stored.at(some).tobytes() == column[some].tobytes()
        assert stored.at(some[:0]).shape == (0, *column.shape[1:])
        assert stored.checked(count // 2, count).tobytes() == column[count // 2 :].tobytes()
        assert stored.checked(0, count).tobytes() == column.tobytes()
        assert stored.array.dtype == column.dtype
    assert segment.verify() is None


def test_the_file_is_as_format_md_says(rows: SegmentRows, content: bytes) -> None:
    assert content[:12] == b"FACESEG\n\x01\x00\x00\x00"
    assert int.from_bytes(content[4092:4096], "little") == zlib.crc32(content[:4092])
    header = json.loads(content[12:4092])
    end = header["sections_end"]
    blocks = [content[start : min(start + 2**18, end)] for start in range(4096, end, 2**18)]
    sums = np.array([zlib.crc32(block) for block in blocks], "<u4").tobytes()
    assert content[end:] == sums + zlib.crc32(sums).to_bytes(4, "little")
    assert {name: header[name] for name in ("store", "generation", "directory_id")} == {
        "store": "ab" * 16,
        "generation": 1,
        "directory_id": 7,
    }
    assert (header["rows"], header["embedding_size"], header["cipher"], header["salt"]) == (ROWS, SIZE, None, None)
    found = {}
    for name, section in header["sections"].items():
        assert section["offset"] % 4096 == 0
        count = int(np.prod(section["shape"]))
        found[name] = np.frombuffer(content, section["dtype"], count, section["offset"]).reshape(section["shape"])
    for name, column in expected_columns(rows).items():
        np.testing.assert_array_equal(found[name], column)
    firsts = [int.from_bytes(uuid.UUID(person_id(n)).bytes[:8], "big") for n in range(ROWS)]
    assert sorted(zip(firsts, range(ROWS), strict=True)) == list(
        zip(found["person_keys"].tolist(), found["person_rows"].tolist(), strict=True)
    )
    digests = sorted(
        (hashlib.blake2b(text.encode(), key=IMAGE_KEY, digest_size=16).digest(), row)
        for row, hashes in enumerate(hashes_of(ROWS))
        for text in hashes
    )
    halves = zip(found["image_high"].tolist(), found["image_low"].tolist(), strict=True)
    stored = [first.to_bytes(8, "big") + rest.to_bytes(8, "big") for first, rest in halves]
    assert list(zip(stored, found["image_rows"].tolist(), strict=True)) == digests
    assert IMAGE_KEY not in content
    assert sha("1").encode() not in content


@pytest.mark.slow
def test_a_segment_holds_at_most_65536_rows(tmp_path: Path) -> None:
    rows = rows_of(MAX_ROWS, 2, [()] * MAX_ROWS)
    segment = written(Folder(tmp_path), rows)
    assert segment.person_row(person_id(65_535)) == 65_535
    more = rows_of(MAX_ROWS + 1, 2, [()] * (MAX_ROWS + 1))
    with pytest.raises(ValueError, match="65536 rows, not 65537"):
        write(Folder(tmp_path / "more"), more)
    assert not (tmp_path / "more").exists()


INVALID: dict[str, Callable[[SegmentRows], SegmentRows]] = {
    "no rows": lambda rows: dataclasses.replace(rows, seq=rows.seq[:0]),
    "numbers out of order": lambda rows: dataclasses.replace(rows, seq=rows.seq[::-1]),
    "a number twice": lambda rows: dataclasses.replace(rows, seq=np.maximum(rows.seq, rows.seq[1])),
    "float64 vectors": lambda rows: dataclasses.replace(rows, vectors=rows.vectors.astype(np.float64)),
    "vectors of another size": lambda rows: dataclasses.replace(rows, vectors=rows.vectors[:, 1:]),
    "not a number": lambda rows: dataclasses.replace(rows, vectors=np.full_like(rows.vectors, np.nan)),
    "too few codes": lambda rows: dataclasses.replace(rows, codes=codes_of(rows.vectors[1:])),
    "too few persons": lambda rows: dataclasses.replace(rows, person_ids=rows.person_ids[1:]),
    "half of each person's id": lambda rows: dataclasses.replace(rows, person_ids=rows.person_ids[:, :8]),
    "too few rows of images": lambda rows: dataclasses.replace(
        rows, images=rows.images._replace(rows=rows.images.rows[1:])
    ),
}


@pytest.mark.parametrize("change", INVALID.values(), ids=INVALID)
def test_rows_that_cannot_be_a_segment_are_refused(
    tmp_path: Path, change: Callable[[SegmentRows], SegmentRows]
) -> None:
    with pytest.raises(ValueError):
        segments.write(Folder(tmp_path), NAME, KEY, change(rows_of(5)), IMAGE_KEY)
    assert not [file for file in tmp_path.rglob("*") if file.is_file()]


@pytest.mark.parametrize("image_key", [b"", b"k" * 65])
def test_a_key_for_images_has_1_to_64_bytes(tmp_path: Path, image_key: bytes) -> None:
    with pytest.raises(ValueError):
        segments.write(Folder(tmp_path), NAME, KEY, rows_of(2), image_key)


def test_vectors_are_not_copied_as_a_whole(tmp_path: Path) -> None:
    """Not even those that do not lie in memory as they do in the file."""
    rows = rows_of(20_000, 512, [()] * 20_000)
    rows = dataclasses.replace(rows, vectors=np.asfortranarray(rows.vectors))
    key = dataclasses.replace(KEY, embedding_size=512)
    tracemalloc.start()
    try:
        segments.write(Folder(tmp_path), NAME, key, rows, IMAGE_KEY)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows.vectors.nbytes > 40e6
    assert peak < 36e6  # a chunk of 4,096 rows as float64 and its copies
    assert open_in(Folder(tmp_path), key).vectors.checked(7, 9).tobytes() == rows.vectors[7:9].tobytes()


def test_rows_out_of_range_are_refused(folder: Folder) -> None:
    for _ in range(2):
        segment = open_in(folder)
        for start, stop in [(-1, 2), (3, 2), (0, ROWS + 1)]:
            with pytest.raises(IndexError):
                segment.seq.checked(start, stop)
        for row in (-1, ROWS):
            with pytest.raises(IndexError):
                segment.vectors.at(np.array([0, row]))
        segment.vectors.checked(0, ROWS)


# Lookups


def test_persons_and_images_are_found(rows: SegmentRows, folder: Folder) -> None:
    segment = open_in(folder)
    assert [segment.person_row(person_of(row)) for row in rows.person_ids] == list(range(ROWS))
    for number in (1, 2, 5, 2999):
        assert segment.image_rows(sha(f"{number}")) == [number]
        assert segment.image_rows(sha(f"pixels {number}")) == ([number] if number % 3 == 2 else [])
    for unknown in (person_id(ROWS), "nobody", ""):
        assert segment.person_row(unknown) is None
    assert segment.image_rows("") == segment.image_rows(sha("0")) == []


def test_rows_without_a_hash(tmp_path: Path) -> None:
    segment = written(Folder(tmp_path), rows_of(3, hashes=[(), (), ()]))
    assert segment.image_rows(sha("1")) == []
    assert segment.verify() is None


halves = st.sampled_from([bytes(8), b"\xff" * 8, b"\x80" + bytes(7), b"\x7f" + b"\xff" * 7, b"\xff" * 7 + b"\xfe"])
ids = st.builds(lambda first, rest: str(uuid.UUID(bytes=first + rest)), halves, halves)
texts = st.sampled_from(["", "a", "b", "c", "d"])


@given(people=st.lists(ids, min_size=1, max_size=30), data=st.data())
def test_lookups_agree_with_a_dictionary_even_if_halves_collide(
    tmp_path_factory: pytest.TempPathFactory, people: list[str], data: st.DataObject
) -> None:
    """Ids and digests whose first or last 8 bytes are those of others, with the largest bit set or not; a person or a
    hash more than once."""
    count = len(people)
    hashes = data.draw(st.lists(st.lists(texts, max_size=3).map(tuple), min_size=count, max_size=count))
    drawn = data.draw(st.lists(st.tuples(halves, halves), min_size=5, max_size=5, unique=True))
    digests = {text: first + rest for text, (first, rest) in zip(["", "a", "b", "c", "d"], drawn, strict=True)}
    segments._halves.cache_clear()
    with patch.object(segments, "_digest", lambda text, _: digests[text]):
        rows = dataclasses.replace(rows_of(count, 2, hashes), person_ids=uuid_bytes(people))
        segment = written(Folder(tmp_path_factory.mktemp("lookups")), rows)
        for text in digests:
            assert segment.image_rows(text) == [row for row in range(count) if text in hashes[row]]
    segments._halves.cache_clear()
    model = {text: row for row, text in enumerate(people)}
    for first in (bytes(8), b"\xff" * 8, b"\xff" * 7 + b"\xfe"):
        for text in {*people, str(uuid.UUID(bytes=first + b"12345678"))}:
            assert segment.person_row(text) == model.get(text)


# Removed rows, and several segments as one


def part_of(rows: SegmentRows, kept: np.ndarray, hashes: Sequence[tuple[str, ...]]) -> SegmentRows:
    """The rows at these positions; `hashes` of all rows."""
    columns = {name: getattr(rows, name)[kept] for name in ("vectors", "seq", "order", "person_ids", "boxes")}
    codes = VectorCodes(*(column[kept] for column in rows.codes))
    return SegmentRows(codes=codes, images=image_table([hashes[row] for row in kept], IMAGE_KEY), **columns)


def assert_same(found: SegmentRows, expected: SegmentRows) -> None:
    columns = expected.columns
    assert found.columns.keys() == columns.keys()
    for name, column in found.columns.items():
        assert (column.dtype, column.shape) == (columns[name].dtype, columns[name].shape), name
        assert column.tobytes() == columns[name].tobytes(), name


@given(count=st.integers(1, 40), data=st.data())
def test_removed_rows_are_dead_and_the_others_live(
    tmp_path_factory: pytest.TempPathFactory, count: int, data: st.DataObject
) -> None:
    rows = rows_of(count, 5)
    folder, key = Folder(tmp_path_factory.mktemp("live")), dataclasses.replace(KEY, embedding_size=5)
    write(folder, rows)
    dead = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1)))), np.int64)
    elsewhere = np.array(data.draw(st.lists(st.integers(-5, 999)).map(lambda found: [*{*found} - {*rows.seq}])), int)
    removed = np.concatenate([elsewhere, rows.seq[dead[::-1]]])
    segment = Segment.open(folder, NAME, key, IMAGE_KEY, removed)
    assert segment.dead.tolist() == dead.tolist()
    assert len(segment) == count  # its rows stay where they are
    assert_same(segment.live(), part_of(rows, np.setdiff1d(np.arange(count), dead), hashes_of(count)))


def test_without_a_list_of_removed_ones_all_live(folder: Folder, rows: SegmentRows) -> None:
    segment = open_in(folder)
    assert segment.dead.tolist() == []
    assert_same(segment.live(), rows)


def test_the_rows_of_a_segment_outlive_it(tmp_path: Path) -> None:
    """A caller keeps them while it writes another file."""
    folder, rows = Folder(tmp_path), rows_of(20)
    mapped = weakref.ref((segment := written(folder, rows))._mapped)
    live = segment.live()
    del segment
    gc.collect()
    assert mapped() is None
    assert_same(live, rows)


@given(cuts=st.lists(st.integers(0, 12), max_size=4).map(sorted))
def test_parts_joined_are_the_whole(cuts: list[int]) -> None:
    """Also if parts are empty."""
    rows = rows_of(12, 3)
    ranges = zip([0, *cuts], [*cuts, 12], strict=True)
    parts = [part_of(rows, np.arange(start, stop), hashes_of(12)) for start, stop in ranges]
    assert [len(part) for part in parts] == np.diff([0, *cuts, 12]).tolist()
    assert_same(SegmentRows.joined(parts), rows)


def test_merged_without_removed_rows(tmp_path: Path) -> None:
    """What a segment keeps, joined with the next ones and written, is found by person and image."""
    rows, hashes, folder = rows_of(30), hashes_of(30), Folder(tmp_path)
    kept = np.setdiff1d(np.arange(30), [0, 7, 19])
    write(folder, part_of(rows, np.arange(20), hashes))
    old = Segment.open(folder, NAME, KEY, IMAGE_KEY, rows.seq[[0, 7, 19]]).live()
    merged = written(folder, SegmentRows.joined([old, part_of(rows, np.arange(20, 30), hashes)]))
    assert merged.seq.checked(0, 27).tolist() == rows.seq[kept].tolist()
    for place, row in enumerate(kept.tolist()):
        assert merged.person_row(person_id(row)) == place
        assert [merged.image_rows(text) for text in hashes[row]] == [[place]] * len(hashes[row])
    for row in (0, 7, 19):
        assert merged.person_row(person_id(row)) is None
        assert [merged.image_rows(text) for text in hashes[row]] == [[]] * len(hashes[row])


def test_damaged_rows_are_not_joined(content: bytes, tmp_path: Path) -> None:
    """Else they would get a valid checksum."""
    for region in (*COLUMNS, "image_high", "image_low", "image_rows"):
        folder = holding(content, tmp_path / region)
        flip(folder.path(NAME), regions(content)[region], 3)
        with pytest.raises(StoreDamaged, match=region):
            open_in(folder).live()


def test_damaged_numbers_are_noticed_when_removed_rows_are_looked_for(content: bytes, folder: Folder) -> None:
    flip(folder.path(NAME), regions(content)["seq"], 3)
    with pytest.raises(SegmentUnusable, match="numbers"):
        Segment.open(folder, NAME, KEY, IMAGE_KEY, np.array([1]))


def test_a_hash_that_a_photo_has_twice_is_in_the_table_once() -> None:
    table = image_table([("a", "a"), (), ("b", "a")], IMAGE_KEY)
    assert table.rows.tolist() == [0, 2, 2]
    digest = hashlib.blake2b(b"a", key=IMAGE_KEY, digest_size=16).digest()
    assert (int(table.high[0]), int(table.low[0])) == struct.unpack(">QQ", digest)
    assert table.high[2] == table.high[0]
    assert [len(column) for column in image_table([(), ()], IMAGE_KEY)] == [0, 0, 0]


def test_the_bytes_of_uuids() -> None:
    assert uuid_bytes([]).shape == (0, 16)
    texts = [person_id(n) for n in range(3)]
    assert [person_of(row) for row in uuid_bytes(texts)] == texts


# What is not used


@pytest.mark.parametrize(
    "other",
    [{"store": "cd" * 16}, {"generation": 2}, {"directory_id": 8}, {"embedding_size": SIZE + 1}],
    ids=lambda other: next(iter(other)),
)
def test_one_of_something_else_is_not_used(folder: Folder, other: dict[str, Any]) -> None:
    with pytest.raises(SegmentUnusable, match=f"{next(iter(other))}="):
        open_in(folder, dataclasses.replace(KEY, **other))


def test_one_with_digests_under_another_key_is_not_used(folder: Folder) -> None:
    """No image would be found in it."""
    with pytest.raises(SegmentUnusable, match="another key"):
        open_in(folder, image_key=b"another")


@given(data=st.data())
def test_one_that_is_cut_off_anywhere_is_not_used(
    content: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    edges = st.sampled_from([0, 1, 11, 4095, 4096, 4097, len(content) - 5, len(content) - 4, len(content) - 1])
    length = data.draw(st.integers(0, len(content) - 1) | edges)
    with pytest.raises(SegmentUnusable):
        open_in(holding(content[:length], tmp_path_factory.mktemp("cut")))


def test_one_with_more_bytes_is_not_used(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(SegmentUnusable, match="bytes, not"):
        open_in(holding(content + b"\0", tmp_path))


def _link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


PLACES: dict[str, Callable[[Path], object]] = {
    "missing": Path.unlink,
    "a link": _link,
    "a dangling link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}


@pytest.mark.parametrize("change", PLACES.values(), ids=PLACES)
def test_what_is_no_file_is_not_used(folder: Folder, change: Callable[[Path], object]) -> None:
    change(folder.path(NAME))
    with pytest.raises(SegmentUnusable, match=r"not a plain file|is missing"):
        open_in(folder)


def forged(content: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """The file with other fields in its header, and the right checksum."""
    fields = json.loads(content[12:4092])
    change(fields)
    page = (content[:12] + json.dumps(fields).encode()).ljust(4092)
    return page + zlib.crc32(page).to_bytes(4, "little") + content[4096:]


def place(name: str, **changed: object) -> Callable[[dict[str, Any]], object]:
    return lambda fields: fields["sections"][name].update(changed)


FORGERIES: dict[str, Callable[[dict[str, Any]], object]] = {
    "a section after the end": place("vectors", offset=2**40),
    "a section before the beginning": place("vectors", offset=0),
    "a section at a negative place": place("vectors", offset=-4096),
    "a section between pages": place("seq", offset=5000),
    "a section of another type": place("seq", dtype="<u8"),
    "a section of another shape": place("seq", shape=[1]),
    "no section": lambda fields: fields["sections"].pop("seq"),
    "no sections": lambda fields: fields.update(sections=[]),
    "more rows than fit": lambda fields: fields.update(rows=MAX_ROWS + 1),
    "no rows": lambda fields: fields.update(rows=0),
    "half a row": lambda fields: fields.update(rows=0.5),
    "other rows": lambda fields: fields.update(rows=ROWS - 1),
    "endless hashes": lambda fields: fields.update(image_hashes=10**30),
    "another end": lambda fields: fields.update(sections_end=10**30 * 4096),
    "an end between pages": lambda fields: fields.update(sections_end=fields["sections_end"] - 1),
    "a longest vector of no length": lambda fields: fields.update(max_norm=float("nan")),
    "an endless longest vector": lambda fields: fields.update(max_norm=10**400),
    "encrypted": lambda fields: fields.update(cipher="aes256ctr"),
    "other numbers": lambda fields: fields.update(numbers="bfloat16"),
    "no store": lambda fields: fields.pop("store"),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=FORGERIES)
def test_a_header_that_cannot_be_right_is_refused(
    content: bytes, tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    with pytest.raises(SegmentUnusable):
        open_in(holding(forged(content, change), tmp_path))


@pytest.mark.parametrize("text", [b"[" * 4000, b"1", b"\xff", b"{}", b"[1]"])
def test_a_header_that_is_no_object_is_refused(content: bytes, tmp_path: Path, text: bytes) -> None:
    page = (content[:12] + text).ljust(4092)
    with pytest.raises(SegmentUnusable, match="cannot be read"):
        open_in(holding(page + zlib.crc32(page).to_bytes(4, "little") + content[4096:], tmp_path))


def test_fields_and_sections_of_later_versions_are_ignored(content: bytes, tmp_path: Path, rows: SegmentRows) -> None:
    def add(fields: dict[str, Any]) -> None:
        fields.update(later=1)
        fields["sections"]["later"] = {"offset": 0, "dtype": "V7,,", "shape": None}

    segment = open_in(holding(forged(content, add), tmp_path))
    assert segment.seq.checked(0, ROWS).tolist() == rows.seq.tolist()


# Damage


def regions(content: bytes) -> dict[str, int]:
    """A byte of each region of the file."""
    header = Header.read(content[:PAGE_BYTES])
    inside = {name: (section.offset + section.end) // 2 for name, section in header.sections.items()}
    padding = {"padding": next(s.end for s in header.sections.values() if s.end % PAGE_BYTES)}
    outside = {"magic": 3, "version": 8, "header": 100, "spaces": 4080, "sum of the header": 4093}
    return {**outside, **inside, **padding, "checksums": header.end + 5, "sum of the checksums": len(content) - 1}


HEADS = ("magic", "version", "header", "spaces", "sum of the header", "checksums", "sum of the checksums")
TABLES = ("person_keys", "person_rows", "image_high", "image_low", "image_rows")


@pytest.mark.parametrize("region", HEADS)
def test_a_bit_of_header_or_checksums_is_noticed_when_it_is_opened(content: bytes, folder: Folder, region: str) -> None:
    flip(folder.path(NAME), regions(content)[region], 3)
    with pytest.raises(SegmentUnusable):
        open_in(folder)


@pytest.mark.parametrize("region", [*COLUMNS, *TABLES, "padding"])
def test_a_bit_of_a_section_is_noticed(content: bytes, folder: Folder, region: str) -> None:
    flip(folder.path(NAME), regions(content)[region], 3)
    segment = open_in(folder)
    damage = segment.verify()
    assert damage is not None
    assert region == "padding" or region in damage
    if region in TABLES:
        with pytest.raises(StoreDamaged, match="is not as it was written"):
            look_up_all(segment)
    elif region in COLUMNS:
        for _ in range(2):
            with pytest.raises(StoreDamaged, match=r"7-1\.segment is not as it was written: bytes .*check .*--repair"):
                getattr(segment, region).checked(0, ROWS)


@given(data=st.data())
def test_a_damaged_block_is_never_used_and_all_others_are(
    content: bytes, rows: SegmentRows, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    header = Header.read(content[:PAGE_BYTES])
    position = data.draw(st.integers(PAGE_BYTES, header.end - 1))
    folder = holding(content, tmp_path_factory.mktemp("damage"))
    flip(folder.path(NAME), position, data.draw(st.integers(0, 7)))
    segment = open_in(folder)
    start = PAGE_BYTES + (position - PAGE_BYTES) // BLOCK_BYTES * BLOCK_BYTES
    for name, column in expected_columns(rows).items():
        stored: MappedRows[Any] = getattr(segment, name)
        width = column.itemsize * column[0].size
        begins = header.sections[name].offset + np.arange(ROWS) * width
        hit = (begins < start + BLOCK_BYTES) & (begins + width > start)
        sound = np.flatnonzero(~hit)
        np.testing.assert_array_equal(stored.at(sound), column[sound])
        for row in np.flatnonzero(hit)[[0, -1] if hit.any() else []].tolist():
            with pytest.raises(StoreDamaged):
                stored.at(np.array([row]))
            with pytest.raises(StoreDamaged):
                stored.checked(row, row + 1)
            with pytest.raises(StoreDamaged):
                stored.at(np.arange(ROWS))
        np.testing.assert_array_equal(stored.at(sound), column[sound])
    assert segment.verify() is not None


def test_a_block_is_compared_once_and_only_if_it_is_used(rows: SegmentRows, folder: Folder) -> None:
    segment = open_in(folder)
    with patch.object(CheckedBlocks, "is_sound", autospec=True, return_value=True) as compared:
        segment.vectors.at(np.array([0, 1, 0]))
        assert compared.call_count == 1
        segment.vectors.checked(0, 2)
        segment.vectors.at(np.array([1]))
        assert compared.call_count == 1
        for name in COLUMNS:
            getattr(segment, name).checked(0, ROWS)
        segment.person_row(person_id(0))
        segment.image_rows(hashes_of(2)[1][0])
        header = Header.read(folder.path(NAME).read_bytes()[:PAGE_BYTES])
        assert compared.call_count == header.blocks
        segment.vectors.at(np.arange(ROWS))
        assert compared.call_count == header.blocks


@given(lengths=st.lists(st.integers(0, 3 * BLOCK_BYTES), max_size=5))
def test_checksums_are_the_same_however_the_bytes_arrive(lengths: list[int]) -> None:
    data = np.random.default_rng(1).bytes(sum(lengths))
    sums, start = BlockSums(), 0
    for length in lengths:
        sums.add(memoryview(data)[start : start + length])
        start += length
    blocks = [data[place : place + BLOCK_BYTES] for place in range(0, len(data), BLOCK_BYTES)]
    assert sums.table() == np.array([zlib.crc32(block) for block in blocks], "<u4").tobytes()


def test_rows_longer_than_a_block() -> None:
    width = 2 * BLOCK_BYTES + 24
    array = np.random.default_rng(1).integers(0, 255, (4, width), np.uint8)
    sums = BlockSums()
    sums.add(memoryview(array.tobytes()))
    damaged = array.copy()
    damaged[2, BLOCK_BYTES] += 1
    table = np.frombuffer(sums.table(), "<u4")
    stored = MappedRows(CheckedBlocks(memoryview(damaged.tobytes()), table, lambda block: KeyError(block)), damaged, 0)
    np.testing.assert_array_equal(stored.at(np.array([3, 0])), array[[3, 0]])
    with pytest.raises(KeyError):
        stored.at(np.array([0, 2]))


# Threads, faults and disks


def test_any_number_of_threads_may_read_at_once(rows: SegmentRows, folder: Folder) -> None:
    segment, wrong = open_in(folder), list[str]()
    barrier = threading.Barrier(8)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        barrier.wait()
        for _ in range(20):
            some = rng.integers(ROWS, size=50)
            start, stop = sorted(some[:2].tolist())
            for name, column in expected.items():
                stored = getattr(segment, name)
                if stored.at(some).tobytes() != column[some].tobytes():
                    wrong.append(name)
                if stored.checked(start, stop).tobytes() != column[start:stop].tobytes():
                    wrong.append(name)
            row = int(some[0])
            if segment.person_row(person_id(row)) != row:
                wrong.append("person")
            if any(segment.image_rows(text) != [row] for text in hashes[row]):
                wrong.append("image")

    expected, hashes = expected_columns(rows), hashes_of(ROWS)
    readers = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert not wrong


def files_in(folder: Folder) -> list[str]:
    return [file.relative_to(folder.root).as_posix() for file in folder.root.rglob("*") if file.is_file()]


@pytest.mark.parametrize("step", FILE_STEPS)
def test_one_that_was_not_finished_leaves_no_file(tmp_path: Path, step: str) -> None:
    folder, rows = Folder(tmp_path), rows_of(50)
    with failing_at(f"segment.{step}", RuntimeError("cut off")), pytest.raises(RuntimeError, match="cut off"):
        write(folder, rows)
    if step == "fsync_folder":  # it has its name, and is complete
        assert files_in(folder) == [NAME]
        assert open_in(folder).verify() is None
    else:
        assert not files_in(folder)


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    with no_room(), pytest.raises(StoreFull):
        write(folder, rows_of(50))
    assert not files_in(folder)
    write(folder, rows_of(10))
    with no_room(), pytest.raises(StoreFull):
        write(folder, rows_of(50))
    assert files_in(folder) == [NAME]
    assert len(open_in(folder)) == 10


def test_an_open_segment_outlives_its_file(tmp_path: Path) -> None:
    folder, old = Folder(tmp_path), rows_of(50)
    segment = written(folder, old)
    assert len(written(folder, rows_of(60))) == 60
    folder.unlink(NAME)
    assert segment.vectors.checked(0, 50).tobytes() == old.vectors.tobytes()


def test_the_file_is_closed_with_the_last_use_of_it(folder: Folder) -> None:
    segment = open_in(folder)
    rows, mapped = segment.seq.checked(0, 2), weakref.ref(segment._mapped)
    gc.disable()
    try:
        del segment
        assert mapped() is not None
        del rows
        assert mapped() is None
    finally:
        gc.enable()


READ_ONLY = """
import numpy as np
from tests.store.test_segments import *
folder = Folder(store.parent)
segment = open_in(folder)
assert segment.verify() is None
assert segment.vectors.checked(0, ROWS).tobytes() == rows_of(ROWS).vectors.tobytes()
try:
    write(folder, rows_of(2))
except StoreUnwritable:
    print("refused")
"""


def test_it_opens_on_a_read_only_disk(content: bytes, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    holding(content, disk)
    mount = f"mount --bind '{disk}' '{disk}' && mount -o remount,bind,ro '{disk}'"
    assert in_namespace(disk, mount, READ_ONLY).strip() == "refused"


# The int8 copy


def uneven(count: int, size: int) -> np.ndarray:
    """Rows with one component near 1 and the others of any smallness, down to denormal numbers."""
    rng = np.random.default_rng(size)
    rows = 10.0 ** rng.uniform(-44, -1, (count, size)) * rng.choice([-1, 1], (count, size))
    rows[np.arange(count), rng.integers(size, size=count)] = rng.choice([-1, 1], count)
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


VECTORS = {"even": unit_vectors(40, 3, 33), "uneven": uneven(40, 33), "one number": unit_vectors(5, 1, 1)}


@pytest.mark.parametrize("vectors", VECTORS.values(), ids=VECTORS)
def test_the_remainder_is_never_longer_than_its_measure(vectors: np.ndarray) -> None:
    """In exact arithmetic, without compiled loops."""
    made = codes_of(vectors)
    assert made.codes.min() >= -127
    for row, vector in enumerate(vectors.tolist()):
        scale = Fraction(float(made.scales[row]))
        rest = (Fraction(x) - scale * int(c) for x, c in zip(vector, made.codes[row], strict=True))
        squares = sum(x * x for x in rest)
        assert squares <= (Fraction(float(made.errors[row])) + Fraction(1, 2**149)) ** 2
        assert float(squares) ** 0.5 >= 0.999 * float(made.errors[row]) - 1e-30


def test_numpy_and_the_compiled_loop_make_the_same_codes() -> None:
    pytest.importorskip("numba")
    from pipeline.matching import int8_kernels

    def quantized(vectors: np.ndarray) -> VectorCodes:
        rows, size = vectors.shape
        made = VectorCodes(np.empty((rows, size), np.int8), np.empty(rows, np.float32), np.empty(rows, np.float32))
        int8_kernels.quantize(np.ascontiguousarray(vectors), *made)
        return made

    for vectors in (*VECTORS.values(), unit_vectors(5000, 1, 512), uneven(300, 512), unit_vectors(9, 1, 512)[::2]):
        plain, compiled = codes_of(vectors), quantized(vectors)
        np.testing.assert_array_equal(plain.codes, compiled.codes)
        np.testing.assert_array_equal(plain.scales, compiled.scales)
        np.testing.assert_allclose(plain.errors, compiled.errors, rtol=2.0**-22, atol=0)


def test_neither_numba_nor_torch_is_imported_with_it() -> None:
    code = "import sys; from pipeline.store.files import segments; assert not {'numba', 'torch'} & set(sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
