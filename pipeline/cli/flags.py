"""Options that several commands have, and the flags that set settings: one table, so that a flag means the same in
every command.

A flag's text goes to `config.load_settings`, which checks it like a value from a file or the environment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from pipeline.config import ENV_STORE, Settings, load_settings
from pipeline.errors import UsageError
from pipeline.runtime.buckets import is_address
from pipeline.texts import directory_name

PATH = click.Path(path_type=Path)


class _SourceType(click.ParamType):  # type: ignore[type-arg, unused-ignore]
    """A path; an address such as s3://bucket/photos stays text, as a path would lose a slash."""

    name = "source"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if is_address(value) else PATH.convert(value, param, ctx)


SOURCE = _SourceType()


def _checked_directory(_: click.Context, __: click.Parameter, name: str) -> str:
    try:
        return directory_name(name)
    except ValueError as exc:
        raise click.BadParameter(f"{name!r} {exc}.") from None


source_argument = click.argument("source", type=SOURCE)
# `extract` and `group` go on with the planned run where no source is named.
optional_source_argument = click.argument("source", type=SOURCE, required=False)
# Of commands that need a store. `demo`, and those that do other work with one (`evaluate pairs`), need the flag.
_STORE: dict[str, Any] = {"type": PATH, "envvar": ENV_STORE, "show_envvar": True, "metavar": "DIR"}
store_option = click.option("--store", required=True, help="The store.", **_STORE)
account_option = click.option("--account", metavar="USERID", help="The account; not needed while there is only one.")
_directory_option = click.option(
    "--directory",
    callback=_checked_directory,
    default="main",
    show_default=True,
    metavar="NAME",
    help="Identities are matched within it.",
)
config_option = click.option("--config", type=PATH, metavar="FILE", help="Settings as YAML [env: FACEPIPE_CONFIG].")
set_option = click.option(
    "--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Set any setting; repeatable."
)


def optional_store(text: str, *, unless: str = "") -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds a `--store` that may be missing. The parameter `unless` takes precedence over the environment's."""

    def chosen(ctx: click.Context, _: click.Parameter, store: Path | None) -> Path | None:
        by_environment = ctx.get_parameter_source("store") is ParameterSource.ENVIRONMENT
        return None if by_environment and ctx.params.get(unless) is not None else store  # what is typed comes first

    return click.option("--store", callback=chosen, help=text, **_STORE)


def place_options(function: Callable[..., None]) -> Callable[..., None]:
    """Adds `--account` and `--directory`."""
    return account_option(_directory_option(function))


# A flag has the name of its setting: setting -> (metavar, "" for a switch; help).
_FLAGS = {
    "source.labels": ("none|parent", "parent: a photo's folder is the name of the person in it."),
    "source.root": ("DIR", "Refuse files outside this folder; a manifest's relative paths start here."),
    "source.include": ("PATTERN", "Take only files that match or lie in a folder that does; repeatable."),
    "source.exclude": ("PATTERN", "Leave out files and folders that match, as in '*.gif'; repeatable."),
    "detect.min_face_px": ("N", "Faces smaller than this are not looked for."),
    "detect.min_confidence": ("X", "Faces the detector is less sure of are dropped."),
    "match.threshold": ("T", "Grouping threshold in [0, 3.99] or 4, higher joins more; or fmr:RATE."),
    "match.min_cpq": ("X", "Least centre-pose quality of a new identity; 0 switches the check off."),
    "match.min_fsq": ("X", "Least sharpness quality of a new identity; 0 switches it off."),
    "match.min_fcq": ("X", "Least contrast quality of a new identity; 0 switches it off."),
    "match.once_per_photo": ("", "Nobody twice on a photo: the other face takes its next match or is new."),
    "regroup.method": ("sequential|average-link", "average-link: by all pairs of faces, instead of one by one."),
    "regroup.precision": (
        "P",
        "Of average-link: the share of pairs in one identity that shall show one person [0.99].",
    ),
    "regroup.cut": (
        "T",
        "Of average-link: the T that the mean of two clusters' pairs reaches; instead of --precision.",
    ),
    "run.engine": ("local|ray", "ray: extract on a Ray cluster (docs/cluster.md)."),
    "run.shard_folder": ("DIR", "Where workers of Ray leave shards: a folder all nodes share, or s3://..."),
    "ray.address": ("HOST:PORT|auto", "The Ray cluster to join; else one is started here."),
    "run.device": ("DEVICE", "auto, cpu, cuda or cuda:N. CUDA asked for and not there is an error."),
    "run.threads": ("N", "Threads of decoding and of the CPU networks; 0: all cores."),
    "run.check_inode": ("", "Read files again whose inode changed, though size and times did not."),
    "run.rehash": ("", "Read all files again, also those whose size and times did not change."),
    "run.on_missing": ("keep|mark|forget", "What to do with photos that are no longer in the source [mark]."),
    "run.missing_limit": ("SHARE", "Forget none where more than this share of a source is missing [0.2]."),
    "run.mode": ("exact|fast", "fast: the embedder in half precision where that pays; fixed when the store is made."),
    "model.weights": ("NAME", "auto, casia-webface, vggface2 or sface; fixed when the store is made."),
    "model.weights_file": ("FILE", "The weights as a file, instead of from the cache."),
    "model.calibration": ("FILE|none", "A new store's calibration, of `facepipe calibrate`."),
    "store.erase_within": ("HOURS", "When deleted data are erased from the catalog's file, too; 0: at once."),
    "report.link": ("URL", "The web UI's address, such as http://127.0.0.1:8080/ui: names link to it."),
    "security.encrypt": ("", "Encrypt a new store's images (fixed from then on)."),
    "security.master_key_file": ("FILE", "The master key of an encrypted store's images."),
    "serve.host": ("ADDRESS", "Where to listen; 0.0.0.0 is everywhere (then use TLS)."),
    "serve.port": ("N", "The port; 0 takes a free one."),
    "serve.object_port": ("N", "A second port for the same service; 0 takes a free one."),
    "serve.tls_cert": ("FILE", "Certificate chain, PEM; with --tls-key."),
    "serve.tls_key": ("FILE", "Private key, PEM; with --tls-cert."),
    "serve.trusted_proxies": ("LIST", "Addresses or networks whose X-Forwarded-For names the client."),
    "serve.allowed_hosts": ("LIST", "Names by which clients may call the server, or *."),
    "serve.cors_origins": ("LIST", "Origins of web pages that may call, or *."),
    "serve.hosting": ("local|cloud", "cloud: objects are answered encrypted, with public addresses."),
    "serve.public_url": ("URL", "Where clients reach the objects, for image addresses."),
    "serve.object_scheme": ("NAME", "Scheme of image addresses; else cvos, in the cloud https."),
    "serve.person_headers": ("required|optional", "Whether an insertion needs name and id."),
    "serve.unique_external_ids": ("", "Refuse an external id in use with 409."),
    "serve.update_conflicts": ("refuse|apply", "Updates of a person by another name or id."),
    "serve.changes": ("", "Answer GET /changes: an account's changes since a commit."),
    "serve.max_body_bytes": ("N", "Larger images are refused."),
    "serve.queue_images": ("N", "Images that may wait; more get 503."),
    "ui.photo_roots": ("LIST", "Folders of which the page at /ui shows an account's own photos."),
}

_SOURCE = ("source.labels", "source.root", "source.include", "source.exclude")
_COMPARE = ("run.check_inode", "run.rehash", "run.on_missing", "run.missing_limit")
_LISTS = frozenset({"source.include", "source.exclude"})  # repeatable: the setting holds them separated by commas
_DETECT = ("detect.min_face_px", "detect.min_confidence")
_GATE = ("match.threshold", "match.min_cpq", "match.min_fsq", "match.min_fcq")
_DECIDE = (*_GATE, "match.once_per_photo")
_REGROUP = ("regroup.method", "regroup.precision", "regroup.cut")
_ENGINE = ("run.engine", "run.shard_folder", "ray.address")
_MACHINE = ("run.device", "run.threads")
_MODEL = ("model.weights", "model.weights_file")
_NEW_MODEL = (*_MODEL, "model.calibration", "run.mode")
_SECURITY = ("security.encrypt", "security.master_key_file")

# The flags of each kind of command; `--set` reaches every setting everywhere. Scanning takes all of them:
# it makes the store where there is none, and settles the run's thresholds.
ALL_FLAGS = (*_SOURCE, *_COMPARE, *_DETECT, *_DECIDE, *_ENGINE, *_MACHINE, *_NEW_MODEL, *_SECURITY)
RUN_FLAGS = (*ALL_FLAGS, *_REGROUP)
EXTRACT_FLAGS = (*_ENGINE, *_MACHINE, *_MODEL, "security.master_key_file")
GROUP_FLAGS = (*_MODEL, "security.master_key_file")
REGROUP_FLAGS = (*_REGROUP, *_GATE, *_MACHINE, "model.weights_file", "security.master_key_file")
REINDEX_FLAGS = (*_NEW_MODEL, *_ENGINE, *_MACHINE, "run.missing_limit", "security.master_key_file")
DRAW_FLAGS = (*(key for key in _GATE if key != "match.threshold"), *_MACHINE, "model.weights_file")
SEARCH_FLAGS = ("match.threshold", *_MACHINE, "model.weights_file")
_SERVE = tuple(key for key in _FLAGS if key.startswith(("serve.", "ui.")))
SERVE_FLAGS = (*_SERVE, *_DECIDE, *_MACHINE, "model.weights_file", "security.master_key_file")
DEMO_FLAGS = (*_MACHINE, *_MODEL)
BENCH_FLAGS = ("source.root", "detect.min_face_px", *_MACHINE, "run.mode", *_MODEL)
ACCOUNT_FLAGS = (*_NEW_MODEL, *_SECURITY)


def settings_options(keys: tuple[str, ...]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds the flags of `keys`, `--config` and `--set`; the function gets the settings that they make as `settings`."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def command(config: Path | None, assignments: tuple[str, ...], **options: Any) -> None:
            flags = {key: options.pop(_argument(key)) for key in keys}
            flags.update({key: ",".join(flags[key]) or None for key in _LISTS.intersection(keys)})
            function(settings=settings_from(config, assignments, flags), **options)

        command = config_option(set_option(command))
        for key in reversed(keys):
            metavar, text = _FLAGS[key]
            # Without the switch its value is None, like any other flag's: the file or the environment may set it.
            kind: dict[str, Any] = {"metavar": metavar} if metavar else {"is_flag": True, "default": None}
            kind |= {"multiple": True} if key in _LISTS else {}
            command = click.option(f"--{_argument(key).replace('_', '-')}", help=text, **kind)(command)
        return command

    return decorate


def _argument(key: str) -> str:
    """The name under which click has the flag of a setting."""
    return key.partition(".")[2]


def settings_from(config: Path | None, assignments: Iterable[str], flags: Mapping[str, str | bool | None]) -> Settings:
    """The settings of one command: defaults, the file `config`, environment, `assignments` of `--set`, then `flags`.

    Raises UsageError, UnknownKey or BadValue.
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals:
            raise UsageError(
                message=f'--set takes SECTION.KEY=VALUE, as in --set run.batch_images=16, not "{assignment}".'
            )
        values[key.strip()] = value.strip()
    values.update((key, value) for key, value in flags.items() if value is not None)
    return load_settings(config, flags=values)
