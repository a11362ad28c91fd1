"""Do the quality measures foretell errors, and does the gate reject what it should? On LFW, view 1.

    python scripts/bench/bench_quality.py --faces FOLDER/lfw-view1 [--weights casia-webface]

Error versus discard (Grother & Tabassi 2007, "Performance of biometric quality measures"; ISO/IEC 29794-1): the
threshold is where the FMR is 1e-3 over all impostor pairs of all photos of a list's people. Then the worst 5, 10, 20
and 30 % of the faces are discarded by one number per face; the figure is the FNMR of the genuine pairs that keep both
faces. Photos without a face have no quality and take no part. Of faces of equal quality none or all go, so a measure
that tells nothing apart discards nothing. Faces discarded at random show what chance does.

The number for the gate as a whole is the smallest of (q - t) / (1 - t) over its measures, t a measure's default: below
0 the gate rejects the face, 1 is perfect.

Damage: photos of test people, one a person, made worse by known amounts, against an untouched photo of the same person.
Quarters: what passes the gate in photos turned by 90, 180 and 270 degrees. Pose error: landmarks of heads turned by
known angles (`turned_heads`), and photos turned in their plane and detected again.

The measures' maps were chosen on the training people; the figures of the test people are reported. Asserts that a
second, naive way gives the same curves, that a constant discards nothing, that the gate's curve falls, that portraits
are kept, and that every damage lowers its measure and raises the FNMR.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from harness import argument_parser, write_result
from lfw import FMRS, Portraits, Protocol, people_of, photo_name, read_protocol
from PIL import Image
from quality_damage import STEPS, Faces, find
from turned_heads import angle, pose_errors

from pipeline.config import DecodeSettings, MatchSettings, load_settings
from pipeline.evaluation.pairs.distances import all_distances
from pipeline.evaluation.pairs.lists import Pair
from pipeline.evaluation.statistics import bootstrap_interval, squared_distances, threshold_at_fmr
from pipeline.extraction.extractor import BatchExtractor
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.quality import center_pose
from pipeline.jobs.models import load_extractor
from pipeline.jobs.store_identity import make_identity
from pipeline.types import BoolArray, FloatArray, IntArray

DISCARDS = (0.0, 0.05, 0.1, 0.2, 0.3)
FALLING = 4  # discards, at each of which the FNMR must fall
LEAST_KEPT = 0.95  # of ordinary portraits
SEED = 0
QUALITIES = ("center_pose", "sharpness", "contrast")
CHUNK = 256  # photos in memory at once
RANDOM_DRAWS = 400
QUARTERS = (90, 180, 270)
TURNS = ((0, 0), (15, 0), (30, 0), (40, 0), (50, 0), (0, 15), (0, -15), (0, 30), (0, -30), (25, 15), (25, -15))
DISTANCES = (8, 16)  # of the camera, in eyes' distances: half a metre, a metre
FRONTAL = 0.9  # the least pose of the photos that are turned in their plane
_GATE = MatchSettings()
DEFAULTS = np.array([_GATE.min_cpq, _GATE.min_fsq, _GATE.min_fcq])


def combinations(quality: FloatArray) -> dict[str, FloatArray]:
    """One number per face from the three measures [n, 3]: each alone, and the gate as a whole."""
    gate = ((quality - DEFAULTS) / (1 - DEFAULTS)).min(axis=1)
    return {**dict(zip(QUALITIES, quality.T, strict=True)), "gate": gate}


@dataclass(frozen=True)
class Side:
    """The photos of one list's people in which there is a face."""

    quality: FloatArray  # [n, 3]
    pairs: IntArray  # [g, 2] rows of genuine pairs
    missed: BoolArray  # [g]
    threshold: float

    def fnmr(self, kept: BoolArray) -> float:
        """Of the genuine pairs both of whose faces are kept [n]."""
        return float(self.missed[kept[self.pairs].all(axis=1)].mean())


def side_of(portraits: Portraits, people: Sequence[str], quality: FloatArray) -> Side:
    rows, owner = portraits.rows_of(people)
    genuine, impostor, pairs = all_distances(portraits.embeddings[rows], owner)
    threshold = threshold_at_fmr(impostor, FMRS[0])
    has_face = np.isfinite(quality[rows]).all(axis=1)
    position = np.cumsum(has_face) - 1
    seen = has_face[pairs].all(axis=1)
    return Side(quality[rows][has_face], position[pairs[seen]], genuine[seen] >= threshold, threshold)


def kept_faces(values: FloatArray, share: float) -> BoolArray:
    """[n]: all faces but the worst `share`; of equal values none or all."""
    cut = np.sort(values)[int(share * len(values))]
    kept: BoolArray = values >= cut
    return kept


def curve(side: Side, values: FloatArray) -> dict[str, list[float]]:
    kept = [kept_faces(values, share) for share in DISCARDS]
    return {
        "fnmr": [side.fnmr(k) for k in kept],
        "pairs": [int(k[side.pairs].all(axis=1).sum()) for k in kept],
    }


def naive_fnmr(side: Side, values: FloatArray, share: float) -> float:
    """The same for values that all differ, without arrays."""
    gone = set(sorted(range(len(values)), key=lambda i: float(values[i]))[: int(share * len(values))])
    left = [bool(m) for (a, b), m in zip(side.pairs.tolist(), side.missed, strict=True) if not {a, b} & gone]
    return sum(left) / len(left)


def discard_figures(side: Side) -> dict[str, Any]:
    curves = {name: curve(side, values) for name, values in combinations(side.quality).items()}
    rng = np.random.default_rng(SEED)
    drawn = [curve(side, rng.random(len(side.quality)))["fnmr"] for _ in range(RANDOM_DRAWS)]
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    return {"discards": DISCARDS, "curves": curves, "random_95": [low.tolist(), high.tolist()]}


def check_curves(side: Side) -> None:
    constant = curve(side, np.ones(len(side.quality), np.float32))
    assert len(set(constant["fnmr"])) == 1, "a constant discarded something"
    distinct = np.random.default_rng(SEED).permutation(len(side.quality)).astype(np.float32)
    for values in (distinct, distinct + 1e4 * combinations(side.quality)["gate"]):
        for share in DISCARDS:
            assert abs(naive_fnmr(side, values, share) - side.fnmr(kept_faces(values, share))) < 1e-12


def kept_figures(side: Side) -> dict[str, Any]:
    """How many ordinary portraits the gate keeps at its defaults."""
    passed = side.quality >= DEFAULTS
    return {
        "faces": len(passed),
        "kept": float(passed.all(axis=1).mean()),
        "kept_interval_95": bootstrap_interval(passed.all(axis=1)),
        "kept_by_each": dict(zip(QUALITIES, passed.mean(axis=0).tolist(), strict=True)),
        "quantiles": {
            name: dict(zip(("1%", "5%", "50%"), np.percentile(column, (1, 5, 50)).tolist(), strict=True))
            for name, column in zip(QUALITIES, side.quality.T, strict=True)
        },
    }


def load(files: Sequence[Path], settings: DecodeSettings) -> list[Image.Image]:
    return [Image.fromarray(decode_image(file.read_bytes(), settings).pixels) for file in files]


def find_all(extractor: BatchExtractor, files: Sequence[Path]) -> tuple[Portraits, FloatArray]:
    """The faces of `files`, and their quality [n, 3]; NaN without a face."""
    settings = extractor.settings.decode
    parts = [find(extractor, load(files[i : i + CHUNK], settings)) for i in range(0, len(files), CHUNK)]
    embeddings, quality = (
        np.concatenate([getattr(part, name) for part in parts]) for name in ("embeddings", "quality")
    )
    return Portraits([file.stem for file in files], embeddings), quality


def damage_figures(extractor: BatchExtractor, images: Path, pairs: Sequence[Pair], threshold: float) -> dict[str, Any]:
    """What the damage of one photo of each genuine pair does to its quality and to its distance from the other."""
    settings = extractor.settings.decode
    worse = load([_file(images, p.first) for p in pairs], settings)
    other = find(extractor, load([_file(images, p.second) for p in pairs], settings))
    untouched = find(extractor, worse)
    widths = untouched.boxes[:, 2] - untouched.boxes[:, 0]
    assert np.isfinite(widths).all(), "a photo without a face among those to be damaged"
    figures: dict[str, Any] = {"pairs": len(pairs), "face_px": float(np.median(widths))}
    figures["untouched"] = _step(untouched, other, threshold)
    turned = {}
    for kind, steps in STEPS.items():
        figures[kind] = {}
        for name, damage in steps.items():
            made = find(extractor, [damage(p, float(w)) for p, w in zip(worse, widths, strict=True)])
            figures[kind][name] = _step(made, other, threshold)
            if kind == "roll":
                turned[name] = _roll_error(untouched, made, float(name), worse[0].size)
    figures["roll_error_degrees"] = turned
    return figures


def _step(made: Faces, other: Faces, threshold: float) -> dict[str, Any]:
    distances = squared_distances(made.embeddings, other.embeddings)  # infinite without a face
    assert made.found.any(), "no face left to measure"
    rates = made.quality[made.found]
    passed = np.zeros(len(distances), np.bool_)
    passed[made.found] = (rates >= DEFAULTS).all(axis=1)
    return {
        "with_face": float(made.found.mean()),
        "rejected": float(1 - passed[made.found].mean()),
        "rejected_by_each": dict(zip(QUALITIES, (rates < DEFAULTS).mean(axis=0).tolist(), strict=True)),
        "median": dict(zip(QUALITIES, np.median(rates, axis=0).tolist(), strict=True)),
        "fnmr": float((distances >= threshold).mean()),
        "fnmr_of_passed": float((distances[passed] >= threshold).mean()) if passed.any() else None,
        "passed": int(passed.sum()),
    }


def _roll_error(untouched: Faces, made: Faces, degrees: float, size: tuple[int, int]) -> dict[str, float]:
    """Of near-frontal faces: the error of the angle to the camera that the turned photo's landmarks give."""
    chosen = made.found & (center_pose(torch.from_numpy(untouched.landmarks)).numpy() >= FRONTAL)
    turn, centre = np.radians(degrees), np.array(size) / 2
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    expected = (untouched.landmarks[chosen] - centre) @ matrix.T + centre
    true, measured = (
        angle(center_pose(torch.from_numpy(points.astype(np.float32)))) for points in (expected, made.landmarks[chosen])
    )
    error = measured - true
    return {"faces": int(chosen.sum()), "bias": float(error.mean()), "rms": float(np.sqrt((error**2).mean()))}


def quarter_figures(extractor: BatchExtractor, files: Sequence[Path]) -> dict[str, Any]:
    """What is taken for a face in portraits turned by quarters of a circle."""
    figures: dict[str, Any] = {"photos": len(files)}
    photos = load(files, extractor.settings.decode)
    for degrees in QUARTERS:
        made = find(extractor, [photo.rotate(degrees) for photo in photos])
        rates, places = made.quality[made.found], center_pose(torch.from_numpy(made.landmarks[made.found])).numpy()
        figures[str(degrees)] = {
            "faces": len(rates),
            "pass_by_places_alone": int((places >= DEFAULTS[0]).sum()),
            "pass_pose": int((rates[:, 0] >= DEFAULTS[0]).sum()),
            "pass_gate": int((rates >= DEFAULTS).all(axis=1).sum()),
            "score_below_0.985": int((made.scores[made.found] < 0.985).sum()),
            "sharpness_below_default": int((rates[:, 1] < DEFAULTS[1]).sum()),
        }
    return figures


def _file(images: Path, photo: tuple[str, int]) -> Path:
    return images / photo[0] / f"{photo_name(*photo)}.jpg"


def one_each(pairs: Sequence[Pair], faces: Mapping[str, bool], count: int) -> list[Pair]:
    """At most `count` genuine pairs of different people, by SEED; both photos have a face."""
    chosen: dict[str, Pair] = {}
    for i in np.random.default_rng(SEED).permutation(len(pairs)):
        pair = pairs[i]
        if pair.genuine and all(faces[photo_name(*photo)] for photo in (pair.first, pair.second)):
            chosen.setdefault(pair.first[0], pair)
    return list(chosen.values())[:count]


def check(figures: dict[str, Any]) -> None:
    """Raises AssertionError where the figures are not as the docstring of this file says."""
    fnmr = figures["test"]["discard"]["curves"]["gate"]["fnmr"][:FALLING]
    assert all(a > b for a, b in pairwise(fnmr)), f"the gate's curve does not fall: {fnmr}"
    for side in ("train", "test"):
        assert figures[side]["portraits"]["kept"] >= LEAST_KEPT, f"portraits kept: {figures[side]['portraits']}"
    damage = figures["damage"]
    for kind, measure in (("blur", "sharpness"), ("contrast", "contrast"), ("roll", "center_pose")):
        steps = list(damage[kind].values())
        if kind != "roll":  # people hold their heads askew by some degrees, either way
            steps.insert(0, damage["untouched"])
        medians = [step["median"][measure] for step in steps]
        assert all(a > b for a, b in pairwise(medians)), f"{measure} does not fall with {kind}: {medians}"
        assert steps[-1]["rejected"] > 0.8, f"strong {kind} passes: {steps[-1]}"
    for kind in ("blur", "contrast", "roll", "size"):
        strongest = list(damage[kind].values())[-1]
        assert strongest["fnmr"] > damage["untouched"]["fnmr"], f"{kind} costs nothing: {strongest}"
    assert damage["mirror"]["mirror"]["rejected"] <= 1 - LEAST_KEPT


def measure(extractor: BatchExtractor, protocol: Protocol, arguments: argparse.Namespace) -> dict[str, Any]:
    images = arguments.faces / "images"
    files = protocol.files(images)
    portraits, quality = find_all(extractor, files)
    has_face = np.isfinite(quality).all(axis=1)
    figures: dict[str, Any] = {"photos": len(files), "photos_without_face": portraits.without_face}
    for name, pairs in (("train", protocol.train), ("test", protocol.test)):
        side = side_of(portraits, people_of(pairs), quality)
        check_curves(side)
        figures[name] = {"threshold": side.threshold, "discard": discard_figures(side), "portraits": kept_figures(side)}
    damaged = one_each(protocol.test, dict(zip(portraits.names, has_face.tolist(), strict=True)), arguments.damaged)
    figures["damage"] = damage_figures(extractor, images, damaged, figures["test"]["threshold"])
    rows, _ = portraits.rows_of(people_of(protocol.test))
    drawn = np.random.default_rng(SEED).permutation(rows)[: arguments.turned]
    figures["quarters"] = quarter_figures(extractor, [files[i] for i in sorted(drawn)])
    figures["pose_error_degrees"] = {str(d): pose_errors(TURNS, d) for d in DISTANCES}
    return figures


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder lfw-view1")
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--damaged", type=int, default=80, help="photos to be damaged")
    parser.add_argument("--turned", type=int, default=300, help="photos to be turned by quarters")
    arguments = parser.parse_args()
    settings = load_settings(flags={"run.device": arguments.device, "model.weights": arguments.weights})
    identity = make_identity(settings)
    figures = measure(load_extractor(settings, identity, Path()), read_protocol(arguments.faces), arguments)
    about = {"weights": identity.weights, "weights_sha256": identity.weights_sha256, "defaults": DEFAULTS.tolist()}
    write_result("quality", {**about, "fmr": FMRS[0]}, {}, figures, arguments)
    check(figures)


if __name__ == "__main__":
    main()
