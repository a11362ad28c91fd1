"""The tables of docs/accuracy.md, each from its file under scripts/results/."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the head, the rows

RESULTS = Path(__file__).resolve().parent / "results"


def crops() -> Table:
    ways = _figures("crops")["ways"]
    rows = [
        (way, _percent(f["accuracy"]), _percent(f["fnmr_at_0.001"]), _percent(f["fnmr_at_0.0001"]))
        for way, f in ways.items()
    ]
    return ("how the face is cut", "accuracy", "FNMR at FMR 1e-3", "FNMR at FMR 1e-4"), rows


def weights() -> Table:
    before = _figures("accuracy")["reference-14"]
    chains = {
        "facenet-pytorch's MTCNN and crops, `casia-webface`": before,
        **{f"facepipe, `{name}`": _figures(f"accuracy-{name}") for name in ("casia-webface", "sface")},
    }
    return ("", *chains), [
        ("accuracy on the 1,000 pairs [95 % interval]", *(_accuracy(f) for f in chains.values())),
        *(
            (f"FNMR at FMR {rate['fmr']:g}", *(_percent(f["test"][i]["fnmr"], 2) for f in chains.values()))
            for i, rate in enumerate(before["test"])
        ),
    ]


def _accuracy(figures: Any) -> str:
    low, high = figures["accuracy_interval_95"]
    return f"{_percent(figures['accuracy'])} [{low * 100:.1f}, {high * 100:.1f}]"


def _figures(benchmark: str) -> Any:
    return json.loads((RESULTS / f"{benchmark}-cpu.json").read_text("utf-8"))["figures"]


def _percent(share: float, digits: int = 1) -> str:
    return f"{share * 100:.{digits}f} %"


TABLES: dict[str, Callable[[], Table]] = {"weights": weights, "crops": crops}
