"""Images of many requests share a batch, and none waits for another's fault."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import DeviceOutOfMemory, Overloaded
from pipeline.identities.batcher import MicroBatcher
from pipeline.types import DecodedImage


class Gate:
    """An extractor that works when it is let, and answers each image's height."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began = threading.Event()
        self.batches: list[list[int]] = []

    def extract(self, images: Sequence[DecodedImage]) -> list[pa.Table]:
        self.began.set()
        assert self.open.wait(10)
        heights = [image.height for image in images]
        self.batches.append(heights)
        if 13 in heights:
            raise DeviceOutOfMemory(device="cpu", detail="planted")
        return [pa.table({"height": [height]}) for height in heights]


def image(height: int) -> DecodedImage:
    return DecodedImage(np.zeros((height, 10, 3), np.uint8), "png", str(height))


def batcher(gate: Gate, **limits: int) -> MicroBatcher:
    wanted = {"max_images": 4, "max_pixels": 1000, "queue_images": 8, **limits}
    return MicroBatcher(gate, **wanted)  # type: ignore[arg-type]


def soon(holds: Callable[[], bool]) -> bool:
    end = time.monotonic() + 5
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


def ask_while_busy(made: MicroBatcher, gate: Gate, heights: Sequence[int]) -> list[object]:
    """The answers (or errors) to a first image, that keeps the models busy, and to `heights` behind it."""

    def ask(height: int) -> object:
        try:
            return made.extract(image(height))["height"][0].as_py()
        except (DeviceOutOfMemory, Overloaded) as exc:
            return type(exc)

    with ThreadPoolExecutor(len(heights) + 1) as pool:
        first = pool.submit(ask, 1)
        assert gate.began.wait(10)
        others = []
        for count, height in enumerate(heights, 1):
            others.append(pool.submit(ask, height))
            while made.queued < count and not others[-1].done():
                pass
        gate.open.set()
        return [first.result(), *(other.result() for other in others)]


def test_what_arrives_while_the_models_are_busy_is_the_next_batch() -> None:
    gate = Gate()
    made = batcher(gate)
    assert ask_while_busy(made, gate, [2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5, 6]
    assert gate.batches == [[1], [2, 3, 4, 5], [6]]
    made.close()


def test_a_batch_ends_before_its_pixels_are_too_many_and_a_large_image_goes_alone() -> None:
    gate = Gate()
    made = batcher(gate)
    assert ask_while_busy(made, gate, [60, 40, 41, 500, 2]) == [1, 60, 40, 41, 500, 2]
    assert gate.batches == [[1], [60, 40], [41], [500], [2]]
    made.close()


def test_a_full_queue_refuses_at_once() -> None:
    gate = Gate()
    made = batcher(gate, queue_images=2)
    assert ask_while_busy(made, gate, [2, 3, 4, 5]) == [1, 2, 3, Overloaded, Overloaded]
    made.close()


def test_one_image_that_fails_does_not_fail_the_others() -> None:
    gate = Gate()
    made = batcher(gate)
    assert ask_while_busy(made, gate, [2, 13, 4]) == [1, 2, DeviceOutOfMemory, 4]
    made.close()


def test_no_image_stays_in_memory_after_its_answer() -> None:
    gate = Gate()
    gate.open.set()
    made = batcher(gate)
    given = image(1)
    pixels = weakref.ref(given.pixels)
    made.extract(given)
    del given
    assert soon(lambda: pixels() is None)
    made.close()


def test_an_extractor_that_answers_too_little_fails_its_images_and_not_the_thread() -> None:
    class Silent(Gate):
        def extract(self, images: Sequence[DecodedImage]) -> list[pa.Table]:
            return super().extract(images)[:-1]

    gate = Silent()
    gate.open.set()
    made = batcher(gate)
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="zip"):
            pool.submit(made.extract, image(1)).result(10)
    made.close()


def test_closing_finishes_what_is_queued_and_takes_no_more() -> None:
    gate = Gate()
    made = batcher(gate)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(made.extract, image(1))
        assert gate.began.wait(10)
        second = pool.submit(made.extract, image(2))
        while not made.queued:
            pass
        threading.Timer(0.05, gate.open.set).start()
        made.close()
        assert [f.result()["height"][0].as_py() for f in (first, second)] == [1, 2]
    with pytest.raises(Overloaded):
        made.extract(image(3))
