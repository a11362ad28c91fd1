"""Each published file, known by its SHA-256, becomes exactly these tensors. `test_published_graphs` compares the
networks with the published graphs themselves."""

from __future__ import annotations

import pytest

from pipeline.models.files.converted import check_converted, content_digest
from pipeline.models.registry import weight_set
from pipeline.models.weights import cached_file, detector_arrays


# Another digest is another model.
@pytest.mark.parametrize(
    ("name", "cache", "digest"),
    [
        ("casia-webface", "weights_cache", "0b3a8d92d40fc7473b2083f8fc0ac2c1c18ddde76aa8ee8fe1a61cb55d8b8448"),
        ("sface", "sface_cache", "be4795e9bd08092df248e360f8315a12d264cd5fe02cd7e4dbd70d53ca143f7c"),
        ("detector", "weights_cache", "c7d2722010341d5aafffa8dfcb6457898786f5ce9d869c845ed894907d765458"),
    ],
)
def test_the_conversion_gives_exactly_these_tensors(
    name: str, cache: str, digest: str, request: pytest.FixtureRequest
) -> None:
    folder = request.getfixturevalue(cache)
    if name == "detector":
        detector_arrays(folder)  # converts it
    assert content_digest(check_converted(cached_file(weight_set(name), folder))) == digest
