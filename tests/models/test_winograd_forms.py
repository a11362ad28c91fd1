"""The forms' matrices are exact, as fractions; in float32 they round little; and the cheapest one is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from pipeline.models.onnx_graph import Array
from pipeline.models.winograd_forms import FORMS, Axis, Form, Matrix, answers, cheapest, nested, toom

AXES = list(dict.fromkeys(axis for form in FORMS for axis in (form.down, form.across)))

every_axis = pytest.mark.parametrize(
    "axis", AXES, ids=lambda axis: f"{len(axis.answers)}of{axis.taps}every{axis.step}by{axis.points}"
)
every_form = pytest.mark.parametrize("form", FORMS, ids=[str(number) for number in range(len(FORMS))])


def times(matrix: Matrix, numbers: Array) -> Array:
    """Along the first axis, exact."""
    return np.array(matrix, object) @ numbers


def both(form: Form, name: str, numbers: Array) -> Array:
    """One of the form's matrices down the rows and along them."""
    down, across = getattr(form.down, name), getattr(form.across, name)
    return times(across, times(down, numbers).T).T


def whole_numbers(*shape: int) -> Array:
    numbers = np.random.default_rng(sum(shape)).integers(-99, 100, shape)
    return np.array([Fraction(int(number)) for number in numbers.flat], object).reshape(shape)


def places(axis: Axis) -> int:
    return len(axis.pixels[0])


def by_definition(form: Form, tile: Array, weights: Array) -> Array:
    """[..., rows, columns] of a tile's answers; weights [..., taps, taps]."""
    axes = form.down, form.across
    margins = [(axis.padding, axis.padding) for axis in axes]
    padded = np.pad(tile, [(0, 0)] * (tile.ndim - 2) + margins, constant_values=tile.dtype.type(0))
    starts = [[n * axis.step for n in range(len(axis.answers))] for axis in axes]
    found = [
        [(padded[..., i : i + axes[0].taps, j : j + axes[1].taps] * weights).sum((-2, -1)) for j in starts[1]]
        for i in starts[0]
    ]
    return np.moveaxis(np.array(found), (0, 1), (-2, -1))


@every_axis
def test_an_axis_is_exact_for_all_numbers(axis: Axis) -> None:
    """Answers are sums of pixels times weights; so it is enough to look at each pixel with each weight."""
    pixels, weights, sums = (np.array(matrix, object) for matrix in (axis.pixels, axis.weights, axis.answers))
    products = pixels[:, :, None] * weights[:, None, :]
    found = np.tensordot(sums, products, 1)
    for answer, pixel, tap in np.ndindex(found.shape):
        assert found[answer, pixel, tap] == (pixel + axis.padding == answer * axis.step + tap)


@every_form
def test_a_form_is_exact(form: Form) -> None:
    """Both axes together, for whole numbers."""
    tile = whole_numbers(places(form.down), places(form.across))
    weights = whole_numbers(form.down.taps, form.across.taps)
    found = both(form, "answers", both(form, "pixels", tile) * both(form, "weights", weights))
    np.testing.assert_array_equal(found, by_definition(form, tile, weights))


@every_form
def test_a_form_counts_its_points_pixels_and_answers(form: Form) -> None:
    tile = whole_numbers(places(form.down), places(form.across))
    points = both(form, "pixels", tile)
    assert (form.points, form.places, form.answers) == (points.size, tile.size, both(form, "answers", points).size)


@every_axis
def test_no_product_is_in_vain(axis: Axis) -> None:
    for lines in (axis.pixels, axis.weights, list(zip(*axis.answers, strict=True))):
        assert len(lines) == axis.points
        assert all(any(line) for line in lines)


@every_form
def test_weights_are_transformed_for_all_channels(form: Form) -> None:
    weights = np.random.default_rng(1).integers(-9, 10, (2, 3, form.down.taps, form.across.taps))
    found = form.transform(weights.astype(np.float32))
    assert (found.shape, found.dtype.name) == ((form.points, 2, 3), "float64")
    for o, c in np.ndindex(2, 3):
        exact = both(form, "weights", weights[o, c].astype(object)).astype(np.float64)
        np.testing.assert_allclose(found[:, o, c], exact.ravel(), rtol=1e-14, atol=1e-14)


@every_form
def test_float32_rounds_little(form: Form) -> None:
    """Of 64 channels, with the loops' roundings: of pixels, of weights, of sums over channels, of answers."""
    random = np.random.default_rng(64)
    tiles = random.normal(size=(10, 64, places(form.down), places(form.across))).astype(np.float32)
    weights = random.normal(size=(8, 64, form.down.taps, form.across.taps)).astype(np.float32)
    matrices = {
        (name, axis): np.array(getattr(axis, name), np.float32)
        for name in ("pixels", "answers")
        for axis in (form.down, form.across)
    }
    pixels = matrices["pixels", form.down] @ tiles @ matrices["pixels", form.across].T
    points = form.transform(weights).astype(np.float32).reshape(form.down.points, form.across.points, 8, 64)
    products = np.einsum("ncij,ijoc->noij", pixels, points, dtype=np.float32)
    found = matrices["answers", form.down] @ products @ matrices["answers", form.across].T
    assert found.dtype == np.float32
    exact = by_definition(form, tiles[:, None].astype(np.float64), weights.astype(np.float64)).sum(2)
    assert np.abs(found - exact).max() < 1e-5 * np.abs(exact).max()


@pytest.mark.parametrize(
    ("taps", "step", "size", "padding", "expected"),
    [
        ((3, 3), 1, 77, (0, 0), (6, 6)),
        ((3, 3), 1, 77, (1, 1), (6, 6)),
        ((3, 3), 2, 36, (0, 0), (3, 3)),
        ((3, 3), 2, 17, (0, 0), (2, 2)),
        ((3, 3), 2, 8, (0, 0), (1, 1)),
        ((3, 3), 1, 17, (1, 1), (6, 6)),
        ((3, 3), 1, 8, (1, 1), (4, 4)),
        ((3, 3), 1, 3, (1, 1), (1, 1)),
        ((1, 7), 1, 8, (0, 3), (1, 8)),
        ((7, 1), 1, 8, (3, 0), (8, 1)),
        ((1, 3), 1, 3, (0, 1), (1, 1)),
        ((3, 1), 1, 3, (1, 0), (1, 1)),
    ],
)
def test_the_cheapest_form_is_chosen(
    taps: tuple[int, int], step: int, size: int, padding: tuple[int, int], expected: tuple[int, int]
) -> None:
    """For the layers of InceptionResnetV1: how many answers a tile has, down and across."""
    found = cheapest(taps, step, (size, size), padding)
    assert found is not None
    form = FORMS[found]
    assert (form.down.taps, form.across.taps, form.down.step) == (*taps, step)
    assert (len(form.down.answers), len(form.across.answers)) == expected


def products(number: int, taps: tuple[int, int], step: int, size: tuple[int, int], padding: tuple[int, int]) -> int:
    """For a picture, by form `number`."""
    axes = FORMS[number].down, FORMS[number].across
    counts = [answers(*each) for each in zip(taps, (step, step), size, padding, strict=True)]
    tiles = [axis.tiles(count) for axis, count in zip(axes, counts, strict=True)]
    return FORMS[number].points * tiles[0] * tiles[1]


@pytest.mark.parametrize("step", [1, 2])
def test_for_large_pictures_no_form_has_fewer_products(step: int) -> None:
    """For small ones, that its weights have to be read counts too."""
    layer = (3, 3), step, (300, 200), (1, 1)
    able = [k for k, form in enumerate(FORMS) if (form.down.taps, form.across.taps, form.down.step) == (3, 3, step)]
    found = cheapest(*layer)
    assert found is not None
    assert len(able) > 1
    assert products(found, *layer) == min(products(number, *layer) for number in able)


@pytest.mark.parametrize(
    ("taps", "step", "size", "padding"),
    [
        ((5, 5), 1, (8, 8), (2, 2)),
        ((3, 3), 3, (8, 8), (0, 0)),
        ((1, 7), 1, (8, 9), (0, 3)),
        ((1, 7), 1, (8, 8), (0, 0)),
        ((7, 1), 1, (17, 8), (3, 0)),
        ((1, 1), 2, (8, 8), (0, 0)),
        ((3, 3), 1, (8, 8), (4, 4)),
        ((3, 3), 1, (8, 8), (0, 4)),
    ],
)
def test_there_is_none(taps: tuple[int, int], step: int, size: tuple[int, int], padding: tuple[int, int]) -> None:
    assert cheapest(taps, step, size, padding) is None


@pytest.mark.parametrize(
    ("length", "taps", "step", "padding"), [(9, 3, 1, 0), (9, 3, 2, 0), (8, 3, 2, 0), (8, 7, 1, 3), (2, 3, 1, 0)]
)
def test_answers_are_where_the_weights_lie_on_pixels_and_zeros(length: int, taps: int, step: int, padding: int) -> None:
    starts = range(-padding, length + padding - taps + 1, step)
    assert answers(taps, step, length, padding) == len(starts)


@pytest.mark.parametrize(
    "points", [[0, 1, -1, 2], [0, 1, -1, 2, 2], [0, 1, -1, 2, -2, 3], [0, 1, 2, Fraction(4, 2), 3]]
)
def test_toom_takes_as_many_points_as_are_needed_all_different(points: Sequence[int | Fraction]) -> None:
    with pytest.raises(ValueError, match=r"^F\(4, 3\) takes 5 points"):
        toom(4, 3, points)


def test_only_blocks_of_one_length_are_nested() -> None:
    with pytest.raises(ValueError, match="of one length"):
        nested(toom(2, 2, [0, 1]), toom(4, 3, [0, 1, -1, 2, -2]), taps=7, padding=3)
