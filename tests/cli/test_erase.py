"""`facepipe erase`: what waits, and erasing it now, also while a server holds the store."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
from coded_faces import Shown

from tests.cli.report import answer, facepipe
from tests.people.coded_archive import make_store, run_over, serving, write_photo


@pytest.mark.parametrize("by_server", [False, True])
def test_what_waits_is_told_and_erased(tmp_path: Path, by_server: bool) -> None:
    for number in (1, 2):
        write_photo(tmp_path / "photos", f"{number}.png", Shown(number))
    store = make_store(tmp_path / "store")
    run_over(tmp_path / "photos", store)
    person = answer("people", "list", "--store", store)["people"][0]["person_id"]
    with serving(store) if by_server else nullcontext():
        assert "Nothing waits" in facepipe("erase", "--store", store).stdout
        assert facepipe("people", "forget", person, "--yes", "--store", store).exit_code == 0
        said = answer("erase", "--store", store)
        assert said["since"] < said["due"]
        assert not said["erased"]
        assert answer("check", "--store", store)["erase_by"] == said["due"]
        assert (
            f"waits to be erased from the catalog's file, by {said['due'][:4]}"
            in facepipe("check", "--store", store).stdout
        )
        assert "facepipe erase --now" in facepipe("erase", "--store", store).stdout
        assert facepipe("erase", "--now", "--store", store).stdout == "Erased what was deleted.\n"
        assert answer("erase", "--now", "--store", store) == {"since": None, "due": None, "erased": False}
        assert len(answer("people", "list", "--store", store)["people"]) == 1
    assert (store / "CURRENT").read_text() == "catalog-0002.duckdb\n"
    assert facepipe("check", "--store", store).exit_code == 0


def test_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that deletes erases."""
    monkeypatch.setenv("FACEPIPE_STORE__ERASE_WITHIN", "0")
    write_photo(tmp_path / "photos", "1.png", Shown(1))
    store = make_store(tmp_path / "store")
    run_over(tmp_path / "photos", store)
    person = answer("people", "list", "--store", store)["people"][0]["person_id"]
    assert facepipe("people", "forget", person, "--yes", "--store", store).exit_code == 0
    assert (store / "CURRENT").read_text() == "catalog-0002.duckdb\n"


@pytest.mark.parametrize("by_file", [False, True])
def test_at_once_by_a_command_without_flags_of_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_file: bool
) -> None:
    write_photo(tmp_path / "photos", "1.png", Shown(1))
    store = make_store(tmp_path / "store")
    run_over(tmp_path / "photos", store)
    if by_file:
        (tmp_path / "settings.yaml").write_text("store: {erase_within: 0}")
        monkeypatch.setenv("FACEPIPE_CONFIG", str(tmp_path / "settings.yaml"))
    else:
        monkeypatch.setenv("FACEPIPE_STORE__ERASE_WITHIN", "0")
    assert facepipe("directory", "delete", "main", "--yes", "--store", store).exit_code == 0
    assert [path.name for path in store.glob("catalog-*")] == ["catalog-0002.duckdb"]
