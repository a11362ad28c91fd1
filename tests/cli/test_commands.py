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
    assert report["rows"] == {"media": 0, "faces": 0, "persons": 0, "facts": 0, "embeddings": 0}
    assert sorted(file.stem for file in to.iterdir()) == ["embeddings", "faces", "facts", "media", "persons"]
    assert facepipe("export", "--store", store, "--to", to).exit_code != 0


def test_a_store_in_use_is_named(store: Path) -> None:
    with LocalStore.open(store, command="the first"):
        result = facepipe("check", "--store", store, "--json")
    assert "the first" in report_of(result, 41)["message"]


def test_extract_and_group_without_a_planned_run(store: Path) -> None:
    for command in ("extract", "group"):
        result = facepipe(command, "--store", store, "--json")
        assert "No run is planned" in report_of(result, 2)["message"]


def test_abandon_gives_up_the_planned_run(store: Path, tmp_path: Path) -> None:
    assert "no unfinished run" in answer("abandon", "--store", store, exit_code=2)["message"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "empty.jpg").write_bytes(b"")
    answer("scan", tmp_path / "photos", "--store", store, "--device", "cpu")
    (tmp_path / "photos").rename(tmp_path / "moved")
    report = answer("abandon", tmp_path / "photos", "--store", store)
    assert (report["source"], report["images"]) == (str(tmp_path / "photos"), 0)
    assert answer("check", "--store", store)["problems"] == []


def test_scan_of_an_empty_folder(store: Path, tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    assert answer("scan", tmp_path / "photos", "--store", store, exit_code=11)["error"] == "source-empty"


def test_an_unusable_photo_is_named_by_search(store: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent.jpg"
    report = answer("search", absent, "--store", store, exit_code=1)
    assert (report["error"], report["image"]) == ("image-missing", str(absent))
    assert facepipe("search", absent, "--store", store).stderr.splitlines()[-1] == f"facepipe: {absent}: no such file"


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


@pytest.fixture
def sources(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of unusable photos, so that a run needs no weights, with other files."""
    for name in ("one/a.jpg", "one/b.jpg", "two/a.jpg", "two/c.mov", "two/@eaDir/a.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "two" / "gone.jpg").symlink_to(tmp_path / "nothing")
    return tmp_path / "one", tmp_path / "two"


@pytest.mark.slow
def test_several_sources_are_one_report(store: Path, sources: tuple[Path, Path]) -> None:
    words = ("run", *sources, sources[0], "--store", store, "--device", "cpu")
    report = answer(*words)
    assert (report["images"], report["new"], report["already_in"]) == (4, 4, 0)
    assert (report["left_alone"], report["left_out"]) == ({"video": 1}, {"thumbnails": 1})
    assert report["left_out_folders"] == [str(sources[1] / "@eaDir")]
    again = facepipe(*words)
    assert "0 new, 0 changed; 4 were in already" in again.stdout
    assert "left alone  files: 1 video\n" in again.stdout
    assert f"left out    folders: 1 thumbnails\n            {sources[1] / '@eaDir'}\n" in again.stdout
    taken = answer(*words, "--include", "*.jpg", "--include", "@eaDir", "--exclude", "b.*", "--exclude", "gone.*")
    assert (taken["new"], taken["already_in"], taken["left_alone"]) == (1, 2, {"excluded": 3})


@pytest.mark.slow
def test_an_archive_elsewhere_and_photos_that_are_gone(store: Path, sources: tuple[Path, Path]) -> None:
    old, new = sources[0], sources[0].with_name("elsewhere")
    words = ("--store", store, "--device", "cpu")
    answer("run", old, *words)
    old.rename(new)
    report = answer("run", new, "--moved-from", old, *words)
    assert (report["already_in"], report["new"], report["moved_sources"]) == (2, 0, [[str(old), str(new)]])
    (new / "a.jpg").unlink()
    words = ("run", new, "--moved-from", old, *words, "--on-missing", "forget")
    assert "none is forgotten; `--yes` forgets them" in facepipe(*words, "--dry-run").stdout
    assert answer(*words, "--missing-limit", "0.4")["too_many_missing"] == 1
    assert answer(*words, "--yes", "--dry-run")["forgotten_missing"] == 1
    assert answer(*words, "--yes")["forgotten_missing"] == 1
    assert answer(*words)["too_many_missing"] == 0


def test_an_empty_source_among_others_stops_the_run_before_it_begins(
    store: Path, sources: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    words = ("run", *sources, tmp_path / "empty", "--store", store, "--device", "cpu")
    assert answer(*words, exit_code=11)["error"] == "source-empty"
    assert answer("run", *sources, "--store", store, "--device", "cpu")["new"] == 4


def test_a_dry_run_writes_nothing(store: Path, sources: tuple[Path, Path], tmp_path: Path) -> None:
    words = ("run", *sources, "--dry-run", "--device", "cpu")
    first = answer(*words, "--store", tmp_path / "new store")
    assert not (tmp_path / "new store").exists()
    assert (first["new"], first["to_decode"], first["rejected"]) == (4, 3, {"missing": 1})
    assert (first["left_alone"], first["left_out"]) == ({"video": 1}, {"thumbnails": 1})
    assert answer(*words, "--store", store) == first
    answer("run", sources[0], "--store", store, "--device", "cpu")
    before = (store / "catalog-0001.duckdb").read_bytes()
    second = facepipe(*words, "--store", store)
    assert "2 new, 0 changed; 2 are in already" in second.stdout
    assert "nothing was written" in second.stdout
    assert (store / "catalog-0001.duckdb").read_bytes() == before
    assert facepipe(*words, "--store", store, "--strict").exit_code == 1


@pytest.mark.slow
def test_doctor_reports_and_ends_by_the_worst(
    store: Path, tmp_path: Path, weights_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_the_machine = {"python", "torch", "device", "weights", "detector", "cache", "formats", "disk"}
    fine = facepipe("doctor", "--store", store, "--json", "--set", f"model.cache={tmp_path / 'c'}")
    subjects = {finding["subject"] for finding in report_of(fine)["findings"]}
    assert subjects >= {*of_the_machine, "store"}
    assert "faces" not in subjects  # nothing is loaded without a device's name
    tried = facepipe("doctor", "--device", "cpu", "--json", "--set", f"model.cache={weights_cache}")
    levels = {finding["subject"]: finding["level"] for finding in report_of(tried)["findings"]}
    assert levels.keys() >= {*of_the_machine, "faces", "embeddings", "rate"}
    monkeypatch.setattr("pipeline.tools.device_trial.MOST_SHIFT_PX", -1)  # no device is that good
    wrong = report_of(facepipe("doctor", "--device", "cpu", "--json", "--set", f"model.cache={weights_cache}"), 8)
    assert [finding["subject"] for finding in wrong["findings"] if finding["level"] == "fail"] == ["faces"]
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
