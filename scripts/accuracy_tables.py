"""The tables of docs/accuracy.md, each from its file under scripts/bench/results/."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "bench/results"
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]  # the head, the rows

USED = "box, margin 32"  # the way of the default settings


def crops() -> Table:
    ways = _figures("crops")["ways"]
    columns = ("accuracy", *(f"{kind}fnmr_at_{fmr}" for kind in ("", "centred_") for fmr in ("0.001", "0.0001")))
    ordered = sorted(ways, key=_order)
    rows = [(f"**{way}**" if way == USED else way, *(_percent(ways[way][c]) for c in columns)) for way in ordered]
    rates = ("FNMR at FMR 1e-3", "FNMR at FMR 1e-4")
    return ("how the face is cut, or chosen", "accuracy", *rates, *(f"centred: {rate}" for rate in rates)), rows


def _order(way: str) -> tuple[bool, str]:
    return not way.startswith("box, margin"), way


def weights() -> Table:
    measured = _figures("accuracy")
    before = measured["reference-14"]
    chains = {
        "facenet-pytorch's detector and crops, margin 14, `casia-webface`": before,
        "the same with margin 32": measured["reference-32"],
        **{f"facepipe, `{name}`": _figures(f"accuracy-{name}") for name in ("casia-webface", "sface")},
    }
    return ("", *chains), [
        ("accuracy on the 1,000 listed pairs [95 % interval]", *(_accuracy(f) for f in chains.values())),
        *(
            (f"FNMR at FMR {_rate(rate['fmr'], 0)}", *(_percent(f["test"][i]["fnmr"], 2) for f in chains.values()))
            for i, rate in enumerate(before["test"])
        ),
        ("at T = 0.54, calibrated: FMR", *(_rate(f["calibration"]["test_fmr"], 1) for f in chains.values())),
        ("at T = 0.54, calibrated: FNMR", *(_percent(f["calibration"]["test_fnmr"]) for f in chains.values())),
    ]


def clustering() -> Table:
    cells = _figures("clustering")
    rows = []
    for name, ways in cells.items():
        for way, one in ways.items():
            every = one["all"]
            rows.append(
                (f"`{name}`, {way}", f"{every['identities']:,}", *_agreement(every), *_agreement(one["test_people"]))
            )
    head = ("", "identities", "pairwise P / R / F", "BCubed P / R / F", "pairwise, test people", "BCubed, test people")
    return head, rows


def _agreement(figures: Any) -> tuple[str, str]:
    pairwise, bcubed = (
        " / ".join(f"{figures[measure][key]:.3f}" for key in ("precision", "recall", "f"))
        for measure in ("pairwise", "bcubed")
    )
    return pairwise, bcubed


def detection() -> Table:
    found = _figures("detection")
    rows = [
        (
            what,
            f"{one['faces']}",
            f"{_percent(one['recall'])} ({one['found']})",
            f"{_percent(one['precision'])} ({one['false_alarms']} false alarms)",
            f"{one['average_precision']:.3f}",
        )
        for what, one in (("40 px and more", found["from_40_px"]), ("all that are annotated", found["from_0_px"]))
    ]
    return ("boxes", "faces", "recall", "precision", "AP"), rows


def discards() -> Table:
    figures = _figures("quality")["test"]["discard"]
    names = {"gate": "the gate's worst", "center_pose": "pose", "sharpness": "sharpness", "contrast": "contrast"}
    rows = [(name, *(_percent(f) for f in figures["curves"][key]["fnmr"])) for key, name in names.items()]
    low, high = figures["random_95"]
    chance = (f"{a * 100:.1f} to {b * 100:.1f} %" for a, b in zip(low, high, strict=True))
    rows.append(("at random, 95 %", *chance))
    return ("thrown away by", *(f"{share * 100:.0f} %" for share in figures["discards"])), rows


def damage() -> Table:
    figures = _figures("quality")["damage"]
    texts = {
        "blur": ("blur, sigma as a share of the face's width", 1),
        "contrast": ("contrast multiplied by", -1),
        "roll": ("turned in the picture by degrees", 1),
        "size": ("shrunk to a face of so many pixels", -1),
    }
    rows = [("untouched", "", *_shares(figures["untouched"]))]
    for kind, (text, order) in texts.items():
        for step in sorted(figures[kind], key=lambda each: order * float(each)):
            one = figures[kind][step]
            rows.append((text, step, *_shares(one)))
    return ("damage", "", "face found", "of these rejected", "FNMR at the threshold of FMR 1e-3"), rows


def _shares(step: Any) -> tuple[str, ...]:
    return tuple(_percent(step[key]) for key in ("with_face", "rejected", "fnmr"))


def _accuracy(figures: Any) -> str:
    low, high = figures["accuracy_interval_95"]
    return f"{_percent(figures['accuracy'])} [{low * 100:.1f}, {high * 100:.1f}]"


def _figures(benchmark: str) -> Any:
    return json.loads((RESULTS / f"{benchmark}-cpu.json").read_text("utf-8"))["figures"]


def _rate(share: float, digits: int) -> str:
    return f"{share:.{digits}e}".replace("e-0", "e-")


def _percent(share: float, digits: int = 1) -> str:
    return f"{share * 100:.{digits}f} %"


TABLES: dict[str, Callable[[], Table]] = {
    "weights": weights,
    "crops": crops,
    "clustering": clustering,
    "detection": detection,
    "discards": discards,
    "damage": damage,
}
