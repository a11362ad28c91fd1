"""Devices by name, batches by halves, and the message for a torch that does not fit."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace

import pytest
import torch

from pipeline.config import RunSettings
from pipeline.errors import DeviceFailed, DeviceMissing, DeviceOutOfMemory
from pipeline.runtime import device as device_module
from pipeline.runtime.device import (
    CUDA_BATCHES,
    FittingBatches,
    batch_workers,
    cuda_problem,
    describe,
    device_errors,
    driver_uuid,
    finish,
    on_cuda,
    own_stream,
    padded,
    resolve_device,
    why_no_cuda,
)
from pipeline.runtime.threads import set_threads, usable_cores

Squares = Callable[[Sequence[int]], list[int]]

no_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


OLD_DRIVER = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."


@pytest.fixture
def asked_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What is known of CUDA is forgotten, so that the test's torch is asked."""
    for known in (cuda_problem, why_no_cuda):
        known.cache_clear()
    yield
    monkeypatch.undo()
    for known in (cuda_problem, why_no_cuda):
        known.cache_clear()


def pretend(monkeypatch: pytest.MonkeyPatch, **answers: object) -> None:
    """There is a driver, and torch.cuda answers so."""
    monkeypatch.setattr(device_module, "has_cuda_driver", lambda: True)
    for name, answer in {
        "is_available": True,
        "device_count": 2,
        "get_device_name": "GPU of a test",
        **answers,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_cpu_and_auto() -> None:
    assert resolve_device("cpu") == "cpu"
    assert resolve_device("auto") == ("cuda:0" if torch.cuda.is_available() else "cpu")


@no_cuda
@pytest.mark.parametrize("name", ["cuda", "cuda:0", "cuda:3"])
def test_cuda_asked_for_and_not_there_is_an_error(name: str) -> None:
    with pytest.raises(DeviceMissing, match=f'"{name}" was asked for.*--device cpu'):
        resolve_device(name)


@cuda
def test_cuda_is_named_with_its_index_and_computes_in_full_float32() -> None:
    assert resolve_device("cuda") == "cuda:0"
    assert not torch.backends.cudnn.allow_tf32
    assert torch.cuda.get_device_name(0) in describe(resolve_device("cuda"))
    with pytest.raises(DeviceMissing, match="this machine has"):
        resolve_device(f"cuda:{torch.cuda.device_count()}")


@cuda
def test_a_device_is_known_to_the_driver_by_its_uuid() -> None:
    names = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    uuids = [driver_uuid(f"cuda:{index}") for index in range(torch.cuda.device_count())]
    assert all(uuid and f"(UUID: {uuid})" in names for uuid in uuids)
    assert len(set(uuids)) == len(uuids)


@pytest.mark.parametrize(
    ("properties", "expected"),
    [({"uuid": "01234567-89ab"}, "GPU-01234567-89ab"), ({}, None)],
    ids=["torch says it", "torch does not"],
)
def test_a_device_of_which_torch_says_no_uuid_has_none(
    properties: dict[str, str], expected: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(**properties))
    assert driver_uuid("cuda:0") == expected
    assert driver_uuid("cpu") is None


@pytest.mark.usefixtures("asked_again")
def test_a_driver_that_is_too_old_is_named_with_the_one_that_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def available() -> bool:
        nonlocal asked
        asked += 1
        if asked == 1:  # as torch does it
            warnings.warn(OLD_DRIVER, stacklevel=1)
        return False

    monkeypatch.setattr(torch.cuda, "is_available", available)
    monkeypatch.setattr(torch.version, "cuda", "13.2")
    assert resolve_device("auto") == "cpu"  # and no warning
    with pytest.raises(DeviceMissing, match=r"needs an NVIDIA driver for CUDA 13 or newer.*too old.*version 11040"):
        resolve_device("cuda")
    with pytest.raises(DeviceMissing, match="too old"):
        resolve_device("cuda:1")
    assert asked == 1


@pytest.mark.usefixtures("asked_again")
@pytest.mark.parametrize(
    ("capability", "made_for", "usable"),
    [
        ((3, 7), ["sm_75", "sm_80", "sm_86", "sm_90", "compute_90"], False),
        ((8, 0), ["sm_75", "sm_86"], False),
        ((8, 9), ["sm_75", "sm_80", "sm_86"], True),
        ((9, 0), ["sm_80", "sm_86"], False),
        ((9, 0), ["sm_90a"], True),
        ((10, 3), ["sm_90", "sm_100a"], False),
        ((12, 1), ["sm_90", "compute_90"], True),
        ((12, 0), [], True),
        ((9, 4), ["gfx942"], True),
    ],
)
def test_a_gpu_that_torch_has_no_code_for_is_not_used(
    capability: tuple[int, int], made_for: list[str], usable: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, get_device_capability=capability, get_arch_list=made_for)
    assert resolve_device("auto") == ("cuda:0" if usable else "cpu")
    assert on_cuda(RunSettings()) == usable
    if not usable:
        major, minor = capability
        with pytest.raises(DeviceMissing, match=rf"sm_.* not for this GPU \(GPU of a test, .* {major}\.{minor}\)"):
            resolve_device("cuda:1")


@pytest.mark.usefixtures("asked_again")
def test_a_gpu_that_another_process_has_for_itself_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(_: int) -> None:
        raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable\nmore")

    pretend(monkeypatch)
    monkeypatch.setattr(torch.cuda, "get_device_capability", busy)
    with pytest.raises(DeviceMissing, match=r"it cannot be used .*busy or unavailable") as caught:
        resolve_device("cuda")
    assert "more" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "gpu", "mps", "cuda:", "cuda:x", "cuda:-1", "CUDA", "cpu:0"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(DeviceMissing, match="auto, cpu, cuda or cuda:N"):
        resolve_device(name)


def test_threads_are_set_and_described(threads: None) -> None:
    assert set_threads(1) == 1
    assert describe("cpu") == "cpu (1 threads)"
    assert set_threads(0) == usable_cores() == torch.get_num_threads()


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_on_cuda_some_batches_are_under_way_at_once(device: str) -> None:
    assert on_cuda(RunSettings(device=device))
    assert batch_workers(RunSettings(device=device, threads=7)) == CUDA_BATCHES


@pytest.mark.usefixtures("asked_again")
def test_on_a_cpu_every_thread_has_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for device in ("cpu", "auto"):
        assert not on_cuda(RunSettings(device=device))
        assert batch_workers(RunSettings(device=device, threads=7)) == 7


def test_threads_at_once_have_streams_of_their_own_and_leave_them_to_later_ones(device: str) -> None:
    where = resolve_device(device)
    if where == "cpu":
        with own_stream(where):
            finish(where)
        return
    with own_stream(where):
        outer = torch.cuda.current_stream(where)
        with own_stream(where):
            inner = torch.cuda.current_stream(where)
        finish(where)
    assert len({outer, inner, torch.cuda.default_stream(where)}) == 3
    seen = set()
    for _ in range(40):
        with own_stream(where):
            seen.add(torch.cuda.current_stream(where))
    assert seen <= {outer, inner}


def test_few_shapes_reach_the_networks_of_cuda(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where = resolve_device(device)
    if device == "cpu":
        items = torch.ones(5, 2)
        assert padded(items) is items
        monkeypatch.setattr("pipeline.runtime.device._FEW_SHAPES", {"cpu", "cuda"})
    lengths = set()
    for n in range(300):
        items = torch.ones((n, 2), device=where)
        more = padded(items)
        assert torch.equal(more[:n], items)
        assert not more[n:].any()
        assert len(more) <= n + max(0, n // 4)
        lengths.add(len(more))
    assert len(lengths) < 35
    assert {len(padded(torch.ones((n, 2), device=where), (8, 64))) for n in range(1, 65)} == {8, 64}


def batch_of_at_most(limit: int, calls: list[int], error: Exception | None = None) -> Squares:
    def squares(items: Sequence[int]) -> list[int]:
        calls.append(len(items))
        if len(items) > limit:
            raise error or torch.OutOfMemoryError("Tried to allocate 20.00 GiB\nmore")
        return [i * i for i in items]

    return squares


def fitting() -> FittingBatches[int]:
    return FittingBatches(lambda _: 1)


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 100])
def test_halves_give_what_the_whole_batch_would(limit: int) -> None:
    calls: list[int] = []
    assert fitting()(batch_of_at_most(limit, calls), range(11)) == [i * i for i in range(11)]
    assert calls[0] == 11
    assert sum(n for n in calls if n <= limit) == 11


def test_what_was_too_much_is_not_tried_again() -> None:
    calls: list[int] = []
    batches = FittingBatches[int](lambda size: size)
    work = batch_of_at_most(5, calls)
    batches(work, [2] * 11)
    calls.clear()
    for _ in range(3):
        assert batches(work, [2] * 11) == [4] * 11
    assert max(calls) == 5
    batches(work, [1] * 5)
    assert calls[-1] == 5  # as little as this was never too much


def test_what_was_too_much_is_tried_again_after_a_while() -> None:
    calls: list[int] = []
    batches = fitting()
    batches(batch_of_at_most(4, calls), range(8))
    calls.clear()
    for _ in range(100):  # the memory is free again
        assert batches(batch_of_at_most(100, calls), range(8)) == [i * i for i in range(8)]
    assert calls[-1] == 8
    assert calls.count(4) < 140


def test_nothing_is_one_call() -> None:
    calls: list[int] = []
    assert fitting()(batch_of_at_most(1, calls), []) == []
    assert calls == [0]


def test_one_item_that_is_too_much_is_an_error() -> None:
    with pytest.raises(DeviceOutOfMemory, match=r"Tried to allocate 20\.00 GiB") as caught:
        fitting()(batch_of_at_most(0, []), [1, 2, 3])
    assert "more" not in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "CUDA error: out of memory\nCUDA kernel errors might be reported asynchronously",
        "Unable to find a valid cuDNN algorithm to run convolution",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
    ],
)
def test_libraries_without_memory_are_tried_with_less(message: str) -> None:
    assert fitting()(batch_of_at_most(2, [], RuntimeError(message)), range(5)) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize(
    "message", ["CUDA error: an illegal memory access was encountered", "CUDA error: device-side assert"]
)
def test_errors_after_which_nothing_works_end_it(message: str) -> None:
    calls: list[int] = []
    with pytest.raises(DeviceFailed, match=f"{message}.*the same command goes on"):
        fitting()(batch_of_at_most(2, calls, RuntimeError(message)), range(5))
    assert calls == [5]


@pytest.mark.parametrize(
    ("error", "becomes"),
    [
        (torch.OutOfMemoryError("Tried to allocate 2.00 GiB"), DeviceOutOfMemory),
        (RuntimeError("CUDA error: out of memory"), DeviceOutOfMemory),
        (RuntimeError("CUDA error: no kernel image is available for execution on the device"), DeviceMissing),
        (RuntimeError("CUDA error: unspecified launch failure"), DeviceFailed),
        (RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"), DeviceFailed),
        (RuntimeError("The size of tensor a must match"), RuntimeError),
    ],
)
def test_errors_of_the_device_are_told_apart(error: RuntimeError, becomes: type[Exception]) -> None:
    with pytest.raises(becomes) as caught, device_errors():
        raise error
    assert type(caught.value) is becomes


def test_other_errors_pass_unchanged() -> None:
    def broken(items: Sequence[int]) -> list[int]:
        raise ValueError(len(items))

    with pytest.raises(ValueError, match=r"^3$"):
        fitting()(broken, [1, 2, 3])
