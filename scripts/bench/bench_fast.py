"""What the mode `fast` changes: the identities and the verification accuracy of Labeled Faces in the Wild, view 1.

    python scripts/bench/bench_fast.py --faces FOLDER/lfw-view1 --work FOLDER [--weights casia-webface] [--device cuda]
        [--set run.jpeg=device]

`facepipe run` makes a store in each mode (FOLDER/exact and FOLDER/fast, where they are not there yet; stopped runs go
on) with the default threshold and the gate open, so that every face is grouped. Each face of the one store is looked up
in the other by its box. Asserts: all but one face in a thousand are there; a cosine of at least 0.999 between both
embeddings of each; a pairwise F of at least 0.995 between both partitions; and on pairsDevTest, with the threshold best
on pairsDevTrain, an accuracy within 0.2 points. Of each photo the face nearest the centre is compared.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from bench_accuracy import Protocol, accuracy, read_protocol
from bench_clustering import Stored, make_store, read_store
from bench_common import RESULTS, result, write_result
from lfw_embeddings import Portraits

from pipeline.config import EXACT, FAST, MatchSettings
from pipeline.evaluation.bench.parity import SAME_IOU, cosines, iou
from pipeline.evaluation.clustering.measures import evaluate_clustering
from pipeline.types import IntArray

MODES: Final = (EXACT, FAST)
MOST_UNMATCHED, WANT_COSINE, WANT_F, MOST_POINTS = 0.001, 0.999, 0.995, 0.002


def same_faces(first: Stored, second: Stored) -> tuple[IntArray, IntArray]:
    """[m] and [m]: the rows of the faces that both found in the same photos, at IoU 0.9."""
    there: dict[str, list[int]] = defaultdict(list)
    for row, path in enumerate(second.paths):
        there[path].append(row)
    pairs = []
    for row, path in enumerate(first.paths):
        overlap = iou(first.faces.boxes[row : row + 1], second.faces.boxes[there[path]])[0]
        if overlap.max(initial=0) >= SAME_IOU:
            pairs.append((row, there[path][int(overlap.argmax())]))
    rows = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def compare(exact: Stored, fast: Stored) -> dict[str, Any]:
    """How alike embeddings and identities are."""
    rows, others = same_faces(exact, fast)
    alike = cosines(exact.faces.embeddings[rows], fast.faces.embeddings[others])
    paths, before, after = exact.paths, exact.persons, fast.persons
    columns = ([paths[row] for row in rows], [before[row] for row in rows], [after[row] for row in others])
    partition = evaluate_clustering(*columns)
    return {
        "faces": {EXACT: len(exact.paths), FAST: len(fast.paths), "both": len(rows)},
        "identities": {EXACT: len(set(before)), FAST: len(set(after))},
        "cosine_min": float(alike.min()),
        "cosine_1_percent": float(np.quantile(alike, 0.01)),
        "cosine_median": float(np.median(alike)),
        "pairwise": partition.pairwise.as_dict(),
        "bcubed": partition.bcubed.as_dict(),
    }


def portraits(stored: dict[str, Stored], protocol: Protocol, photos: Path) -> Portraits:
    """The labelled faces of the protocol's people; NaN where a photo shows none."""
    names = [file.stem for file in protocol.files(photos)]
    place = {name: i for i, name in enumerate(names)}
    embeddings = {}
    for mode, one in stored.items():
        size = one.faces.embeddings.shape[1]
        embeddings[mode] = np.full((len(names), size), np.nan, np.float32)
        for row in one.labelled:
            name = Path(one.paths[row]).stem
            if name in place:
                embeddings[mode][place[name]] = one.faces.embeddings[row]
    return Portraits(names, embeddings)


def check(figures: dict[str, Any]) -> None:
    """Raises AssertionError where `fast` changes more than it may."""
    faces = figures["faces"]
    assert faces["both"] >= (1 - MOST_UNMATCHED) * max(faces[mode] for mode in MODES), faces
    assert figures["cosine_min"] >= WANT_COSINE, figures["cosine_min"]
    assert figures["pairwise"]["f"] >= WANT_F, figures["pairwise"]
    exact, fast = (figures["accuracy"][mode]["accuracy"] for mode in MODES)
    assert abs(fast - exact) <= MOST_POINTS, (exact, fast)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--weights", default="casia-webface")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of `fast` to try")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    arguments = parser.parse_args()
    photos, protocol = arguments.faces / "images", read_protocol(arguments.faces, None)
    stored = {}
    for mode in MODES:
        tried = [word for given in arguments.set for word in ("--set", given)] if mode == FAST else []
        make_store(
            photos, arguments.weights, arguments.work / mode, "--mode", mode, "--device", arguments.device, *tried
        )
        stored[mode] = read_store(arguments.work / mode)
    figures = compare(stored[EXACT], stored[FAST])
    found = portraits(stored, protocol, photos)
    figures["accuracy"] = {mode: accuracy(found, mode, protocol)[0] for mode in MODES}
    print(json.dumps(figures, indent=1), flush=True)
    check(figures)
    settings = {
        "faces": "lfw-view1",
        "weights": arguments.weights,
        "threshold": MatchSettings().threshold,
        "set": arguments.set,
    }
    print(write_result(result("fast", settings, {}, figures, arguments.device), arguments.results))


if __name__ == "__main__":
    main()
