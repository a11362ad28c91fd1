"""Accuracy of one set of weights on Labeled Faces in the Wild, view 1, from photo to decision, as facepipe runs it.

    facepipe run FOLDER/lfw-view1/images --store STORE --weights sface --min-cpq 0 --min-fsq 0 --min-fcq 0
    python scripts/bench/bench_weights.py --faces FOLDER/lfw-view1 --store STORE

`bench_clustering.py` makes such stores, too. The protocol is that of bench_accuracy: accuracy on pairsDevTest at the
threshold best on pairsDevTrain, FNMR at an FMR over all pairs of the test people, the calibration exponent from all
impostor pairs of the training people. Asserts that the registry's calibration is the one measured, so that T = 0.54
means what the contract says.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

from bench_accuracy import accuracy, all_pairs, read_protocol
from bench_common import RESULTS, result, write_result
from lfw_embeddings import Portraits

from pipeline.evaluation.photos.portraits import stored_portraits
from pipeline.models.registry import weight_set
from pipeline.store.connect import open_store
from pipeline.store.records import StoreIdentity

TOLERANCE = 0.005  # of the exponent: the registry states three decimals


def portraits(store: Path) -> tuple[Portraits, StoreIdentity]:
    """The embedding of each photo's face nearest the centre, and what made it."""
    with open_store(store, command="bench") as client:
        paths = client.read("SELECT DISTINCT path FROM core.media WHERE path IS NOT NULL ORDER BY path", [])["path"]
        found = stored_portraits(client, paths.to_pylist())
        assert not found.skipped, found.skipped
        names = [Path(path).stem for path in found.paths]
        return Portraits(names, {client.identity.weights: found.embeddings}), client.identity


def main() -> None:
    arguments = _arguments()
    protocol = read_protocol(arguments.faces, None)
    found, identity = portraits(arguments.store)
    row = weight_set(identity.weights)
    right, _ = accuracy(found, row.name, protocol)
    figures = {"photos": len(found.names), "photos_without_face": found.without_face, **right}
    figures |= all_pairs(found, row.name, protocol)
    print(json.dumps(figures, indent=2))
    facts = {"weights": row.name, "weights_sha256": identity.weights_sha256, **identity.output_settings}
    print(write_result(result(f"accuracy-{row.name}", facts, {}, figures), arguments.results))
    measured, stated = figures["calibration"]["exponent"], row.calibration.exponent
    assert math.isclose(measured, stated, abs_tol=TOLERANCE), f"the registry says {stated}, measured is {measured}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True, help="the folder lfw-view1")
    parser.add_argument("--store", type=Path, required=True, help="a store of its photos")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the JSON goes")
    return parser.parse_args()


if __name__ == "__main__":
    main()
