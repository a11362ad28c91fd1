"""What does the mode `fast` change? The identities and the verification accuracy of LFW, view 1, beside `exact`.

    python scripts/bench/bench_fast.py --faces FOLDER/lfw-view1 --work FOLDER [--weights casia-webface sface]
        [--device cuda] [--set run.jpeg=device]

`facepipe run` makes a store in each mode (FOLDER/<weights>-exact and -fast, where they are not there yet; stopped runs
go on) with the default threshold and the gate open, so that every face is grouped. Each face of the one store is looked
up in the other by its box.

Asserts, after the result is written: all but one face in a thousand are in both; a cosine of at least 0.999 between
both embeddings of each; a pairwise F of at least --least-f between both partitions; and on pairsDevTest, with the
threshold best on pairsDevTrain, an accuracy within 0.2 points.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from harness import argument_parser, settings_of, write_result
from lfw import Stored, accuracy, make_store, read_protocol, read_store

from pipeline.config import EXACT, FAST
from pipeline.evaluation.bench.parity import SAME_IOU, cosines
from pipeline.evaluation.clustering.measures import evaluate_clustering
from pipeline.evaluation.detection.measures import overlaps
from pipeline.types import IntArray

MODES: Final = (EXACT, FAST)
MOST_UNMATCHED, LEAST_COSINE, LEAST_F, MOST_POINTS = 0.001, 0.999, 0.995, 0.002


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
        "pairwise": partition.pairwise.as_dict(),
        "bcubed": partition.bcubed.as_dict(),
    }


def check(figures: dict[str, Any], least_f: float = LEAST_F) -> None:
    """Raises AssertionError where `fast` changes more than it may."""
    faces = figures["faces"]
    assert faces["both"] >= (1 - MOST_UNMATCHED) * max(faces[mode] for mode in MODES), faces
    assert figures["cosine_min"] >= LEAST_COSINE, figures["cosine_min"]
    assert figures["pairwise"]["f"] >= least_f, figures["pairwise"]
    exact, fast = (figures["accuracy"][mode]["accuracy"] for mode in MODES)
    assert abs(fast - exact) <= MOST_POINTS, (exact, fast)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder lfw-view1")
    parser.add_argument("--work", type=Path, required=True, help="the folder of the stores")
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of `fast` to try")
    parser.add_argument("--least-f", type=float, default=LEAST_F, help="pairwise F between both partitions")
    arguments = parser.parse_args()
    photos, protocol, results = arguments.faces / "images", read_protocol(arguments.faces), list[dict[str, Any]]()
    for weights in arguments.weights:
        stores = {}
        for mode in MODES:
            tried = [word for setting in arguments.set for word in ("--set", setting)] if mode == FAST else []
            store = arguments.work / f"{weights}-{mode}"
            make_store(photos, weights, store, "--mode", mode, "--device", arguments.device, *tried)
            stores[mode] = read_store(store)
        files = protocol.files(photos)
        figures = compare(stores[EXACT], stores[FAST])
        figures["accuracy"] = {mode: accuracy(one.portraits(files), protocol) for mode, one in stores.items()}
        results.append(figures)
        write_result(f"fast-{weights}", settings_of(arguments) | {"weights": weights}, {}, figures, arguments)
    for figures in results:
        check(figures, arguments.least_f)


if __name__ == "__main__":
    main()
