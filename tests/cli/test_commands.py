"""What each command prints and how it ends, over real stores without photographs or weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.cli.flags import ALL_FLAGS, settings_from
from pipeline.config import Settings, known_keys
from pipeline.store.local import LocalStore
from pipeline.store.records import StoreIdentity
from tests.cli.report import answer, facepipe, report_of

IDENTITY = StoreIdentity(
    embedder="InceptionResnetV1",
    weights="casia-webface",
    weights_sha256="0" * 64,
    embedding_size=512,
    preprocessing={"mean": 127.5, "scale": 1 / 128},
    calibration={"exponent": 1.281, "dataset": "LFW", "fmr": 2e-4, "note": ""},
    mode="exact",
    output_settings=Settings().output_settings(),
    output_hash=Settings().output_hash(),
)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """An empty store."""
    path = tmp_path / "store"
    LocalStore.open_or_create(path, lambda: IDENTITY, command="test").close()
    return path


def test_check_of_a_whole_store(store: Path) -> None:
    report = answer("check", "--store", store)
    assert report["problems"] == report["repaired"] == []
    assert report["counts"]["persons"] == 0
    assert "is sound" in facepipe("check", "--store", store).stdout


def test_check_finds_and_repairs(store: Path) -> None:
    orphan = store / "objects" / "ab" / "cd" / "left-over.tmp"
    orphan.parent.mkdir(parents=True, exist_ok=True)
    orphan.write_bytes(b"x")
    report = answer("check", "--store", store, exit_code=43)
    assert (report["error"], report["exit_code"]) == ("store-damaged", 43)
    assert [problem["kind"] for problem in report["problems"]] == ["orphan"]
    plain = facepipe("check", "--store", store)
    assert plain.exit_code == 43
    assert "problem: orphan" in plain.stdout
    assert orphan.exists()

    repaired = answer("check", "--store", store, "--repair")
    assert [problem["kind"] for problem in repaired["repaired"]] == ["orphan"]
    assert repaired["problems"] == []
    assert not orphan.exists()


def test_export_of_an_empty_store(store: Path, tmp_path: Path) -> None:
    to = tmp_path / "out"
    report = answer("export", "--store", store, "--to", to)
    assert report["rows"] == {"media": 0, "faces": 0, "persons": 0, "embeddings": 0}
    assert sorted(file.stem for file in to.iterdir()) == ["embeddings", "faces", "media", "persons"]
    assert facepipe("export", "--store", store, "--to", to).exit_code != 0


def test_a_store_in_use_is_named(store: Path) -> None:
    with LocalStore.open(store, command="the first"):
        result = facepipe("check", "--store", store, "--json")
    assert "the first" in report_of(result, 41)["message"]


def test_extract_and_group_without_a_planned_run(store: Path) -> None:
    for command in ("extract", "group"):
        result = facepipe(command, "--store", store, "--json")
        assert "No run is planned" in report_of(result, 2)["message"]


def test_scan_of_an_empty_folder(store: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert answer("scan", tmp_path / "photos", "--store", store, exit_code=11)["error"] == "source-empty"


def test_an_unusable_photo_is_named_by_search(store: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent.jpg"
    report = answer("search", absent, "--store", store, exit_code=1)
    assert (report["error"], report["image"]) == ("image-missing", str(absent))
    assert facepipe("search", absent, "--store", store).stderr == f"facepipe: {absent}: no such file\n"


def test_strict_ends_with_1_when_an_input_was_rejected(store: Path, tmp_path: Path) -> None:
    # Rejected by its bytes, so the run needs no weights.
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "empty.jpg").write_bytes(b"")
    words = ("run", tmp_path / "photos", "--store", store, "--device", "cpu")
    result = facepipe(*words, "--strict", "--json")
    report = report_of(result, 1)
    assert report["images"] == 1
    assert sum(report["rejected"].values()) == 1
    assert "1 input was rejected" in result.stderr
    again = answer(*words)
    assert (again["images"], again["already_in"]) == (0, 1)


def test_doctor_reports_and_ends_by_the_worst(store: Path, tmp_path: Path) -> None:
    fine = facepipe("doctor", "--store", store, "--device", "cpu", "--json", "--set", f"model.cache={tmp_path / 'c'}")
    report = report_of(fine)
    levels = {finding["subject"]: finding["level"] for finding in report["findings"]}
    assert levels.keys() >= {"python", "torch", "device", "weights", "detector", "cache", "formats", "disk", "store"}
    bad = facepipe("doctor", "--device", "cuda:99", "--store", tmp_path / "absent", "--json")
    report = report_of(bad, 8)
    failed = {finding["subject"] for finding in report["findings"] if finding["level"] == "fail"}
    assert {"device", "store"} <= failed
    assert all(finding["cure"] for finding in report["findings"] if finding["level"] == "fail")


def test_every_flag_sets_a_setting_that_is_there() -> None:
    assert set(ALL_FLAGS) <= set(known_keys())


def test_named_flags_go_before_set(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("match: {threshold: 0.1}\nrun: {threads: 3}")
    settings = settings_from(config, ["match.threshold=0.2", " run.device = cpu "], {"match.threshold": "0.3"})
    assert (settings.match.threshold, settings.run.device, settings.run.threads) == (0.3, "cpu", 3)
