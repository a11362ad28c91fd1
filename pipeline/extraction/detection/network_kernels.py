"""Compiled loops of detection on the CPU: the networks', and `greedy` suppression.

`scan_level` runs P-Net over a pyramid level, directly from an image's pixels, two rows at a time. It keeps only the
rows that the next two need: a few hundred kilobytes, in the processor's cache, without canvas, padding or mask.
Products and sums may be fused (`contract`) and reordered: probabilities differ from torch's by rounding.

`rnet_features` and `onet_features` run the layers before the dense ones, for 8 crops at a time: their rows are too
short for vector instructions, so equal pixels of the crops are interleaved. Arrays are [rows, channels, n] float32, n a
row of pixels and `row_convolutions`' extra room. Of pooled layers only four rows are kept.

Needs numba; importing it compiles the loops or loads them from the cache.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pipeline.extraction.detection import row_convolutions
from pipeline.extraction.detection.row_convolutions import OUTPUTS, convolve_pair, four_products, row_room
from pipeline.extraction.images import resampling_kernels
from pipeline.extraction.images.resampling_kernels import average_row, bins, scratch_room
from pipeline.runtime import vector_code
from pipeline.runtime.compiled import EXACT, FUSED, compiled
from pipeline.types import BoolArray, FloatArray, IntArray

_CHANNELS1: Final = 10  # outputs of P-Net's first layer; its packed weights have 12
_MARGIN: Final = 1e-3  # of logits: far above their rounding
_LANES: Final = 8  # crops at a time: one vector
_INLINED: Final = (vector_code, resampling_kernels, row_convolutions)


@compiled(**FUSED)
def _convolve_next(rows: Any, y: int, products: Any, layer: Any, count: int, out: Any, both: bool) -> None:
    """Rows y and y + 1 of a 3 x 3 convolution of four `rows`; `rows` and `out` hold row k at k modulo their length."""
    four_products(rows[y % 4], rows[(y + 1) % 4], rows[(y + 2) % 4], rows[(y + 3) % 4], products)
    convolve_pair(products, layer, 3, 1, count, out, y % len(out), (y + 1) % len(out), both)


@compiled(**FUSED)
def _pool_rows(upper: Any, lower: Any, count: int, out: Any) -> None:
    """2 x 2 maxima of two rows [c, >= count]: [c, ceil(count / 2)], 2 x 1 at an odd end."""
    for channel in range(out.shape[0]):
        top, bottom, row = upper[channel], lower[channel], out[channel]
        for x in range(count // 2):
            row[x] = max(max(top[2 * x], top[2 * x + 1]), max(bottom[2 * x], bottom[2 * x + 1]))
        if count % 2:
            row[count // 2] = max(top[count - 1], bottom[count - 1])


@compiled(**FUSED)
def _normalise(level: Any, count: int) -> None:
    """`canvases.normalise` of the first `count` columns, in place."""
    for channel in range(3):
        row = level[channel]
        for x in range(count):
            row[x] = (row[x] - np.float32(127.5)) * np.float32(0.0078125)


@compiled(**FUSED)
def _likely_cells(
    features: Any, count: int, face: Any, min_logit: float, threshold: float, logits: Any, columns: Any
) -> int:
    """Finds a row's cells with a face probability >= `threshold`: writes their columns, and probabilities to the start
    of `logits`; returns their number. Cells below `min_logit`, a lower bound, are not computed exactly."""
    weights, bias = face
    for x in range(count):
        logits[x] = bias[1] - bias[0]
    for channel in range(len(features)):
        row, weight = features[channel], weights[1, channel] - weights[0, channel]
        for x in range(count):
            logits[x] += weight * row[x]
    likely = 0
    for x in range(count):
        if logits[x] >= min_logit:
            probability = _probability(features, x, weights, bias)
            if probability >= threshold:
                columns[likely], logits[likely] = x, probability
                likely += 1
    return likely


@compiled(**FUSED)
def _probability(features: Any, x: int, weights: Any, bias: Any) -> Any:
    """Softmax of one cell's two outputs, as in torch."""
    no, yes = bias[0], bias[1]
    for channel in range(len(features)):
        no += weights[0, channel] * features[channel, x]
        yes += weights[1, channel] * features[channel, x]
    most = max(no, yes)
    no, yes = np.exp(no - most), np.exp(yes - most)
    return yes / (no + yes)


@compiled(**FUSED)
def _write_cells(
    features: Any, y: int, columns: Any, probabilities: Any, count: int, box: Any, cells: Any, answers: Any
) -> None:
    """Writes row y's likely cells and box regressions to the first `count` of `cells` and `answers`."""
    weights, bias = box
    for i in range(count):
        cells[i, 0], cells[i, 1], answers[i, 0] = y, columns[i], probabilities[i]
        for k in range(len(bias)):
            value = bias[k]
            for channel in range(len(features)):
                value += weights[k, channel] * features[channel, columns[i]]
            answers[i, 1 + k] = value


@compiled(
    "i8(u1[:,::1], i8, i8, f4[:,::1], f4[:,::1], f4[:,::1], Tuple((f4[:,::1], f4[::1])), Tuple((f4[:,::1], f4[::1])),"
    " f4, i4[:,::1], f4[:,::1])",
    inlined=_INLINED,
    **FUSED,
)
def scan_level(
    pixels: Any,
    level_height: int,
    level_width: int,
    layer1: Any,
    layer2: Any,
    layer3: Any,
    face: Any,
    box: Any,
    threshold: float,
    cells: Any,
    answers: Any,
) -> int:
    """P-Net over a level of an image: returns the number of cells with a probability >= `threshold`.

    `pixels` [height, width * 3] uint8; the level is the image resampled by area, at least 12 pixels per side. `layer1`
    to `layer3` are from `packed_layer`; `face` and `box` are weights [2 or 4, 32] and bias. Fills `cells` [n, 2] with
    (row, column) and `answers` [n, 5] with probability and box regression, by row; n must be the level's number of
    cells.
    """
    height, width = pixels.shape[0], pixels.shape[1] // 3
    pooled_height, pooled_width = (level_height - 1) // 2, (level_width - 1) // 2
    left, right = np.empty(level_width, np.int64), np.empty(level_width, np.int64)
    widths, scratch = np.empty(level_width, np.float32), np.zeros(scratch_room(width), np.int32)
    bins(width, left, right, widths)
    # Each layer's last rows, row y at y % 4. Values behind a row are unused, but should be numbers.
    level = np.zeros((4, 3, row_room(level_width)), np.float32)
    first = np.zeros((2, OUTPUTS * len(layer1), row_room(level_width - 2)), np.float32)
    pooled = np.zeros((4, _CHANNELS1, row_room(pooled_width)), np.float32)
    second = np.zeros((4, OUTPUTS * len(layer2), row_room(pooled_width - 2)), np.float32)
    third = np.zeros((2, OUTPUTS * len(layer3), row_room(pooled_width - 4)), np.float32)
    products1, products2 = np.empty((4, *level.shape[1:]), np.float32), np.empty((4, *pooled.shape[1:]), np.float32)
    products3 = np.empty((4, *second.shape[1:]), np.float32)
    logits, columns = np.empty(pooled_width, np.float32), np.empty(pooled_width, np.int32)
    # At most 16: its probability is below 1 in float32, so any threshold can be reached.
    min_logit = np.float32(min(np.log(threshold / (np.float32(1) - threshold)) - _MARGIN, 16.0))
    made, total = 0, 0  # level rows so far, and likely cells
    for y in range(pooled_height):
        both = 2 * y + 3 < level_height  # an odd last row has no second one
        while made < min(2 * y + 4, level_height):
            top, bottom = (made * height) // level_height, ((made + 1) * height + level_height - 1) // level_height
            average_row(pixels, 0, width, top, bottom, left, right, widths, scratch, level[made % 4])
            _normalise(level[made % 4], level_width)
            made += 1
        _convolve_next(level, 2 * y, products1, layer1, level_width - 2, first, both)
        _pool_rows(first[0], first[1 if both else 0], level_width - 2, pooled[y % 4])
        both, start = y % 2 == 1, y // 2 * 2
        if not both and y + 1 < pooled_height:
            continue
        if start >= 2:
            _convolve_next(pooled, start - 2, products2, layer2, pooled_width - 2, second, both)
        if start >= 4:
            _convolve_next(second, start - 4, products3, layer3, pooled_width - 4, third, both)
            for row in range(start - 4, y - 3):
                features = third[row % 2]
                count = _likely_cells(features, pooled_width - 4, face, min_logit, threshold, logits, columns)
                _write_cells(features, row, columns, logits, count, box, cells[total:], answers[total:])
                total += count
    return total


@compiled(**FUSED)
def _side_by_side(crops: Any) -> Any:
    """Interleaves crops [n, 3, size, size] in [0, 255], normalised like `canvases.normalise`."""
    lanes, channels, height, width = crops.shape
    out = np.zeros((height, channels, row_room(width * lanes)), np.float32)
    for n in range(lanes):
        for y in range(height):
            for channel in range(channels):
                for x in range(width):
                    value = (crops[n, channel, y, x] - np.float32(127.5)) * np.float32(0.0078125)
                    out[y, channel, x * lanes + n] = value
    return out


@compiled(**FUSED)
def _convolve_rows(x: Any, y: int, layer: Any, taps: int, lanes: int, count: int, products: Any, out: Any) -> None:
    """Rows y and y + 1 of a taps x taps convolution: row k to out[k modulo the rows of `out`], a power of two."""
    last, kept = len(x) - 1, len(out) - 1
    # A 2 x 2 convolution has a third row of zero weights: the last row has no effect, the fourth product is 0.
    four_products(x[y], x[y + 1], x[min(y + 2, last)], x[min(y + 3, last)], products)
    fourth = y + 3 <= last and taps == 3
    convolve_pair(products, layer, taps, lanes, count, out, y & kept, (y + 1) & kept, fourth)


@compiled(**FUSED)
def _convolve(x: Any, layer: Any, width: int, lanes: int) -> Any:
    """A 2 x 2 convolution of rows of `width` pixels."""
    rows, count = len(x) - 1, (width - 1) * lanes
    products = np.empty((4, x.shape[1], x.shape[2]), np.float32)
    out = np.zeros((4, OUTPUTS * len(layer), row_room(count)), np.float32)
    for y in range(0, rows, 2):
        _convolve_rows(x, y, layer, 2, lanes, count, products, out)
    return out[:rows]


@compiled(**FUSED)
def _pool_row(upper: Any, middle: Any, lower: Any, side: int, lanes: int, width: int, highest: Any, out: Any) -> None:
    """Maxima over three rows of `width` pixels and `side` columns, at every second pixel: a row of `out`. `highest` [>=
    (width + 1) * lanes] is scratch."""
    count = width * lanes
    highest[count : count + lanes] = -np.inf  # windows are clipped at the end
    for channel in range(len(out)):
        top, centre, bottom, row = upper[channel], middle[channel], lower[channel], out[channel]
        for i in range(count):
            highest[i] = max(max(top[i], centre[i]), bottom[i])
        for x in range((width - side + 1) // 2 + 1):
            to, left, right = x * lanes, 2 * x * lanes, (2 * x + side - 1) * lanes
            for i in range(lanes):
                row[to + i] = max(max(highest[left + i], highest[left + lanes + i]), highest[right + i])


@compiled(**FUSED)
def _convolve_and_pool(x: Any, layer: Any, width: int, side: int, lanes: int) -> Any:
    """A 3 x 3 convolution of rows of `width` pixels, then side x side maxima with stride 2, clipped at the end. Also
    returns the new width."""
    channels, rows, width = OUTPUTS * len(layer), len(x) - 2, width - 2
    pooled_rows, pooled_width = (rows - side + 1) // 2 + 1, (width - side + 1) // 2 + 1
    products = np.empty((4, x.shape[1], x.shape[2]), np.float32)
    last_rows = np.zeros((4, channels, row_room(width * lanes)), np.float32)
    highest = np.empty((width + 1) * lanes, np.float32)
    out = np.zeros((pooled_rows, channels, row_room(pooled_width * lanes)), np.float32)
    made = np.int64(0)  # for a plain 0 numba would compile second versions of the callees
    for y in range(pooled_rows):
        last = min(2 * y + side, rows) - 1
        while made <= last:
            _convolve_rows(x, made, layer, 3, lanes, width * lanes, products, last_rows)
            made += 2
        upper, middle, lower = last_rows[2 * y % 4], last_rows[min(2 * y + 1, last) % 4], last_rows[last % 4]
        _pool_row(upper, middle, lower, side, lanes, width, highest, out[y])
    return out, pooled_width


@compiled(**FUSED)
def _write_features(x: Any, width: int, lanes: int, out: Any) -> None:
    """Crops' features in the dense layers' order (column, row, channel). Fills `out` [n, f]."""
    rows, channels = x.shape[:2]
    for n in range(lanes):
        for column in range(width):
            for y in range(rows):
                at = (column * rows + y) * channels
                for channel in range(channels):
                    out[n, at + channel] = x[y, channel, column * lanes + n]


@compiled("void(f4[:,:,:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])", inlined=_INLINED, **FUSED)
def rnet_features(crops: Any, layer1: Any, layer2: Any, layer3: Any, out: Any) -> None:
    """R-Net up to its first dense layer: crops [n, 3, 24, 24] in [0, 255] -> `out` [n, 576]."""
    for start in range(0, len(crops), _LANES):
        some = crops[start : start + _LANES]
        lanes = len(some)
        x, width = _convolve_and_pool(_side_by_side(some), layer1, crops.shape[3], 3, lanes)
        x, width = _convolve_and_pool(x, layer2, width, 3, lanes)
        _write_features(_convolve(x, layer3, width, lanes), width - 1, lanes, out[start : start + _LANES])


@compiled("void(f4[:,:,:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1], f4[:,::1])", inlined=_INLINED, **FUSED)
def onet_features(crops: Any, layer1: Any, layer2: Any, layer3: Any, layer4: Any, out: Any) -> None:
    """O-Net up to its first dense layer: crops [n, 3, 48, 48] in [0, 255] -> `out` [n, 1152]."""
    for start in range(0, len(crops), _LANES):
        some = crops[start : start + _LANES]
        lanes = len(some)
        x, width = _convolve_and_pool(_side_by_side(some), layer1, crops.shape[3], 3, lanes)
        x, width = _convolve_and_pool(x, layer2, width, 3, lanes)
        x, width = _convolve_and_pool(x, layer3, width, 2, lanes)
        _write_features(_convolve(x, layer4, width, lanes), width - 1, lanes, out[start : start + _LANES])


@compiled("void(f4[:,::1], f4[:,::1], f4[::1], f4[:,::1])", **FUSED)
def dense(x: Any, weights: Any, bias: Any, out: Any) -> None:
    """A dense layer: x [n, i], weights [i, o], bias [o] -> `out` [n, o]. Unlike in BLAS, a row's bits do not depend on
    others."""
    for start in range(0, len(x), _LANES):
        end = min(start + _LANES, len(x))
        for n in range(start, end):
            for k in range(len(bias)):
                out[n, k] = bias[k]
        for i in range(len(weights)):
            row = weights[i]
            for n in range(start, end):
                value, sums = x[n, i], out[n]
                for k in range(len(row)):
                    sums[k] += value * row[k]


def greedy(boxes: FloatArray, starts: IntArray, limit: float, of_smaller: bool) -> BoolArray:
    """Which boxes [n, 4] `cascade.suppress` keeps, bool [n].

    Group k, by falling score, is starts[k] .. starts[k + 1] - 1; starts [g + 1] int64.
    """
    kept = np.zeros(len(boxes), np.bool_)
    _greedy(np.ascontiguousarray(boxes), starts, limit, of_smaller, kept)
    return kept


@compiled("void(f4[:,::1], i8[::1], f8, b1, b1[::1])", **EXACT)
def _greedy(boxes: Any, starts: Any, limit: float, of_smaller: bool, kept: Any) -> None:
    """As in torchvision: float32, but shares of the union are compared in float64."""
    extra, zero = np.float32(1 if of_smaller else 0), np.float32(0)
    share = np.float32(limit)
    winners = np.empty((len(boxes), 4), np.float32)
    areas = np.empty(len(boxes), np.float32)
    for group in range(len(starts) - 1):
        count = 0
        for i in range(starts[group], starts[group + 1]):
            x1, y1, x2, y2 = boxes[i, 0], boxes[i, 1], boxes[i, 2], boxes[i, 3]
            width, height = x2 - x1 + extra, y2 - y1 + extra
            area = max(width, zero) * max(height, zero) if of_smaller else width * height
            stays = True
            for k in range(count):
                across = min(winners[k, 2], x2) - max(winners[k, 0], x1) + extra
                down = min(winners[k, 3], y2) - max(winners[k, 1], y1) + extra
                overlap = max(across, zero) * max(down, zero)
                if of_smaller:
                    above = overlap > share * min(areas[k], area)
                else:
                    above = np.float64(overlap / (areas[k] + area - overlap)) > limit
                if above:
                    stays = False
                    break
            if stays:
                winners[count] = boxes[i]
                areas[count] = area
                count += 1
                kept[i] = True
