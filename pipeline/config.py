"""Settings: one frozen object per stage, from defaults, a YAML file, the environment and flags, in this order.

Nothing below this module reads the environment. `FACEPIPE_DETECT__MIN_FACE_PX=40` sets `detect.min_face_px`;
FACEPIPE_CONFIG names the file if no flag does; FACEPIPE_CACHE sets `model.cache`. An unknown key is an error that names
the nearest known key. `Settings.output_hash()` covers what changes the stored numbers (decoding, detection, alignment,
centring, mode); it is fixed per store generation.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import ipaddress
import json
import math
import os
import re
import typing
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from pipeline.errors import BadValue, UnknownKey, UsageError

ENV_PREFIX = "FACEPIPE_"
ENV_CONFIG = "FACEPIPE_CONFIG"
ENV_CACHE = "FACEPIPE_CACHE"
ENV_STORE = "FACEPIPE_STORE"  # read by the command line
# Variables with the prefix that are not settings: these two, and those of the scripts and tests.
ENV_OTHER = frozenset({ENV_CONFIG, ENV_CACHE, ENV_STORE, "FACEPIPE_TEST_FACES", "FACEPIPE_PYTHON", "FACEPIPE_VENV"})

# The contract's default T, and its false match rate after calibration, if the data can measure that rate.
ANY: Final = "*"  # in lists of origins and hosts
CONTRACT_THRESHOLD: Final = 0.54
CONTRACT_FMR: Final = 1e-5
MAX_THRESHOLD, EVERYBODY = 3.99, 4.0  # the largest T, and the only one above it: everybody matches
THRESHOLD_RULE = "a number in [0, 3.99], or 4"
AREA, PILLOW = "area", "pillow"  # how crops are resampled
EXACT, FAST = "exact", "fast"  # modes
REFUSE, APPLY = "refuse", "apply"  # updates that contradict the names
CPU, DEVICE = "cpu", "device"  # what decodes JPEG files
SEQUENTIAL, AVERAGE_LINK = "sequential", "average-link"  # methods of a regroup
KEEP, MARK, FORGET = "keep", "mark", "forget"  # what happens to missing photos
LOCAL, RAY = "local", "ray"  # engines
OPENVINO, TORCH = "openvino", "torch"  # what runs the embedder
OUTPUT_SECTIONS: Final = ("decode", "detect", "align", "embed")  # changes the stored numbers, as the mode does
AUTO, FLOAT32, FLOAT16, BFLOAT16 = "auto", "float32", "float16", "bfloat16"  # precisions


Value = TypeVar("Value", int, float)


def _rule(is_valid: Callable[[Any], bool], expected: str) -> dict[str, Any]:
    """Returns a setting's rule; `expected` completes "must be" in the error."""
    return {"is_valid": is_valid, "expected": expected}


def _within(low: float, high: float, *, default: Value) -> Value:
    """Declares a numeric setting in [low, high]."""
    # False for NaN, and correct for integers too large for a float.
    rule = _rule(lambda value: low <= value <= high, f"in [{_number(low)}, {_number(high)}]")
    return field(default=default, metadata=rule)


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _one_of(*choices: str, default: str) -> str:
    """Declares a setting with these choices."""
    return field(default=default, metadata=_rule(lambda value: value in choices, " or ".join(choices)))


def _list_of(is_valid: Callable[[str], bool], expected: str) -> str | None:
    """Declares a comma-separated list, or None."""
    rule = _rule(lambda value: value is None or all(map(is_valid, listed(value))), expected)
    return field(default=None, metadata=rule)


def listed(value: str) -> list[str]:
    """Splits a comma-separated setting."""
    return [item.strip() for item in value.split(",")]


def is_threshold(value: float) -> bool:
    """Returns whether the contract allows `value` as T: above 3.99 the score would no longer distinguish distances."""
    return 0 <= value <= MAX_THRESHOLD or value == EVERYBODY


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _is_origin(text: str) -> bool:
    """Accepts an origin as browsers write it; `*` is any."""
    return text == ANY or re.fullmatch(r"https?://[a-z0-9.:\[\]-]+", text) is not None


def _is_page(text: str | None) -> bool:
    """Accepts an address of the web UI, or None."""
    return text is None or re.fullmatch(r"https?://[^\s/?#]+/ui", text) is not None


def _is_host(text: str) -> bool:
    """Accepts a host name as in a Host header, or an IP address; `*` is any."""
    is_name = re.fullmatch(r"[A-Za-z0-9_.-]+", text) is not None  # or IPv4
    return text == ANY or is_name or ("/" not in text and _is_network(text))


@dataclass(frozen=True)
class SourceSettings:
    # parent: the parent folder's name is the person's name
    labels: str = _one_of("none", "parent", default="none")
    root: str | None = None  # files outside this folder are refused; None: only `..` in relative paths is
    follow_symlinks: bool = True
    include: str | None = None  # comma-separated patterns: only matching files are taken
    exclude: str | None = None


@dataclass(frozen=True)
class DecodeSettings:
    max_pixels: int = _within(1, 2**31 - 1, default=100_000_000)
    max_bytes: int = _within(1, 2**40, default=256 * 2**20)
    # tolerate: up to 1 % may be missing; accept: whatever is there
    truncated: str = _one_of("refuse", "tolerate", "accept", default="tolerate")


@dataclass(frozen=True)
class DetectSettings:
    """Zhang et al. 2016, "Joint Face Detection and Alignment Using Multitask Cascaded Convolutional Networks";
    thresholds and factor as in facenet-pytorch."""

    min_face_px: int = _within(12, 100_000, default=20)
    pnet_threshold: float = _within(0, 1, default=0.6)
    rnet_threshold: float = _within(0, 1, default=0.7)
    onet_threshold: float = _within(0, 1, default=0.7)
    factor: float = _within(0.1, 0.95, default=0.709)
    min_confidence: float = _within(0, 1, default=0.95)  # faces below it are dropped after the cascade


@dataclass(frozen=True)
class AlignSettings:
    # pixels of the crop, both sides together, as in facenet-pytorch
    margin_px: int = _within(0, 120, default=32)
    resampling: str = _one_of(AREA, PILLOW, default=AREA)  # pillow: as in facenet-pytorch


@dataclass(frozen=True)
class EmbedSettings:
    centre: bool = True  # subtract the weights' mean embedding, if they have one


@dataclass(frozen=True)
class MatchSettings:
    # T; NaN until the calibration resolves `threshold_fmr`
    threshold: float = field(default=CONTRACT_THRESHOLD, metadata=_rule(is_threshold, THRESHOLD_RULE))
    min_cpq: float = _within(0, 1, default=0.59)
    min_fsq: float = _within(0, 1, default=0.40)
    min_fcq: float = _within(0, 1, default=0.45)
    # of two faces of a photo with the same best person only the nearer is matched to it; not in mere recognition
    once_per_photo: bool = False
    threshold_fmr: float | None = None  # the false match rate in `threshold: fmr:1e-4`


@dataclass(frozen=True)
class RegroupSettings:
    # sequential: face by face, as a run; average-link: all faces at once, by all pairs
    method: str = _one_of(SEQUENTIAL, AVERAGE_LINK, default=SEQUENTIAL)
    # of average-link: the wanted share of pairs of faces in one identity that show one person
    precision: float = _within(0.5, 0.9999, default=0.99)
    # the T that two clusters' mean similarity must reach; None: found by `precision`
    cut: float | None = field(
        default=None, metadata=_rule(lambda value: value is None or is_threshold(value), THRESHOLD_RULE)
    )
    neighbours: int = _within(1, 1000, default=50)  # clusters with which each is compared


@dataclass(frozen=True)
class RunSettings:
    engine: str = _one_of(LOCAL, RAY, default=LOCAL)  # where shards are extracted
    shard_folder: str | None = None  # where Ray workers write shards: a folder or an address; None: in the store
    device: str = "auto"  # auto | cpu | cuda | cuda:N
    # of the embedder on the CPU; auto: OpenVINO if installed
    backend: str = _one_of(AUTO, OPENVINO, TORCH, default=AUTO)
    # for decoding and the CPU networks, in a run also batches at once; 0: all cores
    threads: int = _within(0, 1024, default=0)
    reads: int = _within(1, 256, default=16)  # bucket objects read concurrently
    batch_images: int = _within(1, 4096, default=32)
    batch_pixels: int = _within(1, 2**40, default=24_000_000)  # a batch ends before its images exceed this sum
    # manifest rows per shard: what a crash may cost, and what one transaction commits
    shard_rows: int = _within(1, 1_000_000, default=256)
    # a shard ends before its images exceed this sum: seconds of work
    shard_pixels: int = _within(1, 2**40, default=250_000_000)
    check_inode: bool = False  # read a file again if its inode changed
    rehash: bool = False  # read every file
    # what a run does with photos missing from the source
    on_missing: str = _one_of(KEEP, MARK, FORGET, default=MARK)
    # if more than this share of a source is missing, nothing is forgotten
    missing_limit: float = _within(0, 1, default=0.2)
    mode: str = _one_of(EXACT, FAST, default=EXACT)  # fast: the embedder in half precision
    # Only in mode fast; `jpeg` and `tf32` only on CUDA. They may differ between runs, so no store records them.
    # where baseline JPEG files are decoded; the device's colours differ
    jpeg: str = _one_of(CPU, DEVICE, default=CPU)
    # of the embedder; auto: the fastest; float16: on CUDA only
    precision: str = _one_of(AUTO, FLOAT32, FLOAT16, BFLOAT16, default=AUTO)
    tf32: bool = False  # TF32 for the convolutions left in float32, including the detector's


@dataclass(frozen=True)
class RaySettings:
    """Workers of the Ray engine."""

    address: str | None = None  # of a cluster, host:port or auto; None: start one on this machine
    actors: int = _within(0, 100_000, default=0)  # workers; 0: as many as fit on the cluster
    cpus: int = _within(1, 1024, default=2)  # per worker, at most those of the largest node
    gpus: float = _within(0, 64, default=0.0)  # per worker; workers can share a GPU with a fraction
    queue: int = _within(1, 1000, default=3)  # shards assigned to a worker at once
    start_timeout_s: float = _within(1, 86_400, default=300.0)  # without any worker
    shard_timeout_s: float = _within(1, 86_400, default=900.0)  # without a finished shard from a worker


@dataclass(frozen=True)
class ModelSettings:
    weights: str = "auto"  # auto | casia-webface | vggface2 | sface
    weights_file: str | None = None
    calibration: str | None = None  # of a new store: none, or a file of `facepipe calibrate`; None: the weights' own
    cache: str | None = None  # None: the user's cache folder


@dataclass(frozen=True)
class SecuritySettings:
    encrypt: bool = False  # encrypt a new store's images at rest; fixed at creation
    master_key_file: str | None = None  # None: the user's configuration folder
    master_key: str | None = field(default=None, repr=False)  # base64 of 32 bytes; for the environment


@dataclass(frozen=True)
class StoreSettings:
    # hours after which deleted data are erased from the catalog's file, too; 0: at once
    erase_within: float = _within(0, 8760, default=24.0)


@dataclass(frozen=True)
class ServeSettings:
    host: str = "127.0.0.1"
    port: int = _within(0, 65_535, default=8080)
    object_port: int | None = None  # a second port for the same service
    tls_cert: str | None = None  # PEM files
    tls_key: str | None = None
    # whose X-Forwarded-For is trusted
    trusted_proxies: str | None = _list_of(
        _is_network, "IP addresses or networks such as 10.0.0.0/8, separated by commas"
    )
    # accepted Host headers; None: loopback names, if the server only listens on loopback
    allowed_hosts: str | None = _list_of(
        _is_host, "host names or IP addresses without ports, separated by commas, or *"
    )
    # web pages that may call; None: no others
    cors_origins: str | None = _list_of(_is_origin, "origins such as https://example.org, separated by commas, or *")
    hosting: str = _one_of("local", "cloud", default="local")
    public_url: str | None = None  # public host (and path), for image addresses in cloud hosting
    object_scheme: str | None = None  # of image addresses; None: cvos (local), https (cloud)
    # name and external id of an insertion
    person_headers: str = _one_of("required", "optional", default="required")
    unique_external_ids: bool = False
    # an update of a person whom the headers call somebody else
    update_conflicts: str = _one_of(REFUSE, APPLY, default=REFUSE)
    changes: bool = False  # GET /changes returns an account's changes
    max_body_bytes: int = _within(1024, 2**32, default=32 * 2**20)
    body_timeout_s: float = _within(0.1, 3600, default=30.0)  # without a byte of a body
    queue_images: int = _within(1, 100_000, default=64)  # requests that may wait for the models; more get 503
    workers: int = _within(0, 1024, default=0)  # decoding threads; 0: twice the cores


@dataclass(frozen=True)
class UiSettings:
    """The web UI at /ui of a server."""

    enabled: bool = True
    # comma-separated folders whose photos an account may see, if they are its own; None: none
    photo_roots: str | None = None
    label_spaces: bool = False  # shows underscores of names as spaces
    idle_s: float = _within(1, 2_592_000, default=3600.0)  # a session ends after this time without a request
    session_s: float = _within(1, 2_592_000, default=43_200.0)  # and at the latest this long after its sign-in


@dataclass(frozen=True)
class ReportSettings:
    # the web UI's address: names in a report link to it; None: that of a server which holds the store, if any
    link: str | None = field(default=None, metadata=_rule(_is_page, "an address such as https://photos.example/ui"))


@dataclass(frozen=True)
class Settings:
    source: SourceSettings = field(default_factory=SourceSettings)
    decode: DecodeSettings = field(default_factory=DecodeSettings)
    detect: DetectSettings = field(default_factory=DetectSettings)
    align: AlignSettings = field(default_factory=AlignSettings)
    embed: EmbedSettings = field(default_factory=EmbedSettings)
    match: MatchSettings = field(default_factory=MatchSettings)
    regroup: RegroupSettings = field(default_factory=RegroupSettings)
    model: ModelSettings = field(default_factory=ModelSettings)
    run: RunSettings = field(default_factory=RunSettings)
    ray: RaySettings = field(default_factory=RaySettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    report: ReportSettings = field(default_factory=ReportSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    serve: ServeSettings = field(default_factory=ServeSettings)
    ui: UiSettings = field(default_factory=UiSettings)
    given: frozenset[str] = frozenset()  # keys set by flags: these override what a directory remembers

    def __post_init__(self) -> None:
        for key in known_keys():
            section, name = key.split(".")
            if key != _THRESHOLD or self.match.threshold_fmr is None:
                _check(key, getattr(getattr(self, section), name), "the settings")

    def output_settings(self) -> dict[str, Any]:
        """Returns the settings that change the stored numbers, as JSON-able values."""
        sections = {section: dataclasses.asdict(getattr(self, section)) for section in OUTPUT_SECTIONS}
        return {**sections, "mode": self.run.mode}

    def output_hash(self) -> str:
        """SHA-256 over `output_settings()` in canonical JSON."""
        text = json.dumps(self.output_settings(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def nearest_threshold(value: float) -> float:
    """Maps a T of an earlier version or a calibration to one that the contract allows now."""
    return value if value == EVERYBODY else min(value, MAX_THRESHOLD)


_THRESHOLD = "match.threshold"
_RATE = "match.threshold_fmr"  # set only through the threshold, as fmr:1e-4
FMR = "fmr:"
_SECRET = frozenset({"security.master_key"})  # never repeated in a message or a report
# Values of old configurations, and their replacements.
_FORMER: Mapping[tuple[str, Any], Any] = {("run.backend", "onnxruntime"): OPENVINO}


def _check(key: str, value: Any, where: str) -> None:
    """Raises BadValue if `value` breaks the key's rule."""
    rule = _rules()[key]
    if rule and not rule["is_valid"](value):
        raise BadValue(key=key, where=where, value=repr(value), expected=f"must be {rule['expected']}")


@functools.cache
def known_keys() -> Mapping[str, Any]:
    """Maps every key `section.name` to its type, in the order of the classes."""
    keys: dict[str, Any] = {}
    for section, cls in _sections().items():
        keys.update({f"{section}.{name}": hint for name, hint in typing.get_type_hints(cls).items()})
    return {key: hint for key, hint in keys.items() if key != _RATE}


@functools.cache
def _rules() -> Mapping[str, Mapping[str, Any]]:
    """Maps each key to its rule, empty if it has none."""
    sections = _sections().items()
    return {f"{section}.{each.name}": each.metadata for section, cls in sections for each in dataclasses.fields(cls)}


@functools.cache
def _sections() -> Mapping[str, Any]:
    """Maps each section to its class."""
    return {name: cls for name, cls in typing.get_type_hints(Settings).items() if dataclasses.is_dataclass(cls)}


def load_settings(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Settings:
    """Merges defaults, then `file` (YAML), then `environ`, then `flags` (`section.name` -> value; None = not given).

    Without `file`, FACEPIPE_CONFIG of `environ` names it. `environ` None is the process's environment. Raises
    UnknownKey, BadValue, or UsageError if the file cannot be read or is no mapping.
    """
    environ = os.environ if environ is None else environ
    if file is None and environ.get(ENV_CONFIG):
        file = Path(environ[ENV_CONFIG])
    values: dict[str, Any] = {}
    if file is not None:
        values.update(_from_yaml(file))
    values.update(_from_environ(environ))
    return with_flags(_changed(Settings(), values), flags or {})


def with_flags(settings: Settings, flags: Mapping[str, Any]) -> Settings:
    """Returns `settings` with these values (None = not given). Raises UnknownKey, BadValue."""
    given = {key: value for key, value in flags.items() if value is not None}
    values: dict[str, Any] = {}
    for key, value in given.items():
        values |= _accepted(key, value, "the flags")
    return dataclasses.replace(_changed(settings, values), given=settings.given | given.keys())


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {"model.cache": environ[ENV_CACHE]} if environ.get(ENV_CACHE) else {}
    for variable, text in environ.items():
        if variable.startswith(ENV_PREFIX) and variable not in ENV_OTHER:
            key = variable[len(ENV_PREFIX) :].lower().replace("__", ".", 1)
            values |= _accepted(key, text, f"the environment ({variable})")
    return values


def _from_yaml(file: Path) -> dict[str, Any]:
    where = str(file)
    try:
        data = yaml.load(file.read_text("utf-8"), _StrictLoader)  # a SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        raise UsageError(message=f"The configuration {where} cannot be read: {_problem(exc)}") from exc
    if data is None:
        return {}
    if not isinstance(data, dict):
        raise UsageError(message=f"The configuration {where} must be a mapping of sections, not {type(data).__name__}.")
    values: dict[str, Any] = {}
    sections = list(_sections())
    for section, content in data.items():
        if section not in sections:
            raise UnknownKey(key=section, where=where, hint=_nearest(str(section), sections))
        if content is None:
            continue
        if not isinstance(content, dict):
            raise BadValue(key=section, where=where, value=repr(content), expected="must be a mapping")
        for name, value in content.items():
            values |= _accepted(f"{section}.{name}", value, where)
    return values


def _problem(exc: Exception) -> str:
    """Returns the problem without the file's lines, which YAML's message repeats: they may contain the master key."""
    if isinstance(exc, yaml.MarkedYAMLError) and exc.problem_mark is not None:
        return f"{exc.problem} in line {exc.problem_mark.line + 1}"
    return str(exc)


class _StrictLoader(yaml.SafeLoader):
    """A YAML loader that refuses duplicate keys; plain YAML silently keeps the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for position, (key, _) in enumerate(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value in keys[:position]:
                raise yaml.constructor.ConstructorError(None, None, f'"{key.value}" is given twice', key.start_mark)
        return super().construct_mapping(node, deep)


def _accepted(key: str, value: Any, where: str) -> dict[str, Any]:
    """Returns `key` with `value` converted to its type, and related keys. Raises UnknownKey or BadValue, which name
    `where` it was given."""
    if key not in known_keys():
        raise UnknownKey(key=key, where=where, hint=_nearest(key, known_keys()))
    if key == _THRESHOLD and isinstance(value, str) and value.strip().lower().startswith(FMR):
        return {_THRESHOLD: math.nan, _RATE: _parse_rate(value, where)}
    parsed = _convert(key, value, where)
    parsed = _FORMER.get((key, parsed), parsed)
    _check(key, parsed, where)
    return {key: parsed, _RATE: None} if key == _THRESHOLD else {key: parsed}


def _parse_rate(text: str, where: str) -> float:
    """Parses the rate in `fmr:1e-4`. Raises BadValue."""
    rate = _as_type(float, text.strip()[len(FMR) :])
    if rate is None or not 0 < rate < 1:
        expected = f"must be {THRESHOLD_RULE}, or a false match rate between 0 and 1, as in fmr:1e-4"
        raise BadValue(key=_THRESHOLD, where=where, value=repr(text), expected=expected)
    return float(rate)


def _nearest(key: str, keys: Iterable[str]) -> str:
    """Suggests the key probably meant: the same name in another section, or a similar spelling."""
    keys, name = list(keys), key.rpartition(".")[2]
    same_name = [other for other in keys if other.rpartition(".")[2] == name]
    close = same_name or difflib.get_close_matches(key, keys, n=1, cutoff=0.6)
    return f' Did you mean "{close[0]}"?' if close else f" Known: {', '.join(sorted(keys))}."


def _convert(key: str, value: Any, where: str) -> Any:
    """Converts `value` to the key's type; text is parsed. Raises BadValue."""
    options = typing.get_args(known_keys()[key]) or (known_keys()[key],)
    if value is None or value == "":
        if type(None) in options:
            return None
        raise BadValue(key=key, where=where, value="empty", expected=f"must be {_type_name(options)}")
    for option in options:
        parsed = _as_type(option, value)
        if parsed is not None:
            return parsed
    shown = "of the wrong type" if key in _SECRET else repr(value)
    raise BadValue(key=key, where=where, value=shown, expected=f"must be {_type_name(options)}")


def _as_type(option: Any, value: Any) -> Any:
    """Converts `value` to bool, int, float or str; None if it is not one."""
    if option is bool:
        text = str(value).lower() if isinstance(value, (bool, str)) else ""
        return {"true": True, "false": False}.get(text)
    if option is str:
        return value if isinstance(value, str) else None
    if option not in (int, float) or isinstance(value, bool):
        return None
    try:
        number = option(value)
    except (TypeError, ValueError, OverflowError):
        return None
    # int() would silently drop a fraction.
    return None if option is int and isinstance(value, float) and value != number else number


_TYPE_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "empty"}


def _type_name(options: tuple[Any, ...]) -> str:
    return " or ".join(_TYPE_NAMES[option] for option in options)


def _changed(settings: Settings, values: Mapping[str, Any]) -> Settings:
    sections: dict[str, dict[str, Any]] = {}
    for key, value in values.items():
        section, name = key.split(".")
        sections.setdefault(section, {})[name] = value
    changed = {section: dataclasses.replace(getattr(settings, section), **own) for section, own in sections.items()}
    return dataclasses.replace(settings, **changed)


def without_secrets(word: str) -> str:
    """Masks a secret setting's value in a word of the command line with dots."""
    for key in _SECRET:
        word = re.sub(rf"({re.escape(key)}\s*=).*", r"\1...", word, flags=re.DOTALL)
    return word
