"""Settings: where a value comes from, what is refused, and what the configuration files say."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.config import MatchSettings, RunSettings, Settings, known_keys, load_settings, without_secrets
from pipeline.errors import BadValue, FacepipeError, UnknownKey, UsageError

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def load(text: str, tmp_path: Path, **arguments: Any) -> Settings:
    file = tmp_path / "facepipe.yaml"
    file.write_text(text, "utf-8")
    return load_settings(file, **{"environ": {}, **arguments})


def test_without_anything_the_defaults() -> None:
    assert load_settings(environ={}) == Settings()


def test_flags_go_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    text = "match: {threshold: 0.1, min_cpq: 0.1, min_fsq: 0.1}"
    environ = {"FACEPIPE_MATCH__MIN_CPQ": "0.2", "FACEPIPE_MATCH__MIN_FSQ": "0.2", "HOME": "/root"}
    match = load(text, tmp_path, environ=environ, flags={"match.min_fsq": 0.3, "match.min_fcq": None}).match
    assert match == MatchSettings(threshold=0.1, min_cpq=0.2, min_fsq=0.3, min_fcq=0.45)


def test_the_environment_names_the_file_unless_a_flag_does(tmp_path: Path) -> None:
    named, flagged = tmp_path / "named.yaml", tmp_path / "flagged.yaml"
    named.write_text("run: {threads: 3}")
    flagged.write_text("run: {threads: 4}")
    environ = {"FACEPIPE_CONFIG": str(named)}
    assert load_settings(environ=environ).run.threads == 3
    assert load_settings(flagged, environ=environ).run.threads == 4


def test_the_environment_names_the_cache() -> None:
    assert load_settings(environ={"FACEPIPE_CACHE": "/a"}).model.cache == "/a"
    assert load_settings(environ={"FACEPIPE_CACHE": "/a", "FACEPIPE_MODEL__CACHE": "/b"}).model.cache == "/b"


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FACEPIPE_DETECT__MIN_FACE_PX", "40")
    assert load_settings().detect.min_face_px == 40


@pytest.mark.parametrize("variable", ["FACEPIPE_TEST_FACES", "FACEPIPE_PYTHON", "FACEPIPE_VENV"])
def test_variables_of_the_scripts_are_no_settings(variable: str) -> None:
    assert load_settings(environ={variable: "/x"}) == Settings()


@pytest.mark.parametrize("text", ["", "# nothing\n", "match:\n", "match: {}\n"])
def test_empty_files_change_nothing(text: str, tmp_path: Path) -> None:
    assert load(text, tmp_path) == Settings()


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("run.threads", "4", 4),
        ("run.threads", 4.0, 4),
        ("match.threshold", "1e-1", 0.1),
        ("match.threshold", 1, 1.0),
        ("source.follow_symlinks", "False", False),
        ("source.root", "", None),
        ("source.root", "/data", "/data"),
    ],
)
def test_text_becomes_the_type_of_the_key(key: str, value: object, expected: object) -> None:
    section, name = key.split(".")
    parsed = getattr(getattr(load_settings(environ={}, flags={key: value}), section), name)
    assert parsed == expected
    assert type(parsed) is type(expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mach: {threshold: 1}", 'Unknown setting "mach".*Did you mean "match"'),
        ("match: {treshold: 1}", 'Unknown setting "match.treshold".*Did you mean "match.threshold"'),
        ("match: {min_face_px: 1}", 'Did you mean "detect.min_face_px"'),
        ("zzz: {a: 1}", "Known: align, decode"),
        ("1: {a: 1}", 'Unknown setting "1"'),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_known_one(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UnknownKey, match=message) as caught:
        load(text, tmp_path)
    assert "facepipe.yaml" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("match: {threshold: 4.1}", r"4\.1: must be a number in \[0, 3\.99\], or 4"),
        ("match: {threshold: 3.995}", r"3\.995: must be a number in \[0, 3\.99\], or 4"),
        ("match: {threshold: .nan}", r"nan: must be a number in"),
        ("match: {threshold: high}", "'high': must be a number"),
        ("match: {threshold: true}", "True: must be a number"),
        ("match: {threshold: null}", "empty: must be a number"),
        ("run: {threads: 1.5}", "1.5: must be a whole number"),
        ("run: {threads: .inf}", "inf: must be a whole number"),
        ("run: {threads: [1]}", r"\[1\]: must be a whole number"),
        ("decode: {max_pixels: 1" + "0" * 400 + "}", r"must be in \[1, 2147483647\]"),
        ("source: {labels: folder}", "'folder': must be none or parent"),
        ("source: {labels: no}", "False: must be text"),
        ("source: {follow_symlinks: 1}", "1: must be true or false"),
        ("source: {root: 7}", "7: must be text or empty"),
        ("run: {precision: half}", "'half': must be auto or float32 or float16 or bfloat16"),
        ("run: {tf32: 1}", "1: must be true or false"),
        ("serve: {trusted_proxies: '*'}", "must be IP addresses or networks"),
        ("serve: {trusted_proxies: '127.0.0.1, proxy.example.org'}", "must be IP addresses or networks"),
        ("serve: {trusted_proxies: 10.0.0.1/8}", "must be IP addresses or networks"),
        ("serve: {cors_origins: example.org}", "must be origins such as https://example.org"),
        ("serve: {cors_origins: 'https://example.org/'}", "must be origins such as https://example.org"),
        ("match: 7", '"match" in .* is 7: must be a mapping'),
    ],
)
def test_a_bad_value_is_refused_and_says_where_it_stands(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadValue, match=message) as caught:
        load(text, tmp_path)
    assert "facepipe.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "[1, 2]",
        "just text",
        "match: {",
        "match: {threshold: 1}\nmatch: {min_cpq: 0}",
        "match: {min_cpq: 0, min_cpq: 1}",
    ],
)
def test_a_file_that_is_no_mapping_is_refused(text: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"facepipe\.yaml"):
        load(text, tmp_path)


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load_settings(tmp_path / "absent.yaml", environ={})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        load_settings(tmp_path / "binary.yaml", environ={})


def test_values_of_the_environment_and_of_flags_are_refused_with_their_place() -> None:
    with pytest.raises(BadValue, match=r"environment \(FACEPIPE_RUN__THREADS\)"):
        load_settings(environ={"FACEPIPE_RUN__THREADS": "many"})
    with pytest.raises(UnknownKey, match=r"FACEPIPE_RUN__THREAD\).*run\.threads"):
        load_settings(environ={"FACEPIPE_RUN__THREAD": "1"})
    with pytest.raises(BadValue, match="the flags is 5"):
        load_settings(environ={}, flags={"match.threshold": 5})


def test_settings_made_in_code_are_checked_too() -> None:
    with pytest.raises(BadValue, match=r"run\.batch_images"):
        Settings(run=RunSettings(batch_images=0))


@pytest.mark.parametrize("key", sorted(known_keys()))
def test_every_number_has_a_range(key: str) -> None:
    if known_keys()[key] in (int, float):
        with pytest.raises(FacepipeError, match=key):
            load_settings(environ={}, flags={key: -1})


def test_the_output_hash_covers_what_changes_the_numbers_and_nothing_else() -> None:
    def hash_with(key: str, value: object) -> str:
        return load_settings(environ={}, flags={key: value}).output_hash()

    same = Settings().output_hash()
    assert hash_with("run.threads", 7) == same
    assert hash_with("match.threshold", 1) == same
    assert hash_with("model.cache", "/x") == same
    assert hash_with("run.precision", "bfloat16") == same
    assert hash_with("run.tf32", True) == same
    assert hash_with("run.backend", "torch") == hash_with("run.backend", "openvino") == same
    for key, value in {"decode.truncated": "accept", "detect.min_face_px": 40, "align.margin_px": 14}.items():
        assert hash_with(key, value) != same


def test_default_yaml_holds_every_key_with_its_default() -> None:
    data = yaml.safe_load((CONFIGS / "default.yaml").read_text("utf-8"))
    expected = dataclasses.asdict(Settings())
    del expected["match"]["threshold_fmr"], expected["given"]  # not settings: the rate of `threshold: fmr:...`, flags
    assert data == expected


@pytest.mark.parametrize("name", ["default", "cpu", "cuda", "ray"])
def test_configurations_load_and_every_key_has_a_comment(name: str) -> None:
    file = CONFIGS / f"{name}.yaml"
    load_settings(file, environ={})
    before = ""
    for line in file.read_text("utf-8").splitlines():
        if ":" in line and not line.lstrip().startswith("#") and line.startswith("  "):
            # A comment may speak for the keys of one block.
            assert before.strip(), f"{name}.yaml: nothing explains {line.strip()}"
        before = line if line.lstrip().startswith("#") or (":" in line and before.strip()) else ""


@pytest.mark.parametrize(
    "word", ["security.master_key=0123456789abcdef", "--set=security.master_key = 0123456789abcdef"]
)
def test_a_secret_of_the_command_line_is_not_repeated(word: str) -> None:
    assert "0123456789" not in without_secrets(word)
    assert "security.master_key" in without_secrets(word)
    assert without_secrets("match.threshold=0.4") == "match.threshold=0.4"
