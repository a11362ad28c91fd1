"""P-Net's likely cells: the compiled loops against the network on the level alone and against the canvases."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from facenet_pytorch.models.mtcnn import PNet
from PIL import Image
from torch.nn.functional import interpolate

from pipeline.extraction.detection import torch_networks
from pipeline.extraction.detection.canvases import normalise
from pipeline.extraction.detection.cascade import MtcnnNetworks
from pipeline.extraction.detection.pyramid import Cells, Level, pyramid
from pipeline.extraction.detection.torch_networks import CanvasPNet, TorchNetworks
from pipeline.jobs.models import load_host_networks
from pipeline.models.weights import detector_arrays
from pipeline.runtime.arrays import on_host
from pipeline.runtime.stage_times import CallCounts
from pipeline.runtime.threads import using_threads


@pytest.fixture(scope="module")
def photos(hopper_path: Path, astronaut_path: Path) -> list[np.ndarray]:
    """Sizes odd and even, one larger than a canvas, two without a level."""
    hopper, astronaut = (Image.open(p).convert("RGB") for p in (hopper_path, astronaut_path))
    sizes = [(512, 600), (101, 120), (37, 20), (1100, 41), (19, 400), (1, 1)]
    return [np.array(p.resize(size)) for p, size in zip([hopper, astronaut] * 3, sizes, strict=True)]


def compiled(pnet: CanvasPNet, cache: Path) -> MtcnnNetworks:
    """Compiled loops with this P-Net's weights."""
    loops = load_host_networks()
    if loops is None:
        pytest.skip("numba is not installed")
    parameters = {key: value.numpy() for key, value in pnet.net.state_dict().items()}
    networks: MtcnnNetworks = loops.HostNetworks({**detector_arrays(cache), "pnet": parameters})
    return networks


def random_pnet(seed: int) -> CanvasPNet:
    """Random weights, with slopes of both signs, which training does not produce."""
    torch.manual_seed(seed)
    pnet = CanvasPNet().eval().requires_grad_(False)
    for slope in (pnet.net.prelu1, pnet.net.prelu2, pnet.net.prelu3):
        slope.weight.uniform_(-1.0, 1.0)
    return pnet


def find(
    networks: MtcnnNetworks, images: Sequence[np.ndarray], pyramids: Sequence[Sequence[Level]], least: float
) -> Cells:
    """The cells in NumPy's arrays."""
    with networks.computing():
        found = networks.likely_cells(networks.batch(images), pyramids, least, CallCounts())
    return Cells(*(on_host(array) for array in vars(found).values()))


def by_place(cells: Cells) -> dict[tuple[int, ...], np.ndarray]:
    """(image, level, row, column) -> probability and regression."""
    places = np.stack([cells.image, cells.level, cells.row, cells.column], axis=1).tolist()
    answers = np.concatenate([cells.probability[:, None], cells.regression], axis=1)
    assert len({tuple(place) for place in places}) == len(places)
    return {tuple(place): answer for place, answer in zip(places, answers, strict=True)}


def assert_as_alone(
    networks: MtcnnNetworks, net: PNet, images: Sequence[np.ndarray], sizes: Sequence[tuple[int, int]]
) -> None:
    """Each image has one level, of these sizes: its cells are those of the network `net` on the level alone."""
    cells = by_place(find(networks, images, [[Level(1.0, *size)] for size in sizes], 0.0))
    for k, (image, size) in enumerate(zip(images, sizes, strict=True)):
        level = interpolate(torch.from_numpy(image).permute(2, 0, 1)[None].float(), size=size, mode="area")
        with torch.inference_mode():
            regressions, probabilities = net(normalise(level))
        expected = torch.cat([probabilities[:, 1:], regressions], dim=1)[0].permute(1, 2, 0).numpy()
        places = [(k, 0, row, column) for row, column in np.ndindex(expected.shape[:2])]
        assert np.abs([cells.pop(place) for place in places] - expected.reshape(-1, 5)).max() <= 1e-5
    assert not cells


@pytest.mark.parametrize("path", ["compiled", "torch", "triton"])
@pytest.mark.parametrize(
    "size", [(7, 9), (13, 12), (12, 15), (14, 14), (30, 41), (41, 40), (40, 41), (13, 64), (60, 90), (150, 99)]
)
def test_all_cells_equal_the_network_on_the_level_alone(
    size: tuple[int, int],
    path: str,
    cpu_networks: TorchNetworks,
    weights_cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Also of a level larger than its picture; neither its neighbours nor its places on small canvases matter."""
    monkeypatch.setattr(torch_networks, "CANVAS_SIDE", 64)
    if path == "triton":
        request.getfixturevalue("interpreted_kernels")
    rng, pnet = np.random.default_rng(0), random_pnet(1)
    images = [rng.integers(0, 256, (*sides, 3), dtype=np.uint8) for sides in ((33, 21), size, (19, 35))]
    sizes = [(33, 21), (max(size[0], 12), max(size[1], 12)), (19, 35)]
    networks = compiled(pnet, weights_cache) if path == "compiled" else replace(cpu_networks, pnet=pnet)
    assert_as_alone(networks, pnet.net, images, sizes)


def test_rows_of_any_length_equal_the_network_on_the_level_alone(weights_cache: Path) -> None:
    """All ends of a row in all layers: complete tiles, and rests of one, two or three vectors."""
    pnet, sizes = random_pnet(1), [(13 + width % 3, width) for width in range(12, 110)]
    images = [np.random.default_rng(w).integers(0, 256, (h, w, 3), dtype=np.uint8) for h, w in sizes]
    assert_as_alone(compiled(pnet, weights_cache), pnet.net, images, sizes)


def test_compiled_cells_equal_those_of_canvases(
    photos: list[np.ndarray], host_networks: MtcnnNetworks, cpu_networks: TorchNetworks
) -> None:
    pyramids = [pyramid(*photo.shape[:2], 12, 0.709) for photo in photos]
    ours, theirs = (by_place(find(networks, photos, pyramids, 0.6)) for networks in (host_networks, cpu_networks))
    assert len(ours) > 500
    for place in ours.keys() ^ theirs.keys():  # only at the threshold
        assert abs((ours | theirs)[place][0] - 0.6) <= 1e-5
    assert max(np.abs(ours[place] - theirs[place]).max() for place in ours.keys() & theirs.keys()) <= 1e-5


def test_cells_do_not_depend_on_batch_or_threads(photos: list[np.ndarray], host_networks: MtcnnNetworks) -> None:
    pyramids = [pyramid(*photo.shape[:2], 20, 0.709) for photo in photos]
    alone = [by_place(find(host_networks, [p], [levels], 0.6)) for p, levels in zip(photos, pyramids, strict=True)]
    for count in (1, 3):
        with using_threads(count):
            together = find(host_networks, photos, pyramids, 0.6)
        order = np.stack([together.image, together.level, together.row, together.column], axis=1).tolist()
        assert order == sorted(order)
        for (image, *rest), answer in by_place(together).items():
            assert np.array_equal(alone[image][(0, *rest)], answer)
        assert len(order) == sum(len(cells) for cells in alone)


@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.6, 0.99, 1.0])
@pytest.mark.parametrize("certainty", [0.0, 15.0, 40.0])
def test_any_threshold_is_exact(
    threshold: float, certainty: float, photos: list[np.ndarray], weights_cache: Path
) -> None:
    """Also 1, which sure cells reach by rounding."""
    pnet = random_pnet(2)
    pnet.net.conv4_1.bias[1] += certainty
    networks, levels = compiled(pnet, weights_cache), [pyramid(*photos[0].shape[:2], 20, 0.709)]
    every = find(networks, photos[:1], levels, 0.0)
    found = find(networks, photos[:1], levels, threshold)
    assert np.array_equal(found.probability, every.probability[every.probability >= np.float32(threshold)])
    assert len(every.probability) > 10_000
    assert (len(found.probability) > 0) == (threshold <= 0.3 or certainty == 40.0 or (certainty > 0 and threshold < 1))


def test_no_images_and_no_levels(photos: list[np.ndarray], host_networks: MtcnnNetworks) -> None:
    counts = CallCounts()
    for images, pyramids in (([], []), (photos[-1:], [[]])):
        found = host_networks.likely_cells(host_networks.batch(images), pyramids, 0.6, counts)
        assert found.image.shape == (0,)
        assert found.regression.shape == (0, 4)
        assert found.image.dtype == np.int64
    assert counts.inputs == 0


NOT_INSTALLED = "import sys; sys.modules['numba'] = None\n"
ITS_LIBRARY_IS_MISSING = (
    "import sys\n"
    "class Broken:\n"
    "    def find_spec(self, name, *_):\n"
    "        if name == 'numba': raise OSError('cannot load shared object file')\n"
    "sys.meta_path.insert(0, Broken())\n"
)
IT_DOES_NOT_COMPILE = "import os, sys; os.environ['NUMBA_DISABLE_JIT'] = '1'\n"


NO_KERNELS = "from pipeline.jobs.models import load_host_networks\nassert load_host_networks() is None\n"
DETECTION = (
    "import numpy as np\n"
    "from pathlib import Path\n"
    "from PIL import Image\n"
    "from pipeline.config import DetectSettings\n"
    "from pipeline.extraction.detection.cascade import MtcnnDetector\n"
    "from pipeline.jobs.models import load_detector\n"
    "picture = np.array(Image.open(sys.argv[1]).convert('RGB').resize((256, 300)))\n"
    "networks = load_detector('cpu', Path())\n"
    "found = MtcnnDetector(networks, DetectSettings())(networks.batch([picture]))\n"
    "assert len(found) == 1, found\n"
)


@pytest.mark.slow
@pytest.mark.parametrize("broken", [NOT_INSTALLED + DETECTION, ITS_LIBRARY_IS_MISSING, IT_DOES_NOT_COMPILE])
def test_without_a_numba_that_works_torch_detects(broken: str, hopper_path: Path) -> None:
    """A numba that cannot be imported counts as not installed, whatever the reason."""
    done = subprocess.run(
        [sys.executable, "-c", broken + NO_KERNELS, str(hopper_path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
