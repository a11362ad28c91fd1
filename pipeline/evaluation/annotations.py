"""Reads annotated face boxes: XML of imglab (dlib) or Pascal VOC, or CSV.

Boxes are xyxy in pixels of the upright image, with the origin of `pipeline.types`. Pascal VOC counts pixels from 1 and
includes the last one, so its xmin and ymin are reduced by 1.
"""

from __future__ import annotations

import os.path
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np

from pipeline.errors import BoxesInvalid, SourceMissing
from pipeline.extraction.sources.manifest_file import read_manifest
from pipeline.texts import path_text
from pipeline.types import BoolArray, FloatArray

Corners: TypeAlias = tuple[float, float, float, float]

CORNERS: Final = ("x1", "y1", "x2", "y2")
VOC_CORNERS: Final = ("bndbox/xmin", "bndbox/ymin", "bndbox/xmax", "bndbox/ymax")
IGNORE: Final = "ignore"
_FARTHEST: Final = 1e6  # pixels from the origin: up to there float32 is exact to a pixel
_TRUE: Final = frozenset({"1", "true", "yes"})
_FALSE: Final = frozenset({"", "0", "false", "no", "none"})


@dataclass(frozen=True)
class AnnotatedImage:
    """An image and its annotated faces, possibly none."""

    path: str  # as in the store and reports
    file: Path
    boxes: FloatArray  # [n, 4] xyxy
    ignored: BoolArray  # [n] neither hits nor misses ("difficult" in Pascal VOC)


@dataclass(frozen=True)
class _Box:
    """One annotated box of the image at `location`, the path in the file; without corners: an image without faces."""

    location: str
    corners: Corners | None
    ignored: bool = False


def read_boxes(sources: Sequence[Path], images: Path | None) -> list[AnnotatedImage]:
    """Returns the annotated images of `sources` in order: XML or CSV files, and folders of XML files.

    CSV has the columns path, x1, y1, x2, y2 and optionally ignore, one row per box; a row with empty corners is an
    image without faces. Relative paths start at `images` (None: the annotation file's folder). Raises SourceMissing,
    and BoxesInvalid if a file has another format, a box is empty, or no image is annotated.
    """
    annotated: dict[str, AnnotatedImage] = {}
    for file in _files(sources):
        images_of_file = _read_file(file, images)
        for path in images_of_file.keys() & annotated.keys():
            raise BoxesInvalid(path=path_text(file), detail=f"{path} is annotated in another file as well")
        annotated.update(images_of_file)
    if not annotated:
        raise BoxesInvalid(path=path_text(sources[0]), detail="it annotates no image")
    return list(annotated.values())


def _files(sources: Sequence[Path]) -> Iterator[Path]:
    for source in sources:
        if not source.exists():
            raise SourceMissing(path=path_text(source))
        yield from sorted(source.glob("*.xml")) if source.is_dir() else (source,)


def _read_file(file: Path, images: Path | None) -> dict[str, AnnotatedImage]:
    base = (file.parent if images is None else images).absolute()
    boxes: dict[str, list[_Box]] = {}
    for box in _read(file):
        boxes.setdefault(os.path.normpath(base / box.location), []).append(box)
    return {path_text(path): _image(file, path, image_boxes) for path, image_boxes in boxes.items()}


def _image(file: Path, path: str, boxes: Sequence[_Box]) -> AnnotatedImage:
    faces = [box for box in boxes if box.corners is not None]
    if faces and len(faces) < len(boxes):
        raise BoxesInvalid(path=path_text(file), detail=f"it lists {path_text(path)} both with faces and without any")
    if len({box.corners for box in boxes}) < len(boxes):
        raise BoxesInvalid(path=path_text(file), detail=f"it lists {path_text(path)} with the same box twice")
    corners = np.array([box.corners for box in faces], dtype=np.float32).reshape(-1, 4)
    return AnnotatedImage(
        path_text(path), Path(path), corners, np.array([box.ignored for box in faces], dtype=np.bool_)
    )


def _read(file: Path) -> Iterator[_Box]:
    if file.suffix.lower() == ".csv":
        return _csv_boxes(file)
    if file.suffix.lower() == ".xml":
        return _xml_boxes(file)
    raise BoxesInvalid(path=path_text(file), detail="annotations are .xml or .csv files, or a folder of .xml files")


def _csv_boxes(file: Path) -> Iterator[_Box]:
    for row in read_manifest(file, "csv"):
        values = {key.strip().lower(): value for key, value in row.extra.items()}
        missing = [corner for corner in CORNERS if corner not in values]
        if missing:
            raise BoxesInvalid(path=path_text(file), detail=f"it has no column {missing[0]}")
        if not row.location:
            raise BoxesInvalid(path=path_text(file), detail=f"{row.where} names no image")
        texts = [str(values[corner]).strip() for corner in CORNERS]
        ignored = _flag(file, row.where, str(values.get(IGNORE, "")))
        corners = _checked(file, row.where, _numbers(file, row.where, texts)) if any(texts) else None
        yield _Box(row.location, corners, ignored)


def _xml_boxes(file: Path) -> Iterator[_Box]:
    try:
        root = ElementTree.parse(file).getroot()
    except (ElementTree.ParseError, OSError, LookupError, ValueError) as exc:
        raise BoxesInvalid(path=path_text(file), detail=f"it cannot be read as XML ({exc})") from exc
    if root.tag == "dataset":
        return _imglab_boxes(file, root)
    if root.tag == "annotation":
        return _voc_boxes(file, root)
    raise BoxesInvalid(
        path=path_text(file), detail=f"its root is <{root.tag}>, not <dataset> (imglab) or <annotation> (VOC)"
    )


def _imglab_boxes(file: Path, root: ElementTree.Element) -> Iterator[_Box]:
    """<dataset><images><image file=""><box top="" left="" width="" height="" ignore="1"/></image></images></dataset>"""
    for image in root.iter("image"):
        location = _required(file, image, "file", image.get("file"))
        if image.find("box") is None:
            yield _Box(location, None)
        for box in image.iter("box"):
            texts = [_required(file, box, name, box.get(name)) for name in ("left", "top", "width", "height")]
            left, top, width, height = _numbers(file, location, texts)
            ignored = _flag(file, location, box.get(IGNORE, ""))
            yield _Box(location, _checked(file, location, (left, top, left + width, top + height)), ignored)


def _voc_boxes(file: Path, root: ElementTree.Element) -> Iterator[_Box]:
    """<annotation><filename/><object><name/><difficult/><bndbox><xmin/>...</bndbox></object></annotation>"""
    location = _required(file, root, "filename", root.findtext("filename", "").strip())
    if root.find("object") is None:
        yield _Box(location, None)
    for item in root.iter("object"):
        texts = [_required(file, item, name, item.findtext(name, "").strip()) for name in VOC_CORNERS]
        x1, y1, x2, y2 = _numbers(file, location, texts)
        difficult = _flag(file, location, item.findtext("difficult") or "")
        yield _Box(location, _checked(file, location, (x1 - 1, y1 - 1, x2, y2)), difficult)


def _required(file: Path, element: ElementTree.Element, name: str, value: str | None) -> str:
    """Returns `value`, the attribute or the child `name` of `element`. Raises BoxesInvalid if missing or empty."""
    if not value:
        raise BoxesInvalid(path=path_text(file), detail=f"<{element.tag}> has no {name}")
    return value


def _flag(file: Path, where: str, text: str) -> bool:
    if text.strip().lower() in _TRUE:
        return True
    if text.strip().lower() in _FALSE:
        return False
    raise BoxesInvalid(path=path_text(file), detail=f'{where}: "{text}" is neither 1 nor 0')


def _numbers(file: Path, where: str, texts: Sequence[Any]) -> Corners:
    try:
        a, b, c, d = (float(text) for text in texts)
    except ValueError as exc:
        raise BoxesInvalid(path=path_text(file), detail=f"{where}: {exc}") from exc
    if not (np.abs([a, b, c, d]) <= _FARTHEST).all():  # also refuses NaN
        detail = f"{where}: a box is made of finite numbers up to {_FARTHEST:g}, not {list(texts)}"
        raise BoxesInvalid(path=path_text(file), detail=detail)
    return a, b, c, d


def _checked(file: Path, where: str, box: Corners) -> Corners:
    if box[2] <= box[0] or box[3] <= box[1]:
        raise BoxesInvalid(path=path_text(file), detail=f"{where}: the box {list(box)} has no area")
    return box
