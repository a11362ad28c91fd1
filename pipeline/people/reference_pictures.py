"""The pictures of faces that corrections make references: cut from their photos, without a lock."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pipeline.errors import CorrectionImpossible, ImageRejected, ObjectUnknown, PictureMissing, StoreDamaged
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.stored_picture import MEDIA_TYPE, pictures_of_photo
from pipeline.people.correction_plan import Plan, best_first
from pipeline.people.directory import Directory
from pipeline.store import LocalStore, StoredFace


class PictureReader:
    """Reads them."""

    def __init__(self, client: LocalStore, decoder: Decoder, max_bytes: int) -> None:
        """`max_bytes`: of a photo's file."""
        self._client = client
        self._decoder = decoder
        self._max_bytes = max_bytes

    def read(self, directory: Directory, face: StoredFace, references: Mapping[str, int] | None = None) -> bytes | None:
        """The picture to store of a face: the one that is stored, or cut from its photo; None where that can't be read,
        or is another one now. `references`: by person, where the caller knows them for many."""
        record = directory.get(face.person_id or "")
        guid = record.image_guid if record is not None else None
        if guid and references is None:
            references = self._client.reference_faces([str(face.person_id)])
        if guid and references is not None and references.get(str(face.person_id)) == face.face_id:
            try:
                return self._client.read_image(directory.account_id, guid)[0]
            except (ObjectUnknown, StoreDamaged):
                if face.path is None:  # it was posted: there is no photo
                    raise
        try:
            return pictures_of_photo(face.path or "", face.sha256, [face.box], self._decoder, self._max_bytes)[0]
        except ImageRejected:
            return None


class Pictures:
    """The pictures of faces that are to be references."""

    def __init__(self, *, required: bool = True) -> None:
        """`required`: nobody is to be known by a face without a picture."""
        self.wanted: list[Sequence[StoredFace]] = []  # of each, `find` is to read one
        self._required = required
        self._read: dict[int, bytes | None] = {}

    def __getitem__(self, face_id: int) -> bytes | None:
        """Of a face that was picked; None only where none is required."""
        return self._read[face_id]

    def files(self, plan: Plan, references: Mapping[str, int | None]) -> dict[str, tuple[str, bytes, str]]:
        """person id -> guid, bytes and media type, of references (person id -> face id) that were picked; without those
        that have no picture, which is so only where none is required. The guids are the plan's own."""
        return {
            person: (plan.guid(face), picture, MEDIA_TYPE)
            for person, face in references.items()
            if face is not None and (picture := self[face]) is not None
        }

    def add(self, face_id: int, picture: bytes) -> None:
        """One that is at hand already."""
        self._read[face_id] = picture

    def find(self, faces: Sequence[StoredFace], read: Callable[[StoredFace], bytes | None]) -> bool:
        """Reads the picture of the best of the faces whose picture can be had; False: there is none."""
        for face in best_first(faces):
            if face.face_id not in self._read:
                self._read[face.face_id] = read(face)
            if self._read[face.face_id] is not None:
                return True
        return False

    def find_wanted(self, read: Callable[[StoredFace], bytes | None]) -> None:
        """Reads those that `pick` asked for."""
        wanted, self.wanted = self.wanted, []
        for faces in wanted:
            self.find(faces, read)

    def pick(self, person_id: str, faces: Sequence[StoredFace]) -> int | None:
        """The best of the faces whose picture can be had. Where there is none: PictureMissing or CorrectionImpossible
        is raised; or, where no picture is required, the best that has a vector."""
        able = best_first(faces)
        if not able:
            if not self._required:
                return None
            detail = f"The person {person_id} would have only faces of too low a quality, of which no vector is stored."
            raise CorrectionImpossible(detail=detail)
        for face in able:
            if self._read.get(face.face_id, b"") is not None:
                if face.face_id not in self._read:
                    self.wanted.append(able)
                return face.face_id
        if not self._required:
            return able[0].face_id
        raise PictureMissing(person_id=person_id, paths=", ".join(str(face.path) for face in able[:3]))
