"""The tables of the documents that are made from the results of the benchmarks. `scripts/update_docs.py` writes them.

Each returns its head and its rows; FileNotFoundError: the benchmark was not run on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pipeline.config import EXACT, FAST, LOCAL, RAY
from pipeline.models.registry import REGISTRY

RESULTS: Final = Path(__file__).resolve().parent / "results"
CORPORA: Final = {"a": "250 x 250", "b": "1 MP", "c": "12 MP", "d": "a mix with group photos"}
STAGES: Final = ("decode", "detect", "embed", "rest")
Table = tuple[tuple[str, ...], list[tuple[str, ...]]]


def weights() -> Table:
    chains = {f"facepipe, `{name}`": figures for name, figures in _by_weights("accuracy").items()}
    fmrs = [rate["fmr"] for rate in next(iter(chains.values()))["test"]]
    return ("", *chains), [
        ("accuracy on the 1,000 listed pairs [95 % interval]", *(_accuracy(f) for f in chains.values())),
        *(
            (f"FNMR at FMR {_rate(fmr, 0)}", *(_percent(f["test"][i]["fnmr"], 2) for f in chains.values()))
            for i, fmr in enumerate(fmrs)
        ),
        ("at T = 0.54, calibrated: FMR", *(_rate(f["calibration"]["test_fmr"], 1) for f in chains.values())),
        ("at T = 0.54, calibrated: FNMR", *(_percent(f["calibration"]["test_fnmr"]) for f in chains.values())),
    ]


def rates() -> Table:
    """T of each calibrated set of weights at each rate, and what it finds of the test people."""
    chains = {name: figures["calibration"]["by_rate"] for name, figures in _by_weights("accuracy").items()}
    head = [text for name in chains for text in (f"`{name}`: T [95 % interval]", "found", "FMR")]
    rows = [[_rate(rate, 0)] for rate, _ in REGISTRY[next(iter(chains))].calibration.thresholds]
    for name, measured in chains.items():
        facts = REGISTRY[name].calibration
        for row, one, (_, threshold), (low, high) in zip(
            rows, measured, facts.thresholds, facts.intervals, strict=True
        ):
            row.append(f"{threshold:.3f} [{low:.3f}, {high:.3f}]")
            row += [_percent(1 - one["test_fnmr"]), _rate(one["test_fmr"], 1)]
    return ("FMR fitted", *head), [tuple(row) for row in rows]


def clustering() -> Table:
    rows = []
    for name, calibrations in _figures("clustering").items():
        for calibration, one in calibrations.items():
            both = (*_agreement(one["all"]), *_agreement(one["test_people"]))
            rows.append((f"`{name}`, {calibration}", f"{one['all']['identities']:,}", *both))
    head = ("", "identities", "pairwise P / R / F", "BCubed P / R / F", "pairwise, test people", "BCubed, test people")
    return head, rows


def linked() -> Table:
    rows = []
    for name, figures in _by_weights("link").items():
        for way in ("at the cut", "at precision 0.99"):
            one = figures[way]
            shares = (
                f"{part['precision']:.3f} / {part['recall']:.3f} / {part['f']:.3f} [{low:.3f}, {high:.3f}]"
                for part in (one["all"], one["test people"])
                for low, high in [part["interval_95"]["f"]]
            )
            rows.append((f"`{name}`, {way}", f"{one['cut']:.3f}", f"{one['all']['identities']:,}", *shares))
    return ("", "cut T", "identities", "pairwise P / R / F [95 % interval of F]", "test people"), rows


def _agreement(figures: Any) -> tuple[str, str]:
    pairwise, bcubed = (
        " / ".join(f"{figures[measure][key]:.3f}" for key in ("precision", "recall", "f"))
        for measure in ("pairwise", "bcubed")
    )
    return pairwise, bcubed


def detection() -> Table:
    figures = _figures("detection")
    kinds = {"from_40_px": "40 px and more", "from_0_px": "all that are annotated"}
    rows = [
        (
            text,
            f"{one['faces']}",
            f"{_percent(one['recall'])} ({one['found']})",
            f"{_percent(one['precision'])} ({one['false_alarms']} false alarms)",
            f"{one['average_precision']:.3f}",
        )
        for text, one in ((text, figures[key]) for key, text in kinds.items())
    ]
    return ("boxes", "faces", "recall", "precision", "AP"), rows


def _accuracy(figures: Any) -> str:
    low, high = figures["accuracy_interval_95"]
    return f"{_percent(figures['accuracy'])} [{low * 100:.1f}, {high * 100:.1f}]"


def extraction() -> Table:
    """Rates of both sides and both modes."""
    head = ("photos", "reference, images/s", "`exact`, images/s", "ratio", "`fast`, images/s", "ratio")
    rows = []
    for name, one in _extracted():
        exact, fast = _modes(one)
        rows.append(
            (
                name,
                f"{one[one['reference']]['images_per_s']:.2f}",
                f"{one[exact]['images_per_s']:.2f}",
                f"**{one['ratio']:.2f}**",
                f"{one[fast]['images_per_s']:.2f}",
                f"{one[f'ratio_{fast}']:.2f}",
            )
        )
    return head, rows


def parity() -> Table:
    """Whether both sides found the same faces; in brackets the mode `fast`."""
    counts = ("missed", "extra", "cosine_same_box_min")
    head = ("photos", "images", "faces of the reference", "missed", "extra", "least cosine, same boxes")
    rows = []
    for name, one in _extracted():
        exact, fast = one["parity"], one["parity_fast"]
        compared = (f"{_short(exact.get(key))} ({_short(fast.get(key))})" for key in counts)
        rows.append((name, f"{exact['images']}", f"{exact['reference_faces']}", *compared))
    return head, rows


def stages() -> Table:
    """Where facepipe's time goes, and how near each stage is to what the machine could do."""
    head = ("photos", *STAGES, "share of the bound, all together", "CPU busy", "peak RSS, MiB")
    rows = []
    for name, one in _extracted():
        costs, exact = one["stages"], one[_modes(one)[0]]
        total = sum(costs[f"{stage}_s"] for stage in STAGES)
        used = (f"{one['share_of_bound']:.2f}", f"{exact['cpu_busy_share']:.2f}", f"{exact['peak_rss_mib']:.0f}")
        rows.append((name, *(_stage(costs, stage, total) for stage in STAGES), *used))
    return head, rows


def layouts() -> Table:
    """One process with a thread per core against one process per core."""
    rows = []
    for name, one in _extracted():
        sides: dict[str, list[str]] = {"reference": [], "facepipe": []}
        for variant, figures in one.items():
            side, _, layout = variant.partition("_")
            if side in sides and layout:
                sides[side].append(f"{figures['images_per_s']:.2f} ({layout})")
        rows.append((name, *(" / ".join(rates) for rates in sides.values())))
    return ("photos", "reference, images/s (processes x threads)", "facepipe, images/s"), rows


def fast() -> Table:
    """What the mode `fast` changes of the decisions."""
    documents = _by_weights("fast")
    one_only = len(documents) == 1
    head = [f"`{mode}`" if one_only else f"`{name}`, `{mode}`" for name in documents for mode in (EXACT, FAST)]

    def row(text: str, exact: Callable[[Any], str], other: Callable[[Any], str]) -> tuple[str, ...]:
        return (text, *(make(figures) for figures in documents.values() for make in (exact, other)))

    def count(key: str) -> tuple[Callable[[Any], str], Callable[[Any], str]]:
        return lambda figures: f"{figures[key][EXACT]:,}", lambda figures: f"{figures[key][FAST]:,}"

    def cosines(figures: Any) -> str:
        return ", ".join(f"{figures[f'cosine_{key}']:.5f}" for key in ("min", "1_percent", "median"))

    rates = [lambda figures, mode=mode: _percent(figures["accuracy"][mode]["accuracy"]) for mode in (EXACT, FAST)]
    return ("", *head), [
        row("faces", *count("faces")),
        row("identities", *count("identities")),
        row("accuracy on the 1,000 listed pairs", *rates),
        row("cosine to `exact`: least, 1 %, median", lambda _: "", cosines),
        row("partition against `exact`, pairwise F", lambda _: "", lambda figures: f"{figures['pairwise']['f']:.4f}"),
    ]


def opening() -> Table:
    """Processor seconds of whole commands by the number of people."""
    commands = {command: sizes for command, sizes in _figures("open").items() if isinstance(sizes, dict)}
    people = sorted({int(size) for sizes in commands.values() for size in sizes})
    rows = []
    for command, sizes in commands.items():
        measured = sizes[str(people[-1])]
        cells = [f"{sizes[str(size)]['processor_s']:.1f}" for size in people]
        rows.append((f"`{command}`", *cells, f"{measured['wall_s']:.1f} / {measured['cold_wall_s']:.1f}"))
    return ("", *(f"{size:,} people" for size in people), "seconds passed, warm / cold"), rows


def measured() -> Table:
    """One line for each benchmark: the figures of docs/speed.md."""
    return ("what", "figure"), [(text, _sentence(make)) for text, make in _MEASURED.items()]


def _sentence(make: Callable[[], str]) -> str:
    try:
        return make()
    except FileNotFoundError:
        return "not measured yet"


def _detected() -> str:
    one = _figures("detect_parity")["all"]
    return (
        f"{one['reference_faces'] - one['missed']} of its {one['reference_faces']} faces of probability 0.95 at IoU "
        f"0.9, {one['extra']} besides; landmarks within {_rate(one['landmark_error_median'], 0)} of the eyes' distance "
        "(median)"
    )


def _run() -> str:
    one = _figures("run")
    return (
        f"{one['images']:,} photos, {one['images_per_second']:.1f} images/s over the image work, peak RSS "
        f"{one['peak_rss_mib'] / 1024:.1f} GiB; the same command again: {one['again_decoded']} decoded, "
        f"{one['again_model_calls']} model calls"
    )


def _ratios() -> str:
    return "; ".join(f"{one['ratio']:.1f} times its images/s ({name})" for name, one in _extracted())


def _memory() -> str:
    one = _figures("memory")
    return (
        f"{one['rss_mib'][-1] / 1024:.1f} GiB after the last of {len(one['rss_mib'])} runs, "
        f"{_percent(one['rss_growth'])} more than after the second; peak {max(one['peak_rss_mib']) / 1024:.1f} GiB"
    )


def _grouping(name: str) -> str:
    one = _figures(name)
    others = (f"{one[f'ratio_to_{library}']:.2f} of {text}" for library, text in _LIBRARIES.items())
    return (
        f"{one['faces_per_second_facepipe']:,.0f} faces/s into {one['identities']:,} identities: {', '.join(others)}; "
        f"peak RSS {one['peak_rss_bytes'] / 2**30:.1f} GiB"
    )


def _search() -> str:
    one = _figures("search")
    return (
        f"{one['ms_facepipe_1']:.0f} ms: {one['ratio_1_to_numpy']:.2f} of NumPy's matrix-vector product and "
        f"argpartition; 64 faces at once {one['ratio_64_to_products']:.2f} of the bare matrix products; "
        f"{one['bytes_float32'] / 1e9:.2f} GB of vectors and {one['bytes_int8_copy'] / 1e9:.2f} GB of int8 copy"
    )


def _posts() -> str:
    one, loads = _figures("serve"), {"steady": "at a constant rate", "bursts": "as a Poisson process"}
    loads["hand_over"] = "while a shard of 5,000 faces is handed over"

    def percentile(load: str, p: int) -> str:
        return f"p{p} {one[f'{load}_all_p{p}_ms']:.0f} ms"

    return "; ".join(f"{text} {percentile(load, 50)}, {percentile(load, 99)}" for load, text in loads.items())


_LIBRARIES: Final = {"products": "the bare products' time", "torch": "torch's", "faiss": "faiss's", "numpy": "NumPy's"}
_MEASURED: Final[dict[str, Callable[[], str]]] = {
    "detection against facenet-pytorch's MTCNN": _detected,
    "`facepipe run` over LFW's photos of 250 x 250": _run,
    "extraction against facenet-pytorch's loop, the same faces": _ratios,
    "resident memory of repeated runs over mixed photos, the models loaded once": _memory,
    "grouping 100,000 faces, streamed in shards of 512": lambda: _grouping("group-100k"),
    "grouping 1,000,000 faces, the same way": lambda: _grouping("group-1000k"),
    "search of one face in 1,000,000 references of 512 dimensions, top 10": _search,
    "`POST /people` without model time, 100,000 identities, 50 requests/s": _posts,
}


def _extracted() -> Iterator[tuple[str, Any]]:
    """(photos, figures) of each corpus and set of weights that was measured."""
    documents = _by_weights("extract")
    for weights, figures in documents.items():
        for key, text in CORPORA.items():
            if key in figures:
                yield (text if len(documents) == 1 else f"{text}, `{weights}`"), figures[key]


def _by_weights(benchmark: str) -> dict[str, Any]:
    names = {name: f"{benchmark}-{name}" for name in ("casia-webface", "sface")}
    return {name: _figures(file) for name, file in names.items() if (RESULTS / f"{file}-cpu.json").exists()}


def _modes(one: Mapping[str, Any]) -> tuple[str, str]:
    """The names of what `extract` does in both modes."""
    fast_variant = next(name for name in one if name.startswith("fast_"))
    return fast_variant.replace("fast_", "facepipe_"), fast_variant


def _stage(costs: Mapping[str, Any], stage: str, total: float) -> str:
    """The stage's share of the time, and the share of its bound that it reaches."""
    reached = costs.get(f"{stage}_share_of_bound")
    bound = "" if reached is None else f" (bound: {_percent(reached, 0)})"
    return _percent(costs[f"{stage}_s"] / total, 0) + bound


def _figures(benchmark: str) -> Any:
    """The figures of a benchmark's result on a CPU. Raises FileNotFoundError where it was not run."""
    return json.loads((RESULTS / f"{benchmark}-cpu.json").read_text("utf-8"))["figures"]


def _short(number: float | None) -> str:
    return "-" if number is None else f"{number:.5f}" if isinstance(number, float) else str(number)


def _rate(share: float, digits: int) -> str:
    return f"{share:.{digits}e}".replace("e-0", "e-")


def _percent(share: float, digits: int = 1) -> str:
    return f"{share * 100:.{digits}f} %"


def cluster() -> Table:
    """What the engine ray costs beside local."""
    figures = _figures("cluster")
    more = ("ray beside local", f"{figures['more_to_start_s']:+.1f} s", f"{figures['more_per_photo'] * 100:+.1f} %")
    rows = [(f"`{e}`", f"{figures[e]['start_s']:.1f} s", f"{figures[e]['ms_per_photo']:.1f} ms") for e in (LOCAL, RAY)]
    return ("engine", "from start to exit, but for the photos", "each photo"), [*rows, more]


TABLES: Final[dict[str, Callable[[], Table]]] = {
    "accuracy": weights,
    "weights": weights,
    "rates": rates,
    "clustering": clustering,
    "linked": linked,
    "detection": detection,
    "extraction": extraction,
    "parity": parity,
    "stages": stages,
    "layouts": layouts,
    "fast": fast,
    "measured": measured,
    "opening": opening,
    "cluster": cluster,
}
