"""What `facepipe bench` answers."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass
from typing import Any

from pipeline.evaluation.bench.parity import CONFIDENT, SAME_IOU


@dataclass(frozen=True)
class SideReport:
    """How one side did; the rates are those of the median turn."""

    seconds: list[float]  # of each turn
    images_per_s: float
    faces_per_s: float
    faces: int  # that were embedded

    def line(self) -> str:
        seconds = f"{statistics.median(self.seconds):.2f} s a turn"
        return f"{self.images_per_s:.1f} images/s, {self.faces_per_s:.1f} faces/s ({seconds})"


@dataclass(frozen=True)
class SameFaces:
    """How far both found the same: of the reference's faces of probability 0.95, those that facepipe has at IoU 0.9,
    and of facepipe's those where the reference has none."""

    reference_faces: int
    found: int
    extra: int
    cosine_min: float | None  # of both embeddings of the reference's boxes; None without a face
    cosine_median: float | None

    def line(self) -> str:
        found = f"{self.found} of the reference's {self.reference_faces} (p {CONFIDENT:g}, IoU {SAME_IOU:g})"
        line = f"{found}, {self.extra} extra"
        if self.cosine_min is None:
            return line
        return f"{line}; embeddings of the same boxes: cosine at least {self.cosine_min:.6f}"


@dataclass(frozen=True)
class BenchReport:
    """The comparison of facepipe with the reference on a sample of photos."""

    source: str
    images: int  # that were compared
    left_out: dict[str, int]  # how many of the sample were not comparable, by reason
    device: str
    threads: int  # of each side, on the CPU
    backend: str  # of facepipe's embedder
    weights: str  # of both sides' embedder
    mode: str
    facepipe: SideReport
    reference: SideReport
    ratio: float  # the reference's time by facepipe's: the median over the turns
    ratios: list[float]
    faces: SameFaces

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        spread = f"{min(self.ratios):.2f} to {max(self.ratios):.2f} in {len(self.ratios)} turns"
        return [
            f"images      {self.images} of {self.source}",
            *(f"left out    {count}: {reason}" for reason, count in sorted(self.left_out.items())),
            f"device      {self.device}; {self.backend}; {self.weights}, mode {self.mode}",
            f"facepipe    {self.facepipe.line()}",
            f"reference   {self.reference.line()}",
            f"ratio       {self.ratio:.2f} ({spread})",
            f"faces       {self.faces.line()}",
        ]
