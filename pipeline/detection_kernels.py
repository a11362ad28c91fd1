"""The compiled loops of detection on the CPU: averages over rectangles, and P-Net, straight from the pixels.

Where `summed_area` makes a table of 12 bytes a pixel and reads four corners an average, `average_row` adds up the
pixels themselves, in vector instructions along the rows: several times faster for a photograph, and without memory.
Sums are of whole numbers and there is one division, so both give the same bits.

`scan_level` runs P-Net over one pyramid level, row by row. Of each layer only the last rows are kept, as many as the
next one looks at: a level of any size needs a few hundred kilobytes, which stay in the processor's cache, and no
canvas, padding or mask. Products and sums may be fused (`contract`), in an order of our own: probabilities differ from
torch's by rounding, as those of any two libraries do.

Importing this module needs numba and compiles, or loads what an earlier process compiled. All loops that are inlined
into each other stay in this file: numba's cache knows when it changes, but not when another does.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from pipeline.compiled import compiled

_EXACT: Final[dict[str, Any]] = {"error_model": "numpy"}
_FUSED: Final[dict[str, Any]] = {"fastmath": {"contract"}, "error_model": "numpy"}
_SURE: Final = 1e-3  # of logits: far more than their rounding


@compiled(**_EXACT)
def bins(length: int, left: Any, right: Any, widths: Any) -> None:
    """The part [left, right) of `length` pixels that each of the arrays' places averages, as torch's adaptive pooling
    divides them; `widths` float32 says how many."""
    size = len(left)
    for j in range(size):
        left[j], right[j] = (j * length) // size, ((j + 1) * length + size - 1) // size
        widths[j] = right[j] - left[j]


@compiled(**_EXACT)
def _add_rows(pixels: Any, start: int, end: int, first: int, last: int, sums: Any) -> None:
    """The sums of the columns start .. end - 1 over the rows first .. last - 1, from `sums[3]` on.

    Two rows at a time: that halves how often the sums are read and written.
    """
    row = pixels[first, start:end]
    for i in range(len(row)):
        sums[i + 3] = row[i]
    y = first + 1
    if (last - y) % 2:
        row, y = pixels[y, start:end], y + 1
        for i in range(len(row)):
            sums[i + 3] += np.int32(row[i])
    while y < last:
        row, below = pixels[y, start:end], pixels[y + 1, start:end]
        for i in range(len(row)):
            sums[i + 3] += np.int32(row[i]) + np.int32(below[i])
        y += 2


@compiled(**_EXACT)
def average_row(
    pixels: Any, x0: int, x1: int, first: int, last: int, left: Any, right: Any, widths: Any, sums: Any, out: Any
) -> None:
    """Rows first .. last - 1 and columns x0 .. x1 - 1 of a picture, averaged to one row of as many pixels as `bins`
    divided x1 - x0 into.

    `pixels` [height, width * 3] uint8; `sums` [>= (x1 - x0 + 1) * 3] int32 is scratch; `out` [3, size] float32. The
    sums run on along the row and may wrap around: their differences are exact modulo 2^32.
    """
    _add_rows(pixels, 3 * x0, 3 * x1, first, last, sums)
    red, green, blue = np.int32(0), np.int32(0), np.int32(0)
    sums[0], sums[1], sums[2] = red, green, blue
    for i in range(3, 3 * (x1 - x0) + 3, 3):
        red, green, blue = np.int32(red + sums[i]), np.int32(green + sums[i + 1]), np.int32(blue + sums[i + 2])
        sums[i], sums[i + 1], sums[i + 2] = red, green, blue
    for j in range(len(left)):
        start, end = 3 * left[j], 3 * right[j]
        out[0, j] = np.int32(sums[end] - sums[start])
        out[1, j] = np.int32(sums[end + 1] - sums[start + 1])
        out[2, j] = np.int32(sums[end + 2] - sums[start + 2])
    rows = np.float32(last - first)
    for channel in range(3):
        averages = out[channel]
        for j in range(len(left)):
            averages[j] /= rows * widths[j]  # a product of whole numbers, rounded once, as the number of pixels is


@compiled("void(u1[::1], i8[:,::1], i8[::1], i8[::1], i8[:,::1], f4[:,:,:,::1])", **_EXACT)
def area_crops(flat: Any, sizes: Any, starts: Any, image: Any, boxes: Any, out: Any) -> None:
    """Rectangles of many pictures, each averaged to a square: fills `out` [n, 3, size, size].

    `flat` holds the pictures' bytes one after the other, picture k of `sizes[k]` (height, width) from byte
    `starts[k]` on; `image` [n] says which, `boxes` [n, 4] xyxy where: half open, inside and not empty.
    """
    size, widest = out.shape[3], 0
    for k in range(len(image)):
        widest = max(widest, boxes[k, 2] - boxes[k, 0])
    sums = np.empty(3 * widest + 3, np.int32)
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
            average_row(pixels, x0, x1, y0 + top[i], y0 + bottom[i], left, right, widths, sums, row)
            out[k, :, i] = row


@compiled(**_FUSED)
def _convolve_row(above: Any, middle: Any, below: Any, layer: Any, count: int, out: Any) -> None:
    """One row of a 3 x 3 convolution and its PReLU: rows [c, >= count + 2] -> `out` [o, >= count], o a multiple of 4.

    Four output channels at a time share what is read: the inner loops become vector instructions along the row.
    """
    weights, bias, slope = layer
    for o in range(0, len(bias), 4):
        a, b, c, d = out[o], out[o + 1], out[o + 2], out[o + 3]
        for x in range(count):
            a[x], b[x], c[x], d[x] = bias[o], bias[o + 1], bias[o + 2], bias[o + 3]
        for channel in range(weights.shape[1]):
            for k in range(3):
                row = above[channel] if k == 0 else middle[channel] if k == 1 else below[channel]
                wa, wb = weights[o, channel, k], weights[o + 1, channel, k]
                wc, wd = weights[o + 2, channel, k], weights[o + 3, channel, k]
                a0, a1, a2, b0, b1, b2 = wa[0], wa[1], wa[2], wb[0], wb[1], wb[2]
                c0, c1, c2, d0, d1, d2 = wc[0], wc[1], wc[2], wd[0], wd[1], wd[2]
                for x in range(count):
                    left, centre, right = row[x], row[x + 1], row[x + 2]
                    a[x] += a0 * left + a1 * centre + a2 * right
                    b[x] += b0 * left + b1 * centre + b2 * right
                    c[x] += c0 * left + c1 * centre + c2 * right
                    d[x] += d0 * left + d1 * centre + d2 * right
        for i in range(4):
            row = out[o + i]
            for x in range(count):
                row[x] = row[x] if row[x] > 0 else slope[o + i] * row[x]


@compiled(**_FUSED)
def _pool_rows(upper: Any, lower: Any, count: int, out: Any) -> None:
    """The largest of each 2 x 2 values of two rows [c, >= count]: [c, ceil(count / 2)]. An odd last column is alone."""
    for channel in range(out.shape[0]):
        top, bottom, row = upper[channel], lower[channel], out[channel]
        for x in range(count // 2):
            row[x] = max(max(top[2 * x], top[2 * x + 1]), max(bottom[2 * x], bottom[2 * x + 1]))
        if count % 2:
            row[count // 2] = max(top[count - 1], bottom[count - 1])


@compiled(**_FUSED)
def _normalise(level: Any) -> None:
    """As `models.mtcnn.normalise` does, in place."""
    for channel in range(3):
        row = level[channel]
        for x in range(len(row)):
            row[x] = (row[x] - np.float32(127.5)) * np.float32(0.0078125)


@compiled(**_FUSED)
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


@compiled(**_FUSED)
def _probability(features: Any, x: int, weights: Any, bias: Any) -> Any:
    """The softmax of the two answers of one cell, as torch computes it."""
    no, yes = bias[0], bias[1]
    for channel in range(len(features)):
        no += weights[0, channel] * features[channel, x]
        yes += weights[1, channel] * features[channel, x]
    most = max(no, yes)
    no, yes = np.exp(no - most), np.exp(yes - most)
    return yes / (no + yes)


@compiled(**_FUSED)
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
    "i8(u1[:,::1], i8, i8,"
    " Tuple((f4[:,:,:,::1], f4[::1], f4[::1])), Tuple((f4[:,:,:,::1], f4[::1], f4[::1])),"
    " Tuple((f4[:,:,:,::1], f4[::1], f4[::1])), Tuple((f4[:,::1], f4[::1])), Tuple((f4[:,::1], f4[::1])),"
    " f4, i4[:,::1], f4[:,::1])",
    **_FUSED,
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
    `layer1`, `layer2`, `layer3`: weights [o, c, 3, 3], bias [o] and slope [o] of a convolution, o padded to a multiple
    of 4; `face` and `box`: weights [2 or 4, 32] and bias. `cells` [n, 2] becomes (row, column), `answers` [n, 5] the
    probability and the box regression of each, row by row; n must be the number of the level's cells.
    """
    height, width = pixels.shape[0], pixels.shape[1] // 3
    pooled_height, pooled_width = (level_height - 1) // 2, (level_width - 1) // 2
    left, right = np.empty(level_width, np.int64), np.empty(level_width, np.int64)
    widths, sums = np.empty(level_width, np.float32), np.empty(3 * width + 3, np.int32)
    bins(width, left, right, widths)
    level = np.empty((4, 3, level_width), np.float32)  # the last rows, row y at y % 4; so with the others
    first = np.empty((2, len(layer1[1]), level_width), np.float32)
    pooled = np.empty((3, layer2[0].shape[1], pooled_width), np.float32)
    second = np.empty((3, layer3[0].shape[1], pooled_width), np.float32)
    third = np.empty((len(layer3[1]), pooled_width), np.float32)
    logits, columns = np.empty(pooled_width, np.float32), np.empty(pooled_width, np.int32)
    # At 16 the probability is still below 1 in float32, whatever the threshold.
    least = np.float32(min(np.log(threshold / (np.float32(1) - threshold)) - _SURE, 16.0))
    made, found = 0, 0
    for y in range(pooled_height):
        rows = min(2, level_height - 2 - 2 * y)  # 1: an odd last row is alone
        while made < 2 * y + rows + 2:
            top, bottom = (made * height) // level_height, ((made + 1) * height + level_height - 1) // level_height
            average_row(pixels, 0, width, top, bottom, left, right, widths, sums, level[made % 4])
            _normalise(level[made % 4])
            made += 1
        for i in range(rows):
            k = 2 * y + i
            _convolve_row(level[k % 4], level[(k + 1) % 4], level[(k + 2) % 4], layer1, level_width - 2, first[i])
        _pool_rows(first[0], first[rows - 1], level_width - 2, pooled[y % 3])
        if y >= 2:
            above, middle = pooled[(y - 2) % 3], pooled[(y - 1) % 3]
            _convolve_row(above, middle, pooled[y % 3], layer2, pooled_width - 2, second[y % 3])
        if y >= 4:
            above, middle = second[(y - 2) % 3], second[(y - 1) % 3]
            _convolve_row(above, middle, second[y % 3], layer3, pooled_width - 4, third)
            count = _likely_cells(third, pooled_width - 4, face, least, threshold, logits, columns)
            _write_cells(third, y - 4, columns, logits, count, box, cells[found:], answers[found:])
            found += count
    return found
