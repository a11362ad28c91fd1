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
from pipeline.models.registry import REGISTRY
from pipeline.people.regrouping import ClusteredFace, Group
from pipeline.store import FaceVector, StoreIdentity
from pipeline.types import FaceBatch, IntArray


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
    """The faces with their clusters by average link. `vectors`: of each face; `groups`: as `regrouping.changes`."""
    if not faces:
        return []
    linked, labels, apart = _constraints(faces, groups)
    linkage = average_link(
        FacesToLink(
            embeddings=np.stack([vector.embedding for vector in vectors]),
            photos=np.array([face.photo for face in faces]),
            linked=linked,
            labels=labels,
            apart=apart,
        ),
        Calibration.from_dict(identity.calibration),
        cut=cut,
        device=device,
        neighbours=neighbours,
    )
    return _with_clusters(faces, linkage.clusters())


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
    """`linked`, `labels` and `apart` of `FacesToLink`. A root's fixed faces are one set, with its references if it has
    names, external ids, merges or cannot-links."""
    sets: dict[str, int] = {}  # of roots
    linked = np.full(len(faces), -1)
    for row, face in enumerate(faces):
        if (given := _given(face, groups)) is not None:
            linked[row] = sets.setdefault(given, len(sets))
    apart = [(sets[root], sets[one]) for root in sets for one in groups[root].against if one in sets]
    alone = itertools.count(len(sets))  # sets of one face that must not be some root's
    for row, face in enumerate(faces):
        barred = [sets[root] for root in sorted(face.barred) if root in sets]
        if barred and linked[row] < 0:
            linked[row] = next(alone)
            apart += [(int(linked[row]), one) for one in barred]
    labels = np.full((next(alone), 2), -1)
    number: dict[tuple[object, ...], int] = {}
    for root, row in sets.items():
        of_root = tuple(sorted(groups[root].names)), tuple(sorted(groups[root].external_ids))
        for column, label in enumerate(of_root):
            if label:
                labels[row, column] = number.setdefault(label, len(number))
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
