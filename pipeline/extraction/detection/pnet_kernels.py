"""The compiled loops of detection on the CPU: averages over rectangles, and P-Net, straight from the pixels.

Where `summed_area` makes a table of 12 bytes a pixel and reads four corners an average, `average_row` adds up the
pixels themselves, in vector instructions along the rows: several times faster for a photograph, and without memory.
Sums are of whole numbers and there is one division, so both give the same bits.

`scan_level` runs P-Net over one pyramid level, by pairs of rows. Of each layer only the last rows are kept, as many as
the next pair looks at: a level of any size needs a few hundred kilobytes, which stay in the processor's cache, and no
canvas, padding or mask. Products and sums may be fused (`contract`), in an order of our own: probabilities differ from
torch's by rounding, as those of any two libraries do.

Importing this module needs numba and compiles, or loads what an earlier process compiled.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pipeline.extraction.detection import packed_layers, row_convolutions
from pipeline.extraction.detection.packed_layers import OUTPUTS
from pipeline.extraction.detection.row_convolutions import convolve_pair, four_products, row_room
from pipeline.extraction.images import column_sums
from pipeline.extraction.images.column_sums import add_along, sums_between
from pipeline.runtime import vector_code as instructions
from pipeline.runtime.compiled import EXACT, FUSED, compiled

_CHANNELS1: Final = 10  # of the first layer, which is padded to 12
_SURE: Final = 1e-3  # of logits: far more than their rounding


@compiled(**EXACT)
def bins(length: int, left: Any, right: Any, widths: Any) -> None:
    """The part [left, right) of `length` pixels that each of the arrays' places averages, as torch's adaptive pooling
    divides them; `widths` float32 says how many."""
    size = len(left)
    for j in range(size):
        left[j], right[j] = (j * length) // size, ((j + 1) * length + size - 1) // size
        widths[j] = right[j] - left[j]


@compiled(**EXACT)
def _add_rows(pixels: Any, start: int, end: int, first: int, last: int, sums: Any) -> None:
    """The sums of the columns start .. end - 1 over the rows first .. last - 1: fills `sums` [end - start].

    Several rows at a time: the sums are read and written less often.
    """
    row = pixels[first, start:end]
    for i in range(len(row)):
        sums[i] = row[i]
    y = first + 1
    while last - y >= 4:
        row, below = pixels[y, start:end], pixels[y + 1, start:end]
        third, fourth = pixels[y + 2, start:end], pixels[y + 3, start:end]
        for i in range(len(row)):
            sums[i] += np.int32(row[i]) + np.int32(below[i]) + np.int32(third[i]) + np.int32(fourth[i])
        y += 4
    if (last - y) % 2:
        row, y = pixels[y, start:end], y + 1
        for i in range(len(row)):
            sums[i] += np.int32(row[i])
    if y < last:
        row, below = pixels[y, start:end], pixels[y + 1, start:end]
        for i in range(len(row)):
            sums[i] += np.int32(row[i]) + np.int32(below[i])


@compiled(**EXACT)
def scratch_room(width: int) -> int:
    """How many numbers `average_row` asks for."""
    return 7 * width + 5


@compiled(**EXACT)
def average_row(
    pixels: Any, x0: int, x1: int, first: int, last: int, left: Any, right: Any, widths: Any, scratch: Any, out: Any
) -> None:
    """Rows first .. last - 1 and columns x0 .. x1 - 1 of a picture, averaged to one row of as many pixels as `bins`
    divided x1 - x0 into.

    `pixels` [height, width * 3] uint8; `scratch` [>= scratch_room(x1 - x0)] int32; `out` [3, >= size] float32. The
    sums run on along the row and may wrap around: their differences are exact modulo 2^32.
    """
    width = x1 - x0
    sums, running = scratch[: 3 * width], scratch[3 * width + 1 :]
    _add_rows(pixels, 3 * x0, 3 * x1, first, last, sums)
    add_along(scratch, width, running)
    sums_between(running, left, right, len(left), out, out.shape[1])
    rows = np.float32(last - first)
    for channel in range(3):
        averages = out[channel]
        for j in range(len(left)):
            averages[j] /= rows * widths[j]  # a product of whole numbers, rounded once, as the number of pixels is


@compiled(
    "void(u1[::1], i8[:,::1], i8[::1], i8[::1], i8[:,::1], f4[:,:,:,::1])",
    inlined=(instructions, column_sums),
    **EXACT,
)
def area_crops(flat: Any, sizes: Any, starts: Any, image: Any, boxes: Any, out: Any) -> None:
    """Rectangles of many pictures, each averaged to a square: fills `out` [n, 3, size, size].

    `flat` holds the pictures' bytes one after the other, picture k of `sizes[k]` (height, width) from byte
    `starts[k]` on; `image` [n] says which, `boxes` [n, 4] xyxy where: half open, inside and not empty.
    """
    size, widest = out.shape[3], 0
    for k in range(len(image)):
        widest = max(widest, boxes[k, 2] - boxes[k, 0])
    scratch = np.zeros(scratch_room(widest), np.int32)
    left, right, widths = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.float32)
    top, bottom, heights = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.float32)
    row = np.empty((3, size), np.float32)
    for k in range(len(image)):
        start, height, width = starts[image[k]], sizes[image[k], 0], sizes[image[k], 1]
        pixels = flat[start : start + 3 * height * width].reshape(height, 3 * width)
        x0, y0, x1, y1 = boxes[k]
        bins(x1 - x0, left, right, widths)
        bins(y1 - y0, top, bottom, heights)
        for i in range(size):
            average_row(pixels, x0, x1, y0 + top[i], y0 + bottom[i], left, right, widths, scratch, row)
            for channel in range(3):
                for j in range(size):  # one assignment of the row would compile for seconds
                    out[k, channel, i, j] = row[channel, j]


@compiled(**FUSED)
def _convolve_next(rows: Any, y: int, products: Any, layer: Any, count: int, out: Any, both: bool) -> None:
    """Rows y and y + 1 of a 3 x 3 convolution of four `rows`; there and in `out` row k lies at k modulo the length."""
    four_products(rows[y % 4], rows[(y + 1) % 4], rows[(y + 2) % 4], rows[(y + 3) % 4], products)
    convolve_pair(products, layer, 3, 1, count, out, y % len(out), (y + 1) % len(out), both)


@compiled(**FUSED)
def _pool_rows(upper: Any, lower: Any, count: int, out: Any) -> None:
    """The largest of each 2 x 2 values of two rows [c, >= count]: [c, ceil(count / 2)]. An odd last column is alone."""
    for channel in range(out.shape[0]):
        top, bottom, row = upper[channel], lower[channel], out[channel]
        for x in range(count // 2):
            row[x] = max(max(top[2 * x], top[2 * x + 1]), max(bottom[2 * x], bottom[2 * x + 1]))
        if count % 2:
            row[count // 2] = max(top[count - 1], bottom[count - 1])


@compiled(**FUSED)
def _normalise(level: Any, count: int) -> None:
    """As `models.mtcnn.normalise` does, in place, the first `count` columns."""
    for channel in range(3):
        row = level[channel]
        for x in range(count):
            row[x] = (row[x] - np.float32(127.5)) * np.float32(0.0078125)


@compiled(**FUSED)
def _likely_cells(
    features: Any, count: int, face: Any, least: float, threshold: float, logits: Any, columns: Any
) -> int:
    """The cells of a row whose probability of a face reaches `threshold`: writes their columns, and the
    probabilities over the beginning of `logits`; returns how many. `least`: a logit that all of them have."""
    weights, bias = face
    for x in range(count):
        logits[x] = bias[1] - bias[0]
    for channel in range(len(features)):
        row, weight = features[channel], weights[1, channel] - weights[0, channel]
        for x in range(count):
            logits[x] += weight * row[x]
    found = 0
    for x in range(count):
        if logits[x] >= least:
            probability = _probability(features, x, weights, bias)
            if probability >= threshold:
                columns[found], logits[found] = x, probability
                found += 1
    return found


@compiled(**FUSED)
def _probability(features: Any, x: int, weights: Any, bias: Any) -> Any:
    """The softmax of the two answers of one cell, as torch computes it."""
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
    """The likely cells of row y with their box regressions: fills the first `count` of `cells` and `answers`."""
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
    inlined=(instructions, column_sums, packed_layers, row_convolutions),
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
    """P-Net over one level of one picture: returns how many cells have a probability of at least `threshold`.

    `pixels` [height, width * 3] uint8; the level is the picture resampled by area, at least 12 pixels on a side.
    `layer1`, `layer2`, `layer3`: the convolutions, as `packed_layers.packed_layer` has them; `face` and `box`: weights
    [2 or 4, 32] and bias. `cells` [n, 2] becomes (row, column), `answers` [n, 5] the probability and the box regression
    of each, row by row; n must be the number of the level's cells.
    """
    height, width = pixels.shape[0], pixels.shape[1] // 3
    pooled_height, pooled_width = (level_height - 1) // 2, (level_width - 1) // 2
    left, right = np.empty(level_width, np.int64), np.empty(level_width, np.int64)
    widths, scratch = np.empty(level_width, np.float32), np.zeros(scratch_room(width), np.int32)
    bins(width, left, right, widths)
    # The last rows of each layer, row y at y % 4. What is behind a row is never looked at, but should be numbers.
    level = np.zeros((4, 3, row_room(level_width)), np.float32)
    first = np.zeros((2, OUTPUTS * len(layer1), row_room(level_width - 2)), np.float32)
    pooled = np.zeros((4, _CHANNELS1, row_room(pooled_width)), np.float32)
    second = np.zeros((4, OUTPUTS * len(layer2), row_room(pooled_width - 2)), np.float32)
    third = np.zeros((2, OUTPUTS * len(layer3), row_room(pooled_width - 4)), np.float32)
    products1, products2 = np.empty((4, *level.shape[1:]), np.float32), np.empty((4, *pooled.shape[1:]), np.float32)
    products3 = np.empty((4, *second.shape[1:]), np.float32)
    logits, columns = np.empty(pooled_width, np.float32), np.empty(pooled_width, np.int32)
    # At 16 the probability is still below 1 in float32, whatever the threshold.
    least = np.float32(min(np.log(threshold / (np.float32(1) - threshold)) - _SURE, 16.0))
    made, found = 0, 0
    for y in range(pooled_height):
        both = 2 * y + 3 < level_height  # an odd last row is alone
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
                count = _likely_cells(features, pooled_width - 4, face, least, threshold, logits, columns)
                _write_cells(features, row, columns, logits, count, box, cells[found:], answers[found:])
                found += count
    return found
