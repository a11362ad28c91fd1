"""`facepipe evaluate`, one subcommand for each kind of experiment, `facepipe calibrate` and `facepipe bench`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from contextlib import closing
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

import click

from pipeline.cli.flags import (
    BENCH_FLAGS,
    PATH,
    optional_source_argument,
    optional_store,
    place_options,
    settings_options,
    source_argument,
)
from pipeline.cli.groups import CommandGroup
from pipeline.cli.output import dumps, emit, output_options
from pipeline.cli.progress import open_progress
from pipeline.config import AVERAGE_LINK, CONTRACT_FMR, CONTRACT_THRESHOLD, SEQUENTIAL, without_secrets
from pipeline.errors import UsageError
from pipeline.texts import path_text

if TYPE_CHECKING:
    from pipeline.evaluation.report import Report

# The settings of the embedder, and of the scale of its distances.
MODEL_FLAGS = ("run.device", "run.threads", "model.weights", "model.weights_file")
EMBEDDING_FLAGS = (*MODEL_FLAGS, "model.calibration")

out_option = click.option(
    "--out", type=PATH, metavar="DIR", help="Write the figures as JSON and a page with plots as HTML to this folder."
)
images_option = click.option(
    "--images", type=PATH, metavar="DIR", help="Folder of the photos; default: the folder of the list."
)
all_pairs_option = click.option(
    "--all-pairs", is_flag=True, help="Error rates over all pairs of all photos of the people in the list."
)
stored_option = click.option(
    "--store", type=PATH, metavar="DIR", help="Use the embeddings of this store instead of computing them."
)


@click.group(cls=CommandGroup)
def evaluate() -> None:
    """Measure accuracy on labelled photos.

    Each subcommand prints its figures; with --out DIR it also writes them as JSON, and a page with plots as HTML.
    """


@evaluate.command()
@click.argument("pairs", type=PATH)
@images_option
@click.option(
    "--train", type=PATH, metavar="PAIRS", help="Use the threshold that is best on these pairs of other people."
)
@all_pairs_option
@stored_option
@out_option
@settings_options(("match.threshold", *EMBEDDING_FLAGS))
@output_options
def pairs(out: Path | None, as_json: bool, **inputs: Any) -> None:
    """Verify pairs of photos, one person or two: accuracy, and FNMR at FMR.

    PAIRS is a list in the format of Labeled Faces in the Wild (photo i of a person is Name/Name_000i.jpg), or CSV
    with the columns path_a, path_b and same (1 or 0). Accuracy is measured at the threshold that is best on --train;
    without it, on the other folds if the list has folds, else at --threshold.

    \b
    Examples:
      facepipe evaluate pairs pairs.txt --images lfw/ --out figures
      facepipe evaluate pairs pairsDevTest.txt --images lfw/ --train pairsDevTrain.txt --all-pairs
      facepipe evaluate pairs pairs.csv --images photos/ --store ~/people --json
    """
    from pipeline.evaluation.pairs import report_pairs

    experiment(report_pairs, inputs, out, "Pairs of photos", as_json)


@evaluate.command()
@click.argument("source", type=PATH, metavar="LABELS")
@click.option(
    "--gallery-per-person",
    "per_person",
    type=click.IntRange(min=1),
    metavar="N",
    help="The gallery is each person's first N photos, not those that the column set marks.",
)
@stored_option
@out_option
@settings_options(("source.labels", "source.root", "match.threshold", *EMBEDDING_FLAGS))
@output_options
def identification(out: Path | None, as_json: bool, **inputs: Any) -> None:
    """Search probes in a gallery of known people: rank 1, and FNIR at FPIR.

    LABELS is a manifest with the columns path, name and set (gallery or probe), or a folder with one subfolder per
    person and --labels parent. With --gallery-per-person N, people with more than N photos are the gallery with
    their first N, their other photos are mated probes, and the photos of all other people are non-mated probes.

    \b
    Examples:
      facepipe evaluate identification labels.csv --store ~/people
      facepipe evaluate identification lfw/ --labels parent --gallery-per-person 1 --out figures
    """
    from pipeline.evaluation.identification import report_identification

    experiment(report_identification, inputs, out, "Identification", as_json)


@evaluate.command()
@click.argument("source", type=PATH, metavar="LABELS")
@optional_store("Compare with the identities of this store.", unless="clusters")
@click.option(
    "--clusters", type=PATH, metavar="FILE", help="Compare with a CSV, JSON Lines or Parquet table of path and cluster."
)
@place_options
@click.option("--sweep", is_flag=True, help="Group the labelled faces of --store again, at many thresholds.")
@click.option("--method", type=click.Choice((SEQUENTIAL, AVERAGE_LINK)), help="Of --sweep; default: both.")
@out_option
@settings_options(("source.labels", "source.root"))
@output_options
def clustering(sweep: bool, method: str | None, out: Path | None, as_json: bool, **inputs: Any) -> None:
    """Compare identities with labels: pairwise and BCubed precision, recall and F.

    LABELS is a manifest with the columns path and name, or a folder with one subfolder per person and --labels
    parent. Of a photo with several faces, the one nearest the centre is the labelled one. Lists the identities that
    mix people most, and the people that are split most. With --sweep it groups the labelled faces again, by each
    method of `regroup` at many thresholds, and draws precision and recall against them.

    \b
    Examples:
      facepipe evaluate clustering lfw/ --labels parent --store ~/people --out figures
      facepipe evaluate clustering labels.csv --clusters clusters.parquet --json
      facepipe evaluate clustering lfw/ --labels parent --store ~/people --sweep --out figures
    """
    if sweep:
        from pipeline.evaluation.sweep import METHODS, report_sweep

        if inputs["store"] is None or inputs["clusters"] is not None:
            raise UsageError(message="--sweep groups the faces of a store again: give --store DIR, without --clusters.")
        source, settings, store = (inputs[name] for name in ("source", "settings", "store"))
        inputs = {"source": source, "settings": settings, "store": store, "methods": [method] if method else METHODS}
        experiment(report_sweep, inputs, out, "Clustering by threshold", as_json)
        return
    if method is not None:
        raise UsageError(message="--method is of --sweep; give --sweep as well.")
    from pipeline.evaluation.clustering import report_clustering

    experiment(report_clustering, inputs, out, "Clustering", as_json)


@evaluate.command()
@click.argument("boxes", type=PATH, nargs=-1, required=True)
@click.option(
    "--images", type=PATH, metavar="DIR", help="Folder where relative paths start; default: the folder of BOXES."
)
@click.option(
    "--min-px",
    type=click.FloatRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Smaller faces count neither as found nor as missed.",
)
@click.option("--store", type=PATH, metavar="DIR", help="Use the faces of this store instead of detecting them.")
@place_options
@out_option
@settings_options(("detect.min_face_px", "detect.min_confidence", "run.device", "run.threads"))
@output_options
def detection(out: Path | None, as_json: bool, **inputs: Any) -> None:
    """Compare the detector's faces with annotated boxes: recall, precision, AP.

    BOXES are XML files as imglab or Pascal VOC write them, folders of these, or CSV files with the columns path, x1,
    y1, x2, y2 and optionally ignore. AP is over the faces with at least --min-confidence: 0 takes all of the
    detector's candidates.

    \b
    Examples:
      facepipe evaluate detection boxes.xml --min-px 40
      facepipe evaluate detection Annotations/ --images JPEGImages/ --min-confidence 0 --out figures
    """
    from pipeline.evaluation.detection import report_detection

    experiment(report_detection, inputs, out, "Detection", as_json)


@click.command()
@optional_source_argument
@click.option(
    "--fmr",
    type=float,
    metavar="RATE",
    help=f"The false match rate at T = {CONTRACT_THRESHOLD:g}; default: {CONTRACT_FMR:g}, or the lowest that the pairs "
    "can measure.",
)
@images_option
@all_pairs_option
@optional_store("Use the embeddings of this store instead of computing them.", unless="source")
@place_options
@click.option("--leave-out", type=PATH, metavar="FILE", help="Without the photos in this list: their labels are wrong.")
@click.option("--dataset", metavar="TEXT", help="Name of the data in the record; default: the source's name.")
@click.option("--out", type=PATH, metavar="FILE", help="Write the calibration to this file, for --calibration FILE.")
@settings_options(("source.labels", "source.root", *MODEL_FLAGS))
@output_options
def calibrate(out: Path | None, as_json: bool, **inputs: Any) -> None:
    """Calibrate distances on labelled photos like yours.

    SOURCE is a folder with one subfolder per person (and --labels parent), a manifest with the columns path and name,
    or a list of pairs; without it, the named rows of --store are used. Finds the exponent that maps the distance at
    the false match rate --fmr to the threshold 0.54, and the thresholds at other rates. A rate of 1/n needs 3n pairs
    of different people: with fewer, --fmr is refused, and without it the lowest rate that they can measure is taken.
    A new store takes the file with `facepipe run ... --calibration FILE`.

    The report names the nearest pairs of different people. Look at them: photos of one person under two names shift
    the low rates. --leave-out takes a text file with the end of a photo's path in each line, and ` # reason` after it.

    \b
    Examples:
      facepipe calibrate by-person/ --labels parent --out calibration.json
      facepipe calibrate pairsDevTrain.txt --images lfw/ --all-pairs --fmr 1e-4
      facepipe calibrate --store ~/people --json
    """

    if out is not None:
        if out.is_dir():
            raise UsageError(message=f"--out takes a file, and {path_text(out)} is a folder.")
        if out.exists():
            raise UsageError(message=f"{path_text(out)} is there already: name another file with --out, or move it.")
        _make_folder(out.absolute().parent)
    from pipeline.evaluation.calibration import report_calibration

    with closing(open_progress()) as progress:
        report = report_calibration(**inputs, progress=progress)
    lines = list(report.lines())
    if out is not None:
        report.write(out)
        lines.append(f"written     {out}")
    emit(report.as_dict(), lines, as_json)


@click.command()
@source_argument
@click.option("--images", type=click.IntRange(1), default=64, show_default=True, metavar="N", help="Photos to compare.")
@click.option(
    "--repeats", type=click.IntRange(1), default=3, show_default=True, metavar="N", help="Turns of each side."
)
@settings_options(BENCH_FLAGS)
@output_options
def bench(as_json: bool, **inputs: Any) -> None:
    """Compare the speed with facenet-pytorch's on photos of SOURCE.

    SOURCE is a folder or a manifest, as for `facepipe run`. facepipe and a reference take turns to extract an evenly
    spaced sample of its photos, with the same settings, threads and weights; then their faces are compared. The
    reference takes photos of one size together. It depends on --weights:

    \b
      casia-webface, vggface2  the loop in facenet-pytorch's README: MTCNN and InceptionResnetV1
      sface                    facenet-pytorch's MTCNN, alignment by landmarks, and SFace in plain torch

    Photos that the two decode differently, or that are too small for the reference, are left out. Only the cache of
    weights is written.

    Both run in this process with all its cores. scripts/bench/bench_extract.py also tries one process per core, and
    takes whichever is faster for the reference.

    \b
    Examples:
      facepipe bench ~/photos
      facepipe bench people.csv --images 200 --device cuda --json
    """
    from pipeline.evaluation.bench.bench import bench as compare

    with closing(open_progress()) as progress:
        report = compare(**inputs, progress=progress)
    emit(report.as_dict(), report.lines(), as_json)


def _make_folder(out: Path) -> None:
    """Makes the folder `out` and checks that it is writable, before the long work starts. Raises UsageError."""

    try:
        out.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=out):
            pass
    except (OSError, ValueError) as exc:  # ValueError: NUL in a name
        reason = (exc.strerror if isinstance(exc, OSError) else None) or exc
        raise UsageError(message=f"The folder {path_text(out)} of --out cannot be written: {reason}.") from exc


def experiment(
    measure: Callable[..., Report[Any]], inputs: Mapping[str, Any], out: Path | None, title: str, as_json: bool
) -> None:
    """Measures, prints the report, and writes it as JSON and as a page, named after the command, into the folder `out`,
    if there is one.

    Raises UsageError, StoreFull or StoreUnwritable of the folder.
    """
    if out is not None:
        _make_folder(out)
    with closing(open_progress()) as progress:
        report = measure(**inputs, progress=progress)
    origin = _origin()
    figures = {**report.as_dict(), **origin}
    written: list[Path] = []
    if out is not None:
        from pipeline.evaluation.report import Row, Section, write_page
        from pipeline.store import Folder

        name = click.get_current_context().info_name
        rows = [Row(label, text) for label, text in {"weights": figures["weights"] or "none", **origin}.items()]
        written = [out / f"{name}.json", out / f"{name}.html"]
        Folder(out).write(written[0].name, (dumps(figures) + "\n").encode(), "figures")
        write_page(written[1], title, [*report.sections, Section("How this page was made", rows)])
    emit(figures, [*report.lines(), *(f"written     {file}" for file in written)], as_json)


def _origin() -> dict[str, str]:
    """Where and when figures were made: the version, the time and the command line."""
    words = click.get_current_context().find_root().obj or ()
    return {
        "facepipe": version("facepipe"),
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shlex.join(["facepipe", *map(without_secrets, words)]),
    }
