"""`facepipe demo` and `facepipe doctor`: does facepipe work on this machine?"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from pipeline.cli.flags import DEMO_FLAGS, PATH, optional_store, settings_options
from pipeline.cli.output import emit, end_with, output_options
from pipeline.cli.progress import LongWork
from pipeline.config import AUTO, Settings
from pipeline.errors import SelfCheckFailed


@click.command()
@click.option("--store", type=PATH, default="demo-store", show_default=True, metavar="DIR", help="The demo's store.")
@click.option("--photos", type=PATH, default="demo-photos", show_default=True, metavar="DIR", help="Its photos.")
@settings_options(DEMO_FLAGS)
@output_options
def demo(store: Path, photos: Path, as_json: bool, settings: Settings) -> None:
    """Create a store from sample photos, and compare it with what the photos show.

    The samples are about thirty files made from two public-domain portraits, some faceless, some broken. Ends with exit
    code 8 unless the identities, the faceless files and the rejects are exactly those of the samples' table.

    \b
    Examples:
      facepipe demo
      facepipe demo --device cuda --store /tmp/demo-store --photos /tmp/demo-photos
    """
    from pipeline.tools.demo import run_demo

    with LongWork() as long:
        result = run_demo(photos, store, settings, long.progress, long.stop)
    if result.differences:
        error = SelfCheckFailed(check="The demo", detail="; ".join(result.differences))
        end_with(error, result.as_dict(), result.lines(), as_json)
    emit(result.as_dict(), result.lines(), as_json)


@click.command()
@optional_store("Look at this store, too.")
@settings_options(DEMO_FLAGS)
@output_options
def doctor(store: Path | None, as_json: bool, settings: Settings) -> None:
    """Find out what is wrong with this machine, and how to repair it.

    Checks Python, torch, the device, the weights, the cache, the image formats and the disk. A device that is named is
    also tried, in some seconds: a public-domain photo must give the faces and embeddings of plain torch on the CPU.
    Ends with exit code 8 if something would stop a run, or the device computes wrongly.

    \b
    Examples:
      facepipe doctor
      facepipe doctor --device cuda --store ~/people
    """
    from pipeline.tools.doctor import FAIL, examine

    findings = examine(settings, store)
    if settings.run.device != AUTO and not any(finding.level == FAIL for finding in findings):
        from pipeline.tools.device_trial import try_device

        findings += try_device(settings)
    report = {"findings": [asdict(finding) for finding in findings]}
    lines = [line for finding in findings for line in finding.lines()]
    failed = [finding.subject for finding in findings if finding.level == FAIL]
    if failed:
        end_with(SelfCheckFailed(check="doctor", detail=", ".join(failed)), report, lines, as_json)
    emit(report, lines, as_json)
