"""The conversion uses every constant and fills every tensor, or says what is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.models.conversion.facenet import convert_constants
from pipeline.models.conversion.graphdef import float_constants, read_graph
from pipeline.models.conversion.protobuf import GraphInvalid
from pipeline.models.registry import weight_set
from pipeline.models.weights import package_files
from pipeline.types import FloatArray

WEIGHTS = "InceptionResnetV1/Repeat_1/block17_3/Branch_1/Conv2d_0b_1x7/weights"
SCALE = "InceptionResnetV1/Repeat_2/block8_1/mul/x"


@pytest.fixture(scope="module")
def constants() -> dict[str, FloatArray]:
    (graph,) = package_files(weight_set("casia-webface"))
    return float_constants(read_graph(graph.read_bytes()))


def test_every_weight_of_the_graph_is_in_the_tensors(constants: dict[str, FloatArray]) -> None:
    weights = [value for value in constants.values() if value.ndim > 0]
    tensors = convert_constants(constants)
    assert len(weights) == 269
    # A folded batch norm's scale, mean and variance are implied; num_batches_tracked is torch's own counter.
    implied = ("running_mean", "running_var", ".bn.weight", "num_batches_tracked")
    own = ("last_bn.running_mean", "last_bn.running_var")
    written = {name: value for name, value in tensors.items() if name in own or not name.endswith(implied)}
    assert len(written) == 269
    # Sums survive transposition; they agree as multisets only if each constant is in exactly one tensor.
    sums = sorted(float(np.sort(v.ravel()).astype(np.float64).sum()) for v in weights)
    found = sorted(float(np.sort(t.numpy().ravel()).astype(np.float64).sum()) for t in written.values())
    np.testing.assert_allclose(found, sums, rtol=1e-12, atol=1e-12)


def test_layouts_are_turned_from_tensorflow_to_torch(constants: dict[str, FloatArray]) -> None:
    tensors = convert_constants(constants)
    np.testing.assert_array_equal(
        tensors["repeat_2.2.branch1.1.conv.weight"].numpy(), constants[WEIGHTS].transpose(3, 2, 0, 1)
    )
    np.testing.assert_array_equal(
        tensors["last_linear.weight"].numpy(), constants["InceptionResnetV1/Bottleneck/weights"].T
    )


@pytest.mark.parametrize(
    "name",
    [WEIGHTS, "InceptionResnetV1/Block8/Conv2d_1x1/biases", "InceptionResnetV1/Bottleneck/BatchNorm/moving_mean"],
)
def test_a_missing_constant_is_an_error(constants: dict[str, FloatArray], name: str) -> None:
    with pytest.raises(GraphInvalid, match=r"missing|no part of"):
        convert_constants({key: value for key, value in constants.items() if key != name})


@pytest.mark.parametrize(
    "name",
    ["InceptionResnetV1/Logits/weights", "InceptionResnetV1/Repeat/block35_1/Branch_0/Conv2d_1x1/gamma", "other"],
)
def test_an_unknown_constant_is_an_error(constants: dict[str, FloatArray], name: str) -> None:
    with pytest.raises(GraphInvalid, match="no part of"):
        convert_constants({**constants, name: np.zeros(4, np.float32)})


def test_a_constant_of_another_shape_is_an_error(constants: dict[str, FloatArray]) -> None:
    with pytest.raises(GraphInvalid, match="shape"):
        convert_constants({**constants, WEIGHTS: constants[WEIGHTS][:, :5]})


def test_a_residual_scale_other_than_the_modules_is_an_error(constants: dict[str, FloatArray]) -> None:
    with pytest.raises(GraphInvalid, match="scale"):
        convert_constants({**constants, SCALE: np.float32(0.3)})  # type: ignore[dict-item]
