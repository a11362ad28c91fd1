"""What outside readers see: the views, the export, and the page that describes the format."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pyarrow.parquet as pq
import pytest

import pipeline.store
from pipeline.errors import UsageError
from pipeline.store import schema
from pipeline.store.export import export_store
from pipeline.store.local import LocalStore
from tests.store.store_samples import SIZE, unit_vectors

FORMAT = (Path(pipeline.store.__file__).parent / "FORMAT.md").read_text("utf-8")
PUBLIC = {
    "media": "media_id path sha256 status reason width height taken_at",
    "faces": "face_id media_id path person_id outcome x1 y1 x2 y2 confidence center_pose_quality sharpness_quality"
    " contrast_quality similarity_score",
    "persons": "person_id root_person_id name external_id account directory occurrence image_guid added_at"
    " first_name last_name tags metadata",
    "facts": "correction_id kind face_id person_id other_id origin stated_at",
    "embeddings": "face_id embedding",
}


def test_the_export_has_the_public_columns(filled: LocalStore, tmp_path: Path) -> None:
    target = tmp_path / "new" / "export"
    rows = export_store(filled, target)
    views = {view: filled.read(f"SELECT * FROM main.{view}") for view in schema.VIEWS}
    assert rows == {"media": 8, "faces": 16, "persons": 8, "facts": 0, "embeddings": 8}
    assert sorted(path.name for path in target.iterdir()) == sorted(f"{name}.parquet" for name in PUBLIC)
    for name, columns in PUBLIC.items():
        table = pq.read_table(target / f"{name}.parquet")
        assert table.column_names == columns.split()
        assert table.num_rows == rows[name]
        if name in views:
            assert views[name].column_names == columns.split()
    vectors = np.array(pq.read_table(target / "embeddings.parquet")["embedding"].to_pylist(), np.float32)
    np.testing.assert_array_equal(vectors, np.concatenate([unit_vectors(4, seed=0), unit_vectors(4, seed=1)]))


def test_only_into_a_new_or_empty_folder(filled: LocalStore, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "media.parquet").write_bytes(b"mine")
    for target in (tmp_path / "full", tmp_path / "full" / "media.parquet"):
        with pytest.raises(UsageError, match="not an empty folder"):
            export_store(filled, target)
    (tmp_path / "it's empty").mkdir()
    export_store(filled, tmp_path / "it's empty")
    assert (tmp_path / "full" / "media.parquet").read_bytes() == b"mine"


def test_the_query_of_the_format_page_works_without_our_code(store: Path) -> None:
    (query,) = re.findall(r"```sql\n(.*?)```", FORMAT, re.DOTALL)
    assert len(query.strip().splitlines()) <= 5
    script = (
        "import sys, duckdb\n"
        "rows = [r for s in duckdb.extract_statements(sys.argv[1]) for r in duckdb.execute(s).fetchall()]\n"
        "assert not any(name.startswith('pipeline') for name in sys.modules)\n"
        "print([(r[0], r[2], r[3], len(r[4])) for r in rows if len(r) == 5])\n"
    )
    command = [sys.executable, "-c", script, query.replace("STORE", str(store))]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd="/")
    expected = [(1 + 2 * n, f"Person {n % 4}", "main", SIZE) for n in range(8)]
    assert done.stdout.strip() == str(expected)


def test_an_outside_reader_may_attach_the_views_under_any_name(store: Path) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"ATTACH '{store}/catalog-0001.duckdb' AS photos (READ_ONLY)")
        for view, rows in {"media": 8, "faces": 16, "persons": 8}.items():
            assert connection.execute(f"SELECT count(*) FROM photos.{view}").fetchall() == [(rows,)]


def test_the_format_page_names_every_table_and_version() -> None:
    title = FORMAT.splitlines()[0]
    assert title == f"# The store on disk, format {schema.FORMAT_VERSION}, tables of version {schema.SCHEMA_VERSION}"
    described = set(re.findall(r"^\| `(\w+)` \|", FORMAT, re.MULTILINE))
    assert described == {*schema.TABLES, "commits"}
