"""Images of many requests share a batch, and none waits for another's fault."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from pipeline.config import RunSettings, ServeSettings, Settings
from pipeline.errors import DeviceOutOfMemory, Overloaded
from pipeline.people.batcher import MicroBatcher
from pipeline.runtime.stage_times import EMBED, PNET, RNET, StageTimes
from pipeline.types import DecodedImage
from tests.waiting import until


class HeldUpExtractor:
    """Works once it is open, and answers each image's height."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.began = threading.Event()
        self.batches: list[list[int]] = []

    def extract(self, images: Sequence[DecodedImage], times: StageTimes) -> list[pa.Table]:
        self.began.set()
        assert self.open.wait(60)
        heights = [image.height for image in images]
        self.batches.append(heights)
        if 13 in heights:
            raise DeviceOutOfMemory(device="cpu", detail="planted")
        return [pa.table({"height": [height]}) for height in heights]


def image(height: int) -> DecodedImage:
    return DecodedImage(np.zeros((height, 10, 3), np.uint8), "png")


@pytest.fixture
def extractor() -> HeldUpExtractor:
    return HeldUpExtractor()


@pytest.fixture
def batcher(request: pytest.FixtureRequest, extractor: HeldUpExtractor) -> Iterator[MicroBatcher]:
    waiting = ServeSettings(queue_images=getattr(request, "param", 8))
    made = MicroBatcher(extractor, Settings(run=RunSettings(batch_images=4, batch_pixels=1000), serve=waiting))  # type: ignore[arg-type]
    yield made
    made.close()


def ask_while_busy(batcher: MicroBatcher, extractor: HeldUpExtractor, heights: Sequence[int]) -> list[object]:
    """The answers (or errors) to a first image, which keeps the models busy, and to `heights` behind it."""

    def ask(height: int) -> object:
        try:
            return batcher.extract(image(height))[0]["height"][0].as_py()
        except (DeviceOutOfMemory, Overloaded) as exc:
            return type(exc)

    with ThreadPoolExecutor(len(heights) + 1) as pool:
        first = pool.submit(ask, 1)
        assert extractor.began.wait(60)
        others = []
        for count, height in enumerate(heights, 1):
            others.append(pool.submit(ask, height))
            while batcher.queued < count and not others[-1].done():
                pass
        extractor.open.set()
        return [first.result(), *(other.result() for other in others)]


@pytest.mark.parametrize(
    ("heights", "batches"),
    [
        pytest.param([2, 3, 4, 5, 6], [[1], [2, 3, 4, 5], [6]], id="at most 4 images"),
        pytest.param([60, 40, 41, 500, 2], [[1], [60, 40], [41], [500], [2]], id="at most 100 rows, or one image"),
    ],
)
def test_what_arrives_while_the_models_are_busy_is_the_next_batch(
    batcher: MicroBatcher, extractor: HeldUpExtractor, heights: list[int], batches: list[list[int]]
) -> None:
    assert ask_while_busy(batcher, extractor, heights) == [1, *heights]
    assert extractor.batches == batches


@pytest.mark.parametrize("batcher", [2], indirect=True)
def test_a_full_queue_refuses_at_once(batcher: MicroBatcher, extractor: HeldUpExtractor) -> None:
    assert ask_while_busy(batcher, extractor, [2, 3, 4, 5]) == [1, 2, 3, Overloaded, Overloaded]


def test_one_image_that_fails_does_not_fail_the_others(batcher: MicroBatcher, extractor: HeldUpExtractor) -> None:
    assert ask_while_busy(batcher, extractor, [2, 13, 4]) == [1, 2, DeviceOutOfMemory, 4]


def test_no_image_stays_in_memory_after_its_answer(batcher: MicroBatcher, extractor: HeldUpExtractor) -> None:
    extractor.open.set()
    sent = image(1)
    pixels = weakref.ref(sent.pixels)
    batcher.extract(sent)
    del sent
    until(lambda: pixels() is None)


def test_too_few_answers_fail_the_images_and_not_the_thread(
    batcher: MicroBatcher, extractor: HeldUpExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extractor, "extract", lambda *_: [])
    for _ in range(2):
        with ThreadPoolExecutor(1) as pool, pytest.raises(ValueError, match="zip"):
            pool.submit(batcher.extract, image(1)).result(60)


def test_the_time_of_the_detector_is_without_queue_and_embedding(
    batcher: MicroBatcher, extractor: HeldUpExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    extract = extractor.extract

    def timed(images: Sequence[DecodedImage], times: StageTimes) -> list[pa.Table]:
        for stage, seconds in ((PNET, 0.03), (RNET, 0.02), (EMBED, 0.5)):
            with times.stage(stage):
                time.sleep(seconds)
        return extract(images, times)

    monkeypatch.setattr(extractor, "extract", timed)
    extractor.open.set()
    with ThreadPoolExecutor(2) as pool:
        (_, first_s), (_, second_s) = pool.map(batcher.extract, [image(1), image(2)])
    assert 0.05 <= first_s < 0.5
    assert 0.05 <= second_s < 0.5


def test_closing_finishes_what_is_queued_and_takes_no_more(batcher: MicroBatcher, extractor: HeldUpExtractor) -> None:
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(batcher.extract, image(1))
        assert extractor.began.wait(60)
        second = pool.submit(batcher.extract, image(2))
        while not batcher.queued:
            pass
        threading.Timer(0.05, extractor.open.set).start()
        batcher.close()
        assert [f.result()[0]["height"][0].as_py() for f in (first, second)] == [1, 2]
    with pytest.raises(Overloaded):
        batcher.extract(image(3))
