"""One to many: is a person found among those that are known, and strangers among none of them?

Terms and rates are those of ISO/IEC 19795-1:2021 and of NIST's evaluations (Grother et al., "Face Recognition Vendor
Test, Part 2: Identification", NIST IR 8271). N people are enrolled, by one photo or several, the *gallery*. A search
with a *mated* probe, of somebody enrolled, should return that person first; with a *non-mated* probe, of somebody
else, nobody.

    FPIR(N, T)     the share of non-mated searches that return anybody within the threshold T
    FNIR(N, 1, T)  the share of mated searches that do not return the person first and within T
    rank-1         1 - FNIR(N, 1, any T): the identification rate of a closed set

A probe without a face returns nobody: a miss where it is mated, as ISO has it for failures to acquire; so is a probe
of somebody whose gallery photos show no face. The search is the product's own: the exact score of
`pipeline.matching.match`, the nearest single reference of all; the
rule of identical images is left out, because it knows files, not faces.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from pipeline.errors import InputError, ManifestInvalid
from pipeline.evaluation.photos.labels import numbered
from pipeline.evaluation.statistics.rates import HAIR, is_measurable
from pipeline.evaluation.statistics.resampling import Interval, interval, resample_share
from pipeline.matching.match import Matcher
from pipeline.matching.references import ReferenceIndex
from pipeline.matching.score import MAX_DISTANCE
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray

FPIRS: Final = (1e-1, 1e-2, 1e-3)
GALLERY: Final = "gallery"
PROBE: Final = "probe"
_CURVE_POINTS: Final = 200


@dataclass(frozen=True)
class FnirAtFpir:
    """FNIR at the largest threshold at which the FPIR is at most `fpir`."""

    fpir: float
    threshold: float | None  # T of the squared contract distance; None: too few non-mated searches (rule of 3)
    fnir: float | None
    fnir_interval_95: Interval | None  # over resamples of the mated people, the threshold held


@dataclass(frozen=True)
class IdentificationResult:
    """What `evaluate_identification` answers."""

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
    threshold: float  # T that was asked for
    fnir_at_threshold: float
    fpir_at_threshold: float | None  # None: no non-mated search
    curve_fpir: tuple[float, ...]  # empty without non-mated searches
    curve_fnir: tuple[float, ...]


@dataclass(frozen=True)
class Searches:
    """What m searches answered."""

    people: IntArray  # [m] whom the probe shows
    mated: BoolArray  # [m] somebody who is in the gallery
    right: BoolArray  # [m] the person was returned first, at whatever distance
    distances: DoubleArray  # [m] contract distance of who was returned first; infinity for nobody


def gallery_by_column(path: object, sets: Sequence[Any], paths: Sequence[str]) -> BoolArray:
    """[n] which photos the column `set` of the manifest `path` puts in the gallery. Raises ManifestInvalid."""
    for value, photo in zip(sets, paths, strict=True):
        if value not in (GALLERY, PROBE):
            given = "without one" if value is None else f'"{value}"'
            detail = f"the column set must say {GALLERY} or {PROBE}, and {photo} is {given}"
            raise ManifestInvalid(path=path, detail=f"{detail}; or use --gallery-per-person")
    return np.array([value == GALLERY for value in sets], dtype=np.bool_)


def gallery_per_person(names: Sequence[str], count: int) -> BoolArray:
    """[n] which photos are in the gallery: the first `count` of everybody with more than that. The others of these
    people are mated probes; people with no more than `count` photos are strangers, whose photos are non-mated probes.
    """
    total: dict[str, int] = {}
    for name in names:
        total[name] = total.get(name, 0) + 1
    seen: dict[str, int] = {}
    chosen = np.zeros(len(names), dtype=np.bool_)
    for row, name in enumerate(names):
        seen[name] = seen.get(name, 0) + 1
        chosen[row] = total[name] > count >= seen[name]
    return chosen


def evaluate_identification(
    embeddings: FloatArray, names: Sequence[str], in_gallery: BoolArray, matcher: Matcher, device: str = "cpu"
) -> IdentificationResult:
    """Searches every probe among the gallery.

    `embeddings`: [n, d] float32 of norm 1, NaN where a photo shows no face; `names`: [n] whom it shows; `in_gallery`:
    [n] the others are probes. Raises InputError where nobody is enrolled or no probe is mated, EmbeddingInvalid.
    """
    _, people = numbered(names)
    has_face = ~np.asarray(
        np.isnan(embeddings).all(axis=1), dtype=np.bool_
    )  # NaN in part is no missing face but a broken vector
    enrolled = np.flatnonzero(in_gallery & has_face)
    if not len(enrolled):
        raise InputError(message="The gallery has no photo with a face, so nobody can be found in it.")
    probes = np.flatnonzero(~in_gallery)
    mated = np.isin(people[probes], people[in_gallery])
    if not mated.any():
        raise InputError(message="No probe shows anybody of the gallery, so there is nobody to be found.")
    positions, distances = _search(embeddings, enrolled, probes, has_face, matcher, device)
    right = (positions >= 0) & (people[enrolled[positions]] == people[probes])
    searches = Searches(people[probes], mated, right, distances)
    counts = {
        "gallery_people": len(np.unique(people[enrolled])),
        "gallery_images": len(enrolled),
        "gallery_images_without_face": int((in_gallery & ~has_face).sum()),
        "probes_without_face": int((~has_face[probes]).sum()),
    }
    return _result(searches, matcher, counts)


def _search(
    embeddings: FloatArray, enrolled: IntArray, probes: IntArray, has_face: BoolArray, matcher: Matcher, device: str
) -> tuple[IntArray, DoubleArray]:
    """[m] the position among `enrolled` of the reference nearest to each probe, and its contract distance; -1 and
    infinity for a probe without a face."""
    index = ReferenceIndex(embeddings.shape[1], device)
    vectors = np.ascontiguousarray(embeddings[enrolled])
    index.append(vectors, np.arange(len(enrolled)), [()] * len(enrolled), np.zeros((len(enrolled), 4), np.float32))
    positions = np.full(len(probes), -1, dtype=np.int64)
    distances = np.full(len(probes), np.inf)
    searched = has_face[probes]
    nearest = matcher.nearest(index, np.ascontiguousarray(embeddings[probes[searched]]), 1)
    positions[searched], distances[searched] = nearest.positions[:, 0], nearest.distances[:, 0]
    return positions, distances


def _result(searches: Searches, matcher: Matcher, counts: Mapping[str, int]) -> IdentificationResult:
    mated, strangers = searches.mated, np.sort(searches.distances[~searches.mated])
    # The distance from which on the person is returned first; infinity: at none.
    genuine = np.where(searches.right, searches.distances, np.inf)[mated]
    people = searches.people[mated]
    missed = ~searches.right[mated]
    low, high = share_interval(missed, people)
    fpirs, fnirs = _curve(genuine, strangers)
    returned = matcher.matches(searches.distances) & np.isfinite(searches.distances)
    return IdentificationResult(
        **counts,
        mated_searches=len(genuine),
        mated_people=len(np.unique(people)),
        non_mated_searches=len(strangers),
        rank_1=1.0 - float(missed.mean()),
        rank_1_interval_95=(1.0 - high, 1.0 - low),
        fnir_at_fpir=tuple(_at_fpir(fpir, genuine, people, strangers) for fpir in FPIRS),
        threshold=matcher.threshold,
        fnir_at_threshold=1.0 - float((returned & searches.right)[mated].mean()),
        fpir_at_threshold=float(returned[~mated].mean()) if len(strangers) else None,
        curve_fpir=fpirs,
        curve_fnir=fnirs,
    )


def _at_fpir(fpir: float, genuine: DoubleArray, people: IntArray, strangers: DoubleArray) -> FnirAtFpir:
    """`strangers` are the ascending distances of the non-mated searches."""
    if not is_measurable(fpir, len(strangers)):
        return FnirAtFpir(fpir, None, None, None)
    cut = _cut(strangers, math.floor(fpir * len(strangers) + 1e-9))
    missed = genuine > cut
    return FnirAtFpir(fpir, min(max(cut, 0.0), MAX_DISTANCE) ** 2, float(missed.mean()), share_interval(missed, people))


def _cut(strangers: DoubleArray, allowed: int) -> float:
    """The largest distance within which no more than `allowed` of the ascending `strangers` lie; -1 for none."""
    if allowed >= len(strangers):
        return math.inf
    # A hair below the first who must stay out, so that the rounding of T and of scores does not let them in.
    nearest_out = float(strangers[allowed])
    return nearest_out * (1 - HAIR) if nearest_out > 0 else -1.0


def _curve(genuine: DoubleArray, strangers: DoubleArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """FNIR over FPIR from one false alarm to all, evenly on a logarithmic scale."""
    if not len(strangers):
        return (), ()
    allowed = np.unique(np.geomspace(1, len(strangers), _CURVE_POINTS).round().astype(np.int64))
    cuts = np.array([_cut(strangers, k) for k in allowed.tolist()])
    hits = np.searchsorted(np.sort(genuine), cuts, side="right")
    # `searchsorted` counts what is never returned first among the hits at an infinite cut.
    hits = np.minimum(hits, int(np.isfinite(genuine).sum()))
    return tuple((allowed / len(strangers)).tolist()), tuple((1 - hits / len(genuine)).tolist())


def share_interval(events: BoolArray, people: IntArray) -> Interval:
    """95 % percentile interval of the share of `events` [m], over resamples of the people [m] they belong to: what
    photos of one person give is not independent (ISO/IEC 19795-1, on correlated trials)."""
    known, units = np.unique(people, return_inverse=True)
    shares = resample_share(events, np.stack([units, units], axis=1), len(known))
    return interval(shares) or (0.0, 1.0)
