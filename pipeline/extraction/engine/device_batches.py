"""Batches on the device, several at a time: the rest of the decoding, the faces, and room in its memory for each."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import DeviceOutOfMemory, ImageRejected
from pipeline.extraction.engine.device_memory import Room
from pipeline.extraction.extractor import FaceExtractor
from pipeline.extraction.images.nvjpeg import DeviceDecoder
from pipeline.runtime.device import own_stream
from pipeline.runtime.stage_times import JPEGS, StageTimes
from pipeline.types import DecodedImage, DeviceImage, EncodedImage


class DeviceBatches:
    """Images to faces. Safe to call from many threads."""

    def __init__(self, settings: Settings, times: StageTimes) -> None:
        self._decode = DeviceDecoder(settings.decode)
        self._times = times
        self._room = Room()

    def __call__(
        self, extractor: FaceExtractor, images: Sequence[DecodedImage | EncodedImage]
    ) -> list[pa.Table | ImageRejected]:
        """Of each image its faces (`face_schema`), or why its file is refused after all.

        An image that is too much beside other batches gets the device for itself; raises DeviceOutOfMemory where it is
        too much all the same.
        """
        with own_stream(extractor.device):
            try:
                with self._room.beside_others():
                    return self._work(extractor, images)
            except DeviceOutOfMemory:
                pass
            with self._room.alone():
                return self._work(extractor, images)

    def _work(
        self, extractor: FaceExtractor, images: Sequence[DecodedImage | EncodedImage]
    ) -> list[pa.Table | ImageRejected]:
        decoded = self._decoded(extractor, images)
        sound = [image for image in decoded if not isinstance(image, ImageRejected)]
        tables = iter(extractor.extract(sound, self._times))
        return [image if isinstance(image, ImageRejected) else next(tables) for image in decoded]

    def _decoded(
        self, extractor: FaceExtractor, images: Sequence[DecodedImage | EncodedImage]
    ) -> Sequence[DecodedImage | DeviceImage | ImageRejected]:
        decoded = [image for image in images if isinstance(image, DecodedImage)]
        if len(decoded) == len(images):
            return decoded
        with self._times.on_device(JPEGS):
            return self._decode(images, extractor.device)
