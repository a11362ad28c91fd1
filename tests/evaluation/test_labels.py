"""Labelled manifests and folders, and tables of clusters."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.config import SourceSettings
from pipeline.errors import InputError, ManifestInvalid, SourceEmpty, SourceMissing, UsageError
from pipeline.evaluation.clustering import table_identities
from pipeline.evaluation.labels import NO_NAME, REPEATED, read_labels
from pipeline.evaluation.report import Skipped

PLAIN = SourceSettings()
PARENT = SourceSettings(labels="parent")


def manifest(folder: Path, text: str, name: str = "labels.csv") -> Path:
    (folder / name).write_text(text, "utf-8")
    return folder / name


def test_a_manifest_names_people_also_of_files_that_are_gone(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(b"x")
    skipped = Skipped()
    found = read_labels(manifest(tmp_path, "path,name\na.jpg,Ann\nb.jpg,Bob\nc.jpg,\n"), PLAIN, skipped)
    assert found.paths == [str(tmp_path / "a.jpg"), str(tmp_path / "b.jpg")]
    assert found.names == ["Ann", "Bob"]
    assert found.files == {str(tmp_path / "a.jpg"): tmp_path / "a.jpg"}
    assert skipped.counts == {NO_NAME: 1}
    assert len(found.paths) == 2


def test_a_store_may_know_photos_whose_files_are_gone(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jpg").write_bytes(b"x")
    (tmp_path / "out.jpg").write_bytes(b"x")
    labels = manifest(tmp_path, "path,name\nin/a.jpg,Ann\nin/b.jpg,Bob\nout.jpg,Eve\n")
    inside = SourceSettings(root=str(tmp_path / "in"))
    labels.write_text(labels.read_text().replace("in/", "").replace("out", "../out"))
    found, skipped = read_labels(labels, inside, Skipped()), Skipped()
    assert list(found.to_embed(True, skipped)) == found.paths
    assert skipped.counts == {}
    assert list(found.to_embed(False, skipped)) == [str(tmp_path / "in" / "a.jpg")]
    assert sorted(reason.split(":")[0] for reason in skipped.counts) == ["missing", "outside"]


def test_a_folder_is_labelled_by_its_subfolders(tmp_path: Path) -> None:
    for name in ("Ann/1.jpg", "Bob/1.jpg", "top.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    skipped = Skipped()
    assert read_labels(tmp_path, PARENT, skipped).names == ["Ann", "Bob"]
    assert skipped.as_dict() == {
        "skipped": {NO_NAME: 1},
        "skipped_examples": {NO_NAME: [str(tmp_path / "top.jpg")]},
    }
    with pytest.raises(UsageError, match="--labels parent"):
        read_labels(tmp_path, PLAIN, Skipped())


def test_the_same_label_twice_is_counted_and_another_one_is_an_error(tmp_path: Path) -> None:
    skipped = Skipped()
    found = read_labels(manifest(tmp_path, "path,name\na.jpg,Ann\nx/../a.jpg,Ann\n"), PLAIN, skipped)
    assert (len(found.paths), skipped.counts) == (1, {REPEATED: 1})
    with pytest.raises(ManifestInvalid, match=r'it lists .*a\.jpg twice, with name "Ann" and with "Bob"'):
        read_labels(manifest(tmp_path, "path,name\na.jpg,Ann\na.jpg,Bob\n"), PLAIN, Skipped())


def test_a_further_column_is_kept_and_must_not_contradict(tmp_path: Path) -> None:
    rows = "path,name,set\na.jpg,Ann,gallery\nb.jpg,Ann,probe\n"
    found = read_labels(manifest(tmp_path, rows), PLAIN, Skipped(), column="set")
    assert found.columns == ["gallery", "probe"]
    with pytest.raises(ManifestInvalid, match='with set "gallery" and with "probe"'):
        read_labels(manifest(tmp_path, rows + "a.jpg,Ann,probe\n"), PLAIN, Skipped(), column="set")
    assert read_labels(manifest(tmp_path, "path,name\na.jpg,Ann\n"), PLAIN, Skipped(), column="set").columns == [None]


def test_labels_that_name_nobody_are_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has a name"):
        read_labels(manifest(tmp_path, "path\na.jpg\n"), PLAIN, Skipped())
    with pytest.raises(SourceEmpty):
        read_labels(manifest(tmp_path, "path,name\n"), PLAIN, Skipped())
    with pytest.raises(SourceMissing):
        read_labels(tmp_path / "none.csv", PLAIN, Skipped())
    with pytest.raises(ManifestInvalid, match="no path or uri"):
        read_labels(manifest(tmp_path, "image,person\na.jpg,Ann\n"), PLAIN, Skipped())


def test_clusters_from_a_table(tmp_path: Path) -> None:
    table = manifest(tmp_path, "path,cluster\na.jpg,7\nb.jpg, \nz.jpg,8\na.jpg,7\n", "clusters.csv")
    skipped = Skipped()
    wanted = [str(tmp_path / name) for name in ("b.jpg", "a.jpg", "c.jpg")]
    found = table_identities(table, PLAIN, wanted, skipped)
    assert (found.rows, found.identities, found.unlabelled) == ([0, 1], [None, "7"], 1)
    assert skipped.counts == {"the same path and cluster once more": 1, "not in the table of clusters": 1}


def test_numbers_of_a_parquet_table_are_clusters(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in ("a.jpg", "b.jpg", "c.jpg")]
    pq.write_table(pa.table({"path": paths, "cluster": [7.0, None, 8.5]}), tmp_path / "clusters.parquet")
    assert table_identities(tmp_path / "clusters.parquet", PLAIN, paths, Skipped()).identities == ["7", None, "8.5"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,group\na.jpg,1\n", 'no column "cluster"'),
        ("path,cluster\na.jpg,1\na.jpg,2\n", r'a\.jpg is in the clusters "1" and "2"'),
        ("path,cluster\nz.jpg,1\n", "holds none of the 1 labelled photos"),
    ],
)
def test_a_table_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        table_identities(manifest(tmp_path, text, "clusters.csv"), PLAIN, [str(tmp_path / "a.jpg")], Skipped())


def test_a_folder_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ManifestInvalid, match="it is a folder, not a table"):
        table_identities(tmp_path, PLAIN, ["/a"], Skipped())
