"""Landmarks of heads turned by known angles, seen by a camera: what the pose estimate is measured with.

The heads are the mean face of `extraction.quality` with the spread of real ones (about that of anthropometric tables):
the face's length and breadth below the eyes vary by 6 %, the nose's height by 15 %, the mouth lies 5 % of the eyes'
distance before or behind them. The camera is a pinhole at `distance` eyes' distances: 16 are a metre.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from pipeline.extraction.quality import _FACE_MODEL, center_pose
from pipeline.types import DoubleArray

NOISE = 0.03  # of the eyes' distance: standard deviation of a landmark
_LENGTH, _NOSE_HEIGHT, _MOUTH_DEPTH = 0.06, 0.15, 0.05
_EYES_PX = 40.0


def heads(count: int, rng: np.random.Generator, varied: bool = True) -> DoubleArray:
    """[count, 5, 3] in eyes' distances, as _FACE_MODEL."""
    shape = np.tile(np.array(_FACE_MODEL), (count, 1, 1))
    if varied:
        shape[:, 2:, :2] *= 1 + _LENGTH * rng.standard_normal((count, 1, 2))
        shape[:, 2, 2] *= 1 + _NOSE_HEIGHT * rng.standard_normal(count)
        shape[:, 3:, 2] += _MOUTH_DEPTH * rng.standard_normal((count, 1))
    return shape


def turned(shape: DoubleArray, yaw: float, pitch: float, roll: float) -> DoubleArray:
    """The heads turned by these degrees, yaw first."""
    y, p, r = (math.radians(v) for v in (yaw, pitch, roll))
    about_y = np.array([[math.cos(y), 0, math.sin(y)], [0, 1, 0], [-math.sin(y), 0, math.cos(y)]])
    about_x = np.array([[1, 0, 0], [0, math.cos(p), -math.sin(p)], [0, math.sin(p), math.cos(p)]])
    about_z = np.array([[math.cos(r), -math.sin(r), 0], [math.sin(r), math.cos(r), 0], [0, 0, 1]])
    product: DoubleArray = shape @ (about_z @ about_x @ about_y).T
    return product


def seen(shape: DoubleArray, distance: float) -> DoubleArray:
    """[n, 5, 2] in pixels: z points to the camera, which looks at the point between the eyes."""
    picture: DoubleArray = shape[:, :, :2] * (distance / (distance - shape[:, :, 2:])) * _EYES_PX
    return picture


def angle(pose: torch.Tensor) -> DoubleArray:
    """The degrees on one axis that these values of center_pose mean."""
    degrees: DoubleArray = np.degrees(np.arccos(np.sqrt(pose.double().numpy())))
    return degrees


def pose_errors(
    turns: Sequence[tuple[float, float]], distance: float = 16, count: int = 4000, seed: int = 0
) -> dict[str, dict[str, float]]:
    """By (yaw, pitch): bias and root mean square of the error of the angle to the camera, in degrees."""
    rng = np.random.default_rng(seed)
    errors = {}
    for yaw, pitch in turns:
        points = seen(turned(heads(count, rng), yaw, pitch, 0), distance)
        points += NOISE * _EYES_PX * rng.standard_normal(points.shape)
        true = math.degrees(math.acos(math.cos(math.radians(yaw)) * math.cos(math.radians(pitch))))
        error = angle(center_pose(torch.from_numpy(points).float())) - true
        errors[f"{yaw:g},{pitch:g}"] = {"bias": float(error.mean()), "rms": float(np.sqrt((error**2).mean()))}
    return errors
