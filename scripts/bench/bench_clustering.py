"""Grouping all photos of Labeled Faces in the Wild, view 1, with and without a calibration.

    python scripts/bench/bench_clustering.py --faces FOLDER/lfw-view1 --work FOLDER [--weights casia-webface sface]

`facepipe run` makes a store of each set of weights (in FOLDER, where it is not there yet) with the default threshold
and the gate open, so that every face is grouped. Its faces are grouped again without the store, with the calibration
and without, both at T = 0.54. Asserts that grouping again with the calibration gives the store's identities, and that
the figures of that are the ones of `facepipe evaluate clustering`. Of each photo the face nearest the centre is the
labelled one; the figures are of all people, those of the training list, on whom the calibration was fitted, among
them, and of the test people alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from bench_accuracy import read_protocol
from bench_common import result, write_result

from pipeline.config import MatchSettings, Settings, SourceSettings
from pipeline.evaluation.clustering.measures import ClusteringResult, evaluate_clustering
from pipeline.evaluation.clustering.report import ClusteringRequest, report_clustering
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.matching.score import Calibration
from pipeline.store.connect import open_store
from pipeline.store.files.shards import read_embeddings
from pipeline.store.operations import Store
from pipeline.types import FaceBatch, FloatArray, IntArray, SilentProgress

_FACES = """
    SELECT f.face_id, f.media_id, m.path, m.sha256, f.person_id, f.x1, f.y1, f.x2, f.y2,
        row_number() OVER (
            PARTITION BY f.media_id ORDER BY (f.x1 + f.x2 - m.width) ** 2 + (f.y1 + f.y2 - m.height) ** 2, f.face_id
        ) = 1 AS labelled
    FROM main.faces f JOIN core.media m USING (media_id) ORDER BY f.face_id
"""


@dataclass(frozen=True)
class Stored:
    faces: FaceBatch  # in the order in which they were decided
    people: list[str]  # [n] of whom the photo is, by its folder
    paths: list[str]  # [n]
    persons: list[str]  # [n] the store's identities
    labelled: IntArray  # the rows that are nearest their photo's centre
    calibration: Calibration


def make_store(photos: Path, weights: str, store: Path, *options: str) -> None:
    """All faces of `photos`, none rejected for its quality; goes on where it was stopped."""
    gate = [option for name in ("cpq", "fsq", "fcq") for option in (f"--min-{name}", "0")]
    command = ["run", str(photos), "--store", str(store), "--weights", weights, *options, *gate]
    subprocess.run([sys.executable, "-m", "pipeline", *command], check=True)


def read_store(store: Path) -> Stored:
    with open_store(store, command="bench") as client:
        table = client.read(_FACES, [])
        vectors = _vectors(client, table["face_id"].to_numpy())
        facts = client.identity.calibration
    boxes = np.stack([table[name].to_numpy() for name in ("x1", "y1", "x2", "y2")], axis=1).astype(np.float32)
    hashes = [(each,) for each in table["sha256"].to_pylist()]
    paths = table["path"].to_pylist()
    return Stored(
        faces=FaceBatch(vectors, np.ones(len(vectors), bool), hashes, boxes),
        people=[Path(path).parent.name for path in paths],
        paths=paths,
        persons=table["person_id"].to_pylist(),
        labelled=np.flatnonzero(table["labelled"].to_numpy()),
        calibration=Calibration.from_dict(facts),
    )


def _vectors(client: Store, faces: IntArray) -> FloatArray:
    size = client.identity.embedding_size
    files = client.read("SELECT file FROM core.embedding_shards ORDER BY file", [])["file"].to_pylist()
    parts = [read_embeddings(client.folder, file, size) for file in files]
    ids, vectors = np.concatenate([i for i, _ in parts]), np.concatenate([v for _, v in parts])
    order = np.argsort(ids)
    assert (ids[order] == faces).all(), "faces without an embedding: was the gate open?"
    return vectors[order]


def grouped(stored: Stored, calibration: Calibration) -> list[str]:
    index = ReferenceIndex(stored.faces.embeddings.shape[1])
    decisions = group_faces(stored.faces, index, Matcher(calibration, MatchSettings().threshold))
    return [str(position) for position in decisions.position.tolist()]


def evaluated(stored: Stored, identities: list[str], people: set[str] | None = None) -> ClusteringResult:
    rows = [row for row in stored.labelled.tolist() if people is None or stored.people[row] in people]
    columns = ([values[row] for row in rows] for values in (stored.paths, stored.people, identities))
    return evaluate_clustering(*columns)


def figures_of(measured: ClusteringResult) -> dict[str, Any]:
    counts = {"faces": measured.faces, **measured.counts}
    return {**counts, "pairwise": measured.pairwise.as_dict(), "bcubed": measured.bcubed.as_dict()}


def same_partition(one: list[str], other: list[str]) -> bool:
    return len(set(zip(one, other, strict=True))) == len(set(one)) == len(set(other))


def measure(photos: Path, store: Path, test_people: set[str]) -> dict[str, Any]:
    stored = read_store(store)
    ways = {"calibrated": stored.calibration, "not calibrated": Calibration()}
    found = {name: grouped(stored, calibration) for name, calibration in ways.items()}
    assert same_partition(found["calibrated"], stored.persons), "grouping again gives other identities"
    labels = replace(Settings(), source=SourceSettings(labels="parent"))
    report = report_clustering(ClusteringRequest(photos, labels, store), SilentProgress())
    again = evaluated(stored, found["calibrated"])
    assert (report.result.pairwise, report.result.bcubed) == (again.pairwise, again.bcubed)
    return {
        name: {
            "all": figures_of(evaluated(stored, identities)),
            "test_people": figures_of(evaluated(stored, identities, test_people)),
        }
        for name, identities in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--faces", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    args = parser.parse_args()
    photos = args.faces / "images"
    protocol = read_protocol(args.faces, None)
    test_people = set(protocol.people(protocol.test))
    figures = {}
    for weights in args.weights:
        store = args.work / weights
        make_store(photos, weights, store)
        figures[weights] = measure(photos, store, test_people)
        for name, one in figures[weights].items():
            print(weights, name, {k: one["all"][k] for k in ("identities", "pairwise", "bcubed")}, flush=True)
    settings = {"faces": "lfw-view1", "threshold": MatchSettings().threshold}
    print(write_result(result("clustering", settings, {}, figures)))


if __name__ == "__main__":
    main()
