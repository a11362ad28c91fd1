"""The networks as they are run against the published graphs in OpenCV: InceptionResnetV1 against the frozen graph, and
SFace, its alignment included, against FaceRecognizerSF on the ONNX file."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from pipeline.config import DetectSettings
from pipeline.extraction.align import FIVE_POINT_TEMPLATE, PIXEL_CENTRE, warp_crops
from pipeline.extraction.detection.cascade import MtcnnDetector
from pipeline.extraction.detection.torch_networks import load_networks
from pipeline.extraction.embed import Embedder, load_embedder
from pipeline.extraction.images.torch_batch import TorchBatch
from pipeline.models.registry import weight_set
from pipeline.models.weights import detector_files, package_files, resolve
from pipeline.runtime.device import resolve_device
from pipeline.types import ByteArray, Detections, FloatArray


@pytest.fixture(scope="module")
def inception_resnet(weights_cache: Path, device: str) -> Embedder:
    return load_embedder(resolve("casia-webface", None, weights_cache), resolve_device(device))


@pytest.fixture(scope="module")
def sface(sface_cache: Path, device: str) -> Embedder:
    return load_embedder(resolve("sface", None, sface_cache), resolve_device(device))


# InceptionResnetV1.

# (file, x, y, side): Grace Hopper's and Eileen Collins' faces, tight to loose.
HOPPER = ((205, 70, 150), (190, 60, 180), (175, 45, 210), (215, 80, 150), (195, 75, 165))
ASTRONAUT = ((175, 65, 95), (165, 55, 115), (150, 40, 145), (180, 70, 105), (160, 65, 110))


def cut(path: Path, boxes: tuple[tuple[int, int, int], ...]) -> list[FloatArray]:
    """[3, 160, 160] float32 RGB crops in [0, 255]."""
    image = cv2.imread(str(path))[:, :, ::-1]
    crops = [cv2.resize(np.ascontiguousarray(image[y : y + s, x : x + s]), (160, 160)) for x, y, s in boxes]
    return [crop.transpose(2, 0, 1).astype(np.float32) for crop in crops]


def frozen(crops: list[FloatArray]) -> FloatArray:
    """[n, 512]: the graph's own answer, one crop at a time (its reshapes are frozen to a batch of one)."""
    row = weight_set("casia-webface")
    if find_spec(row.package or "") is None:
        pytest.skip(f"{row.package} is not installed")
    (path,) = package_files(row)
    graph = cv2.dnn.readNetFromTensorflow(str(path))
    answers = []
    for crop in crops:
        graph.setInput((np.ascontiguousarray(crop[None]) - 127.5) / 128)
        answers.append(graph.forward().reshape(512).copy())
    return np.stack(answers)


def check_frozen(inception_resnet: Embedder, crops: list[FloatArray]) -> FloatArray:
    expected = frozen(crops)
    found = inception_resnet(torch.from_numpy(np.stack(crops))).cpu().numpy()
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=0, atol=3e-5)
    return found


@pytest.mark.slow
def test_inception_resnet_embeds_ten_crops_of_two_people(
    inception_resnet: Embedder, hopper_path: Path, astronaut_path: Path
) -> None:
    found = check_frozen(inception_resnet, cut(hopper_path, HOPPER) + cut(astronaut_path, ASTRONAUT))
    products = found @ found.T
    # The vectors tell the two people apart, so they are no constant that any weights would give.
    assert products[:5, :5].min() > products[:5, 5:].max()
    assert products[5:, 5:].min() > products[:5, 5:].max()


@pytest.mark.slow
@pytest.mark.faces
def test_inception_resnet_embeds_ten_photographs(inception_resnet: Embedder, faces_dir: Path) -> None:
    photos = sorted((faces_dir / "lfw-view1" / "images").rglob("*.jpg"))[::150][:10]
    assert len(photos) == 10
    check_frozen(inception_resnet, [crop for photo in photos for crop in cut(photo, ((65, 65, 120),))])


# SFace.


class Reference:
    """OpenCV's FaceRecognizerSF. Its network is run by hand, because the file declares inputs that nothing reads, which
    the class does not expect."""

    def __init__(self, file: Path) -> None:
        self._recogniser = cv2.FaceRecognizerSF.create(str(file), "")
        self._network = cv2.dnn.readNetFromONNX(str(file))

    def crop(self, image: ByteArray, landmarks: torch.Tensor) -> ByteArray:
        """The aligned crop [112, 112, 3] of an RGB image. `alignCrop` takes BGR and a row of a box, which it does not
        read, ten numbers of landmarks and a score."""
        points = (landmarks - PIXEL_CENTRE).cpu().numpy().ravel()
        row = np.concatenate([np.zeros(4), points, np.ones(1)]).astype(np.float32)[None]
        return swapped(self._recogniser.alignCrop(swapped(image), row))

    def features(self, crops: list[ByteArray]) -> FloatArray:
        """[n, 128] of L2 norm 1 for RGB crops, one at a time, fed as `FaceRecognizerSF::feature` does."""
        answers = []
        for crop in crops:
            blob = cv2.dnn.blobFromImage(swapped(crop), 1, (112, 112), (0, 0, 0), swapRB=True, crop=False)
            self._network.setInput(blob, "data")
            answers.append(self._network.forward().ravel().copy())
        return np.stack([answer / np.linalg.norm(answer) for answer in answers])


def swapped(image: ByteArray) -> ByteArray:
    """RGB as BGR, and back."""
    return np.ascontiguousarray(image[:, :, ::-1])


@pytest.fixture(scope="module")
def reference(sface_installed: None) -> Reference:
    (file,) = package_files(weight_set("sface"))
    return Reference(file)


def detected(images: list[ByteArray], device: str) -> tuple[TorchBatch, Detections]:
    batch = TorchBatch(images, device)
    return batch, MtcnnDetector(load_networks(detector_files(), device), DetectSettings())(batch)


def portraits(hopper_path: Path, astronaut_path: Path) -> list[ByteArray]:
    """The two portraits at scales where the face is about the crop's size or smaller, upright and turned."""
    images = []
    for path, sizes in ((hopper_path, (150, 200, 256)), (astronaut_path, (260, 340, 420))):
        photo = cv2.cvtColor(cv2.imread(str(path)), cv2.COLOR_BGR2RGB)
        height, width = photo.shape[:2]
        for number, size in enumerate(sizes):
            small = cv2.resize(photo, (size, size * height // width), interpolation=cv2.INTER_AREA)
            turn = cv2.getRotationMatrix2D((size / 2, size / 2), 12 * number - 12, 1)
            images.append(cv2.warpAffine(small, turn, (size, size), flags=cv2.INTER_LINEAR))
    return images


def spread(points: torch.Tensor) -> torch.Tensor:
    """How far apart landmarks [..., 5, 2] lie."""
    return points.std(dim=-2).norm(dim=-1)


def cosines(a: FloatArray, b: FloatArray) -> FloatArray:
    return (a.astype(np.float64) * b).sum(axis=1)


def check(reference: Reference, sface: Embedder, images: list[ByteArray]) -> FloatArray:
    """Crops and embeddings of all faces of `images` against the reference's; returns ours."""
    batch, found = detected(images, sface.device)
    assert len(found) >= len(images)
    crops = warp_crops(batch, found)
    expected = [reference.crop(images[i], p) for i, p in zip(found.image_index, found.landmarks, strict=True)]
    differences = np.abs(crops.permute(0, 2, 3, 1).cpu().numpy() - np.stack(expected)).max(axis=(1, 2, 3))
    interpolated = spread(found.landmarks.cpu()) < 1.35 * spread(torch.tensor(FIVE_POINT_TEMPLATE))
    assert interpolated.sum() >= len(found) - 2  # larger ones are averaged, where the reference skips pixels
    assert differences[interpolated.numpy()].max() < 0.52  # the reference rounds to whole numbers
    wanted = reference.features(expected)
    same_crops = sface(torch.from_numpy(np.stack(expected)).permute(0, 3, 1, 2).float()).cpu().numpy()
    np.testing.assert_allclose(same_crops, wanted, rtol=0, atol=3e-5)
    ours: FloatArray = sface(crops).cpu().numpy()
    assert cosines(ours, wanted).min() >= 0.999
    return ours


@pytest.mark.slow
def test_sface_crops_and_embeds_two_people(
    reference: Reference, sface: Embedder, hopper_path: Path, astronaut_path: Path
) -> None:
    found = check(reference, sface, portraits(hopper_path, astronaut_path))
    products = found @ found.T
    # The vectors tell the two people apart, so they are no constant that any weights would give.
    assert min(products[:3, :3].min(), products[3:, 3:].min()) > 0.6 > 0.3 > products[:3, 3:].max()


@pytest.mark.slow
@pytest.mark.faces
def test_sface_crops_and_embeds_fifteen_photographs(reference: Reference, sface: Embedder, faces_dir: Path) -> None:
    photos = sorted((faces_dir / "lfw-view1" / "images").rglob("*.jpg"))[::100][:15]
    assert len(photos) == 15
    check(reference, sface, [cv2.cvtColor(cv2.imread(str(p)), cv2.COLOR_BGR2RGB) for p in photos])


def test_channels_in_the_other_order_are_another_answer(
    reference: Reference, sface: Embedder, hopper_path: Path, astronaut_path: Path
) -> None:
    """The network takes RGB: fed with BGR it gives what the reference does not."""
    batch, found = detected(portraits(hopper_path, astronaut_path), sface.device)
    crops = warp_crops(batch, found)
    wanted = reference.features([c.permute(1, 2, 0).round().byte().cpu().numpy() for c in crops])
    assert cosines(sface(crops).cpu().numpy(), wanted).min() >= 0.9999
    assert cosines(sface(crops.flip(1)).cpu().numpy(), wanted).max() < 0.99


def test_the_detectors_landmarks_come_in_the_templates_order(
    device: str, hopper_path: Path, astronaut_path: Path
) -> None:
    """In the crop, detected again, each landmark lies nearer to its own place in the template than to the others."""
    batch, found = detected(portraits(hopper_path, astronaut_path), device)
    crops = warp_crops(batch, found, 224).round().byte().permute(0, 2, 3, 1).cpu().numpy()
    _, again = detected([np.ascontiguousarray(crop) for crop in crops], device)
    assert again.image_index.tolist() == list(range(len(crops)))
    places = again.landmarks.cpu() / 2 - PIXEL_CENTRE
    nearest = torch.cdist(places, torch.tensor(FIVE_POINT_TEMPLATE)).argmin(dim=2)
    assert (nearest == torch.arange(5)).all()
