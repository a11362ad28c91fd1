"""How whole are people by average link, and what does it cost?

    python scripts/bench/bench_link.py people --faces FOLDER/lfw-view1 --work WORK [--weights casia-webface sface]
    python scripts/bench/bench_link.py nights --faces FOLDER/lfw-view1 --work WORK [--weights sface]
    python scripts/bench/bench_link.py dense --faces FOLDER/lfw-view1 --work WORK [--weights sface]
    python scripts/bench/bench_link.py scale --faces FOLDER/lfw-view1 --work WORK [--weights sface]
    python scripts/bench/bench_link.py suggestions --faces FOLDER/lfw-view1 --work WORK [--weights sface]
    python scripts/bench/bench_link.py planted --planted 100000 --size 512

people   `facepipe run` makes a store of all photos (WORK/<weights>-exact, where it is not there yet), and `facepipe
         regroup --method average-link` groups copies of it: at the cut that has a precision of 0.98 on the training
         people alone, and at --precision 0.99. The registry's table of cuts is measured on the training people, 2,000
         at a time; 500 and 1,000 at a time say whether wrong joins grow with them.
nights   70 % of the photos, of whose people the 50 with the most photos get names; then the others in ten nights, each
         by `facepipe run --method average-link`; beside all photos at once without names. Then a plain run.
dense    30 people of 100 to 300 faces: around the means of LFW's people with the most photos, with the spread of their
         photos about these (its covariance); both methods over all thresholds
scale    1,000 to 100,000 planted people of two faces, with the spread of LFW's photos about the means of their people,
         and the false match rate of the calibration at T = 0.54. Wrong pairs per right pair at the cuts of the
         registry, and the precision at the cut that `--precision 0.99` takes for so many people
suggestions  the pairs of `people suggest` after the run, and after an average-link regroup: how many of the first show
         one person, by the labels, of those that have labels on both sides; and the seconds that they take
planted  vectors of planted people, each side in turn: the half of all products that any exact grouping needs, and ours

Asserts of `people`: the registry's table is the measured one; a pairwise F of 0.98 (sface) and 0.83 (casia-webface) at
a precision of 0.98 or more on test people; nobody is twice on a photo; an undo gives the people of before. Of `nights`:
no named person is merged or loses a face. Of `scale`: among ten times the people the ratio is at most ten times as
large, but for a third. Of `suggestions`: LEAST_RIGHT of the first 20 after the run are right. Of `planted`: no two
planted people are joined, and at least 99 % of them are found whole. Writes link-<weights>, link-nights-<weights>,
link-dense-<weights>, link-scale-<weights>, link-suggestions-<weights> and link-planted-<thousands of
faces>k-<device>.json.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from bench_serve import ask
from harness import argument_parser, paired_ratio, settings_of, write_result
from lfw import MISLABELLED, Protocol, Stored, make_store, read_protocol, read_store

from pipeline.config import AVERAGE_LINK, CONTRACT_THRESHOLD, SEQUENTIAL
from pipeline.evaluation.bench.harness import Timing, timed
from pipeline.evaluation.clustering import Contingency
from pipeline.evaluation.labels import named_photos, numbered
from pipeline.evaluation.statistics import interval
from pipeline.evaluation.sweep import METHODS, linked, sweep
from pipeline.jobs.people import People
from pipeline.jobs.store import open_store
from pipeline.matching.average_link import FacesToLink, Linkage, average_link
from pipeline.matching.calibration import Calibration, cut_for
from pipeline.matching.score import dot_at
from pipeline.models.registry import weight_set
from pipeline.store.local import LocalStore
from pipeline.store.records import Suggestion
from pipeline.types import FloatArray, IntArray, SilentProgress

PRECISION: Final = 0.98
LEAST_F: Final = {"casia-webface": 0.83, "sface": 0.98}
GRID: Final = tuple(round(0.40 + 0.005 * step, 3) for step in range(81))
TABLE: Final = (0.50, 0.54, 0.58, 0.62, 0.66, 0.70)  # T of the registry's rows
DRAWS: Final = {500: 40, 1000: 20, 2000: 20}
TOLERANCE: Final = 0.05  # of the registry's ratios
RESAMPLES: Final = 1000
NIGHTS: Final = tuple(0.7 + 0.027 * night for night in range(11))  # shares of the photos at the end of each
NAMED: Final = 50
DENSE: Final = 30  # people
SCALES: Final = (1_000, 10_000, 100_000)  # people
SAMPLE: Final = 10_000  # of them, to have a false match rate
ENOUGH: Final = 20  # wrong pairs, of which a ratio says something
TOLERATED: Final = 1.3  # times what `cut_for` assumes
FIRST: Final = (10, 20, 40, 100)  # suggestions
LEAST_RIGHT: Final = {"casia-webface": 0.9, "sface": 0.7}
ASKED_S: Final = 30.0  # of steady work
OPEN: Final = ("--min-cpq", "0", "--min-fsq", "0", "--min-fcq", "0")  # the gate
NOISE: Final = 0.8  # of a planted vector's own length
CALIBRATION: Final = Calibration(1.281, thresholds=((1e-6, 0.45), (1e-5, 0.54)))


class Agreed:
    """How identities agree with people, with what a resampling of people needs."""

    def __init__(self, people: Sequence[str], identities: Sequence[str]) -> None:
        self.table = Contingency.of(numbered(people)[1], numbered(identities)[1])

    def figures(self) -> dict[str, Any]:
        agreement = self.table.pairwise()
        resampled = np.array(list(self._resampled()))
        intervals = {name: interval(resampled[:, column]) for column, name in enumerate(("precision", "recall", "f"))}
        return {**vars(agreement), "interval_95": intervals, **self.table.counted()}

    def _resampled(self) -> Iterator[tuple[float, float, float]]:
        """Precision, recall and F with people drawn with replacement."""
        table, random = self.table, np.random.default_rng(1)
        counts = table.counts.astype(np.float64)
        sizes = table.person_sizes.astype(np.float64)
        for _ in range(RESAMPLES):
            drawn = random.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)))
            weights = drawn[table.people]
            right = float((weights * counts * (counts - 1) / 2).sum())
            of_people = float((drawn * sizes * (sizes - 1) / 2).sum())
            # Of two people as often as both are drawn; a person and a copy are none.
            in_identity = np.bincount(table.identities, weights * counts)
            squares = np.bincount(table.identities, (weights * counts) ** 2)
            wrong = float((in_identity**2 - squares).sum() / 2)
            precision, recall = right / (right + wrong), right / of_people
            yield precision, recall, 2 * precision * recall / (precision + recall)


def labelled(stored: Stored, people: set[str]) -> tuple[FloatArray, list[str]]:
    """The labelled faces of these people, without mislabelled photos, and whom they show."""
    mislabelled = {Path(*parts).stem for parts in named_photos(MISLABELLED)}
    owners = stored.people
    rows = [
        r for r in stored.labelled.tolist() if owners[r] in people and Path(stored.paths[r]).stem not in mislabelled
    ]
    return stored.faces.embeddings[rows], [owners[row] for row in rows]


def wrong_per_right(stored: Stored, protocol: Protocol) -> dict[int, list[float]]:
    """By number of people: the wrong pairs per right pair among 1,000 people, at each T of `TABLE`."""
    vectors, owners = labelled(stored, {*protocol.train.people.values()})
    names, owner = numbered(owners)
    random, ratios = np.random.default_rng(0), {}
    for people, draws in DRAWS.items():
        right, wrong = np.zeros(len(TABLE)), np.zeros(len(TABLE))
        for _ in range(draws):
            drawn = np.isin(owner, random.choice(len(names), people, replace=False))
            for place, identities in enumerate(linked(vectors[drawn], stored.calibration, TABLE)):
                agreed = Agreed([owners[row] for row in np.flatnonzero(drawn)], [str(i) for i in identities.tolist()])
                right[place] += (agreed.table.counts * (agreed.table.counts - 1) // 2).sum()
                wrong[place] += agreed.table.wrongly_joined().sum()
        ratios[people] = (wrong / right * 1000 / people).tolist()
    return ratios


def chosen_cut(stored: Stored, protocol: Protocol) -> float:
    """The highest cut whose precision on the training people is `PRECISION`."""
    vectors, owners = labelled(stored, {*protocol.train.people.values()})
    clusters = linked(vectors, stored.calibration, GRID)
    precise = [
        cut
        for cut, identities in zip(GRID, clusters, strict=True)
        if Agreed(owners, [str(i) for i in identities.tolist()]).table.pairwise().precision >= PRECISION
    ]
    return max(precise)


def by_command(store: Path, copy: Path, test: set[str], *words: str) -> dict[str, Any]:
    """A copy of the store, regrouped: how identities agree with all people, and with the test people among them.

    Raises AssertionError if somebody is twice on a photo, or if an undo does not give the people of before.
    """
    shutil.copytree(store, copy)
    before = read_store(copy).persons
    answer = ask(copy, "regroup", "--method", AVERAGE_LINK, *words, *OPEN, "--yes")["regrouping"]
    stored, roots = read_store(copy), roots_of(copy)
    identities = [roots[person] for person in stored.persons]
    on_photo: dict[str, list[str]] = defaultdict(list)
    for path, identity in zip(stored.paths, identities, strict=True):
        on_photo[path].append(identity)
    assert all(len(set(each)) == len(each) for each in on_photo.values()), "somebody is twice on a photo"
    ask(copy, "people", "undo", "--yes")
    assert read_store(copy).persons == before
    assert ask(copy, "check")["problems"] == []
    shutil.rmtree(copy)
    return {"cut": answer["cut"], "faces": answer["faces"], **agreement(stored, identities, test)}


def agreement(stored: Stored, identities: Sequence[str], test: set[str]) -> dict[str, Any]:
    owners, rows = stored.people, stored.labelled.tolist()
    parts = {"all": rows, "test people": [row for row in rows if owners[row] in test]}
    return {
        name: Agreed([owners[row] for row in part], [identities[row] for row in part]).figures()
        for name, part in parts.items()
    }


def roots_of(store: Path) -> dict[str, str]:
    with LocalStore.open(store, command="bench") as client:
        rows = client.read(
            "SELECT person_id::VARCHAR AS id, root_person_id::VARCHAR AS root FROM main.persons"
        ).to_pylist()
    return {row["id"]: row["root"] for row in rows}


def people_figures(weights: str, arguments: argparse.Namespace) -> dict[str, Any]:
    store, protocol = arguments.work / f"{weights}-exact", read_protocol(arguments.faces)
    make_store(arguments.faces / "images", weights, store)
    stored, test = read_store(store), {*protocol.test.people.values()}
    ratios, cut = wrong_per_right(stored, protocol), chosen_cut(stored, protocol)
    stated = dict(weight_set(weights).cuts)
    for threshold, ratio in zip(TABLE, ratios[2000], strict=True):
        assert abs(stated[threshold] / ratio - 1) < TOLERANCE, f"{stated[threshold]} in the registry, measured: {ratio}"
    copy = arguments.work / "regrouped"
    figures = {
        "wrong_per_right_of_1000_people": {str(people): ratio for people, ratio in ratios.items()},
        "sequential": agreement(stored, stored.persons, test),
        "at the cut": by_command(store, copy, test, "--cut", str(cut)),
        "at precision 0.99": by_command(store, copy, test, "--precision", "0.99"),
    }
    found = figures["at the cut"]["test people"]
    assert found["precision"] >= PRECISION, found
    assert found["f"] >= LEAST_F[weights], found
    return figures


def nights_figures(weights: str, arguments: argparse.Namespace) -> dict[str, Any]:
    work = arguments.work / f"nights-{weights}"
    shutil.rmtree(work, ignore_errors=True)
    photos = sorted((arguments.faces / "images").rglob("*.jpg"))
    np.random.default_rng(3).shuffle(photos)  # type: ignore[arg-type]
    parts = np.split(np.arange(len(photos)), [round(share * len(photos)) for share in NIGHTS])
    folders = [work / f"night-{number:02}" for number in range(len(parts))]
    for folder, rows in zip(folders, parts, strict=True):
        for file in (photos[row] for row in rows):
            (folder / file.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(file, folder / file.parent.name)
    store, whole, test = work / "store", work / "whole", {*read_protocol(arguments.faces).test.people.values()}
    linking = ("--method", AVERAGE_LINK, "--weights", weights, *OPEN)
    *nights, last = folders[1:]
    ask(store, "run", str(folders[0]), *linking)
    named = name_largest(store)
    before, sets = faces_of(store, named), {p: root for p, root in roots_of(store).items() if root in named}
    for night in nights:
        counts = ask(store, "run", str(night), *linking)
        print({name: counts[name] for name in ("faces", "new_persons", "regrouped")}, flush=True)
    after, roots = faces_of(store, named), roots_of(store)
    assert all(before[person] <= after[person] for person in named), "a face left a named person"
    assert sets == {p: root for p, root in roots.items() if root in named}, "a named person was merged or split"
    assert ask(store, "check")["problems"] == []
    ask(whole, "run", *map(str, folders[:-1]), *linking)
    figures = {
        name: agreement(stored, [roots[person] for person in stored.persons], test)
        for name, path in (("in nights", store), ("at once", whole))
        for stored, roots in [(read_store(path), roots_of(path))]
    }
    ask(store, "run", str(last), *OPEN)
    return {**figures, "named": len(named), "recall_of_the_last_night": recalled(store, last)}


def faces_of(store: Path, persons: Sequence[str]) -> dict[str, set[int]]:
    """The faces of each of these persons."""
    with LocalStore.open(store, command="bench") as client:
        rows = client.read("SELECT face_id, person_id::VARCHAR AS person FROM core.faces").to_pylist()
    return {person: {row["face_id"] for row in rows if row["person"] == person} for person in persons}


def recalled(store: Path, last: Path) -> float:
    """Of the labelled faces in `last` of people who were known before: the share in an identity that mostly shows
    them."""
    stored, roots = read_store(store), roots_of(store)
    owners, known = stored.people, defaultdict[str, Counter[str]](Counter)
    new = {row for row in stored.labelled.tolist() if Path(stored.paths[row]).is_relative_to(last)}
    for row in {*stored.labelled.tolist()} - new:
        known[roots[stored.persons[row]]][owners[row]] += 1
    names = {name for counts in known.values() for name in counts}
    asked = [row for row in new if owners[row] in names]
    found = [known[roots[stored.persons[row]]].most_common(1) for row in asked]
    return float(np.mean([bool(one) and one[0][0] == owners[row] for one, row in zip(found, asked, strict=True)]))


def name_largest(store: Path) -> list[str]:
    """Names the 50 people with the most photos; returns their ids."""
    rows = ask(store, "people", "list")["people"]
    largest = sorted(rows, key=lambda row: -row["photos"])[:NAMED]
    for number, row in enumerate(largest):
        ask(store, "people", "name", row["person_id"], f"Person {number}")
    return [row["person_id"] for row in largest]


@dataclass(frozen=True)
class Planted:
    """Faces like those of a store's people: normal distributions with the same covariances."""

    means: FloatArray  # [n, d] of people with several photos
    photos: IntArray  # [n]
    spread: FloatArray  # [d, d] covariance of their photos about these

    @classmethod
    def of(cls, stored: Stored) -> Planted:
        vectors, names = labelled(stored, {*stored.people})
        owner = numbered(names)[1]
        several = np.flatnonzero(np.bincount(owner) >= 5)
        means = np.stack([vectors[owner == person].mean(axis=0) for person in several])
        about = np.concatenate([vectors[owner == person] - mean for person, mean in zip(several, means, strict=True)])
        return cls(means, np.bincount(owner)[several], about.T @ about / (len(about) - len(several)))

    def faces(self, means: FloatArray, who: IntArray, random: np.random.Generator) -> FloatArray:
        """[len(who), d] float32 of norm 1, about the means of these people."""
        root = np.linalg.cholesky(self.spread + 1e-9 * np.eye(len(self.spread)))
        faces = means[who] + random.standard_normal((len(who), len(root))) @ root.T
        return (faces / np.linalg.norm(faces, axis=1, keepdims=True)).astype(np.float32)

    def people(self, count: int, least: float, rate: float, random: np.random.Generator) -> FloatArray:
        """The means [count, d] of other people, of whose pairs of faces this share has a dot product of `least` or
        more: the covariance of the means, more or less like that of a sphere."""
        centre = self.means.mean(axis=0)
        values, axes = np.linalg.eigh(np.cov(self.means, rowvar=False))
        drawn = random.standard_normal((count, len(centre)))
        sample = np.arange(min(count, SAMPLE))

        def means(power: float, of: slice) -> FloatArray:
            flat = np.maximum(values, 1e-12) ** power
            return centre * power + (drawn[of] * np.sqrt(flat * values.sum() / flat.sum())) @ axes.T

        low, high = 0.0, 1.0
        for _ in range(12):
            power = (low + high) / 2
            faces = self.faces(means(power, slice(len(sample))), sample, np.random.default_rng(6))
            share = (np.triu(faces @ faces.T, 1) >= least).sum() / (len(faces) * (len(faces) - 1) / 2)
            low, high = (power, high) if share < rate else (low, power)
        return means(low, slice(None))


def planted_like(weights: str, arguments: argparse.Namespace) -> tuple[Planted, Calibration]:
    store = arguments.work / f"{weights}-exact"
    make_store(arguments.faces / "images", weights, store)
    stored = read_store(store)
    return Planted.of(stored), stored.calibration


def dense_figures(weights: str, arguments: argparse.Namespace) -> dict[str, Any]:
    planted, calibration = planted_like(weights, arguments)
    random = np.random.default_rng(4)
    most = np.argsort(-planted.photos)[:DENSE]
    who = random.permutation(np.repeat(np.arange(DENSE), random.integers(100, 301, DENSE)))
    faces = planted.faces(planted.means[most], who, random)
    rows = sweep(faces, [str(each) for each in who.tolist()], calibration, METHODS, SilentProgress())
    best = {method: max((r for r in rows if r.method == method), key=lambda row: row.pairwise.f) for method in METHODS}
    assert best[AVERAGE_LINK].pairwise.f >= best[SEQUENTIAL].pairwise.f
    return {"faces": len(who), "people": DENSE, "best": {m: asdict(row) for m, row in best.items()},
            "sweep": [asdict(row) for row in rows]}  # fmt: skip


def scale_figures(weights: str, arguments: argparse.Namespace) -> dict[str, Any]:
    planted, calibration = planted_like(weights, arguments)
    random, cuts = np.random.default_rng(5), weight_set(weights).cuts
    least = dot_at(CONTRACT_THRESHOLD, calibration)
    means = planted.people(max(SCALES), least, calibration.fmr_at(CONTRACT_THRESHOLD)[0], random)
    figures: dict[str, Any] = {}
    for people in SCALES:
        who = random.permutation(np.repeat(np.arange(people), 2))
        faces = planted.faces(means[:people], who, random)
        by_precision = cut_for(cuts, 0.99, people)
        wide = max(by_precision, *(threshold for threshold, _ in cuts))
        linkage = average_link(FacesToLink.without_constraints(faces), calibration, cut=wide, device=arguments.device)
        figures[str(people)] = {
            "at the cuts": {str(t): ratio_of(linkage, dot_at(t, calibration), who) for t, _ in cuts},
            "cut at precision 0.99": by_precision,
            "precision there": 1 / (1 + ratio_of(linkage, dot_at(by_precision, calibration), who)["wrong per right"]),
        }
        print(people, figures[str(people)], flush=True)
    for fewer, more in pairwise(SCALES):
        for cut, found in figures[str(more)]["at the cuts"].items():
            before = figures[str(fewer)]["at the cuts"][cut]
            if before["wrong"] >= ENOUGH:
                assert found["wrong per right"] <= TOLERATED * more / fewer * before["wrong per right"], (more, cut)
    return figures


def ratio_of(linkage: Linkage, least: float, who: IntArray) -> dict[str, float]:
    """Pairs of faces that are wrongly together, per pair that is rightly so."""
    table = Contingency.of(who, numbered([str(each) for each in linkage.clusters(least).tolist()])[1])
    wrong = int(table.wrongly_joined().sum())
    right = int((table.counts * (table.counts - 1) // 2).sum())
    return {"wrong": wrong, "wrong per right": wrong / right}


def suggestion_figures(weights: str, arguments: argparse.Namespace) -> dict[str, Any]:
    store, copy = arguments.work / f"{weights}-exact", arguments.work / "suggesting"
    make_store(arguments.faces / "images", weights, store)
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(store, copy)
    after_run = right_pairs(copy)
    assert after_run["right of the first"]["20"] >= LEAST_RIGHT[weights], after_run
    ask(copy, "regroup", "--method", "average-link", "--yes", *OPEN)
    return {"after the run": after_run, "after a regroup by average link": right_pairs(copy)}


def right_pairs(store: Path) -> dict[str, Any]:
    """Of `people suggest`."""
    stored = read_store(store)
    with open_store(store, command="bench") as opened:
        people, found, seconds = People(opened), list[Suggestion](), list[float]()
        root_of = {row.person_id: row.person_id for row in people.all()}
        while sum(seconds) < ASKED_S:
            seconds.append(timed(lambda: found.extend(people.suggest().pairs), "cpu"))
        pairs = found[: len(found) // len(seconds)]
        assert pairs == found[-len(pairs) :]
        records = opened.people(1, "main", counted=False)
        root_of |= dict(zip(records["person_id"].to_pylist(), records["root_person_id"].to_pylist(), strict=True))
    shown: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for row in stored.labelled.tolist():
        shown[root_of[stored.persons[row]]][stored.people[row]] += 1
    name = {person: names.most_common(1)[0][0] for person, names in shown.items()}
    right = [name[pair.one] == name[pair.other] for pair in pairs if {pair.one, pair.other} <= name.keys()]
    most = Counter(name.values())
    return {
        "people": len({*root_of.values()}),
        "pairs": len(pairs),
        "pairs with labels": len(right),
        "right of the first": {str(count): sum(right[:count]) / count for count in FIRST},
        "right of all": sum(right),
        "pairs of parts of one person": sum(count * (count - 1) // 2 for count in most.values()),
        "median_s": statistics.median(seconds),
        "asked": len(seconds),
    }


def planted_vectors(faces: int, people: int, size: int) -> tuple[FloatArray, IntArray]:
    random = np.random.default_rng(1)
    owner = random.permutation(np.arange(faces) % people)
    centres = random.standard_normal((people, size), dtype=np.float32)
    vectors = centres[owner]
    for start in range(0, faces, 2**16):
        part = vectors[start : start + 2**16]
        part += np.float32(NOISE) * random.standard_normal(part.shape, dtype=np.float32)
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors, owner


def half_of_all_products(vectors: FloatArray, device: str) -> None:
    """Each block with all faces before and in it, into one buffer that nobody reads."""
    rows = torch.from_numpy(vectors).to(device)
    buffer = torch.empty(2**21, device=device)
    for start in range(0, len(rows), 1024):
        block = rows[start : start + 1024]
        for references in rows[: start + 1024].split(2048):
            torch.mm(block, references.T, out=buffer[: len(block) * len(references)].view(len(block), len(references)))


def planted_figures(arguments: argparse.Namespace) -> tuple[dict[str, Timing], dict[str, Any]]:
    vectors, owner = planted_vectors(arguments.planted, arguments.planted // arguments.photos_each, arguments.size)
    found: list[IntArray] = []

    def ours() -> None:
        faces = FacesToLink.without_constraints(vectors)
        found.append(average_link(faces, CALIBRATION, cut=arguments.cut, device=arguments.device).clusters())

    sides = {"products": lambda: half_of_all_products(vectors, arguments.device), "facepipe": ours}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    of_cores = dict.fromkeys(sides, 0.0)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(arguments.repeats):
        for name, side in sides.items():
            of_cores[name] -= time.process_time()
            seconds[name].append(timed(side, arguments.device))
            of_cores[name] += time.process_time()
        print({name: values[-1] for name, values in seconds.items()}, of_cores, flush=True)
    table = Contingency.of(owner, numbered([str(each) for each in found[0].tolist()])[1])
    counts = table.counted()
    timings = {name: Timing(values) for name, values in seconds.items()}
    figures = {
        "faces": len(vectors),
        "people": counts["people"],
        "whole": counts["people_found_exactly"] / counts["people"],
        "wrongly_joined_pairs": int(table.wrongly_joined().sum()),
        "ratio_to_products": paired_ratio(timings["facepipe"], timings["products"]),
        "core_seconds": of_cores,  # which other work on the machine lengthens less
        "peak_rss_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        "rss_before_bytes": 1024 * before,
    }
    assert not figures["wrongly_joined_pairs"]
    assert figures["whole"] >= 0.99, figures
    return timings, figures


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("question", choices=("people", "nights", "dense", "scale", "suggestions", "planted"))
    parser.add_argument("--faces", type=Path, help="the folder lfw-view1")
    parser.add_argument("--work", type=Path, help="the folder of the stores")
    parser.add_argument("--weights", nargs="+", default=["casia-webface", "sface"])
    parser.add_argument("--planted", type=int, default=100_000, help="faces")
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--photos-each", type=int, default=5)
    parser.add_argument("--cut", type=float, default=0.75, help="T")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    if arguments.question == "planted":
        timings, figures = planted_figures(arguments)
        name = f"link-planted-{arguments.planted // 1000}k"
        write_result(name, settings_of(arguments), timings, figures, arguments)
        return
    measures = {
        "people": people_figures,
        "nights": nights_figures,
        "dense": dense_figures,
        "scale": scale_figures,
        "suggestions": suggestion_figures,
    }
    for weights in arguments.weights:
        name = "link" if arguments.question == "people" else f"link-{arguments.question}"
        figures = measures[arguments.question](weights, arguments)
        write_result(f"{name}-{weights}", {"precision": PRECISION}, {}, figures, arguments)


if __name__ == "__main__":
    main()
