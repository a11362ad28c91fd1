"""Sources: real folders and manifests with everything that odd archives hold."""

from __future__ import annotations

import datetime
import json
import os
import resource
import shutil
import socket
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import SourceSettings
from pipeline.errors import (
    ImageIsFolder,
    ImageOutside,
    ImageUnreadable,
    InputError,
    Interrupted,
    ManifestInvalid,
    SourceEmpty,
    SourceMissing,
)
from pipeline.extraction.images.files import hash_file
from pipeline.extraction.sources.folder import ScanCounts
from pipeline.extraction.sources.scan import scan_source, source_kind
from pipeline.types import ImageRef

JPEG = b"\xff\xd8\xff\xe0 the rest does not matter to a scan"
PLAIN = SourceSettings()


def plant(folder: Path, *names: str, data: bytes = JPEG) -> None:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def scan(path: Path, settings: SourceSettings = PLAIN) -> list[ImageRef]:
    return list(scan_source(path, settings))


def names(refs: list[ImageRef], folder: Path) -> list[str]:
    return [os.path.relpath(ref.path, folder) for ref in refs]


def names_of(paths: list[str], folder: Path) -> list[str]:
    return [os.path.relpath(path, folder) for path in paths]


def statuses(refs: list[ImageRef]) -> list[str]:
    return ["ok" if ref.rejected is None else ref.rejected.status for ref in refs]


# Folders


def test_files_are_in_byte_order_of_each_path_component(tmp_path: Path) -> None:
    files = ["b.jpg", "a/z.jpg", "a.jpg", "a b/1.jpg", "a/b/c.png", "B.jpg", "ä.jpg", "a-1.jpg", "10.jpg", "9.jpg"]
    plant(tmp_path, *files)
    found = names(scan(tmp_path), tmp_path)
    assert found == sorted(files, key=lambda name: [os.fsencode(part) for part in name.split("/")])
    assert found[:4] == ["10.jpg", "9.jpg", "B.jpg", "a/b/c.png"]


def test_a_relative_source_gives_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(tmp_path, "in/a.jpg")
    monkeypatch.chdir(tmp_path)
    (ref,) = scan(Path("in/../in"))
    assert ref.path == str(tmp_path / "in" / "a.jpg")
    assert Path(ref.file).read_bytes() == JPEG


def test_images_are_found_by_suffix_or_first_bytes(tmp_path: Path) -> None:
    plant(tmp_path, "photo.JPG", "scan.TIFF", "live.heic", "no-suffix", "odd.dat")
    plant(tmp_path, "notes.txt", "empty", data=b"no image")
    plant(tmp_path, "empty.png", data=b"")
    plant(tmp_path, "raw.cr2", "raw.DNG", data=b"II*\0\x10\0\0\0CR\x02\0")
    plant(tmp_path, "clip.MOV", "photo.JPG.xmp", "photo.json")
    plant(tmp_path, ".hidden.jpg", "._photo.JPG", ".thumbnails/1.jpg", ".thumbnails/2.jpg")
    plant(tmp_path, "2020/@eaDir/photo.JPG/SYNOPHOTO.jpg", "Catalog Previews.lrdata/0/1.jpg", "lrdata/1.jpg")
    counts = ScanCounts()
    found = names(list(scan_source(tmp_path, PLAIN, counts)), tmp_path)
    assert found == ["empty.png", "live.heic", "lrdata/1.jpg", "no-suffix", "odd.dat", "photo.JPG", "scan.TIFF"]
    assert (counts.images, counts.rejected, counts.left_alone.total()) == (7, 0, 9)
    assert counts.left_alone == {"raw": 2, "video": 1, "sidecar": 2, "hidden": 2, "other": 2}
    assert counts.left_out == {"hidden": 1, "thumbnails": 2}
    assert names_of(counts.left_out_folders, tmp_path) == [".thumbnails", "2020/@eaDir", "Catalog Previews.lrdata"]


@pytest.mark.parametrize(
    ("include", "exclude", "taken"),
    [
        (None, "*.PNG", ["a.jpg", "sub/c.jpg", "sub/deep/d.jpg"]),
        (None, "sub", ["a.jpg", "b.png"]),
        (None, "sub/deep", ["a.jpg", "b.png", "sub/c.jpg"]),
        (None, "deep/, *.png", ["a.jpg", "sub/c.jpg"]),
        (None, "sub/*.jpg", ["a.jpg", "b.png"]),
        ("*.JPG", None, ["a.jpg", "sub/c.jpg", "sub/deep/d.jpg"]),
        ("deep", None, ["sub/deep/d.jpg"]),
        ("sub/*", "deep", ["sub/c.jpg"]),
        ("*", None, ["a.jpg", "b.png", "sub/c.jpg", "sub/deep/d.jpg"]),
        ("@eaDir,*.png", None, ["b.png", "sub/@eaDir/e.jpg"]),
        (".h*", None, [".h/f.jpg", ".hid.jpg"]),
    ],
)
def test_patterns_choose_files(include: str | None, exclude: str | None, taken: list[str], tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg", "b.png", "sub/c.jpg", "sub/deep/d.jpg", "sub/@eaDir/e.jpg", ".h/f.jpg", ".hid.jpg")
    counts = ScanCounts()
    refs = scan_source(tmp_path, SourceSettings(include=include, exclude=exclude), counts)
    assert names(list(refs), tmp_path) == taken


def test_patterns_choose_rows_of_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("path\na.jpg\nsub/.b.jpg\nsub/c.png\n\n/elsewhere/d.jpg\n")
    counts = ScanCounts()
    refs = list(scan_source(tmp_path / "rows.csv", SourceSettings(include="*.jpg", exclude="elsewhere"), counts))
    assert names(refs, tmp_path) == ["a.jpg", "sub/.b.jpg"]
    assert counts.left_alone == {"excluded": 2}
    with pytest.raises(SourceEmpty, match="4 other files left alone"):
        scan(tmp_path / "rows.csv", SourceSettings(include="*.tiff"))


def test_pipes_sockets_and_devices_are_never_opened(tmp_path: Path) -> None:
    plant(tmp_path, "a.jpg")
    os.mkfifo(tmp_path / "pipe.jpg")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link.jpg").symlink_to(tmp_path / "pipe")
    (tmp_path / "null.jpg").symlink_to("/dev/null")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s.jpg"))
        counts = ScanCounts()
        refs = list(scan_source(tmp_path, PLAIN, counts))
    assert names(refs, tmp_path) == ["a.jpg"]
    assert counts.left_alone.total() == 5


def test_symlinks_are_followed_and_loops_end(tmp_path: Path) -> None:
    plant(tmp_path, "in/a/1.jpg", "out/2.jpg")
    source = tmp_path / "in"
    (source / "a" / "up").symlink_to(source)
    (source / "b").symlink_to(tmp_path / "out")
    (tmp_path / "out" / "back").symlink_to(source)
    (source / "c.jpg").symlink_to(source / "a" / "1.jpg")
    (source / "gone.jpg").symlink_to(tmp_path / "nothing.jpg")
    (source / "self.jpg").symlink_to(source / "self.jpg")
    counts = ScanCounts()
    refs = list(scan_source(source, PLAIN, counts))
    assert names(refs, source) == ["a/1.jpg", "b/2.jpg", "c.jpg", "gone.jpg", "self.jpg"]
    assert statuses(refs) == ["ok", "ok", "ok", "missing", "unreadable"]
    assert counts.loops == 2
    kept = scan(source, SourceSettings(follow_symlinks=False))
    assert names(kept, source) == ["a/1.jpg"]


def test_a_folder_is_entered_once(tmp_path: Path) -> None:
    """Links that double with each folder would give 2 ** 18 - 1 rows."""
    for level in range(18):
        (tmp_path / f"{level}").mkdir()
        (tmp_path / f"{level}" / "x.jpg").write_bytes(JPEG)
    for level in range(17):
        for name in ("a", "b"):
            (tmp_path / f"{level}" / name).symlink_to(tmp_path / f"{level + 1}")
    counts = ScanCounts()
    refs = list(scan_source(tmp_path, PLAIN, counts))
    assert len(refs) == 18
    assert names(refs, tmp_path)[:2] == [
        "0/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/x.jpg",
        "0/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/a/x.jpg",
    ]
    assert counts.loops == 2 * 17


def test_a_scan_that_finds_nothing_can_be_stopped(tmp_path: Path) -> None:
    for number in range(50):
        (tmp_path / f"{number}.txt").touch()
    stop, counts = threading.Event(), ScanCounts()
    stop.set()
    with pytest.raises(Interrupted, match="the scan was not finished"):
        list(scan_source(tmp_path, PLAIN, counts, stop=stop))
    assert counts == ScanCounts()


def test_odd_names_stay_distinct_and_open(tmp_path: Path) -> None:
    odd = [
        b"new\nline.jpg",
        b"\xff\xfe.jpg",
        b"\\xff\\xfe.jpg",
        b"\\\xff.jpg",
        b"\\x5cxff.jpg",
        "😀 Zoë.jpg".encode(),
        b"l" * 251 + b".jpg",
        b" .jpg",
        b"-rf.jpg",
    ]
    for name in odd:
        (tmp_path / os.fsdecode(name)).write_bytes(name)
    refs = scan(tmp_path)
    assert [Path(ref.file).read_bytes() for ref in refs] == sorted(odd)
    paths = [ref.path for ref in refs]
    assert len(set(paths)) == len(odd)
    for path in paths:
        path.encode("utf-8")
    assert str(tmp_path / "new\nline.jpg") in paths
    assert str(tmp_path / "\\xff\\xfe.jpg") in paths
    assert str(tmp_path / "\\x5cxff\\x5cxfe.jpg") in paths


def test_labels_are_parent_folders_except_at_the_top(tmp_path: Path) -> None:
    plant(tmp_path, "top.jpg", "Ann Lee/1.jpg", "2020/Bob/2.jpg")
    refs = scan(tmp_path, SourceSettings(labels="parent"))
    assert [ref.name for ref in refs] == ["Bob", "Ann Lee", None]
    assert [ref.name for ref in scan(tmp_path)] == [None, None, None]


def test_files_outside_the_root_are_rows(tmp_path: Path) -> None:
    plant(tmp_path, "in/a.jpg", "in-too/b.jpg", "out/c.jpg")
    (tmp_path / "in" / "b.jpg").symlink_to(tmp_path / "in-too" / "b.jpg")
    (tmp_path / "in" / "folder").symlink_to(tmp_path / "out")
    refs = scan(tmp_path / "in", SourceSettings(root=str(tmp_path / "in")))
    assert names(refs, tmp_path / "in") == ["a.jpg", "b.jpg", "folder"]
    assert [type(ref.rejected) for ref in refs] == [type(None), ImageOutside, ImageOutside]
    assert str(tmp_path / "in") in refs[1].rejected.reason  # type: ignore[union-attr]


def test_a_folder_too_deep_for_a_path_is_a_row(tmp_path: Path) -> None:
    plant(tmp_path, "z.jpg")
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(40):
        os.mkdir("d" * 120, dir_fd=here)
        deeper = os.open("d" * 120, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    refs = scan(tmp_path)
    assert statuses(refs) == ["unreadable", "ok"]
    assert "the folder cannot be listed" in refs[0].rejected.reason  # type: ignore[union-attr]


def test_a_deep_tree_needs_no_recursion(tmp_path: Path) -> None:
    folders = [tmp_path]
    for _ in range(1200):  # one by one: pathlib and shutil do recurse
        folders.append(folders[-1] / "d")
        folders[-1].mkdir()
    photo = folders[-1] / "a.jpg"
    photo.write_bytes(JPEG)
    assert names(scan(tmp_path), tmp_path) == [str(photo.relative_to(tmp_path))]
    photo.unlink()
    for folder in reversed(folders[1:]):
        folder.rmdir()


@pytest.fixture
def as_ordinary_user() -> Iterator[Path]:
    """A folder that this test may close to itself: root reads everything, so it becomes somebody else."""
    folder = Path(tempfile.mkdtemp(dir="/tmp"))
    folder.chmod(0o777)
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        for path in folder.rglob("*"):
            path.chmod(0o777)
        shutil.rmtree(folder)


def test_folders_that_may_not_be_listed_are_rows(as_ordinary_user: Path) -> None:
    source = as_ordinary_user / "in"
    plant(source, "a/1.jpg", "b/2.jpg", "c/3.jpg", "secret.jpg", "secret")
    (source / "b").chmod(0)
    (source / "secret.jpg").chmod(0)
    (source / "secret").chmod(0)
    refs = scan(source)
    assert names(refs, source) == ["a/1.jpg", "b", "c/3.jpg", "secret.jpg"]
    assert isinstance(refs[1].rejected, ImageUnreadable)
    assert "Permission denied" in refs[1].rejected.reason
    with pytest.raises(ImageUnreadable, match="Permission denied"):
        hash_file(refs[3].file)
    with pytest.raises(InputError, match="cannot be listed"):
        scan(source / "b")


def test_missing_and_empty_sources(tmp_path: Path) -> None:
    with pytest.raises(SourceMissing, match="There is no folder or manifest at"):
        scan_source(tmp_path / "nowhere", PLAIN)  # at the call
    plant(tmp_path, "file.md", "sub/.x.jpg", data=b"no image")
    with pytest.raises(SourceMissing):
        source_kind(tmp_path / "file.md" / "below")
    with pytest.raises(SourceEmpty, match=r"\(2 other files left alone\)"):
        scan(tmp_path)
    with pytest.raises(ManifestInvalid, match=r"\.csv, \.tsv, \.txt, \.jsonl"):
        scan(tmp_path / "file.md")


# Manifests


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    plant(tmp_path, "lists/a.jpg", "lists/b c.jpg", "outside.jpg")
    return tmp_path / "lists"


ROWS: list[dict[str, Any]] = [
    {"path": "a.jpg", "name": "Ann", "external_id": "7", "directory": "staff", "year": "1999"},
    {"path": "b c.jpg", "name": None, "external_id": None, "directory": None, "year": "2000"},
    {"path": "gone.jpg", "name": None, "external_id": None, "directory": None, "year": ""},
]


def write_manifest(folder: Path, kind: str, rows: list[dict[str, Any]], suffix: str = "") -> Path:
    path = folder / f"list.{suffix or kind}"
    if kind == "csv":
        lines = [",".join(rows[0]), *(",".join("" if v is None else str(v) for v in row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n", "utf-8-sig")
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n\n" for row in rows), "utf-8")
    else:
        pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def test_a_photo_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "party.JPG").write_bytes(b"photo")
    with pytest.raises(InputError, match=r"party\.JPG is a photo: give its folder"):
        source_kind(tmp_path / "party.JPG")


@pytest.mark.parametrize(
    ("kind", "suffix"),
    [
        *(("csv", suffix) for suffix in ("csv", "tsv", "TXT")),
        *(("jsonl", suffix) for suffix in ("jsonl", "ndjson", "json")),
        *(("parquet", suffix) for suffix in ("parquet", "pq")),
    ],
)
def test_the_three_kinds_give_the_same_rows(kind: str, suffix: str, archive: Path) -> None:
    path = write_manifest(archive, kind, ROWS, suffix)
    assert source_kind(path) == kind
    refs = scan(path)
    assert [ref.path for ref in refs] == [str(archive / row["path"]) for row in ROWS]
    assert statuses(refs) == ["ok", "ok", "missing"]
    assert [(ref.name, ref.external_id, ref.directory) for ref in refs] == [
        ("Ann", "7", "staff"),
        (None, None, None),
        (None, None, None),
    ]
    assert [ref.extra for ref in refs] == [{"year": "1999"}, {"year": "2000"}, {"year": ""}]


def test_directories_are_called_as_the_server_calls_them(archive: Path) -> None:
    """In NFC, without outer white space."""
    path = write_manifest(archive, "jsonl", [{"path": "a.jpg", "directory": "\u2003Bu\u0308ro 1\u00a0"}])
    assert [ref.directory for ref in scan(path)] == ["B\u00fcro 1"]


def test_csv_quotes_case_and_blanks(archive: Path) -> None:
    path = archive / "list.csv"
    path.write_text('Name, PATH ,"a note"\n"Lee, ""Ann""",b c.jpg,x\n\n')
    (ref,) = scan(path)
    assert (ref.name, Path(ref.file).name, ref.extra) == ('Lee, "Ann"', "b c.jpg", {"a note": "x"})


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_what_spreadsheets_save_is_read(separator: str, encoding: str, archive: Path) -> None:
    rows = [["Path", '"name"', "note"], ["a.jpg", '"Zoë; Lee, Ann"', "x"], ["b c.jpg", "", ""]]
    path = archive / "list.csv"
    path.write_text("".join(separator.join(row) + "\r\n" for row in rows), encoding, newline="")
    first, second = scan(path)
    assert (first.name, Path(first.file).name, first.extra) == ("Zoë; Lee, Ann", "a.jpg", {"note": "x"})
    assert (second.name, Path(second.file).name) == (None, "b c.jpg")


def test_numbers_and_dates_become_plain_values(archive: Path) -> None:
    table = pa.table(
        {
            "path": ["a.jpg", "a.jpg"],
            "external_id": [12.0, None],
            "name": [5, 6],
            "when": pa.array([1_000_000_001, None], pa.timestamp("ns")),
            "day": [datetime.date(2001, 2, 3), None],
            "score": [float("nan"), 0.5],
            "raw": [b"\x00\xff", None],
            "price": [Decimal("1.50"), None],
            "tags": [["x", "y"], []],
        }
    )
    pq.write_table(table, archive / "list.parquet")
    first, second = scan(archive / "list.parquet")
    assert (first.external_id, first.name, second.external_id) == ("12", "5", None)
    assert first.extra == {
        "when": "1970-01-01T00:00:01",
        "day": "2001-02-03",
        "score": None,
        "raw": "00ff",
        "price": "1.50",
        "tags": ["x", "y"],
    }
    json.dumps([first.extra, second.extra], allow_nan=False)


def test_where_a_row_may_point(archive: Path) -> None:
    outside = archive.parent / "outside.jpg"
    rows = [
        ("../outside.jpg", "outside"),
        ("sub/../a.jpg", "ok"),
        ("./a.jpg", "ok"),
        (str(outside), "ok"),
        (".", "not_a_file"),
        ("a.jpg/x.jpg", "missing"),
        ("n\0ul.jpg", "missing"),
        ("", "missing"),
        ("   ", "missing"),
        ((archive / "b c.jpg").as_uri(), "ok"),
        ("file://localhost" + str(outside), "ok"),
        ("file://server/share/a.jpg", "unreadable"),
        ("https://example.org/a.jpg", "unreadable"),
        ("ftp://host/a.jpg", "unreadable"),
        ("x" * 5000, "unreadable"),
        ("\ud800.jpg", "missing"),
    ]
    path = write_manifest(archive, "jsonl", [{"uri": location} for location, _ in rows])
    refs = scan(path)
    assert statuses(refs) == [status for _, status in rows]
    assert refs[1].path == refs[2].path == str(archive / "a.jpg")
    assert isinstance(refs[4].rejected, ImageIsFolder)
    assert refs[7].path == f"{path} (line 15)"
    assert Path(refs[9].file).read_bytes() == JPEG
    assert "https" in refs[12].rejected.reason  # type: ignore[union-attr]
    for ref in refs:
        ref.path.encode("utf-8")


def test_a_root_holds_relative_absolute_and_linked_files(archive: Path) -> None:
    (archive / "link.jpg").symlink_to(archive.parent / "outside.jpg")
    locations = ["a.jpg", str(archive / "a.jpg"), "link.jpg", str(archive.parent / "outside.jpg"), "../lists/a.jpg"]
    path = write_manifest(archive.parent, "jsonl", [{"path": location} for location in locations])
    refs = scan(path, SourceSettings(root=str(archive)))
    assert statuses(refs) == ["ok", "ok", "outside", "outside", "ok"]
    assert isinstance(refs[2].rejected, ImageOutside)


def test_file_names_that_are_not_utf8(archive: Path) -> None:
    (archive / os.fsdecode(b"\xff.jpg")).write_bytes(JPEG)
    pq.write_table(pa.table({"path": pa.array([b"\xff.jpg"], pa.binary())}), archive / "list.parquet")
    (archive / "list.csv").write_text(f"uri\nfile://{archive}/%FF.jpg\n")
    for manifest in ("list.parquet", "list.csv"):
        (ref,) = scan(archive / manifest)
        assert ref.rejected is None
        assert ref.path == str(archive / "\\xff.jpg")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("m.csv", b"", "it is empty"),
        ("m.csv", b"file,name\na.jpg,Ann\n", "no path or uri .but: file, name"),
        ("m.csv", b"file;name\na.jpg;Ann\n", "no path or uri .but: file;name"),
        ("m.csv", b"path,name,Name\n", 'has "name" more than once'),
        ("m.csv", b"path,name\na.jpg,Ann\na.jpg\n", "line 3 has 1 fields, the header has 2"),
        ("m.csv", b"path,name\na.jpg,Ann,Lee\n", "line 2 has 3 fields"),
        ("m.csv", b"path,name\na.jpg,Ann\na.jpg,Zo\xeb\n", "not UTF-8"),
        ("m.csv", b'path,name\na.jpg,"Ann\n', "line 2 cannot be read"),
        ("m.csv", b"path,directory\na.jpg,ok\na.jpg,no/slash\n", "line 3: directory"),
        ("m.csv", b"path,directory\na.jpg,..\n", "line 2: directory"),
        ("m.csv", b"path,directory\na.jpg,a\x1b[2Jb\n", "line 2: directory"),
        ("m.csv", b"path,directory\na.jpg," + b"d" * 65 + b"\n", "line 2: directory"),
        ("m.csv", b"path,name\na.jpg," + b"n" * 1001 + b"\n", "line 2: name has 1,001 characters"),
        ("m.jsonl", b'{"path": "a.jpg"}\n{"path": \n', "line 2 is not JSON"),
        ("m.jsonl", b'{"path": "a.jpg"}\n["a.jpg"]\n', "line 2 must be a JSON object, not list"),
        ("m.json", b'[\n {"path": "a.jpg"}\n]\n', "line 1 is not JSON .* one object on each line"),
        ("m.txt", b"a.jpg\nb.jpg\n", r"it has no path or uri \(but: a.jpg\)"),
        ("m.jsonl", b'{"path": "a.jpg"}\n{"name": "Ann"}\n', "line 2 has no path or uri"),
        ("m.jsonl", b'{"path": 5}\n', "line 1: path must be text"),
        ("m.jsonl", b'{"path": "a.jpg", "name": true}\n', "line 1: name must be text or a number, not bool"),
        ("m.jsonl", b'{"path": "a.jpg", "name": {"first": "Ann"}}\n', "line 1: name must be text"),
        ("m.jsonl", b'{"path": "a.jpg", "name": "\\ud800"}\n', "line 1: name is not valid Unicode"),
        ("m.jsonl", b'{"path": "a.jpg", "score": NaN}\n', "line 1 is not JSON"),
        ("m.jsonl", b"[" * 100_000 + b"\n", "line 1 is not JSON"),
        ("m.jsonl", b'{"path": "\xff"}\n', "not UTF-8"),
        ("m.parquet", b"PAR1 but not really", "after row 0 it cannot be read as Parquet"),
        ("m.parquet", b"", "after row 0 it cannot be read as Parquet"),
    ],
)
def test_bad_manifests_say_where(name: str, content: bytes, said: str, archive: Path) -> None:
    (archive / name).write_bytes(content)
    with pytest.raises(ManifestInvalid, match=said):
        scan(archive / name)


def test_parquet_manifest_without_path_and_with_a_bad_page(archive: Path) -> None:
    path = archive / "list.parquet"
    pq.write_table(pa.table({"file": ["a.jpg"]}), path)
    with pytest.raises(ManifestInvalid, match="no path or uri"):
        scan(path)
    pq.write_table(pa.table({"path": [f"{n}.jpg" for n in range(1000)]}), path, compression="zstd")
    data = bytearray(path.read_bytes())
    data[100:400] = bytes(300)
    path.write_bytes(data)
    with pytest.raises(ManifestInvalid, match="cannot be read as Parquet"):
        scan(path)


@pytest.mark.parametrize("column", ["path", "note", "notes", "raw"])
def test_a_small_parquet_file_of_gigabytes(column: str, archive: Path) -> None:
    """One long value that a few bytes repeat for every row, or within each."""
    rows, long = 30 if column == "notes" else 20_000, "x" * 400_000
    repeated: dict[str, Any] = {
        "path": pa.DictionaryArray.from_arrays([0] * rows, [long]),
        "note": pa.DictionaryArray.from_arrays([0] * rows, [long]),
        "raw": pa.DictionaryArray.from_arrays([0] * rows, [long.encode()]),
        "notes": pa.array([["x" * 10_000] * 100] * 30 if column == "notes" else []),
    }
    file = archive / "list.parquet"
    pq.write_table(pa.table({"path": ["a.jpg"] * rows, column: repeated[column]}), file, compression="zstd")
    assert file.stat().st_size < 10_000
    limit = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss + 300 * 1024
    with pytest.raises(ManifestInvalid, match=r"rows hold .* bytes each, the limit is 262,144|too many values per row"):
        scan(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < limit


def test_long_texts_in_a_parquet_manifest_are_read(archive: Path) -> None:
    """Also those that are written once for all rows."""
    note, rows = "long " * 2000, 1500
    table = pa.table({"path": ["a.jpg"] * rows, "note": pa.DictionaryArray.from_arrays([0] * rows, [note])})
    pq.write_table(table, archive / "list.parquet")
    refs = scan(archive / "list.parquet")
    assert len(refs) == rows
    assert all(ref.extra == {"note": note} for ref in refs)


@pytest.mark.parametrize(("name", "content"), [("m.csv", "path,name\n"), ("m.jsonl", "\n\n")])
def test_manifests_without_rows_are_empty_sources(name: str, content: str, archive: Path) -> None:
    (archive / name).write_text(content)
    with pytest.raises(SourceEmpty, match="it has no rows"):
        scan(archive / name)


def test_memory_does_not_grow_with_the_rows(archive: Path, full: bool) -> None:
    path, rows = archive / "list.csv", 10_000 if full else 3_000
    path.write_text("path,name\n" + "a.jpg,Ann\n" * rows)
    tracemalloc.start()
    try:
        count = sum(1 for _ in scan_source(path, PLAIN))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == rows
    assert peak < 100 * rows


def test_a_folder_is_left_out_whatever_path_leads_to_it(tmp_path: Path) -> None:
    plant(tmp_path, "a/x.jpg", "store/x.jpg", "store/deep/x.jpg")
    (tmp_path / "a" / "link").symlink_to(tmp_path / "store")
    refs = list(scan_source(tmp_path, SourceSettings(), leave_out=tmp_path / "a" / ".." / "store"))
    assert [ref.file for ref in refs] == [str(tmp_path / "a" / "x.jpg")]
    with pytest.raises(SourceEmpty):
        list(scan_source(tmp_path / "store", SourceSettings(), leave_out=tmp_path / "store"))


def test_a_column_name_that_is_not_unicode_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"path": "x.jpg", "no\\ud800te": "\\udfff"}')
    (ref,) = scan_source(tmp_path / "rows.jsonl", SourceSettings())
    assert ref.extra == {r"no\ud800te": r"\udfff"}
    assert json.dumps(dict(ref.extra), ensure_ascii=False).encode()
