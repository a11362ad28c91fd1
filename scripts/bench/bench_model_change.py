"""What does an archive keep, gain and pay when its store changes its model?

    python scripts/bench/bench_model_change.py --faces FOLDER --work FOLDER

FOLDER of --faces holds lfw-view1/images. A store of its photos by casia-webface gets 200 names and 40 corrections of
every kind; 50 photos are deleted, half of them of references. Then it is indexed by sface and compared, swapped with a
regroup, gets 20 further photos; the regroup is undone, and the swap is rolled back.

Asserts that after the swap all names, merges, constraints and owners of faces are as they were but for what the
regroup says that it changed, that the regroup respects them, and that after its undo and the rollback everything is as
before, but for the further photos. Tells pairwise precision, recall and F before, after and after the regroup, and the
seconds and bytes of the build and of a fresh run. Writes model_change-<device>.json.
"""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from bench_serve import ask
from harness import argument_parser, settings_of, write_result

import pipeline
from pipeline.errors import CorrectionImpossible, StatedTwoPeople
from pipeline.evaluation.bench.harness import Timing
from pipeline.jobs.people import People
from pipeline.store.local import LocalStore

NAMED, CORRECTED, DELETED, FURTHER = 200, 40, 50, 20
BEFORE, AFTER = "casia-webface", "sface"


class State:
    """What a store says of its people."""

    def __init__(self, store: Path) -> None:
        with LocalStore.open(store, command="bench") as client:
            assert client.check().problems == []
            persons = client.read(
                "SELECT person_id::VARCHAR AS id, name, parent_id::VARCHAR AS parent, ignored FROM core.persons"
            ).to_pylist()
            facts = client.read("SELECT * EXCLUDE (stated_at, correction_id) FROM main.facts").to_pylist()
            faces = client.read(
                "SELECT face_id, person_id::VARCHAR AS person, outcome, path FROM core.faces JOIN core.media"
                " USING (media_id)"
            ).to_pylist()
            self.references = {
                row["path"]
                for row in client.read(
                    "SELECT path FROM core.reference_faces r JOIN core.faces USING (face_id) JOIN core.media"
                    " USING (media_id) WHERE r.generation = (SELECT current_generation FROM core.store)"
                ).to_pylist()
            }
        self.persons = {row["id"]: (row["name"], row["parent"], row["ignored"]) for row in persons}
        self.facts = {tuple(row.values()) for row in facts}
        self.owners = {row["face_id"]: (row["person"], row["outcome"]) for row in faces}
        self.paths = {row["face_id"]: row["path"] for row in faces}

    def without(self, faces: set[int], persons: set[str]) -> tuple[Any, ...]:
        """All of it, without what came in since."""
        return (
            {key: value for key, value in self.persons.items() if key not in persons},
            self.facts,
            {key: value for key, value in self.owners.items() if key not in faces},
        )


def correct(store: Path, names: Counter[str]) -> None:
    """200 names by what most photos of a person are of, then corrections of every kind."""
    random = Random(1)
    with pipeline.open_store(store) as opened:
        people: People = opened.people
        largest = sorted(people.all(), key=lambda person: -person.faces)[:NAMED]
        for number, person in enumerate(largest):
            shown = Counter(Path(face["path"]).parent.name for face in people.photos(person.person_id))
            people.name(person.person_id, f"{shown.most_common(1)[0][0]} {number}")
        ids = [person.person_id for person in largest]
        several = [person.person_id for person in largest if person.faces >= 4]

        def two() -> list[str]:
            return random.sample(ids[NAMED // 2 :], 2)

        def face_of(who: str) -> int:
            return int(random.choice(people.photos(who))["face_id"])

        def each(kind: str, count: int, act: Callable[[], object]) -> Iterator[str]:
            made = 0
            while made < count:
                with suppress(CorrectionImpossible, StatedTwoPeople):  # they were drawn at random
                    act()
                    made += 1
                    yield kind

        done = [
            *each("rename", 4, lambda: people.name(random.choice(ids), f"Renamed {random.randrange(10**6)}")),
            *each("hide", 3, lambda: people.hide(random.choice(ids))),
            *each("not same", 5, lambda: people.not_same(*random.sample(ids[: NAMED // 2], 2))),
            *each("merge", 7, lambda: people.merge(*two(), anyway=True)),
            *each("unmerge", 2, lambda: unmerged(people, two())),
            *each("move", 7, lambda: people.move(face_of(random.choice(several)), random.choice(ids))),
            *each("nobody", 4, lambda: people.move(face_of(random.choice(several)), None)),
            *each("split", 5, lambda: split(people, random.choice(several))),
            *each("undo", 3, lambda: people.undo()),
        ]
    assert len(done) == CORRECTED
    names.update(done)


def unmerged(people: People, two: list[str]) -> None:
    people.merge(*two, anyway=True)
    people.unmerge(two[1])


def split(people: People, who: str) -> None:
    people.split(who, [people.photos(who)[-1]["face_id"]])


def agreement(store: Path, photos: Path) -> dict[str, float]:
    found: dict[str, float] = ask(store, "evaluate", "clustering", str(photos), "--labels", "parent")["pairwise"]
    return found


def bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def timed(store: Path, *words: str) -> tuple[Any, float]:
    begun = time.monotonic()
    answer = ask(store, *words)
    return answer, time.monotonic() - begun


def measure(images: Path, work: Path) -> dict[str, Any]:
    photos, later, store, fresh = (work / name for name in ("photos", "later", "store", "fresh"))
    shutil.copytree(images, photos)
    random = Random(2)
    often = [
        file for folder in sorted(photos.iterdir()) if len(files := sorted(folder.iterdir())) > 4 for file in files
    ]
    for file in random.sample(often, FURTHER):
        (later / file.parent.name).mkdir(parents=True, exist_ok=True)
        file.rename(later / file.parent.name / file.name)
    figures: dict[str, Any] = {}
    kinds = Counter[str]()
    _, figures["run_seconds"] = timed(store, "run", str(photos), "--weights", BEFORE)
    correct(store, kinds)
    figures["corrections"] = dict(kinds)
    before = State(store)
    references = random.sample(sorted(before.references), DELETED // 2)
    others = random.sample(sorted({*before.paths.values()} - before.references), DELETED - DELETED // 2)
    for path in (*references, *others):
        Path(path).unlink()
    _, figures["fresh_run_seconds"] = timed(fresh, "run", str(photos), "--weights", AFTER)
    figures["fresh_store_bytes"] = bytes_of(fresh)
    figures["fresh"] = agreement(fresh, photos)
    own = bytes_of(store)
    built, figures["build_seconds"] = timed(store, "reindex", "--weights", AFTER)
    figures["build_bytes"] = bytes_of(store) - own
    figures["build"] = built
    figures["before"] = agreement(store, photos)
    comparison = ask(store, "reindex", "compare")
    figures["compare"] = {name: comparison[name] for name in ("genuine_pairs", "biased_pairs", "impostor_pairs")}
    would = ask(store, "reindex", "swap", "--regroup", "--dry-run")["regrouped"]["regrouping"]
    swapped, figures["swap_seconds"] = timed(store, "reindex", "swap")
    assert swapped["weights"] == AFTER
    assert State(store).without(set(), set()) == before.without(set(), set())
    figures["after"] = agreement(store, photos)
    ask(store, "reindex", "rollback")
    swapped, figures["swap_and_regroup_seconds"] = timed(store, "reindex", "swap", "--regroup")
    answer = swapped["regrouped"]
    said = answer["regrouping"]
    assert {k: v for k, v in said.items() if k != "new"} | {"new": 0, "moves": 0} == {
        k: v for k, v in would.items() if k != "new"
    } | {"new": 0, "moves": 0}
    figures["suggested"] = {name: len(said[name]) for name in ("joins", "moves", "new", "gone", "kept_apart")}
    regrouped = State(store)
    kept(before, regrouped)
    figures["regrouped"] = agreement(store, photos)
    ask(store, "run", str(later))
    ask(store, "people", "undo", str(answer["correction_id"]))
    ask(store, "reindex", "rollback")
    last = State(store)
    came = last.paths.keys() - before.paths.keys()
    new = {owner for face, (owner, _) in last.owners.items() if face in came} - before.persons.keys()
    assert last.without(set(came), {str(each) for each in new}) == before.without(set(), set())
    figures["came_since"] = len(came)
    assert ask(store, "check")["problems"] == []
    return figures


def kept(before: State, after: State) -> None:
    """Raises AssertionError where a regroup did not respect what a user said."""
    named = {key: name for key, (name, _, _) in before.persons.items() if name}
    assert {key: after.persons[key][0] for key in named} == named
    assert after.facts == before.facts

    def root(person: str) -> str:
        while (parent := after.persons[person][1]) is not None:
            person = parent
        return person

    for person, (_, parent, _) in before.persons.items():
        if parent is not None:
            assert root(person) == root(parent)


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--faces", type=Path, required=True, help="the folder of photos")
    parser.add_argument("--work", type=Path, required=True, help="where the stores are made, which must not be there")
    args = parser.parse_args()
    figures = measure(args.faces.resolve() / "lfw-view1" / "images", args.work.resolve())
    timings = {name: Timing([figures[name]]) for name in ("fresh_run_seconds", "build_seconds", "swap_seconds")}
    write_result("model_change", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
