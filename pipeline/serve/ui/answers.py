"""People and faces as the page's JSON has them. Keys without a value are absent, but for the address of a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from pipeline.jobs.people import PersonRow
from pipeline.serve.ui.context import Context, Visitor, stamp


def gate_json(center_pose: float, sharpness: float, contrast: float) -> dict[str, float]:
    """The three qualities of a face, or what the gate asks of them."""
    return {"centerPose": center_pose, "sharpness": sharpness, "contrast": contrast}


def address(visitor: Visitor, path: str) -> str:
    """Of something of the visitor's directory."""
    return f"/ui/api/{path}?directory={quote(visitor.directory, safe='')}"


def picture_address(visitor: Visitor, guid: str | None) -> str | None:
    """Of a stored picture."""
    return None if guid is None else address(visitor, f"pictures/{guid}")


def people_json(context: Context, visitor: Visitor, rows: Iterable[PersonRow]) -> list[dict[str, Any]]:
    rows = list(rows)
    pictures = context.service.pictures(*visitor.place, [row.person_id for row in rows])
    return [_person_json(row, picture_address(visitor, pictures.get(row.person_id))) for row in rows]


def _person_json(row: PersonRow, picture: str | None) -> dict[str, Any]:
    return {
        "id": row.person_id,
        **({} if row.name is None else {"name": row.name}),
        **({} if row.external_id is None else {"externalId": row.external_id}),
        "photos": row.photos,
        "faces": row.faces,
        "merged": row.merged,
        "hidden": row.hidden,
        "addedAt": stamp(row.added_at),
        "picture": picture,
    }


def face_json(context: Context, visitor: Visitor, row: Mapping[str, Any]) -> dict[str, Any]:
    """Of a row of `faces_page`."""
    path, shown = row["path"], context.photos.may_show(row["path"])
    cut = address(visitor, f"faces/{row['face_id']}/picture") if shown else None
    return {
        "id": row["face_id"],
        "person": row["person_id"],
        **({} if row["similarity_score"] is None else {"score": row["similarity_score"]}),
        "quality": row["quality"],
        "reference": row["reference"],
        "stated": row["stated"],
        "box": _fractions(row),
        "picture": picture_address(visitor, row["image_guid"]) or cut,
        **({} if path is None else {"photo": _photo_json(visitor, row, shown=shown)}),
    }


def _photo_json(visitor: Visitor, row: Mapping[str, Any], *, shown: bool) -> dict[str, Any]:
    """Where it lies is told only where the photo itself may be shown."""
    return {
        "id": row["media_id"],
        "name": PurePath(row["path"]).name,
        **({"path": row["path"]} if shown else {}),
        "width": row["width"],
        "height": row["height"],
        "picture": address(visitor, f"photos/{row['media_id']}/picture") if shown else None,
    }


def _fractions(row: Mapping[str, Any]) -> list[float] | None:
    """x, y, width and height of a box as parts of its photo."""
    width, height = row["width"], row["height"]
    if not width or not height:
        return None
    return box_fractions((row["x1"], row["y1"], row["x2"], row["y2"]), width, height)


def box_fractions(box: tuple[float, float, float, float], width: int, height: int) -> list[float]:
    """x, y, width and height of a box (xyxy in pixels) as parts of its photo."""
    x1, y1, x2, y2 = box
    return [x1 / width, y1 / height, (x2 - x1) / width, (y2 - y1) / height]
