"""Identification rates by hand, over vectors whose distances are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pipeline.errors import EmbeddingInvalid, InputError, ManifestInvalid
from pipeline.evaluation.identification import (
    IdentificationResult,
    evaluate_identification,
    gallery_by_column,
    gallery_per_person,
    share_interval,
)
from pipeline.matching.calibration import Calibration
from pipeline.matching.match import Matcher
from pipeline.types import FloatArray

MATCHER = Matcher(Calibration(), 0.54)


def at(*degrees: float) -> FloatArray:
    """Unit vectors of two dimensions; NaN for a photo without a face."""
    angles = np.radians(np.array(degrees))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def squared(degrees: float) -> float:
    """Squared L2 between two unit vectors so many degrees apart."""
    return 2 - 2 * math.cos(math.radians(degrees))


def evaluate(
    gallery: dict[str, list[float]], probes: list[tuple[str, float]], matcher: Matcher = MATCHER
) -> IdentificationResult:
    rows = [(name, angle, True) for name, angles in gallery.items() for angle in angles]
    rows += [(name, angle, False) for name, angle in probes]
    vectors = at(*(angle for _, angle, _ in rows))
    return evaluate_identification(vectors, [r[0] for r in rows], np.array([r[2] for r in rows]), matcher)


def test_a_case_worked_out_by_hand() -> None:
    # T = 0.54 is 43 degrees. Of ann, one probe is near and one lies nearer to bob; bob's is right, but too far.
    strangers = [("cyd", 130.0), ("dan", 300.0), ("eve", 310.0)]
    found = evaluate({"ann": [0], "bob": [90]}, [("ann", 10.0), ("ann", 80.0), ("bob", 140.0), *strangers])
    assert (found.gallery_people, found.gallery_images) == (2, 2)
    assert (found.mated_searches, found.mated_people, found.non_mated_searches) == (3, 2, 3)
    assert found.rank_1 == pytest.approx(2 / 3)
    assert found.fnir_at_threshold == pytest.approx(2 / 3)
    assert found.fpir_at_threshold == pytest.approx(1 / 3)  # cyd, who is 40 degrees from bob
    assert all(rate.fnir is None and rate.threshold is None for rate in found.fnir_at_fpir)


def test_fnir_at_fpir_is_at_the_largest_threshold_that_keeps_it() -> None:
    # 40 strangers at 41, 42, ... 80 degrees from ann: 4 may be let in at an FPIR of 0.1, so the cut is at 45.
    strangers = [(f"stranger {k}", 41.0 + k) for k in range(40)]
    genuine = [("ann", 20.0), ("ann", -30.0), ("ann", -44.5), ("ann", -46.0)]
    found = evaluate({"ann": [0]}, genuine + strangers)
    first, second, third = found.fnir_at_fpir
    assert first.fpir == 0.1
    assert first.threshold == pytest.approx(squared(45))
    assert first.threshold < squared(45) + 1e-6
    assert first.fnir == pytest.approx(1 / 4)
    # At just this T the product lets in as many as were allowed, and no more.
    again = evaluate({"ann": [0]}, genuine + strangers, Matcher(Calibration(), first.threshold))
    assert again.fpir_at_threshold == pytest.approx(0.1)
    assert again.fnir_at_threshold == first.fnir
    # 40 searches cannot show an FPIR of 0.01: the rule of 3 wants 300.
    assert second.fnir is second.threshold is third.fnir is None
    assert found.curve_fpir[0] == pytest.approx(1 / 40)
    assert found.curve_fpir[-1] == 1
    assert found.curve_fnir[found.curve_fpir.index(0.1)] == pytest.approx(1 / 4)
    assert list(found.curve_fnir) == sorted(found.curve_fnir, reverse=True)


def test_the_wrong_person_first_is_a_miss_at_any_threshold() -> None:
    strangers = [(f"stranger {k}", 179.0) for k in range(30)]
    found = evaluate({"ann": [0], "bob": [5]}, [("ann", 4.0), ("ann", 1.0), *strangers])
    assert found.rank_1 == 0.5
    assert found.fnir_at_threshold == 0.5
    assert found.curve_fnir[-1] == 0.5


def test_the_best_of_several_gallery_photos_counts() -> None:
    found = evaluate({"ann": [0, 100], "bob": [50]}, [("ann", 95.0), ("zoe", 200.0)])
    assert (found.gallery_people, found.gallery_images, found.rank_1) == (2, 3, 1)


def test_photos_without_a_face_miss_or_raise_no_alarm() -> None:
    nan = math.nan
    probes = [("ann", nan), ("ann", 1.0), ("bob", 91.0), ("cyd", nan), ("dan", 2.0)]
    found = evaluate({"ann": [0.0, nan], "bob": [nan]}, probes)
    assert (found.gallery_people, found.gallery_images, found.gallery_images_without_face) == (1, 1, 2)
    assert (found.mated_searches, found.non_mated_searches, found.probes_without_face) == (3, 2, 2)
    assert found.rank_1 == pytest.approx(1 / 3)  # bob was to be enrolled: a miss
    assert found.fpir_at_threshold == 0.5


def test_a_stranger_with_the_very_same_face_can_only_be_kept_out_by_nobody() -> None:
    found = evaluate({"ann": [0]}, [("ann", 0.0), *((f"stranger {k}", 0.0) for k in range(30))])
    assert found.fnir_at_fpir[0].threshold == 0
    assert found.fnir_at_fpir[0].fnir == 1


def test_without_strangers_there_is_no_fpir() -> None:
    found = evaluate({"ann": [0]}, [("ann", 1.0)])
    assert found.fpir_at_threshold is None
    assert found.curve_fpir == found.curve_fnir == ()
    assert found.rank_1 == 1
    assert found.rank_1_interval_95 == (1, 1)
    assert found.gallery_people == 1


@pytest.mark.parametrize(
    ("gallery", "probes", "message"),
    [
        ({}, [("ann", 1.0)], "gallery has no photo with a face"),
        ({"ann": [math.nan]}, [("ann", 1.0)], "gallery has no photo with a face"),
        ({"ann": [0.0]}, [], "No probe shows anybody in the gallery"),
        ({"ann": [0.0]}, [("bob", 1.0)], "No probe shows anybody in the gallery"),
    ],
)
def test_nothing_to_search_is_an_error(
    gallery: dict[str, list[float]], probes: list[tuple[str, float]], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(gallery, probes)


def test_vectors_that_are_no_embeddings_are_refused() -> None:
    vectors = at(0, 1) * 2
    with pytest.raises(EmbeddingInvalid):
        evaluate_identification(vectors, ["ann", "ann"], np.array([True, False]), MATCHER)


def test_the_column_set() -> None:
    assert gallery_by_column("m.csv", ["gallery", "probe"], ["/a", "/b"]).tolist() == [True, False]
    with pytest.raises(ManifestInvalid, match=r'm\.csv.*and that of /b is "test"'):
        gallery_by_column("m.csv", ["gallery", "test"], ["/a", "/b"])
    with pytest.raises(ManifestInvalid, match="that of /a is empty; or use --gallery-per-person"):
        gallery_by_column("m.csv", [None], ["/a"])


def test_the_first_photos_of_each_are_the_gallery() -> None:
    names = ["ann", "bob", "ann", "ann", "cyd", "cyd"]
    assert gallery_per_person(names, 1).tolist() == [True, False, False, False, True, False]
    assert gallery_per_person(names, 2).tolist() == [True, False, True, False, False, False]


def test_an_interval_over_people_is_wider_than_over_photos() -> None:
    # Ten people of a hundred photos each; all photos of one person are missed, or none.
    events = np.repeat(np.arange(10) < 5, 100)
    low, high = share_interval(events, np.repeat(np.arange(10), 100))
    single = share_interval(events, np.arange(1000))
    assert low < 0.3 < 0.7 < high
    assert 0.45 < single[0] < 0.5 < single[1] < 0.55
