"""What every step is told, and the settings and photos that follow from it."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pipeline.config import Settings

ROOT: Final = Path(__file__).resolve().parents[2]
CUDA_CONFIG: Final = ROOT / "configs" / "cuda.yaml"
WEIGHTS: Final = "casia-webface"
SECONDS: Final = 555  # for all steps on a GPU
DEVICE: Final = "device"  # the entry of the step env without which no other step can run


@dataclass(frozen=True)
class Options:
    device: str
    faces: Path | None  # lfw-view1/images and groups-with-boxes; None: two portraits of the public domain
    work: Path  # corpora, results and logs
    out: Path  # the report
    seconds: float  # for all steps together
    quick: bool
    only: tuple[str, ...]
    photos: int | None = None  # of lfw-view1, for parity, in the place of the corpora

    @property
    def cuda(self) -> bool:
        return self.device.startswith("cuda")

    @property
    def patience(self) -> float:
        """By how much a step may exceed its limit: with more seconds for all steps, each may take more, as on a CPU."""
        return max(1.0, self.seconds / SECONDS)

    @property
    def report(self) -> Path:
        return self.out / "gpu_check.json"

    def words(self) -> list[str]:
        """The command line of a step's process."""
        faces = [] if self.faces is None else ["--faces", str(self.faces)]
        quick = ["--quick"] if self.quick else []
        photos = [] if self.photos is None else ["--photos", str(self.photos)]
        folders = ["--work", str(self.work), "--out", str(self.out)]
        return ["--device", self.device, "--seconds", str(self.seconds), *folders, *faces, *quick, *photos]

    def settings(self, config: Path | None = None, **flags: Any) -> Settings:
        """facepipe's, on the device: the defaults, `config`, then `flags` (`run__mode` is the key run.mode)."""
        from harness import settings_for

        return settings_for(self.device, WEIGHTS, config, **flags)


def parser(steps: tuple[str, ...], doc: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser("gpu_check", description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu for a dry run")
    made.add_argument("--faces", type=Path, help="photos as scripts/bench takes them; two portraits if it is not given")
    made.add_argument("--only", nargs="+", choices=steps, default=steps, metavar="STEP", help=", ".join(steps))
    made.add_argument("--quick", action="store_true", help="few photos, one turn: does it all run?")
    made.add_argument("--photos", type=int, help="parity compares so many of lfw-view1/images, as they are")
    made.add_argument("--seconds", type=float, default=SECONDS, help="when to stop; what is left then is skipped")
    made.add_argument("--work", type=Path, help="keep corpora and logs here; a temporary folder if it is not given")
    made.add_argument("--out", type=Path, default=os.environ.get("OUT", "gpu-check"), help="where the report goes")
    made.add_argument("--step", choices=steps, help=argparse.SUPPRESS)  # a process of one step
    return made


def options_of(arguments: argparse.Namespace, work: Path) -> Options:
    faces = None if arguments.faces is None else arguments.faces.resolve()
    out = Path(arguments.out).resolve()
    only = tuple(arguments.only)
    return Options(arguments.device, faces, work, out, arguments.seconds, arguments.quick, only, arguments.photos)
