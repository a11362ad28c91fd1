"""Downloads from a real server on this machine: whole, resumed, cut off, refused, silent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.errors import DownloadFailed
from pipeline.models.files.download import download
from tests.models.file_server import CONTENT, Server, serving


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving() as server:
        yield server


@pytest.fixture
def part(tmp_path: Path) -> Path:
    return tmp_path / "weights.pt.part"


@pytest.mark.parametrize("mode", ["ranges", "no ranges", "no length", "redirect"])
def test_whole(server: Server, part: Path, mode: str) -> None:
    server.mode = mode
    told: list[tuple[int, int | None]] = []
    download(server.url, part, lambda done, total: told.append((done, total)))
    assert part.read_bytes() == CONTENT
    total = None if mode == "no length" else len(CONTENT)
    assert told[0] == (0, total)
    assert told[-1] == (len(CONTENT), total)
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_goes_on_where_it_stopped(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT[:123_456])
    told: list[tuple[int, int | None]] = []
    download(server.url, part, lambda done, total: told.append((done, total)))
    assert part.read_bytes() == CONTENT
    assert server.requests == ["bytes=123456-"]
    assert told[0] == (123_456, len(CONTENT))


def test_a_redirect_keeps_the_place(server: Server, part: Path) -> None:
    server.mode = "redirect"
    part.write_bytes(CONTENT[:1000])
    download(server.url, part)
    assert part.read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-", "bytes=1000-"]


def test_a_server_without_ranges_sends_all_again(server: Server, part: Path) -> None:
    server.mode = "no ranges"
    part.write_bytes(b"x" * 5000)
    download(server.url, part)
    assert part.read_bytes() == CONTENT


def test_what_is_whole_already_is_not_sent_again(server: Server, part: Path) -> None:
    part.write_bytes(CONTENT)
    download(server.url, part)
    assert part.read_bytes() == CONTENT


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


def test_a_part_that_was_not_asked_for_is_refused(server: Server, part: Path) -> None:
    server.mode = "wrong part"
    part.write_bytes(CONTENT[:1000])
    with pytest.raises(DownloadFailed, match="another part"):
        download(server.url, part)
    assert part.read_bytes() == CONTENT[:1000]


@pytest.mark.parametrize("mode", ["404", "503"])
def test_a_refusal_keeps_what_came(server: Server, part: Path, mode: str) -> None:
    server.mode = mode
    part.write_bytes(CONTENT[:1000])
    with pytest.raises(DownloadFailed, match=f"the server answered {mode}"):
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
