"""What happens in the year: a table of nights, and who does it, by numbers drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from coded_faces import Shown

from pipeline.config import MatchSettings
from pipeline.jobs.people import People
from tests.people.coded_archive import reindex
from tests.people.year import archive as edits
from tests.people.year.archive import Archive, Picture
from tests.people.year.grouping import regroup
from tests.people.year.model import GATE, Face, Model, Person

# A night: what was done to the files on the day before it | what is corrected on the day after it. A number says how
# many photos (of a year of 80; more in a larger one), or how often something is corrected.
YEAR = """
add 40                                 | name 6, hide 1
                                       | name 2, move 1
add 4, copy 2                          | merge 1, split 1, move 1
move 3                                 | nobody 1, undo 1
touch 3, add 2                         | not-same 2, move 1, reindex build
delete 3                               | split 1, undo 2
rename-folder 1, add 2                 | name 2, poor 1
edit 2, rotate 1                       | move 2
unmount                                | name 1, merge 1
add 2, forget-missing                  | nobody 1
mount                                  | unmerge 1, not-same 1
back 2, add 4                          | move 1, nobody 1
swap 2                                 | hide 1, unhide 1
source-away                            | move 1, reindex swap
source-empty                           |
turn 2, save 2, add 2                  | regroup strict
add 6, copy 2                          | name 3, merge 1
move 2, move-copied 2                  | split 1, move 1
clock-back, add 2                      | undo 1, not-same 1
delete 2, copy-deleted 1               | name 2
edit 2, crop 1                         | forget 1, reindex gc
rename-folder 1, copy 2                | move 2, hide 1
add 4                                  | regroup first, undo 1
save 1, rotate 1                       | regroup first
rename-root                            | name 2, move 1
delete 2, add 2, forget-missing        | nobody 1, forget 1
edit 1, copy 3                         | merge 1, split 1
unmount, add 2                         | undo 1, move 1
mount, back 1                          | rename 3
rehash, add 4, move 2, delete 1        | not-same 1, move 1
"""
THRESHOLDS = {"first": 0.54, "strict": 0.04}  # by the second one some people fall apart
NOT_SCALED = (
    "rename-folder",
    "rename-root",
    "unmount",
    "mount",
    "source-away",
    "source-empty",
    "clock-back",
    "rehash",
    "forget-missing",
    "forget-all-missing",
)


@dataclass(frozen=True)
class Deed:
    what: str
    count: int = 1
    which: str = ""


@dataclass(frozen=True)
class Day:
    files: Sequence[Deed]
    corrections: Sequence[Deed]


def read_year(text: str) -> list[Day]:
    def deeds(cell: str) -> list[Deed]:
        found = []
        for words in (entry.split() for entry in cell.split(",") if entry.strip()):
            number = words[1] if len(words) > 1 else "1"
            found.append(Deed(words[0], int(number)) if number.isdigit() else Deed(words[0], 1, number))
        return found

    return [Day(*map(deeds, line.split("|"))) for line in text.strip().splitlines()]


class Files:
    """Does things to the files of an archive."""

    def __init__(self, archive: Archive, random: Random, photos: int) -> None:
        self._archive = archive
        self._random = random
        self._size = photos / 80
        self._people = max(6, photos // 6)
        self._numbers = iter(range(10**9))
        self._deleted: list[tuple[str, Picture]] = []
        self.tonight = ""  # what is special about the next run

    def do(self, deed: Deed) -> None:
        count = deed.count if deed.what in NOT_SCALED else max(1, round(deed.count * self._size))
        for _ in range(count):
            getattr(self, "_" + deed.what.replace("-", "_"))()

    def _face(self) -> Shown:
        person = min(self._random.randrange(self._people), self._random.randrange(self._people))  # some more often
        poor = self._random.random() < 0.06
        return Shown(person, next(self._numbers), self._random.choice((0.2, 0.4) if poor else (0.65, 0.8, 0.9, 0.95)))

    def _path(self) -> str:
        folder = self._random.choice(("2001/spring", "2001/summer", "2002", "box of scans", self._archive.DISK, "new"))
        away = folder == self._archive.DISK and self._archive.away
        return f"{'2003' if away else folder}/{next(self._numbers):06}.png"

    def _one(self, fits: Callable[[str], bool] = lambda _: True) -> str:
        return self._random.choice([path for path in self._archive.in_order() if fits(path)])

    def _shows_two(self, path: str) -> bool:
        return len(self._archive.photos[path].faces) > 1

    def _add(self) -> None:
        faces = tuple(self._face() for _ in range(self._random.choice((0, 1, 1, 1, 1, 2, 2, 3))))
        self._archive.write(self._path(), Picture(faces, next(self._numbers)))

    def _copy(self) -> None:
        self._archive.write(self._path(), self._archive.photos[self._one()])

    def _move(self) -> None:
        self._archive.move(self._one(), self._path())

    def _move_copied(self) -> None:
        """It is moved, and is copied to its old place."""
        old, new = self._one(), self._path()
        self._archive.move(old, new)
        self._archive.write(self._path(), self._archive.photos[new])

    def _swap(self) -> None:
        """Moved onto another one, of which nothing is left."""
        self._archive.move(self._one(), self._one())

    def _touch(self) -> None:
        self._archive.touch(self._one())

    def _delete(self) -> None:
        path = self._one()
        self._deleted.append((path, self._archive.delete(path)))

    def _copy_deleted(self) -> None:
        """One that was deleted appears elsewhere."""
        self._archive.write(self._path(), self._random.choice(self._deleted)[1])

    def _back(self) -> None:
        if self._deleted:
            path, picture = self._deleted.pop()
            if path not in self._archive.photos and path not in self._archive.away:
                self._archive.write(path, picture)

    def _rename_folder(self) -> None:
        fixed = (self._archive.DISK, "2001")
        old = self._random.choice([folder for folder in self._archive.folders() if folder not in fixed])
        self._archive.rename_folder(old, f"renamed/{next(self._numbers):06}")

    def _edit(self) -> None:
        path = self._one()
        self._archive.write(path, edits.retouched(self._archive.photos[path], self._numbers))

    def _save(self) -> None:
        path = self._one()
        self._archive.write(path, edits.saved_again(self._archive.photos[path]))

    def _rotate(self) -> None:
        path = self._one()
        self._archive.write(path, edits.laid_on_its_side(self._archive.photos[path]))

    def _turn(self) -> None:
        path = self._one(self._shows_two)
        self._archive.write(path, edits.turned(self._archive.photos[path]))

    def _crop(self) -> None:
        path = self._one(self._shows_two)
        self._archive.write(path, edits.cropped(self._archive.photos[path]))

    def _unmount(self) -> None:
        if not self._archive.away and self._archive.within(self._archive.DISK):
            self._archive.unmount()

    def _mount(self) -> None:
        if self._archive.away:
            self._archive.mount()

    def _source_away(self) -> None:
        self.tonight = "away"

    def _source_empty(self) -> None:
        self.tonight = "empty"

    def _rename_root(self) -> None:
        self._archive.rename_root("elsewhere")
        self.tonight = "moved"

    def _rehash(self) -> None:
        self.tonight = "rehash"

    def _forget_missing(self) -> None:
        self.tonight = "forget missing"

    def _forget_all_missing(self) -> None:
        self.tonight = "forget all missing"

    def _clock_back(self) -> None:
        self.tonight = "clock back"


@dataclass(frozen=True)
class Asked:
    """A correction, of the model and of the store."""

    predict: Callable[[], object]
    do: Callable[[People], object]


class Corrections:
    """Picks what is corrected."""

    NAMES = ("Ann", "Berta", "Cid", "Dora", "Emil", "Flora", "Gustav", "Hanna", "Ida", "Jakob", "Klara", "Ludwig")

    def __init__(self, model: Model, random: Random) -> None:
        self._model = model
        self._random = random

    def pick(self, deed: Deed) -> Asked | None:
        """None where there is nobody to be corrected like that."""
        if deed.what == "regroup":
            threshold = THRESHOLDS[deed.which]
            return Asked(
                lambda: regroup(self._model, threshold),
                lambda people: people.regroup(MatchSettings(threshold=threshold)),
            )
        if deed.what == "reindex":
            return Asked(
                self._model.swap if deed.which == "swap" else lambda: None,
                lambda people: reindex(people._store, deed.which),
            )
        try:
            made: Asked | None = getattr(self, "_" + deed.what.replace("-", "_"))()
        except IndexError:
            return None
        return made

    def _root(self, fits: Callable[[Person], bool] = lambda _: True) -> Person:
        """Of those who were listed: a new person's id is not known yet."""
        return self._random.choice([p for p in self._model.roots() if p.id is not None and fits(p)])

    def _face(self, fits: Callable[[Face], bool]) -> Face:
        return self._random.choice([face for face in self._model.faces() if fits(face)])

    def _named(self, person: Person) -> Asked:
        name = f"{self._random.choice(self.NAMES)} {self._random.randrange(1000)}"
        return Asked(lambda: self._model.name(person, name), lambda people: people.name(person.known_id, name))

    def _name(self) -> Asked:
        return self._named(self._root(lambda p: p.name is None))

    def _rename(self) -> Asked:
        return self._named(self._root(lambda p: p.name is not None))

    def _hide(self) -> Asked:
        person = self._root(lambda p: not p.hidden)
        return Asked(lambda: self._model.hide(person, hidden=True), lambda people: people.hide(person.known_id))

    def _unhide(self) -> Asked:
        person = self._root(lambda p: p.hidden)
        return Asked(lambda: self._model.hide(person, hidden=False), lambda people: people.unhide(person.known_id))

    def _two(self) -> tuple[Person, Person]:
        one = self._root()
        return one, self._root(lambda p: p is not one)

    def _merge(self) -> Asked:
        one, other = self._two()
        anyway = self._random.random() < 0.5
        return Asked(
            lambda: self._model.merge(one, other, anyway=anyway),
            lambda people: people.merge(one.known_id, other.known_id, anyway=anyway),
        )

    def _unmerge(self) -> Asked:
        person = self._random.choice([p for p in self._model.people if p.parent is not None and p.id is not None])
        return Asked(lambda: self._model.unmerge(person), lambda people: people.unmerge(person.known_id))

    def _not_same(self) -> Asked:
        one, other = self._two()
        return Asked(
            lambda: self._model.not_same(one, other), lambda people: people.not_same(one.known_id, other.known_id)
        )

    def _split(self) -> Asked:
        person = self._root(lambda p: len(self._model.faces_of(*self._model.set_of(p))) > 2)
        faces = self._model.faces_of(*self._model.set_of(person))
        some = self._random.sample(faces, self._random.randrange(1, len(faces)))
        return Asked(
            lambda: self._model.split(person, some),
            lambda people: people.split(person.known_id, [face.known_id for face in some]),
        )

    def _moved(self, face: Face, to: Person | None) -> Asked:
        return Asked(lambda: self._model.move(face, to), lambda people: people.move(face.known_id, to and to.known_id))

    def _move(self) -> Asked:
        face = self._face(lambda face: face.shown.quality >= GATE)
        return self._moved(face, self._root(lambda p: p is not face.person))

    def _poor(self) -> Asked:
        """A face that was too poor to be anybody's."""
        return self._moved(self._face(lambda face: not face.has_vector), self._root(lambda p: p.reference is not None))

    def _nobody(self) -> Asked:
        return self._moved(self._face(lambda face: face.person is not None), None)

    def _forget(self) -> Asked:
        person = self._root(lambda p: len(self._model.faces_of(p)) < 5)
        return Asked(lambda: self._model.forget(person), lambda people: people.forget(person.known_id))

    def _undo(self) -> Asked:
        return Asked(self._model.undo, lambda people: people.undo())
