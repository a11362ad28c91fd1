"""Reads lists of labelled pairs of photos: LFW's format, or CSV.

LFW (Huang et al. 2007, "Labeled Faces in the Wild"): a first line `n` (view 1) or `folds n` (view 2), then for each
fold n lines `Name i j`, two photos of one person, and n lines `NameA i NameB j`, of two. Photo i of a person is
`Name/Name_000i.jpg`. CSV: a header with path_a, path_b and same (1 or 0), and a line per pair.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Generic, NoReturn, TextIO, TypeAlias, TypeVar

from pipeline.errors import PairsInvalid, SourceMissing, UsageError
from pipeline.evaluation.report import Skipped
from pipeline.extraction.images.files import IMAGE_SUFFIXES, file_problem, shown

COLUMNS: Final = ("path_a", "path_b", "same")
REPEATED: Final = "the same pair once more"
WITH_ITSELF: Final = "a photo paired with itself"
_LFW_SUFFIXES: Final = (".jpg", ".png", ".jpeg")
_TRUE: Final = frozenset({"1", "true", "yes"})
_FALSE: Final = frozenset({"0", "false", "no"})
_SHOWN: Final = 80  # characters of an invalid line
_MOST_DIGITS: Final = 9  # of a number

Photo = TypeVar("Photo")
LfwPhoto: TypeAlias = tuple[str, int]  # a name, and a number from 1


@dataclass(frozen=True)
class Pair(Generic[Photo]):
    """Two photos, and whether they show one person."""

    first: Photo
    second: Photo
    same: bool
    fold: int = 0


ListedPair: TypeAlias = Pair[str]  # by their paths, as the store and reports show them


@dataclass(frozen=True)
class PairList:
    """The pairs of a file, none twice."""

    source: Path
    pairs: Sequence[ListedPair]
    folds: int  # 1: the file has none
    files: dict[str, Path]  # path -> file, of every photo in the pairs
    people: dict[str, str] = field(default_factory=dict)  # path -> name, where the file names people

    def __len__(self) -> int:
        return len(self.pairs)


def read_pair_list(file: Path, images: Path | None, skipped: Skipped) -> PairList:
    """Reads `file`: CSV if its name ends in .csv, else LFW's format. Photos lie below `images`; None: below the file's
    own folder. Counts repeated pairs, and photos paired with themselves, in `skipped`.

    Raises SourceMissing, and PairsInvalid for an invalid line and for contradicting labels.
    """
    folder = _folder(file, images)
    if file.suffix.lower() == ".csv":
        files: dict[str, Path] = {}
        pairs = [_csv_pair(file, line, row, folder, files) for line, row in _csv_rows(file)]
        folds, people = 1, dict[str, str]()
    else:
        lfw_pairs = read_pairs(file)
        pairs, files, people = _located(lfw_pairs, folder)
        folds = 1 + max(pair.fold for pair in lfw_pairs)
    return PairList(file, _checked(file, pairs, skipped), folds, files, people)


def _folder(file: Path, images: Path | None) -> Path:
    return Path(os.path.abspath(file.parent if images is None else images))  # noqa: PTH100  keeps links


def is_pair_list(file: Path) -> bool:
    """Whether `file` lists pairs, not labels: its name ends in .txt, or it is CSV with a column path_a.

    Raises PairsInvalid where it cannot be read.
    """
    if file.suffix.lower() != ".csv" or not file.is_file():
        return file.suffix.lower() == ".txt"
    with _opened(file) as stream:
        return COLUMNS[0] in _header(csv.reader(stream))


def photos_of_people(listed: PairList, images: Path | None) -> tuple[dict[str, Path], dict[str, str]]:
    """Every photo in the folders of the people that the list names: path -> file, and path -> name.

    Includes the photos of the list whose file is missing. Raises UsageError where it names nobody.
    """
    if not listed.people:
        raise UsageError(
            message="--all-pairs needs the people's names, which only lists in LFW's format give. For other data, "
            "`facepipe evaluate identification` and `calibrate` take labelled folders."
        )
    files, people = dict(listed.files), dict(listed.people)
    for name in sorted(set(listed.people.values())):
        folder = _folder(listed.source, images) / name
        with suppress(OSError):  # a folder that cannot be read: the pairs with its photos report the reason
            for file in sorted(folder.iterdir()):
                if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith("."):
                    files[shown(file)], people[shown(file)] = file, name
    return files, people


def read_pairs(file: Path) -> list[Pair[LfwPhoto]]:
    """Reads a pairs file in LFW's format. Raises SourceMissing, or PairsInvalid with the invalid line."""
    with _opened(file) as stream:
        lines = stream.read().splitlines()
    folds, count = _head(file, lines[0] if lines else "")
    pairs: list[Pair[LfwPhoto]] = []
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            pairs.append(_pair(file, number, line, len(pairs), count))
    if len(pairs) != 2 * folds * count:
        _invalid(file, f"line 1 announces {2 * folds * count:,} pairs, but {len(pairs):,} follow")
    return pairs


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    """Raises SourceMissing, and PairsInvalid where the file cannot be read as text or as CSV."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            yield stream
    except FileNotFoundError as exc:
        raise SourceMissing(path=shown(file)) from exc
    except UnicodeDecodeError:
        _invalid(file, "it is not UTF-8 text")
    except (OSError, csv.Error) as exc:
        _invalid(file, f"it cannot be read ({(exc.strerror if isinstance(exc, OSError) else None) or exc})")


def _head(file: Path, line: str) -> tuple[int, int]:
    """Folds, and pairs of each kind in a fold."""
    numbers = line.split()
    if not (1 <= len(numbers) <= 2 and all(_is_number(number) and int(number) for number in numbers)):
        _invalid(file, "line 1 must have the number of pairs of each kind, or the number of folds and that number")
    return (int(numbers[0]), int(numbers[1])) if len(numbers) == 2 else (1, int(numbers[0]))


def _pair(file: Path, number: int, line: str, position: int, count: int) -> Pair[LfwPhoto]:
    """The pair at `position` of all; in each fold `count` genuine pairs come first, then as many impostor pairs."""
    fold, kind = position // (2 * count), position % (2 * count) >= count
    match line.split():
        case [name, i, j] if _is_number(i) and _is_number(j) and not kind:
            return Pair((name, int(i)), (name, int(j)), True, fold)
        case [a, i, b, j] if _is_number(i) and _is_number(j) and kind:
            if a == b:
                _invalid(file, f"line {number}: {a} is listed as two people")
            return Pair((a, int(i)), (b, int(j)), False, fold)
    form = "NameA i NameB j" if kind else "Name i j"
    detail = f'line {number}: "{line.strip()[:_SHOWN]}" should be "{form}", by the counts in line 1'
    raise PairsInvalid(path=shown(file), detail=detail)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


def _located(pairs: Sequence[Pair[LfwPhoto]], folder: Path) -> tuple[list[ListedPair], dict[str, Path], dict[str, str]]:
    """The pairs by path, the files of the paths, and the people on them."""
    files: dict[str, Path] = {}
    people: dict[str, str] = {}
    paths: dict[LfwPhoto, str] = {}
    for photo in dict.fromkeys(side for pair in pairs for side in (pair.first, pair.second)):
        file = lfw_file(folder, *photo)
        paths[photo] = shown(file)
        files[shown(file)], people[shown(file)] = file, photo[0]
    located = [ListedPair(paths[pair.first], paths[pair.second], pair.same, pair.fold) for pair in pairs]
    return located, files, people


def lfw_file(folder: Path, name: str, number: int) -> Path:
    """Photo `number` of `name`: a .jpg, unless there is only a .png or .jpeg."""
    files = [folder / name / f"{name}_{number:04d}{suffix}" for suffix in _LFW_SUFFIXES]
    return next((file for file in files if file_problem(file) is None), files[0])


def _header(lines: Iterator[list[str]]) -> list[str]:
    return [name.strip().lower() for name in next(lines, [])]


def _csv_rows(file: Path) -> Iterator[tuple[int, dict[str, str]]]:
    with _opened(file) as stream:
        reader = csv.reader(stream, strict=True)
        header = _header(reader)
        missing = [name for name in COLUMNS if header.count(name) != 1]
        if missing:
            _invalid(file, f'its first line must name the columns path_a, path_b and same, "{missing[0]}" once')
        for row in reader:
            if row and len(row) != len(header):
                _invalid(file, f"line {reader.line_num} has {len(row)} fields, the header has {len(header)}")
            if row:
                yield reader.line_num, dict(zip(header, row, strict=True))


def _csv_pair(file: Path, line: int, row: dict[str, str], folder: Path, files: dict[str, Path]) -> ListedPair:
    label = row["same"].strip().lower()
    if label not in _TRUE | _FALSE:
        _invalid(file, f'line {line}: same is "{row["same"]}", and must be 1 or 0')
    sides = []
    for column in ("path_a", "path_b"):
        if not row[column].strip():
            _invalid(file, f"line {line}: {column} is empty")
        path = os.path.normpath(folder / row[column])
        files[shown(path)] = Path(path)
        sides.append(shown(path))
    return ListedPair(sides[0], sides[1], label in _TRUE)


def _checked(file: Path, pairs: Sequence[ListedPair], skipped: Skipped) -> list[ListedPair]:
    """The pairs without repetitions. Raises PairsInvalid where labels contradict."""
    kept: dict[tuple[str, str], ListedPair] = {}
    repeated = []
    for pair in pairs:
        first = kept.setdefault((min(pair.first, pair.second), max(pair.first, pair.second)), pair)
        if pair.first == pair.second:
            if not pair.same:
                _invalid(file, f"{pair.first} is labelled as a photo of two people")
            skipped.add(WITH_ITSELF, pair.first)
        elif first.same != pair.same:
            _invalid(file, f"{pair.first} and {pair.second} are labelled as one person and as two")
        elif first is not pair:
            repeated.append(pair)
    for pair in repeated:
        skipped.add(REPEATED, f"{pair.first} and {pair.second}")
    return [pair for pair in kept.values() if pair.first != pair.second]


def _invalid(file: Path, detail: str) -> NoReturn:
    raise PairsInvalid(path=shown(file), detail=detail)
