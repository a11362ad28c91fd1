"""Reading files and writing down their names, however odd they are."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest
from PIL import Image

from pipeline.errors import ImageIsFolder, ImageMissing, ImageTooLarge, ImageUnreadable
from pipeline.extraction.images import files
from pipeline.extraction.images.files import declared_pixels, hash_file, read_file, read_with_state
from pipeline.texts import path_text


def test_shown_never_maps_two_names_to_one() -> None:
    pieces = ["\\", "x", "5", "c", "f", "\udcff", "\udc5c", "\x00"]
    texts = {""}
    for _ in range(5):
        texts |= {text + piece for text in texts for piece in pieces if len(text) < 5}
    texts = {text for text in texts if "\udc5c" not in text}  # os.fsdecode makes no surrogate of an ASCII byte
    assert len({path_text(text) for text in texts}) == len(texts)


def test_hash_and_bytes_of_a_file(tmp_path: Path) -> None:
    data = os.urandom(2_500_000)
    (tmp_path / "a.jpg").write_bytes(data)
    assert hash_file(tmp_path / "a.jpg")[:2] == (hashlib.sha256(data).hexdigest(), len(data))
    assert read_file(tmp_path / "a.jpg", len(data)) == data
    with pytest.raises(ImageTooLarge, match="2,500,000 bytes is over the limit of 2,499,999 bytes"):
        read_file(tmp_path / "a.jpg", len(data) - 1)
    (tmp_path / "empty.jpg").write_bytes(b"")
    assert hash_file(tmp_path / "empty.jpg").bytes == 0
    assert read_file(tmp_path / "empty.jpg", 1) == b""


def test_the_state_of_a_file_is_told_where_a_change_would_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.jpg"
    file.write_bytes(b"one")
    os.utime(file, ns=(0, -(10**18)))  # of 1938
    assert hash_file(file).state is None  # its entry was changed just now
    monkeypatch.setattr(files, "_SETTLED_NS", 0)
    entry = file.stat()
    assert hash_file(file).state == (3, -(10**18), entry.st_ctime_ns, entry.st_ino)
    assert hash_file(file).state == read_with_state(file, 3)[1]
    os.utime(file, ns=(0, 2 * 10**18))  # of 2033: a camera's clock
    assert hash_file(file).state is None
    if Path("/proc/self/status").exists():  # whose size says 0
        assert hash_file(Path("/proc/self/status")).state is None


def test_a_file_that_changes_while_it_is_hashed_has_no_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SETTLED_NS", 0)
    (tmp_path / "a.jpg").write_bytes(b"one")
    monkeypatch.setattr(files, "check_bytes", lambda *_: os.utime(tmp_path / "a.jpg", ns=(0, 10**18)))
    assert hash_file(tmp_path / "a.jpg").state is None


def test_a_file_over_the_limit_is_not_read(tmp_path: Path) -> None:
    """A sparse terabyte would take an hour."""
    with (tmp_path / "sparse.jpg").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(ImageTooLarge, match="1,099,511,627,776 bytes is over the limit of 1,000 bytes"):
        hash_file(tmp_path / "sparse.jpg", 1000)
    with pytest.raises(ImageTooLarge):
        hash_file(Path("/proc/self/status"), 10)  # whose size says 0


def test_files_that_cannot_be_read_say_why(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    cases = {
        "gone.jpg": ImageMissing,
        ".": ImageIsFolder,
        "pipe": ImageUnreadable,
        "n\0ul": ImageMissing,
        "x" * 300: ImageUnreadable,
    }
    for name, error in cases.items():
        with pytest.raises(error):
            hash_file(tmp_path / name)
        with pytest.raises(error):
            read_file(tmp_path / name, 10)
    with pytest.raises(ImageUnreadable, match="device"):
        read_file(Path("/dev/zero"), 10)


def test_a_file_that_pretends_to_be_empty_is_still_limited() -> None:
    """Files of /proc have size 0 and content: the limit holds for what is read, not for what was announced."""
    status = Path("/proc/self/status")
    if not status.exists():
        pytest.skip("no /proc on this system")
    assert read_file(status, 100_000).startswith(b"Name:")
    with pytest.raises(ImageTooLarge):
        read_file(status, 10)


@pytest.mark.parametrize(("suffix", "options"), [("jpeg", {}), ("jpeg", {"progressive": True}), ("png", {})])
def test_the_header_tells_the_pixels(suffix: str, options: dict[str, object]) -> None:
    file = io.BytesIO()
    exif = Image.Exif()
    exif[0x010E] = "x" * 30_000  # before the size
    Image.new("RGB", (70, 30)).save(file, suffix, exif=exif, **options)  # type: ignore[arg-type]
    assert declared_pixels(file.getvalue()) == 2100
    assert declared_pixels(file.getvalue()[:20]) is None


def test_other_headers_do_not_tell_the_pixels() -> None:
    for head in (b"", b"GIF89a" + bytes(40), b"\xff\xd8\xff", b"\xff\xd8" + b"\xff" * 40):
        assert declared_pixels(head) is None
