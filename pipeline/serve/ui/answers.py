"""People and faces as JSON for the web UI. Keys without a value are omitted, except picture addresses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from pipeline.jobs.people import PersonRow
from pipeline.serve.context import Json
from pipeline.serve.ui.context import PageContext, Visit, stamp
from pipeline.serve.ui.sessions import Session
from pipeline.store import people as store_people


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
    rows, listed = list(rows), visit.listed
    covers = _covers(visit, rows)
    pictures = visit.service.pictures(*visit.place, [row.person_id for row in rows])
    return [
        {
            "id": row.person_id,
            **({} if row.name is None else {"name": row.name}),
            **({"namesakes": number} if (number := listed.namesakes(row)) else {}),
            **({} if row.external_id is None else {"externalId": row.external_id}),
            "photos": row.photos,
            "faces": row.faces,
            "merged": row.merged,
            "hidden": row.hidden,
            "addedAt": stamp(row.added_at),
            "picture": covers.get(row.person_id) or picture_address(visit, pictures.get(row.person_id)),
        }
        for row in rows
    ]


def _covers(visit: Visit, rows: Sequence[PersonRow]) -> dict[str, str]:
    """Person -> address of the face that a user chose, as long as it is the person's and may be shown."""
    wanted = [row.cover for row in rows if row.cover is not None]
    faces = visit.context.store.ask(store_people.faces_by_id, wanted).to_pylist() if wanted else []
    with visit.service.directories.using(*visit.place) as directory:
        roots = {face["face_id"]: directory.root_id(face["person_id"]) for face in faces if face["person_id"]}
    pictures = {face["face_id"]: face_json(visit, face)["picture"] for face in faces}
    return {
        row.person_id: pictures[row.cover]
        for row in rows
        if row.cover is not None and roots.get(row.cover) == row.person_id and pictures[row.cover]
    }


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
            **({} if row["taken_at"] is None else {"takenAt": row["taken_at"].isoformat()}),  # the camera's local time
        }
    return face


def box_fractions(box: tuple[float, float, float, float], width: int, height: int) -> list[float]:
    """x, y, width and height of a box (xyxy in pixels) as fractions of its photo."""
    x1, y1, x2, y2 = box
    return [x1 / width, y1 / height, (x2 - x1) / width, (y2 - y1) / height]
