"""Triton kernels: used on CUDA only, after a comparison, and done without where they differ or are missing."""

from __future__ import annotations

import logging

import pytest
import torch

from pipeline.errors import DeviceFailed
from pipeline.runtime.optional_kernels import if_checked


class Checked:
    def __init__(self, problem: str | Exception | None) -> None:
        self.problem = problem
        self.checks = 0

    def self_check(self, device: torch.device) -> str | None:
        self.checks += 1
        if isinstance(self.problem, Exception):
            raise self.problem
        return self.problem


CUDA = torch.device("cuda", 0)  # a name: nothing here touches the device


def test_kernels_are_compared_once_per_device_and_never_on_a_cpu() -> None:
    module = Checked(None)
    kernels = if_checked(lambda: (module, module.self_check))
    assert kernels(torch.device("cpu")) is None
    assert module.checks == 0
    assert kernels(CUDA) is kernels(CUDA) is module
    assert module.checks == 1
    assert kernels(torch.device("cuda", 1)) is module
    assert module.checks == 2


_does_not_compile = Checked(RuntimeError("Triton Error [CUDA]: PTX was compiled\nat line 3"))


def _no_triton() -> object:
    raise ImportError("No module named 'triton'")


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        (lambda: (None, Checked("crops differ by up to 3").self_check), "crops differ by up to 3"),
        (lambda: (None, _does_not_compile.self_check), "PTX was compiled"),
        (_no_triton, "No module named 'triton'"),
    ],
)
def test_what_differs_fails_or_is_missing_is_done_without_and_logged_once(
    load: object, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    kernels = if_checked(load)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING):
        assert kernels(CUDA) is kernels(CUDA) is None
    (record,) = caplog.records
    assert "cuda:0 does without Triton" in record.message
    assert reason in record.message


def test_where_there_is_no_memory_for_the_comparison_it_is_made_another_time() -> None:
    module = Checked(RuntimeError("Triton Error [CUDA]: out of memory"))
    kernels = if_checked(lambda: (module, module.self_check))
    with pytest.raises(RuntimeError, match="out of memory"):
        kernels(CUDA)
    module.problem = None
    assert kernels(CUDA) is module


def test_an_error_after_which_nothing_works_on_the_device_ends_the_run() -> None:
    module = Checked(RuntimeError("CUDA error: an illegal memory access was encountered"))
    kernels = if_checked(lambda: (module, module.self_check))
    with pytest.raises(DeviceFailed):
        kernels(CUDA)
