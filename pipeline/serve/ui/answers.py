"""People and faces as JSON for the web UI. Keys without a value are omitted, except picture addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from pipeline.jobs.people import PersonRow
from pipeline.serve.context import Json
from pipeline.serve.ui.context import PageContext, Visit, stamp
from pipeline.serve.ui.sessions import Session


def gate_json(center_pose: float, sharpness: float, contrast: float) -> dict[str, float]:
    """The three qualities of a face, or the gate's thresholds for them."""
    return {"centerPose": center_pose, "sharpness": sharpness, "contrast": contrast}


def directories_json(context: PageContext, session: Session) -> list[Json]:
    """Of the session's account."""
    rows = context.store.directories()
    return [{"name": row.name, "identities": row.identities} for row in rows if row.account_id == session.account_id]


def address(visit: Visit, path: str) -> str:
    """Of something in the visited directory."""
    return f"/ui/api/{path}?directory={quote(visit.directory, safe='')}"


def picture_address(visit: Visit, guid: str | None) -> str | None:
    """Of a stored picture."""
    return None if guid is None else address(visit, f"pictures/{guid}")


def people_json(visit: Visit, rows: Iterable[PersonRow]) -> list[Json]:
    rows = list(rows)
    pictures = visit.service.pictures(*visit.place, [row.person_id for row in rows])
    return [
        {
            "id": row.person_id,
            **({} if row.name is None else {"name": row.name}),
            **({} if row.external_id is None else {"externalId": row.external_id}),
            "photos": row.photos,
            "faces": row.faces,
            "merged": row.merged,
            "hidden": row.hidden,
            "addedAt": stamp(row.added_at),
            "picture": picture_address(visit, pictures.get(row.person_id)),
        }
        for row in rows
    ]


def face_json(visit: Visit, row: Mapping[str, Any]) -> Json:
    """Of a row of `faces_page`. Includes the photo's path only if the photo may be shown."""
    path, width, height = row["path"], row["width"], row["height"]
    shown = visit.context.photos.may_show(path)
    cut = address(visit, f"faces/{row['face_id']}/picture") if shown else None
    face = {
        "id": row["face_id"],
        "person": row["person_id"],
        **({} if row["similarity_score"] is None else {"score": row["similarity_score"]}),
        "quality": row["quality"],
        "reference": row["reference"],
        "stated": row["stated"],
        "box": box_fractions((row["x1"], row["y1"], row["x2"], row["y2"]), width, height) if width and height else None,
        "picture": picture_address(visit, row["image_guid"]) or cut,
    }
    if path is not None:
        face["photo"] = {
            "id": row["media_id"],
            "name": PurePath(path).name,
            **({"path": path} if shown else {}),
            "width": width,
            "height": height,
            "picture": address(visit, f"photos/{row['media_id']}/picture") if shown else None,
        }
    return face


def box_fractions(box: tuple[float, float, float, float], width: int, height: int) -> list[float]:
    """x, y, width and height of a box (xyxy in pixels) as fractions of its photo."""
    x1, y1, x2, y2 = box
    return [x1 / width, y1 / height, (x2 - x1) / width, (y2 - y1) / height]
