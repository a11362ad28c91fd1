"""How accurate are identities and decisions of `facepipe run` with each set of weights? On LFW, view 1.

    python scripts/bench/bench_stores.py --faces FOLDER/lfw-view1 --work FOLDER [--weights casia-webface sface]

`facepipe run` makes a store of each set of weights (FOLDER/<weights>-exact, where it is not there yet) with the default
threshold and the gate open, so that every face is grouped. accuracy-<weights>: the listed pairs, FNMR at FMR, the
calibration.
clustering: the identities of all people and of the test people alone, grouped with the calibration and without, both
at T = 0.54.

Asserts that the registry's calibration is the measured one, so that T = 0.54 means what the contract says; that
grouping again gives the store's identities; and that `facepipe evaluate clustering` has the same figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import argument_parser, write_result
from lfw import Protocol, Stored, accuracy, all_pairs, make_store, people_of, read_protocol, read_store

from pipeline.config import MatchSettings, Settings, SourceSettings
from pipeline.evaluation.clustering.measures import ClusteringResult, evaluate_clustering
from pipeline.evaluation.clustering.report import ClusteringRequest, report_clustering
from pipeline.matching.calibration import Calibration
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.models.registry import weight_set
from pipeline.types import SilentProgress

TOLERANCE = 0.005  # of the exponent: the registry states three decimals


def pair_figures(stored: Stored, protocol: Protocol, photos: Path) -> dict[str, Any]:
    """Raises AssertionError where the registry states another calibration."""
    portraits = stored.portraits(protocol.files(photos))
    figures = {"photos": len(portraits.names), "photos_without_face": portraits.without_face}
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
    report = report_clustering(ClusteringRequest(photos, labels, store), SilentProgress()).result
    again = evaluated(stored, identities["calibrated"])
    assert (report.pairwise, report.bcubed) == (again.pairwise, again.bcubed)
    subjects = {"all": None, "test_people": set(people_of(protocol.test))}
    return {
        name: {subject: _figures(evaluated(stored, made, people)) for subject, people in subjects.items()}
        for name, made in identities.items()
    }


def _figures(measured: ClusteringResult) -> dict[str, Any]:
    agreement = {"pairwise": measured.pairwise.as_dict(), "bcubed": measured.bcubed.as_dict()}
    return {"faces": measured.faces, **measured.counts, **agreement}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder lfw-view1")
    parser.add_argument("--work", type=Path, required=True, help="the folder of the stores")
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    arguments = parser.parse_args()
    photos, protocol, clustering = arguments.faces / "images", read_protocol(arguments.faces), dict[str, Any]()
    for weights in arguments.weights:
        store = arguments.work / f"{weights}-exact"  # bench_fast has the same
        make_store(photos, weights, store, "--device", arguments.device)
        stored = read_store(store)
        about = {"weights": weights, "weights_sha256": stored.identity.weights_sha256}
        about |= stored.identity.output_settings
        write_result(f"accuracy-{weights}", about, {}, pair_figures(stored, protocol, photos), arguments)
        clustering[weights] = clustering_figures(stored, protocol, photos, store)
    settings = {"faces": arguments.faces.name, "threshold": MatchSettings().threshold}
    write_result("clustering", settings, {}, clustering, arguments)


if __name__ == "__main__":
    main()
