"""The pictures of faces that corrections make references: cut from their photos, without a lock."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from pipeline.errors import CorrectionImpossible, ImageRejected, ObjectUnknown, PictureMissing, StoreDamaged
from pipeline.extraction.images.decode import Decoder
from pipeline.extraction.images.files import read_file
from pipeline.extraction.stored_picture import cut_faces, encode_reference_image
from pipeline.identities.correction_plan import best_first
from pipeline.identities.directory import Directory
from pipeline.store.local import LocalStore
from pipeline.store.records import StoredFace


class PictureReader:
    """Reads them."""

    def __init__(self, client: LocalStore, decoder: Decoder, max_bytes: int) -> None:
        """`max_bytes`: of a photo's file."""
        self._client = client
        self._decoder = decoder
        self._max_bytes = max_bytes

    def read(self, directory: Directory, face: StoredFace) -> bytes | None:
        """The picture to store of a face: the one that is stored, or cut from its photo; None where that can't be read,
        or is another one now."""
        record = directory.get(face.person_id or "")
        guid = record.image_guid if record is not None else None
        if guid and face.face_id in self._client.reference_faces([str(face.person_id)]).values():
            try:
                return self._client.read_image(directory.account_id, guid)[0]
            except (ObjectUnknown, StoreDamaged):
                if face.path is None:  # it was posted: there is no photo
                    raise
        try:
            data = read_file(Path(face.path or ""), self._max_bytes)
            if hashlib.sha256(data).hexdigest() != face.sha256:
                return None
            box = np.array([[face.x1, face.y1, face.x2, face.y2]], np.float32)
            return encode_reference_image(cut_faces(self._decoder(data), box)[0])
        except ImageRejected:
            return None


class Pictures:
    """The pictures of faces that are to be references."""

    def __init__(self) -> None:
        self.wanted: list[StoredFace] = []
        self._read: dict[int, bytes | None] = {}

    def __getitem__(self, face_id: int) -> bytes:
        picture = self._read[face_id]
        assert picture is not None  # `pick` chose none without
        return picture

    def add(self, face_id: int, picture: bytes | None) -> None:
        self._read[face_id] = picture

    def find(self, faces: Sequence[StoredFace], read: Callable[[StoredFace], bytes | None]) -> bool:
        """Reads the picture of the best of the faces whose picture can be had; False: there is none."""
        for face in best_first(faces):
            if face.face_id not in self._read:
                self._read[face.face_id] = read(face)
            if self._read[face.face_id] is not None:
                return True
        return False

    def take_wanted(self) -> list[StoredFace]:
        wanted, self.wanted = self.wanted, []
        return wanted

    def pick(self, person_id: str, faces: Sequence[StoredFace]) -> int:
        """The best of the faces whose picture can be had. Raises PictureMissing, CorrectionImpossible."""
        able = best_first(faces)
        if not able:
            detail = f"The person {person_id} would have only faces of too low a quality, of which no vector is stored."
            raise CorrectionImpossible(detail=detail)
        for face in able:
            if self._read.get(face.face_id, b"") is not None:
                if face.face_id not in self._read:
                    self.wanted.append(face)
                return face.face_id
        raise PictureMissing(person_id=person_id, paths=", ".join(str(face.path) for face in able[:3]))
