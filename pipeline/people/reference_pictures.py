"""The pictures of new references: read from the store, or cut from photos."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pipeline.errors import CorrectionImpossible, ImageRejected, ObjectUnknown, PictureMissing, StoreDamaged
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.stored_picture import pictures_of_photo
from pipeline.people.directory import Directory
from pipeline.store import LocalStore, StoredFace


def best_first(faces: Iterable[StoredFace]) -> list[StoredFace]:
    """The faces that can be a reference, best first: by product of qualities, size, age."""
    return sorted((f for f in faces if f.has_embedding), key=lambda f: (-f.quality, -f.area, f.face_id))


class Pictures:
    """Chooses the references of a directory's persons and holds their pictures."""

    def __init__(
        self, client: LocalStore, decoder: Decoder, directory: Directory, *, required: bool, locked: bool
    ) -> None:
        """`required`: each reference needs a picture. `locked`: `pick` runs under the directory's lock and reads
        nothing; `read_wanted`, called without it, reads what the next `pick` needs."""
        self.client = client
        self.directory = directory
        self.wanted: list[Sequence[StoredFace]] = []  # `read_wanted` reads one of each
        self.references: Mapping[str, int] | None = None  # by person, if the caller knows many
        self._decoder = decoder
        self._required = required
        self._locked = locked
        self._read: dict[int, bytes | None] = {}

    def __getitem__(self, face_id: int) -> bytes | None:
        """The picture of a picked face; None only if not `required`."""
        return self._read[face_id]

    def add(self, face_id: int, picture: bytes) -> None:
        """Adds a picture that the caller has."""
        self._read[face_id] = picture

    def find(self, faces: Sequence[StoredFace]) -> bool:
        """Reads the picture of the best face that has one. Returns False if none has."""
        for face in best_first(faces):
            if face.face_id not in self._read:
                self._read[face.face_id] = self._picture_of(face)
            if self._read[face.face_id] is not None:
                return True
        return False

    def read_wanted(self) -> None:
        """Reads the pictures that `pick` lacked."""
        wanted, self.wanted = self.wanted, []
        for faces in wanted:
            self.find(faces)

    def pick(self, person_id: str, faces: Sequence[StoredFace]) -> int | None:
        """The best face with a picture. If none has: raises PictureMissing or CorrectionImpossible if `required`, else
        the best with a vector, or None. A person with only tags has none."""
        if not self._locked:
            self.find(faces)
        able = best_first(faces)
        if not able:
            if not self._required or all(face.is_tag for face in faces):
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

    def _is_reference(self, face: StoredFace) -> bool:
        person_id = face.person_id
        if person_id is None:
            return False
        known = self.client.reference_faces([person_id]) if self.references is None else self.references
        return known.get(person_id) == face.face_id

    def _picture_of(self, face: StoredFace) -> bytes | None:
        """The stored picture of a face, or one cut from its photo; None if the photo is unreadable or changed."""
        guid = self.client.picture_of_face(face.face_id) if self._is_reference(face) else None
        if guid is not None:
            try:
                return self.client.read_image(self.directory.account_id, guid)[0]
            except (ObjectUnknown, StoreDamaged):
                if face.path is None:  # posted: no photo
                    raise
        try:
            return pictures_of_photo(face.path or "", face.sha256, [face.box], self._decoder)[0]
        except ImageRejected:
            return None
