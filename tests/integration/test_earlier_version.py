"""A store and a configuration of facepipe 0.1.0, as its own commands left them, open and give the same answers.

`data/store-0.1.0.tar.gz` was made by that version from photos of the two public-domain portraits: a finished run, a
person who was posted to a server that was killed right after, and a second run that was extracted but not grouped.
`data/store-0.1.0.json` is what that version exported and answered after it had grouped that run.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from pipeline.config import Settings
from pipeline.matching.calibration import Calibration
from pipeline.store.local import LocalStore
from pipeline.tools.doctor import examine
from tests.cli.report import answer
from tests.integration.conftest import write_photos

DATA = Path(__file__).parent / "data"
ANSWERS = json.loads((DATA / "store-0.1.0.json").read_text())


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the store and its configuration, the second run grouped by today's version."""
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(DATA / "store-0.1.0.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "data_filter", None)  # since Python 3.11.4
        archive.extractall(folder)
    report = answer("group", "--store", folder / "store", "--config", folder / "facepipe.yaml")
    assert (report["faces"], report["outcomes"]) == (2, {"matched": 2})
    return folder


@pytest.mark.slow
def test_the_store_is_whole(earlier: Path) -> None:
    assert answer("check", "--store", earlier / "store")["problems"] == []


def test_the_calibration_is_its_own(earlier: Path) -> None:
    """It was fitted at the rate of that version, when tables had no intervals; new stores have another."""
    with LocalStore.open(earlier / "store", command="test") as client:
        calibration = Calibration.from_dict(client.identity.calibration)
    assert (calibration.fmr, calibration.intervals) == (2e-4, ())
    (finding,) = (f for f in examine(Settings(), earlier / "store") if f.subject == "calibration")
    assert "T = 0.54 stands for a false match rate of 0.0002 on LFW" in finding.detail


def test_its_tables_are_the_same(earlier: Path, tmp_path: Path) -> None:
    answer("export", "--store", earlier / "store", "--to", tmp_path / "exported")
    for table in ("media", "faces", "persons"):
        rows = pq.read_table(tmp_path / "exported" / f"{table}.parquet").to_pylist()
        for row in rows:
            row.update({key: value.isoformat() for key, value in row.items() if key == "added_at"})
        assert rows[0].keys() >= ANSWERS[table][0].keys()
        assert [{key: row[key] for key in old} for row, old in zip(rows, ANSWERS[table], strict=True)] == ANSWERS[table]
    embeddings = pq.read_table(tmp_path / "exported" / "embeddings.parquet").sort_by("face_id")
    vectors = np.stack(embeddings["embedding"].to_numpy(zero_copy_only=False))
    digest = hashlib.sha256(embeddings["face_id"].to_numpy().tobytes() + vectors.tobytes()).hexdigest()
    assert digest == ANSWERS["embeddings_sha256"]


@pytest.mark.slow
def test_its_hashes_of_pixels_stay_what_they_were(
    earlier: Path, tmp_path: Path, hopper_path: Path, astronaut_path: Path
) -> None:
    """SHA-256 without a key. So it knows a picture again in another file, and nothing else matches at T = 0."""
    with LocalStore.open(earlier / "store", command="test") as client:
        assert client.identity.pixel_key is None
        hashed = client.read("SELECT length(pixel_hash) AS digits FROM core.media WHERE format IS NOT NULL")
        assert set(hashed["digits"].to_pylist()) == {64}
    write_photos(tmp_path / "photos", hopper_path, astronaut_path)
    (posted,) = (face for face in ANSWERS["faces"] if face["path"] is None)
    for source, person in (("h1.bmp", posted["person_id"]), ("b2.jpg", None)):
        photo = tmp_path / f"{source}.png"
        Image.open(tmp_path / "photos" / source).save(photo)
        where = ("--store", earlier / "store", "--directory", "family")
        (face,) = answer("search", photo, *where, "--threshold", "0")["faces"]
        assert face.get("identity", {}).get("person_id") == person


def test_a_search_finds_the_same_person(earlier: Path, tmp_path: Path, hopper_path: Path, astronaut_path: Path) -> None:
    write_photos(tmp_path / "photos", hopper_path, astronaut_path)
    photo, store, config = (tmp_path / "photos" / "g1.webp", earlier / "store", earlier / "facepipe.yaml")
    (face,) = answer("search", photo, "--store", store, "--config", config)["faces"]
    expected = ANSWERS["search"]
    assert face["box"] == pytest.approx(expected["box"], abs=0.5)
    assert face["identity"]["person_id"] == expected["identity"]["person_id"]
    scores = [entry["similarity_score"] for entry in face["similar"]]
    assert scores == pytest.approx([entry["similarity_score"] for entry in expected["similar"]], abs=1e-3)
