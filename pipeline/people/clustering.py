"""The two methods of a regroup: which faces are one cluster."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pipeline.config import RegroupSettings, nearest_threshold
from pipeline.errors import CorrectionImpossible
from pipeline.matching.average_link import FacesToLink, average_link
from pipeline.matching.calibration import Calibration, cut_for
from pipeline.matching.group import group_faces
from pipeline.matching.match import Matcher
from pipeline.matching.once_per_photo import OncePerPhoto
from pipeline.matching.references import ReferenceIndex
from pipeline.matching.score import dot_at, exact_dots
from pipeline.models.registry import REGISTRY
from pipeline.people.regrouping import ClusteredFace, Group
from pipeline.store import FaceVector, StoreIdentity
from pipeline.types import BoolArray, FaceBatch, FloatArray, IntArray


def one_by_one(
    faces: Sequence[ClusteredFace],
    vectors: Sequence[FaceVector],
    groups: Mapping[str, Group],
    identity: StoreIdentity,
    device: str,
    threshold: float,
) -> list[ClusteredFace]:
    """The faces with the clusters of a run, in their order, that puts nobody on a photo twice. `vectors`: of each face;
    `groups`: as `regrouping.changes`."""
    if not faces:
        return []
    batch = FaceBatch(
        embeddings=np.stack([vector.embedding for vector in vectors]),
        insertable=np.array([face.founds for face in faces]),
        image_hashes=[vector.image_hashes for vector in vectors],
        boxes=np.array([vector.box for vector in vectors], np.float32),
    )
    index = ReferenceIndex(identity.embedding_size, device)
    matcher = Matcher(Calibration.from_dict(identity.calibration), nearest_threshold(threshold))
    once = OncePerPhoto(np.array([face.photo for face in faces]), said=[_given(face, groups) for face in faces])
    return _with_clusters(faces, group_faces(batch, index, matcher, once=once).position)


def by_average_link(
    faces: Sequence[ClusteredFace],
    vectors: Sequence[FaceVector],
    groups: Mapping[str, Group],
    identity: StoreIdentity,
    device: str,
    cut: float,
    neighbours: int,
) -> list[ClusteredFace]:
    """The faces with their clusters by average link; none for given faces unlike their person. `vectors`: of each face;
    `groups`: as `regrouping.changes`."""
    if not faces:
        return []
    embeddings = np.stack([vector.embedding for vector in vectors])
    calibration = Calibration.from_dict(identity.calibration)
    alike = _like_their_person(faces, embeddings, dot_at(cut, calibration))
    taking = [face for face, is_alike in zip(faces, alike, strict=True) if is_alike]
    linked, labels, apart = _constraints(taking, groups)
    linkage = average_link(
        FacesToLink(
            embeddings=embeddings[alike],
            photos=np.array([face.photo for face in taking]),
            linked=linked,
            labels=labels,
            apart=apart,
        ),
        calibration,
        cut=cut,
        device=device,
        neighbours=neighbours,
    )
    clusters = np.full(len(faces), -1)
    clusters[alike] = linkage.clusters()
    return _with_clusters(faces, clusters)


def _like_their_person(faces: Sequence[ClusteredFace], embeddings: FloatArray, least: float) -> BoolArray:
    """[n] False: a fixed face whose dot product with its record's reference is below `least`. It stays whatever its
    cluster; in one it would keep the person's own faces out, or bring those of the person whom it resembles."""
    references = {face.person_id: row for row, face in enumerate(faces) if face.reference}
    fixed = [row for row, face in enumerate(faces) if face.fixed and face.person_id in references]
    theirs = [references[faces[row].person_id] for row in fixed]
    alike = np.ones(len(faces), bool)
    alike[fixed] = exact_dots(embeddings[fixed], embeddings[theirs]) >= least
    alike[list(references.values())] = True
    return alike


def _given(face: ClusteredFace, groups: Mapping[str, Group]) -> str | None:
    """The root that a user gave the face: a fixed one's, and a reference's if it is bound."""
    root = face.root
    return root if root is not None and (face.fixed or (face.reference and groups[root].is_bound)) else None


def _with_clusters(faces: Sequence[ClusteredFace], clusters: IntArray) -> list[ClusteredFace]:
    """`clusters` [n]: -1 is none, like one in which no face could found a person."""
    pairs = list(zip(faces, clusters.tolist(), strict=True))
    founded = {cluster for face, cluster in pairs if face.founds} - {-1}
    return [replace(face, cluster=cluster if cluster in founded else None) for face, cluster in pairs]


def _constraints(faces: Sequence[ClusteredFace], groups: Mapping[str, Group]) -> tuple[IntArray, IntArray, IntArray]:
    """`linked`, `labels` and `apart` of `FacesToLink`. A record's fixed faces are one set, with its reference if its
    root has names, external ids, merges or cannot-links. Merged records are several: they may look unlike."""
    sets: dict[str, int] = {}  # of records
    of_root: dict[str, list[int]] = {}
    linked = np.full(len(faces), -1)
    for row, face in enumerate(faces):
        if (root := _given(face, groups)) is not None:
            linked[row] = sets.setdefault(str(face.person_id), len(sets))
            if linked[row] not in of_root.setdefault(root, []):
                of_root[root].append(int(linked[row]))
    apart = [
        pair
        for root, own in of_root.items()
        for other in groups[root].against
        for pair in itertools.product(own, of_root.get(other, ()))
    ]
    alone = itertools.count(len(sets))  # sets of one face that must not be some root's
    for row, face in enumerate(faces):
        barred = [one for root in sorted(face.barred) for one in of_root.get(root, ())]
        if barred and linked[row] < 0:
            linked[row] = next(alone)
            apart += [(int(linked[row]), one) for one in barred]
    labels = np.full((next(alone), 2), -1)
    number: dict[tuple[object, ...], int] = {}
    for root, own in of_root.items():
        said = tuple(sorted(groups[root].names)), tuple(sorted(groups[root].external_ids))
        for column, label in enumerate(said):
            if label:
                labels[own, column] = number.setdefault(label, len(number))
    return linked, labels, np.array(apart, np.int64).reshape(-1, 2)


def cut_of(method: RegroupSettings, identity: StoreIdentity, people: int) -> float:
    """The cut of average-link, else the one that has its precision among so many people. Raises CorrectionImpossible if
    that was not measured."""
    if method.cut is not None:
        return method.cut
    weights = REGISTRY.get(identity.weights)
    if weights is None or not weights.cuts or identity.calibration != weights.calibration.as_dict():
        raise CorrectionImpossible(
            detail="No table says which cut has which precision with this store's vectors and calibration: give the cut"
            " itself, with --cut T."
        )
    return cut_for(weights.cuts, method.precision, people)
