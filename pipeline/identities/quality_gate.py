"""The quality gate: which faces may become a reference (contract, section 4.2, rules 3 and 4)."""

from __future__ import annotations

from typing import Final

from pipeline.config import MatchSettings
from pipeline.extraction.rows import ExtractedFace
from pipeline.types import CENTER_POSE, CONTRAST, SHARPNESS

QUALITY_COLUMNS: Final = {
    CENTER_POSE: "center_pose_quality",
    SHARPNESS: "sharpness_quality",
    CONTRAST: "contrast_quality",
}


def failed_measures(face: ExtractedFace, gate: MatchSettings) -> tuple[str, ...]:
    """The quality measures of the face that are below the gate; empty: it may become a reference."""
    least = ((CENTER_POSE, gate.min_cpq), (SHARPNESS, gate.min_fsq), (CONTRAST, gate.min_fcq))
    return tuple(measure for measure, low in least if face.fields[QUALITY_COLUMNS[measure]] < low)
