#!/usr/bin/env python
"""The first things to do with facepipe in Python: import labelled photos, look at them, measure, correct, export.

python scripts/first_things.py PHOTOS STORE        PHOTOS has a folder for each person
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from PIL import Image

import pipeline
from pipeline.errors import StoreMissing


def open_or_create(path: Path) -> pipeline.OpenStore:
    try:
        return pipeline.open_store(path)
    except StoreMissing:
        return pipeline.create_store(path)


def main(photos: Path, path: Path) -> None:
    with open_or_create(path) as store:
        report = store.run(photos, labels="parent", exclude=["*.gif", "private"])
        print(f"{report.new} new photos, {report.faces} faces, {report.persons} people")

        people = store.persons()  # people.to_pandas() is a DataFrame
        print(people.select(["person_id", "name", "occurrence"]).to_pylist())

        face_ids, vectors = store.matrix()  # [n], [n, d]
        distances = pipeline.pairwise_distances(vectors, calibration=store.calibration)
        np.fill_diagonal(distances, np.inf)
        first, second = np.unravel_index(distances.argmin(), distances.shape)
        print(f"faces {face_ids[first]} and {face_ids[second]} are {distances[first, second]:.3f} apart; T is 0.54")

        photo = next(file for file in sorted(photos.rglob("*")) if file.is_file())
        (face, *_), (again, *_) = store.recognise(photo), store.recognise(Image.open(photo))
        print(f"{photo.name} shows {face.identity}; read by PIL: {again.identity}")

        measured = pipeline.evaluate_clustering(photos, labels="parent", store=store).result
        print(f"precision {measured.pairwise.precision:.2f}, recall {measured.pairwise.recall:.2f}")
        swept = pipeline.sweep_thresholds(photos, labels="parent", store=store).result
        best = max(swept, key=lambda row: row.bcubed.f)
        print(f"best: {best.method} at T = {best.threshold}, {best.identities} identities, F {best.bcubed.f:.2f}")

        one, other, *_ = store.people.all()
        store.people.name(one.person_id, "Somebody")
        store.people.merge("Somebody", other.person_id)
        print(f"merged: {store.people.show('Somebody').photos} photos; undone: {store.people.undo().kind}")
        print(store.export(path.with_name(f"{path.name}-parquet")))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
