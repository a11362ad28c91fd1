"""A build of another index is killed at random times, and goes on where it was."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from coded_faces import Shown, shown

from pipeline.store.local import LocalStore
from tests.people.coded_archive import SETTINGS, ArchiveExtractor, make_store, problems, run_over, write_photo

SHARD_ROWS, TRIED = 6, 16  # photos of a shard; that each call tries for its estimate
CHILD = """
import sys
from pathlib import Path
from unittest.mock import patch
from pipeline.jobs.store import open_store
from tests.people.coded_archive import reindex
from tests.people.test_killed_reindex import Logging, settings
Logging.log = Path(sys.argv[2])
with patch("pipeline.jobs.reindex.load_extractor", Logging.load), open_store(
    Path(sys.argv[1]), settings(), command="reindex"
) as store:
    print("begins", flush=True)
    reindex(store, "build")
"""


def settings() -> Any:
    return replace(SETTINGS, run=replace(SETTINGS.run, shard_rows=SHARD_ROWS))


class Logging(ArchiveExtractor):
    """Writes down which faces it embeds, and takes a while for it."""

    log = Path()

    def extract(self, images: Sequence[Any], times: Any = None, known: Any = None) -> list[pa.Table]:
        with self.log.open("a") as log:
            log.writelines(f"{face.person}\n" for image in images for face in shown(image.pixels))
        time.sleep(0.01 * len(images))
        return super().extract(images, times, known)


def vectors(store: Path) -> dict[str, bytes]:
    """Of the new index, by photo."""
    with LocalStore.open(store, command="test") as client:
        client.switch_generation()
        rows = client.read("SELECT path, face_id FROM core.faces JOIN core.media USING (media_id)").to_pylist()
        found = client.face_vectors([row["face_id"] for row in rows])
        client.switch_generation(back=True)
    return {row["path"]: found[row["face_id"]].embedding.tobytes() for row in rows}


def committed(store: Path) -> set[int]:
    """The persons whose faces the new index has."""
    with LocalStore.open(store, command="test") as client:
        rows = client.read(
            "SELECT path FROM core.detections d JOIN core.faces USING (face_id) JOIN core.media USING (media_id)"
            " WHERE d.generation = 2"
        )["path"].to_pylist()
    return {int(Path(path).stem) for path in rows}


@pytest.mark.slow
def test_a_build_that_is_killed_at_random(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, full: bool) -> None:
    """No face that is committed is embedded again."""
    kills, photos, random = (30, 1500, Random(1)) if full else (3, 300, Random(1))
    for person in range(1, photos + 1):
        write_photo(tmp_path / "photos", f"{person}.png", Shown(person))
    run_over(tmp_path / "photos", made := make_store(tmp_path / "store"), settings=settings())
    twin = Path(shutil.copytree(made, tmp_path / "twin"))
    log, command = tmp_path / "log", [sys.executable, "-c", CHILD]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    subprocess.run([*command, str(twin), str(tmp_path / "twin-log")], check=True)
    done, again = set[int](), list[int]()
    for _ in range(kills):
        log.write_text("")
        with subprocess.Popen([*command, str(made), str(log)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "begins\n"
            enough = random.randrange(TRIED, TRIED + 40)
            while len(log.read_text().split()) < enough:
                assert child.poll() is None
                time.sleep(0.001)
            os.kill(child.pid, signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
        embedded = {int(person) for person in log.read_text().split()}
        assert not embedded & done
        done = committed(made)
        again.append(len(embedded - done))
    assert 0 < len(done) < photos
    log.write_text("")
    subprocess.run([*command, str(made), str(log)], check=True)
    assert {int(person) for person in log.read_text().split()} == {*range(1, photos + 1)} - done
    assert vectors(made) == vectors(twin)
    assert problems(made) == []
    print(f"embedded and not committed at each kill: {sorted(again)}")
