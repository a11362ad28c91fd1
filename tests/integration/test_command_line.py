"""Commands over the demo's photos with the real models.

The demo and the run that Ctrl-C stops are processes, the others share this one (`tests/cli/test_main.py` has more).
"""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import pytest
from PIL import Image

from tests.cli.report import answer

FACEPIPE = [sys.executable, "-m", "pipeline"]
TIMEOUT_S = 300
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with `demo-photos` and `demo-store`, and what the demo said of them."""
    folder = tmp_path_factory.mktemp("demo")
    words = ("--photos", folder / "demo-photos", "--store", folder / "demo-store", "--device", "cpu", "--json")
    command = [*FACEPIPE, "demo", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


@pytest.mark.slow
def test_the_demo_finds_what_the_samples_hold(demo: tuple[Path, dict[str, Any]]) -> None:
    _, report = demo
    assert report["equal"] is True
    assert report["identities"] == 2
    # Copies are not decoded; refused files are, as only decoding finds out.
    copies = report["run"]["statuses"]["duplicate"]
    assert report["run"]["images"] == report["images"] == report["run"]["decoded"] + copies


@pytest.mark.slow
def test_the_demo_again_does_no_image_work(demo: tuple[Path, dict[str, Any]]) -> None:
    folder, first = demo
    again = answer("demo", "--photos", folder / "demo-photos", "--store", folder / "demo-store")
    assert again["equal"] is True
    assert (again["images"], again["faces"]) == (first["images"], first["faces"])
    assert (again["run"]["decoded"], again["run"]["detector_calls"], again["run"]["embedder_calls"]) == (0, 0, 0)


@pytest.mark.slow
def test_a_store_that_differs_from_the_table_fails_the_demo(demo: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = demo
    store = tmp_path / "store"
    shutil.copytree(folder / "demo-store", store)
    with duckdb.connect(store / (store / "CURRENT").read_text().strip()) as catalog:
        catalog.execute("UPDATE core.media SET status = 'unreadable' WHERE status = 'truncated'")
    report = answer("demo", "--photos", folder / "demo-photos", "--store", store, exit_code=8)
    assert (report["equal"], report["error"]) == (False, "self-check-failed")
    (difference,) = report["differences"]
    assert difference.endswith("status unreadable instead of truncated")


@pytest.mark.slow
def test_search_check_and_export_of_the_demo(demo: tuple[Path, dict[str, Any]], hopper_path: Path) -> None:
    folder, first = demo
    store = folder / "demo-store"
    (face,) = answer("search", hopper_path, "--store", store, "--top", 2)["faces"]
    assert face["identity"]["similarity_score"] >= 1
    assert face["similar"][0] == face["identity"]
    assert face["similar"][1]["similarity_score"] < 1
    assert answer("check", "--store", store)["problems"] == []
    rows = answer("export", "--store", store, "--to", folder / "out")["rows"]
    assert (rows["media"], rows["faces"], rows["persons"]) == (first["images"], first["faces"], 2)


@pytest.mark.slow
def test_ctrl_c_finishes_the_shard_and_the_same_command_goes_on(
    demo: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, first = demo
    store = tmp_path / "store"
    words = ("run", str(folder / "demo-photos"), "--store", str(store), "--set", "run.shard_rows=4", "--json")
    child = subprocess.Popen([*FACEPIPE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with child:
        deadline = time.monotonic() + TIMEOUT_S
        while not list(store.glob("embeddings/*/*.parquet")):
            assert child.poll() is None, child.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 9, errors
    assert json.loads(output)["error"] == "interrupted"
    assert "Finishing the shard in hand" in errors

    report = answer("run", folder / "demo-photos", "--store", store)
    assert report["persons"] == 2
    assert report["images"] == first["images"]
    assert 0 < report["decoded"] < first["run"]["decoded"]
    assert answer("check", "--store", store)["problems"] == []


@pytest.mark.slow
def test_a_signal_while_the_models_are_loaded_ends_the_run_at_once(
    demo: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, first = demo
    words = ("run", str(folder / "demo-photos"), "--store", str(tmp_path / "store"), "--json")
    child = subprocess.Popen([*FACEPIPE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with child:
        assert child.stderr is not None
        assert any("loading the models" in line for line in child.stderr)
        child.send_signal(signal.SIGINT)
        output, errors = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 9, errors
    assert "the models were being loaded" in json.loads(output)["message"]
    assert "in hand" not in errors
    report = answer(*words)
    assert (report["images"], report["decoded"]) == (first["images"], first["run"]["decoded"])


# The notebooks, and how many pictures each makes; 1 of `embeddings` needs umap-learn.
PICTURES = {"explore_store": 2, "people_of_a_store": 4, "thresholds": 3, "embeddings": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_runs_over_the_demo(demo: tuple[Path, dict[str, Any]], tmp_path: Path, name: str) -> None:
    """In a kernel of its own, over a copy of the store: one of them gives names."""
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    folder, _ = demo
    shutil.copytree(folder / "demo-store", tmp_path / "demo-store")
    shutil.copytree(folder / "demo-photos", tmp_path / "demo-photos")
    (tmp_path / "notebooks").mkdir()
    book = nbformat.read(NOTEBOOKS / f"{name}.ipynb", 4)
    resources = {"metadata": {"path": str(tmp_path / "notebooks")}}
    nbclient.NotebookClient(book, timeout=TIMEOUT_S, resources=resources).execute()
    outputs = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    pictures = [output for output in outputs if "image/jpeg" in output.get("data", {})]
    has_umap = name == "embeddings" and find_spec("umap") is not None
    assert len(pictures) == PICTURES[name] + has_umap
    told = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)
    expected = {
        "explore_store": "('matched', 22)",
        "people_of_a_store": "Eileen Collins      11     11",
        "thresholds": "133 pairs of one person, 143 of two",
        "embeddings": "100% of the 3 nearest neighbours",
    }
    assert expected[name] in told
    assert ("umap-learn is not installed" in told) == (name == "embeddings" and not has_umap)
    has_faiss = find_spec("faiss") is not None
    assert ("the largest difference of a cosine: " in told) == (name == "embeddings" and has_faiss)


@pytest.mark.short
@pytest.mark.parametrize("name", PICTURES)
def test_a_notebook_has_pictures_and_nothing_of_the_machine_that_ran_it(name: str) -> None:
    """As stored. It says what to install."""
    file = NOTEBOOKS / f"{name}.ipynb"
    cells = json.loads(file.read_text())["cells"]
    assert "pip install" in "".join(cells[0]["source"])
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    pictures = [data for output in outputs if (data := output.get("data", {}).get("image/jpeg"))]
    assert len(pictures) >= PICTURES[name]
    assert {output["output_type"] for output in outputs} <= {"stream", "execute_result", "display_data"}
    for picture in pictures:
        assert Image.open(io.BytesIO(base64.b64decode(picture))).format == "JPEG"
    texts = [json.dumps(output) for output in outputs if not output.get("data", {}).get("image/jpeg")]
    assert not [text for text in texts if re.search(r"/(tmp|home|root|work|usr|opt)/", text)]
    assert file.stat().st_size < 200_000


@pytest.mark.short
def test_every_notebook_is_tested() -> None:
    assert {file.stem for file in NOTEBOOKS.glob("*.ipynb")} == {*PICTURES}
