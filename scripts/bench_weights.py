"""Accuracy of one set of weights on Labeled Faces in the Wild, view 1, from photo to decision, as facepipe runs it.

    python scripts/bench_weights.py --faces FOLDER/lfw-view1 --weights sface

The protocol is that of bench_accuracy: accuracy on pairsDevTest at the threshold best on pairsDevTrain, FNMR at an FMR
over all pairs of the test people, the calibration exponent from all impostor pairs of the training people. Asserts
that the registry's calibration is the one measured, so that T = 0.54 means what the contract says.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from pathlib import Path

from bench_accuracy import accuracy, all_pairs, read_protocol
from bench_common import result, write_result
from lfw_embeddings import Portraits

from pipeline.assembly import load_extractor, make_identity
from pipeline.config import ModelSettings, RunSettings, Settings
from pipeline.decode import Decoder
from pipeline.evaluation.subjects import from_images
from pipeline.models.registry import weight_set

TOLERANCE = 0.005  # of the exponent: the registry states three decimals


def portraits(settings: Settings, files: Sequence[Path]) -> Portraits:
    """The embedding of each photo's face nearest the centre."""
    identity = make_identity(settings)
    extractor = load_extractor(settings, identity, Path())
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if done % 640 < count:
            print(f"{done} of {len(files)} photos", flush=True)

    found = from_images(extractor, Decoder(settings.decode), files, tell)
    assert not found.skipped, found.skipped
    return Portraits([Path(path).stem for path in found.paths], {identity.weights: found.embeddings}, found.quality)


def main() -> None:
    arguments = _arguments()
    protocol = read_protocol(arguments.faces, None)
    row = weight_set(arguments.weights)
    settings = Settings(model=ModelSettings(weights=row.name), run=RunSettings(device=arguments.device))
    found = portraits(settings, protocol.files(arguments.faces / "images"))
    right, _ = accuracy(found, row.name, protocol)
    figures = {"photos": len(found.names), "photos_without_face": found.without_face, **right}
    figures |= all_pairs(found, row.name, protocol)
    print(json.dumps(figures, indent=2))
    facts = {"weights": row.name, "weights_sha256": row.file.sha256, **settings.output_settings()}
    print(write_result(result(f"accuracy-{row.name}", facts, {}, figures, arguments.device), arguments.results))
    measured, stated = figures["calibration"]["exponent"], row.calibration.exponent
    assert math.isclose(measured, stated, abs_tol=TOLERANCE), f"the registry says {stated}, measured is {measured}"


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True, help="the folder lfw-view1")
    parser.add_argument("--weights", required=True)
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", help="where the JSON goes")
    parser.add_argument("--device", default="cpu")
    return parser.parse_args()


if __name__ == "__main__":
    main()
