"""Images of many requests share a batch, and none waits for another's fault."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from pipeline.errors import DeviceOutOfMemory, Overloaded
from pipeline.identities.batcher import MicroBatcher
from pipeline.types import DecodedImage
from tests.identities.planted import until


class HeldUpExtractor:
    """Works once it is open, and answers each image's height."""

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


def batcher(extractor: HeldUpExtractor, **limits: int) -> MicroBatcher:
    wanted = {"max_images": 4, "max_pixels": 1000, "queue_images": 8, **limits}
    return MicroBatcher(extractor, **wanted)  # type: ignore[arg-type]


def ask_while_busy(made: MicroBatcher, extractor: HeldUpExtractor, heights: Sequence[int]) -> list[object]:
    """The answers (or errors) to a first image, that keeps the models busy, and to `heights` behind it."""

    def ask(height: int) -> object:
        try:
            return made.extract(image(height))["height"][0].as_py()
        except (DeviceOutOfMemory, Overloaded) as exc:
            return type(exc)

    with ThreadPoolExecutor(len(heights) + 1) as pool:
        first = pool.submit(ask, 1)
        assert extractor.began.wait(10)
        others = []
        for count, height in enumerate(heights, 1):
            others.append(pool.submit(ask, height))
            while made.queued < count and not others[-1].done():
                pass
        extractor.open.set()
        return [first.result(), *(other.result() for other in others)]


def test_what_arrives_while_the_models_are_busy_is_the_next_batch() -> None:
    extractor = HeldUpExtractor()
    made = batcher(extractor)
    assert ask_while_busy(made, extractor, [2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5, 6]
    assert extractor.batches == [[1], [2, 3, 4, 5], [6]]
    made.close()


def test_a_batch_ends_before_its_pixels_are_too_many_and_a_large_image_goes_alone() -> None:
    extractor = HeldUpExtractor()
    made = batcher(extractor)
    assert ask_while_busy(made, extractor, [60, 40, 41, 500, 2]) == [1, 60, 40, 41, 500, 2]
    assert extractor.batches == [[1], [60, 40], [41], [500], [2]]
    made.close()


def test_a_full_queue_refuses_at_once() -> None:
    extractor = HeldUpExtractor()
    made = batcher(extractor, queue_images=2)
    assert ask_while_busy(made, extractor, [2, 3, 4, 5]) == [1, 2, 3, Overloaded, Overloaded]
    made.close()


def test_one_image_that_fails_does_not_fail_the_others() -> None:
    extractor = HeldUpExtractor()
    made = batcher(extractor)
    assert ask_while_busy(made, extractor, [2, 13, 4]) == [1, 2, DeviceOutOfMemory, 4]
    made.close()


def test_no_image_stays_in_memory_after_its_answer() -> None:
    extractor = HeldUpExtractor()
    extractor.open.set()
    made = batcher(extractor)
    given = image(1)
    pixels = weakref.ref(given.pixels)
    made.extract(given)
    del given
    until(lambda: pixels() is None)
    made.close()


def test_too_few_answers_fail_the_images_and_not_the_thread() -> None:
    class TooShort(HeldUpExtractor):
        def extract(self, images: Sequence[DecodedImage]) -> list[pa.Table]:
            return super().extract(images)[:-1]

    extractor = TooShort()
    extractor.open.set()
    made = batcher(extractor)
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="zip"):
            pool.submit(made.extract, image(1)).result(10)
    made.close()


def test_closing_finishes_what_is_queued_and_takes_no_more() -> None:
    extractor = HeldUpExtractor()
    made = batcher(extractor)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(made.extract, image(1))
        assert extractor.began.wait(10)
        second = pool.submit(made.extract, image(2))
        while not made.queued:
            pass
        threading.Timer(0.05, extractor.open.set).start()
        made.close()
        assert [f.result()["height"][0].as_py() for f in (first, second)] == [1, 2]
    with pytest.raises(Overloaded):
        made.extract(image(3))
