"""The master key: where it comes from, and how its file is made and read."""

from __future__ import annotations

import base64
import os
import stat
import threading
from pathlib import Path

import pytest

from pipeline.config import SecuritySettings, load_settings
from pipeline.errors import BadValue, MasterKeyMissing, UsageError
from pipeline.store.master_key import key_file, load_master_key, load_or_make_master_key

KEY = bytes(range(60, 92))
TEXT = base64.b64encode(KEY).decode()
STORE = Path("/the/store")


def file_with(path: Path, text: str, mode: int = 0o600) -> SecuritySettings:
    path.write_text(text)
    path.chmod(mode)
    return SecuritySettings(master_key_file=str(path))


def test_from_the_environment() -> None:
    settings = load_settings(environ={"FACEPIPE_SECURITY__MASTER_KEY": TEXT + "\n"})
    assert load_master_key(settings.security, STORE).data == KEY
    assert load_or_make_master_key(settings.security, STORE).made is False
    assert TEXT not in repr(settings)


def test_from_a_file(tmp_path: Path) -> None:
    found = load_master_key(file_with(tmp_path / "key", TEXT + "\n"), STORE)
    assert (found.data, found.source, found.made) == (KEY, str(tmp_path / "key"), False)


def test_by_default_from_the_users_configuration_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    assert key_file(SecuritySettings()) == tmp_path / "config" / "facepipe" / "master.key"
    with pytest.raises(MasterKeyMissing, match=r"no file .*/facepipe/master\.key"):
        load_master_key(SecuritySettings(), STORE)
    made = load_or_make_master_key(SecuritySettings(), STORE)
    assert made.made
    assert load_master_key(SecuritySettings(), STORE).data == made.data


def test_only_its_owner_can_read_a_new_key_file(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        settings = SecuritySettings(master_key_file=str(tmp_path / "a" / "b" / "key"))
        first = load_or_make_master_key(settings, STORE)
    finally:
        os.umask(old)
    path = tmp_path / "a" / "b" / "key"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)] == [0o700, 0o700]
    assert [file.name for file in path.parent.iterdir()] == ["key"]
    again = load_or_make_master_key(settings, STORE)
    assert (first.made, again.made) == (True, False)
    assert first.data == again.data == base64.b64decode(path.read_text())
    assert first.data != load_or_make_master_key(SecuritySettings(master_key_file=str(tmp_path / "2")), STORE).data


def test_processes_that_make_it_at_once_get_one_key(tmp_path: Path) -> None:
    settings = SecuritySettings(master_key_file=str(tmp_path / "f" / "key"))
    start, found = threading.Barrier(8), []

    def make() -> None:
        start.wait()
        found.append(load_or_make_master_key(settings, STORE))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({key.data for key in found}) == 1
    assert sum(key.made for key in found) == 1


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    settings = file_with(tmp_path / "key", "not a key")
    with pytest.raises(UsageError, match="not 32 bytes in base64"):
        load_or_make_master_key(settings, STORE)
    assert (tmp_path / "key").read_text() == "not a key"


def test_the_file_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    path = tmp_path / "key"
    real = os.fsync

    def fsync(fd: int) -> None:
        steps.append(f"{'folder' if stat.S_ISDIR(os.fstat(fd).st_mode) else 'file'}, named: {path.exists()}")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    load_or_make_master_key(SecuritySettings(master_key_file=str(path)), STORE)
    assert steps == ["file, named: False", "folder, named: True"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o666, 0o601])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    settings = file_with(tmp_path / "key", TEXT, mode)
    with pytest.raises(UsageError, match=f"Others can read the master key file .* \\(mode {mode:04o}\\): chmod 600"):
        load_master_key(settings, STORE)


@pytest.mark.parametrize(
    "text", ["", "\n", "short", TEXT[:-4], TEXT + "AAAA", KEY.hex(), "ü" * 44, TEXT.replace("P", "*")]
)
def test_a_text_that_is_not_a_key_is_refused_and_not_quoted(tmp_path: Path, text: str) -> None:
    for settings in (file_with(tmp_path / "key", text), SecuritySettings(master_key=text or " ")):
        with pytest.raises(UsageError, match="32 bytes in base64") as refused:
            load_master_key(settings, STORE)
        assert not text.strip() or text.strip() not in str(refused.value)


def test_two_keys_are_refused(tmp_path: Path) -> None:
    settings = SecuritySettings(master_key=TEXT, master_key_file=file_with(tmp_path / "key", TEXT).master_key_file)
    with pytest.raises(UsageError, match="are both set"):
        load_master_key(settings, STORE)


def test_a_file_that_cannot_be_made_or_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    below = SecuritySettings(master_key_file=str(tmp_path / "file" / "key"))
    with pytest.raises(UsageError, match="cannot be read: Not a directory"):
        load_or_make_master_key(below, STORE)
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match="cannot be read: Is a directory"):
        load_master_key(SecuritySettings(master_key_file=str(tmp_path / "folder")), STORE)
    with pytest.raises(UsageError, match="cannot be made"):
        load_or_make_master_key(SecuritySettings(master_key_file="/proc/no-such-place/key"), STORE)


@pytest.mark.parametrize(
    "yaml",
    [
        "security:\n  master_key: [{key}]\n",
        "security:\n  master_key: {key}\n  master_key: {key}\n",
        "security:\n  master_key: {key}: {key}\n",
    ],
)
def test_no_message_about_the_configuration_quotes_the_key(tmp_path: Path, yaml: str) -> None:
    (tmp_path / "c.yaml").write_text(yaml.format(key=TEXT))
    with pytest.raises((BadValue, UsageError)) as refused:
        load_settings(tmp_path / "c.yaml", environ={})
    assert "c.yaml" in str(refused.value)
    assert TEXT not in str(refused.value)
