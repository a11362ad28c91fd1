"""The memory of decoding: who waits for whom, and how much a process takes."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from PIL import Image

from pipeline.config import DecodeSettings
from pipeline.extraction.images.decode import DecodingRoom, open_image
from tests.extraction.helpers import encode


@contextmanager
def waiting(room: DecodingRoom, size: int) -> Iterator[threading.Event]:
    """Somebody who asks for `size` bytes; the event tells that they got in, and they leave at the end."""
    inside, leave = threading.Event(), threading.Event()

    def work() -> None:
        with room.taken(size):
            inside.set()
            leave.wait()

    thread = threading.Thread(target=work)
    thread.start()
    yield inside
    leave.set()
    thread.join()


def gets_in(inside: threading.Event) -> bool:
    return inside.wait(60)


def waits(inside: threading.Event) -> bool:
    return not inside.wait(0.2)


def test_the_sum_of_small_ones_is_bounded() -> None:
    room = DecodingRoom(100)
    with ExitStack() as stack:
        first = stack.push(ExitStack())
        assert gets_in(first.enter_context(waiting(room, 50)))
        assert gets_in(stack.enter_context(waiting(room, 40)))
        third = stack.enter_context(waiting(room, 20))
        assert waits(third)
        later = stack.enter_context(waiting(room, 5))
        assert waits(later), "it would fit, but the one before it would never get in"
        first.close()
        assert gets_in(third)
        assert gets_in(later)


def test_large_ones_take_turns_beside_the_small_ones() -> None:
    room = DecodingRoom(100)
    with ExitStack() as stack:
        small = stack.enter_context(waiting(room, 50))
        large = stack.push(ExitStack())
        assert gets_in(large.enter_context(waiting(room, 1000)))
        other = stack.enter_context(waiting(room, 51))
        assert waits(other)
        assert gets_in(small)
        assert gets_in(stack.enter_context(waiting(room, 50)))
        large.close()
        assert gets_in(other)


def test_room_comes_back_after_an_error() -> None:
    room = DecodingRoom(100)
    for size in (50, 1000):
        with pytest.raises(ZeroDivisionError), room.taken(size):
            raise ZeroDivisionError
    with room.taken(50), room.taken(50), room.taken(1000):
        pass


def test_mode_and_depth_count() -> None:
    def memory(mode: str, **options: object) -> int:
        return open_image(encode(Image.new(mode, (10, 10)), **options), DecodeSettings()).memory

    assert memory("RGB", format="JPEG") == 100 * 11
    plain = memory("RGB", format="PNG")
    assert memory("RGBA", format="PNG") > plain
    assert memory("I;16", format="PNG") > plain
    assert memory("F", format="TIFF") > memory("RGB", format="TIFF") > plain
    assert memory("RGB", format="JPEG", progressive=True) > memory("RGB", format="JPEG")


PEAKS = """
import os, re, sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pipeline.config import DecodeSettings
from pipeline.extraction.images import decode
from pipeline.runtime.allocator import configure_allocator
configure_allocator()
decode.ROOM = decode.DecodingRoom(2**20)
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
def measure(path):
    before, data = peak(), path.read_bytes()
    opened = decode.open_image(data, DecodeSettings())
    def decoded(_): decode.decode_image(data, DecodeSettings())
    with ThreadPoolExecutor(6) as pool: list(pool.map(decoded, range(6)))
    print(path.name, (peak() - before) / opened.memory, flush=True)
for path in map(Path, sys.argv[1:]):
    child = os.fork()
    if child == 0:
        measure(path)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, path.name
"""
KINDS = {
    "float": ("F", {"format": "TIFF", "compression": "tiff_adobe_deflate"}),
    "alpha": ("RGBA", {"format": "PNG", "compress_level": 1}),
    "jpeg": ("RGB", {"format": "JPEG"}),
    "progressive": ("RGB", {"format": "JPEG", "progressive": True, "subsampling": 0}),
    "cmyk": ("CMYK", {"format": "JPEG"}),
    "webp": ("RGBA", {"format": "WEBP", "quality": 1, "method": 0}),
    "avif": ("RGBA", {"format": "AVIF", "speed": 10}),
    "heic": ("RGBA", {"format": "HEIF", "enc_params": {"preset": "ultrafast"}}),
    "png": ("RGB", {"format": "PNG", "compress_level": 1}),
    "bmp": ("RGB", {"format": "BMP"}),
    "gif": ("P", {"format": "GIF"}),
}


@pytest.fixture(scope="module")
def peaks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """The memory that six at once took of each kind, by what one was said to take; each in a process of its own."""
    folder = tmp_path_factory.mktemp("room")
    for kind, (mode, options) in KINDS.items():
        (folder / kind).write_bytes(encode(Image.new(mode, (3000, 3000)), **options))
    command = [sys.executable, "-c", PEAKS, *(str(folder / kind) for kind in KINDS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return {kind: float(peak) for kind, peak in map(str.split, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="no /proc on this system")
@pytest.mark.parametrize("kind", KINDS)
def test_six_at_once_take_no_more_than_one_was_said_to_take(kind: str, peaks: dict[str, float]) -> None:
    """Each of them is large, so they take turns."""
    assert 0.2 < peaks[kind] < 1.15
