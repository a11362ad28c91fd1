"""How accurate are identities and decisions of `facepipe run`, and what does the mode `fast` change? On LFW, view 1.

    python scripts/bench/bench_stores.py --faces FOLDER/lfw-view1 --work FOLDER [--weights casia-webface sface]
        [--question accuracy fast] [--device cuda] [--set run.jpeg=device]

`facepipe run` makes a store of each set of weights and mode (FOLDER/<weights>-exact and -fast, where they are not there
yet; stopped runs go on) with the default threshold and the gate open, so that every face is grouped.

accuracy  accuracy-<weights>: the listed pairs, FNMR at FMR, the calibration. clustering: the identities of all people
          and of the test people alone, grouped with the calibration and without, both at T = 0.54
fast      fast-<weights>: both modes side by side; each face of the one store is looked up in the other by its box

Asserts of `accuracy`: the registry's calibration is the measured one, so that T = 0.54 means what the contract says;
grouping again gives the store's identities; `facepipe evaluate clustering` has the same figures. Of `fast`, after the
result is written: all but one face in a thousand are in both; a cosine of at least 0.999 between both embeddings of
each; a pairwise F of at least --least-f between both partitions; and on pairsDevTest, with the threshold best on
pairsDevTrain, an accuracy within 0.2 points.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from harness import argument_parser, settings_of, write_result
from lfw import Protocol, Stored, accuracy, all_pairs, make_store, read_protocol, read_store

from pipeline.config import EXACT, FAST, MatchSettings, Settings, SourceSettings
from pipeline.evaluation.bench.parity import SAME_IOU, cosines
from pipeline.evaluation.clustering import ClusteringResult, evaluate_clustering, report_clustering
from pipeline.evaluation.detection import overlaps
from pipeline.matching.calibration import Calibration
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.models.registry import weight_set
from pipeline.types import IntArray, SilentProgress

ACCURACY: Final = "accuracy"
MODES: Final = (EXACT, FAST)
TOLERANCE = 0.005  # of the exponent: the registry states three decimals
MOST_UNMATCHED, LEAST_COSINE, LEAST_F, MOST_POINTS = 0.001, 0.999, 0.995, 0.002


def pair_figures(stored: Stored, protocol: Protocol, photos: Path) -> dict[str, Any]:
    """Raises AssertionError where the registry states another calibration."""
    portraits = stored.portraits(protocol.files(photos))
    figures = {"photos": len(portraits.paths), "photos_without_face": int((~portraits.has_face).sum())}
    figures |= {**accuracy(portraits, protocol), **all_pairs(portraits, protocol)}
    measured, stated = figures["calibration"]["exponent"], weight_set(stored.identity.weights).calibration.exponent
    assert math.isclose(measured, stated, abs_tol=TOLERANCE), f"the registry says {stated}, measured is {measured}"
    return figures


def grouped(stored: Stored, calibration: Calibration) -> list[str]:
    index = ReferenceIndex(stored.faces.embeddings.shape[1])
    decisions = group_faces(stored.faces, index, Matcher(calibration, MatchSettings().threshold))
    return [str(position) for position in decisions.position.tolist()]


def evaluated(stored: Stored, identities: Sequence[str], people: set[str] | None = None) -> ClusteringResult:
    """The labelled faces, all or those of `people`."""
    owners = stored.people
    rows = [row for row in stored.labelled.tolist() if people is None or owners[row] in people]
    columns = ([values[row] for row in rows] for values in (stored.paths, owners, identities))
    return evaluate_clustering(*columns)


def same_partition(one: Sequence[str], other: Sequence[str]) -> bool:
    return len(set(zip(one, other, strict=True))) == len(set(one)) == len(set(other))


def clustering_figures(stored: Stored, protocol: Protocol, photos: Path, store: Path) -> dict[str, Any]:
    calibrations = {"calibrated": stored.calibration, "not calibrated": Calibration()}
    identities = {name: grouped(stored, calibration) for name, calibration in calibrations.items()}
    assert same_partition(identities["calibrated"], stored.persons), "grouping again gives other identities"
    labels = replace(Settings(), source=SourceSettings(labels="parent"))
    report = report_clustering(photos, labels, SilentProgress(), store=store).result
    again = evaluated(stored, identities["calibrated"])
    assert (report.pairwise, report.bcubed) == (again.pairwise, again.bcubed)
    subjects = {"all": None, "test_people": {*protocol.test.people.values()}}
    return {
        name: {subject: _figures(evaluated(stored, made, people)) for subject, people in subjects.items()}
        for name, made in identities.items()
    }


def _figures(measured: ClusteringResult) -> dict[str, Any]:
    agreement = {"pairwise": asdict(measured.pairwise), "bcubed": asdict(measured.bcubed)}
    return {"faces": measured.faces, **measured.counts, **agreement}


def same_faces(first: Stored, second: Stored) -> tuple[IntArray, IntArray]:
    """[m] and [m]: the rows of the faces that both have of the same photos, at IoU 0.9."""
    rows_of_path: dict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(second.paths):
        rows_of_path[path].append(row)
    pairs = []
    for row, path in enumerate(first.paths):
        overlap = overlaps(first.faces.boxes[row : row + 1], second.faces.boxes[rows_of_path[path]])[0]
        if overlap.max(initial=0) >= SAME_IOU:
            pairs.append((row, rows_of_path[path][int(overlap.argmax())]))
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def compare(exact: Stored, fast: Stored) -> dict[str, Any]:
    """How alike embeddings and identities are."""
    rows, others = same_faces(exact, fast)
    cosine = cosines(exact.faces.embeddings[rows], fast.faces.embeddings[others])
    columns = ([exact.paths[row] for row in rows], [exact.persons[row] for row in rows])
    partition = evaluate_clustering(*columns, [fast.persons[row] for row in others])
    return {
        "faces": {EXACT: len(exact.paths), FAST: len(fast.paths), "both": len(rows)},
        "identities": {EXACT: len(set(exact.persons)), FAST: len(set(fast.persons))},
        "cosine_min": float(cosine.min()),
        "cosine_1_percent": float(np.quantile(cosine, 0.01)),
        "cosine_median": float(np.median(cosine)),
        "pairwise": asdict(partition.pairwise),
        "bcubed": asdict(partition.bcubed),
    }


def check(figures: dict[str, Any], least_f: float = LEAST_F) -> None:
    """Raises AssertionError where `fast` changes more than it may."""
    faces = figures["faces"]
    assert faces["both"] >= (1 - MOST_UNMATCHED) * max(faces[mode] for mode in MODES), faces
    assert figures["cosine_min"] >= LEAST_COSINE, figures["cosine_min"]
    assert figures["pairwise"]["f"] >= least_f, figures["pairwise"]
    exact, fast = (figures["accuracy"][mode]["accuracy"] for mode in MODES)
    assert abs(fast - exact) <= MOST_POINTS, (exact, fast)


def store_of(weights: str, mode: str, arguments: argparse.Namespace) -> tuple[Path, Stored]:
    """The store of all photos in `mode`, made if need be, and its faces."""
    store = arguments.work / f"{weights}-{mode}"
    tried = [word for setting in arguments.set for word in ("--set", setting)] if mode == FAST else []
    make_store(arguments.faces / "images", weights, store, "--mode", mode, "--device", arguments.device, *tried)
    return store, read_store(store)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder lfw-view1")
    parser.add_argument("--work", type=Path, required=True, help="the folder of the stores")
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    parser.add_argument("--question", nargs="+", choices=(ACCURACY, FAST), default=(ACCURACY, FAST))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of `fast` to try")
    parser.add_argument("--least-f", type=float, default=LEAST_F, help="pairwise F between both partitions")
    arguments = parser.parse_args()
    photos, protocol = arguments.faces / "images", read_protocol(arguments.faces)
    clustering: dict[str, Any] = {}
    both_modes: list[dict[str, Any]] = []
    for weights in arguments.weights:
        store, exact = store_of(weights, EXACT, arguments)
        if ACCURACY in arguments.question:
            about = {"weights": weights, "weights_sha256": exact.identity.weights_sha256}
            about |= exact.identity.output_settings
            write_result(f"accuracy-{weights}", about, {}, pair_figures(exact, protocol, photos), arguments)
            clustering[weights] = clustering_figures(exact, protocol, photos, store)
        if FAST in arguments.question:
            _, fast = store_of(weights, FAST, arguments)
            files, stores = protocol.files(photos), {EXACT: exact, FAST: fast}
            figures = compare(exact, fast)
            figures["accuracy"] = {mode: accuracy(one.portraits(files), protocol) for mode, one in stores.items()}
            both_modes.append(figures)
            write_result(f"fast-{weights}", settings_of(arguments) | {"weights": weights}, {}, figures, arguments)
    if clustering:
        settings = {"faces": arguments.faces.name, "threshold": MatchSettings().threshold}
        write_result("clustering", settings, {}, clustering, arguments)
    for figures in both_modes:
        check(figures, arguments.least_f)


if __name__ == "__main__":
    main()
