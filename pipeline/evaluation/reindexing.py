"""Compares a store's two indexes before a swap: which model distinguishes its named people better.

Pairs of one person that the model itself joined would flatter it. So the rates cover pairs joined otherwise: by names
that came with the photos, merges of a user, and faces that a user moved. The other pairs of one person are reported
separately, as biased towards the active model. Pairs of two people have two names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from pipeline.config import Settings
from pipeline.errors import FacepipeError, InputError, ReindexMissing
from pipeline.evaluation.pair_distances import ScoredPairs, all_distances, closest_impostors, reach
from pipeline.evaluation.pairs import FMRS, FnmrAtFmr, contract_threshold, described, match_cut, rates_of
from pipeline.evaluation.portraits import shard_vectors
from pipeline.evaluation.report import Report, Row, Section, Table, line_plot
from pipeline.evaluation.statistics import error_curve, squared_distances, threshold_at_fmr
from pipeline.jobs.accounts import find_account
from pipeline.jobs.people import People
from pipeline.jobs.store import Store, open_store
from pipeline.matching.calibration import Calibration
from pipeline.store import Regrouping, StoreIdentity
from pipeline.texts import nfc
from pipeline.types import BoolArray, DoubleArray, FloatArray, IntArray, Progress

MAX_FACES: Final = 20_000  # their pairs fit into memory; of more, people with so many faces together
RULE_OF_30: Final = 30  # errors, below which a rate says little (Doddington et al. 2000)
_LISTED: Final = 10

_RATES = (
    "FNMR, the false non-match rate: the share of pairs of one person that do not match, at the threshold at which the "
    "share FMR of the pairs of two people matches. Only pairs that something else than the model joined: names from "
    "the source, merges and moved faces."
)
_BIASED = "Pairs that the model put together which answers now; the pairs that it missed are not among them."
_OTHERWISE = ("joins", "moves", "new", "gone", "kept_apart")  # of a Regrouping
_OTHERWISE_TEXT = "A swap alone decides nothing again. This is what a regroup after it would change."
_CHANGED = "The distance to another face of the same person, as a part of the threshold: above 1 they do not match."


@dataclass(frozen=True)
class ModelRates:
    """One model's results on the pairs."""

    weights: str
    embedding_size: int
    rates: tuple[FnmrAtFmr, ...]  # of the pairs joined otherwise than by the model
    too_few: tuple[float, ...]  # the FMRs with fewer than RULE_OF_30 false matches
    fnmr_at_threshold: float | None  # at `threshold`; None: no such pair
    biased_fnmr_at_threshold: float | None  # of the other pairs of one person
    threshold: float  # T
    fmr_at_threshold: float
    bytes: int


@dataclass(frozen=True)
class ReindexComparison:
    """The two models on the same faces."""

    faces: int
    people: int
    left_out_faces: int  # of further people, to fit the pairs into memory
    genuine_pairs: int  # joined by names, merges and moved faces
    biased_pairs: int  # the other pairs of one person
    impostor_pairs: int
    answering: ModelRates
    new: ModelRates
    threshold_of_rate: float | None  # T of the new model at the other model's rate at the store's T
    build_seconds: float | None
    otherwise: dict[str, int] | None  # counts of what a regroup by the new model would change; None: unknown


@dataclass(frozen=True)
class _Faces:
    """n faces of named people, with the vectors of both models."""

    table: pa.Table
    names: IntArray  # [n]
    people: IntArray  # [n]
    vectors: tuple[FloatArray, FloatArray]  # [n, d] each


def report_reindex(
    store: Path, settings: Settings, progress: Progress, *, account: str | None = None, directory: str = "main"
) -> Report[ReindexComparison]:
    """Compares the active index with the other one, on the named people of a directory.

    Raises ReindexMissing, InputError if nothing can be measured, StoreError.
    """
    with open_store(store, settings, command="reindex compare") as opened:
        other = opened.other_identity()
        if other is None:
            raise ReindexMissing(path=store, detail="there is none")
        opened.clean_up()  # moves vectors of posts into shards
        identities = opened.identity, other
        progress.start("read", None)
        table = opened.photos("in_both_generations", find_account(opened, account).account_id, directory)
        faces, left_out = _sample(opened, table, identities)
        summary = opened.generation_summary()
        threshold = opened.settled.match.threshold
        otherwise = _otherwise(opened, account, directory)
    progress.start("pairs", None)
    scored = [_scored(vectors, faces) for vectors in faces.vectors]
    models = [
        _model_rates(identity, pairs, biased, threshold, size)
        for identity, (pairs, biased), size in zip(identities, scored, summary["bytes"], strict=True)
    ]
    new, rate = Calibration.from_dict(other.calibration), models[0].fmr_at_threshold
    result = ReindexComparison(
        faces=len(faces.names),
        people=len(np.unique(faces.people)),
        left_out_faces=left_out,
        genuine_pairs=len(scored[0][0].genuine),
        biased_pairs=len(scored[0][1]),
        impostor_pairs=len(scored[0][0].impostor),
        answering=models[0],
        new=models[1],
        threshold_of_rate=contract_threshold(threshold_at_fmr(scored[1][0].impostor, rate), new) if rate else None,
        build_seconds=summary.get("seconds"),
        otherwise=None if isinstance(otherwise, str) else {name: len(getattr(otherwise, name)) for name in _OTHERWISE},
    )
    changed = _changed(faces, [match_cut(threshold, Calibration.from_dict(each.calibration)) for each in identities])
    figures = {**asdict(result), "weights": f"{identities[0].weights} and {other.weights}"}
    sections = [*_sections(result, [pairs for pairs, _ in scored], changed), *_otherwise_sections(otherwise)]
    return Report(result, figures, sections)


def _otherwise(store: Store, account: str | None, directory: str) -> Regrouping | str:
    """What a regroup by the new model would change, or why unknown."""
    try:
        store.unlock()
        answer = People(store, account, directory).swap_and_regroup(dry_run=True).regrouped
    except FacepipeError as exc:
        return str(exc)
    return "" if answer is None or answer.regrouping is None else answer.regrouping


def _otherwise_sections(found: Regrouping | str) -> Iterator[Section]:
    title = "What the new model would decide otherwise"
    if isinstance(found, str):
        yield Section(title, [Row("regroup", f"not known: {found}")])
        return

    def who(person_id: str | None) -> str:
        return "nobody" if person_id is None else found.names.get(person_id, person_id)

    text = f"{len(found.joins):,} groups of people would be one, {len(found.moves):,} faces would move"
    rows = [
        Row("regroup", f"{text}, {len(found.new):,} people would be new"),
        Row("", "`reindex swap --regroup --dry-run` lists all of it"),
    ]
    moves = Counter((move.before, move.after) for move in found.moves)
    moved = [(who(before), "somebody new" if after in found.new else who(after), f"{n:,}")
             for (before, after), n in moves.most_common(_LISTED)]  # fmt: skip
    joins = [(who(first), ", ".join(map(who, others))) for first, *others in found.joins[:_LISTED]]
    tables = [Table(("people that would be one", "with"), joins)] if joins else []
    tables += [Table(("faces of", "that would be of", "faces"), moved)] if moved else []
    yield Section(title, rows, _OTHERWISE_TEXT, tables)


def _sample(store: Store, table: pa.Table, identities: tuple[StoreIdentity, StoreIdentity]) -> tuple[_Faces, int]:
    """The faces of whole people, sampled if there are too many; and the number of faces left out."""
    _, people = np.unique(table["person_id"].to_pylist(), return_inverse=True)
    count = len(table)
    if count > MAX_FACES:
        order = np.random.default_rng(0).permutation(int(people.max()) + 1)
        held = np.cumsum(np.bincount(people)[order])
        kept = np.isin(people, order[held <= MAX_FACES])
        table, people = table.filter(pa.array(kept)), people[kept]
    names = np.unique([nfc(name) for name in table["name"].to_pylist()], return_inverse=True)[1]
    if len(np.unique(names)) < 2:
        raise InputError(message="A comparison needs two people with different names or more, each with a face.")
    ids, *files = (table[column].to_pylist() for column in ("face_id", "file", "other_file"))
    vectors = [
        shard_vectors(store, [*zip(ids, own, strict=True)], identity.embedding_size)
        for own, identity in zip(files, identities, strict=True)
    ]
    return _Faces(table, names.astype(np.int64), people.astype(np.int64), (vectors[0], vectors[1])), count - len(table)


def _trusted(table: pa.Table, rows: IntArray) -> BoolArray:
    """[g] whether something other than the model says that the faces of a pair of rows [g, 2] are one person's."""
    names, label = np.unique([nfc(label or "") for label in table["label"].to_pylist()], return_inverse=True)
    stated, joined = table["stated"].to_numpy(), table["joined"].to_numpy()  # see `faces_to_compare`
    first, second = rows.T
    labelled = (label[first] == label[second]) & (names != "")[label[first]]
    trusted: BoolArray = labelled | stated[first] | stated[second] | (joined[first] != joined[second])
    return trusted


def _scored(vectors: FloatArray, faces: _Faces) -> tuple[ScoredPairs, DoubleArray]:
    """The pairs by one model, with the trusted ones of one person; and the distances of the other pairs of one
    person."""
    genuine, impostor, rows = all_distances(vectors, faces.names)
    same = faces.people[rows[:, 0]] == faces.people[rows[:, 1]]  # two people may have one name
    trusted = _trusted(faces.table, rows)
    kept = same & trusted
    close, close_rows = closest_impostors(vectors, faces.names, reach(impostor, max(FMRS)))
    pairs = ScoredPairs(
        unit="people",
        units=int(faces.names.max()) + 1,
        genuine=genuine[kept],
        genuine_units=faces.names[rows[kept]],
        close=close,
        close_units=faces.names[close_rows],
        photos_of=np.bincount(faces.names),
        photos=len(vectors),
        impostor=impostor,
        nearest_strangers=(),
        farthest_photos=(),
    )
    return pairs, genuine[same & ~trusted]


def _model_rates(
    identity: StoreIdentity, pairs: ScoredPairs, biased: DoubleArray, threshold: float, size: int
) -> ModelRates:
    calibration = Calibration.from_dict(identity.calibration)
    cut = match_cut(threshold, calibration)
    return ModelRates(
        weights=identity.weights,
        embedding_size=identity.embedding_size,
        rates=rates_of(pairs, calibration) if len(pairs.genuine) else (),
        too_few=tuple(fmr for fmr in FMRS if fmr * len(pairs.impostor) < RULE_OF_30),
        fnmr_at_threshold=float(np.mean(pairs.genuine >= cut)) if len(pairs.genuine) else None,
        biased_fnmr_at_threshold=float(np.mean(biased >= cut)) if len(biased) else None,
        threshold=threshold,
        fmr_at_threshold=float(np.mean(pairs.impostor < cut)),
        bytes=size,
    )


def _changed(faces: _Faces, cuts: Sequence[float]) -> list[tuple[str, str, float, float]]:
    """path, name, and by each model the least distance to another face of the person as a part of the threshold. The
    faces that changed most; first those that match by one model only."""
    parts = []
    for vectors, cut in zip(faces.vectors, cuts, strict=True):
        nearest = np.full(len(vectors), np.inf)
        for person in np.unique(faces.people):
            own = np.flatnonzero(faces.people == person)
            if len(own) > 1:
                first, second = np.triu_indices(len(own), 1)
                distances = squared_distances(vectors[own[first]], vectors[own[second]])
                np.minimum.at(nearest, own[first], distances)
                np.minimum.at(nearest, own[second], distances)
        parts.append(np.sqrt(nearest / cut))
    known = np.isfinite(parts[0])
    crossed = (parts[0] <= 1) != (parts[1] <= 1)
    before, after = (np.where(known, np.maximum(part, 1e-6), 1.0) for part in parts)
    order = np.lexsort((-np.abs(np.log(after / before)), ~crossed, ~known))[: min(_LISTED, int(known.sum()))].tolist()
    paths, names = faces.table["path"].to_pylist(), faces.table["name"].to_pylist()
    return [(paths[k] or "(posted)", names[k], float(parts[0][k]), float(parts[1][k])) for k in order]


def _sections(
    r: ReindexComparison, pairs: Sequence[ScoredPairs], changed: Sequence[tuple[str, str, float, float]]
) -> Iterator[Section]:
    left_out = f" ({r.left_out_faces:,} faces of further people left out)" if r.left_out_faces else ""
    rows = [
        Row("answers", f"{r.answering.weights}, {r.answering.embedding_size} numbers, {_megabytes(r.answering)}"),
        Row("new", f"{r.new.weights}, {r.new.embedding_size} numbers, {_megabytes(r.new)}"),
        Row("faces", f"{r.faces:,} of {r.people:,} people with names{left_out}"),
        Row("pairs", f"{r.genuine_pairs:,} of one person, by names, merges and moves; {r.impostor_pairs:,} of two"),
    ]
    yield Section("The two indexes", rows)
    yield Section("Error rates", [*_rate_rows(r)], _RATES, _curve(r, pairs))
    missed = {model.weights: model.biased_fnmr_at_threshold for model in (r.answering, r.new)}
    biased = [
        f"{name} misses {share:.2%} of {r.biased_pairs:,} others" for name, share in missed.items() if share is not None
    ]
    yield Section("Pairs that the model joined", [Row("biased", text, _BIASED) for text in biased])
    head = ("photo", "person", r.answering.weights, r.new.weights)
    cells = [(path, name, f"{before:.2f}", f"{after:.2f}") for path, name, before, after in changed]
    yield Section("Faces that changed most", (), _CHANGED, [Table(head, cells)] if cells else [])


def _megabytes(model: ModelRates) -> str:
    return f"{model.bytes / 2**20:,.1f} MiB on the disk"


def _rate_rows(r: ReindexComparison) -> Iterator[Row]:
    for model in (r.answering, r.new):
        for rate in model.rates:
            few = f"; too few pairs: fewer than {RULE_OF_30} false matches" if rate.fmr in model.too_few else ""
            yield Row("FNMR", f"{described(rate)} at FMR {rate.fmr:g}: {model.weights}{few}")
        if model.fnmr_at_threshold is not None:
            errors = f"FMR {model.fmr_at_threshold:.3g}, FNMR {model.fnmr_at_threshold:.2%}"
            yield Row("at T", f"{errors} at T = {model.threshold:g}: {model.weights}")
    if r.threshold_of_rate is not None:
        same = f"the FMR {r.answering.fmr_at_threshold:.3g} that {r.answering.weights} has now"
        yield Row("T", f"{r.threshold_of_rate:.4f} of {r.new.weights} has {same}")


def _curve(r: ReindexComparison, pairs: Sequence[ScoredPairs]) -> Iterator[str]:
    for model, scored in zip((r.answering, r.new), pairs, strict=True):
        if len(scored.genuine):
            fmr, fnmr = error_curve(scored.genuine, scored.impostor)
            yield line_plot(f"DET, {model.weights}", fmr, fnmr, xlabel="FMR", xscale="log", ylabel="FNMR", yscale="log")
