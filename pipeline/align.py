"""Cuts the embedder's input from original pixels: the face box with a margin, at one size."""

from __future__ import annotations

import torch

from pipeline.config import AlignSettings
from pipeline.imagebatch import ImageBatch
from pipeline.types import Detections, FaceCrops


@torch.inference_mode()
def cut_crops(batch: ImageBatch, found: Detections, settings: AlignSettings, size: int) -> FaceCrops:
    """One crop of size x size per face of `found`, as facenet-pytorch's `extract_face` frames it.

    The frame is the box grown by `margin_px` pixels of the crop (half on each side), cut off at the image's
    edge, its corners truncated to whole pixels; a frame that leaves its proportions is stretched to the square.
    """
    low, high = found.boxes[:, :2], found.boxes[:, 2:]
    margin = settings.margin_px * (high - low) / (size - settings.margin_px) / 2
    limit = batch.sizes[found.image_index].flip(1)
    first = torch.minimum((low - margin).clamp(min=0).trunc().long(), limit - 1)
    last = torch.minimum((high + margin).trunc().long(), limit)
    frames = torch.cat([first, torch.maximum(last, first + 1)], dim=1)
    pixels = batch.smooth_crops(found.image_index, frames, size)
    return FaceCrops(pixels, frames.float(), (size - settings.margin_px) / size)
