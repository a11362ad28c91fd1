"""Reads lists of labelled pairs of photos: LFW's format, or CSV.

LFW (Huang et al. 2007, "Labeled Faces in the Wild"): a first line `n` (view 1) or `folds n` (view 2), then for each
fold n lines `Name i j`, two photos of one person, and n lines `NameA i NameB j`, of two. Photo i of a person is
`Name/Name_000i.jpg`. CSV: a header with path_a, path_b and same (1 or 0), and a line per pair.
"""

from __future__ import annotations

import csv
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn, TextIO

from pipeline.errors import PairsInvalid, SourceMissing, UsageError
from pipeline.evaluation.report import Skipped
from pipeline.extraction.images.files import IMAGE_SUFFIXES, file_problem
from pipeline.texts import path_text

COLUMNS: Final = ("path_a", "path_b", "same")
REPEATED: Final = "the same pair once more"
WITH_ITSELF: Final = "a photo paired with itself"
_LFW_SUFFIXES: Final = (".jpg", ".png", ".jpeg")
_TRUE: Final = frozenset({"1", "true", "yes"})
_FALSE: Final = frozenset({"0", "false", "no"})
_SHOWN: Final = 80  # characters of an invalid line
_MOST_DIGITS: Final = 9  # of a number


@dataclass(frozen=True)
class Pair:
    """Two photos, by paths as in the store, and whether they show one person."""

    first: str
    second: str
    same: bool
    fold: int = 0


@dataclass(frozen=True)
class PairList:
    """The distinct pairs of a file."""

    source: Path
    pairs: Sequence[Pair]
    files: dict[str, Path]  # path -> file, of every photo in the pairs
    people: dict[str, str] = field(default_factory=dict)  # path -> name, if the file names people


def read_pair_list(file: Path, images: Path | None, skipped: Skipped) -> PairList:
    """Reads `file`: CSV if its name ends in .csv, else LFW's format. Photos are below `images` (None: the file's
    folder). Counts repeated pairs, and photos paired with themselves, in `skipped`.

    Raises SourceMissing, and PairsInvalid for an invalid line and for contradicting labels.
    """
    folder, files, people = _folder(file, images), dict[str, Path](), dict[str, str]()
    if file.suffix.lower() == ".csv":
        pairs = [_csv_pair(file, line, row, folder, files) for line, row in _csv_rows(file)]
    else:
        pairs = _lfw_pairs(file, folder, files, people)
    return PairList(file, _checked(file, pairs, skipped), files, people)


def _folder(file: Path, images: Path | None) -> Path:
    return Path(os.path.abspath(file.parent if images is None else images))  # noqa: PTH100  keeps links


def is_pair_list(file: Path) -> bool:
    """Whether `file` lists pairs, not labels: its name ends in .txt, or it is CSV with a column path_a.

    Raises PairsInvalid if it cannot be read.
    """
    if file.suffix.lower() != ".csv" or not file.is_file():
        return file.suffix.lower() == ".txt"
    with _opened(file) as stream:
        return COLUMNS[0] in _header(csv.reader(stream))


def photos_of_people(listed: PairList, images: Path | None) -> tuple[dict[str, Path], dict[str, str]]:
    """Finds all photos in the folders of the list's people: path -> file, and path -> name.

    Includes the list's photos with missing files. Raises UsageError if it names nobody.
    """
    if not listed.people:
        raise UsageError(
            message="--all-pairs needs the people's names, which only lists in LFW's format give. For other data, "
            "`facepipe evaluate identification` and `calibrate` take labelled folders."
        )
    files, people = dict(listed.files), dict(listed.people)
    for name in sorted(set(listed.people.values())):
        folder = _folder(listed.source, images) / name
        with suppress(OSError):  # an unreadable folder: the pairs with its photos report the reason
            for file in sorted(folder.iterdir()):
                if file.suffix.lower() in IMAGE_SUFFIXES and not file.name.startswith("."):
                    files[path_text(file)], people[path_text(file)] = file, name
    return files, people


def _lfw_pairs(file: Path, folder: Path, files: dict[str, Path], people: dict[str, str]) -> list[Pair]:
    """Reads the pairs of a file in LFW's format; fills `files` and `people`. In each fold the genuine pairs come
    first."""

    @functools.cache
    def path_of(name: str, number: int) -> str:
        found = lfw_file(folder, name, number)
        files[path_text(found)], people[path_text(found)] = found, name
        return path_text(found)

    with _opened(file) as stream:
        lines = stream.read().splitlines()
    folds, count = _head(file, lines[0] if lines else "")
    pairs: list[Pair] = []
    for number, line in enumerate(lines[1:], start=2):
        if line.strip():
            fold, place = divmod(len(pairs), 2 * count)
            (a, i), (b, j) = _photos(file, number, line, same=place < count)
            pairs.append(Pair(path_of(a, i), path_of(b, j), place < count, fold))
    if len(pairs) != 2 * folds * count:
        _invalid(file, f"line 1 announces {2 * folds * count:,} pairs, but {len(pairs):,} follow")
    return pairs


@contextmanager
def _opened(file: Path) -> Iterator[TextIO]:
    """Raises SourceMissing, and PairsInvalid if the file cannot be read as text or as CSV."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            yield stream
    except FileNotFoundError as exc:
        raise SourceMissing(path=path_text(file)) from exc
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


def _photos(file: Path, number: int, line: str, *, same: bool) -> tuple[tuple[str, int], tuple[str, int]]:
    """The names and numbers of the two photos in a line."""
    match line.split():
        case [name, i, j] if _is_number(i) and _is_number(j) and same:
            return (name, int(i)), (name, int(j))
        case [a, i, b, j] if _is_number(i) and _is_number(j) and not same:
            if a == b:
                _invalid(file, f"line {number}: {a} is listed as two people")
            return (a, int(i)), (b, int(j))
    form = "Name i j" if same else "NameA i NameB j"
    detail = f'line {number}: "{line.strip()[:_SHOWN]}" should be "{form}", by the counts in line 1'
    raise PairsInvalid(path=path_text(file), detail=detail)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MOST_DIGITS


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


def _csv_pair(file: Path, line: int, row: dict[str, str], folder: Path, files: dict[str, Path]) -> Pair:
    label = row["same"].strip().lower()
    if label not in _TRUE | _FALSE:
        _invalid(file, f'line {line}: same is "{row["same"]}", and must be 1 or 0')
    sides = []
    for column in ("path_a", "path_b"):
        if not row[column].strip():
            _invalid(file, f"line {line}: {column} is empty")
        path = os.path.normpath(folder / row[column])
        files[path_text(path)] = Path(path)
        sides.append(path_text(path))
    return Pair(sides[0], sides[1], label in _TRUE)


def _checked(file: Path, pairs: Sequence[Pair], skipped: Skipped) -> list[Pair]:
    """Drops repeated pairs. Raises PairsInvalid if labels contradict."""
    kept: dict[tuple[str, str], Pair] = {}
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
    raise PairsInvalid(path=path_text(file), detail=detail)
