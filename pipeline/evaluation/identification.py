"""One to many: does a search return an enrolled person, and nobody for a stranger?

Terms and rates are those of ISO/IEC 19795-1:2021 and of NIST's evaluations (Grother et al., "Face Recognition Vendor
Test, Part 2: Identification", NIST IR 8271). N people are enrolled by one or more photos, the *gallery*. A search with
a *mated* probe, of an enrolled person, should return that person first; with a *non-mated* probe, of anybody else,
nobody.

    FPIR(N, T)     the share of non-mated searches that return anybody within the threshold T
    FNIR(N, 1, T)  the share of mated searches that do not return the person first and within T
    rank-1         1 - FNIR(N, 1, any T): the identification rate of a closed set

A probe without a face returns nobody. If it is mated, that is a miss, as in ISO for failures to acquire; so is a probe
of somebody whose gallery photos show no face. The search is the product's own: the nearest single reference by the
exact score of `pipeline.matching.match`, without the rule for identical images, which compares files, not faces.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pipeline.config import Settings
from pipeline.errors import InputError, ManifestInvalid
from pipeline.evaluation.labels import numbered, read_labels
from pipeline.evaluation.pairs import share_text
from pipeline.evaluation.portraits import embed_photos
from pipeline.evaluation.report import Report, Row, Section, Skipped, line_plot
from pipeline.evaluation.statistics import HAIR, Interval, interval, is_measurable, pairs_needed, resample_share
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.matching.score import MAX_DISTANCE
from pipeline.runtime.device import resolve_device
from pipeline.texts import path_text
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray, Progress

FPIRS: Final = (1e-1, 1e-2, 1e-3)
GALLERY: Final = "gallery"
PROBE: Final = "probe"
_CURVE_POINTS: Final = 200

_MATED = "A mated probe shows somebody of the gallery and should return that person first."
_NON_MATED = "A non-mated probe shows somebody else and should return nobody. A photo without a face returns nobody."
_RANK_1 = "The share of mated searches that return the person first. Intervals are over resamples of the mated people."
_FNIR = (
    "FNIR: the share of mated searches that do not return the person first and within the threshold. FPIR: the share "
    "of non-mated searches that return anybody within it. Both grow with the gallery: figures hold for "
    "this size only."
)


@dataclass(frozen=True)
class FnirAtFpir:
    """FNIR at the largest threshold with an FPIR of at most `fpir`."""

    fpir: float
    threshold: float | None  # T of the squared contract distance; None: too few non-mated searches (rule of 3)
    fnir: float | None
    fnir_interval_95: Interval | None  # over resamples of the mated people, at this threshold


@dataclass(frozen=True)
class IdentificationResult:
    """The result of `evaluate_identification`."""

    gallery_people: int  # N
    gallery_images: int
    gallery_images_without_face: int
    mated_searches: int
    mated_people: int
    non_mated_searches: int
    probes_without_face: int
    rank_1: float
    rank_1_interval_95: Interval
    fnir_at_fpir: tuple[FnirAtFpir, ...]
    threshold: float  # the requested T
    fnir_at_threshold: float
    fpir_at_threshold: float | None  # None: no non-mated search
    curve_fpir: tuple[float, ...]  # empty without non-mated searches
    curve_fnir: tuple[float, ...]


def gallery_by_column(path: object, sets: Sequence[Any], paths: Sequence[str]) -> BoolArray:
    """Returns [n] whether the column `set` of the manifest `path` puts each photo in the gallery. Raises
    ManifestInvalid."""
    for value, photo in zip(sets, paths, strict=True):
        if value not in (GALLERY, PROBE):
            label = "is empty" if value is None else f'is "{value}"'
            detail = f"the column set must be {GALLERY} or {PROBE}, and that of {photo} {label}"
            raise ManifestInvalid(path=path, detail=f"{detail}; or use --gallery-per-person")
    return np.array([value == GALLERY for value in sets], dtype=np.bool_)


def gallery_per_person(names: Sequence[str], count: int) -> BoolArray:
    """Returns [n] whether each photo is in the gallery: the first `count` of every person with more than that. Their
    other photos are mated probes; the photos of all other people are non-mated probes."""
    total, position = Counter(names), Counter[str]()
    in_gallery = np.zeros(len(names), dtype=np.bool_)
    for row, name in enumerate(names):
        position[name] += 1
        in_gallery[row] = total[name] > count >= position[name]
    return in_gallery


def evaluate_identification(
    embeddings: FloatArray, names: Sequence[str], in_gallery: BoolArray, matcher: Matcher, device: str = "cpu"
) -> IdentificationResult:
    """Searches every probe among the gallery.

    `embeddings`: [n, d] float32 of norm 1, NaN if a photo shows no face; `names`: [n] the person on it; `in_gallery`:
    [n] the others are probes. Raises InputError if nobody is enrolled or no probe is mated, EmbeddingInvalid.
    """
    _, people = numbered(names)
    # A partly NaN vector is broken, and does not stand for a missing face.
    has_face = ~np.asarray(np.isnan(embeddings).all(axis=1), dtype=np.bool_)
    enrolled = np.flatnonzero(in_gallery & has_face)
    if not len(enrolled):
        raise InputError(message="The gallery has no photo with a face, so nobody is enrolled.")
    probes = np.flatnonzero(~in_gallery)
    mated = np.isin(people[probes], people[in_gallery])
    if not mated.any():
        raise InputError(message="No probe shows anybody in the gallery, so there is nobody to find.")
    positions, distances = _search(embeddings, enrolled, probes, has_face, matcher, device)
    right = (positions >= 0) & (people[enrolled[positions]] == people[probes])
    returned = matcher.matches(distances) & np.isfinite(distances)
    # The smallest distance at which the person comes first; infinity: none.
    genuine, strangers = np.where(right, distances, np.inf)[mated], np.sort(distances[~mated])
    missed, mated_people = ~right[mated], people[probes[mated]]
    low, high = share_interval(missed, mated_people)
    fpirs, fnirs = _curve(genuine, strangers)
    return IdentificationResult(
        gallery_people=len(np.unique(people[enrolled])),
        gallery_images=len(enrolled),
        gallery_images_without_face=int((in_gallery & ~has_face).sum()),
        mated_searches=len(genuine),
        mated_people=len(np.unique(mated_people)),
        non_mated_searches=len(strangers),
        probes_without_face=int((~has_face[probes]).sum()),
        rank_1=1.0 - float(missed.mean()),
        rank_1_interval_95=(1.0 - high, 1.0 - low),
        fnir_at_fpir=tuple(_at_fpir(fpir, genuine, mated_people, strangers) for fpir in FPIRS),
        threshold=matcher.threshold,
        fnir_at_threshold=1.0 - float((returned & right)[mated].mean()),
        fpir_at_threshold=float(returned[~mated].mean()) if len(strangers) else None,
        curve_fpir=fpirs,
        curve_fnir=fnirs,
    )


def _search(
    embeddings: FloatArray, enrolled: IntArray, probes: IntArray, has_face: BoolArray, matcher: Matcher, device: str
) -> tuple[IntArray, DoubleArray]:
    """Returns [m] the position among `enrolled` of the reference nearest to each probe, and its contract distance; -1
    and infinity without a face."""
    index = ReferenceIndex(embeddings.shape[1], device)
    vectors = np.ascontiguousarray(embeddings[enrolled])
    index.append(vectors, np.arange(len(enrolled)), [()] * len(enrolled), np.zeros((len(enrolled), 4), np.float32))
    positions = np.full(len(probes), -1, dtype=np.int64)
    distances = np.full(len(probes), np.inf)
    searched = has_face[probes]
    nearest = matcher.nearest(index, np.ascontiguousarray(embeddings[probes[searched]]), 1)
    positions[searched], distances[searched] = nearest.positions[:, 0], nearest.distances[:, 0]
    return positions, distances


def _at_fpir(fpir: float, genuine: DoubleArray, people: IntArray, strangers: DoubleArray) -> FnirAtFpir:
    """`strangers` are the ascending distances of the non-mated searches."""
    if not is_measurable(fpir, len(strangers)):
        return FnirAtFpir(fpir, None, None, None)
    cut = _cut(strangers, math.floor(fpir * len(strangers) + 1e-9))
    missed = genuine > cut
    return FnirAtFpir(fpir, min(max(cut, 0.0), MAX_DISTANCE) ** 2, float(missed.mean()), share_interval(missed, people))


def _cut(strangers: DoubleArray, allowed: int) -> float:
    """The largest distance that includes at most `allowed` of the ascending `strangers`; -1 for none."""
    if allowed >= len(strangers):
        return math.inf
    # Slightly below the nearest stranger who must not match, against the rounding of T and of scores.
    nearest_rejected = float(strangers[allowed])
    return nearest_rejected * (1 - HAIR) if nearest_rejected > 0 else -1.0


def _curve(genuine: DoubleArray, strangers: DoubleArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """FNIR over FPIR from one false alarm to all, evenly on a logarithmic scale."""
    if not len(strangers):
        return (), ()
    allowed = np.unique(np.geomspace(1, len(strangers), _CURVE_POINTS).round().astype(np.int64))
    cuts = np.array([_cut(strangers, k) for k in allowed.tolist()])
    hits = np.searchsorted(np.sort(genuine), cuts, side="right")
    # At an infinite cut, `searchsorted` counts people who never come first as hits.
    hits = np.minimum(hits, int(np.isfinite(genuine).sum()))
    return tuple((allowed / len(strangers)).tolist()), tuple((1 - hits / len(genuine)).tolist())


def share_interval(events: BoolArray, people: IntArray) -> Interval:
    """95 % percentile interval of the share of `events` [m], over resamples of their people [m]: photos of one person
    are not independent (ISO/IEC 19795-1, on correlated trials)."""
    distinct, units = np.unique(people, return_inverse=True)
    shares = resample_share(events, np.stack([units, units], axis=1), len(distinct))
    return interval(shares) or (0.0, 1.0)


def report_identification(
    source: Path, settings: Settings, progress: Progress, *, per_person: int | None = None, store: Path | None = None
) -> Report[IdentificationResult]:
    """Reads the labels, reads or computes the embeddings, and searches.

    `source`: a manifest, or a folder with one subfolder per person. Its column `set` divides the photos into gallery
    and probes, or `per_person` does (see `gallery_per_person`). `store`: has the embeddings. Skips and counts unusable
    photos; a person without a usable gallery photo is not enrolled. Raises SourceMissing, ManifestInvalid, UsageError,
    InputError if nothing can be searched, StoreError, DeviceError, ModelError.
    """
    skipped = Skipped()
    progress.start("labels", None)
    column = None if per_person else "set"
    labels = read_labels(source, settings.source, skipped, column=column, advance=progress.advance)
    # Before the embedding, which may take long. None: `per_person` decides, among the usable photos.
    in_gallery = gallery_by_column(path_text(source), labels.columns, labels.paths) if column else None
    files = labels.to_embed(store is not None, skipped)
    portraits, identity, settings = embed_photos(files, settings, store, "evaluate identification", progress)
    for path, reason in portraits.skipped.items():
        skipped.add(reason, path)
    kept = [row for row, path in enumerate(labels.paths) if path in portraits.row]
    names = [labels.names[row] for row in kept]
    in_gallery = gallery_per_person(names, per_person or 0) if in_gallery is None else in_gallery[kept]
    vectors = portraits.embeddings[[portraits.row[labels.paths[row]] for row in kept]]
    matcher = Matcher(Calibration.from_dict(identity.calibration), settings.match.threshold)
    device = resolve_device(settings.run.device)
    with skipped.explaining():
        result = evaluate_identification(vectors, names, in_gallery, matcher, device)
    sections = [
        Section("Searches", _searches(result)),
        Section("Rates", _rates(result), _FNIR, _plots(result)),
        skipped.section(),
    ]
    figures = {
        **asdict(result),
        "labels": path_text(source),
        "gallery": f"{per_person} per person" if per_person else "the column set",
        "embeddings_from": "the models" if store is None else path_text(store),
        "photos": len(portraits.paths),
        "embedder": identity.embedder,
        "weights": identity.weights,
        "calibration": identity.calibration,
        **skipped.as_dict(),
    }
    return Report(result, figures, sections)


def _searches(r: IdentificationResult) -> list[Row]:
    searches = f"{r.mated_searches:,} mated, {r.non_mated_searches:,} non-mated"
    people = f"{r.mated_people:,} people in the mated searches, {r.probes_without_face:,} probes without a face"
    return [
        Row("gallery", f"{r.gallery_people:,} people, {r.gallery_images:,} photos"),
        Row("", f"{r.gallery_images_without_face:,} further photos show no face", detail=True),
        Row("searches", searches, f"{_MATED} {_NON_MATED}"),
        Row("", people, detail=True),
    ]


def _rates(r: IdentificationResult) -> list[Row]:
    alarms = "" if r.fpir_at_threshold is None else f", FPIR {r.fpir_at_threshold:.3%}"
    return [
        Row("rank 1", share_text(r.rank_1, r.rank_1_interval_95), _RANK_1),
        *(Row("FNIR", f"{described(rate)} at FPIR {rate.fpir:g}") for rate in r.fnir_at_fpir),
        Row("at T", f"FNIR {r.fnir_at_threshold:.2%}{alarms} at T = {r.threshold:g}"),
    ]


def described(rate: FnirAtFpir) -> str:
    """The rate in words, with its interval and threshold."""
    if rate.fnir is None or rate.threshold is None:
        return f"not measurable (needs {pairs_needed(rate.fpir):,} non-mated searches)"
    return share_text(rate.fnir, rate.fnir_interval_95, f"T = {rate.threshold:.4f}")


def _plots(r: IdentificationResult) -> Iterator[str]:
    if r.curve_fpir:
        title, scale = f"FNIR over FPIR, {r.gallery_people:,} people", {"xscale": "log", "ylim": (0.0, None)}
        yield line_plot(title, r.curve_fpir, r.curve_fnir, xlabel="FPIR", ylabel="FNIR", **scale)
