"""Faces that the detector missed and a user drew on a photo.

The detector looks at the region around the drawn box again, enlarged. What it finds there is measured on the photo, as
every face; if its quality passes the gate, the face has a vector. Otherwise it is a tag, which only says who is on the
photo: vectors of too poor faces would match strangers.
"""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from PIL import Image

from pipeline.config import MatchSettings
from pipeline.errors import BucketFailed, CorrectionImpossible, ImageRejected, PhotoUnknown
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.rows import (
    CROP,
    FACE_COLUMNS,
    MODEL,
    PLACES_SCHEMA,
    ExtractedFace,
    as_measured_by,
    faces_of_table,
)
from pipeline.extraction.stored_picture import cut_faces, encode_reference_image, photo_again
from pipeline.matching.identical_images import SAME_FACE_IOU, box_iou
from pipeline.people.correction_plan import IS, Plan
from pipeline.people.decide import failed_measures
from pipeline.people.directory import Directory
from pipeline.store import (
    CorrectionRequest,
    DrawnFace,
    FaceVector,
    Fact,
    LocalStore,
    PersonRecord,
    StoredFace,
    StoredPhoto,
    media,
)
from pipeline.types import DRAWN, DecodedImage

Box = tuple[float, float, float, float]  # xyxy in pixels of the upright photo
Extract = Callable[[DecodedImage, pa.Table | None], tuple[pa.Table, float]]  # as `MicroBatcher.extract`

MIN_SIDE_PX: Final = 16  # of a drawn box
_ROUNDING_PX: Final = 1.0  # by which a box may leave the photo
_PADDINGS: Final = (1.0, 0.5)  # of the region, in sides of the box: tried one after another
# The box's longer side in the enlarged region: twice the smallest face that is detected, but within these.
_SPANS_PX: Final = 160, 1024
_LEAST_IOU: Final = 0.1  # of a detected face with the drawn box, which may hold a whole head
_NOTHING: Final = "no face was detected there"


def find_face(
    client: LocalStore,
    directory: Directory,
    request: CorrectionRequest,
    decoder: Decoder,
    extract: Extract,
    min_face_px: int,
) -> pa.Table:
    """The face in the drawn box, for `add_face`: a table like `extract`'s with its picture, of one row or none. Takes
    no lock. Raises as `add_face`, and CorrectionImpossible if the photo cannot be read as it was."""
    photo, box = _photo_of(client, request)
    directory.those(request.person_ids)
    others = [face.box for face in _faces_of(client, request)]
    try:
        image = photo_again(photo.path, photo.sha256, decoder)
    except (ImageRejected, BucketFailed) as exc:
        detail = f"The photo {photo.path} can't be read as it was imported: {exc}"
        raise CorrectionImpossible(detail=detail) from exc
    least, most = _SPANS_PX
    span = min(max(2 * min_face_px, least), most)
    for padding in _PADDINGS:
        table, found = _detected(image, box, others, padding, extract, span)
        if found is not None:
            break
    else:
        return table.slice(0, 0)
    table, _ = extract(image, pa.Table.from_pylist([found], PLACES_SCHEMA))
    (cut,) = cut_faces(image, np.array([_box_of(found)], np.float32))
    if CROP.name in table.column_names:
        table = table.drop_columns([CROP.name])
    return table.append_column(CROP, pa.array([encode_reference_image(cut)], CROP.type))


def is_measured_by(model: str, found: pa.Table) -> bool:
    """Whether `found` has the face, if any, as `model` measures it."""
    return all(as_measured_by(model, face, _model_of(found)) is not None for face in faces_of_table(found))


def _model_of(found: pa.Table) -> str:
    return str((found.schema.metadata or {}).get(MODEL.encode(), b"").decode())


def add_face(plan: Plan, request: CorrectionRequest, found: pa.Table | None) -> None:
    """Plans a face at the drawn box that is the person's, by a constraint. Raises PhotoUnknown, PersonUnknown, and
    CorrectionImpossible for a box that is outside the photo, too small, or a known face."""
    photo, box = _photo_of(plan.client, request)
    persons = plan.directory.those(request.person_ids)
    _faces_of(plan.client, request)
    if found is None:
        raise CorrectionImpossible(detail="The photo was not looked at.")
    face, reason = _measured(found, plan.client.identity.model, request.gate or MatchSettings())
    if face is None and not persons and not request.change.name:
        detail = f"The photo gets a tag ({reason}), which needs a name or a person."
        raise CorrectionImpossible(detail=detail)
    person = persons[0] if persons else PersonRecord.new(str(uuid.uuid4()), plan.now, name=request.change.name)
    if not persons:
        plan.insert(person)
    _, face_id = plan.client.reserve_ids(0, 1)
    fields = dict.fromkeys(FACE_COLUMNS) | dict(zip(("x1", "y1", "x2", "y2"), box, strict=True))
    drawn = DrawnFace(face_id, photo.media_id, photo.next_ordinal, fields, None, None)
    if face is not None:
        drawn = replace(drawn, fields=face.fields, embedding=face.embedding, measured=face.other)
        hashes = tuple(value for value in (photo.sha256, photo.pixel_hash) if value is not None)
        plan.known_vectors[face_id] = FaceVector(face.embedding, hashes, face.box)
        plan.pictures.add(face_id, face.crop or b"")
    plan.draw(drawn, _stored(photo, drawn, face, person.person_id))
    plan.state([Fact(IS, face_id, person.person_id)])
    plan.settle([person.person_id])
    plan.said = {"tag": reason}


def _photo_of(client: LocalStore, request: CorrectionRequest) -> tuple[StoredPhoto, Box]:
    """The photo and the checked box."""
    photos = client.ask(media.photos, request.account_id, request.directory, list(request.media_ids))
    if len(photos) != 1 or len(request.media_ids) != 1:
        raise PhotoUnknown(media_ids=", ".join(map(str, request.media_ids)) or "none")
    if len(request.person_ids) > 1:
        raise CorrectionImpossible(detail="A face is one person's.")
    (photo,) = photos
    return photo, _checked(request.box, photo.width, photo.height)


def _checked(box: Sequence[float] | None, width: int, height: int) -> Box:
    """The box, clipped to the photo."""
    if box is None or len(box) != 4 or not all(map(math.isfinite, box)):
        raise CorrectionImpossible(detail="A box is four finite numbers: x1, y1, x2, y2.")
    x1, y1, x2, y2 = map(float, box)
    if min(x1, y1) < -_ROUNDING_PX or x2 > width + _ROUNDING_PX or y2 > height + _ROUNDING_PX:
        detail = f"The box {x1:g}, {y1:g}, {x2:g}, {y2:g} is not inside the photo, which has {width} x {height} px."
        raise CorrectionImpossible(detail=detail)
    made = max(x1, 0.0), max(y1, 0.0), min(x2, float(width)), min(y2, float(height))
    if min(made[2] - made[0], made[3] - made[1]) < MIN_SIDE_PX:
        raise CorrectionImpossible(detail=f"A drawn box has sides of at least {MIN_SIDE_PX} px of the upright photo.")
    return made


def _faces_of(client: LocalStore, request: CorrectionRequest) -> list[StoredFace]:
    """The photo's faces. Raises CorrectionImpossible if one is where the box is."""
    assert request.box is not None
    faces = client.stored_faces(request.account_id, request.directory, [], [], request.media_ids)
    for face in faces:
        if box_iou(face.box, request.box) >= SAME_FACE_IOU:
            how = f"by `people move {face.face_id} WHO`, or by This is... on the page"
            detail = f"The face {face.face_id} is there already: say whose that one is, {how}."
            raise CorrectionImpossible(detail=detail)
    return faces


def _detected(
    image: DecodedImage, box: Box, others: Sequence[Box], padding: float, extract: Extract, span: int
) -> tuple[pa.Table, dict[str, Any] | None]:
    """The region's faces, and of these (PLACES_SCHEMA, in the photo) the one that overlaps most with the box, has its
    centre in it and is none of the photo's others; None if there is none."""
    x1, y1, x2, y2 = box
    dx, dy = padding * (x2 - x1), padding * (y2 - y1)
    left, top = max(math.floor(x1 - dx), 0), max(math.floor(y1 - dy), 0)
    right, bottom = min(math.ceil(x2 + dx), image.width), min(math.ceil(y2 + dy), image.height)
    zoom = span / max(x2 - x1, y2 - y1)
    size = max(1, round((right - left) * zoom)), max(1, round((bottom - top) * zoom))
    region = Image.fromarray(image.pixels[top:bottom, left:right]).resize(size, Image.Resampling.BICUBIC)
    table, _ = extract(DecodedImage(np.asarray(region), image.format), None)
    scale, origin = np.divide(size, (right - left, bottom - top)), np.array([left, top])
    best, most = None, _LEAST_IOU
    for face in table.select(PLACES_SCHEMA.names).to_pylist():
        points = np.array([*_box_of(face), *face["landmarks"]]).reshape(-1, 2) / scale + origin
        points[:2] = points[:2].clip(0, (image.width, image.height))
        numbers = [float(number) for number in points.ravel()]
        placed = face | dict(zip(("x1", "y1", "x2", "y2"), numbers, strict=False)) | {"landmarks": numbers[4:]}
        own = _box_of(placed)
        x, y = (own[0] + own[2]) / 2, (own[1] + own[3]) / 2
        overlap = box_iou(own, box)
        is_known = any(box_iou(own, other) >= SAME_FACE_IOU for other in others)
        if x1 <= x <= x2 and y1 <= y <= y2 and overlap >= most and not is_known:
            best, most = placed, overlap
    return table, best


def _box_of(face: dict[str, Any]) -> Box:
    return face["x1"], face["y1"], face["x2"], face["y2"]


def _measured(found: pa.Table, model: str, gate: MatchSettings) -> tuple[ExtractedFace | None, str | None]:
    """The face by this model, or why it is a tag."""
    for each in faces_of_table(found):
        face = as_measured_by(model, each, _model_of(found))
        assert face is not None, "the caller checks it"
        failed = failed_measures(face.qualities, gate)
        return (None, f"the face there has too low a quality ({', '.join(failed)})") if failed else (face, None)
    return None, _NOTHING


def _stored(photo: StoredPhoto, drawn: DrawnFace, face: ExtractedFace | None, person_id: str) -> StoredFace:
    """The face as it will be stored."""
    return StoredFace(
        face_id=drawn.face_id,
        person_id=person_id,
        outcome=DRAWN,
        similarity_score=None,
        rejection_reasons=None,
        path=photo.path,
        sha256=photo.sha256,
        **{name: drawn.fields[name] for name in ("x1", "y1", "x2", "y2")},
        quality=0.0 if face is None else math.prod(face.qualities),
        has_embedding=face is not None,
        media_id=photo.media_id,
        width=photo.width,
        height=photo.height,
    )
