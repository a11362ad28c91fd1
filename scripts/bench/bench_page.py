"""How fast is the page at /ui, in Chromium, over a store of many people?

    python scripts/bench/bench_page.py --people 10000 --pairs 100 --faces 20000

The server is that of `bench_serve`: `facepipe serve` in a process of its own, without models. One of the people has
`--faces` faces, whose pictures are cut from photos of 64 px; `--pairs` pairs of people are so much alike that the
review shows them; the others have two photos, the last one has one. Stored pictures are parts of a portrait, 200 x 200.

The grid and the faces of the one are opened, each time by a browser with an empty cache, and scrolled by the wheel to
the last card. Then all pairs are answered by the keyboard, two of five as the same, two as not the same, one skipped,
each once the server has answered the one before; and `facepipe regroup` decides everybody anew, at the threshold by
which each pair would be one.

Asserts that the last card of each grid has its picture; that those who were called the same are one before and after
the regroup, those who were not are two and are not asked about again, and the skipped ones become one.

In another store, a photo of `--crowd` faces, every fifth of whom is nobody's, is opened in the dialog, and arrow keys
go to the last of these. Asserts that all faces are listed. `--only-crowd` measures this alone, and writes no result.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pyarrow as pa
from bench_serve import Server, ask, hand_over, serving, spread
from chromium import launched, sign_in
from coded_faces import CodedExtractor, Shown
from coded_store import PASSWORD, USER, copied, extracted_photos, extracted_run, make_store
from harness import argument_parser, settings_of, write_result
from page_measures import Traffic, first_paint, frame_figures, go_through, open_photo, press, scroll_through
from PIL import Image

from pipeline.evaluation.bench.harness import Timing
from pipeline.extraction.stored_picture import encode_reference_image
from pipeline.jobs.store import open_store
from pipeline.tools.sample_photos import portrait

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

SIZE = 512
NARROW, WIDE = 0.03, 0.3  # T: between a photo and the first of its person, and two others; and far beyond both
ANSWERS = "snsnk"  # again and again
_SHARD_ROWS = 5_000
_PICTURE_PX = 200
_CROWD_COLUMNS, _CELL_PX = 25, 64  # of the photo of a crowd
_NOBODYS = 5  # one in so many
_CROP_BYTES = 8_000  # of what the server would make of a photo that is posted; none is
_VIEWPORT = {"width": 1280, "height": 800}
_PAIR = """() => {
    const links = [...document.querySelectorAll(".pair section > p a")];
    return links.map((link) => link.getAttribute("href").split("/").at(-1));
}"""
_ALL_PAIRS = """async () => {
    const pairs = [];
    let after = "";
    do {
        const answer = await (await fetch(`/ui/api/review?count=100${after}`)).json();
        pairs.push(...answer.pairs.map(({ one, other }) => [one.id, other.id]));
        after = answer.next ? `&after=${answer.next}` : null;
    } while (after);
    return pairs;
}"""


class Pictures(CodedExtractor):
    """Each face's stored picture is another part of a portrait."""

    def __init__(self) -> None:
        super().__init__(SIZE)
        with Image.open(BytesIO(portrait())) as image:
            self._portrait = np.asarray(image.convert("RGB"))

    def crop(self, face: Shown) -> bytes:
        height, width = (side - _PICTURE_PX for side in self._portrait.shape[:2])
        y, x = face.person // width % height, face.person % width
        return encode_reference_image(self._portrait[y : y + _PICTURE_PX, x : x + _PICTURE_PX])


def shown_faces(people: int, pairs: int, faces: int) -> list[Shown]:
    """One face for each photo."""
    assert people > 2 * pairs + 1, "there are more in pairs than people"
    many = [Shown(0, number, 0.9 if number == 0 else 0.8) for number in range(faces)]
    alike = [Shown(1 + pair, side, 0.9 - k / 100) for pair in range(pairs) for side in (1, 2) for k in range(4)]
    others = [Shown(1 + pairs + other, 0, 0.9 - k / 100) for other in range(people - 1 - 2 * pairs) for k in (0, 1)]
    return [*many, *alike, *others[:-1]]


def prepared(store: Path, photos: Path, args: argparse.Namespace) -> None:
    with make_store(store, SIZE, ((1e-5, NARROW), (1e-3, WIDE))) as client:
        faces = shown_faces(args.people, args.pairs, args.faces)
        extracted_run(client, "photos", faces, Pictures(), _SHARD_ROWS, folder=photos, threshold=NARROW)
    with serving(store, _CROP_BYTES, "--threshold", str(NARROW)):
        hand_over(store, "photos")


class Cost:
    """Seconds of a server's processor time."""

    def __init__(self, server: Server) -> None:
        self._process = psutil.Process(server.process.pid)
        self._before = self._now()

    def _now(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)

    def __call__(self) -> float:
        """Since the last time that it was asked for."""
        before, self._before = self._before, self._now()
        return self._before - before


class Visit:
    """A signed-in user, whose browser can be given an empty cache."""

    def __init__(self, browser: Browser, server: Server) -> None:
        self.url, self._browser = f"{server.url}/ui", browser
        first = browser.new_context()
        page = first.new_page()
        page.goto(self.url)
        sign_in(page, USER, PASSWORD)
        self._state = first.storage_state()
        first.close()

    def fresh(self) -> BrowserContext:
        return self._browser.new_context(viewport=_VIEWPORT, storage_state=self._state)  # type: ignore[arg-type]


def grid(
    visit: Visit, cost: Cost, name: str, route: str, cards: int, repeats: int
) -> tuple[dict[str, Timing], dict[str, Any], str, str]:
    """First paints, and a scroll to the end. Timings, figures, the addresses of the first card and the last's text."""
    paints = []
    figures: dict[str, Any] = {}
    cost()
    for repeat in range(repeats):
        context = visit.fresh()
        page = context.new_page()
        traffic = Traffic(page)
        paints.append(first_paint(page, f"{visit.url}{route}", cards))
        if repeat == 0:
            figures |= traffic.figures(f"{name}_first")
        if repeat < repeats - 1:
            context.close()
    figures[f"{name}_first_server_cpu_seconds"] = cost() / repeats
    link = page.locator(".card a").first
    first = str(link.get_attribute("href")) if link.count() else ""
    frames, scrolled, last = scroll_through(page, name, cards)
    figures |= scrolled | traffic.figures(name) | {f"{name}_scroll_server_cpu_seconds": cost()}
    context.close()
    painted, pictured = ([each[part] for each in paints] for part in (0, 1))
    figures |= {f"{name}_first_paint_seconds": float(np.median(painted))}
    figures |= {f"{name}_first_pictures_seconds": float(np.median(pictured))}
    timings = {f"{name}_first_paint": Timing(painted), f"{name}_first_pictures": Timing(pictured)}
    return {**timings, f"{name}_frame": spread(frames)}, figures, first, last


Pair = tuple[str, str]


def review(
    page: Page, visit: Visit, cost: Cost, pairs: int
) -> tuple[dict[str, Timing], dict[str, Any], dict[Pair, str]]:
    """All pairs answered. Timings, figures, and the answers."""
    traffic = Traffic(page)
    cost()
    _, pictured = first_paint(page, f"{visit.url}#/review", 2, ".pair section")
    figures: dict[str, Any] = {"review_first_pictures_seconds": pictured}
    figures["review_first_pair_server_cpu_seconds"] = cost()
    before = traffic.requests.copy()
    answers: dict[Pair, str] = {}
    shown, answered, spent = [], [], []
    for number in range(pairs):
        one, other = page.evaluate(_PAIR)
        answers[one, other] = key = ANSWERS[number % len(ANSWERS)]
        for times, seconds in zip((shown, answered), press(page, key), strict=True):
            times.append(seconds)
        spent.append(cost())
    assert len(answers) == pairs
    page.get_by_text("There is no pair to answer").wait_for()
    made = traffic.requests - before
    named = {"next_pair": shown, "answer": answered, "answer_server_cpu": spent}
    for name, seconds in named.items():
        figures[f"review_{name}_p50_seconds"] = float(np.median(seconds))
        figures[f"review_{name}_longest_seconds"] = max(seconds)
    figures |= {"review_server_cpu_seconds": sum(spent) + cost(), "review_pairs": pairs}
    figures |= {f"review_requests_per_answer_{kind}": made[kind] / pairs for kind in ("api", "pictures")}
    return {f"review_{name}": Timing(seconds) for name, seconds in named.items()}, figures, answers


def roots_of(store: Path) -> dict[str, str]:
    """By person, who is one."""
    with open_store(store, command="bench") as remote:
        (account_id,) = (row.account_id for row in remote.accounts() if row.account == USER)
        rows = remote.people(account_id, "main", counted=False).to_pylist()
    return {row["person_id"]: row["root_person_id"] for row in rows}


def check_joined(answers: Mapping[Pair, str], roots: Mapping[str, str], joining: str) -> None:
    """The pairs of these answers are one person each, the others two."""
    for (one, other), answer in answers.items():
        together = roots.get(one, one) == roots.get(other, other)
        assert together == (answer in joining), f"{answer}: {one} {other}"


def check_asked(answers: Mapping[Pair, str], asked: Sequence[Sequence[str]]) -> None:
    """No pair is asked about that was called two people."""
    rejected = {frozenset(pair) for pair, answer in answers.items() if answer == "n"}
    again = rejected & {frozenset(pair) for pair in asked}
    assert not again, f"asked again: {again}"


def crowd(faces: int) -> tuple[bytes, pa.Table]:
    """A photo, and its faces side by side in rows."""
    table = Pictures().table([Shown(k, 0, 0.9 if k % _NOBODYS else 0.1) for k in range(faces)])
    across, down = np.arange(faces) % _CROWD_COLUMNS * _CELL_PX, np.arange(faces) // _CROWD_COLUMNS * _CELL_PX
    for name, start in {"x1": across, "y1": down, "x2": across + 40, "y2": down + 40}.items():
        table = table.set_column(table.column_names.index(name), name, pa.array(start, pa.float32()))
    file = BytesIO()
    with Image.open(BytesIO(portrait())) as image:
        size = _CROWD_COLUMNS * _CELL_PX, int(down[-1]) + _CELL_PX
        image.convert("RGB").resize(size).save(file, "JPEG", quality=90)
    return file.getvalue(), table


def photo_of_crowd(browser: Browser, faces: int) -> dict[str, Any]:
    """Opened, and gone through by arrow keys."""
    with TemporaryDirectory() as folder:
        store, photos = Path(folder) / "store", Path(folder) / "photos"
        with make_store(store, SIZE, ((1e-5, NARROW), (1e-3, WIDE))) as client:
            data, table = crowd(faces)
            extracted_photos(client, "crowd", [data], [table], 1, folder=photos, threshold=NARROW)
        with serving(store, _CROP_BYTES, "--threshold", str(NARROW), "--photo-roots", str(photos)) as server:
            hand_over(store, "crowd")
            visit = Visit(browser, server)
            page = visit.fresh().new_page()
            page.goto(f"{visit.url}#/unassigned")
            page.wait_for_load_state("networkidle")
            page.locator(".card button").first.focus()
            traffic = Traffic(page)
            opened = open_photo(page, faces)
            listed = page.get_by_role("list", name="Faces on the photo").get_by_role("listitem")
            assert listed.count() == faces, f"{listed.count()} of {faces} faces are listed"
            nobodys = -(-faces // _NOBODYS)
            frames = go_through(page, nobodys - 1)
            assert page.get_by_role("button", name="Next").is_disabled(), "the last face was not reached"
            figures = {"faces": faces, "opened_seconds": opened, **frame_figures(frames)}
            return {f"crowd_{name}": value for name, value in figures.items()} | traffic.figures("crowd")


def measure(store: Path, photos: Path, args: argparse.Namespace) -> tuple[dict[str, Timing], dict[str, Any]]:
    figures: dict[str, Any] = {"load_average_before": os.getloadavg()[0]}
    options = ("--threshold", str(NARROW), "--photo-roots", str(photos))
    with serving(store, _CROP_BYTES, *options) as server, launched() as browser:
        cost = Cost(server)
        figures |= {"chromium": browser.version, "server_rss_start_bytes": server.rss_bytes()}
        visit = Visit(browser, server)
        people, found, first, last = grid(visit, cost, "people", "", args.people, args.repeats)
        assert "1 photo" in last.split("\n"), last
        figures |= found | {"server_rss_people_bytes": server.rss_bytes()}
        faces, found, *_ = grid(visit, cost, "faces", first, args.faces, args.repeats)
        figures |= found | {"server_rss_faces_bytes": server.rss_bytes()}
        page = visit.fresh().new_page()
        answered, found, answers = review(page, visit, cost, args.pairs)
        figures |= found
        check_joined(answers, roots_of(store), "s")
        cost()
        begun = time.monotonic()
        ask(store, "regroup", "--threshold", str(WIDE), "--yes")
        figures |= {"regroup_seconds": time.monotonic() - begun, "regroup_server_cpu_seconds": cost()}
        asked = page.evaluate(_ALL_PAIRS)
        figures |= {"review_after_pairs": len(asked), "review_after_server_cpu_seconds": cost()}
        check_joined(answers, roots_of(store), "sk")
        check_asked(answers, asked)
        figures |= photo_of_crowd(browser, args.crowd)
        figures |= {f"answered_{key}": list(answers.values()).count(key) for key in sorted(set(ANSWERS))}
        figures |= {"server_rss_end_bytes": server.rss_bytes(), "server_rss_peak_bytes": server.rss_bytes(peak=True)}
    return people | faces | answered, figures | {"load_average_after": os.getloadavg()[0]}


def main() -> None:
    parser = argument_parser(__doc__)
    parser.add_argument("--people", type=int, default=10_000)
    parser.add_argument("--pairs", type=int, default=100, help="of people who may be one")
    parser.add_argument("--faces", type=int, default=20_000, help="of the one who has most")
    parser.add_argument("--crowd", type=int, default=500, help="faces of one photo")
    parser.add_argument("--only-crowd", action="store_true", help="opens only that photo")
    parser.add_argument("--repeats", type=int, default=5, help="of each first paint")
    parser.add_argument("--template", type=Path, help="keeps the prepared store here, or takes it from here")
    args = parser.parse_args()
    if args.only_crowd:
        with launched() as browser:
            print(json.dumps(photo_of_crowd(browser, args.crowd), indent=1))
        return
    with copied(args.template, lambda store, photos: prepared(store, photos, args)) as (store, photos):
        timings, figures = measure(store, photos, args)
    write_result("page", settings_of(args), timings, figures, args)


if __name__ == "__main__":
    main()
