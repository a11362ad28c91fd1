"""The demo's photos hold what their table says, for the stages and for a reference detector."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from facenet_pytorch import MTCNN
from PIL import Image

from pipeline.config import AlignSettings, DecodeSettings, MatchSettings, SourceSettings
from pipeline.errors import ImageRejected, UsageError
from pipeline.extraction.align import cut_crops
from pipeline.extraction.images.decode import decode_image
from pipeline.extraction.images.files import hash_file
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.extraction.quality import assess_quality
from pipeline.extraction.sources.scan import scan_source
from pipeline.tools.sample_photos import COLLINS, HOPPER, Sample, write_samples
from pipeline.types import CENTER_POSE, CONTRAST, DUPLICATE, NO_FACE, OK, SHARPNESS, DecodedImage, Detections


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("samples") / "photos"


@pytest.fixture(scope="module")
def written(folder: Path) -> list[Sample]:
    return write_samples(folder)


@pytest.fixture(scope="module")
def decoded(folder: Path, written: list[Sample]) -> dict[str, DecodedImage | ImageRejected]:
    return {sample.file: _decode(folder / sample.file) for sample in written}


def _decode(path: Path) -> DecodedImage | ImageRejected:
    try:
        return decode_image(path.read_bytes(), DecodeSettings())
    except ImageRejected as rejected:
        return rejected


@pytest.mark.slow
def test_the_scan_finds_exactly_these_files_in_this_order(folder: Path, written: list[Sample]) -> None:
    assert [Path(ref.file).name for ref in scan_source(folder, SourceSettings())] == [sample.file for sample in written]


def test_the_table_summed_up(written: list[Sample]) -> None:
    assert len(written) == 34
    assert Counter(sample.person for sample in written) == {HOPPER: 15, COLLINS: 12, None: 7}
    statuses = {OK: 26, DUPLICATE: 1, NO_FACE: 3, "unsupported": 2, "truncated": 1, "too_large": 1}
    assert Counter(sample.status for sample in written) == statuses
    assert sorted(sample.rejection for sample in written if sample.rejection) == [CENTER_POSE, CONTRAST, SHARPNESS]


def test_each_file_decodes_or_is_refused_as_the_table_says(
    written: list[Sample], decoded: dict[str, DecodedImage | ImageRejected]
) -> None:
    for sample in written:
        result = decoded[sample.file]
        status = result.status if isinstance(result, ImageRejected) else None
        assert status == (None if sample.status in (OK, NO_FACE, DUPLICATE) else sample.status), sample.file
    formats = {result.format for result in decoded.values() if isinstance(result, DecodedImage)}
    assert formats == {"jpeg", "png", "webp", "bmp", "tiff", "gif", "heic", "avif"}


def test_duplicates_are_later_copies_and_nothing_else_is(folder: Path, written: list[Sample]) -> None:
    seen: set[str] = set()
    for sample in written:
        digest = hash_file(folder / sample.file)[0]
        assert (digest in seen) == (sample.status == DUPLICATE), sample.file
        seen.add(digest)


def test_every_exif_turn_occurs(folder: Path, written: list[Sample]) -> None:
    turns = []
    for sample in written:
        if "exif" in sample.file:
            with Image.open(folder / sample.file) as image:
                turns.append(image.getexif()[0x0112])
    assert sorted(turns) == [2, 3, 4, 5, 6, 7, 8]


def test_poor_faces_come_first_and_good_ones_next(written: list[Sample]) -> None:
    faces = [sample for sample in written if sample.person]
    poor = [sample.rejection is not None for sample in faces]
    assert poor == sorted(poor, reverse=True)
    assert {sample.person for sample in faces[sum(poor) :][:2]} == {HOPPER, COLLINS}


@pytest.fixture(scope="module")
def reference_faces(decoded: dict[str, DecodedImage | ImageRejected]) -> dict[str, Detections]:
    """What facenet-pytorch's own MTCNN finds, from the likeliest face down, per decodable file."""
    detector = MTCNN(keep_all=True, thresholds=[0.6, 0.7, 0.7], min_face_size=20, device="cpu")
    return {name: _detect(detector, image) for name, image in decoded.items() if isinstance(image, DecodedImage)}


def _detect(detector: MTCNN, image: DecodedImage) -> Detections:
    faces = detector.detect(Image.fromarray(image.pixels), landmarks=True)
    if faces[0] is None:
        faces = (np.zeros((0, 4)), np.zeros(0), np.zeros((0, 5, 2)))
    boxes, scores, landmarks = (torch.tensor(array.astype(np.float32)) for array in faces)
    order = scores.argsort(descending=True)
    return Detections(torch.zeros(len(order), dtype=torch.int64), boxes[order], landmarks[order], scores[order])


@pytest.mark.slow
def test_each_photo_holds_one_clear_face_or_none(written: list[Sample], reference_faces: dict[str, Detections]) -> None:
    """Clear: far from the confidence of 0.95 at which a face begins to count."""
    for sample in written:
        if sample.file in reference_faces:
            scores = reference_faces[sample.file].scores
            assert (scores > 0.98).sum() == (sample.person is not None), sample.file
            assert ((scores > 0.9) & (scores < 0.98)).sum() == 0, sample.file


def test_the_gate_rejects_the_poor_faces_each_for_its_one_reason(
    written: list[Sample],
    decoded: dict[str, DecodedImage | ImageRejected],
    reference_faces: dict[str, Detections],
) -> None:
    """With a margin, so that another machine's rounding does not change the table."""
    for sample in [sample for sample in written if sample.person][:5]:
        image, faces = decoded[sample.file], reference_faces[sample.file]
        assert isinstance(image, DecodedImage)
        margins = _margins(image, Detections(*(part[:1] for part in dataclasses.astuple(faces))))
        failed = {name for name, margin in margins.items() if margin < 0}
        assert failed == ({sample.rejection} - {None}), sample.file
        assert min(abs(margin) for margin in margins.values()) > 0.1, (sample.file, margins)


def _margins(image: DecodedImage, face: Detections) -> dict[str, float]:
    """By how much one face passes each check of the default gate."""
    gate = MatchSettings()
    ((pose, sharpness, contrast),) = assess_quality(
        cut_crops(TorchBatch([image.pixels]), face, AlignSettings(), 160), face
    ).tolist()
    return {
        CENTER_POSE: pose - gate.min_cpq,
        SHARPNESS: sharpness - gate.min_fsq,
        CONTRAST: contrast - gate.min_fcq,
    }


@pytest.mark.slow
def test_writing_again_gives_the_same_files(folder: Path, written: list[Sample]) -> None:
    before = {sample.file: hash_file(folder / sample.file).sha256 for sample in written}
    assert write_samples(folder) == written
    assert {sample.file: hash_file(folder / sample.file).sha256 for sample in written} == before


def test_a_folder_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "holiday.jpg").write_bytes(b"mine")
    with pytest.raises(UsageError, match=r"holds other files \(holiday\.jpg\)"):
        write_samples(tmp_path)
    with pytest.raises(UsageError, match="cannot be used"):
        write_samples(tmp_path / "holiday.jpg")
    assert [path.name for path in tmp_path.iterdir()] == ["holiday.jpg"]


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        "pipeline.tools.sample_photos.find_spec", lambda name: None if name == "skimage" else find(name)
    )
    with pytest.raises(UsageError, match=r"\"skimage\".*pip install -e '\.\[demo\]'"):
        write_samples(tmp_path / "new")
    assert not (tmp_path / "new").exists()
