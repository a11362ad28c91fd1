"""Checks facepipe on a GPU: right, fast, and within its memory. Prints a verdict on each step at the end.

    python scripts/gpu_check --device cuda [--faces FOLDER] [--out FOLDER] [--only STEP ...]

FOLDER of --faces holds lfw-view1/images and groups-with-boxes, as for scripts/bench; without it two portraits of the
public domain are used, which show whether all is right but say less of the speed. It ends by itself after --seconds;
steps that no time was left for are skipped, and --only runs them in a second command. With more --seconds than the
default each step may take longer as well: on a CPU, 300 photos of --only parity take half an hour in Triton's
interpreter. The report, gpu_check.json in the folder of --out, is written after each step. Exit code 1: a step failed.
`--device cpu --quick` is a dry run.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, TextIO

from gpu_check.findings import Findings, Skipped
from gpu_check.options import DEVICE, ROOT, Options, options_of, parser

OK, FAILED, SKIPPED = "ok", "FAILED", "skipped"
_LAST_WORDS_S: Final = 3
_HUNG_S: Final = 10  # before its limit a step says where it is
_LOG_TAIL: Final = 2500  # characters of a failed step's log in the report
_LOG_KEPT: Final = 60_000  # of any step's log in steps.log


@dataclass(frozen=True)
class Step:
    name: str  # of its function
    module: str
    limit_s: float
    least_s: float  # not begun with less time left
    beside: str = ""  # the step just before, if nothing of either is timed
    not_on_cpu: str = ""  # why


# The most important first. On CUDA the last ones may find no time.
STEPS: Final = (
    Step("env", "machine", 60, 10),
    Step("photos", "photos", 60, 15),
    Step("smoke", "smoke", 90, 20),
    Step("tests", "suite", 150, 30),
    Step("parity", "parity", 150, 30, beside="tests"),
    Step("model_change", "model_change", 150, 40, beside="tests"),
    Step("bench_extract", "benches", 240, 75),
    Step("run", "benches", 140, 40),
    Step("bench", "rates", 170, 40),
    Step("jpeg", "jpeg", 60, 15, not_on_cpu="it compares CUDA's pixels with a CPU's"),
    Step("memory", "benches", 120, 60, not_on_cpu="scripts/bench/bench_memory.py takes minutes there"),
)


class Running:
    """A step's process."""

    def __init__(self, step: Step, options: Options) -> None:
        self.step = step
        self._limit_s = step.limit_s * options.patience
        self._result, self.log = (options.work / f"{step.name}.{suffix}" for suffix in ("json", "log"))
        self._result.unlink(missing_ok=True)
        self._begun = time.monotonic()
        self._out: TextIO = self.log.open("w", encoding="utf-8")
        paths = [ROOT, ROOT / "scripts", ROOT / "scripts" / "bench", os.environ.get("PYTHONPATH", "")]
        environment = {"OMP_WAIT_POLICY": "passive", "CUDA_MODULE_LOADING": "LAZY", **os.environ}
        environment |= {"PYTHONPATH": os.pathsep.join(str(path) for path in paths if path), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "gpu_check", "--step", step.name, *options.words()]
        self._process = subprocess.Popen(
            command, stdout=self._out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT, start_new_session=True
        )

    def end(self, most_s: float) -> dict[str, Any]:
        """What it found. Killed with all that it started where it takes longer than its limit, or than `most_s`."""
        limit = max(1.0, min(self._limit_s - (time.monotonic() - self._begun), most_s))
        code: int | None = None
        try:
            code = self._process.wait(limit)
        except subprocess.TimeoutExpired:
            pass
        finally:
            if code is None:
                self._kill()
            self._out.close()
        found: dict[str, Any] = {"figures": {}, "problems": [], "skipped": None, "headline": ""}
        if self._result.exists():
            found |= json.loads(self._result.read_text("utf-8"))
        seconds = round(time.monotonic() - self._begun, 1)
        if code is None:
            found["problems"].append(f"it was ended after {seconds} s")
        elif code:
            found["problems"].append(f"its process ended with {code}: {self._last_line()}")
        if found["problems"]:
            found["log_tail"] = self.log.read_text("utf-8", errors="replace")[-_LOG_TAIL:]
        return {**found, "seconds": seconds}

    def _kill(self) -> None:
        """Ends the process, which first writes where its threads are, and all that it started."""
        self._process.send_signal(signal.SIGABRT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_WORDS_S)
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _last_line(self) -> str:
        lines = self.log.read_text("utf-8", errors="replace").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")[:300]


def skipped(why: str) -> dict[str, Any]:
    return {"figures": {}, "problems": [], "skipped": why, "headline": "", "seconds": 0.0}


def state_of(found: dict[str, Any]) -> str:
    return FAILED if found["problems"] else SKIPPED if found["skipped"] else OK


def verdict(name: str, found: dict[str, Any]) -> str:
    """One line on a step."""
    text = "; ".join(found["problems"]) or found["skipped"] or found["headline"]
    return f"{state_of(found):8}{name:14}{found['seconds']:6.1f} s  {text}".rstrip()


def run_steps(options: Options) -> dict[str, dict[str, Any]]:
    """All steps asked for, with what each found; the report is written after each."""
    end = time.monotonic() + options.seconds
    found: dict[str, dict[str, Any]] = {}
    running: list[Running] = []

    def finish() -> None:
        for one in running:
            found[one.step.name] = one.end(end - time.monotonic())
            write_report(options, found)
            print(verdict(one.step.name, found[one.step.name]), flush=True)
            text = one.log.read_text("utf-8", errors="replace")[-_LOG_KEPT:]
            with (options.out / "steps.log").open("a", encoding="utf-8") as log:
                log.write(f"===== {one.step.name}\n{text}\n")
        running.clear()

    for step in STEPS:
        if step.name not in options.only:
            continue
        if step.beside not in [one.step.name for one in running]:
            finish()
        left = end - time.monotonic()
        if "env" in found and DEVICE not in found["env"]["figures"]:
            found[step.name] = skipped("there is no device to run it on")
        elif step.not_on_cpu and not options.cuda:
            found[step.name] = skipped(step.not_on_cpu)
        elif left > step.least_s:
            running.append(Running(step, options))
        else:
            found[step.name] = skipped(f"{max(0, left):.0f} s were left: --only {step.name} runs it")
    finish()
    write_report(options, found)
    return {step.name: found[step.name] for step in STEPS if step.name in found}


def write_report(options: Options, found: dict[str, dict[str, Any]]) -> None:
    about = {"device": options.device, "quick": options.quick, "own_photos": options.faces is not None}
    part = options.report.with_suffix(".part")
    part.write_text(json.dumps({**about, "steps": found}, indent=1) + "\n", "utf-8")
    part.rename(options.report)


def one_step(name: str, options: Options) -> None:
    """The step `name` in this process. Where it hangs, the log says where, shortly before its time is over."""
    faulthandler.enable()
    step = next(step for step in STEPS if step.name == name)
    faulthandler.dump_traceback_later(max(1.0, step.limit_s * options.patience - _HUNG_S))
    found = Findings(options.work / f"{name}.json")
    try:
        with found.part(name):
            getattr(import_module(f"gpu_check.{step.module}"), name)(options, found)
    except Skipped as exc:
        found.skipped = str(exc)
    finally:
        faulthandler.cancel_dump_traceback_later()
    found.write()


def main() -> int:
    arguments = parser(tuple(step.name for step in STEPS), __doc__).parse_args()
    with ExitStack() as stack:
        work = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-check-")))
        options = options_of(arguments, work.resolve())
        for folder in (options.work, options.out):
            folder.mkdir(parents=True, exist_ok=True)
        if arguments.step:
            one_step(arguments.step, options)
            return 0
        (options.out / "steps.log").unlink(missing_ok=True)
        found = run_steps(options)
    print(f"\nfacepipe on {options.device}; the report: {options.report}")
    for name, one in found.items():
        print(verdict(name, one))
    return int(FAILED in map(state_of, found.values()))
