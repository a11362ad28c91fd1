"""What is left out is counted with its reason, also where it is too much to go on."""

from __future__ import annotations

import pytest

from pipeline.errors import InputError, StoreMissing, TooLittleData
from pipeline.evaluation.pages.report import Report
from pipeline.evaluation.photos.skipped import EXAMPLES, NOT_IN_STORE, NOT_KEPT, Skipped


def filled() -> Skipped:
    skipped = Skipped()
    skipped.add("missing: no such file", "/a.jpg")
    for number in range(EXAMPLES + 1):
        skipped.add(NOT_IN_STORE, f"/{number}.jpg")
    return skipped


def test_counts_the_most_frequent_first_with_a_few_examples() -> None:
    report = Report(None, [filled().section()])
    figures = report.as_dict()
    assert list(figures["skipped"].items()) == [(NOT_IN_STORE, EXAMPLES + 1), ("missing: no such file", 1)]
    assert len(figures["skipped_examples"][NOT_IN_STORE]) == EXAMPLES
    assert list(report.lines()) == [
        f"skipped     {EXAMPLES + 1}: not in the store (such as /0.jpg)",
        "skipped     1: missing: no such file (such as /a.jpg)",
    ]
    assert not list(Report(None, [Skipped().section()]).lines())


def test_too_little_input_is_explained() -> None:
    counts = r"Left out: 11: not in the store, 1: missing: no such file\."
    with pytest.raises(TooLittleData, match=rf"enough\. {counts}$") as told, filled().explaining():
        raise TooLittleData(fmr="0.1", detail="not enough")
    assert told.value.fields["fmr"] == "0.1"
    with pytest.raises(InputError, match=r"^Nothing\.$"), Skipped().explaining():
        raise InputError(message="Nothing.")
    with pytest.raises(StoreMissing) as other, filled().explaining():
        raise StoreMissing(path="/store")
    assert "Left out" not in str(other.value)


def test_faces_that_the_gate_rejected_are_remarked_on() -> None:
    skipped = filled()
    assert "flatters" not in str(skipped.section().rows)
    skipped.add(f"a photo of the pair: {NOT_KEPT}", "/b.jpg")
    assert "flatters" in skipped.section().rows[-1].line
