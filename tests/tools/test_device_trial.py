"""The doctor's trial of a device: right results pass, wrong ones and broken devices are told from each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.compute as pc
import pytest
import torch

from pipeline.config import Settings, load_settings
from pipeline.errors import UsageError
from pipeline.extraction.extractor import BatchExtractor
from pipeline.runtime.optional_kernels import SelfCheck, if_checked
from pipeline.tools import device_trial
from pipeline.tools.device_trial import try_device
from pipeline.tools.doctor import FAIL, OK, WARN, Finding
from pipeline.types import DecodedImage

CUDA = "cuda:0"  # a name: nothing here touches the device
Change = Callable[[pa.Table], pa.Table]


@pytest.fixture
def settings(weights_cache: Path) -> Settings:
    return load_settings(
        environ={}, flags={"run.device": "cpu", "model.weights": "casia-webface", "model.cache": str(weights_cache)}
    )


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_trial, "_LOOP_S", 0.05)


def by_subject(findings: Sequence[Finding]) -> dict[str, Finding]:
    return {finding.subject: finding for finding in findings}


@pytest.mark.slow
def test_the_device_is_compared_with_plain_torch_on_the_cpu(settings: Settings, device: str) -> None:
    run = dataclasses.replace(settings.run, device=device, mode="fast")  # the trial's mode is exact all the same
    found = by_subject(try_device(dataclasses.replace(settings, run=run)))
    wanted = ["faces", "embeddings", "rate"]
    assert list(found) == (wanted if device == "cpu" else list(found))
    assert {found[subject].level for subject in wanted} == {OK}, found
    assert found["faces"].detail.startswith("1 as on the CPU, boxes 0.0")
    assert "images/s of 512 x 600" in found["rate"].detail
    if device == "cuda":
        assert found["driver"].level == OK


class Changed:
    """The extractor of a device whose results are wrong."""

    def __init__(self, extractor: BatchExtractor, change: Change) -> None:
        self.embedder, self.device = extractor.embedder, extractor.device
        self._extractor, self._change = extractor, change

    def extract(self, images: Sequence[DecodedImage]) -> list[pa.Table]:
        return [self._change(table) for table in self._extractor.extract(images)]


def shifted(faces: pa.Table, by: float) -> pa.Table:
    place = faces.schema.get_field_index("y2")
    return faces.set_column(place, faces.schema.field(place), pc.cast(pc.add(faces["y2"], by), pa.float32()))


def turned(faces: pa.Table) -> pa.Table:
    place = faces.schema.get_field_index("embedding")
    values = pa.array([row[1:] + row[:1] for row in faces["embedding"].to_pylist()], faces.schema.field(place).type)
    return faces.set_column(place, faces.schema.field(place), values)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (partial(shifted, by=0.4), set()),
        (partial(shifted, by=0.6), {"faces"}),
        (turned, {"embeddings"}),
        (lambda faces: faces.slice(0, 0), {"faces", "embeddings"}),
    ],
    ids=["a little off", "too far off", "other embeddings", "no face"],
)
def test_a_device_that_computes_wrongly_fails(
    change: Change, wrong: set[str], settings: Settings, extractor: BatchExtractor, monkeypatch: pytest.MonkeyPatch
) -> None:
    extractors = iter([extractor, Changed(extractor, change)])
    monkeypatch.setattr(device_trial, "_extractor", lambda *_: next(extractors))
    findings = try_device(settings)
    assert {finding.subject for finding in findings if finding.level == FAIL} == wrong
    assert all("do not use it" in (finding.cure or "") for finding in findings if finding.level == FAIL)


@pytest.mark.parametrize(
    ("error", "level", "says"),
    [
        (torch.OutOfMemoryError("Tried to allocate 20.00 MiB"), FAIL, "Tried to allocate 20.00 MiB"),
        (RuntimeError("CUDA error: unspecified launch failure"), FAIL, "The device failed"),
        (RuntimeError("CUDA error: no kernel image is available for execution"), FAIL, "was not made for the GPU"),
        (UsageError(message='The package "matplotlib" is missing'), WARN, "matplotlib"),
    ],
)
def test_a_device_that_cannot_be_tried(
    error: Exception, level: str, says: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(device_trial, "_extractor", fail)
    (finding,) = try_device(settings)
    assert (finding.subject, finding.level) == ("trial", level)
    assert says in finding.detail


@pytest.mark.parametrize(("free", "level"), [(3 * 10**9, WARN), (60 * 10**9, OK)])
def test_little_memory_of_the_device_is_said(free: int, level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 80 * 10**9))
    finding = device_trial._memory(CUDA)
    assert finding.level == level
    assert finding.detail.startswith(f"{free / 1e9:.1f} of 80.0 GB are free")
    assert ("run.batch_pixels" in (finding.cure or "")) == (level == WARN)


@pytest.mark.parametrize(("problem", "level"), [(None, OK), ("crops differ by 3", WARN)])
def test_kernels_of_triton_that_were_asked_for_are_named(
    problem: str | None, level: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.runtime.optional_kernels._outcomes", {})
    assert list(device_trial._kernels(CUDA)) == []

    def load() -> tuple[ModuleType, SelfCheck]:
        return device_trial, lambda _: problem

    if_checked(load)(torch.device(CUDA))
    (finding,) = device_trial._kernels(CUDA)
    assert (finding.subject, finding.level) == ("triton", level)
    assert finding.detail.startswith("test_device_trial: ")
    assert problem is None or problem in finding.detail
