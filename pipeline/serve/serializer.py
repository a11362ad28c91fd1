"""The service's results as JSON of the contract (2.2, 2.3), with image addresses. Keys without a value are omitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pipeline.config import ServeSettings
from pipeline.errors import UsageError
from pipeline.people.types import FaceResult, PersonView, PostResult, SimilarPerson
from pipeline.people.views import epoch_ms
from pipeline.store import ChangesPage

Json = dict[str, Any]

# Increment if another detector, weights or defaults change the boxes.
DETECTION_VERSION: Final = 1
LANDMARK_NAMES: Final = (
    "left-eye-center",
    "right-eye-center",
    "nose-tip",
    "left-mouth-corner",
    "right-mouth-corner",
)
CLOUD: Final = "cloud"
MAX_CHANGES: Final = 10_000  # entries in one answer


def image_prefix(settings: ServeSettings) -> str:
    """The address of a stored image (contract, 2.2) without its guid: `cvos://obj/` locally, or by `public_url` and
    `object_scheme`; `https://<public host>/obj/` in cloud hosting.

    Raises UsageError if cloud hosting has no `public_url`.
    """
    scheme, _, place = (settings.public_url or "").strip().rstrip("/").rpartition("://")
    if settings.hosting == CLOUD:
        if not place:
            raise UsageError(message="Cloud hosting needs --public-url, the host that clients reach.")
        return f"{settings.object_scheme or 'https'}://{place}/obj/"
    if not place:
        return f"{settings.object_scheme or 'cvos'}://obj/"
    return f"{settings.object_scheme or scheme or 'http'}://{place}/obj/"


@dataclass(frozen=True)
class Serializer:
    """Turns the service's results into JSON."""

    image_prefix: str

    def post(self, result: PostResult, *, with_ids: bool = True) -> Json:
        """The object of 2.3, its faces in the service's order; optionally without person ids."""
        faces = [self._face(face, result) for face in result.faces]
        if not with_ids:
            for entry in (*faces, *(similar for face in faces for similar in face.get("similar", ()))):
                entry.pop("personId", None)
                entry.pop("rootPersonId", None)
        return {
            "accountUpdated": result.account_updated,
            "detectionTime": result.detection_ms,
            "identifiedFaces": faces,
        }

    def people(self, views: Sequence[PersonView]) -> Json:
        """The answer of routes that list records, such as `GET /people`."""
        return {"people": [self.record(view) for view in views]}

    def record(self, view: PersonView) -> Json:
        """An identity record of 2.2, with the clients' further fields. The image is the root's; a child also has its
        own."""
        own, root = view.record, view.root
        return own.further_fields | _present(
            personId=own.person_id,
            rootPersonId=root.person_id,
            name=own.name,
            firstName=own.first_name,
            lastName=own.last_name,
            externalId=own.external_id,
            imageURI=self._image(root.image_guid),
            unmergedImageURIs=[self._image(guid) for guid in view.children_images] or None,
            unmergedImageURI=self._image(own.image_guid) if own.image_guid != root.image_guid else None,
            occurrence=view.occurrence,
            lastOccurrenceDate=view.last_occurrence_at_ms,
            rootPersonAddDate=epoch_ms(root.added_at),
            addDate=epoch_ms(own.added_at),
            modDate=epoch_ms(own.modified_at),
            tags=list(own.tags),
            ignore=own.ignored,
        )

    def _image(self, guid: str | None) -> str | None:
        return None if guid is None else self.image_prefix + guid

    def _face(self, face: FaceResult, result: PostResult) -> Json:
        fields, (x1, y1, x2, y2) = face.face.fields, face.face.box
        width, height, points = x2 - x1, y2 - y1, fields["landmarks"]
        # The five points as fractions of the face box, from its upper left corner.
        landmarks = {
            name: {"x": (points[2 * i] - x1) / width, "y": (points[2 * i + 1] - y1) / height}
            for i, name in enumerate(LANDMARK_NAMES)
        }
        return {
            "mediaId": result.media_id,
            "offsetX": x1 / result.width,
            "offsetY": y1 / result.height,
            "relativeWidth": width / result.width,
            "relativeHeight": height / result.height,
            "attributes": {
                "centerPoseQuality": fields["center_pose_quality"],
                "sharpnessQuality": fields["sharpness_quality"],
                "contrastQuality": fields["contrast_quality"],
                "confidence": fields["confidence"],
                "detectionVersion": DETECTION_VERSION,
                "dimension": {"height": round(height), "width": round(width)},
                "landmarks": landmarks,
                "provider": result.provider,
            },
            "tags": list(face.person.root.tags) if face.person else [],
            **({} if face.person is None else _identity(face.person, face.score, face.new_id)),
            **_present(
                newId=face.inserted or None,
                rejectionReasons=list(face.rejected) or None,
                conflict=face.conflict,
                similar=None if face.similar is None else [_similar(person) for person in face.similar],
            ),
        }


def _identity(person: PersonView, score: float | None, new_id: str | None) -> Json:
    """The person a face was recognised or inserted as, with the new record's id if inserted."""
    root = person.root
    own = _present(personId=new_id, personExternalId=root.external_id, rootPersonAddDate=epoch_ms(root.added_at))
    return {**_person(person, score), **own}


def _similar(similar: SimilarPerson) -> Json:
    return {**_person(similar.person, similar.score), "ignore": similar.person.root.ignored}


def _person(person: PersonView, score: float | None) -> Json:
    """The root's id and names, and the counters of the whole merged set."""
    root = person.root
    return _present(
        personId=root.person_id,
        rootPersonId=root.person_id,
        name=root.name,
        firstName=root.first_name,
        lastName=root.last_name,
        externalId=root.external_id,
        similarityScore=score,
        occurrence=person.occurrence,
        lastOccurrenceDate=person.last_occurrence_at_ms,
    )


def _present(**values: Any) -> Json:
    return {key: value for key, value in values.items() if value is not None}


def changes_json(page: ChangesPage) -> Json:
    """Changes since a commit."""
    return {
        "changes": [
            _present(
                commit=entry.commit,
                position=entry.position,
                kind=entry.kind,
                origin=entry.origin,
                at=None if entry.at is None else epoch_ms(entry.at),
                account=entry.account,
                directory=entry.directory,
                persons=list(entry.persons),
                gone=list(entry.gone),
                undoes=entry.undoes and dict(zip(("commit", "position"), entry.undoes, strict=True)),
            )
            for entry in page.entries
        ],
        "next": page.next,
        "more": page.more,
    }
