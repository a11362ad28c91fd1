"""The tables of docs/speed.md, each from its file under scripts/bench/results/."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from accuracy_tables import RESULTS, Table

from pipeline.config import EXACT, FAST

CORPORA: Final = {"a": "250 x 250", "b": "1 MP", "c": "12 MP", "d": "a mix with group photos"}
STAGES: Final = ("decode", "detect", "embed", "rest")


def extraction(device: str) -> Table:
    """Rates of both sides and both modes, and whether they found the same."""
    head = ("photos", "reference, images/s", "`exact`, images/s", "ratio", "`fast`, images/s", "ratio")
    rows = []
    for name, one in _corpora(device).items():
        exact, fast_one = _modes(one)
        rows.append(
            (
                CORPORA[name],
                f"{one[one['reference']]['images_per_s']:.2f}",
                f"{one[exact]['images_per_s']:.2f}",
                f"**{one['ratio']:.2f}**",
                f"{one[fast_one]['images_per_s']:.2f}",
                f"{one[f'ratio_{fast_one}']:.2f}",
            )
        )
    return head, rows


def parity(device: str) -> Table:
    """Whether both sides found the same faces."""
    counts = ("missed", "extra", "cosine_same_box_min")
    head = ("photos", "images", "faces of the reference", "missed", "extra", "least cosine, same boxes")
    rows = [
        (
            CORPORA[name],
            f"{one['parity']['images']}",
            f"{one['parity']['reference_faces']}",
            *(f"{_short(one['parity'][key])} ({_short(one['parity_fast'][key])})" for key in counts),
        )
        for name, one in _corpora(device).items()
    ]
    return head, rows


def _short(number: float) -> str:
    return f"{number:.5f}" if isinstance(number, float) else str(number)


def stages(device: str) -> Table:
    """Where facepipe's time goes, and how near each stage is to what the machine could do."""
    head = (
        "photos",
        *(f"{stage}" for stage in STAGES),
        "share of the bound, all together",
        "CPU busy",
        "peak RSS, MiB",
    )
    rows = []
    for name, one in _corpora(device).items():
        costs, exact = one["stages"], one[_modes(one)[0]]
        total = sum(costs[f"{stage}_s"] for stage in STAGES)
        rows.append(
            (
                CORPORA[name],
                *(_stage(costs, stage, total) for stage in STAGES),
                f"{one['share_of_bound']:.2f}",
                f"{exact['cpu_busy_share']:.2f}",
                f"{exact['peak_rss_mib']:.0f}",
            )
        )
    return head, rows


def layouts(device: str) -> Table:
    """One process with a thread per core against one process per core."""
    rows = []
    for name, one in _corpora(device).items():
        rates = [
            " / ".join(f"{figures['images_per_s']:.2f} ({_layout(key)})" for key, figures in _of(one, side).items())
            for side in ("reference", "facepipe")
        ]
        rows.append((CORPORA[name], *rates))
    return ("photos", "reference, images/s (processes x threads)", "facepipe, images/s"), rows


def fast() -> Table:
    """What the mode `fast` changes of the decisions."""
    document = _figures("fast", "cpu")
    if document is None:
        return ("", "`exact`", "`fast`"), []
    faces, identities, accuracy = (document[key] for key in ("faces", "identities", "accuracy"))
    exact, other = (accuracy[mode]["accuracy"] for mode in (EXACT, FAST))
    return ("", "`exact`", "`fast`"), [
        ("faces", *(f"{faces[mode]:,}" for mode in (EXACT, FAST))),
        ("identities", *(f"{identities[mode]:,}" for mode in (EXACT, FAST))),
        ("accuracy on the 1,000 listed pairs", _percent(exact, 1), _percent(other, 1)),
        ("cosine to `exact`: least, 1 %, median", "", _cosines(document)),
        ("partition against `exact`, pairwise F", "", f"{document['pairwise']['f']:.4f}"),
    ]


def _cosines(document: Any) -> str:
    return ", ".join(f"{document[f'cosine_{key}']:.5f}" for key in ("min", "1_percent", "median"))


def _stage(costs: Mapping[str, Any], stage: str, total: float) -> str:
    """The stage's share of the time, and the share of its bound that it reaches."""
    reached = costs.get(f"{stage}_share_of_bound")
    return _percent(costs[f"{stage}_s"] / total) + ("" if reached is None else f" (bound: {_percent(reached)})")


def _percent(share: float, digits: int = 0) -> str:
    return f"{share * 100:.{digits}f} %"


def _modes(one: Mapping[str, Any]) -> tuple[str, str]:
    """The names of what `extract` does in both modes."""
    fast_one = next(name for name in one if name.startswith("fast_"))
    return f"facepipe_{_layout(fast_one)}", fast_one


def _layout(name: str) -> str:
    return name.split("_")[1]


def _of(one: Mapping[str, Any], side: str) -> dict[str, Any]:
    return {name: figures for name, figures in one.items() if name.startswith(f"{side}_")}


def _corpora(device: str) -> dict[str, Any]:
    """The figures of each corpus that was measured; none where none was."""
    figures = _figures("extract", device) or {}
    return {name: figures[name] for name in CORPORA if name in figures}


def _figures(benchmark: str, device: str) -> Any:
    """None where it was not run on this device."""
    file = RESULTS / f"{benchmark}-{device}.json"
    return json.loads(file.read_text("utf-8"))["figures"] if file.exists() else None


TABLES: dict[str, Callable[[], Table]] = {
    "extraction": partial(extraction, "cpu"),
    "parity": partial(parity, "cpu"),
    "stages": partial(stages, "cpu"),
    "layouts": partial(layouts, "cpu"),
    "fast": fast,
}
