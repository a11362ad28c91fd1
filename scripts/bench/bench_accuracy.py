"""Accuracy on Labeled Faces in the Wild, view 1, from photo to decision, ours beside facenet-pytorch's own chain.

    python scripts/bench/bench_accuracy.py --faces FOLDER/lfw-view1 [--cache FILE.npz] [--weights casia-webface]

FOLDER/lfw-view1 holds images/, pairsDevTrain.txt and pairsDevTest.txt. Ours is decode, detect, align and embed with
the default settings; the reference is `facenet_pytorch.MTCNN(keep_all=True)` with the same thresholds and
`extract_face`; both use the same weights and take, in each photo, the face nearest the centre. Neither subtracts the
weights' centre; "centred" is ours with it, as `run` has it.

Accuracy: on the pairs of pairsDevTest at the threshold best on pairsDevTrain, with a 95 % bootstrap interval. A pair
with a photo in which a method found no face counts as an error of that method. FNMR at an FMR: over all pairs of all
photos of the test people; a photo without a face matches nothing. The calibration exponent comes from the impostor
pairs of the training people. Asserts that ours is not worse than the reference by McNemar's exact test (p > 0.05).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from bench_common import RESULTS, result, write_result
from lfw_embeddings import CENTRED, MARGINS, OURS, REFERENCE, Methods, Portraits, portraits

from pipeline.config import ModelSettings, Settings
from pipeline.evaluation.pairs.distances import all_distances
from pipeline.evaluation.pairs.lists import Pair, read_pairs
from pipeline.evaluation.statistics.rates import (
    CONTRACT_FMR,
    best_threshold,
    bootstrap_interval,
    calibration_exponent,
    decisions_right,
    error_rates,
    mcnemar_exact,
    squared_distances,
    threshold_at_fmr,
)
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

FMRS = (1e-3, 1e-4)
SIGNIFICANT = 0.05


@dataclass(frozen=True)
class Protocol:
    train: list[Pair]
    test: list[Pair]

    def people(self, pairs: Sequence[Pair]) -> list[str]:
        return sorted({name for pair in pairs for name, _ in (pair.first, pair.second)})

    def files(self, images: Path) -> list[Path]:
        """Every photo of the people of both lists, sorted."""
        people = self.people([*self.train, *self.test])
        return [file for name in people for file in sorted((images / name).glob("*.jpg"))]


def read_protocol(folder: Path, pairs_each: int | None) -> Protocol:
    """Both lists; with `pairs_each`, the first so many genuine and impostor pairs of each."""
    train, test = (_first(read_pairs(folder / name), pairs_each) for name in ("pairsDevTrain.txt", "pairsDevTest.txt"))
    protocol = Protocol(train, test)
    assert not set(protocol.people(train)) & set(protocol.people(test)), "people of both lists"
    return protocol


def _first(pairs: list[Pair], count: int | None) -> list[Pair]:
    return [p for p in pairs if p.genuine][:count] + [p for p in pairs if not p.genuine][:count]


def pair_distances(found: Portraits, embeddings: FloatArray, pairs: Sequence[Pair]) -> DoubleArray:
    row = found.row
    first, second = ([row[f"{name}_{number:04d}"] for name, number in side] for side in _sides(pairs))
    return squared_distances(embeddings[first], embeddings[second])


def _sides(pairs: Sequence[Pair]) -> tuple[list[tuple[str, int]], list[tuple[str, int]]]:
    return [p.first for p in pairs], [p.second for p in pairs]


def rows_of(found: Portraits, people: Sequence[str]) -> tuple[IntArray, IntArray]:
    """The rows of all photos of `people`, and whose they are."""
    number = {name: i for i, name in enumerate(people)}
    owner = np.array([number.get(name.rsplit("_", 1)[0], -1) for name in found.names])
    rows = np.flatnonzero(owner >= 0)
    return rows, owner[rows]


def accuracy(found: Portraits, key: str, protocol: Protocol) -> tuple[dict[str, Any], BoolArray]:
    """The figures of the pairs lists, and which of the test pairs were decided rightly."""
    train, test = (pair_distances(found, found.embeddings[key], p) for p in (protocol.train, protocol.test))
    train_kinds, test_kinds = (np.array([p.genuine for p in pairs]) for pairs in (protocol.train, protocol.test))
    threshold = best_threshold(train, train_kinds)
    right = decisions_right(test, test_kinds, threshold)
    figures = {
        "threshold": threshold,
        "accuracy": float(right.mean()),
        "accuracy_interval_95": bootstrap_interval(right),
        "accuracy_train": float(decisions_right(train, train_kinds, threshold).mean()),
        "test_pairs": len(right),
        "test_pairs_without_face": int(np.isinf(test).sum()),
    }
    return figures, right


def all_pairs(found: Portraits, key: str, protocol: Protocol) -> dict[str, Any]:
    """FNMR at FMR over all pairs of the test people, and the calibration on those of the training people."""
    rows, owner = rows_of(found, protocol.people(protocol.test))
    genuine, impostor, _ = all_distances(found.embeddings[key][rows], owner)
    rows, owner = rows_of(found, protocol.people(protocol.train))
    _, train_impostor, _ = all_distances(found.embeddings[key][rows], owner)
    at_contract_fmr = threshold_at_fmr(train_impostor, CONTRACT_FMR)
    return {
        "test": [asdict(error_rates(genuine, impostor, fmr)) for fmr in FMRS],
        "calibration": {
            "fmr": CONTRACT_FMR,
            "impostor_pairs": len(train_impostor),
            "squared_l2": at_contract_fmr,
            "exponent": calibration_exponent(at_contract_fmr),
            "test_fmr": float(np.mean(impostor < at_contract_fmr)),
            "test_fnmr": float(np.mean(genuine >= at_contract_fmr)),
        },
    }


def figures_of(found: Portraits, protocol: Protocol) -> dict[str, Any]:
    figures: dict[str, Any] = {"photos": len(found.names), "photos_without_face": found.without_face}
    for margin in MARGINS:
        ours, reference = f"{OURS}-{margin}", f"{REFERENCE}-{margin}"
        rights = {}
        for key in (ours, reference):
            figures[key], rights[key] = accuracy(found, key, protocol)
            figures[key] |= all_pairs(found, key, protocol)
        only_ours, only_reference, p = mcnemar_exact(rights[ours], rights[reference])
        figures[f"mcnemar-{margin}"] = {"only_ours_right": only_ours, "only_reference_right": only_reference, "p": p}
    figures[CENTRED], _ = accuracy(found, CENTRED, protocol)
    figures[CENTRED] |= all_pairs(found, CENTRED, protocol)
    return figures


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['photos']} photos; without a face: {figures['photos_without_face']}")
    for key in (*(f"{who}-{margin}" for margin in MARGINS for who in (OURS, REFERENCE)), CENTRED):
        one = figures[key]
        low, high = one["accuracy_interval_95"]
        rates = ", ".join(f"FNMR {r['fnmr']:.2%} at FMR {r['fmr']:g}" for r in one["test"])
        print(f"{key}: accuracy {one['accuracy']:.2%} [{low:.2%}, {high:.2%}], {rates}")
        print(f"  FMR {CONTRACT_FMR:g} at squared L2 {one['calibration']['squared_l2']:.4f}: {one['calibration']}")
    print({margin: figures[f"mcnemar-{margin}"] for margin in MARGINS})


def main() -> None:
    arguments = _arguments()
    protocol = read_protocol(arguments.faces, arguments.pairs)
    model = ModelSettings(weights=arguments.weights, weights_file=arguments.weights_file)
    methods = Methods(Settings(model=model), arguments.device)
    found = portraits(methods, protocol.files(arguments.faces / "images"), arguments.cache)
    figures = figures_of(found, protocol)
    show(figures)
    settings = {
        "weights": methods.resolved.name,
        "weights_sha256": methods.resolved.sha256,
        "margins": MARGINS,
        "pairs_each": arguments.pairs,
        "detect": asdict(methods.settings.detect),
    }
    print(write_result(result("accuracy", settings, {}, figures, arguments.device), arguments.results))
    for margin in MARGINS:
        test = figures[f"mcnemar-{margin}"]
        worse = test["only_reference_right"] > test["only_ours_right"]
        assert not (worse and test["p"] <= SIGNIFICANT), f"worse than the reference at margin {margin}: {test}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True, help="the folder lfw-view1")
    parser.add_argument("--cache", type=Path, help="an .npz file: embeddings are read from it, or written to it")
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--weights-file")
    parser.add_argument("--pairs", type=int, help="only the first so many genuine and impostor pairs of each list")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
